//! A client whose disk is full: what it refuses, what it waits with, and that it goes on when there is room. The disk is a
//! tmpfs that a test makes smaller and larger.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use staging::environment::{ASKED, Environment, EnvironmentError, EnvironmentOptions, Output, Watch};
use staging::generator::MARLOW;
use staging::isolation::OPT_OUT;
use staging::programs::Programs;
use staging::server::{Command, KeyChoice, Outcome, RecordId, SourceState};

/// A disk with room, in bytes. Of a tmpfs only what is written takes memory.
const ROOMY: u64 = 1 << 30;
/// Less than what the client keeps for its database, in bytes.
const LITTLE: u64 = 20 << 20;
/// How much a draft may hold, in characters.
const LONGEST: usize = 100_000;

/// An environment whose client has a disk of its own; none where this machine permits no namespaces and that was said to be
/// all right.
async fn on_a_disk_of_its_own() -> Option<Environment> {
    let mut options = EnvironmentOptions::with_sources(1, 0).unwrap();
    options.client_config = ASKED.to_owned();
    options.own_mounts = true;
    let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await.unwrap().unwrap();
    let mut environment = Environment::start(programs, options).await.unwrap();
    if let Some(reason) = environment.isolation().missing() {
        let skipped = std::env::var_os(OPT_OUT).is_some_and(|value| value == "1");
        assert!(skipped, "{reason}: run the tests as root or permit user namespaces, or set {OPT_OUT}=1");
        // Past the harness, which keeps to itself what a test prints that passes.
        let _ = writeln!(io::stderr(), "NOT CHECKED: a full disk: {reason}");
        environment.stop().await.unwrap();
        return None;
    }
    std::fs::DirBuilder::new().mode(0o700).create(environment.home()).unwrap();
    let options = format!("size={ROOMY},mode=0700");
    assert!(in_client(&environment, "/usr/bin/mount", &["-t", "tmpfs", "-o", &options, "tmpfs"]).await.is_some());
    environment.start_daemon().await.unwrap();
    Some(environment)
}

/// Does something to the client's disk; gives what it printed, if it went well.
async fn in_client(environment: &Environment, program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = environment.isolation().in_client(Path::new(program));
    let output = command.args(arguments).arg(environment.home()).output().await.unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// From now on so many bytes are left on the disk, give or take a page.
async fn leave(environment: &Environment, bytes: u64) {
    for _ in 0..100 {
        let figures =
            in_client(environment, "/usr/bin/stat", &["--file-system", "--format", "%S %b %f"]).await.unwrap();
        let figures: Vec<u64> = figures.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
        let [block, blocks, free] = figures[..] else { panic!("{figures:?}") };
        let size = format!("remount,size={}", (blocks - free) * block + bytes);
        // Without the options that it has: they name users whom a user namespace does not know.
        let resize = ["--options-mode", "ignore", "-o", &size];
        if in_client(environment, "/usr/bin/mount", &resize).await.is_some() {
            return;
        }
    }
    panic!("the client writes and writes, so that each size is too small");
}

/// A new source's message and file.
fn sent(environment: &Environment) -> [RecordId; 2] {
    let apply = |command| match environment.server().control().apply(command).unwrap() {
        Outcome::Item { uuid, .. } | Outcome::Source { uuid, .. } => uuid,
        other => panic!("{other:?}"),
    };
    let source = apply(Command::NewSource { designation: None, key: KeyChoice::Any, state: SourceState::Listed });
    let message = apply(Command::NewMessage { source: source.clone(), size: 700 });
    [message, apply(Command::NewFile { source, size: 3_000 })]
}

/// Waits until the items are fetched and opened.
async fn until_all(watch: &mut Watch, items: [&RecordId; 2]) {
    let mut left: BTreeSet<_> = items.iter().map(|item| item.as_str()).collect();
    while !left.is_empty() {
        let event = watch.until("read").await.unwrap();
        if event["step"] == "decrypted" {
            left.remove(event["item"].as_str().unwrap());
        }
    }
}

/// Signs in, or is told that it is the disk.
async fn sign_in(environment: &Environment) {
    environment.server().control().apply(Command::AdvanceClock { seconds: 90 }).unwrap();
    let credentials = environment.credentials(&MARLOW);
    let login = environment.run(["login", "--credentials-stdin"], &credentials).await.unwrap();
    assert!(login.code == Some(0) || login.stderr.contains("is the disk full?"), "{login:?}");
}

/// Starts the daemon on a full disk, as far as that can be; where it cannot it is told what to do about it, which is done.
async fn start(environment: &mut Environment) {
    leave(environment, 0).await;
    match environment.start_daemon().await {
        Ok(()) => {}
        Err(EnvironmentError::NotReady(said)) => {
            assert!(said.contains("there is no room for the daemon on the disk of"), "{said}");
            leave(environment, LITTLE).await;
            environment.start_daemon().await.unwrap();
            leave(environment, 0).await;
        }
        Err(error) => panic!("{error}"),
    }
}

async fn status(environment: &Environment) -> Value {
    environment.json(&["status"], "").await.unwrap()
}

fn downloads(environment: &Environment) -> usize {
    let control = environment.server().control();
    control.with_log(|log| log.requests().filter(|one| one.path.ends_with("/download")).count())
}

async fn keep(environment: &Environment, source: &str, text: &str) -> Output {
    environment.run(["reply", source, "--draft"], text).await.unwrap()
}

async fn draft(environment: &Environment, source: &str) -> Value {
    environment.json(&["show", source], "").await.unwrap()["draft"].clone()
}

/// Case T1, the disk's part.
#[tokio::test(flavor = "multi_thread")]
async fn t1_a_full_disk_loses_nothing_and_everything_goes_on_when_there_is_room() {
    let Some(mut environment) = on_a_disk_of_its_own().await else { return };
    environment.first_login(&MARLOW).await.unwrap();
    let source = environment.json(&["sources"], "").await.unwrap()["sources"][0]["uuid"].as_str().unwrap().to_owned();
    environment.json(&["pause"], "").await.unwrap();
    let [message, file] = sent(&environment);
    environment.json(&["refresh"], "").await.unwrap();
    environment.json(&["download", file.as_str(), "--no-wait"], "").await.unwrap();

    // What is left is the database's: nothing is fetched, and all else is as ever.
    let mut watch = environment.watch().await.unwrap();
    leave(&environment, LITTLE).await;
    environment.json(&["resume"], "").await.unwrap();
    let paused = watch.until("queue_paused").await.unwrap();
    assert_eq!(paused["reason"], "no_room", "{paused}");
    assert_eq!(keep(&environment, &source, "kept in little room").await.code, Some(0));
    environment.json(&["logout"], "").await.unwrap();
    sign_in(&environment).await;
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(status(&environment).await["paused"][0]["reason"], "no_room");
    assert_eq!(downloads(&environment), 0);

    // Now there is none at all. The database's own files have some, which is soon used up.
    leave(&environment, 0).await;
    let mut last = "kept in little room".to_owned();
    let refused = loop {
        let next: String = format!("{} ", last.len()).chars().cycle().take(LONGEST).collect();
        let kept = keep(&environment, &source, &next).await;
        if kept.code != Some(0) {
            break kept;
        }
        last = next;
        leave(&environment, 0).await;
    };
    assert!(refused.code == Some(1) && refused.stderr.contains("is the disk full?"), "{refused:?}");
    assert_eq!(draft(&environment, &source).await, json!(last), "what was kept before is still there");
    environment.json(&["logout"], "").await.unwrap();
    sign_in(&environment).await;
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        environment.stop_daemon(signal).await.unwrap();
        start(&mut environment).await;
        assert_eq!(draft(&environment, &source).await, json!(last));
        sign_in(&environment).await;
    }
    assert_eq!(status(&environment).await["paused"][0]["reason"], "no_room");
    assert_eq!(downloads(&environment), 0);

    // The sync of the login is over, so that nothing looks at the disk but what looks at it now and then.
    let refreshed = environment.run(["refresh"], "").await.unwrap();
    assert!(refreshed.code == Some(0) || refreshed.stderr.contains("is the disk full?"), "{refreshed:?}");
    let mut watch = environment.watch().await.unwrap();
    // Nobody does anything but make room.
    leave(&environment, ROOMY).await;
    watch.until("queue_resumed").await.unwrap();
    until_all(&mut watch, [&message, &file]).await;
    let status = status(&environment).await;
    assert_eq!((&status["paused"], downloads(&environment)), (&json!([]), 2), "{status}");
    assert_eq!(draft(&environment, &source).await, json!(last));
    assert_eq!(keep(&environment, &source, "kept with room").await.code, Some(0));
    assert_eq!(draft(&environment, &source).await, "kept with room");
    environment.stop().await.unwrap();
}
