use super::*;
use crate::store::search::{self, Query};
use crate::store::{COPY, DATABASE, Store, view};

fn version_of(connection: &Connection) -> usize {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
}

#[test]
fn a_new_database_gets_every_step_and_a_current_one_none() {
    let mut connection = Connection::open_in_memory().unwrap();
    migrate(&mut connection).unwrap();
    let changes = connection.total_changes();
    migrate(&mut connection).unwrap();
    assert_eq!(connection.total_changes(), changes);
    assert_eq!(version_of(&connection), MIGRATIONS.len());
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
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
    assert_eq!((tables, version_of(&connection)), (0, 0));
}

/// What a database of a version holds in these tests: a source with a message, a file and a reply, seen and unseen, and what
/// cannot be read. Statements of version `n` stand at `n - 1` and work from there on.
const DATA: &[&str] = &[
    "INSERT INTO server_journalist VALUES
         ('00000001-0000-4000-8000-000000000000', zeroblob(32), NULL, 'anna', NULL, 'Karlsen');
     INSERT INTO server_source VALUES
         ('00000010-0000-4000-8000-000000000000', zeroblob(32), NULL, 'candid marmot', 1, 5, 3, NULL, NULL),
         ('00000011-0000-4000-8000-000000000000', zeroblob(32), 'designation', NULL, NULL, NULL, NULL, NULL, NULL);
     INSERT INTO server_submission VALUES
         ('00000020-0000-4000-8000-000000000000', zeroblob(32), NULL, '00000010-0000-4000-8000-000000000000', 'message',
          1, '1-candid_marmot-msg.gpg', 612, 1),
         ('00000021-0000-4000-8000-000000000000', zeroblob(32), NULL, '00000010-0000-4000-8000-000000000000', 'file',
          2, NULL, 99, 0);
     INSERT INTO server_submission_seen VALUES
         ('00000020-0000-4000-8000-000000000000', '00000001-0000-4000-8000-000000000000');
     INSERT INTO server_reply VALUES
         ('00000030-0000-4000-8000-000000000000', zeroblob(32), NULL, '00000010-0000-4000-8000-000000000000',
          '00000001-0000-4000-8000-000000000000', 3, NULL, 7, 0);
     INSERT INTO server_reply_seen VALUES
         ('00000030-0000-4000-8000-000000000000', '00000001-0000-4000-8000-000000000000');
     INSERT INTO local_journalist VALUES (1, '00000001-0000-4000-8000-000000000000', 'anna');
     UPDATE sync_state SET last_success_us = 7, unreadable = 1, unreadable_since_us = 6;",
    "INSERT INTO outbox (act, journalist_id, kind, source_id, created_us) VALUES
         (1, '00000001-0000-4000-8000-000000000000', 'unstar', '00000010-0000-4000-8000-000000000000', 8);",
    "INSERT INTO local_item (item_id, is_reply, state, size_bytes) VALUES
         ('00000020-0000-4000-8000-000000000000', 0, 'downloaded', 612);
     UPDATE local_queue SET paused = 1;",
    "INSERT INTO local_item (item_id, is_reply, state, plain_bytes, text) VALUES
         ('00000030-0000-4000-8000-000000000000', 1, 'decrypted', 5, 'hello');
     INSERT INTO outbox (act, journalist_id, kind, source_id, item_id, item_kind, created_us, text) VALUES
         (2, '00000001-0000-4000-8000-000000000000', 'reply', '00000010-0000-4000-8000-000000000000',
          '00000031-0000-4000-8000-000000000000', 'reply', 9, 'an answer');
     INSERT INTO local_draft VALUES
         ('00000001-0000-4000-8000-000000000000', '00000010-0000-4000-8000-000000000000', 'a draft', 10);
     INSERT INTO local_key VALUES
         ('00000010-0000-4000-8000-000000000000', 'ABABABABABABABABABABABABABABABABABABABAB', 'A', 'A',
          'ABABABABABABABABABABABABABABABABABABABAB', 'ABABABABABABABABABABABABABABABABABABABAB', 1, NULL, NULL);",
    "UPDATE local_item SET text = 'hello again' WHERE state = 'decrypted';",
    "INSERT INTO local_removed_source VALUES
         ('00000012-0000-4000-8000-000000000000', 'shy otter', 0, 4, NULL, 11, 0);
     INSERT INTO local_removed_item VALUES
         ('00000022-0000-4000-8000-000000000000', 0, '00000012-0000-4000-8000-000000000000', 'message', 1, NULL, 612,
          NULL, 11, 0);
     INSERT INTO local_removal VALUES (11, 3);",
    "-- An index holds what its table does.",
];

/// A data directory as the program of that version left it, with data in every table.
fn directory_of(version: usize) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = crate::store::open::writer(&directory.path().join(DATABASE)).unwrap();
    for (number, (sql, data)) in (1..).zip(MIGRATIONS.iter().zip(DATA)).take(version) {
        step(&mut connection, number, sql).unwrap();
        connection.execute_batch(data).unwrap();
    }
    assert_eq!(version_of(&connection), version);
    directory
}

/// Case T2.
#[tokio::test]
async fn t2_every_earlier_version_is_migrated_with_its_data() {
    assert_eq!(DATA.len(), MIGRATIONS.len(), "a migration needs data of its version here");
    for version in 1..=MIGRATIONS.len() {
        let directory = directory_of(version);
        let store = Store::open(directory.path()).unwrap();
        let (sources, totals) =
            store.read(|transaction| Ok((view::sources(transaction)?, view::totals(transaction)?))).await.unwrap();
        let [source] = sources.as_slice() else { panic!("{sources:?}") };
        assert_eq!((source.designation.as_str(), source.starred), ("candid marmot", version < 2), "from {version}");
        assert_eq!((source.counts.messages, source.counts.files, source.counts.replies), (1, 1, 1));
        assert_eq!((source.counts.unread, totals.unreadable.count), (1, 1));
        let numbers = store.read(crate::store::downloads::numbers).await.unwrap();
        assert_eq!(numbers.len(), usize::from(version >= 3) + usize::from(version >= 4));
        let acts = store
            .read(|transaction| {
                Ok(transaction.query_row("SELECT count(*) FROM outbox", [], |row| row.get::<_, usize>(0))?)
            })
            .await
            .unwrap();
        assert_eq!(acts, usize::from(version >= 2) + usize::from(version >= 4));
        assert_eq!(store.read(crate::store::downloads::is_paused).await.unwrap(), version >= 3);
        let history = store.read(crate::store::mirror::load_history).await.unwrap();
        assert_eq!(history.last_success.map(|at| at.get()), Some(7));
        // What was decrypted before there was an index is in it.
        let hello = Query::parse(&control::SearchWords::try_new("hello").unwrap()).unwrap();
        let found = store.read(move |transaction| search::find(transaction, &hello, 5)).await.unwrap();
        assert_eq!(found.hits.len(), usize::from(version >= 4), "from {version}");
        assert!(!directory.path().join(COPY).exists(), "the copy has served");
    }
}

/// Case T2: whatever step fails, the database is as it was, and the copy of it stays for as long as it may be needed.
#[test]
fn t2_a_migration_that_fails_changes_nothing_and_keeps_the_copy() {
    let directory = directory_of(1);
    let path = directory.path().join(DATABASE);
    let blocking = Connection::open(&path).unwrap();
    blocking.execute_batch("CREATE TABLE outbox (another TEXT) STRICT").unwrap();
    drop(blocking);
    let error = Store::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("migration 2"), "{error}");
    let connection = Connection::open(&path).unwrap();
    assert_eq!(version_of(&connection), 1);
    let designation: String =
        connection.query_row("SELECT designation FROM visible_source", [], |row| row.get(0)).unwrap();
    assert_eq!(designation, "candid marmot");
    let copy = directory.path().join(COPY);
    assert_eq!(version_of(&Connection::open(&copy).unwrap()), 1);
    // What was in the way is gone: the next start migrates, makes its own copy, and removes it.
    connection.execute_batch("DROP TABLE outbox").unwrap();
    drop(connection);
    Store::open(directory.path()).unwrap();
    assert!(!copy.exists());
}

/// Case T2: cut off between the migration's commit and the removal of the copy, the next start removes it.
#[test]
fn t2_a_copy_that_was_left_behind_goes_with_the_next_start() {
    let directory = directory_of(MIGRATIONS.len());
    let copy = directory.path().join(COPY);
    std::fs::write(&copy, "left behind").unwrap();
    Store::open(directory.path()).unwrap();
    assert!(!copy.exists());
}

/// Case T2: a database that cannot be copied is not migrated.
#[test]
fn t2_without_a_copy_there_is_no_migration() {
    let directory = directory_of(1);
    let copy = directory.path().join(COPY);
    std::fs::create_dir(&copy).unwrap();
    let error = Store::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains(COPY), "{error}");
    assert_eq!(version_of(&Connection::open(directory.path().join(DATABASE)).unwrap()), 1);
}

#[test]
fn a_damaged_database_keeps_its_copy_and_says_where_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join(DATABASE), directory.path().join(COPY));
    std::fs::write(&path, [b"SQLite format 3\0".as_slice(), &[0xff; 4096]].concat()).unwrap();
    std::fs::write(&copy, "the one before").unwrap();
    let error = drop_copy(&Connection::open(&path).unwrap(), &copy).unwrap_err();
    assert!(error.to_string().contains(COPY) && copy.exists(), "{error}");
}
