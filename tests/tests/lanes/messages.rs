//! Messages and replies come by themselves.

use std::collections::BTreeSet;

use staging::generator::{MARLOW, TERNBERG};
use staging::server::{Command, FaultAct, RecordId, SourceState};

use crate::support::*;

/// The ids of what the server lists of listed sources, besides files.
fn messages_and_replies(environment: &staging::environment::Environment) -> BTreeSet<RecordId> {
    environment.server().control().with_world(|world| {
        let sources = world.sources().filter(|source| source.state == SourceState::Listed);
        let of_source = |source| {
            let messages = world.submissions_of(source).filter(|item| item.filename.ends_with("msg.gpg"));
            let replies = world.replies_of(source).map(|reply| reply.id.clone());
            messages.map(|item| item.id.clone()).chain(replies).collect::<Vec<_>>()
        };
        sources.flat_map(of_source).collect()
    })
}

/// Waits until nothing of the lane waits or runs.
async fn until_drained(environment: &staging::environment::Environment, watch: &mut staging::environment::Watch) {
    loop {
        let status = environment.json(&["status"], "").await.unwrap();
        if status["lanes"]["messages"]["waiting"] == 0 {
            return;
        }
        watch.until("download").await.unwrap();
    }
}

/// Case Q1: however many syncs there are, each is fetched once; and without a range.
#[tokio::test(flavor = "multi_thread")]
async fn q1_messages_and_replies_are_fetched_once_each() {
    let environment = environment(6, 4, SOON).await;
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    watch.until("sync_ended").await.unwrap();
    until_drained(&environment, &mut watch).await;
    let (_, new, _) = newcomer(&environment, 700, 700);
    until_download(&mut watch, &new, "stored").await;
    let wanted = messages_and_replies(&environment);
    let requests = environment.server().control().requests();
    let fetched: Vec<_> = requests.iter().filter(|request| request.path.ends_with("/download")).collect();
    assert_eq!(fetched.len(), wanted.len());
    assert!(requests.iter().all(|request| request.range().is_none()));
    for item in &wanted {
        assert_eq!(downloads(&environment, item).len(), 1, "{item}");
    }
    let (whole, parts) = held(&environment);
    assert_eq!((whole.len(), parts), (wanted.len(), 0));
    // And after another login none is fetched again.
    environment.json(&["logout"], "").await.unwrap();
    sign_in_again(&environment).await;
    watch.until("sync_ended").await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let again = environment.server().control().requests();
    assert_eq!(again.iter().filter(|request| request.path.ends_with("/download")).count(), wanted.len());
    environment.stop().await.unwrap();
}

/// Case Q3, the network's part: a message does not wait for a file.
#[tokio::test(flavor = "multi_thread")]
async fn q3_a_message_comes_while_a_file_is_being_fetched() {
    let environment = environment(0, 0, SOON).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (source, first, file) = newcomer(&environment, 700, 3_000_000);
    environment.json(&["refresh"], "").await.unwrap();
    until_download(&mut watch, &first, "stored").await;
    fault(
        &environment,
        &format!("/api/v1/sources/*/submissions/{file}/download"),
        FaultAct::HangAfter { bytes: 1_000_000 },
    );
    environment.json(&["download", file.as_str()], "").await.unwrap();
    until_download(&mut watch, &file, "started").await;
    let new = message(&environment, &source);
    until_download(&mut watch, &new, "stored").await;
    assert_eq!(content(&environment, &source, &first).await, "downloaded");
    assert_eq!(content(&environment, &source, &file).await, "wanted");
    environment.stop().await.unwrap();
}

/// Case Q4, the downloads' part.
#[tokio::test(flavor = "multi_thread")]
async fn q4_nothing_is_fetched_after_the_logout_and_the_next_journalist_goes_on() {
    let environment = environment(3, 4, ASKED).await;
    let control = environment.server().control();
    let hang = fault(&environment, DOWNLOADS, FaultAct::Hang);
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    // The server has been asked, and does not answer.
    control.wait_for_log(|log| log.requests().any(|request| request.path.ends_with("/download"))).await;
    environment.json(&["logout"], "").await.unwrap();
    environment.broker().until(|counts| counts.open == 0).await;
    control.apply(Command::RemoveFault { id: hang }).unwrap();
    control.wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1).await;
    let asked = || control.requests().iter().filter(|request| request.path.ends_with("/download")).count();
    let before = asked();
    assert!((1..=8).contains(&before), "several at a time, in one call: {before}");
    environment.json(&["status"], "").await.unwrap();
    assert_eq!(asked(), before);
    environment.login(&TERNBERG).await.unwrap();
    until_drained(&environment, &mut watch).await;
    let (whole, parts) = held(&environment);
    assert_eq!((whole.len(), parts), (messages_and_replies(&environment).len(), 0));
    environment.stop().await.unwrap();
}

/// Case D5, the downloads' part.
#[tokio::test(flavor = "multi_thread")]
async fn d5_a_deletion_stops_downloads_and_what_was_fetched_goes_with_its_confirmation() {
    let environment = environment(0, 0, SOON).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (source, first, file) = newcomer(&environment, 700, 3_000_000);
    environment.json(&["refresh"], "").await.unwrap();
    until_download(&mut watch, &first, "stored").await;
    fault(
        &environment,
        &format!("/api/v1/sources/*/submissions/{file}/download"),
        FaultAct::HangAfter { bytes: 1_000_000 },
    );
    environment.json(&["download", file.as_str()], "").await.unwrap();
    until_download(&mut watch, &file, "started").await;
    let mut acts = environment.watch().await.unwrap();
    let deletion = environment.json(&["delete", "source", source.as_str(), "--yes"], "").await.unwrap();
    // Whichever comes first: each waits for a process.
    until_download(&mut watch, &file, "stopped").await;
    acts.until_done(deletion["acts"][0]["act"].as_u64().unwrap()).await.unwrap();
    // The files go behind the confirmation, with the next sync at the latest.
    loop {
        watch.until("sync_ended").await.unwrap();
        let (whole, parts) = held(&environment);
        if whole.is_empty() && parts == 0 {
            break;
        }
    }
    environment.stop().await.unwrap();
}

/// Case Q6: a call that cannot be opened is tried again, and everything comes.
#[tokio::test(flavor = "multi_thread")]
async fn q6_many_messages_come_in_one_call_and_no_process_is_left() {
    let environment = environment(120, 6, SOON).await;
    assert!(messages_and_replies(&environment).len() >= 400, "they are many");
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    watch.until("sync_ended").await.unwrap();
    until_drained(&environment, &mut watch).await;
    let (whole, parts) = held(&environment);
    assert_eq!((whole.len(), parts), (messages_and_replies(&environment).len(), 0));
    assert!(environment.broker().counts().max_open <= 8, "{:?}", environment.broker().counts());
    let daemon = environment.daemon_pid().unwrap();
    environment.json(&["logout"], "").await.unwrap();
    environment.broker().until(|counts| counts.open == 0).await;
    let bound = std::time::Duration::from_secs(60);
    let left = staging::processes::until_none(bound, || staging::processes::children(daemon)).await.unwrap();
    assert_eq!(left, [] as [u32; 0]);
    environment.stop().await.unwrap();
}
