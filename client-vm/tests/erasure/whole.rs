//! Deletions that nothing gets in the way of.

use std::sync::{Arc, Mutex};

use client_vm::erasure::{Leftover, Log, Step, Stuck, Watcher};
use client_vm::store::outbox;
use client_vm::store::{StoreError, removals};
use control::{ActId, Deal, RemovalVerdict};

use crate::stage::*;

const NONE: Option<Stuck> = None;

/// Case D4: after the confirmed deletion of a source with 151 items nothing of it is left, whatever was held.
#[tokio::test]
async fn d4_after_our_own_deletion_no_byte_is_left() {
    for seed in 0..4 {
        let home = tempfile::tempdir().unwrap();
        let house = House::full(home.path(), seed).await;
        house.assert_all_is_found(&[DOOMED, 2, 3, 4]);
        house.delete().await;
        let erased = house.erase().await;
        assert_eq!((erased.removed, erased.left, erased.failed, erased.log), (151, false, NONE, Log::Empty));
        house.assert_nothing_left(&format!("order {seed}")).await;
    }
}

/// Case D4: the same where a colleague has deleted it, as a snapshot shows.
#[tokio::test]
async fn d4_after_a_colleagues_deletion_no_byte_is_left() {
    let home = tempfile::tempdir().unwrap();
    let house = House::full(home.path(), 7).await;
    house.assert_all_is_found(&[DOOMED, 2, 3, 4]);
    assert!(house.sync(2, &STAYING).await.is_empty(), "it is too little to be held");
    let erased = house.erase().await;
    assert_eq!((erased.removed, erased.left, erased.failed, erased.log), (151, false, NONE, Log::Empty));
    // A reply that was not sent is its author's, who is to know to whom it was.
    let left: Vec<_> = house.words(GOES).into_keys().collect();
    assert_eq!(left, ["plum-coloured-designation-1", "plum-coloured-reply-1"]);
    let dismiss = |transaction: &rusqlite::Transaction<'_>| {
        let refused = "SELECT act FROM outbox WHERE state = 'refused'";
        let act = transaction.query_row(refused, [], |row| row.get(0)).map_err(StoreError::from)?;
        outbox::deal(transaction, anna(), Deal::Dismiss, &[ActId(act)])
    };
    house.store.write_or(dismiss).await.unwrap();
    house.erase_too(Leftover { log: true, pages: true, ..Leftover::default() }).await;
    house.assert_nothing_left("after it was dismissed").await;
}

/// Lists everything again at a step.
struct ListAt {
    step: Step,
    list: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Watcher for ListAt {
    fn step(&self, step: Step) {
        if step == self.step
            && let Some(list) = self.list.lock().unwrap().take()
        {
            list();
        }
    }
}

/// What is listed again while it is erased stays noted: it may have new files, and is erased with them some day.
#[tokio::test(flavor = "multi_thread")]
async fn d4_what_is_listed_again_meanwhile_is_not_forgotten() {
    for step in [Step::Read, Step::Blanked] {
        let home = tempfile::tempdir().unwrap();
        let house = House::full(home.path(), 14).await;
        house.sync(2, &STAYING).await;
        let (again, runtime) = (House::open(home.path()), tokio::runtime::Handle::current());
        let list = move || {
            std::thread::scope(|scope| {
                scope.spawn(|| runtime.block_on(again.sync(3, &[DOOMED, 2, 3, 4])));
            });
        };
        let watcher = ListAt { step, list: Mutex::new(Some(Box::new(list))) };
        let erased = house.erase_watched(Arc::new(watcher)).await;
        assert_eq!(erased.removed, if step == Step::Read { 0 } else { 151 });
        assert_eq!(house.noted().await, 211, "{step:?}");
        if step == Step::Read {
            house.assert_all_is_found(&[2, 3, 4]);
            assert!(house.words(GOES).keys().any(|word| word.contains("text")), "it was not doomed any more");
        }
    }
}

/// Case D4: what is held is not erased until it is accepted, and then nothing of it is left.
#[tokio::test]
async fn d4_what_is_held_is_erased_once_it_is_accepted() {
    let home = tempfile::tempdir().unwrap();
    let house = House::full(home.path(), 8).await;
    // So many were removed today already.
    house
        .write(|transaction| Ok(transaction.execute("INSERT INTO local_removal VALUES (?1, 5)", [now().as_i64()])?))
        .await;
    assert_eq!(house.sync(2, &STAYING).await, [id(DOOMED)]);
    let erased = house.erase().await;
    assert_eq!((erased.removed, erased.log), (0, Log::Empty));
    house.assert_all_is_found(&[DOOMED, 2, 3, 4]);
    house.write(|transaction| removals::settle(transaction, RemovalVerdict::Accept, &[id(DOOMED)])).await;
    assert_eq!(house.erase().await.removed, 151);
    house.assert_nothing_left("after it was accepted").await;
}
