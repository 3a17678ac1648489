//! Opens connections with the settings that the store's promises rest on.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::search;

/// How long a connection waits for another one's lock. The writer is alone, so only a checkpoint can hold it up.
pub(super) const BUSY: Duration = Duration::from_secs(10);

/// The one connection that writes.
pub(super) fn writer(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    // Deleted content is overwritten, in the pages that stay in use too.
    connection.pragma_update(None, "secure_delete", "ON")?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", "ON")?;
    // Temporary tables and sorts never reach the disk.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    search::add_function(&connection)?;
    Ok(connection)
}

/// A connection that cannot write.
pub(super) fn reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "query_only", "ON")?;
    Ok(connection)
}
