//! Values to bytes and back. The only file that names the encoding crate: see `docs/adr/0001-bincode.md`.

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
    bincode::serde::encode_to_vec(value, CONFIG).map_err(EncodeError)
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
