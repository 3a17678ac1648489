use protocol::value::{Bounded, Designation, Username};
use protocol::{Journalist, Listed, Reply, Source, Submission, SubmissionKind};
use rusqlite::Connection;

use super::*;
use crate::store::outbox::{MAX_RETRY_AFTER, Waits};
use crate::store::{migration, mirror, outbox};
use crate::sync::{Mirror, Plan, Snapshot};

const ANNA: &str = "00000001-0000-4000-8000-000000000000";

fn id<I: std::str::FromStr<Err: std::fmt::Debug>>(number: u32) -> I {
    format!("{number:08}-0000-4000-8000-000000000000").parse().unwrap()
}

fn at(us: u64) -> Timestamp {
    Timestamp::try_new(us).unwrap()
}

fn waits() -> Waits {
    Waits { first: Duration::from_secs(5), most: Duration::from_secs(60) }
}

fn growing(now: u64, asked: Duration, waits: &Waits) -> Wait<'_> {
    Wait::Growing { now: at(now), waits, jitter: 0.0, asked }
}

/// What the server lists: of each source its number, when it wrote last, and its items as number and kind.
type World<'a> = &'a [(u32, u64, &'a [(u32, char)])];

fn apply(connection: &mut Connection, world: World<'_>) {
    let transaction = connection.transaction().unwrap();
    let known: Mirror = mirror::load_mirror(&transaction).unwrap();
    let mut sources = Snapshot::<Source>::default();
    let mut submissions = Snapshot::<Submission>::default();
    let mut replies = Snapshot::<Reply>::default();
    let order = |number: u32| protocol::value::OrderNumber::try_new(number.into()).unwrap();
    for (source, last, items) in world {
        let listed = Listed::Readable(Source {
            id: id(*source),
            designation: Designation::try_new("calm sea").unwrap(),
            starred: false,
            last_updated: at(*last),
            interactions: order(9),
            key: None,
            version: None,
        });
        sources.observe(&known.sources, listed).unwrap();
        for (item, kind) in *items {
            let size = Size::try_new(100).unwrap();
            if *kind == 'r' {
                let reply = Reply {
                    id: id(*item),
                    source: id(*source),
                    author: ANNA.parse().unwrap(),
                    order: order(*item),
                    filename: None,
                    size,
                    deleted_by_source: false,
                    seen_by: Bounded::default(),
                    version: None,
                };
                replies.observe(&known.replies, Listed::Readable(reply)).unwrap();
            } else {
                let submission = Submission {
                    id: id(*item),
                    source: id(*source),
                    kind: if *kind == 'f' { SubmissionKind::File } else { SubmissionKind::Message },
                    order: order(*item),
                    filename: None,
                    size,
                    read: false,
                    seen_by: Bounded::default(),
                    version: None,
                };
                submissions.observe(&known.submissions, Listed::Readable(submission)).unwrap();
            }
        }
    }
    let plan = Plan {
        users: Snapshot::<Journalist>::default().diff(&known.users),
        sources: sources.diff(&known.sources),
        submissions: submissions.diff(&known.submissions),
        replies: replies.diff(&known.replies),
    };
    mirror::apply(&transaction, &plan).unwrap();
    transaction.commit().unwrap();
}

fn store(world: World<'_>) -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    migration::migrate(&mut connection).unwrap();
    apply(&mut connection, world);
    let transaction = connection.transaction().unwrap();
    mirror::store_journalist(&transaction, ANNA.parse().unwrap(), &Username::try_new("anna").unwrap()).unwrap();
    transaction.commit().unwrap();
    connection
}

fn due_in(connection: &mut Connection, lane: DownloadLane, now: u64) -> (Vec<ItemId>, Option<Duration>) {
    let transaction = connection.transaction().unwrap();
    let due = due(&transaction, lane, at(now), &HashSet::new(), 100).unwrap();
    (due.items.iter().map(|due| due.candidate.item.id()).collect(), due.next)
}

fn write<T>(connection: &mut Connection, work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>) -> T {
    let transaction = connection.transaction().unwrap();
    let done = work(&transaction).unwrap();
    transaction.commit().unwrap();
    done
}

fn submission(number: u32) -> ItemId {
    ItemId::Submission(id(number))
}

const TWO: World<'static> = &[(1, 10, &[(11, 'm'), (12, 'f'), (13, 'r')]), (2, 20, &[(21, 'm'), (22, 'f')])];

#[test]
fn messages_and_replies_of_the_source_that_wrote_last_come_first_and_files_only_when_asked_for() {
    let mut connection = store(TWO);
    let (messages, _) = due_in(&mut connection, DownloadLane::Messages, 1);
    assert_eq!(messages, [submission(21), submission(11), ItemId::Reply(id(13))]);
    assert_eq!(due_in(&mut connection, DownloadLane::Files, 1), (Vec::new(), None));
    let wanted = write(&mut connection, |transaction| want(transaction, &[submission(12), submission(22)], at(5)));
    assert_eq!(wanted, Wanted { asked: 2, already: 0 });
    let (files, _) = due_in(&mut connection, DownloadLane::Files, 6);
    assert_eq!(files, [submission(12), submission(22)], "in the order in which they were asked for");
    // Clicked once more, nothing is asked for twice.
    let again = write(&mut connection, |transaction| want(transaction, &[submission(12)], at(7)));
    assert_eq!(again, Wanted { asked: 0, already: 1 });
}

#[test]
fn without_that_setting_messages_too_are_fetched_only_when_asked_for() {
    let mut connection = store(TWO);
    write(&mut connection, |transaction| set_fetch_messages(transaction, false));
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, 1), (Vec::new(), None));
    write(&mut connection, |transaction| want(transaction, &[ItemId::Reply(id(13))], at(5)));
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, 6).0, [ItemId::Reply(id(13))]);
}

#[test]
fn what_was_postponed_waits_its_time_and_a_clock_that_was_set_back_ends_that() {
    let mut connection = store(&[(1, 10, &[(11, 'm')])]);
    let item = ItemName::Message(id(11));
    let now = 1_000_000_000;
    for (attempt, seconds) in [(1, 5), (2, 10), (3, 20)] {
        let next = write(&mut connection, |transaction| {
            postpone(transaction, item, "no way", growing(now, Duration::ZERO, &waits()))
        });
        assert_eq!(next, Some(at(now + seconds * 1_000_000)), "attempt {attempt}");
    }
    let waiting = |seconds| (Vec::new(), Some(Duration::from_secs(seconds)));
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, now + 1_000_000), waiting(19));
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, now + 20_000_000).0, [submission(11)]);
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, now - 1).0, [submission(11)], "the clock was set back");
    // The user's word ends the wait.
    write(&mut connection, |transaction| want(transaction, &[submission(11)], at(now)));
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, now).0, [submission(11)]);
}

/// What is due says how much of it may have to come; a part without a claim is no part.
#[test]
fn what_is_due_says_its_size_and_the_part_that_is_gone_on_with() {
    let mut connection = store(TWO);
    let message = ItemName::Message(id(11));
    let due = |connection: &mut Connection| {
        let due =
            write(connection, |transaction| due(transaction, DownloadLane::Messages, at(100), &HashSet::new(), 100));
        *due.items.iter().find(|due| due.candidate.item == message).unwrap()
    };
    let first = due(&mut connection);
    assert_eq!((first.listed.get(), first.part), (100, None));
    let number = write(&mut connection, |transaction| note_claim(transaction, message, None));
    assert_eq!(due(&mut connection).part, None);
    write(&mut connection, |transaction| note_claim(transaction, message, Some(Sha256::new([7; 32]))));
    assert_eq!(due(&mut connection).part, Some(number));
}

#[test]
fn what_holds_up_everything_does_not_count_against_an_item() {
    let mut connection = store(&[(1, 10, &[(11, 'm')])]);
    let item = ItemName::Message(id(11));
    for _ in 0..9 {
        assert_eq!(write(&mut connection, |transaction| postpone(transaction, item, "no way", Wait::None)), None);
    }
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, 1).0, [submission(11)]);
    let next = write(&mut connection, |transaction| {
        postpone(transaction, item, "fault", growing(0, Duration::from_secs(30), &waits()))
    });
    assert_eq!(next, Some(at(30_000_000)), "the first wait, and the server asked for more");
}

#[test]
fn what_failed_is_tried_again_only_by_the_user() {
    let mut connection = store(TWO);
    write(&mut connection, |transaction| fail(transaction, ItemName::Message(id(21)), "gone wrong"));
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, 1).0.len(), 2);
    let counts =
        |connection: &mut Connection| write(connection, |transaction| lane_counts(transaction, DownloadLane::Messages));
    assert_eq!(counts(&mut connection), LaneCounts { waiting: 2, running: 0, failed: 1 });
    write(&mut connection, |transaction| want(transaction, &[submission(21)], at(3)));
    assert_eq!(counts(&mut connection), LaneCounts { waiting: 3, running: 0, failed: 0 });
}

/// Case D5.
#[test]
fn d5_what_is_being_deleted_is_not_fetched_and_a_refusal_lets_it_go_on() {
    let mut connection = store(TWO);
    let act = control::Act::DeleteSources { sources: vec![id(2)] };
    let anna = ANNA.parse().unwrap();
    let taken = {
        let transaction = connection.transaction().unwrap();
        let taken = outbox::enqueue(&transaction, anna, &act, at(2)).unwrap().taken;
        transaction.commit().unwrap();
        taken
    };
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, 3).0, [submission(11), ItemId::Reply(id(13))]);
    let candidate = Candidate { source: id(2), item: ItemName::Message(id(21)) };
    assert_eq!(write(&mut connection, |transaction| job(transaction, candidate)), None);
    // Whoever is in the middle of it stores nothing.
    write(&mut connection, |transaction| note_claim(transaction, candidate.item, None));
    assert!(!write(&mut connection, |transaction| note_downloaded(transaction, candidate, 100)));
    let unsent = outbox::Unsent::Deletions(taken.act.unwrap());
    write(&mut connection, |transaction| outbox::refuse_unsent(transaction, unsent, "no"));
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, 4).0.len(), 3);
    assert!(write(&mut connection, |transaction| note_downloaded(transaction, candidate, 100)));
}

#[test]
fn what_is_not_listed_any_more_is_doomed_and_what_shares_its_id_is_not() {
    let mut connection = store(&[(1, 10, &[(11, 'm'), (11, 'r'), (12, 'f')]), (2, 20, &[(21, 'm')])]);
    let items = [ItemName::Message(id(11)), ItemName::Reply(id(11)), ItemName::Message(id(21))];
    let numbers: Vec<_> =
        items.map(|item| write(&mut connection, |transaction| note_claim(transaction, item, None))).into();
    assert!(write(&mut connection, doomed).is_empty());
    apply(&mut connection, &[(1, 10, &[(11, 'r'), (12, 'f')])]);
    let doomed_now = write(&mut connection, doomed);
    assert_eq!(doomed_now, [(numbers[0], items[0].id()), (numbers[2], items[2].id())]);
    write(&mut connection, |transaction| forget(transaction, &[numbers[0], numbers[2]]));
    assert_eq!(write(&mut connection, super::numbers), [(numbers[1], Held::Part)]);
}

#[test]
fn a_file_that_is_not_wanted_after_all_waits_no_more_and_goes_on_when_it_is_wanted_again() {
    let mut connection = store(TWO);
    write(&mut connection, |transaction| want(transaction, &[submission(12), submission(22)], at(5)));
    assert_eq!(write(&mut connection, wanted_files), [submission(12), submission(22)]);
    let taken_back = write(&mut connection, |transaction| unwant(transaction, &[submission(12), submission(11)]));
    assert_eq!(taken_back, [submission(12)]);
    assert_eq!(due_in(&mut connection, DownloadLane::Files, 6).0, [submission(22)]);
    assert_eq!(write(&mut connection, absent), [submission(22), submission(12)]);
    write(&mut connection, |transaction| want(transaction, &[submission(12)], at(7)));
    assert_eq!(due_in(&mut connection, DownloadLane::Files, 8).0, [submission(22), submission(12)]);
}

/// A clock that is set back changes nothing of the order.
#[test]
fn q2_what_is_asked_for_later_comes_later_whatever_the_clock_says() {
    let mut connection = store(TWO);
    write(&mut connection, |transaction| want(transaction, &[submission(22)], at(1_000)));
    write(&mut connection, |transaction| want(transaction, &[submission(12)], at(5)));
    assert_eq!(due_in(&mut connection, DownloadLane::Files, 6).0, [submission(22), submission(12)]);
}

/// A message that the server does not give is tried again by itself, and in the end seldom.
#[test]
fn s4_what_the_server_does_not_give_is_tried_seldom_in_the_end() {
    let mut connection = store(&[(1, 10, &[(11, 'm')])]);
    let item = ItemName::Message(id(11));
    let mut waited = Vec::new();
    for _ in 0..12 {
        let waits = waits();
        let wait = Wait::Seldom { now: at(0), waits: &waits, jitter: 0.0 };
        let next = write(&mut connection, |transaction| postpone(transaction, item, "no such item", wait));
        waited.push(next.unwrap().get() / 1_000_000);
    }
    assert_eq!(waited, [5, 10, 20, 40, 60, 60, 60, 60, 60, 60, 3600, 3600]);
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, 1).1, Some(MAX_RETRY_AFTER - Duration::from_micros(1)));
    let queued = write(&mut connection, |transaction| entries(transaction, DownloadLane::Messages, at(1)));
    assert_eq!(queued[0].attempts, 12);
    assert!(matches!(&queued[0].state, DownloadState::Waiting { next_try: Some(_), reason: Some(_) }), "{queued:?}");
}

/// A session that breaks costs no item a wait, unless it breaks each time.
#[test]
fn what_a_session_broke_with_is_suspected_only_in_the_end_and_progress_clears_it() {
    let mut connection = store(&[(1, 10, &[(11, 'm')])]);
    let item = ItemName::Message(id(11));
    let lost = |connection: &mut Connection| {
        let waits = waits();
        let wait = Wait::Suspected { now: at(0), waits: &waits, jitter: 0.0 };
        write(connection, |transaction| postpone(transaction, item, "the proxy ended", wait))
    };
    let waited = [(); 4].map(|()| lost(&mut connection).map(|next| next.get() / 1_000_000));
    assert_eq!(waited, [None, None, Some(5), Some(10)]);
    write(&mut connection, |transaction| note_progress(transaction, item));
    assert_eq!(lost(&mut connection), None);
}

/// Case Q2.
#[test]
fn q2_when_the_user_lets_the_queue_go_on_nothing_waits_its_time() {
    let mut connection = store(TWO);
    let waits = waits();
    for item in [11, 21] {
        let wait = growing(1_000, Duration::from_secs(3600), &waits);
        write(&mut connection, |transaction| postpone(transaction, ItemName::Message(id(item)), "fault", wait));
    }
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, 1_001).0, [ItemId::Reply(id(13))]);
    write(&mut connection, end_waits);
    assert_eq!(due_in(&mut connection, DownloadLane::Messages, 1_001).0.len(), 3);
}

#[test]
fn all_that_has_failed_is_asked_for_at_once_and_nothing_else_besides_files() {
    let mut connection = store(TWO);
    write(&mut connection, |transaction| fail(transaction, ItemName::Reply(id(13)), "gone wrong"));
    let all = write(&mut connection, absent);
    assert_eq!(all, [submission(22), submission(12), ItemId::Reply(id(13))]);
    write(&mut connection, |transaction| want(transaction, &all, at(3)));
    let counts =
        |connection: &mut Connection, lane| write(connection, move |transaction| lane_counts(transaction, lane));
    let none_failed = |waiting| LaneCounts { waiting, running: 0, failed: 0 };
    assert_eq!(counts(&mut connection, DownloadLane::Messages), none_failed(3));
    assert_eq!(counts(&mut connection, DownloadLane::Files), none_failed(2));
}

/// What is listed as larger than can be is not fetched, whoever asks, and says why; listed otherwise it is fetched.
#[test]
fn what_is_larger_than_the_server_takes_is_not_fetched_as_long_as_it_is_listed_so() {
    let mut connection = store(TWO);
    let list = |connection: &mut Connection, item: u32, bytes: u64| {
        let set = "UPDATE server_submission SET size_bytes = ?1 WHERE id = ?2";
        let id: String = id::<protocol::value::SubmissionId>(item).to_string();
        assert_eq!(connection.execute(set, params![i64::try_from(bytes).unwrap(), id]).unwrap(), 1);
    };
    write(&mut connection, |transaction| want(transaction, &[submission(12)], at(5)));
    for (item, lane, most) in [(11, DownloadLane::Messages, MAX_MESSAGE), (12, DownloadLane::Files, MAX_FILE)] {
        let name = if item == 11 { ItemName::Message(id(item)) } else { ItemName::File(id(item)) };
        let candidate = Candidate { source: id(1), item: name };
        let before = write(&mut connection, move |transaction| lane_counts(transaction, lane));
        for too_much in [most + 1, i64::MAX as u64] {
            list(&mut connection, item, too_much);
            assert!(!due_in(&mut connection, lane, 6).0.contains(&submission(item)));
            assert_eq!(write(&mut connection, |transaction| job(transaction, candidate)), None);
            assert!(!write(&mut connection, absent).contains(&submission(item)));
            let counts = write(&mut connection, move |transaction| lane_counts(transaction, lane));
            assert_eq!(counts, LaneCounts { waiting: before.waiting - 1, running: 0, failed: 1 });
            let queued = write(&mut connection, move |transaction| entries(transaction, lane, at(6)));
            let entry = queued.iter().find(|entry| entry.item == submission(item)).unwrap();
            let DownloadState::Failed { reason } = &entry.state else { panic!("{entry:?}") };
            let shown = write(&mut connection, |transaction| crate::store::view::conversation(transaction, id(1)));
            let content = &shown.iter().find(|item| item.size.get() == too_much).unwrap().content;
            assert_eq!(*content, control::Content::Failed { reason: reason.clone() });
        }
        list(&mut connection, item, most);
        assert!(due_in(&mut connection, lane, 6).0.contains(&submission(item)));
        assert_eq!(write(&mut connection, |transaction| job(transaction, candidate)).unwrap().listed.get(), most);
        assert_eq!(write(&mut connection, move |transaction| lane_counts(transaction, lane)), before);
    }
}
