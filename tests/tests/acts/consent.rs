//! What somebody has to say before anything is deleted, and that a conversation's deletion is about what was there then.

use serde_json::Value;
use staging::environment::Environment;
use staging::server::Matching;

use crate::support::*;

const USAGE: i32 = 2;

/// Runs a command that must be refused as it stands, and change nothing here or there.
async fn refused(environment: &Environment, arguments: &[&str], word: &str) {
    let before = listed(environment).await;
    let output = environment.run(arguments, "").await.unwrap();
    assert_eq!(output.code, Some(USAGE), "{output:?}");
    assert!(output.stderr.contains(word), "{output:?}");
    assert_eq!(listed(environment).await, before);
    assert_eq!(queue(environment).await, [] as [Value; 0]);
    let deletions = |one: &staging::server::LoggedRequest| one.method == "DELETE";
    assert_eq!(environment.server().control().with_log(|log| log.requests().filter(|one| deletions(one)).count()), 0);
}

/// Case D7.
#[tokio::test(flavor = "multi_thread")]
async fn d7_more_than_thirty_sources_are_deleted_by_whoever_says_how_many() {
    let environment = signed_in(32, 1).await;
    let sources = ids(&environment).await;
    let many: Vec<_> = ["delete", "source"].into_iter().chain(sources.iter().map(String::as_str).take(31)).collect();
    let with = |more: &[&'static str]| many.iter().copied().chain(more.iter().copied()).collect::<Vec<_>>();
    refused(&environment, &with(&["--yes"]), "--count 31").await;
    for wrong in ["30", "32", "0"] {
        refused(&environment, &with(&["--yes", "--count", wrong]), "--count 31").await;
    }
    refused(&environment, &with(&["--batch", "--count", "31"]), "--yes").await;
    refused(&environment, &with(&["--count", "31"]), "--yes").await;
    // Named twice is one source.
    let mut twice = with(&["--yes", "--count", "32"]);
    twice.insert(2, &sources[0]);
    refused(&environment, &twice, "--count 31").await;
    refused(&environment, &["delete", "source", &sources[0], "--yes", "--count", "2"], "--count 1").await;

    let mut watch = environment.watch().await.unwrap();
    let act = act(&environment, &with(&["--yes", "--count", "31"])).await;
    for _ in 0..31 {
        until_act(&mut watch, act, "confirmed").await;
    }
    assert_eq!(ids(&environment).await, sources[31..]);
    assert_eq!((changes(&environment).total(), changes(&environment).most()), (31, 1));
    environment.stop().await.unwrap();
}

/// Case D7. Thirty need no number.
#[tokio::test(flavor = "multi_thread")]
async fn d7_thirty_sources_are_deleted_without_a_number_and_none_without_a_yes() {
    let environment = signed_in(30, 1).await;
    let sources = ids(&environment).await;
    let all: Vec<_> = ["delete", "source"].into_iter().chain(sources.iter().map(String::as_str)).collect();
    refused(&environment, &all, "--yes").await;
    let batch: Vec<_> = all.iter().copied().chain(["--batch"]).collect();
    refused(&environment, &batch, "--yes").await;
    let source = sources[0].as_str();
    let item = items(&environment, source).await[0]["uuid"].as_str().unwrap().to_owned();
    refused(&environment, &["delete", "conversation", source, "--batch"], "--yes").await;
    refused(&environment, &["delete", "item", &item, "--batch"], "--yes").await;

    let rule = hold(&environment, Matching::method("DELETE", "/api/v1/sources/*"));
    let yes: Vec<_> = all.iter().copied().chain(["--yes"]).collect();
    act(&environment, &yes).await;
    assert!(listed(&environment).await.iter().all(|source| source["being_deleted"] == true));
    assert_eq!(counted_sources(&environment).await, 0);
    release(&environment, rule);
    environment.stop().await.unwrap();
}

/// Case D6.
#[tokio::test(flavor = "multi_thread")]
async fn d6_what_arrives_after_the_click_survives_and_is_unread() {
    let environment = signed_in(3, 5).await;
    let source = ids(&environment).await.swap_remove(0);
    let known = items(&environment, &source).await.len() as u64;
    let rule = hold(&environment, Matching::method("DELETE", &format!("/api/v1/sources/{source}/**")));
    let mut watch = environment.watch().await.unwrap();
    let act = act(&environment, &["delete", "conversation", &source, "--yes"]).await;
    until_held(&environment, rule, 1).await;
    let arrived = message(&environment, &source);
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(item_shows(&environment, &source, &arrived).await, Shown::Ordinary);
    let going = items(&environment, &source).await;
    assert!(going.iter().all(|item| item["uuid"] == arrived.as_str() || item["being_deleted"] == true), "{going:?}");
    release(&environment, rule);
    let mut confirmed = 0;
    // One is deleted already, and may have ended with the snapshot.
    while confirmed < known - 1 {
        confirmed += until_act(&mut watch, act, "confirmed").await["objects"].as_u64().unwrap();
    }
    environment.json(&["refresh"], "").await.unwrap();
    let left = items(&environment, &source).await;
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!((left[0]["uuid"].as_str(), &left[0]["unread"]), (Some(arrived.as_str()), &Value::Bool(true)));
    assert_eq!((changes(&environment).total(), changes(&environment).most()), (known, 1));
    let whole = format!("/api/v1/sources/{source}/conversation");
    assert_eq!(asked(&environment, "DELETE", &whole), 0);
    environment.stop().await.unwrap();
}
