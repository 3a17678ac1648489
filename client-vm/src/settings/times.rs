//! Times of the configuration.
//!
//! **Invariant:** a time that was meant in another unit is an error, with the range in it.

use std::time::Duration;

use protocol::Deadline;

use crate::store::outbox::Waits;

/// Times that are shorter were meant in another unit, in milliseconds: with them a client would sync without a pause, or take
/// undo away.
pub(super) const LEAST_MS: u32 = 1_000;
/// The same for the time that the proxy has for one act: with less no act would ever be known to have been done.
pub(super) const LEAST_DEADLINE_MS: u32 = 10_000;

/// A time of the configuration cannot be meant so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// It is out of its range.
    #[error("`{name}` in the configuration is not {least} to {max} milliseconds", max = Deadline::MAX_MS)]
    Range {
        /// Which.
        name: &'static str,
        /// The least that it may be.
        least: u32,
    },
    /// Waits would begin with more than the most.
    #[error("`first_wait_ms` in the configuration, {} milliseconds, is more than `most_wait_ms`, {}", .0.first.as_millis(), .0.most.as_millis())]
    Waits(Waits),
}

/// Which times are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Times {
    /// Those that somebody can mean.
    Useful,
    /// All but none. For staging.
    Any,
}

impl Times {
    pub(super) fn least(self, useful: u32) -> u32 {
        match self {
            Self::Useful => useful,
            Self::Any => 1,
        }
    }

    /// A time of the file, or the one that counts without it.
    pub(super) fn read(
        self,
        ms: Option<u32>,
        name: &'static str,
        least: u32,
        default: Duration,
    ) -> Result<Duration, TimeError> {
        let least = self.least(least);
        match ms {
            None => Ok(default),
            Some(ms) if (least..=Deadline::MAX_MS).contains(&ms) => Ok(Duration::from_millis(ms.into())),
            Some(_) => Err(TimeError::Range { name, least }),
        }
    }

    pub(super) fn waits(self, first_ms: Option<u32>, most_ms: Option<u32>, default: Waits) -> Result<Waits, TimeError> {
        let first = self.read(first_ms, "first_wait_ms", LEAST_MS, default.first)?;
        let most = self.read(most_ms, "most_wait_ms", LEAST_MS, default.most)?;
        let waits = Waits { first, most };
        if first <= most { Ok(waits) } else { Err(TimeError::Waits(waits)) }
    }
}
