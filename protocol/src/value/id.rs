//! The server's ids: UUIDs in their hyphenated form, spelled as the server spells them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Problem, ValueError};

const LENGTH: usize = 36;

/// The 36 characters of a hyphenated UUID. Letters keep their case: the server stores the id of a reply as the client
/// that wrote it spelled it, and finds it only by that spelling.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct UuidText([u8; LENGTH]);

impl UuidText {
    fn parse(text: &str) -> Result<Self, Problem> {
        let bytes: [u8; LENGTH] = text.as_bytes().try_into().map_err(|_| Problem::Malformed)?;
        let well_formed = bytes.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
        if well_formed { Ok(Self(bytes)) } else { Err(Problem::Malformed) }
    }

    fn as_str(&self) -> &str {
        // Only ASCII gets past `parse`.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

macro_rules! id {
    ($(#[$meta:meta])* $name:ident, $what:literal) => {
        $(#[$meta])*
        ///
        /// A hyphenated UUID of 36 characters; letters keep the case in which the server spells them, and two ids are
        /// equal only when spelled alike.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(UuidText);

        impl $name {
            /// The id as the server spells it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                UuidText::parse(text).map(Self).map_err(|problem| ValueError { what: $what, problem })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id! {
    /// A source's id.
    SourceId, "a source's id"
}
id! {
    /// A submission's id: of a message or of a file.
    SubmissionId, "a submission's id"
}
id! {
    /// A reply's id.
    ReplyId, "a reply's id"
}
id! {
    /// A journalist's id.
    JournalistId, "a journalist's id"
}

/// An item's id. A submission and a reply may be spelled alike and are two items all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ItemId {
    /// A submission's.
    Submission(SubmissionId),
    /// A reply's.
    Reply(ReplyId),
}

impl ItemId {
    /// The id as the server spells it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Submission(id) => id.as_str(),
            Self::Reply(id) => id.as_str(),
        }
    }
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOWER: &str = "2b3ba0ee-c6d8-4c4f-a0cf-731549ff56da";

    #[test]
    fn keeps_the_spelling_and_compares_by_it() {
        let upper = LOWER.to_uppercase();
        let (a, b): (SourceId, SourceId) = (LOWER.parse().unwrap(), upper.parse().unwrap());
        assert_eq!((a.as_str(), b.as_str()), (LOWER, upper.as_str()));
        assert_ne!(a, b);
    }

    #[test]
    fn refuses_every_other_form() {
        for text in [
            "",
            "2b3ba0eec6d84c4fa0cf731549ff56da",
            "{2b3ba0ee-c6d8-4c4f-a0cf-731549ff56da}",
            "2b3ba0ee-c6d8-4c4f-a0cf-731549ff56d",
            "2b3ba0ee-c6d8-4c4f-a0cf-731549ff56dg",
            "2b3ba0ee_c6d8_4c4f_a0cf_731549ff56da",
            "../../../../../../../../../etc/passwd",
            "2b3ba0ee-c6d8-4c4f-a0cf-731549ff56d\u{e9}",
        ] {
            assert!(text.parse::<SourceId>().is_err(), "{text:?}");
        }
    }
}
