//! Lanes: what always fails holds up nothing else.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use staging::environment::QUIET;
use staging::server::{Fault, FaultAct, Matching};

use crate::support::*;

/// Longer than the test.
const CYCLE_MS: i64 = 600_000;
/// What the server asks for besides, in seconds.
const RETRY_AFTER: i64 = 1_200;

fn unavailable(headers: &[(&str, &str)]) -> FaultAct {
    FaultAct::json_with(503, headers, &json!({ "error": "Service Unavailable", "message": "" }))
}

fn star_of(source: &str) -> String {
    format!("/api/v1/sources/{source}/add_star")
}

fn attempts(entry: &Value) -> u64 {
    entry["attempts"].as_u64().unwrap()
}

/// Case S4.
#[tokio::test(flavor = "multi_thread")]
async fn s4_what_always_fails_is_sent_seldom_and_holds_up_nobody() {
    let mut options = options(16, 1, "");
    options.client_config = format!("{QUIET}[acts]\nfirst_wait_ms = {CYCLE_MS}\nmost_wait_ms = {CYCLE_MS}\n");
    let mut environment = signed_in_to(options).await;
    let sources = unstarred(&environment).await;
    let ([failing, told_to_wait], others) = (&sources[..2], &sources[2..12]) else { unreachable!("{sources:?}") };
    fails(&environment, Fault::new(Matching::path(&star_of(failing)), unavailable(&[])));
    let wait = [("Retry-After", &*RETRY_AFTER.to_string())];
    fails(&environment, Fault::new(Matching::path(&star_of(told_to_wait)), unavailable(&wait)));

    let mut watch = environment.watch().await.unwrap();
    let before = jiff::Timestamp::now();
    let failing_act = act(&environment, &["star", failing]).await;
    let told = until_act(&mut watch, failing_act, "postponed").await;
    assert!(told["reason"].as_str().unwrap().contains("503"), "{told}");
    let told_act = act(&environment, &["star", told_to_wait]).await;
    let told = until_act(&mut watch, told_act, "postponed").await;
    let next_try: jiff::Timestamp = told["next_try"].as_str().unwrap().parse().unwrap();
    assert!(next_try.duration_since(before).as_secs() >= RETRY_AFTER, "the server's wish counts: {told}");

    // Ten changes of others, in one act.
    let words: Vec<_> = std::iter::once("star").chain(others.iter().map(String::as_str)).collect();
    let ten = act(&environment, &words).await;
    for _ in 0..10 {
        until_act(&mut watch, ten, "confirmed").await;
    }
    assert_eq!(asked(&environment, "POST", &star_of(failing)), 1, "others are no reason to send it again");
    // It is shown as the journalist wants it.
    assert_eq!(source(&environment, failing).await.unwrap()["starred"], true);

    let before = queued(&environment, failing_act).await.unwrap();
    assert_eq!((&before["state"], attempts(&before)), (&json!("unconfirmed"), 1));
    environment.stop_daemon(Signal::SIGKILL).await.unwrap();
    environment.start_daemon().await.unwrap();
    let after = queued(&environment, failing_act).await.unwrap();
    assert_eq!(attempts(&after), 1, "{after}");
    sign_in_again(&environment).await;
    let after = queued(&environment, failing_act).await.unwrap();
    assert!(attempts(&after) >= 1, "{after}");
    assert_eq!(queued(&environment, told_act).await.unwrap()["own"], true);
    assert_eq!((changes(&environment).total(), changes(&environment).most()), (10, 1));
    environment.stop().await.unwrap();
}
