//! The staging environment's time, which tests set and move.
//!
//! A [`Clock`] is a handle: its clones share one time. It says which moment it is; it wakes nobody. Delays on
//! connections are tokio's business.
//!
//! **Invariant:** this is the only module of the package that asks the machine what time it is.
//!
//! **Invariant:** whoever holds a clone sees an advance at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// What [`Clock::now`] counts from.
#[derive(Debug, Clone, Copy)]
enum Base {
    System,
    Fixed(Timestamp),
}

#[derive(Debug)]
struct State {
    base: Base,
    offset: SignedDuration,
}

/// A shared clock that tests can hold still and move.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Mutex<State>>);

impl Clock {
    /// The machine's time; an advance is added to it.
    pub fn system() -> Self {
        Self::with_base(Base::System)
    }

    /// A clock that stands at `start` until it is moved.
    pub fn fixed(start: Timestamp) -> Self {
        Self::with_base(Base::Fixed(start))
    }

    fn with_base(base: Base) -> Self {
        Self(Arc::new(Mutex::new(State { base, offset: SignedDuration::ZERO })))
    }

    /// The present moment. Saturates at the end of time rather than failing.
    pub fn now(&self) -> Timestamp {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let base = match state.base {
            Base::System => Timestamp::now(),
            Base::Fixed(at) => at,
        };
        base.checked_add(state.offset).unwrap_or(Timestamp::MAX)
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.offset = state.offset.saturating_add(by);
    }

    /// Holds the clock still at `at`, earlier or later.
    pub fn set(&self, at: Timestamp) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.base = Base::Fixed(at);
        state.offset = SignedDuration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_clock_moves_only_when_told_and_for_every_holder() {
        let start = Timestamp::constant(1_700_000_000, 0);
        let clock = Clock::fixed(start);
        let other = clock.clone();
        assert_eq!(clock.now(), start);
        other.advance(Duration::from_secs(90));
        assert_eq!(clock.now().as_second(), 1_700_000_090);
        clock.set(start);
        assert_eq!(other.now(), start);
    }

    #[test]
    fn the_system_clock_can_run_ahead() {
        let ahead = Clock::system();
        ahead.advance(Duration::from_secs(1_000_000));
        assert!(ahead.now() > Clock::system().now());
    }

    #[test]
    fn an_absurd_advance_saturates() {
        let clock = Clock::fixed(Timestamp::UNIX_EPOCH);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Timestamp::MAX);
    }
}
