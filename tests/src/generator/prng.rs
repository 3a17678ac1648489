//! The generator's dice: SplitMix64, the same on every machine and for ever.
//!
//! Its whole definition is the three lines of [`Prng::next_u64`], so a world depends on a seed and this file and on no
//! library's next release. It is not for secrets.

use crate::server::RecordId;

/// A small pseudo-random number generator with a 64-bit state.
#[derive(Debug, Clone)]
pub struct Prng(u64);

impl Prng {
    /// The generator that `seed` stands for.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, uniform over all of `u64`.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// True `times` in `of` times.
    pub fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// One of `choices`, or nothing when there is none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(choices.len()).unwrap_or(0);
        choices.get(usize::try_from(self.below(count)).unwrap_or(0))
    }

    /// A version 4 uuid.
    pub fn uuid(&mut self) -> RecordId {
        let wide = (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64());
        let uuid = uuid::Builder::from_random_bytes(wide.to_be_bytes()).into_uuid();
        RecordId::from(uuid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_is_pinned() {
        // The first numbers of SplitMix64 from 1234567, as its author's reference gives them.
        let mut prng = Prng::new(1_234_567);
        assert_eq!(prng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(prng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_it() {
        let mut prng = Prng::new(1);
        let seen: std::collections::BTreeSet<u64> = (0..200).map(|_| prng.below(5)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(prng.below(0), 0);
        assert_eq!(prng.pick::<u8>(&[]), None);
    }

    #[test]
    fn uuids_are_of_version_four() {
        let mut prng = Prng::new(9);
        let id = prng.uuid();
        assert_eq!(uuid::Uuid::parse_str(id.as_str()).unwrap().get_version_num(), 4);
    }
}
