//! What is searched for, and what is found.

use std::fmt;

use protocol::SubmissionKind;
use protocol::value::{Designation, OrderNumber, Problem, ReplyId, SourceId, SubmissionId, ValueError};
use serde::{Deserialize, Serialize};

/// The most characters that may be searched for.
pub const MAX_SEARCH_CHARS: usize = 1_000;
/// The longest excerpt, in characters.
pub const MAX_EXCERPT_CHARS: usize = 200;
/// The most hits that one search gives.
pub const MAX_HITS: u32 = 1_000;

/// What a person searches for, as they typed it: 1 to 1,000 characters, not blank.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct SearchWords(String);

impl SearchWords {
    /// Checks the length.
    ///
    /// # Errors
    /// [`ValueError`] when it is blank or too long.
    pub fn try_new(words: impl Into<String>) -> Result<Self, ValueError> {
        let words = words.into();
        let problem = if words.trim().is_empty() {
            Problem::Empty
        } else if words.chars().nth(MAX_SEARCH_CHARS).is_some() {
            Problem::TooLong { max: MAX_SEARCH_CHARS, unit: "characters" }
        } else {
            return Ok(Self(words));
        };
        Err(ValueError { what: "what is searched for", problem })
    }

    /// What was typed.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SearchWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SearchWords({} bytes)", self.0.len())
    }
}

impl TryFrom<String> for SearchWords {
    type Error = ValueError;

    fn try_from(words: String) -> Result<Self, ValueError> {
        Self::try_new(words)
    }
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hit {
    /// The source, or whose conversation the item is in.
    pub source: SourceId,
    /// That source's designation.
    pub designation: Designation,
    /// What was found.
    pub place: HitPlace,
}

/// Where something was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HitPlace {
    /// In the source's designation.
    Designation,
    /// In a message, or in the name of a file.
    Submission {
        /// Which one.
        id: SubmissionId,
        /// Whether it is a message or a file.
        kind: SubmissionKind,
        /// Its place in the conversation.
        order: OrderNumber,
        /// What it says there, or its name.
        excerpt: Excerpt,
    },
    /// In a reply.
    Reply {
        /// Which one.
        id: ReplyId,
        /// Its place in the conversation.
        order: OrderNumber,
        /// What it says there.
        excerpt: Excerpt,
    },
}

/// A part of a text, around what was searched for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excerpt {
    /// The part, as it came: at most [`MAX_EXCERPT_CHARS`] characters.
    pub text: String,
    /// Where in it something is that was searched for: first byte, and the one behind the last; in their order, apart.
    pub matches: Vec<(u32, u32)>,
    /// Whether the text goes on before it.
    pub cut_before: bool,
    /// Whether it goes on after it.
    pub cut_after: bool,
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Excerpt({} bytes, {} matches)", self.text.len(), self.matches.len())
    }
}

/// How many hits there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HitCount {
    /// So many.
    Exactly(u64),
    /// So many, and perhaps more: to look at them all would take too long.
    AtLeast(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_has_one_to_a_thousand_characters() {
        assert!(SearchWords::try_new("海".repeat(MAX_SEARCH_CHARS)).is_ok());
        for words in ["", " \n", &"海".repeat(MAX_SEARCH_CHARS + 1)] {
            assert!(SearchWords::try_new(words).is_err());
        }
    }

    #[test]
    fn no_text_shows_when_a_search_is_printed_for_developers() {
        let excerpt = Excerpt { text: "at nine".to_owned(), matches: vec![(3, 7)], cut_before: true, cut_after: false };
        let printed = format!("{:?} {excerpt:?}", SearchWords::try_new("nine").unwrap());
        assert_eq!(printed, "SearchWords(4 bytes) Excerpt(7 bytes, 1 matches)");
    }
}
