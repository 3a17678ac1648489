//! Asking whether the server is there.

use protocol::{Call, ErrorKind, Items, Scope, Stage};

use crate::client::{Client, Outcome};
use crate::server::{Act, Server, answer};

const ROOT: &str = r#"{"sources_url":"/api/v1/sources","auth_token_url":"/api/v1/token","current_user_url":"/x"}"#;

async fn probed(server: &Server, scope: Scope) -> Outcome {
    Client::to(scope, server.address).await.call(Call::Probe).await
}

#[tokio::test]
async fn a_probe_is_one_request_without_a_token_and_says_what_time_it_is_there() {
    let date = ("Date", "Thu, 24 Oct 2024 15:51:17 GMT");
    let server = Server::answering(answer("200 OK", &[date], ROOT.as_bytes())).await;
    let outcome = probed(&server, Scope::Metadata).await;
    let [Items::Probe(probe)] = &outcome.items[..] else { panic!("{outcome:?}") };
    assert_eq!(probe.server_date.map(protocol::value::Timestamp::get), Some(1_729_785_077_000_000));
    assert_eq!(outcome.end, Ok(1));
    let [seen] = &server.seen()[..] else { panic!("not one request") };
    assert_eq!((seen.line.as_str(), seen.header("authorization")), ("GET /api/v1/ HTTP/1.1", None));
}

#[tokio::test]
async fn a_server_that_does_not_say_the_time_is_there_all_the_same() {
    let server = Server::answering(answer("200 OK", &[("Date", "soon")], ROOT.as_bytes())).await;
    let outcome = probed(&server, Scope::Metadata).await;
    let [Items::Probe(probe)] = &outcome.items[..] else { panic!("{outcome:?}") };
    assert_eq!(probe.server_date, None);
}

#[tokio::test]
async fn what_is_not_the_api_is_told_apart() {
    for (status, body, kind, stage) in [
        ("200 OK", "<html>SecureDrop</html>", ErrorKind::BadResponse, Stage::Parse),
        ("200 OK", "{}", ErrorKind::BadResponse, Stage::Parse),
        ("200 OK", "[1,2]", ErrorKind::BadResponse, Stage::Parse),
        ("404 NOT FOUND", "{}", ErrorKind::NotFound, Stage::FirstByte),
        ("500 INTERNAL SERVER ERROR", "", ErrorKind::Server, Stage::FirstByte),
    ] {
        let server = Server::answering(answer(status, &[], body.as_bytes())).await;
        let error = probed(&server, Scope::Metadata).await.failure();
        assert_eq!((error.kind, error.stage), (kind, stage), "{status} {body}");
    }
    // What never ends is not read to its end.
    let endless = format!("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{}", " ".repeat(100_000));
    let server = Server::new(move |_| Act::SendAndHang(endless.clone().into_bytes())).await;
    assert_eq!(probed(&server, Scope::Metadata).await.failure().kind, ErrorKind::TooLarge);
}

#[tokio::test]
async fn a_probe_belongs_to_the_scope_of_the_lists() {
    let server = Server::answering(answer("200 OK", &[], ROOT.as_bytes())).await;
    assert_eq!(probed(&server, Scope::Mark).await.failure().kind, ErrorKind::OutOfScope);
    assert!(server.seen().is_empty());
}
