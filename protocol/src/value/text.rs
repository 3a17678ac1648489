//! Checked texts, and bounded lists.
//!
//! Texts that a person may see keep their letters as they came. Making them safe for a terminal is the work of whoever
//! prints them; here only what no honest server sends is refused.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Problem, ValueError, checked_text};

/// The longest name of a source or journalist, in bytes: the server keeps at most 255 characters.
const MAX_NAME: usize = 255 * 4;
/// The longest file name, in bytes: as long as one path component may be.
const MAX_FILENAME: usize = 255;
/// The longest armored key, in bytes. A source's RSA 4096 key has about 4,400.
const MAX_KEY: usize = 64 * 1024;
const MAX_DETAIL: usize = 200;
const MAX_VERSION: usize = 64;
const KEY_HEADER: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";

checked_text! {
    /// The name that the server gives a source, shown instead of one: 1 to 1,020 bytes, not blank, no control characters.
    Designation, "a designation", check_name
}
checked_text! {
    /// A journalist's login name: 1 to 1,020 bytes, not blank, no control characters.
    Username, "a user name", check_name
}
checked_text! {
    /// A journalist's first or last name: 1 to 1,020 bytes, not blank, no control characters.
    PersonName, "a person's name", check_name
}
checked_text! {
    /// The file name under which the server lists an item: 1 to 255 bytes, one path component (no `/`, not `.` or `..`),
    /// no control characters. Only ever shown and never part of a path here.
    Filename, "a file name", check_filename
}
checked_text! {
    /// The fingerprint of an OpenPGP key: 40 (version 4) or 64 (version 6) hexadecimal digits, upper case.
    Fingerprint, "a fingerprint", check_fingerprint
}
checked_text! {
    /// An OpenPGP public key in ASCII armor, unchecked but for its header line: at most 65,536 bytes, no NUL.
    ArmoredKey, "an armored key", check_armored_key
}
checked_text! {
    /// A record's version as version 2 of the Journalist API gives it: 64 lower-case hexadecimal digits.
    ServerVersion, "a record's version", check_server_version
}
checked_text! {
    /// A human-readable addition to an error: 1 to 200 bytes, no control characters. Written by this project's own code
    /// from fixed words and numbers: it never holds a secret, a header, an address or a text of the server.
    Detail, "a detail", check_detail
}
checked_text! {
    /// The version of a program: 1 to 64 visible ASCII characters.
    SoftwareVersion, "a program's version", check_software_version
}
checked_text! {
    /// The name of a setting, such as `SD_PROXY_ORIGIN`: 1 to 64 upper-case letters, digits and `_`.
    SettingName, "a setting's name", check_setting_name
}

fn check_length(text: &str, max: usize) -> Result<(), Problem> {
    match text.len() {
        0 => Err(Problem::Empty),
        length if length > max => Err(Problem::TooLong { max, unit: "bytes" }),
        _ => Ok(()),
    }
}

fn check_printable(text: &str, max: usize) -> Result<(), Problem> {
    check_length(text, max)?;
    if text.chars().any(char::is_control) { Err(Problem::Malformed) } else { Ok(()) }
}

fn check_name(text: &str) -> Result<(), Problem> {
    check_printable(text, MAX_NAME)?;
    if text.trim().is_empty() { Err(Problem::Empty) } else { Ok(()) }
}

fn check_filename(text: &str) -> Result<(), Problem> {
    check_printable(text, MAX_FILENAME)?;
    check_name(text)?;
    if text.contains('/') || text == "." || text == ".." { Err(Problem::Malformed) } else { Ok(()) }
}

fn check_fingerprint(text: &str) -> Result<(), Problem> {
    let upper_hex = text.bytes().all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte));
    if matches!(text.len(), 40 | 64) && upper_hex { Ok(()) } else { Err(Problem::Malformed) }
}

fn check_armored_key(text: &str) -> Result<(), Problem> {
    check_length(text, MAX_KEY)?;
    if text.starts_with(KEY_HEADER) && !text.contains('\0') { Ok(()) } else { Err(Problem::Malformed) }
}

fn check_server_version(text: &str) -> Result<(), Problem> {
    let lower_hex = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if text.len() == 64 && lower_hex { Ok(()) } else { Err(Problem::Malformed) }
}

fn check_detail(text: &str) -> Result<(), Problem> {
    check_printable(text, MAX_DETAIL)
}

fn check_software_version(text: &str) -> Result<(), Problem> {
    check_length(text, MAX_VERSION)?;
    if text.bytes().all(|byte| byte.is_ascii_graphic()) { Ok(()) } else { Err(Problem::Malformed) }
}

fn check_setting_name(text: &str) -> Result<(), Problem> {
    check_length(text, MAX_VERSION)?;
    let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    if text.bytes().all(plain) { Ok(()) } else { Err(Problem::Malformed) }
}

impl Detail {
    /// Builds a detail from text that this program wrote: control characters are dropped and what is too long is cut.
    /// `None` when nothing is left.
    #[must_use]
    pub fn from_own_text(text: &str) -> Option<Self> {
        let mut kept = String::new();
        for character in text.chars().filter(|character| !character.is_control()) {
            if kept.len() + character.len_utf8() > MAX_DETAIL {
                break;
            }
            kept.push(character);
        }
        Self::try_new(kept).ok()
    }
}

/// A list of at most `MAX` entries. Decoding one that has more stops there: in memory an entry may be many times as large as
/// on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bounded<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Bounded<T, MAX> {
    /// Checks that `entries` are at most `MAX`.
    ///
    /// # Errors
    /// [`ValueError`] when there are more.
    pub fn try_new(entries: Vec<T>) -> Result<Self, ValueError> {
        if entries.len() <= MAX { Ok(Self(entries)) } else { Err(Self::too_long()) }
    }

    fn too_long() -> ValueError {
        ValueError { what: "a list", problem: Problem::TooLong { max: MAX, unit: "entries" } }
    }

    /// The entries.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }

    /// The entries, taken out.
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> Default for Bounded<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedVisitor(PhantomData))
    }
}

struct BoundedVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for BoundedVisitor<T, MAX> {
    type Value = Bounded<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        let too_long = || A::Error::custom(Self::Value::too_long());
        if sequence.size_hint().is_some_and(|entries| entries > MAX) {
            return Err(too_long());
        }
        // No room is made beforehand: the length is only what somebody says.
        let mut entries = Vec::new();
        while let Some(entry) = sequence.next_element()? {
            if entries.len() == MAX {
                return Err(too_long());
            }
            entries.push(entry);
        }
        Ok(Bounded(entries))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde::de::value::SeqDeserializer;

    use super::*;

    #[test]
    fn names_keep_their_letters_and_refuse_what_no_server_sends() {
        assert_eq!(Designation::try_new("ünübertroffen كلمة").unwrap().as_str(), "ünübertroffen كلمة");
        for text in ["", "   ", "a\0b", "a\nb", "\u{1b}[2J", &"x".repeat(MAX_NAME + 1)] {
            assert!(Designation::try_new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_file_name_is_one_component() {
        assert!(Filename::try_new("1-dark_horse-msg.gpg").is_ok());
        for text in
            ["", ".", "..", "../../.config/autostart/x.desktop", "/home/user/x", "1-a\0b", "1-a\nb", &"x".repeat(256)]
        {
            assert!(Filename::try_new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_secret_key_is_no_public_key() {
        assert!(ArmoredKey::try_new("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nxxx").is_err());
        assert!(ArmoredKey::try_new(format!("{KEY_HEADER}\n\nxxx")).is_ok());
    }

    #[test]
    fn a_detail_from_own_text_is_cut_at_a_character() {
        let long = "ä".repeat(MAX_DETAIL);
        assert_eq!(Detail::from_own_text(&long).unwrap().as_str().len(), MAX_DETAIL);
        assert_eq!(Detail::from_own_text("\n"), None);
    }

    #[test]
    fn a_bounded_list_refuses_one_more() {
        assert!(Bounded::<u8, 2>::try_new(vec![1, 2]).is_ok());
        assert!(Bounded::<u8, 2>::try_new(vec![1, 2, 3]).is_err());
    }

    thread_local! {
        static DECODED: Cell<usize> = const { Cell::new(0) };
    }

    /// An entry that counts how many of it are made.
    #[derive(Debug, PartialEq, Eq)]
    struct Counted(u8);

    impl<'de> Deserialize<'de> for Counted {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            DECODED.set(DECODED.get() + 1);
            u8::deserialize(deserializer).map(Self)
        }
    }

    fn decoded(bytes: &[u8]) -> (bool, usize) {
        DECODED.set(0);
        let whole = crate::codec::decode_exact::<Bounded<Counted, 4>>(bytes).is_ok();
        (whole, DECODED.get())
    }

    #[test]
    fn decoding_a_list_stops_at_its_bound() {
        let said = |entries: Vec<u8>| crate::codec::encode(&entries).unwrap();
        assert_eq!(decoded(&said(vec![])), (true, 0));
        assert_eq!(decoded(&said(vec![7; 4])), (true, 4));
        // The length says that there are too many: none is made.
        assert_eq!(decoded(&said(vec![7; 5])), (false, 0));
        assert_eq!(decoded(&said(vec![7; 100_000])), (false, 0));
        // The length is a lie.
        let [_, rest @ ..] = &said(vec![7; 3])[..] else { panic!("no length") };
        assert_eq!(decoded(&[&[4], rest].concat()), (false, 4));
        assert_eq!(decoded(&[&[2], rest].concat()), (false, 2));
    }

    #[test]
    fn decoding_a_list_of_unknown_length_stops_at_its_bound_too() {
        DECODED.set(0);
        let unknown = (0..100_u8).filter(|_| true);
        let sequence = SeqDeserializer::<_, serde::de::value::Error>::new(unknown);
        let error = Bounded::<Counted, 4>::deserialize(sequence).unwrap_err();
        assert_eq!((error.to_string().as_str(), DECODED.get()), ("a list has more than 4 entries", 5));
    }
}
