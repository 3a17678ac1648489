//! Keys that replies are encrypted to: a source's, and the newsroom's.
//!
//! Which keys are taken and which are refused, and why, is a table in docs/OPENPGP.md; a test makes the keys and the
//! table.
//!
//! **Invariant:** a [`Recipient`] has the fingerprint that was asked for, was neither expired nor revoked at the time
//! that was given, and has at least one key that a message can be encrypted to here.
//!
//! **Invariant:** nothing is taken from a key but what its primary key has signed. User IDs, and what others signed,
//! are not looked at.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protocol::value::{Fingerprint, Timestamp};
use sequoia_openpgp::cert::amalgamation::{ValidAmalgamation as _, ValidateAmalgamation as _};
use sequoia_openpgp::cert::{Cert, CertParser, Preferences as _};
use sequoia_openpgp::crypto::SessionKey;
use sequoia_openpgp::crypto::mpi::PublicKey;
use sequoia_openpgp::packet::key::{KeyRole, PublicParts, UnspecifiedRole};
use sequoia_openpgp::packet::pkesk::PKESK3;
use sequoia_openpgp::packet::{Key, Tag};
use sequoia_openpgp::parse::Parse as _;
use sequoia_openpgp::policy::{AsymmetricAlgorithm, Policy, StandardPolicy};
use sequoia_openpgp::types::{HashAlgorithm, PublicKeyAlgorithm, RevocationStatus, SymmetricAlgorithm};
use sequoia_openpgp::{Packet, anyhow};

/// The longest key, in bytes, armored or not: as much as the protocol carries.
const MAX_KEY: usize = 64 * 1024;

/// A key that a reply can be encrypted to, checked for one moment: make it anew for each reply.
#[derive(Clone)]
pub struct Recipient {
    fingerprint: Fingerprint,
    keys: Vec<Key<PublicParts, UnspecifiedRole>>,
    reads_version_2: bool,
}

impl Recipient {
    /// Checks a key, armored or binary, for encrypting to it at `now`.
    ///
    /// A key of the same fingerprint with newer signatures of its own, say a later expiry, is checked as it is: no
    /// earlier copy is needed.
    ///
    /// # Errors
    /// [`KeyError`] when `key` is not exactly one public key, not the one with `fingerprint`, or not one that can be
    /// encrypted to.
    pub fn try_new(key: &[u8], fingerprint: &Fingerprint, now: Timestamp) -> Result<Self, KeyError> {
        let cert = one_cert(key)?;
        let found = fingerprint_in(&cert)?;
        if found != *fingerprint {
            return Err(KeyError::OtherKey { found });
        }
        let now = UNIX_EPOCH + Duration::from_micros(now.get());
        let policy = policy(now);
        // First, since it is said of the whole key and cannot be mended.
        if matches!(cert.revocation_status(&policy, now), RevocationStatus::Revoked(_)) {
            return Err(KeyError::Revoked);
        }
        let valid = cert.with_policy(&policy, now).map_err(|_| why_invalid(&cert, &policy, now))?;
        valid.alive().map_err(|error| of_life(&error))?;
        let keys: Vec<_> = valid
            .keys()
            .alive()
            .revoked(false)
            .for_transport_encryption()
            .for_storage_encryption()
            .map(|key| key.key().clone())
            .filter(can_encrypt)
            .collect();
        if keys.is_empty() {
            return Err(why_none(&cert, &policy, now));
        }
        // A key of version 4 may promise it too: Sequoia's do. But it may have been brought into GnuPG since, which
        // reads version 1 only; a key of version 6 cannot have been.
        let reads_version_2 = cert.primary_key().key().version() == 6
            && valid.features().is_some_and(|features| features.supports_seipdv2());
        Ok(Self { fingerprint: found, keys, reads_version_2 })
    }

    /// The primary key's fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint.clone()
    }

    /// The keys to encrypt to: one or more.
    pub(super) fn keys(&self) -> &[Key<PublicParts, UnspecifiedRole>] {
        &self.keys
    }

    /// Whether its owner's programs certainly read version 2 of encrypted data (SEIPD, RFC 9580). All read version 1.
    pub(super) fn reads_version_2(&self) -> bool {
        self.reads_version_2
    }
}

impl std::fmt::Debug for Recipient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Recipient").field(&self.fingerprint.as_str()).finish()
    }
}

/// The fingerprint of the one key, armored or binary, as the key itself says. Says nothing about whether it can be
/// used.
///
/// # Errors
/// [`KeyError`] when `key` is not exactly one readable public key.
pub fn fingerprint_of(key: &[u8]) -> Result<Fingerprint, KeyError> {
    fingerprint_in(&one_cert(key)?)
}

/// Why a key is not encrypted to. Holds nothing of the key but its fingerprint, its algorithm and its dates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Too long to be read.
    #[error("the key has more than {max} bytes: export it without the signatures of others")]
    TooLong {
        /// The most bytes.
        max: usize,
    },
    /// No OpenPGP key, or a broken one.
    #[error("this is not an OpenPGP key, or it is damaged")]
    Malformed,
    /// Not one key: none, or several.
    #[error("there must be one key, and there are none or several: export the one key alone")]
    NotOne,
    /// Where a public key belongs.
    #[error("this is a secret key: export the public one, and keep the secret one where it belongs")]
    Secret,
    /// Of a version that cannot be used: 3 and older, or newer than 6.
    #[error("the key is of a version of OpenPGP that is too old, or too new, to be used")]
    Version,
    /// Another key than the one that was asked for.
    #[error("this is another key: its fingerprint is {}", found.as_str())]
    OtherKey {
        /// The fingerprint of the key that is there.
        found: Fingerprint,
    },
    /// Made later than now.
    #[error("the key is not valid yet: is this VM's clock right?")]
    NotYetValid,
    /// Expired.
    #[error("the key expired on {}: the same key with a later date is needed", day(*since))]
    Expired {
        /// Since when.
        since: Timestamp,
    },
    /// Revoked by its owner.
    #[error("the key was revoked by its owner: a new one is needed")]
    Revoked,
    /// Nothing in it that its own primary key has signed.
    #[error("the key has no valid signature of its own: get it anew from its owner")]
    Unsigned,
    /// Signed with a hash that is no longer safe, or with demands that are not understood.
    #[error("the key's own signatures are too weak, or ask for what is not known here: a new key is needed")]
    WeakSignatures,
    /// Of an algorithm, or too short, to be safe.
    #[error("the key is too weak ({algorithm}): a new one is needed")]
    Weak {
        /// The algorithm, and how many bits.
        algorithm: String,
    },
    /// Of an algorithm that the cryptography which this program was built with lacks.
    #[error("the key's algorithm ({algorithm}) is not supported here")]
    Unsupported {
        /// The algorithm, and how many bits.
        algorithm: String,
    },
    /// Only for signing, say.
    #[error("the key cannot be encrypted to: it has no part for encryption")]
    NoEncryptionKey,
    /// The part for encryption expired, the rest did not.
    #[error("the key's part for encryption expired on {}: the same key with a later date is needed", day(*since))]
    EncryptionKeyExpired {
        /// Since when.
        since: Timestamp,
    },
    /// The part for encryption was revoked, the rest was not.
    #[error("the key's part for encryption was revoked by its owner: the same key with a new part is needed")]
    EncryptionKeyRevoked,
}

/// What is taken for safe at a time.
///
/// It is Sequoia's standard policy, with one exception: a key may have signed itself with SHA-1. GnuPG did so by
/// default for years, and a source's key made then is never made anew: refusing it would mean that this source can
/// never be answered. What is known against SHA-1 are collisions. With one, whoever gets the key's owner to sign
/// something prepared could turn that signature into another one of the same form; a source's key lies on the server,
/// signs nothing but itself, and only what the primary key says of itself and its parts counts here, never a user ID.
/// To put another part for encryption under a pinned primary key takes a second preimage, which nobody can find. The
/// newsroom's key does not come from strangers at all.
///
/// The exception has to be whole: Sequoia asks for resistance to collisions too where a user ID is longer than 96
/// bytes, and SecureDrop's are.
fn policy(now: SystemTime) -> StandardPolicy<'static> {
    let mut policy = StandardPolicy::at(now);
    policy.accept_hash(HashAlgorithm::SHA1);
    policy
}

/// One that refuses no algorithm, to find out what the real one minds.
fn lenient_policy(now: SystemTime) -> StandardPolicy<'static> {
    let mut policy = policy(now);
    policy.accept_hash(HashAlgorithm::MD5);
    policy.accept_hash(HashAlgorithm::RipeMD);
    for algorithm in AsymmetricAlgorithm::variants() {
        policy.accept_asymmetric_algo(algorithm);
    }
    policy.accept_asymmetric_algo(AsymmetricAlgorithm::Unknown);
    policy
}

fn one_cert(key: &[u8]) -> Result<Cert, KeyError> {
    if key.len() > MAX_KEY {
        return Err(KeyError::TooLong { max: MAX_KEY });
    }
    let mut certs = CertParser::from_bytes(key).map_err(|error| of_parser(&error))?;
    let cert = certs.next().ok_or(KeyError::NotOne)?.map_err(|error| of_parser(&error))?;
    match certs.next() {
        None if cert.is_tsk() => Err(KeyError::Secret),
        None => Ok(cert),
        Some(Ok(_)) => Err(KeyError::NotOne),
        Some(Err(_)) => Err(KeyError::Malformed),
    }
}

fn fingerprint_in(cert: &Cert) -> Result<Fingerprint, KeyError> {
    Fingerprint::try_new(cert.fingerprint().to_hex()).map_err(|_| KeyError::Version)
}

/// The error among an error's causes that the library can be asked about.
fn cause(error: &anyhow::Error) -> Option<&sequoia_openpgp::Error> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

fn of_parser(error: &anyhow::Error) -> KeyError {
    match cause(error) {
        // A key packet that the library cannot take apart.
        Some(sequoia_openpgp::Error::UnsupportedCert(_, packets))
            if packets.first().is_some_and(|packet| {
                matches!(packet, Packet::Unknown(_)) && matches!(packet.tag(), Tag::PublicKey | Tag::SecretKey)
            }) =>
        {
            KeyError::Version
        }
        _ => KeyError::Malformed,
    }
}

fn of_life(error: &anyhow::Error) -> KeyError {
    match cause(error) {
        Some(sequoia_openpgp::Error::Expired(since)) => KeyError::Expired { since: timestamp(*since) },
        Some(sequoia_openpgp::Error::NotYetLive(_)) => KeyError::NotYetValid,
        _ => KeyError::Unsigned,
    }
}

/// Why the policy does not accept the primary key.
fn why_invalid(cert: &Cert, policy: &StandardPolicy<'_>, now: SystemTime) -> KeyError {
    let lenient = lenient_policy(now);
    let primary = cert.primary_key();
    match primary.with_policy(&lenient, now) {
        Ok(valid) if policy.key(&valid.clone().into()).is_err() => {
            KeyError::Weak { algorithm: algorithm(primary.key()) }
        }
        Ok(_) => KeyError::WeakSignatures,
        // Without the algorithm no signature could be checked.
        Err(_) if !is_supported(primary.key()) => KeyError::Unsupported { algorithm: algorithm(primary.key()) },
        Err(error) => {
            let mut signatures = cert.userids().flat_map(|id| id.self_signatures()).chain(primary.self_signatures());
            let later = signatures.any(|signature| signature.signature_creation_time().is_some_and(|made| made > now));
            if later { KeyError::NotYetValid } else { of_life(&error) }
        }
    }
}

/// Why there is nothing to encrypt to: what the newest part for encryption suffers from.
fn why_none(cert: &Cert, policy: &StandardPolicy<'_>, now: SystemTime) -> KeyError {
    let lenient = lenient_policy(now);
    let parts = cert.keys().with_policy(&lenient, now).for_transport_encryption().for_storage_encryption();
    let Some(newest) = parts.max_by_key(|part| part.key().creation_time()) else {
        return KeyError::NoEncryptionKey;
    };
    if matches!(newest.revocation_status(), RevocationStatus::Revoked(_)) {
        return KeyError::EncryptionKeyRevoked;
    }
    if let Err(error) = newest.alive() {
        return match of_life(&error) {
            KeyError::Expired { since } => KeyError::EncryptionKeyExpired { since },
            other => other,
        };
    }
    if policy.key(&newest).is_err() {
        return KeyError::Weak { algorithm: algorithm(newest.key()) };
    }
    if can_encrypt(newest.key()) {
        return KeyError::WeakSignatures;
    }
    KeyError::Unsupported { algorithm: algorithm(newest.key()) }
}

/// Whether something can be encrypted to this key here. The one certain way is to try: which curves there are depends
/// on what the program was built with, and numbers that make no sense only show when they are used.
fn can_encrypt(key: &Key<PublicParts, UnspecifiedRole>) -> bool {
    SymmetricAlgorithm::AES256
        .key_size()
        .and_then(SessionKey::new)
        .and_then(|session_key| PKESK3::for_recipient(SymmetricAlgorithm::AES256, &session_key, key))
        .is_ok()
}

fn is_supported<R: KeyRole>(key: &Key<PublicParts, R>) -> bool {
    let curve = match key.mpis() {
        PublicKey::ECDSA { curve, .. } | PublicKey::EdDSA { curve, .. } | PublicKey::ECDH { curve, .. } => Some(curve),
        _ => None,
    };
    key.pk_algo().is_supported() && curve.is_none_or(|curve| curve.is_supported())
}

/// A key's algorithm in our own words, which a key cannot choose.
fn algorithm<R: KeyRole>(key: &Key<PublicParts, R>) -> String {
    #[expect(deprecated, reason = "old keys have them")]
    let name = match key.pk_algo() {
        PublicKeyAlgorithm::RSAEncryptSign | PublicKeyAlgorithm::RSAEncrypt | PublicKeyAlgorithm::RSASign => "RSA",
        PublicKeyAlgorithm::ElGamalEncrypt | PublicKeyAlgorithm::ElGamalEncryptSign => "Elgamal",
        PublicKeyAlgorithm::DSA => "DSA",
        PublicKeyAlgorithm::ECDH => "ECDH",
        PublicKeyAlgorithm::ECDSA => "ECDSA",
        PublicKeyAlgorithm::EdDSA | PublicKeyAlgorithm::Ed25519 | PublicKeyAlgorithm::Ed448 => "EdDSA",
        PublicKeyAlgorithm::X25519 => "X25519",
        PublicKeyAlgorithm::X448 => "X448",
        other => return format!("OpenPGP's number {}", u8::from(other)),
    };
    match key.mpis().bits() {
        Some(bits) => format!("{name}, {bits} bits"),
        None => name.to_owned(),
    }
}

fn timestamp(time: SystemTime) -> Timestamp {
    let micros = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    micros.try_into().ok().and_then(|micros| Timestamp::try_new(micros).ok()).unwrap_or(Timestamp::MAX)
}

fn day(time: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(time.as_i64()) {
        Ok(time) => time.strftime("%Y-%m-%d").to_string(),
        // A key counts in seconds of 32 bits: no date of it is outside of jiff's range.
        Err(_) => "an unknown day".to_owned(),
    }
}

#[cfg(test)]
mod tests;
