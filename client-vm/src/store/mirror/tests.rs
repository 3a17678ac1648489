use std::path::Path;

use control::{CallTime, ItemKind, Seen, SyncOutcome, SyncStart};
use protocol::record::Record;
use protocol::value::{
    ArmoredKey, Bounded, Designation, Filename, Fingerprint, OrderNumber, ReplyId, Size, SubmissionId,
};
use protocol::{Field, SourceKey, Unreadable};

use super::*;
use crate::store::{SourceMatch, Store, view};
use crate::sync::Snapshot;

fn id<I: std::str::FromStr<Err: std::fmt::Debug>>(number: u32) -> I {
    format!("{number:08x}-0000-4000-8000-000000000000").parse().unwrap()
}

fn at(micros: u64) -> Timestamp {
    Timestamp::try_new(micros).unwrap()
}

fn journalist(number: u32, name: &str) -> Listed<Journalist> {
    Listed::Readable(Journalist {
        id: id(number),
        username: Username::try_new(name).unwrap(),
        first_name: None,
        last_name: None,
        version: None,
    })
}

fn source(number: u32, designation: &str) -> Source {
    Source {
        id: id(number),
        designation: Designation::try_new(designation).unwrap(),
        starred: number.is_multiple_of(2),
        last_updated: at(u64::from(number)),
        interactions: OrderNumber::try_new(3).unwrap(),
        key: Some(SourceKey {
            armored: ArmoredKey::try_new("-----BEGIN PGP PUBLIC KEY BLOCK-----\n").unwrap(),
            fingerprint: Fingerprint::try_new("AB".repeat(20)).unwrap(),
        }),
        version: None,
    }
}

fn submission(number: u32, of: u32, kind: SubmissionKind, seen_by: &[u32]) -> Submission {
    Submission {
        id: id(number),
        source: id(of),
        kind,
        order: OrderNumber::try_new(u64::from(number)).unwrap(),
        filename: Some(Filename::try_new(format!("{number}-a_b-msg.gpg")).unwrap()),
        size: Size::try_new(612).unwrap(),
        read: true,
        seen_by: Bounded::try_new(seen_by.iter().map(|number| id(*number)).collect()).unwrap(),
        version: None,
    }
}

fn reply(number: u32, to: u32, author: u32, seen_by: &[u32]) -> Reply {
    Reply {
        id: id(number),
        source: id(to),
        author: id(author),
        order: OrderNumber::try_new(u64::from(number)).unwrap(),
        filename: None,
        size: Size::try_new(1).unwrap(),
        deleted_by_source: false,
        seen_by: Bounded::try_new(seen_by.iter().map(|number| id(*number)).collect()).unwrap(),
        version: None,
    }
}

/// What the server lists.
#[derive(Clone, Default)]
struct Lists {
    users: Vec<Listed<Journalist>>,
    sources: Vec<Listed<Source>>,
    submissions: Vec<Listed<Submission>>,
    replies: Vec<Listed<Reply>>,
}

impl Lists {
    /// Two journalists, two sources with items, and an item of a source that is not listed.
    fn usual() -> Self {
        Self {
            users: vec![journalist(1, "anna"), journalist(2, "ben")],
            sources: vec![Listed::Readable(source(10, "quiet harbour")), Listed::Readable(source(11, "loud harbour"))],
            submissions: vec![
                Listed::Readable(submission(20, 10, SubmissionKind::Message, &[1])),
                Listed::Readable(submission(21, 10, SubmissionKind::File, &[])),
                Listed::Readable(submission(22, 11, SubmissionKind::Message, &[1, 2])),
                Listed::Readable(submission(23, 99, SubmissionKind::Message, &[])),
            ],
            replies: vec![Listed::Readable(reply(30, 10, 2, &[2]))],
        }
    }
}

fn diff<T: Record>(known: &Known<T::Id>, entries: Vec<Listed<T>>) -> ListPlan<T> {
    let mut snapshot = Snapshot::default();
    for entry in entries {
        snapshot.observe(known, entry).unwrap();
    }
    snapshot.diff(known)
}

/// Applies the lists as a sync does; also gives the number of rows that SQLite counts as changed.
async fn sync_with_changes(store: &Store, lists: Lists, ended: u64) -> Result<(Applied, u64), StoreError> {
    store
        .write(move |transaction| {
            let before = transaction.total_changes();
            let known = load_mirror(transaction)?;
            let plan = Plan {
                users: diff(&known.users, lists.users),
                sources: diff(&known.sources, lists.sources),
                submissions: diff(&known.submissions, lists.submissions),
                replies: diff(&known.replies, lists.replies),
            };
            let applied = apply(transaction, &plan)?;
            store_success(transaction, &report(ended, applied.counts))?;
            Ok((applied, transaction.total_changes() - before))
        })
        .await
}

async fn sync(store: &Store, lists: Lists) -> Applied {
    sync_with_changes(store, lists, 1_000).await.unwrap().0
}

fn report(ended: u64, counts: Counts) -> SyncReport {
    SyncReport {
        start: SyncStart { asked: at(1), started: at(2) },
        ended: at(ended),
        outcome: SyncOutcome::Ok,
        counts,
        rows_written: 0,
        calls: vec![CallTime { call: "get_users".to_owned(), took_ms: 5 }],
    }
}

fn open() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    (directory, store)
}

async fn show(store: &Store, word: &'static str) -> SourceMatch {
    store.read(move |transaction| view::find_source(transaction, word)).await.unwrap()
}

async fn conversation(store: &Store, source: u32) -> Vec<control::ConversationItem> {
    store.read(move |transaction| view::conversation(transaction, id(source))).await.unwrap()
}

/// Everything that the mirror holds, as text.
fn dump(directory: &Path) -> String {
    let connection = rusqlite::Connection::open(directory.join("store.sqlite3")).unwrap();
    let tables = [
        "server_journalist",
        "server_source",
        "server_submission",
        "server_reply",
        "server_submission_seen",
        "server_reply_seen",
    ];
    let mut text = String::new();
    for table in tables {
        let mut statement = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = statement.column_count();
        let mut rows = statement.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            for column in 0..columns {
                match row.get_ref(column).unwrap() {
                    rusqlite::types::ValueRef::Text(value) => text.push_str(&String::from_utf8_lossy(value)),
                    other => text.push_str(&format!("{other:?}")),
                }
                text.push(' ');
            }
            text.push('\n');
        }
    }
    text
}

#[tokio::test]
async fn the_first_sync_fills_the_mirror_and_counts_it() {
    let (_directory, store) = open();
    let applied = sync(&store, Lists::usual()).await;
    let counts = Counts { journalists: 2, sources: 2, messages: 3, files: 1, replies: 1, unreadable: 0, not_shown: 1 };
    assert_eq!(applied.counts, counts);
    let changed: Vec<SourceId> = applied.changed_sources.into_iter().collect();
    assert_eq!(changed, [id(10), id(11), id(99)]);
}

#[tokio::test]
async fn an_unchanged_sync_writes_no_row_but_the_syncs_state() {
    let (_directory, store) = open();
    sync(&store, Lists::usual()).await;
    let (applied, changes) = sync_with_changes(&store, Lists::usual(), 2_000).await.unwrap();
    assert_eq!((applied.rows_written, changes), (0, 1));
    assert!(applied.changed_sources.is_empty());
    let end = store.read(load_history).await.unwrap();
    assert_eq!(end.last_success, Some(at(2_000)));
    assert_eq!(end.report, Some(report(2_000, applied.counts)));
}

#[tokio::test]
async fn a_change_and_a_removal_touch_only_their_rows() {
    let (_directory, store) = open();
    sync(&store, Lists::usual()).await;
    let mut lists = Lists::usual();
    lists.sources[1] = Listed::Readable(source(11, "louder harbour"));
    lists.submissions.remove(2);
    let applied = sync(&store, lists).await;
    // The source's row, and the submission's; its two seen marks go with it.
    assert_eq!(applied.rows_written, 2);
    assert_eq!(applied.changed_sources.into_iter().collect::<Vec<_>>(), [id(11)]);
    let marks: i64 = store
        .read(|transaction| {
            Ok(transaction.query_row("SELECT count(*) FROM server_submission_seen", [], |row| row.get(0))?)
        })
        .await
        .unwrap();
    assert_eq!(marks, 1);
}

#[tokio::test]
async fn an_item_that_moves_counts_as_unreadable_and_stays_where_it_was() {
    let (_directory, store) = open();
    sync(&store, Lists::usual()).await;
    let before = show(&store, "quiet harbour").await;
    let mut lists = Lists::usual();
    lists.submissions[0] = Listed::Readable(submission(20, 11, SubmissionKind::Message, &[1]));
    lists.replies[0] = Listed::Readable(reply(30, 11, 2, &[2]));
    for _ in 0..2 {
        assert_eq!(sync(&store, lists.clone()).await.counts.unreadable, 2);
        assert_eq!(show(&store, "quiet harbour").await, before);
    }
    assert_eq!(sync(&store, Lists::usual()).await.counts.unreadable, 0);
}

/// Case S9.
#[tokio::test]
async fn s9_what_is_held_of_an_unreadable_record_stays() {
    let (directory, store) = open();
    sync(&store, Lists::usual()).await;
    let before = show(&store, "quiet harbour").await;
    let mut lists = Lists::usual();
    lists.sources[0] = Listed::Unreadable(Unreadable { id: Some(id(10)), field: Field::Designation });
    lists.submissions[1] = Listed::Unreadable(Unreadable { id: Some(id(21)), field: Field::Order });
    lists.sources.push(Listed::Unreadable(Unreadable { id: Some(id(12)), field: Field::Key }));
    let applied = sync_with_changes(&store, lists.clone(), 5_000).await.unwrap().0;
    assert_eq!((applied.counts.unreadable, applied.counts.sources, applied.counts.files), (3, 2, 1));
    assert_eq!(show(&store, "quiet harbour").await, before);
    assert_eq!(show(&store, "0000000c").await, SourceMatch::None);
    assert!(dump(directory.path()).contains("designation"));

    // The fault is counted since it began, and is over when the records are readable again.
    sync_with_changes(&store, lists, 6_000).await.unwrap();
    let unreadable = store.read(load_unreadable).await.unwrap();
    assert_eq!(unreadable, OverTime { count: 3, since: Some(at(5_000)) });
    let (applied, _) = sync_with_changes(&store, Lists::usual(), 7_000).await.unwrap();
    assert_eq!(applied.counts.unreadable, 0);
    assert_eq!(store.read(load_unreadable).await.unwrap(), OverTime::default());
    assert_eq!(show(&store, "quiet harbour").await, before);
}

/// Case S9.
#[tokio::test]
async fn s9_a_record_without_an_id_is_counted_and_nothing_of_its_list_is_removed() {
    let (_directory, store) = open();
    sync(&store, Lists::usual()).await;
    let mut lists = Lists::usual();
    lists.replies = vec![Listed::Unreadable(Unreadable { id: None, field: Field::Id })];
    lists.submissions.clear();
    let applied = sync(&store, lists).await;
    let counts = applied.counts;
    assert_eq!((counts.replies, counts.unreadable, counts.messages, counts.files), (1, 1, 0, 0));
}

#[tokio::test]
async fn unread_is_what_the_last_journalist_has_not_seen() {
    let (_directory, store) = open();
    sync(&store, Lists::usual()).await;
    let unread = |store: Store| async move {
        let rows = store.read(view::sources).await.unwrap();
        let totals = store.read(view::totals).await.unwrap();
        (rows.iter().map(|row| (row.id, row.counts.unread)).collect::<Vec<_>>(), totals.unread)
    };
    // Nobody ever signed in: everything is unread. The source that wrote last comes first.
    assert_eq!(unread(store.clone()).await, (vec![(id(11), 1), (id(10), 3)], 4));
    for (who, expected) in [(1, (vec![(id(11), 0), (id(10), 2)], 2)), (2, (vec![(id(11), 0), (id(10), 2)], 2))] {
        let name = Username::try_new("name").unwrap();
        store.write(move |transaction| store_journalist(transaction, id(who), &name)).await.unwrap();
        assert_eq!(unread(store.clone()).await, expected, "as {who}");
    }
}

#[tokio::test]
async fn a_conversation_comes_in_its_order_with_its_authors() {
    let (_directory, store) = open();
    let mut lists = Lists::usual();
    lists.replies.push(Listed::Readable(reply(19, 10, 77, &[])));
    sync(&store, lists).await;
    let name = Username::try_new("anna").unwrap();
    store.write(move |transaction| store_journalist(transaction, id(1), &name)).await.unwrap();
    let items = conversation(&store, 10).await;
    let kinds: Vec<_> = items.iter().map(|item| (item.kind.clone(), item.seen)).collect();
    let (message, file): (SubmissionId, SubmissionId) = (id(20), id(21));
    let (unknown, known): (ReplyId, ReplyId) = (id(19), id(30));
    assert_eq!(
        kinds,
        [
            (ItemKind::Reply { id: unknown, author: None, own: false }, Seen::Unread),
            (ItemKind::Submission { id: message, kind: SubmissionKind::Message }, Seen::Seen),
            (ItemKind::Submission { id: file, kind: SubmissionKind::File }, Seen::Unread),
            (ItemKind::Reply { id: known, author: Some(Username::try_new("ben").unwrap()), own: false }, Seen::Unread),
        ]
    );
    assert!(conversation(&store, 99).await.is_empty(), "items of a source that is not listed are not shown");
}

#[tokio::test]
async fn a_word_finds_a_source_by_id_then_designation_then_the_ids_beginning() {
    let (_directory, store) = open();
    let mut lists = Lists::usual();
    lists.sources.push(Listed::Readable(source(0xaaaa, "same name")));
    lists.sources.push(Listed::Readable(source(0xaaab, "same name")));
    lists.sources.push(Listed::Readable(source(0xbbbb, "0000000a")));
    sync(&store, lists).await;
    let found = async |word| match show(&store, word).await {
        SourceMatch::One(row) => Ok(row.id),
        SourceMatch::None => Err(0),
        SourceMatch::Many(count) => Err(count),
    };
    assert_eq!(found("0000000A-0000-4000-8000-000000000000").await, Ok(id(10)));
    assert_eq!(found(" Quiet Harbour ").await, Ok(id(10)));
    assert_eq!(found("0000000b").await, Ok(id(11)));
    // A designation comes before the beginning of an id.
    assert_eq!(found("0000000a").await, Ok(id(0xbbbb)));
    assert_eq!(found("same name").await, Err(2));
    assert_eq!(found("0000aaa").await, Err(2));
    for nothing in ["", "%", "_", "nobody", "' OR 1=1 --"] {
        assert_eq!(found(nothing).await, Err(0), "{nothing:?}");
    }
}

/// Case T1, in part: a fault at any statement rolls everything back.
#[tokio::test]
async fn t1_an_error_in_the_middle_leaves_nothing_of_the_sync() {
    for table in ["server_journalist", "server_source", "server_submission_seen", "server_reply", "sync_state"] {
        let (directory, store) = open();
        sync(&store, Lists::usual()).await;
        let before = dump(directory.path());
        let verb = if table == "sync_state" { "UPDATE" } else { "INSERT" };
        let sql = format!("CREATE TRIGGER fault BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, 'fault'); END;");
        store.write(move |transaction| Ok(transaction.execute_batch(&sql)?)).await.unwrap();
        let lists = Lists {
            users: vec![journalist(1, "renamed")],
            sources: vec![Listed::Readable(source(10, "renamed"))],
            submissions: vec![Listed::Readable(submission(20, 10, SubmissionKind::Message, &[2]))],
            replies: vec![Listed::Readable(reply(31, 10, 1, &[]))],
        };
        assert!(matches!(sync_with_changes(&store, lists.clone(), 9).await, Err(StoreError::Sqlite(_))), "{table}");
        assert_eq!(dump(directory.path()), before, "{table}");
        // The writer is usable again, and the same sync succeeds once the fault is gone.
        store.write(|transaction| Ok(transaction.execute_batch("DROP TRIGGER fault")?)).await.unwrap();
        sync(&store, lists).await;
        assert_ne!(dump(directory.path()), before, "{table}");
    }
}

#[tokio::test]
async fn a_report_of_another_form_is_not_shown_and_stops_nothing() {
    let (_directory, store) = open();
    sync(&store, Lists::usual()).await;
    store.write(|transaction| Ok(transaction.execute("UPDATE sync_state SET report = x'ff00'", [])?)).await.unwrap();
    let end = store.read(load_history).await.unwrap();
    assert_eq!((end.report, end.last_success), (None, Some(at(1_000))));
}

#[tokio::test]
async fn readers_cannot_write() {
    let (_directory, store) = open();
    let written = store.read(|transaction| Ok(transaction.execute("UPDATE sync_state SET unreadable = 1", [])?)).await;
    assert!(matches!(written, Err(StoreError::Sqlite(_))));
}

#[tokio::test]
async fn what_was_stored_is_there_after_opening_again() {
    let (directory, store) = open();
    sync(&store, Lists::usual()).await;
    store.checkpoint().await.unwrap();
    let before = dump(directory.path());
    drop(store);
    let store = Store::open(directory.path()).unwrap();
    assert_eq!(dump(directory.path()), before);
    assert_eq!(sync(&store, Lists::usual()).await.rows_written, 0);
}
