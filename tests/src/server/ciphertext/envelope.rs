//! For whom a message is: its session key, encrypted to each of them.
//!
//! Encrypting to a key takes longer than all the rest of a short message. So all messages of a server have the same
//! session key, and it is encrypted once to each key that is needed, when it is first needed. Nothing here is to be kept
//! secret from anybody.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hyper::body::Bytes;
use sequoia_openpgp::cert::Cert;
use sequoia_openpgp::crypto::SessionKey;
use sequoia_openpgp::crypto::mpi::Ciphertext;
use sequoia_openpgp::packet::{PKESK, Packet, pkesk::PKESK3};
use sequoia_openpgp::parse::Parse;
use sequoia_openpgp::policy::StandardPolicy;
use sequoia_openpgp::serialize::MarshalInto;
use sequoia_openpgp::types::SymmetricAlgorithm;

use super::{CiphertextError, Reader};
use crate::generator::{KeyPair, NewsroomKey};
use crate::server::world::SourceKey;

/// What all messages are encrypted with.
pub(super) const CIPHER: SymmetricAlgorithm = SymmetricAlgorithm::AES256;
/// The most that the packet for one reader has: that for a key of 4096 bits RSA.
pub(super) const LARGEST_ENVELOPE: u64 = 3 + 1 + 8 + 1 + 2 + 512;
/// 32 bytes, as the cipher wants them.
const SESSION_KEY: &[u8; 32] = b"splitdrop-staging: no secret!!!!";
/// The stranger's place among the fingerprints.
const STRANGER: &str = "a stranger's key";
/// When keys must be good, in seconds since 1970: 2026-11-01T09:00:00Z. Not the machine's time, so that no key of the pool
/// ever ceases to be.
const AT_SECS: u64 = 1_793_523_600;

/// The session key of all messages.
pub(super) fn session_key() -> SessionKey {
    SessionKey::from(SESSION_KEY.as_slice())
}

/// The session key, encrypted to whom it was needed for.
#[derive(Debug)]
pub(crate) struct Envelopes {
    newsroom: NewsroomKey,
    /// By fingerprint; nothing for a key that cannot be encrypted to.
    made: Mutex<HashMap<String, Option<Bytes>>>,
}

impl Envelopes {
    pub(super) fn new(newsroom: NewsroomKey) -> Self {
        Self { newsroom, made: Mutex::default() }
    }

    /// The packets before a message for the newsroom and perhaps one source, whose comes first. A source's key that
    /// cannot be encrypted to is passed over: tests make sources with keys that are none.
    pub(super) fn address(&self, reader: Option<&SourceKey>) -> Result<Vec<u8>, CiphertextError> {
        let mut packets = Vec::new();
        if let Some(key) = reader {
            packets.extend_from_slice(&self.to_source(key).unwrap_or_default());
        }
        packets.extend_from_slice(&self.to_newsroom()?);
        Ok(packets)
    }

    /// The packet before a message for one reader.
    pub(super) fn to(&self, reader: Reader) -> Result<Bytes, CiphertextError> {
        match reader {
            Reader::Newsroom => self.to_newsroom(),
            Reader::Stranger => self.to_stranger(),
        }
    }

    /// The newsroom's key.
    pub(super) fn newsroom(&self) -> NewsroomKey {
        self.newsroom
    }

    /// To a key that is made for it and forgotten.
    fn to_stranger(&self) -> Result<Bytes, CiphertextError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(envelope)) = made.get(STRANGER) {
            return Ok(envelope.clone());
        }
        let envelope = KeyPair::generate()
            .and_then(|key| encrypt_to(&key.public_armor()?))
            .map_err(|source| CiphertextError::Key { fingerprint: STRANGER.to_owned(), source })?;
        made.insert(STRANGER.to_owned(), Some(envelope.clone()));
        Ok(envelope)
    }

    fn to_source(&self, key: &SourceKey) -> Option<Bytes> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let envelope = made.entry(key.fingerprint.clone()).or_insert_with(|| {
            let packet = encrypt_to(&key.armor).and_then(|packet| {
                let fits = u64::try_from(packet.len()).is_ok_and(|length| length <= LARGEST_ENVELOPE);
                fits.then_some(packet).ok_or_else(|| anyhow::anyhow!("the key is too large"))
            });
            packet
                .inspect_err(|error| tracing::warn!(%error, key = key.fingerprint, "a source's key is of no use"))
                .ok()
        });
        envelope.clone()
    }

    fn to_newsroom(&self) -> Result<Bytes, CiphertextError> {
        let fingerprint = self.newsroom.fingerprint();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(envelope)) = made.get(fingerprint) {
            return Ok(envelope.clone());
        }
        let envelope = encrypt_to(self.newsroom.secret_armor())
            .map_err(|source| CiphertextError::Key { fingerprint: fingerprint.to_owned(), source })?;
        made.insert(fingerprint.to_owned(), Some(envelope.clone()));
        Ok(envelope)
    }
}

/// When keys must be good.
pub(crate) fn at() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(AT_SECS)
}

/// A packet with the session key for the newest key for encryption in a certificate.
fn encrypt_to(armor: &str) -> anyhow::Result<Bytes> {
    let at = at();
    let policy = StandardPolicy::at(at);
    let cert = Cert::from_bytes(armor)?;
    let keys = cert.keys().with_policy(&policy, at).supported().alive().revoked(false);
    let key = keys.for_transport_encryption().last().ok_or_else(|| anyhow::anyhow!("no key for encryption"))?;
    let bytes = key.key().mpis().bits().map(|bits| bits / 8);
    let packet = of_full_length(bytes, || PKESK3::for_recipient(CIPHER, &session_key(), key.key()))?;
    Ok(Packet::from(PKESK::from(packet)).to_vec()?.into())
}

/// Encrypts until the ciphertext has as many bytes as the key. One time in 256 an RSA ciphertext begins with a zero and is
/// written shorter; then what fits into a message of a certain size would depend on chance.
fn of_full_length(bytes: Option<usize>, mut encrypt: impl FnMut() -> anyhow::Result<PKESK3>) -> anyhow::Result<PKESK3> {
    loop {
        let packet = encrypt()?;
        match packet.esk() {
            Ciphertext::RSA { c } if bytes.is_some_and(|bytes| c.value().len() < bytes) => {}
            _full => return Ok(packet),
        }
    }
}

#[cfg(test)]
mod tests {
    use sequoia_openpgp::crypto::mpi::MPI;
    use sequoia_openpgp::types::PublicKeyAlgorithm;

    use super::*;

    #[test]
    fn a_ciphertext_that_begins_with_a_zero_is_made_again() {
        let mut values = [vec![0, 2, 3, 4], vec![0, 0, 3, 4], vec![1, 2, 3, 4], vec![5, 6, 7, 8]].into_iter();
        let packet = of_full_length(Some(4), || {
            let c = MPI::new(&values.next().unwrap());
            PKESK3::new(None, PublicKeyAlgorithm::RSAEncryptSign, Ciphertext::RSA { c })
        });
        let Ciphertext::RSA { c } = packet.unwrap().esk().clone() else { panic!("no RSA") };
        assert_eq!((c.value(), values.len()), (&[1, 2, 3, 4][..], 1));
    }
}
