mod acts;

use std::collections::BTreeMap;

use control::{Act, Presence, ReplyText};
use protocol::value::{
    Bounded, Designation as Name, Filename, ItemId, JournalistId, OrderNumber, ReplyId, Size, Username,
};
use protocol::{Listed, Source, SubmissionKind};
use rusqlite::Connection;

use super::*;
use crate::store::outbox::{self, EnqueueError};
use crate::store::{downloads, drafts, migration, mirror, view};
use crate::sync::{Known, ListPlan, Snapshot};

const HOUR: u64 = 3_600_000_000;

fn id<I: std::str::FromStr<Err: std::fmt::Debug>>(number: u32) -> I {
    format!("{number:08x}-0000-4000-8000-000000000000").parse().unwrap()
}

fn anna() -> JournalistId {
    id(1)
}

/// What the server lists: sources, and the numbers of their items; odd ones are replies.
type Lists = BTreeMap<u32, Vec<u32>>;

/// So many sources, each with a message and a reply.
fn inbox(sources: u32) -> Lists {
    (100..100 + sources).map(|source| (source, vec![source * 100, source * 100 + 1])).collect()
}

fn without(lists: &Lists, gone: impl IntoIterator<Item = u32>) -> Lists {
    let mut lists = lists.clone();
    gone.into_iter().for_each(|source| drop(lists.remove(&source)));
    lists
}

struct Inbox {
    connection: Connection,
    now: u64,
    snapshots: u64,
}

impl Inbox {
    /// The lists are synced, and all items are decrypted.
    fn with(lists: &Lists) -> Self {
        let mut connection = Connection::open_in_memory().unwrap();
        migration::migrate(&mut connection).unwrap();
        let mut inbox = Self { connection, now: HOUR, snapshots: 0 };
        let name = Username::try_new("anna").unwrap();
        inbox.write(|transaction| mirror::store_journalist(transaction, anna(), &name));
        assert!(inbox.sync(lists).is_empty());
        for item in lists.values().flatten() {
            inbox.write(|transaction| {
                transaction.execute(
                    "INSERT INTO local_item (item_id, is_reply, state, plain_bytes, text) VALUES (?1, ?2, 'decrypted', 4, ?3)",
                    params![id::<SourceId>(*item).as_str(), item % 2 == 1, format!("text {item}")],
                )?;
                Ok(())
            });
        }
        inbox
    }

    fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>) -> T {
        let transaction = self.connection.transaction().unwrap();
        let result = work(&transaction).unwrap();
        transaction.commit().unwrap();
        result
    }

    fn now(&self) -> Timestamp {
        Timestamp::try_new(self.now).unwrap()
    }

    /// A sync, as the client makes it; gives the sources of which something is held from now on.
    fn sync(&mut self, lists: &Lists) -> Vec<u32> {
        self.snapshots += 1;
        let (number, now, plan) = (self.snapshots, self.now(), self.plan(lists));
        let held = self.write(|transaction| {
            let held = hold(transaction, &plan, now)?;
            mirror::apply(transaction, &plan)?;
            listed_again(transaction, now)?;
            outbox::after_snapshot(transaction, number, now, Duration::from_secs(3600), &plan)?;
            Ok(held)
        });
        held.iter().map(number_of).collect()
    }

    fn plan(&mut self, lists: &Lists) -> Plan {
        let known = self.write(mirror::load_mirror);
        let sources = lists.keys().map(|source| Listed::Readable(record(*source))).collect();
        let items = || lists.iter().flat_map(|(source, items)| items.iter().map(|item| (*source, *item)));
        let submissions = items().filter(|(_, item)| item % 2 == 0).map(|(source, item)| submission(source, item));
        let replies = items().filter(|(_, item)| item % 2 == 1).map(|(source, item)| reply(source, item));
        Plan {
            users: diff(&known.users, Vec::new()),
            sources: diff(&known.sources, sources),
            submissions: diff(&known.submissions, submissions.collect()),
            replies: diff(&known.replies, replies.collect()),
        }
    }

    /// The shown sources, and the items of theirs that can be read.
    fn shown(&mut self) -> Lists {
        self.write(|transaction| {
            let mut shown = Lists::new();
            for row in view::sources(transaction)? {
                let items = view::readable(transaction, row.id)?;
                shown.insert(number_of(&row.id), items.iter().map(|item| number_of(&item.id())).collect());
            }
            Ok(shown)
        })
    }

    /// The items whose content is to be erased.
    fn doomed(&mut self) -> Vec<u32> {
        let mut doomed: Vec<_> = self.write(downloads::doomed).iter().map(|(_, item)| number_of(item)).collect();
        doomed.sort_unstable();
        doomed
    }

    fn erase(&mut self) {
        self.write(|transaction| {
            let doomed: Vec<_> = downloads::doomed(transaction)?.iter().map(|(number, _)| *number).collect();
            downloads::forget(transaction, &doomed)
        });
    }

    fn held(&mut self) -> Vec<(u32, bool, u64)> {
        let mut held: Vec<_> =
            self.write(held).iter().map(|held| (number_of(&held.source), held.whole, held.items)).collect();
        held.sort_unstable();
        assert_eq!(self.write(count), u64::try_from(held.len()).unwrap());
        held
    }

    fn settle(&mut self, verdict: RemovalVerdict, sources: &[u32]) {
        let sources: Vec<_> = sources.iter().map(|source| id(*source)).collect();
        let settled = self.write(|transaction| settle(transaction, verdict, &sources));
        assert_eq!(settled.len(), sources.len());
    }

    fn act(&mut self, act: &Act) -> Result<outbox::Enqueued, EnqueueError> {
        let now = self.now();
        let transaction = self.connection.transaction().unwrap();
        let enqueued = outbox::enqueue(&transaction, anna(), act, now)?;
        transaction.commit().unwrap();
        Ok(enqueued)
    }

    fn pin_keys(&mut self) {
        self.write(|transaction| {
            transaction.execute_batch(
                "INSERT INTO local_key (source_id, fingerprint, armored, offered_armored, offered_claim, offered_fingerprint)
                 SELECT id, printf('%.40c', 'A'), 'key', 'key', printf('%.40c', 'A'), printf('%.40c', 'A') FROM server_source;
                 UPDATE server_source SET key_armored = 'key', key_fingerprint = printf('%.40c', 'A');",
            )?;
            Ok(())
        });
    }
}

fn number_of(id: &impl std::fmt::Display) -> u32 {
    u32::from_str_radix(id.to_string().split_once('-').unwrap().0, 16).unwrap()
}

fn diff<T: Record>(known: &Known<T::Id>, entries: Vec<Listed<T>>) -> ListPlan<T> {
    let mut snapshot = Snapshot::default();
    entries.into_iter().for_each(|entry| snapshot.observe(known, entry).unwrap());
    snapshot.diff(known)
}

fn record(source: u32) -> Source {
    Source {
        id: id(source),
        designation: Name::try_new(format!("source {source}")).unwrap(),
        starred: false,
        last_updated: Timestamp::try_new(u64::from(source)).unwrap(),
        interactions: OrderNumber::try_new(3).unwrap(),
        key: None,
        version: None,
    }
}

fn submission(source: u32, item: u32) -> Listed<Submission> {
    Listed::Readable(Submission {
        id: id(item),
        source: id(source),
        kind: SubmissionKind::Message,
        order: OrderNumber::try_new(u64::from(item)).unwrap(),
        filename: Some(Filename::try_new("1-a_b-msg.gpg").unwrap()),
        size: Size::try_new(612).unwrap(),
        read: true,
        seen_by: Bounded::default(),
        version: None,
    })
}

fn reply(source: u32, item: u32) -> Listed<Reply> {
    Listed::Readable(Reply {
        id: id(item),
        source: id(source),
        author: anna(),
        order: OrderNumber::try_new(u64::from(item)).unwrap(),
        filename: None,
        size: Size::try_new(1).unwrap(),
        deleted_by_source: false,
        seen_by: Bounded::default(),
        version: None,
    })
}

/// Case D4: a colleague's deletions are taken as they come, and nothing of them stays.
#[test]
fn d4_a_few_removals_are_taken_as_they_come() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let left = without(&all, 100..105);
    assert!(inbox.sync(&left).is_empty());
    assert_eq!(inbox.shown(), left);
    assert_eq!(inbox.doomed(), [10_000, 10_001, 10_100, 10_101, 10_200, 10_201, 10_300, 10_301, 10_400, 10_401]);
    assert!(inbox.held().is_empty());
}

/// Case D4: a tenth of the sources may go in a day, and five whatever there is.
#[test]
fn d4_what_may_go_in_a_day_is_five_or_a_tenth() {
    for (sources, most) in [(3, 3), (20, 5), (50, 5), (59, 5), (60, 6), (100, 10)] {
        let all = inbox(sources);
        let mut taken = Inbox::with(&all);
        assert!(taken.sync(&without(&all, 100..100 + most)).is_empty(), "{most} of {sources}");
        if most < sources {
            let mut much = Inbox::with(&all);
            let held: Vec<_> = (100..101 + most).collect();
            assert_eq!(much.sync(&without(&all, 100..101 + most)), held, "{} of {sources}", most + 1);
        }
    }
}

/// Case D4: what goes in several snapshots counts together, for a day.
#[test]
fn d4_removals_of_a_day_count_together() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let four = without(&all, 100..104);
    assert!(inbox.sync(&four).is_empty());
    inbox.erase();
    inbox.now += 23 * HOUR;
    let six = without(&four, 104..106);
    assert_eq!(inbox.sync(&six), [104, 105]);
    assert_eq!(inbox.held(), [(104, true, 2), (105, true, 2)]);
    // What is held is missing in every snapshot, and counts no more.
    assert!(inbox.sync(&six).is_empty());
    assert_eq!(inbox.held(), [(104, true, 2), (105, true, 2)]);
    // A day after the first ones five may go again.
    inbox.now += 2 * HOUR;
    assert!(inbox.sync(&without(&six, 106..111)).is_empty());
    assert_eq!(inbox.held(), [(104, true, 2), (105, true, 2)]);
}

/// Case D4: what is held is hidden and not erased; listed again it is shown with its content. The rest of the snapshot applies.
#[test]
fn d4_what_is_held_is_hidden_and_comes_back_with_its_content() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let mut left = without(&all, 100..110);
    left.insert(200, vec![20_000]);
    assert_eq!(inbox.sync(&left), (100..110).collect::<Vec<_>>());
    let mut shown = left.clone();
    shown.insert(200, Vec::new());
    assert_eq!(inbox.shown(), shown, "the new source is there");
    assert!(inbox.doomed().is_empty());
    assert_eq!(inbox.held().len(), 10);
    // Some of it is listed again.
    let some = without(&all, 103..110);
    assert!(inbox.sync(&some).is_empty(), "and the source that came meanwhile may go");
    assert_eq!(inbox.shown(), some);
    assert_eq!(inbox.held().len(), 7);
    inbox.sync(&all);
    assert_eq!((inbox.shown(), inbox.held()), (all, Vec::new()));
}

/// Case D4: accepted, it is erased; the others stay held.
#[test]
fn d4_what_is_accepted_is_doomed() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let left = without(&all, 100..106);
    inbox.sync(&left);
    inbox.settle(RemovalVerdict::Accept, &[100, 103]);
    assert_eq!(inbox.doomed(), [10_000, 10_001, 10_300, 10_301]);
    assert_eq!(inbox.held().len(), 4);
    inbox.erase();
    inbox.sync(&left);
    assert_eq!((inbox.doomed().len(), inbox.held().len(), inbox.shown()), (0, 4, left));
}

/// Case D4: rejected, it is shown as no longer on the server, and never held again.
#[test]
fn d4_what_is_rejected_is_shown_and_never_held_again() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let left = without(&all, 100..106);
    inbox.sync(&left);
    inbox.settle(RemovalVerdict::Reject, &[100, 101, 102, 103, 104, 105]);
    for _ in 0..3 {
        assert_eq!((inbox.shown(), inbox.held(), inbox.doomed()), (all.clone(), Vec::new(), Vec::new()));
        let rows = inbox.write(view::sources);
        let gone: Vec<_> = rows.iter().filter(|row| row.presence == Presence::Gone).map(|row| row.id).collect();
        assert_eq!(gone, (100..106).rev().map(id).collect::<Vec<SourceId>>());
        assert!(rows.iter().all(|row| row.presence == Presence::Listed || row.counts.unread == 0));
        inbox.sync(&left);
    }
    // Nothing of it is fetched, starred or answered; but it can be deleted.
    let source = id(100);
    let star = inbox.act(&Act::Star { sources: vec![source] }).unwrap_err();
    assert!(matches!(star, EnqueueError::Gone(_)), "{star}");
    let text = ReplyText::try_new("still there?").unwrap();
    assert!(matches!(inbox.act(&Act::Reply { source, reply: id(5), text }), Err(EnqueueError::Gone(_))));
    inbox.act(&Act::DeleteSources { sources: vec![source] }).unwrap();
    inbox.sync(&left);
    assert_eq!(inbox.shown().len(), 20, "the server has not confirmed it");
    confirm_all(&mut inbox);
    assert_eq!(inbox.shown().len(), 19);
    assert_eq!(inbox.doomed(), [10_000, 10_001]);
    inbox.erase();
    inbox.sync(&left);
    // It comes back.
    inbox.sync(&without(&all, [100]));
    assert!(inbox.write(view::sources).iter().all(|row| row.presence == Presence::Listed));
    assert_eq!(inbox.shown(), without(&all, [100]));
}

/// The server has done whatever is to be sent.
fn confirm_all(inbox: &mut Inbox) {
    let (now, snapshot) = (inbox.now(), inbox.snapshots);
    inbox.write(|transaction| {
        let ready = outbox::ready(transaction, anna(), now, &HashSet::new(), &HashSet::new())?;
        for row in ready.batches.into_iter().flat_map(|batch| batch.rows) {
            for row in outbox::begin_attempt(transaction, &[row], snapshot)? {
                let waits = outbox::Waits::default();
                outbox::settle(transaction, &row, &outbox::Outcome::Done, now, snapshot, &waits, 0.0)?;
            }
        }
        Ok(())
    });
}

/// Case D4: emptied item lists are one object for each source, and are held item by item.
#[test]
fn d4_emptied_lists_are_held() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let emptied: Lists = all.keys().map(|source| (*source, Vec::new())).collect();
    assert_eq!(inbox.sync(&emptied).len(), 20);
    assert_eq!(inbox.held(), all.keys().map(|source| (*source, false, 2)).collect::<Vec<_>>());
    assert_eq!(inbox.shown(), emptied);
    // Then the sources go, a few a day: with what is held of them they are held too.
    let left = without(&emptied, 100..102);
    assert_eq!(inbox.sync(&left), [100, 101]);
    assert!(inbox.doomed().is_empty());
    inbox.settle(RemovalVerdict::Reject, &[101, 102]);
    let mut shown = left.clone();
    shown.insert(101, all[&101].clone());
    shown.insert(102, all[&102].clone());
    assert_eq!(inbox.shown(), shown);
    let items = inbox.write(|transaction| view::conversation(transaction, id(102)));
    assert!(items.iter().all(|item| item.presence == Presence::Gone) && items.len() == 2);
    inbox.sync(&all);
    assert_eq!((inbox.shown(), inbox.held()), (all, Vec::new()));
}

/// Case D4: a source that loses a few of its items in one snapshot counts once.
#[test]
fn d4_what_one_source_loses_counts_once() {
    let mut all = inbox(20);
    all.insert(100, (10_000..10_099).collect());
    let mut inbox = Inbox::with(&all);
    let mut left = all.clone();
    left.insert(100, vec![10_098]);
    assert!(inbox.sync(&left).is_empty());
    assert_eq!((inbox.shown(), inbox.doomed().len()), (left, 98));
}

/// Case D4: a hostile proxy that drops 49 % in each sync has nothing erased but what a day allows.
#[test]
fn d4_half_of_the_list_at_each_sync_erases_no_more_than_a_day_allows() {
    let all = inbox(100);
    let mut inbox = Inbox::with(&all);
    let mut left = all.clone();
    for _ in 0..12 {
        let gone: Vec<_> = left.keys().copied().take(left.len() * 49 / 100).collect();
        left = without(&left, gone);
        inbox.sync(&left);
        inbox.erase();
        inbox.now += HOUR;
    }
    inbox.sync(&all);
    let readable: usize = inbox.shown().values().map(Vec::len).sum();
    assert!(readable >= 2 * 90, "{readable}");
}

/// Case D4: sources that were made up raise no bound.
#[test]
fn d4_invented_sources_do_not_let_real_ones_go() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let mut many = all.clone();
    many.extend((1_000..2_000).map(|source| (source, Vec::new())));
    assert!(inbox.sync(&many).is_empty());
    inbox.now += 20 * HOUR;
    inbox.sync(&many);
    assert_eq!(inbox.sync(&without(&many, 100..120)).len(), 20);
    assert!(inbox.doomed().is_empty());
}

/// Case D4: what was kept of a source's items goes with the source, once that is accepted.
#[test]
fn d4_what_was_kept_of_a_source_goes_with_it() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let emptied: Lists = all.keys().map(|source| (*source, Vec::new())).collect();
    inbox.sync(&emptied);
    inbox.settle(RemovalVerdict::Reject, &[100]);
    assert_eq!(inbox.sync(&without(&emptied, [100])), [100]);
    inbox.settle(RemovalVerdict::Accept, &[100]);
    assert_eq!(inbox.doomed(), [10_000, 10_001]);
}

/// Case D4: sources under new ids are removals of the old ones.
#[test]
fn d4_swapped_ids_are_removals() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let swapped: Lists = all.iter().map(|(source, items)| (source + 500, items.clone())).collect();
    assert_eq!(inbox.sync(&swapped).len(), 20);
    assert!(inbox.doomed().is_empty());
    assert!(inbox.shown().values().all(Vec::is_empty), "no text moves to another source");
    inbox.sync(&all);
    assert_eq!(inbox.shown(), all);
}

/// Case D4: items that the server lists under another source stay where they were, and do not go with that one.
#[test]
fn d4_items_do_not_move_to_another_source() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let mut gathered: Lists = all.keys().map(|source| (*source, Vec::new())).collect();
    gathered.insert(300, all.values().flatten().copied().collect());
    assert!(inbox.sync(&gathered).is_empty());
    let mut shown = all.clone();
    shown.insert(300, Vec::new());
    assert_eq!(inbox.shown(), shown);
    let counts = inbox.plan(&gathered);
    assert!(!counts.removes_something());
    inbox.sync(&without(&gathered, [300]));
    assert_eq!(inbox.held().len(), 21, "the source that was made up is held with them");
    assert!(inbox.doomed().is_empty());
}

/// Case D4: items whose source is not listed any more are lost like those that are not listed themselves.
#[test]
fn d4_items_of_a_held_source_stay_whatever_the_lists_say_of_them() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    // The sources go first, their items later and one by one.
    let (mut known, mut plan) = (all.clone(), inbox.plan(&Lists::new()));
    (plan.submissions, plan.replies) = (inbox.plan(&all).submissions, inbox.plan(&all).replies);
    inbox.snapshots += 1;
    let now = inbox.now();
    inbox.write(|transaction| {
        assert_eq!(hold(transaction, &plan, now)?.len(), 20);
        mirror::apply(transaction, &plan)?;
        listed_again(transaction, now)
    });
    assert_eq!((inbox.shown(), inbox.doomed()), (Lists::new(), Vec::new()));
    assert_eq!(inbox.held()[0], (100, true, 2));
    known.values_mut().for_each(|items| items.truncate(1));
    inbox.sync(&Lists::new());
    assert!(inbox.doomed().is_empty());
    assert_eq!(inbox.held()[0], (100, true, 2));
    inbox.settle(RemovalVerdict::Reject, &[100]);
    assert_eq!(inbox.shown(), Lists::from([(100, all[&100].clone())]));
    inbox.settle(RemovalVerdict::Accept, &(101..120).collect::<Vec<_>>());
    assert_eq!(inbox.doomed().len(), 38);
}

/// Case D4: what somebody here has deleted is never held, and does not count.
#[test]
fn d4_what_was_deleted_here_is_not_held() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    let sources: Vec<SourceId> = (100..110).map(id).collect();
    inbox.act(&Act::DeleteSources { sources }).unwrap();
    let items =
        (11_000..11_002).map(|item| if item % 2 == 0 { ItemId::Submission(id(item)) } else { ItemId::Reply(id(item)) });
    inbox.act(&Act::DeleteItems { source: id(110), items: items.collect() }).unwrap();
    let mut left = without(&all, 100..110);
    left.insert(110, Vec::new());
    assert!(inbox.sync(&left).is_empty());
    assert_eq!(inbox.doomed().len(), 22);
    // And five that nobody here has deleted may still go.
    assert!(inbox.sync(&without(&left, 111..116)).is_empty());
    assert!(inbox.held().is_empty());
}

/// A deletion that was refused has deleted nothing: it does not let removals through.
#[test]
fn d4_what_was_to_be_deleted_here_and_was_refused_is_held() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    inbox.act(&Act::DeleteSources { sources: (100..110).map(id).collect() }).unwrap();
    inbox.write(|transaction| Ok(transaction.execute("UPDATE outbox SET state = 'refused', reason = 'no'", [])?));
    assert_eq!(inbox.sync(&without(&all, 100..110)), (100..110).collect::<Vec<_>>());
    assert_eq!(inbox.doomed(), [] as [u32; 0]);
}

/// Cases R1 and R3: texts of ours stay while the removal of their source is held, and nothing of them is sent.
#[test]
fn r1_drafts_and_replies_to_a_held_source_stay() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    inbox.pin_keys();
    let (text, source) = (|text: &str| ReplyText::try_new(text).unwrap(), id(100));
    inbox.act(&Act::Reply { source, reply: id::<ReplyId>(7), text: text("waits") }).unwrap();
    let now = inbox.now();
    inbox.write(|transaction| drafts::keep(transaction, anna(), source, Some(&text("begun")), now));
    let left = without(&all, 100..106);
    inbox.sync(&left);
    let ready = inbox.write(|transaction| outbox::ready(transaction, anna(), now, &HashSet::new(), &HashSet::new()));
    assert_eq!(ready, outbox::Ready::default());
    inbox.sync(&left);
    inbox.sync(&all);
    let ready = inbox.write(|transaction| outbox::ready(transaction, anna(), now, &HashSet::new(), &HashSet::new()));
    assert_eq!(ready.batches.len(), 1);
    assert_eq!(inbox.write(|transaction| drafts::load(transaction, source)), Some(text("begun")));

    // Rejected: the reply cannot be sent, and its text is there.
    inbox.sync(&left);
    inbox.settle(RemovalVerdict::Reject, &[100]);
    let outgoing = |inbox: &mut Inbox| {
        inbox.write(|transaction| outbox::outgoing(transaction, source, now, &outbox::Lane::default()))
    };
    let replies = outgoing(&mut inbox);
    assert_eq!((replies.len(), replies[0].text.as_str()), (1, "waits"));
    assert_eq!(replies[0].state, Some(control::ActState::Refused));

    // Accepted: it goes with the source.
    let mut inbox = Inbox::with(&all);
    inbox.pin_keys();
    inbox.act(&Act::Reply { source, reply: id::<ReplyId>(7), text: text("waits") }).unwrap();
    inbox.write(|transaction| drafts::keep(transaction, anna(), source, Some(&text("begun")), now));
    inbox.sync(&left);
    inbox.settle(RemovalVerdict::Accept, &[100]);
    let rows: u64 = inbox.write(|transaction| {
        Ok(transaction.query_row(
            "SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM local_draft)",
            [],
            |row| row.get(0),
        )?)
    });
    assert_eq!(rows, 0);
}

/// A settlement of what is not held changes nothing and says so.
#[test]
fn only_what_is_held_is_settled() {
    let all = inbox(20);
    let mut inbox = Inbox::with(&all);
    inbox.sync(&without(&all, 100..106));
    let settled = inbox.write(|transaction| settle(transaction, RemovalVerdict::Accept, &[id(100), id(110)]));
    assert_eq!(settled.iter().map(number_of).collect::<Vec<_>>(), [100]);
    assert_eq!(inbox.shown().len(), 14);
}
