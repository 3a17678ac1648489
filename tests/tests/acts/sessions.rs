//! Acts and sessions: an act belongs to its journalist, waits for them, and is never sent by anybody else.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use staging::environment::{Environment, QUIET, Watch};
use staging::generator::{MARLOW, TERNBERG};
use staging::processes;
use staging::server::{Change, Command, Edit, Fault, FaultAct, LoggedRequest, Matching, RequestLog, Which};
use staging::socks::{Act, Reply, SocksFault};

use crate::support::*;

const STARS: &str = "/api/v1/sources/*/add_star";
const TOKEN: &str = "/api/v1/token";
const LOGOUT: &str = "/api/v1/logout";
/// Less than the minute for which a proxy goes on that was not told to stop.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(40);
/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nothing is tried twice while a test runs.
const NO_SECOND_TRY: &str = "[acts]\nfirst_wait_ms = 600000\nmost_wait_ms = 600000\n";

async fn state(environment: &Environment) -> Value {
    environment.json(&["status"], "").await.unwrap()["session"]["state"].clone()
}

fn with<'a>(command: &'a str, words: &'a [String]) -> Vec<&'a str> {
    std::iter::once(command).chain(words.iter().map(String::as_str)).collect()
}

/// The requests after the one with this number.
fn requests_after(environment: &Environment, number: u64) -> Vec<LoggedRequest> {
    environment.server().control().requests().into_iter().filter(|request| request.number > number).collect()
}

fn requests_so_far(environment: &Environment) -> u64 {
    environment.server().control().with_log(staging::server::RequestLog::total)
}

/// The events up to one that only comes now, and that one.
async fn events_up_to_a_refresh(environment: &Environment, watch: &mut Watch) -> Vec<Value> {
    environment.json(&["refresh"], "").await.unwrap();
    let asked = environment.json(&["status"], "").await.unwrap()["sync"]["last"]["asked"].clone();
    let mut events = Vec::new();
    loop {
        events.push(watch.next().await.unwrap());
        let last = events.last().unwrap();
        if last["event"] == "sync_ended" && last["sync"]["asked"] == asked {
            return events;
        }
    }
}

/// The events until so many acts are done.
async fn events_until_done(watch: &mut Watch, acts: usize) -> Vec<Value> {
    let mut events = Vec::new();
    while done(&events) < acts {
        events.push(watch.next().await.unwrap());
    }
    events
}

fn ends(events: &[Value]) -> Vec<&str> {
    let ends = events.iter().filter(|event| event["event"] == "session_ended");
    ends.map(|event| event["reason"].as_str().unwrap()).collect()
}

/// Whether an act is done. The sync that begins with a session may show that before the answer is here.
fn is_done(event: &Value) -> bool {
    event["event"] == "act" && (event["step"] == "confirmed" || event["step"] == "settled")
}

fn done(events: &[Value]) -> usize {
    events.iter().filter(|event| is_done(event)).count()
}

/// Case N1.
#[tokio::test(flavor = "multi_thread")]
async fn n1_four_refusals_end_the_session_once_and_the_acts_go_on_after_a_login() {
    let environment = signed_in(8, 2).await;
    let stars: Vec<_> = unstarred(&environment).await.into_iter().take(4).collect();
    let mut watch = environment.watch().await.unwrap();
    happens(&environment, Command::EndSessions { journalist: None });
    // Four are refused, and all four refusals are on their way when the first comes.
    let rule = hold(&environment, Matching::method("POST", STARS));
    let act = act(&environment, &with("star", &stars)).await;
    until_held(&environment, rule, 4).await;
    let sent = requests_so_far(&environment);
    release(&environment, rule);
    assert_eq!(watch.until("session_ended").await.unwrap()["reason"], "expired");
    assert_eq!(state(&environment).await, "signed_out");
    for command in [&["retry", "--all"][..], &["unstar", &stars[0]], &["refresh"]] {
        assert_eq!(environment.run(command, "").await.unwrap().code, Some(4), "{command:?}");
    }
    let waits = queue(&environment).await;
    assert!(waits.len() == 4 && waits.iter().all(|entry| entry["act"] == act && entry["own"] == true), "{waits:?}");
    assert!(listed(&environment).await.iter().filter(|row| row["starred"] == true).count() >= 4);

    sign_in_again(&environment).await;
    let events = events_until_done(&mut watch, 4).await;
    assert_eq!(ends(&events), [] as [&str; 0], "one end is told");
    assert_eq!(requests_after(&environment, sent)[0].path, TOKEN, "nothing was sent without a session");
    assert_eq!(ends(&events_up_to_a_refresh(&environment, &mut watch).await), [] as [&str; 0]);
    assert!(stars.iter().all(|source| self::stars(&environment, source) == 1));
    assert_eq!((changes(&environment).total(), queue(&environment).await.len()), (4, 0));
    environment.stop().await.unwrap();
}

/// Case N1.
#[tokio::test(flavor = "multi_thread")]
async fn n1_the_announced_end_of_a_session_ends_nothing() {
    let environment = Environment::with_daemon(options(3, 2, "")).await.unwrap();
    let long_ago = Edit::set("/expiration", "2020-02-02T20:20:20.202020Z");
    let act = FaultAct::BadRecord { which: Which::Index(0), edits: vec![long_ago] };
    fails(&environment, Fault::new(Matching::path(TOKEN), act));
    let mut watch = environment.watch().await.unwrap();
    let session = environment.login(&MARLOW).await.unwrap();
    assert!(session["session"]["expires"].as_str().unwrap().starts_with("2020-02-02"), "{session}");
    environment.json(&["refresh"], "").await.unwrap();
    let sources = unstarred(&environment).await;
    environment.json(&["star", &sources[0]], "").await.unwrap();
    until_step(&mut watch, "confirmed").await;
    assert_eq!(ends(&events_up_to_a_refresh(&environment, &mut watch).await), [] as [&str; 0]);
    assert_eq!(state(&environment).await, "signed_in");
    environment.stop().await.unwrap();
}

/// Case N3.
#[tokio::test(flavor = "multi_thread")]
async fn n3_an_answer_from_before_a_logout_says_nothing_to_the_next_session() {
    for expired in [false, true] {
        let environment = signed_in(4, 2).await;
        let star = unstarred(&environment).await.swap_remove(0);
        // No snapshot tells what became of it.
        happens(&environment, Command::FreezeLists);
        if expired {
            happens(&environment, Command::EndSessions { journalist: None });
        }
        let rule = fails(&environment, Fault::new(Matching::method("POST", STARS), FaultAct::HoldAnswer).times(1));
        let mut watch = environment.watch().await.unwrap();
        act(&environment, &["star", &star]).await;
        until_held(&environment, rule, 1).await;
        environment.json(&["logout"], "").await.unwrap();
        assert_eq!(watch.until("session_ended").await.unwrap()["reason"], "logout");
        sign_in_again(&environment).await;
        let mut events = events_until_done(&mut watch, 1).await;
        release(&environment, rule);
        happens(&environment, Command::ThawLists);
        events.extend(events_up_to_a_refresh(&environment, &mut watch).await);
        assert_eq!((ends(&events), done(&events)), (Vec::new(), 1), "{events:?}");
        assert_eq!(state(&environment).await, "signed_in");
        assert_eq!((stars(&environment, &star), changes(&environment).total()), (1, 1));
        assert_eq!(source(&environment, &star).await.unwrap()["starred"], true);
        environment.stop().await.unwrap();
    }
}

/// Case N3.
#[tokio::test(flavor = "multi_thread")]
async fn n3_ordinary_failures_of_acts_end_no_session() {
    let environment = signed_in_to(options(16, 1, "deadline_ms = 1500\n")).await;
    let mut watch = environment.watch().await.unwrap();
    let error = json!({ "error": "an error", "message": "" });
    let failures = [
        FaultAct::json(500, &error),
        FaultAct::json(503, &error),
        FaultAct::json_with(429, &[("Retry-After", "0")], &error),
        FaultAct::html(502, "<h1>Bad Gateway</h1>"),
        FaultAct::Drop,
        FaultAct::LoseAnswer,
        FaultAct::DropAfter { bytes: 5 },
        FaultAct::Hang,
        FaultAct::HangAnswer,
    ];
    let sources = unstarred(&environment).await;
    assert!(sources.len() >= failures.len());
    for (source, failure) in sources.iter().zip(&failures) {
        fails(
            &environment,
            Fault::new(Matching::path(&format!("/api/v1/sources/{source}/add_star")), failure.clone()).times(1),
        );
        let act = act(&environment, &["star", source]).await;
        loop {
            let event = watch.next().await.unwrap();
            assert_ne!(event["event"], "session_ended", "{failure:?}");
            if event["act"] == act && event["step"] == "confirmed" {
                break;
            }
        }
        assert_eq!(stars(&environment, source), 1, "{failure:?}");
    }
    assert_eq!(state(&environment).await, "signed_in");
    environment.stop().await.unwrap();
}

/// What the queue says of an act of somebody else's.
async fn of_others(environment: &Environment, act: u64) -> Option<(String, u64)> {
    let entry = queued(environment, act).await?;
    assert_eq!((&entry["own"], &entry["username"]), (&json!(false), &json!("marlow")), "{entry}");
    Some((entry["state"].as_str().unwrap().to_owned(), entry["attempts"].as_u64().unwrap()))
}

/// Case Q4.
#[tokio::test(flavor = "multi_thread")]
async fn q4_what_one_journalist_left_undone_is_never_done_by_another() {
    let mut options = options(10, 1, "");
    options.client_config = format!("{QUIET}{NO_SECOND_TRY}");
    let environment = Environment::with_daemon(options).await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let sources = unstarred(&environment).await;
    let [sent, starred, deleted, read, others] = &sources[..5] else { unreachable!("{sources:?}") };
    let item = message(&environment, read);
    environment.json(&["refresh"], "").await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let marlow =
        environment.server().control().with_world(|world| world.journalist_named("marlow").unwrap().id.clone());

    // One is sent, takes effect, and nobody hears of it. What the server lists is from before.
    happens(&environment, Command::FreezeLists);
    let rule = fails(&environment, Fault::new(Matching::method("POST", STARS), FaultAct::HangAnswer).times(1));
    let sent_act = act(&environment, &["star", sent]).await;
    until_held(&environment, rule, 1).await;
    let cut = environment.socks().add_fault(SocksFault::new(Act::Reply(Reply::HOST_UNREACHABLE))).unwrap();
    environment.socks().cut_all().await;
    until_act(&mut watch, sent_act, "postponed").await;
    // The others find no way to the server.
    let starred_act = act(&environment, &["star", starred]).await;
    until_act(&mut watch, starred_act, "postponed").await;
    let deleted_act = act(&environment, &["delete", "source", deleted, "--yes"]).await;
    let read_act = act(&environment, &["seen", read, &item]).await;
    assert_eq!(source_shows(&environment, deleted).await, Shown::BeingDeleted);
    assert_eq!(changes(&environment).total(), 1);

    // There is a way again, and the first to go is the logout.
    assert!(environment.socks().remove_fault(cut));
    let before = requests_so_far(&environment);
    environment.json(&["logout"], "").await.unwrap();
    until_log(&environment, |log| log.count("POST", LOGOUT) == 1).await;
    happens(&environment, Command::AdvanceClock { seconds: 90 });
    environment.login(&TERNBERG).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(of_others(&environment, sent_act).await, Some(("unconfirmed".to_owned(), 1)));
    for act in [starred_act, deleted_act, read_act] {
        assert_eq!(of_others(&environment, act).await, Some(("waiting".to_owned(), 0)));
    }
    // None of it shows in another's views.
    for source in [sent, starred, deleted] {
        let shown = self::source(&environment, source).await.unwrap();
        assert_eq!((&shown["starred"], &shown["being_deleted"]), (&json!(false), &json!(false)), "{shown}");
    }
    for deal in ["retry", "cancel", "dismiss"] {
        let output = environment.run([deal, &starred_act.to_string()], "").await.unwrap();
        assert_ne!(output.code, Some(0), "another's act is not to be dealt with: {output:?}");
    }
    let own_act = act(&environment, &["star", others]).await;
    until_act(&mut watch, own_act, "confirmed").await;
    let paths: Vec<_> = requests_after(&environment, before)
        .into_iter()
        .filter(|request| request.method != "GET")
        .map(|request| request.path)
        .collect();
    assert_eq!(paths, [LOGOUT.to_owned(), TOKEN.to_owned(), format!("/api/v1/sources/{others}/add_star")]);
    // A snapshot shows what had become of the one that was sent.
    happens(&environment, Command::ThawLists);
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(of_others(&environment, sent_act).await, None);
    assert_eq!(source(&environment, sent).await.unwrap()["starred"], true);

    environment.json(&["logout"], "").await.unwrap();
    sign_in_again(&environment).await;
    // One of them may be told twice, and there may be news of others.
    let mut left = BTreeSet::from([starred_act, deleted_act, read_act]);
    while !left.is_empty() {
        let event = watch.next().await.unwrap();
        if is_done(&event) {
            left.remove(&event["act"].as_u64().unwrap());
        }
    }
    let record = |id: &str| record(&environment, id);
    let wanted = [
        Change::StarSet { source: record(sent) },
        Change::StarSet { source: record(others) },
        Change::StarSet { source: record(starred) },
        Change::SourceDeleted { source: record(deleted) },
        Change::SubmissionSeen { submission: record(&item), journalist: marlow },
    ];
    assert_eq!(changes(&environment), wanted.into_iter().collect());
    assert_eq!(asked(&environment, "POST", &format!("/api/v1/sources/{sent}/add_star")), 1);
    environment.stop().await.unwrap();
}

/// Case Q4.
#[tokio::test(flavor = "multi_thread")]
async fn q4_a_logout_returns_at_once_and_quitting_ends_its_call() {
    let mut environment = signed_in(3, 2).await;
    let logout = hold(&environment, Matching::path(LOGOUT));
    // Acts are on their way as well.
    let rule = hold(&environment, Matching::method("POST", STARS));
    let sources = unstarred(&environment).await;
    environment.json(&with("star", &sources[..2]), "").await.unwrap();
    until_held(&environment, rule, 2).await;
    environment.json(&["logout"], "").await.unwrap();
    assert_eq!(state(&environment).await, "signed_out");
    until_held(&environment, logout, 1).await;
    // The proxy gives the acts up, though the server would go on.
    let given_up = |log: &RequestLog| !log.requests().any(|one| one.fault == Some(rule) && one.ended.is_none());
    tokio::time::timeout(GIVEN_UP_WITHIN, until_log(&environment, given_up)).await.unwrap();
    // The server goes on with the logout too, and keeps nobody from leaving.
    assert_eq!(environment.stop_daemon(Signal::SIGTERM).await.unwrap(), Some(0));
    // It was given up, and not only broken off with whatever else takes too long.
    let log = std::fs::read_to_string(environment.directory().join("daemon.log")).unwrap();
    assert!(log.contains("the logout call took too long") || log.contains("the logout call failed"), "{log}");
    release(&environment, logout);
    environment.broker().until(|counts| counts.open == 0).await;
    let directory = environment.directory().to_owned();
    let left = processes::until_none(PATIENCE, || processes::with_directory(&directory)).await.unwrap();
    assert_eq!(left, [] as [u32; 0]);
    environment.stop().await.unwrap();
}

/// Case Q4.
#[tokio::test(flavor = "multi_thread")]
async fn q4_a_session_is_over_though_its_logout_never_arrives() {
    let environment = signed_in(3, 2).await;
    environment.socks().close_port().unwrap();
    environment.socks().cut_all().await;
    let started = environment.broker().counts().started;
    environment.json(&["logout"], "").await.unwrap();
    assert_eq!(state(&environment).await, "signed_out");
    environment.broker().until(|counts| counts.started > started && counts.open == 0).await;
    environment.socks().open_port().unwrap();
    let star = unstarred(&environment).await.swap_remove(0);
    assert_eq!(environment.run(["star", &star], "").await.unwrap().code, Some(4));
    // The failed call is not made up for.
    let before = requests_so_far(&environment);
    sign_in_again(&environment).await;
    environment.json(&["refresh"], "").await.unwrap();
    let after = requests_after(&environment, before);
    assert_eq!(after[0].path, TOKEN, "{after:?}");
    assert_eq!(asked(&environment, "POST", LOGOUT), 0);
    environment.stop().await.unwrap();
}
