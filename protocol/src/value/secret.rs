//! Values that must not be seen: they are wiped when dropped, and `Debug` hides them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use super::{Problem, ValueError};

macro_rules! secret {
    ($(#[$meta:meta])* $name:ident, $what:literal, $check:path) => {
        $(#[$meta])*
        ///
        /// Wiped when dropped; `Debug` hides it.
        #[derive(Clone, PartialEq, Eq)]
        pub struct $name(Zeroizing<String>);

        impl $name {
            /// Checks `text` and takes it over.
            ///
            /// # Errors
            /// [`ValueError`] when the text is not of this type's form.
            pub fn try_new(text: impl Into<String>) -> Result<Self, ValueError> {
                let text = Zeroizing::new(text.into());
                match $check(&text) {
                    Ok(()) => Ok(Self(text)),
                    Err(problem) => Err(ValueError { what: $what, problem }),
                }
            }

            /// The secret itself: for the request that carries it, never for a log or a message.
            #[must_use]
            pub fn expose(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(hidden)"))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::try_new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
            }
        }
    };
}

secret! {
    /// A session token of the server: 1 to 4,096 visible ASCII characters, so that it fits a header.
    Token, "a token", check_token
}
secret! {
    /// A journalist's passphrase: 1 to 512 bytes, no control characters.
    Passphrase, "a passphrase", check_passphrase
}
secret! {
    /// A one-time code of six digits (RFC 6238 as the server uses it). Single use: see the login call.
    OneTimeCode, "a one-time code", check_code
}

const MAX_TOKEN: usize = 4096;
const MAX_PASSPHRASE: usize = 512;

fn check_token(text: &str) -> Result<(), Problem> {
    check_length(text, MAX_TOKEN)?;
    if text.bytes().all(|byte| byte.is_ascii_graphic()) { Ok(()) } else { Err(Problem::Malformed) }
}

fn check_passphrase(text: &str) -> Result<(), Problem> {
    check_length(text, MAX_PASSPHRASE)?;
    if text.chars().any(char::is_control) { Err(Problem::Malformed) } else { Ok(()) }
}

fn check_code(text: &str) -> Result<(), Problem> {
    if text.len() == 6 && text.bytes().all(|byte| byte.is_ascii_digit()) { Ok(()) } else { Err(Problem::Malformed) }
}

fn check_length(text: &str, max: usize) -> Result<(), Problem> {
    match text.len() {
        0 => Err(Problem::Empty),
        length if length > max => Err(Problem::TooLong { max, unit: "bytes" }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_secrets() {
        let shown = format!(
            "{:?} {:?} {:?}",
            Token::try_new("visible").unwrap(),
            Passphrase::try_new("visible").unwrap(),
            OneTimeCode::try_new("123456").unwrap()
        );
        assert!(!shown.contains("visible") && !shown.contains("123456"), "{shown}");
    }

    #[test]
    fn a_token_fits_a_header() {
        for text in ["", "a b", "a\r\nX: y", "\u{e9}", &"x".repeat(MAX_TOKEN + 1)] {
            assert!(Token::try_new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_code_has_six_digits() {
        for text in ["", "12345", "1234567", "12345a", "\u{661}23456"] {
            assert!(OneTimeCode::try_new(text).is_err(), "{text:?}");
        }
    }
}
