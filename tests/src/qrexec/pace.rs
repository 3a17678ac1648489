//! How fast a call moves bytes.
//!
//! **Invariant:** over any number of pieces no more bytes a second pass than the bound says.

use std::num::NonZeroU64;
use std::time::Duration;

/// Bytes moved at once, as in one message of the real channel.
pub(super) const CHUNK: usize = 65_528;
/// Pieces a second that a bounded stream is cut into, if they are not larger than a message then.
const PIECES: u64 = 50;

/// The bound of one direction of a call; without one there are no pauses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace(pub(super) Option<NonZeroU64>);

impl Pace {
    /// The most bytes to move at once.
    pub(super) fn piece(self) -> usize {
        let bound = self.0.map(|rate| usize::try_from(rate.get().div_ceil(PIECES)).unwrap_or(CHUNK));
        bound.map_or(CHUNK, |bound| bound.clamp(1, CHUNK))
    }

    /// How long to rest after moving so many bytes.
    pub(super) fn rest(self, bytes: usize) -> Option<Duration> {
        let nanos = u128::try_from(bytes).ok()?.checked_mul(1_000_000_000)?.div_ceil(u128::from(self.0?.get()));
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_rests_keep_the_bound() {
        for (rate, piece, rest_of_piece) in [
            (1, 1, Duration::from_secs(1)),
            (100, 2, Duration::from_millis(20)),
            (1_000_000, 20_000, Duration::from_millis(20)),
            (65_528_000, CHUNK, Duration::from_millis(1)),
            (u64::MAX, CHUNK, Duration::from_nanos(1)),
        ] {
            let pace = Pace(NonZeroU64::new(rate));
            assert_eq!((pace.piece(), pace.rest(pace.piece())), (piece, Some(rest_of_piece)), "{rate}");
        }
        assert_eq!((Pace(None).piece(), Pace(None).rest(CHUNK)), (CHUNK, None));
    }
}
