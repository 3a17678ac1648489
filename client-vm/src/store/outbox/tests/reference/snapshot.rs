//! What a snapshot must do.

use std::collections::{BTreeMap, BTreeSet};

use super::super::world::{Entry as Listed, ItemRecord, Itm, Lists, SourceRecord, Src, What};
use super::{Digests, Effects, End, Entry, Held, OVERDUE_US, Reference, Status};

impl<R> Held<R> {
    /// Nothing is held but that it is listed.
    pub(super) fn is_reduced(&self) -> bool {
        self.record.is_none() && !self.unreadable
    }

    pub(super) fn reduce_if(&mut self, condition: impl FnOnce(&mut R) -> bool) {
        if self.record.take_if(condition).is_some() {
            self.unreadable = false;
        }
    }
}

impl Effects {
    fn tell(&mut self, entry: &Entry, word: &'static str) {
        self.sources.insert(entry.what.source());
        *self.told.entry((entry.act, entry.what.source(), word)).or_default() += 1;
    }
}

impl Reference {
    /// Applies the snapshot of this number.
    pub(in super::super) fn apply(
        &mut self,
        number: u64,
        now: u64,
        known: &(Digests<Src, SourceRecord>, Digests<Itm, ItemRecord>),
        lists: &Lists,
    ) -> Effects {
        if lists.whole_sources {
            self.take_off_the_list(lists);
        }
        mirror(&mut self.sources, &known.0, &lists.sources, |_| lists.whole_sources);
        mirror(&mut self.items, &known.1, &lists.items, |item| lists.whole_for(*item));
        let shown = |source: &Src| self.sources.get(source).is_some_and(|held| held.record.is_some());
        self.answered_in_vain.retain(|source, _| !shown(source));
        let mut effects = Effects::default();
        self.settle_replies(number, lists.whole_replies, &mut effects);
        self.bring_back_or_set_aside(number, now, lists, &mut effects);
        self.end_what_is_shown(number, lists, &mut effects);
        self.forget_answered_in_vain();
        let deleted: Vec<_> =
            self.entries.iter().filter(|entry| entry.is_confirmed()).map(|entry| entry.what).collect();
        deleted.into_iter().for_each(|what| self.reduce(what));
        for entry in self.entries.iter_mut().filter(|entry| entry.what.is_deletion()) {
            let named = names(lists, entry.what);
            let before = entry.snapshot < number;
            let Status::Confirmed { at, listed, told } = &mut entry.status else { continue };
            if before && named {
                *listed += 1;
            }
            if !*told && *listed >= 3 && *at + OVERDUE_US <= now {
                *told = true;
                *effects.told.entry((entry.act, entry.what.source(), "not deleted")).or_default() += 1;
            }
        }
        effects
    }

    /// Sources that were shown and are listed no more are shown on where somebody has answered them and that was not sent.
    fn take_off_the_list(&mut self, lists: &Lists) {
        let unsent =
            |source: &Src| self.replies().any(|(entry, _)| entry.what.source() == *source && !entry.is_confirmed());
        let lost: Vec<_> = self
            .sources
            .iter()
            .filter(|(source, _)| !lists.sources.contains_key(source) && unsent(source))
            .filter_map(|(source, held)| Some((*source, held.record?.starred)))
            .collect();
        for (source, starred) in lost {
            self.answered_in_vain.entry(source).or_insert(starred);
            self.drafts.retain(|(_, of), _| *of != source);
        }
    }

    /// What has no reply any more is not shown for one, unless somebody has begun to write another since.
    pub(super) fn forget_answered_in_vain(&mut self) {
        let mut answered: BTreeSet<_> = self.replies().map(|(entry, _)| entry.what.source()).collect();
        answered.extend(self.drafts.keys().map(|(_, source)| *source));
        let before = self.answered_in_vain.len();
        self.answered_in_vain.retain(|source, _| answered.contains(source));
        if self.answered_in_vain.len() < before {
            self.forget_drafts();
        }
    }

    pub(super) fn forget_drafts(&mut self) {
        let known: BTreeSet<_> = self.sources.keys().chain(self.answered_in_vain.keys()).copied().collect();
        self.drafts.retain(|(_, source), _| known.contains(source));
    }

    /// Whether what an act is about is listed, or kept.
    fn has_object(&self, what: What) -> bool {
        let source = what.source();
        (self.sources.contains_key(&source) || self.answered_in_vain.contains_key(&source))
            && what.item().is_none_or(|item| self.items.contains_key(&item))
    }

    fn is_listed(&self, what: What) -> bool {
        self.sources.contains_key(&what.source()) && self.has_object(what)
    }

    /// One list alone ends nothing of which it does not list the object; the second in a row does.
    fn bring_back_or_set_aside(&mut self, number: u64, now: u64, lists: &Lists, effects: &mut Effects) {
        let there: BTreeSet<_> =
            self.entries.iter().map(|entry| entry.what).filter(|what| self.has_object(*what)).collect();
        // A list that is not whole may have what it does not name.
        let missing = |what: &What| {
            let source = what.source();
            let known = self.sources.contains_key(&source) || self.answered_in_vain.contains_key(&source);
            !known && lists.whole_sources
                || what.item().is_some_and(|item| !self.items.contains_key(&item) && lists.whole_for(item))
        };
        let missing: BTreeSet<_> = self.entries.iter().map(|entry| entry.what).filter(missing).collect();
        let mut gone = BTreeSet::new();
        for entry in self.entries.iter_mut().filter(|entry| entry.what.reply().is_none()) {
            match (entry.status, there.contains(&entry.what)) {
                (Status::Aside { sent }, true) => {
                    entry.status = Status::Open { sent };
                    effects.tell(entry, "listed again");
                }
                (Status::Aside { .. }, false) if entry.snapshot < number && missing.contains(&entry.what) => {
                    gone.insert(entry.row);
                }
                (Status::Refused { .. }, true) => entry.missing = 0,
                (Status::Refused { .. }, false) if missing.contains(&entry.what) => {
                    if entry.missing > 0 {
                        gone.insert(entry.row);
                        effects.tell(entry, "gone");
                    }
                    entry.missing = 1;
                }
                (Status::Open { sent }, false) if !entry.grace_is_left(now) => {
                    entry.status = Status::Aside { sent };
                    entry.snapshot = entry.snapshot.max(number);
                    effects.tell(entry, if sent && entry.what.is_deletion() { "settled" } else { "gone" });
                }
                _ => {}
            }
        }
        effects.sources.extend(self.end(End::Moot, |entry| gone.contains(&entry.row)));
    }

    /// What the snapshot has named, and could read, says what is done.
    fn end_what_is_shown(&mut self, number: u64, lists: &Lists, effects: &mut Effects) {
        let (sources, items) = (self.sources.clone(), self.items.clone());
        let read = |what: What| {
            let readable = match what.item() {
                Some(item) => items.get(&item).is_some_and(|held| !held.unreadable),
                None => sources.get(&what.source()).is_some_and(|held| !held.unreadable),
            };
            names(lists, what) && readable
        };
        let mut shown = BTreeMap::new();
        for entry in &self.entries {
            let (what, since) = (entry.what, entry.snapshot < number);
            let has_effect = match what {
                What::Star(source) | What::Unstar(source) => {
                    let starred = sources.get(&source).and_then(|held| held.record).map(|record| record.starred);
                    since && entry.status == Status::Open { sent: true } && starred == what.star()
                }
                What::Seen(_, item) => items
                    .get(&item)
                    .and_then(|held| held.record.as_ref())
                    .is_some_and(|record| record.seen_by.contains(&entry.who)),
                What::DeleteSource(_) | What::DeleteItem(..) | What::Reply(..) => false,
            };
            let ends = match (entry.status, what) {
                (_, What::Reply(..)) => false,
                (Status::Confirmed { .. }, What::DeleteSource(source)) => since && !self.has_object(What::Star(source)),
                (Status::Confirmed { .. }, What::DeleteItem(_, item)) => since && !items.contains_key(&item),
                // What is only kept is named by no list.
                (Status::Confirmed { .. }, _) => since && (!self.is_listed(what) || read(what)),
                (Status::Open { .. }, _) => has_effect && read(what),
                (Status::Refused { .. } | Status::Aside { .. }, _) => false,
            };
            if ends {
                shown.insert(entry.row, entry.is_confirmed());
                effects.sources.insert(what.source());
                if !entry.is_confirmed() {
                    effects.tell(entry, "settled");
                }
            }
        }
        self.end(End::Shown, |entry| shown.contains_key(&entry.row));
    }

    /// What the snapshot of this number, whose lists were just written, says of replies.
    fn settle_replies(&mut self, number: u64, whole: bool, effects: &mut Effects) {
        let (sources, items) = (self.sources.clone(), self.items.clone());
        let listed = |reply: &Itm| items.get(reply).is_some_and(|held| held.record.is_some());
        self.kept.extend(self.entries.iter().filter_map(|entry| entry.what.reply()).filter(listed));
        for entry in &mut self.entries {
            let Some(reply) = entry.what.reply() else { continue };
            let asked = !entry.in_flight && entry.snapshot < number;
            let missing = !items.contains_key(&reply) && sources.contains_key(&entry.what.source());
            if asked && missing && entry.status == (Status::Open { sent: true }) {
                entry.missing += 1;
                if whole || entry.missing >= 3 {
                    entry.missing = 0;
                    entry.status = Status::Open { sent: false };
                }
            }
        }
        self.forget_drafts();
        let mut ends = BTreeMap::new();
        for entry in &mut self.entries {
            let Some(reply) = entry.what.reply() else { continue };
            let source = entry.what.source();
            let in_vain = self.answered_in_vain.contains_key(&source) && !sources.contains_key(&source);
            // It was sent, and cannot be read.
            if items.get(&reply).is_some_and(|held| held.unreadable && held.record.is_none()) && !entry.is_confirmed() {
                entry.status = Status::Confirmed { at: u64::MAX, listed: 0, told: false };
                entry.in_flight = false;
                entry.wait = None;
                effects.tell(entry, "settled");
            }
            if listed(&reply) {
                ends.insert(entry.row, End::Shown);
                if !entry.is_confirmed() {
                    effects.tell(entry, "settled");
                }
            } else if !sources.contains_key(&source) && !self.answered_in_vain.contains_key(&source) {
                ends.insert(entry.row, End::Moot);
                if !entry.is_confirmed() {
                    effects.tell(entry, "gone");
                }
            } else if in_vain && entry.is_confirmed() {
                ends.insert(entry.row, End::Moot);
            } else if let Status::Open { sent } = entry.status {
                if in_vain && !entry.in_flight {
                    entry.status = Status::Refused { sent };
                    entry.held = false;
                    effects.tell(entry, "refused");
                }
            } else if entry.is_confirmed() && entry.snapshot < number && whole && !items.contains_key(&reply) {
                entry.status = Status::Refused { sent: true };
                effects.tell(entry, "not listed");
            }
        }
        for (row, end) in ends {
            effects.sources.extend(self.end(end, |entry| entry.row == row));
        }
    }
}

/// Whether lists name what an act is about.
fn names(lists: &Lists, what: What) -> bool {
    match what.item() {
        Some(item) => lists.items.contains_key(&item),
        None => lists.sources.contains_key(&what.source()),
    }
}

/// Writes what differs from what was known when the list was asked for, and removes what is not listed in a whole list.
fn mirror<K: Copy + Ord, R: Clone + PartialEq>(
    held: &mut BTreeMap<K, Held<R>>,
    known: &Digests<K, R>,
    listed: &BTreeMap<K, Listed<R>>,
    whole: impl Fn(&K) -> bool,
) {
    held.retain(|key, _| listed.contains_key(key) || !whole(key));
    for (key, entry) in listed {
        if known.get(key).and_then(Option::as_ref) == Some(entry) {
            continue;
        }
        let record = match entry {
            Listed::Record(record) => Some(record.clone()),
            Listed::Unreadable => held.get(key).and_then(|held| held.record.clone()),
        };
        held.insert(*key, Held { digest: Some(entry.clone()), record, unreadable: *entry == Listed::Unreadable });
    }
}
