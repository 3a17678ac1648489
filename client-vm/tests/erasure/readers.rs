//! Erasures while somebody reads.

use std::sync::mpsc;

use client_vm::erasure::Log;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::stage::*;

/// Somebody reads and does not end: the log stays, and says so; nobody who wants to write waits for that.
#[tokio::test]
async fn d4_a_reader_keeps_the_log_full_and_nobody_waiting() {
    let home = tempfile::tempdir().unwrap();
    let house = House::full(home.path(), 10).await;
    let (begun, wait_begun) = mpsc::channel();
    let (end, wait_end) = mpsc::channel();
    let store = house.store.clone();
    let reading = async move {
        let read = store.read(move |transaction| {
            let items: usize = transaction.query_row("SELECT count(*) FROM local_item", [], |row| row.get(0))?;
            begun.send(items).unwrap();
            wait_end.recv().unwrap();
            Ok(())
        });
        read.await.unwrap();
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(reading);
    assert_eq!(tokio::task::spawn_blocking(move || wait_begun.recv().unwrap()).await.unwrap(), 211);
    house.delete().await;
    let erased = house.erase().await;
    assert_eq!((erased.removed, erased.log), (151, Log::Full));
    // Without the files, which take as long as the disk does.
    let before = Instant::now();
    assert_eq!(house.erase().await.log, Log::Full);
    assert!(before.elapsed().as_secs() < 5, "it waited for the reader: {:?}", before.elapsed());
    assert!(!house.words(GOES).is_empty(), "the reader still sees it");
    // The start would not get on either, and tells what is left to do.
    let leftover = house.sweep().await;
    assert!(leftover.log && !leftover.pages && leftover.orphans.is_empty());
    end.send(()).unwrap();
    tasks.join_next().await.unwrap().unwrap();
    assert_eq!(house.erase().await.log, Log::Empty);
    house.assert_nothing_left("after the reader had gone").await;
}
