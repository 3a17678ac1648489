//! An encrypted message on its way to the server.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Problem, ValueError};

const BEGIN: &str = "-----BEGIN PGP MESSAGE-----";
const END: &str = "-----END PGP MESSAGE-----";

/// One OpenPGP message in ASCII armor: at most 614,400 bytes (600 KiB), printable ASCII and line ends. It begins with
/// the line `-----BEGIN PGP MESSAGE-----` and ends with the line `-----END PGP MESSAGE-----`, behind which at most one line
/// end comes; no other line begins with `-----`. What is between them is not checked.
///
/// A reply has at most 100,000 characters (the server's limit), which are 400,000 bytes at most, and armored some 550,000.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ArmoredMessage(String);

impl ArmoredMessage {
    /// The most bytes of one message.
    pub const MAX: usize = 600 * 1024;

    /// Checks `text` and keeps it as it is.
    ///
    /// # Errors
    /// [`ValueError`] when it is no armored message, or too long.
    pub fn try_new(text: impl Into<String>) -> Result<Self, ValueError> {
        let text = text.into();
        match check(&text) {
            Ok(()) => Ok(Self(text)),
            Err(problem) => Err(ValueError { what: "an encrypted message", problem }),
        }
    }

    /// The armored text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Its length alone: logs and failed tests are no place for what a journalist wrote, encrypted or not.
impl fmt::Debug for ArmoredMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArmoredMessage({} bytes)", self.0.len())
    }
}

impl TryFrom<String> for ArmoredMessage {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        Self::try_new(text)
    }
}

fn check(text: &str) -> Result<(), Problem> {
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    if text.len() > ArmoredMessage::MAX {
        return Err(Problem::TooLong { max: ArmoredMessage::MAX, unit: "bytes" });
    }
    if !text.bytes().all(|byte| matches!(byte, b'\n' | b'\r' | b' '..=b'~')) {
        return Err(Problem::Malformed);
    }
    if text.replace("\r\n", "\n").contains('\r') {
        return Err(Problem::Malformed);
    }
    // `lines` takes a line end behind the last line for part of that.
    let mut lines = text.lines();
    let framed = lines.next() == Some(BEGIN) && lines.next_back() == Some(END);
    if framed && !lines.any(|line| line.starts_with("-----")) { Ok(()) } else { Err(Problem::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armored(body: &str) -> String {
        format!("{BEGIN}\n\n{body}\n{END}\n")
    }

    #[test]
    fn one_whole_message_is_taken_as_it_is() {
        let text = armored("wcDMA0");
        for text in [text.clone(), text.trim_end().to_owned(), text.replace('\n', "\r\n")] {
            assert_eq!(ArmoredMessage::try_new(text.clone()).unwrap().as_str(), text);
        }
        let frame = armored("").len();
        let full = armored(&"x".repeat(ArmoredMessage::MAX - frame));
        assert_eq!(ArmoredMessage::try_new(full.clone()).unwrap().as_str().len(), ArmoredMessage::MAX);
        assert!(ArmoredMessage::try_new(full.replacen('x', "xx", 1)).is_err());
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for text in [
            String::new(),
            "a reply that nobody encrypted".to_owned(),
            BEGIN.to_owned(),
            format!("{BEGIN}{END}"),
            format!(" {}", armored("wcDMA0")),
            format!("\n{}", armored("wcDMA0")),
            format!("{}\n", armored("wcDMA0")),
            format!("{}more", armored("wcDMA0")),
            armored("wcDMA0").repeat(2),
            armored("wcDMA0").replace("PGP MESSAGE", "PGP PUBLIC KEY BLOCK"),
            armored("wcDMA0").replace("END PGP MESSAGE", "END PGP SIGNATURE"),
            armored("wc\0MA0"),
            armored("wc\u{1b}MA0"),
            armored("wcDM\u{e4}A0"),
        ] {
            let error = ArmoredMessage::try_new(text.clone()).unwrap_err();
            assert_eq!(error.what, "an encrypted message", "{text:?}");
        }
    }

    #[test]
    fn debug_shows_no_text() {
        let shown = format!("{:?}", ArmoredMessage::try_new(armored("wcDMA0")).unwrap());
        assert_eq!(shown, "ArmoredMessage(62 bytes)");
    }
}
