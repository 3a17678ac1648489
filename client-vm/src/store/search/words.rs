//! The words of a text, as they are searched for: what the index holds, what a query asks for, and where in a text either is.
//!
//! A word is a run of letters, digits, marks and private characters. Scripts that are written without spaces have no
//! runs to part: there each character is a word, and several of them are found as they follow each other. Words are
//! compared without their case, their compatible forms (wide letters, ligatures) and the marks that people leave out:
//! accents, the points of Hebrew, the vowels of Arabic. Marks that are letters to their readers stay, as in Hindi and Thai.
//! Invisible characters inside a word change nothing.
//!
//! **Invariant:** everything that is compared comes from [`words`], so that index, query and emphasis cannot differ.

use std::ops::Range;

use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};
use icu_properties::CodePointMapData;
use icu_properties::props::{GeneralCategory, GeneralCategoryGroup, Script};

/// The longest word, in characters. What is longer is several words that follow each other.
const MAX_WORD: usize = 64;

const CATEGORY: icu_properties::CodePointMapDataBorrowed<'static, GeneralCategory> = CodePointMapData::new();
const SCRIPT: icu_properties::CodePointMapDataBorrowed<'static, Script> = CodePointMapData::new();
const DECOMPOSED: DecomposingNormalizerBorrowed<'static> = DecomposingNormalizerBorrowed::new_nfkd();
const COMPOSED: ComposingNormalizerBorrowed<'static> = ComposingNormalizerBorrowed::new_nfc();

/// The scripts without spaces between words: the ideographs and syllables of East Asia, and those of South East Asia that
/// Unicode's line breaking (UAX 14, class SA) leaves to dictionaries.
const WITHOUT_SPACES: [Script; 17] = [
    Script::Han,
    Script::Hiragana,
    Script::Katakana,
    Script::Bopomofo,
    Script::Yi,
    Script::Tangut,
    Script::Nushu,
    Script::KhitanSmallScript,
    Script::Thai,
    Script::Lao,
    Script::Khmer,
    Script::Myanmar,
    Script::TaiLe,
    Script::NewTaiLue,
    Script::TaiTham,
    Script::TaiViet,
    Script::Ahom,
];

/// A word of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// Where it is, in bytes.
    pub(super) at: Range<usize>,
    /// As it is compared. Never empty; no ASCII in it but small letters and digits.
    pub(super) compared: String,
}

/// The words of a text, in their order.
pub(super) fn words(text: &str) -> impl Iterator<Item = Word> {
    let mut rest = text.char_indices();
    let mut next = rest.next();
    std::iter::from_fn(move || {
        loop {
            let (start, first) = next?;
            let end = |at: usize, character: char| at.saturating_add(character.len_utf8());
            let part = Part::of(first);
            next = rest.next();
            if !matches!(part, Part::Letter | Part::Alone) {
                continue;
            }
            let (mut run, mut count, mut until) = (String::from(first), 1_usize, end(start, first));
            while let Some((at, character)) = next {
                match Part::of(character) {
                    Part::Letter if part == Part::Alone || count >= MAX_WORD => break,
                    Part::Letter | Part::Mark => {
                        // Marks in excess are no part of a word.
                        if count < MAX_WORD {
                            run.push(character);
                        }
                        count = count.saturating_add(1);
                        until = end(at, character);
                    }
                    Part::Invisible => {}
                    Part::Alone | Part::Other => break,
                }
                next = rest.next();
            }
            let compared = compared(&run);
            if !compared.is_empty() {
                return Some(Word { at: start..until, compared });
            }
        }
    })
}

/// The words of a text as the index holds them.
pub(super) fn indexed(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for word in words(text) {
        if !all.is_empty() {
            all.push(' ');
        }
        all.push_str(&word.compared);
    }
    all
}

/// What a character is to a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Makes words with its neighbours.
    Letter,
    /// Is a word, with its marks.
    Alone,
    /// Belongs to what is before it.
    Mark,
    /// Shows nothing, and parts nothing.
    Invisible,
    /// Parts words.
    Other,
}

impl Part {
    fn of(character: char) -> Self {
        if character.is_ascii() {
            return if character.is_ascii_alphanumeric() { Self::Letter } else { Self::Other };
        }
        // The signs for a long vowel are common to two scripts, and so of neither.
        if matches!(character, '\u{30fc}' | '\u{ff70}') {
            return Self::Alone;
        }
        if matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}') {
            return Self::Invisible;
        }
        // The narrow forms of two marks.
        if matches!(character, '\u{ff9e}' | '\u{ff9f}') {
            return Self::Mark;
        }
        let category = CATEGORY.get(character);
        if GeneralCategoryGroup::Mark.contains(category) {
            Self::Mark
        } else if category == GeneralCategory::PrivateUse {
            Self::Letter
        } else if GeneralCategoryGroup::Letter.contains(category) || GeneralCategoryGroup::Number.contains(category) {
            if WITHOUT_SPACES.contains(&SCRIPT.get(character)) { Self::Alone } else { Self::Letter }
        } else {
            Self::Other
        }
    }
}

/// A word without what is not compared.
fn compared(run: &str) -> String {
    if run.is_ascii() {
        return run.to_ascii_lowercase();
    }
    // By way of the capitals, so that all small forms of a letter become one.
    let folded = DECOMPOSED.normalize_iter(run.chars()).flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    let kept = DECOMPOSED.normalize_iter(folded).filter(|character| match Part::of(*character) {
        Part::Letter | Part::Alone => true,
        Part::Mark => !is_left_out(*character),
        Part::Invisible | Part::Other => false,
    });
    COMPOSED.normalize_iter(kept).collect()
}

/// Whether a mark is one that people leave out when they write: accents of Latin, Greek and Cyrillic letters, Hebrew points
/// and signs for reading aloud, vowels and signs of Arabic, and what only chooses a glyph. By Unicode's blocks.
fn is_left_out(mark: char) -> bool {
    matches!(mark,
        '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{591}'..='\u{5c7}' | '\u{610}'..='\u{61a}'
        | '\u{64b}'..='\u{65f}' | '\u{670}' | '\u{6d6}'..='\u{6ed}' | '\u{8ca}'..='\u{8ff}' | '\u{1ab0}'..='\u{1aff}'
        | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{fe20}'..='\u{fe2f}'
        | '\u{180b}'..='\u{180f}' | '\u{e0100}'..='\u{e01ef}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is compared, each word by itself.
    fn of(text: &str) -> Vec<String> {
        words(text).map(|word| word.compared).collect()
    }

    #[test]
    fn words_are_runs_of_letters_and_digits_in_any_case() {
        assert_eq!(of("The 4th box, left-hand: O'Neil_7!"), ["the", "4th", "box", "left", "hand", "o", "neil", "7"]);
        assert_eq!(of(" \n\t.,;*\"()"), [] as [&str; 0]);
        assert_eq!(indexed("The 4th box"), "the 4th box");
        // Names for things that no standard has are letters to those who use them.
        assert_eq!(of("\u{e000}\u{e001} x"), ["\u{e000}\u{e001}", "x"]);
    }

    #[test]
    fn what_people_write_in_different_ways_is_one_word() {
        for (one, other) in [
            ("caf\u{e9}", "CAFE\u{301}"),
            ("Straße", "STRASSE"),
            ("\u{3a3}\u{3af}\u{3c3}\u{3c5}\u{3c6}\u{3bf}\u{3c2}", "\u{3c3}\u{3b9}\u{3c3}\u{3c5}\u{3c6}\u{3bf}\u{3c3}"),
            ("МОСКВА", "москва"),
            ("ёлка", "елка"),
            ("\u{130}zmir", "izmir"),
            ("DIYARBAKIR", "diyarbak\u{131}r"),
            ("\u{ff21}\u{ff42}\u{ff13}", "ab3"),
            ("\u{fb01}le", "file"),
            ("\u{1d400}bc", "abc"),
            ("\u{5e9}\u{5c1}\u{5b8}\u{5dc}\u{5d5}\u{5b9}\u{5dd}", "\u{5e9}\u{5dc}\u{5d5}\u{5dd}"),
            ("\u{643}\u{650}\u{62a}\u{627}\u{628}", "\u{643}\u{62a}\u{627}\u{628}"),
            (
                "\u{645}\u{6cc}\u{200c}\u{62e}\u{648}\u{627}\u{647}\u{645}",
                "\u{645}\u{6cc}\u{62e}\u{648}\u{627}\u{647}\u{645}",
            ),
            ("se\u{ad}cret", "sec\u{200b}ret"),
            ("\u{d55c}\u{ad6d}\u{c5b4}", "\u{1112}\u{1161}\u{11ab}\u{1100}\u{116e}\u{11a8}\u{110b}\u{1165}"),
            ("\u{ff76}\u{ff9e}", "\u{30ac}"),
        ] {
            assert_eq!(of(one), of(other), "{one} {other}");
            assert!(!of(one).is_empty());
        }
        // Other letters stay other letters.
        for (one, other) in [("\u{304b}", "\u{304c}"), ("का", "की"), ("й", "ф"), ("\u{661}", "\u{662}")] {
            assert_ne!(of(one), of(other), "{one} {other}");
        }
    }

    #[test]
    fn marks_that_are_letters_to_their_readers_stay() {
        assert_eq!(
            of("\u{939}\u{93f}\u{928}\u{94d}\u{926}\u{940} भाषा"),
            ["\u{939}\u{93f}\u{928}\u{94d}\u{926}\u{940}", "भाषा"]
        );
        assert_eq!(of("தமிழ்"), ["தமிழ்"]);
    }

    #[test]
    fn scripts_without_spaces_are_parted_by_their_characters() {
        assert_eq!(of("北京abc上"), ["北", "京", "abc", "上"]);
        assert_eq!(of("コーヒーを"), ["コ", "ー", "ヒ", "ー", "を"]);
        assert_eq!(of("กิน"), ["กิ", "น"]);
        assert_eq!(of("မြို့"), ["မြို့"]);
        // Korean has spaces.
        assert_eq!(of("한국어 검색"), ["한국어", "검색"]);
    }

    #[test]
    fn pictures_and_marks_upon_nothing_are_no_words() {
        assert_eq!(of("\u{1f600} \u{2764}\u{fe0f} \u{301} \u{200d}"), [] as [&str; 0]);
        assert_eq!(of("so\u{1f600}so"), ["so", "so"]);
    }

    #[test]
    fn a_word_without_end_is_many_and_marks_in_excess_are_none() {
        let long = "a".repeat(1_000);
        assert!(words(&long).all(|word| word.compared.len() <= MAX_WORD) && of(&long).concat() == long);
        let painted = format!("a{}b", "\u{94d}".repeat(10_000));
        assert!(words(&painted).all(|word| word.compared.chars().count() <= MAX_WORD));
    }

    proptest! {
        #[test]
        fn words_are_where_they_say_and_mean_the_same_there(text in any::<String>()) {
            let mut before = 0;
            for word in words(&text) {
                prop_assert!(word.at.start >= before && word.at.end > word.at.start);
                before = word.at.end;
                let there: Vec<_> = of(text.get(word.at.clone()).unwrap());
                prop_assert_eq!(there, [word.compared.clone()]);
                let ascii_is_plain = |it: char| !it.is_ascii() || it.is_ascii_lowercase() || it.is_ascii_digit();
                prop_assert!(word.compared.chars().all(ascii_is_plain));
            }
        }
    }
}
