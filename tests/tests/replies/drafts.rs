//! Drafts: what somebody has begun to write is theirs alone, and stays until it is sent.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use staging::environment::Environment;
use staging::generator::{Account, MARLOW, TERNBERG};
use staging::server::Command;

use crate::support::*;

async fn begin(environment: &Environment, source: &str, text: &str) {
    let answer = environment.json(&["reply", source, "--draft", "--message", text], "").await.unwrap();
    assert_eq!(answer["draft"], "kept");
}

async fn switch_to(environment: &Environment, account: &Account) {
    environment.json(&["logout"], "").await.unwrap();
    login(environment, account).await;
}

/// How many drafts are stored, whoever's.
fn kept(environment: &Environment) -> u32 {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let database = rusqlite::Connection::open_with_flags(environment.home().join("store.sqlite3"), flags).unwrap();
    database.query_row("SELECT count(*) FROM local_draft", [], |row| row.get(0)).unwrap()
}

/// Case R3.
#[tokio::test(flavor = "multi_thread")]
async fn r3_drafts_are_their_authors_and_outlive_switching_syncs_and_restarts() {
    let (mut environment, ids) = signed_in(2).await;
    let (one, two) = (ids[0].as_str(), ids[1].as_str());
    begin(&environment, one, "of marlow to one").await;
    begin(&environment, two, "of marlow to two").await;
    begin(&environment, one, "of marlow to one, again").await;
    let of_marlow = [json!("of marlow to one, again"), json!("of marlow to two")];
    happens(&environment, Command::NewMessage { source: one.into(), size: 700 });
    refresh(&environment).await;
    assert_eq!([draft(&environment, one).await, draft(&environment, two).await], of_marlow);

    switch_to(&environment, &TERNBERG).await;
    assert_eq!([draft(&environment, one).await, draft(&environment, two).await], [Value::Null, Value::Null]);
    begin(&environment, one, "of ternberg to one").await;
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        environment.stop_daemon(signal).await.unwrap();
        environment.start_daemon().await.unwrap();
        // Nobody is signed in, and it shows to whoever was last.
        assert_eq!(
            [draft(&environment, one).await, draft(&environment, two).await],
            [json!("of ternberg to one"), Value::Null]
        );
    }
    login(&environment, &MARLOW).await;
    assert_eq!([draft(&environment, one).await, draft(&environment, two).await], of_marlow);
    assert_eq!(kept(&environment), 3);

    // Sent, it is no draft any more; the other's stays.
    let mut watch = environment.watch().await.unwrap();
    let written = "of marlow to one, again";
    let act = reply(&environment, one, written).await;
    assert_eq!(draft(&environment, one).await, Value::Null);
    until_listed(&environment, &mut watch, one, act).await;
    assert_eq!((read_by_sources(&environment).await, kept(&environment)), (vec![written.to_owned()], 2));
    switch_to(&environment, &TERNBERG).await;
    assert_eq!(draft(&environment, one).await, "of ternberg to one");
    assert_eq!(environment.json(&["reply", one, "--draft", "--message", " "], "").await.unwrap()["draft"], "forgotten");
    assert_eq!((draft(&environment, one).await, kept(&environment)), (Value::Null, 1));
    environment.stop().await.unwrap();
}

/// Case R3.
#[tokio::test(flavor = "multi_thread")]
async fn r3_drafts_go_with_their_source_whoever_deletes_it() {
    let (environment, ids) = signed_in(3).await;
    for id in &ids {
        begin(&environment, id, "to whom?").await;
    }
    switch_to(&environment, &TERNBERG).await;
    for id in &ids {
        begin(&environment, id, "whose?").await;
    }
    assert_eq!(kept(&environment), 6);
    let mut watch = environment.watch().await.unwrap();
    let answer = environment.json(&["delete", "source", &ids[0], "--yes"], "").await.unwrap();
    until_act(&mut watch, answer["acts"][0]["act"].as_u64().unwrap(), "confirmed").await;
    refresh(&environment).await;
    assert_eq!(kept(&environment), 4);
    happens(&environment, Command::DeleteSource { source: ids[1].as_str().into() });
    refresh(&environment).await;
    assert_eq!(kept(&environment), 2);
    assert_eq!(draft(&environment, &ids[2]).await, "whose?");
    environment.stop().await.unwrap();
}

/// Case R3. What was taken back is not lost.
#[tokio::test(flavor = "multi_thread")]
async fn r3_a_reply_that_is_taken_back_is_a_draft_again() {
    let (environment, ids) = signed_in(2).await;
    let source = ids[0].as_str();
    environment.json(&["pause"], "").await.unwrap();
    let act = reply(&environment, source, "not yet").await;
    environment.json(&["cancel", &act.to_string()], "").await.unwrap();
    assert_eq!((queue(&environment).await, draft(&environment, source).await), (Vec::new(), json!("not yet")));
    environment.json(&["resume"], "").await.unwrap();
    refresh(&environment).await;
    assert_eq!(sendings(&environment), []);
    environment.stop().await.unwrap();
}
