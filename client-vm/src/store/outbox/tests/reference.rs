//! What the outbox must do, said a second time and without a database: a list of acts, and what was listed last.

mod grace;
mod replies;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control::Deal;
use protocol::call::{MAX_DELETED, MAX_SEEN};
use protocol::value::Timestamp;

use super::super::{Settled, Waits};
use super::world::{Entry as Listed, ItemRecord, Itm, SourceRecord, Src, What, Who, Wish};

/// How long after its confirmation a deletion may be listed, in microseconds.
pub(super) const OVERDUE_US: u64 = 3_600_000_000;

/// One row, as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) row: i64,
    pub(super) act: u64,
    pub(super) who: Who,
    pub(super) what: What,
    pub(super) status: Status,
    pub(super) attempts: u32,
    /// From when on, and for how long, in microseconds.
    wait: Option<(u64, u64)>,
    pub(super) held: bool,
    /// The last snapshot that had been asked for at its last attempt, or when it was confirmed; of a reply, when its attempt
    /// ended; or the one that set it aside.
    snapshot: u64,
    /// In how many lists that were not whole a reply is missing since then. Of another row that was refused: whether the last
    /// list is without its object.
    missing: u32,
    /// A reply that is being sent.
    pub(super) in_flight: bool,
}

/// `sent`: an attempt may have had an effect. What is set aside is not done as far as anybody knows, and its object is not
/// listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Open { sent: bool },
    Confirmed { at: u64, listed: u32, told: bool },
    Aside { sent: bool },
    Refused { sent: bool },
}

/// Why an act's row is no more, other than that the server has confirmed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// A snapshot shows its effect.
    Shown,
    /// Its object is gone, or its deletion confirmed.
    Moot,
    /// The user took it back, forgot it, or did the opposite.
    GivenUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    NoSource,
    NoItem,
    BeingDeleted,
    Gone,
    Objects,
}

/// An act that was taken: its number and rows, and what was so already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) act: Option<u64>,
    pub(super) rows: Vec<i64>,
    pub(super) already: u64,
}

/// What the mirror holds of an entry: the digest's record, and what it shows. A deletion takes the second.
#[derive(Debug, Clone)]
struct Held<R> {
    digest: Option<Listed<R>>,
    record: Option<R>,
    /// It could not be read when it was last named.
    unreadable: bool,
}

/// Digests when a snapshot was asked for.
pub(super) type Digests<K, R> = BTreeMap<K, Option<Listed<R>>>;

#[derive(Debug, Clone, Default)]
pub(super) struct Reference {
    sources: BTreeMap<Src, Held<SourceRecord>>,
    items: BTreeMap<Itm, Held<ItemRecord>>,
    pub(super) entries: Vec<Entry>,
    pub(super) ended: BTreeMap<i64, End>,
    last_row: i64,
    /// What journalists have begun to write.
    pub(super) drafts: BTreeMap<(Who, Src), String>,
    /// The replies whose text is held because they are listed, or were.
    pub(super) kept: BTreeSet<Itm>,
    /// The sources that are listed no more and are there only for the replies that were not sent to them, and whether they
    /// were starred.
    pub(super) answered_in_vain: BTreeMap<Src, bool>,
}

/// What a viewer sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) sources: BTreeMap<Src, SourceView>,
    pub(super) items: BTreeMap<Itm, ItemView>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceView {
    pub(super) starred: bool,
    pub(super) being_deleted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ItemView {
    pub(super) source: Src,
    pub(super) unread: bool,
    pub(super) being_deleted: bool,
}

/// What an applied snapshot did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Effects {
    pub(super) sources: BTreeSet<Src>,
    /// Of which act and source, what, and of how many rows.
    pub(super) told: BTreeMap<(u64, Src, &'static str), u64>,
}

impl Entry {
    fn is_open(&self) -> bool {
        matches!(self.status, Status::Open { .. })
    }

    fn is_confirmed(&self) -> bool {
        matches!(self.status, Status::Confirmed { .. })
    }

    /// How long until it is due; `None` when only the user can say.
    fn due(&self, now: u64, open: &BTreeSet<u64>) -> Option<u64> {
        if self.held && !open.contains(&self.act) {
            return None;
        }
        if self.what.reply().is_some() && self.status == (Status::Open { sent: true }) {
            // A snapshot says whether it was sent.
            return None;
        }
        Some(match self.wait {
            Some((from, wait)) if now >= from => (from + wait).saturating_sub(now),
            Some((_, wait)) if self.in_grace() => wait,
            Some(_) | None => 0,
        })
    }

    /// When it is tried again, as far as that is known and still to come.
    pub(super) fn next_try(&self, now: u64) -> Option<u64> {
        self.wait.filter(|(from, _)| *from <= now).map(|(from, wait)| from + wait).filter(|due| *due > now)
    }
}

impl Reference {
    pub(super) fn entry(&self, row: i64) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.row == row)
    }

    fn entry_mut(&mut self, row: i64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.row == row)
    }

    fn end(&mut self, end: End, mut which: impl FnMut(&Entry) -> bool) -> BTreeSet<Src> {
        let mut sources = BTreeSet::new();
        let ended = &mut self.ended;
        self.entries.retain(|entry| {
            if !which(entry) {
                return true;
            }
            sources.insert(entry.what.source());
            if !entry.is_confirmed() {
                ended.insert(entry.row, end);
            }
            false
        });
        sources
    }

    /// What `viewer` must see: the server's last lists, what the server has confirmed to anybody here, and what they have
    /// done besides.
    pub(super) fn view(&self, viewer: Who) -> View {
        let confirmed = |what: What| self.entries.iter().any(|entry| entry.is_confirmed() && entry.what == what);
        let own =
            |what: What| self.entries.iter().any(|entry| entry.is_open() && entry.who == viewer && entry.what == what);
        let mut view = View::default();
        for (source, held) in &self.sources {
            let Some(record) = held.record else { continue };
            if confirmed(What::DeleteSource(*source)) {
                continue;
            }
            let stars = |entry: &&Entry| entry.what.source() == *source && entry.what.star().is_some();
            let last_own = self.entries.iter().rfind(|entry| stars(entry) && entry.is_open() && entry.who == viewer);
            let decides = last_own.or_else(|| self.entries.iter().find(|entry| stars(entry) && entry.is_confirmed()));
            let starred = decides.and_then(|entry| entry.what.star()).unwrap_or(record.starred);
            let being_deleted = own(What::DeleteSource(*source));
            view.sources.insert(*source, SourceView { starred, being_deleted });
        }
        for (source, starred) in &self.answered_in_vain {
            let being_deleted = own(What::DeleteSource(*source));
            view.sources.insert(*source, SourceView { starred: *starred, being_deleted });
        }
        for (item, held) in &self.items {
            let Some(record) = &held.record else { continue };
            let Some(source) = view.sources.get(&record.source) else { continue };
            let (seen, deleted) = (What::Seen(record.source, *item), What::DeleteItem(record.source, *item));
            if confirmed(deleted) {
                continue;
            }
            let has_seen =
                |entry: &Entry| entry.what == seen && entry.who == viewer && (entry.is_open() || entry.is_confirmed());
            let listed = self.sources.contains_key(&record.source);
            let unread = listed && !record.seen_by.contains(&viewer) && !self.entries.iter().any(has_seen);
            let being_deleted = source.being_deleted || own(deleted);
            view.items.insert(*item, ItemView { source: record.source, unread, being_deleted });
        }
        view
    }

    /// The items of a source that are held.
    pub(super) fn items_of(&self, source: Src) -> impl Iterator<Item = Itm> {
        let is_of = move |held: &Held<ItemRecord>| held.record.as_ref().is_some_and(|record| record.source == source);
        self.items.iter().filter(move |(_, held)| is_of(held)).map(|(item, _)| *item)
    }

    /// Of which objects anything is held but that they are listed.
    pub(super) fn held(&self) -> (BTreeSet<Src>, BTreeSet<Itm>) {
        (
            self.sources.iter().filter(|(_, held)| held.record.is_some()).map(|(source, _)| *source).collect(),
            self.items.iter().filter(|(_, held)| held.record.is_some()).map(|(item, _)| *item).collect(),
        )
    }

    /// Takes an act, or says why not.
    pub(super) fn take(&mut self, who: Who, wish: &Wish) -> Result<Taken, Refusal> {
        let view = self.view(who);
        let (mut whats, mut already) = (Vec::new(), 0);
        let mut sort = |what: What, so: bool| if so { already += 1 } else { whats.push(what) };
        match wish {
            Wish::Reply(source, reply) => {
                let shown = view.sources.get(source).ok_or(Refusal::NoSource)?;
                if shown.being_deleted {
                    return Err(Refusal::BeingDeleted);
                }
                if self.answered_in_vain.contains_key(source) {
                    return Err(Refusal::Gone);
                }
                sort(What::Reply(*source, *reply), self.knows(*reply));
            }
            Wish::Star(sources) | Wish::Unstar(sources) => {
                let star = matches!(wish, Wish::Star(_));
                for source in distinct(sources)? {
                    let shown = view.sources.get(&source).ok_or(Refusal::NoSource)?;
                    if shown.being_deleted {
                        return Err(Refusal::BeingDeleted);
                    }
                    if self.answered_in_vain.contains_key(&source) {
                        return Err(Refusal::Gone);
                    }
                    sort(if star { What::Star(source) } else { What::Unstar(source) }, shown.starred == star);
                }
            }
            Wish::DeleteSources(sources) => {
                for source in distinct(sources)? {
                    let shown = view.sources.get(&source).ok_or(Refusal::NoSource)?;
                    sort(What::DeleteSource(source), shown.being_deleted);
                }
            }
            Wish::Seen(source, items) | Wish::DeleteItems(source, items) => {
                let delete = matches!(wish, Wish::DeleteItems(..));
                let items = distinct(items)?;
                let shown = view.sources.get(source).ok_or(Refusal::NoSource)?;
                for item in items {
                    if shown.being_deleted {
                        if !delete {
                            return Err(Refusal::BeingDeleted);
                        }
                        sort(What::DeleteItem(*source, item), true);
                        continue;
                    }
                    let shown = view.items.get(&item).filter(|shown| shown.source == *source);
                    let shown = shown.ok_or(Refusal::NoItem)?;
                    let what = if delete { What::DeleteItem(*source, item) } else { What::Seen(*source, item) };
                    sort(what, shown.being_deleted || !delete && !shown.unread);
                }
            }
        }
        let act = whats.first().map(|_| u64::try_from(self.last_row + 1).unwrap());
        let rows = whats.iter().map(|what| self.add(act.unwrap(), who, *what)).collect();
        Ok(Taken { act, rows, already })
    }

    fn add(&mut self, act: u64, who: Who, what: What) -> i64 {
        // The new act takes the place of what was not sent or was refused.
        self.end(End::GivenUp, |entry| {
            entry.who == who
                && match entry.status {
                    Status::Open { sent } => !sent && what.star().is_some() && is_star_of(entry, what.source()),
                    Status::Refused { .. } if what.star().is_some() => is_star_of(entry, what.source()),
                    Status::Refused { .. } => entry.what == what,
                    Status::Confirmed { .. } | Status::Aside { .. } => false,
                }
        });
        self.last_row += 1;
        let row = self.last_row;
        let status = Status::Open { sent: false };
        let (attempts, wait, held, snapshot, missing, in_flight) = (0, None, false, 0, 0, false);
        self.entries.push(Entry { row, act, who, what, status, attempts, wait, held, snapshot, missing, in_flight });
        if let Some(reply) = what.reply() {
            self.drafts.retain(|key, draft| *key != (who, what.source()) || draft != reply.text().as_str());
        }
        row
    }

    /// The batches that can be sent, in order, and how long until there is more.
    pub(super) fn ready(
        &self,
        who: Who,
        now: u64,
        busy: &BTreeSet<Src>,
        open: &BTreeSet<u64>,
    ) -> (Vec<Vec<i64>>, Option<u64>) {
        let (mut batches, mut next) = (Vec::new(), None::<u64>);
        for source in self.sources_of_entries().difference(busy) {
            let mut own: Vec<_> = self
                .entries
                .iter()
                .filter(|entry| entry.is_open() && entry.who == who && entry.what.source() == *source)
                .collect();
            own.sort_by_key(|entry| (!matches!(entry.what, What::DeleteSource(_)), entry.row));
            let Some(head) = own.first() else { continue };
            match head.due(now, open) {
                None => {}
                Some(0) => batches.push(
                    own.iter()
                        .enumerate()
                        .take_while(|(at, entry)| *at == 0 || go_together(head, entry))
                        .filter(|(_, entry)| entry.due(now, open) == Some(0))
                        .map(|(_, entry)| entry.row)
                        .take(if matches!(head.what, What::Seen(..)) { MAX_SEEN } else { MAX_DELETED })
                        .collect(),
                ),
                Some(wait) => next = Some(next.map_or(wait, |next| next.min(wait))),
            }
        }
        batches.sort();
        (batches, next)
    }

    fn sources_of_entries(&self) -> BTreeSet<Src> {
        self.entries.iter().map(|entry| entry.what.source()).collect()
    }

    /// Begins an attempt; gives the rows that are still there, and whether each may have had an effect before.
    pub(super) fn begin(&mut self, rows: &[i64], snapshot: u64) -> Vec<(i64, bool)> {
        let mut begun = Vec::new();
        for row in rows {
            if let Some(entry) = self.entry_mut(*row)
                && let Status::Open { sent } = entry.status
            {
                begun.push((*row, sent));
                entry.status = Status::Open { sent: true };
                entry.in_flight = entry.what.reply().is_some();
                entry.attempts += 1;
                entry.missing = 0;
                entry.wait = None;
                entry.snapshot = entry.snapshot.max(snapshot);
            }
        }
        begun
    }

    pub(super) fn confirm(&mut self, row: i64, now: u64, snapshot: u64) -> Settled {
        let may_be_confirmed = |entry: &&mut Entry| !entry.is_confirmed();
        let Some(entry) = self.entry_mut(row).filter(may_be_confirmed) else { return Settled::Gone };
        entry.status = Status::Confirmed { at: now, listed: 0, told: false };
        entry.snapshot = snapshot;
        entry.held = false;
        entry.in_flight = false;
        let what = entry.what;
        self.end(End::Moot, |other| {
            other.row != row
                && match what {
                    What::Star(source) | What::Unstar(source) => other.is_confirmed() && is_star_of(other, source),
                    What::DeleteSource(source) => other.what.source() == source,
                    What::DeleteItem(_, item) => other.what.item() == Some(item),
                    What::Seen(..) | What::Reply(..) => false,
                }
        });
        self.reduce(what);
        Settled::Confirmed
    }

    pub(super) fn refuse(&mut self, row: i64, sent_before: bool) -> Settled {
        let Some(entry) = self.attempted(row) else { return Settled::Gone };
        entry.in_flight = false;
        entry.status = Status::Refused { sent: sent_before };
        entry.held = false;
        Settled::Refused
    }

    pub(super) fn no_effect(&mut self, row: i64, sent_before: bool) -> Settled {
        let Some(entry) = self.attempted(row) else { return Settled::Gone };
        entry.in_flight = false;
        entry.status = Status::Open { sent: sent_before };
        entry.attempts = entry.attempts.saturating_sub(1);
        Settled::Waiting { next_try: None }
    }

    pub(super) fn unknown(
        &mut self,
        row: i64,
        now: u64,
        retry_after: Option<Duration>,
        waits: &Waits,
        snapshot: u64,
    ) -> Settled {
        let Some(entry) = self.attempted(row) else { return Settled::Gone };
        if entry.what.reply().is_some() {
            entry.in_flight = false;
            entry.snapshot = entry.snapshot.max(snapshot);
        }
        let asked = retry_after.unwrap_or_default().min(Duration::from_secs(3_600));
        let wait = waits.after(entry.attempts, 0.0).max(asked);
        let wait = u64::try_from(wait.as_micros()).unwrap();
        entry.wait = Some((now, wait));
        Settled::Waiting { next_try: Some(Timestamp::try_new(now + wait).unwrap()) }
    }

    fn attempted(&mut self, row: i64) -> Option<&mut Entry> {
        self.entry_mut(row).filter(|entry| entry.status == Status::Open { sent: true })
    }

    /// dom0 bars the way of what is still to be sent; gives the rows.
    pub(super) fn refuse_unsent(&mut self, which: impl Fn(&Entry) -> bool) -> Vec<i64> {
        let mut refused = Vec::new();
        for entry in self.entries.iter_mut().filter(|entry| which(entry)) {
            if let Status::Open { sent } = entry.status {
                entry.status = Status::Refused { sent };
                entry.held = false;
                refused.push(entry.row);
            }
        }
        refused
    }

    pub(super) fn hold(&mut self, act: u64, held: bool) {
        for entry in self.entries.iter_mut().filter(|entry| entry.act == act && entry.what.is_deletion()) {
            if entry.is_open() {
                entry.held = held;
            }
        }
    }

    pub(super) fn has_open(&self, act: u64) -> bool {
        self.entries.iter().any(|entry| entry.act == act && entry.is_open())
    }

    /// What the user does about an act; gives how many rows it changes, or `None` when it cannot be done.
    pub(super) fn deal(&mut self, who: Who, deal: Deal, act: u64) -> Option<u64> {
        let told = |status| matches!(status, Status::Confirmed { told: true, .. });
        let fits = |entry: &Entry| {
            entry.act == act
                && entry.who == who
                && match deal {
                    Deal::Retry => {
                        entry.is_open() || matches!(entry.status, Status::Refused { .. }) || told(entry.status)
                    }
                    Deal::Cancel => {
                        matches!(entry.status, Status::Open { sent: false } | Status::Aside { sent: false })
                    }
                    Deal::Dismiss => matches!(entry.status, Status::Refused { .. }),
                    Deal::Restore => told(entry.status),
                }
        };
        let fitting = self.entries.iter().filter(|entry| fits(entry)).count();
        let was_told = self.entries.iter().any(|entry| fits(entry) && told(entry.status));
        match deal {
            Deal::Retry => {
                for entry in self.entries.iter_mut().filter(|entry| fits(entry)) {
                    let sent = match entry.status {
                        // Some list could not say whether it is there: the user may.
                        Status::Open { .. } if entry.missing > 0 && !entry.in_flight => false,
                        Status::Open { sent } | Status::Refused { sent } | Status::Aside { sent } => sent,
                        Status::Confirmed { .. } => true,
                    };
                    entry.missing = 0;
                    if entry.status != (Status::Open { sent: true }) {
                        entry.attempts = 0;
                    }
                    entry.status = Status::Open { sent };
                    entry.held = false;
                    entry.wait = None;
                }
            }
            Deal::Cancel | Deal::Dismiss | Deal::Restore => {
                if deal == Deal::Cancel {
                    let taken_back: Vec<_> = self.entries.iter().filter(|entry| fits(entry)).cloned().collect();
                    self.make_drafts(&taken_back);
                }
                self.end(End::GivenUp, fits);
            }
        }
        if fitting > 0 {
            self.forget_answered_in_vain();
        }
        if was_told {
            // What is listed is to show again, with the next snapshot.
            self.sources.values_mut().filter(|held| held.is_reduced()).for_each(|held| held.digest = None);
            self.items.values_mut().filter(|held| held.is_reduced()).for_each(|held| held.digest = None);
        }
        u64::try_from(fitting).ok().filter(|fitting| *fitting > 0)
    }

    fn reduce(&mut self, what: What) {
        match what {
            What::DeleteSource(source) => {
                if let Some(held) = self.sources.get_mut(&source) {
                    held.reduce_if(|_| true);
                }
                for held in self.items.values_mut() {
                    held.reduce_if(|record| record.source == source);
                }
                self.answered_in_vain.remove(&source);
                self.drafts.retain(|(_, of), _| *of != source);
            }
            What::DeleteItem(_, item) => {
                if let Some(held) = self.items.get_mut(&item) {
                    held.reduce_if(|_| true);
                }
            }
            What::Star(_) | What::Unstar(_) | What::Seen(..) | What::Reply(..) => {}
        }
    }

    pub(super) fn digests(&self) -> (Digests<Src, SourceRecord>, Digests<Itm, ItemRecord>) {
        (
            self.sources.iter().map(|(source, held)| (*source, held.digest.clone())).collect(),
            self.items.iter().map(|(item, held)| (*item, held.digest.clone())).collect(),
        )
    }
}

fn is_star_of(entry: &Entry, source: Src) -> bool {
    entry.what.star().is_some() && entry.what.source() == source
}

/// Whether a row goes in the same call as the first of its source.
fn go_together(head: &Entry, entry: &Entry) -> bool {
    match (head.what, entry.what) {
        (What::Seen(..), What::Seen(..)) => true,
        (What::DeleteItem(..), What::DeleteItem(..)) => head.act == entry.act,
        _ => false,
    }
}

fn distinct<T: Copy + Ord>(objects: &[T]) -> Result<BTreeSet<T>, Refusal> {
    let distinct: BTreeSet<_> = objects.iter().copied().collect();
    if distinct.is_empty() { Err(Refusal::Objects) } else { Ok(distinct) }
}
