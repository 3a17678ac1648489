//! Syncs that go wrong, in part or as a whole, with the real programs.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use staging::environment::{Environment, EnvironmentOptions};
use staging::generator::MARLOW;
use staging::server::{Command, Edit, Fault, FaultAct, Matching, RecordId, Which};

const LISTS: [&str; 4] = ["/api/v1/users", "/api/v1/sources", "/api/v1/submissions", "/api/v1/replies"];

/// An environment in which somebody is signed in and a sync has succeeded.
async fn synced(sources: u32) -> Environment {
    let options = EnvironmentOptions::with_sources(sources, 4).unwrap();
    let environment = Environment::with_daemon(options).await.unwrap();
    environment.first_login(&MARLOW).await.unwrap();
    environment
}

fn fault(environment: &Environment, path: &str, act: FaultAct) -> u64 {
    environment.server().control().add_fault(Fault::new(Matching::path(path), act)).unwrap()
}

fn clear_faults(environment: &Environment) {
    environment.server().control().apply(Command::ClearFaults).unwrap();
}

async fn sources(environment: &Environment) -> Value {
    environment.listed_with_keys().await.unwrap()
}

fn first_listed(environment: &Environment, listed: &Value, at: usize) -> RecordId {
    let id = listed["sources"][at]["uuid"].as_str().unwrap().to_owned();
    environment.server().control().with_world(|world| world.source(&id).unwrap().id.clone())
}

/// Case S9.
#[tokio::test(flavor = "multi_thread")]
async fn s9_bad_records_are_counted_kept_and_do_not_stop_the_rest() {
    let environment = synced(12).await;
    let before = sources(&environment).await;
    let bad_sources = [
        Edit::set("/journalist_designation", ""),
        Edit::set("/interaction_count", -1),
        Edit::set("/interaction_count", 1.5),
        Edit::set("/interaction_count", 9_223_372_036_854_775_808_u64),
        Edit::remove("/key"),
    ];
    for (at, edit) in bad_sources.iter().enumerate() {
        environment.server().control().apply(Command::ClearFaults).unwrap();
        let which = Which::Uuid(first_listed(&environment, &before, at));
        fault(&environment, "/api/v1/sources", FaultAct::BadRecord { which, edits: vec![edit.clone()] });
        // News elsewhere is still applied.
        let source = first_listed(&environment, &before, 11);
        environment.server().control().apply(Command::NewMessage { source, size: 600 }).unwrap();
        let refreshed = environment.json(&["refresh"], "").await.unwrap();
        assert_eq!((&refreshed["sync"]["outcome"], &refreshed["sync"]["unreadable"]), (&json!("ok"), &json!(1)));
        let now = sources(&environment).await;
        let find = |listed: &Value, id: &str| {
            listed["sources"].as_array().unwrap().iter().find(|row| row["uuid"] == id).cloned().unwrap()
        };
        let bad = before["sources"][at]["uuid"].as_str().unwrap();
        assert_eq!(find(&now, bad), find(&before, bad), "{edit:?}");
        let other = before["sources"][11]["uuid"].as_str().unwrap();
        let messages = |listed: &Value| find(listed, other)["counts"]["messages"].as_u64().unwrap();
        assert_eq!(messages(&now), messages(&before) + 1 + at as u64, "{edit:?}");
    }
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["held"]["unreadable"]["count"], 1);
    assert!(status["held"]["unreadable"]["since"].is_string());
    clear_faults(&environment);
    let refreshed = environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(refreshed["sync"]["unreadable"], 0);
    environment.stop().await.unwrap();
}

/// Case S9.
#[tokio::test(flavor = "multi_thread")]
async fn s9_items_of_no_kind_or_without_an_id_remove_nothing() {
    let environment = synced(6).await;
    let before = sources(&environment).await;
    let edits = [
        vec![Edit::set("/is_file", true), Edit::set("/is_message", true)],
        vec![Edit::set("/is_file", false), Edit::set("/is_message", false)],
        vec![Edit::set("/filename", "../../.config/autostart/x.desktop")],
        vec![Edit::set("/uuid", "not-an-id")],
        vec![Edit::set("", 7)],
    ];
    for edits in edits {
        fault(
            &environment,
            "/api/v1/submissions",
            FaultAct::BadRecord { which: Which::Index(0), edits: edits.clone() },
        );
        let refreshed = environment.json(&["refresh"], "").await.unwrap();
        assert_eq!(refreshed["sync"]["unreadable"], 1, "{edits:?}");
        assert_eq!(sources(&environment).await, before, "{edits:?}");
        clear_faults(&environment);
    }
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_fails_in_any_way_changes_nothing_and_is_told() {
    let environment = synced(6).await;
    let before = sources(&environment).await;
    let victim = first_listed(&environment, &before, 0);
    environment.server().control().apply(Command::DeleteSource { source: victim }).unwrap();
    let acts = [
        FaultAct::Drop,
        FaultAct::LoseAnswer,
        FaultAct::DropAfter { bytes: 300 },
        FaultAct::Truncate { bytes: 300 },
        FaultAct::not_json(),
        FaultAct::json(500, &json!({ "error": "Internal Server Error", "message": "" })),
        FaultAct::html(502, "<h1>Bad Gateway</h1>"),
        FaultAct::json(200, &json!({ "something": "else" })),
        FaultAct::json(200, &json!([])),
    ];
    for path in LISTS {
        for act in &acts {
            fault(&environment, path, act.clone());
            let output = environment.run(["refresh", "--json"], "").await.unwrap();
            let told: Value = serde_json::from_str(&output.stdout).unwrap();
            assert!(matches!(output.code, Some(1 | 8)), "{path} {act:?}: {output:?}");
            assert!(told["error"]["message"].as_str().unwrap().contains("get_"), "{told}");
            assert_eq!(sources(&environment).await, before, "{path} {act:?}");
            let status = environment.json(&["status"], "").await.unwrap();
            assert_eq!(status["sync"]["last"]["outcome"], "failed", "{path} {act:?}");
            assert!(status["sync"]["last"]["error"].is_string());
            clear_faults(&environment);
        }
    }
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(sources(&environment).await["sources"].as_array().unwrap().len(), 5);
    environment.stop().await.unwrap();
}

/// Case S8.
#[tokio::test(flavor = "multi_thread")]
async fn s8_each_sync_has_one_start_and_one_end_and_a_refresh_shows_something() {
    let environment = synced(3).await;
    let mut watch = environment.watch().await.unwrap();
    let mut outcomes = Vec::new();
    for act in [None, Some(FaultAct::json(500, &json!({}))), None] {
        if let Some(act) = act {
            fault(&environment, "/api/v1/replies", act);
        }
        let output = environment.run(["refresh"], "").await.unwrap();
        assert!(!output.stdout.is_empty() || !output.stderr.is_empty());
        clear_faults(&environment);
        let start = watch.next().await.unwrap();
        let end = watch.next().await.unwrap();
        assert_eq!((&start["event"], &end["event"]), (&json!("sync_started"), &json!("sync_ended")));
        assert_eq!(start["sync"]["started"], end["sync"]["started"]);
        outcomes.push(end["sync"]["outcome"].as_str().unwrap().to_owned());
    }
    assert_eq!(outcomes, ["unchanged", "failed", "unchanged"]);
    environment.stop().await.unwrap();
}

/// Case S8.
#[tokio::test(flavor = "multi_thread")]
async fn s8_a_sync_that_is_given_up_at_logout_ends_as_cancelled() {
    let environment = synced(3).await;
    let mut watch = environment.watch().await.unwrap();
    fault(&environment, "/api/v1/replies", FaultAct::Hang);
    let refresh = environment.run(["refresh"], "");
    let logout = async {
        watch.until("sync_started").await.unwrap();
        environment.json(&["logout"], "").await.unwrap();
        let ended = watch.until("sync_ended").await.unwrap();
        assert_eq!(ended["sync"]["outcome"], "cancelled");
    };
    let (refresh, ()) = tokio::join!(refresh, logout);
    let refresh = refresh.unwrap();
    assert_eq!(refresh.code, Some(1), "{refresh:?}");
    assert!(refresh.stderr.contains("given up"), "{refresh:?}");
    environment.stop().await.unwrap();
}

/// Case S8.
#[tokio::test(flavor = "multi_thread")]
async fn s8_a_sync_that_is_cut_off_by_the_daemons_end_has_one_end_which_is_known_after_a_restart() {
    let mut environment = synced(3).await;
    let mut watch = environment.watch().await.unwrap();
    fault(&environment, "/api/v1/replies", FaultAct::Hang);
    let control = environment.server().control();
    let asked = control.count("GET", "/api/v1/replies");
    let mut refresh = environment.splitdrop(["refresh"]).kill_on_drop(true).spawn().unwrap();
    control.wait_for_log(|log| log.count("GET", "/api/v1/replies") == asked + 1).await;
    environment.stop_daemon(nix::sys::signal::Signal::SIGTERM).await.unwrap();
    assert_ne!(refresh.wait().await.unwrap().code(), Some(0));
    let mut ends = Vec::new();
    while let Ok(event) = watch.next().await {
        if event["event"] == "sync_ended" {
            ends.push(event["sync"]["outcome"].clone());
        }
    }
    assert_eq!(ends, ["cancelled"]);
    environment.start_daemon().await.unwrap();
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["sync"]["last"]["outcome"], "cancelled", "{status}");
    environment.stop().await.unwrap();
}

/// Case N4.
#[tokio::test(flavor = "multi_thread")]
async fn n4_a_redirect_is_followed_by_nobody() {
    let elsewhere = EnvironmentOptions::with_sources(1, 1).unwrap();
    let elsewhere = staging::server::Server::start(elsewhere.server).await.unwrap();
    let environment = synced(3).await;
    for status in [301, 302, 303, 307, 308] {
        let location = format!("{}/api/v1/sources", elsewhere.origin());
        fault(&environment, "/api/v1/sources", FaultAct::Redirect { status, location });
        let output = environment.run(["refresh"], "").await.unwrap();
        assert_eq!(output.code, Some(1), "{status}: {output:?}");
        clear_faults(&environment);
    }
    fault(&environment, "/api/v1/sources", FaultAct::Redirect { status: 302, location: "/api/v1/user".to_owned() });
    assert_eq!(environment.run(["refresh"], "").await.unwrap().code, Some(1));
    // Nothing else ever asks for that.
    assert_eq!(environment.server().control().count("GET", "/api/v1/user"), 0);
    assert_eq!(elsewhere.control().with_log(|log| (log.total(), log.connections())), (0, 0));
    environment.stop().await.unwrap();
    elsewhere.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_dies_between_syncs_is_replaced_and_one_that_dies_within_is_told() {
    let environment = synced(3).await;
    kill_service(&environment).await;
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(environment.broker().counts().started, 3);

    fault(&environment, "/api/v1/replies", FaultAct::Hang);
    let control = environment.server().control();
    let asked = control.count("GET", "/api/v1/replies");
    let refresh = environment.run(["refresh"], "");
    let murder = async {
        control.wait_for_log(|log| log.count("GET", "/api/v1/replies") == asked + 1).await;
        kill_service(&environment).await;
        // The second try meets the same fate.
        control.wait_for_log(|log| log.count("GET", "/api/v1/replies") == asked + 2).await;
        clear_faults(&environment);
        kill_service(&environment).await;
    };
    let (refresh, ()) = tokio::join!(refresh, murder);
    let refresh = refresh.unwrap();
    assert_ne!(refresh.code, Some(0), "{refresh:?}");
    assert!(refresh.stderr.contains("incomplete"), "{refresh:?}");
    environment.json(&["refresh"], "").await.unwrap();
    environment.stop().await.unwrap();
}

/// Kills the proxy that runs, once it is the only one: others may be about to end.
async fn kill_service(environment: &Environment) {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use staging::qrexec::broker::EventKind;

    let broker = environment.broker();
    broker.until(|counts| counts.open == 1).await;
    let mut running = std::collections::BTreeMap::new();
    for event in broker.events() {
        match event.kind {
            EventKind::Started { pid, .. } => {
                running.insert(event.call.0, pid.unwrap());
            }
            EventKind::Ended(_) => {
                running.remove(&event.call.0);
            }
            _other => {}
        }
    }
    let [pid] = running.into_values().collect::<Vec<_>>()[..] else { panic!("not one proxy") };
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
}
