//! Environments in which items come and are opened, and what tests ask of them.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
pub(crate) use staging::environment::ASKED;
use staging::environment::{Environment, EnvironmentOptions, KeyAccess, Watch};
use staging::generator::{MARLOW, NewsroomKey};
use staging::programs::Programs;
use staging::residue;
use staging::server::{
    Body, Command, Fault, FaultAct, GzipFlaw, KeyChoice, Matching, Outcome, RecordId, Seal, SourceState, SubmissionKind,
};

/// Messages and syncs come by themselves. What fails is tried again soon.
pub(crate) const SYNCING: &str = "\
[sync]
interval_ms = 50
first_wait_ms = 50
most_wait_ms = 200
[acts]
first_wait_ms = 50
most_wait_ms = 200
";

/// The same, but what fails is not tried again on the day of the test.
pub(crate) const PATIENT: &str = "\
[sync]
interval_ms = 86400000
first_wait_ms = 86400000
most_wait_ms = 86400000
[acts]
first_wait_ms = 86400000
most_wait_ms = 86400000
";

/// The newsroom's key.
pub(crate) const NEWSROOM: NewsroomKey = NewsroomKey::Curve25519;
/// A key that is not the newsroom's.
pub(crate) const OTHER: NewsroomKey = NewsroomKey::Rsa4096;

/// What tests look for on the disk.
pub(crate) const SAID: &str = "the fourth box from the left";

/// What a world without sources is made of.
pub(crate) fn options(config: &str, key: KeyAccess) -> EnvironmentOptions {
    let mut options = EnvironmentOptions::with_sources(0, 0).unwrap();
    options.client_config = config.to_owned();
    options.key = key;
    options.server.newsroom = NEWSROOM;
    options.client_settings.insert("QUBES_GPG_DOMAIN".to_owned(), "sd-gpg".to_owned());
    options
}

/// An environment without sources, where MARLOW is signed in and the first sync has ended.
pub(crate) async fn signed_in(config: &str, key: KeyAccess) -> Environment {
    let environment = Environment::with_daemon(options(config, key)).await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    refresh(&environment).await;
    environment
}

/// The same, whose client has this key file at its start.
pub(crate) async fn signed_in_with_key(config: &str, key: &str) -> Environment {
    let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await.unwrap().unwrap();
    let mut environment = Environment::start(programs, options(config, KeyAccess::Unreachable)).await.unwrap();
    put_key(&environment, key);
    environment.start_daemon().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    refresh(&environment).await;
    environment
}

/// From now on the key file is this one, whole at any time.
pub(crate) fn put_key(environment: &Environment, key: &str) {
    let new = environment.directory().join("new.asc");
    std::fs::write(&new, key).unwrap();
    std::fs::rename(new, environment.key_file()).unwrap();
}

pub(crate) async fn refresh(environment: &Environment) {
    environment.json(&["refresh"], "").await.unwrap();
}

pub(crate) fn new_source(environment: &Environment) -> RecordId {
    let created = Command::NewSource { designation: None, key: KeyChoice::Any, state: SourceState::Listed };
    match environment.server().control().apply(created).unwrap() {
        Outcome::Source { uuid, .. } => uuid,
        other => unreachable!("{other:?}"),
    }
}

/// A source sends something; gives its id.
pub(crate) fn sends(environment: &Environment, source: &RecordId, kind: SubmissionKind, body: Body) -> RecordId {
    sends_sealed(environment, source, kind, body, Seal::default())
}

pub(crate) fn sends_sealed(
    environment: &Environment,
    source: &RecordId,
    kind: SubmissionKind,
    body: Body,
    seal: Seal,
) -> RecordId {
    let command = Command::NewSubmission { source: source.clone(), kind, body, seal };
    match environment.server().control().apply(command).unwrap() {
        Outcome::Item { uuid, .. } => uuid,
        other => unreachable!("{other:?}"),
    }
}

pub(crate) fn text(text: &str) -> Body {
    Body::Text { text: text.to_owned() }
}

pub(crate) fn packed(name: &[u8], contents: &[u8], flaw: GzipFlaw) -> Body {
    Body::Gzip { name: Some(name.to_vec()), contents: contents.to_vec(), flaw }
}

pub(crate) fn says(environment: &Environment, source: &RecordId, said: &str) -> RecordId {
    sends(environment, source, SubmissionKind::Message, text(said))
}

/// A source sends a file with these contents.
pub(crate) fn hands_over(environment: &Environment, source: &RecordId, contents: &str) -> RecordId {
    sends(environment, source, SubmissionKind::File, packed(b"box.txt", contents.as_bytes(), GzipFlaw::None))
}

/// The text or the contents that a client must show.
pub(crate) fn plaintext(environment: &Environment, item: &RecordId) -> Vec<u8> {
    let mut bytes = Vec::new();
    let plaintext = environment.server().control().plaintext(item).unwrap();
    plaintext.contents().read_to_end(&mut bytes).unwrap();
    bytes
}

/// Asks for an item, and does not wait for it.
pub(crate) async fn download(environment: &Environment, item: &RecordId) {
    environment.json(&["download", item.as_str(), "--no-wait"], "").await.unwrap();
}

/// How often an item was asked for at the server.
pub(crate) fn downloads(environment: &Environment, item: &RecordId) -> usize {
    let end = format!("/{item}/download");
    environment.server().control().with_log(|log| log.requests().filter(|one| one.path.ends_with(&end)).count())
}

/// From now on something goes wrong with requests of this path.
pub(crate) fn fault(environment: &Environment, path: &str, act: FaultAct) -> u64 {
    environment.server().control().add_fault(Fault::new(Matching::path(path), act)).unwrap()
}

/// Waits until this happens to the item.
pub(crate) async fn until(watch: &mut Watch, event: &str, item: &RecordId, step: &str) -> Value {
    loop {
        let event = watch.until(event).await.unwrap();
        if event["item"] == item.as_str() && event["step"] == step {
            return event;
        }
    }
}

/// Waits until each of the items has taken this step of being read.
pub(crate) async fn until_all(watch: &mut Watch, items: &[RecordId], step: &str) {
    let mut left: BTreeSet<&str> = items.iter().map(RecordId::as_str).collect();
    while !left.is_empty() {
        let event = watch.until("read").await.unwrap();
        if event["step"] == step {
            left.remove(event["item"].as_str().unwrap());
        }
    }
}

/// Waits until an act takes this step.
pub(crate) async fn until_act(watch: &mut Watch, act: u64, step: &str) {
    loop {
        let event = watch.until("act").await.unwrap();
        if event["act"] == act && event["step"] == step {
            return;
        }
    }
}

/// Does something, and gives the number of the one act that it was.
pub(crate) async fn act(environment: &Environment, arguments: &[&str]) -> u64 {
    let answer = environment.json(arguments, "").await.unwrap();
    let [act] = answer["acts"].as_array().unwrap().as_slice() else { unreachable!("{answer}") };
    act["act"].as_u64().unwrap()
}

/// An item as `show` has it.
pub(crate) async fn item(environment: &Environment, source: &RecordId, item: &RecordId) -> Value {
    let shown = environment.json(&["show", source.as_str()], "").await.unwrap();
    shown["items"].as_array().unwrap().iter().find(|shown| shown["uuid"] == item.as_str()).unwrap().clone()
}

/// What is held of an item, as `show` says.
pub(crate) async fn state(environment: &Environment, source: &RecordId, item: &RecordId) -> String {
    self::item(environment, source, item).await["content"]["state"].as_str().unwrap().to_owned()
}

/// What an item says, as `show` has it.
pub(crate) async fn said(environment: &Environment, source: &RecordId, item: &RecordId) -> Option<String> {
    self::item(environment, source, item).await["text"].as_str().map(str::to_owned)
}

pub(crate) async fn status(environment: &Environment) -> Value {
    environment.json(&["status"], "").await.unwrap()
}

/// What is in one of the client's folders.
pub(crate) fn files(environment: &Environment, folder: &str) -> Vec<PathBuf> {
    std::fs::read_dir(environment.home().join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// How many ciphertexts, stages of opening and plaintexts the client holds.
pub(crate) fn counts(environment: &Environment) -> [usize; 3] {
    ["ciphertext", "opening", "plaintext"].map(|folder| files(environment, folder).len())
}

/// All files and folders below `folder`.
pub(crate) fn walk(folder: &Path) -> BTreeSet<PathBuf> {
    residue::walk(folder).unwrap()
}

/// The files below `folder` that hold these bytes, whether the client's or others, and those that are named by them.
pub(crate) fn files_with(folder: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    residue::files_with(folder, bytes).unwrap()
}

/// Checks that a terminal that prints this does nothing else than print.
pub(crate) fn assert_inert(printed: &str) {
    let changes_direction = |character| matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_invisible = |character| matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{feff}');
    for line in printed.split('\n') {
        let raw =
            line.chars().find(|it| (it.is_control() && *it != '\t') || changes_direction(*it) || is_invisible(*it));
        assert_eq!(raw, None, "{line:?}");
    }
}
