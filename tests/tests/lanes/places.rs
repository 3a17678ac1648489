//! How many qrexec calls there are at the same time.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use staging::environment::Environment;
use staging::generator::MARLOW;
use staging::qrexec::broker::{Event, EventKind};
use staging::server::{Command, FaultAct, RequestLog};

use crate::support::*;

/// What qrexec bears.
const MOST: u64 = 8;

/// The proxies that run, stopped: they notice nothing of their calls' ends.
fn stop_proxies(environment: &Environment) -> Vec<Pid> {
    let events = environment.broker().events();
    let over = |call| events.iter().any(|event| event.call == call && matches!(event.kind, EventKind::Ended(_)));
    let running = |event: &Event| match &event.kind {
        EventKind::Started { pid, .. } if !over(event.call) => pid.and_then(|pid| i32::try_from(pid).ok()),
        _other => None,
    };
    let pids: Vec<_> = events.iter().filter_map(running).map(Pid::from_raw).collect();
    pids.into_iter().filter(|pid| kill(*pid, Signal::SIGSTOP).is_ok()).collect()
}

/// Case Q6: every lane is busy, no proxy ends when it should, and journalists come and go.
#[tokio::test(flavor = "multi_thread")]
async fn q6_there_are_never_more_than_eight_calls_however_slowly_they_end() {
    let environment = environment(3, 2, SOON).await;
    let control = environment.server().control();
    environment.login(&MARLOW).await.unwrap();
    let files = [newcomer(&environment, 700, 3_000_000).2, newcomer(&environment, 700, 3_000_000).2];
    environment.json(&["refresh"], "").await.unwrap();
    fault(&environment, DOWNLOADS, FaultAct::Hang);
    for path in ["/api/v1/sources/*/add_star", "/api/v1/sources/*/remove_star"] {
        fault(&environment, path, FaultAct::Hang);
    }
    let listed = environment.json(&["sources"], "").await.unwrap();
    let first = listed["sources"][0].clone();
    let command = if first["starred"] == true { "unstar" } else { "star" };
    environment.json(&[command, first["uuid"].as_str().unwrap()], "").await.unwrap();
    for file in &files {
        environment.json(&["download", file.as_str()], "").await.unwrap();
    }
    let ends = |log: &RequestLog, end: &str| log.requests().any(|request| request.path.ends_with(end));
    control
        .wait_for_log(|log| {
            files.iter().all(|file| ends(log, &format!("{file}/download")))
                && (ends(log, "/add_star") || ends(log, "/remove_star"))
        })
        .await;
    let stopped = stop_proxies(&environment);
    assert!(stopped.len() >= 4, "the lists, two files and the star, at least: {stopped:?}");
    // The logout waits for none of them.
    environment.json(&["logout"], "").await.unwrap();
    control.wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1).await;
    fault(&environment, "/api/v1/token", FaultAct::Hang);
    let before = control.count("POST", "/api/v1/token");
    for number in 1..=6 {
        control.apply(Command::AdvanceClock { seconds: 90 }).unwrap();
        let credentials = environment.credentials(&MARLOW);
        let login = environment.run(["login", "--credentials-stdin"], &credentials);
        let logout = async {
            control.wait_for_log(|log| log.count("POST", "/api/v1/token") == before + number).await;
            environment.json(&["logout"], "").await.unwrap();
        };
        let (login, ()) = tokio::join!(login, logout);
        assert_ne!(login.unwrap().code, Some(0));
    }
    let most = environment.broker().counts().max_asked;
    assert!((4..=MOST).contains(&most), "{most}");
    for pid in stopped {
        kill(pid, Signal::SIGCONT).unwrap();
    }
    environment.stop().await.unwrap();
}

/// A login that nobody waits for keeps no call for as long as a server may take.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_was_given_up_lets_its_call_go() {
    let environment = environment(1, 1, SOON).await;
    let control = environment.server().control();
    fault(&environment, "/api/v1/token", FaultAct::Hang);
    let credentials = environment.credentials(&MARLOW);
    let mut waiting = environment.splitdrop(["login", "--credentials-stdin"]);
    let mut waiting = waiting.stdin(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut input = waiting.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut input, credentials.as_bytes()).await.unwrap();
    drop(input);
    control.wait_for_log(|log| log.count("POST", "/api/v1/token") == 1).await;
    let before = tokio::time::Instant::now();
    waiting.kill().await.unwrap();
    environment.broker().until(|counts| counts.open == 0).await;
    assert!(before.elapsed() < std::time::Duration::from_secs(60), "{:?}", before.elapsed());
    assert_eq!(environment.json(&["status"], "").await.unwrap()["session"]["state"], "signed_out");
    assert_eq!(control.count("POST", "/api/v1/token"), 1);
    environment.stop().await.unwrap();
}
