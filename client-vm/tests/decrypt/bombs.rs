//! What becomes more, and more, when it is unpacked.

use std::io;

use client_vm::openpgp::decrypt::{DecryptError, Decryptor, Limits, Verdict};
use sequoia_openpgp::types::CompressionAlgorithm;
use tokio_util::sync::CancellationToken;

use crate::messages::{Form, in_layers, message};
use crate::stage::{Gpg, Key, decrypt, decrypt_within, file, is_skipped};

/// Counts what comes and keeps none of it.
#[derive(Debug, Default)]
struct Counting(u64);

impl io::Write for Counting {
    fn write(&mut self, block: &[u8]) -> io::Result<usize> {
        self.0 += u64::try_from(block.len()).unwrap();
        Ok(block.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn f5_a_bomb_is_stopped_early() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    // 300 MB of zeros become 300 kB, of which 200 times as much may come out: GnuPG's own speed is what this waits for.
    let zeros = vec![0; 300_000_000];
    let bomb = gpg.encrypt(Key::Curve25519, &["--compress-algo", "zip"], &zeros);
    drop(zeros);
    assert!(bomb.len() < 1_000_000, "{}", bomb.len());
    let limits = Limits { ratio: 20, ..Limits::default() };
    let most = 20 * u64::try_from(bomb.len()).unwrap();
    for decryptor in [&Key::Curve25519.file() as &dyn Decryptor, &gpg.split()] {
        let mut counting = Counting::default();
        let stop = CancellationToken::new();
        let error = decryptor.decrypt(file(&bomb), &mut counting, &limits, &stop).unwrap_err();
        assert!(matches!(error, DecryptError::TooLarge { limit } if limit == most), "{}: {error:?}", decryptor.name());
        assert_eq!(error.verdict(), Verdict::Never);
        assert!(counting.0 <= most, "{}: {}", decryptor.name(), counting.0);
    }
}

#[test]
fn f5_the_most_bytes_count_too() {
    let message = message(&[Key::Curve25519.cert()], Form::default(), &[7; 5000]);
    let exact = Limits { bytes: 5000, ..Limits::default() };
    assert_eq!(decrypt_within(&Key::Curve25519.file(), &message, &exact).unwrap().len(), 5000);
    let less = Limits { bytes: 4999, ..Limits::default() };
    let error = decrypt_within(&Key::Curve25519.file(), &message, &less).unwrap_err();
    assert!(matches!(error, DecryptError::TooLarge { limit: 4999 }), "{error:?}");
}

#[test]
fn f5_layers_are_counted() {
    let file = Key::Curve25519.file();
    let cert = Key::Curve25519.cert();
    assert_eq!(decrypt(&file, &in_layers(&cert, 2, 0, b"deep")).unwrap(), b"deep");
    assert_eq!(decrypt(&file, &in_layers(&cert, 1, 2, b"deep")).unwrap(), b"deep");
    for message in [in_layers(&cert, 3, 0, b"deep"), in_layers(&cert, 1, 3, b"deep"), in_layers(&cert, 1, 40, b"deep")]
    {
        let error = decrypt(&file, &message).unwrap_err();
        assert!(matches!(error, DecryptError::TooDeep { limit: 2 }), "{error:?}");
    }
}

#[test]
fn f5_layers_are_counted_behind_split_gpg() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let cert = Key::Curve25519.cert();
    assert_eq!(decrypt(&gpg.split(), &in_layers(&cert, 2, 1, b"deep")).unwrap(), b"deep");
    let error = decrypt(&gpg.split(), &in_layers(&cert, 3, 0, b"deep")).unwrap_err();
    assert!(matches!(error, DecryptError::TooDeep { limit: 2 }), "{error:?}");
}

#[test]
fn f5_many_recipients_are_refused() {
    let cert = Key::Curve25519.cert();
    let certs = vec![cert; 65];
    let error = decrypt(&Key::Curve25519.file(), &message(&certs, Form::default(), b"many")).unwrap_err();
    assert!(error.to_string().contains("too many recipients"), "{error}");
    let hidden = message(&certs[..60], Form { hidden: true, ..Form::default() }, b"many");
    let other = Key::Rsa4096.file();
    let error = decrypt(&other, &hidden).unwrap_err();
    assert!(matches!(error, DecryptError::NoSecretKey { .. }), "{error:?}");
}

#[test]
fn an_encrypted_packet_with_too_little_in_it_is_malformed() {
    let cert = Key::Curve25519.cert();
    for length in 0..60 {
        for outer in [1, 2] {
            let short = crate::messages::short(&cert, outer, length);
            let error = decrypt(&Key::Curve25519.file(), &short).unwrap_err();
            assert!(matches!(error, DecryptError::Corrupt(_)), "{outer} {length}: {error:?}");
        }
    }
}

#[test]
fn a_bomb_of_each_compression_is_stopped() {
    let cert = Key::Curve25519.cert();
    for algorithm in [CompressionAlgorithm::Zip, CompressionAlgorithm::Zlib, CompressionAlgorithm::BZip2] {
        let form = Form { compression: Some(algorithm), ..Form::default() };
        let bomb = message(std::slice::from_ref(&cert), form, &[0; 3_000_000]);
        let error = decrypt(&Key::Curve25519.file(), &bomb).unwrap_err();
        assert!(matches!(error, DecryptError::TooLarge { .. }), "{algorithm}: {error:?}");
    }
}
