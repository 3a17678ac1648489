//! A proxy that does not keep to the protocol, or keeps silent.

use std::time::Duration;

use protocol::answer::{AnswerError, Batch, Part};
use protocol::frame::{MAX_FRAME, encode_frame, frame_bytes};
use protocol::handshake::encode_welcome;
use protocol::{CallId, ErrorKind, FromProxy, Items, Limits, Scope, Stage, ToProxy, Welcome};
use qubes_rpc::connection::{Break, CallFailure, Connection};
use tokio::io::{AsyncWriteExt as _, duplex};
use tokio::time::Instant;

use crate::support::*;

/// Makes two calls, lets the proxy send `parts` as the first one's answer and then `bytes`, and gives back how the first
/// ended. The other call, and every later one, must fail for the same reason.
async fn outcome(parts: Vec<Part>, bytes: Vec<u8>) -> Result<Vec<String>, CallFailure> {
    let (mut proxy, connection) = Raw::proxy(WIDE, Limits::OURS).await;
    let stream = connection.call(users("x"), MINUTE).await.unwrap();
    let mut other = connection.call(users("x"), MINUTE).await.unwrap();
    let id = proxy.called().await;
    for part in parts {
        proxy.answer(id, part).await;
    }
    proxy.send(&bytes).await;
    let outcome = soon(read(stream)).await;
    let Err(CallFailure::Incomplete(broken)) = soon(other.next()).await else { panic!("the other call goes on") };
    assert_eq!(connection.broken_by(), Some(broken));
    let later = connection.call(users("x"), MINUTE).await.map(|_| ());
    assert_eq!(later, Err(CallFailure::NotSent(broken)));
    assert!(later.unwrap_err().before_the_server(), "nothing of it was sent");
    if let Err(failure) = &outcome {
        assert_eq!(failure, &CallFailure::Incomplete(broken));
        assert!(!failure.before_the_server(), "nobody knows what the server saw");
    }
    outcome
}

fn items() -> Part {
    Part::Items(batch("x", 0..3))
}

fn incomplete(error: AnswerError) -> Result<Vec<String>, CallFailure> {
    Err(CallFailure::Incomplete(Break::Answer(error)))
}

#[tokio::test(start_paused = true)]
async fn an_answer_built_wrong_breaks_the_session() {
    let other_kind = Part::Items(Items::Sources(Batch::default()));
    for (parts, expected) in [
        (vec![items()], AnswerError::OutOfOrder),
        (vec![Part::End { count: 0 }], AnswerError::OutOfOrder),
        (vec![Part::Begin, Part::Begin], AnswerError::OutOfOrder),
        (vec![Part::Begin, items(), Part::Begin], AnswerError::OutOfOrder),
        (vec![Part::Begin, other_kind], AnswerError::WrongKind),
        (vec![Part::Begin, items(), Part::End { count: 2 }], AnswerError::WrongCount { announced: 2, seen: 3 }),
        (vec![Part::Begin, items(), Part::End { count: 4 }], AnswerError::WrongCount { announced: 4, seen: 3 }),
    ] {
        assert_eq!(outcome(parts.clone(), Vec::new()).await, incomplete(expected), "{parts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_follows_an_answers_end_does_not_touch_it_and_breaks_the_session() {
    for extra in [Part::End { count: 3 }, items(), Part::Begin] {
        let parts = vec![Part::Begin, items(), Part::End { count: 3 }, extra.clone()];
        assert_eq!(outcome(parts, Vec::new()).await.unwrap(), names("x", 0..3), "{extra:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_no_call_breaks_the_session() {
    let stray = encode_frame(&FromProxy { id: CallId(4711), part: Part::Begin }).unwrap().to_vec();
    assert_eq!(outcome(vec![Part::Begin], stray).await, Err(CallFailure::Incomplete(Break::UnknownCall)));
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_no_message_break_the_session() {
    let garbage = frame_bytes(&[0xff; 20]).unwrap().to_vec();
    let empty = frame_bytes(&[]).unwrap().to_vec();
    let oversized = u32::try_from(MAX_FRAME + 1).unwrap().to_le_bytes().to_vec();
    let four_gib = vec![0xff; 4];
    let mut trailing = encode_frame(&FromProxy { id: CallId(1), part: items() }).unwrap().to_vec();
    trailing.push(0);
    trailing[0] += 1;
    for bytes in [garbage, empty, oversized, four_gib, trailing] {
        let result = outcome(vec![Part::Begin, items()], bytes.clone()).await;
        assert_eq!(result, Err(CallFailure::Incomplete(Break::Stream)), "{:?}", bytes.get(..8));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_leaves_answers_incomplete() {
    let half = encode_frame(&FromProxy { id: CallId(1), part: items() }).unwrap();
    for (bytes, expected) in [(&[][..], Break::Ended), (&half[..half.len() / 2], Break::Stream)] {
        let (mut proxy, connection) = Raw::proxy(WIDE, Limits::OURS).await;
        let stream = connection.call(users("x"), MINUTE).await.unwrap();
        let id = proxy.called().await;
        proxy.answer(id, Part::Begin).await;
        proxy.answer(id, items()).await;
        proxy.send(bytes).await;
        drop(proxy);
        assert_eq!(soon(read(stream)).await, Err(CallFailure::Incomplete(expected)));
        assert_eq!(connection.broken_by(), Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn s3_a_proxy_that_never_ends_an_answer_is_given_up_after_its_deadline() {
    let (mut proxy, connection) = Raw::proxy(WIDE, Limits::OURS).await;
    let start = Instant::now();
    let stream = connection.call(users("x"), MINUTE).await.unwrap();
    let id = proxy.called().await;
    proxy.answer(id, Part::Begin).await;
    proxy.answer(id, items()).await;
    let failure = soon(read(stream)).await.unwrap_err();
    assert_eq!((&failure, failure.kind()), (&CallFailure::Silent, ErrorKind::Timeout));
    assert!(!failure.before_the_server());
    // Paused time is exact: later than the proxy's own deadline, and not much later.
    assert!(MINUTE < start.elapsed() && start.elapsed() < MINUTE + Duration::from_secs(30), "{:?}", start.elapsed());
    // Such a proxy is not asked again.
    assert_eq!(connection.broken_by(), Some(Break::Silent));
}

#[tokio::test(start_paused = true)]
async fn calls_that_were_abandoned_do_not_keep_their_places_beyond_their_time() {
    let (mut proxy, connection) = Raw::proxy(WIDE, Limits::OURS).await;
    for _ in 0..Limits::OURS.max_calls.get() {
        drop(soon(connection.call(users("x"), MINUTE)).await.unwrap());
        proxy.called().await;
        assert!(matches!(proxy.receive().await.unwrap(), Some(ToProxy::Cancel(_))));
    }
    // The proxy ends none of them, though it was told to stop.
    let failure = soon(connection.call(users("x"), MINUTE)).await.map(|_| ()).unwrap_err();
    assert_eq!((failure.kind(), connection.broken_by()), (ErrorKind::RateLimited, None));
    tokio::time::advance(MINUTE * 2).await;
    assert_eq!(connection.broken_by(), Some(Break::Silent));
    let failure = soon(connection.call(users("x"), MINUTE)).await.map(|_| ()).unwrap_err();
    assert_eq!(failure, CallFailure::NotSent(Break::Silent));
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_end_does_not_go_on_for_as_long_as_items_come() {
    let (mut proxy, connection) = Raw::proxy(NARROW, Limits::OURS).await;
    let mut stream = connection.call(users("x"), MINUTE).await.unwrap();
    let id = proxy.called().await;
    let flood = async {
        proxy.answer(id, Part::Begin).await;
        let item = encode_frame(&FromProxy { id, part: items() }).unwrap();
        while proxy.writer.write_all(&item).await.is_ok() {}
    };
    // A consumer slower than the proxy: the next items are always there.
    let consume = async {
        for read in 0..1000 {
            match stream.next().await {
                Ok(items) => assert!(items.is_some()),
                Err(failure) => return (read, failure),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("the answer never ends");
    };
    let (read, failure) = soon(async {
        tokio::select! {
            outcome = consume => outcome,
            () = flood => panic!("the client ended the session"),
        }
    })
    .await;
    assert_eq!(failure, CallFailure::Silent);
    assert!(read >= 60, "before the deadline");
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_reads_nothing_fails_calls_within_their_deadlines() {
    let (proxy, connection) = Raw::proxy(NARROW, Limits::OURS).await;
    let mut queued = Vec::new();
    let failure = loop {
        assert!(queued.len() < 16, "the queue has no bound");
        match soon(connection.call(users(&"x".repeat(100)), MINUTE)).await {
            Ok(stream) => queued.push(stream),
            Err(failure) => break failure,
        }
    };
    let CallFailure::Failed(error) = &failure else { panic!("{failure:?}") };
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::Admission));
    assert!(failure.before_the_server(), "it was not sent");
    for mut stream in queued {
        let failure = soon(stream.next()).await.unwrap_err();
        assert!(matches!(failure, CallFailure::Silent | CallFailure::Incomplete(Break::Silent)), "{failure:?}");
    }
    drop(proxy);
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_stops_reading_for_good_is_noticed_though_it_goes_on_writing() {
    let (client_reads, proxy_writes) = duplex(WIDE);
    let (client_writes, proxy_reads) = duplex(WIDE);
    let mut proxy = Raw::new(proxy_writes);
    let welcome = Welcome::Ready { scope: Scope::Metadata, limits: Limits::OURS, software: version() };
    proxy.send(&frame_bytes(&encode_welcome(&welcome).unwrap()).unwrap()).await;
    let hello = hello(Scope::Metadata);
    let connection = soon(Connection::open(client_reads, client_writes, &hello, MINUTE)).await.unwrap();
    drop(proxy_reads);
    let mut lost = connection.call(users("x"), MINUTE).await.unwrap();
    assert_eq!(soon(lost.next()).await, Err(CallFailure::Silent));
    assert_eq!(connection.broken_by(), Some(Break::Silent));
    let later = connection.call(users("x"), MINUTE).await.map(|_| ());
    assert_eq!(later, Err(CallFailure::NotSent(Break::Silent)));
    drop(proxy);
}
