//! The lanes of downloads, where they meet a fault of their own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use control::SessionEnd;
use protocol::value::SourceId;
use qubes_rpc::connection::{Break, CallFailure};
use tokio::sync::broadcast::Receiver;

use super::*;
use crate::engine::EngineParts;
use crate::engine::erasing::Erasing;
use crate::engine::session::OpenSession;
use crate::engine::sync_task::SyncEnded;
use crate::files::{FileNumber, Room};
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

/// A file.
fn file(number: u32) -> Candidate {
    let id = format!("3000000{number}-0000-4000-8000-000000000001").parse().unwrap();
    Candidate { item: ItemName::File(id), ..message() }
}

/// What the store would say was due, and how much of each is missing.
fn due<const N: usize>(items: [(Candidate, u64); N]) -> Lane {
    let due = items.map(|(candidate, missing)| Next { candidate, missing }).into();
    Lane { fresh: true, due, ..Lane::default() }
}

/// An engine that somebody is signed in to, on a disk where so much is free.
async fn engine_with_room(directory: &std::path::Path, free: u64) -> (Engine, Arc<AtomicU64>, Receiver<Event>) {
    let room = Arc::new(AtomicU64::new(free));
    let mut parts = EngineParts::without_qrexec(directory, Store::open(directory).unwrap());
    parts.desk.files = parts.desk.files.with_room(Room::Told(Arc::clone(&room)));
    let (mut engine, handle) = Engine::new(parts).await.unwrap();
    engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
    let events = handle.subscribe().unwrap();
    (engine, room, events)
}

/// The events since this was last asked.
fn told(events: &mut Receiver<Event>) -> Vec<Event> {
    std::iter::from_fn(|| events.try_recv().ok()).collect()
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
    let (mut engine, room, mut events) = engine_with_room(directory.path(), KEPT - 1).await;
    let reason = PauseReason::NoRoom { free: KEPT - 1, kept: KEPT };
    (engine.downloading.messages, engine.downloading.files) = (due([(message(), 0)]), due([]));
    for _ in 0..3 {
        let before = Instant::now();
        engine.start_downloads().await;
        assert_eq!(engine.pause_reasons(), std::slice::from_ref(&reason));
        assert!(engine.downloading.running.is_empty() && matches!(engine.downloading.call, MessagesCall::None));
        assert!(engine.downloading.wake.unwrap() >= before + LOOK_FOR_ROOM, "it looks again by itself");
    }
    assert_eq!(events.try_recv().unwrap(), Event::Paused(reason));
    assert!(events.try_recv().is_err(), "told once");
    room.store(KEPT, Ordering::Relaxed);
    engine.start_downloads().await;
    assert!(matches!(engine.downloading.call, MessagesCall::Opening(_)), "it goes on");
    assert_eq!(events.try_recv().unwrap(), Event::Resumed);
    assert!(engine.pause_reasons().is_empty());
}

/// For what does not fit no call is opened and nothing is written, however long that is so; what fits goes on.
#[tokio::test]
async fn what_does_not_fit_waits_without_a_call_and_holds_up_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (mut engine, room, mut events) = engine_with_room(directory.path(), KEPT + 1).await;
    engine.downloading.files = due([(file(1), 1_000_000), (file(2), 1_000_000)]);
    engine.downloading.messages = due([(message(), 1)]);
    let reason = PauseReason::NoRoom { free: KEPT + 1, kept: KEPT };
    for _ in 0..3 {
        let before = Instant::now();
        engine.start_downloads().await;
        assert_eq!((engine.downloading.running.len(), engine.downloading.files.due.len()), (0, 2));
        assert_eq!(engine.pause_reasons(), std::slice::from_ref(&reason));
        assert!(engine.downloading.wake.unwrap() >= before + LOOK_FOR_ROOM, "it looks again by itself");
    }
    assert!(matches!(engine.downloading.call, MessagesCall::Opening(_)), "the message fits");
    assert_eq!(told(&mut events), [Event::Paused(reason)]);
    let noted = |transaction: &rusqlite::Transaction<'_>| {
        Ok(transaction.query_row("SELECT count(*) FROM local_item", [], |row| row.get::<_, u64>(0))?)
    };
    assert_eq!(engine.store.read(noted).await.unwrap(), 0);
    // The second one does not wait for the first.
    engine.downloading.files = due([(file(1), 2_000_001), (file(2), 2_000_000)]);
    room.store(KEPT + 2_000_000, Ordering::Relaxed);
    engine.start_downloads().await;
    assert_eq!(engine.downloading.busy(), HashSet::from([file(2).item.id()]));
    room.store(KEPT + 2_000_001, Ordering::Relaxed);
    engine.start_downloads().await;
    assert_eq!(engine.downloading.running.len(), 2);
    assert_eq!(told(&mut events).last(), Some(&change(file(1), DownloadStep::Started)));
    assert!(engine.pause_reasons().is_empty());
}

/// What there is of an item already needs no room.
#[test]
fn a_part_that_is_gone_on_with_needs_room_for_its_rest_only() {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::open(directory.path()).unwrap();
    let number = FileNumber(7);
    std::io::Write::write_all(&mut files.open_partial(number).unwrap(), &[0; 30]).unwrap();
    let listed = protocol::value::Size::try_new(100).unwrap();
    for (part, missing) in [(Some(number), 70), (Some(FileNumber(8)), 100), (None, 100)] {
        let next = Next::of(DueItem { candidate: file(1), listed, part }, &files);
        assert_eq!(next.missing, missing);
        assert!(next.fits(Some(KEPT + missing)) && !next.fits(Some(KEPT + missing - 1)) && next.fits(None));
    }
}

/// That there is room again is told once, also while the lanes rest and where nobody is signed in any more.
#[tokio::test]
async fn want_of_room_is_withdrawn_whatever_else_is_so() {
    for signed_in in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (mut engine, room, mut events) = engine_with_room(directory.path(), KEPT - 1).await;
        (engine.downloading.messages, engine.downloading.files) = (due([(message(), 0)]), due([]));
        engine.start_downloads().await;
        assert!(matches!(told(&mut events)[..], [Event::Paused(PauseReason::NoRoom { .. })]));
        let day = Instant::now() + Duration::from_secs(24 * 3600);
        if signed_in {
            engine.downloading.rest = Some(day);
        } else {
            engine.session = SessionState::Out;
        }
        engine.start_downloads().await;
        assert!(engine.downloading.wake.unwrap() < day, "it looks again all the same");
        assert_eq!(told(&mut events), []);
        room.store(KEPT, Ordering::Relaxed);
        engine.start_downloads().await;
        engine.start_downloads().await;
        assert_eq!(told(&mut events), [Event::Resumed], "signed in: {signed_in}");
        assert_eq!(engine.downloading.rest.is_some(), signed_in);
    }
}

/// The end of the session withdraws what was told of the network and of dom0, and not what still holds.
#[tokio::test]
async fn the_end_of_a_session_does_not_withdraw_that_there_is_no_room() {
    for free in [KEPT - 1, KEPT] {
        let directory = tempfile::tempdir().unwrap();
        let (mut engine, _, mut events) = engine_with_room(directory.path(), free).await;
        (engine.downloading.messages, engine.downloading.files) = (due([(message(), 0)]), due([]));
        engine.pause_network(&failure::not_signed_in());
        engine.start_downloads().await;
        engine.hold_messages();
        assert_eq!(told(&mut events).len(), if free < KEPT { 3 } else { 2 });
        engine.session = SessionState::Out;
        engine.leave(SessionEnd::Logout);
        let resumed = told(&mut events).into_iter().filter(|event| *event == Event::Resumed).count();
        assert_eq!(resumed, usize::from(free == KEPT));
    }
}

/// Where dom0 asks about downloads a lost call is not replaced without the user, also where the store fails at the same time.
#[tokio::test]
async fn what_only_the_user_can_say_outlasts_a_fault_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let (mut engine, _, mut events) = engine_with_room(directory.path(), u64::MAX).await;
    engine.proxy = engine.proxy.clone().asked_about([Scope::Download].into_iter().collect());
    let break_it = |transaction: &rusqlite::Transaction<'_>| Ok(transaction.execute_batch("DROP TABLE local_item")?);
    engine.store.write(break_it).await.unwrap();
    let (task, _cancel) = running(&mut engine, message());
    let lost = FetchError::Call(CallFailure::Incomplete(Break::Ended));
    engine.fetch_ended(task, FetchEnded::Fetched(Err(lost))).await;
    assert!(told(&mut events).contains(&Event::Paused(PauseReason::Dom0)));
    // What comes by itself: a sync that gets through, the time, a suspend.
    engine.lift_network_pause();
    engine.downloading.end_rest();
    (engine.downloading.messages, engine.downloading.files) = (due([(message(), 0)]), due([]));
    engine.start_downloads().await;
    assert!(matches!(engine.downloading.call, MessagesCall::None), "dom0 is not asked");
    assert_eq!((engine.pause_reasons(), told(&mut events)), (vec![PauseReason::Dom0], vec![]));
    engine.let_dom0_ask();
    engine.start_downloads().await;
    assert!(matches!(engine.downloading.call, MessagesCall::Opening(_)));
    assert_eq!((engine.pause_reasons(), told(&mut events)), (vec![], vec![Event::Resumed]));
}

/// What is due is read anew after a sync that has changed something, and not after the many that have not.
#[tokio::test]
async fn only_a_sync_that_changed_something_has_the_lanes_read_anew() {
    let directory = tempfile::tempdir().unwrap();
    let (mut engine, _, _) = engine_with_room(directory.path(), 0).await;
    for rows_written in [0, 1] {
        // The store does not know of it.
        (engine.downloading.messages, engine.downloading.files) = (due([]), due([(file(1), 5)]));
        let _waiting = engine.hanging_sync();
        engine.end_sync_well(rows_written).await;
        assert_eq!(engine.downloading.files.due.is_empty(), rows_written > 0, "{rows_written} rows");
    }
    // Of the first nobody knows whether it was applied, and to the next one what it has written is nothing new.
    for (unknown, ended) in [(true, SyncEnded::panicked()), (false, SyncEnded::cancelled())] {
        (engine.downloading.messages, engine.downloading.files) = (due([]), due([(file(1), 5)]));
        engine.erasing = Erasing::default();
        let _waiting = engine.hanging_sync();
        engine.sync_ended(ended).await;
        assert_eq!((engine.downloading.files.due.is_empty(), engine.erasing.is_open()), (unknown, unknown));
    }
}

/// A store that fails does not shorten a longer rest.
#[tokio::test]
async fn a_store_that_fails_does_not_end_a_longer_rest() {
    let directory = tempfile::tempdir().unwrap();
    let (mut engine, _, _) = engine_with_room(directory.path(), u64::MAX).await;
    let day = Instant::now() + Duration::from_secs(24 * 3600);
    engine.downloading.rest = Some(day);
    engine.downloading.rest_a_little();
    assert_eq!(engine.downloading.rest, Some(day));
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
