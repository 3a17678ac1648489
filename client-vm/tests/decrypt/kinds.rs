//! Every kind of message, through the key file and through split-gpg.

use std::collections::BTreeSet;

use client_vm::openpgp::decrypt::{DecryptError, Decryptor, KeyFile, Unavailable, Verdict};
use protocol::value::Fingerprint;
use sequoia_openpgp::parse::Parse as _;
use tokio_util::sync::CancellationToken;

use crate::messages::{Form, message, unprotected};
use crate::stage::{Gpg, Key, decrypt, is_skipped};

const PLAINTEXT: &[u8] = "Les coffres sont vides. \u{2014} 空の金庫\n".as_bytes();

/// Both backends over the newsroom's keys; the curve's in the file.
fn backends(gpg: &Gpg) -> [Box<dyn Decryptor>; 2] {
    [Box::new(Key::Curve25519.file()), Box::new(gpg.split())]
}

#[test]
fn one_recipient_of_several_is_enough() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let other = Key::Rsa4096.fingerprint();
    let message = gpg.encrypt(Key::Curve25519, &["--recipient", &other], PLAINTEXT);
    for decryptor in backends(&gpg) {
        assert_eq!(decrypt(&*decryptor, &message).unwrap(), PLAINTEXT, "{}", decryptor.name());
    }
}

#[test]
fn hidden_recipients_are_found() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let other = Key::Rsa4096.fingerprint();
    let message = gpg.encrypt(Key::Curve25519, &["--recipient", &other, "--throw-keyids"], PLAINTEXT);
    for decryptor in backends(&gpg) {
        assert_eq!(decrypt(&*decryptor, &message).unwrap(), PLAINTEXT, "{}", decryptor.name());
    }
}

#[test]
fn signatures_change_nothing() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    // Somebody whose key nobody has.
    let author = Gpg::with_public_keys();
    author.run(&["--passphrase", "", "--quick-generate-key", "author", "ed25519", "sign"], b"");
    let gpg = Gpg::with_secret_keys();
    let message = author.encrypt(Key::Curve25519, &["--sign", "--local-user", "author"], PLAINTEXT);
    for decryptor in backends(&gpg) {
        assert_eq!(decrypt(&*decryptor, &message).unwrap(), PLAINTEXT, "{}", decryptor.name());
    }
}

#[test]
fn f4_an_empty_plaintext_is_one() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let message = gpg.encrypt(Key::Curve25519, &[], b"");
    for decryptor in backends(&gpg) {
        assert_eq!(decrypt(&*decryptor, &message).unwrap(), b"", "{}", decryptor.name());
    }
}

#[test]
fn f6_a_message_without_secret_key_names_its_keys() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let writer = Gpg::with_public_keys();
    let other = Key::Rsa4096.fingerprint();
    let message = writer.encrypt(Key::Curve25519, &["--recipient", &other], PLAINTEXT);
    let stranger = tempfile::NamedTempFile::new().unwrap();
    let (strange, _) = sequoia_openpgp::cert::CertBuilder::new().add_transport_encryption_subkey().generate().unwrap();
    std::fs::write(stranger.path(), as_file(&strange)).unwrap();
    let decryptors: [Box<dyn Decryptor>; 2] =
        [Box::new(KeyFile::new(stranger.path().to_owned())), Box::new(writer.split())];
    for decryptor in decryptors {
        let error = decrypt(&*decryptor, &message).unwrap_err();
        let DecryptError::NoSecretKey { recipients } = &error else { panic!("{}: {error:?}", decryptor.name()) };
        let named: BTreeSet<_> = recipients.iter().cloned().collect();
        assert_eq!(named, BTreeSet::from([Key::Curve25519.id(), Key::Rsa4096.id()]));
        assert_eq!(error.verdict(), Verdict::AfterKeyChange);
    }
}

#[test]
fn f6_hidden_recipients_have_no_names() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_public_keys();
    let message = gpg.encrypt(Key::Rsa4096, &["--throw-keyids"], PLAINTEXT);
    for decryptor in backends(&gpg) {
        let error = decrypt(&*decryptor, &message).unwrap_err();
        assert!(matches!(&error, DecryptError::NoSecretKey { recipients } if recipients.is_empty()), "{error:?}");
    }
}

#[test]
fn a_message_without_protection_is_refused_before_anybody_is_asked() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let old = gpg.encrypt(Key::Curve25519, &["--rfc2440"], PLAINTEXT);
    let by_hand = unprotected(&gpg.encrypt(Key::Curve25519, &[], PLAINTEXT));
    let asked = gpg.client("touch \"${0}.asked\"; exit 1");
    for message in [&old, &by_hand] {
        for decryptor in [&Key::Curve25519.file() as &dyn Decryptor, &asked] {
            let error = decrypt(decryptor, message).unwrap_err();
            assert!(matches!(error, DecryptError::Unprotected), "{}: {error:?}", decryptor.name());
            assert_eq!(error.verdict(), Verdict::Never);
        }
    }
    assert!(!any_asked(&gpg), "the key's VM was called");
}

#[test]
fn a_message_for_a_passphrase_is_refused_before_anybody_is_asked() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let alone = gpg.run(&["--pinentry-mode", "loopback", "--passphrase", "x", "--symmetric"], PLAINTEXT);
    let asked = gpg.client("touch \"${0}.asked\"; exit 1");
    for decryptor in [&Key::Curve25519.file() as &dyn Decryptor, &asked] {
        let error = decrypt(decryptor, &alone).unwrap_err();
        assert!(matches!(error, DecryptError::ForPassphrase), "{}: {error:?}", decryptor.name());
    }
    assert!(!any_asked(&gpg), "the key's VM was called");
    let both =
        gpg.encrypt(Key::Curve25519, &["--pinentry-mode", "loopback", "--passphrase", "x", "--symmetric"], PLAINTEXT);
    for decryptor in backends(&gpg) {
        assert_eq!(decrypt(&*decryptor, &both).unwrap(), PLAINTEXT, "{}", decryptor.name());
    }
    // Without the key nobody is asked for the passphrase: the agent would wait for an answer.
    let stranger = Gpg::with_public_keys();
    let error = decrypt(&stranger.split(), &both).unwrap_err();
    assert!(matches!(error, DecryptError::NoSecretKey { .. }), "{error:?}");
}

#[test]
fn what_is_no_encrypted_message_is_told_as_such() {
    let cert = std::fs::read(Key::Curve25519.path()).unwrap();
    let file = Key::Curve25519.file();
    let literal = b"\xcb\x0db\x00\x00\x00\x00\x00hello, \n";
    for other in [&b"Dear newsroom,\n"[..], &cert, literal, b"\xff\xd8\xff\xe0\x00\x10JFIF", b"\x1f\x8b\x08\x00"] {
        let error = decrypt(&file, other).unwrap_err();
        assert!(matches!(error, DecryptError::NotEncrypted), "{error:?}");
    }
}

#[test]
fn a_key_file_may_be_binary_and_hold_several_keys() {
    let both = tempfile::NamedTempFile::new().unwrap();
    let certs = [Key::Rsa4096.cert(), Key::Curve25519.cert()];
    std::fs::write(both.path(), certs.iter().flat_map(as_file).collect::<Vec<_>>()).unwrap();
    let file = KeyFile::new(both.path().to_owned());
    let message = message(&[Key::Curve25519.cert()], Form::default(), PLAINTEXT);
    assert_eq!(decrypt(&file, &message).unwrap(), PLAINTEXT);
    let keys = file.secret_keys(&CancellationToken::new()).unwrap();
    assert_eq!(keys.len(), 4);
    assert!(keys.contains(&fingerprint(Key::Rsa4096)) && keys.contains(&fingerprint(Key::Curve25519)));
}

#[test]
fn a_key_file_with_a_passphrase_is_told_as_such() {
    let locked = tempfile::NamedTempFile::new().unwrap();
    let (cert, _) = sequoia_openpgp::cert::CertBuilder::new()
        .add_transport_encryption_subkey()
        .set_password(Some("x".into()))
        .generate()
        .unwrap();
    std::fs::write(locked.path(), as_file(&cert)).unwrap();
    let file = KeyFile::new(locked.path().to_owned());
    let message = message(&[cert], Form::default(), PLAINTEXT);
    let error = decrypt(&file, &message).unwrap_err();
    assert!(matches!(error, DecryptError::Locked), "{error:?}");
    assert!(file.secret_keys(&CancellationToken::new()).unwrap().is_empty());
}

#[test]
fn a_key_file_that_is_none_is_told_as_such() {
    let message = message(&[Key::Curve25519.cert()], Form::default(), PLAINTEXT);
    let error = decrypt(&KeyFile::new("/nowhere/key.asc".into()), &message).unwrap_err();
    assert!(matches!(error, DecryptError::Unavailable(Unavailable::KeyFile { .. })), "{error:?}");
    for content in [&b""[..], b"not a key\n", b"\x99\x01"] {
        let other = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(other.path(), content).unwrap();
        let error = decrypt(&KeyFile::new(other.path().to_owned()), &message).unwrap_err();
        assert!(matches!(error, DecryptError::Unavailable(Unavailable::NoKeys)), "{error:?}");
    }
}

#[test]
fn keys_are_listed_and_given_out_without_their_secret_half() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let stop = CancellationToken::new();
    let gpg = Gpg::with_secret_keys();
    for decryptor in backends(&gpg) {
        let keys = decryptor.secret_keys(&stop).unwrap();
        assert!(keys.contains(&fingerprint(Key::Curve25519)), "{}", decryptor.name());
        let subkey = Key::Curve25519.cert().keys().subkeys().next().unwrap().key().fingerprint().to_hex();
        assert!(keys.contains(&Fingerprint::try_new(subkey).unwrap()), "{}", decryptor.name());
        let key = decryptor.public_key(&fingerprint(Key::Curve25519), &stop).unwrap();
        let cert = sequoia_openpgp::Cert::from_bytes(&key).unwrap();
        assert_eq!(cert.fingerprint(), Key::Curve25519.cert().fingerprint());
        assert!(!cert.is_tsk(), "{}", decryptor.name());
        let nobody = Fingerprint::try_new("0".repeat(40)).unwrap();
        let error = decryptor.public_key(&nobody, &stop).unwrap_err();
        assert!(matches!(error, DecryptError::NoPublicKey(_)), "{}: {error:?}", decryptor.name());
    }
    let public = Gpg::with_public_keys();
    assert!(public.split().secret_keys(&stop).unwrap().is_empty());
}

fn fingerprint(key: Key) -> Fingerprint {
    Fingerprint::try_new(key.fingerprint()).unwrap()
}

fn as_file(cert: &sequoia_openpgp::Cert) -> Vec<u8> {
    use sequoia_openpgp::serialize::SerializeInto as _;
    cert.as_tsk().to_vec().unwrap()
}

fn any_asked(gpg: &Gpg) -> bool {
    std::fs::read_dir(gpg.home()).unwrap().any(|entry| entry.unwrap().path().extension().is_some_and(|e| e == "asked"))
}
