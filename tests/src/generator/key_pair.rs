//! Keys beside the pool, for tests in which a source's key changes: made when they are asked for.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use sequoia_openpgp::Cert;
use sequoia_openpgp::cert::{CertBuilder, CipherSuite};
use sequoia_openpgp::parse::Parse;
use sequoia_openpgp::policy::StandardPolicy;
use sequoia_openpgp::serialize::SerializeInto;
use sequoia_openpgp::types::KeyFlags;

use super::keys::pool;

/// 2013-05-14: the date that a SecureDrop server gives the keys of all sources.
const MADE_SECS: u64 = 1_368_489_600;

/// A key with its secret half, which protects nothing.
#[derive(Debug, Clone)]
pub struct KeyPair {
    cert: Cert,
}

impl KeyPair {
    /// A new key such as a source's: Ed25519, with a subkey on Curve25519 for encryption. No two are the same.
    ///
    /// # Errors
    ///
    /// When the machine has no dice.
    pub fn generate() -> anyhow::Result<Self> {
        let for_encryption = KeyFlags::empty().set_transport_encryption().set_storage_encryption();
        let (cert, _revocation) = CertBuilder::new()
            .set_creation_time(SystemTime::UNIX_EPOCH + Duration::from_secs(MADE_SECS))
            .set_cipher_suite(CipherSuite::Cv25519)
            .set_primary_key_flags(KeyFlags::empty().set_certification().set_signing())
            .add_userid("Source Key <made for one test>")
            .add_subkey(for_encryption, None, None)
            .generate()?;
        Ok(Self { cert })
    }

    /// The key at this place of the pool, from 0.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn of_pool(place: usize) -> anyhow::Result<Self> {
        let keys = pool();
        let key = keys.get(place).ok_or_else(|| anyhow::anyhow!("there is no key {place} in the pool"))?;
        let secret = key.secret_armor.as_deref().ok_or_else(|| anyhow::anyhow!("key {place} has no secret half"))?;
        Ok(Self { cert: Cert::from_bytes(secret)? })
    }

    /// The same key with new signatures of its own on it, which say that it expires at `when`; `None` is never.
    /// Of signatures of the same second either may count: do it once to a key.
    ///
    /// # Errors
    ///
    /// When it cannot be signed.
    pub fn expiring(&self, when: Option<Timestamp>) -> anyhow::Result<Self> {
        let when = when.map(|when| u64::try_from(when.as_second())).transpose()?;
        let when = when.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let policy = StandardPolicy::new();
        let mut signer = self.cert.primary_key().key().clone().parts_into_secret()?.into_keypair()?;
        let signatures = self.cert.set_expiration_time(&policy, None, &mut signer, when)?;
        let (cert, _changed) = self.cert.clone().insert_packets(signatures)?;
        Ok(Self { cert })
    }

    /// The primary fingerprint, 40 upper-case hex digits.
    pub fn fingerprint(&self) -> String {
        self.cert.fingerprint().to_hex()
    }

    /// The public half in armor, with comments as a server's keys have them.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn public_armor(&self) -> anyhow::Result<String> {
        Ok(String::from_utf8(self.cert.armored().to_vec()?)?)
    }

    /// The whole key in armor, secret half included and not locked with a passphrase.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn secret_armor(&self) -> anyhow::Result<String> {
        Ok(String::from_utf8(self.cert.as_tsk().armored().to_vec()?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_like_a_sources_and_no_two_are_the_same() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        assert_ne!(one.fingerprint(), other.fingerprint());
        let public = one.public_armor().unwrap();
        assert!(public.starts_with("-----BEGIN PGP PUBLIC KEY BLOCK-----\nComment: "));
        assert!(one.secret_armor().unwrap().starts_with("-----BEGIN PGP PRIVATE KEY BLOCK-----\n"));
        let cert = Cert::from_bytes(&public).unwrap();
        assert_eq!(cert.fingerprint().to_hex(), one.fingerprint());
        let (policy, made) = (StandardPolicy::new(), SystemTime::UNIX_EPOCH + Duration::from_secs(MADE_SECS));
        assert_eq!(cert.primary_key().key().creation_time(), made);
        let keys = cert.keys().with_policy(&policy, None).alive().revoked(false);
        assert_eq!(keys.for_transport_encryption().count(), 1);
    }

    #[test]
    fn an_expiry_changes_the_text_and_not_the_key() {
        let policy = StandardPolicy::new();
        for key in [KeyPair::generate().unwrap(), KeyPair::of_pool(0).unwrap(), KeyPair::of_pool(1).unwrap()] {
            let expiry = Timestamp::constant(4_000_000_000, 0);
            let later = key.expiring(Some(expiry)).unwrap();
            assert_eq!(later.fingerprint(), key.fingerprint());
            assert_ne!(later.public_armor().unwrap(), key.public_armor().unwrap());
            let cert = Cert::from_bytes(&later.public_armor().unwrap()).unwrap();
            let primary = cert.with_policy(&policy, None).unwrap().primary_key();
            let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
            assert_eq!(primary.key_expiration_time(), Some(expires));
            let past = key.expiring(Some(Timestamp::constant(1_500_000_000, 0))).unwrap();
            let cert = Cert::from_bytes(&past.public_armor().unwrap()).unwrap();
            assert!(cert.with_policy(&policy, None).unwrap().alive().is_err());
        }
        assert!(KeyPair::of_pool(8).is_err());
    }
}
