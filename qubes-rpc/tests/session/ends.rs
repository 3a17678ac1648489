//! Deadlines, the input's end, the client's end and the stop: how calls and sessions end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::pending;
use protocol::answer::Part;
use protocol::frame::{encode_frame, frame_bytes};
use protocol::handshake::encode_hello;
use protocol::value::RequestId;
use protocol::{CallId, Deadline, ErrorKind, FromProxy, Limits, Request, Scope, Stage, ToProxy};
use qubes_rpc::connection::{Break, CallFailure};
use qubes_rpc::serve::ServeError;
use tokio::io::{AsyncWriteExt as _, duplex};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::support::*;

/// Begins each answer, says that it waits for the server's first byte, and waits for ever; tells when the first call's
/// future is dropped.
fn stuck() -> (Arc<Scripted>, oneshot::Receiver<()>) {
    let (guard, dropped) = guard();
    let guard = Mutex::new(Some(guard));
    let service = Scripted::new(move |_, answer| {
        let guard = guard.lock().unwrap().take();
        Box::pin(async move {
            let _guard = guard;
            answer.begin().await?;
            answer.reached(Stage::FirstByte);
            pending().await
        })
    });
    (service, dropped)
}

/// Sends items for ever; or waits for ever, in a call `stuck`. Tells when the first call's future is dropped.
fn pouring() -> (Arc<Scripted>, oneshot::Receiver<()>) {
    let (guard, dropped) = guard();
    let guard = Mutex::new(Some(guard));
    let service = Scripted::new(move |call, answer| {
        let guard = guard.lock().unwrap().take();
        Box::pin(async move {
            let _guard = guard;
            if token_of(&call) == "stuck" {
                pending::<()>().await;
            }
            answer.begin().await?;
            loop {
                answer.items(batch("x", 0..500)).await?;
            }
        })
    });
    (service, dropped)
}

#[tokio::test(start_paused = true)]
async fn s3_the_proxys_own_deadline_comes_first_and_says_the_stage() {
    let (service, mut dropped) = stuck();
    let (connection, _serving) = session(&service, WIDE).await;
    let start = Instant::now();
    let failure = soon(ask(&connection, "x")).await.unwrap_err();
    let CallFailure::Failed(error) = &failure else { panic!("{failure:?}") };
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::FirstByte));
    assert!(!failure.before_the_server());
    dropped.try_recv().expect("the call goes on");
    assert!(MINUTE <= start.elapsed() && start.elapsed() < MINUTE + Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn s3_a_deadline_before_the_server_leaves_no_doubt() {
    let service = Scripted::new(|_, answer| {
        Box::pin(async move {
            answer.reached(Stage::Connect);
            pending().await
        })
    });
    let (connection, _serving) = session(&service, WIDE).await;
    assert!(soon(ask(&connection, "x")).await.unwrap_err().before_the_server());
}

#[tokio::test(start_paused = true)]
async fn s3_an_answer_that_takes_90_s_arrives_the_first_time() {
    let service = Scripted::new(|call, answer| {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(90)).await;
            answer.begin().await?;
            answer.items(batch(&token_of(&call), 0..500)).await?;
            answer.items(batch(&token_of(&call), 500..1000)).await
        })
    });
    let (connection, _serving) = session(&service, WIDE).await;
    let stream = connection.call(users("x"), 2 * MINUTE).await.unwrap();
    assert_eq!(soon(read(stream)).await.unwrap(), names("x", 0..1000));
}

#[tokio::test(start_paused = true)]
async fn s3_a_call_without_a_deadline_is_not_made() {
    let (mut proxy, connection) = Raw::proxy(WIDE, max_calls(1)).await;
    for none in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(25 * 3600), Duration::MAX] {
        let failure = connection.call(users("x"), none).await.unwrap_err();
        assert!(matches!(failure, CallFailure::Deadline(_)) && failure.before_the_server(), "{failure:?}");
    }
    let _stream = connection.call(users("x"), MINUTE).await.expect("the only place is free");
    proxy.called().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_calls_answer_ends_as_cancelled() {
    let (service, mut dropped) = stuck();
    let (_serving, end) = Serving::start(Scope::Metadata, &service, WIDE);
    let mut client = Raw::client(end, &hello(Scope::Metadata)).await;
    client.call(1, users("x")).await;
    assert_eq!(client.receive::<FromProxy>().await.unwrap().unwrap().part, Part::Begin);
    client.send(&encode_frame(&ToProxy::Cancel(CallId(1))).unwrap()).await;
    let last: FromProxy = client.receive().await.unwrap().unwrap();
    let Part::Failed(error) = last.part else { panic!("{last:?}") };
    assert_eq!((error.kind, error.stage), (ErrorKind::Cancelled, Stage::FirstByte));
    dropped.try_recv().expect("the call goes on");
}

#[tokio::test(start_paused = true)]
async fn calls_under_way_finish_after_the_inputs_end() {
    let service = Scripted::new(|call, answer| {
        Box::pin(async move {
            answer.begin().await?;
            tokio::time::sleep(Duration::from_secs(30)).await;
            answer.items(batch(&token_of(&call), 0..3)).await
        })
    });
    let (serving, end) = Serving::start(Scope::Metadata, &service, NARROW);
    let mut client = Raw::client(end, &hello(Scope::Metadata)).await;
    for id in 0..5 {
        client.call(id, users("x")).await;
    }
    client.writer.shutdown().await.unwrap();
    let answers: Vec<FromProxy> = client.rest().await;
    for id in 0..5 {
        let parts: Vec<_> =
            answers.iter().filter(|message| message.id == CallId(id)).map(|message| &message.part).collect();
        assert_eq!(parts, [&Part::Begin, &Part::Items(batch("x", 0..3)), &Part::End { count: 3 }]);
    }
    serving.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_inputs_end_is_followed_by_the_sessions_within_a_bound() {
    let (service, mut dropped) = stuck();
    let (serving, end) = Serving::start(Scope::Metadata, &service, WIDE);
    let mut client = Raw::client(end, &hello(Scope::Metadata)).await;
    let day = Deadline::try_new(Duration::from_secs(24 * 3600)).unwrap();
    let request = Request { id: CallId(1), request: RequestId::new([7; 16]), deadline: day, call: users("x") };
    client.send(&encode_frame(&ToProxy::Call(request)).unwrap()).await;
    client.writer.shutdown().await.unwrap();
    let start = Instant::now();
    serving.ended().await.unwrap();
    assert!(start.elapsed() <= Duration::from_secs(60), "{:?}", start.elapsed());
    dropped.try_recv().expect("the call outlives its session");
    // The answer is left without an end, which is what the client then sees.
    let parts: Vec<FromProxy> = client.rest().await;
    assert_eq!(parts, [FromProxy { id: CallId(1), part: Part::Begin }]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_neither_reads_nor_goes_is_left_within_a_bound() {
    let (service, mut dropped) = pouring();
    let (serving, end) = Serving::start(Scope::Metadata, &service, NARROW);
    let mut client = Raw::client(end, &hello(Scope::Metadata)).await;
    client.call(1, users("x")).await;
    client.writer.shutdown().await.unwrap();
    let start = Instant::now();
    serving.ended().await.unwrap();
    assert!(start.elapsed() <= Duration::from_secs(120), "{:?}", start.elapsed());
    dropped.try_recv().expect("the call outlives its session");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_ends_the_session_and_all_its_calls() {
    for ends_its_input_before in [false, true] {
        let (service, mut dropped) = pouring();
        let (serving, end) = Serving::start(Scope::Metadata, &service, NARROW);
        let mut client = Raw::client(end, &hello(Scope::Metadata)).await;
        // The first call would wait for long; the second one notices.
        client.call(1, users("stuck")).await;
        client.call(2, users("x")).await;
        client.receive::<FromProxy>().await.unwrap().unwrap();
        let start = Instant::now();
        if ends_its_input_before {
            client.writer.shutdown().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(client);
        let error = serving.ended().await.unwrap_err();
        assert!(matches!(error, ServeError::Output(_)), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        dropped.try_recv().expect("the call outlives its session");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_no_longer_reads_is_noticed_though_it_goes_on_writing() {
    let (service, mut dropped) = pouring();
    let (mut to_proxy, input) = duplex(WIDE);
    let (output, from_proxy) = duplex(WIDE);
    let serving = Serving::on(input, output, Scope::Metadata, &service);
    to_proxy.write_all(&frame_bytes(&encode_hello(&hello(Scope::Metadata)).unwrap()).unwrap()).await.unwrap();
    drop(from_proxy);
    to_proxy.write_all(&request(1, users("stuck"))).await.unwrap();
    to_proxy.write_all(&request(2, users("x"))).await.unwrap();
    let start = Instant::now();
    let error = serving.ended().await.unwrap_err();
    assert!(matches!(error, ServeError::Output(_)), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(!matches!(dropped.try_recv(), Err(oneshot::error::TryRecvError::Empty)), "the call outlives its session");
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_a_session_that_waits_for_its_handshake_or_for_calls() {
    let service = Scripted::answering();
    let start = Instant::now();
    let (serving, end) = Serving::start(Scope::Metadata, &service, WIDE);
    serving.stop.cancel();
    serving.ended().await.unwrap();
    drop(end);
    let (connection, serving) = session(&service, WIDE).await;
    serving.stop.cancel();
    serving.ended().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let failure = soon(ask(&connection, "x")).await.unwrap_err();
    assert!(
        matches!(
            failure,
            CallFailure::Incomplete(Break::Ended | Break::Stream) | CallFailure::NotSent(Break::Ended | Break::Stream)
        ),
        "{failure:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_calls_that_run() {
    let (service, mut dropped) = stuck();
    let (connection, serving) = session(&service, WIDE).await;
    let mut stream = connection.call(users("x"), MINUTE).await.unwrap();
    let start = Instant::now();
    // Until it has begun.
    tokio::time::timeout(Duration::from_secs(1), stream.next()).await.expect_err("it has no items");
    serving.stop.cancel();
    serving.ended().await.unwrap();
    dropped.try_recv().expect("the call outlives its session");
    assert_eq!(soon(stream.next()).await, Err(CallFailure::Incomplete(Break::Ended)));
    assert!(start.elapsed() < MINUTE / 2, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_client_that_does_not_read() {
    let (service, mut dropped) = pouring();
    let (serving, end) = Serving::start(Scope::Metadata, &service, NARROW);
    let mut client = Raw::client(end, &hello(Scope::Metadata)).await;
    client.call(1, users("x")).await;
    client.receive::<FromProxy>().await.unwrap().unwrap();
    let start = Instant::now();
    serving.stop.cancel();
    serving.ended().await.unwrap();
    assert!(start.elapsed() < MINUTE / 2, "{:?}", start.elapsed());
    dropped.try_recv().expect("the call outlives its session");
}

#[tokio::test(start_paused = true)]
async fn what_was_said_before_a_stop_still_arrives() {
    let service = Scripted::answering();
    let (serving, end) = Serving::start(Scope::Metadata, &service, NARROW);
    let mut client = Raw::client(end, &hello(Scope::Metadata)).await;
    client.call(1, users("x")).await;
    // All parts are queued before the first is read.
    tokio::time::sleep(Duration::from_millis(1)).await;
    serving.stop.cancel();
    let parts: Vec<FromProxy> = client.rest().await;
    assert_eq!(parts.last().map(|message| &message.part), Some(&Part::End { count: 3 }));
    serving.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ended_takes_no_more_calls() {
    let (proxy, connection) = Raw::proxy(WIDE, Limits::OURS).await;
    drop(proxy);
    let failure = soon(ask(&connection, "x")).await.unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::BadResponse);
    assert!(connection.broken_by().is_some());
}

#[tokio::test(start_paused = true)]
async fn closing_tells_the_proxy_to_stop_what_still_runs_and_then_ends_the_stream() {
    let (mut proxy, connection) = Raw::proxy(WIDE, Limits::OURS).await;
    let mut streams = Vec::new();
    let mut running = std::collections::BTreeSet::new();
    for _ in 0..3 {
        streams.push(soon(connection.call(users("x"), MINUTE)).await.unwrap());
        running.insert(proxy.called().await);
    }
    let (said, ()) = soon(async { tokio::join!(proxy.rest::<ToProxy>(), connection.close()) }).await;
    let cancelled: std::collections::BTreeSet<_> = said
        .into_iter()
        .map(|message| match message {
            ToProxy::Cancel(id) => id,
            ToProxy::Call(request) => panic!("calls {}", request.call.name()),
        })
        .collect();
    assert_eq!(cancelled, running);
    for mut stream in streams {
        assert!(soon(stream.next()).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_a_proxy_that_reads_nothing_only_so_long() {
    let (proxy, connection) = Raw::proxy(NARROW, Limits::OURS).await;
    let mut streams = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_secs(1), connection.call(users(&"x".repeat(100)), MINUTE)).await
    {
        streams.push(stream);
    }
    soon(connection.close()).await;
    drop(proxy);
}
