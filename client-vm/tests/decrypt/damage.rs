//! Messages that were cut or changed, at every place.

use client_vm::openpgp::decrypt::{Corruption, DecryptError, Decryptor, Verdict};
use sequoia_openpgp::types::CompressionAlgorithm;

use crate::messages::{Form, message, where_body_begins};
use crate::stage::{Gpg, Key, decrypt, file, is_skipped};

const PLAINTEXT: &[u8] = b"The safes are empty, and have been for years. Ask for the second set of books.\n";

/// A message with everything that can be cut: several partial lengths.
fn long() -> (Vec<u8>, Vec<u8>) {
    let plaintext: Vec<u8> = (0..40_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    (message(&[Key::Curve25519.cert()], Form::default(), &plaintext), plaintext)
}

fn assert_cut(decryptor: &dyn Decryptor, message: &[u8], length: usize) {
    let error = decrypt(decryptor, &message[..length]).unwrap_err();
    assert!(matches!(error, DecryptError::Cut), "{} at {length}: {error:?}", decryptor.name());
    assert_eq!(error.verdict(), Verdict::Never);
}

#[test]
fn f4_a_cut_message_is_told_as_such_wherever_it_is_cut() {
    let message = message(&[Key::Curve25519.cert()], Form::default(), PLAINTEXT);
    for length in 0..message.len() {
        assert_cut(&Key::Curve25519.file(), &message, length);
    }
    let (long, plaintext) = long();
    assert_eq!(decrypt(&Key::Curve25519.file(), &long).unwrap(), plaintext);
    for length in (0..long.len()).step_by(7919).chain(long.len() - 30..long.len()) {
        assert_cut(&Key::Curve25519.file(), &long, length);
    }
}

#[test]
fn f4_a_cut_armored_message_is_told_as_such_wherever_it_is_cut() {
    let message = message(&[Key::Curve25519.cert()], Form { armor: true, ..Form::default() }, PLAINTEXT);
    assert_eq!(decrypt(&Key::Curve25519.file(), &message).unwrap(), PLAINTEXT);
    assert_eq!(decrypt(&Key::Curve25519.file(), message.trim_ascii_end()).unwrap(), PLAINTEXT);
    for length in 0..message.trim_ascii_end().len() {
        assert_cut(&Key::Curve25519.file(), &message, length);
    }
}

#[test]
fn f4_a_cut_message_is_told_as_such_behind_split_gpg() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let message = gpg.encrypt(Key::Curve25519, &["--compress-algo", "zip"], PLAINTEXT);
    let split = gpg.split();
    assert_eq!(decrypt(&split, &message).unwrap(), PLAINTEXT);
    for length in (0..message.len()).step_by(23).chain([message.len() - 1]) {
        assert_cut(&split, &message, length);
    }
    let (long, plaintext) = long();
    assert_eq!(decrypt(&split, &long).unwrap(), plaintext);
    for length in (50_000..long.len()).step_by(40_000).chain([long.len() - 1]) {
        assert_cut(&split, &long, length);
    }
}

/// Flips one bit of a byte.
fn flipped(message: &[u8], place: usize, bit: usize) -> Vec<u8> {
    let mut message = message.to_vec();
    message[place] ^= 1 << (bit % 8);
    message
}

/// A changed message gives an error, unless the change means nothing.
fn assert_unharmed(decryptor: &dyn Decryptor, message: &[u8], what: &str) -> Option<DecryptError> {
    match decrypt(decryptor, message) {
        Ok(plaintext) => {
            assert_eq!(plaintext, PLAINTEXT, "{} {what}", decryptor.name());
            None
        }
        Err(error) => Some(error),
    }
}

#[test]
fn f4_no_flipped_bit_gives_another_plaintext() {
    for compression in [None, Some(CompressionAlgorithm::Zip)] {
        let message = message(&[Key::Curve25519.cert()], Form { compression, ..Form::default() }, PLAINTEXT);
        // Past the encrypted packet's header and version, only the cipher's text is left.
        let sealed = where_body_begins(&message) + 3;
        for place in 0..message.len() {
            let error = assert_unharmed(&Key::Curve25519.file(), &flipped(&message, place, place), &place.to_string());
            if place >= sealed {
                assert_eq!(error.map(|error| error.verdict()), Some(Verdict::Never), "at {place}");
            }
        }
    }
}

#[test]
fn f4_no_flipped_bit_gives_another_plaintext_behind_split_gpg() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let message = gpg.encrypt(Key::Curve25519, &["--compress-algo", "none"], PLAINTEXT);
    let sealed = where_body_begins(&message) + 3;
    let split = gpg.split();
    for place in (0..message.len()).step_by(5) {
        let error = assert_unharmed(&split, &flipped(&message, place, place), &place.to_string());
        if place >= sealed {
            // What a change makes of what comes behind it may look like anything, also like another cipher's.
            assert_eq!(error.map(|error| error.verdict()), Some(Verdict::Never), "at {place}");
        }
    }
    let last = decrypt(&split, &flipped(&message, message.len() - 1, 0)).unwrap_err();
    assert!(matches!(last, DecryptError::Corrupt(Corruption::Integrity)), "{last:?}");
}

#[test]
fn f4_a_damaged_session_key_is_no_missing_key() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let message = gpg.encrypt(Key::Curve25519, &[], PLAINTEXT);
    let damaged = flipped(&message, where_body_begins(&message) - 1, 0);
    for decryptor in [&Key::Curve25519.file() as &dyn Decryptor, &gpg.split()] {
        let error = decrypt(decryptor, &damaged).unwrap_err();
        assert!(matches!(error, DecryptError::Corrupt(Corruption::SessionKey)), "{}: {error:?}", decryptor.name());
    }
}

#[test]
fn f4_a_wrong_checksum_of_the_armor_does_not_matter_and_a_wrong_letter_does() {
    let message = message(&[Key::Curve25519.cert()], Form { armor: true, ..Form::default() }, PLAINTEXT);
    let text = String::from_utf8(message).unwrap();
    let (body, footer) = text.split_once("\n-----END").unwrap();
    let letters = body.rsplit_once("\n=").map_or(body, |(letters, _)| letters);
    // The message has its own, better checksum.
    let with_checksum = format!("{letters}\n=AAAA\n-----END{footer}");
    assert_eq!(decrypt(&Key::Curve25519.file(), with_checksum.as_bytes()).unwrap(), PLAINTEXT);
    let wrong = text.replacen("\n\n", "\n\n*", 1);
    let error = decrypt(&Key::Curve25519.file(), wrong.as_bytes()).unwrap_err();
    assert!(matches!(error, DecryptError::Corrupt(Corruption::Armor)), "{error:?}");
}

#[test]
fn a_text_after_the_armor_is_not_part_of_the_message() {
    let armored = message(&[Key::Curve25519.cert()], Form { armor: true, ..Form::default() }, PLAINTEXT);
    let longer = [&b"Dear newsroom,\n"[..], &armored, b"\nYours\n"].concat();
    assert_eq!(decrypt(&Key::Curve25519.file(), &longer).unwrap(), PLAINTEXT);
}

#[test]
fn f4_nothing_may_follow_a_message() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let message = gpg.encrypt(Key::Curve25519, &[], PLAINTEXT);
    let literal = b"\xcb\x0db\x00\x00\x00\x00\x00hello, \n";
    for more in [&b"\0"[..], b"\n", b"more", &message, literal, &message[..9]] {
        let longer = [&message, more].concat();
        for decryptor in [&Key::Curve25519.file() as &dyn Decryptor, &gpg.split()] {
            let error = decrypt(decryptor, &longer).unwrap_err();
            let told = matches!(error, DecryptError::Corrupt(Corruption::Trailing));
            assert!(told, "{} {more:?}: {error:?}", decryptor.name());
        }
        let earlier = [literal, &message[..]].concat();
        let error = decrypt(&gpg.split(), &earlier).unwrap_err();
        assert!(matches!(error, DecryptError::NotEncrypted), "{error:?}");
    }
}

#[test]
fn f5_long_lines_are_not_taken_into_memory() {
    let mut armored = b"-----BEGIN PGP MESSAGE-----\nComment: ".to_vec();
    armored.extend(std::iter::repeat_n(b'x', 1 << 20));
    armored.extend_from_slice(b"\n\nwV4D\n-----END PGP MESSAGE-----\n");
    let error = decrypt(&Key::Curve25519.file(), &armored).unwrap_err();
    assert!(matches!(error, DecryptError::Corrupt(Corruption::Armor)), "{error:?}");
}

#[test]
fn a_message_is_read_from_where_the_file_stands() {
    use std::io::{Seek as _, SeekFrom};

    let message = message(&[Key::Curve25519.cert()], Form::default(), PLAINTEXT);
    let mut later = file(&[b"before", &message[..]].concat());
    later.seek(SeekFrom::Start(6)).unwrap();
    let mut plaintext = Vec::new();
    let stop = tokio_util::sync::CancellationToken::new();
    Key::Curve25519.file().decrypt(later, &mut plaintext, &Default::default(), &stop).unwrap();
    assert_eq!(plaintext, PLAINTEXT);
}
