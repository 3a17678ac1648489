//! Case N2, and what else may come between a call and its answer, with the real programs: a proxy VM that takes its
//! time to start, or does not start, a handshake that gets no answer, a slow channel.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::time::Duration;

use client_vm::proxy::{Patience, Proxy};
use protocol::Scope;
use protocol::value::SoftwareVersion;
use qubes_rpc::qrexec::Qrexec;
use serde_json::Value;
use staging::environment::{CLIENT_VM, Environment, EnvironmentOptions, PROXY_VM};
use staging::generator::MARLOW;
use staging::programs::Programs;
use staging::qrexec::SOCKET_VARIABLE;
use staging::qrexec::broker::{EventKind, RefusedBy, Start, StartOutcome};
use staging::qrexec::system::System;
use staging::server::RequestLog;

/// Only bounds how long a failed test hangs.
const FAILURE_BOUND: Duration = Duration::from_secs(120);

async fn bounded<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(FAILURE_BOUND, work).await.unwrap()
}

/// The proxy's VM is halted, and starts when a test says so.
async fn halted() -> Environment {
    let mut options = EnvironmentOptions::with_sources(3, 2).unwrap();
    options.system = System::workstation().with_halted(PROXY_VM);
    options.qrexec.start = Start::Gated;
    Environment::with_daemon(options).await.unwrap()
}

fn logins(environment: &Environment) -> u64 {
    environment.server().control().count("POST", "/api/v1/token")
}

#[tokio::test(flavor = "multi_thread")]
async fn case_n2_a_login_waits_for_a_proxy_that_starts_and_is_sent_once() {
    let environment = halted().await;
    let mut watch = environment.watch().await.unwrap();
    let vms = environment.broker().vms();
    let (session, ()) = tokio::join!(environment.login(&MARLOW), async {
        bounded(vms.until_starting(PROXY_VM)).await;
        watch.until("proxy_waiting").await.unwrap();
        assert_eq!(environment.server().control().with_log(RequestLog::total), 0);
        vms.finish_start(PROXY_VM, StartOutcome::Running).unwrap();
    });
    assert_eq!(session.unwrap()["session"]["username"], "marlow");
    watch.until("session_started").await.unwrap();
    assert_eq!((logins(&environment), vms.starts(PROXY_VM)), (1, 1));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn case_n2_a_proxy_that_does_not_start_burns_no_one_time_code() {
    let environment = halted().await;
    let vms = environment.broker().vms();
    let credentials = environment.credentials(&MARLOW);
    let login = async |outcome| {
        let finish = async {
            bounded(vms.until_starting(PROXY_VM)).await;
            vms.finish_start(PROXY_VM, outcome).unwrap();
        };
        tokio::join!(environment.run(["login", "--credentials-stdin", "--json"], &credentials), finish).0.unwrap()
    };
    let failed = login(StartOutcome::Failed).await;
    assert_ne!(failed.code, Some(0));
    assert!(failed.stderr.contains(PROXY_VM), "{}", failed.stderr);
    assert_eq!(environment.server().control().with_log(RequestLog::total), 0);
    let by = environment.broker().events().pop().map(|event| event.kind);
    assert_eq!(by, Some(EventKind::Refused(RefusedBy::NotStarted)));

    let succeeded = login(StartOutcome::Running).await;
    assert_eq!(succeeded.code, Some(0), "{}", succeeded.stderr);
    let printed: Value = serde_json::from_str(&succeeded.stdout).unwrap();
    assert_eq!(printed["session"]["username"], "marlow");
    assert_eq!(logins(&environment), 1);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_main_job_survives_a_channel_of_small_pieces() {
    let mut options = EnvironmentOptions::with_sources(12, 4).unwrap();
    // Pieces of 2,000 bytes: no frame of a list comes in one.
    options.qrexec.costs.bytes_per_second = Some(100_000);
    let environment = Environment::with_daemon(options).await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    let refreshed = environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(refreshed["sync"]["counts"]["sources"], 12);
    assert_eq!(refreshed["sync"]["unreadable"], 0);
    environment.stop().await.unwrap();
}

/// One thread, since only such a runtime's clock can be moved.
#[tokio::test]
async fn a_handshake_without_an_answer_is_tried_once_more() {
    let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await.unwrap().unwrap();
    let options = EnvironmentOptions::with_sources(1, 1).unwrap();
    let environment = Environment::start(programs.clone(), options).await.unwrap();
    let broker = environment.broker();
    // The stand-in finds its socket in the environment, which a thread must not change: a program in between sets it.
    let program = environment.directory().join("qrexec");
    let (socket, client) = (broker.socket(CLIENT_VM).unwrap().display(), programs.qrexec_client.display());
    let script = format!("#!/bin/sh\nexport {SOCKET_VARIABLE}='{socket}'\nexec '{client}' \"$@\"\n");
    install(&program, &script);
    let software = SoftwareVersion::try_new("0.0.0-test").unwrap();
    let proxy = Proxy::new(Qrexec { program }, PROXY_VM.parse().unwrap(), software);

    broker.hang_next_call();
    let opening = proxy.open(Scope::Session, None, Patience::Usual, || {});
    let time_passes = async {
        bounded(broker.until_events(|events| events.iter().any(|event| event.kind == EventKind::Hung))).await;
        // The whole deadline goes by at once; from then on time is real again, as the second try's process is.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(121)).await;
        tokio::time::resume();
    };
    // The time that passes at once passes for this bound as well.
    let both = tokio::time::timeout(FAILURE_BOUND * 3, async { tokio::join!(opening, time_passes) });
    let (opened, ()) = both.await.unwrap();
    opened.unwrap().close().await;
    let requested = |kind: &EventKind| matches!(kind, EventKind::Requested { .. });
    assert_eq!(broker.events().iter().filter(|event| requested(&event.kind)).count(), 2);
    assert_eq!(broker.counts().started, 1);
    environment.stop().await.unwrap();
}

/// Another process writes it: what this one has open for writing, a process forked just now could not execute.
fn install(path: &std::path::Path, script: &str) {
    let write = r#"printf %s "$2" > "$1" && chmod 700 "$1""#;
    let mut shell = std::process::Command::new("/bin/sh");
    assert!(shell.args(["-c", write, "sh"]).arg(path).arg(script).status().unwrap().success());
}
