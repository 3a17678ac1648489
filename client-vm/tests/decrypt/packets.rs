//! Messages that are well encrypted, and of which the packets inside are put together by hand: what a source can do that
//! wants to hold up everybody else.

use client_vm::openpgp::decrypt::{Corruption, DecryptError, Decryptor, Limits, Verdict};

use crate::messages::{by_hand, compressed, literal, packet, with_packets};
use crate::stage::{Gpg, Key, decrypt, is_skipped};

const MARKER: &[u8] = b"\xca\x03PGP";
/// The announcement of a signature, and one that nobody can check.
const ONE_PASS: &[u8] = b"\xc4\x0d\x03\x00\x08\x01AAAAAAAA\x01";
const SIGNATURE: &[u8] = b"\xc2\x0d\x04\x00\x01\x08\x00\x00\x00\x00\x12\x34\x00\x08\xff";
/// A passphrase's packet.
const PASSPHRASE: &[u8] = b"\xc3\x0d\x04\x09\x03\x08saltsalt\x60";

fn newsroom() -> sequoia_openpgp::Cert {
    Key::Curve25519.cert()
}

/// Decrypts a message with these packets by the key file.
fn read(packets: &[u8]) -> Result<Vec<u8>, DecryptError> {
    decrypt(&Key::Curve25519.file(), &with_packets(&newsroom(), packets))
}

/// None of these may look as if the key could not be reached, or nothing else would be decrypted any more.
#[test]
fn f4_whatever_is_inside_is_the_messages_own_fault() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let bad_deflate = [&[1], &[0xff; 20][..]].concat();
    let cases: &[(&str, Vec<u8>)] = &[
        ("nothing", Vec::new()),
        ("a marker", MARKER.to_vec()),
        ("a private packet", packet(60, b"xx")),
        ("an unknown packet", packet(30, b"xx")),
        ("a hash", packet(19, &[b'a'; 20])),
        ("a key", packet(6, b"\x04\0\0\0\0\x01\0\x08\xff\0\x08\xff")),
        ("a user id", packet(13, b"hello")),
        ("a user attribute", packet(17, b"\x02\x01x")),
        ("a signature", SIGNATURE.to_vec()),
        ("no packet", b"hello world".to_vec()),
        ("unknown compression", packet(8, b"\x63abc")),
        ("damaged compression", packet(8, &bad_deflate)),
        ("two texts", [literal(b"one"), literal(b"two")].concat()),
        ("less than it claims", b"\xcb\x7fb\0\0\0\0\0abc".to_vec()),
    ];
    for (what, packets) in cases {
        let message = with_packets(&newsroom(), packets);
        for decryptor in [&Key::Curve25519.file() as &dyn Decryptor, &gpg.split()] {
            let error = decrypt(decryptor, &message).unwrap_err();
            assert_eq!(error.verdict(), Verdict::Never, "{what}, {}: {error:?}", decryptor.name());
        }
        let error = decrypt(&gpg.split(), &message).unwrap_err();
        assert!(matches!(error, DecryptError::Corrupt(_)), "{what}: {error:?}");
    }
    assert_eq!(decrypt(&gpg.split(), &with_packets(&newsroom(), &literal(b"hello"))).unwrap(), b"hello");
}

#[test]
fn a_damaged_session_key_does_not_matter_beside_a_good_one() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let (key, body) = by_hand(&newsroom(), &literal(b"hello"));
    let mut damaged = key.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for keys in [[&damaged, &key], [&key, &damaged]] {
        let message = [keys[0], keys[1], &body[..]].concat();
        for decryptor in [&Key::Curve25519.file() as &dyn Decryptor, &gpg.split()] {
            let read = decrypt(decryptor, &message);
            assert_eq!(read.as_deref().ok(), Some(&b"hello"[..]), "{}: {read:?}", decryptor.name());
        }
    }
}

/// GnuPG ends with 2 for a key that gave nothing, and for a plaintext that is cut, of which no status line says anything.
#[test]
fn f4_a_cut_text_beside_a_damaged_session_key_is_not_taken_for_whole() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let text = [b'a'; 65_536];
    let head: &[u8] = b"b\0\0\0\0\0";
    let longer = |size: u32| [&[0xcb, 255], &size.to_be_bytes()[..], head, &text].concat();
    // In pieces of 65,536 bytes, which is enough for the first to come out: the second has less, or there is no last one.
    let pieces = |all: usize| [&[0xcb, 0xf0], head, &text[..65_530], &[0xf0], &text[..all]].concat();
    let cases = [
        ("one piece", longer(100_000)),
        ("one byte", longer(65_543)),
        ("a piece that is cut", pieces(60_000)),
        ("no last piece", pieces(65_536)),
    ];
    for (what, packets) in cases {
        let (key, body) = by_hand(&newsroom(), &packets);
        let mut damaged = key.clone();
        *damaged.last_mut().unwrap() ^= 1;
        for keys in [vec![&damaged, &key], vec![&key, &damaged], vec![&key]] {
            let message = [&keys.into_iter().flatten().copied().collect::<Vec<_>>()[..], &body].concat();
            for decryptor in [&Key::Curve25519.file() as &dyn Decryptor, &gpg.split()] {
                let error = decrypt(decryptor, &message).map(|text| text.len()).unwrap_err();
                assert_eq!(error.verdict(), Verdict::Never, "{what}, {}: {error:?}", decryptor.name());
            }
        }
    }
}

#[test]
fn f6_a_layer_inside_for_another_key_is_told_as_such() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let (mut key, body) = by_hand(&newsroom(), &literal(b"hello"));
    // The recipient's id, behind the header and the version.
    let id = if key[1] < 192 { 3 } else { 4 };
    key[id..id + 8].copy_from_slice(&[0x11; 8]);
    let message = with_packets(&newsroom(), &[key, body].concat());
    for decryptor in [&Key::Curve25519.file() as &dyn Decryptor, &gpg.split()] {
        let error = decrypt(decryptor, &message).unwrap_err();
        let named = matches!(&error, DecryptError::NoSecretKey { recipients } if *recipients == ["1111111111111111"]);
        assert!(named, "{}: {error:?}", decryptor.name());
    }
}

/// GnuPG asks for a passphrase of what is inside, whatever it is told: the call ends there.
#[test]
fn f4_a_layer_inside_for_a_passphrase_bars_nothing() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    // Nobody is there to answer.
    std::fs::write(gpg.home().join("gpg-agent.conf"), "pinentry-program /bin/false\n").unwrap();
    gpg.end_agent();
    let (_, body) = by_hand(&newsroom(), &literal(b"hello"));
    for inside in [[PASSPHRASE, &body].concat(), body.clone()] {
        let message = with_packets(&newsroom(), &inside);
        for decryptor in [&Key::Curve25519.file() as &dyn Decryptor, &gpg.split()] {
            let error = decrypt(decryptor, &message).unwrap_err();
            assert!(matches!(error, DecryptError::ForPassphrase), "{}: {error:?}", decryptor.name());
            assert_eq!(error.verdict(), Verdict::Never);
        }
    }
}

#[test]
fn f5_many_packets_are_refused_before_the_text_and_after_it() {
    let text = literal(b"hello");
    let few = MARKER.repeat(100);
    assert_eq!(read(&[&few, &text[..], &few].concat()).unwrap(), b"hello");
    // In two layers of compression these take a few hundred bytes.
    let many = MARKER.repeat(1_000_000);
    let inside = compressed(&compressed(&[&many, &text[..]].concat(), b""), b"");
    assert!(inside.len() < 1000, "{}", inside.len());
    for packets in [inside, compressed(&[&text[..], &many].concat(), b"")] {
        let error = read(&packets).unwrap_err();
        assert!(matches!(error, DecryptError::Corrupt(Corruption::Malformed)), "{error:?}");
    }
}

#[test]
fn f5_many_signatures_are_refused() {
    let signed = |count| [&ONE_PASS.repeat(count), &literal(b"hello")[..], &SIGNATURE.repeat(count)].concat();
    assert_eq!(read(&signed(4)).unwrap(), b"hello");
    for count in [33, 100_000] {
        let error = read(&compressed(&signed(count), b"")).unwrap_err();
        assert!(matches!(error, DecryptError::Corrupt(Corruption::Malformed)), "{count}: {error:?}");
    }
}

#[test]
fn f5_what_is_only_read_over_is_bounded() {
    let text = literal(b"hello");
    let much = vec![0; 3 << 20];
    for tag in [60, 21] {
        let few = packet(tag, b"not for us");
        assert_eq!(read(&[&few[..], &text].concat()).unwrap(), b"hello", "{tag}");
        let error = read(&compressed(&[&packet(tag, &much)[..], &text].concat(), b"")).unwrap_err();
        assert!(matches!(error, DecryptError::TooLarge { limit: Limits::ALWAYS }), "{tag}: {error:?}");
    }
    // Behind what is compressed, in its packet, where nobody looks.
    assert_eq!(read(&compressed(&compressed(&text, &[0; 100]), b"")).unwrap(), b"hello");
    let error = read(&compressed(&compressed(&text, &much), b"")).unwrap_err();
    assert!(matches!(error, DecryptError::TooLarge { limit: Limits::ALWAYS }), "{error:?}");
    // A container whose length is not told.
    let mut endless = vec![0xA3, 1];
    endless.extend_from_slice(&compressed(&text, b"")[7..]);
    assert_eq!(read(&endless).unwrap(), b"hello");
    let error = read(&compressed(&endless, b"")).unwrap_err();
    assert!(matches!(error, DecryptError::TooLarge { .. }), "{error:?}");
}
