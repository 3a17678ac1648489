//! The scheduler.

use std::collections::{HashMap, HashSet};
use std::io;
use std::process::Output;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::Scope;
use serde_json::Value;
use staging::environment::Environment;
use staging::generator::MARLOW;
use staging::impatient::Patience;
use staging::qrexec::broker::EventKind;
use staging::server::{Command, Fault, FaultAct, LoggedRequest, Matching, RequestLog};
use staging::socks::{Act, SocksFault, Step};
use tokio::task::JoinSet;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn it_syncs_from_login_to_logout_and_not_otherwise() {
    let environment = environment(2, 0, SOON).await;
    let control = environment.server().control();
    assert_eq!(control.with_log(|log| log.total()), 0, "nothing is called while nobody is signed in");
    environment.login(&MARLOW).await.unwrap();
    control.wait_for_log(|log| log.count("GET", "/api/v1/sources") >= 4).await;
    environment.json(&["logout"], "").await.unwrap();
    control.wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1).await;
    environment.broker().until(|counts| counts.open == 0).await;
    let counted = control.with_log(|log| log.total());
    // Whatever would have been asked after this would have been asked before this answer.
    environment.json(&["status"], "").await.unwrap();
    assert_eq!(environment.json(&["status"], "").await.unwrap()["sync"]["next"], serde_json::Value::Null);
    assert_eq!(control.with_log(|log| log.total()), counted);
    environment.stop().await.unwrap();
}

/// Case S1: nobody touches anything.
#[tokio::test(flavor = "multi_thread")]
async fn s1_syncs_go_on_after_failures_and_what_was_paused_goes_on_with_the_first_success() {
    let environment = environment(2, 0, SOON).await;
    environment.login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    while watch.until("sync_ended").await.unwrap()["sync"]["outcome"] == "failed" {}
    cut_off(&environment).await;
    for _ in 0..5 {
        while watch.until("sync_ended").await.unwrap()["sync"]["outcome"] != "failed" {}
    }
    let id = environment.json(&["sources"], "").await.unwrap()["sources"][0]["uuid"].as_str().unwrap().to_owned();
    environment.json(&["seen", &id], "").await.unwrap();
    let starred = environment.json(&["sources"], "").await.unwrap()["sources"][0]["starred"].as_bool().unwrap();
    let mark = environment.json(&[if starred { "unstar" } else { "star" }, &id], "").await.unwrap();
    reconnect(&environment);
    watch.until_done(mark["acts"][0]["act"].as_u64().unwrap()).await.unwrap();
    while watch.until("sync_ended").await.unwrap()["sync"]["outcome"] == "failed" {}
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["paused"], serde_json::json!([]), "{status}");
    environment.stop().await.unwrap();
}

/// Whether a sync failed, and then why.
fn failure(ended: &Value) -> Option<&str> {
    (ended["sync"]["outcome"] == "failed").then(|| ended["sync"]["error"].as_str().unwrap())
}

/// The script of case S1.
const TIMEOUTS: u32 = 5;
/// How long the proxy waits in it for what comes, and for what is late. One of the two is reached in each test.
const EVER: Duration = Duration::from_secs(120);
const NOT_LONG: Duration = Duration::from_secs(5);

/// Case S1: a list of which no byte comes, five times. Each sync after a failure comes by itself, and none is made besides: the
/// server is asked once for each.
#[tokio::test(flavor = "multi_thread")]
async fn s1_after_a_success_and_five_timeouts_at_the_server_the_next_sync_succeeds() {
    let patience = Patience { connect: EVER, first_byte: NOT_LONG };
    let environment = impatient(2, 0, SOON, patience).await;
    let control = environment.server().control();
    let lists = || Matching::method("GET", "/api/v1/users");
    control.add_fault(Fault::new(lists(), FaultAct::Pass).times(1)).unwrap();
    control.add_fault(Fault::new(lists(), FaultAct::Hang).times(TIMEOUTS)).unwrap();
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    let first = watch.until("sync_ended").await.unwrap();
    assert_eq!(failure(&first), None, "{first}");
    for number in 1..=TIMEOUTS {
        let ended = watch.until("sync_ended").await.unwrap();
        assert!(failure(&ended).is_some_and(|why| why.contains("the server did not answer")), "{number}: {ended}");
    }
    let next = watch.until("sync_ended").await.unwrap();
    assert_eq!(failure(&next), None, "{next}");
    let asked: Vec<_> = control.requests().into_iter().filter(|one| one.path == "/api/v1/users").collect();
    let answered: Vec<_> = asked.iter().take(2 + TIMEOUTS as usize).map(|one| one.status.is_some()).collect();
    assert_eq!(answered, [true, false, false, false, false, false, true]);
    environment.stop().await.unwrap();
}

/// Case S1: the way to the server hangs. That pauses acts, messages and files, each of which would wait for a day; nobody
/// touches anything, and the first sync that comes through lets all of them go on.
#[tokio::test(flavor = "multi_thread")]
async fn s1_what_timeouts_have_paused_runs_again_with_the_first_sync_that_succeeds() {
    let patience = Patience { connect: NOT_LONG, first_byte: EVER };
    let environment = impatient(0, 0, ONLY_SYNCS, patience).await;
    environment.login(&MARLOW).await.unwrap();
    // Something waits in each lane when the way begins to hang.
    environment.json(&["pause"], "").await.unwrap();
    let (source, message, file) = newcomer(&environment, 700, 3_000);
    environment.json(&["refresh"], "").await.unwrap();
    environment.json(&["star", source.as_str()], "").await.unwrap();
    environment.json(&["download", file.as_str(), "--no-wait"], "").await.unwrap();
    environment.socks().add_fault(SocksFault::new(Act::HangAt(Step::Requested))).unwrap();
    environment.socks().cut_all().await;
    let mut watch = environment.watch().await.unwrap();
    environment.json(&["resume"], "").await.unwrap();
    assert_eq!(watch.until("queue_paused").await.unwrap()["reason"], "network");
    let mut ended = Value::Null;
    for number in 1..=TIMEOUTS {
        ended = watch.until("sync_ended").await.unwrap();
        assert!(failure(&ended).is_some_and(|why| why.contains("no connection to the server")), "{number}: {ended}");
    }
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["paused"][0]["reason"], "network", "{status}");
    for lane in ["acts", "messages", "files"] {
        let lane = &status["lanes"][lane];
        assert_eq!((&lane["waiting"], &lane["running"]), (&1.into(), &0.into()), "{status}");
    }
    environment.socks().clear_faults();
    let last = environment.json(&["status"], "").await.unwrap()["sync"]["last"]["started"].clone();
    while ended["sync"]["started"] != last {
        ended = watch.until("sync_ended").await.unwrap();
    }
    // The sync that was under way may hang too; the next one does not.
    let mut late = 0;
    while failure(&ended).is_some() {
        ended = watch.until("sync_ended").await.unwrap();
        late += u32::from(failure(&ended).is_some());
        assert!(late <= 1, "{ended}");
    }
    let mut done = HashSet::new();
    let all = async {
        while done.len() < 3 {
            let event = watch.next().await.unwrap();
            match (event["event"].as_str().unwrap(), event["step"].as_str()) {
                ("act", Some("confirmed" | "settled")) => drop(done.insert("the star".to_owned())),
                ("download", Some("stored")) => drop(done.insert(event["item"].as_str().unwrap().to_owned())),
                ("queue_paused", _) => unreachable!("{event}"),
                _other => {}
            }
        }
    };
    tokio::time::timeout(EVER, all).await.unwrap();
    assert!([message, file].iter().all(|item| done.contains(item.as_str())), "{done:?}");
    assert_eq!(environment.json(&["status"], "").await.unwrap()["paused"], serde_json::json!([]));
    environment.stop().await.unwrap();
}

/// Case S2.
#[tokio::test(flavor = "multi_thread")]
async fn s2_never_two_syncs_at_once_and_any_number_of_requests_is_one_more() {
    let environment = environment(2, 0, ASKED).await;
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let control = environment.server().control();
    control.apply(Command::ClearLog).unwrap();
    let held = fault(&environment, "/api/v1/users", FaultAct::HoldAnswer);
    let mut watch = environment.watch().await.unwrap();
    let mut refreshing = tokio::task::JoinSet::new();
    let first = environment.splitdrop(["refresh"]).output();
    refreshing.spawn(first);
    control.wait_for_log(|log| log.held() == 1).await;
    for _ in 0..9 {
        refreshing.spawn(environment.splitdrop(["refresh"]).output());
    }
    // All of them have asked: the daemon answers one request of a front end after another.
    for _ in 0..9 {
        environment.json(&["status"], "").await.unwrap();
    }
    control.apply(Command::RemoveFault { id: held }).unwrap();
    while let Some(refreshed) = refreshing.join_next().await {
        assert!(refreshed.unwrap().unwrap().status.success());
    }
    let at_once = control.with_log(|log| log.max_in_flight_of(|request| request.path == "/api/v1/sources"));
    assert_eq!(at_once, 1);
    let syncs = control.count("GET", "/api/v1/users");
    assert!((2..=10).contains(&syncs), "{syncs}");
    let mut running = 0;
    for _ in 0..2 * syncs {
        loop {
            let event = watch.next().await.unwrap();
            match event["event"].as_str().unwrap() {
                "sync_started" => running += 1,
                "sync_ended" => running -= 1,
                _other => continue,
            }
            break;
        }
        assert!((0..=1).contains(&running));
    }
    environment.stop().await.unwrap();
}

/// Case S7.
#[tokio::test(flavor = "multi_thread")]
async fn s7_that_the_server_cannot_be_reached_is_said_once_when_it_lasts_and_withdrawn() {
    let environment = environment(2, 0, SOON).await;
    environment.login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    while watch.until("sync_ended").await.unwrap()["sync"]["outcome"] == "failed" {}
    cut_off(&environment).await;
    let (mut failed, mut told) = (0, Vec::new());
    while failed < 8 {
        let event = watch.next().await.unwrap();
        match event["event"].as_str().unwrap() {
            "sync_ended" if event["sync"]["outcome"] == "failed" => failed += 1,
            "sync_stale" => told.push((failed, event["last_success"].is_string())),
            _other => {}
        }
    }
    assert_eq!(told, [(3, true)], "with the third failure, once, with the time of the last success");
    assert_eq!(environment.json(&["status"], "").await.unwrap()["sync"]["stale"], true);
    reconnect(&environment);
    watch.until("sync_fresh").await.unwrap();
    assert_eq!(environment.json(&["status"], "").await.unwrap()["sync"]["stale"], false);
    environment.stop().await.unwrap();
}

/// The sync is in no lane: it runs beside acts that hang and files that are being fetched, and while the user has paused
/// the queue.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_holds_up_the_sync() {
    let environment = environment(3, 0, SOON).await;
    environment.login(&MARLOW).await.unwrap();
    let (_, _, file) = newcomer(&environment, 700, 3_000_000);
    environment.json(&["refresh"], "").await.unwrap();
    let control = environment.server().control();
    fault(&environment, "/api/v1/sources/*/submissions/*/download", FaultAct::HangAfter { bytes: 1_000_000 });
    fault(&environment, "/api/v1/sources/*/add_star", FaultAct::Hang);
    fault(&environment, "/api/v1/sources/*/remove_star", FaultAct::Hang);
    for source in environment.json(&["sources"], "").await.unwrap()["sources"].as_array().unwrap() {
        let command = if source["starred"] == true { "unstar" } else { "star" };
        environment.json(&[command, source["uuid"].as_str().unwrap()], "").await.unwrap();
    }
    environment.json(&["download", file.as_str()], "").await.unwrap();
    control.wait_for_log(|log| log.requests().any(|request| request.path.ends_with(&format!("{file}/download")))).await;
    let before = control.count("GET", "/api/v1/sources");
    control.wait_for_log(|log| log.count("GET", "/api/v1/sources") >= before + 3).await;
    environment.json(&["pause"], "").await.unwrap();
    let before = control.count("GET", "/api/v1/sources");
    control.wait_for_log(|log| log.count("GET", "/api/v1/sources") >= before + 3).await;
    environment.stop().await.unwrap();
}

/// Case S8: each sync has one start and one end, and a refresh acts at once whatever failed before.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_while_there_was_no_way_acts_at_once() {
    let environment = environment(2, 0, ASKED).await;
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    cut_off(&environment).await;
    assert_eq!(environment.run(["refresh"], "").await.unwrap().code, Some(8));
    reconnect(&environment);
    environment.json(&["refresh"], "").await.unwrap();
    environment.stop().await.unwrap();
}

/// The proxies that list and have not ended, as the broker knows them.
fn listers(environment: &Environment) -> Vec<Pid> {
    let (mut of_lists, mut running) = (HashSet::new(), HashMap::new());
    for event in environment.broker().events() {
        match event.kind {
            EventKind::Requested { argument, .. } if argument == Scope::Metadata.name() => {
                of_lists.insert(event.call);
            }
            EventKind::Started { pid: Some(pid), .. } if of_lists.contains(&event.call) => {
                running.insert(event.call, Pid::from_raw(i32::try_from(pid).unwrap()));
            }
            EventKind::Ended(_) => drop(running.remove(&event.call)),
            _other => {}
        }
    }
    running.into_values().collect()
}

/// Ends the proxies that list in whatever they are doing; gives how many ran.
fn kill_the_listers(environment: &Environment) -> usize {
    // One may have ended by itself meanwhile.
    listers(environment).into_iter().filter(|pid| kill(*pid, Signal::SIGKILL).is_ok()).count()
}

const SOURCES: &str = "/api/v1/sources";

/// The list of sources that the server holds back, if it is a later request than that number.
fn held_list(log: &RequestLog, after: u64) -> Option<u64> {
    let held = |one: &&LoggedRequest| one.path == SOURCES && one.held && one.ended.is_none() && one.number > after;
    log.requests().find(held).map(|one| one.number)
}

/// Kills the proxies of syncs that run: the server holds back their list. A sync whose proxy was there before it asks once more
/// through another, so of two kills one ends a sync at least. Meanwhile there are requests and the timer's turn.
async fn kill_in_the_middle(environment: &Environment, refreshing: &mut JoinSet<io::Result<Output>>) {
    let control = environment.server().control();
    // What a proxy has asked that is dead by now is past.
    let past = async { while environment.run(["refresh"], "").await.unwrap().code != Some(0) {} };
    tokio::time::timeout(EVER, past).await.unwrap();
    let rule = fault(environment, SOURCES, FaultAct::HoldAnswer);
    let mut last = 0;
    for _ in 0..2 {
        let mut held = None;
        control
            .wait_for_log(|log| {
                held = held_list(log, last);
                held.is_some()
            })
            .await;
        last = held.unwrap();
        refreshing.spawn(environment.splitdrop(["refresh"]).output());
        let status = environment.json(&["status"], "").await.unwrap();
        assert!(!status["sync"]["running"].is_null(), "{status}");
        let more =
            control.with_log(|log| log.requests().filter(|one| one.path == SOURCES && one.number > last).count());
        assert_eq!(more, 0, "another sync has asked for its list");
        assert_ne!(kill_the_listers(environment), 0);
    }
    control.apply(Command::RemoveFault { id: rule }).unwrap();
}

/// Case S2: timers, requests and proxies that are killed in the middle.
#[tokio::test(flavor = "multi_thread")]
async fn s2_of_a_hundred_random_events_none_makes_two_syncs_at_once() {
    const IN_THE_MIDDLE: usize = 4;
    let environment = environment(2, 0, SOON).await;
    environment.login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let mut refreshing = JoinSet::new();
    let mut random = 7_u64;
    for number in 0..100 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match (random >> 33) % 3 {
            _ if number % (100 / IN_THE_MIDDLE) == 0 => kill_in_the_middle(&environment, &mut refreshing).await,
            0 => drop(refreshing.spawn(environment.splitdrop(["refresh"]).output())),
            1 => drop(kill_the_listers(&environment)),
            // The timer's turn.
            _ => drop(environment.json(&["status"], "").await.unwrap()),
        }
    }
    while let Some(refreshed) = refreshing.join_next().await {
        // It succeeded, or its proxy was killed; it did not wait for ever.
        assert!(refreshed.unwrap().unwrap().status.code().is_some());
    }
    // An act marks the end of what is looked at.
    let first = environment.json(&["sources"], "").await.unwrap()["sources"][0].clone();
    let command = if first["starred"] == true { "unstar" } else { "star" };
    environment.json(&[command, first["uuid"].as_str().unwrap()], "").await.unwrap();
    let (mut running, mut started, mut killed) = (0_i32, 0, 0);
    loop {
        let event = watch.next().await.unwrap();
        match event["event"].as_str().unwrap() {
            "sync_started" => {
                running += 1;
                started += 1;
            }
            "sync_ended" => {
                // The first may have started before anybody watched.
                running = 0.max(running - 1);
                killed += usize::from(failure(&event).is_some_and(|why| why.contains("incomplete")));
            }
            "act" => break,
            _other => {}
        }
        assert!((0..=1).contains(&running), "{event}");
    }
    assert!(started > 10, "{started}");
    assert!(killed >= IN_THE_MIDDLE, "{killed} syncs ended with their proxy, of {started}");
    // And it goes on by itself.
    let control = environment.server().control();
    let before = control.count("GET", SOURCES);
    control.wait_for_log(|log| log.count("GET", SOURCES) >= before + 3).await;
    // What was not answered was asked by a proxy that is dead: the server may not have noticed before the next one asked.
    let at_once = |one: &LoggedRequest| one.path == SOURCES && one.status.is_some() && one.fault.is_none();
    assert_eq!(control.with_log(|log| log.max_in_flight_of(at_once)), 1);
    environment.stop().await.unwrap();
}
