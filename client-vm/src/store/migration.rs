//! Brings a database to this program's version, one numbered step after the other.
//!
//! **Invariant:** each step and its version number are one transaction.
//!
//! **Invariant:** a database that holds data is copied before its first step. The copy goes when the migrated database was
//! opened anew and found sound.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, TransactionBehavior};

use super::search;

/// The steps. A step that was released is never changed: its number is the database's `user_version` after it.
const MIGRATIONS: &[&str] = &[
    include_str!("../../migrations/0001_mirror.sql"),
    include_str!("../../migrations/0002_outbox.sql"),
    include_str!("../../migrations/0003_downloads.sql"),
    include_str!("../../migrations/0004_reading.sql"),
    include_str!("../../migrations/0005_search.sql"),
    include_str!("../../migrations/0006_removals.sql"),
    include_str!("../../migrations/0007_lanes.sql"),
];

/// A database could not be brought to this program's version.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// The database is of a newer program.
    #[error("the database has version {found} and this program knows up to {known}: upgrade Splitdrop in this VM")]
    Newer {
        /// The database's version.
        found: i64,
        /// The newest version known.
        known: usize,
    },
    /// A step failed; the database is as it was before it.
    #[error("migration {number} failed")]
    Failed {
        /// The step.
        number: usize,
        /// Why.
        source: rusqlite::Error,
    },
    /// What the steps and their triggers call could not be added to the connection.
    #[error("the database could not be made ready for its migration")]
    Function(#[source] rusqlite::Error),
    /// The database's version could not be read.
    #[error("the database's version could not be read")]
    Version(#[source] rusqlite::Error),
    /// The database could not be copied before the migration, which was not begun.
    #[error("the database could not be copied to {} before its migration; is the disk full?", .path.display())]
    BackUp {
        /// The copy.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// The copy could not be written to the disk or removed.
    #[error("could not {what} {}", .path.display())]
    Copy {
        /// What was being done.
        what: &'static str,
        /// The copy.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The migrated database is not sound.
    #[error("the migrated database is damaged ({found}); the one from before is {}", .path.display())]
    Damaged {
        /// What SQLite found.
        found: String,
        /// The copy.
        path: PathBuf,
    },
}

/// Migrates the database that `connection` has open; one that holds data is copied to `copy` before.
pub(super) fn migrate_with_copy(connection: &mut Connection, copy: &Path) -> Result<(), MigrationError> {
    let found = version(connection)?;
    if found > 0 && found < MIGRATIONS.len() {
        back_up(connection, copy)?;
    }
    migrate(connection)
}

fn back_up(connection: &Connection, copy: &Path) -> Result<(), MigrationError> {
    let failed = |what| move |source| MigrationError::Copy { what, path: copy.to_owned(), source };
    // Of a migration that was cut off: the database is as it was before it.
    remove(copy)?;
    let text = copy.to_string_lossy();
    let done = connection.execute("VACUUM INTO ?1", [&text]);
    done.map_err(|source| MigrationError::BackUp { path: copy.to_owned(), source })?;
    File::open(copy).and_then(|file| file.sync_all()).map_err(failed("write to the disk"))
}

/// Removes the copy, if there is one, once `reopened` has the migrated database open and finds it sound.
pub(super) fn drop_copy(reopened: &Connection, copy: &Path) -> Result<(), MigrationError> {
    if !copy.exists() {
        return Ok(());
    }
    let found: String =
        reopened.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).unwrap_or_else(|error| error.to_string());
    if found != "ok" {
        return Err(MigrationError::Damaged { found, path: copy.to_owned() });
    }
    remove(copy)
}

fn remove(copy: &Path) -> Result<(), MigrationError> {
    match std::fs::remove_file(copy) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(MigrationError::Copy { what: "remove", path: copy.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The database's version, which this program must know.
fn version(connection: &Connection) -> Result<usize, MigrationError> {
    let found: i64 =
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(MigrationError::Version)?;
    let done = usize::try_from(found).unwrap_or(usize::MAX);
    if done > MIGRATIONS.len() {
        return Err(MigrationError::Newer { found, known: MIGRATIONS.len() });
    }
    Ok(done)
}

pub(super) fn migrate(connection: &mut Connection) -> Result<(), MigrationError> {
    let done = version(connection)?;
    search::add_function(connection).map_err(MigrationError::Function)?;
    for (number, sql) in (1..).zip(MIGRATIONS).skip(done) {
        step(connection, number, sql).map_err(|source| MigrationError::Failed { number, source })?;
        tracing::info!(number, "database migrated");
    }
    Ok(())
}

fn step(connection: &mut Connection, number: usize, sql: &str) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(sql)?;
    transaction.pragma_update(None, "user_version", i64::try_from(number).unwrap_or(i64::MAX))?;
    transaction.commit()
}

#[cfg(test)]
mod tests;
