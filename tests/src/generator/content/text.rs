//! Text out of the generator's words, and noise.

use super::super::prng::Prng;
use super::super::words::all_words;
use super::{Pieces, length_of};

/// About how long a piece of text is, in bytes.
const PIECE: usize = 4 * 1024;
/// How long a piece of noise is, in bytes: as much as a stored block of deflate holds.
pub(super) const NOISE_PIECE: u64 = 65_535;
/// How every text begins, so that none is all ASCII.
const OPENINGS: [&str; 6] = ["Café: ", "夏に, ", "Łódź – ", "Αθήνα, ", "Dès ", "«Så» "];
const VERBS: [&str; 8] = ["keeps", "hides", "pays for", "wrote to", "never saw", "has read", "outlived", "blames"];
const ENDS: [&str; 6] = [". ", "; ", "? ", "! ", " – naïve, déjà vu. ", ".\n\n"];

/// UTF-8 of an exact length.
pub(super) struct Text {
    prng: Prng,
    adjectives: Vec<&'static str>,
    nouns: Vec<&'static str>,
    left: u64,
    begun: bool,
}

impl Text {
    pub(super) fn new(seed: u64, length: u64) -> Self {
        let (adjectives, nouns) = all_words();
        Self { prng: Prng::new(seed), adjectives, nouns, left: length, begun: false }
    }

    fn sentence(&mut self, text: &mut String) {
        let mut word = |words: &[&'static str]| self.prng.pick(words).copied().unwrap_or_default();
        let words = [
            "the ",
            word(&self.adjectives),
            " ",
            word(&self.nouns),
            " ",
            word(&VERBS),
            " the ",
            word(&self.adjectives),
            " ",
            word(&self.nouns),
            word(&ENDS),
        ];
        text.extend(words);
    }
}

impl Pieces for Text {
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        if self.left == 0 {
            return None;
        }
        let mut text = String::with_capacity(PIECE + PIECE / 8);
        if !self.begun {
            self.begun = true;
            text.push_str(self.prng.pick(&OPENINGS).copied().unwrap_or_default());
        }
        while text.len() < PIECE && length_of(&text) < self.left {
            self.sentence(&mut text);
        }
        if length_of(&text) > self.left {
            // What is left is shorter than this text, so it is a length in memory.
            let wanted = usize::try_from(self.left).unwrap_or(usize::MAX);
            let whole = (0..=wanted).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(whole);
            text.extend((whole..wanted).map(|_| '.'));
        }
        self.left = self.left.saturating_sub(length_of(&text));
        Some(text.into_bytes())
    }
}

/// Bytes that do not compress.
pub(super) struct Noise {
    prng: Prng,
    left: u64,
}

impl Noise {
    pub(super) fn new(seed: u64, length: u64) -> Self {
        Self { prng: Prng::new(seed), left: length }
    }
}

impl Pieces for Noise {
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        if self.left == 0 {
            return None;
        }
        let length = self.left.min(NOISE_PIECE);
        self.left = self.left.saturating_sub(length);
        let length = usize::try_from(length).unwrap_or(0);
        let mut noise = Vec::with_capacity(length.saturating_add(8));
        while noise.len() < length {
            noise.extend_from_slice(&self.prng.next_u64().to_le_bytes());
        }
        noise.truncate(length);
        Some(noise)
    }
}
