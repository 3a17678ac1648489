//! Replies where nothing goes wrong.

use serde_json::{Value, json};
use staging::environment::{Environment, EnvironmentOptions, QUIET};
use staging::generator::TERNBERG;
use staging::server::{Change, Command, Fault, FaultAct, Matching, Outcome};

use crate::support::*;

/// What a journalist might write.
const TEXT: &str = "Danke, das hilft uns.\n\n  Meet at nine?  \u{6d77}\u{9e25} \u{1f989}";
/// More than anybody waits for.
const MANY: u64 = 300;

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_shows_at_once_and_as_far_as_it_is_and_without_a_download() {
    let (environment, ids) = signed_in(3).await;
    let source = ids[0].as_str();
    environment.json(&["pause"], "").await.unwrap();
    let act = reply(&environment, source, TEXT).await;
    assert_eq!(state(&environment, source, act).await, ("waiting".to_owned(), TEXT.to_owned()));
    assert_eq!(draft(&environment, source).await, Value::Null);
    let id = id_of(&environment, source, act).await;
    assert_eq!(stored(&environment), []);

    let (answer, lists) = (fails(&environment, FaultAct::HoldAnswer, 1), hold_lists(&environment));
    let mut watch = environment.watch().await.unwrap();
    environment.json(&["resume"], "").await.unwrap();
    until_held(&environment, answer).await;
    // Stored, and nobody here knows.
    assert_eq!(state(&environment, source, act).await.0, "running");
    assert_eq!(stored(&environment), std::slice::from_ref(&id));
    release(&environment, answer);
    until_act(&mut watch, act, "confirmed").await;
    assert_eq!(state(&environment, source, act).await, ("confirmed".to_owned(), TEXT.to_owned()));
    assert_eq!(queue(&environment).await, [] as [Value; 0]);
    release(&environment, lists);
    until_listed(&environment, &mut watch, source, act).await;
    assert_told(&environment, source, &[TEXT]).await;

    // It is the author's for everybody, and a colleague need not fetch it here either.
    environment.json(&["logout"], "").await.unwrap();
    login(&environment, &TERNBERG).await;
    let shown = show(&environment, source).await;
    let item = shown["items"].as_array().unwrap().iter().find(|item| item["uuid"] == id.as_str()).unwrap();
    assert_eq!((&item["author"], &item["own"], &item["text"]), (&json!("marlow"), &json!(false), &json!(TEXT)));
    assert_eq!(sendings(&environment).len(), 1);
    environment.stop().await.unwrap();
}

/// With the kind of keys that sources and newsrooms have had for years.
#[tokio::test(flavor = "multi_thread")]
async fn the_source_and_the_newsroom_read_it_with_old_kinds_of_keys_as_well() {
    let environment = Environment::with_daemon(EnvironmentOptions::with_sources(1, 1).unwrap()).await.unwrap();
    login(&environment, &staging::generator::MARLOW).await;
    let source = listed(&environment).await[0]["uuid"].as_str().unwrap().to_owned();
    let mut watch = environment.watch().await.unwrap();
    let act = reply(&environment, &source, TEXT).await;
    until_listed(&environment, &mut watch, &source, act).await;
    assert_told(&environment, &source, &[TEXT]).await;
    environment.stop().await.unwrap();
}

/// Case D9.
#[tokio::test(flavor = "multi_thread")]
async fn d9_neither_showing_nor_answering_marks_anything_as_seen() {
    let (environment, ids) = signed_in(2).await;
    let source = ids[0].as_str();
    for _ in 0..5 {
        happens(&environment, Command::NewMessage { source: source.into(), size: 700 });
    }
    let theirs = Command::NewReply { source: source.into(), journalist: "ternberg".to_owned(), size: 1_500 };
    let Outcome::Item { uuid: theirs, .. } = happens(&environment, theirs) else { unreachable!() };
    refresh(&environment).await;
    let before = show(&environment, source).await;
    assert!(before["source"]["counts"]["unread"].as_u64().unwrap() >= 6, "{before}");
    let mut watch = environment.watch().await.unwrap();
    let act = reply(&environment, source, TEXT).await;
    until_listed(&environment, &mut watch, source, act).await;
    refresh(&environment).await;
    let after = show(&environment, source).await;
    assert_eq!(after["source"]["counts"]["unread"], before["source"]["counts"]["unread"]);
    let shown = after["items"].as_array().unwrap().iter().find(|item| item["uuid"] == theirs.as_str()).unwrap();
    assert_eq!(shown["unread"], true);
    let changes = environment.server().control().with_world(|world| world.changes());
    assert!(changes.iter().all(|(change, _)| matches!(change, Change::ReplySent { .. })), "{changes:?}");
    assert_eq!(environment.server().control().count("POST", "/api/v1/seen"), 0);
    environment.stop().await.unwrap();
}

/// Case Q3.
#[tokio::test(flavor = "multi_thread")]
async fn q3_a_reply_does_not_wait_behind_three_hundred_downloads() {
    let mut options = options(2, "");
    options.client_config = QUIET.replace("fetch_messages = false\n", "");
    let (environment, ids) = signed_in_to(options).await;
    let downloads = Matching::method("GET", "/api/v1/sources/*/*/*/download");
    let rule = environment.server().control().add_fault(Fault::new(downloads, FaultAct::HoldAnswer)).unwrap();
    for _ in 0..MANY {
        happens(&environment, Command::NewMessage { source: ids[0].as_str().into(), size: 700 });
    }
    refresh(&environment).await;
    until_held(&environment, rule).await;
    let mut watch = environment.watch().await.unwrap();
    for source in &ids[..2] {
        let act = reply(&environment, source, TEXT).await;
        watch.until_done(act).await.unwrap();
    }
    let messages = status(&environment).await["lanes"]["messages"].clone();
    let open = messages["waiting"].as_u64().unwrap() + messages["running"].as_u64().unwrap();
    assert!(open >= MANY, "{messages}");
    assert_eq!(read_by_sources(&environment).await, [TEXT, TEXT]);
    release(&environment, rule);
    environment.stop().await.unwrap();
}
