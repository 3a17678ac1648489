//! How slow the way is.
//!
//! Each direction is a delay line and a rate. A byte that comes leaves the line `delay` later, however many came before
//! it, and then waits for its turn at the rate. So an exchange of HTTP whose request is sent without waiting for anything
//! costs exactly the two delays, once each, whatever its size, and what the rate adds. [`Shape::round_trip`] puts the
//! whole of it on the way there.
//!
//! All streams share the rate, as they share a circuit. A change holds for what comes from then on: what is in the line
//! keeps its time.
//!
//! **Invariant:** bytes at a rate go in pieces of a fiftieth of a second, so that slow is not the same as in jerks.

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::time::Instant;

use super::faults::Direction;

/// The largest piece that is written at once, in bytes.
const LARGEST_PIECE: u64 = 16 * 1024;
/// In how many pieces the bytes of one second go.
const PIECES_PER_SECOND: u64 = 50;
/// How much of the time in which nothing was sent is made up for.
const MADE_UP_FOR: Duration = Duration::from_millis(20);

/// How slow one direction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Way {
    /// How much later every byte arrives.
    pub delay: Duration,
    /// How many bytes a second all streams have together; without, as many as there are.
    pub rate: Option<NonZeroU64>,
}

/// How slow the way is. The default is as fast as the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    /// How much later the client hears what became of its request to connect.
    pub connect_delay: Duration,
    /// The way to the server.
    pub to_server: Way,
    /// The way back.
    pub to_client: Way,
}

impl Shape {
    /// A way on which a connection takes `delay` to be there, and each exchange takes `delay` longer than it would.
    #[must_use]
    pub fn round_trip(delay: Duration) -> Self {
        Self { connect_delay: delay, to_server: Way { delay, rate: None }, to_client: Way::default() }
    }

    /// The same with at most so many bytes a second in each direction.
    #[must_use]
    pub fn at_rate(mut self, bytes_per_second: NonZeroU64) -> Self {
        self.to_server.rate = Some(bytes_per_second);
        self.to_client.rate = Some(bytes_per_second);
        self
    }

    pub(super) fn way(&self, direction: Direction) -> Way {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

/// How many bytes are written at once, at most.
pub(super) fn piece(rate: Option<NonZeroU64>) -> u64 {
    rate.map_or(LARGEST_PIECE, |rate| (rate.get() / PIECES_PER_SECOND).clamp(1, LARGEST_PIECE))
}

/// When the next byte may go, in one direction.
#[derive(Debug, Default)]
pub(super) struct Pace {
    free: Option<Instant>,
}

impl Pace {
    /// When a piece of `bytes` may go; the pieces after it go later.
    pub(super) fn reserve(&mut self, now: Instant, bytes: u64, rate: NonZeroU64) -> Instant {
        // Sleeps end late; without this each would make the way slower than it should be.
        let earliest = now.checked_sub(MADE_UP_FOR).unwrap_or(now);
        let start = self.free.map_or(now, |free| free.max(earliest));
        let nanoseconds = u128::from(bytes).saturating_mul(1_000_000_000) / u128::from(rate.get());
        let takes = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        self.free = Some(start.checked_add(takes).unwrap_or(start));
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(bytes: u64) -> NonZeroU64 {
        NonZeroU64::new(bytes).unwrap()
    }

    #[test]
    fn pieces_are_small_where_the_rate_is() {
        assert_eq!(piece(None), LARGEST_PIECE);
        assert_eq!(piece(Some(rate(100_000))), 2_000);
        assert_eq!(piece(Some(rate(7))), 1);
        assert_eq!(piece(Some(NonZeroU64::MAX)), LARGEST_PIECE);
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_follow_each_other_at_the_rate() {
        let mut pace = Pace::default();
        let now = Instant::now();
        let starts: Vec<_> = (0..4).map(|_| pace.reserve(now, 2_000, rate(100_000)) - now).collect();
        assert_eq!(starts, [0, 20, 40, 60].map(Duration::from_millis));
    }

    #[tokio::test(start_paused = true)]
    async fn lateness_is_made_up_for_and_rest_is_not_saved() {
        let mut pace = Pace::default();
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        pace.reserve(start, 2_000, rate(100_000));
        // 5 ms late: the next is not.
        assert_eq!(pace.reserve(after(25), 2_000, rate(100_000)), after(20));
        assert_eq!(pace.reserve(after(30), 2_000, rate(100_000)), after(40));
        // After a long rest only one piece goes at once.
        assert_eq!(pace.reserve(after(10_000), 2_000, rate(100_000)), after(9_980));
        assert_eq!(pace.reserve(after(10_000), 2_000, rate(100_000)), after(10_000));
        assert_eq!(pace.reserve(after(10_000), 2_000, rate(100_000)), after(10_020));
    }

    #[tokio::test(start_paused = true)]
    async fn an_absurd_reservation_does_not_overflow() {
        let mut pace = Pace::default();
        let now = Instant::now();
        pace.reserve(now, u64::MAX, rate(1));
        assert!(pace.reserve(now, u64::MAX, rate(1)) >= now);
    }
}
