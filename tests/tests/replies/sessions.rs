//! Replies and sessions: a reply is its author's, waits for them, and is never sent by anybody else.

use std::process::Stdio;

use serde_json::{Value, json};
use staging::environment::{Environment, QUIET};
use staging::generator::{MARLOW, TERNBERG};
use staging::server::{Change, Command, FaultAct, LoggedRequest, RequestLog};
use tokio::io::AsyncWriteExt as _;

use crate::support::*;

const LOGOUT: &str = "/api/v1/logout";
const TOKEN: &str = "/api/v1/token";
/// Nothing is tried twice while one journalist leaves and another comes.
const LONG_WAITS: &str = "[acts]\nfirst_wait_ms = 20000\nmost_wait_ms = 20000\n";

/// What the client shows of a reply of MARLOW's to somebody else: its state, and what people read.
async fn of_marlow(environment: &Environment, source: &str, act: u64) -> (String, String) {
    let reply = outgoing(environment, source, act).await.unwrap();
    assert_eq!((&reply["own"], &reply["author"]), (&json!(false), &json!("marlow")), "{reply}");
    let entry = queued(environment, act).await.unwrap();
    assert_eq!((&entry["own"], &entry["state"]), (&json!(false), &reply["state"]), "{entry}");
    let output = environment.run(["show", source], "").await.unwrap();
    (reply["state"].as_str().unwrap().to_owned(), output.stdout)
}

/// What was sent after the request with this number, lists apart.
fn acts_after(environment: &Environment, number: u64) -> Vec<String> {
    let after = |request: &LoggedRequest| request.number > number && request.method != "GET";
    environment.server().control().requests().into_iter().filter(after).map(|request| request.path).collect()
}

/// Who wrote what the server has, by its log of changes.
fn authors(environment: &Environment) -> Vec<String> {
    environment.server().control().with_world(|world| {
        let changes = world.changes();
        let author = |reply| {
            changes.iter().find_map(|(change, _)| match change {
                Change::ReplySent { reply: sent, journalist, .. } if sent == reply => {
                    world.journalist(journalist).map(|author| author.username.clone())
                }
                _other => None,
            })
        };
        world.replies().filter_map(|reply| author(&reply.id)).collect()
    })
}

/// Case Q4.
async fn left_to_a_colleague(was_stored: bool) {
    let mut options = options(3, "");
    options.client_config = format!("{QUIET}{LONG_WAITS}");
    let (environment, ids) = signed_in_to(options).await;
    let [attempted, waits, others] = [ids[0].as_str(), ids[1].as_str(), ids[2].as_str()];
    environment.json(&["reply", others, "--draft", "--message", "begun by marlow"], "").await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    // One is under way when the network goes.
    let rule = fails(&environment, if was_stored { FaultAct::HangAnswer } else { FaultAct::Hang }, 1);
    let attempted_act = reply(&environment, attempted, "is under way").await;
    until_acted(&environment, rule).await;
    if was_stored {
        until_held(&environment, rule).await;
    }
    let cut = cut(&environment).await;
    until_act(&mut watch, attempted_act, "postponed").await;
    let waits_act = reply(&environment, waits, "waits").await;
    until_act(&mut watch, waits_act, "postponed").await;
    assert_eq!(state(&environment, attempted, attempted_act).await.0, "unconfirmed");
    assert_eq!(state(&environment, waits, waits_act).await.0, "waiting");

    // Each of the two has asked for a sync: none may find the way again.
    let over = async { while !status(&environment).await["sync"]["running"].is_null() {} };
    tokio::time::timeout(PATIENCE, over).await.unwrap();
    // There is a way again, and the first to go is the logout.
    let before = environment.server().control().with_log(RequestLog::total);
    mend(&environment, cut);
    environment.json(&["logout"], "").await.unwrap();
    until_log(&environment, |log| log.count("POST", LOGOUT) == 1).await;
    let lists = hold_lists(&environment);
    happens(&environment, Command::AdvanceClock { seconds: 90 });
    environment.login(&TERNBERG).await.unwrap();
    // No snapshot has told anything yet.
    let (state, said) = of_marlow(&environment, attempted, attempted_act).await;
    assert_eq!(state, "unconfirmed");
    assert!(said.contains("unconfirmed, by marlow") && said.contains("is under way"), "{said}");
    let (state, said) = of_marlow(&environment, waits, waits_act).await;
    assert_eq!(state, "waiting");
    assert!(said.contains("not sent, by marlow"), "{said}");
    assert_eq!(draft(&environment, others).await, Value::Null, "drafts are nobody else's");
    for deal in ["retry", "cancel", "dismiss"] {
        for act in [attempted_act, waits_act] {
            let output = environment.run([deal, &act.to_string()], "").await.unwrap();
            assert_ne!(output.code, Some(0), "another's reply is not to be dealt with: {output:?}");
        }
    }
    // One settles it.
    release(&environment, lists);
    sync(&environment).await;
    if was_stored {
        assert_eq!(outgoing(&environment, attempted, attempted_act).await, None);
        let shown = show(&environment, attempted).await;
        let item = shown["items"].as_array().unwrap().iter().find(|item| item["text"] == "is under way").unwrap();
        assert_eq!((&item["author"], &item["own"]), (&json!("marlow"), &json!(false)));
    } else {
        assert_eq!(of_marlow(&environment, attempted, attempted_act).await.0, "waiting");
    }
    assert_eq!(of_marlow(&environment, waits, waits_act).await.0, "waiting");
    let own_act = reply(&environment, others, "of ternberg").await;
    until_listed(&environment, &mut watch, others, own_act).await;
    let wanted = [LOGOUT.to_owned(), TOKEN.to_owned(), format!("/api/v1/sources/{others}/replies")];
    assert_eq!(acts_after(&environment, before), wanted, "nothing of one journalist's is sent by another");

    environment.json(&["logout"], "").await.unwrap();
    login(&environment, &MARLOW).await;
    assert_eq!(draft(&environment, others).await, "begun by marlow");
    for (source, act) in [(attempted, attempted_act), (waits, waits_act)] {
        until_listed(&environment, &mut watch, source, act).await;
    }
    let mut told: Vec<_> = read_by_sources(&environment).await.into_iter().zip(authors(&environment)).collect();
    told.sort();
    let of = |text: &str, author: &str| (text.to_owned(), author.to_owned());
    assert_eq!(told, [of("is under way", "marlow"), of("of ternberg", "ternberg"), of("waits", "marlow")]);
    assert_eq!(queue(&environment).await, [] as [Value; 0]);
    assert_eq!(sendings(&environment).len(), if was_stored { 3 } else { 4 });
    environment.stop().await.unwrap();
}

/// Case Q4.
#[tokio::test(flavor = "multi_thread")]
async fn q4_a_reply_that_was_stored_is_shown_as_its_authors_and_never_sent_by_another() {
    left_to_a_colleague(true).await;
}

/// Case Q4.
#[tokio::test(flavor = "multi_thread")]
async fn q4_a_reply_that_was_not_stored_waits_for_its_author() {
    left_to_a_colleague(false).await;
}

/// Case Q4. With no way at all nothing leaves but the logout, and that cannot either.
#[tokio::test(flavor = "multi_thread")]
async fn q4_a_reply_that_was_never_attempted_is_not_sent_by_anybody_else() {
    let (environment, ids) = signed_in(2).await;
    let source = ids[0].as_str();
    let mut watch = environment.watch().await.unwrap();
    let cut = cut(&environment).await;
    let act = reply(&environment, source, "later").await;
    until_act(&mut watch, act, "postponed").await;
    let before = environment.server().control().with_log(RequestLog::total);
    environment.json(&["logout"], "").await.unwrap();
    environment.broker().until(|counts| counts.open == 0).await;
    assert_eq!(environment.server().control().with_log(RequestLog::total), before);
    assert_eq!(outgoing(&environment, source, act).await.unwrap()["own"], true, "offline it is the last one's");
    mend(&environment, cut);
    login(&environment, &TERNBERG).await;
    refresh(&environment).await;
    assert_eq!(of_marlow(&environment, source, act).await.0, "waiting");
    // Where the logout was still being tried it may come now, and nothing else of that session.
    let mut asked = acts_after(&environment, before);
    asked.retain(|path| path != "/api/v1/logout");
    assert_eq!(asked, [TOKEN]);
    environment.json(&["logout"], "").await.unwrap();
    login(&environment, &MARLOW).await;
    until_listed(&environment, &mut watch, source, act).await;
    assert_told(&environment, source, &["later"]).await;
    environment.stop().await.unwrap();
}

/// Case Q4.
#[tokio::test(flavor = "multi_thread")]
async fn q4_what_standard_input_brings_is_not_sent_by_whoever_has_signed_in_meanwhile() {
    let (environment, ids) = signed_in(1).await;
    let source = ids[0].as_str();
    // More than a pipe holds: once all of it is written, some of it was read, and who is signed in was asked before.
    let text = "a long answer. ".repeat(6_000);
    let mut command = environment
        .splitdrop(["reply", source])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    command.stdin.as_mut().unwrap().write_all(text.as_bytes()).await.unwrap();
    environment.json(&["logout"], "").await.unwrap();
    login(&environment, &TERNBERG).await;
    // It ends when the input does.
    let ended = tokio::time::timeout(PATIENCE, command.wait_with_output()).await.unwrap().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(4), "{said}");
    assert!(said.contains("another journalist is signed in"), "{said}");
    let file = said.split_once("the text is in ").unwrap().1.trim_end();
    assert_eq!(std::fs::read_to_string(file).unwrap(), text + "\n");
    assert_eq!(queue(&environment).await, [] as [Value; 0]);
    let shown = show(&environment, source).await;
    assert_eq!((&shown["outgoing"], &shown["draft"]), (&json!([]), &Value::Null));
    assert_eq!(sendings(&environment), []);
    environment.stop().await.unwrap();
}
