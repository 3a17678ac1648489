//! What is found, and in which order.

mod erasure;

use std::collections::HashSet;
use std::time::Duration;

use control::search::MAX_SEARCH_CHARS;
use control::{Act, SearchWords};
use proptest::prelude::*;
use protocol::value::{ItemId, JournalistId, ReplyId, SubmissionId, Timestamp, Username};
use rusqlite::params;

use super::*;
use crate::store::downloads;
use crate::store::{migration, mirror, outbox};
use crate::sync::Plan;

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

fn write<T>(connection: &mut Connection, work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>) -> T {
    let transaction = connection.transaction().unwrap();
    let done = work(&transaction).unwrap();
    erase(&transaction).unwrap();
    transaction.commit().unwrap();
    done
}

/// A store without sources in which Anna was signed in.
fn store() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    migration::migrate(&mut connection).unwrap();
    write(&mut connection, |transaction| {
        mirror::store_journalist(transaction, id(1), &Username::try_new("anna").unwrap())
    });
    connection
}

/// A source that wrote last at that time.
fn add_source(transaction: &Transaction<'_>, source: u32, designation: &str, last: u64) -> Result<(), StoreError> {
    transaction.execute(
        "INSERT INTO server_source (id, digest, designation, starred, last_updated_us, interactions)
         VALUES (?1, zeroblob(32), ?2, 0, ?3, 1)",
        params![id::<SourceId>(source).as_str(), designation, last],
    )?;
    Ok(())
}

fn list(transaction: &Transaction<'_>, source: u32, item: ItemName, order: u32) -> Result<(), StoreError> {
    let (source, item_id): (SourceId, _) = (id(source), item.id());
    let (table, columns, kind) = match item {
        ItemName::Reply(_) => ("server_reply", "", ""),
        ItemName::Message(_) => ("server_submission", ", kind", ", 'message'"),
        ItemName::File(_) => ("server_submission", ", kind", ", 'file'"),
    };
    transaction.execute(
        &format!(
            "INSERT INTO {table} (id, digest, source_id, item_order, size_bytes{columns})
             VALUES (?1, zeroblob(32), ?2, ?3, 9{kind})"
        ),
        params![item_id.as_str(), source.as_str(), order],
    )?;
    Ok(())
}

/// The item is decrypted: it says this, or is a file of this name.
fn open(transaction: &Transaction<'_>, item: ItemName, words: &str) -> Result<(), StoreError> {
    let (text, name) = if matches!(item, ItemName::File(_)) { (None, Some(words)) } else { (Some(words), None) };
    let is_reply = matches!(item, ItemName::Reply(_));
    transaction.execute(
        "INSERT INTO local_item (item_id, is_reply, state, plain_bytes, text, name) VALUES (?1, ?2, 'decrypted', 9, ?3, ?4)
         ON CONFLICT (item_id, is_reply) DO UPDATE SET state = 'decrypted', plain_bytes = 9, text = ?3, name = ?4",
        params![item.id().as_str(), is_reply, text, name],
    )?;
    Ok(())
}

/// A listed item that says this.
fn says(connection: &mut Connection, source: u32, item: ItemName, order: u32, words: &str) {
    write(connection, |transaction| {
        list(transaction, source, item, order)?;
        open(transaction, item, words)
    });
}

/// A store whose one source has said all this, in messages with ids from 1 on.
fn store_of(texts: &[&str]) -> Connection {
    let mut connection = store();
    write(&mut connection, |transaction| add_source(transaction, 1, "calm sea", 1));
    for (number, text) in (1..).zip(texts) {
        says(&mut connection, 1, message(number), number, text);
    }
    connection
}

fn query(typed: &str) -> Query {
    Query::parse(&SearchWords::try_new(typed).unwrap()).unwrap()
}

fn found(connection: &mut Connection, typed: &str, limit: usize) -> Found {
    write(connection, |transaction| find(transaction, &query(typed), limit))
}

/// What was found: names of items, or of a source's designation the source.
fn places(connection: &mut Connection, typed: &str) -> Vec<String> {
    let found = found(connection, typed, 50);
    assert_eq!(found.count, HitCount::Exactly(u64::try_from(found.hits.len()).unwrap()));
    found.hits.iter().map(place).collect()
}

fn place(hit: &Hit) -> String {
    let number = |id: &str| id.split('-').next().unwrap().trim_start_matches('0').to_owned();
    match &hit.place {
        HitPlace::Designation => format!("source {}", number(hit.source.as_str())),
        HitPlace::Submission { id, kind, .. } => format!("{kind:?} {}", number(id.as_str())).to_lowercase(),
        HitPlace::Reply { id, .. } => format!("reply {}", number(id.as_str())),
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn all_words_must_be_there_and_phrases_and_beginnings_are_found() {
    let mut store = store_of(&["Meet me by the Harbour crane", "the crane by the harbour", "harbours and crane-flies"]);
    for (typed, hits) in [
        ("harbour crane", vec!["message 2", "message 1"]),
        ("\"harbour crane\"", vec!["message 1"]),
        ("harb*", vec!["message 3", "message 2", "message 1"]),
        ("\"the harb*\"", vec!["message 2", "message 1"]),
        ("crane-flies", vec!["message 3"]),
        ("harb", vec![]),
        ("harbour storm", vec![]),
    ] {
        assert_eq!(places(&mut store, typed), hits, "{typed}");
    }
}

#[test]
fn every_script_is_found() {
    let texts = [
        "मेरी बैठक कल नौ बजे है",
        "الاجتماع غدًا في المرفأ",
        "הפגישה מָחָר בנמל",
        "ประชุมพรุ่งนี้ที่ท่าเรือ",
        "明天九点在港口见面",
        "あした港でコーヒーを飲む",
        "내일 항구에서 만나요",
        "Η συνάντηση είναι αύριο στο λιμάνι",
        "Встреча завтра в порту",
        "Rendez-vous au cafe\u{301} du port",
        "ĞÜZEL DIYARBAKIR",
        "a crane \u{1f3d7}\u{fe0f} in the port",
    ];
    let mut store = store_of(&texts);
    for (number, typed) in [
        (1, "बैठक"),
        (1, "\"कल नौ\""),
        (1, "बैठ*"),
        (2, "غدا"),
        (2, "المرفأ"),
        (3, "מחר"),
        (4, "พรุ่งนี้"),
        (4, "ท่าเรือ"),
        (5, "港口"),
        (5, "\"九点在\""),
        (6, "コーヒー"),
        (6, "ｺｰﾋｰ"),
        (7, "항구*"),
        (8, "ΣΥΝΑΝΤΗΣΗ"),
        (8, "λιμανι"),
        (9, "ВСТРЕЧА"),
        (9, "порт*"),
        (10, "caf\u{e9}"),
        (10, "CAFE"),
        (11, "diyarbak\u{131}r"),
        (11, "guzel"),
        (12, "\"crane in\""),
        (12, "\u{1f3d7} crane"),
    ] {
        assert_eq!(places(&mut store, typed), [format!("message {number}")], "{typed}");
    }
    assert_eq!(places(&mut store, "港"), ["message 6", "message 5"]);
    for typed in ["口港", "है*कल", "항"] {
        assert_eq!(places(&mut store, typed), NOTHING, "{typed}");
    }
}

#[test]
fn designations_come_first_then_the_source_that_wrote_last_and_what_it_said_last() {
    let mut store = store();
    write(&mut store, |transaction| {
        add_source(transaction, 1, "calm sea", 10)?;
        add_source(transaction, 2, "Stormy Sea", 30)?;
        add_source(transaction, 3, "candid marmot", 20)
    });
    for (source, item, order) in
        [(1, message(11), 1), (1, message(12), 2), (2, message(21), 1), (3, message(31), 5), (3, reply(32), 7)]
    {
        says(&mut store, source, item, order, "by the sea");
    }
    let all = ["source 2", "source 1", "message 21", "reply 32", "message 31", "message 12", "message 11"];
    assert_eq!(places(&mut store, "sea"), all);
    assert_eq!(places(&mut store, "CAL* sea"), ["source 1"]);
    for limit in 1..7 {
        let found = found(&mut store, "sea", limit);
        assert_eq!(
            (found.hits.iter().map(place).collect::<Vec<_>>(), found.count),
            (all[..limit].iter().map(|&hit| hit.to_owned()).collect(), HitCount::Exactly(7))
        );
    }
}

#[test]
fn files_are_found_by_their_names_and_items_that_share_an_id_are_told_apart() {
    let mut store = store_of(&[]);
    says(&mut store, 1, file(5), 1, "Bericht_Hafen-2024.pdf");
    says(&mut store, 1, message(7), 2, "what the source says");
    says(&mut store, 1, reply(7), 3, "what is answered");
    assert_eq!(places(&mut store, "hafen 2024 pdf"), ["file 5"]);
    assert_eq!(places(&mut store, "answered"), ["reply 7"]);
    assert_eq!(places(&mut store, "source"), ["message 7"]);
    assert_eq!(places(&mut store, "what"), ["reply 7", "message 7"]);
}

#[test]
fn a_reply_of_ones_own_is_found_once_it_is_listed() {
    let mut store = store_of(&[]);
    write(&mut store, |transaction| {
        transaction.execute(
            "INSERT INTO outbox (act, journalist_id, kind, source_id, item_id, item_kind, state, created_us, text)
             VALUES (1, ?1, 'reply', ?2, ?3, 'reply', 'confirmed', 1, 'the answer is yes')",
            params![id::<JournalistId>(1).as_str(), id::<SourceId>(1).as_str(), id::<ReplyId>(9).as_str()],
        )?;
        list(transaction, 1, reply(9), 1)
    });
    assert_eq!(places(&mut store, "answer"), NOTHING);
    write(&mut store, |transaction| {
        outbox::after_snapshot(transaction, 1, at(9), Duration::from_secs(3600), &Plan::default())
    });
    assert_eq!(places(&mut store, "answer"), ["reply 9"]);
}

#[test]
fn what_is_not_decrypted_any_more_is_not_found() {
    let mut store = store_of(&["the harbour"]);
    write(&mut store, |transaction| open(transaction, message(1), "the station"));
    assert_eq!(places(&mut store, "harbour"), NOTHING);
    assert_eq!(places(&mut store, "station"), ["message 1"]);
    let (number, _) = write(&mut store, downloads::numbers).remove(0);
    write(&mut store, |transaction| downloads::note_vanished(transaction, number));
    assert_eq!(places(&mut store, "station"), NOTHING);
}

/// Case D2, and what case D4 says of search: what is being deleted is not found, and what is deleted neither, before
/// anything was swept.
#[test]
fn d4_what_is_being_deleted_or_was_is_not_found_before_it_is_erased() {
    let mut store = store_of(&["by the sea", "at sea"]);
    let journalist: JournalistId = id(1);
    let delete = |store: &mut Connection, act: Act| {
        write(store, |transaction| {
            outbox::enqueue(transaction, journalist, &act, at(5)).unwrap();
            Ok(())
        });
    };
    let confirm = |store: &mut Connection| {
        let ready = |transaction: &Transaction<'_>| {
            outbox::ready(transaction, journalist, at(6), &HashSet::new(), &HashSet::new())
        };
        let rows = write(store, ready).batches.remove(0).rows;
        write(store, |transaction| {
            for row in outbox::begin_attempt(transaction, &rows, 1)? {
                outbox::settle(transaction, &row, &outbox::Outcome::Done, at(7), 1, &outbox::Waits::default(), 0.0)?;
            }
            Ok(())
        });
    };
    assert_eq!(places(&mut store, "sea"), ["source 1", "message 2", "message 1"]);
    delete(&mut store, Act::DeleteItems { source: id(1), items: vec![ItemId::Submission(id(2))] });
    assert_eq!(places(&mut store, "sea"), ["source 1", "message 1"]);
    confirm(&mut store);
    assert_eq!(places(&mut store, "sea"), ["source 1", "message 1"]);
    delete(&mut store, Act::DeleteSources { sources: vec![id(1)] });
    assert_eq!(places(&mut store, "sea"), NOTHING);
    confirm(&mut store);
    assert_eq!(places(&mut store, "sea"), NOTHING);
    let held = write(&mut store, downloads::doomed).len();
    assert_eq!(held, 2, "nothing was swept");
}

#[test]
fn where_there_are_very_many_hits_enough_are_found_and_in_the_same_order() {
    const SOURCES: u32 = 90;
    const EACH: u32 = 50;
    let mut store = store();
    write(&mut store, |transaction| {
        for source in 1..=SOURCES {
            add_source(transaction, source, "calm dune", u64::from(source * 7919 % 89))?;
            for number in 1..=EACH {
                let item = message(source * 1_000 + number);
                list(transaction, source, item, number)?;
                let words = if number % 10 == 0 { "everywhere seldom" } else { "everywhere" };
                open(transaction, item, words)?;
            }
        }
        Ok(())
    });
    let all = SOURCES * EACH;
    assert!(usize::try_from(all).unwrap() > ALL);
    let first = found(&mut store, "everywhere", 60);
    assert_eq!(first.count, HitCount::AtLeast(u64::try_from(FIRST_SOURCES).unwrap() * u64::from(EACH)));
    let more = found(&mut store, "everywhere", 1_000);
    assert_eq!((more.hits.len(), &more.hits[..60]), (1_000, &first.hits[..]));
    let whole = found(&mut store, "everywhere", 5_000);
    assert_eq!((whole.hits.len(), whole.count), (4_500, HitCount::Exactly(u64::from(all))));
    assert_eq!(&whole.hits[..1_000], &more.hits[..]);
    // The other way to look gives the same order.
    let seldom: Vec<_> = found(&mut store, "seldom", 1_000).hits.iter().map(place).collect();
    let others: Vec<_> = whole.hits.iter().map(place).filter(|place| place.ends_with('0')).collect();
    assert_eq!((seldom.len(), seldom), (450, others));
}

#[test]
fn an_excerpt_is_around_the_first_match_and_bounded() {
    let (before, after) = ("word ".repeat(100), "海鸥 ".repeat(100));
    let text = format!("{before}Harbour crane{after} harbour");
    let shown = excerpt(&text, &query("\"harbour crane*\""));
    assert_eq!(shown.text.chars().count(), MAX_EXCERPT_CHARS);
    assert!(shown.cut_before && shown.cut_after);
    let marked: Vec<_> = shown
        .matches
        .iter()
        .map(|(start, end)| shown.text.get(usize::try_from(*start).unwrap()..usize::try_from(*end).unwrap()).unwrap())
        .collect();
    assert_eq!(marked, ["Harbour crane"]);
    // What overlaps is one place, and a phrase longer than an excerpt ends with it.
    let all = excerpt("one two three", &query("\"one two\" \"two three\""));
    assert_eq!((all.matches, all.cut_before, all.cut_after), (vec![(0, 13)], false, false));
    let long = "a ".repeat(300);
    let cut = excerpt(&long, &query(&format!("\"{long}\"")));
    assert_eq!((cut.text.len(), cut.matches), (200, vec![(0, 200)]));
    let none = excerpt("one two", &query("three"));
    assert_eq!((none.text.as_str(), none.matches), ("one two", vec![]));
}

#[test]
fn the_largest_answer_fits_a_frame() {
    let text = "\u{10fffd} ".repeat(300);
    let place = HitPlace::Submission {
        id: id(1),
        kind: SubmissionKind::Message,
        order: OrderNumber::try_new(1).unwrap(),
        excerpt: excerpt(&text, &query("\u{10fffd}")),
    };
    let designation = Designation::try_new("海".repeat(60)).unwrap();
    let hits = vec![Hit { source: id(1), designation, place }; control::message::MAX_ROWS];
    let reply = control::FromDaemon::Item { id: u32::MAX, reply: control::Reply::Hits(hits) };
    assert!(protocol::frame::encode_frame(&reply).unwrap().len() < protocol::frame::MAX_FRAME / 2);
}

fn typed() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("\"".to_owned()),
        Just("*".to_owned()),
        Just(" ".to_owned()),
        Just("NEAR(".to_owned()),
        Just(" AND ".to_owned()),
        Just("words:".to_owned()),
        Just("^".to_owned()),
        Just("-".to_owned()),
        Just("{a b}:".to_owned()),
        Just("\0".to_owned()),
        "[a-z]{1,3}",
        "\\PC{0,6}",
        any::<String>(),
    ];
    proptest::collection::vec(piece, 1..16).prop_map(|pieces| pieces.concat().chars().take(MAX_SEARCH_CHARS).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn nothing_that_is_typed_is_more_than_words(typed in typed()) {
        thread_local!(static STORE: std::cell::RefCell<Connection> =
            std::cell::RefCell::new(store_of(&["a near b", "words and more", "x y z"])));
        let Ok(words) = SearchWords::try_new(typed) else { return Ok(()) };
        let Ok(query) = Query::parse(&words) else { return Ok(()) };
        STORE.with_borrow_mut(|store| {
            let found = write(store, |transaction| find(transaction, &query, 50));
            for hit in found.hits {
                let excerpt = match hit.place {
                    HitPlace::Designation => continue,
                    HitPlace::Submission { excerpt, .. } | HitPlace::Reply { excerpt, .. } => excerpt,
                };
                // What the index finds is found in the text too.
                assert!(!excerpt.matches.is_empty(), "{}", words.as_str());
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_an_item_says_finds_it(text in "(?s).{1,200}") {
        let Ok(words) = SearchWords::try_new(text.replace(['"', '*'], " ")) else { return Ok(()) };
        let Ok(query) = Query::parse(&words) else { return Ok(()) };
        let mut store = store_of(&[&text]);
        let found = write(&mut store, |transaction| find(transaction, &query, 5));
        prop_assert_eq!(found.hits.iter().map(place).collect::<Vec<_>>(), ["message 1"]);
        let phrase = SearchWords::try_new(format!("\"{}\"", words.as_str().chars().take(500).collect::<String>())).unwrap();
        let found = write(&mut store, |transaction| find(transaction, &Query::parse(&phrase).unwrap(), 5));
        prop_assert_eq!(found.hits.len(), 1);
    }
}
