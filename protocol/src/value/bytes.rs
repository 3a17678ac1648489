//! Bytes that are no text: pieces of files, and digests.

use std::fmt;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Problem, ValueError};

/// A piece of a file: 1 to 65,536 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Chunk(Vec<u8>);

impl Chunk {
    /// The most bytes of one piece.
    pub const MAX: usize = 64 * 1024;

    /// Checks that `bytes` are 1 to [`Self::MAX`].
    ///
    /// # Errors
    /// [`ValueError`] when they are not.
    pub fn try_new(bytes: Vec<u8>) -> Result<Self, ValueError> {
        let problem = match bytes.len() {
            0 => Problem::Empty,
            1..=Self::MAX => return Ok(Self(bytes)),
            _ => Problem::TooLong { max: Self::MAX, unit: "bytes" },
        };
        Err(ValueError { what: "a piece of a file", problem })
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.0.len())
    }
}

impl Serialize for Chunk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Chunk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(ChunkVisitor)
    }
}

struct ChunkVisitor;

impl Visitor<'_> for ChunkVisitor {
    type Value = Chunk;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1 to {} bytes", Chunk::MAX)
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Chunk, E> {
        self.visit_byte_buf(bytes.to_vec())
    }

    fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Chunk, E> {
        Chunk::try_new(bytes).map_err(E::custom)
    }
}

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// A digest that was computed.
    #[must_use]
    pub fn new(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// Reads 64 hexadecimal digits, in any case.
    ///
    /// # Errors
    /// [`ValueError`] for anything else.
    pub fn parse_hex(text: &str) -> Result<Self, ValueError> {
        let malformed = ValueError { what: "a SHA-256", problem: Problem::Malformed };
        if text.len() != 64 {
            return Err(malformed);
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digit = |at: usize| pair.get(at).and_then(|digit| char::from(*digit).to_digit(16));
            let (high, low) = (digit(0).ok_or(malformed)?, digit(1).ok_or(malformed)?);
            *byte = u8::try_from(high * 16 + low).map_err(|_| malformed)?;
        }
        Ok(Self(digest))
    }

    /// The 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256({self})")
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <[u8; 32]>::deserialize(deserializer).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_has_bytes_and_not_too_many() {
        assert!(Chunk::try_new(Vec::new()).is_err());
        assert!(Chunk::try_new(vec![7; Chunk::MAX]).is_ok());
        assert!(Chunk::try_new(vec![7; Chunk::MAX + 1]).is_err());
        let sent = Chunk::try_new(vec![0, 255, 251]).unwrap();
        let bytes = crate::codec::encode(&sent).unwrap();
        assert_eq!(bytes, [3, 0, 255, 251], "its length, then the bytes as they are");
        assert_eq!(crate::codec::decode_exact::<Chunk>(&bytes).unwrap(), sent);
        for bad in [vec![0], [&[251, 1, 0, 1][..], &[0; 65_537]].concat(), vec![5, 1]] {
            assert!(crate::codec::decode_exact::<Chunk>(&bad).is_err());
        }
    }

    #[test]
    fn a_digest_is_read_in_any_case_and_written_in_lower() {
        let text = "ab".repeat(32);
        let digest = Sha256::parse_hex(&text.to_uppercase()).unwrap();
        assert_eq!((digest.to_string(), digest.as_bytes()), (text.clone(), &[0xab; 32]));
        for bad in ["", "ab", &"g".repeat(64), &"é".repeat(32), &format!("{text}0")] {
            assert!(Sha256::parse_hex(bad).is_err(), "{bad}");
        }
    }
}
