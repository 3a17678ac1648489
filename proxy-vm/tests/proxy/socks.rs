//! The way through Tor.

use std::net::SocketAddr;
use std::time::Duration;

use protocol::{CallError, ErrorKind, Scope, Stage};
use proxy_vm::config;
use proxy_vm::journalist_api::Limits;

use crate::client::{Client, LONG, get_sources};
use crate::failures::nobody;
use crate::fixtures::any_list;
use crate::server::{Act, Server, ok};
use crate::socks_stub::{Destination, SocksStub, Way};

const ONION: &str = "madeupmadeupmadeupmadeupmadeupmadeupmadeupmadeupmadeupma.onion";
const SHORT: Duration = Duration::from_millis(200);

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
    let error = failure(nobody().await).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Socks));
    let error = failure(SocksStub::new(Way::HangUp).await.address).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Socks));
    // The replies of SOCKS 5, and two of Tor's own for onion services.
    for code in [1, 2, 3, 4, 5, 6, 7, 8, 0xF0, 0xF2] {
        let error = failure(SocksStub::new(Way::Reply(code)).await.address).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Route), "reply {code:#x}");
        assert!(!format!("{error} {error:?}").contains("onion"), "{error:?}");
    }
}

#[tokio::test]
async fn n6_a_way_that_takes_too_long_times_out_while_connecting() {
    let socks = SocksStub::new(Way::Hang).await;
    let origin = format!("http://{ONION}");
    let mut bounded = through(socks.address, &origin, Limits { connect: SHORT, ..Limits::default() }).await;
    let error = bounded.call_within(get_sources(), LONG).await.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::Connect));

    let mut hurried = through(socks.address, &origin, Limits::default()).await;
    let error = hurried.call_within(get_sources(), SHORT).await.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::Connect));
}

#[tokio::test]
async fn n6_beyond_the_socks_server_the_stages_are_the_servers() {
    let server = Server::new(|_| Act::SendAndHang(Vec::new())).await;
    let socks = SocksStub::new(Way::Relay(server.address)).await;
    let mut client = through(socks.address, &format!("http://{ONION}"), Limits::default()).await;
    let error = client.call_within(get_sources(), SHORT).await.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::FirstByte));
}
