//! Whatever comes in: no panic, no other plaintext, no more than is allowed.

use client_vm::openpgp::decrypt::{DecryptError, Limits};
use proptest::collection::vec;
use proptest::prelude::*;
use sequoia_openpgp::types::CompressionAlgorithm;

use crate::messages::{Form, message, where_body_begins};
use crate::stage::{Key, decrypt_within};

const PLAINTEXT: &[u8] = b"The safes are empty, and have been for years. Ask for the second set of books.\n";
/// Small, so that what comes out too much is seen.
const LIMITS: Limits = Limits { bytes: 4096, ratio: 200, layers: 2 };

/// One change to a message.
#[derive(Debug, Clone)]
enum Change {
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Double(prop::sample::Index),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let place = any::<prop::sample::Index>;
    let change = prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|(place, byte)| Change::Set(place, byte)),
        1 => (place(), vec(any::<u8>(), 1..20)).prop_map(|(place, bytes)| Change::Insert(place, bytes)),
        1 => (place(), 1..20_u8).prop_map(|(place, count)| Change::Remove(place, count)),
        1 => place().prop_map(Change::Cut),
        1 => place().prop_map(Change::Double),
    ];
    vec(change, 1..4)
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        if bytes.is_empty() {
            break;
        }
        match change {
            Change::Set(place, byte) => *place.get_mut(&mut bytes) = *byte,
            Change::Insert(place, more) => {
                let at = place.index(bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
            Change::Remove(place, count) => {
                let at = place.index(bytes.len());
                bytes.drain(at..(at + usize::from(*count)).min(bytes.len()));
            }
            Change::Cut(place) => bytes.truncate(place.index(bytes.len())),
            Change::Double(place) => bytes.extend_from_within(place.index(bytes.len())..),
        }
    }
    bytes
}

/// Decrypts; only the plaintext that was meant may come of it.
fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    match decrypt_within(&Key::Curve25519.file(), bytes, &LIMITS) {
        Ok(plaintext) => prop_assert_eq!(&plaintext[..], PLAINTEXT),
        Err(error) => {
            prop_assert!(!matches!(error, DecryptError::Read(_) | DecryptError::Unavailable(_)), "{:?}", error);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn f4_changed_messages_never_give_another_plaintext(changes in changes(), zip: bool) {
        let compression = zip.then_some(CompressionAlgorithm::Zip);
        let message = message(&[Key::Curve25519.cert()], Form { compression, ..Form::default() }, PLAINTEXT);
        check(&changed(message, &changes))?;
    }

    #[test]
    fn f4_changed_armor_never_gives_another_plaintext(changes in changes()) {
        let message = message(&[Key::Curve25519.cert()], Form { armor: true, ..Form::default() }, PLAINTEXT);
        check(&changed(message, &changes))?;
    }

    #[test]
    fn random_bytes_are_no_message(bytes in vec(any::<u8>(), 0..2000)) {
        check(&bytes)?;
    }

    #[test]
    fn random_bytes_in_an_envelope_are_no_message(bytes in vec(any::<u8>(), 0..2000)) {
        let message = message(&[Key::Curve25519.cert()], Form::default(), PLAINTEXT);
        check(&[&message[..where_body_begins(&message)], &[0xd2][..], &bytes].concat())?;
    }

    #[test]
    fn random_bytes_in_armor_are_no_message(text in "[A-Za-z0-9+/=\n :-]{0,800}") {
        check(format!("-----BEGIN PGP MESSAGE-----\n{text}\n-----END PGP MESSAGE-----\n").as_bytes())?;
    }
}
