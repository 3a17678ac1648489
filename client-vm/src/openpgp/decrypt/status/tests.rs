use std::os::unix::process::ExitStatusExt as _;

use super::*;

const GOOD: &str = "[GNUPG:] ENC_TO 7D3E97CAA7341B76 18 0\n\
    gpg: encrypted with 255-bit ECDH key, ID 7D3E97CAA7341B76, created 2024-01-02\n\
    [GNUPG:] BEGIN_DECRYPTION\n[GNUPG:] DECRYPTION_INFO 2 9 0\n[GNUPG:] PLAINTEXT 62 1796039556 \n\
    [GNUPG:] DECRYPTION_OKAY\n[GNUPG:] GOODMDC\n[GNUPG:] END_DECRYPTION\n";

fn exit(code: i32) -> ExitStatus {
    ExitStatus::from_raw(code << 8)
}

fn of(text: &str) -> Status {
    let mut status = Status::default();
    status.feed(text.as_bytes());
    status
}

#[test]
fn f4_lines_and_exit_code_both_have_to_say_so() {
    assert!(of(GOOD).is_good(exit(0)));
    assert!(!of(GOOD).is_good(exit(2)));
    assert!(!of(GOOD).is_good(ExitStatus::from_raw(9)), "killed");
    assert!(!of("").is_good(exit(0)));
    for line in GOOD.lines().filter(|line| line.contains("TION") || line.contains("GOODMDC") || line.contains("TEXT")) {
        let without = GOOD.replace(&format!("{line}\n"), "");
        assert!(!of(&without).is_good(exit(0)) || line.contains("INFO"), "{line}");
    }
    for line in ["DECRYPTION_FAILED", "BADMDC", "NODATA 1", "ERROR pkdecrypt_failed 11", "PLAINTEXT 62 0 "] {
        assert!(!of(&format!("{GOOD}[GNUPG:] {line}\n")).is_good(exit(0)), "{line}");
    }
}

#[test]
fn a_signature_that_cannot_be_checked_does_not_matter() {
    let signed = format!("[GNUPG:] ERRSIG B2241415F6EA7907 1 10 00 1796039557 9 -\n{GOOD}");
    assert!(of(&signed).is_good(exit(2)));
    assert!(of(&signed.replace("ERRSIG", "BADSIG")).is_good(exit(1)));
    assert!(!of(&format!("{signed}EOF\n")).is_good(exit(1)), "the call broke");
    assert!(!of(&signed).is_good(exit(3)));
}

#[test]
fn lines_come_in_any_pieces() {
    let mut status = Status::default();
    for byte in GOOD.bytes() {
        status.feed(&[byte]);
    }
    assert!(status.is_good(exit(0)));
}

#[test]
fn a_line_without_end_is_not_kept() {
    let mut status = Status::default();
    for _ in 0..1000 {
        status.feed(&[b'x'; 4096]);
    }
    assert!(status.line.capacity() <= 2 * MAX_LINE);
}

#[test]
fn who_refused_is_told() {
    let refused = of("Request refused\nEOF\n");
    assert!(matches!(refused.explain(exit(1), &[]), DecryptError::Denied(Denial::Dom0)));
    assert!(matches!(of("").explain(exit(126), &[]), DecryptError::Denied(Denial::Dom0)));
    assert!(matches!(of("EOF\n").explain(exit(1), &[]), DecryptError::Denied(Denial::KeyVm)));
    assert!(matches!(of("").explain(exit(127), &[]), DecryptError::Unavailable(Unavailable::Qrexec(127))));
    let unset = of("ERROR: Destination domain not defined! Set it with QUBES_GPG_DOMAIN env variable.\n");
    assert!(matches!(unset.explain(exit(1), &[]), DecryptError::Unavailable(Unavailable::NoVm)));
    let cancelled = of("[GNUPG:] ERROR pkdecrypt_failed 83886179\n[GNUPG:] BEGIN_DECRYPTION\n");
    assert!(matches!(cancelled.explain(exit(2), &[]), DecryptError::Denied(Denial::Passphrase)));
    let died = of("[GNUPG:] ENC_TO 7D3E97CAA7341B76 18 0\n[GNUPG:] BEGIN_DECRYPTION\n[GNUPG:] DECRYPTION_INFO 2 9 0\n");
    assert!(matches!(died.explain(exit(1), &[]), DecryptError::Unavailable(Unavailable::Ended)));
}

#[test]
fn f5_the_number_of_layers_and_a_passphrase_raise_an_alarm() {
    assert_eq!(of("").feed(b"[GNUPG:] BEGIN_DECRYPTION\n"), Some(Alarm::Layers(1)));
    let twice = b"[GNUPG:] BEGIN_DECRYPTION\n[GNUPG:] BEGIN_DECRYPTION\n";
    assert_eq!(of("").feed(twice), Some(Alarm::Layers(2)));
    assert_eq!(of("").feed(b"[GNUPG:] NEED_PASSPHRASE_SYM 9 3 8\n"), Some(Alarm::Passphrase));
}
