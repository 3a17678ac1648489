//! What is told where erasing fails.

use std::collections::HashSet;

use tokio::sync::broadcast::Receiver;

use super::*;
use crate::engine::EngineParts;
use crate::store::Store;

async fn engine(directory: &std::path::Path) -> (Engine, Receiver<Event>) {
    let store = Store::open(directory).unwrap();
    let (engine, handle) = Engine::new(EngineParts::without_qrexec(directory, store)).await.unwrap();
    let events = handle.subscribe().unwrap();
    (engine, events)
}

/// An erasure that is to write the pages anew, from its begin to its end.
async fn erase_all(engine: &mut Engine) {
    let leftover = Leftover { log: true, pages: true, ..Leftover::default() };
    let files = engine.downloading.files().clone();
    let erased = erase(&engine.store, &files, &HashSet::new(), leftover, Arc::new(())).await;
    engine.erased(erased);
}

async fn run(engine: &Engine, sql: &'static str) {
    engine.store.write(move |transaction| Ok(transaction.execute_batch(sql)?)).await.unwrap();
}

/// Case D4: what the database cannot be rid of is told, as files are that cannot be removed.
#[tokio::test]
async fn d4_a_database_that_cannot_be_written_anew_is_told_once_until_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let (mut engine, mut events) = engine(directory.path()).await;
    run(&engine, "CREATE TRIGGER full BEFORE UPDATE ON local_pages BEGIN SELECT RAISE(ABORT, 'no room'); END;").await;
    for _ in 0..3 {
        erase_all(&mut engine).await;
        let fault = engine.erasing.fault.clone().unwrap();
        assert_eq!(fault.items, 0);
        assert!(fault.reason.contains("no room") && fault.reason.contains("is the disk full?"), "{fault:?}");
        assert!(engine.erasing.wake.is_some() && engine.erasing.pages, "it is tried again");
    }
    let told = events.try_recv().unwrap();
    assert!(matches!(&told, Event::ErasureFailed(fault) if fault.items == 0), "{told:?}");
    assert!(events.try_recv().is_err(), "it was told already");

    run(&engine, "DROP TRIGGER full").await;
    erase_all(&mut engine).await;
    assert_eq!(engine.erasing.fault, None);
    // And told once more, if it happens once more.
    engine.erased(Err(StoreError::CutOff));
    assert!(matches!(events.try_recv(), Ok(Event::ErasureFailed(_))));
}

/// Files that could not be removed are not forgotten where the database fails after that.
#[tokio::test]
async fn d4_the_files_that_are_left_stay_told() {
    let directory = tempfile::tempdir().unwrap();
    let (mut engine, _events) = engine(directory.path()).await;
    let stuck = Stuck { items: 3, reason: "not permitted".to_owned() };
    engine.erased(Ok(Erased { failed: Some(stuck), ..Erased::default() }));
    engine.erased(Err(StoreError::CutOff));
    assert_eq!(engine.erasing.fault.as_ref().unwrap().items, 3);
}
