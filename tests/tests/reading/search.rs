//! Search, from a message that arrives to its deletion.

use nix::sys::signal::Signal;
use serde_json::Value;
use staging::environment::{Environment, KeyAccess};
use staging::generator::MARLOW;
use staging::server::{Command, GzipFlaw, SubmissionKind};

use crate::support::*;

/// A word that is nowhere else: not in what others say, and not in what a program says.
const WORD: &str = "quizzicaljackdawxyloph";

/// What is found, as items and parts of them.
async fn search(environment: &Environment, words: &str) -> Vec<Value> {
    let found = environment.json(&["search", words], "").await.unwrap();
    let hits = found["hits"].as_array().unwrap().clone();
    assert_eq!(found["count"], serde_json::json!({ "hits": hits.len(), "exact": true }));
    hits
}

/// Case D4: what was said and the name of a file are found by a word, its beginning and a phrase, without a session too, and
/// once the source is deleted nothing is found and nothing is left in any file.
#[tokio::test(flavor = "multi_thread")]
async fn d4_what_is_found_is_in_no_file_once_its_source_is_deleted() {
    let mut environment = signed_in(ASKED, KeyAccess::File).await;
    let (source, other) = (new_source(&environment), new_source(&environment));
    let name = format!("{WORD}.txt");
    let items = [
        says(&environment, &source, &format!("We meet at the {WORD}\u{1b}[2J, at nine.")),
        sends(&environment, &source, SubmissionKind::File, packed(name.as_bytes(), b"contents", GzipFlaw::None)),
        says(&environment, &other, "We meet at the harbour"),
    ];
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    environment.json(&["download", "--all", "--no-wait"], "").await.unwrap();
    until_all(&mut watch, &items, "decrypted").await;
    environment.json(&["logout"], "").await.unwrap();

    for words in [WORD, &WORD.to_uppercase(), "quizzicalj*"] {
        let kinds: Vec<_> = search(&environment, words).await.iter().map(|hit| hit["kind"].clone()).collect();
        assert_eq!(kinds, ["file", "message"], "{words}");
    }
    let phrase = format!("\"meet at the {}*\"", WORD.get(..5).unwrap());
    let hits = search(&environment, &phrase).await;
    assert_eq!((hits.len(), hits[0]["uuid"].as_str()), (1, Some(items[0].as_str())));
    assert_eq!(search(&environment, "meet nine").await.len(), 1);
    assert_eq!(search(&environment, "meet").await.len(), 2);
    let designation = hits[0]["designation"].as_str().unwrap();
    assert_eq!(search(&environment, designation).await[0]["kind"], "source");
    // What a person is shown moves no cursor.
    let shown = environment.run(&["search", WORD], "").await.unwrap();
    assert!(
        shown.code == Some(0) && shown.stdout.contains(&format!("  message  {}", items[0].as_str().get(..8).unwrap())),
        "{shown:?}"
    );
    assert_inert(&shown.stdout);
    let refused = environment.run(&["search", "...", "--json"], "").await.unwrap();
    assert_eq!(refused.code, Some(2), "{refused:?}");

    // Each code is taken once.
    environment.server().control().apply(Command::AdvanceClock { seconds: 90 }).unwrap();
    environment.login(&MARLOW).await.unwrap();
    refresh(&environment).await;
    let (end, beginning) = (&WORD.as_bytes()[WORD.len() - 8..], &WORD.as_bytes()[..8]);
    let home = environment.home();
    for part in [end, beginning] {
        assert!(!files_with(&home, part).is_empty());
    }
    let deletion = act(&environment, &["delete", "source", source.as_str(), "--yes"]).await;
    until_act(&mut watch, deletion, "confirmed").await;
    assert_eq!(search(&environment, WORD).await.len(), 0);
    while counts(&environment) != [0, 0, 0] {
        refresh(&environment).await;
        watch.until("sync_ended").await.unwrap();
    }
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    for part in [end, beginning] {
        assert_eq!(files_with(&home, part), [] as [std::path::PathBuf; 0]);
    }
    assert!(!files_with(&home, b"harbour").is_empty(), "what others said stays");
    environment.stop().await.unwrap();
}
