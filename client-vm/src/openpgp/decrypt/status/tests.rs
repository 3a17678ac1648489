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
    for line in ["DECRYPTION_FAILED", "BADMDC", "NODATA 1", "ERROR proc_pkt.plaintext 89_BAD_DATA", "PLAINTEXT 62 0 "] {
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

/// What GnuPG says of a message that it has opened, before and after what is in it.
const OPENED: &str =
    "[GNUPG:] ENC_TO 7D3E97CAA7341B76 18 0\n[GNUPG:] BEGIN_DECRYPTION\n[GNUPG:] DECRYPTION_INFO 2 9 0\n";
const ENDED: &str = "[GNUPG:] DECRYPTION_OKAY\n[GNUPG:] GOODMDC\n[GNUPG:] END_DECRYPTION\n";

/// A source can have GnuPG say each of these: none of them may look as if the key could not be reached.
#[test]
fn f4_what_gnupg_has_opened_and_could_not_read_is_the_messages_fault() {
    let nothing = format!("{OPENED}{ENDED}");
    let listed = format!("{OPENED}gpg: orphaned user ID\n{ENDED}");
    let signature = format!("{OPENED}[GNUPG:] ERRSIG 0000000000000000 0 0 00 0 5 -\n{ENDED}");
    let two = format!("{OPENED}[GNUPG:] PLAINTEXT 62 0 \n[GNUPG:] ERROR proc_pkt.plaintext 89_BAD_DATA\n{ENDED}");
    let short = format!("{OPENED}[GNUPG:] PLAINTEXT 62 0 \ngpg: handle plaintext failed: Bad data\n{ENDED}");
    let fatal = format!("{OPENED}gpg: Fatal: zlib inflate problem: invalid block type\n");
    let strange = format!("{OPENED}a library has its say\n{ENDED}");
    let cases = [(&nothing, 0), (&listed, 2), (&signature, 2), (&signature, 1), (&two, 2), (&short, 2), (&fatal, 2)];
    for (said, code) in cases.into_iter().chain([(&strange, 2), (&strange, 0)]) {
        let status = of(said);
        assert!(!status.is_good(exit(code)), "{said}");
        let error = status.explain(exit(code), &[]);
        assert!(matches!(error, DecryptError::Corrupt(Corruption::Malformed)), "{said}: {error:?}");
    }
}

#[test]
fn a_call_that_broke_after_the_message_was_open_is_no_fault_of_the_message() {
    for said in [OPENED.to_owned(), format!("{OPENED}EOF\n"), format!("{OPENED}{ENDED}EOF\n")] {
        for exit in [exit(1), exit(255), ExitStatus::from_raw(9)] {
            let error = of(&said).explain(exit, &[]);
            assert!(matches!(error, DecryptError::Unavailable(Unavailable::Ended)), "{said}: {error:?}");
        }
    }
}

#[test]
fn a_key_that_gave_nothing_does_not_matter_where_another_one_did() {
    for code in ["33554450", "83886179", "17", "what?"] {
        let said = format!("[GNUPG:] ERROR pkdecrypt_failed {code}\n{GOOD}");
        assert!(of(&said).is_good(exit(0)) && of(&said).is_good(exit(2)), "{said}");
        assert!(!of(&said).is_good(exit(1)) && !of(&format!("{said}EOF\n")).is_good(exit(2)), "the call broke");
        // Its exit code is that of a plaintext that was not read to its end, too.
        let why = ["handle plaintext failed: Bad data", "block_filter: 1st length byte missing"];
        for cut in why.map(|why| of(&format!("{said}gpg: {why}\n"))) {
            assert!(!cut.is_good(exit(2)), "{said}");
            let error = cut.explain(exit(2), &[]);
            assert!(matches!(error, DecryptError::Corrupt(Corruption::Malformed)), "{said}: {error:?}");
        }
    }
    let refused = of("[GNUPG:] ERROR pkdecrypt_failed 17\n[GNUPG:] ERROR pkdecrypt_failed 83886179\n");
    assert!(matches!(refused.explain(exit(2), &[]), DecryptError::Denied(Denial::Passphrase)));
}

#[test]
fn f6_a_layer_inside_that_has_no_key_here_names_its_own() {
    let inside = "[GNUPG:] NO_SECKEY 1111111111111111\n[GNUPG:] BEGIN_DECRYPTION\n[GNUPG:] DECRYPTION_FAILED\n\
        [GNUPG:] END_DECRYPTION\n";
    let error = of(&format!("{OPENED}{inside}{ENDED}")).explain(exit(2), &["7D3E97CAA7341B76".to_owned()]);
    assert!(
        matches!(&error, DecryptError::NoSecretKey { recipients } if *recipients == ["1111111111111111"]),
        "{error}"
    );
}

#[test]
fn gnupg_works_alone_from_the_session_key_to_the_next_layer() {
    assert!(!of("[GNUPG:] ENC_TO 7D3E97CAA7341B76 18 0\n[GNUPG:] BEGIN_DECRYPTION\n").is_working());
    assert!(of(OPENED).is_working());
    let inside = of(&format!("{OPENED}[GNUPG:] ENC_TO 1111111111111111 18 0\n"));
    assert!(!inside.is_working() && inside.has_opened());
    assert!(!of("[GNUPG:] ENC_TO 7D3E97CAA7341B76 18 0\n[GNUPG:] BEGIN_DECRYPTION\n").has_opened());
}

#[test]
fn f5_the_number_of_layers_and_a_passphrase_raise_an_alarm() {
    assert_eq!(of("").feed(b"[GNUPG:] BEGIN_DECRYPTION\n"), Some(Alarm::Layers(1)));
    let twice = b"[GNUPG:] BEGIN_DECRYPTION\n[GNUPG:] BEGIN_DECRYPTION\n";
    assert_eq!(of("").feed(twice), Some(Alarm::Layers(2)));
    assert_eq!(of("").feed(b"[GNUPG:] NEED_PASSPHRASE_SYM 9 3 8\n"), Some(Alarm::Passphrase));
}
