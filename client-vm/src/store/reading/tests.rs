use control::{Act, Content, Deal};
use protocol::value::{ReplyId, SourceId, SubmissionId, Username};
use rusqlite::Connection;

use super::*;
use crate::store::downloads::{self, Held};
use crate::store::outbox::Waits;
use crate::store::{migration, mirror, outbox, view};

fn id<I: std::str::FromStr<Err: std::fmt::Debug>>(number: u32) -> I {
    format!("{number:08}-0000-4000-8000-000000000000").parse().unwrap()
}

fn at(us: u64) -> Timestamp {
    Timestamp::try_new(us).unwrap()
}

fn message(number: u32) -> ItemName {
    ItemName::Message(id::<SubmissionId>(number))
}

fn file(number: u32) -> ItemName {
    ItemName::File(id::<SubmissionId>(number))
}

fn reply(number: u32) -> ItemName {
    ItemName::Reply(id::<ReplyId>(number))
}

fn fpr(key: char) -> Fingerprint {
    Fingerprint::try_new(key.to_string().repeat(40)).unwrap()
}

/// The items of source 1, which wrote first, and of source 2.
const OLDER: u32 = 1;
const NEWER: u32 = 2;

fn write<T>(connection: &mut Connection, work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>) -> T {
    let transaction = connection.transaction().unwrap();
    let done = work(&transaction).unwrap();
    transaction.commit().unwrap();
    done
}

/// Two sources that list these items, with Anna signed in.
fn store(items: &[(u32, ItemName)]) -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    migration::migrate(&mut connection).unwrap();
    write(&mut connection, |transaction| {
        for source in [OLDER, NEWER] {
            transaction.execute(
                "INSERT INTO server_source (id, digest, designation, starred, last_updated_us, interactions)
                 VALUES (?1, zeroblob(32), 'calm sea', 0, ?2, 1)",
                params![id::<SourceId>(source).as_str(), source],
            )?;
        }
        for (order, (source, item)) in (1..).zip(items) {
            let (source, item_id): (SourceId, _) = (id(*source), item.id());
            match item {
                ItemName::Reply(_) => transaction.execute(
                    "INSERT INTO server_reply (id, digest, source_id, item_order, size_bytes)
                     VALUES (?1, zeroblob(32), ?2, ?3, 9)",
                    params![item_id.as_str(), source.as_str(), order],
                )?,
                ItemName::Message(_) | ItemName::File(_) => transaction.execute(
                    "INSERT INTO server_submission (id, digest, source_id, kind, item_order, size_bytes)
                     VALUES (?1, zeroblob(32), ?2, ?4, ?3, 9)",
                    params![item_id.as_str(), source.as_str(), order, item.kind()],
                )?,
            };
        }
        mirror::store_journalist(transaction, id(1), &Username::try_new("anna").unwrap())
    });
    connection
}

/// The same, and the ciphertext of everything is there.
fn downloaded(items: &[(u32, ItemName)]) -> Connection {
    let mut connection = store(items);
    for (source, item) in items {
        download(&mut connection, candidate(*source, *item));
    }
    connection
}

fn candidate(source: u32, item: ItemName) -> Candidate {
    Candidate { source: id(source), item }
}

fn download(connection: &mut Connection, candidate: Candidate) -> FileNumber {
    write(connection, |transaction| {
        let number = downloads::note_claim(transaction, candidate.item, None)?;
        assert!(downloads::note_downloaded(transaction, candidate, 612)?);
        Ok(number)
    })
}

fn due_now(connection: &mut Connection, now: u64) -> (Vec<ItemName>, Option<Duration>) {
    let due = write(connection, |transaction| due(transaction, at(now), &HashSet::new(), 100));
    (due.items.iter().map(|candidate| candidate.item).collect(), due.next)
}

fn a_text() -> Plaintext {
    Plaintext { bytes: 5, inner: Inner::None, name: None, text: Some("hello".to_owned()) }
}

fn decrypt(connection: &mut Connection, candidate: Candidate, plaintext: &Plaintext) -> bool {
    write(connection, |transaction| match job(transaction, candidate)? {
        Some(number) => note_decrypted(transaction, candidate, number, plaintext),
        None => Ok(false),
    })
}

fn seal(connection: &mut Connection, candidate: Candidate, seal: Seal) -> bool {
    write(connection, |transaction| note_sealed(transaction, candidate, seal, "why"))
}

fn content(connection: &mut Connection, source: u32, item: ItemName) -> Content {
    let items = write(connection, |transaction| view::conversation(transaction, id(source)));
    let of = |kind: &control::ItemKind| match *kind {
        control::ItemKind::Submission { id, .. } => ItemId::Submission(id),
        control::ItemKind::Reply { id, .. } => ItemId::Reply(id),
    };
    items.into_iter().find(|shown| of(&shown.kind) == item.id()).unwrap().content
}

fn want(connection: &mut Connection, item: ItemName) -> u64 {
    write(connection, |transaction| Ok(downloads::want(transaction, &[item.id()], at(5))?.asked))
}

fn act(connection: &mut Connection, act: &Act) {
    write(connection, |transaction| {
        outbox::enqueue(transaction, id(1), act, at(7)).unwrap();
        Ok(())
    });
}

#[test]
fn messages_and_replies_of_the_source_that_wrote_last_come_first_and_files_last() {
    let items = [
        (NEWER, file(21)),
        (OLDER, message(11)),
        (OLDER, reply(12)),
        (OLDER, file(13)),
        (NEWER, message(22)),
        (NEWER, reply(23)),
    ];
    let mut connection = downloaded(&items);
    let order = [message(22), reply(23), message(11), reply(12), file(21), file(13)];
    assert_eq!(due_now(&mut connection, 1), (order.to_vec(), None));
    let busy = HashSet::from([message(22).id(), message(11).id()]);
    let some = write(&mut connection, |transaction| due(transaction, at(1), &busy, 2));
    let some: Vec<_> = some.items.iter().map(|candidate| (candidate.source, candidate.item)).collect();
    assert_eq!(some, [(id(NEWER), reply(23)), (id(OLDER), reply(12))]);
}

#[test]
fn what_could_not_be_tried_waits_for_its_time_and_a_clock_that_was_set_back_ends_the_wait() {
    let mut connection = downloaded(&[(OLDER, message(11)), (OLDER, message(12))]);
    let waits = Waits { first: Duration::from_secs(5), most: Duration::from_secs(60) };
    write(&mut connection, |transaction| {
        let wait = downloads::Wait::Growing { now: at(1_000), waits: &waits, jitter: 0.0, asked: Duration::ZERO };
        downloads::postpone(transaction, message(11), "no way", wait)
    });
    assert_eq!(due_now(&mut connection, 1_000), (vec![message(12)], Some(Duration::from_secs(5))));
    assert_eq!(content(&mut connection, OLDER, message(11)), Content::Downloaded { reason: Some("no way".to_owned()) });
    assert_eq!(due_now(&mut connection, 5_001_000).0.len(), 2);
    assert_eq!(due_now(&mut connection, 999).0.len(), 2);
    // The user does not wait, and nothing is fetched again.
    assert_eq!(want(&mut connection, message(11)), 1);
    assert_eq!(due_now(&mut connection, 1_000).0.len(), 2);
    assert_eq!(content(&mut connection, OLDER, message(11)), Content::Downloaded { reason: None });
}

#[test]
fn d5_nothing_is_decrypted_of_what_is_being_deleted_and_it_goes_on_when_that_is_taken_back() {
    let items = [(OLDER, message(11)), (OLDER, message(12)), (NEWER, reply(21))];
    let mut connection = downloaded(&items);
    let numbers = items
        .map(|(source, item)| write(&mut connection, |transaction| job(transaction, candidate(source, item))).unwrap());
    act(&mut connection, &Act::DeleteItems { source: id(OLDER), items: vec![message(11).id()] });
    act(&mut connection, &Act::DeleteSources { sources: vec![id(NEWER)] });
    assert_eq!(due_now(&mut connection, 9), (vec![message(12)], None));
    let lane = write(&mut connection, lane_counts);
    assert_eq!((lane.waiting, lane.failed), (1, 0));
    for (at, (source, item)) in [(0, items[0]), (2, items[2])] {
        let candidate = candidate(source, item);
        assert_eq!(write(&mut connection, |transaction| job(transaction, candidate)), None);
        // A worker that was at it when the deletion came stores nothing.
        let late = |transaction: &Transaction<'_>| note_decrypted(transaction, candidate, numbers[at], &a_text());
        assert!(!write(&mut connection, late));
        assert!(!seal(&mut connection, candidate, Seal::Cut));
    }
    let texts: u32 = write(&mut connection, |transaction| {
        Ok(transaction.query_row("SELECT count(text) + count(seal) FROM local_item", [], |row| row.get(0))?)
    });
    assert_eq!(texts, 0);
    for act in [1, 2] {
        write(&mut connection, |transaction| {
            outbox::deal(transaction, id(1), Deal::Cancel, &[control::ActId(act)]).unwrap();
            Ok(())
        });
    }
    assert_eq!(due_now(&mut connection, 9).0, [reply(21), message(11), message(12)]);
    assert!(decrypt(&mut connection, candidate(OLDER, message(11)), &a_text()));
}

#[test]
fn d5_what_is_not_listed_any_more_is_not_noted_as_decrypted() {
    let mut connection = downloaded(&[(OLDER, message(11))]);
    let number = write(&mut connection, |transaction| job(transaction, candidate(OLDER, message(11)))).unwrap();
    write(&mut connection, |transaction| Ok(transaction.execute("DELETE FROM server_submission", [])?));
    let late =
        |transaction: &Transaction<'_>| note_decrypted(transaction, candidate(OLDER, message(11)), number, &a_text());
    assert!(!write(&mut connection, late));
    assert!(due_now(&mut connection, 1).0.is_empty());
}

#[test]
fn a_plaintext_belongs_to_the_conversation_kind_and_number_that_were_read() {
    let mut connection = downloaded(&[(OLDER, message(11)), (OLDER, reply(11))]);
    let right = candidate(OLDER, message(11));
    let number = write(&mut connection, |transaction| job(transaction, right)).unwrap();
    let of_reply = write(&mut connection, |transaction| job(transaction, candidate(OLDER, reply(11)))).unwrap();
    assert_ne!(number, of_reply);
    for wrong in [candidate(NEWER, message(11)), candidate(OLDER, file(11)), candidate(OLDER, reply(11))] {
        let noted = |transaction: &Transaction<'_>| note_decrypted(transaction, wrong, number, &a_text());
        assert!(!write(&mut connection, noted), "{wrong:?}");
    }
    // The item went and came again meanwhile, under another number.
    let noted = |transaction: &Transaction<'_>| note_decrypted(transaction, right, of_reply, &a_text());
    assert!(!write(&mut connection, noted));
    let noted = |transaction: &Transaction<'_>| note_decrypted(transaction, right, number, &a_text());
    assert!(write(&mut connection, noted));
    assert_eq!(content(&mut connection, OLDER, reply(11)), Content::Downloaded { reason: None });
}

#[test]
fn what_is_decrypted_is_shown_as_what_it_is() {
    let items = [(OLDER, message(11)), (OLDER, reply(12)), (OLDER, file(13))];
    let mut connection = downloaded(&items);
    let plaintexts = [
        Plaintext { inner: Inner::Opened, ..a_text() },
        Plaintext { inner: Inner::Closed, text: Some("sealed".to_owned()), bytes: 6, name: None },
        Plaintext { inner: Inner::None, text: None, bytes: 1 << 40, name: Some("report.pdf".to_owned()) },
    ];
    for ((source, item), plaintext) in items.iter().zip(&plaintexts) {
        assert!(decrypt(&mut connection, candidate(*source, *item), plaintext));
        // Once is enough.
        assert!(!decrypt(&mut connection, candidate(*source, *item), plaintext));
        let Plaintext { bytes, inner, name, text } = plaintext.clone();
        assert_eq!(content(&mut connection, *source, *item), Content::Decrypted { bytes, inner, name });
        assert_eq!(write(&mut connection, |transaction| view::text_of(transaction, id(*source), *item)), text);
    }
    let readable = write(&mut connection, |transaction| view::readable(transaction, id(OLDER)));
    assert_eq!(readable, [message(11), reply(12)]);
    assert_eq!(due_now(&mut connection, 1), (Vec::new(), None));
}

#[test]
fn f3_each_step_is_for_its_own_states() {
    let item = candidate(OLDER, message(11));
    for state in ["absent", "downloaded", "failed", "decrypted", "sealed"] {
        let in_state = || {
            let mut connection = store(&[(OLDER, message(11))]);
            let number = write(&mut connection, |transaction| downloads::note_claim(transaction, item.item, None));
            match state {
                "absent" => {}
                "failed" => write(&mut connection, |transaction| downloads::fail(transaction, item.item, "why")),
                _ => {
                    download(&mut connection, item);
                    match state {
                        "decrypted" => assert!(decrypt(&mut connection, item, &a_text())),
                        "sealed" => assert!(seal(&mut connection, item, Seal::Corrupt)),
                        _ => {}
                    }
                }
            }
            (connection, number)
        };
        let state_of = |connection: &mut Connection| {
            write(connection, |transaction| {
                Ok(transaction.query_row("SELECT state FROM local_item", [], |row| row.get::<_, String>(0))?)
            })
        };
        let (mut connection, _) = in_state();
        assert_eq!(state_of(&mut connection), state);
        let arrived = write(&mut connection, |transaction| downloads::note_downloaded(transaction, item, 612));
        assert_eq!(arrived, state == "absent", "downloaded from {state}");
        let (mut connection, number) = in_state();
        let read = |transaction: &Transaction<'_>| note_decrypted(transaction, item, number, &a_text());
        assert_eq!(write(&mut connection, read), state == "downloaded", "decrypted from {state}");
        let (mut connection, _) = in_state();
        assert_eq!(seal(&mut connection, item, Seal::Cut), state == "downloaded", "sealed from {state}");
        // A retry fetches again only where there is no ciphertext.
        let (mut connection, number) = in_state();
        want(&mut connection, message(11));
        let after = match state {
            "failed" => "absent",
            "sealed" => "downloaded",
            other => other,
        };
        assert_eq!(state_of(&mut connection), after, "wanted when {state}");
        // What has vanished is fetched again.
        let (mut connection, _) = in_state();
        write(&mut connection, |transaction| downloads::note_vanished(transaction, number));
        assert_eq!(state_of(&mut connection), "absent", "vanished when {state}");
    }
}

#[test]
fn f3_a_retry_of_what_is_sealed_keeps_the_ciphertext() {
    let mut connection = store(&[(OLDER, file(11))]);
    let number = download(&mut connection, candidate(OLDER, file(11)));
    assert!(seal(&mut connection, candidate(OLDER, file(11)), Seal::TooLarge));
    let sealed = Content::Sealed { seal: Seal::TooLarge, reason: "why".to_owned() };
    assert_eq!(content(&mut connection, OLDER, file(11)), sealed);
    assert!(due_now(&mut connection, 1).0.is_empty());
    assert_eq!(want(&mut connection, file(11)), 1);
    assert_eq!(content(&mut connection, OLDER, file(11)), Content::Downloaded { reason: None });
    assert_eq!(due_now(&mut connection, 1).0, [file(11)]);
    let still = write(&mut connection, |transaction| job(transaction, candidate(OLDER, file(11))));
    assert_eq!(still, Some(number));
    let (size, attempts): (u64, u32) = write(&mut connection, |transaction| {
        Ok(transaction
            .query_row("SELECT size_bytes, attempts FROM local_item", [], |row| Ok((row.get(0)?, row.get(1)?)))?)
    });
    assert_eq!((size, attempts), (612, 0));
    let files = control::DownloadLane::Files;
    let to_fetch = |transaction: &Transaction<'_>| downloads::due(transaction, files, at(9), &HashSet::new(), 9);
    assert!(write(&mut connection, to_fetch).items.is_empty());
    // Of what can be read nothing is to be tried again.
    decrypt(&mut connection, candidate(OLDER, file(11)), &a_text());
    assert_eq!(want(&mut connection, file(11)), 0);
}

#[test]
fn f6_what_found_no_key_is_tried_again_with_other_keys_and_only_then() {
    let seals = [Seal::NoKey, Seal::Denied, Seal::Cut, Seal::Corrupt, Seal::TooLarge, Seal::Other];
    let items: Vec<_> = (11..).zip(seals).map(|(number, _)| (OLDER, message(number))).collect();
    let mut connection = downloaded(&items);
    let keys = |connection: &mut Connection, keys: &[char]| {
        let keys = keys.iter().copied().map(fpr).collect();
        write(connection, |transaction| note_secret_keys(transaction, &keys))
    };
    assert!(!keys(&mut connection, &[]));
    assert!(keys(&mut connection, &['A', 'B']));
    assert!(!write(&mut connection, misses_keys));
    for ((source, item), why) in items.iter().zip(seals) {
        assert!(seal(&mut connection, candidate(*source, *item), why));
        let shown = Content::Sealed { seal: why, reason: "why".to_owned() };
        assert_eq!(content(&mut connection, *source, *item), shown);
    }
    assert!(write(&mut connection, misses_keys));
    let lane = write(&mut connection, lane_counts);
    assert_eq!((lane.waiting, lane.running, lane.failed), (0, 0, 6));
    assert!(!keys(&mut connection, &['B', 'A']));
    assert!(due_now(&mut connection, 1).0.is_empty());
    // One more, one less, none: each is another set.
    for others in [&['A', 'B', 'C'][..], &['A'], &[]] {
        assert!(keys(&mut connection, others));
        assert_eq!(due_now(&mut connection, 1).0, [message(11)]);
        assert!(!write(&mut connection, misses_keys));
        assert!(seal(&mut connection, candidate(OLDER, message(11)), Seal::NoKey));
    }
}

#[test]
fn what_is_held_is_told_for_each_state() {
    let items = [11, 12, 13, 14, 15, 16].map(|number| (OLDER, message(number)));
    let mut connection = store(&items);
    let numbers =
        items.map(|(_, item)| write(&mut connection, |transaction| downloads::note_claim(transaction, item, None)));
    write(&mut connection, |transaction| downloads::fail(transaction, items[1].1, "why"));
    for (source, item) in &items[2..] {
        download(&mut connection, candidate(*source, *item));
    }
    assert!(seal(&mut connection, candidate(OLDER, items[3].1), Seal::Other));
    assert!(decrypt(&mut connection, candidate(OLDER, items[4].1), &a_text()));
    let as_file = Plaintext { text: None, ..a_text() };
    assert!(decrypt(&mut connection, candidate(OLDER, items[5].1), &as_file));
    let held = [Held::Part, Held::Part, Held::Ciphertext, Held::Ciphertext, Held::Text, Held::Plaintext];
    let must: Vec<_> = numbers.into_iter().zip(held).collect();
    assert_eq!(write(&mut connection, downloads::numbers), must);
    let lane = write(&mut connection, lane_counts);
    assert_eq!((lane.waiting, lane.running, lane.failed), (1, 0, 1));
}

/// Whatever fails comes behind what was not tried yet, of whatever kind and source that is.
#[test]
fn q6_what_was_tried_more_often_comes_later() {
    let items = [(OLDER, message(1)), (OLDER, file(2)), (NEWER, message(3)), (NEWER, message(4))];
    let mut connection = downloaded(&items);
    assert_eq!(due_now(&mut connection, 5).0, [message(3), message(4), message(1), file(2)]);
    for barred in [message(3), message(4)] {
        let reason = Some("the key cannot be reached");
        write(&mut connection, |transaction| note_attempt(transaction, candidate(NEWER, barred), reason));
    }
    assert_eq!(due_now(&mut connection, 5), (vec![message(1), file(2), message(3), message(4)], None));
    write(&mut connection, |transaction| note_attempt(transaction, candidate(NEWER, message(3)), None));
    assert_eq!(due_now(&mut connection, 5).0, [message(1), file(2), message(4), message(3)]);
    let reason: Option<String> = connection
        .query_row("SELECT reason FROM local_item WHERE item_id = ?1", [message(3).id().as_str()], |row| row.get(0))
        .unwrap();
    assert_eq!(reason.as_deref(), Some("the key cannot be reached"), "a reason that is known stays");
    // What is open is no attempt's business any more.
    assert!(decrypt(&mut connection, candidate(NEWER, message(3)), &a_text()));
    write(&mut connection, |transaction| note_attempt(transaction, candidate(NEWER, message(3)), Some("late")));
    let reason: Option<String> = connection
        .query_row("SELECT reason FROM local_item WHERE item_id = ?1", [message(3).id().as_str()], |row| row.get(0))
        .unwrap();
    assert_eq!(reason, None);
}
