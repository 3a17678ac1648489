//! A database that is full, or that somebody else has locked: each step of an act is made whole or not at all, and made when
//! it can be.

use std::time::Duration;

use control::reply::MAX_REPLY_CHARS;
use control::{Act, ReplyText};
use protocol::value::{ItemId, SubmissionId, Timestamp};
use rusqlite::{Connection, ErrorCode, Transaction, params};

use super::super::{self as outbox, EnqueueError, Outcome, Row, Waits};
use super::world::{Itm, Src, Who};
use crate::store::{Store, StoreError, mirror};
use crate::sync::Plan;

const SOURCE: Src = Src(0);
/// How many messages the source has written: more than one page has room for.
const MESSAGES: usize = 200;

struct Stage {
    directory: tempfile::TempDir,
    store: Store,
}

impl Stage {
    /// A store that knows a source with a pinned key and its messages. Nobody waits for a lock.
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let stage = Self { directory, store };
        stage
            .write(|transaction| {
                mirror::store_journalist(transaction, Who::Anna.id(), &Who::Anna.name())?;
                transaction.execute(
                    "INSERT INTO server_source (id, digest, designation, starred, last_updated_us, interactions,
                         key_armored, key_fingerprint)
                     VALUES (?1, zeroblob(32), 'calm sea', 0, 0, 0, 'key', printf('%.40c', 'A'))",
                    [SOURCE.id().as_str()],
                )?;
                transaction.execute_batch(
                    "INSERT INTO local_key (source_id, fingerprint, armored, offered_armored, offered_claim,
                         offered_fingerprint)
                     SELECT id, key_fingerprint, 'key', 'key', key_fingerprint, key_fingerprint FROM server_source",
                )?;
                for number in 0..MESSAGES {
                    transaction.execute(
                        "INSERT INTO server_submission (id, digest, source_id, kind, item_order, size_bytes, read)
                         VALUES (?1, zeroblob(32), ?2, 'message', ?3, 1, 0)",
                        params![message(number).as_str(), SOURCE.id().as_str(), number],
                    )?;
                }
                Ok(())
            })
            .await
            .unwrap();
        // No page is free.
        stage.store.rewrite().await.unwrap();
        stage.pragma("busy_timeout", 1).await;
        stage
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.store.write(work).await
    }

    async fn pragma(&self, name: &'static str, value: i64) {
        let set = move |transaction: &Transaction<'_>| {
            Ok(transaction.query_row(&format!("PRAGMA {name} = {value}"), [], |row| row.get::<_, i64>(0))?)
        };
        self.write(set).await.unwrap();
    }

    /// The database may grow no more, or as it likes.
    async fn fill(&self, full: bool) {
        let pages: i64 = self
            .store
            .read(|transaction| Ok(transaction.query_row("PRAGMA page_count", [], |row| row.get(0))?))
            .await
            .unwrap();
        self.pragma("max_page_count", if full { pages } else { 1_000_000 }).await;
    }

    /// Somebody else writes, for as long as what is given is there.
    fn lock(&self) -> Connection {
        let other = Connection::open(self.directory.path().join("store.sqlite3")).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        other
    }

    /// The outbox, and how much of the mirror and of drafts there is.
    async fn held(&self) -> String {
        let look = |transaction: &Transaction<'_>| {
            let mut held = String::new();
            let mut select = transaction.prepare("SELECT * FROM outbox ORDER BY id")?;
            let columns = select.column_count();
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                for column in 0..columns {
                    held += &format!("{:?} ", row.get::<_, rusqlite::types::Value>(column)?);
                }
            }
            for count in [
                "server_source WHERE designation IS NOT NULL",
                "server_submission WHERE kind IS NOT NULL",
                "local_draft",
            ] {
                let sql = format!("SELECT count(*) FROM {count}");
                held += &format!("{} ", transaction.query_row(&sql, [], |row| row.get::<_, i64>(0))?);
            }
            Ok(held)
        };
        self.store.read(look).await.unwrap()
    }

    /// A step that fails while the database is locked, changes nothing, and is made when it is free.
    async fn step<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError> + Clone + Send + 'static,
    ) -> T {
        let (before, lock) = (self.held().await, self.lock());
        let error = self.write(step.clone()).await.err().unwrap();
        assert_eq!(code(&error), Some(ErrorCode::DatabaseBusy), "{error}");
        drop(lock);
        assert_eq!(self.held().await, before);
        self.write(step).await.unwrap()
    }

    /// An act that does not fit, of which nothing is kept, and that is taken when there is room.
    async fn take_in_two(&self, act: &Act) -> u64 {
        self.fill(true).await;
        let before = self.held().await;
        let error = self.take(act).await.unwrap_err();
        assert_eq!(code(&error), Some(ErrorCode::DiskFull), "{error}");
        assert_eq!(self.held().await, before);
        self.fill(false).await;
        self.take(act).await.unwrap()
    }

    async fn take(&self, act: &Act) -> Result<u64, StoreError> {
        let act = act.clone();
        self.write(move |transaction| take(transaction, &act)).await
    }
}

fn take(transaction: &Transaction<'_>, act: &Act) -> Result<u64, StoreError> {
    match outbox::enqueue(transaction, Who::Anna.id(), act, now()) {
        Ok(enqueued) => Ok(enqueued.taken.objects),
        Err(EnqueueError::Store(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

fn message(number: usize) -> SubmissionId {
    format!("{number:08x}-0000-4000-8000-000000000000").parse().unwrap()
}

fn now() -> Timestamp {
    Timestamp::try_new(1_750_000_000_000_000).unwrap()
}

fn code(error: &StoreError) -> Option<ErrorCode> {
    match error {
        StoreError::Sqlite(error) => error.sqlite_error_code(),
        _ => None,
    }
}

/// Case T1.
#[tokio::test]
async fn t1_an_act_that_does_not_fit_is_reported_and_taken_when_there_is_room() {
    let stage = Stage::new().await;
    let text = ReplyText::try_new("x".repeat(MAX_REPLY_CHARS)).unwrap();
    let reply = Act::Reply { source: SOURCE.id(), reply: Itm::answer(0).reply_id(), text };
    assert_eq!(stage.take_in_two(&reply).await, 1);
    let items: Vec<_> = (0..MESSAGES).map(|number| ItemId::Submission(message(number))).collect();
    let deletion = Act::DeleteItems { source: SOURCE.id(), items };
    assert_eq!(stage.take_in_two(&deletion).await, 200);
}

/// Case T1: on a full disk what was deleted goes all the same.
#[tokio::test]
async fn t1_a_full_disk_keeps_no_deletion_from_being_made() {
    let stage = Stage::new().await;
    stage.take(&Act::DeleteSources { sources: vec![SOURCE.id()] }).await.unwrap();
    stage.fill(true).await;
    let rows = stage.write(begin).await.unwrap();
    stage.write(move |transaction| settle(transaction, &rows)).await.unwrap();
    let held = stage.held().await;
    assert!(held.contains("confirmed") && held.ends_with("0 0 0 "), "{held}");
}

/// Case T1.
#[tokio::test]
async fn t1_a_locked_database_holds_up_each_step_of_an_act_and_loses_none() {
    let stage = Stage::new().await;
    let act = Act::DeleteSources { sources: vec![SOURCE.id()] };
    assert_eq!(stage.step(move |transaction| take(transaction, &act)).await, 1);
    let rows = stage.step(begin).await;
    stage.step(move |transaction| settle(transaction, &rows)).await;
    assert!(stage.held().await.contains("confirmed"));
    let snapshot = |transaction: &Transaction<'_>| {
        transaction.execute("DELETE FROM server_source", [])?;
        outbox::after_snapshot(transaction, 9, now(), Duration::from_secs(3_600), &Plan::default())
    };
    stage.step(snapshot).await;
    assert!(!stage.held().await.contains("confirmed"));
}

fn begin(transaction: &Transaction<'_>) -> Result<Vec<Row>, StoreError> {
    let none = (Default::default(), Default::default());
    let batch = outbox::ready(transaction, Who::Anna.id(), now(), &none.0, &none.1)?.batches.remove(0);
    outbox::begin_attempt(transaction, &batch.rows, 0)
}

fn settle(transaction: &Transaction<'_>, rows: &[Row]) -> Result<(), StoreError> {
    for row in rows {
        outbox::settle(transaction, row, &Outcome::Done, now(), 0, &Waits::default(), 0.0)?;
    }
    Ok(())
}
