//! The store: an SQLite database in the data directory.
//!
//! **Invariant:** one connection writes, in whole transactions; readers cannot write. After an error inside a
//! transaction nothing of it is left.
//!
//! **Invariant:** no text of the server or of a source is part of an SQL statement or of a path.

pub mod downloads;
pub mod drafts;
pub mod handover;
pub mod keys;
mod migration;
pub mod mirror;
mod open;
pub mod outbox;
pub mod reading;
pub mod removals;
pub mod search;
pub mod view;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};

pub use migration::MigrationError;
pub use mirror::{Applied, SyncHistory};
pub use view::SourceMatch;

/// The database's file name in the data directory.
const DATABASE: &str = "store.sqlite3";
/// The file name of the copy that is kept while the database is migrated.
const COPY: &str = "store.before-migration.sqlite3";
/// How long a checkpoint waits for readers. Whoever wants to write waits with it.
const CHECKPOINT_WAIT: Duration = Duration::from_millis(50);
/// How many readers are kept open.
const READERS: usize = 4;

/// The store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite said so.
    #[error("the database failed")]
    Sqlite(#[from] rusqlite::Error),
    /// The database could not be brought to this version.
    #[error(transparent)]
    Migration(#[from] MigrationError),
    /// A row holds what this program never writes.
    #[error("the database holds a value that is not valid: {0}")]
    Value(#[from] protocol::value::ValueError),
    /// A report could not be encoded.
    #[error("a report could not be encoded")]
    EncodeReport(#[from] protocol::codec::EncodeError),
    /// The work in the database panicked or was cut off by the program's end.
    #[error("work in the database was cut off")]
    CutOff,
}

/// A handle to the store. Clones share one writer and some readers.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: Box<Path>,
    writer: Mutex<Connection>,
    readers: Mutex<Vec<Connection>>,
}

impl Store {
    /// Opens the store in `directory`, which must exist; creates or migrates the database.
    ///
    /// # Errors
    /// [`StoreError`]; a database of a newer version is left as it is.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let (path, copy) = (directory.join(DATABASE), directory.join(COPY));
        let mut writer = open::writer(&path)?;
        migration::migrate_with_copy(&mut writer, &copy)?;
        migration::drop_copy(&open::reader(&path)?, &copy)?;
        Ok(Self {
            inner: Arc::new(Inner {
                directory: directory.into(),
                writer: Mutex::new(writer),
                readers: Mutex::new(Vec::new()),
            }),
        })
    }

    /// Runs `work` in one transaction on the writer, off the async threads. When it fails, nothing of it is kept.
    ///
    /// Not cancel-safe in the sense that the work goes on when the future is dropped; it is never cut in two.
    ///
    /// # Errors
    /// What `work` returns, and SQLite's errors of the transaction itself.
    pub async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.write_or(work).await
    }

    /// The same for work with an error type of its own: what it refuses changes nothing.
    ///
    /// # Errors
    /// What `work` returns, and SQLite's errors of the transaction itself.
    pub async fn write_or<T, E, F>(&self, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || {
            let mut writer = inner.writer.lock().unwrap_or_else(PoisonError::into_inner);
            let begun = writer.transaction_with_behavior(TransactionBehavior::Immediate);
            let transaction = begun.map_err(StoreError::from)?;
            let result = work(&transaction)?;
            search::erase(&transaction)?;
            transaction.commit().map_err(StoreError::from)?;
            Ok(result)
        });
        done.await.unwrap_or_else(|_| Err(StoreError::CutOff.into()))
    }

    /// Runs `work` on a reader, in one read transaction, off the async threads.
    ///
    /// # Errors
    /// What `work` returns, and SQLite's errors.
    pub async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        off_thread(move || {
            let kept = inner.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut reader = match kept {
                Some(reader) => reader,
                None => open::reader(&inner.directory.join(DATABASE))?,
            };
            let transaction = reader.transaction()?;
            let result = work(&transaction)?;
            transaction.finish()?;
            let mut readers = inner.readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < READERS {
                readers.push(reader);
            }
            Ok(result)
        })
        .await
    }

    /// Writes all pages of the database anew. Deleted content is overwritten where it stood, but a page from which something
    /// moved to another one may hold a copy of it besides, out of use: no such copy is left. Takes as much memory, and as much
    /// log, as the database has bytes.
    ///
    /// # Errors
    /// SQLite's.
    pub async fn rewrite(&self) -> Result<(), StoreError> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || {
            let writer = inner.writer.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(writer.execute_batch("VACUUM; UPDATE local_pages SET dirty = 0")?)
        })
        .await
    }

    /// Whether something has gone since all pages were written anew.
    ///
    /// # Errors
    /// SQLite's.
    pub async fn needs_rewriting(&self) -> Result<bool, StoreError> {
        self.read(|transaction| Ok(transaction.query_row("SELECT dirty FROM local_pages", [], |row| row.get(0))?)).await
    }

    /// Moves what is in the write-ahead log into the database, and empties the log: what was overwritten is then in neither.
    /// Gives `false` where a reader kept it from being emptied, which is not waited for.
    ///
    /// # Errors
    /// SQLite's.
    pub async fn checkpoint(&self) -> Result<bool, StoreError> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || {
            let writer = inner.writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.busy_timeout(CHECKPOINT_WAIT)?;
            let busy = writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
            writer.busy_timeout(open::BUSY)?;
            Ok(!busy?)
        })
        .await
    }
}

async fn off_thread<T, F>(work: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, StoreError> + Send + 'static,
{
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(StoreError::CutOff))
}
