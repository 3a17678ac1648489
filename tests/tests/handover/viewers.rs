//! Documents that are open in disposable VMs.

use std::process::Stdio;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use staging::environment::Environment;
use staging::handover::{CHECK_DRIVE, Call, DOCUMENT, End};
use staging::server::RecordId;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use crate::support::*;

/// How many documents may be open.
const MOST: usize = 8;

/// So many files of one source's, all of which can be read.
async fn some_files(environment: &Environment, count: usize) -> Vec<RecordId> {
    let source = new_source(environment, None);
    let name = |at: usize| format!("{at}.pdf").into_bytes();
    let files: Vec<_> = (0..count).map(|at| hands_over(environment, &source, &name(at), SAID.as_bytes())).collect();
    fetch(environment, &files).await;
    files
}

/// A command that waits for the end of a document, once it waits.
async fn waits(environment: &Environment, item: &RecordId) -> Child {
    let mut command = environment.splitdrop(["open", item.as_str()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    assert!(line.contains("Ctrl-C ends the waiting"), "{line}");
    child
}

fn is_gone(call: &Call) -> bool {
    kill(Pid::from_raw(call.pid.try_into().unwrap()), None) == Err(Errno::ESRCH)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_open_until_it_is_closed_in_its_vm_and_the_command_waits_for_that() {
    let environment = signed_in().await;
    let vms = environment.other_vms();
    let file = one_file(&environment, "ledger.pdf").await;
    let mut watch = environment.watch().await.unwrap();
    vms.stay(DOCUMENT);
    let waiting = waits(&environment, &file).await;
    until(&mut watch, "viewer", &file, "opened").await;
    assert_eq!(viewing(&environment).len(), 2, "a folder with a file");
    let again = fails(&environment, &["open", file.as_str()], 10).await;
    assert!(again.contains("is open already"), "{again}");
    vms.until_calls(1).await;
    assert!(vms.close(0, End::code(0)));
    until(&mut watch, "viewer", &file, "closed").await;
    assert!(viewing(&environment).is_empty());
    let output = waiting.wait_with_output().await.unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), b"Closed.\n".as_slice()));
    let json = environment.json(&["open", file.as_str(), "--no-wait"], "").await.unwrap();
    assert_eq!((&json["item"], &json["state"]), (&file.as_str().into(), &"opened".into()));
    vms.until_calls(2).await;
    assert!(vms.close(1, End::code(0)));
    until(&mut watch, "viewer", &file, "closed").await;
    environment.stop().await.unwrap();
}

/// A message is a document too.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_opened_as_a_text() {
    let environment = signed_in().await;
    let source = new_source(&environment, None);
    let message = says(&environment, &source, SAID);
    fetch(&environment, std::slice::from_ref(&message)).await;
    succeeds(&environment, &["open", message.as_str()]).await;
    let given = environment.other_vms().calls().pop().unwrap().file.unwrap();
    assert!(given.name.ends_with(".txt") && given.mode == 0o400, "{given:?}");
    assert_eq!(given.sha256, digest(SAID.as_bytes()));
    assert!(viewing(&environment).is_empty());
    environment.stop().await.unwrap();
}

/// Case Q6: open documents are counted apart from the calls that the rest of the client makes.
#[tokio::test(flavor = "multi_thread")]
async fn q6_eight_open_documents_stop_nothing_and_a_ninth_is_refused() {
    let environment = signed_in().await;
    let vms = environment.other_vms();
    let files = some_files(&environment, MOST + 1).await;
    let mut watch = environment.watch().await.unwrap();
    vms.stay(DOCUMENT);
    for (at, file) in files[..MOST].iter().enumerate() {
        succeeds(&environment, &["open", file.as_str(), "--no-wait"]).await;
        // They are known by their order.
        vms.until_calls(at + 1).await;
    }
    let told = fails(&environment, &["open", files[MOST].as_str()], 10).await;
    assert!(told.contains("8 documents are open") && told.contains("close one"), "{told}");
    // A device VM's call is one more, and would be too many.
    fails(&environment, &["export", "--usb", "--check"], 10).await;
    assert_eq!(vms.calls().len(), MOST);
    // Messages come, files are fetched, acts are sent.
    let source = new_source(&environment, None);
    let items = [says(&environment, &source, "hello"), hands_over(&environment, &source, b"a.txt", b"more")];
    fetch(&environment, &items).await;
    succeeds(&environment, &["star", source.as_str()]).await;
    loop {
        let event = watch.until("act").await.unwrap();
        if event["step"] == "confirmed" {
            break;
        }
    }
    assert!(vms.close(3, End::code(0)));
    until(&mut watch, "viewer", &files[3], "closed").await;
    succeeds(&environment, &["open", files[MOST].as_str(), "--no-wait"]).await;
    let calls = vms.until_calls(MOST + 1).await;
    for (at, file) in files.iter().enumerate().filter(|(at, _)| *at != 3) {
        assert!(vms.close(at, End::code(0)));
        until(&mut watch, "viewer", file, "closed").await;
    }
    assert!(viewing(&environment).is_empty() && calls.iter().all(is_gone), "no zombie is left");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_dom0_is_told_from_a_vm_that_fails() {
    let environment = signed_in().await;
    let vms = environment.other_vms();
    let file = one_file(&environment, "ledger.pdf").await;
    vms.end(DOCUMENT, End { said: "Request refused\n".to_owned(), ..End::code(126) });
    let told = fails(&environment, &["open", file.as_str()], 7).await;
    assert!(told.contains("refused by dom0's policy"), "{told}");
    vms.end(DOCUMENT, End { said: "\u{1b}[2Jhostile\n".to_owned(), ..End::code(1) });
    let told = fails(&environment, &["open", file.as_str()], 1).await;
    assert!(told.contains("@dispvm:sd-viewer") && !told.contains("hostile"), "{told}");
    assert!(viewing(&environment).is_empty());
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_decrypted_or_being_deleted_is_not_opened() {
    let environment = signed_in().await;
    let source = new_source(&environment, None);
    let file = hands_over(&environment, &source, b"a.pdf", b"x");
    refresh(&environment).await;
    let told = fails(&environment, &["open", file.as_str()], 10).await;
    assert!(told.contains(&format!("`splitdrop download {file}`")), "{told}");
    fetch(&environment, std::slice::from_ref(&file)).await;
    // Nothing can be sent: the deletion waits.
    succeeds(&environment, &["pause"]).await;
    succeeds(&environment, &["delete", "item", file.as_str(), "--yes"]).await;
    let told = fails(&environment, &["open", file.as_str()], 10).await;
    assert!(told.contains("being deleted"), "{told}");
    assert!(environment.other_vms().calls().is_empty());
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_interrupts_the_waiting_leaves_the_document_open() {
    let environment = signed_in().await;
    let file = one_file(&environment, "ledger.pdf").await;
    let mut watch = environment.watch().await.unwrap();
    environment.other_vms().stay(DOCUMENT);
    let mut waiting = waits(&environment, &file).await;
    kill(Pid::from_raw(waiting.id().unwrap().try_into().unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(waiting.wait().await.unwrap().code(), Some(130));
    assert_eq!(viewing(&environment).len(), 2);
    environment.other_vms().until_calls(1).await;
    assert!(environment.other_vms().close(0, End::code(0)), "it is still open");
    until(&mut watch, "viewer", &file, "closed").await;
    environment.stop().await.unwrap();
}

/// Case D4: what is deleted is not shown any longer, though its document is open.
#[tokio::test(flavor = "multi_thread")]
async fn d4_a_deletion_takes_away_what_is_shown() {
    let environment = signed_in().await;
    let file = one_file(&environment, "ledger.pdf").await;
    let mut watch = environment.watch().await.unwrap();
    environment.other_vms().stay(DOCUMENT);
    succeeds(&environment, &["open", file.as_str(), "--no-wait"]).await;
    environment.other_vms().until_calls(1).await;
    assert_eq!(files_with(&environment.home(), SAID.as_bytes()).len(), 2);
    succeeds(&environment, &["delete", "item", file.as_str(), "--yes"]).await;
    while !viewing(&environment).is_empty() {
        refresh(&environment).await;
    }
    assert!(files_with(&environment.home(), SAID.as_bytes()).is_empty());
    assert!(environment.other_vms().close(0, End::code(0)));
    until(&mut watch, "viewer", &file, "closed").await;
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemons_end_ends_what_is_open_and_leaves_nothing() {
    let mut environment = signed_in().await;
    let file = one_file(&environment, "ledger.pdf").await;
    environment.other_vms().stay(DOCUMENT);
    environment.other_vms().stay(CHECK_DRIVE);
    let mut device = environment.splitdrop(["export", "--usb", "--check"]);
    let device = device.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    environment.other_vms().until_calls(1).await;
    let waiting = waits(&environment, &file).await;
    let calls = environment.other_vms().until_calls(2).await;
    assert_eq!(environment.stop_daemon(Signal::SIGTERM).await.unwrap(), Some(0));
    assert!(calls.iter().all(is_gone), "{calls:?}");
    assert!(viewing(&environment).is_empty());
    let code = waiting.wait_with_output().await.unwrap().status.code();
    assert!(matches!(code, Some(1 | 3)), "{code:?}");
    assert_ne!(device.wait_with_output().await.unwrap().status.code(), Some(0));
    environment.stop().await.unwrap();
}

/// After a crash the next start finds nothing of what was open.
#[tokio::test(flavor = "multi_thread")]
async fn d4_after_a_kill_and_a_restart_nothing_is_shown() {
    let mut environment = signed_in().await;
    let file = one_file(&environment, "ledger.pdf").await;
    environment.other_vms().stay(DOCUMENT);
    succeeds(&environment, &["open", file.as_str(), "--no-wait"]).await;
    environment.other_vms().until_calls(1).await;
    environment.stop_daemon(Signal::SIGKILL).await.unwrap();
    assert_eq!(viewing(&environment).len(), 2);
    environment.start_daemon().await.unwrap();
    assert!(viewing(&environment).is_empty());
    // The document's VM knows nothing of that, and the item can be opened again.
    assert!(environment.other_vms().close(0, End::code(0)));
    environment.other_vms().end(DOCUMENT, End::code(0));
    succeeds(&environment, &["open", file.as_str()]).await;
    environment.stop().await.unwrap();
}
