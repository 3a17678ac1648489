//! Brings a database to this program's version, one numbered step after the other.
//!
//! **Invariant:** each step and its version number are one transaction.

use rusqlite::{Connection, TransactionBehavior};

/// The steps. A step that was released is never changed: its number is the database's `user_version` after it.
const MIGRATIONS: &[&str] = &[include_str!("../../migrations/0001_mirror.sql")];

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
    /// The database's version could not be read.
    #[error("the database's version could not be read")]
    Version(#[source] rusqlite::Error),
}

pub(super) fn migrate(connection: &mut Connection) -> Result<(), MigrationError> {
    let found: i64 =
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(MigrationError::Version)?;
    let done = usize::try_from(found).unwrap_or(usize::MAX);
    if done > MIGRATIONS.len() {
        return Err(MigrationError::Newer { found, known: MIGRATIONS.len() });
    }
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
mod tests {
    use super::*;

    #[test]
    fn a_new_database_gets_every_step_and_a_current_one_none() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection).unwrap();
        let changes = connection.total_changes();
        migrate(&mut connection).unwrap();
        assert_eq!(connection.total_changes(), changes);
        let version: usize = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
        assert_eq!(version, MIGRATIONS.len());
    }

    #[test]
    fn a_newer_database_is_refused_and_left_alone() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
        assert!(matches!(migrate(&mut connection), Err(MigrationError::Newer { found: 99, .. })));
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
        assert_eq!(tables, 0);
    }

    #[test]
    fn a_step_that_fails_leaves_nothing() {
        let mut connection = Connection::open_in_memory().unwrap();
        assert!(step(&mut connection, 7, "CREATE TABLE a (b TEXT) STRICT; CREATE TABLE a (b TEXT) STRICT;").is_err());
        let (tables, version): (i64, i64) = connection
            .query_row(
                "SELECT (SELECT count(*) FROM sqlite_schema), (SELECT user_version FROM pragma_user_version)",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .unwrap();
        assert_eq!((tables, version), (0, 0));
    }
}
