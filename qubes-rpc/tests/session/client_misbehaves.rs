//! N5: a client that does not keep to the protocol costs bounded time and memory, and the next session works.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::pending;
use protocol::answer::Part;
use protocol::frame::{FrameError, frame_bytes};
use protocol::handshake::{HandshakeError, encode_hello};
use protocol::value::{ArmoredMessage, Bounded, OneTimeCode, OrderNumber, Passphrase, Size, Token, Username};
use protocol::{Call, CallId, ErrorKind, FromProxy, Limits, Scope, SeenItems, Stage};
use qubes_rpc::channel::ChannelError;
use qubes_rpc::serve::ServeError;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::support::*;

/// A client sends `bytes` in place of a handshake, then nothing more; with `close` it ends the stream. How the session
/// ended; the next one with the same service works.
async fn opening(bytes: &[u8], close: bool) -> ServeError {
    let service = Scripted::answering();
    let (serving, end) = Serving::start(Scope::Metadata, &service, WIDE);
    let mut client = Raw::new(end);
    client.send(bytes).await;
    if close {
        client.writer.shutdown().await.unwrap();
    }
    let error = serving.ended().await.unwrap_err();
    assert_works(&service).await;
    error
}

/// The same after a handshake and one call that runs.
async fn going_on(bytes: &[u8]) -> Result<(), ServeError> {
    let (guard, mut dropped) = guard();
    let guard = Mutex::new(Some(guard));
    let service = Scripted::new(move |call, answer| {
        let guard = guard.lock().unwrap().take();
        Box::pin(async move {
            answer.begin().await?;
            answer.items(batch(&token_of(&call), 0..3)).await?;
            if let Some(_guard) = guard {
                pending::<()>().await;
            }
            Ok(())
        })
    });
    let (serving, end) = Serving::start(Scope::Metadata, &service, WIDE);
    let mut client = Raw::client(end, &hello(Scope::Metadata)).await;
    client.call(7, users("runs")).await;
    assert_eq!(client.receive::<FromProxy>().await.unwrap().unwrap().part, Part::Begin);
    client.send(bytes).await;
    client.writer.shutdown().await.unwrap();
    let ended = serving.ended().await;
    dropped.try_recv().expect("the call outlives its session");
    assert_works(&service).await;
    ended
}

#[tokio::test(start_paused = true)]
async fn n5_a_client_that_sends_nothing_or_half_a_frame_is_given_up() {
    let half = frame_bytes(&encode_hello(&hello(Scope::Metadata)).unwrap()).unwrap();
    for bytes in [&[][..], &half[..2], &half[..half.len() - 1]] {
        let start = Instant::now();
        assert!(matches!(opening(bytes, false).await, ServeError::NoHello));
        assert!(start.elapsed() <= Duration::from_secs(60), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn n5_a_client_that_closes_before_or_inside_its_handshake() {
    assert!(matches!(opening(&[], true).await, ServeError::NoHello));
    let half = frame_bytes(&encode_hello(&hello(Scope::Metadata)).unwrap()).unwrap();
    for cut in 1..half.len() {
        let error = opening(&half[..cut], true).await;
        assert!(matches!(error, ServeError::Channel(ChannelError::Frame(FrameError::Truncated))), "{cut}: {error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn n5_a_handshake_that_is_none() {
    let error = opening(&u32::MAX.to_le_bytes(), false).await;
    assert!(matches!(error, ServeError::Channel(ChannelError::Frame(FrameError::TooLarge { .. }))), "{error:?}");
    // Text, as a login shell's profile might print it, announces an absurd length.
    let error = opening(b"Welcome to fedora-42!\n", false).await;
    assert!(matches!(error, ServeError::Channel(ChannelError::Frame(FrameError::TooLarge { .. }))), "{error:?}");
    let error = opening(&frame_bytes(b"GET / HTTP/1.1").unwrap(), false).await;
    assert!(matches!(error, ServeError::Handshake(HandshakeError::NotOurs)), "{error:?}");
    let mut payload = encode_hello(&hello(Scope::Metadata)).unwrap();
    payload.push(0);
    let error = opening(&frame_bytes(&payload).unwrap(), false).await;
    assert!(matches!(error, ServeError::Handshake(HandshakeError::Malformed(_))), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn n5_garbage_after_the_handshake_ends_the_session_and_its_calls() {
    let error = going_on(&u32::MAX.to_le_bytes()).await.unwrap_err();
    assert!(matches!(error, ServeError::Channel(ChannelError::Frame(FrameError::TooLarge { .. }))), "{error:?}");
    for payload in [&[0xff; 30][..], &[]] {
        let error = going_on(&frame_bytes(payload).unwrap()).await.unwrap_err();
        assert!(matches!(error, ServeError::Channel(ChannelError::Frame(FrameError::Decode(_)))), "{error:?}");
    }
    let call = request(8, users("x"));
    let error = going_on(&call[..call.len() - 1]).await.unwrap_err();
    assert!(matches!(error, ServeError::Channel(ChannelError::Frame(FrameError::Truncated))), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn n5_the_id_of_a_running_call_ends_the_session() {
    let error = going_on(&request(7, users("again"))).await.unwrap_err();
    assert!(matches!(error, ServeError::DuplicateId), "{error:?}");
}

fn id<I: std::str::FromStr<Err: std::fmt::Debug>>() -> I {
    "6f6d21bc-7f5e-4d0e-9a3c-0d9ab2a3c001".parse().unwrap()
}

fn message() -> ArmoredMessage {
    ArmoredMessage::try_new("-----BEGIN PGP MESSAGE-----\n\nwcDMA\n-----END PGP MESSAGE-----\n").unwrap()
}

fn every_call() -> Vec<Call> {
    let token = || Token::try_new("x").unwrap();
    vec![
        Call::Health,
        Call::Login {
            username: Username::try_new("journalist").unwrap(),
            passphrase: Passphrase::try_new("a passphrase").unwrap(),
            one_time_code: OneTimeCode::try_new("123456").unwrap(),
        },
        Call::Logout { token: token() },
        Call::GetUsers { token: token() },
        Call::GetSources { token: token() },
        Call::GetSubmissions { token: token(), source: None },
        Call::GetAllReplies { token: token() },
        Call::Star { token: token(), source: id() },
        Call::Unstar { token: token(), source: id() },
        Call::MarkSeen { token: token(), items: SeenItems::default() },
        Call::DeleteSource { token: token(), source: id() },
        Call::DeleteConversation {
            token: token(),
            source: id(),
            items: Bounded::default(),
            upper_bound: OrderNumber::try_new(0).unwrap(),
        },
        Call::DeleteSubmission { token: token(), source: id(), submission: id() },
        Call::DeleteReply { token: token(), source: id(), reply: id() },
        Call::DownloadSubmission { token: token(), source: id(), submission: id(), from: Size::MAX },
        Call::DownloadReply { token: token(), source: id(), reply: id(), from: Size::MAX },
        Call::SendReply { token: token(), source: id(), reply: id(), message: message() },
        Call::Probe,
    ]
}

#[tokio::test(start_paused = true)]
async fn n5_calls_out_of_scope_never_reach_the_service() {
    for scope in Scope::ALL {
        let service = Scripted::new(move |call, answer| {
            assert!(call.allowed_in(scope), "{call:?} in {scope}");
            Box::pin(answer.begin())
        });
        let (serving, end) = Serving::start(scope, &service, WIDE);
        let mut client = Raw::client(end, &hello(scope)).await;
        let calls = every_call();
        let mut outcomes = HashMap::new();
        for (id, call) in (0..).zip(calls.clone()) {
            client.call(id, call).await;
        }
        client.writer.shutdown().await.unwrap();
        for FromProxy { id, part } in client.rest().await {
            outcomes.insert(id, part);
        }
        serving.ended().await.unwrap();
        for (id, call) in (0..).zip(calls) {
            let outcome = &outcomes[&CallId(id)];
            let own = match call {
                Call::Health => true,
                Call::Login { .. } | Call::Logout { .. } => scope == Scope::Session,
                Call::Probe
                | Call::GetUsers { .. }
                | Call::GetSources { .. }
                | Call::GetSubmissions { .. }
                | Call::GetAllReplies { .. } => scope == Scope::Metadata,
                Call::Star { .. } | Call::Unstar { .. } | Call::MarkSeen { .. } => scope == Scope::Mark,
                Call::DeleteSource { .. }
                | Call::DeleteConversation { .. }
                | Call::DeleteSubmission { .. }
                | Call::DeleteReply { .. } => scope == Scope::Delete,
                Call::DownloadSubmission { .. } | Call::DownloadReply { .. } => scope == Scope::Download,
                Call::SendReply { .. } => scope == Scope::Reply,
            };
            match outcome {
                Part::End { .. } => assert!(own, "{} in {scope}", call.name()),
                Part::Failed(error) => {
                    assert_eq!((own, error.kind, error.stage), (false, ErrorKind::OutOfScope, Stage::Admission));
                }
                Part::Begin | Part::Items(_) => panic!("{} did not end", call.name()),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn n5_of_ten_thousand_calls_at_once_only_the_agreed_number_runs() {
    const CALLS: u32 = 10_000;
    let most = Limits::OURS.max_calls.get();
    let (running, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let gate = Arc::new(Semaphore::new(0));
    let service = Scripted::new({
        let (running, peak, gate) = (Arc::clone(&running), Arc::clone(&peak), Arc::clone(&gate));
        move |call, answer| {
            let (running, peak, gate) = (Arc::clone(&running), Arc::clone(&peak), Arc::clone(&gate));
            Box::pin(async move {
                peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _open = gate.acquire().await;
                answer.begin().await?;
                answer.items(batch(&token_of(&call), 0..3)).await?;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            })
        }
    });
    let (serving, end) = Serving::start(Scope::Metadata, &service, NARROW);
    let Raw { mut reader, mut writer } = Raw::client(end, &hello(Scope::Metadata)).await;
    let write = async {
        for id in 0..CALLS {
            writer.write_all(&request(id, users("x"))).await.unwrap();
        }
        writer.shutdown().await.unwrap();
    };
    let read = async {
        let (mut refused, mut ended) = (0, 0);
        while let Some(FromProxy { id, part }) = reader.next_message().await.unwrap() {
            match part {
                Part::Begin | Part::Items(_) => {}
                Part::End { .. } => ended += 1,
                Part::Failed(error) => {
                    assert_eq!((error.kind, error.stage), (ErrorKind::RateLimited, Stage::Admission), "{id:?}");
                    refused += 1;
                }
            }
            // All are decided upon: the others may end now.
            if refused + most == CALLS as usize {
                gate.add_permits(most);
            }
        }
        (refused, ended)
    };
    let ((), (refused, ended)) = soon(async { tokio::join!(write, read) }).await;
    assert_eq!((refused + ended, ended), (CALLS as usize, most));
    assert_eq!(peak.load(Ordering::SeqCst), most);
    serving.ended().await.unwrap();
    assert_works(&service).await;
}

#[tokio::test(start_paused = true)]
async fn n5_a_client_that_calls_and_never_reads_is_not_read_either() {
    let service = Scripted::answering();
    let (serving, end) = Serving::start(Scope::Metadata, &service, NARROW);
    let mut client = Raw::client(end, &hello(Scope::Metadata)).await;
    let mut sent = 0;
    let flood = async {
        for id in 0..10_000 {
            client.writer.write_all(&request(id, users("x"))).await.unwrap();
            sent = id;
        }
    };
    tokio::time::timeout(MINUTE, flood).await.expect_err("everything was taken");
    assert!(sent < 200, "{sent} calls were taken");
    // Nor does it keep the proxy from stopping.
    let start = Instant::now();
    serving.stop.cancel();
    serving.ended().await.unwrap();
    assert!(start.elapsed() < MINUTE / 2, "{:?}", start.elapsed());
    assert_works(&service).await;
}
