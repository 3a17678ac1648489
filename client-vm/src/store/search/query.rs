//! What a person searches for, read from what they typed.

use std::collections::VecDeque;
use std::ops::Range;

use control::SearchWords;

use super::words::{Word, words};

/// The most words and phrases that one search may have.
pub const MAX_TERMS: usize = 32;

/// What was typed cannot be searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// There is no letter and no digit in it.
    #[error("there is no word in what is searched for: give one with letters or digits")]
    NoWord,
    /// It has too many words.
    #[error("more than {MAX_TERMS} words are searched for: leave some out, or put them in quotes as a phrase")]
    TooManyWords,
}

/// Words and phrases, all of which are to be there.
#[derive(Clone, PartialEq, Eq)]
pub struct Query {
    terms: Vec<Term>,
}

/// Words that follow each other.
#[derive(Clone, PartialEq, Eq)]
struct Term {
    words: Vec<String>,
    /// Whether the last one may go on.
    open: bool,
}

impl Query {
    /// Reads words, phrases in quotes, and beginnings that end in a star. There is nothing else to be said: every other
    /// character only parts words. A quote that is not closed is closed at the end.
    ///
    /// # Errors
    /// [`QueryError`].
    pub fn parse(typed: &SearchWords) -> Result<Self, QueryError> {
        let (mut terms, mut phrase) = (Vec::new(), None);
        for (number, part) in typed.as_str().split('"').enumerate() {
            // Every second part is in quotes.
            if number % 2 == 1 {
                phrase = Term::of(part);
                continue;
            }
            if let Some(mut phrase) = phrase.take() {
                phrase.open |= part.starts_with('*');
                terms.push(phrase);
            }
            terms.extend(part.split_whitespace().filter_map(Term::of));
        }
        terms.extend(phrase);
        match terms.len() {
            0 => Err(QueryError::NoWord),
            count if count > MAX_TERMS => Err(QueryError::TooManyWords),
            _ => Ok(Self { terms }),
        }
    }

    /// The query in the language of FTS5: strings in quotes, whose words hold no ASCII but letters and digits.
    pub(super) fn expression(&self) -> String {
        let phrase = |term: &Term| format!("\"{}\"{}", term.words.join(" "), if term.open { " *" } else { "" });
        self.terms.iter().map(phrase).collect::<Vec<_>>().join(" AND ")
    }

    /// Whether all that is searched for is in a text.
    pub(super) fn fits(&self, text: &str) -> bool {
        let words: Vec<_> = words(text).collect();
        self.terms.iter().all(|term| (0..=words.len()).any(|end| term.ends(words.iter().take(end))))
    }

    /// Where in a text something is that is searched for, in bytes, by where it ends.
    pub(super) fn places(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        let longest = self.terms.iter().map(|term| term.words.len()).max().unwrap_or_default();
        let mut last = VecDeque::with_capacity(longest);
        words(text).filter_map(move |word| {
            if last.len() >= longest {
                last.pop_front();
            }
            let end = word.at.end;
            last.push_back(word);
            let fitting = self.terms.iter().filter(|term| term.ends(last.iter()));
            let length = fitting.map(|term| term.words.len()).max()?;
            let first = last.len().checked_sub(length).and_then(|first| last.get(first))?;
            Some(first.at.start..end)
        })
    }
}

impl Term {
    fn of(typed: &str) -> Option<Self> {
        let typed = typed.trim_end();
        let words: Vec<_> = words(typed).map(|word| word.compared).collect();
        (!words.is_empty()).then(|| Self { words, open: typed.ends_with('*') })
    }

    /// Whether these words end in it.
    fn ends<'a>(&self, words: impl DoubleEndedIterator<Item = &'a Word> + ExactSizeIterator) -> bool {
        if words.len() < self.words.len() {
            return false;
        }
        let mut open = self.open;
        self.words.iter().rev().zip(words.rev()).all(|(wanted, word)| {
            let goes_on = std::mem::replace(&mut open, false);
            if goes_on { word.compared.starts_with(wanted.as_str()) } else { word.compared == *wanted }
        })
    }
}

impl std::fmt::Debug for Query {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Query({} terms)", self.terms.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(typed: &str) -> Result<String, QueryError> {
        Query::parse(&SearchWords::try_new(typed).unwrap()).map(|query| query.expression())
    }

    fn query(typed: &str) -> Query {
        Query::parse(&SearchWords::try_new(typed).unwrap()).unwrap()
    }

    #[test]
    fn words_phrases_and_beginnings_are_read_and_nothing_else_is() {
        for (typed, expression) in [
            ("calm sea", r#""calm" AND "sea""#),
            (r#""calm sea" x"#, r#""calm sea" AND "x""#),
            ("cal*", r#""cal" *"#),
            (r#""calm se*""#, r#""calm se" *"#),
            (r#""calm se"* y"#, r#""calm se" * AND "y""#),
            (r#"x ""* "y" *"#, r#""x" AND "y""#),
            (r#"a"b c"d"#, r#""a" AND "b c" AND "d""#),
            (r#""calm sea"#, r#""calm sea""#),
            ("don't", r#""don t""#),
            ("北京 上*", "\"北 京\" AND \"上\" *"),
            ("x - * . y", r#""x" AND "y""#),
            ("NEAR(a b) OR words:c", r#""near a" AND "b" AND "or" AND "words c""#),
            ("^a + b\0c", r#""a" AND "b c""#),
        ] {
            assert_eq!(parse(typed).as_deref(), Ok(expression), "{typed}");
        }
    }

    #[test]
    fn what_has_no_word_or_too_many_is_refused() {
        for typed in ["*", "\"\"", "-- ...", "\u{1f600}", "\"*\" *"] {
            assert_eq!(parse(typed), Err(QueryError::NoWord), "{typed}");
        }
        assert!(parse(&"a ".repeat(MAX_TERMS)).is_ok());
        assert_eq!(parse(&"a ".repeat(MAX_TERMS + 1)), Err(QueryError::TooManyWords));
        // A phrase is one.
        assert!(parse(&format!("\"{}\"", "a ".repeat(400))).is_ok());
    }

    #[test]
    fn a_text_fits_when_all_is_there() {
        let text = "Calm sea, calm seals and a don't";
        for typed in ["sea calm", "\"calm sea\"", "seal*", "\"calm seal*\"", "don't and", "\"a don\""] {
            assert!(query(typed).fits(text), "{typed}");
        }
        for typed in ["seal", "\"sea and\"", "\"seals calm\"", "calm storm", "\"ca* sea\""] {
            assert!(!query(typed).fits(text), "{typed}");
        }
        assert!(!query("x").fits(""));
    }

    #[test]
    fn places_are_those_of_the_words_in_the_text() {
        let text = "é Calm SE\u{c1} – calm seals";
        let found: Vec<_> = query("\"calm sea\" seal*").places(text).map(|at| text.get(at).unwrap()).collect();
        assert_eq!(found, ["Calm SE\u{c1}", "seals"]);
        let found: Vec<_> = query("海鸥").places("海鸥飞海").collect();
        assert!(found.len() == 1 && found.first() == Some(&(0..6)), "{found:?}");
    }

    #[test]
    fn what_is_searched_for_does_not_show_when_it_is_printed_for_developers() {
        assert_eq!(format!("{:?}", query("calm sea")), "Query(2 terms)");
    }
}
