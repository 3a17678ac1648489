//! A server that does not answer as one: what it says is taken for nothing, and its lists or the user decide.

use serde_json::{Value, json};
use staging::server::{Edit, FaultAct, Which};

use crate::support::*;

const OTHER: &str = "0badcafe-0000-4000-8000-000000000001";

/// Answers that say too little, and whether the reply was stored.
fn answers() -> Vec<(FaultAct, bool)> {
    let other =
        json!({ "filename": "7-candid_marmot-reply.gpg", "message": "Your reply has been stored", "uuid": OTHER });
    let edited = |edits| FaultAct::BadRecord { which: Which::Index(0), edits };
    let nonsense = |body: &str| FaultAct::Answer {
        status: 201,
        content_type: "application/json".to_owned(),
        body: body.to_owned(),
        headers: Vec::new(),
    };
    vec![
        (FaultAct::json(201, &other), false),
        (nonsense("{"), false),
        (nonsense(""), false),
        (nonsense("[]"), false),
        (FaultAct::json(201, &json!({ "uuid": 7 })), false),
        (FaultAct::html(201, "<h1>Created</h1>"), false),
        (FaultAct::html(200, "<h1>OK</h1>"), false),
        (FaultAct::json(200, &json!({})), false),
        (FaultAct::json(204, &Value::Null), false),
        (edited(vec![Edit::set("/uuid", OTHER)]), true),
        (edited(vec![Edit::remove("/uuid")]), true),
        (edited(vec![Edit::set("/uuid", json!(["x"]))]), true),
    ]
}

/// Case R1.
#[tokio::test(flavor = "multi_thread")]
async fn r1_an_answer_that_is_none_is_no_confirmation() {
    let (environment, ids) = signed_in(2).await;
    let source = ids[0].as_str();
    let mut texts = Vec::new();
    for (number, (answer, is_stored)) in answers().into_iter().enumerate() {
        let text = format!("reply {number}");
        let mut watch = environment.watch().await.unwrap();
        let before = sendings(&environment).len();
        let rule = fails(&environment, answer.clone(), 1);
        let lists = hold_lists(&environment);
        let act = reply(&environment, source, &text).await;
        // Stored under an id of the server's, it would be stored once more with each attempt.
        let other_id = format!("{answer:?}").contains(OTHER);
        let (step, shown) = if other_id { ("refused", "refused") } else { ("postponed", "unconfirmed") };
        until_act(&mut watch, act, step).await;
        assert_eq!(state(&environment, source, act).await, (shown.to_owned(), text.clone()), "{answer:?}");
        assert_eq!(stored(&environment).len(), texts.len() + usize::from(is_stored));
        release(&environment, lists);
        if other_id && !is_stored {
            environment.json(&["refresh"], "").await.unwrap();
            assert_eq!(sendings(&environment).len() - before, 1, "it is not sent again by itself");
            environment.json(&["retry", &act.to_string()], "").await.unwrap();
        } else if other_id {
            environment.json(&["refresh"], "").await.unwrap();
        }
        until_listed(&environment, &mut watch, source, act).await;
        release(&environment, rule);
        assert_eq!(sendings(&environment).len() - before, if is_stored { 1 } else { 2 }, "{answer:?}");
        texts.push(text);
    }
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    assert_told(&environment, source, &texts).await;
    environment.stop().await.unwrap();
}
