//! The values that records and calls are made of.
//!
//! **Invariant:** a value is born valid: its field is private, its constructor checks, and decoding calls the constructor.

mod bytes;
mod id;
mod message;
mod number;
mod request;
mod secret;
mod text;

pub use bytes::{Chunk, Sha256};
pub use id::{ItemId, JournalistId, ReplyId, SourceId, SubmissionId};
pub use message::ArmoredMessage;
pub use number::{OrderNumber, Size, Timestamp};
pub use request::RequestId;
pub use secret::{OneTimeCode, Passphrase, Token};
pub use text::{
    ArmoredKey, Bounded, Designation, Detail, Filename, Fingerprint, PersonName, ServerVersion, SettingName,
    SoftwareVersion, Username,
};

/// A value was refused. Neither this error nor its text holds the refused value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} {problem}")]
pub struct ValueError {
    /// What was to be built, in the words of a message: "a source's id".
    pub what: &'static str,
    /// What is wrong with it.
    pub problem: Problem,
}

/// Why a value was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Nothing in it.
    #[error("is empty")]
    Empty,
    /// Longer than the type allows.
    #[error("has more than {max} {unit}")]
    TooLong {
        /// The largest length allowed.
        max: usize,
        /// What is counted: "bytes", "entries".
        unit: &'static str,
    },
    /// Not written as the type demands.
    #[error("is malformed")]
    Malformed,
    /// A number outside its range.
    #[error("is out of range")]
    OutOfRange,
}

/// Declares a newtype whose inner text was checked. Serialised as a string.
macro_rules! checked_text {
    ($(#[$meta:meta])* $name:ident, $what:literal, $check:path) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks `text` and keeps it as it is.
            ///
            /// # Errors
            /// [`ValueError`](crate::value::ValueError) when the text is not of this type's form.
            pub fn try_new(text: impl Into<String>) -> Result<Self, $crate::value::ValueError> {
                let text = text.into();
                match $check(&text) {
                    Ok(()) => Ok(Self(text)),
                    Err(problem) => Err($crate::value::ValueError { what: $what, problem }),
                }
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::value::ValueError;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::try_new(text)
            }
        }
    };
}
use checked_text;
