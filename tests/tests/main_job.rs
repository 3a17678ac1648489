//! The main job with the real programs: sign in, sync, list, refresh, show, sign out.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use staging::clock::Clock;
use staging::environment::{Environment, EnvironmentOptions};
use staging::generator::MARLOW;
use staging::server::{
    ApiFlavour, Command, Fault, FaultAct, KeyChoice, LoggedRequest, Matching, Outcome, RecordId, SourceState,
};

/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(120);

async fn environment(sources: u32, items: u32) -> Environment {
    Environment::with_daemon(EnvironmentOptions::with_sources(sources, items).unwrap()).await.unwrap()
}

fn new_source(environment: &Environment, designation: &str) -> RecordId {
    let command = Command::NewSource {
        designation: Some(designation.to_owned()),
        key: KeyChoice::Any,
        state: SourceState::Listed,
    };
    match environment.server().control().apply(command).unwrap() {
        Outcome::Source { uuid, .. } => uuid,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_brings_what_the_server_has() {
    for api in [ApiFlavour::Classic, ApiFlavour::Newer, ApiFlavour::Older] {
        let mut options = EnvironmentOptions::with_sources(40, 4).unwrap();
        options.server.api = api;
        let environment = Environment::with_daemon(options).await.unwrap();
        let mut watch = environment.watch().await.unwrap();
        environment.login(&MARLOW).await.unwrap();
        let synced = watch.until("sync_ended").await.unwrap();
        assert_eq!(synced["sync"]["outcome"], "ok", "{synced}");
        assert_eq!((&synced["sync"]["unreadable"], &synced["sync"]["error"]), (&json!(0), &Value::Null));

        let listed = environment.listed_with_keys().await.unwrap();
        let rows = listed["sources"].as_array().unwrap();
        environment.server().control().with_world(|world| {
            let shown: Vec<_> = world.sources().filter(|source| source.state == SourceState::Listed).collect();
            assert_eq!((rows.len(), shown.len()), (40, 40), "{api:?}");
            for source in shown {
                let row = rows.iter().find(|row| row["uuid"] == source.id.as_str()).unwrap();
                assert_eq!(row["designation"], source.designation.as_str());
                assert_eq!(row["starred"], source.is_starred);
                let pinned = source.key.as_ref().map_or(Value::Null, |key| key.fingerprint.as_str().into());
                assert_eq!(row["key"]["fingerprint"], pinned);
                let submissions = world.submissions_of(source).count() as u64;
                let counts = &row["counts"];
                let listed = counts["messages"].as_u64().unwrap() + counts["files"].as_u64().unwrap();
                assert_eq!(listed, submissions);
                assert_eq!(counts["replies"], world.replies_of(source).count() as u64);
                let marks = world
                    .submissions_of(source)
                    .map(|item| &item.seen_by)
                    .chain(world.replies_of(source).map(|item| &item.seen_by));
                let marlow = &world.journalist_named(MARLOW.username).unwrap().id;
                let unread = marks.filter(|seen_by| !seen_by.contains(marlow)).count() as u64;
                assert_eq!(counts["unread"], unread, "{api:?} {}", source.designation);
            }
            // Sources that are pending or marked deleted are not listed; their items are, and so are mirrored and not shown.
            let is_listed = |id: &RecordId| world.source(id.as_str()).unwrap().state == SourceState::Listed;
            let hidden = world.submissions().filter(|item| !is_listed(&item.source)).count()
                + world.replies().filter(|item| !is_listed(&item.source)).count();
            assert!(hidden > 0, "the world has such items");
            assert_eq!(synced["sync"]["not_shown"], hidden as u64, "{api:?}");
            let all = |count: usize| json!(count as u64);
            let counts = &synced["sync"]["counts"];
            assert_eq!((&counts["sources"], &counts["replies"]), (&all(40), &all(world.replies().count())));
        });
        environment.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_json_of_sources_and_status_has_its_documented_form() {
    let environment = environment(3, 4).await;
    let source = new_source(&environment, "winded harbour");
    environment.server().control().apply(Command::NewFile { source: source.clone(), size: 5_000 }).unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();

    let listed = environment.json(&["sources"], "").await.unwrap();
    assert_eq!(listed["format"], 1);
    // The source that wrote last comes first.
    let row = &listed["sources"][0];
    let mut keys: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["being_deleted", "counts", "designation", "key", "last_updated", "on_server", "starred", "uuid"]);
    let mut keys: Vec<_> = row["key"].as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["detail", "fingerprint", "offered", "problem", "state"]);
    assert_eq!((row["uuid"].as_str(), row["designation"].as_str()), (Some(source.as_str()), Some("winded harbour")));
    assert_eq!(row["counts"], json!({ "messages": 0, "files": 1, "replies": 0, "unread": 1 }));
    assert!(row["last_updated"].as_str().unwrap().ends_with('Z'));

    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["format"], 1);
    assert_eq!((&status["session"]["state"], &status["session"]["username"]), (&json!("signed_in"), &json!("marlow")));
    let last = &status["sync"]["last"];
    for time in ["asked", "started", "ended"] {
        assert!(last[time].as_str().unwrap().ends_with('Z'), "{time}");
    }
    assert_eq!(last["outcome"], "unchanged");
    assert_eq!(last["counts"]["sources"], 4);
    assert_eq!(last["unreadable"], 0);
    assert!(last["not_shown"].is_u64());
    let calls: Vec<_> = last["calls"].as_array().unwrap().iter().map(|call| call["call"].as_str().unwrap()).collect();
    assert_eq!(calls, ["get_users", "get_sources", "get_submissions", "get_all_replies"]);
    assert_eq!(status["sync"]["running"], Value::Null);
    assert_eq!(
        (&status["proxy"]["state"], &status["proxy"]["tor"], &status["proxy"]["server"]["contact"]),
        (&json!("connected"), &json!(true), &json!("answered"))
    );
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_message_appears_after_a_refresh_and_a_deleted_source_goes() {
    let environment = environment(3, 4).await;
    environment.login(&MARLOW).await.unwrap();
    let source = new_source(&environment, "patient otter");
    let control = environment.server().control();
    control.apply(Command::NewMessage { source: source.clone(), size: 700 }).unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    environment.listed_with_keys().await.unwrap();
    let by_name = environment.json(&["show", "Patient Otter"], "").await.unwrap();
    let items = by_name["items"].as_array().unwrap();
    assert_eq!(items.len(), 1);
    assert_eq!((&items[0]["kind"], &items[0]["size"], &items[0]["order"]), (&json!("message"), &json!(700), &json!(1)));
    assert_eq!(items[0]["filename"], "1-patient_otter-msg.gpg");
    let by_id = environment.json(&["show", &source.as_str()[..13]], "").await.unwrap();
    assert_eq!(by_id, by_name);

    control.apply(Command::DeleteSource { source }).unwrap();
    let gone = environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(gone["sync"]["counts"]["sources"], 3);
    assert_eq!(environment.run(["show", "patient otter"], "").await.unwrap().code, Some(6));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_synced_is_there_without_a_session_and_after_a_restart() {
    let mut environment = environment(5, 4).await;
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let before = environment.listed_with_keys().await.unwrap();
    environment.json(&["logout"], "").await.unwrap();
    assert_eq!(environment.json(&["sources"], "").await.unwrap(), before);
    assert_eq!(environment.stop_daemon(Signal::SIGTERM).await.unwrap(), Some(0));
    environment.start_daemon().await.unwrap();
    assert_eq!(environment.json(&["sources"], "").await.unwrap(), before);
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["session"]["state"], "signed_out");
    assert_eq!(status["sync"]["last"]["counts"]["sources"], 5);
    environment.stop().await.unwrap();
}

/// qrexec may start the service in a login shell with any PATH.
#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_service_starts_the_proxy_whatever_the_path() {
    let mut options = EnvironmentOptions::with_sources(2, 1).unwrap();
    options.proxy_settings.insert("PATH".to_owned(), "/nonexistent".to_owned());
    let environment = Environment::with_daemon(options).await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    let refreshed = environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(refreshed["sync"]["counts"]["sources"], 2);
    environment.stop().await.unwrap();
}

/// The exit code for a login that the server did not accept.
const LOGIN_REFUSED: i32 = 5;
/// How many attempts within a minute a real server still looks at.
const ATTEMPTS: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_tried_too_often_is_refused_with_the_right_code_and_signs_in_a_minute_later() {
    let mut options = EnvironmentOptions::with_sources(1, 1).unwrap();
    options.server.throttle_logins = true;
    // All of it is within the server's minute, however long it takes here.
    options.server.clock = Clock::fixed(jiff::Timestamp::now());
    let environment = Environment::with_daemon(options).await.unwrap();
    let right = environment.credentials(&MARLOW);
    let wrong = right.replace(MARLOW.passphrase, "an entirely different passphrase");
    let login = async |credentials: &str| {
        let output = environment.run(["login", "--credentials-stdin"], credentials).await.unwrap();
        assert_eq!(output.code, Some(LOGIN_REFUSED), "{output:?}");
    };
    for _ in 0..ATTEMPTS {
        login(&wrong).await;
    }
    let control = environment.server().control();
    // Another code is right by now, and nobody has used it.
    control.apply(Command::AdvanceClock { seconds: 30 }).unwrap();
    let unused = environment.credentials(&MARLOW);
    assert_ne!(unused, right);
    login(&unused).await;
    assert_eq!(control.count("POST", "/api/v1/token"), ATTEMPTS as u64 + 1, "each attempt is one request");
    control.apply(Command::AdvanceClock { seconds: 60 }).unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.stop().await.unwrap();
}

/// The four lists of a sync.
const LISTS: [&str; 4] = ["/api/v1/users", "/api/v1/sources", "/api/v1/submissions", "/api/v1/replies"];

fn is_list(request: &LoggedRequest) -> bool {
    LISTS.contains(&request.path.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_four_lists_are_asked_for_at_the_same_time() {
    let environment = environment(3, 4).await;
    let control = environment.server().control();
    for list in LISTS {
        control.add_fault(Fault::new(Matching::path(list), FaultAct::Hang)).unwrap();
    }
    environment.login(&MARLOW).await.unwrap();
    // None is answered: were they asked for one after the other, there would never be four.
    let all_there = control.wait_for_log(|log| log.requests().filter(|request| is_list(request)).count() == 4);
    tokio::time::timeout(PATIENCE, all_there).await.unwrap();
    control.with_log(|log| {
        assert_eq!(log.max_in_flight_of(is_list), 4);
        for list in LISTS {
            assert_eq!(log.count("GET", list), 1, "{list}");
        }
    });
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn syncs_share_a_call_and_its_connections() {
    const REFRESHES: u64 = 10;
    let environment = environment(20, 4).await;
    let control = environment.server().control();
    environment.login(&MARLOW).await.unwrap();
    for _ in 0..REFRESHES {
        environment.json(&["refresh"], "").await.unwrap();
    }
    control.with_log(|log| {
        for list in LISTS {
            assert!(log.count("GET", list) >= REFRESHES, "{list}");
        }
        // Usually five: one of the login's call, and four of the metadata call. A connection that comes back a moment too
        // late is replaced; were none kept, there would be one for each request.
        assert!(log.connections() <= 2 * REFRESHES, "{} connections for {} requests", log.connections(), log.total());
        assert!(log.requests().all(|request| {
            request.request_id.as_deref().is_some_and(|id| id.starts_with("req-") && id.len() == 40)
        }));
        for header in ["cookie", "referer", "x-forwarded-for"] {
            assert!(log.requests().all(|request| request.header(header).is_none()), "{header}");
        }
    });
    // One call of scope `session` for the login, one of scope `metadata` for all syncs.
    assert_eq!(environment.broker().counts().started, 2);
    environment.stop().await.unwrap();
}
