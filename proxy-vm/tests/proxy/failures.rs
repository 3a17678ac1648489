//! Servers that fail, each in its way.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use protocol::answer::{Part, ServerContact};
use protocol::{Call, ErrorKind, FromProxy, Retry, Scope, Stage};
use proxy_vm::config;
use proxy_vm::journalist_api::Limits;
use tokio::net::TcpSocket;
use tokio::sync::Notify;

use crate::client::{Client, LONG, get_sources, get_users, pass, token};
use crate::fixtures::{any_list, id};
use crate::server::{Act, Server, answer, ok};

/// The longest that a server was seen to take for the head of an answer, and a little more.
const SLOW: Duration = Duration::from_secs(100);
/// More than any bound but a call's deadline.
const VERY_LONG: Duration = Duration::from_secs(3600);

async fn failing(act: Act) -> (protocol::CallError, ServerContact) {
    let server = Server::new(move |_| act.clone()).await;
    let mut client = Client::to(Scope::Metadata, server.address).await;
    let outcome = client.call(get_sources()).await;
    assert!(!outcome.begun);
    assert_eq!(server.seen().len(), 1);
    (outcome.failure(), client.contact().await)
}

#[tokio::test]
async fn every_refusal_of_the_server_has_its_kind() {
    for (status, kind) in [
        ("400 BAD REQUEST", ErrorKind::Refused),
        ("403 FORBIDDEN", ErrorKind::Unauthorized),
        ("404 NOT FOUND", ErrorKind::NotFound),
        ("409 CONFLICT", ErrorKind::Conflict),
        ("413 TOO LARGE", ErrorKind::TooLarge),
        ("500 INTERNAL SERVER ERROR", ErrorKind::Server),
        ("201 CREATED", ErrorKind::BadResponse),
        ("206 PARTIAL CONTENT", ErrorKind::BadResponse),
        ("304 NOT MODIFIED", ErrorKind::BadResponse),
    ] {
        let (error, contact) = failing(Act::SendAndClose(answer(status, &[], b"{}"))).await;
        assert_eq!((error.kind, error.stage), (kind, Stage::FirstByte), "{status}");
        assert!(matches!(contact, ServerContact::Answered { .. }), "{status}");
    }
}

#[tokio::test]
async fn a_busy_server_says_when_to_come_again() {
    for (status, kind) in [("429 TOO MANY REQUESTS", ErrorKind::RateLimited), ("503 BUSY", ErrorKind::Server)] {
        let (error, _) = failing(Act::Send(answer(status, &[("Retry-After", "17")], b""))).await;
        assert_eq!((error.kind, error.retry), (kind, Retry::Later { wait_ms: Some(17_000) }));
    }
}

#[tokio::test]
async fn an_end_before_the_answer_is_told_from_nonsense() {
    let (error, contact) = failing(Act::SendAndClose(Vec::new())).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::FirstByte));
    assert!(matches!(contact, ServerContact::Failed { kind: ErrorKind::Unreachable, stage: Stage::FirstByte, .. }));

    let (error, _) = failing(Act::SendAndClose(b"HTTP/1.1 20".to_vec())).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::FirstByte));

    for nonsense in [&b"SSH-2.0-OpenSSH_9.9\r\n\r\n"[..], b"HTTP/1.1 banana\r\n\r\n", b"\0\0\0\0\0\0\0\0\r\n\r\n"] {
        let (error, _) = failing(Act::SendAndClose(nonsense.to_vec())).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::BadResponse, Stage::FirstByte), "{nonsense:?}");
    }
}

#[tokio::test]
async fn n6_a_silent_server_times_out_at_the_first_byte() {
    let server = Server::new(|_| Act::SendAndHang(Vec::new())).await;
    let mut client = Client::to(Scope::Metadata, server.address).await;
    let call = client.start(get_sources(), LONG).await;
    server.until_seen(1).await;
    pass(LONG).await;
    let error = client.next_failure(call).await;
    assert_eq!((error.kind, error.stage, error.detail), (ErrorKind::Timeout, Stage::FirstByte, None));
    let contact = client.contact().await;
    assert!(
        matches!(contact, ServerContact::Failed { kind: ErrorKind::Timeout, stage: Stage::FirstByte, .. }),
        "{contact:?}"
    );
}

/// On a kept connection too, where nothing is connected.
#[tokio::test]
async fn n6_a_server_that_falls_silent_times_out_at_the_first_byte() {
    let server = Server::new(|seen| {
        if seen.path().ends_with("/users") { Act::Send(ok(&any_list("/users"))) } else { Act::SendAndHang(Vec::new()) }
    })
    .await;
    let mut client = Client::to(Scope::Metadata, server.address).await;
    client.call(get_users()).await.listed();
    let call = client.start(get_sources(), LONG).await;
    server.until_seen(2).await;
    pass(LONG).await;
    let error = client.next_failure(call).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::FirstByte));
    assert_eq!(server.connections(), 1);
}

/// A circuit that has died: without a bound of its own the call would wait for all of its deadline.
#[tokio::test]
async fn n6_a_silent_server_is_given_up_long_before_a_long_deadline() {
    let server = Server::new(|_| Act::SendAndHang(Vec::new())).await;
    let origin = format!("http://{}", server.address);
    let settings = [(config::ORIGIN, origin.as_str()), (config::TOR, "off")];
    // Short enough to wait for. What is asserted is which bound runs out, not when.
    let limits = Limits { first_byte: Duration::from_millis(50), ..Limits::default() };
    let mut client = Client::with(Scope::Mark, &settings, limits).await;
    let star = Call::Star { token: token(), source: id(1, 1).parse().unwrap() };
    let error = client.call_within(star, VERY_LONG).await.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::FirstByte));
    assert_eq!(error.detail.unwrap().as_str(), "the server did not answer");
    let contact = client.contact().await;
    assert!(matches!(contact, ServerContact::Failed { kind: ErrorKind::Timeout, stage: Stage::FirstByte, .. }));
}

/// S3: a server that makes a list for longer than anything else may take is waited for as long as the call's deadline allows,
/// but for the time that the body needs.
#[tokio::test]
async fn s3_a_list_that_the_client_gives_long_may_begin_late() {
    let limits = Limits::default();
    let late = limits.first_byte + Duration::from_secs(20);
    let release = Arc::new(Notify::new());
    let server = Server::asynchronous({
        let release = Arc::clone(&release);
        move |seen| {
            let release = Arc::clone(&release);
            Box::pin(async move {
                release.notified().await;
                Act::Send(ok(&any_list(seen.path())))
            })
        }
    })
    .await;
    let mut client = Client::to(Scope::Metadata, server.address).await;
    let call = client.start(get_sources(), late + 5 * limits.idle).await;
    server.until_seen(1).await;
    pass(late).await;
    release.notify_one();
    assert_eq!(client.next().await, FromProxy { id: call, part: Part::Begin });
    assert!(matches!(client.next().await.part, Part::Items(_)));
    assert_eq!(client.next().await, FromProxy { id: call, part: Part::End { count: 2 } });

    // It does not last for ever, and what ends it is not the deadline, which would not say that nothing came.
    let call = client.start(get_sources(), late + limits.idle).await;
    server.until_seen(2).await;
    pass(late).await;
    let error = client.next_failure(call).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::FirstByte));
    assert_eq!(error.detail.unwrap().as_str(), "the server did not answer");
}

#[test]
fn the_bounds_nest() {
    let limits = Limits::default();
    assert!(limits.connect < limits.first_byte && SLOW < limits.first_byte);
}

#[tokio::test]
async fn n6_a_body_that_stops_times_out_in_the_body() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"sources\":[".to_vec();
    let server = Server::new(move |_| Act::SendAndHang(head.clone())).await;
    let origin = format!("http://{}", server.address);
    let settings = [(config::ORIGIN, origin.as_str()), (config::TOR, "off")];

    // The bound for pauses runs out, and then the call's own deadline.
    let limits = Limits::default();
    for (deadline, passes, told) in [(VERY_LONG, limits.idle, true), (limits.idle / 3, limits.idle / 2, false)] {
        let mut client = Client::with(Scope::Metadata, &settings, limits).await;
        let call = client.start(get_sources(), deadline).await;
        assert_eq!(client.next().await, FromProxy { id: call, part: Part::Begin });
        pass(passes).await;
        let error = client.next_failure(call).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::Body));
        assert_eq!(error.detail.is_some(), told);
    }
}

/// S3: an answer that begins after 90 s is taken. One call runs into the bound for pauses while the other waits for its
/// first byte, which comes only afterwards.
#[tokio::test]
async fn s3_a_slow_first_byte_is_waited_for_beyond_every_smaller_bound() {
    let slow = Arc::new(Notify::new());
    let release = Arc::clone(&slow);
    let server = Server::asynchronous(move |seen| {
        let slow = Arc::clone(&slow);
        Box::pin(async move {
            if seen.path().ends_with("/users") {
                return Act::SendAndHang(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_vec());
            }
            slow.notified().await;
            Act::Send(ok(&any_list(seen.path())))
        })
    })
    .await;
    let origin = format!("http://{}", server.address);
    let settings = [(config::ORIGIN, origin.as_str()), (config::TOR, "off")];
    let mut client = Client::with(Scope::Metadata, &settings, Limits::default()).await;

    let waiting = client.start(get_sources(), VERY_LONG).await;
    let paused = client.start(get_users(), VERY_LONG).await;
    server.until_seen(2).await;
    assert_eq!(client.next().await, FromProxy { id: paused, part: Part::Begin });
    pass(SLOW).await;
    let error = client.next_failure(paused).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::Body));
    release.notify_one();
    assert_eq!(client.next().await, FromProxy { id: waiting, part: Part::Begin });
    assert!(matches!(client.next().await.part, Part::Items(_)));
    assert_eq!(client.next().await, FromProxy { id: waiting, part: Part::End { count: 2 } });
}

/// An address where nobody listens: the port is taken for as long as this lives, so nobody else can come to listen there.
pub(crate) struct Nobody {
    pub(crate) address: SocketAddr,
    _bound: TcpSocket,
}

impl Nobody {
    pub(crate) fn new() -> Self {
        let bound = TcpSocket::new_v4().unwrap();
        bound.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        Self { address: bound.local_addr().unwrap(), _bound: bound }
    }
}

#[tokio::test]
async fn n6_without_tor_a_refused_connection_is_unreachable() {
    let nobody = Nobody::new();
    let mut client = Client::to(Scope::Metadata, nobody.address).await;
    assert_eq!(client.contact().await, ServerContact::NoneYet);
    let error = client.call(get_sources()).await.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Connect));
    let contact = client.contact().await;
    assert!(matches!(contact, ServerContact::Failed { kind: ErrorKind::Unreachable, stage: Stage::Connect, .. }));
}
