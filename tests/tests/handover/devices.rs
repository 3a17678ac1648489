//! The drive and the printer of the device VM.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use control::DeviceStatus;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use staging::environment::Environment;
use staging::handover::{CHECK_DRIVE, CHECK_PRINTER, COPY, End, GivenFile, PRINT};

use crate::support::*;

const PASSPHRASE: &str = "correct horse \"battery\" staple";

fn last(environment: &Environment) -> GivenFile {
    environment.other_vms().calls().pop().unwrap().file.unwrap()
}

/// How each status that is not what was asked for ends a command.
fn codes() -> BTreeMap<&'static str, i32> {
    BTreeMap::from([
        ("NO_DEVICE_DETECTED", 6),
        ("ERROR_PRINTER_NOT_FOUND", 6),
        ("INVALID_DEVICE_DETECTED", 10),
        ("MULTI_DEVICE_DETECTED", 10),
        ("UNKNOWN_DEVICE_DETECTED", 10),
        ("DEVICE_LOCKED", 10),
        ("ERROR_UNPRINTABLE_TYPE", 10),
        ("ERROR_MIMETYPE_UNSUPPORTED", 10),
        ("ERROR_MIMETYPE_DISCOVERY", 10),
        ("ERROR_UNLOCK_LUKS", 11),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_asks_for_a_drive_and_hands_nothing_over() {
    let environment = signed_in().await;
    let printed = succeeds(&environment, &["export", "--usb", "--check"]).await;
    assert_eq!(printed, "There is a drive, and it is unlocked.\n");
    let call = environment.other_vms().calls().pop().unwrap();
    let archive = environment.home().join("viewing/device/archive.sd-export");
    assert_eq!(call.arguments, ["--view-only", "sd-devices", archive.to_str().unwrap()]);
    let given = call.file.unwrap();
    assert_eq!((given.mode, given.folder_mode, given.folder.len()), (0o600, 0o700, 1));
    let archive = given.archive.unwrap();
    assert_eq!((archive.metadata, archive.entries), (json!({ "device": "usb-test" }), Vec::new()));
    environment.other_vms().end(CHECK_DRIVE, End::status("DEVICE_LOCKED"));
    let answer = environment.json(&["export", "--usb", "--check"], "").await.unwrap();
    assert_eq!(answer["status"], "DEVICE_LOCKED");
    assert!(viewing(&environment).is_empty());
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_drive_gets_its_passphrase_which_is_nowhere_else() {
    let environment = signed_in().await;
    let vms = environment.other_vms();
    let file = one_file(&environment, "ledger.pdf").await;
    vms.end(CHECK_DRIVE, End::status("DEVICE_LOCKED"));
    let arguments = ["export", file.as_str(), "--usb", "--passphrase-stdin"];
    let output = environment.run(arguments, &format!("{PASSPHRASE}\n")).await.unwrap();
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (Some(0), "Everything was copied, and the drive is locked again.\n")
    );
    let calls = vms.calls();
    assert_eq!(calls.iter().map(|call| call.about()).collect::<Vec<_>>(), [CHECK_DRIVE, COPY]);
    assert!(calls.iter().all(|call| !call.arguments.concat().contains("horse")), "{calls:?}");
    let archive = last(&environment).archive.unwrap();
    assert_eq!(archive.metadata, json!({ "device": "disk", "encryption_key": PASSPHRASE }));
    let entries: Vec<_> = archive.entries.iter().map(|entry| (entry.name.as_str(), entry.bytes)).collect();
    assert_eq!(entries, [("export_data/", 0), ("export_data/ledger.pdf", SAID.len() as u64)]);
    assert_eq!(archive.entries[1].sha256, digest(SAID.as_bytes()));
    assert!(viewing(&environment).is_empty());
    // Neither in the data nor in the log, nor is the file's name in the log.
    assert!(files_with(environment.directory(), b"horse").is_empty());
    let log = std::fs::read_to_string(environment.directory().join("daemon.log")).unwrap();
    assert!(log.contains("SUCCESS_EXPORT") && !log.contains("ledger"), "{log}");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passphrase_is_asked_for_only_where_a_drive_is_locked() {
    let environment = signed_in().await;
    let file = one_file(&environment, "ledger.pdf").await;
    succeeds(&environment, &["export", file.as_str(), "--usb"]).await;
    assert_eq!(last(&environment).archive.unwrap().metadata, json!({ "device": "disk" }));
    environment.other_vms().end(CHECK_DRIVE, End::status("DEVICE_LOCKED"));
    let told = fails(&environment, &["export", file.as_str(), "--usb"], 2).await;
    assert!(told.contains("--passphrase-stdin"), "{told}");
    for (input, part) in [("", "not one line"), ("a\nb\n", "not one line"), ("\n", "passphrase")] {
        let output = environment.run(["export", file.as_str(), "--usb", "--passphrase-stdin"], input).await.unwrap();
        assert!(output.code == Some(2) && output.stderr.contains(part), "{input:?}: {output:?}");
    }
    let copied = environment.other_vms().calls().iter().filter(|call| call.about() == COPY).count();
    assert_eq!(copied, 1);
    environment.stop().await.unwrap();
}

/// Each status, of each call, is a line of its own and an exit code.
#[tokio::test(flavor = "multi_thread")]
async fn each_status_has_its_meaning_and_its_exit_code() {
    let environment = signed_in().await;
    let vms = environment.other_vms();
    let file = one_file(&environment, "ledger.pdf").await;
    let (export, print) = (["export", file.as_str(), "--usb"], ["print", file.as_str()]);
    let mut lines = BTreeSet::new();
    let good = [
        (CHECK_DRIVE, "DEVICE_WRITABLE"),
        (COPY, "SUCCESS_EXPORT"),
        (CHECK_PRINTER, "PRINTER_PREFLIGHT_SUCCESS"),
        (PRINT, "PRINTER_SUCCESS"),
    ];
    for status in DeviceStatus::all() {
        for (about, expected) in good {
            let word = status.word();
            if word == expected || (about, word) == (CHECK_DRIVE, "DEVICE_LOCKED") {
                continue;
            }
            // Drives and printers have their own words; the others are said of either.
            let of_printer = word.contains("PRINT") || word.contains("MIMETYPE");
            let of_drive = !of_printer && !word.starts_with("ERROR_");
            let printing = about == CHECK_PRINTER || about == PRINT;
            if (printing && of_drive) || (!printing && of_printer) {
                continue;
            }
            vms.end(about, End::status(word));
            let code = codes().get(word).copied().unwrap_or(1);
            let arguments = if printing { print.as_slice() } else { export.as_slice() };
            lines.insert(fails(&environment, arguments, code).await);
            vms.end(about, End::status(expected));
        }
    }
    // But for the one that is good in each of its places.
    assert!(lines.len() >= DeviceStatus::all().count() - 1, "{lines:#?}");
    assert_eq!(succeeds(&environment, &print).await, "Handed to the printer.\n");
    assert_eq!(last(&environment).archive.unwrap().metadata, json!({ "device": "printer" }));
    // A workstation has its printers elsewhere than its drives.
    assert_eq!(environment.other_vms().calls().pop().unwrap().arguments[1], "sd-printers");
    assert_eq!(succeeds(&environment, &["print", "--check"]).await, "There is a printer, and it can be used.\n");
    assert!(viewing(&environment).is_empty());
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_status_is_an_error_of_its_own_and_inert() {
    let environment = signed_in().await;
    let vms = environment.other_vms();
    let check = ["export", "--usb", "--check"];
    let hostile = format!("\u{1b}[2J\u{202e}{}", "EVIL".repeat(50_000));
    for (end, code, part) in [
        (End::status(&hostile), 1, "is not understood"),
        (End::status("success_export"), 1, "is not understood"),
        (End::code(0), 1, "without saying how it went"),
        (End { said: "SUCCESS_EXPORT\n".to_owned(), ..End::code(1) }, 1, "sd-devices failed (exit status: 1)"),
        (End { said: "DEVICE_WRITABLE\n".to_owned(), ..End::code(126) }, 7, "refused by dom0's policy"),
    ] {
        vms.end(CHECK_DRIVE, end);
        let told = fails(&environment, &check, code).await;
        assert!(told.contains(part) && told.len() < 500, "{told}");
        assert!(viewing(&environment).is_empty());
    }
    environment.stop().await.unwrap();
}

/// One call at a time; Ctrl-C ends it, and the archive goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_ended_with_the_command_that_waits_for_it() {
    let environment = signed_in().await;
    let vms = environment.other_vms();
    let file = one_file(&environment, "ledger.pdf").await;
    vms.stay(COPY);
    let mut command = environment.splitdrop(["export", file.as_str(), "--usb"]);
    let mut copying = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let calls = vms.until_calls(2).await;
    assert_eq!(viewing(&environment).len(), 2, "a folder with an archive");
    let told = fails(&environment, &["print", "--check"], 10).await;
    assert!(told.contains("already"), "{told}");
    kill(Pid::from_raw(copying.id().unwrap().try_into().unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(copying.wait().await.unwrap().code(), Some(130));
    // The daemon hears of it, ends the call, and takes the next.
    let is_gone = |pid: u32| kill(Pid::from_raw(pid.try_into().unwrap()), None) == Err(Errno::ESRCH);
    while !is_gone(calls[1].pid) || !viewing(&environment).is_empty() {
        run(&environment, &["status"]).await;
    }
    while run(&environment, &["print", "--check"]).await.code == Some(10) {}
    assert_eq!(succeeds(&environment, &["print", "--check"]).await, "There is a printer, and it can be used.\n");
    environment.stop().await.unwrap();
}

/// What was done in the device VM was done, whatever is left here; and what is left is told of until it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_copied_is_told_though_the_archive_cannot_be_removed() {
    let environment = signed_in().await;
    let vms = environment.other_vms();
    let file = one_file(&environment, "ledger.pdf").await;
    vms.stay(COPY);
    let mut command = environment.splitdrop(["export", file.as_str(), "--usb"]);
    let copying = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    vms.until_calls(2).await;
    let (viewing, away) = (environment.home().join("viewing"), environment.home().join("away"));
    std::fs::rename(&viewing, &away).unwrap();
    std::fs::write(&viewing, "").unwrap();
    assert!(vms.close(1, End::status("SUCCESS_EXPORT")));
    let copied = copying.wait_with_output().await.unwrap();
    assert_eq!(copied.status.code(), Some(0), "{copied:?}");
    let erasure = async || environment.json(&["status"], "").await.unwrap()["erasure"].clone();
    while erasure().await["items"] != 1 {}
    std::fs::remove_file(&viewing).unwrap();
    std::fs::rename(&away, &viewing).unwrap();
    // The next call takes away what the last one left.
    while run(&environment, &["print", "--check"]).await.code != Some(0) {}
    while !erasure().await.is_null() {}
    assert!(self::viewing(&environment).is_empty());
    environment.stop().await.unwrap();
}
