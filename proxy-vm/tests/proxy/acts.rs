//! Stars, seen marks, and deletions of one thing.

use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::answer::{Part, ServerContact};
use protocol::value::Bounded;
use protocol::{Call, ErrorKind, FromProxy, Retry, Scope, SeenItems, Stage};
use proxy_vm::journalist_api::Limits;
use serde_json::{Value, json};

use crate::client::{Client, LONG, pass, token};
use crate::fixtures::id;
use crate::server::{Act, Server, answer, ok};

/// What each act is on the wire.
pub(crate) struct Expected {
    pub(crate) call: Call,
    line: String,
    /// The statuses that say success.
    success: &'static [&'static str],
    body: Option<Value>,
}

fn seen_items() -> SeenItems {
    SeenItems {
        files: Bounded::try_new(vec![id(2, 3).parse().unwrap()]).unwrap(),
        messages: Bounded::try_new(vec![id(2, 2).parse().unwrap(), id(2, 1).parse().unwrap()]).unwrap(),
        replies: Bounded::try_new(vec![id(3, 4).parse().unwrap()]).unwrap(),
    }
}

pub(crate) fn acts() -> Vec<Expected> {
    let (source, submission, reply) = (id(1, 7), id(2, 5), id(3, 6));
    vec![
        Expected {
            call: Call::Star { token: token(), source: source.parse().unwrap() },
            line: format!("POST /api/v1/sources/{source}/add_star HTTP/1.1"),
            success: &["201 CREATED", "200 OK"],
            body: None,
        },
        Expected {
            call: Call::Unstar { token: token(), source: source.parse().unwrap() },
            line: format!("DELETE /api/v1/sources/{source}/remove_star HTTP/1.1"),
            success: &["200 OK"],
            body: None,
        },
        Expected {
            call: Call::MarkSeen { token: token(), items: seen_items() },
            line: "POST /api/v1/seen HTTP/1.1".to_owned(),
            success: &["200 OK"],
            body: Some(json!({"files": [id(2, 3)], "messages": [id(2, 2), id(2, 1)], "replies": [id(3, 4)]})),
        },
        Expected {
            call: Call::DeleteSource { token: token(), source: source.parse().unwrap() },
            line: format!("DELETE /api/v1/sources/{source} HTTP/1.1"),
            success: &["200 OK"],
            body: None,
        },
        Expected {
            call: Call::DeleteSubmission {
                token: token(),
                source: source.parse().unwrap(),
                submission: submission.parse().unwrap(),
            },
            line: format!("DELETE /api/v1/sources/{source}/submissions/{submission} HTTP/1.1"),
            success: &["200 OK"],
            body: None,
        },
        Expected {
            call: Call::DeleteReply { token: token(), source: source.parse().unwrap(), reply: reply.parse().unwrap() },
            line: format!("DELETE /api/v1/sources/{source}/replies/{reply} HTTP/1.1"),
            success: &["200 OK"],
            body: None,
        },
    ]
}

async fn client_for(call: &Call, server: &Server) -> Client {
    Client::to(call.scope().unwrap(), server.address).await
}

#[tokio::test]
async fn an_act_is_one_request_with_these_headers_and_this_body() {
    for Expected { call, line, success, body } in acts() {
        for status in success {
            let server = Server::answering(answer(status, &[], br#"{"message":"made up"}"#)).await;
            let mut client = client_for(&call, &server).await;
            let outcome = client.call(call.clone()).await;
            assert_eq!((outcome.begun, outcome.items.len(), outcome.end), (true, 0, Ok(0)), "{line} {status}");
            let [seen] = &server.seen()[..] else { panic!("not one request") };
            assert_eq!(seen.line, line);
            assert_eq!(seen.header("authorization"), Some("Token made.up-token_1"));

            let mut names: Vec<_> = seen.headers.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            let length = seen.body.len().to_string();
            match &body {
                Some(body) => {
                    assert_eq!(&serde_json::from_slice::<Value>(&seen.body).unwrap(), body);
                    assert_eq!(seen.header("content-type"), Some("application/json"));
                    assert_eq!(seen.header("content-length"), Some(length.as_str()));
                    names.retain(|name| !matches!(*name, "content-type" | "content-length"));
                }
                // A POST says that it has no body, and nothing else does.
                None if line.starts_with("POST") => {
                    assert_eq!(seen.header("content-length"), Some("0"));
                    names.retain(|name| *name != "content-length");
                }
                None => assert!(seen.body.is_empty()),
            }
            assert_eq!(names, ["accept", "accept-encoding", "authorization", "host", "x-request-id"], "{line}");
            assert!(matches!(client.contact().await, ServerContact::Answered { .. }));
        }
    }
}

#[tokio::test]
async fn acts_share_a_connection() {
    let server = Server::new(|seen| {
        Act::Send(if seen.path().ends_with("/add_star") { answer("201 CREATED", &[], b"{}") } else { ok("{}") })
    })
    .await;
    for scope in [Scope::Mark, Scope::Delete] {
        let before = server.connections();
        let mut client = Client::to(scope, server.address).await;
        for act in acts().into_iter().filter(|act| act.call.scope() == Some(scope)) {
            assert_eq!(client.call(act.call).await.end, Ok(0));
        }
        assert_eq!(server.connections(), before + 1);
    }
    assert_eq!(server.seen().len(), acts().len());
}

#[tokio::test]
async fn every_refusal_of_the_server_has_its_kind() {
    for (status, kind, retry) in [
        ("400 BAD REQUEST", ErrorKind::Refused, Retry::Never),
        ("401 UNAUTHORIZED", ErrorKind::Unauthorized, Retry::WhenUserActs),
        ("403 FORBIDDEN", ErrorKind::Unauthorized, Retry::WhenUserActs),
        ("404 NOT FOUND", ErrorKind::NotFound, Retry::Never),
        ("409 CONFLICT", ErrorKind::Conflict, Retry::Never),
        ("410 GONE", ErrorKind::NotFound, Retry::Never),
        ("429 TOO MANY REQUESTS", ErrorKind::RateLimited, Retry::Later { wait_ms: Some(3000) }),
        ("500 INTERNAL SERVER ERROR", ErrorKind::Server, Retry::Later { wait_ms: Some(3000) }),
        ("503 SERVICE UNAVAILABLE", ErrorKind::Server, Retry::Later { wait_ms: Some(3000) }),
        ("202 ACCEPTED", ErrorKind::BadResponse, Retry::Later { wait_ms: None }),
        ("204 NO CONTENT", ErrorKind::BadResponse, Retry::Later { wait_ms: None }),
        ("206 PARTIAL CONTENT", ErrorKind::BadResponse, Retry::Later { wait_ms: None }),
        ("301 MOVED PERMANENTLY", ErrorKind::BadResponse, Retry::Later { wait_ms: None }),
    ] {
        let headers = [("Retry-After", "3"), ("Location", "/api/v1/elsewhere"), ("Connection", "close")];
        let server = Server::new(move |_| Act::SendAndClose(answer(status, &headers, b""))).await;
        for (number, act) in acts().into_iter().enumerate() {
            let outcome = client_for(&act.call, &server).await.call(act.call).await;
            assert!(!outcome.begun, "{} {status}", act.line);
            let error = outcome.failure();
            assert_eq!((error.kind, error.stage, error.retry), (kind, Stage::FirstByte, retry), "{}", act.line);
            assert_eq!(server.seen().len(), number + 1, "{} {status}", act.line);
        }
    }
}

/// Only a star is answered with 201.
#[tokio::test]
async fn the_success_of_another_request_is_no_success() {
    let server = Server::answering(answer("201 CREATED", &[], b"{}")).await;
    for act in acts().into_iter().filter(|act| !act.success.contains(&"201 CREATED")) {
        let error = client_for(&act.call, &server).await.call(act.call).await.failure();
        assert_eq!((error.kind, error.stage), (ErrorKind::BadResponse, Stage::FirstByte), "{}", act.line);
    }
}

#[tokio::test]
async fn an_act_is_done_once_the_status_says_so_whatever_the_body_is() {
    let chunked = "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"mes";
    for act in acts() {
        let status = act.success[0];
        for (form, bytes) in [
            ("none of it", format!("HTTP/1.1 {status}\r\nContent-Length: 40\r\n\r\n")),
            ("half of it", format!("HTTP/1.1 {status}\r\nContent-Length: 40\r\n\r\n{{\"message\":")),
            ("half a chunk", format!("HTTP/1.1 {status}\r\n{chunked}")),
            ("no JSON", format!("HTTP/1.1 {status}\r\nContent-Length: 6\r\n\r\n<html>")),
            ("too much", format!("HTTP/1.1 {status}\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000))),
            ("broken gzip", format!("HTTP/1.1 {status}\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone")),
        ] {
            let server = Server::new(move |_| Act::SendAndClose(bytes.clone().into_bytes())).await;
            let mut client = client_for(&act.call, &server).await;
            let outcome = client.call(act.call.clone()).await;
            assert_eq!((outcome.begun, outcome.end), (true, Ok(0)), "{}: {form}", act.line);
            assert!(matches!(client.contact().await, ServerContact::Answered { .. }));
            assert_eq!(server.seen().len(), 1);
        }
    }
}

#[tokio::test]
async fn n6_an_act_is_done_though_the_body_stops() {
    for act in acts() {
        let head = format!("HTTP/1.1 {}\r\nContent-Length: 40\r\n\r\n{{", act.success[0]).into_bytes();
        let server = Server::new(move |_| Act::SendAndHang(head.clone())).await;
        let mut client = client_for(&act.call, &server).await;
        let call = client.start(act.call, 10 * LONG).await;
        assert_eq!(client.next().await, FromProxy { id: call, part: Part::Begin });
        pass(Limits::default().idle).await;
        assert_eq!(client.next().await, FromProxy { id: call, part: Part::End { count: 0 } }, "{}", act.line);
    }
}

/// The call ends before its deadline would leave it open.
#[tokio::test]
async fn n6_an_act_is_done_though_the_body_stops_and_the_deadline_is_near() {
    let idle = Limits::default().idle;
    for act in acts() {
        let head = format!("HTTP/1.1 {}\r\nContent-Length: 40\r\n\r\n{{", act.success[0]).into_bytes();
        let server = Server::new(move |_| Act::SendAndHang(head.clone())).await;
        let mut client = client_for(&act.call, &server).await;
        let call = client.start(act.call, idle).await;
        assert_eq!(client.next().await, FromProxy { id: call, part: Part::Begin });
        pass(idle / 2).await;
        assert_eq!(client.next().await, FromProxy { id: call, part: Part::End { count: 0 } }, "{}", act.line);
    }
}

#[tokio::test]
async fn an_end_before_the_status_leaves_it_open() {
    for act in acts() {
        let server = Server::new(|_| Act::SendAndClose(b"HTTP/1.1 20".to_vec())).await;
        let error = client_for(&act.call, &server).await.call(act.call).await.failure();
        assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::FirstByte), "{}", act.line);
        assert!(!error.stage.before_the_server());
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn empty_lists_of_seen_items_are_left_out() {
    let server = Server::answering(ok("{}")).await;
    let mut client = Client::to(Scope::Mark, server.address).await;
    let SeenItems { files, messages, replies } = seen_items();
    for (items, body) in [
        (SeenItems { files, ..SeenItems::default() }, json!({"files": [id(2, 3)]})),
        (SeenItems { messages, ..SeenItems::default() }, json!({"messages": [id(2, 2), id(2, 1)]})),
        (SeenItems { replies, ..SeenItems::default() }, json!({"replies": [id(3, 4)]})),
    ] {
        assert_eq!(client.call(Call::MarkSeen { token: token(), items }).await.end, Ok(0));
        assert_eq!(serde_json::from_slice::<Value>(&server.seen().pop().unwrap().body).unwrap(), body);
    }
}

#[tokio::test]
async fn no_seen_items_are_refused_before_anything_is_sent() {
    let server = Server::answering(ok("{}")).await;
    let mut client = Client::to(Scope::Mark, server.address).await;
    let outcome = client.call(Call::MarkSeen { token: token(), items: SeenItems::default() }).await;
    assert!(!outcome.begun);
    let error = outcome.failure();
    assert_eq!((error.kind, error.stage, error.retry), (ErrorKind::Refused, Stage::Admission, Retry::Never));
    assert_eq!(client.contact().await, ServerContact::NoneYet);
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn an_act_of_another_scope_is_not_performed() {
    let server = Server::answering(ok("{}")).await;
    for act in acts() {
        for scope in Scope::ALL.into_iter().filter(|scope| act.call.scope() != Some(*scope)) {
            let error = Client::to(scope, server.address).await.call(act.call.clone()).await.failure();
            assert_eq!((error.kind, error.stage), (ErrorKind::OutOfScope, Stage::Admission), "{}", act.line);
        }
    }
    assert_eq!(server.connections(), 0);
}

/// A kept connection that the server has closed: the next call goes over a new one, and the server sees each call once.
#[tokio::test]
async fn a_stale_connection_repeats_no_act() {
    let count = AtomicUsize::new(0);
    let server = Server::new(move |_| {
        // Says nothing of closing, and closes.
        count.fetch_add(1, Ordering::SeqCst);
        Act::SendAndClose(ok("{}"))
    })
    .await;
    for scope in [Scope::Mark, Scope::Delete] {
        let mut client = Client::to(scope, server.address).await;
        for n in 0..20 {
            let source = id(1, n).parse().unwrap();
            let call = match scope {
                Scope::Mark => Call::Star { token: token(), source },
                Scope::Delete | Scope::Session | Scope::Metadata | Scope::Download | Scope::Reply => {
                    Call::DeleteSource { token: token(), source }
                }
            };
            let outcome = client.call(call).await;
            // Where the end of the connection crosses the request nobody knows whether it arrived, and the client decides.
            if let Err(error) = outcome.end {
                assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::FirstByte));
            }
        }
    }
    let mut lines: Vec<_> = server.seen().into_iter().map(|seen| seen.line).collect();
    let seen = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), seen);
}
