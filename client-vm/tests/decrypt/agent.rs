//! The real gpg-agent, and what stands in for the program that asks for a passphrase.

use std::time::Duration;

use client_vm::openpgp::decrypt::{
    Corruption, DecryptError, Decryptor, Denial, GpgAgent, Limits, Unavailable, Verdict,
};
use protocol::value::Fingerprint;
use sequoia_openpgp::cert::CertBuilder;
use sequoia_openpgp::parse::Parse as _;
use sequoia_openpgp::serialize::SerializeInto as _;
use tokio_util::sync::CancellationToken;

use crate::messages::{Form, message, unprotected, where_body_begins, with_rsa_number};
use crate::stage::{Gpg, Key, PATIENCE, decrypt, file, is_skipped};

const PLAINTEXT: &[u8] = b"The safes are empty.\n";

fn agent(gpg: &Gpg) -> GpgAgent {
    let keys = [Key::Rsa4096, Key::Curve25519].map(|key| std::fs::read(key.path()).unwrap());
    GpgAgent::try_new(Some(gpg.home().to_owned()), &keys).unwrap().patience(PATIENCE)
}

/// A home with a key that has a passphrase, and this script in the place of the program that asks for it.
fn with_passphrase(answers: &str) -> (Gpg, GpgAgent, Vec<u8>) {
    let gpg = Gpg::new();
    let asking = gpg.program(&format!("echo 'OK ready'\nwhile read -r line; do case $line in\n{answers}\nBYE*) echo OK; exit ;;\n*) echo OK ;;\nesac; done"));
    std::fs::write(gpg.home().join("gpg-agent.conf"), format!("pinentry-program {}\n", asking.display())).unwrap();
    let arguments = [
        "--pinentry-mode",
        "loopback",
        "--passphrase",
        "x",
        "--quick-generate-key",
        "locked",
        "rsa2048",
        "encrypt,cert",
    ];
    gpg.run(&arguments, b"");
    gpg.forget_passphrases();
    let public = gpg.run(&["--export", "locked"], b"");
    let message = gpg.run(&["--encrypt", "--recipient", "locked"], PLAINTEXT);
    let agent = GpgAgent::try_new(Some(gpg.home().to_owned()), &[public]).unwrap().patience(PATIENCE);
    (gpg, agent, message)
}

#[test]
fn session_keys_come_from_the_agent() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let agent = agent(&gpg);
    for key in [Key::Rsa4096, Key::Curve25519] {
        for arguments in [&[][..], &["--throw-keyids"], &["--armor", "--compress-algo", "bzip2"]] {
            let message = gpg.encrypt(key, arguments, PLAINTEXT);
            assert_eq!(decrypt(&agent, &message).unwrap(), PLAINTEXT, "{key:?} {arguments:?}");
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let message = gpg.encrypt(Key::Curve25519, &[], PLAINTEXT);
    let decrypted = runtime.block_on(async { tokio::task::spawn_blocking(move || decrypt(&agent, &message)).await });
    assert_eq!(decrypted.unwrap().unwrap(), PLAINTEXT);
}

#[test]
fn an_agent_that_does_not_run_is_started() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    gpg.end_agent();
    let message = message(&[Key::Curve25519.cert()], Form::default(), PLAINTEXT);
    assert_eq!(decrypt(&agent(&gpg), &message).unwrap(), PLAINTEXT);
}

#[test]
fn the_keys_that_the_agent_has_are_listed() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let stop = CancellationToken::new();
    let gpg = Gpg::new();
    gpg.run(&["--import"], &std::fs::read(Key::Curve25519.path()).unwrap());
    let keys = agent(&gpg).secret_keys(&stop).unwrap();
    assert_eq!(keys.len(), 2);
    let fingerprint = Fingerprint::try_new(Key::Curve25519.fingerprint()).unwrap();
    assert!(keys.contains(&fingerprint));
    let public = agent(&gpg).public_key(&fingerprint, &stop).unwrap();
    assert!(!sequoia_openpgp::Cert::from_bytes(&public).unwrap().is_tsk());
}

#[test]
fn f6_a_key_that_the_agent_does_not_have_is_named() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_public_keys();
    let known = message(&[Key::Curve25519.cert()], Form::default(), PLAINTEXT);
    let error = decrypt(&agent(&gpg), &known).unwrap_err();
    assert!(matches!(&error, DecryptError::NoSecretKey { recipients } if *recipients == [Key::Curve25519.id()]));
    let (other, _) = CertBuilder::new().add_transport_encryption_subkey().generate().unwrap();
    let unknown = message(&[other], Form::default(), PLAINTEXT);
    let error = decrypt(&agent(&gpg), &unknown).unwrap_err();
    assert!(matches!(error, DecryptError::NoSecretKey { .. }), "{error:?}");
}

#[test]
fn f4_damage_is_told_apart() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    for key in [Key::Rsa4096, Key::Curve25519] {
        let message = gpg.encrypt(key, &["--compress-algo", "none"], PLAINTEXT);
        let mut damaged = message.clone();
        damaged[where_body_begins(&message) - 1] ^= 1;
        let error = decrypt(&agent(&gpg), &damaged).unwrap_err();
        assert!(matches!(error, DecryptError::Corrupt(Corruption::SessionKey)), "{key:?}: {error:?}");
        let mut damaged = message.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let error = decrypt(&agent(&gpg), &damaged).unwrap_err();
        assert!(matches!(error, DecryptError::Corrupt(Corruption::Integrity)), "{key:?}: {error:?}");
        let error = decrypt(&agent(&gpg), &message[..message.len() - 1]).unwrap_err();
        assert!(matches!(error, DecryptError::Cut), "{key:?}: {error:?}");
        let error = decrypt(&agent(&gpg), &unprotected(&message)).unwrap_err();
        assert!(matches!(error, DecryptError::Unprotected), "{key:?}: {error:?}");
    }
}

#[test]
fn a_session_key_of_nothing_is_damage() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let cert = Key::Rsa4096.cert();
    for number in [vec![0], vec![1], vec![2, 0]] {
        let message = with_rsa_number(&cert, &number);
        let error = decrypt(&agent(&gpg), &message).unwrap_err();
        assert!(matches!(error, DecryptError::Corrupt(Corruption::SessionKey)), "{number:?}: {error:?}");
    }
}

#[test]
fn a_passphrase_is_asked_for_where_the_agent_is() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let (_gpg, agent, message) = with_passphrase("GETPIN) echo 'D x'; echo OK ;;");
    assert_eq!(decrypt(&agent, &message).unwrap(), PLAINTEXT);
}

#[test]
fn a_cancelled_question_is_a_refusal() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let (_gpg, agent, message) = with_passphrase("GETPIN) echo 'ERR 83886179 Operation cancelled <Pinentry>' ;;");
    let error = decrypt(&agent, &message).unwrap_err();
    assert!(matches!(error, DecryptError::Denied(Denial::Passphrase)), "{error:?}");
    assert_eq!(error.verdict(), Verdict::WhenUserActs);
}

#[test]
fn a_question_that_nobody_answers_ends() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let (_gpg, agent, message) = with_passphrase("GETPIN) exec tail -f /dev/null ;;");
    let error = decrypt(&agent.patience(Duration::from_secs(1)), &message).unwrap_err();
    assert!(matches!(error, DecryptError::Unavailable(Unavailable::Silent(_))), "{error:?}");
}

#[test]
fn a_question_that_is_waited_for_can_be_stopped() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    // It says that it was asked by opening a pipe.
    let (gpg, agent, message) = with_passphrase("GETPIN) echo >\"${0%/*}/asked\"; exec tail -f /dev/null ;;");
    let asked = gpg.home().join("asked");
    nix::unistd::mkfifo(&asked, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let stop = CancellationToken::new();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::fs::read(&asked).unwrap();
            stop.cancel();
        });
        agent.decrypt(file(&message), &mut Vec::new(), &Limits::default(), &stop).unwrap_err()
    });
    assert!(matches!(error, DecryptError::Cancelled), "{error:?}");
}

#[test]
fn an_agent_that_cannot_be_reached_is_tried_again_later() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let message = message(&[Key::Curve25519.cert()], Form::default(), PLAINTEXT);
    let key = Key::Curve25519.cert().strip_secret_key_material().to_vec().unwrap();
    let nowhere = GpgAgent::try_new(Some("/nowhere".into()), &[key]).unwrap();
    let error = decrypt(&nowhere, &message).unwrap_err();
    assert!(matches!(error, DecryptError::Unavailable(Unavailable::Agent(_))), "{error:?}");
    assert_eq!(error.verdict(), Verdict::Later);
    let none = GpgAgent::try_new(None, &[b"not a key".to_vec()]).unwrap_err();
    assert!(matches!(none, DecryptError::Unavailable(Unavailable::NoKeys)), "{none:?}");
}
