//! One message: its layout, and how it is encrypted.
//!
//! It has the shape of what GnuPG 2.2 and the server's own software write: a packet for each reader, then one with
//! integrity protection of the first version (RFC 4880, 5.13), with a packet of literal data in it and no compression.
//! It is put together here and not by sequoia, which has its own dice: a ciphertext must come out the same each time, and
//! as long as it should be.

use std::io::{self, Read, Write};

use sequoia_openpgp::crypto::hash;
use sequoia_openpgp::crypto::symmetric::{BlockCipherMode, Encryptor, PaddingMode};
use sequoia_openpgp::types::HashAlgorithm;

use super::envelope::{CIPHER, Envelopes, LARGEST_ENVELOPE, session_key};
use super::stored::{Ciphertext, Store};
use super::{CiphertextError, Letter};
use crate::generator::{Form, Plaintext, Prng};

/// First octets of packets, new format: encrypted data with integrity protection, literal data, the code for it.
const PROTECTED_DATA: u8 = 0xd2;
pub(super) const LITERAL_DATA: u8 = 0xcb;
const MODIFICATION_DETECTION: [u8; 2] = [0xd3, 20];
/// The version of the packet with integrity protection.
const VERSION: u8 = 1;
/// Binary, without a name or a date.
pub(super) const LITERAL_HEAD: [u8; 6] = [b'b', 0, 0, 0, 0, 0];
/// A block of the cipher, in bytes.
const BLOCK: usize = 16;
/// Bytes that are protected besides the literal packet: a block of chance, its last two bytes again, the code.
const PROTECTION: u64 = 16 + 2 + 2 + 20;
/// The most bytes around the plaintext, but for the packets for readers: the headers of both packets at their longest,
/// the version, the protection, what literal data begins with.
const LARGEST_WRAPPING: u64 = 6 + 1 + PROTECTION + 6 + 6;

/// The least bytes of ciphertext of a message.
pub const SMALLEST_MESSAGE: u64 = LARGEST_ENVELOPE + LARGEST_WRAPPING + Form::Text.smallest();
/// The least bytes of ciphertext of a file.
pub const SMALLEST_FILE: u64 = LARGEST_ENVELOPE + LARGEST_WRAPPING + Form::Gzip.smallest();
/// The least bytes of ciphertext of a file as servers stored them long ago.
pub const SMALLEST_ZIPPED_FILE: u64 = LARGEST_ENVELOPE + LARGEST_WRAPPING + Form::Zip.smallest();
/// The least bytes of ciphertext of a reply, which has two readers.
pub const SMALLEST_REPLY: u64 = 2 * LARGEST_ENVELOPE + LARGEST_WRAPPING + Form::Text.smallest();
/// The most bytes of ciphertext of any item, eight times what a real server takes. One packet can hold that.
pub const LARGEST_ITEM: u64 = 4_000_000_000;

/// How much is encrypted between two moments in which others have their turn.
const STEP: usize = 64 * 1024;

/// Where everything is in a message of a certain size.
#[derive(Debug)]
pub(super) struct Layout {
    /// The header of the packet with integrity protection.
    protected: Vec<u8>,
    /// The header of the literal packet.
    literal: Vec<u8>,
    /// Bytes of plaintext.
    pub(super) plaintext: u64,
}

impl Layout {
    /// A message of `size` bytes, `envelope` included.
    pub(super) fn new(size: u64, envelope: &[u8]) -> Self {
        let rest = size.saturating_sub(u64::try_from(envelope.len()).unwrap_or(u64::MAX));
        let (protected, body) = frame(PROTECTED_DATA, rest);
        let (literal, body) = frame(LITERAL_DATA, body.saturating_sub(1 + PROTECTION));
        Self { protected, literal, plaintext: body.saturating_sub(6) }
    }

    /// A message around so many bytes of plaintext.
    pub(super) fn around(plaintext: usize) -> Self {
        let body = LITERAL_HEAD.len().saturating_add(plaintext);
        let literal = frame_of(LITERAL_DATA, body);
        let protection = usize::try_from(PROTECTION).unwrap_or(usize::MAX);
        let inner = literal.len().saturating_add(body).saturating_add(1).saturating_add(protection);
        let plaintext = u64::try_from(plaintext).unwrap_or(u64::MAX);
        Self { protected: frame_of(PROTECTED_DATA, inner), literal, plaintext }
    }
}

/// A packet's header for a body of that length, which is written in five octets.
pub(super) fn frame_of(tag: u8, body: usize) -> Vec<u8> {
    let mut header = vec![tag, 255];
    header.extend_from_slice(&u32::try_from(body).unwrap_or(u32::MAX).to_be_bytes());
    header
}

/// A packet's header such that it and the body have `whole` bytes together, and how long the body is.
///
/// The length is written as short as can be. Where that reaches one total and jumps over the next, because the length
/// itself has become longer, it is written in five octets: that form may hold any length.
fn frame(tag: u8, whole: u64) -> (Vec<u8>, u64) {
    let one = whole.saturating_sub(2);
    if let Ok(length) = u8::try_from(one)
        && length < 192
    {
        return (vec![tag, length], one);
    }
    let two = whole.saturating_sub(3);
    if let Ok(length) = u16::try_from(two)
        && (192..8_384).contains(&length)
    {
        let [high, low] = (length - 192).to_be_bytes();
        return (vec![tag, high.saturating_add(192), low], two);
    }
    let five = whole.saturating_sub(6);
    let mut header = vec![tag, 255];
    header.extend_from_slice(&u32::try_from(five).unwrap_or(u32::MAX).to_be_bytes());
    (header, five)
}

/// What is in a letter.
pub(super) fn plaintext(letter: &Letter, layout: &Layout) -> Result<Plaintext, CiphertextError> {
    Ok(Plaintext::try_new(dice(letter)?.next_u64(), letter.kind.form(), layout.plaintext)?)
}

/// The dice of a letter.
fn dice(letter: &Letter) -> Result<Prng, CiphertextError> {
    let mut digest = digest(HashAlgorithm::SHA256)?;
    digest.update(letter.kind.name().as_bytes());
    digest.update(letter.id.as_str().as_bytes());
    digest.update(&letter.size.to_be_bytes());
    digest.update(&letter.edition.to_be_bytes());
    let mut seed = [0; 32];
    digest.digest(&mut seed).map_err(CiphertextError::Encrypt)?;
    Ok(Prng::new(seed.into_iter().take(8).fold(0, |seed, byte| (seed << 8) | u64::from(byte))))
}

pub(super) fn digest(algorithm: HashAlgorithm) -> Result<hash::Context, CiphertextError> {
    Ok(algorithm.context().map_err(CiphertextError::Encrypt)?.for_digest())
}

/// Makes the ciphertext of a letter, a step at a time. Cancel-safe: dropped early, nothing is left.
pub(super) async fn make(letter: &Letter, envelopes: &Envelopes) -> Result<Ciphertext, CiphertextError> {
    let envelope = envelopes.address(letter.reader.as_deref())?;
    let layout = Layout::new(letter.size, &envelope);
    let mut plaintext = plaintext(letter, &layout)?.wrapped();
    let mut message = Message::begin(Store::new(letter.size)?, &envelope, &layout, &block(letter)?)?;
    let mut buffer = vec![0; STEP];
    loop {
        let read = plaintext.read(&mut buffer).map_err(CiphertextError::Store)?;
        match buffer.get(..read) {
            Some([]) | None => break,
            Some(bytes) => message.protect(bytes).map_err(CiphertextError::Store)?,
        }
        tokio::task::yield_now().await;
    }
    message.end()?.finish()
}

/// A block of chance, its last two bytes again.
fn block(letter: &Letter) -> Result<Vec<u8>, CiphertextError> {
    let mut chance = dice(letter)?;
    chance.next_u64();
    Ok(block_of(&mut chance))
}

/// A block of no chance at all, its last two bytes again: for what is made once.
pub(super) fn fixed_block() -> Vec<u8> {
    block_of(&mut Prng::new(0))
}

fn block_of(chance: &mut Prng) -> Vec<u8> {
    let mut block = [chance.next_u64().to_be_bytes(), chance.next_u64().to_be_bytes()].concat();
    block.extend_from_within(BLOCK - 2..);
    block
}

/// A message that is being written.
pub(super) struct Message<W: Write> {
    cipher: Encryptor<W>,
    code: hash::Context,
}

impl<W: Write + Send + Sync> Message<W> {
    /// All that comes before the plaintext.
    pub(super) fn begin(mut store: W, envelope: &[u8], layout: &Layout, block: &[u8]) -> Result<Self, CiphertextError> {
        for bytes in [envelope, &layout.protected, &[VERSION]] {
            store.write_all(bytes).map_err(CiphertextError::Store)?;
        }
        let (mode, padding) = (BlockCipherMode::CFB, PaddingMode::None);
        let cipher = Encryptor::new(CIPHER, mode, padding, &session_key(), None, store);
        let cipher = cipher.map_err(CiphertextError::Encrypt)?;
        let mut message = Self { cipher, code: digest(HashAlgorithm::SHA1)? };
        for bytes in [block, &layout.literal, &LITERAL_HEAD] {
            message.protect(bytes).map_err(CiphertextError::Store)?;
        }
        Ok(message)
    }

    pub(super) fn protect(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.code.update(bytes);
        self.cipher.write_all(bytes)
    }

    pub(super) fn end(mut self) -> Result<W, CiphertextError> {
        self.protect(&MODIFICATION_DETECTION).map_err(CiphertextError::Store)?;
        let mut code = [0; 20];
        self.code.digest(&mut code).map_err(CiphertextError::Encrypt)?;
        self.cipher.write_all(&code).map_err(CiphertextError::Store)?;
        self.cipher.finalize().map_err(CiphertextError::Encrypt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_of_a_packet_can_be_had() {
        for whole in (8..20_000).chain([1 << 20, LARGEST_ITEM]) {
            let (header, body) = frame(LITERAL_DATA, whole);
            assert_eq!(header.len() as u64 + body, whole);
            let said = match header[1..] {
                [length] => u64::from(length),
                [high, low] => ((u64::from(high) - 192) << 8) + u64::from(low) + 192,
                [255, a, b, c, d] => u64::from(u32::from_be_bytes([a, b, c, d])),
                _ => panic!("{header:?}"),
            };
            assert_eq!(said, body);
        }
        let forms = [193, 194, 195, 8_386, 8_387, 8_388].map(|whole| frame(LITERAL_DATA, whole).0.len());
        assert_eq!(forms, [2, 6, 3, 3, 6, 6]);
    }

    #[test]
    fn the_smallest_sizes_have_room_for_what_is_in_them() {
        let envelope = vec![0; usize::try_from(LARGEST_ENVELOPE).unwrap()];
        for (smallest, form) in
            [(SMALLEST_MESSAGE, Form::Text), (SMALLEST_FILE, Form::Gzip), (SMALLEST_ZIPPED_FILE, Form::Zip)]
        {
            for size in smallest..smallest + 20_000 {
                assert!(Layout::new(size, &envelope).plaintext >= form.smallest(), "{form:?} {size}");
            }
        }
        assert_eq!([SMALLEST_MESSAGE, SMALLEST_FILE, SMALLEST_ZIPPED_FILE, SMALLEST_REPLY], [594, 674, 812, 1_121]);
    }
}
