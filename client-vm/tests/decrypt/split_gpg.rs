//! What stands in for `qubes-gpg-client` misbehaves in every way.

use std::io::{self, Write};
use std::time::Duration;

use client_vm::openpgp::decrypt::{
    Corruption, DecryptError, Decryptor, Denial, Limits, SplitGpg, Unavailable, Verdict,
};
use tokio_util::sync::CancellationToken;

use crate::messages::{Form, message};
use crate::stage::{Gpg, Key, decrypt, file, is_skipped};

/// What GnuPG says when all is well.
const GOOD: &str = r#"
    say() { echo "[GNUPG:] $1" >&2; }
    say 'BEGIN_DECRYPTION'; say 'DECRYPTION_INFO 2 9 0'; say 'PLAINTEXT 62 0 '
    say 'DECRYPTION_OKAY'; say 'GOODMDC'; say 'END_DECRYPTION'"#;
/// Long enough for a shell to start, when there is much else to do.
const SHORT: Duration = Duration::from_secs(2);

/// A message that the stand-ins only swallow.
fn any() -> Vec<u8> {
    message(&[Key::Curve25519.cert()], Form::default(), b"plaintext")
}

fn error_of(script: &str) -> DecryptError {
    let gpg = Gpg::new();
    decrypt(&gpg.client(script), &any()).unwrap_err()
}

#[test]
fn f4_what_comes_out_never_decides() {
    // A program that does everything as if: so it can be seen that what follows is refused for its own reason.
    let gpg = Gpg::new();
    let script = format!("cat >/dev/null; echo plaintext; {GOOD}");
    assert_eq!(decrypt(&gpg.client(&script), &any()).unwrap(), b"plaintext\n");

    let silent = error_of("cat >/dev/null");
    assert!(matches!(silent, DecryptError::Unavailable(Unavailable::Ended)), "{silent:?}");
    let wordless = error_of("cat >/dev/null; echo plaintext");
    assert!(matches!(wordless, DecryptError::Unavailable(Unavailable::Ended)), "{wordless:?}");
    let failed = error_of(&format!("cat >/dev/null; echo plaintext; {GOOD}; exit 2"));
    assert!(matches!(failed, DecryptError::Corrupt(Corruption::Malformed)), "{failed:?}");
    let broken = error_of(&format!("cat >/dev/null; echo plaintext; {GOOD}; echo EOF >&2; exit 1"));
    assert!(matches!(broken, DecryptError::Unavailable(Unavailable::Ended)), "{broken:?}");
    let killed = error_of(&format!("cat >/dev/null; echo plaintext; {GOOD}; kill -9 $$"));
    assert!(matches!(killed, DecryptError::Unavailable(Unavailable::Ended)), "{killed:?}");
    let bad = error_of("cat >/dev/null; echo plaintext; echo '[GNUPG:] BADMDC' >&2; exit 0");
    assert!(matches!(bad, DecryptError::Corrupt(Corruption::Integrity)), "{bad:?}");
}

#[test]
fn f4_a_program_that_does_not_take_all_of_the_message_did_not_decrypt_it() {
    let gpg = Gpg::new();
    let message = message(&[Key::Curve25519.cert()], Form::default(), &[7; 1 << 20]);
    let script = format!("head -c 1000 >/dev/null; exec <&-; echo plaintext; {GOOD}");
    let error = decrypt(&gpg.client(&script), &message).unwrap_err();
    assert!(matches!(error, DecryptError::Unavailable(Unavailable::Ended)), "{error:?}");
}

#[test]
fn a_refusal_is_not_tried_again_by_itself() {
    for script in ["echo 'Request refused' >&2; echo EOF >&2; exit 1", "exit 126"] {
        let error = error_of(script);
        assert!(matches!(error, DecryptError::Denied(Denial::Dom0)), "{error:?}");
        assert_eq!(error.verdict(), Verdict::WhenUserActs);
    }
    let error = error_of("echo EOF >&2; exit 1");
    assert!(matches!(error, DecryptError::Denied(Denial::KeyVm)), "{error:?}");
    let error = error_of("cat >/dev/null; echo '[GNUPG:] ERROR pkdecrypt_failed 83886179' >&2; exit 2");
    assert!(matches!(error, DecryptError::Denied(Denial::Passphrase)), "{error:?}");
}

#[test]
fn what_cannot_be_reached_is_tried_again_later() {
    for (script, code) in [("exit 127", 127), ("exit 125", 125), ("exit 255", 255)] {
        let error = error_of(script);
        assert!(matches!(error, DecryptError::Unavailable(Unavailable::Qrexec(found)) if found == code), "{error:?}");
        assert_eq!(error.verdict(), Verdict::Later);
    }
    let missing = SplitGpg::new(None).program("/nowhere/qubes-gpg-client".into());
    let error = decrypt(&missing, &any()).unwrap_err();
    assert!(matches!(error, DecryptError::Unavailable(Unavailable::Program { .. })), "{error:?}");
    let error = error_of("echo 'ERROR: Destination domain not defined! Set it.' >&2; exit 1");
    assert!(matches!(error, DecryptError::Unavailable(Unavailable::NoVm)), "{error:?}");
}

#[test]
fn the_vm_is_named_to_the_program() {
    let gpg = Gpg::new();
    let script = format!("[ \"$QUBES_GPG_DOMAIN\" = sd-gpg ] || exit 3; cat >/dev/null; echo plaintext; {GOOD}");
    assert_eq!(decrypt(&gpg.client(&script), &any()).unwrap(), b"plaintext\n");
}

#[test]
fn silence_ends() {
    let gpg = Gpg::new();
    for script in ["exec tail -f /dev/null", "while :; do :; done", "cat >/dev/null; exec tail -f /dev/null"] {
        let error = decrypt(&gpg.client(script).patience(SHORT), &any()).unwrap_err();
        assert!(matches!(error, DecryptError::Unavailable(Unavailable::Silent(_))), "{error:?}");
    }
}

#[test]
fn endless_talk_is_no_sign_of_life() {
    let gpg = Gpg::new();
    let script = "exec yes 'gpg: nothing new' >&2";
    let error = decrypt(&gpg.client(script).patience(SHORT), &any()).unwrap_err();
    assert!(matches!(error, DecryptError::Unavailable(Unavailable::Silent(_))), "{error:?}");
}

/// A few hundred bytes can keep GnuPG unpacking for hours.
#[test]
fn f5_an_open_message_that_gives_nothing_is_sealed_and_bars_nothing() {
    let gpg = Gpg::new();
    let open = "cat >/dev/null; echo '[GNUPG:] BEGIN_DECRYPTION' >&2; echo '[GNUPG:] DECRYPTION_INFO 2 9 0' >&2";
    let script = format!("{open}; exec tail -f /dev/null");
    let error = decrypt(&gpg.client(&script).patience(SHORT), &any()).unwrap_err();
    assert!(matches!(error, DecryptError::Stalled(_)), "{error:?}");
    assert_eq!(error.verdict(), Verdict::WhenUserActs);
    // Somebody may be asked about the key of a layer inside: it takes longer, and is the message's doing all the same.
    let inside = "echo '[GNUPG:] ENC_TO 1111111111111111 18 0' >&2";
    let script = format!("{open}; {inside}; exec tail -f /dev/null");
    let error = decrypt(&gpg.client(&script).patience(SHORT), &any()).unwrap_err();
    assert!(matches!(error, DecryptError::Stalled(SHORT)), "{error:?}");
}

/// Each packet inside can have GnuPG say something: far less than counts as endless talk, and for days.
#[test]
fn f5_what_is_said_of_the_inside_of_a_message_is_no_sign_of_life() {
    let gpg = Gpg::new();
    let open = "cat >/dev/null; echo '[GNUPG:] BEGIN_DECRYPTION' >&2; echo '[GNUPG:] DECRYPTION_INFO 2 9 0' >&2";
    let slowly = "echo '[GNUPG:] ENC_TO 1111111111111111 18 0' >&2; timeout 0.2 tail -f /dev/null";
    let script = format!("{open}; for n in $(seq 40); do {slowly}; done");
    let error = decrypt(&gpg.client(&script).patience(SHORT), &any()).unwrap_err();
    assert!(matches!(error, DecryptError::Stalled(SHORT)), "{error:?}");
}

#[test]
fn f5_endless_output_is_cut_off() {
    let gpg = Gpg::new();
    let error = decrypt(&gpg.client("exec cat /dev/zero"), &any()).unwrap_err();
    assert!(matches!(error, DecryptError::TooLarge { limit: Limits::ALWAYS }), "{error:?}");
    let error = gpg.client("exec cat /dev/zero").secret_keys(&CancellationToken::new()).unwrap_err();
    assert!(matches!(error, DecryptError::Unavailable(Unavailable::Answer)), "{error:?}");
}

#[test]
fn f5_too_many_layers_and_a_question_for_a_passphrase_end_the_call() {
    let layers =
        "cat >/dev/null; for n in 1 2 3; do echo '[GNUPG:] BEGIN_DECRYPTION' >&2; done; exec tail -f /dev/null";
    let error = error_of(layers);
    assert!(matches!(error, DecryptError::TooDeep { limit: 2 }), "{error:?}");
    let asking = "cat >/dev/null; echo '[GNUPG:] NEED_PASSPHRASE_SYM 9 3 8' >&2; exec tail -f /dev/null";
    let error = error_of(asking);
    assert!(matches!(error, DecryptError::ForPassphrase), "{error:?}");
}

/// Stops everything as soon as something comes.
struct Stopping(CancellationToken);

impl Write for Stopping {
    fn write(&mut self, block: &[u8]) -> io::Result<usize> {
        self.0.cancel();
        Ok(block.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn whatever_happens_no_process_stays() {
    let gpg = Gpg::new();
    let pids = gpg.home().join("pids");
    // A child that goes on for ever, and that holds the pipes.
    let script = format!(
        "tail -f /dev/null & echo $! >>'{0}'; echo $$ >>'{0}'; echo plaintext; cat >/dev/null; exec tail -f /dev/null",
        pids.display()
    );
    let stop = CancellationToken::new();
    let mut plaintext = Stopping(stop.clone());
    let stopped = gpg.client(&script).decrypt(file(&any()), &mut plaintext, &Limits::default(), &stop);
    assert!(matches!(stopped, Err(DecryptError::Cancelled)), "{stopped:?}");
    let silent = decrypt(&gpg.client(&script).patience(SHORT), &any());
    assert!(matches!(silent, Err(DecryptError::Unavailable(Unavailable::Silent(_)))), "{silent:?}");
    let leaving = script.replace("exec tail -f /dev/null", "exit 1");
    let left = decrypt(&gpg.client(&leaving).patience(SHORT), &any());
    assert!(matches!(left, Err(DecryptError::Unavailable(Unavailable::Silent(_)))), "{left:?}");
    let pids = std::fs::read_to_string(pids).unwrap();
    assert_eq!(pids.lines().count(), 6);
    for pid in pids.lines() {
        // It was killed, and may be on its way.
        let ended = (0..1_000_000).any(|_| {
            std::thread::yield_now();
            has_ended(pid)
        });
        assert!(ended, "{pid} goes on");
    }
}

/// Whether a process has ended; whoever adopted it may not have reaped it yet.
fn has_ended(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with(['Z', 'X']))
}

#[test]
fn it_can_be_called_where_a_runtime_lets_it_block() {
    if is_skipped("gpg", "gnupg") {
        return;
    }
    let gpg = Gpg::with_secret_keys();
    let message = gpg.encrypt(Key::Curve25519, &[], b"plaintext");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let split = gpg.split();
    let decrypted = runtime.block_on(async { tokio::task::spawn_blocking(move || decrypt(&split, &message)).await });
    assert_eq!(decrypted.unwrap().unwrap(), b"plaintext");
}
