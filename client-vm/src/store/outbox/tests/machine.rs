//! The outbox with a few lines that play the engine, a simulated server, and the reference, step by step together.

mod grace;
mod replies;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use control::{ActId, ActStep, Deal};
use protocol::value::Timestamp;
use rusqlite::{Connection, Transaction};

use super::super::{self as outbox, Batch, Before, EnqueueError, Lane, Outcome, Ready, Row, Settled, Unsent, Waits};
use super::reference::{Digests, Entry, OVERDUE_US, Reference, Refusal, Status};
use super::server::{By, Server, Verdict};
use super::world::{
    Damage, ItemList, ItemRecord, Itm, LeftOut, ListedItem, Lists, SourceList, SourceRecord, Src, What, Who, Wish,
    listed_item, listed_source, nameless,
};
use crate::store::{StoreError, mirror, removals};
use crate::sync::{Mirror, Plan, Snapshot};

const HOUR_US: u64 = 3_600_000_000;

pub(super) struct Machine<'a> {
    pub(super) connection: &'a mut Connection,
    pub(super) server: Server,
    pub(super) reference: Reference,
    pub(super) signed_in: Option<Who>,
    /// Who signed in last.
    pub(super) last: Who,
    /// The last snapshot that was asked for.
    pub(super) snapshot: u64,
    pub(super) running: Vec<Attempt>,
    /// The acts whose calls for deletions are open.
    pub(super) open: BTreeSet<u64>,
    pub(super) sync: Option<Sync>,
    /// Microseconds.
    pub(super) now: u64,
    /// Whether dom0 asks about deletions.
    pub(super) dom0_asks: bool,
    /// How long a deletion can be taken back, in microseconds.
    pub(super) grace: u64,
    /// Every row there ever was.
    pub(super) rows: BTreeMap<i64, (Who, What)>,
    /// The rows that somebody refused for good.
    pub(super) refused: BTreeSet<i64>,
    /// The replies that may have been stored, by their rows, and the last snapshot that had been asked for when the attempt
    /// ended; none while it goes on. They wait for a later one.
    pub(super) in_doubt: BTreeMap<i64, Option<u64>>,
    /// In how many lists that were not whole each of those was missing since.
    pub(super) unsure: BTreeMap<i64, u32>,
    /// Replies that a list did not name though they were stored.
    pub(super) unnamed: BTreeSet<Itm>,
    /// What is wrong with the lists of the next snapshot.
    pub(super) damage: Damage,
    /// The source of which the last snapshot has left something out.
    pub(super) left_out: Option<Src>,
    /// How much had been written when it was last checked.
    pub(super) looked_at: u64,
    /// How often it was.
    pub(super) looks: u32,
}

/// An attempt between the choice of its rows and its answer.
pub(super) struct Attempt {
    who: Who,
    pub(super) source: Src,
    pub(super) act: u64,
    chosen: Vec<Row>,
    /// The last snapshot that had been asked for when they were chosen.
    snapshot: u64,
    /// What was noted as being sent, with whether it may have had an effect before.
    begun: Option<Vec<(Row, bool)>>,
    performed: BTreeMap<i64, Verdict>,
}

/// A sync between its first call and its transaction.
pub(super) struct Sync {
    number: u64,
    known: Mirror,
    digests: (Digests<Src, SourceRecord>, Digests<Itm, ItemRecord>),
    sources: Option<SourceList>,
    items: Option<ItemList>,
}

/// How an attempt ends for the rows that the server has not performed; of the others it tells the truth, if anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The answer comes, as far as there is one.
    Answered,
    /// A fault of the server, or no answer: nobody knows of any row.
    Fault { retry_after: Option<Duration> },
    /// The server refuses.
    Refused,
    /// Certainly no effect.
    NoEffect,
    /// The proxy takes no more deletions in this call.
    UsedUp,
}

/// How the opening of a call for an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    Allowed,
    Refused,
    Failed,
}

impl<'a> Machine<'a> {
    /// `connection` is a store with empty tables.
    pub(super) fn new(connection: &'a mut Connection, server: Server, dom0_asks: bool) -> Self {
        Self {
            connection,
            server,
            reference: Reference::default(),
            signed_in: None,
            last: Who::Anna,
            snapshot: 0,
            running: Vec::new(),
            open: BTreeSet::new(),
            sync: None,
            now: 1_750_000_000_000_000,
            dom0_asks,
            grace: 0,
            rows: BTreeMap::new(),
            refused: BTreeSet::new(),
            in_doubt: BTreeMap::new(),
            unsure: BTreeMap::new(),
            unnamed: BTreeSet::new(),
            damage: Damage::default(),
            left_out: None,
            looked_at: 0,
            looks: 0,
        }
    }

    pub(super) fn time(&self) -> Timestamp {
        Timestamp::try_new(self.now).unwrap()
    }

    /// One transaction, as the store makes them.
    pub(super) fn write<T, E>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T, E>) -> Result<T, E> {
        let transaction = self.connection.transaction().unwrap();
        let result = work(&transaction)?;
        transaction.commit().unwrap();
        Ok(result)
    }

    pub(super) fn read<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>) -> T {
        work(&self.connection.transaction().unwrap()).unwrap()
    }

    pub(super) fn login(&mut self, who: Who) {
        self.logout();
        let (snapshot, now, grace) = (self.snapshot, self.time(), Duration::from_micros(self.grace));
        self.write(|transaction| {
            outbox::land(transaction, snapshot, &HashSet::new())?;
            outbox::give_grace_anew(transaction, who.id(), now, grace)?;
            mirror::store_journalist(transaction, who.id(), &who.name())
        })
        .unwrap();
        self.reference.land(snapshot);
        self.reference.give_grace_anew(who, self.now, self.grace);
        self.landed();
        self.signed_in = Some(who);
        self.last = who;
    }

    /// Attempts end, and what they would have said counts no more. A sync that has its lists is applied all the same.
    pub(super) fn logout(&mut self) {
        self.signed_in = None;
        self.running.clear();
        self.open.clear();
        self.sync.take_if(|sync| sync.sources.is_none() || sync.items.is_none());
    }

    /// Whatever was under way is no more, and the daemon starts again.
    pub(super) fn crash(&mut self) {
        self.logout();
        self.sync = None;
        self.snapshot = self.read(outbox::last_snapshot);
        // Numbers go on from there.
        self.in_doubt.values_mut().flatten().for_each(|since| *since = self.snapshot.min(*since));
    }

    /// Whether the server has performed a row, or a reply of the same id before it.
    pub(super) fn is_performed(&self, row: i64) -> bool {
        let same = |other: &&i64| self.rows[&row].1.reply().is_some() && self.rows[other].1 == self.rows[&row].1;
        self.server.performed.contains(&row) || self.server.performed.iter().any(|other| same(&other))
    }

    pub(super) fn act(&mut self, wish: &Wish) {
        let Some(who) = self.signed_in else { return };
        let (now, act) = (self.time(), wish.act());
        let grace = Duration::from_micros(self.grace);
        let taken = self.write(|transaction| {
            let taken = outbox::enqueue(transaction, who.id(), &act, now)?;
            if let Some(act) = taken.taken.act {
                let waits = outbox::give_grace(transaction, act, now, grace)?;
                assert_eq!(waits, wish.is_deletion() && !grace.is_zero());
            }
            Ok(taken)
        });
        let must = self.reference.take(who, wish);
        match (taken, must) {
            (Ok(enqueued), Ok(must)) => {
                assert_eq!(enqueued.taken.act, must.act.map(ActId));
                assert_eq!(enqueued.taken.objects, u64::try_from(must.rows.len()).unwrap());
                assert_eq!(enqueued.taken.already, must.already);
                must.act.into_iter().for_each(|act| self.reference.give_grace(act, self.now, self.grace));
                for row in must.rows {
                    let entry = self.reference.entry(row).unwrap();
                    self.rows.insert(row, (who, entry.what));
                }
            }
            (Err(EnqueueError::NoSource(_)), Err(Refusal::NoSource))
            | (Err(EnqueueError::NoItem(_)), Err(Refusal::NoItem))
            | (Err(EnqueueError::BeingDeleted(_)), Err(Refusal::BeingDeleted))
            | (Err(EnqueueError::Gone(_)), Err(Refusal::Gone))
            | (Err(EnqueueError::Objects), Err(Refusal::Objects)) => {}
            (taken, must) => panic!("{wish:?} gives {taken:?} and must give {must:?}"),
        }
    }

    /// What can be sent, which is what must be sent.
    pub(super) fn ready(&mut self) -> Vec<Batch> {
        self.ready_now().batches
    }

    pub(super) fn ready_now(&mut self) -> Ready {
        let Some(who) = self.signed_in else { return Ready::default() };
        let busy: BTreeSet<_> = self.running.iter().map(|attempt| attempt.source).collect();
        let busy_ids = busy.iter().map(|source| source.id()).collect();
        let (now, open) = (self.time(), self.open.iter().copied().map(ActId).collect());
        let ready = self.read(|transaction| outbox::ready(transaction, who.id(), now, &busy_ids, &open));
        let rows: Vec<Vec<_>> =
            ready.batches.iter().map(|batch| batch.rows.iter().map(|row| row.id).collect()).collect();
        let (must, next) = self.reference.ready(who, self.now, &busy, &self.open);
        assert_eq!(rows, must, "what is sent next");
        assert_eq!(ready.next, next.map(Duration::from_micros), "when more is due");
        self.mend_grace(ready.to_mend);
        for batch in &ready.batches {
            for row in &batch.rows {
                let (of, what) = self.rows[&row.id];
                assert_eq!((of, what.source().id(), what.work()), (who, row.source, row.work));
                assert_eq!(batch.source, row.source);
            }
        }
        ready
    }

    /// Chooses what to send of what can be, and opens the call that it needs.
    pub(super) fn choose(&mut self, pick: usize, opening: Opening) {
        let Some(who) = self.signed_in else { return };
        let batches = self.ready();
        let Some(batch) = (!batches.is_empty()).then(|| batches[pick % batches.len()].clone()) else { return };
        let what = self.rows[&batch.rows[0].id].1;
        let act = batch.act;
        if !what.is_mark() && !self.open.contains(&act.0) {
            if self.dom0_asks && what.is_deletion() {
                self.write(|transaction| outbox::hold(transaction, act, true)).unwrap();
                self.reference.hold(act.0, true);
            }
            match opening {
                Opening::Allowed => {
                    self.open.insert(act.0);
                }
                Opening::Refused if what.is_deletion() => {
                    self.refuse_unsent(Unsent::Deletions(act), |entry| entry.act == act.0 && entry.what.is_deletion());
                    return;
                }
                Opening::Refused => {
                    let unsent = Status::Open { sent: false };
                    self.refuse_unsent(Unsent::Reply(act), |entry| entry.act == act.0 && entry.status == unsent);
                    return;
                }
                Opening::Failed => return,
            }
        }
        if what.is_mark() && opening == Opening::Refused {
            self.refuse_unsent(Unsent::Marks(who.id()), |entry| entry.who == who && entry.what.is_mark());
            return;
        }
        let source = Src::of(batch.source);
        let still = self.ready().into_iter().find(|ready| ready.source == batch.source).unwrap();
        assert!(self.reference.is_first(still.rows[0].id), "{what:?} overtakes another");
        assert!(self.running.iter().all(|attempt| attempt.source != source), "two attempts about one source");
        self.running.push(Attempt {
            who,
            source,
            act: act.0,
            chosen: still.rows,
            snapshot: self.snapshot,
            begun: None,
            performed: BTreeMap::new(),
        });
    }

    fn refuse_unsent(&mut self, unsent: Unsent, which: impl Fn(&Entry) -> bool) {
        let refused = self.write(|transaction| outbox::refuse_unsent(transaction, unsent, "no")).unwrap();
        let must = self.reference.refuse_unsent(which);
        let count: u64 = refused.iter().map(|(.., rows)| rows).sum();
        assert_eq!(count, u64::try_from(must.len()).unwrap());
        self.refused.extend(must);
    }

    /// Notes the chosen rows as being sent.
    pub(super) fn begin(&mut self, attempt: usize) {
        let Some(attempt) = self.running.get_mut(attempt).filter(|attempt| attempt.begun.is_none()) else { return };
        let transaction = self.connection.transaction().unwrap();
        let rows = outbox::begin_attempt(&transaction, &attempt.chosen, attempt.snapshot).unwrap();
        transaction.commit().unwrap();
        let ids: Vec<_> = attempt.chosen.iter().map(|row| row.id).collect();
        let must = self.reference.begin(&ids, attempt.snapshot);
        let begun: Vec<_> = rows.iter().map(|row| (row.id, row.before == Before::Attempted)).collect();
        assert_eq!(begun, must, "what is begun");
        let begun: Vec<_> = rows.into_iter().zip(must).map(|(row, (_, sent))| (row, sent)).collect();
        attempt.begun = Some(begun.clone());
        begun.iter().for_each(|(row, _)| self.note_begun(row));
    }

    /// Lets the server perform those of the rows of an attempt that `mask` has a bit for.
    pub(super) fn perform(&mut self, attempt: usize, mask: u8, linger: u8) {
        let Some(attempt) = self.running.get_mut(attempt) else { return };
        assert_eq!(self.signed_in, Some(attempt.who), "sent without the session that it belongs to");
        for (at, (row, _)) in attempt.begun.iter().flatten().enumerate() {
            if mask & (1 << (at % 8)) == 0 || attempt.performed.contains_key(&row.id) {
                continue;
            }
            let mut select = self.connection.prepare_cached("SELECT state FROM outbox WHERE id = ?1").unwrap();
            let states: Vec<String> =
                select.query_map([row.id], |sql| sql.get(0)).unwrap().map(Result::unwrap).collect();
            assert!(states.iter().all(|state| state != "pending"), "row {} is sent and not noted as sent", row.id);
            let (who, what) = self.rows[&row.id];
            assert_eq!(who, attempt.who, "sent as somebody else");
            attempt.performed.insert(row.id, self.server.perform(what, By::Row(row.id, who), linger));
        }
    }

    /// Ends an attempt that was begun.
    pub(super) fn end(&mut self, attempt: usize, ending: Ending) {
        if self.running.get(attempt).is_none_or(|attempt| attempt.begun.is_none()) {
            return;
        }
        let attempt = self.running.remove(attempt);
        let (now, snapshot, waits) = (self.time(), self.snapshot, Waits::default());
        let act = ActId(attempt.act);
        let rows: Vec<_> = attempt.begun.into_iter().flatten().collect();
        let outcomes: Vec<_> = rows
            .into_iter()
            .map(|(row, sent)| (outcome(&row, attempt.performed.get(&row.id), ending), row, sent))
            .collect();
        let settled: Vec<Settled> = self
            .write(|transaction| {
                let settle = |(outcome, row, _): &(Outcome, Row, bool)| {
                    outbox::settle(transaction, row, outcome, now, snapshot, &waits, 0.0)
                };
                let settled = outcomes.iter().map(settle).collect::<Result<_, StoreError>>()?;
                if ending == Ending::UsedUp {
                    outbox::hold(transaction, act, false)?;
                }
                Ok::<_, StoreError>(settled)
            })
            .unwrap();
        for ((outcome, row, sent), settled) in outcomes.into_iter().zip(settled) {
            let must = match &outcome {
                Outcome::Done => self.reference.confirm(row.id, self.now, snapshot),
                Outcome::NoEffect { .. } => self.reference.no_effect(row.id, sent),
                Outcome::Unknown { retry_after, .. } => {
                    self.reference.unknown(row.id, self.now, *retry_after, &waits, snapshot)
                }
                Outcome::Refused { .. } => {
                    self.refused.insert(row.id);
                    self.reference.refuse(row.id, sent)
                }
            };
            assert_eq!(settled, must, "what becomes of row {}", row.id);
            self.note_ended(&row, matches!(outcome, Outcome::Unknown { .. }));
        }
        if ending == Ending::UsedUp {
            self.reference.hold(attempt.act, false);
            self.open.remove(&attempt.act);
        }
        let open = self.read(|transaction| outbox::is_open(transaction, act));
        assert_eq!(open, self.reference.has_open(attempt.act));
        if !open {
            self.open.remove(&attempt.act);
        }
    }

    /// Gives how many rows it changes, or `None` when it cannot be done.
    pub(super) fn deal(&mut self, deal: Deal, act: u64) -> Option<u64> {
        let who = self.signed_in?;
        let dealt = self.write(|transaction| outbox::deal(transaction, who.id(), deal, &[ActId(act)]));
        let dealt = dealt.ok().map(|changes| changes.iter().map(|change| change.objects).sum());
        if deal == Deal::Retry && dealt.is_some() {
            self.note_retried(act);
        }
        assert_eq!(dealt, self.reference.deal(who, deal, act), "{deal:?} of act {act}");
        dealt
    }

    pub(super) fn ask_snapshot(&mut self) {
        if self.signed_in.is_none() || self.sync.is_some() {
            return;
        }
        self.snapshot += 1;
        let known = self.read(mirror::load_mirror);
        let digests = self.reference.digests();
        self.sync = Some(Sync { number: self.snapshot, known, digests, sources: None, items: None });
    }

    pub(super) fn list_sources(&mut self) {
        if let Some(sync) = &mut self.sync {
            sync.sources.get_or_insert_with(|| self.server.list_sources());
        }
    }

    pub(super) fn list_items(&mut self) {
        if let Some(sync) = &mut self.sync {
            sync.items.get_or_insert_with(|| self.server.list_items());
        }
    }

    /// Applies the snapshot, if its lists are there.
    pub(super) fn apply(&mut self) {
        let Some(sync) = self.sync.take_if(|sync| sync.sources.is_some() && sync.items.is_some()) else { return };
        let (now, overdue) = (self.time(), Duration::from_micros(OVERDUE_US));
        let damage = self.next_damage();
        let lists = Lists::new((sync.sources.unwrap(), sync.items.unwrap()), &damage);
        let whole = lists.whole_sources && lists.whole_submissions && lists.whole_replies;
        // A list that is not whole decides nothing: the next one counts as the one after that before it.
        self.left_out = damage.left_out.map(|left_out| left_out.source).or(self.left_out.filter(|_| !whole));
        let plan = plan(&sync.known, &lists);
        let effects = self
            .write(|transaction| {
                // So few removals are never held, if each is the first of its day.
                transaction.execute("DELETE FROM local_removal", [])?;
                assert!(removals::hold(transaction, &plan, now)?.is_empty());
                mirror::apply(transaction, &plan)?;
                removals::listed_again(transaction, now)?;
                outbox::after_snapshot(transaction, sync.number, now, overdue, &plan)
            })
            .unwrap();
        let must = self.reference.apply(sync.number, self.now, &sync.digests, &lists);
        self.note_applied(sync.number, &lists);
        assert_eq!(
            effects.sources.into_iter().map(Src::of).collect::<BTreeSet<_>>(),
            must.sources,
            "whose rows changed"
        );
        let mut told = BTreeMap::new();
        for change in effects.changes {
            *told.entry((change.act.0, Src::of(change.source), name(&change.step))).or_default() += change.objects;
        }
        assert_eq!(told, must.told, "what is told");
        let refused = |entry: &&Entry| matches!(entry.status, Status::Refused { .. });
        self.refused.extend(self.reference.entries.iter().filter(refused).map(|entry| entry.row));
    }

    /// What is wrong with the lists that are applied next. Nothing of a source is left out by two whole lists in a row.
    fn next_damage(&mut self) -> Damage {
        let mut damage = std::mem::take(&mut self.damage);
        damage.left_out.take_if(|left_out| Some(left_out.source) == self.left_out);
        damage
    }

    /// A sync with lists that are damaged so.
    pub(super) fn sync_with(&mut self, damage: Damage) {
        self.damage = damage;
        self.sync();
    }

    /// A sync whose lists leave a source out, with its items.
    pub(super) fn sync_without(&mut self, source: Src) {
        self.left_out = None;
        self.sync_with(Damage { left_out: Some(LeftOut { source, itself: true, items: true }), ..Damage::default() });
    }

    /// A whole sync at once.
    pub(super) fn sync(&mut self) {
        self.ask_snapshot();
        self.list_sources();
        self.list_items();
        self.apply();
    }

    /// What is being done, for the queue.
    pub(super) fn lane(&self) -> Lane {
        Lane {
            running: self.running.iter().map(|attempt| (ActId(attempt.act), attempt.source.id())).collect(),
            open: self.open.iter().copied().map(ActId).collect(),
            signed_in: self.signed_in.is_some(),
            ..Lane::default()
        }
    }

    /// Lets `who` work until nothing of theirs is open, with a server that answers.
    pub(super) fn work_off(&mut self, who: Who) {
        self.login(who);
        for _ in 0..60 {
            self.now += 2 * HOUR_US;
            let held: BTreeSet<_> = self
                .reference
                .entries
                .iter()
                .filter(|entry| entry.who == who && entry.held)
                .map(|entry| entry.act)
                .collect();
            for act in held {
                self.deal(Deal::Retry, act);
            }
            while !self.ready().is_empty() {
                self.choose(0, Opening::Allowed);
                self.begin(0);
                self.perform(0, u8::MAX, 0);
                self.end(0, Ending::Answered);
            }
            self.sync();
            let counts = self.read(outbox::counts);
            if counts.waiting == 0 {
                return;
            }
        }
        panic!("the acts of {who:?} do not come to an end");
    }
}

/// What an attempt says of a row, as the client takes it.
fn outcome(row: &Row, performed: Option<&Verdict>, ending: Ending) -> Outcome {
    let reason = "a reason".to_owned();
    if let Ending::Fault { retry_after } = ending {
        return Outcome::Unknown { reason, retry_after };
    }
    let needs_its_object = matches!(row.work, outbox::Work::Star | outbox::Work::Unstar | outbox::Work::Reply(_));
    match (performed, ending) {
        (Some(Verdict::NotFound), _) if needs_its_object => Outcome::Refused { reason },
        (Some(Verdict::Done | Verdict::NotFound | Verdict::Conflict), _) => Outcome::Done,
        (None, Ending::Answered | Ending::Fault { .. }) => Outcome::Unknown { reason, retry_after: None },
        (None, Ending::Refused) => Outcome::Refused { reason },
        (None, Ending::NoEffect | Ending::UsedUp) => Outcome::NoEffect { reason },
    }
}

/// What is told of a step, in a word.
fn name(step: &ActStep) -> &'static str {
    match step {
        ActStep::Settled => "settled",
        ActStep::Refused(_) => "refused",
        ActStep::NotDeleted => "not deleted",
        ActStep::Gone => "gone",
        ActStep::ListedAgain => "listed again",
        ActStep::NotListed => "not listed",
        ActStep::Taken | ActStep::Started | ActStep::Confirmed | ActStep::Postponed { .. } | ActStep::Dealt(_) => {
            panic!("no snapshot tells {step:?}")
        }
    }
}

fn plan(known: &Mirror, lists: &Lists) -> Plan {
    let (mut listed, mut submissions, mut replies) = (Snapshot::default(), Snapshot::default(), Snapshot::default());
    if !lists.whole_sources {
        listed.observe(&known.sources, nameless()).unwrap();
    }
    if !lists.whole_submissions {
        submissions.observe(&known.submissions, nameless()).unwrap();
    }
    if !lists.whole_replies {
        replies.observe(&known.replies, nameless()).unwrap();
    }
    for (source, entry) in &lists.sources {
        listed.observe(&known.sources, listed_source(*source, entry)).unwrap();
    }
    for (item, entry) in &lists.items {
        match listed_item(*item, entry) {
            ListedItem::Submission(entry) => submissions.observe(&known.submissions, entry).unwrap(),
            ListedItem::Reply(entry) => replies.observe(&known.replies, entry).unwrap(),
        }
    }
    Plan {
        sources: listed.diff(&known.sources),
        submissions: submissions.diff(&known.submissions),
        replies: replies.diff(&known.replies),
        ..Plan::default()
    }
}
