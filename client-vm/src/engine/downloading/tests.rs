//! The lanes of downloads, where they meet a fault of their own.

use std::sync::Arc;

use protocol::value::SourceId;

use super::*;
use crate::engine::EngineParts;
use crate::engine::session::OpenSession;
use crate::store::Store;
use crate::store::outbox::ItemName;

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
    for error in [FetchError::Silent, FetchError::Io(std::io::ErrorKind::StorageFull.into())] {
        let before = Instant::now();
        let task = engine.tasks.spawn(async { Ended::Done }).id();
        let fetching = Fetching {
            lane: DownloadLane::Messages,
            candidate: Candidate { source, item },
            received: Arc::default(),
            cancel: CancellationToken::new(),
        };
        engine.downloading.running.insert(task, fetching);
        engine.fetch_ended(task, FetchEnded::Fetched(Err(error))).await;
        assert!(engine.downloading.running.is_empty());
        let wake = engine.downloading.wake.unwrap();
        assert!(wake >= before + AFTER_STORE_FAULT, "it rests before it looks again");
    }
}
