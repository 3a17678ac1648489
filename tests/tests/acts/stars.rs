//! Stars that are set and taken away faster than the server answers.

use serde_json::Value;
use staging::environment::{Environment, EnvironmentOptions};
use staging::server::{Change, Changes, Command, Fault, FaultAct, Matching};

use crate::support::*;

const NOT_SIGNED_IN: i32 = 4;

/// A source without a star, here and there.
async fn without_star(environment: &Environment) -> String {
    let source = ids(environment).await.swap_remove(0);
    happens(environment, Command::Unstar { source: source.as_str().into() });
    environment.json(&["refresh"], "").await.unwrap();
    source
}

fn starring(source: &str) -> Matching {
    Matching::method("POST", &format!("/api/v1/sources/{source}/add_star"))
}

async fn starred(environment: &Environment, id: &str) -> bool {
    source(environment, id).await.unwrap()["starred"].as_bool().unwrap()
}

fn starred_there(environment: &Environment, source: &str) -> bool {
    environment.server().control().with_world(|world| world.source(source).unwrap().is_starred)
}

/// Case D8.
#[tokio::test(flavor = "multi_thread")]
async fn d8_the_last_of_star_and_unstar_wins_though_the_first_is_answered_late() {
    let environment = signed_in(2, 1).await;
    let source = without_star(&environment).await;
    let rule = hold(&environment, starring(&source));
    let mut watch = environment.watch().await.unwrap();
    let star = act(&environment, &["star", &source]).await;
    until_held(&environment, rule, 1).await;
    assert!(starred(&environment, &source).await && starred_there(&environment, &source));
    let unstar = act(&environment, &["unstar", &source]).await;
    assert!(!starred(&environment, &source).await);
    // A snapshot that tells of the star does not bring it back.
    environment.json(&["refresh"], "").await.unwrap();
    assert!(!starred(&environment, &source).await);
    assert_eq!(queued(&environment, unstar).await.unwrap()["state"], "waiting", "one at a time, in their order");
    release(&environment, rule);
    until_act(&mut watch, unstar, "confirmed").await;
    assert!(!starred(&environment, &source).await && !starred_there(&environment, &source));
    environment.json(&["refresh"], "").await.unwrap();
    assert!(!starred(&environment, &source).await);
    assert!(star < unstar);
    let id = || source.as_str().into();
    let once: Changes = [Change::StarSet { source: id() }, Change::StarRemoved { source: id() }].into_iter().collect();
    assert_eq!((changes(&environment), queue(&environment).await), (once, Vec::new()));
    environment.stop().await.unwrap();
}

/// Case D8. The first answer never comes: what it would have said is asked again before the second is sent.
#[tokio::test(flavor = "multi_thread")]
async fn d8_the_last_of_star_and_unstar_wins_though_the_first_is_never_answered() {
    let environment = signed_in_to(options(2, 1, "deadline_ms = 300\n")).await;
    let source = without_star(&environment).await;
    let rule = fails(&environment, Fault::new(starring(&source), FaultAct::HangAnswer));
    let mut watch = environment.watch().await.unwrap();
    let star = act(&environment, &["star", &source]).await;
    until_held(&environment, rule, 1).await;
    let unstar = act(&environment, &["unstar", &source]).await;
    until_act(&mut watch, star, "postponed").await;
    assert!(!starred(&environment, &source).await && starred_there(&environment, &source));
    release(&environment, rule);
    until_act(&mut watch, unstar, "confirmed").await;
    environment.json(&["refresh"], "").await.unwrap();
    assert!(!starred(&environment, &source).await && !starred_there(&environment, &source));
    assert_eq!((changes(&environment).most(), queue(&environment).await), (1, Vec::<Value>::new()));
    environment.stop().await.unwrap();
}

/// Case D8. What was not sent yet need not be.
#[tokio::test(flavor = "multi_thread")]
async fn d8_what_waits_folds_into_the_last() {
    let environment = signed_in(2, 1).await;
    let source = without_star(&environment).await;
    let rule = hold(&environment, starring(&source));
    let mut watch = environment.watch().await.unwrap();
    act(&environment, &["star", &source]).await;
    until_held(&environment, rule, 1).await;
    for command in ["unstar", "star", "unstar", "star"] {
        let last = act(&environment, &[command, &source]).await;
        assert_eq!(starred(&environment, &source).await, command == "star");
        let waiting: Vec<_> =
            queue(&environment).await.into_iter().filter(|entry| entry["state"] == "waiting").collect();
        assert_eq!(waiting.iter().map(|entry| entry["act"].as_u64().unwrap()).collect::<Vec<_>>(), [last]);
    }
    let last = queue(&environment).await.last().unwrap()["act"].as_u64().unwrap();
    release(&environment, rule);
    until_act(&mut watch, last, "confirmed").await;
    assert!(starred(&environment, &source).await && starred_there(&environment, &source));
    assert_eq!((changes(&environment).total(), stars(&environment, &source)), (1, 1));
    environment.stop().await.unwrap();
}

/// Case D8.
#[tokio::test(flavor = "multi_thread")]
async fn d8_without_a_session_nothing_is_done_and_nothing_changes() {
    let environment = Environment::with_daemon(EnvironmentOptions::with_sources(2, 2).unwrap()).await.unwrap();
    environment.login(&staging::generator::MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let source = ids(&environment).await.swap_remove(0);
    let item = message(&environment, &source);
    environment.json(&["refresh"], "").await.unwrap();
    environment.json(&["logout"], "").await.unwrap();
    until_log(&environment, |log| log.count("POST", "/api/v1/logout") == 1).await;
    let before = shown_with_key(&environment, &source).await;
    let requests = environment.server().control().with_log(|log| log.total());
    for command in [
        &["star", &source][..],
        &["unstar", &source],
        &["seen", &source],
        &["delete", "source", &source, "--yes"],
        &["delete", "conversation", &source, "--yes"],
        &["delete", "item", &item, "--yes"],
        &["retry", "1"],
        &["cancel", "1"],
    ] {
        let output = environment.run(command, "").await.unwrap();
        assert_eq!(output.code, Some(NOT_SIGNED_IN), "{command:?}: {output:?}");
    }
    assert_eq!(environment.json(&["show", &source], "").await.unwrap(), before);
    assert_eq!(queue(&environment).await, [] as [Value; 0]);
    assert_eq!(environment.server().control().with_log(|log| log.total()), requests);
    environment.stop().await.unwrap();
}
