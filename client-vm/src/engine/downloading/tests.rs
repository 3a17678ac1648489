//! The lanes of downloads, where they meet a fault of their own.

use std::sync::Arc;

use protocol::value::SourceId;

use super::*;
use crate::engine::EngineParts;
use crate::engine::session::OpenSession;
use crate::files::Room;
use crate::store::Store;
use crate::store::outbox::ItemName;

/// A fetch that the engine believes to run.
fn running(engine: &mut Engine, candidate: Candidate) -> (Id, CancellationToken) {
    let (task, cancel) = (engine.tasks.spawn(async { Ended::Done }).id(), CancellationToken::new());
    let (lane, received) = (DownloadLane::Messages, Arc::default());
    engine.downloading.running.insert(task, Fetching { lane, candidate, received, cancel: cancel.clone() });
    (task, cancel)
}

/// Some message.
fn message() -> Candidate {
    Candidate {
        source: "10000000-0000-4000-8000-000000000001".parse().unwrap(),
        item: ItemName::Message("20000000-0000-4000-8000-000000000001".parse().unwrap()),
    }
}

/// Case D5: what is not shown any more is stopped also while the lanes rest.
#[tokio::test]
async fn d5_what_is_doomed_stops_while_downloads_rest() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let (mut engine, _handle) = Engine::new(EngineParts::without_qrexec(directory.path(), store)).await.unwrap();
    engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
    // The store does not know of it.
    let (_, cancel) = running(&mut engine, message());
    let rest = Instant::now() + Duration::from_secs(60);
    engine.downloading.rest = Some(rest);
    engine.start_downloads().await;
    assert!(cancel.is_cancelled());
    assert_eq!(engine.downloading.wake, Some(rest), "and the rest goes on");
}

/// Where the disk has no room nothing is begun, which is told once; it ends by itself, and is told once.
#[tokio::test]
async fn without_room_nothing_is_fetched_until_there_is_some() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let room = Arc::new(AtomicU64::new(KEPT - 1));
    let mut parts = EngineParts::without_qrexec(directory.path(), store);
    parts.desk.files = parts.desk.files.with_room(Room::Told(Arc::clone(&room)));
    let (mut engine, handle) = Engine::new(parts).await.unwrap();
    engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
    let mut events = handle.subscribe().unwrap();
    let reason = PauseReason::NoRoom { free: KEPT - 1, kept: KEPT };
    // What the store would say was due.
    let due = Lane { fresh: true, due: [message()].into(), ..Lane::default() };
    (engine.downloading.messages, engine.downloading.files.fresh) = (due, true);
    for _ in 0..3 {
        let before = Instant::now();
        engine.start_downloads().await;
        assert_eq!(engine.pause_reasons(), std::slice::from_ref(&reason));
        assert!(engine.downloading.running.is_empty() && matches!(engine.downloading.call, MessagesCall::None));
        assert!(engine.downloading.wake.unwrap() >= before + LOOK_FOR_ROOM, "it looks again by itself");
    }
    assert_eq!(events.try_recv().unwrap(), Event::Paused(reason));
    assert!(events.try_recv().is_err(), "told once");
    room.store(KEPT, std::sync::atomic::Ordering::Relaxed);
    engine.start_downloads().await;
    assert!(matches!(engine.downloading.call, MessagesCall::Opening(_)), "it goes on");
    assert_eq!(events.try_recv().unwrap(), Event::Resumed);
    assert!(engine.pause_reasons().is_empty());
}

/// A store that takes nothing, as on a full disk: nothing spins, and nothing is lost.
#[tokio::test]
async fn a_store_that_fails_makes_downloads_rest() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let (mut engine, _handle) = Engine::new(EngineParts::without_qrexec(directory.path(), store)).await.unwrap();
    engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
    let break_it = |transaction: &rusqlite::Transaction<'_>| Ok(transaction.execute_batch("DROP TABLE local_item")?);
    engine.store.write(break_it).await.unwrap();
    let source: SourceId = "10000000-0000-4000-8000-000000000001".parse().unwrap();
    let item = ItemName::Message("20000000-0000-4000-8000-000000000001".parse().unwrap());
    for error in [FetchError::Silent, FetchError::Io(std::io::ErrorKind::StorageFull.into()), FetchError::Mismatches] {
        let before = Instant::now();
        let (task, _cancel) = running(&mut engine, Candidate { source, item });
        engine.fetch_ended(task, FetchEnded::Fetched(Err(error))).await;
        assert!(engine.downloading.running.is_empty());
        let wake = engine.downloading.wake.unwrap();
        assert!(wake >= before + AFTER_STORE_FAULT, "it rests before it looks again");
    }
}
