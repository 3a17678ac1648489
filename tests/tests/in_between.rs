//! What is seen and done while something else is under way, with the real programs and a gate before the server.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::json;
use staging::environment::{Environment, EnvironmentOptions, ONION, ONION_PORT};
use staging::gate::Gate;
use staging::generator::MARLOW;
use staging::socks::NameTable;

/// A bound for what hangs, not a measure.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// An environment with a closed gate before the server.
async fn gated() -> (Environment, Gate) {
    let environment = Environment::with_daemon(EnvironmentOptions::with_sources(3, 2).unwrap()).await.unwrap();
    let gate = Gate::before(environment.server().address()).await.unwrap();
    let names = NameTable::new().with(ONION, ONION_PORT, gate.address()).unwrap();
    environment.socks().set_names(names);
    (environment, gate)
}

#[tokio::test(flavor = "multi_thread")]
async fn status_knows_the_proxy_while_the_first_sync_runs() {
    let (environment, gate) = gated().await;
    // The login passes; the sync waits.
    gate.admit(1);
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    watch.until("sync_started").await.unwrap();
    environment.socks().wait_for(|counts| counts.established == 5).await;
    // The sync cannot end, so the proxy stays; a busy one may be late with its answer.
    let known = async {
        loop {
            let status = environment.json(&["status"], "").await.unwrap();
            if status["proxy"]["state"] == "connected" {
                return status;
            }
        }
    };
    let status = tokio::time::timeout(PATIENCE, known).await.unwrap();
    assert_eq!(status["proxy"]["tor"], true, "{status}");
    assert!(status["sync"]["running"]["started"].is_string());
    gate.open();
    assert_eq!(watch.until("sync_ended").await.unwrap()["sync"]["outcome"], "ok");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_is_given_up_leaves_no_session_at_the_server() {
    let (environment, gate) = gated().await;
    let credentials = environment.credentials(&MARLOW);
    let login = environment.run(["login", "--credentials-stdin"], &credentials);
    let logout = async {
        environment.socks().wait_for(|counts| counts.established == 1).await;
        environment.json(&["logout"], "").await.unwrap();
        // Only now the server hears of the login, and accepts it.
        gate.open();
    };
    let (login, ()) = tokio::join!(login, logout);
    assert_eq!(login.unwrap().code, Some(1), "given up");
    let control = environment.server().control();
    control.wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1).await;
    assert_eq!(control.count("POST", "/api/v1/token"), 1);
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["session"], json!({ "state": "signed_out" }));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_whose_command_is_gone_leaves_no_session_either() {
    let (environment, gate) = gated().await;
    let mut command = environment.splitdrop(["login", "--credentials-stdin"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    {
        use tokio::io::AsyncWriteExt as _;
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(environment.credentials(&MARLOW).as_bytes()).await.unwrap();
    }
    environment.socks().wait_for(|counts| counts.established == 1).await;
    child.kill().await.unwrap();
    gate.open();
    environment.server().control().wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1).await;
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["session"], json!({ "state": "signed_out" }));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_logout_stops_the_lists_that_are_still_asked_for() {
    let (environment, gate) = gated().await;
    gate.admit(1);
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.socks().wait_for(|counts| counts.established == 5).await;
    environment.json(&["logout"], "").await.unwrap();
    assert_eq!(watch.until("sync_ended").await.unwrap()["sync"]["outcome"], "cancelled");
    // The proxy was told to stop: the connections of the lists close though nothing was answered on them. One is left, of
    // the logout.
    environment.socks().wait_for(|counts| counts.established == 6 && counts.open <= 1).await;
    gate.open();
    environment.server().control().wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1).await;
    environment.stop().await.unwrap();
}
