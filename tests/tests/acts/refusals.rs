//! Deletions that are refused, and those that only seem to be.

use serde_json::json;
use staging::environment::Environment;
use staging::qrexec::broker::EventKind;
use staging::server::{Fault, FaultAct};

use crate::support::*;

/// Case D1.
#[tokio::test(flavor = "multi_thread")]
async fn d1_a_definite_refusal_brings_the_source_back_with_a_reason() {
    let environment = signed_in(3, 2).await;
    let source = first(&environment).await;
    let before = environment.json(&["show", &source], "").await.unwrap();
    let refusal = json!({ "error": "Bad Request", "message": "not today" });
    let rule = fails(&environment, Fault::new(deletion(&source), FaultAct::json(400, &refusal)));
    let mut watch = environment.watch().await.unwrap();
    let act = delete(&environment, &source).await;
    let refused = until_act(&mut watch, act, "refused").await;
    assert!(!refused["reason"].as_str().unwrap().is_empty());
    assert_eq!(environment.json(&["show", &source], "").await.unwrap(), before);
    let entry = queued(&environment, act).await.unwrap();
    assert_eq!((&entry["state"], &entry["reason"]), (&json!("refused"), &refused["reason"]));
    refresh(&environment).await;
    assert_eq!(asked(&environment, "DELETE", &format!("/api/v1/sources/{source}")), 1);
    assert_eq!(counted_sources(&environment).await, 3);
    // The journalist forgets this one, and has the next one tried again.
    environment.json(&["dismiss", &act.to_string()], "").await.unwrap();
    assert_eq!((queued(&environment, act).await, source_shows(&environment, &source).await), (None, Shown::Ordinary));
    let act = delete(&environment, &source).await;
    until_act(&mut watch, act, "refused").await;
    release(&environment, rule);
    environment.json(&["retry", &act.to_string()], "").await.unwrap();
    until_act(&mut watch, act, "confirmed").await;
    assert_eq!(source_shows(&environment, &source).await, Shown::Gone);
    assert_eq!(changes(&environment).total(), 1);
    environment.stop().await.unwrap();
}

/// Case D1.
#[tokio::test(flavor = "multi_thread")]
async fn d1_a_session_that_is_over_brings_nothing_back() {
    let environment = signed_in(3, 2).await;
    let mut watch = environment.watch().await.unwrap();
    for (status, left) in [(403, 2), (401, 1)] {
        let source = first(&environment).await;
        let over = json!({ "error": "Forbidden", "message": "API endpoint requires authentication" });
        fails(&environment, Fault::new(deletion(&source), FaultAct::json(status, &over)).times(1));
        let act = delete(&environment, &source).await;
        assert_eq!(watch.until("session_ended").await.unwrap()["reason"], "expired", "{status}");
        assert_eq!(source_shows(&environment, &source).await, Shown::BeingDeleted, "{status}");
        assert_eq!(counted_sources(&environment).await, left);
        assert_eq!(queued(&environment, act).await.unwrap()["state"], "waiting");
        sign_in_again(&environment).await;
        until_act(&mut watch, act, "confirmed").await;
        assert_eq!(source_shows(&environment, &source).await, Shown::Gone);
        refresh(&environment).await;
        assert_eq!(ids(&environment).await.len() as u64, left);
    }
    assert_eq!((changes(&environment).total(), changes(&environment).most()), (2, 1));
    environment.stop().await.unwrap();
}

/// How often a call that deletes was asked of dom0.
fn requested(environment: &Environment) -> usize {
    let deletes = |kind: &EventKind| matches!(kind, EventKind::Requested { argument, .. } if argument == "delete");
    environment.broker().events().iter().filter(|event| deletes(&event.kind)).count()
}

/// Case D3.
#[tokio::test(flavor = "multi_thread")]
async fn d3_a_refusal_by_dom0_is_definite_and_not_repeated_without_the_journalist() {
    let mut options = options(3, 2, "");
    let rule = "splitdrop.Proxy +delete sd-app sd-proxy deny\n";
    options.policy.push(("30-newsroom.policy".to_owned(), rule.to_owned()));
    let environment = signed_in_to(options).await;
    let sources = ids(&environment).await;
    let before = listed(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    // One act, one question: what was refused is refused for all of it.
    let act = act(&environment, &["delete", "source", &sources[0], &sources[1], "--yes"]).await;
    for _ in 0..2 {
        let refused = until_act(&mut watch, act, "refused").await;
        assert!(refused["reason"].as_str().unwrap().contains("dom0"), "{refused}");
    }
    assert_eq!(listed(&environment).await, before);
    let told: Vec<_> = queue(&environment).await;
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|entry| entry["state"] == "refused" && entry["reason"].is_string()), "{told:?}");
    // Whatever else happens, dom0 is not asked again.
    for command in ["star", "unstar"] {
        environment.json(&[command, &sources[2]], "").await.unwrap();
    }
    until_step(&mut watch, "confirmed").await;
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!((requested(&environment), environment.broker().counts().refused), (1, 1));
    environment.json(&["retry", &act.to_string()], "").await.unwrap();
    for _ in 0..2 {
        until_act(&mut watch, act, "refused").await;
    }
    assert_eq!((requested(&environment), environment.broker().counts().refused), (2, 2));
    assert_eq!(listed(&environment).await.len(), 3);
    assert!(
        environment
            .server()
            .control()
            .with_log(|log| log.requests().all(|one| { one.method != "DELETE" || one.path.ends_with("/remove_star") }))
    );
    environment.stop().await.unwrap();
}
