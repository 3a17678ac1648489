//! The order of replies to one source: that in which they were written, whatever happens on the way.

use nix::sys::signal::Signal;
use serde_json::json;
use staging::generator::MARLOW;
use staging::server::FaultAct;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn replies_to_a_source_arrive_in_the_order_in_which_they_were_written() {
    let (environment, ids) = signed_in_to(options(2, "deadline_ms = 1500\n")).await;
    let source = ids[0].as_str();
    let unavailable = || FaultAct::json(503, &json!({ "error": "Service Unavailable", "message": "" }));
    let scripts = [
        vec![],
        vec![FaultAct::Drop],
        vec![FaultAct::LoseAnswer],
        vec![FaultAct::Pass, FaultAct::LoseAnswer, unavailable()],
        vec![unavailable(), unavailable(), FaultAct::Pass, FaultAct::FailAfter { status: 500 }],
        vec![FaultAct::Pass, FaultAct::Hang, FaultAct::HangAnswer],
    ];
    let mut texts = Vec::new();
    for (number, script) in scripts.into_iter().enumerate() {
        environment.json(&["pause"], "").await.unwrap();
        let mut acts = Vec::new();
        for word in ["one", "two", "three"] {
            texts.push(format!("{word} of {number}"));
            acts.push(reply(&environment, source, texts.last().unwrap()).await);
        }
        let rules: Vec<_> = script.into_iter().map(|act| fails(&environment, act, 1)).collect();
        let mut watch = environment.watch().await.unwrap();
        environment.json(&["resume"], "").await.unwrap();
        for act in acts {
            until_listed(&environment, &mut watch, source, act).await;
        }
        for rule in rules {
            release(&environment, rule);
        }
        assert_eq!(read_by_sources(&environment).await, texts);
    }
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    assert_told(&environment, source, &texts).await;
    // That is how they are shown, too.
    let shown = show(&environment, source).await;
    let own = shown["items"].as_array().unwrap().iter().filter(|item| texts.iter().any(|text| item["text"] == *text));
    assert_eq!(own.map(|item| item["text"].as_str().unwrap()).collect::<Vec<_>>(), texts);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_between_replies_keeps_their_order() {
    let (mut environment, ids) = signed_in(2).await;
    let source = ids[0].as_str();
    let rule = fails(&environment, FaultAct::Hang, 1);
    let mut acts = Vec::new();
    for text in ["one", "two", "three"] {
        acts.push(reply(&environment, source, text).await);
    }
    until_acted(&environment, rule).await;
    environment.stop_daemon(Signal::SIGKILL).await.unwrap();
    environment.start_daemon().await.unwrap();
    for (act, wanted) in acts.iter().zip(["unconfirmed", "waiting", "waiting"]) {
        assert_eq!(state(&environment, source, *act).await.0, wanted);
    }
    let mut watch = environment.watch().await.unwrap();
    login(&environment, &MARLOW).await;
    for act in acts {
        until_listed(&environment, &mut watch, source, act).await;
    }
    assert_eq!(sendings(&environment).len(), 4);
    assert_told(&environment, source, &["one", "two", "three"]).await;
    environment.stop().await.unwrap();
}
