//! Calls at the same time, their ids, and how they are cancelled.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{join_all, pending};
use protocol::answer::{Batch, MAX_BATCH, Part};
use protocol::frame::{FrameDecoder, encode_frame, frame_bytes};
use protocol::handshake::encode_hello;
use protocol::value::{PersonName, Username};
use protocol::{
    CallError, CallId, ErrorKind, FromProxy, Hello, Items, Journalist, Limits, Listed, Retry, Scope, Stage, ToProxy,
};
use qubes_rpc::connection::{Break, CallFailure, Connection};
use qubes_rpc::serve::serve;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, split};
use tokio::sync::Barrier;
use tokio_util::sync::CancellationToken;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn calls_run_at_the_same_time_and_their_answers_interleave() {
    let barrier = Arc::new(Barrier::new(3));
    let service = Scripted::new(move |call, answer| {
        let barrier = Arc::clone(&barrier);
        Box::pin(async move {
            answer.begin().await?;
            for number in 0..2 {
                barrier.wait().await;
                answer.items(batch(&token_of(&call), number..number + 1)).await?;
            }
            barrier.wait().await;
            Ok(())
        })
    });
    let (serving, end) = Serving::start(Scope::Metadata, &service, WIDE);
    let mut client = Raw::client(end, &hello(Scope::Metadata)).await;
    for id in 1..=3 {
        client.call(id, users("x")).await;
    }
    // Each round of parts is complete before the next begins: nobody waited for anybody's end.
    for round in [Part::Begin, Part::Items(batch("x", 0..1)), Part::Items(batch("x", 1..2)), Part::End { count: 2 }] {
        let mut ids = HashSet::new();
        for _ in 1..=3 {
            let FromProxy { id, part } = client.receive().await.unwrap().unwrap();
            assert_eq!(part, round);
            ids.insert(id);
        }
        assert_eq!(ids, HashSet::from([CallId(1), CallId(2), CallId(3)]));
    }
    drop(client);
    serving.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn interleaved_answers_reach_their_own_consumers_whole() {
    let barrier = Arc::new(Barrier::new(10));
    let service = Scripted::new(move |call, answer| {
        let barrier = Arc::clone(&barrier);
        Box::pin(async move {
            answer.begin().await?;
            // More parts than may wait for a consumer.
            for number in 0..20 {
                barrier.wait().await;
                answer.items(batch(&token_of(&call), number * 3..number * 3 + 3)).await?;
            }
            Ok(())
        })
    });
    let (connection, _serving) = session(&service, NARROW).await;
    let tokens: Vec<_> = (0..10).map(|number| format!("call{number}")).collect();
    let answers = soon(join_all(tokens.iter().map(|token| ask(&connection, token)))).await;
    for (token, answer) in tokens.iter().zip(answers) {
        assert_eq!(answer.unwrap(), names(token, 0..60));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_nothing_is_complete() {
    let service = Scripted::new(|_, answer| Box::pin(answer.begin()));
    let (connection, _serving) = session(&service, WIDE).await;
    let mut stream = connection.call(users("x"), MINUTE).await.unwrap();
    assert_eq!(soon(stream.next()).await, Ok(None));
    assert_eq!(soon(stream.next()).await, Ok(None), "and stays so");
}

/// A client without any delay: it sends its next call, with the same id, from within the write of the answer's end.
#[derive(Default)]
struct Eager {
    input: Vec<u8>,
    waker: Option<Waker>,
    decoder: FrameDecoder,
    welcomed: bool,
    ended: usize,
    failed: Option<CallError>,
}

impl Eager {
    const ROUNDS: usize = 100;

    fn done(&self) -> bool {
        self.failed.is_some() || self.ended == Self::ROUNDS
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.decoder.feed(bytes);
        if !self.welcomed && self.decoder.next_payload().unwrap().is_some() {
            self.welcomed = true;
            self.input.extend(request(7, users("x")));
        }
        while let Some(FromProxy { part, .. }) = self.decoder.next_message().unwrap() {
            match part {
                Part::Begin | Part::Items(_) => {}
                Part::End { .. } => {
                    self.ended += 1;
                    if !self.done() {
                        self.input.extend(request(7, users("x")));
                    }
                }
                Part::Failed(error) => self.failed = Some(error),
            }
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[derive(Clone)]
struct EagerEnd(Arc<Mutex<Eager>>);

impl AsyncRead for EagerEnd {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let mut eager = self.0.lock().unwrap();
        if eager.input.is_empty() && !eager.done() {
            eager.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let length = eager.input.len().min(buffer.remaining());
        buffer.put_slice(&eager.input.drain(..length).collect::<Vec<_>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for EagerEnd {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.0.lock().unwrap().receive(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_calls_id_and_place_are_free_when_the_client_sees_its_end() {
    let hello = Hello { limits: max_calls(1), ..hello(Scope::Metadata) };
    let input = frame_bytes(&encode_hello(&hello).unwrap()).unwrap().to_vec();
    let end = EagerEnd(Arc::new(Mutex::new(Eager { input, ..Eager::default() })));
    let stop = CancellationToken::new();
    let served = serve(end.clone(), end.clone(), Scope::Metadata, version(), Scripted::answering(), stop);
    soon(served).await.unwrap();
    let eager = end.0.lock().unwrap();
    assert_eq!((eager.failed.as_ref(), eager.ended), (None, Eager::ROUNDS));
}

#[tokio::test(start_paused = true)]
async fn one_call_after_the_other_uses_one_place() {
    let (serving, end) = Serving::start(Scope::Metadata, &Scripted::answering(), NARROW);
    let (reader, writer) = split(end);
    let hello = Hello { limits: max_calls(1), ..hello(Scope::Metadata) };
    let connection = Connection::open(reader, writer, &hello, MINUTE).await.unwrap();
    for _ in 0..200 {
        assert_eq!(soon(ask(&connection, "x")).await.unwrap(), names("x", 0..3));
    }
    drop(connection);
    serving.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_id_is_not_used_again_while_its_call_runs() {
    let (mut proxy, connection) = Raw::proxy(WIDE, max_calls(4)).await;
    let mut running = HashMap::new();
    for _ in 0..4 {
        let stream = connection.call(users("x"), MINUTE).await.unwrap();
        assert!(running.insert(proxy.called().await, stream).is_none());
    }
    for _ in 0..50 {
        let ended = *running.keys().next().unwrap();
        proxy.answer_all(ended, "x").await;
        assert_eq!(soon(read(running.remove(&ended).unwrap())).await.unwrap(), names("x", 0..3));
        let stream = connection.call(users("x"), MINUTE).await.unwrap();
        assert!(running.insert(proxy.called().await, stream).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn one_call_more_than_agreed_fails_without_being_sent() {
    let (mut proxy, connection) = Raw::proxy(WIDE, max_calls(2)).await;
    let first = connection.call(users("x"), MINUTE).await.unwrap();
    let _second = connection.call(users("x"), MINUTE).await.unwrap();
    let failure = connection.call(users("x"), MINUTE).await.unwrap_err();
    assert_eq!((failure.kind(), failure.before_the_server()), (ErrorKind::RateLimited, true));
    let id = proxy.called().await;
    proxy.called().await;
    // The place is free again once the answer has ended; the proxy saw nothing in between.
    proxy.answer_all(id, "x").await;
    soon(read(first)).await.unwrap();
    let _third = connection.call(users("x"), MINUTE).await.unwrap();
    proxy.called().await;
}

#[tokio::test(start_paused = true)]
async fn dropping_an_answer_stops_its_call_and_only_that() {
    let (guard, dropped) = guard();
    let guard = Mutex::new(Some(guard));
    let service = Scripted::new(move |call, answer| {
        let guard = guard.lock().unwrap().take();
        Box::pin(async move {
            let token = token_of(&call);
            answer.begin().await?;
            answer.items(batch(&token, 0..1)).await?;
            match guard {
                Some(_guard) => pending().await,
                None => Ok(()),
            }
        })
    });
    let (connection, _serving) = session(&service, WIDE).await;
    let mut endless = connection.call(users("endless"), MINUTE).await.unwrap();
    assert!(soon(endless.next()).await.unwrap().is_some());
    drop(endless);
    // Well before the call's own deadline.
    tokio::time::timeout(MINUTE / 2, dropped).await.expect("the call goes on").unwrap();
    assert_eq!(soon(ask(&connection, "other")).await.unwrap(), names("other", 0..1));
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_cancelled_answer_is_thrown_away() {
    let (mut proxy, connection) = Raw::proxy(WIDE, max_calls(2)).await;
    let cancelled = connection.call(users("x"), MINUTE).await.unwrap();
    let id = proxy.called().await;
    proxy.answer(id, Part::Begin).await;
    drop(cancelled);
    assert_eq!(proxy.receive().await.unwrap(), Some(ToProxy::Cancel(id)));
    let other = connection.call(users("x"), MINUTE).await.unwrap();
    let other_id = proxy.called().await;
    assert_ne!(other_id, id);
    // The cancelled call keeps its place until its answer has ended.
    assert_eq!(connection.call(users("x"), MINUTE).await.unwrap_err().kind(), ErrorKind::RateLimited);
    for number in 0..20 {
        proxy.answer(id, Part::Items(batch("late", number..number + 1))).await;
    }
    proxy.answer(id, Part::Failed(CallError::new(ErrorKind::Cancelled, Stage::Body, Retry::Now))).await;
    proxy.answer_all(other_id, "x").await;
    assert_eq!(soon(read(other)).await.unwrap(), names("x", 0..3));
    assert_eq!(connection.broken_by(), None);
    let _place = connection.call(users("x"), MINUTE).await.unwrap();
    let _free_again = connection.call(users("x"), MINUTE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_dropped_answer_is_cancelled_however_many_and_however_full_the_pipe() {
    for pipe in [WIDE, NARROW] {
        let (mut proxy, connection) = Raw::proxy(pipe, Limits::OURS).await;
        let mut streams = Vec::new();
        for _ in 0..Limits::OURS.max_calls.get() {
            streams.push(connection.call(users("x"), MINUTE).await.unwrap());
            if pipe == NARROW && streams.len() == 8 {
                // What nobody reads fills the pipe and the queue.
                break;
            }
        }
        let called = streams.len();
        drop(streams);
        let (mut calls, mut cancels) = (HashSet::new(), HashSet::new());
        while cancels.len() < called {
            match proxy.receive().await.unwrap().unwrap() {
                ToProxy::Call(request) => assert!(calls.insert(request.id)),
                ToProxy::Cancel(id) => assert!(calls.contains(&id) && cancels.insert(id), "{id:?}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_given_up_before_it_was_sent_takes_no_place() {
    let (mut proxy, connection) = Raw::proxy(NARROW, max_calls(16)).await;
    // The proxy reads nothing, so that soon nothing more can be queued.
    let mut waiting = Vec::new();
    for _ in 0..40 {
        match tokio::time::timeout(Duration::from_millis(1), connection.call(users(&"x".repeat(100)), MINUTE)).await {
            Ok(stream) => waiting.push(stream.unwrap()),
            Err(_given_up) => {}
        }
    }
    assert!(waiting.len() < 16, "the queue has no bound");
    let sent = waiting.len();
    for _ in 0..sent {
        proxy.called().await;
    }
    for _ in sent..16 {
        waiting.push(connection.call(users("x"), MINUTE).await.expect("a place was lost"));
        proxy.called().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_for_no_call_is_ignored() {
    let service = Scripted::answering();
    let (_serving, end) = Serving::start(Scope::Metadata, &service, WIDE);
    let mut client = Raw::client(end, &hello(Scope::Metadata)).await;
    client.send(&encode_frame(&ToProxy::Cancel(CallId(9))).unwrap()).await;
    client.call(9, users("x")).await;
    let first: FromProxy = client.receive().await.unwrap().unwrap();
    assert_eq!(first, FromProxy { id: CallId(9), part: Part::Begin });
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_its_own_call_as_internal_and_no_other() {
    let service = Scripted::new(|call, answer| {
        let token = token_of(&call);
        assert_ne!(token, "at-once", "a panic before there is a future");
        Box::pin(async move {
            answer.begin().await?;
            answer.reached(Stage::Parse);
            assert_ne!(token, "later", "a panic inside the call");
            answer.items(batch(&token, 0..1)).await
        })
    });
    let (connection, serving) = session(&service, WIDE).await;
    for (token, stage) in [("at-once", Stage::Admission), ("later", Stage::Parse)] {
        let (panicked, other) = soon(async { tokio::join!(ask(&connection, token), ask(&connection, "x")) }).await;
        assert_eq!(other.unwrap(), names("x", 0..1));
        let Err(CallFailure::Failed(error)) = panicked else { panic!("{panicked:?}") };
        assert_eq!((error.kind, error.stage, error.detail), (ErrorKind::Internal, stage, None));
    }
    drop(connection);
    serving.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_answer_is_no_answer_whatever_came_before() {
    let service = Scripted::new(|_, answer| {
        Box::pin(async move {
            answer.begin().await?;
            answer.items(batch("x", 0..5)).await?;
            Err(CallError::new(ErrorKind::Server, Stage::Body, Retry::Later { wait_ms: Some(5) })
                .with_detail("HTTP 502"))
        })
    });
    let (connection, _serving) = session(&service, WIDE).await;
    let failure = soon(ask(&connection, "x")).await.unwrap_err();
    assert_eq!(failure.retry(), Retry::Later { wait_ms: Some(5) });
    assert_eq!(
        (failure.kind(), failure.to_string().as_str()),
        (ErrorKind::Server, "the server has a fault (HTTP 502)")
    );
}

#[tokio::test(start_paused = true)]
async fn an_item_over_the_frames_cap_fails_its_call_and_not_the_session() {
    let service = Scripted::new(|call, answer| {
        Box::pin(async move {
            let token = token_of(&call);
            answer.begin().await?;
            answer.items(batch(&token, 0..1)).await?;
            if token == "large" { answer.items(too_large()).await } else { Ok(()) }
        })
    });
    let (connection, _serving) = session(&service, WIDE).await;
    let failure = soon(ask(&connection, "large")).await.unwrap_err();
    assert_eq!((failure.kind(), failure.retry()), (ErrorKind::Internal, Retry::Never));
    assert_eq!(soon(ask(&connection, "small")).await.unwrap(), names("small", 0..1));
}

/// 512 journalists with three names of 1,020 bytes.
fn too_large() -> Items {
    let name = |letter: &str| Some(PersonName::try_new(letter.repeat(1_020)).unwrap());
    let journalist = Journalist {
        id: "00000000-0000-4000-8000-000000000000".parse().unwrap(),
        username: Username::try_new("u".repeat(1_020)).unwrap(),
        first_name: name("f"),
        last_name: name("l"),
        version: None,
    };
    Items::Users(Batch::try_new(vec![Listed::Readable(journalist); MAX_BATCH]).unwrap())
}

#[tokio::test(start_paused = true)]
async fn two_full_pipes_never_block_each_other() {
    let performed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&performed);
    let service = Scripted::new(move |call, answer| {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            answer.begin().await?;
            for number in 0..10 {
                answer.items(batch(&token_of(&call), number * 50..number * 50 + 50)).await?;
            }
            Ok(())
        })
    });
    let (connection, serving) = session(&service, NARROW).await;
    // Eight at a time, half of them given up after the first items.
    let one = async |number: usize| {
        let token = format!("{number}{}", "x".repeat(200));
        let mut stream = connection.call(users(&token), MINUTE).await?;
        if number.is_multiple_of(2) {
            stream.next().await?;
            return Ok(None);
        }
        read(stream).await.map(|read| Some((token, read)))
    };
    for round in 0..10 {
        let answers: Vec<Result<_, CallFailure>> = soon(join_all((0..8).map(|number| one(round * 8 + number)))).await;
        for answer in answers {
            match answer {
                Ok(Some((token, read))) => assert_eq!(read, names(&token, 0..500)),
                Ok(None) => {}
                // Cancelled calls hold their place until their answers have ended.
                Err(failure) => assert_eq!(failure.kind(), ErrorKind::RateLimited),
            }
        }
    }
    assert!(performed.load(Ordering::Relaxed) >= 40);
    assert_eq!(soon(ask(&connection, "last")).await.unwrap(), names("last", 0..500));
    drop(connection);
    // Frames under way may be cut by the client's end.
    let _ = serving.ended().await;
}

#[tokio::test(start_paused = true)]
async fn dropping_the_connection_breaks_off_its_calls_at_once() {
    let (mut proxy, connection) = Raw::proxy(WIDE, Limits::OURS).await;
    let mut stream = connection.call(users("x"), MINUTE).await.unwrap();
    proxy.called().await;
    drop(connection);
    assert_eq!(soon(stream.next()).await, Err(CallFailure::Incomplete(Break::Closed)));
    assert_eq!(proxy.receive::<ToProxy>().await.unwrap(), None, "the stream to the proxy ends");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_reads_nothing_holds_others_up_only_for_its_own_time() {
    let (mut proxy, connection) = Raw::proxy(WIDE, Limits::OURS).await;
    let mut stalled = connection.call(users("x"), MINUTE).await.unwrap();
    let stalled_id = proxy.called().await;
    let other = connection.call(users("x"), 10 * MINUTE).await.unwrap();
    let other_id = proxy.called().await;
    proxy.answer(stalled_id, Part::Begin).await;
    for number in 0..20 {
        proxy.answer(stalled_id, Part::Items(batch("x", number..number + 1))).await;
    }
    proxy.answer(stalled_id, Part::End { count: 20 }).await;
    proxy.answer_all(other_id, "x").await;
    assert_eq!(soon(read(other)).await.unwrap(), names("x", 0..3));
    assert_eq!(soon(stalled.next()).await, Err(CallFailure::Silent));
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_reads_nothing_does_not_hide_the_sessions_end_from_others() {
    let (mut proxy, connection) = Raw::proxy(WIDE, Limits::OURS).await;
    let mut stalled = Vec::new();
    // Exactly as many parts as may wait for each of them.
    for _ in 0..8 {
        stalled.push(connection.call(users("x"), MINUTE).await.unwrap());
        let id = proxy.called().await;
        proxy.answer(id, Part::Begin).await;
        for number in 0..3 {
            proxy.answer(id, Part::Items(batch("x", number..number + 1))).await;
        }
    }
    let mut other = connection.call(users("x"), MINUTE).await.unwrap();
    proxy.called().await;
    drop(proxy);
    assert_eq!(soon(other.next()).await, Err(CallFailure::Incomplete(Break::Ended)));
    for stream in stalled {
        assert_eq!(soon(read(stream)).await, Err(CallFailure::Incomplete(Break::Ended)));
    }
}
