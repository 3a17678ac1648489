//! dom0 and replies: where it asks, that holds up nothing but what it is asked about, and it asks once.

use serde_json::json;
use staging::environment::{Environment, EnvironmentOptions};
use staging::qrexec::broker::{Dom0User, EventKind, Question, Reply};

use crate::support::*;

/// A newsroom where dom0 asks about each reply.
fn asking(sources: u32, client_knows: bool) -> EnvironmentOptions {
    let mut options = options(sources, "");
    if client_knows {
        options.client_config.insert_str(0, "dom0_asks = [\"reply\"]\n");
    }
    options.policy.push(("30-newsroom.policy".to_owned(), "splitdrop.Proxy +reply sd-app sd-proxy ask\n".to_owned()));
    options.qrexec.dom0_user = Dom0User::Present;
    options
}

fn questions(environment: &Environment) -> usize {
    environment.broker().events().iter().filter(|event| matches!(event.kind, EventKind::Asked(_))).count()
}

async fn question(environment: &Environment) -> Question {
    let question = environment.broker().questions().next().await;
    assert_eq!(question.argument, "reply");
    question
}

/// Stars or unstars a source, and waits until the server has done it.
async fn star(environment: &Environment, source: &str) {
    let mut watch = environment.watch().await.unwrap();
    let starred = listed(environment).await.iter().any(|listed| listed["uuid"] == source && listed["starred"] == true);
    environment.json(&[if starred { "unstar" } else { "star" }, source], "").await.unwrap();
    while watch.until("act").await.unwrap()["step"] != "confirmed" {}
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replies_that_dom0_is_asked_about_leave_a_place_to_marks() {
    for client_knows in [false, true] {
        let (environment, ids) = signed_in_to(asking(3, client_knows)).await;
        let first = reply(&environment, &ids[0], "one").await;
        let second = reply(&environment, &ids[1], "two").await;
        let asked = question(&environment).await;
        star(&environment, &ids[2]).await;
        assert_eq!(environment.broker().questions().pending(), std::slice::from_ref(&asked), "one at a time");
        let states = [queued(&environment, first).await.unwrap(), queued(&environment, second).await.unwrap()];
        let states = states.map(|entry| entry["state"].as_str().unwrap().to_owned());
        assert!(states.contains(&"opening".to_owned()) && states.contains(&"waiting".to_owned()), "{states:?}");
        assert_eq!(status(&environment).await["paused"], json!([]));
        environment.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_goes_out_after_a_yes_and_after_a_no_only_by_the_users_word() {
    let (environment, ids) = signed_in_to(asking(2, true)).await;
    let mut watch = environment.watch().await.unwrap();
    let act = reply(&environment, &ids[0], "one").await;
    let asked = question(&environment).await;
    environment.broker().questions().answer(asked.call, Reply::No).unwrap();
    while watch.until("act").await.unwrap()["step"] != "refused" {}
    star(&environment, &ids[1]).await;
    assert_eq!(
        (questions(&environment), queued(&environment, act).await.unwrap()["state"].clone()),
        (1, json!("refused"))
    );
    environment.json(&["retry", &act.to_string()], "").await.unwrap();
    let asked = question(&environment).await;
    environment.broker().questions().answer(asked.call, Reply::Yes(None)).unwrap();
    watch.until_done(act).await.unwrap();
    assert_eq!(questions(&environment), 2);
    environment.stop().await.unwrap();
}
