//! What time it is. The only place that asks the operating system, so that tests can say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use protocol::value::Timestamp;

/// A source of wall-clock time. Durations are measured with tokio's clock, which tests can pause.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The operating system's.
    System,
    /// One that stands until it is set: microseconds since 1970.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let micros = match self {
            Self::System => system_micros(),
            Self::Manual(micros) => micros.load(Ordering::SeqCst),
        };
        Timestamp::try_new(micros).unwrap_or(Timestamp::MAX)
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
fn system_micros() -> u64 {
    // A clock before 1970 counts as 1970.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}
