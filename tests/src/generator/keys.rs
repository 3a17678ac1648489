//! The pool of source keys: real OpenPGP keys, made once. And two keys for the newsroom. The secret halves of all of them
//! are public, so that tests can read what sources send and what sources are sent.
//!
//! Making a key takes seconds, so sources share these. See `keys/README.md` for how they were made.

use std::sync::Arc;

use crate::server::SourceKey;

/// One key: its primary fingerprint, the armor that a server sends, and the same key with its secret half.
struct PoolKey {
    fingerprint: &'static str,
    armor: &'static str,
    secret_armor: &'static str,
}

/// RSA keys and curve keys take turns, so that a small world has both.
const POOL: [PoolKey; 8] = [
    PoolKey {
        fingerprint: "A0E62EC1574AB6B22B45CEACFF490B89FF2E0CC6",
        armor: include_str!("../../keys/rsa4096-1.asc"),
        secret_armor: include_str!("../../keys/rsa4096-1-secret.asc"),
    },
    PoolKey {
        fingerprint: "94B85DE78D39FB9EF16F5AC75411D86064819D2E",
        armor: include_str!("../../keys/curve25519-1.asc"),
        secret_armor: include_str!("../../keys/curve25519-1-secret.asc"),
    },
    PoolKey {
        fingerprint: "28EEA632D182E981B21A00C102E8EDD039805546",
        armor: include_str!("../../keys/rsa4096-2.asc"),
        secret_armor: include_str!("../../keys/rsa4096-2-secret.asc"),
    },
    PoolKey {
        fingerprint: "8564A6B79575E2B80F35972665EC553BD570265B",
        armor: include_str!("../../keys/curve25519-2.asc"),
        secret_armor: include_str!("../../keys/curve25519-2-secret.asc"),
    },
    PoolKey {
        fingerprint: "A09C6557998CC553CCF6F23DE8716ABCF1C3FA31",
        armor: include_str!("../../keys/rsa4096-3.asc"),
        secret_armor: include_str!("../../keys/rsa4096-3-secret.asc"),
    },
    PoolKey {
        fingerprint: "1C9B9BDF072D821A2E692C7BD28340FA521E69F9",
        armor: include_str!("../../keys/curve25519-3.asc"),
        secret_armor: include_str!("../../keys/curve25519-3-secret.asc"),
    },
    PoolKey {
        fingerprint: "48294063872799208EAE9A12B6A2802A7D470A7B",
        armor: include_str!("../../keys/rsa4096-4.asc"),
        secret_armor: include_str!("../../keys/rsa4096-4-secret.asc"),
    },
    PoolKey {
        fingerprint: "65747C3994E8FBBAF0B61CCC25F2AE9949F1B0B9",
        armor: include_str!("../../keys/curve25519-4.asc"),
        secret_armor: include_str!("../../keys/curve25519-4-secret.asc"),
    },
];

/// Which key messages, files and replies are encrypted to so that the newsroom can read them. They are for tests only,
/// public with their secret halves, and protect nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NewsroomKey {
    /// RSA with 4096 bits, as most newsrooms have.
    #[default]
    Rsa4096,
    /// Ed25519, with a subkey on Curve25519 for encryption.
    Curve25519,
}

impl NewsroomKey {
    /// The primary fingerprint, 40 upper-case hex digits.
    pub fn fingerprint(self) -> &'static str {
        match self {
            Self::Rsa4096 => "B91447233DEC9FAFFFE0D2821C2CF32F89FD239B",
            Self::Curve25519 => "45CADAC5ED3F18FA03A0E58F5EA82BB8E278E853",
        }
    }

    /// The whole key in armor, secret half included and not locked with a passphrase.
    pub fn secret_armor(self) -> &'static str {
        match self {
            Self::Rsa4096 => include_str!("../../keys/newsroom-rsa4096.asc"),
            Self::Curve25519 => include_str!("../../keys/newsroom-curve25519.asc"),
        }
    }
}

/// The keys of the pool, ready for a world; sources that share a key share its text.
pub fn pool() -> Vec<Arc<SourceKey>> {
    POOL.iter().map(|key| Arc::new(SourceKey::with_secret(key.fingerprint, key.armor, key.secret_armor))).collect()
}

#[cfg(test)]
mod tests {
    use sequoia_openpgp::Cert;
    use sequoia_openpgp::parse::Parse;

    use super::*;

    #[test]
    fn every_key_has_a_public_half_that_says_its_own_fingerprint() {
        for key in &POOL {
            assert!(key.armor.starts_with("-----BEGIN PGP PUBLIC KEY BLOCK-----\n"));
            assert!(!key.armor.contains("PRIVATE"));
            let comments: Vec<String> = key
                .armor
                .lines()
                .filter_map(|line| line.strip_prefix("Comment: "))
                .map(|comment| comment.replace(' ', ""))
                .collect();
            assert_eq!(comments.first().unwrap(), key.fingerprint);
            assert!(comments.get(1).unwrap().starts_with("SourceKey<"));
        }
    }

    #[test]
    fn both_halves_are_of_the_same_key() {
        for key in &POOL {
            let (public, secret) = (Cert::from_bytes(key.armor).unwrap(), Cert::from_bytes(key.secret_armor).unwrap());
            assert_eq!(public.fingerprint().to_hex(), key.fingerprint);
            assert!(!public.is_tsk());
            assert_eq!(secret.keys().unencrypted_secret().count(), 2);
            assert_eq!(secret.strip_secret_key_material(), public);
        }
    }

    #[test]
    fn a_secret_half_says_its_own_fingerprint_and_that_it_is_for_tests() {
        let newsroom =
            [NewsroomKey::Rsa4096, NewsroomKey::Curve25519].map(|key| (key.fingerprint(), key.secret_armor()));
        for (fingerprint, armor) in POOL.iter().map(|key| (key.fingerprint, key.secret_armor)).chain(newsroom) {
            assert!(armor.starts_with("-----BEGIN PGP PRIVATE KEY BLOCK-----\nComment: TEST KEY of Splitdrop."));
            assert!(armor.contains(&format!("\nComment: {fingerprint}\n")));
        }
    }

    #[test]
    fn no_two_keys_are_the_same() {
        let mut fingerprints: Vec<_> = POOL.iter().map(|key| key.fingerprint).collect();
        fingerprints.sort_unstable();
        fingerprints.dedup();
        assert_eq!(fingerprints.len(), POOL.len());
    }
}
