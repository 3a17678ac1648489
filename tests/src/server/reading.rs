//! Reading what is on the server's disk, as those to whom it is addressed.

use sequoia_openpgp::cert::Cert;
use sequoia_openpgp::crypto::SessionKey;
use sequoia_openpgp::packet::{PKESK, SKESK};
use sequoia_openpgp::parse::stream::{DecryptionHelper, DecryptorBuilder, MessageStructure, VerificationHelper};
use sequoia_openpgp::parse::{PacketParser, PacketParserResult, Parse};
use sequoia_openpgp::policy::StandardPolicy;
use sequoia_openpgp::types::SymmetricAlgorithm;
use sequoia_openpgp::{KeyHandle, Packet};
use serde::{Deserialize, Serialize};
use std::io::Read;
use thiserror::Error;

use super::ciphertext::{self, CiphertextError};
use super::world::RecordId;

/// What somebody reads, and who else can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The text.
    pub text: String,
    /// To whom it is encrypted, in the order of the message, once for each time.
    pub recipients: Vec<Recipient>,
}

/// A key that a message is encrypted to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipient {
    /// The key's id as the message names it: 16 upper-case hex digits, all zero where it does not say whose it is.
    pub key_id: String,
    /// Whose it is.
    pub whose: Whose,
}

/// Whose key it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    /// A key that the item's source has or had.
    Source,
    /// The newsroom's.
    Newsroom,
    /// Anybody's.
    Unknown,
}

/// Why somebody cannot read something.
#[derive(Debug, Error)]
pub enum ReadingError {
    /// It is not there.
    #[error(transparent)]
    Ciphertext(#[from] CiphertextError),
    /// None of the reader's keys, of which the secret half is at hand, is among those that it is encrypted to.
    #[error("{0} is not encrypted to the one who reads it")]
    NotForReader(RecordId),
    /// It is no message, or a damaged one.
    #[error("{id} cannot be decrypted")]
    Decrypt {
        /// Which item.
        id: RecordId,
        /// What was wrong.
        source: anyhow::Error,
    },
    /// What is in it is no text.
    #[error("what is in {0} is no text")]
    NotText(RecordId),
}

/// The keys of those who may read something. Secret halves may be among them.
pub(crate) struct Parties {
    pub(crate) source: Vec<Cert>,
    pub(crate) newsroom: Cert,
}

impl Parties {
    fn whose(&self, recipient: &KeyHandle) -> Whose {
        let has = |cert: &Cert| cert.keys().any(|key| recipient.aliases(key.key().key_handle()));
        let named = !is_wildcard(recipient);
        if named && self.source.iter().any(has) {
            Whose::Source
        } else if named && has(&self.newsroom) {
            Whose::Newsroom
        } else {
            Whose::Unknown
        }
    }
}

/// Whom a message is encrypted to.
pub(crate) fn recipients(message: &[u8], parties: &Parties) -> anyhow::Result<Vec<Recipient>> {
    let mut recipients = Vec::new();
    let mut next = PacketParser::from_bytes(message)?;
    while let PacketParserResult::Some(parser) = next {
        let recipient = match &parser.packet {
            Packet::PKESK(packet) => packet.recipient(),
            // A passphrase is anybody's.
            Packet::SKESK(_) => None,
            _other => break,
        };
        recipients.push(match recipient {
            Some(recipient) => Recipient { key_id: key_id(&recipient), whose: parties.whose(&recipient) },
            None => Recipient { key_id: "0".repeat(16), whose: Whose::Unknown },
        });
        next = parser.next()?.1;
    }
    Ok(recipients)
}

/// Reads a message with the secret halves among `keys`.
pub(crate) fn read(id: &RecordId, message: &[u8], keys: &[Cert]) -> Result<String, ReadingError> {
    let failed = |source| ReadingError::Decrypt { id: id.clone(), source };
    let at = ciphertext::at();
    let policy = StandardPolicy::at(at);
    let mut reader = Reader { keys, found: false };
    let builder = DecryptorBuilder::from_bytes(message).map_err(failed)?;
    let mut text = Vec::new();
    let read =
        builder.with_policy(&policy, at, &mut reader).and_then(|mut decryptor| Ok(decryptor.read_to_end(&mut text)?));
    match read {
        Ok(_) => String::from_utf8(text).map_err(|_| ReadingError::NotText(id.clone())),
        Err(_) if !reader.found => Err(ReadingError::NotForReader(id.clone())),
        Err(error) => Err(failed(error)),
    }
}

fn key_id(recipient: &KeyHandle) -> String {
    sequoia_openpgp::KeyID::from(recipient).to_hex()
}

fn is_wildcard(recipient: &KeyHandle) -> bool {
    sequoia_openpgp::KeyID::from(recipient).is_wildcard()
}

struct Reader<'a> {
    keys: &'a [Cert],
    /// Whether the message is encrypted to one of them.
    found: bool,
}

impl VerificationHelper for &mut Reader<'_> {
    fn get_certs(&mut self, _: &[KeyHandle]) -> sequoia_openpgp::Result<Vec<Cert>> {
        Ok(Vec::new())
    }

    fn check(&mut self, _: MessageStructure<'_>) -> sequoia_openpgp::Result<()> {
        Ok(())
    }
}

impl DecryptionHelper for &mut Reader<'_> {
    fn decrypt(
        &mut self,
        pkesks: &[PKESK],
        _: &[SKESK],
        algorithm: Option<SymmetricAlgorithm>,
        decrypt: &mut dyn FnMut(Option<SymmetricAlgorithm>, &SessionKey) -> bool,
    ) -> sequoia_openpgp::Result<Option<Cert>> {
        for pkesk in pkesks {
            for key in self.keys.iter().flat_map(|cert| cert.keys().unencrypted_secret()) {
                // Without a name it may be anybody's, ours too.
                if !pkesk.recipient().is_none_or(|recipient| recipient.aliases(key.key().key_handle())) {
                    continue;
                }
                let mut pair = key.key().clone().into_keypair()?;
                if let Some((algorithm, session_key)) = pkesk.decrypt(&mut pair, algorithm) {
                    self.found = true;
                    if decrypt(algorithm, &session_key) {
                        return Ok(None);
                    }
                }
            }
        }
        Err(anyhow::anyhow!("no key for it"))
    }
}
