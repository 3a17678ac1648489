//! Designations: two words, an adjective and a noun, by which journalists call a source.
//!
//! **Invariant:** the first [`Designations::count`] designations of one seed differ from each other. They run through
//! all pairs in an order that the seed shuffles, so that they neither repeat nor look like a list.

use super::prng::Prng;

const ADJECTIVES: &str = include_str!("adjectives.txt");
const NOUNS: &str = include_str!("nouns.txt");
/// How far one designation is from the next in the table of all pairs. A large prime, so that it shares no factor
/// with the table's size and the walk comes by every pair before it returns.
const STRIDE: usize = 1_000_003;

/// All adjectives, and all nouns.
pub(super) fn all_words() -> (Vec<&'static str>, Vec<&'static str>) {
    (ADJECTIVES.split_whitespace().collect(), NOUNS.split_whitespace().collect())
}

/// An endless supply of designations.
#[derive(Debug, Clone)]
pub struct Designations {
    adjectives: Vec<&'static str>,
    nouns: Vec<&'static str>,
    at: usize,
}

impl Designations {
    /// The supply that `prng` leads to.
    pub fn new(prng: &mut Prng) -> Self {
        let (adjectives, nouns) = all_words();
        let pairs = u64::try_from(adjectives.len().saturating_mul(nouns.len())).unwrap_or(0);
        let at = usize::try_from(prng.below(pairs)).unwrap_or(0);
        Self { adjectives, nouns, at }
    }

    /// How many designations come before the first one comes again.
    pub fn count(&self) -> usize {
        self.adjectives.len().saturating_mul(self.nouns.len())
    }

    /// The next designation: two words and a space between them.
    pub fn next_pair(&mut self) -> String {
        let count = self.count().max(1);
        self.at = self.at.wrapping_add(STRIDE).checked_rem(count).unwrap_or(0);
        let columns = self.nouns.len().max(1);
        let adjective = self.adjectives.get(self.at / columns).copied();
        let noun = self.nouns.get(self.at % columns).copied();
        format!("{} {}", adjective.unwrap_or("nameless"), noun.unwrap_or("source"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_designation_comes_twice_before_all_have_come() {
        let mut designations = Designations::new(&mut Prng::new(4));
        let count = designations.count();
        assert!(count > 20_000, "only {count} pairs");
        let all: HashSet<_> = (0..count).map(|_| designations.next_pair()).collect();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn a_designation_is_two_plain_words() {
        for text in [ADJECTIVES, NOUNS] {
            for word in text.split_whitespace() {
                assert!(word.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{word}");
            }
        }
        let pair = Designations::new(&mut Prng::new(4)).next_pair();
        assert_eq!(pair.split(' ').count(), 2, "{pair}");
    }
}
