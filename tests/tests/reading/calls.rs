//! How many calls there are where the key's VM is called as the proxy's is: by qrexec.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::Scope;
use staging::environment::Environment;
use staging::generator::MARLOW;
use staging::programs::Programs;
use staging::qrexec::broker::EventKind;
use staging::server::{Command, FaultAct, RecordId, RequestLog};

use crate::split_gpg::{assert_no_zombies, is_skipped};
use crate::stand_in::StandIn;
use crate::support::*;

/// What qrexec bears.
const MOST: u64 = 8;
/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(300);
/// What lets the client call split-gpg, as the shipped policy has it in a comment.
const POLICY: &str = "qubes.Gpg + sd-app sd-gpg allow\n";

/// An environment where MARLOW is signed in and the key's VM is called by qrexec.
async fn signed_in_behind(gpg: &StandIn) -> Environment {
    let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await.unwrap().unwrap();
    let mut options = options(ASKED, gpg.key());
    options.services.push(("sd-gpg".to_owned(), "qubes.Gpg".to_owned(), gpg.service()));
    options.policy.push(("30-split-gpg.policy".to_owned(), POLICY.to_owned()));
    let mut environment = Environment::start(programs, options).await.unwrap();
    gpg.behind_qrexec(&environment.caller().unwrap());
    environment.start_daemon().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    refresh(&environment).await;
    environment
}

/// Whether a request that ends so goes on.
fn goes_on(log: &RequestLog, end: &str) -> bool {
    log.requests().any(|one| one.path.ends_with(end) && one.ended.is_none())
}

/// The proxies that run, stopped: they notice nothing of their calls' ends.
fn stop_proxies(environment: &Environment) -> Vec<Pid> {
    let events = environment.broker().events();
    let proxy = |argument: &str| Scope::ALL.iter().any(|scope| scope.name() == argument);
    let is = |call, wanted: &dyn Fn(&EventKind) -> bool| {
        events.iter().any(|event| event.call == call && wanted(&event.kind))
    };
    let running = events.iter().filter_map(|event| match &event.kind {
        EventKind::Started { pid: Some(pid), .. }
            if is(event.call, &|kind| matches!(kind, EventKind::Requested { argument, .. } if proxy(argument)))
                && !is(event.call, &|kind| matches!(kind, EventKind::Ended(_))) =>
        {
            Some(Pid::from_raw(i32::try_from(*pid).unwrap()))
        }
        _other => None,
    });
    running.filter(|pid| kill(*pid, Signal::SIGSTOP).is_ok()).collect()
}

/// Every lane has as many calls as it may, of which none ends by itself, and then the logout needs one more. After another login
/// all of the messages come and are opened.
async fn all_lanes_at_once(mut gpg: StandIn, messages: usize) -> (StandIn, BTreeSet<String>) {
    gpg.close_gate();
    let environment = signed_in_behind(&gpg).await;
    let control = environment.server().control();
    let [source, starred, deleted] = [(); 3].map(|()| new_source(&environment));
    let sent: Vec<_> = (0..messages).map(|number| says(&environment, &source, &format!("message {number}"))).collect();
    let files = [(); 2].map(|()| hands_over(&environment, &source, SAID));
    let last = sent.last().unwrap();
    let ends = |item: &RecordId| format!("/{item}/download");
    let star = format!("/{starred}/add_star");
    let delete = format!("/{deleted}");
    let hung = [ends(&files[0]), ends(&files[1]), ends(last), star, delete];
    for path in &hung[..3] {
        fault(&environment, &format!("/api/v1/sources/*/submissions{path}"), FaultAct::Hang);
    }
    for path in &hung[3..] {
        fault(&environment, &format!("/api/v1/sources{path}"), FaultAct::Hang);
    }
    refresh(&environment).await;
    for file in &files {
        download(&environment, file).await;
    }
    act(&environment, &["star", starred.as_str()]).await;
    act(&environment, &["delete", "source", deleted.as_str(), "--yes"]).await;
    control.wait_for_log(|log| hung.iter().all(|path| goes_on(log, path))).await;
    gpg.until_begun(2).await;
    // The lists, the messages, two files, two acts, and two decryptions.
    let all = environment.broker().until(|counts| counts.open == MOST);
    tokio::time::timeout(PATIENCE, all).await.unwrap();
    let stopped = stop_proxies(&environment);
    assert_eq!(stopped.len(), 6, "{stopped:?}");
    environment.json(&["logout"], "").await.unwrap();
    let told = control.wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1);
    tokio::time::timeout(PATIENCE, told).await.unwrap();
    for pid in stopped {
        kill(pid, Signal::SIGCONT).unwrap();
    }
    control.apply(Command::ClearFaults).unwrap();
    // What hangs at the server ends with its connection, and then its proxy.
    environment.socks().cut_all().await;
    environment.broker().until(|counts| counts.open == 2).await;
    control.apply(Command::AdvanceClock { seconds: 90 }).unwrap();
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    gpg.open_gate();
    loop {
        let status = status(&environment).await;
        let lanes = ["acts", "messages", "files", "decrypt"].map(|lane| status["lanes"][lane]["waiting"].clone());
        if lanes.iter().all(|waiting| *waiting == 0) {
            break;
        }
        watch.next().await.unwrap();
    }
    let lanes = status(&environment).await["lanes"].clone();
    assert!(["messages", "files", "decrypt"].iter().all(|lane| lanes[lane]["failed"] == 0), "{lanes}");
    let shown = environment.json(&["show", source.as_str()], "").await.unwrap();
    let texts: Vec<_> = shown["items"].as_array().unwrap().iter().filter_map(|item| item["text"].as_str()).collect();
    assert_eq!(texts.len(), messages);
    // The last ciphertext goes behind its plaintext. Meanwhile the daemon has to answer.
    let tidy = async {
        while counts(&environment) != [0, 0, 2] {
            status(&environment).await;
        }
    };
    tokio::time::timeout(PATIENCE, tidy).await.unwrap();
    let texts = texts.into_iter().map(str::to_owned).collect();
    assert_eq!(environment.broker().counts().max_asked, MOST, "{:?}", environment.broker().counts());
    assert_no_zombies(&environment).await;
    gpg.begun().await;
    assert_eq!(gpg.most(), 2);
    environment.stop().await.unwrap();
    (gpg, texts)
}

/// Case Q6.
#[tokio::test(flavor = "multi_thread")]
async fn q6_a_thousand_messages_come_and_are_opened_by_never_more_than_eight_calls_at_once() {
    let (gpg, texts) = all_lanes_at_once(StandIn::fake(), 1_000).await;
    assert_eq!(texts, BTreeSet::from([SAID.to_owned()]));
    assert_eq!(gpg.left().await, [] as [u32; 0]);
}

/// Case Q6 with GnuPG itself in the key's VM.
#[tokio::test(flavor = "multi_thread")]
async fn q6_gnupg_opens_a_hundred_messages_by_never_more_than_eight_calls_at_once() {
    const MESSAGES: usize = 100;
    if is_skipped() {
        return;
    }
    let (gpg, texts) = all_lanes_at_once(StandIn::real(NEWSROOM), MESSAGES).await;
    assert_eq!(texts, (0..MESSAGES).map(|number| format!("message {number}")).collect());
    gpg.end_agent();
    assert_eq!(gpg.left().await, [] as [u32; 0]);
}
