//! Removals that nobody here has asked for, and that are too many to be believed.

use nix::sys::signal::Signal;
use serde_json::Value;
use staging::environment::Environment;
use staging::server::{Command, RecordId, SourceState};

use crate::support::*;

/// The exit codes of what is misused, is not there, and contradicts what is there.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 6;
const CONFLICT: i32 = 10;

/// A source, and what it said.
struct Told {
    source: RecordId,
    designation: String,
    message: RecordId,
    text: String,
}

/// So many sources with a message each, which is read.
async fn many(environment: &Environment, count: usize) -> Vec<Told> {
    let mut watch = environment.watch().await.unwrap();
    let mut told = Vec::new();
    for number in 0..count {
        let (source, designation) = source(environment);
        let text = format!("{SAID}, number {number:02}");
        let message = says(environment, &source, &text);
        told.push(Told { source, designation, message, text });
    }
    refresh(environment).await;
    let messages: Vec<_> = told.iter().map(|told| told.message.clone()).collect();
    until_all(&mut watch, &messages, "decrypted").await;
    told
}

fn set_state(environment: &Environment, told: &Told, state: SourceState) {
    happens(environment, Command::SetState { source: told.source.clone(), state });
}

/// The sources that are listed.
async fn listed(environment: &Environment) -> Vec<Value> {
    environment.json(&["sources"], "").await.unwrap()["sources"].as_array().unwrap().clone()
}

async fn held(environment: &Environment) -> Vec<Value> {
    environment.json(&["removals", "show"], "").await.unwrap()["removals"].as_array().unwrap().clone()
}

async fn code(environment: &Environment, arguments: &[&str]) -> Option<i32> {
    environment.run(arguments, "").await.unwrap().code
}

/// Checks that these are held, and shown nowhere else; those of `others` are listed.
async fn assert_held(environment: &Environment, gone: &[Told], others: usize) {
    let held = held(environment).await;
    assert_eq!(status(environment).await["held"]["held_removals"], gone.len(), "{held:?}");
    assert_eq!(held.len(), gone.len());
    assert_eq!(listed(environment).await.len(), others);
    let text = environment.run(["removals", "show"], "").await.unwrap().stdout;
    for told in gone {
        let entry = held.iter().find(|entry| entry["source"] == told.source.as_str()).unwrap();
        let shown = (&entry["designation"], &entry["whole"], &entry["items"]);
        assert_eq!(shown, (&told.designation.as_str().into(), &true.into(), &1.into()));
        assert!(text.contains(&told.designation), "{text}");
        assert_eq!(code(environment, &["show", told.source.as_str()]).await, Some(NOT_FOUND));
        assert!(!places(environment, &[&told.text]).is_empty(), "nothing of it is erased");
    }
    let text = environment.run(["status"], "").await.unwrap().stdout;
    let says = text.contains(&format!("held, of {} sources", gone.len()));
    assert_eq!(says, !gone.is_empty(), "{text}");
}

/// Case D4: half of the sources are missing: they are hidden and kept, whatever happens, until somebody says so.
#[tokio::test(flavor = "multi_thread")]
async fn d4_too_many_removals_are_held_until_somebody_says_so() {
    let mut environment = reading_client().await;
    let told = many(&environment, 20).await;
    let (gone, others) = told.split_at(10);
    for told in gone {
        set_state(&environment, told, SourceState::MarkedDeleted);
    }
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    let event = watch.until("removals_held").await.unwrap();
    let mut sources: Vec<_> =
        event["sources"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect();
    sources.sort_unstable();
    let mut expected: Vec<_> = gone.iter().map(|told| told.source.as_str().to_owned()).collect();
    expected.sort_unstable();
    assert_eq!(sources, expected);
    assert_held(&environment, gone, 10).await;
    // Neither another sync nor a start changes that.
    refresh(&environment).await;
    assert_held(&environment, gone, 10).await;
    drop(watch);
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    environment.start_daemon().await.unwrap();
    assert_held(&environment, gone, 10).await;
    sign_in_again(&environment).await;
    assert_held(&environment, gone, 10).await;

    // One is listed again: it is shown as it was, and not fetched or opened anew.
    let fetched = downloads(&environment, &gone[1].message);
    set_state(&environment, &gone[1], SourceState::Listed);
    refresh(&environment).await;
    assert_eq!(said(&environment, &gone[1].source, &gone[1].message).await.as_deref(), Some(gone[1].text.as_str()));
    assert_eq!(status(&environment).await["lanes"]["messages"]["waiting"], 0);
    assert_eq!(downloads(&environment, &gone[1].message), fetched);

    // The removal of one is rejected: it is shown again, and there is nothing to be done with it but to delete it.
    let kept = &gone[0];
    let rejected = environment.json(&["removals", "reject", &kept.designation], "").await.unwrap();
    assert_eq!(rejected["rejected"], serde_json::json!([kept.source.as_str()]));
    let shown = environment.json(&["show", kept.source.as_str()], "").await.unwrap();
    assert_eq!(shown["source"]["on_server"], false, "{shown}");
    assert_eq!(shown["items"][0]["text"], kept.text.as_str());
    let text = environment.run(["show", kept.source.as_str()], "").await.unwrap().stdout;
    assert!(text.contains("no longer on the server"), "{text}");
    assert_eq!(code(&environment, &["star", kept.source.as_str()]).await, Some(CONFLICT));
    assert_eq!(code(&environment, &["reply", kept.source.as_str(), "--message", "hello"]).await, Some(CONFLICT));
    refresh(&environment).await;
    assert_held(&environment, &gone[2..], 12).await;
    let mut watch = environment.watch().await.unwrap();
    let deletion = act(&environment, &["delete", "source", kept.source.as_str(), "--yes"]).await;
    until_act(&mut watch, deletion, "confirmed").await;
    until_gone(&environment, &[&kept.text]).await;
    assert_held(&environment, &gone[2..], 11).await;

    // The rest is accepted, by somebody who means it.
    assert_eq!(code(&environment, &["removals", "accept", "--all", "--batch"]).await, Some(USAGE));
    assert_held(&environment, &gone[2..], 11).await;
    let accepted = environment.json(&["removals", "accept", "--all", "--yes"], "").await.unwrap();
    assert_eq!(accepted["accepted"].as_array().unwrap().len(), 8);
    let texts: Vec<_> = gone[2..].iter().map(|told| told.text.as_str()).collect();
    until_gone(&environment, &texts).await;
    assert_held(&environment, &[], 11).await;
    assert_eq!(code(&environment, &["removals", "accept", kept.source.as_str(), "--yes"]).await, Some(NOT_FOUND));
    // All others are as they were.
    for told in others.iter().chain([&gone[1]]) {
        assert_eq!(said(&environment, &told.source, &told.message).await.as_deref(), Some(told.text.as_str()));
    }
    environment.stop().await.unwrap();
}
