//! What must hold after every step, and at the end.

mod replies;

use std::collections::{BTreeMap, BTreeSet};

use control::QueueCounts;
use control::{ActId, ActState, Deletion, ItemKind, QueueEntry, Seen, SourceCounts};
use protocol::value::ItemId;
use rusqlite::Transaction;

use super::super::{self as outbox, ItemName, Lane};
use super::machine::Machine;
use super::reference::{End, ItemView, Reference, SourceView, Status, View};
use super::world::{Itm, Src, What, Who};
use crate::store::{StoreError, mirror, view};

/// How closely to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// At the views, where anything was written since the last look.
    Quick,
    /// At what front ends are told when this journalist has signed in last.
    Close(Who),
}

impl Machine<'_> {
    /// Each journalist sees what they must, or would if they had signed in last; and no row is taken for unsent that the
    /// server has seen.
    pub(super) fn check(&mut self, look: Look) {
        self.server.assert_no_doubles();
        if look == Look::Quick && self.connection.total_changes() == self.looked_at {
            return;
        }
        self.check_rows();
        match look {
            Look::Quick => {
                // Everybody's acts are in the views of whoever signed in last; the other one takes turns.
                self.looks += 1;
                let viewers = if self.looks.is_multiple_of(3) { &Who::BOTH[..] } else { &[self.last][..] };
                for viewer in viewers {
                    let shown = self.as_seen_by(*viewer, look_at_views);
                    assert_eq!(shown, self.reference.view(*viewer), "what {viewer:?} sees");
                }
            }
            Look::Close(viewer) => self.check_closely(viewer),
        }
        self.looked_at = self.connection.total_changes();
    }

    fn check_rows(&mut self) {
        let (now, lane) = (self.time(), self.lane());
        let (pending, held, queue) = self.read(|transaction| {
            let mut pending = transaction.prepare_cached("SELECT id FROM outbox WHERE state = 'pending'")?;
            let pending: BTreeSet<i64> = pending.query_map([], |sql| sql.get(0))?.collect::<Result<_, _>>()?;
            Ok((pending, look_at_mirror(transaction)?, outbox::queue(transaction, now, &lane)?))
        });
        let performed: Vec<_> = pending
            .intersection(&self.server.performed)
            .map(|row| (*row, self.rows[row].1))
            // A reply that somebody else has deleted cannot be told from one that was never stored.
            .filter(|(_, what)| {
                what.reply().is_none_or(|reply| self.server.has(reply) && !self.unnamed.contains(&reply))
            })
            .collect();
        assert!(performed.is_empty(), "taken for unsent, and performed: {performed:?}");
        let in_doubt: Vec<_> = pending.iter().filter(|row| self.in_doubt.contains_key(row)).collect();
        assert!(in_doubt.is_empty(), "taken for unsent, and perhaps stored: rows {in_doubt:?}");
        assert_eq!(held, self.reference.held(), "what is held of records");
        let lines = lines(&self.reference, self.last, self.now, &lane);
        assert_eq!(queue.iter().map(Line::of).collect::<BTreeSet<_>>(), lines, "the queue");
        assert!(queue.is_sorted_by_key(|entry| entry.act), "the queue is in order");
        self.check_replies();
    }

    /// What `viewer` would read if they had signed in last.
    pub(super) fn as_seen_by<T>(
        &mut self,
        viewer: Who,
        look: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>,
    ) -> T {
        self.read(|transaction| {
            // Rolled back with the transaction.
            mirror::store_journalist(transaction, viewer.id(), &viewer.name())?;
            look(transaction)
        })
    }

    /// What `viewer` is shown, or would be if they had signed in last.
    pub(super) fn shown_to(&mut self, viewer: Who) -> View {
        self.as_seen_by(viewer, look_closely).0
    }

    fn check_closely(&mut self, viewer: Who) {
        let ((shown, counted), totals) =
            self.as_seen_by(viewer, |transaction| Ok((look_closely(transaction)?, view::totals(transaction)?)));
        let must = self.reference.view(viewer);
        assert_eq!(shown, must, "what {viewer:?} is shown");
        assert_eq!(counted, counts(&must), "what {viewer:?}'s sources count");
        let sources = must.sources.values().filter(|source| !source.being_deleted).count();
        let items: Vec<_> = must.items.values().filter(|item| !item.being_deleted).collect();
        let unread = items.iter().filter(|item| item.unread).count();
        assert_eq!(
            (totals.sources, totals.items, totals.unread),
            (number(sources), number(items.len()), number(unread))
        );
        assert_eq!(totals.queue, queue_counts(&self.reference, viewer), "the counts of the queue for {viewer:?}");
        self.check_replies_closely(viewer, &must);
    }

    /// Nothing was lost, and what is seen is what the server lists.
    pub(super) fn check_end(&mut self) {
        for (row, (who, what)) in self.rows.clone() {
            let end = self.reference.ended.get(&row).copied();
            let performed = self.is_performed(row);
            let gone = !self.server.is_there(what);
            let shown = end == Some(End::Shown)
                && match what {
                    What::Seen(_, item) => self.server.has_seen(item, who),
                    // It was listed, so it was stored.
                    What::Reply(..) => performed,
                    _ => true,
                };
            let given_up = end == Some(End::GivenUp) || self.refused.contains(&row);
            assert!(performed || gone || shown || given_up, "row {row}, {what:?} of {who:?}, is lost");
            assert!(
                end != Some(End::Moot) || gone || performed || self.refused.contains(&row),
                "row {row}, {what:?}, has ended, and its object is there"
            );
        }
        for (row, who, what) in self.server.answered.clone() {
            assert_eq!(self.rows[&row], (who, what), "who has answered, and whom");
        }
        let (sources, items) = (self.server.list_sources(), self.server.list_items());
        let in_vain = self.reference.answered_in_vain.clone();
        // Deleted with a source that was not listed for once, while they were: nothing says whose they are any more.
        let held = self.reference.held().1;
        let forgotten: BTreeSet<_> =
            items.keys().copied().filter(|item| !self.server.has(*item) && !held.contains(item)).collect();
        let left: Vec<(i64, String)> = self.read(|transaction| {
            let mut select = transaction.prepare_cached("SELECT id, state FROM outbox")?;
            Ok(select.query_map([], |sql| Ok((sql.get(0)?, sql.get(1)?)))?.collect::<Result<_, _>>()?)
        });
        let mut hidden = BTreeSet::new();
        for (row, state) in left {
            let what = self.rows[&row].1;
            match state.as_str() {
                "refused" => {}
                "confirmed" => {
                    let listed =
                        what.item().map_or(sources.contains_key(&what.source()), |item| items.contains_key(&item));
                    assert!(what.is_deletion() && listed, "row {row}, {what:?}, is left");
                    hidden.insert(what);
                }
                _ => panic!("row {row}, {what:?}, is still {state}"),
            }
        }
        for viewer in Who::BOTH {
            let shown = self.as_seen_by(viewer, look_at_views);
            let shows = |source: &Src| sources.contains_key(source) && !hidden.contains(&What::DeleteSource(*source));
            let must = View {
                sources: sources
                    .iter()
                    .filter(|(source, _)| shows(source))
                    .map(|(source, record)| (*source, record.starred))
                    .chain(in_vain.clone())
                    .map(|(source, starred)| (source, SourceView { starred, being_deleted: false }))
                    .collect(),
                items: items
                    .iter()
                    .filter(|(item, record)| {
                        (shows(&record.source) || in_vain.contains_key(&record.source))
                            && !hidden.contains(&What::DeleteItem(record.source, **item))
                            && !forgotten.contains(item)
                    })
                    .map(|(item, record)| {
                        let unread = sources.contains_key(&record.source) && !record.seen_by.contains(&viewer);
                        (*item, ItemView { source: record.source, unread, being_deleted: false })
                    })
                    .collect(),
            };
            assert_eq!(shown, must, "what {viewer:?} sees in the end");
        }
    }
}

fn look_at_views(transaction: &Transaction<'_>) -> Result<View, StoreError> {
    let mut shown = View::default();
    let mut sources = transaction.prepare_cached("SELECT id, starred, being_deleted FROM visible_source")?;
    let mut rows = sources.query([])?;
    while let Some(row) = rows.next()? {
        let source = Src::of(row.get::<_, String>(0)?.parse()?);
        shown.sources.insert(source, SourceView { starred: row.get(1)?, being_deleted: row.get(2)? });
    }
    let mut items =
        transaction.prepare_cached("SELECT kind, id, source_id, unread, being_deleted FROM visible_item")?;
    let mut rows = items.query([])?;
    while let Some(row) = rows.next()? {
        let name = ItemName::parse(&row.get::<_, String>(0)?, &row.get::<_, String>(1)?)?;
        let source = Src::of(row.get::<_, String>(2)?.parse()?);
        shown.items.insert(Itm::of(name.id()), ItemView { source, unread: row.get(3)?, being_deleted: row.get(4)? });
    }
    Ok(shown)
}

/// Of which objects the mirror holds anything but that they are listed.
fn look_at_mirror(transaction: &Transaction<'_>) -> Result<(BTreeSet<Src>, BTreeSet<Itm>), StoreError> {
    let (mut sources, mut items) = (BTreeSet::new(), BTreeSet::new());
    let mut select = transaction.prepare_cached(
        "SELECT 0, id FROM server_source WHERE designation IS NOT NULL
         UNION ALL SELECT 1, id FROM server_submission WHERE source_id IS NOT NULL
         UNION ALL SELECT 2, id FROM server_reply WHERE source_id IS NOT NULL",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let id: String = row.get(1)?;
        match row.get(0)? {
            0 => sources.insert(Src::of(id.parse()?)),
            1 => items.insert(Itm::of(ItemId::Submission(id.parse()?))),
            _ => items.insert(Itm::of(ItemId::Reply(id.parse()?))),
        };
    }
    Ok((sources, items))
}

/// What front ends are told of sources and items, and what each source counts.
fn look_closely(transaction: &Transaction<'_>) -> Result<(View, BTreeMap<Src, SourceCounts>), StoreError> {
    let (mut shown, mut counts) = (View::default(), BTreeMap::new());
    let being_deleted = |deletion| deletion == Deletion::Pending;
    for row in view::sources(transaction)? {
        let source = Src::of(row.id);
        let source_view = SourceView { starred: row.starred, being_deleted: being_deleted(row.deletion) };
        shown.sources.insert(source, source_view);
        counts.insert(source, row.counts);
        for item in view::conversation(transaction, row.id)? {
            let id = match item.kind {
                ItemKind::Submission { id, .. } => ItemId::Submission(id),
                ItemKind::Reply { id, .. } => ItemId::Reply(id),
            };
            let (unread, being_deleted) = (item.seen == Seen::Unread, being_deleted(item.deletion));
            shown.items.insert(Itm::of(id), ItemView { source, unread, being_deleted });
        }
    }
    Ok((shown, counts))
}

/// What each source must count: what is being deleted is never counted.
fn counts(view: &View) -> BTreeMap<Src, SourceCounts> {
    let none = SourceCounts { messages: 0, files: 0, replies: 0, unread: 0 };
    let mut counts: BTreeMap<_, _> = view.sources.keys().map(|source| (*source, none)).collect();
    for (item, shown) in view.items.iter().filter(|(_, shown)| !shown.being_deleted) {
        let counts = counts.get_mut(&shown.source).unwrap();
        match item.name() {
            ItemName::Message(_) => counts.messages += 1,
            ItemName::File(_) => counts.files += 1,
            ItemName::Reply(_) => counts.replies += 1,
        }
        counts.unread += u64::from(shown.unread);
    }
    counts
}

fn queue_counts(reference: &Reference, viewer: Who) -> QueueCounts {
    let count = |which: &dyn Fn(Status, bool) -> bool| {
        number(reference.entries.iter().filter(|entry| which(entry.status, entry.who == viewer)).count())
    };
    QueueCounts {
        waiting: count(&|status, own| own && matches!(status, Status::Open { .. })),
        of_others: count(&|status, own| !own && matches!(status, Status::Open { .. })),
        refused: count(&|status, _| matches!(status, Status::Refused { .. })),
        not_deleted: count(&|status, _| matches!(status, Status::Confirmed { told: true, .. })),
    }
}

/// An entry of the queue.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    act: u64,
    source: Src,
    /// The state, by its name.
    state: &'static str,
    objects: u64,
    who: Who,
    own: bool,
    attempts: u32,
    next_try: Option<u64>,
}

impl Line {
    fn of(entry: &QueueEntry) -> Self {
        Self {
            act: entry.act.0,
            source: Src::of(entry.source),
            state: name(&entry.state),
            objects: entry.objects,
            who: Who::of(entry.journalist),
            own: entry.own,
            attempts: entry.attempts,
            next_try: entry.next_try.map(|time| time.get()),
        }
    }
}

/// What the queue must show: the rows of one act about one source that are in the same state are one entry.
fn lines(reference: &Reference, viewer: Who, now: u64, lane: &Lane) -> BTreeSet<Line> {
    let mut lines: BTreeMap<_, Line> = BTreeMap::new();
    for entry in &reference.entries {
        let (act, source, own) = (entry.act, entry.what.source(), entry.who == viewer);
        let running = own && lane.running.contains(&(ActId(act), source.id()));
        let in_grace = entry.grace_is_left(now);
        let held = entry.held && !lane.open.contains(&ActId(act));
        // What was sent and what was not are told apart, whatever else is said of them.
        let (state, sent) = match entry.status {
            Status::Confirmed { told: false, .. } | Status::Aside { .. } => continue,
            Status::Confirmed { told: true, .. } => (ActState::NotDeleted, true),
            Status::Refused { .. } => (ActState::Refused, true),
            Status::Open { sent } if running => (ActState::Running, sent),
            Status::Open { sent } if held => (ActState::Held, sent),
            Status::Open { sent: true } => (ActState::Unconfirmed, true),
            Status::Open { sent: false } if own && lane.signed_in && in_grace => (ActState::Grace, false),
            Status::Open { sent: false } => (ActState::Waiting, false),
        };
        let state = name(&state);
        let next_try = entry.next_try(now);
        let line = Line { act, source, state, objects: 1, who: entry.who, own, attempts: entry.attempts, next_try };
        lines
            .entry((act, source, state, sent, entry.held, in_grace))
            .and_modify(|known| {
                known.objects += 1;
                known.attempts = known.attempts.max(entry.attempts);
                known.next_try = known.next_try.into_iter().chain(next_try).min();
            })
            .or_insert(line);
    }
    lines.into_values().collect()
}

fn name(state: &ActState) -> &'static str {
    match state {
        ActState::Waiting => "waiting",
        ActState::Grace => "grace",
        ActState::Opening => "opening",
        ActState::Running => "running",
        ActState::Unconfirmed => "unconfirmed",
        ActState::Held => "held",
        ActState::Refused => "refused",
        ActState::NotDeleted => "not deleted",
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap()
}
