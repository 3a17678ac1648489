//! The lane of acts, where it meets a fault of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use control::{ActState, QueueEntry};
use protocol::value::{Timestamp, Username};
use qubes_rpc::connection::HelloError;
use qubes_rpc::places::Places;
use rusqlite::params;
use tokio::sync::broadcast::Receiver;

use super::*;
use crate::clock::Clock;
use crate::engine::EngineParts;
use crate::engine::session::OpenSession;
use crate::engine::stand_in::open_call;
use crate::store::outbox::EnqueueError;
use crate::store::{Store, mirror};

const SOURCES: [&str; 2] = ["10000000-0000-4000-8000-000000000001", "10000000-0000-4000-8000-000000000002"];

/// An engine whose qrexec calls cannot be made, over a store that knows two sources.
async fn engine(directory: &std::path::Path) -> (Engine, Receiver<Event>) {
    let store = Store::open(directory).unwrap();
    store
        .write(|transaction| {
            for id in SOURCES {
                transaction.execute(
                    "INSERT INTO server_source (id, digest, designation, starred, last_updated_us, interactions)
                     VALUES (?1, zeroblob(32), 'candid marmot', 0, 0, 0)",
                    params![id],
                )?;
            }
            Ok(())
        })
        .await
        .unwrap();
    let (mut engine, handle) = Engine::new(EngineParts::without_qrexec(directory, store)).await.unwrap();
    engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
    let events = handle.subscribe().unwrap();
    (engine, events)
}

/// Takes a star of each source, without sending anything; gives what is ready then.
async fn take_stars(engine: &Engine) -> Vec<Batch> {
    let (journalist, now) = (engine.session.journalist().unwrap(), engine.clock.now());
    engine
        .store
        .write_or(move |transaction| {
            for id in SOURCES {
                let act = Act::Star { sources: vec![id.parse().map_err(StoreError::from)?] };
                outbox::enqueue(transaction, journalist, &act, now)?;
            }
            Ok::<_, EnqueueError>(())
        })
        .await
        .unwrap();
    ready(engine).await
}

async fn ready(engine: &Engine) -> Vec<Batch> {
    let (journalist, now) = (engine.session.journalist().unwrap(), engine.clock.now());
    let none = (HashSet::new(), HashSet::new());
    let ready = move |transaction: &rusqlite::Transaction<'_>| {
        Ok(outbox::ready(transaction, journalist, now, &none.0, &none.1)?.batches)
    };
    engine.store.read(ready).await.unwrap()
}

async fn queue(engine: &Engine) -> Vec<QueueEntry> {
    let now: Timestamp = engine.clock.now();
    engine.store.read(move |transaction| outbox::queue(transaction, now, &outbox::Lane::default())).await.unwrap()
}

/// Case Q5.
#[tokio::test]
async fn q5_a_panic_while_acts_are_sent_leaves_them_open_and_the_lane_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (mut engine, mut events) = engine(directory.path()).await;
    let batches = take_stars(&engine).await;
    let [first, second] = batches.as_slice() else { unreachable!("{batches:?}") };

    // The first is noted as being sent, and then its task panics.
    let rows = first.rows.clone();
    engine.store.write(move |transaction| outbox::begin_attempt(transaction, &rows, 0)).await.unwrap();
    let task = engine.tasks.spawn(async { panic!("a fault, which the test wants") });
    let running = Running {
        call: CallNumber::of_none(),
        act: first.act,
        kind: first.work.kind(),
        source: first.source,
        rows: first.rows.clone(),
        cancel: CancellationToken::new(),
    };
    engine.acting.running.insert(task.id(), running);
    let ended = engine.tasks.join_next_with_id().await.unwrap();
    engine.ended(ended).await;

    let Ok(Event::Act(told)) = events.try_recv() else { unreachable!("an event says so") };
    assert_eq!((told.act, told.source, told.objects), (first.act, first.source, 1));
    let ActStep::Postponed { failure, next_try: Some(_) } = told.step else { unreachable!("{told:?}") };
    assert!(failure.message.contains("a fault"), "{failure}");
    let queue = queue(&engine).await;
    let [panicked, other] = queue.as_slice() else { unreachable!("{queue:?}") };
    assert_eq!((panicked.act, &panicked.state, panicked.attempts), (first.act, &ActState::Unconfirmed, 1));
    assert_eq!(panicked.reason.as_ref(), Some(&failure.message));
    assert_eq!((other.act, other.attempts, &other.reason), (second.act, 0, &None));
    // The other goes on: it is ready, and a call is being opened for it. The first waits for its time.
    assert_eq!(ready(&engine).await, std::slice::from_ref(second));
    assert!(engine.acting.running.is_empty() && engine.pause_reasons().is_empty());
    let opening: Vec<_> = engine.acting.opening.values().map(|(key, _)| *key).collect();
    assert_eq!(opening, [CallKey::Marks]);
}

/// Case Q5.
#[tokio::test]
async fn q5_a_panic_while_a_call_is_opened_is_tried_again_later() {
    let directory = tempfile::tempdir().unwrap();
    let (mut engine, _events) = engine(directory.path()).await;
    take_stars(&engine).await;
    let abort = engine.tasks.spawn(async { panic!("a fault, which the test wants") });
    engine.acting.opening.insert(abort.id(), (CallKey::Marks, abort.clone()));
    engine.acting.calls.opening(CallKey::Marks);
    let ended = engine.tasks.join_next_with_id().await.unwrap();
    engine.ended(ended).await;

    assert!(engine.acting.opening.is_empty() && !engine.acting.calls.has(CallKey::Marks));
    let wake = engine.acting.wake.expect("nothing else would wake the lane");
    assert!(wake <= Instant::now() + Duration::from_secs(10));
    assert!(queue(&engine).await.iter().all(|entry| entry.state == ActState::Waiting && entry.attempts == 0));
}

/// When deletions wait for so long.
const GRACE: Duration = Duration::from_secs(10);

/// Deletes the first source, by a clock that stands; gives the act and the clock.
async fn delete_one(engine: &mut Engine) -> (ActId, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(1_750_000_000_000_000));
    engine.clock = Clock::Manual(Arc::clone(&clock));
    engine.acting.settings.delete_grace = GRACE;
    let (journalist, now) = (engine.session.journalist().unwrap(), engine.clock.now());
    let act = Act::DeleteSources { sources: vec![SOURCES[0].parse().unwrap()] };
    let take = move |transaction: &rusqlite::Transaction<'_>| {
        mirror::store_journalist(transaction, journalist, &Username::try_new("nobody").map_err(StoreError::from)?)?;
        grace::take(transaction, journalist, &act, now, GRACE)
    };
    let taken = engine.store.write_or(take).await.unwrap().taken;
    assert_eq!(taken.grace_ms, 10_000);
    (taken.act.unwrap(), clock)
}

fn opening(engine: &Engine) -> Vec<CallKey> {
    engine.acting.opening.values().map(|(key, _)| *key).collect()
}

async fn state(engine: &Engine) -> (ActState, Option<u64>) {
    let (now, lane) = (engine.clock.now(), engine.lane());
    let queue = engine.store.read(move |transaction| outbox::queue(transaction, now, &lane)).await.unwrap();
    let [entry] = queue.as_slice() else { unreachable!("{queue:?}") };
    (entry.state.clone(), entry.next_try.map(Timestamp::get))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_call_is_opened_for_a_deletion_that_can_be_taken_back_and_the_lane_wakes_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let (mut engine, _events) = engine(directory.path()).await;
    let (act, clock) = delete_one(&mut engine).await;
    let begun = clock.load(Ordering::SeqCst);
    engine.send_acts().await;
    assert_eq!((opening(&engine), engine.acting.wake), (vec![], Some(Instant::now() + GRACE)));
    assert_eq!(state(&engine).await, (ActState::Grace, Some(begun + micros(GRACE))));
    clock.fetch_add(micros(GRACE) - 1, Ordering::SeqCst);
    engine.send_acts().await;
    assert_eq!(opening(&engine), []);
    clock.fetch_add(1, Ordering::SeqCst);
    engine.send_acts().await;
    assert_eq!(opening(&engine), [CallKey::Deletions(act)]);
    assert_eq!(state(&engine).await.0, ActState::Opening);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_lets_a_deletion_wait_once_more_and_no_longer() {
    let directory = tempfile::tempdir().unwrap();
    let (mut engine, _events) = engine(directory.path()).await;
    let (act, clock) = delete_one(&mut engine).await;
    for _ in 0..2 {
        clock.fetch_sub(3_600_000_000, Ordering::SeqCst);
        engine.send_acts().await;
        assert_eq!((opening(&engine), engine.acting.wake), (vec![], Some(Instant::now() + GRACE)));
        let due = clock.load(Ordering::SeqCst) + micros(GRACE);
        assert_eq!(state(&engine).await, (ActState::Grace, Some(due)), "it is stored");
    }
    clock.fetch_add(micros(GRACE), Ordering::SeqCst);
    engine.send_acts().await;
    assert_eq!(opening(&engine), [CallKey::Deletions(act)]);
}

/// The proxy in its handshake, or somebody in dom0.
#[tokio::test]
async fn a_call_that_nobody_answers_holds_up_nothing_but_itself() {
    for asks in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (mut engine, mut events) = engine(directory.path()).await;
        if asks {
            engine.proxy = engine.proxy.clone().asked_about([Scope::Mark].into_iter().collect());
        }
        let (journalist, username) = (engine.session.journalist().unwrap(), Username::try_new("nobody").unwrap());
        let signed_in =
            move |transaction: &rusqlite::Transaction<'_>| mirror::store_journalist(transaction, journalist, &username);
        engine.store.write(signed_in).await.unwrap();
        take_stars(&engine).await;
        engine.send_acts().await;
        let task = *engine.acting.opening.keys().next().unwrap();
        let silent = OpenError::Hello { vm: "sd-proxy".parse().unwrap(), source: HelloError::TimedOut };
        engine.act_call_opened(task, Err(silent.into())).await;
        assert_eq!(engine.pause_reasons(), []);
        while let Ok(event) = events.try_recv() {
            assert!(!matches!(event, Event::Paused(_)), "{event:?}");
        }
        assert!(engine.acting.opening.is_empty(), "it is not tried again at once");
        let (lane, now) = (engine.lane(), engine.clock.now());
        let queue = engine.store.read(move |transaction| outbox::queue(transaction, now, &lane)).await.unwrap();
        let state = if asks { ActState::Held } else { ActState::Waiting };
        assert!(queue.len() == 2 && queue.iter().all(|entry| entry.state == state), "{queue:?}");

        // Time alone helps only where dom0 does not ask.
        for barred in engine.acting.barred.values_mut() {
            barred.until = barred.until.map(|_| Instant::now());
        }
        engine.send_acts().await;
        assert_eq!(engine.acting.opening.len(), usize::from(!asks));
        engine.acting.let_dom0_ask();
        engine.send_acts().await;
        assert_eq!(engine.acting.opening.len(), 1);
    }
}

/// dom0 asks about deletions and marks: when the call for marks has long been idle it still is not a deletion's to take.
#[tokio::test]
async fn a_second_deletion_does_not_take_the_place_of_marks() {
    let directory = tempfile::tempdir().unwrap();
    let places = Places::new(MAX_CALLS);
    let asks = |scope| matches!(scope, Scope::Delete | Scope::Mark);
    let [first, second] = [ActId(1), ActId(2)];
    let mut calls = Calls::default();
    let idle_at = Instant::now();
    for key in [CallKey::Marks, CallKey::Deletions(first)] {
        let call = open_call(directory.path(), key.scope(), "", places.take().await).await;
        calls.opening(key);
        calls.opened(key, call, idle_at);
    }
    let (number, _call) = calls.take(CallKey::Deletions(first), MAX_AT_ONCE).unwrap();
    let (room, closed) = calls.make_room(CallKey::Deletions(second), MAX_CALLS, asks, idle_at);
    assert!(!room && closed.is_none() && calls.has(CallKey::Marks), "it waits");
    // The other deletion's place it may have.
    calls.give_back(number, idle_at);
    let (room, closed) = calls.make_room(CallKey::Deletions(second), MAX_CALLS, asks, idle_at);
    assert!(room && closed.is_some() && calls.has(CallKey::Marks) && !calls.has(CallKey::Deletions(first)));
}
