//! Why nothing is done, and what ends that.

use std::collections::HashSet;

use serde_json::json;
use staging::generator::MARLOW;
use staging::server::{Command, FaultAct};

use crate::support::*;

/// What waits its time waits longer than a test.
const PATIENT: &str = "\
[sync]
interval_ms = 86400000
first_wait_ms = 86400000
most_wait_ms = 86400000
[acts]
first_wait_ms = 86400000
most_wait_ms = 86400000
";

/// Case Q2: no way to the server is one state for all lanes, and ends with a success.
#[tokio::test(flavor = "multi_thread")]
async fn q2_a_network_failure_pauses_all_lanes_and_a_refresh_that_succeeds_lifts_it() {
    let environment = environment(2, 0, PATIENT).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (_, first, file) = newcomer(&environment, 700, 3_000);
    environment.json(&["refresh"], "").await.unwrap();
    until_download(&mut watch, &first, "stored").await;
    cut_off(&environment).await;
    environment.json(&["download", file.as_str()], "").await.unwrap();
    assert_eq!(watch.until("queue_paused").await.unwrap()["reason"], "network");
    let sources = environment.json(&["sources"], "").await.unwrap()["sources"].clone();
    let id = sources[1]["uuid"].as_str().unwrap();
    environment.json(&[if sources[1]["starred"] == true { "unstar" } else { "star" }, id], "").await.unwrap();
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["paused"][0]["reason"], "network");
    assert_eq!((&status["lanes"]["acts"]["waiting"], &status["lanes"]["files"]["waiting"]), (&json!(1), &json!(1)));
    assert_eq!(status["lanes"]["acts"]["running"], 0, "one lane's failure is every lane's reason");
    reconnect(&environment);
    environment.json(&["refresh"], "").await.unwrap();
    until_download(&mut watch, &file, "stored").await;
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["paused"], json!([]));
    environment.stop().await.unwrap();
}

/// Case Q2: what waited during a pause goes on in the order in which it was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn q2_after_a_resume_files_and_acts_go_in_the_order_in_which_they_were_asked_for() {
    let environment = environment(0, 0, ASKED).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let control = environment.server().control().clone();
    let newcomers = [(); 3].map(|()| newcomer(&environment, 700, 3_000));
    let (source, files) = (newcomers[0].0.clone(), newcomers.each_ref().map(|(_, _, file)| file.clone()));
    environment.json(&["refresh"], "").await.unwrap();
    let mut messages: HashSet<_> = newcomers.iter().map(|(_, message, _)| message.as_str()).collect();
    while !messages.is_empty() {
        let event = watch.until("download").await.unwrap();
        if event["step"] == "stored" {
            messages.remove(event["item"].as_str().unwrap());
        }
    }
    environment.json(&["pause"], "").await.unwrap();
    // The last one first, so that no other order looks the same.
    for file in files.iter().rev() {
        environment.json(&["download", file.as_str()], "").await.unwrap();
    }
    environment.json(&["star", source.as_str()], "").await.unwrap();
    environment.json(&["seen", source.as_str()], "").await.unwrap();
    assert!(files.iter().all(|file| downloads(&environment, file).is_empty()));
    let held_back = fault(&environment, DOWNLOADS, FaultAct::HoldAnswer);
    environment.json(&["resume"], "").await.unwrap();
    control.wait_for_log(|log| log.held() == 2).await;
    let asked = |file| downloads(&environment, file).len();
    assert_eq!((asked(&files[2]), asked(&files[1]), asked(&files[0])), (1, 1, 0), "two at a time, and the third waits");
    control.apply(Command::RemoveFault { id: held_back }).unwrap();
    until_download(&mut watch, &files[0], "stored").await;
    control.wait_for_log(|log| log.count("POST", "/api/v1/seen") == 1).await;
    let star = format!("/api/v1/sources/{source}/add_star");
    let acts: Vec<_> = control
        .requests()
        .into_iter()
        .filter(|request| request.path == star || request.path == "/api/v1/seen")
        .collect();
    assert_eq!(acts.iter().map(|request| request.path == star).collect::<Vec<_>>(), [true, false]);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_users_pause_lasts_until_the_user_ends_it_also_over_a_restart() {
    let mut environment = environment(1, 0, ASKED).await;
    environment.first_login(&MARLOW).await.unwrap();
    environment.json(&["pause"], "").await.unwrap();
    let (source, first, _) = newcomer(&environment, 700, 3_000);
    environment.json(&["refresh"], "").await.unwrap();
    environment.stop_daemon(nix::sys::signal::Signal::SIGKILL).await.unwrap();
    environment.start_daemon().await.unwrap();
    sign_in_again(&environment).await;
    environment.json(&["refresh"], "").await.unwrap();
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["paused"], json!([{ "reason": "user" }]));
    assert_eq!(downloads(&environment, &first).len(), 0);
    let mut watch = environment.watch().await.unwrap();
    environment.json(&["resume"], "").await.unwrap();
    until_download(&mut watch, &first, "stored").await;
    assert_eq!(content(&environment, &source, &first).await, "downloaded");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_session_that_is_the_reason_and_nothing_is_called() {
    let environment = environment(1, 1, SOON).await;
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["paused"], json!([{ "reason": "no_session" }]));
    assert_eq!(environment.server().control().with_log(|log| log.total()), 0);
    environment.stop().await.unwrap();
}

/// Case Q2: what an act finds out holds for downloads too, and the user's word ends it at once.
#[tokio::test(flavor = "multi_thread")]
async fn q2_a_failed_act_pauses_downloads_and_a_resume_in_that_pause_acts_at_once() {
    let environment = environment(0, 0, PATIENT).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (source, first, file) = newcomer(&environment, 700, 3_000);
    environment.json(&["refresh"], "").await.unwrap();
    until_download(&mut watch, &first, "stored").await;
    cut_off(&environment).await;
    environment.json(&["star", source.as_str()], "").await.unwrap();
    assert_eq!(watch.until("queue_paused").await.unwrap()["reason"], "network");
    environment.json(&["download", file.as_str()], "").await.unwrap();
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!((&status["lanes"]["files"]["waiting"], &status["lanes"]["files"]["running"]), (&json!(1), &json!(0)));
    assert_eq!(downloads(&environment, &file).len(), 0, "nobody has tried");
    reconnect(&environment);
    environment.json(&["resume"], "").await.unwrap();
    until_download(&mut watch, &file, "stored").await;
    environment.stop().await.unwrap();
}

/// Case Q2: what waits its own time, since it broke off in the middle, goes on at once too.
#[tokio::test(flavor = "multi_thread")]
async fn q2_a_resume_ends_the_waits_of_what_broke_off() {
    let environment = environment(0, 0, PATIENT).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (_, first, file) = newcomer(&environment, 700, 3_000_000);
    environment.json(&["refresh"], "").await.unwrap();
    until_download(&mut watch, &first, "stored").await;
    let path = format!("/api/v1/sources/*/submissions/{file}/download");
    let hangs = fault(&environment, &path, FaultAct::HangAfter { bytes: 2_000_000 });
    environment.json(&["download", file.as_str()], "").await.unwrap();
    until_part(&environment, 1_000_000).await;
    cut_off(&environment).await;
    until_download(&mut watch, &file, "postponed").await;
    environment.server().control().apply(Command::RemoveFault { id: hangs }).unwrap();
    reconnect(&environment);
    environment.json(&["resume"], "").await.unwrap();
    until_download(&mut watch, &file, "stored").await;
    assert!(downloads(&environment, &file)[1].range().is_some());
    environment.stop().await.unwrap();
}

/// Case Q2: whatever somebody does while nobody is signed in, nothing is called, and that stays the reason.
#[tokio::test(flavor = "multi_thread")]
async fn q2_while_signed_out_no_command_calls_anything() {
    let environment = environment(0, 0, ASKED).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (_, first, file) = newcomer(&environment, 700, 3_000);
    environment.json(&["refresh"], "").await.unwrap();
    until_download(&mut watch, &first, "stored").await;
    environment.json(&["logout"], "").await.unwrap();
    let control = environment.server().control();
    control.wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1).await;
    environment.broker().until(|counts| counts.open == 0).await;
    let (requests, calls) = (control.with_log(|log| log.total()), environment.broker().events().len());
    for command in [&["resume"][..], &["download", file.as_str()], &["pause"], &["resume"]] {
        environment.json(command, "").await.unwrap();
    }
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["paused"], json!([{ "reason": "no_session" }]));
    assert_eq!(control.with_log(|log| log.total()), requests);
    assert_eq!(environment.broker().events().len(), calls, "no VM was called");
    sign_in_again(&environment).await;
    until_download(&mut watch, &file, "stored").await;
    environment.stop().await.unwrap();
}

/// A failure of the server is the item's own, and is tried again without anybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_the_server_is_tried_again_by_itself_and_holds_up_nothing_else() {
    let environment = environment(0, 0, ASKED).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (_, bad, _) = newcomer(&environment, 700, 3_000);
    let (_, good, _) = newcomer(&environment, 700, 3_000);
    let path = format!("/api/v1/sources/*/submissions/{bad}/download");
    let broken = fault(&environment, &path, FaultAct::json(503, &json!({})));
    environment.json(&["refresh"], "").await.unwrap();
    let (mut stored, mut postponed) = (false, 0);
    while !stored || postponed < 3 {
        let event = watch.until("download").await.unwrap();
        stored |= event["item"] == good.as_str() && event["step"] == "stored";
        postponed += u32::from(event["item"] == bad.as_str() && event["step"] == "postponed");
    }
    environment.server().control().apply(Command::RemoveFault { id: broken }).unwrap();
    until_download(&mut watch, &bad, "stored").await;
    environment.stop().await.unwrap();
}
