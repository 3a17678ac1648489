//! Deletions: what is deleted is never ordinary again, whatever the server lists and however long it takes.

use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use staging::environment::Environment;
use staging::server::{Change, Command, Edit, Fault, FaultAct, Matching, RequestLog, SourceState, Which};

use crate::support::*;

const NOTHING: [Value; 0] = [];

/// Case D1 (a).
#[tokio::test(flavor = "multi_thread")]
async fn d1a_a_snapshot_from_before_the_confirmation_brings_nothing_back() {
    let environment = signed_in(3, 2).await;
    let source = first(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    let snapshot = Snapshot::take(&environment).await;
    let act = delete(&environment, &source).await;
    until_act(&mut watch, act, "confirmed").await;
    assert_eq!(source_shows(&environment, &source).await, Shown::Gone);
    snapshot.apply(&environment).await;
    assert_eq!(source_shows(&environment, &source).await, Shown::Gone);
    assert_eq!(counted_sources(&environment).await, 2);
    environment.stop().await.unwrap();
}

/// Case D1 (b). The deadline is short, so that the answer, which never comes, is given up soon.
#[tokio::test(flavor = "multi_thread")]
async fn d1b_a_deletion_without_an_answer_stays_being_deleted_also_after_a_restart() {
    let mut environment = signed_in_to(options(3, 2, "deadline_ms = 300\n")).await;
    let source = first(&environment).await;
    happens(&environment, Command::FreezeLists);
    let hanging = fails(&environment, Fault::new(deletion(&source), FaultAct::HangAnswer));
    let mut watch = environment.watch().await.unwrap();
    let act = delete(&environment, &source).await;
    for _ in 0..2 {
        until_act(&mut watch, act, "postponed").await;
        refresh(&environment).await;
        assert_eq!(source_shows(&environment, &source).await, Shown::BeingDeleted);
        assert_eq!(counted_sources(&environment).await, 2);
    }
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    environment.start_daemon().await.unwrap();
    assert_eq!(source_shows(&environment, &source).await, Shown::BeingDeleted, "nobody is signed in");
    let mut watch = environment.watch().await.unwrap();
    sign_in_again(&environment).await;
    until_act(&mut watch, act, "postponed").await;
    refresh(&environment).await;
    assert_eq!(source_shows(&environment, &source).await, Shown::BeingDeleted);
    assert_eq!(counted_sources(&environment).await, 2);
    // Now the server answers: it had done it the first time.
    release(&environment, hanging);
    until_act(&mut watch, act, "confirmed").await;
    refresh(&environment).await;
    assert_eq!((source_shows(&environment, &source).await, counted_sources(&environment).await), (Shown::Gone, 2));
    happens(&environment, Command::ThawLists);
    refresh(&environment).await;
    assert_eq!((source_shows(&environment, &source).await, queue(&environment).await), (Shown::Gone, NOTHING.to_vec()));
    assert_eq!(changes(&environment).total(), 1);
    environment.stop().await.unwrap();
}

/// From now on the list shows the record otherwise than it was, so that it is written anew.
fn list_otherwise(environment: &Environment, list: &str, id: &str, edit: Edit) -> u64 {
    let act = FaultAct::BadRecord { which: Which::Uuid(id.into()), edits: vec![edit] };
    fails(environment, Fault::new(Matching::method("GET", list), act))
}

/// Case D1 (c). The server lists what it has deleted, each time with a change, and then no more.
#[tokio::test(flavor = "multi_thread")]
async fn d1c_what_was_confirmed_stays_gone_while_the_server_lists_it() {
    let environment = signed_in(3, 2).await;
    let sources = ids(&environment).await;
    let (source, other) = (sources[0].as_str(), sources[1].as_str());
    let item = message(&environment, other);
    refresh(&environment).await;
    happens(&environment, Command::FreezeLists);
    let mut watch = environment.watch().await.unwrap();
    let act = delete(&environment, source).await;
    until_act(&mut watch, act, "confirmed").await;
    let act = self::act(&environment, &["delete", "item", &item, "--yes"]).await;
    until_act(&mut watch, act, "confirmed").await;
    for time in 1..=3 {
        let rules = [
            list_otherwise(&environment, "/api/v1/sources", source, Edit::set("/interaction_count", time)),
            list_otherwise(&environment, "/api/v1/submissions", &item, Edit::set("/size", 100 + time)),
        ];
        refresh(&environment).await;
        assert_eq!(source_shows(&environment, source).await, Shown::Gone, "after {time} snapshots");
        assert_eq!(item_shows(&environment, other, &item).await, Shown::Gone, "after {time} snapshots");
        assert_eq!(counted_sources(&environment).await, 2);
        assert_eq!(queue(&environment).await, NOTHING);
        rules.into_iter().for_each(|rule| release(&environment, rule));
    }
    happens(&environment, Command::ThawLists);
    refresh(&environment).await;
    assert_eq!(source_shows(&environment, source).await, Shown::Gone);
    assert_eq!(item_shows(&environment, other, &item).await, Shown::Gone);
    // The rows are gone with that snapshot: what the server lists from now on is new.
    let listed = SourceState::Listed;
    happens(&environment, Command::SetState { source: source.into(), state: listed });
    refresh(&environment).await;
    assert_eq!(source_shows(&environment, source).await, Shown::Ordinary);
    environment.stop().await.unwrap();
}

/// Case D1 (d).
#[tokio::test(flavor = "multi_thread")]
async fn d1d_twenty_deletions_with_refreshes_in_between_leave_no_ghost() {
    const DELETED: usize = 20;
    let environment = signed_in(22, 1).await;
    let sources = ids(&environment).await;
    let mut refreshes = Vec::new();
    for (at, source) in sources.iter().enumerate().take(DELETED) {
        delete(&environment, source).await;
        if at % 3 == 0 {
            let refresh = environment.splitdrop(["refresh"]).stdout(Stdio::null()).spawn().unwrap();
            refreshes.push(refresh);
        }
        let listed = listed(&environment).await;
        let ordinary: Vec<_> = listed.iter().filter(|source| source["being_deleted"] == false).collect();
        let left: Vec<_> = sources.iter().skip(at + 1).collect();
        assert_eq!(ordinary.iter().map(|source| &source["uuid"]).collect::<Vec<_>>(), left, "after {at}");
        assert_eq!(counted_sources(&environment).await, left.len() as u64);
    }
    for mut refresh in refreshes {
        assert!(refresh.wait().await.unwrap().success());
    }
    let deleted = |log: &RequestLog| {
        log.requests().filter(|one| one.method == "DELETE" && one.status == Some(200) && one.ended.is_some()).count()
    };
    until_log(&environment, |log| deleted(log) == DELETED).await;
    refresh(&environment).await;
    assert_eq!(ids(&environment).await, sources[DELETED..]);
    assert_eq!(queue(&environment).await, NOTHING);
    assert_eq!((changes(&environment).total(), changes(&environment).most()), (DELETED as u64, 1));
    environment.stop().await.unwrap();
}

/// Case D3.
#[tokio::test(flavor = "multi_thread")]
async fn d3_a_deletion_whose_answer_is_lost_is_sent_again_and_takes_effect_once() {
    let environment = signed_in_to(options(
        3,
        2,
        "deadline_ms = 300
",
    ))
    .await;
    let sources = ids(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    for (source, lost) in sources.iter().zip([FaultAct::LoseAnswer, FaultAct::HangAnswer]) {
        fails(&environment, Fault::new(deletion(source), lost).times(1));
        // What comes after it waits until it was looked at.
        let later = hold(&environment, deletion(source));
        let act = delete(&environment, source).await;
        until_act(&mut watch, act, "postponed").await;
        assert_eq!(source_shows(&environment, source).await, Shown::BeingDeleted);
        until_held(&environment, later, 1).await;
        assert_eq!(source_shows(&environment, source).await, Shown::BeingDeleted);
        release(&environment, later);
        until_act(&mut watch, act, "confirmed").await;
        assert_eq!(source_shows(&environment, source).await, Shown::Gone);
        assert_eq!(changes(&environment).of(&Change::SourceDeleted { source: source.as_str().into() }), 1);
    }
    environment.stop().await.unwrap();
}

/// Case D3.
#[tokio::test(flavor = "multi_thread")]
async fn d3_what_is_not_there_any_more_is_deleted() {
    let environment = signed_in(4, 1).await;
    let sources = ids(&environment).await;
    let messages: Vec<_> = sources.iter().map(|source| message(&environment, source)).collect();
    refresh(&environment).await;
    // Colleagues are faster; and a server that says it in the other way.
    happens(&environment, Command::DeleteSource { source: sources[0].as_str().into() });
    happens(&environment, Command::DeleteItem { item: messages[2].as_str().into() });
    let gone = FaultAct::json(410, &json!({ "error": "Gone", "message": "it was there" }));
    let of_item = format!("/api/v1/sources/{}/submissions/{}", sources[3], messages[3]);
    fails(&environment, Fault::new(deletion(&sources[1]), gone.clone()));
    fails(&environment, Fault::new(Matching::method("DELETE", &of_item), gone));
    let mut watch = environment.watch().await.unwrap();
    for source in &sources[..2] {
        let act = delete(&environment, source).await;
        until_act(&mut watch, act, "confirmed").await;
        assert_eq!(source_shows(&environment, source).await, Shown::Gone);
        assert_eq!(asked(&environment, "DELETE", &format!("/api/v1/sources/{source}")), 1);
    }
    for (source, item) in sources.iter().zip(&messages).skip(2) {
        let act = act(&environment, &["delete", "item", item, "--yes"]).await;
        until_act(&mut watch, act, "confirmed").await;
        assert_eq!(item_shows(&environment, source, item).await, Shown::Gone);
        assert_eq!(asked(&environment, "DELETE", &format!("/api/v1/sources/{source}/submissions/{item}")), 1);
    }
    assert_eq!((queue(&environment).await, changes(&environment).total()), (NOTHING.to_vec(), 0));
    environment.stop().await.unwrap();
}

/// Case D2.
#[tokio::test(flavor = "multi_thread")]
async fn d2_a_deletion_shows_at_once_whatever_waits_before_it() {
    const WAITING: u32 = 200;
    let environment = signed_in(WAITING + 2, 1).await;
    let sources = ids(&environment).await;
    let (last, rest) = sources.split_last().unwrap();
    let (occupant, rest) = rest.split_last().unwrap();
    // The server takes everything and answers nothing.
    for method in ["POST", "DELETE"] {
        fails(&environment, Fault::new(Matching::method(method, "/api/v1/sources/**"), FaultAct::Hang));
    }
    for some in rest.chunks(20) {
        for command in ["star", "unstar"] {
            // Starred or not, one of the two changes something.
            let arguments: Vec<_> = std::iter::once(command).chain(some.iter().map(String::as_str)).collect();
            environment.json(&arguments, "").await.unwrap();
        }
    }
    delete(&environment, occupant).await;
    until_log(&environment, |log| log.count("DELETE", &format!("/api/v1/sources/{occupant}")) == 1).await;
    let waiting = environment.json(&["status"], "").await.unwrap()["queue"]["waiting"].as_u64().unwrap();
    let act = delete(&environment, last).await;
    assert_eq!(source_shows(&environment, last).await, Shown::BeingDeleted);
    assert_eq!(queued(&environment, act).await.unwrap()["state"], "waiting");
    assert!(waiting >= u64::from(WAITING), "{waiting}");
    assert_eq!(asked(&environment, "DELETE", &format!("/api/v1/sources/{last}")), 0);
    environment.stop().await.unwrap();
}

/// Case D2.
#[tokio::test(flavor = "multi_thread")]
async fn d2_what_is_confirmed_is_gone_without_a_sync() {
    let environment = signed_in(3, 2).await;
    let sources = ids(&environment).await;
    let (source, other) = (sources[0].as_str(), sources[1].as_str());
    let item = items(&environment, other).await[0]["uuid"].as_str().unwrap().to_owned();
    let lists = asked(&environment, "GET", "/api/v1/sources");
    let mut watch = environment.watch().await.unwrap();
    let act = delete(&environment, source).await;
    until_act(&mut watch, act, "confirmed").await;
    assert_eq!(source_shows(&environment, source).await, Shown::Gone);
    let act = self::act(&environment, &["delete", "item", &item, "--yes"]).await;
    until_act(&mut watch, act, "confirmed").await;
    assert_eq!(item_shows(&environment, other, &item).await, Shown::Gone);
    assert_eq!((counted_sources(&environment).await, queue(&environment).await), (2, NOTHING.to_vec()));
    assert_eq!(asked(&environment, "GET", "/api/v1/sources"), lists);
    environment.stop().await.unwrap();
}
