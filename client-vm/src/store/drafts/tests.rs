use std::time::Duration;

use control::{Act, Deal};
use protocol::value::Username;
use rusqlite::Connection;

use super::*;
use crate::store::outbox::{self, Outcome, Waits};
use crate::store::{Store, migration, mirror};
use crate::sync::Plan;

fn id<I: std::str::FromStr<Err: std::fmt::Debug>>(number: u32) -> I {
    format!("{number:08}-0000-4000-8000-000000000000").parse().unwrap()
}

fn anna() -> JournalistId {
    id(1)
}

fn ben() -> JournalistId {
    id(2)
}

fn now() -> Timestamp {
    Timestamp::try_new(1_750_000_000_000_000).unwrap()
}

fn reply(text: &str) -> ReplyText {
    ReplyText::try_new(text).unwrap()
}

/// Two sources, 10 and 11, that can be answered, and whoever signs in last is Anna.
fn fill(transaction: &Transaction<'_>) -> Result<(), StoreError> {
    for source in [10, 11] {
        let source: SourceId = id(source);
        transaction.execute(
            "INSERT INTO server_source (id, digest, designation, starred, last_updated_us, interactions)
             VALUES (?1, zeroblob(32), 'calm sea', 0, 5, 1)",
            [source.as_str()],
        )?;
        transaction.execute(
            "INSERT INTO local_key (source_id, fingerprint, armored, offered_armored, offered_claim, offered_fingerprint)
             VALUES (?1, ?2, 'a key', 'a key', ?2, ?2)",
            [source.as_str(), &"A".repeat(40)],
        )?;
    }
    sign_in(transaction, anna())
}

fn sign_in(transaction: &Transaction<'_>, journalist: JournalistId) -> Result<(), StoreError> {
    mirror::store_journalist(transaction, journalist, &Username::try_new("somebody").unwrap())
}

fn store() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    migration::migrate(&mut connection).unwrap();
    write(&mut connection, fill);
    connection
}

fn write<T>(connection: &mut Connection, work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>) -> T {
    let transaction = connection.transaction().unwrap();
    let done = work(&transaction).unwrap();
    transaction.commit().unwrap();
    done
}

fn keep_text(connection: &mut Connection, journalist: JournalistId, source: u32, text: &str) -> bool {
    write(connection, |transaction| keep(transaction, journalist, id(source), Some(&reply(text)), now()))
}

/// The draft that `journalist` is shown once they have signed in.
fn shown(connection: &mut Connection, journalist: JournalistId, source: u32) -> Option<String> {
    write(connection, |transaction| {
        sign_in(transaction, journalist)?;
        Ok(load(transaction, id(source))?.map(|text| text.as_str().to_owned()))
    })
}

fn count(connection: &mut Connection) -> u32 {
    write(
        connection,
        |transaction| Ok(transaction.query_row("SELECT count(*) FROM local_draft", [], |row| row.get(0))?),
    )
}

fn act(connection: &mut Connection, act: &Act) {
    write(connection, |transaction| {
        outbox::enqueue(transaction, anna(), act, now()).unwrap();
        Ok(())
    });
}

fn snapshot(connection: &mut Connection, number: u64) {
    write(connection, |transaction| {
        outbox::after_snapshot(transaction, number, now(), Duration::from_secs(3_600), &Plan::default())?;
        Ok(())
    });
}

#[test]
fn r3_a_draft_is_its_journalists_and_of_one_source() {
    let mut connection = store();
    assert!(keep_text(&mut connection, anna(), 10, "of Anna to ten"));
    assert!(keep_text(&mut connection, anna(), 11, "of Anna to eleven"));
    assert!(keep_text(&mut connection, ben(), 10, "of Ben to ten"));
    for (journalist, source, text) in [
        (anna(), 10, Some("of Anna to ten")),
        (anna(), 11, Some("of Anna to eleven")),
        (ben(), 10, Some("of Ben to ten")),
        (ben(), 11, None),
    ] {
        assert_eq!(shown(&mut connection, journalist, source).as_deref(), text);
    }
}

#[test]
fn r3_nobody_is_shown_a_draft_before_somebody_has_signed_in() {
    let mut connection = store();
    keep_text(&mut connection, anna(), 10, "of Anna");
    let found = write(&mut connection, |transaction| {
        transaction.execute("DELETE FROM local_journalist", [])?;
        load(transaction, id(10))
    });
    assert_eq!(found, None);
}

#[test]
fn r3_a_draft_is_written_anew_and_forgotten() {
    let mut connection = store();
    keep_text(&mut connection, anna(), 10, "first");
    keep_text(&mut connection, ben(), 10, "another");
    keep_text(&mut connection, anna(), 10, "second");
    assert_eq!(shown(&mut connection, anna(), 10).as_deref(), Some("second"));
    assert!(write(&mut connection, |transaction| keep(transaction, anna(), id(10), None, now())));
    assert_eq!(shown(&mut connection, anna(), 10), None);
    assert_eq!(shown(&mut connection, ben(), 10).as_deref(), Some("another"));
    assert_eq!(count(&mut connection), 1);
}

#[tokio::test]
async fn r3_a_draft_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    store.write(fill).await.unwrap();
    let kept = store.write(|transaction| keep(transaction, anna(), id(10), Some(&reply("half of it")), now()));
    assert!(kept.await.unwrap());
    drop(store);
    let store = Store::open(directory.path()).unwrap();
    let found = store.read(|transaction| load(transaction, id(10))).await.unwrap();
    assert_eq!(found, Some(reply("half of it")));
}

#[test]
fn r3_snapshots_leave_drafts_alone_while_the_source_is_listed() {
    let mut connection = store();
    keep_text(&mut connection, anna(), 10, "first");
    snapshot(&mut connection, 1);
    assert_eq!(shown(&mut connection, anna(), 10).as_deref(), Some("first"));
}

#[test]
fn r3_a_draft_goes_when_its_reply_is_taken_and_others_stay() {
    let mut connection = store();
    for (journalist, source) in [(anna(), 10), (anna(), 11), (ben(), 10)] {
        keep_text(&mut connection, journalist, source, "half of it");
    }
    act(&mut connection, &Act::Reply { source: id(10), reply: id(69), text: reply("something else") });
    assert_eq!(shown(&mut connection, anna(), 10).as_deref(), Some("half of it"));
    act(&mut connection, &Act::Reply { source: id(10), reply: id(70), text: reply("half of it") });
    assert_eq!(shown(&mut connection, anna(), 10), None);
    assert_eq!(shown(&mut connection, anna(), 11).as_deref(), Some("half of it"));
    assert_eq!(shown(&mut connection, ben(), 10).as_deref(), Some("half of it"));
}

#[test]
fn r3_a_reply_that_is_not_taken_leaves_the_draft() {
    let mut connection = store();
    keep_text(&mut connection, anna(), 10, "half of it");
    write(&mut connection, |transaction| Ok(transaction.execute("DELETE FROM local_key", [])?));
    let transaction = connection.transaction().unwrap();
    let act = Act::Reply { source: id(10), reply: id(70), text: reply("all of it") };
    assert!(outbox::enqueue(&transaction, anna(), &act, now()).is_err());
    transaction.commit().unwrap();
    assert_eq!(shown(&mut connection, anna(), 10).as_deref(), Some("half of it"));
}

#[test]
fn r3_drafts_go_when_the_sources_deletion_is_confirmed_and_not_before() {
    let mut connection = store();
    for (journalist, source) in [(anna(), 10), (ben(), 10), (anna(), 11)] {
        keep_text(&mut connection, journalist, source, "half of it");
    }
    act(&mut connection, &Act::DeleteSources { sources: vec![id(10)] });
    // Nothing is written to what is on its way out, and nothing of it is lost: the deletion may be taken back.
    assert!(!keep_text(&mut connection, anna(), 10, "more"));
    assert_eq!(shown(&mut connection, anna(), 10).as_deref(), Some("half of it"));
    write(&mut connection, |transaction| {
        let none = std::collections::HashSet::new();
        let ready = outbox::ready(transaction, anna(), now(), &none, &std::collections::HashSet::new())?;
        let rows = outbox::begin_attempt(transaction, &ready.batches[0].rows, 0)?;
        outbox::settle(transaction, &rows[0], &Outcome::Done, now(), 0, &Waits::default(), 0.0)
    });
    assert_eq!(count(&mut connection), 1);
    assert_eq!(shown(&mut connection, anna(), 11).as_deref(), Some("half of it"));
}

#[test]
fn r3_drafts_go_when_a_snapshot_does_not_list_the_source() {
    let mut connection = store();
    for (journalist, source) in [(anna(), 10), (ben(), 10), (anna(), 11)] {
        keep_text(&mut connection, journalist, source, "half of it");
    }
    let source: SourceId = id(10);
    write(&mut connection, |transaction| {
        Ok(transaction.execute("DELETE FROM server_source WHERE id = ?1", [source.as_str()])?)
    });
    assert_eq!(shown(&mut connection, anna(), 10), None);
    snapshot(&mut connection, 1);
    assert_eq!(count(&mut connection), 1);
    assert_eq!(shown(&mut connection, anna(), 11).as_deref(), Some("half of it"));
}

#[test]
fn r3_there_is_no_draft_to_a_source_that_is_not_there() {
    let mut connection = store();
    assert!(!keep_text(&mut connection, anna(), 99, "to nobody"));
    assert_eq!(count(&mut connection), 0);
}

#[test]
fn r3_what_is_taken_back_is_a_draft_of_its_own_journalist() {
    let mut connection = store();
    keep_text(&mut connection, ben(), 10, "of Ben");
    act(&mut connection, &Act::Reply { source: id(10), reply: id(70), text: reply("all of it") });
    write(&mut connection, |transaction| {
        outbox::deal(transaction, anna(), Deal::Cancel, &[control::ActId(1)]).unwrap();
        Ok(())
    });
    assert_eq!(shown(&mut connection, anna(), 10).as_deref(), Some("all of it"));
    assert_eq!(shown(&mut connection, ben(), 10).as_deref(), Some("of Ben"));
}
