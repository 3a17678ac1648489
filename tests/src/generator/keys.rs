//! The pool of source keys: real OpenPGP public keys, made once, whose secret halves nobody has. And two keys for the
//! newsroom, whose secret halves everybody has, so that tests can read what sources send.
//!
//! Making a key takes seconds, so sources share these. See `keys/README.md` for how they were made.

use std::sync::Arc;

use crate::server::SourceKey;

/// One key: its primary fingerprint and its armor.
struct PoolKey {
    fingerprint: &'static str,
    armor: &'static str,
}

/// RSA keys and curve keys take turns, so that a small world has both.
const POOL: [PoolKey; 8] = [
    PoolKey {
        fingerprint: "A7E916B6973A8B60620263BB10082BB5EA4F4F33",
        armor: include_str!("../../keys/rsa4096-1.asc"),
    },
    PoolKey {
        fingerprint: "0F22E170069BA63237FCB9052664A66A351C17B0",
        armor: include_str!("../../keys/curve25519-1.asc"),
    },
    PoolKey {
        fingerprint: "64EB90B80909E5F9469E5014040F5A978CB0814B",
        armor: include_str!("../../keys/rsa4096-2.asc"),
    },
    PoolKey {
        fingerprint: "9494913ADDB1367A70B60C35A052B6F2956A4925",
        armor: include_str!("../../keys/curve25519-2.asc"),
    },
    PoolKey {
        fingerprint: "FB88D0A6C6B992BF23F13CB14EE8067AB36F628C",
        armor: include_str!("../../keys/rsa4096-3.asc"),
    },
    PoolKey {
        fingerprint: "986FEE2F2BBCD7D69B8AA7AC7419F576E5F6E6D1",
        armor: include_str!("../../keys/curve25519-3.asc"),
    },
    PoolKey {
        fingerprint: "C3F307998AA5250892AE0D351D9AA06B1FB0A240",
        armor: include_str!("../../keys/rsa4096-4.asc"),
    },
    PoolKey {
        fingerprint: "A68D4E7ECCB54860963AC7F4B4C0B1C3B88B4BC2",
        armor: include_str!("../../keys/curve25519-4.asc"),
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
    POOL.iter().map(|key| Arc::new(SourceKey::new(key.fingerprint, key.armor))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_public_and_says_its_own_fingerprint() {
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
    fn a_newsroom_key_says_its_own_fingerprint_and_that_it_is_for_tests() {
        for key in [NewsroomKey::Rsa4096, NewsroomKey::Curve25519] {
            let armor = key.secret_armor();
            assert!(armor.starts_with("-----BEGIN PGP PRIVATE KEY BLOCK-----\nComment: TEST KEY of Splitdrop."));
            assert!(armor.contains(&format!("\nComment: {}\n", key.fingerprint())));
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
