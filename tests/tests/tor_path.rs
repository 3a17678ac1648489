//! The proxy's way to the server: by an onion service's name and through SOCKS, and what a journalist is told when it is
//! broken (case N6).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::time::Duration;

use protocol::value::{SoftwareVersion, Token};
use protocol::{ApiLevel, Call, CallError, ErrorKind, Hello, Limits, Scope, Stage};
use qubes_rpc::PROXY_SERVICE;
use qubes_rpc::connection::CallFailure;
use qubes_rpc::name::{ServiceName, VmName};
use qubes_rpc::places::Places;
use qubes_rpc::qrexec::Qrexec;
use serde_json::json;
use staging::environment::{Environment, EnvironmentOptions, ONION, ONION_PORT, Output, PROXY_VM};
use staging::generator::MARLOW;
use staging::server::{Command, KeyChoice, Outcome, RequestLog, SourceState};
use staging::socks::{Act, Direction, NameTable, Reply, Shape, SocksFault, Step, Target, What};

/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(120);
/// The exit code for a server that cannot be reached.
const UNREACHABLE: i32 = 8;
/// The exit code for a server whose answer cannot be used.
const FAILURE: i32 = 1;

async fn environment(sources: u32) -> Environment {
    Environment::with_daemon(EnvironmentOptions::with_sources(sources, 4).unwrap()).await.unwrap()
}

/// With a session, and synced once.
async fn signed_in(sources: u32) -> Environment {
    let environment = environment(sources).await;
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    watch.until("sync_ended").await.unwrap();
    environment
}

fn broken_by(environment: &Environment, act: Act) {
    environment.socks().add_fault(SocksFault::new(act)).unwrap();
}

async fn refresh(environment: &Environment) -> Output {
    tokio::time::timeout(PATIENCE, environment.run(["refresh"], "")).await.unwrap().unwrap()
}

/// The path is whole again: the next refresh works. Streams that still have a fault ahead of them are not part of it.
async fn mended(environment: &Environment) {
    environment.socks().clear_faults();
    environment.socks().cut_all().await;
    let refreshed = environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(refreshed["sync"]["outcome"], "unchanged", "{refreshed}");
}

/// What a refresh said that must have ended with `code` and this reason.
fn failed(output: Output, code: i32, reason: &str) -> String {
    assert_eq!(output.code, Some(code), "{output:?}");
    assert!(output.stderr.contains(reason), "{:?} does not say {reason:?}", output.stderr);
    assert!(!output.stderr.contains(".onion"), "{:?} shows the server's name", output.stderr);
    output.stderr
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_reached_through_socks_alone_and_by_its_name() {
    let environment = signed_in(20).await;
    let command = Command::NewSource { designation: None, key: KeyChoice::Any, state: SourceState::Listed };
    let Outcome::Source { uuid, .. } = environment.server().control().apply(command).unwrap() else { panic!() };
    environment.server().control().apply(Command::NewMessage { source: uuid, size: 612 }).unwrap();
    let refreshed = environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(refreshed["sync"]["counts"]["sources"], 21);
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["proxy"]["tor"], true);
    assert_eq!(status["proxy"]["seccomp"], "enforced");
    assert!(environment.run(["status"], "").await.unwrap().stdout.contains("through Tor"));
    environment.json(&["logout"], "").await.unwrap();
    // Its call comes after its answer, over a connection of its own.
    environment.server().control().wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1).await;
    environment.broker().until(|counts| counts.open == 0).await;

    let counts = environment.socks().counts();
    assert_eq!(counts.requests, BTreeMap::from([(format!("{ONION}:{ONION_PORT}"), counts.established)]));
    assert_eq!((counts.refused, counts.malformed, counts.too_slow), (BTreeMap::new(), 0, 0));
    assert!(counts.bytes_to_server > 0 && counts.bytes_to_client > 0);
    let by_name = Target::Name(ONION.to_owned(), ONION_PORT);
    for event in environment.socks().events() {
        assert!(!matches!(&event.what, What::Asked(target) if *target != by_name), "{event:?}");
    }
    // Every connection that the server took was made by the SOCKS server, and every one that this made has arrived.
    let server = environment.server().control();
    let arrived = server.wait_for_log(|log| log.connections() >= counts.established);
    tokio::time::timeout(PATIENCE, arrived).await.unwrap();
    assert_eq!(server.with_log(RequestLog::connections), counts.established);
    server.with_log(|log| assert!(log.requests().all(|request| request.header("host") == Some(ONION))));
    for log in ["proxy.log", "daemon.log"] {
        let text = std::fs::read_to_string(environment.directory().join(log)).unwrap();
        assert!(!text.is_empty() && !text.contains(".onion"), "{log} holds the server's name");
    }
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_main_job_passes_over_a_slow_way() {
    let environment = environment(20).await;
    let rate = NonZeroU64::new(400_000).unwrap();
    environment.socks().set_shape(Shape::round_trip(Duration::from_millis(60)).at_rate(rate));
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    let synced = watch.until("sync_ended").await.unwrap();
    assert_eq!((&synced["sync"]["outcome"], &synced["sync"]["counts"]["sources"]), (&json!("ok"), &json!(20)));
    mended(&environment).await;
    environment.json(&["logout"], "").await.unwrap();
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn n6_a_refresh_says_where_the_way_is_broken_and_the_next_one_works() {
    let environment = signed_in(20).await;
    let socks = environment.socks();
    let mut said = BTreeSet::new();

    // Nobody listens for SOCKS. Kept connections would not need anybody to.
    socks.cut_all().await;
    socks.close_port().unwrap();
    let connections = environment.server().control().with_log(RequestLog::connections);
    let output = refresh(&environment).await;
    said.insert(failed(output, UNREACHABLE, "nobody listens at the SOCKS server's address"));
    // There is no other way that it would take instead.
    assert_eq!(environment.server().control().with_log(RequestLog::connections), connections);
    socks.open_port().unwrap();
    mended(&environment).await;

    // The server's name is not known.
    socks.cut_all().await;
    socks.set_names(NameTable::new());
    let output = refresh(&environment).await;
    said.insert(failed(output, UNREACHABLE, "the SOCKS server has no way to the server"));
    socks.set_names(NameTable::new().with(ONION, ONION_PORT, environment.server().address()).unwrap());
    mended(&environment).await;

    for (act, code, reason) in [
        (Act::CloseAt(Step::Accepted), UNREACHABLE, "the SOCKS server hung up"),
        (Act::Reply(Reply::ONION_NOT_FOUND), UNREACHABLE, "Tor finds no such onion service"),
        (
            Act::DropAfter { direction: Direction::ToClient, bytes: 0 },
            UNREACHABLE,
            "the connection ended before the answer",
        ),
        // The server was reached, and what came of its answer is of no use.
        (Act::DropAfter { direction: Direction::ToClient, bytes: 4_000 }, FAILURE, "the answer was cut short"),
    ] {
        socks.cut_all().await;
        broken_by(&environment, act);
        let output = refresh(&environment).await;
        assert!(said.insert(failed(output, code, reason)), "{act:?} is told as another fault");
        mended(&environment).await;
    }
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn n6_a_refresh_says_at_which_step_of_socks_the_way_ended_and_the_next_one_works() {
    let environment = signed_in(5).await;
    let before = environment.server().control().with_log(RequestLog::total);
    for step in Step::ALL {
        environment.socks().cut_all().await;
        broken_by(&environment, Act::CloseAt(step));
        let reason = match step {
            Step::Accepted | Step::MethodChosen | Step::Requested => "the SOCKS server hung up",
            // The stream was there.
            Step::Established => "the connection ended before the answer",
        };
        failed(refresh(&environment).await, UNREACHABLE, reason);
        // No request has come through.
        let arrived = environment.server().control().with_log(RequestLog::total);
        mended(&environment).await;
        let after = environment.server().control().with_log(RequestLog::total);
        assert_eq!(after - arrived, 4, "{step:?}: the next refresh asks for its four lists");
    }
    let asked = environment.server().control().with_log(RequestLog::total);
    assert_eq!(asked - before, 4 * Step::ALL.len() as u64, "nothing else was asked for");
    environment.stop().await.unwrap();
}

/// This one waits as long as the proxy does for a connection: half a minute.
#[tokio::test(flavor = "multi_thread")]
async fn n6_a_refresh_that_cannot_connect_ends_with_the_proxys_bound() {
    let environment = signed_in(5).await;
    environment.socks().cut_all().await;
    broken_by(&environment, Act::HangAt(Step::Requested));
    failed(refresh(&environment).await, UNREACHABLE, "no connection to the server");
    // The proxy gave up its connections too.
    tokio::time::timeout(PATIENCE, environment.socks().wait_for(|counts| counts.hanging == 0)).await.unwrap();
    mended(&environment).await;
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn n6_a_refresh_that_hangs_ends_when_the_stream_does() {
    let environment = signed_in(5).await;
    let socks = environment.socks();
    let before = environment.server().control().with_log(RequestLog::total);
    socks.cut_all().await;
    broken_by(&environment, Act::HangAfter { direction: Direction::ToClient, bytes: 0 });
    let cut = async {
        socks.wait_for(|counts| counts.hanging == 4).await;
        socks.cut_all().await;
    };
    let (output, ()) = tokio::join!(refresh(&environment), cut);
    failed(output, UNREACHABLE, "the connection ended before the answer");
    // The server was asked, its answers are what did not come.
    assert_eq!(environment.server().control().with_log(RequestLog::total), before + 4);
    mended(&environment).await;
    environment.stop().await.unwrap();
}

/// This one waits as long as the proxy does for an answer to go on: a minute.
#[tokio::test(flavor = "multi_thread")]
async fn n6_a_refresh_whose_answers_stop_ends_with_the_proxys_bound() {
    let environment = signed_in(20).await;
    environment.socks().cut_all().await;
    broken_by(&environment, Act::HangAfter { direction: Direction::ToClient, bytes: 4_000 });
    failed(refresh(&environment).await, UNREACHABLE, "the answer stopped coming");
    tokio::time::timeout(PATIENCE, environment.socks().wait_for(|counts| counts.hanging == 0)).await.unwrap();
    mended(&environment).await;
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn n6_a_call_that_runs_out_of_time_says_how_far_it_was() {
    let environment = signed_in(20).await;
    let caller = Qrexec { program: environment.caller().unwrap() };
    let token = environment.server().control().tokens().pop().unwrap();
    let list = Call::GetSources { token: Token::try_new(token).unwrap() };
    let hang_after = |direction, bytes| Act::HangAfter { direction, bytes };
    for (act, stage) in [
        (Act::HangAt(Step::Accepted), Stage::Connect),
        (Act::HangAt(Step::MethodChosen), Stage::Connect),
        (Act::HangAt(Step::Requested), Stage::Connect),
        (Act::HangAt(Step::Established), Stage::FirstByte),
        (hang_after(Direction::ToServer, 0), Stage::FirstByte),
        (hang_after(Direction::ToClient, 0), Stage::FirstByte),
        // The answer has begun, and does not go on.
        (hang_after(Direction::ToClient, 4_000), Stage::Body),
    ] {
        let error = timed_out_in(&environment, &caller, &list, act).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, stage), "{act:?}");
    }
    // Without a fault the same call comes through, and to a server that does not know the token another does.
    environment.socks().clear_faults();
    assert_eq!(called(&caller, &list, PATIENCE).await, Ok(()));
    let unknown = Call::GetUsers { token: Token::try_new("unknown").unwrap() };
    let error = called(&caller, &unknown, PATIENCE).await.unwrap_err();
    assert_eq!((error.kind, error.stage), (ErrorKind::Unauthorized, Stage::FirstByte));
    environment.stop().await.unwrap();
}

/// How a call fails whose time is over while `act` holds it. On a machine that was too busy for it to come so far in its
/// time, it is tried again with twice the time.
async fn timed_out_in(environment: &Environment, caller: &Qrexec, call: &Call, act: Act) -> CallError {
    let socks = environment.socks();
    let mut deadline = Duration::from_secs(1);
    loop {
        assert!(deadline < PATIENCE, "{act:?} holds nothing");
        socks.clear_faults();
        socks.cut_all().await;
        broken_by(environment, act);
        let mut held = false;
        let holding = async {
            socks.wait_for(|counts| counts.hanging > 0).await;
            held = true;
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            // What held it did so before it failed, so it is looked at first.
            biased;
            () = holding => continue,
            ended = called(caller, call, deadline) => ended,
        };
        if held {
            return ended.unwrap_err();
        }
        deadline *= 2;
    }
}

/// How a call ends that a program in the client's VM makes, by a proxy of its own.
async fn called(caller: &Qrexec, call: &Call, deadline: Duration) -> Result<(), CallError> {
    let hello = Hello {
        scope: Scope::Metadata,
        limits: Limits::OURS,
        api_level: Some(ApiLevel::V1),
        software: SoftwareVersion::try_new("0").unwrap(),
    };
    let vm: VmName = PROXY_VM.parse().unwrap();
    let service = ServiceName::try_new(PROXY_SERVICE, Scope::Metadata.name()).unwrap();
    let session = caller.open(&vm, &service, &hello, PATIENCE, Places::new(1).take().await).await.unwrap();
    let mut answer = session.connection().call(call.clone(), deadline).await.unwrap();
    let ended = loop {
        match answer.next().await {
            Ok(Some(_)) => {}
            Ok(None) => break Ok(()),
            Err(CallFailure::Failed(error)) => break Err(error),
            Err(other) => panic!("{other:?}"),
        }
    };
    session.close().await;
    ended
}
