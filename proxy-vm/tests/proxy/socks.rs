//! The way through Tor.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::answer::Part;
use protocol::{CallError, ErrorKind, FromProxy, Scope, Stage, ToProxy};
use proxy_vm::config;
use proxy_vm::journalist_api::Limits;
use tokio::sync::Notify;

use crate::client::{Client, LONG, get_sources, get_users, pass};
use crate::failures::Nobody;
use crate::fixtures::any_list;
use crate::server::{Act, Server, ok};
use crate::socks_stub::{Destination, SocksStub, Way};

const ONION: &str = "madeupmadeupmadeupmadeupmadeupmadeupmadeupmadeupmadeupma.onion";

async fn through(socks: SocketAddr, origin: &str, limits: Limits) -> Client {
    Client::with(Scope::Metadata, &[(config::ORIGIN, origin), (config::SOCKS, &socks.to_string())], limits).await
}

async fn failure(socks: SocketAddr) -> CallError {
    let mut client = through(socks, &format!("http://{ONION}"), Limits::default()).await;
    client.call(get_sources()).await.failure()
}

#[tokio::test]
async fn names_are_left_to_the_socks_server() {
    let server = Server::new(|seen| Act::Send(ok(&any_list(seen.path())))).await;
    let socks = SocksStub::new(Way::Relay(server.address)).await;
    for (origin, destination) in [
        (format!("http://{ONION}"), Destination::Name(ONION.to_owned(), 80)),
        (format!("http://{ONION}:8080"), Destination::Name(ONION.to_owned(), 8080)),
        ("http://192.0.2.7:81".to_owned(), Destination::Address(vec![192, 0, 2, 7], 81)),
    ] {
        let mut client = through(socks.address, &origin, Limits::default()).await;
        assert_eq!(client.call(get_sources()).await.listed(), (2, 0));
        assert_eq!(socks.asked().last(), Some(&destination));
        let host = origin.strip_prefix("http://").unwrap();
        assert_eq!(server.seen().last().unwrap().header("host"), Some(host));
    }
}

#[tokio::test]
async fn n6_no_socks_server_is_told_from_no_way() {
    let nobody = Nobody::new();
    let error = failure(nobody.address).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Socks));
    let error = failure(SocksStub::new(Way::HangUp).await.address).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Socks));
    // The replies of SOCKS 5.
    for code in 1..=8 {
        let socks = SocksStub::new(Way::Reply(code)).await;
        let error = failure(socks.address).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Route), "reply {code:#x}");
        assert!(error.to_string().contains("the SOCKS server has no way to the server"), "{error}");
        assert_eq!(socks.asked().len(), 1);
    }
}

/// Where something answers and is no SOCKS server for us, it is not the way that is missing.
#[tokio::test]
async fn n6_what_is_no_socks_server_for_us_is_told_from_no_way() {
    for (greeting, words) in [
        (&[5, 0xFF][..], "wants a sign-in"),
        (&[5, 2], "wants a sign-in"),
        (&[5, 1], "wants a sign-in"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "does not speak SOCKS 5"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "does not speak SOCKS 5"),
        (&[4, 90], "does not speak SOCKS 5"),
    ] {
        let error = failure(SocksStub::new(Way::Greeting(greeting)).await.address).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Socks), "{greeting:?}");
        assert!(error.to_string().contains(words), "{greeting:?}: {error}");
    }
}

/// Tor says why it does not get to an onion service, if it is set up to, in replies that SOCKS 5 does not have.
#[tokio::test]
async fn n6_tors_own_replies_are_told_in_words() {
    let mut said = BTreeSet::new();
    for code in 0xF0..=0xF7 {
        let socks = SocksStub::new(Way::Reply(code)).await;
        let error = failure(socks.address).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Route), "reply {code:#x}");
        let detail = error.detail.unwrap().as_str().to_owned();
        assert!(!detail.contains("unknown") && !detail.contains(ONION), "reply {code:#x}: {detail}");
        said.insert(detail);
        // The same was asked twice, and of nobody else.
        let onion = Destination::Name(ONION.to_owned(), 80);
        assert_eq!(socks.asked(), [onion.clone(), onion]);
    }
    assert_eq!(said.len(), 8, "{said:?}");
    for code in [9, 0x80, 0xEF, 0xF8, 0xFF] {
        let error = failure(SocksStub::new(Way::Reply(code)).await.address).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Route), "reply {code:#x}");
        assert!(error.to_string().contains("unknown reply"), "reply {code:#x}: {error}");
    }
}

/// The second look says more or nothing: it neither makes of the failure a success nor one that may have been seen.
#[tokio::test]
async fn n6_what_the_second_look_finds_changes_no_more_than_the_words() {
    let server = Server::new(|seen| Act::Send(ok(&any_list(seen.path())))).await;
    for second in [Way::Relay(server.address), Way::HangUp] {
        let socks = SocksStub::in_turn(vec![Way::Reply(0xF2), second]).await;
        let error = failure(socks.address).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Route), "{second:?}");
        assert!(error.to_string().contains("unknown reply"), "{second:?}: {error}");
    }
    assert!(server.seen().is_empty());

    let limits = Limits::default();
    for (deadline, passes) in [(10 * limits.connect, limits.connect), (limits.connect, limits.connect / 2)] {
        let socks = SocksStub::in_turn(vec![Way::Reply(0xF2), Way::Hang]).await;
        let mut client = through(socks.address, &format!("http://{ONION}"), limits).await;
        let call = client.start(get_sources(), deadline).await;
        socks.until_asked(2).await;
        pass(passes).await;
        let error = client.next_failure(call).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Route));
    }
}

#[tokio::test]
async fn n6_a_way_that_takes_too_long_times_out_while_connecting() {
    let limits = Limits::default();
    // The bound for connecting runs out, and then the call's own deadline.
    for (deadline, passes, told) in [(LONG, limits.connect, true), (limits.connect / 3, limits.connect / 2, false)] {
        let socks = SocksStub::new(Way::Hang).await;
        let mut client = through(socks.address, &format!("http://{ONION}"), limits).await;
        let call = client.start(get_sources(), deadline).await;
        socks.until_asked(1).await;
        pass(passes).await;
        let error = client.next_failure(call).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::Connect));
        assert_eq!(error.detail.is_some(), told);
    }
}

/// The bound for the first byte is not one for connecting, and begins only afterwards.
#[tokio::test]
async fn n6_connecting_does_not_count_as_waiting_for_the_first_byte() {
    let socks = SocksStub::new(Way::Hang).await;
    let limits = Limits { first_byte: Duration::from_secs(1), ..Limits::default() };
    let mut client = through(socks.address, &format!("http://{ONION}"), limits).await;
    let call = client.start(get_sources(), LONG).await;
    socks.until_asked(1).await;
    pass(limits.connect).await;
    let error = client.next_failure(call).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::Connect));
}

#[tokio::test]
async fn n6_beyond_the_socks_server_the_stages_are_the_servers() {
    let server = Server::new(|_| Act::SendAndHang(Vec::new())).await;
    let socks = SocksStub::new(Way::Relay(server.address)).await;
    let mut client = through(socks.address, &format!("http://{ONION}"), Limits::default()).await;
    let call = client.start(get_sources(), LONG).await;
    server.until_seen(1).await;
    pass(LONG).await;
    let error = client.next_failure(call).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::FirstByte));
}

/// A request that waited for a new connection and got another one that became free is no longer before the server, though
/// its own connection is still being made.
#[tokio::test]
async fn n6_a_request_on_a_connection_that_became_free_may_have_been_seen() {
    let release = Arc::new(Notify::new());
    let server = Server::asynchronous({
        let release = Arc::clone(&release);
        move |seen| {
            let release = Arc::clone(&release);
            Box::pin(async move {
                if seen.path().ends_with("/users") {
                    release.notified().await;
                    return Act::Send(ok(&any_list(seen.path())));
                }
                Act::SendAndHang(Vec::new())
            })
        }
    })
    .await;
    let socks = SocksStub::in_turn(vec![Way::Relay(server.address), Way::Hang]).await;
    let mut client = through(socks.address, &format!("http://{ONION}"), Limits::default()).await;
    let users = client.start(get_users(), LONG).await;
    server.until_seen(1).await;
    // There is no free connection, and the way to a second one hangs.
    let sources = client.start(get_sources(), LONG).await;
    socks.until_asked(2).await;
    release.notify_one();
    while !matches!(client.next().await, FromProxy { id, part: Part::End { .. } } if id == users) {}
    server.until_seen(2).await;
    assert_eq!(server.connections(), 1);
    client.send(&ToProxy::Cancel(sources)).await;
    let error = client.next_failure(sources).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Cancelled, Stage::FirstByte));
}
