//! A deletion waits before it is first sent, and is taken back meanwhile.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use staging::environment::{Environment, EnvironmentOptions};
use staging::qrexec::broker::Reply;
use staging::server::{Command, LoggedRequest};

use crate::policy::{answer, asking, delete_calls, deletions, mark, questions};
use crate::support::*;

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(600);
const CONFLICT: i32 = 10;
const NOT_FOUND: i32 = 6;

fn graceful(options: EnvironmentOptions, delete_grace: Duration) -> EnvironmentOptions {
    EnvironmentOptions { delete_grace, ..options }
}

/// An environment where a deletion waits for longer than any test.
async fn patient(sources: u32, items: u32) -> Environment {
    signed_in_to(graceful(options(sources, items, ""), LONG)).await
}

/// How often the server was asked to delete anything.
fn asked_to_delete(environment: &Environment) -> usize {
    let deletes = |one: &&LoggedRequest| one.method == "DELETE";
    environment.server().control().with_log(|log| log.requests().filter(deletes).count())
}

async fn says(environment: &Environment, arguments: &[&str]) -> String {
    let output = environment.run(arguments, "").await.unwrap();
    assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}");
    output.stdout
}

/// Runs a command that cannot be done, and gives what it says.
async fn fails_with(environment: &Environment, code: i32, arguments: &[&str]) -> String {
    let output = environment.run(arguments, "").await.unwrap();
    assert_eq!(output.code, Some(code), "{arguments:?}: {output:?}");
    output.stderr
}

/// Case D2.
#[tokio::test(flavor = "multi_thread")]
async fn d2_a_deletion_shows_at_once_and_nothing_is_sent_while_it_can_be_undone() {
    let environment = patient(3, 2).await;
    let sources = ids(&environment).await;
    let designation = source(&environment, &sources[0]).await.unwrap()["designation"].as_str().unwrap().to_owned();
    let said = says(&environment, &["delete", "source", &sources[0], "--yes"]).await;
    assert_eq!(said, format!("Deleting {designation}.\nIt is sent in 600 s; `splitdrop undo` takes it back.\n"));
    assert_eq!(source_shows(&environment, &sources[0]).await, Shown::BeingDeleted);
    assert_eq!(counted_sources(&environment).await, 2);
    let waits = queue(&environment).await.swap_remove(0);
    assert_eq!((&waits["state"], &waits["attempts"]), (&json!("grace"), &json!(0)), "{waits}");
    let shown = says(&environment, &["queue"]).await;
    assert!(shown.contains("being deleted in ") && shown.contains("`splitdrop undo "), "{shown}");
    // What was done later about another source is done.
    mark(&environment, &sources[1]).await;
    assert_eq!((asked_to_delete(&environment), delete_calls(&environment)), (0, 0));

    let said = says(&environment, &["undo"]).await;
    assert_eq!(said, format!("Took act {} back: {designation} is not deleted.\n", waits["act"]));
    assert_eq!(source_shows(&environment, &sources[0]).await, Shown::Ordinary);
    assert_eq!((counted_sources(&environment).await, queue(&environment).await), (3, Vec::<Value>::new()));
    mark(&environment, &sources[0]).await;
    let said = fails_with(&environment, CONFLICT, &["undo"]).await;
    assert!(said.contains("nothing to undo") && said.contains("splitdrop queue"), "{said}");
    assert!(fails_with(&environment, NOT_FOUND, &["undo", "9999"]).await.contains("splitdrop queue"));
    assert_eq!((asked_to_delete(&environment), delete_calls(&environment)), (0, 0));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undo_is_told_and_of_several_conversations_each_is_named() {
    let environment = patient(3, 0).await;
    let sources = ids(&environment).await;
    let messages: Vec<_> = sources.iter().take(2).map(|source| message(&environment, source)).collect();
    refresh(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    let said = says(&environment, &["delete", "item", &messages[0], &messages[1], "--yes"]).await;
    let acts: Vec<_> = queue(&environment).await.iter().map(|entry| entry["act"].to_string()).collect();
    let hint = format!("They are sent in 600 s; `splitdrop undo {} {}` takes them back.\n", acts[0], acts[1]);
    assert!(acts.len() == 2 && said.ends_with(&hint), "{said}");
    // One that is not there keeps the others.
    fails_with(&environment, NOT_FOUND, &["undo", &acts[0], "9999"]).await;
    assert_eq!(item_shows(&environment, &sources[0], &messages[0]).await, Shown::BeingDeleted);
    let undone = environment.json(&["undo", &acts[0], &acts[1]], "").await.unwrap();
    let told: Vec<_> = undone["undone"].as_array().unwrap().iter().map(|one| &one["source"]).collect();
    assert_eq!(told, [&sources[0], &sources[1]], "{undone}");
    for (source, item) in sources.iter().zip(&messages) {
        assert_eq!(until_step(&mut watch, "cancel").await["source"], source.as_str());
        assert_eq!(item_shows(&environment, source, item).await, Shown::Ordinary);
    }
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_taken_back_is_sent_once_by_itself_and_is_past_undoing_then() {
    let environment = signed_in_to(graceful(options(3, 2, ""), Duration::from_millis(1))).await;
    let sources = ids(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    let held = hold(&environment, deletion(&sources[0]));
    let act = delete(&environment, &sources[0]).await;
    until_held(&environment, held, 1).await;
    for arguments in [&["undo", &act.to_string()][..], &["undo"]] {
        let said = fails_with(&environment, CONFLICT, arguments).await;
        assert!(said.contains(if arguments.len() > 1 { "has been sent" } else { "nothing to undo" }), "{said}");
    }
    release(&environment, held);
    until_act(&mut watch, act, "confirmed").await;
    assert_eq!(source_shows(&environment, &sources[0]).await, Shown::Gone);
    assert_eq!((asked_to_delete(&environment), changes(&environment).total()), (1, 1));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_the_time_begins_anew() {
    let mut environment = patient(3, 2).await;
    let sources = ids(&environment).await;
    let act = delete(&environment, &sources[0]).await;
    let due = |entry: &Value| entry["next_try"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let before = due(&queued(&environment, act).await.unwrap());
    environment.stop_daemon(Signal::SIGKILL).await.unwrap();
    environment.start_daemon().await.unwrap();
    assert_eq!(source_shows(&environment, &sources[0]).await, Shown::BeingDeleted, "nobody is signed in");
    assert_eq!(queued(&environment, act).await.unwrap()["state"], "waiting");
    sign_in_again(&environment).await;
    let waits = queued(&environment, act).await.unwrap();
    assert_eq!(waits["state"], "grace", "{waits}");
    assert!(due(&waits) > before, "{waits}");
    mark(&environment, &sources[1]).await;
    assert_eq!(asked_to_delete(&environment), 0);
    says(&environment, &["undo", &act.to_string()]).await;
    assert_eq!(source_shows(&environment, &sources[0]).await, Shown::Ordinary);
    environment.stop().await.unwrap();
}

/// What a colleague has deleted is gone; what was asked for here can be taken back for as long as that was promised, and
/// the server hears of it only afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_without_its_object_leaves_a_deletion_that_waits_its_time() {
    let environment = patient(3, 2).await;
    let sources = ids(&environment).await;
    let (undone, sent) = (&sources[0], &sources[1]);
    delete(&environment, undone).await;
    let act = delete(&environment, sent).await;
    for source in [undone, sent] {
        happens(&environment, Command::DeleteSource { source: source.as_str().into() });
    }
    refresh(&environment).await;
    for source in [undone, sent] {
        assert_eq!(source_shows(&environment, source).await, Shown::Gone);
    }
    let states: Vec<_> = queue(&environment).await.iter().map(|entry| entry["state"].clone()).collect();
    assert_eq!((states, asked_to_delete(&environment)), (vec!["grace".into(), "grace".into()], 0));

    says(&environment, &["retry", &act.to_string()]).await;
    refresh(&environment).await;
    refresh(&environment).await;
    says(&environment, &["undo"]).await;
    assert_eq!(queue(&environment).await, Vec::<Value>::new());
    fails_with(&environment, CONFLICT, &["undo"]).await;
    for source in [undone, sent] {
        assert_eq!(source_shows(&environment, source).await, Shown::Gone);
    }
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn dom0_is_asked_when_the_time_is_over_and_never_about_what_was_taken_back() {
    let environment = signed_in_to(graceful(asking(4), LONG)).await;
    let sources = ids(&environment).await;
    delete(&environment, &sources[0]).await;
    mark(&environment, &sources[1]).await;
    assert_eq!((questions(&environment), delete_calls(&environment)), (0, 0));
    says(&environment, &["undo"]).await;
    mark(&environment, &sources[1]).await;
    assert_eq!((questions(&environment), delete_calls(&environment)), (0, 0));
    assert_eq!(source_shows(&environment, &sources[0]).await, Shown::Ordinary);

    // The user ends the time of another.
    let act = delete(&environment, &sources[2]).await;
    let mut watch = environment.watch().await.unwrap();
    assert_eq!(questions(&environment), 0);
    says(&environment, &["retry", &act.to_string()]).await;
    answer(&environment, Reply::Yes(None)).await;
    until_act(&mut watch, act, "confirmed").await;
    assert_eq!((questions(&environment), deletions(&environment, &sources[2])), (1, 1));
    assert_eq!(deletions(&environment, &sources[0]), 0);
    environment.stop().await.unwrap();
}

/// It ends by itself as well.
#[tokio::test(flavor = "multi_thread")]
async fn dom0_is_asked_once_when_the_time_is_over_by_itself() {
    let environment = signed_in_to(graceful(asking(3), Duration::from_millis(1))).await;
    let source = first(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    let act = delete(&environment, &source).await;
    answer(&environment, Reply::Yes(None)).await;
    until_act(&mut watch, act, "confirmed").await;
    assert_eq!((questions(&environment), deletions(&environment, &source)), (1, 1));
    environment.stop().await.unwrap();
}

/// Without a terminal nobody is asked, and what is not sent is named.
#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_is_told_what_is_not_sent_and_it_goes_on_later() {
    let mut environment = patient(3, 2).await;
    let sources = ids(&environment).await;
    let act = delete(&environment, &sources[0]).await;
    for arguments in [&["logout"][..], &["logout", "--batch"], &["logout", "--yes"]] {
        let output = environment.run(arguments, "").await.unwrap();
        assert_eq!((output.code, output.stdout.as_str()), (Some(0), "Signed out.\n"), "{output:?}");
        let told = "Not sent yet: 1 deletion of a source. `splitdrop undo` can still take one of them back.";
        assert!(output.stderr.contains(told), "{output:?}");
        assert_eq!(source_shows(&environment, &sources[0]).await, Shown::BeingDeleted);
        sign_in_again(&environment).await;
    }
    let output = environment.run(["quit"], "").await.unwrap();
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), "The daemon has ended.\n"), "{output:?}");
    assert!(output.stderr.contains("1 deletion of a source"), "{output:?}");
    assert_eq!(environment.run(["status"], "").await.unwrap().code, Some(3), "no daemon runs");
    assert_eq!(environment.stop_daemon(Signal::SIGTERM).await.unwrap(), Some(0), "it ended in order");
    let log = std::fs::read_to_string(environment.directory().join("daemon.log")).unwrap();
    assert!(log.contains("acts wait that are not confirmed") && log.contains("own=1"), "{log}");

    environment.start_daemon().await.unwrap();
    sign_in_again(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    environment.json(&["retry", &act.to_string()], "").await.unwrap();
    until_act(&mut watch, act, "confirmed").await;
    let output = environment.run(["logout"], "").await.unwrap();
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "nothing is left to be named");
    environment.stop().await.unwrap();
}
