//! The scheduler.

use staging::generator::MARLOW;
use staging::server::{Command, FaultAct};

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
    environment.json(&[if starred { "unstar" } else { "star" }, &id], "").await.unwrap();
    reconnect(&environment);
    until_done(&mut watch).await;
    while watch.until("sync_ended").await.unwrap()["sync"]["outcome"] == "failed" {}
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["paused"], serde_json::json!([]), "{status}");
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

/// Ends the proxy that lists, if one runs, in whatever it is doing.
fn kill_the_lister(environment: &staging::environment::Environment) {
    for pid in staging::processes::with_directory(environment.directory()).unwrap() {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = command.split(|byte| *byte == 0).collect();
        if words[0].ends_with(b"splitdrop-proxy") && words.get(1) == Some(&b"metadata".as_slice()) {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
            // It may have ended by itself.
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// Case S2: timers, requests and proxies that are killed in the middle.
#[tokio::test(flavor = "multi_thread")]
async fn s2_of_a_hundred_random_events_none_makes_two_syncs_at_once() {
    let environment = environment(2, 0, SOON).await;
    environment.login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let mut refreshing = tokio::task::JoinSet::new();
    let mut random = 7_u64;
    for _ in 0..100 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match (random >> 33) % 3 {
            0 => drop(refreshing.spawn(environment.splitdrop(["refresh"]).output())),
            1 => kill_the_lister(&environment),
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
    let (mut running, mut started) = (0_i32, 0);
    loop {
        let event = watch.next().await.unwrap();
        match event["event"].as_str().unwrap() {
            "sync_started" => {
                running += 1;
                started += 1;
            }
            // The first may have started before anybody watched.
            "sync_ended" => running = 0.max(running - 1),
            "act" => break,
            _other => {}
        }
        assert!((0..=1).contains(&running), "{event}");
    }
    assert!(started > 10, "{started}");
    // And it goes on by itself.
    let control = environment.server().control();
    let before = control.count("GET", "/api/v1/sources");
    control.wait_for_log(|log| log.count("GET", "/api/v1/sources") >= before + 3).await;
    environment.stop().await.unwrap();
}
