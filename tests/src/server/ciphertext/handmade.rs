//! What a source sends when a test says what: any plaintext, any wrapping, and faults that no honest source has.

use std::io::{self, Write};

use flate2::write::DeflateEncoder;
use flate2::{Compress, Compression, Crc, FlushCompress};
use sequoia_openpgp::armor;
use sequoia_openpgp::crypto::symmetric::{BlockCipherMode, Encryptor, PaddingMode};
use serde::{Deserialize, Serialize};

use super::envelope::{CIPHER, session_key};
use super::message::{self, LITERAL_DATA, LITERAL_HEAD, Layout, Message, frame_of};
use super::{CiphertextError, Envelopes, Sealed};
use crate::generator::{Form, Plaintext};
use crate::server::world::SubmissionKind;

/// The most zeros that anybody sends, in bytes.
pub const MOST_ZEROS: u64 = 16 << 30;
/// The most layers of encryption inside the outermost one.
pub const MOST_LAYERS: usize = 8;

/// Encrypted data without integrity protection (RFC 4880, 5.7).
const UNPROTECTED_DATA: u8 = 0xc9;
/// Gzip with a name and without one: deflate, no time, best compression, unknown system.
const NAMED_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 2, 255];
const NAMELESS_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255];
/// The last block of deflate, with nothing in it.
const LAST_BLOCK: [u8; 2] = [3, 0];
/// How many zeros are compressed at a time; the same bytes are then sent over and over.
const ZEROS: usize = 1 << 20;

/// What decryption gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "form", deny_unknown_fields)]
pub enum Body {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// Bytes, whatever they are.
    Bytes {
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A file in gzip.
    Gzip {
        /// The name in gzip's header, byte by byte, up to the first zero, which ends it there. `None`: the header has none.
        name: Option<Vec<u8>>,
        /// What is in the file.
        contents: Vec<u8>,
        /// What is wrong with it.
        #[serde(default)]
        flaw: GzipFlaw,
    },
    /// Zeros in gzip, of which a thousand fit a byte.
    Zeros {
        /// The name in gzip's header, as above.
        name: Option<Vec<u8>>,
        /// How many, up to [`MOST_ZEROS`].
        length: u64,
    },
    /// One more OpenPGP message, in ASCII armor, with integrity protection.
    Armored {
        /// Who can read it.
        reader: Reader,
        /// What is in it.
        body: Box<Body>,
    },
}

/// What is wrong with a file in gzip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GzipFlaw {
    /// Nothing.
    #[default]
    None,
    /// So many bytes are missing at its end, of which the last eight say sum and length.
    Cut(usize),
    /// The sum at its end is another one's.
    Sum,
    /// The length at its end is another one's.
    Length,
    /// What is compressed begins with a block of no known type.
    Data,
    /// Something follows that is no gzip.
    Trailing,
}

/// Whose key something is encrypted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reader {
    /// The newsroom's.
    #[default]
    Newsroom,
    /// A key of which nobody has the secret half, the same one for as long as the server runs.
    Stranger,
}

/// How the whole is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields, default)]
pub struct Seal {
    /// To whom.
    pub reader: Reader,
    /// How it is protected.
    pub protection: Protection,
    /// How many bytes are missing at its end. Size and `Etag` are of what is there.
    pub cut: usize,
}

/// Whether a change of a ciphertext is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// With the code of RFC 4880, 5.13.
    #[default]
    Code,
    /// With such a code, and it is another one's.
    WrongCode,
    /// Without any, as in the last century.
    None,
}

/// Encrypts `body`, and says what a client must show of it as a `kind`.
pub(super) fn seal(
    envelopes: &Envelopes,
    kind: SubmissionKind,
    body: &Body,
    seal: Seal,
) -> Result<Sealed, CiphertextError> {
    let bytes = encode(envelopes, body, MOST_LAYERS)?;
    let envelope = envelopes.to(seal.reader)?;
    let mut ciphertext = match seal.protection {
        Protection::Code | Protection::WrongCode => protected(&envelope, &bytes)?,
        Protection::None => unprotected(&envelope, &bytes)?,
    };
    if let (Protection::WrongCode, Some(last)) = (seal.protection, ciphertext.last_mut()) {
        *last ^= 1;
    }
    let honest = seal.protection == Protection::Code && seal.cut == 0 && seal.reader == Reader::Newsroom;
    ciphertext.truncate(ciphertext.len().saturating_sub(seal.cut));
    Sealed::try_new(&ciphertext, if honest { shown(kind, body, &bytes) } else { None })
}

/// What a client must show: text of a message, the contents of a file. Nothing where it cannot be read or is too much.
fn shown(kind: SubmissionKind, body: &Body, bytes: &[u8]) -> Option<Plaintext> {
    let is_file = kind.is_file();
    match body {
        Body::Text { text } if !is_file => Some(Plaintext::given(Form::Text, None, text.as_bytes(), bytes)),
        Body::Gzip { name, contents, flaw: GzipFlaw::None } if is_file => {
            let name = name.as_deref().map(|name| String::from_utf8_lossy(up_to_zero(name)).into_owned());
            Some(Plaintext::given(Form::Gzip, name, contents, bytes))
        }
        Body::Armored { reader: Reader::Newsroom, body } => shown(kind, body, bytes),
        Body::Text { .. }
        | Body::Gzip { .. }
        | Body::Bytes { .. }
        | Body::Zeros { .. }
        | Body::Armored { reader: Reader::Stranger, .. } => None,
    }
}

/// What decryption of the outermost layer gives.
fn encode(envelopes: &Envelopes, body: &Body, layers: usize) -> Result<Vec<u8>, CiphertextError> {
    match body {
        Body::Text { text } => Ok(text.clone().into_bytes()),
        Body::Bytes { bytes } => Ok(bytes.clone()),
        Body::Gzip { name, contents, flaw } => gzip(name.as_deref(), contents, *flaw).map_err(CiphertextError::Store),
        Body::Zeros { length, .. } if *length > MOST_ZEROS => Err(CiphertextError::TooMuch),
        Body::Zeros { name, length } => zeros(name.as_deref(), *length),
        Body::Armored { reader, body } => {
            let layers = layers.checked_sub(1).ok_or(CiphertextError::TooMuch)?;
            let message = protected(&envelopes.to(*reader)?, &encode(envelopes, body, layers)?)?;
            let mut writer = armor::Writer::new(Vec::new(), armor::Kind::Message).map_err(CiphertextError::Store)?;
            writer.write_all(&message).map_err(CiphertextError::Store)?;
            writer.finalize().map_err(CiphertextError::Store)
        }
    }
}

/// A message with integrity protection.
fn protected(envelope: &[u8], plaintext: &[u8]) -> Result<Vec<u8>, CiphertextError> {
    let layout = Layout::around(plaintext.len());
    let mut message = Message::begin(Vec::new(), envelope, &layout, &message::fixed_block())?;
    message.protect(plaintext).map_err(CiphertextError::Store)?;
    message.end()
}

/// A message without integrity protection. After the block of chance the cipher begins anew with what it gave last
/// (RFC 4880, 13.9).
fn unprotected(envelope: &[u8], plaintext: &[u8]) -> Result<Vec<u8>, CiphertextError> {
    let encrypt = |start: Option<&[u8]>, parts: &[&[u8]]| -> Result<Vec<u8>, CiphertextError> {
        let (mode, padding) = (BlockCipherMode::CFB, PaddingMode::None);
        let cipher = Encryptor::new(CIPHER, mode, padding, &session_key(), start, Vec::new());
        let mut cipher = cipher.map_err(CiphertextError::Encrypt)?;
        for part in parts {
            cipher.write_all(part).map_err(CiphertextError::Store)?;
        }
        cipher.finalize().map_err(CiphertextError::Encrypt)
    };
    let first = encrypt(None, &[&message::fixed_block()])?;
    let start = first.get(2..).unwrap_or_default();
    let literal = frame_of(LITERAL_DATA, LITERAL_HEAD.len().saturating_add(plaintext.len()));
    let rest = encrypt(Some(start), &[&literal, &LITERAL_HEAD, plaintext])?;
    let head = frame_of(UNPROTECTED_DATA, first.len().saturating_add(rest.len()));
    Ok([envelope, &head, &first, &rest].concat())
}

fn gzip(name: Option<&[u8]>, contents: &[u8], flaw: GzipFlaw) -> io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(contents)?;
    let mut deflated = encoder.finish()?;
    if let (GzipFlaw::Data, Some(first)) = (flaw, deflated.first_mut()) {
        // The last block, of the type that there is not.
        *first |= 7;
    }
    let mut crc = Crc::new();
    crc.update(contents);
    let mut sum = crc.sum();
    let mut length = crc.amount();
    match flaw {
        GzipFlaw::Sum => sum ^= 1,
        GzipFlaw::Length => length ^= 1,
        GzipFlaw::None | GzipFlaw::Cut(_) | GzipFlaw::Data | GzipFlaw::Trailing => {}
    }
    let mut file = head(name);
    file.extend_from_slice(&deflated);
    file.extend_from_slice(&sum.to_le_bytes());
    file.extend_from_slice(&length.to_le_bytes());
    match flaw {
        GzipFlaw::Cut(bytes) => file.truncate(file.len().saturating_sub(bytes)),
        GzipFlaw::Trailing => file.extend_from_slice(b"and more"),
        GzipFlaw::None | GzipFlaw::Sum | GzipFlaw::Length | GzipFlaw::Data => {}
    }
    Ok(file)
}

/// Zeros, compressed once and said again as often as it takes.
fn zeros(name: Option<&[u8]>, length: u64) -> Result<Vec<u8>, CiphertextError> {
    let compressed = |bytes: &[u8]| -> Result<Vec<u8>, CiphertextError> {
        let mut blocks = Vec::with_capacity(bytes.len() / 64 + 1_024);
        Compress::new(Compression::best(), false)
            .compress_vec(bytes, &mut blocks, FlushCompress::Full)
            .map_err(|error| CiphertextError::Store(error.into()))?;
        Ok(blocks)
    };
    let piece = vec![0; ZEROS];
    let blocks = compressed(&piece)?;
    let size = u64::try_from(ZEROS).unwrap_or(u64::MAX);
    let mut crc = Crc::new();
    let mut file = head(name);
    for _ in 0..length / size {
        file.extend_from_slice(&blocks);
        crc.update(&piece);
    }
    let rest = piece.get(..usize::try_from(length % size).unwrap_or(0)).unwrap_or_default();
    if !rest.is_empty() {
        file.extend_from_slice(&compressed(rest)?);
        crc.update(rest);
    }
    file.extend_from_slice(&LAST_BLOCK);
    file.extend_from_slice(&crc.sum().to_le_bytes());
    file.extend_from_slice(&crc.amount().to_le_bytes());
    Ok(file)
}

fn head(name: Option<&[u8]>) -> Vec<u8> {
    match name {
        None => NAMELESS_HEAD.to_vec(),
        Some(name) => [NAMED_HEAD.as_slice(), up_to_zero(name), &[0]].concat(),
    }
}

fn up_to_zero(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}
