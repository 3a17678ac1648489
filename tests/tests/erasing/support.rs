//! Clients that hold what is to be erased, and what tests ask of them.

use std::path::PathBuf;
use std::time::Duration;

use staging::environment::{Environment, KeyAccess};
use staging::residue;
use staging::server::{Command, KeyChoice, Outcome, RecordId, SourceState};

pub(crate) use crate::reading::*;

/// A bound for what hangs, not a measure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// What a reply says.
pub(crate) const ANSWERED: &str = "we have read the seventh page";

/// An environment without sources, where MARLOW is signed in, and that reads what comes.
pub(crate) async fn reading_client() -> Environment {
    signed_in(ASKED, KeyAccess::File).await
}

/// A source with a quick key; gives its id and its designation.
pub(crate) fn source(environment: &Environment) -> (RecordId, String) {
    let created = Command::NewSource { designation: None, key: KeyChoice::Pool(1), state: SourceState::Listed };
    match environment.server().control().apply(created).unwrap() {
        Outcome::Source { uuid, designation } => (uuid, designation),
        other => unreachable!("{other:?}"),
    }
}

pub(crate) fn happens(environment: &Environment, command: Command) {
    environment.server().control().apply(command).unwrap();
}

/// Syncs until the keys that came are looked at, and until this text can be found on the disk.
pub(crate) async fn until_found(environment: &Environment, text: &str) {
    let found = async {
        while places(environment, &[text]).is_empty() {
            refresh(environment).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap();
}

/// A source with messages, files and replies, all of them read: everything says [`SAID`] or [`ANSWERED`].
pub(crate) async fn read_source(environment: &Environment) -> RecordId {
    let (source, _) = source(environment);
    let mut watch = environment.watch().await.unwrap();
    let mut items: Vec<_> = (1..=5).map(|pages| says(environment, &source, &SAID.repeat(pages * 40))).collect();
    items.extend((0..3).map(|_| hands_over(environment, &source, &SAID.repeat(40))));
    refresh(environment).await;
    environment.json(&["download", "--all", "--no-wait"], "").await.unwrap();
    until_all(&mut watch, &items, "decrypted").await;
    let text = ANSWERED.repeat(30);
    while environment.json(&["show", source.as_str()], "").await.unwrap()["source"]["key"]["state"] == "new" {
        watch.until("sources_changed").await.unwrap();
    }
    let reply = act(environment, &["reply", source.as_str(), "--message", &text]).await;
    until_act(&mut watch, reply, "confirmed").await;
    for text in [SAID, ANSWERED] {
        until_found(environment, text).await;
    }
    source
}

/// Where these texts are found in the client's data directory, which may change meanwhile.
pub(crate) fn places(environment: &Environment, texts: &[&str]) -> Vec<PathBuf> {
    let places = |text: &&str| residue::files_with(&environment.home(), text.as_bytes()).unwrap();
    texts.iter().flat_map(places).collect()
}

/// Waits until none of these texts is found: erasures follow a confirmation.
pub(crate) async fn until_gone(environment: &Environment, texts: &[&str]) {
    let gone = async {
        while !places(environment, texts).is_empty() {
            status(environment).await;
        }
    };
    if tokio::time::timeout(PATIENCE, gone).await.is_err() {
        panic!("still there: {:?}", places(environment, texts));
    }
}

/// How many items anything is noted of, as the database says.
pub(crate) fn noted(environment: &Environment) -> u64 {
    let database = rusqlite::Connection::open(environment.home().join("store.sqlite3")).unwrap();
    database.query_row("SELECT count(*) FROM local_item", [], |row| row.get(0)).unwrap()
}

/// Signs MARLOW in once more, and syncs: a one-time code is taken once.
pub(crate) async fn sign_in_again(environment: &Environment) {
    happens(environment, Command::AdvanceClock { seconds: 90 });
    environment.login(&staging::generator::MARLOW).await.unwrap();
    refresh(environment).await;
}
