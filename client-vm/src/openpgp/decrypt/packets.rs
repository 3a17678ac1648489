//! What a message may be made of: each of its packets is looked at before it is read.
//!
//! **Invariant:** what Sequoia reads without giving anything out is no longer than the message itself or than what may come
//! out of it, and what it keeps in memory does not grow with the message.
//!
//! Sequoia checks at each packet all those before it, reads over what it does not know, and takes a container to its end
//! even where what is in it has ended earlier; and a few hundred bytes in two layers of compression become any number of
//! packets.

use sequoia_openpgp::packet::Tag;
use sequoia_openpgp::packet::header::BodyLength;
use sequoia_openpgp::parse::PacketParser;

use super::{Corruption, DecryptError, Limits};

/// The most packets of all kinds, in all layers.
const MAX_PACKETS: usize = 512;
/// The most packets with session keys, in all layers.
const MAX_LISTED: usize = 128;
/// How long these may be together, in bytes: one for RSA 16384 takes 2,061.
const MAX_LISTED_BYTES: u64 = 512 * 1024;
/// The most signatures and announcements of one. Each may have the whole message hashed once more.
const MAX_SIGNATURES: usize = 64;
/// How long these may be together, in bytes: Sequoia compares all issuers that they name with each other.
const MAX_SIGNATURE_BYTES: u64 = 128 * 1024;

/// Counts the packets of one message.
#[derive(Debug)]
pub(super) struct Packets {
    limits: Limits,
    /// The most bytes that may come out of the message.
    most: u64,
    all: usize,
    encryptions: u32,
    compressions: u32,
    listed: Group,
    signatures: Group,
    skipped: u64,
}

/// Packets that are kept.
#[derive(Debug, Default)]
struct Group {
    packets: usize,
    bytes: u64,
}

impl Group {
    /// Takes one more; gives whether there are not too many then.
    fn take(&mut self, length: u64, most: usize, most_bytes: u64) -> bool {
        self.packets = self.packets.saturating_add(1);
        self.bytes = self.bytes.saturating_add(length);
        self.packets <= most && self.bytes <= most_bytes
    }
}

impl Packets {
    /// None yet, of a message of so many bytes.
    pub(super) fn new(limits: Limits, length: u64) -> Self {
        Self {
            limits,
            most: limits.of(length),
            all: 0,
            encryptions: 0,
            compressions: 0,
            listed: Group::default(),
            signatures: Group::default(),
            skipped: 0,
        }
    }

    /// Takes the next packet, of which no more than its beginning was read.
    ///
    /// # Errors
    /// What is wrong with a message that has this packet too.
    pub(super) fn take(&mut self, packet: &PacketParser<'_>) -> Result<(), DecryptError> {
        // A length that is not told is taken for the longest: only containers and plaintext may be without.
        let length = match packet.header().length() {
            BodyLength::Full(length) => u64::from(*length),
            BodyLength::Partial(_) | BodyLength::Indeterminate => u64::MAX,
        };
        self.all = self.all.saturating_add(1);
        if self.all > MAX_PACKETS {
            return Err(DecryptError::Corrupt(Corruption::Malformed));
        }
        match packet.packet.tag() {
            Tag::Literal => Ok(()),
            Tag::SEIP => {
                self.encryptions = self.encryptions.saturating_add(1);
                self.container(self.encryptions, length)
            }
            Tag::CompressedData => {
                let fits = self.container(self.compressions.saturating_add(1), length);
                self.compressions = self.compressions.saturating_add(1);
                fits
            }
            Tag::PKESK | Tag::SKESK => {
                let fits = self.listed.take(length, MAX_LISTED, MAX_LISTED_BYTES);
                fits.then_some(()).ok_or(DecryptError::Corrupt(Corruption::Recipients))
            }
            Tag::OnePassSig | Tag::Signature | Tag::MDC => {
                let fits = self.signatures.take(length, MAX_SIGNATURES, MAX_SIGNATURE_BYTES);
                fits.then_some(()).ok_or(DecryptError::Corrupt(Corruption::Malformed))
            }
            Tag::Marker | Tag::Padding => self.skip(length),
            // RFC 9580, section 4.3: what is unknown and not critical is ignored.
            tag if !tag.is_critical() => self.skip(length),
            // Sequoia's enum, which grows. No message is made of the rest.
            _ => Err(DecryptError::Corrupt(Corruption::Malformed)),
        }
    }

    /// A container that is the `layer`-th of its kind. Outside of any compression it is no longer than the message is.
    fn container(&self, layer: u32, length: u64) -> Result<(), DecryptError> {
        if layer > self.limits.layers {
            return Err(DecryptError::TooDeep { limit: self.limits.layers });
        }
        if self.compressions > 0 && length > self.most { Err(self.too_large()) } else { Ok(()) }
    }

    /// What is read over.
    fn skip(&mut self, length: u64) -> Result<(), DecryptError> {
        self.skipped = self.skipped.saturating_add(length);
        if self.skipped > self.most { Err(self.too_large()) } else { Ok(()) }
    }

    fn too_large(&self) -> DecryptError {
        DecryptError::TooLarge { limit: self.most }
    }
}
