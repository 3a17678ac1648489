//! Case N2, and what else may come between a call and its answer, with the real programs: a proxy VM that takes its
//! time to start, or does not start, a handshake that gets no answer, a slow channel.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::time::Duration;

use client_vm::proxy::{Patience, Proxy, ProxyError};
use protocol::value::{OneTimeCode, Passphrase, SoftwareVersion, Username};
use protocol::{Scope, SignedIn};
use qubes_rpc::qrexec::{OpenError, Qrexec};
use serde_json::Value;
use staging::environment::{CLIENT_VM, Environment, EnvironmentOptions, PROXY_VM};
use staging::generator::MARLOW;
use staging::programs::Programs;
use staging::qrexec::SOCKET_VARIABLE;
use staging::qrexec::broker::{Dom0User, EventKind, RefusedBy, Reply, Start, StartOutcome};
use staging::qrexec::system::System;
use staging::server::RequestLog;
use tokio_util::sync::CancellationToken;

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

/// A proxy that is reached as the client does, in this process, whose clock can be moved. One thread, since only such a
/// runtime's can.
async fn in_this_process(options: EnvironmentOptions) -> (Environment, Proxy) {
    let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await.unwrap().unwrap();
    let environment = Environment::start(programs.clone(), options).await.unwrap();
    // The stand-in finds its socket in the environment, which a thread must not change: a program in between sets it.
    let program = environment.directory().join("qrexec");
    let socket = environment.broker().socket(CLIENT_VM).unwrap().display();
    let client = programs.qrexec_client.display();
    let script = format!("#!/bin/sh\nexport {SOCKET_VARIABLE}='{socket}'\nexec '{client}' \"$@\"\n");
    install(&program, &script);
    let software = SoftwareVersion::try_new("0.0.0-test").unwrap();
    let proxy = Proxy::new(Qrexec { program }, PROXY_VM.parse().unwrap(), software);
    (environment, proxy)
}

/// So much time goes by at once; from then on it is real again, as the processes are.
async fn time_goes_by(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

fn count(environment: &Environment, wanted: impl Fn(&EventKind) -> bool) -> usize {
    environment.broker().events().iter().filter(|event| wanted(&event.kind)).count()
}

fn requested(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Requested { .. })
}

#[tokio::test]
async fn a_handshake_without_an_answer_is_tried_once_more() {
    let (environment, proxy) = in_this_process(EnvironmentOptions::with_sources(1, 1).unwrap()).await;
    let broker = environment.broker();
    broker.hang_next_call();
    let opening = proxy.open(Scope::Session, None, Patience::Usual, || {});
    let time_passes = async {
        bounded(broker.until_events(|events| events.iter().any(|event| event.kind == EventKind::Hung))).await;
        time_goes_by(121).await;
    };
    // The time that passes at once passes for this bound as well.
    let both = tokio::time::timeout(FAILURE_BOUND * 3, async { tokio::join!(opening, time_passes) });
    let (opened, ()) = both.await.unwrap();
    opened.unwrap().close().await;
    assert_eq!(count(&environment, requested), 2);
    assert_eq!(broker.counts().started, 1);
    environment.stop().await.unwrap();
}

/// Case N2: a VM needs up to 40 s to start.
#[tokio::test]
async fn n2_a_call_waits_for_a_vm_that_takes_40_s_to_start() {
    let mut options = EnvironmentOptions::with_sources(1, 1).unwrap();
    options.system = System::workstation().with_halted(PROXY_VM);
    options.qrexec.start = Start::Gated;
    let (environment, proxy) = in_this_process(options).await;
    let vms = environment.broker().vms();
    let opening = proxy.open(Scope::Session, None, Patience::Once, || {});
    let vm_starts = async {
        bounded(vms.until_starting(PROXY_VM)).await;
        time_goes_by(40).await;
        vms.finish_start(PROXY_VM, StartOutcome::Running).unwrap();
    };
    let both = tokio::time::timeout(FAILURE_BOUND * 2, async { tokio::join!(opening, vm_starts) });
    let (opened, ()) = both.await.unwrap();
    opened.unwrap().close().await;
    assert_eq!(count(&environment, requested), 1);
    environment.stop().await.unwrap();
}

/// dom0 asks somebody about a login, who answers after so many seconds, or never.
async fn login_answered_after(seconds: u64, reply: Option<Reply>) -> (Result<SignedIn, ProxyError>, u64) {
    let mut options = EnvironmentOptions::with_sources(1, 1).unwrap();
    options.policy.push(("30-newsroom.policy".to_owned(), "splitdrop.Proxy +session sd-app sd-proxy ask\n".to_owned()));
    options.qrexec.dom0_user = Dom0User::Present;
    let (environment, proxy) = in_this_process(options).await;
    let proxy = proxy.asked_about([Scope::Session].into_iter().collect());
    let broker = environment.broker();
    let credentials = environment.credentials(&MARLOW);
    let mut lines = credentials.lines();
    let mut next = || lines.next().unwrap().to_owned();
    let username = Username::try_new(next()).unwrap();
    let (passphrase, code) = (Passphrase::try_new(next()).unwrap(), OneTimeCode::try_new(next()).unwrap());
    let never = CancellationToken::new();
    let login = proxy.login(username, passphrase, code, &never, || {});
    let answered = async {
        let question = bounded(broker.questions().next()).await;
        time_goes_by(seconds).await;
        if let Some(reply) = reply {
            broker.questions().answer(question.call, reply).unwrap();
        }
    };
    let both = tokio::time::timeout(FAILURE_BOUND * 10, async { tokio::join!(login, answered) });
    let (login, ()) = both.await.unwrap();
    assert_eq!(count(&environment, |kind| matches!(kind, EventKind::Asked(_))), 1, "dom0 is asked once");
    let sent = logins(&environment);
    environment.stop().await.unwrap();
    (login, sent)
}

#[tokio::test]
async fn a_login_that_dom0_is_asked_about_waits_for_minutes_and_asks_once() {
    let (login, sent) = login_answered_after(300, Some(Reply::Yes(None))).await;
    assert_eq!((login.is_ok(), sent), (true, 1), "{login:?}");
    let (login, sent) = login_answered_after(300, Some(Reply::No)).await;
    assert!(matches!(login, Err(ProxyError::Open(OpenError::Refused { .. }))) && sent == 0, "{login:?}");
    let (login, sent) = login_answered_after(601, None).await;
    assert!(login.unwrap_err().nobody_answered() && sent == 0);
}

/// Another process writes it: what this one has open for writing, a process forked just now could not execute.
fn install(path: &std::path::Path, script: &str) {
    let write = r#"printf %s "$2" > "$1" && chmod 700 "$1""#;
    let mut shell = std::process::Command::new("/bin/sh");
    assert!(shell.args(["-c", write, "sh"]).arg(path).arg(script).status().unwrap().success());
}
