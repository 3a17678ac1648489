//! A thousand sources, end to end. Nothing here is about time: `splitdrop-staging bench sync` measures.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};
use serde_json::json;
use staging::environment::{Environment, EnvironmentOptions};
use staging::generator::MARLOW;

const SOURCES: u32 = 1_000;
const ITEMS: u32 = 4;

/// Every row of the mirror's tables, by table. (The others follow what the daemon does meanwhile.)
type Dump = BTreeMap<String, Vec<Vec<Value>>>;

/// Reads the client's database beside the daemon, without the means to change it.
fn dump(database: &Path) -> Dump {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(database, flags).unwrap();
    let mut tables = connection
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name")
        .unwrap();
    let tables: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let mut dump = Dump::new();
    for table in tables.into_iter().filter(|table| table.starts_with("server_")) {
        let mut rows = connection.prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2")).unwrap();
        let columns = rows.column_count();
        let read = |row: &rusqlite::Row<'_>| (0..columns).map(|column| row.get(column)).collect();
        let rows = rows.query_map([], read).unwrap().map(Result::unwrap).collect();
        dump.insert(table, rows);
    }
    dump
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sources_are_mirrored_exactly_and_an_unchanged_sync_writes_nothing() {
    let environment =
        Environment::with_daemon(EnvironmentOptions::with_sources(SOURCES, ITEMS).unwrap()).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    let first = watch.until("sync_ended").await.unwrap();
    let counted = |count: usize| json!(count as u64);
    let (messages, files, replies, journalists, marks) = environment.server().control().with_world(|world| {
        let files = world.submissions().filter(|item| item.kind.is_file()).count();
        let messages = world.submissions().count() - files;
        let marks = world.submissions().map(|item| item.seen_by.len()).sum::<usize>();
        (messages, files, world.replies().count(), world.journalists().len(), marks)
    });
    let report = &first["sync"];
    assert_eq!((&report["outcome"], &report["unreadable"]), (&json!("ok"), &json!(0)), "{first}");
    assert!(report["rows_written"].as_u64().unwrap() > u64::from(SOURCES * (1 + ITEMS)), "{first}");
    let counts = &report["counts"];
    assert_eq!(counts["sources"], SOURCES);
    assert_eq!(
        (&counts["messages"], &counts["files"], &counts["replies"]),
        (&counted(messages), &counted(files), &counted(replies))
    );

    let listed = environment.json(&["sources"], "").await.unwrap();
    let rows = listed["sources"].as_array().unwrap();
    assert_eq!(rows.len(), SOURCES as usize);
    for row in rows {
        let shown = ["messages", "files", "replies"].map(|kind| row["counts"][kind].as_u64().unwrap());
        assert_eq!(shown.iter().sum::<u64>(), u64::from(ITEMS), "{row}");
    }
    let database = environment.home().join("store.sqlite3");
    let mirrored = dump(&database);
    for (table, rows) in [
        ("server_source", SOURCES as usize),
        ("server_submission", messages + files),
        ("server_reply", replies),
        ("server_submission_seen", marks),
        ("server_journalist", journalists),
    ] {
        assert_eq!(mirrored[table].len(), rows, "{table}");
    }

    let again = environment.json(&["refresh"], "").await.unwrap();
    assert_eq!((&again["sync"]["outcome"], &again["sync"]["rows_written"]), (&json!("unchanged"), &json!(0)));
    assert_eq!(again["sync"]["counts"], first["sync"]["counts"]);
    // Compared before it is shown: a difference would fill the screen with keys.
    assert!(dump(&database) == mirrored, "an unchanged sync has changed the mirror");
    environment.stop().await.unwrap();
}
