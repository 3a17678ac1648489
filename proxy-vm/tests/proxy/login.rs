//! Signing in and out.

use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::value::{OneTimeCode, Passphrase, Username};
use protocol::{ApiLevel, Call, ErrorKind, Items, Retry, Scope, Stage};
use serde_json::{Value, json};

use crate::client::{Client, Outcome, token};
use crate::fixtures::signed_in;
use crate::server::{Act, Server, answer, ok};

pub(crate) fn login() -> Call {
    Call::Login {
        username: Username::try_new("ada \"l\"").unwrap(),
        passphrase: Passphrase::try_new("correct h\u{f6}rse \\ battery").unwrap(),
        one_time_code: OneTimeCode::try_new("012345").unwrap(),
    }
}

async fn login_at(server: &Server) -> Outcome {
    Client::to(Scope::Session, server.address).await.call(login()).await
}

fn level(outcome: &Outcome) -> ApiLevel {
    let [Items::SignedIn(signed_in)] = outcome.items.as_slice() else { panic!("{outcome:?}") };
    signed_in.api_level
}

#[tokio::test]
async fn a_login_is_one_request_with_the_three_fields() {
    let server = Server::answering(ok(&signed_in().to_string())).await;
    let outcome = login_at(&server).await;
    assert_eq!((outcome.end.clone(), level(&outcome)), (Ok(1), ApiLevel::V1));
    let [seen] = &server.seen()[..] else { panic!("not one request") };
    assert_eq!(seen.line, "POST /api/v1/token HTTP/1.1");
    assert_eq!(seen.header("prefer"), Some("securedrop=4"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("authorization"), None);
    let body: Value = serde_json::from_slice(&seen.body).unwrap();
    let expected =
        json!({"username": "ada \"l\"", "passphrase": "correct h\u{f6}rse \\ battery", "one_time_code": "012345"});
    assert_eq!(body, expected);
}

#[tokio::test]
async fn hints_tell_of_version_2() {
    let mut body = signed_in();
    body["hints"] = json!({"version": "0".repeat(64), "sources": 1, "items": 2});
    body["expiration"] = json!("2026-03-04T07:06:07+00:00");
    let server = Server::answering(ok(&body.to_string())).await;
    assert_eq!(level(&login_at(&server).await), ApiLevel::V2);
}

#[tokio::test]
async fn n2_a_failed_login_is_not_repeated() {
    let forbidden = br#"{"error":"Forbidden","message":"Token authentication failed."}"#;
    let unavailable = answer("503 Service Unavailable", &[("Retry-After", "1")], b"");
    for (act, kind) in [
        (Act::Send(answer("403 FORBIDDEN", &[], forbidden)), ErrorKind::Unauthorized),
        (Act::Send(answer("400 BAD REQUEST", &[], b"{}")), ErrorKind::Refused),
        (Act::Send(unavailable), ErrorKind::Server),
        (Act::SendAndClose(Vec::new()), ErrorKind::Unreachable),
        (Act::SendAndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{".to_vec()), ErrorKind::BadResponse),
        (Act::Send(ok("{}")), ErrorKind::BadResponse),
    ] {
        let server = Server::new({
            let act = act.clone();
            move |_| act.clone()
        })
        .await;
        let outcome = login_at(&server).await;
        assert!(!outcome.begun, "{act:?}");
        let error = outcome.failure();
        assert_eq!(error.kind, kind, "{act:?}");
        if !error.stage.before_the_server() {
            assert_ne!(error.retry, Retry::Now, "{act:?}");
            assert!(!matches!(error.retry, Retry::Later { .. }), "{act:?}");
        }
        assert_eq!(server.seen().len(), 1, "{act:?}");
    }
}

#[tokio::test]
async fn a_refused_login_says_what_it_may_be() {
    let server = Server::answering(answer("403 FORBIDDEN", &[], b"{}")).await;
    let error = login_at(&server).await.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::Unauthorized, Stage::FirstByte));
    assert!(error.detail.unwrap().as_str().contains("one-time code"));
}

#[tokio::test]
async fn an_answer_to_a_login_is_small() {
    let mut body = signed_in();
    body["extra"] = json!("x".repeat(100_000));
    let server = Server::answering(ok(&body.to_string())).await;
    assert_eq!(login_at(&server).await.failure().kind, ErrorKind::TooLarge);
}

#[tokio::test]
async fn a_logout_carries_the_token_and_no_body() {
    let body = br#"{"message":"Your token has been revoked."}"#;
    let server = Server::answering(answer("200 OK", &[("Set-Cookie", "js=made.up; HttpOnly; Path=/")], body)).await;
    let mut client = Client::to(Scope::Session, server.address).await;
    for _ in 0..2 {
        let outcome = client.call(Call::Logout { token: token() }).await;
        assert_eq!((outcome.begun, outcome.end), (true, Ok(0)));
    }
    for seen in server.seen() {
        assert_eq!(seen.line, "POST /api/v1/logout HTTP/1.1");
        assert_eq!(seen.header("authorization"), Some("Token made.up-token_1"));
        assert_eq!(seen.header("content-length"), Some("0"));
        assert_eq!(seen.header("cookie"), None);
    }
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn a_logout_without_a_session_is_unauthorized() {
    let server = Server::answering(answer("403 FORBIDDEN", &[], b"{}")).await;
    let outcome = Client::to(Scope::Session, server.address).await.call(Call::Logout { token: token() }).await;
    let error = outcome.failure();
    assert_eq!((error.kind, error.retry), (ErrorKind::Unauthorized, Retry::WhenUserActs));
}

/// The server has ended the session, whatever becomes of the words in which it says so.
#[tokio::test]
async fn a_logout_is_done_though_its_answer_is_cut() {
    let server =
        Server::new(|_| Act::SendAndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 44\r\n\r\n{\"message\":".to_vec()))
            .await;
    let outcome = Client::to(Scope::Session, server.address).await.call(Call::Logout { token: token() }).await;
    assert_eq!((outcome.begun, outcome.end), (true, Ok(0)));
}

/// A kept connection that the server has closed: the next call goes over a new one, and the server sees each call once.
#[tokio::test]
async fn a_stale_connection_repeats_nothing() {
    let count = AtomicUsize::new(0);
    let server = Server::new(move |_| {
        // Says nothing of closing, and closes.
        count.fetch_add(1, Ordering::SeqCst);
        Act::SendAndClose(ok(r#"{"message":"Your token has been revoked."}"#))
    })
    .await;
    let mut client = Client::to(Scope::Session, server.address).await;
    let mut made = 0;
    for _ in 0..20 {
        let outcome = client.call(Call::Logout { token: token() }).await;
        // Where the end of the connection crosses the request nobody knows whether it arrived, and the client decides.
        if let Err(error) = outcome.end {
            assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::FirstByte));
        }
        made += 1;
        assert!(server.seen().len() <= made);
    }
}
