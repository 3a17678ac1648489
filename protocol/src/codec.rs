//! Values to bytes and back. The only file that names the encoding crate: see `docs/adr/0001-bincode.md`.
//!
//! **Invariant:** what is encoded is never moved: passphrases and tokens are among it, and a buffer that grew would leave
//! them behind in memory that nobody wipes.

use std::io::{self, Write};

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest message that is sent, in bytes as encoded. A reply is the longest value, with 600 KiB.
pub const MAX_MESSAGE: usize = 1024 * 1024;

/// The crate counts the widths of values in memory, not bytes on the wire: a `u64` counts 8 where it may take 1. Eight
/// times the largest message therefore refuses none, and still bounds what one message can make grow.
const DECODE_LIMIT: usize = 8 * MAX_MESSAGE;

/// The standard configuration (little-endian, variable-length integers), with a limit.
const CONFIG: Configuration<LittleEndian, Varint, Limit<DECODE_LIMIT>> =
    bincode::config::standard().with_limit::<DECODE_LIMIT>();

/// A value could not be encoded.
#[derive(Debug, thiserror::Error)]
#[error("could not encode a message")]
pub struct EncodeError(#[source] bincode::error::EncodeError);

/// Bytes are not the encoding of a value.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// They do not decode, or decode to a value that is refused.
    #[error("the bytes are no valid message")]
    Invalid(#[source] bincode::error::DecodeError),
    /// They begin with a value and go on after it.
    #[error("{extra} bytes follow the message")]
    Trailing {
        /// How many bytes are left.
        extra: usize,
    },
}

/// Encodes one value.
///
/// # Errors
/// [`EncodeError`] when the value's `Serialize` fails.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::with_capacity(encoded_length(value)?);
    encode_into(value, &mut bytes)?;
    Ok(bytes)
}

/// How many bytes a value's encoding has.
///
/// # Errors
/// As [`encode`].
pub fn encoded_length<T: Serialize>(value: &T) -> Result<usize, EncodeError> {
    bincode::serde::encode_into_std_write(value, &mut Counting, CONFIG).map_err(EncodeError)
}

/// Appends a value's encoding. `bytes` must have room for all of it.
///
/// # Errors
/// As [`encode`].
pub(crate) fn encode_into<T: Serialize>(value: &T, bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
    bincode::serde::encode_into_std_write(value, bytes, CONFIG).map(|_length| ()).map_err(EncodeError)
}

/// Takes everything and keeps nothing: the encoding crate counts what it writes.
struct Counting;

impl Write for Counting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decodes one value that takes all of `bytes`.
///
/// # Errors
/// [`DecodeError`] when the bytes are no valid value or when some are left over.
pub fn decode_exact<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let (value, used) = bincode::serde::decode_from_slice(bytes, CONFIG).map_err(DecodeError::Invalid)?;
    match bytes.len().saturating_sub(used) {
        0 => Ok(value),
        extra => Err(DecodeError::Trailing { extra }),
    }
}
