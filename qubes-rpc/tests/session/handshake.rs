//! The handshake, and how each side says no.

use std::time::Duration;

use protocol::frame::{FrameError, frame_bytes};
use protocol::handshake::{HandshakeError, Peer, Preamble, decode_welcome, encode_hello, encode_welcome};
use protocol::value::SettingName;
use protocol::{Hello, Limits, Refusal, Scope, Welcome};
use qubes_rpc::channel::ChannelError;
use qubes_rpc::connection::{Connection, HelloError};
use qubes_rpc::serve::ServeError;
use tokio::io::{AsyncWriteExt as _, duplex, split};
use tokio::time::Instant;

use crate::support::*;

/// The preamble of a version that does not exist yet.
const FUTURE: &[u8] = b"SPLT\x07\x00\x09\x00";
/// Version 0 never existed, and stands for one that is no longer spoken.
const PAST: &[u8] = b"SPLT\x00\x00\x00\x00";

/// The client's end against a proxy that sends `bytes`, and with `close` ends the stream.
async fn open_against(bytes: &[u8], close: bool) -> Result<Connection, HelloError> {
    let (ours, theirs) = duplex(WIDE);
    let (reader, writer) = split(theirs);
    let (_their_output, mut ours) = split(ours);
    ours.write_all(bytes).await.unwrap();
    if close {
        ours.shutdown().await.unwrap();
    }
    soon(Connection::open(reader, writer, &hello(Scope::Metadata), MINUTE)).await
}

#[tokio::test(start_paused = true)]
async fn the_two_sides_learn_each_others_limits_and_versions() {
    let (serving, end) = Serving::start(Scope::Metadata, &Scripted::answering(), WIDE);
    let mut client = Raw::new(end);
    let small = Hello { limits: max_calls(3), ..hello(Scope::Metadata) };
    client.send(&frame_bytes(&encode_hello(&small).unwrap()).unwrap()).await;
    let payload = soon(client.reader.next_payload()).await.unwrap().unwrap();
    let expected = Welcome::Ready { scope: Scope::Metadata, limits: max_calls(3), software: version() };
    assert_eq!(decode_welcome(&payload).unwrap(), expected);
    drop(client);
    serving.ended().await.unwrap();

    let (connection, _serving) = session(&Scripted::answering(), WIDE).await;
    assert_eq!(connection.software(), &version());
}

#[tokio::test(start_paused = true)]
async fn neither_side_lets_the_other_raise_the_limits() {
    let (serving, end) = Serving::start(Scope::Metadata, &Scripted::answering(), WIDE);
    let mut client = Raw::new(end);
    let greedy = Hello { limits: max_calls(u16::MAX), ..hello(Scope::Metadata) };
    client.send(&frame_bytes(&encode_hello(&greedy).unwrap()).unwrap()).await;
    let payload = soon(client.reader.next_payload()).await.unwrap().unwrap();
    assert!(matches!(decode_welcome(&payload).unwrap(), Welcome::Ready { limits, .. } if limits == Limits::OURS));
    drop(client);
    serving.ended().await.unwrap();

    let (mut proxy, connection) = Raw::proxy(WIDE, max_calls(u16::MAX)).await;
    let mut running = Vec::new();
    for _ in 0..Limits::OURS.max_calls.get() {
        running.push(connection.call(users("x"), MINUTE).await.unwrap());
        proxy.called().await;
    }
    connection.call(users("x"), MINUTE).await.expect_err("the proxy raised the limit");
}

#[tokio::test(start_paused = true)]
async fn the_scope_is_the_one_of_qrexec_and_no_other() {
    for started in Scope::ALL {
        for asked in Scope::ALL {
            let (serving, end) = Serving::start(started, &Scripted::answering(), WIDE);
            let (reader, writer) = split(end);
            let opened = soon(Connection::open(reader, writer, &hello(asked), MINUTE)).await;
            if started == asked {
                drop(opened.unwrap());
                serving.ended().await.unwrap();
            } else {
                let refusal = Refusal::Scope { started };
                assert!(matches!(opened, Err(HelloError::Refused(said)) if said == refusal));
                assert!(matches!(serving.ended().await, Err(ServeError::Refused(said)) if said == refusal));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_is_not_configured_says_which_setting() {
    let name = || SettingName::try_new("SD_PROXY_ORIGIN").unwrap();
    for refusal in [Refusal::SettingMissing(name()), Refusal::SettingInvalid(name())] {
        let (serving, end) = Serving::start(Scope::Session, &Scripted::refusing(refusal.clone()), WIDE);
        let (reader, writer) = split(end);
        let error = soon(Connection::open(reader, writer, &hello(Scope::Session), MINUTE)).await.unwrap_err();
        assert!(error.to_string().contains("SD_PROXY_ORIGIN"), "{error}");
        assert!(matches!(error, HelloError::Refused(said) if said == refusal));
        assert!(matches!(serving.ended().await, Err(ServeError::Refused(said)) if said == refusal));
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_mismatch_names_the_vm_to_upgrade_on_both_sides() {
    for (preamble, behind, vm) in [(FUTURE, Peer::Proxy, "proxy VM"), (PAST, Peer::Client, "client VM")] {
        let (serving, end) = Serving::start(Scope::Metadata, &Scripted::answering(), WIDE);
        let mut client = Raw::new(end);
        client.send(&frame_bytes(&[preamble, b"and what no other version understands"].concat()).unwrap()).await;
        // The answer tells the client enough to say the same.
        let answer = soon(client.reader.next_payload()).await.unwrap().unwrap();
        assert_eq!(answer.as_slice(), b"SPLT\x01\x00\x01\x00");
        let error = serving.ended().await.unwrap_err();
        let ServeError::Handshake(HandshakeError::VersionMismatch { upgrade, theirs, .. }) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*upgrade, behind);
        assert_ne!(*theirs, Preamble { oldest: 1, newest: 1 });
        let text = std::error::Error::source(&error).unwrap().to_string();
        assert!(text.ends_with(&format!("upgrade Splitdrop in the {vm}")), "{text}");
    }
    for (preamble, vm) in [(FUTURE, "client VM"), (PAST, "proxy VM")] {
        let error = open_against(&frame_bytes(preamble).unwrap(), false).await.unwrap_err();
        assert!(matches!(error, HelloError::Handshake(HandshakeError::VersionMismatch { .. })), "{error:?}");
        assert!(error.to_string().ends_with(&format!("upgrade Splitdrop in the {vm}")), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_says_nothing_is_given_up_at_the_deadline() {
    let start = Instant::now();
    assert!(matches!(open_against(&[], false).await, Err(HelloError::TimedOut)));
    assert!(MINUTE <= start.elapsed() && start.elapsed() < MINUTE + Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(matches!(open_against(&[5, 0, 0, 0, b'S'], false).await, Err(HelloError::TimedOut)));
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_says_something_else_is_no_proxy() {
    assert!(matches!(open_against(&[], true).await, Err(HelloError::Ended)));
    let error = open_against(&[5, 0, 0, 0, b'S'], true).await.unwrap_err();
    assert!(matches!(error, HelloError::Channel(ChannelError::Frame(FrameError::Truncated))), "{error:?}");
    let error = open_against(b"Last login: today\n", false).await.unwrap_err();
    assert!(matches!(error, HelloError::Channel(ChannelError::Frame(FrameError::TooLarge { .. }))), "{error:?}");
    let error = open_against(&frame_bytes(b"SSH-2.0-x").unwrap(), false).await.unwrap_err();
    assert!(matches!(error, HelloError::Handshake(HandshakeError::NotOurs)), "{error:?}");
    let welcome = Welcome::Ready { scope: Scope::Metadata, limits: Limits::OURS, software: version() };
    let mut payload = encode_welcome(&welcome).unwrap();
    payload.push(0);
    let error = open_against(&frame_bytes(&payload).unwrap(), false).await.unwrap_err();
    assert!(matches!(error, HelloError::Handshake(HandshakeError::Malformed(_))), "{error:?}");
}
