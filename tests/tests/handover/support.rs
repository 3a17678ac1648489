//! Environments with items that can be read, and what tests ask of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use staging::environment::{ASKED, Environment, EnvironmentOptions, Output, Watch};
use staging::generator::MARLOW;
use staging::residue;
use staging::server::{Body, Command, GzipFlaw, KeyChoice, Outcome, RecordId, Seal, SourceState, SubmissionKind};

/// What tests look for on the disk.
pub(crate) const SAID: &str = "the fourth box from the left";

/// Hostile names, and what of each another VM is told: its extension, if it has a plain one.
pub(crate) fn hostile() -> Vec<(Vec<u8>, Option<&'static str>)> {
    let long = [vec![b'n'; 4_990], b".docx".to_vec()].concat();
    vec![
        (b"../../.config/autostart/x.desktop".to_vec(), Some("desktop")),
        (b"/home/user/x".to_vec(), None),
        (b"..".to_vec(), None),
        (Vec::new(), None),
        (b"a\0b.txt".to_vec(), None),
        (b"a\nb.TXT".to_vec(), Some("txt")),
        (long, Some("docx")),
        ("\u{202e}gpj.exe".as_bytes().to_vec(), Some("exe")),
        (b"caf\xe9\x1b[2J.pdf".to_vec(), Some("pdf")),
        (b"-rf".to_vec(), None),
        ("..\\..\\запись.ogg".as_bytes().to_vec(), Some("ogg")),
        (b"archive.sd-export".to_vec(), None),
    ]
}

/// An environment without sources, where MARLOW is signed in and the first sync has ended.
pub(crate) async fn signed_in() -> Environment {
    let mut options = EnvironmentOptions::with_sources(0, 0).unwrap();
    options.client_config = ASKED.to_owned();
    let environment = Environment::with_daemon(options).await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    refresh(&environment).await;
    environment
}

pub(crate) async fn refresh(environment: &Environment) {
    environment.json(&["refresh"], "").await.unwrap();
}

pub(crate) fn new_source(environment: &Environment, designation: Option<&str>) -> RecordId {
    let designation = designation.map(str::to_owned);
    let created = Command::NewSource { designation, key: KeyChoice::Any, state: SourceState::Listed };
    match environment.server().control().apply(created).unwrap() {
        Outcome::Source { uuid, .. } => uuid,
        other => unreachable!("{other:?}"),
    }
}

fn sends(environment: &Environment, source: &RecordId, kind: SubmissionKind, body: Body) -> RecordId {
    let command = Command::NewSubmission { source: source.clone(), kind, body, seal: Seal::default() };
    match environment.server().control().apply(command).unwrap() {
        Outcome::Item { uuid, .. } => uuid,
        other => unreachable!("{other:?}"),
    }
}

pub(crate) fn says(environment: &Environment, source: &RecordId, text: &str) -> RecordId {
    sends(environment, source, SubmissionKind::Message, Body::Text { text: text.to_owned() })
}

/// A source sends a file that is packed under this name.
pub(crate) fn hands_over(environment: &Environment, source: &RecordId, name: &[u8], contents: &[u8]) -> RecordId {
    let body = Body::Gzip { name: Some(name.to_vec()), contents: contents.to_vec(), flaw: GzipFlaw::None };
    sends(environment, source, SubmissionKind::File, body)
}

/// Syncs, and waits until all of these can be read.
pub(crate) async fn fetch(environment: &Environment, items: &[RecordId]) {
    refresh(environment).await;
    let words: Vec<_> = ["download", "--wait"].into_iter().chain(items.iter().map(RecordId::as_str)).collect();
    environment.json(&words, "").await.unwrap();
}

/// A file of one source's, which can be read.
pub(crate) async fn one_file(environment: &Environment, name: &str) -> RecordId {
    let source = new_source(environment, None);
    let file = hands_over(environment, &source, name.as_bytes(), SAID.as_bytes());
    fetch(environment, std::slice::from_ref(&file)).await;
    file
}

pub(crate) async fn run(environment: &Environment, arguments: &[&str]) -> Output {
    environment.run(arguments, "").await.unwrap()
}

/// Runs a command that must end with this code; gives what it says on standard error.
pub(crate) async fn fails(environment: &Environment, arguments: &[&str], code: i32) -> String {
    let output = run(environment, arguments).await;
    assert_eq!(output.code, Some(code), "{arguments:?}: {output:?}");
    assert_inert(&output.stderr);
    output.stderr
}

pub(crate) async fn succeeds(environment: &Environment, arguments: &[&str]) -> String {
    let output = run(environment, arguments).await;
    assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}");
    output.stdout
}

/// Waits until this happens to the item.
pub(crate) async fn until(watch: &mut Watch, event: &str, item: &RecordId, step: &str) {
    loop {
        let event = watch.until(event).await.unwrap();
        if event["item"] == item.as_str() && event["step"] == step {
            return;
        }
    }
}

/// Where the client puts what other VMs are given.
pub(crate) fn viewing(environment: &Environment) -> BTreeSet<PathBuf> {
    walk(&environment.home().join("viewing"))
}

/// A new folder beside the client's data.
pub(crate) fn folder(environment: &Environment, name: &str) -> PathBuf {
    let folder = environment.directory().join(name);
    std::fs::create_dir(&folder).unwrap();
    folder
}

/// All files and folders below `folder`.
pub(crate) fn walk(folder: &Path) -> BTreeSet<PathBuf> {
    residue::walk(folder).unwrap()
}

/// The files below `folder` that hold these bytes, whether the client's or others, and those that are named by them.
pub(crate) fn files_with(folder: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    residue::files_with(folder, bytes).unwrap()
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
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
