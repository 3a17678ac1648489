//! Replies that are definitely not sent: they say so, and what was written stays until it is sent or forgotten.

use serde_json::{Value, json};
use staging::environment::Environment;
use staging::qrexec::broker::{Dom0User, Reply};
use staging::server::{Command, FaultAct};

use crate::support::*;

const ASKS: &str = "splitdrop.Proxy +reply sd-app sd-proxy ask default_target=sd-proxy\n";
const DENIES: &str = "splitdrop.Proxy +reply sd-app sd-proxy deny\n";

/// It is said for people, with the reason, and the text is there.
async fn assert_not_sent(environment: &Environment, source: &str, act: u64, text: &str, because: &str) {
    assert_eq!(state(environment, source, act).await, ("refused".to_owned(), text.to_owned()));
    let output = environment.run(["show", source], "").await.unwrap();
    assert!(output.stdout.contains("not sent: refused") && output.stdout.contains(text), "{}", output.stdout);
    let entry = queued(environment, act).await.unwrap();
    assert_eq!(entry["state"], "refused");
    assert!(entry["reason"].as_str().unwrap().contains(because), "{entry}");
    assert_eq!(status(environment).await["queue"]["refused"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_is_not_sent_until_somebody_tries_again() {
    let (mut environment, ids) = signed_in(2).await;
    let source = ids[0].as_str();
    let error = |status: u16| FaultAct::json(status, &json!({ "error": "no", "message": "no" }));
    let refusals = [error(400), error(404), error(413), FaultAct::html(413, "<h1>Request Entity Too Large</h1>")];
    let mut texts = Vec::new();
    for (number, refusal) in refusals.into_iter().enumerate() {
        let text = format!("reply {number}");
        let mut watch = environment.watch().await.unwrap();
        fails(&environment, refusal.clone(), 1);
        let act = reply(&environment, source, &text).await;
        let refused = until_act(&mut watch, act, "refused").await;
        assert_not_sent(&environment, source, act, &text, refused["reason"].as_str().unwrap()).await;
        // It stays so.
        refresh(&environment).await;
        environment.stop_daemon(nix::sys::signal::Signal::SIGKILL).await.unwrap();
        environment.start_daemon().await.unwrap();
        login(&environment, &staging::generator::MARLOW).await;
        assert_not_sent(&environment, source, act, &text, refused["reason"].as_str().unwrap()).await;
        assert_eq!(stored(&environment).len(), texts.len(), "{refusal:?}");

        let mut watch = environment.watch().await.unwrap();
        environment.json(&["retry", &act.to_string()], "").await.unwrap();
        until_listed(&environment, &mut watch, source, act).await;
        texts.push(text);
    }
    assert_eq!(sendings(&environment).len(), 2 * texts.len());
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    assert_told(&environment, source, &texts).await;
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_is_forgotten_on_the_users_word() {
    let (environment, ids) = signed_in(2).await;
    let source = ids[0].as_str();
    let mut watch = environment.watch().await.unwrap();
    fails(&environment, FaultAct::json(400, &json!({ "error": "no", "message": "no" })), 1);
    let refused = reply(&environment, source, "never mind").await;
    until_act(&mut watch, refused, "refused").await;
    // It is in nobody's way.
    let next = reply(&environment, source, "next").await;
    until_listed(&environment, &mut watch, source, next).await;
    environment.json(&["dismiss", &refused.to_string()], "").await.unwrap();
    assert_told(&environment, source, &["next"]).await;
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_to_a_source_that_is_gone_at_the_server_is_not_sent() {
    let (environment, ids) = signed_in(3).await;
    let mut watch = environment.watch().await.unwrap();
    for (source, forgets) in [(&ids[0], true), (&ids[1], false)] {
        happens(&environment, Command::DeleteSource { source: source.as_str().into() });
        let act = reply(&environment, source, "too late").await;
        let refused = until_act(&mut watch, act, "refused").await;
        assert_not_sent(&environment, source, act, "too late", refused["reason"].as_str().unwrap()).await;
        if forgets {
            environment.json(&["dismiss", &act.to_string()], "").await.unwrap();
            assert_eq!(show(&environment, source).await["outgoing"], json!([]));
        } else {
            // The source goes, but for what was written to it, which stays until it is dismissed.
            refresh(&environment).await;
            assert_eq!(show(&environment, source).await["outgoing"][0]["text"], "too late");
            environment.json(&["dismiss", &act.to_string()], "").await.unwrap();
            assert!(listed(&environment).await.iter().all(|row| row["uuid"] != source.as_str()));
        }
        assert_eq!(queue(&environment).await, [] as [Value; 0]);
    }
    assert_eq!(stored(&environment), []);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_of_dom0s_is_a_refusal_and_it_is_asked_again_on_the_users_word() {
    let mut options = options(2, "");
    options.policy.push(("30-newsroom.policy".to_owned(), ASKS.to_owned()));
    options.qrexec.dom0_user = Dom0User::Present;
    let (environment, ids) = signed_in_to(options).await;
    let source = ids[0].as_str();
    let mut watch = environment.watch().await.unwrap();
    let act = reply(&environment, source, "may I?").await;
    let question = environment.broker().questions().next().await;
    assert_eq!((question.service.as_str(), question.argument.as_str()), ("splitdrop.Proxy", "reply"));
    let entry = queued(&environment, act).await.unwrap();
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("opening"), &json!(0)));
    environment.broker().questions().answer(question.call, Reply::No).unwrap();
    until_act(&mut watch, act, "refused").await;
    assert_not_sent(&environment, source, act, "may I?", "dom0").await;
    refresh(&environment).await;
    assert_eq!(environment.broker().questions().pending(), []);

    environment.json(&["retry", &act.to_string()], "").await.unwrap();
    let question = environment.broker().questions().next().await;
    environment.broker().questions().answer(question.call, Reply::Yes(None)).unwrap();
    until_listed(&environment, &mut watch, source, act).await;
    assert_told(&environment, source, &["may I?"]).await;
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn where_dom0_denies_replies_all_else_goes_on() {
    let mut options = options(2, "");
    options.policy.push(("30-newsroom.policy".to_owned(), DENIES.to_owned()));
    let (environment, ids) = signed_in_to(options).await;
    let source = ids[0].as_str();
    let mut watch = environment.watch().await.unwrap();
    let act = reply(&environment, source, "may I?").await;
    until_act(&mut watch, act, "refused").await;
    assert_not_sent(&environment, source, act, "may I?", "dom0").await;
    let starred = listed(&environment).await.iter().any(|row| row["uuid"] == source && row["starred"] == true);
    let answer = environment.json(&[if starred { "unstar" } else { "star" }, source], "").await.unwrap();
    until_act(&mut watch, answer["acts"][0]["act"].as_u64().unwrap(), "confirmed").await;
    refresh(&environment).await;
    assert_not_sent(&environment, source, act, "may I?", "dom0").await;
    assert_eq!(sendings(&environment), []);
    environment.stop().await.unwrap();
}
