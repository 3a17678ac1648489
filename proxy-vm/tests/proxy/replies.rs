//! Sending replies.

use std::time::Duration;

use protocol::answer::{Part, ServerContact};
use protocol::value::{ArmoredMessage, OrderNumber};
use protocol::{Call, ErrorKind, FromProxy, Items, Retry, Scope, Stage, StoredReply};
use proxy_vm::config;
use proxy_vm::journalist_api::Limits;
use serde_json::{Value, json};

use crate::client::{Client, LONG, pass, token};
use crate::failures::Nobody;
use crate::fixtures::id;
use crate::server::{Act, Server, answer};
use crate::socks_stub::{SocksStub, Way};

const LATER: Retry = Retry::Later { wait_ms: None };

/// A message of `length` bytes, which nobody has encrypted: the proxy does not look into it.
fn message(length: usize) -> ArmoredMessage {
    let (begin, end) = ("-----BEGIN PGP MESSAGE-----\n\n", "\n-----END PGP MESSAGE-----\n");
    let line = "made/up+ciphertext";
    let body: String = line.chars().cycle().take(length - begin.len() - end.len()).collect();
    ArmoredMessage::try_new(format!("{begin}{body}{end}")).unwrap()
}

pub(crate) fn reply(n: usize) -> Call {
    let (source, reply) = (id(1, 7).parse().unwrap(), id(3, n).parse().unwrap());
    Call::SendReply { token: token(), source, reply, message: message(500) }
}

/// What a server says once it has stored a reply.
fn stored(uuid: &str, filename: &Value) -> Vec<u8> {
    let body = json!({"filename": filename, "message": "Your reply has been stored", "uuid": uuid});
    answer("201 CREATED", &[], format!("{body}\n").as_bytes())
}

/// A server that stores everything, under the ids that it is told.
async fn storing() -> Server {
    Server::new(|seen| {
        let body: Value = serde_json::from_slice(&seen.body).unwrap();
        Act::Send(stored(body["uuid"].as_str().unwrap(), &json!("12-quiet_meadow-reply.gpg")))
    })
    .await
}

async fn client_to(server: &Server) -> Client {
    Client::to(Scope::Reply, server.address).await
}

#[tokio::test]
async fn a_reply_is_one_request_with_these_headers_and_this_body() {
    let server = storing().await;
    let mut client = client_to(&server).await;
    let outcome = client.call(reply(6)).await;
    assert_eq!((outcome.begun, &outcome.end), (true, &Ok(1)));
    let [Items::Stored(StoredReply { reply, order, filename })] = &outcome.items[..] else { panic!("{outcome:?}") };
    assert_eq!(reply.to_string(), id(3, 6));
    assert_eq!(*order, Some(OrderNumber::try_new(12).unwrap()));
    assert_eq!(filename.as_ref().unwrap().as_str(), "12-quiet_meadow-reply.gpg");

    let [seen] = &server.seen()[..] else { panic!("not one request") };
    assert_eq!(seen.line, format!("POST /api/v1/sources/{}/replies HTTP/1.1", id(1, 7)));
    let body = json!({"reply": message(500).as_str(), "uuid": id(3, 6)});
    assert_eq!(serde_json::from_slice::<Value>(&seen.body).unwrap(), body);
    assert_eq!(seen.header("authorization"), Some("Token made.up-token_1"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("content-length"), Some(seen.body.len().to_string().as_str()));
    let mut names: Vec<_> = seen.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let expected =
        ["accept", "accept-encoding", "authorization", "content-length", "content-type", "host", "x-request-id"];
    assert_eq!(names, expected);
    assert!(matches!(client.contact().await, ServerContact::Answered { .. }));
}

#[tokio::test]
async fn the_longest_replies_arrive_whole_beside_each_other() {
    let server = storing().await;
    let mut client = client_to(&server).await;
    let longest = message(ArmoredMessage::MAX);
    let calls = (0..4).map(|n| match reply(n) {
        Call::SendReply { token, source, reply, .. } => {
            Call::SendReply { token, source, reply, message: longest.clone() }
        }
        other => panic!("no reply: {other:?}"),
    });
    for outcome in client.calls(calls.collect(), LONG).await {
        assert_eq!(outcome.end, Ok(1));
    }
    for seen in server.seen() {
        assert_eq!(serde_json::from_slice::<Value>(&seen.body).unwrap()["reply"], longest.as_str());
    }
}

#[tokio::test]
async fn f8_a_file_name_that_cannot_be_read_is_left_out_and_the_reply_is_sent() {
    for (filename, order) in [
        (json!(null), None),
        (json!(5), None),
        (json!(""), None),
        (json!("../../.config/autostart/x.desktop"), None),
        (json!("3-a\nb-reply.gpg"), None),
        (json!("x".repeat(5_000)), None),
        (json!("reply.gpg"), Some(None)),
        (json!("+3-level_reef-reply.gpg"), Some(None)),
        (json!("99999999999999999999-level_reef-reply.gpg"), Some(None)),
        (json!("0-\u{202e}level_reef-reply.gpg"), Some(Some(0))),
    ] {
        let bytes = stored(&id(3, 6), &filename);
        let server = Server::answering(bytes).await;
        let outcome = client_to(&server).await.call(reply(6)).await;
        assert_eq!(outcome.end, Ok(1), "{filename}");
        let [Items::Stored(stored)] = &outcome.items[..] else { panic!("{outcome:?}") };
        assert_eq!(stored.filename.as_ref().map(|name| json!(name.as_str())), order.map(|_| filename));
        assert_eq!(stored.order.map(OrderNumber::get), order.flatten());
    }
}

#[tokio::test]
async fn r1_a_reply_that_is_stored_under_another_id_is_no_success_and_not_to_be_repeated() {
    for other in [id(3, 5), id(3, 6).replace("8333", "8334"), "6".repeat(36)] {
        let server = Server::answering(stored(&other, &json!("12-quiet_meadow-reply.gpg"))).await;
        let outcome = client_to(&server).await.call(reply(6)).await;
        assert!(!outcome.begun);
        let error = outcome.failure();
        let readable = other.contains('-');
        let retry = if readable { Retry::Never } else { LATER };
        assert_eq!((error.kind, error.stage, error.retry), (ErrorKind::BadResponse, Stage::Parse, retry));
        assert_eq!(error.detail.is_some(), readable);
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn an_answer_that_is_none_leaves_open_what_became_of_the_reply() {
    for body in [&b""[..], b"{}", b"[]", b"null", b"<html>", b"\xff\xfe", b"{\"uuid\":null,\"filename\":\"1-a\"}"] {
        let server = Server::answering(answer("201 CREATED", &[], body)).await;
        let outcome = client_to(&server).await.call(reply(6)).await;
        assert!(!outcome.begun);
        let error = outcome.failure();
        assert_eq!((error.kind, error.stage, error.retry), (ErrorKind::BadResponse, Stage::Parse, LATER), "{body:?}");
    }
}

#[tokio::test]
async fn every_refusal_of_the_server_has_its_kind() {
    let plain = br#"{"message":"You must encrypt replies client side"}"#;
    let named = br#"{"error":"Bad Request","message":"reply should not be empty"}"#;
    let three = Retry::Later { wait_ms: Some(3000) };
    for (status, body, kind, retry) in [
        ("400 BAD REQUEST", &plain[..], ErrorKind::Refused, Retry::Never),
        ("400 BAD REQUEST", named, ErrorKind::Refused, Retry::Never),
        ("400 BAD REQUEST", b"", ErrorKind::Refused, Retry::Never),
        ("401 UNAUTHORIZED", b"", ErrorKind::Unauthorized, Retry::WhenUserActs),
        ("403 FORBIDDEN", b"", ErrorKind::Unauthorized, Retry::WhenUserActs),
        ("404 NOT FOUND", b"", ErrorKind::NotFound, Retry::Never),
        ("409 CONFLICT", b"{}", ErrorKind::Conflict, Retry::Never),
        ("410 GONE", b"", ErrorKind::NotFound, Retry::Never),
        ("413 REQUEST ENTITY TOO LARGE", b"", ErrorKind::TooLarge, Retry::Never),
        ("429 TOO MANY REQUESTS", b"", ErrorKind::RateLimited, three),
        ("500 INTERNAL SERVER ERROR", b"<html>", ErrorKind::Server, three),
        ("502 BAD GATEWAY", b"", ErrorKind::Server, three),
        ("200 OK", b"{}", ErrorKind::BadResponse, LATER),
        ("202 ACCEPTED", b"", ErrorKind::BadResponse, LATER),
        ("307 TEMPORARY REDIRECT", b"", ErrorKind::BadResponse, LATER),
    ] {
        let headers = [("Retry-After", "3"), ("Location", "/api/v1/elsewhere")];
        let server = Server::answering(answer(status, &headers, body)).await;
        let outcome = client_to(&server).await.call(reply(6)).await;
        assert!(!outcome.begun, "{status}");
        let error = outcome.failure();
        assert_eq!((error.kind, error.stage, error.retry), (kind, Stage::FirstByte, retry), "{status}");
        assert_eq!(error.detail.unwrap().as_str(), format!("HTTP {}", &status[..3]));
        assert_eq!(server.seen().len(), 1, "{status}");
    }
}

/// What a kind says counts: none of these may look as if the reply was refused.
#[tokio::test]
async fn r1_a_broken_answer_leaves_open_what_became_of_the_reply() {
    let whole = format!("{{\"filename\":\"1-a-reply.gpg\",\"uuid\":\"{}\"}}", id(3, 6));
    let head = "HTTP/1.1 201 CREATED\r\n";
    for (form, bytes) in [
        ("none of it", format!("{head}Content-Length: {}\r\n\r\n", whole.len())),
        ("half of it", format!("{head}Content-Length: {}\r\n\r\n{}", whole.len(), &whole[..20])),
        ("half a chunk", format!("{head}Transfer-Encoding: chunked\r\n\r\n40\r\n{}", &whole[..20])),
        ("too much", format!("{head}Content-Length: 100000\r\n\r\n{}", "x".repeat(100_000))),
        ("broken gzip", format!("{head}Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone")),
    ] {
        let server = Server::new(move |_| Act::SendAndClose(bytes.clone().into_bytes())).await;
        let outcome = client_to(&server).await.call(reply(6)).await;
        assert!(!outcome.begun, "{form}");
        let error = outcome.failure();
        assert_eq!((error.kind, error.stage, error.retry), (ErrorKind::BadResponse, Stage::Body, LATER), "{form}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn n6_an_answer_that_stops_times_out_in_the_body() {
    let head = b"HTTP/1.1 201 CREATED\r\nContent-Length: 100\r\n\r\n{\"uuid\":".to_vec();
    let server = Server::new(move |_| Act::SendAndHang(head.clone())).await;
    let settings = [(config::ORIGIN, &*format!("http://{}", server.address)), (config::TOR, "off")];
    // Short enough to wait for. What is asserted is which bound runs out, not when.
    let limits = Limits { idle: Duration::from_millis(50), ..Limits::default() };
    let mut client = Client::with(Scope::Reply, &settings, limits).await;
    let outcome = client.call(reply(6)).await;
    assert!(!outcome.begun);
    let error = outcome.failure();
    assert_eq!((error.kind, error.stage, error.retry), (ErrorKind::Timeout, Stage::Body, LATER));
}

#[tokio::test]
async fn r1_an_end_before_the_status_may_be_behind_the_storing() {
    for said in [&b""[..], b"HTTP/1.1 20"] {
        let server = Server::new(move |_| Act::SendAndClose(said.to_vec())).await;
        let error = client_to(&server).await.call(reply(6)).await.failure();
        assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::FirstByte));
        assert!(!error.stage.before_the_server());
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn n6_a_deadline_that_runs_out_says_whether_the_server_may_have_the_reply() {
    // Never connected.
    let socks = SocksStub::new(Way::Hang).await;
    let settings = [(config::ORIGIN, "http://made-up.example"), (config::SOCKS, &*socks.address.to_string())];
    let mut client = Client::with(Scope::Reply, &settings, Limits::default()).await;
    let call = client.start(reply(6), LONG / 3).await;
    socks.until_asked(1).await;
    pass(LONG / 3).await;
    let error = client.next_failure(call).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::Connect));
    assert!(error.stage.before_the_server());

    // Sent, and not answered.
    let server = Server::new(|_| Act::SendAndHang(Vec::new())).await;
    let mut client = client_to(&server).await;
    let call = client.start(reply(6), LONG).await;
    server.until_seen(1).await;
    pass(LONG).await;
    let error = client.next_failure(call).await;
    assert_eq!((error.kind, error.stage, error.retry), (ErrorKind::Timeout, Stage::FirstByte, LATER));
    assert!(!error.stage.before_the_server());
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn n6_a_reply_that_finds_nobody_was_not_sent() {
    let nobody = Nobody::new();
    let error = Client::to(Scope::Reply, nobody.address).await.call(reply(6)).await.failure();
    assert_eq!((error.kind, error.stage, error.retry), (ErrorKind::Unreachable, Stage::Connect, LATER));
    assert!(error.stage.before_the_server());
}

#[tokio::test]
async fn a_reply_in_another_scope_is_not_sent() {
    let server = storing().await;
    for scope in Scope::ALL.into_iter().filter(|scope| *scope != Scope::Reply) {
        let error = Client::to(scope, server.address).await.call(reply(6)).await.failure();
        assert_eq!((error.kind, error.stage), (ErrorKind::OutOfScope, Stage::Admission), "{scope}");
    }
    assert_eq!(server.connections(), 0);
}

/// Cancelled while it is being sent, a reply may have arrived, and the session goes on.
#[tokio::test]
async fn a_cancelled_reply_says_how_far_it_was() {
    let server = Server::new(|_| Act::SendAndHang(Vec::new())).await;
    let mut client = client_to(&server).await;
    let call = client.start(reply(6), LONG).await;
    server.until_seen(1).await;
    client.send(&protocol::ToProxy::Cancel(call)).await;
    let FromProxy { id, part: Part::Failed(error) } = client.next().await else { panic!("no failure") };
    assert_eq!((id, error.kind, error.stage), (call, ErrorKind::Cancelled, Stage::FirstByte));
    assert_eq!(client.contact().await, ServerContact::NoneYet);
}

/// A kept connection that the server has closed: the next reply goes over a new one, and the server sees each reply once.
#[tokio::test]
async fn r1_a_stale_connection_repeats_no_reply() {
    let server = Server::new(|seen| {
        // Says nothing of closing, and closes.
        let body: Value = serde_json::from_slice(&seen.body).unwrap();
        Act::SendAndClose(stored(body["uuid"].as_str().unwrap(), &json!(null)))
    })
    .await;
    let mut client = client_to(&server).await;
    for n in 0..20 {
        // Where the end of the connection crosses the request nobody knows whether it arrived, and the client decides.
        if let Err(error) = client.call(reply(n)).await.end {
            assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::FirstByte));
        }
    }
    let mut bodies: Vec<_> = server.seen().into_iter().map(|seen| seen.body).collect();
    let seen = bodies.len();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies.len(), seen);
}
