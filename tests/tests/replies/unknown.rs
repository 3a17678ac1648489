//! Replies of which nobody here knows whether the server has them: it stores each once, and it is shown as it is there.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use staging::environment::Environment;
use staging::generator::MARLOW;
use staging::qrexec::broker::EventKind;
use staging::server::{Command, Fault, FaultAct, LoggedRequest, Matching};
use staging::socks::{Act, Reply, SocksFault, Step};

use crate::support::*;

/// How long an act may take where its answer never comes.
const SOON_OVER: &str = "deadline_ms = 4000\n";

/// What happens to a reply that is answered by nothing usable, and whether the server has it then.
fn fates() -> Vec<(FaultAct, bool)> {
    let error = json!({ "error": "an error", "message": "" });
    vec![
        (FaultAct::Drop, false),
        (FaultAct::json(500, &error), false),
        (FaultAct::html(502, "<h1>Bad Gateway</h1>"), false),
        (FaultAct::json_with(429, &[("Retry-After", "0")], &error), false),
        (FaultAct::Hang, false),
        (FaultAct::LoseAnswer, true),
        (FaultAct::FailAfter { status: 500 }, true),
        (FaultAct::FailAfter { status: 504 }, true),
        (FaultAct::DropAfter { bytes: 0 }, true),
        (FaultAct::DropAfter { bytes: 5 }, true),
        (FaultAct::Truncate { bytes: 10 }, true),
        (FaultAct::HangAfter { bytes: 5 }, true),
        (FaultAct::HangAnswer, true),
    ]
}

/// Whether a whole snapshot was asked for after the first of two requests had ended and before the second began.
fn is_snapshot_between(environment: &Environment, first: &LoggedRequest, second: &LoggedRequest) -> bool {
    let Some(ended) = first.ended else { return false };
    let lists = ["/api/v1/sources", "/api/v1/submissions", "/api/v1/replies", "/api/v1/users"];
    let requests = environment.server().control().requests();
    let between = |one: &LoggedRequest| {
        one.number > first.number
            && one.began > first.began
            && one.ended.is_some_and(|over| over > ended && over < second.began)
    };
    lists.iter().all(|list| requests.iter().any(|one| one.path == *list && between(one)))
}

/// Case R1.
#[tokio::test(flavor = "multi_thread")]
async fn r1_whatever_becomes_of_the_answer_the_reply_is_stored_once() {
    let (environment, ids) = signed_in_to(options(2, SOON_OVER)).await;
    let source = ids[0].as_str();
    let mut watch = environment.watch().await.unwrap();
    let mut texts = Vec::new();
    for (number, (fate, took_effect)) in fates().into_iter().enumerate() {
        let text = format!("reply {number}");
        let before = sendings(&environment).len();
        let rule = fails(&environment, fate.clone(), 1);
        let act = reply(&environment, source, &text).await;
        until_act(&mut watch, act, "postponed").await;
        watch.until_done(act).await.unwrap();
        until_listed(&environment, &mut watch, source, act).await;
        release(&environment, rule);
        texts.push(text);
        let sent = sendings(&environment).split_off(before);
        match sent.as_slice() {
            [_] => assert!(took_effect, "{fate:?}"),
            [first, second] => {
                assert!(!took_effect, "{fate:?}: a snapshot would have told that it is there");
                assert!(is_snapshot_between(&environment, first, second), "{fate:?}");
            }
            other => unreachable!("{fate:?}: {other:?}"),
        }
    }
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    assert_told(&environment, source, &texts).await;
    environment.stop().await.unwrap();
}

/// Case R1.
#[tokio::test(flavor = "multi_thread")]
async fn r1_a_reply_that_finds_no_way_is_not_sent_and_goes_once_there_is_one() {
    let (environment, ids) = signed_in_to(no_second_try()).await;
    let source = ids[0].as_str();
    let mut watch = environment.watch().await.unwrap();
    let ways = [
        Act::Reply(Reply::CONNECTION_REFUSED),
        Act::Reply(Reply::ONION_NOT_FOUND),
        Act::CloseAt(Step::Accepted),
        Act::CloseAt(Step::Requested),
    ];
    let mut texts = Vec::new();
    for (number, way) in ways.into_iter().enumerate() {
        let text = format!("reply {number}");
        let before = sendings(&environment).len();
        let fault = environment.socks().add_fault(SocksFault::new(way)).unwrap();
        environment.socks().cut_all().await;
        let act = reply(&environment, source, &text).await;
        until_act(&mut watch, act, "postponed").await;
        let entry = queued(&environment, act).await.unwrap();
        assert_eq!((&entry["state"], &entry["attempts"]), (&json!("waiting"), &json!(0)), "{way:?}: {entry}");
        assert_eq!(state(&environment, source, act).await.1, text);
        assert_eq!(sendings(&environment).len(), before);
        assert!(environment.socks().remove_fault(fault));
        refresh(&environment).await;
        watch.until_done(act).await.unwrap();
        until_listed(&environment, &mut watch, source, act).await;
        assert_eq!(sendings(&environment).len(), before + 1, "{way:?}");
        texts.push(text);
    }
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    assert_told(&environment, source, &texts).await;
    environment.stop().await.unwrap();
}

/// Case R1. What was asked for before an attempt ended knows nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn r1_a_snapshot_from_before_the_end_of_the_attempt_decides_nothing() {
    for took_effect in [true, false] {
        let (environment, ids) = signed_in(2).await;
        let source = ids[0].as_str();
        let mut watch = environment.watch().await.unwrap();
        // Lists that do not have it.
        happens(&environment, Command::FreezeLists);
        let rule = fails(&environment, if took_effect { FaultAct::HangAnswer } else { FaultAct::Hang }, 1);
        let act = reply(&environment, source, "once").await;
        until_acted(&environment, rule).await;
        let lists = || Fault::new(Matching::method("GET", "/api/v1/*"), FaultAct::HoldAnswer);
        let first = environment.server().control().add_fault(lists().times(4)).unwrap();
        let mut asked = environment.splitdrop(["refresh"]).stdout(Stdio::null()).spawn().unwrap();
        let held = |log: &staging::server::RequestLog| {
            log.requests().filter(|one| one.fault == Some(first) && one.held).count()
        };
        until_log(&environment, |log| held(log) == 4).await;
        let second = environment.server().control().add_fault(lists()).unwrap();
        kill_proxy(&environment);
        until_act(&mut watch, act, "postponed").await;
        assert_eq!(state(&environment, source, act).await.0, "unconfirmed");
        // The lists tell of the time before the end, and are heard of after it.
        happens(&environment, Command::ThawLists);
        release(&environment, first);
        assert!(asked.wait().await.unwrap().success());
        until_held(&environment, second).await;
        assert_eq!(state(&environment, source, act).await, ("unconfirmed".to_owned(), "once".to_owned()));
        assert_eq!(sendings(&environment).len(), 1, "nothing is known that says that it is not there");
        release(&environment, second);
        watch.until_done(act).await.unwrap();
        until_listed(&environment, &mut watch, source, act).await;
        assert_eq!(sendings(&environment).len(), if took_effect { 1 } else { 2 });
        assert_told(&environment, source, &["once"]).await;
        environment.stop().await.unwrap();
    }
}

/// Case R1.
#[tokio::test(flavor = "multi_thread")]
async fn r1_an_id_of_ours_that_is_taken_says_that_it_was_stored() {
    let (environment, ids) = signed_in(2).await;
    let source = ids[0].as_str();
    let mut watch = environment.watch().await.unwrap();
    // The snapshot that is asked for afterwards does not tell either.
    happens(&environment, Command::FreezeLists);
    fails(&environment, FaultAct::LoseAnswer, 1);
    let second = fails(&environment, FaultAct::HoldAnswer, 1);
    let act = reply(&environment, source, "once").await;
    until_held(&environment, second).await;
    happens(&environment, Command::ThawLists);
    release(&environment, second);
    watch.until_done(act).await.unwrap();
    until_listed(&environment, &mut watch, source, act).await;
    let statuses: Vec<_> = sendings(&environment).iter().map(|one| one.status).collect();
    assert_eq!(statuses[1], Some(409), "{statuses:?}");
    assert_told(&environment, source, &["once"]).await;
    environment.stop().await.unwrap();
}

/// Case R1. The first request comes so late that the same reply is there already.
#[tokio::test(flavor = "multi_thread")]
async fn r1_a_request_that_arrives_after_the_next_one_stores_nothing_more() {
    let (environment, ids) = signed_in_to(options(2, "deadline_ms = 500\n")).await;
    let source = ids[0].as_str();
    let late = Fault::new(Matching::method("POST", REPLIES), FaultAct::Pass).times(1).after_ms(4_000);
    environment.server().control().add_fault(late).unwrap();
    let mut watch = environment.watch().await.unwrap();
    let act = reply(&environment, source, "once").await;
    watch.until_done(act).await.unwrap();
    until_listed(&environment, &mut watch, source, act).await;
    let over = |one: &LoggedRequest| one.method == "POST" && one.path.ends_with("/replies") && one.ended.is_some();
    until_log(&environment, |log| log.requests().filter(|one| over(one)).count() >= 2).await;
    refresh(&environment).await;
    assert_told(&environment, source, &["once"]).await;
    environment.stop().await.unwrap();
}

/// What breaks off an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    DaemonKilled,
    DaemonEnded,
    ProxyKilled,
    Logout,
    SessionExpired,
}

/// The proxy's process of the last call that answers.
fn kill_proxy(environment: &Environment) {
    let events = environment.broker().events();
    let answers = |kind: &EventKind| matches!(kind, EventKind::Requested { argument, .. } if argument == "reply");
    let call = events.iter().rev().find(|event| answers(&event.kind)).unwrap().call;
    let started = |kind: &EventKind| match kind {
        EventKind::Started { pid, .. } => *pid,
        _other => None,
    };
    let pid = events.iter().filter(|event| event.call == call).find_map(|event| started(&event.kind)).unwrap();
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
}

async fn broken_off_by(blow: Blow) {
    let (mut environment, ids) = signed_in(2).await;
    let source = ids[0].as_str();
    let mut texts = Vec::new();
    for (text, took_effect) in [("first", true), ("second", false)] {
        let mut watch = environment.watch().await.unwrap();
        let before = sendings(&environment).len();
        let rule = fails(&environment, if took_effect { FaultAct::HoldAnswer } else { FaultAct::Hang }, 1);
        let act = reply(&environment, source, text).await;
        until_acted(&environment, rule).await;
        if took_effect {
            until_held(&environment, rule).await;
        }
        // What is shown is looked at before a snapshot tells more.
        let lists = hold_lists(&environment);
        match blow {
            Blow::DaemonKilled | Blow::DaemonEnded => {
                let signal = if blow == Blow::DaemonKilled { Signal::SIGKILL } else { Signal::SIGTERM };
                environment.stop_daemon(signal).await.unwrap();
                environment.start_daemon().await.unwrap();
            }
            Blow::ProxyKilled => {
                kill_proxy(&environment);
                until_act(&mut watch, act, "postponed").await;
            }
            Blow::Logout => {
                environment.json(&["logout"], "").await.unwrap();
            }
            Blow::SessionExpired => {
                // A request with an old token ends the session while the reply is on its way.
                happens(&environment, Command::EndSessions { journalist: None });
                release(&environment, lists);
                let _failed = environment.run(["refresh"], "").await.unwrap();
                watch.until("session_ended").await.unwrap();
            }
        }
        assert_eq!(state(&environment, source, act).await, ("unconfirmed".to_owned(), text.to_owned()), "{blow:?}");
        happens(&environment, Command::ClearFaults);
        let mut watch = environment.watch().await.unwrap();
        if blow != Blow::ProxyKilled {
            login(&environment, &MARLOW).await;
        }
        until_listed(&environment, &mut watch, source, act).await;
        let sent = sendings(&environment).len() - before;
        assert_eq!(sent, if took_effect { 1 } else { 2 }, "{blow:?}");
        texts.push(text);
        assert_told(&environment, source, &texts).await;
    }
    environment.stop().await.unwrap();
}

/// Cases R1 and R2.
#[tokio::test(flavor = "multi_thread")]
async fn r1_r2_a_daemon_that_is_killed_while_it_sends_sends_nothing_twice() {
    broken_off_by(Blow::DaemonKilled).await;
}

/// Cases R1 and R2.
#[tokio::test(flavor = "multi_thread")]
async fn r1_r2_a_daemon_that_is_ended_while_it_sends_sends_nothing_twice() {
    broken_off_by(Blow::DaemonEnded).await;
}

/// Case R1.
#[tokio::test(flavor = "multi_thread")]
async fn r1_a_proxy_that_is_killed_while_it_sends_sends_nothing_twice() {
    broken_off_by(Blow::ProxyKilled).await;
}

/// Case R1.
#[tokio::test(flavor = "multi_thread")]
async fn r1_a_logout_while_it_is_sent_sends_nothing_twice() {
    broken_off_by(Blow::Logout).await;
}

/// Case R1.
#[tokio::test(flavor = "multi_thread")]
async fn r1_a_session_that_ends_while_it_is_sent_sends_nothing_twice() {
    broken_off_by(Blow::SessionExpired).await;
}

/// Case R2.
#[tokio::test(flavor = "multi_thread")]
async fn r2_what_waits_waits_after_a_restart_too_and_goes_after_a_login() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let (mut environment, ids) = signed_in(2).await;
        environment.json(&["pause"], "").await.unwrap();
        let acts = [reply(&environment, &ids[0], "one").await, reply(&environment, &ids[0], "two").await];
        environment.stop_daemon(signal).await.unwrap();
        environment.start_daemon().await.unwrap();
        for (act, text) in acts.iter().zip(["one", "two"]) {
            assert_eq!(state(&environment, &ids[0], *act).await, ("waiting".to_owned(), text.to_owned()));
        }
        environment.json(&["resume"], "").await.unwrap();
        let before = sendings(&environment).len();
        let mut watch = environment.watch().await.unwrap();
        login(&environment, &MARLOW).await;
        for act in acts {
            until_listed(&environment, &mut watch, &ids[0], act).await;
        }
        assert_eq!((before, sendings(&environment).len()), (0, 2));
        assert_told(&environment, &ids[0], &["one", "two"]).await;
        environment.stop().await.unwrap();
    }
}
