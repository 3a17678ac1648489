//! What a journalist writes to a source.

use std::fmt;

use protocol::value::{Problem, ValueError};
use serde::{Deserialize, Serialize};

/// The longest reply, in characters. What sources may send is bounded by the server in the same way.
pub const MAX_REPLY_CHARS: usize = 100_000;

/// What a journalist writes to a source: 1 to 100,000 characters, not blank.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ReplyText(String);

impl ReplyText {
    /// Checks the length.
    ///
    /// # Errors
    /// [`ValueError`] when it is blank or too long.
    pub fn try_new(text: impl Into<String>) -> Result<Self, ValueError> {
        let text = text.into();
        let problem = if text.trim().is_empty() {
            Problem::Empty
        } else if text.chars().nth(MAX_REPLY_CHARS).is_some() {
            Problem::TooLong { max: MAX_REPLY_CHARS, unit: "characters" }
        } else {
            return Ok(Self(text));
        };
        Err(ValueError { what: "a reply", problem })
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ReplyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplyText({} bytes)", self.0.len())
    }
}

impl TryFrom<String> for ReplyText {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        Self::try_new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_one_to_a_hundred_thousand_characters() {
        assert!(ReplyText::try_new("ß".repeat(MAX_REPLY_CHARS)).is_ok());
        for text in ["", " \n\t", &"ß".repeat(MAX_REPLY_CHARS + 1)] {
            assert!(ReplyText::try_new(text).is_err());
        }
    }

    #[test]
    fn no_text_shows_when_a_reply_is_printed_for_developers() {
        let text = ReplyText::try_new("the meeting is at nine").unwrap();
        assert_eq!(format!("{text:?}"), "ReplyText(22 bytes)");
    }
}
