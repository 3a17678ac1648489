//! What is read does not wait for what is fetched, nor what is written for either.

use nix::sys::signal::Signal;
use serde_json::json;
use staging::environment::{Environment, EnvironmentOptions, KeyAccess};
use staging::generator::MARLOW;
use staging::programs::Programs;
use staging::server::{Command, FaultAct, RecordId, SourceState};

use crate::support::*;

const DOWNLOADS: &str = "/api/v1/sources/*/*/*/download";

/// Case Q3.
#[tokio::test(flavor = "multi_thread")]
async fn q3_a_new_message_can_be_read_while_a_large_file_is_in_progress() {
    let environment = signed_in(SYNCING, KeyAccess::File).await;
    let source = new_source(&environment);
    let command = Command::NewFile { source: source.clone(), size: 40_000_000 };
    let outcome = environment.server().control().apply(command).unwrap();
    let staging::server::Outcome::Item { uuid: file, .. } = outcome else { unreachable!("{outcome:?}") };
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    // It takes four minutes.
    let slow = FaultAct::Drip { bytes: 8_000, every_ms: 50 };
    fault(&environment, &format!("/api/v1/sources/*/submissions/{file}/download"), slow);
    download(&environment, &file).await;
    let before = until(&mut watch, "download", &file, "progress").await["received"].as_u64().unwrap();
    let message = says(&environment, &source, SAID);
    // Nobody asks: the next sync brings it.
    until(&mut watch, "read", &message, "decrypted").await;
    let after = until(&mut watch, "download", &file, "progress").await["received"].as_u64().unwrap();
    assert!(after > before, "and the file flows: {before}, then {after}");
    assert_eq!(said(&environment, &source, &message).await.as_deref(), Some(SAID));
    assert_eq!(state(&environment, &source, &file).await, "wanted");
    assert_eq!(status(&environment).await["lanes"]["files"]["running"], 1);
    environment.stop().await.unwrap();
}

/// Messages and replies of the sources that the server lists, each with its source.
fn everything(environment: &Environment) -> Vec<(RecordId, RecordId)> {
    environment.server().control().with_world(|world| {
        let mut items = Vec::new();
        for source in world.sources().filter(|source| source.state == SourceState::Listed) {
            let messages = world.submissions_of(source).filter(|item| item.filename.ends_with("msg.gpg"));
            items.extend(messages.map(|item| (source.id.clone(), item.id.clone())));
            items.extend(world.replies_of(source).map(|reply| (source.id.clone(), reply.id.clone())));
        }
        items
    })
}

/// Fetches everything of a world while there is no key, and leaves.
async fn fetched_without_a_key() -> (Environment, Vec<(RecordId, RecordId)>) {
    let mut options = EnvironmentOptions::with_sources(4, 6).unwrap();
    options.client_config = ASKED.to_owned();
    options.key = KeyAccess::Unreachable;
    options.server.newsroom = NEWSROOM;
    let environment = Environment::with_daemon(options).await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    let items = everything(&environment);
    assert!(items.len() > 8, "{}", items.len());
    while files(&environment, "ciphertext").len() < items.len() {
        watch.until("download").await.unwrap();
    }
    environment.json(&["logout"], "").await.unwrap();
    environment.broker().until(|counts| counts.open == 0).await;
    assert_eq!(status(&environment).await["session"]["state"], "signed_out");
    (environment, items)
}

/// All of it can be read, and is what the server has.
async fn assert_readable(environment: &Environment, items: &[(RecordId, RecordId)]) {
    let mut watch = environment.watch().await.unwrap();
    while status(environment).await["lanes"]["decrypt"]["waiting"] != 0 {
        watch.until("read").await.unwrap();
    }
    for (source, item) in items {
        let expected = String::from_utf8(plaintext(environment, item)).unwrap();
        assert_eq!(said(environment, source, item).await, Some(expected));
    }
    let lane = &status(environment).await["lanes"]["decrypt"];
    assert_eq!(lane, &json!({ "waiting": 0, "running": 0, "failed": 0 }));
    assert_eq!(files(environment, "ciphertext").len(), 0);
    assert_eq!(environment.broker().counts().open, 0, "no call was made for it");
}

/// Case Q3.
#[tokio::test(flavor = "multi_thread")]
async fn q3_with_no_session_what_is_there_is_decrypted_as_soon_as_there_is_a_key() {
    let (environment, items) = fetched_without_a_key().await;
    put_key(&environment, NEWSROOM.secret_armor());
    assert_readable(&environment, &items).await;
    environment.stop().await.unwrap();
}

/// Case Q3: the same after a start, with a queue that the user has paused.
#[tokio::test(flavor = "multi_thread")]
async fn q3_a_daemon_that_starts_decrypts_what_is_there_whether_anybody_signs_in_or_not() {
    let (mut environment, items) = fetched_without_a_key().await;
    environment.json(&["pause"], "").await.unwrap();
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    put_key(&environment, NEWSROOM.secret_armor());
    environment.start_daemon().await.unwrap();
    assert_readable(&environment, &items).await;
    let paused = status(&environment).await["paused"].clone();
    assert_eq!(paused, json!([{ "reason": "no_session" }, { "reason": "user" }]));
    environment.stop().await.unwrap();
}

/// A pipe in the place of the key file: whoever opens it waits until somebody writes, and hears of nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_work_hangs_ends_all_the_same() {
    let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await.unwrap().unwrap();
    let mut environment = Environment::start(programs, options(ASKED, KeyAccess::Unreachable)).await.unwrap();
    nix::unistd::mkfifo(&environment.key_file(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    environment.start_daemon().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    let source = new_source(&environment);
    let message = says(&environment, &source, SAID);
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    until(&mut watch, "read", &message, "started").await;
    let ended = environment.run(["quit", "--yes"], "").await.unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(environment.stop_daemon(Signal::SIGTERM).await.unwrap(), Some(0));
    std::fs::remove_file(environment.key_file()).unwrap();
    put_key(&environment, NEWSROOM.secret_armor());
    environment.start_daemon().await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    while said(&environment, &source, &message).await.is_none() {
        watch.until("read").await.unwrap();
    }
    environment.stop().await.unwrap();
}

/// Case Q3.
#[tokio::test(flavor = "multi_thread")]
async fn q3_a_reply_does_not_wait_behind_300_downloads() {
    const WAITING: u64 = 300;
    let environment = signed_in(ASKED, KeyAccess::File).await;
    let control = environment.server().control();
    let source = new_source(&environment);
    for _ in 0..WAITING {
        control.apply(Command::NewFile { source: source.clone(), size: 2_000 }).unwrap();
    }
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    fault(&environment, DOWNLOADS, FaultAct::Hang);
    environment.json(&["download", "--all", "--no-wait"], "").await.unwrap();
    control.wait_for_log(|log| log.requests().filter(|one| one.path.ends_with("/download")).count() == 2).await;
    assert_eq!(status(&environment).await["lanes"]["files"]["waiting"], WAITING);
    environment.listed_with_keys().await.unwrap();
    let reply = act(&environment, &["reply", source.as_str(), "--message", "Thank you."]).await;
    until_act(&mut watch, reply, "confirmed").await;
    let sent: Vec<_> = control.with_world(|world| {
        let source = world.source(source.as_str()).unwrap();
        world.replies_of(source).map(|reply| reply.id.clone()).collect()
    });
    assert_eq!(control.source_reads(&sent[0]).await.unwrap().text, "Thank you.");
    assert_eq!((sent.len(), &status(&environment).await["lanes"]["files"]["waiting"]), (1, &WAITING.into()));
    environment.stop().await.unwrap();
}
