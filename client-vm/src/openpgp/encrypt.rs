//! Encrypts a reply.
//!
//! **Invariant:** who can read the message are the recipients that were given, by each of their keys for encryption,
//! and nobody else. Each of them sees which keys those are: nothing is hidden from who reads the envelope.
//!
//! **Invariant:** the text is in the message as it is, byte for byte, without a name, a date, a signature or
//! compression.

use std::io::Write as _;

use sequoia_openpgp::serialize::stream::{self, Armorer, Encryptor, LiteralWriter, Message};
use sequoia_openpgp::types::{DataFormat, Features};
use sequoia_openpgp::{KeyHandle, armor};

use super::recipient::Recipient;

/// Why a reply was not encrypted. Holds nothing of it.
#[derive(Debug, thiserror::Error)]
pub enum EncryptError {
    /// Nobody to encrypt to.
    #[error("internal: there is nobody to encrypt the reply to")]
    NoRecipient,
    /// The library failed.
    #[error("could not encrypt the reply")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Encrypts `text` to all of `to`: an armored OpenPGP message. Blocks for some milliseconds.
///
/// The message is of the form that every program reads (RFC 4880, SEIPD version 1, AES-256), unless each recipient
/// certainly reads the one of RFC 9580 (version 2). A key that stands for two recipients gets the message once.
///
/// # Errors
/// [`EncryptError`] when `to` is empty, or the cryptography fails.
pub fn encrypt(text: &str, to: &[&Recipient]) -> Result<String, EncryptError> {
    // The library takes version 2 if all of the recipients have this feature.
    let all_read_it = to.iter().all(|recipient| recipient.reads_version_2());
    let features = if all_read_it { Features::empty().set_seipdv2() } else { Features::empty().set_seipdv1() };
    let mut keys: Vec<stream::Recipient<'_>> = Vec::new();
    for recipient in to {
        for key in recipient.keys() {
            let handle = KeyHandle::from(key.fingerprint());
            // A fingerprint serves both forms of message; the older one takes the key's id from it.
            if !keys.iter().any(|known| known.key_handle().as_ref() == Some(&handle)) {
                keys.push(stream::Recipient::new(features.clone(), handle, key));
            }
        }
    }
    if keys.is_empty() {
        return Err(EncryptError::NoRecipient);
    }
    let armored = write(text, keys).map_err(|error| EncryptError::Failed(error.into()))?;
    String::from_utf8(armored).map_err(|error| EncryptError::Failed(error.utf8_error().into()))
}

fn write(text: &str, keys: Vec<stream::Recipient<'_>>) -> sequoia_openpgp::Result<Vec<u8>> {
    let mut armored = Vec::new();
    let message = Armorer::new(Message::new(&mut armored)).kind(armor::Kind::Message).build()?;
    let message = Encryptor::for_recipients(message, keys).build()?;
    // As text, some programs would rewrite the ends of its lines.
    let mut message = LiteralWriter::new(message).format(DataFormat::Binary).build()?;
    message.write_all(text.as_bytes())?;
    message.finalize()?;
    Ok(armored)
}

#[cfg(test)]
mod tests;
