//! A simulated server. It lists what it deleted for as long as it was told to, and remembers who changed what.

use std::collections::{BTreeMap, BTreeSet};

use super::world::{ItemList, ItemRecord, Itm, SourceList, SourceRecord, Src, What, Who};

/// Listed for ever after its deletion.
pub(super) const FOR_EVER: u8 = u8::MAX;

#[derive(Debug, Clone, Default)]
pub(super) struct Server {
    sources: BTreeMap<Src, Kept<SourceRecord>>,
    items: BTreeMap<Itm, Kept<ItemRecord>>,
    ledger: Vec<Change>,
    /// The rows whose requests it has performed.
    pub(super) performed: BTreeSet<i64>,
    /// The replies that it has stored, as what and by whom.
    pub(super) answered: Vec<(i64, Who, What)>,
}

#[derive(Debug, Clone)]
struct Kept<R> {
    record: R,
    /// Deleted, and still to be listed so many times.
    gone: Option<u8>,
}

/// A change of its state.
#[derive(Debug, Clone, Copy)]
struct Change {
    object: Object,
    by: By,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    Star(Src),
    Seen(Itm, Who),
    Source(Src),
    Item(Itm),
}

/// Who sent a request: a row of this client, or anybody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Row(i64, Who),
    Colleague(Who),
}

impl By {
    fn who(self) -> Who {
        match self {
            Self::Row(_, who) | Self::Colleague(who) => who,
        }
    }
}

/// What a request was answered with, if the answer comes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    NotFound,
    /// There is a reply with this id.
    Conflict,
}

impl Server {
    pub(super) fn add_source(&mut self, starred: bool) -> Src {
        let source = Src(u16::try_from(self.sources.len()).unwrap());
        self.sources.insert(source, Kept { record: SourceRecord { starred, writes: 0 }, gone: None });
        source
    }

    /// A new item, if the source is there.
    pub(super) fn add_item(&mut self, source: Src) -> Option<Itm> {
        let kept = self.sources.get_mut(&source).filter(|kept| kept.gone.is_none())?;
        kept.record.writes += 1;
        let item = Itm(u16::try_from(self.items.len()).unwrap());
        self.items.insert(item, Kept { record: ItemRecord { source, seen_by: BTreeSet::new() }, gone: None });
        Some(item)
    }

    /// Performs a request. What it deletes stays listed `linger` times more.
    pub(super) fn perform(&mut self, what: What, by: By, linger: u8) -> Verdict {
        if !self.is_there(what) {
            return Verdict::NotFound;
        }
        if what.reply().is_some_and(|reply| self.has(reply)) {
            return Verdict::Conflict;
        }
        match what {
            What::Star(source) | What::Unstar(source) => {
                let starred = what.star().unwrap();
                let record = &mut self.sources.get_mut(&source).unwrap().record;
                if record.starred != starred {
                    record.starred = starred;
                    self.ledger.push(Change { object: Object::Star(source), by });
                }
            }
            What::Seen(_, item) => {
                if self.items.get_mut(&item).unwrap().record.seen_by.insert(by.who()) {
                    self.ledger.push(Change { object: Object::Seen(item, by.who()), by });
                }
            }
            What::DeleteSource(source) => {
                self.sources.get_mut(&source).unwrap().gone = Some(linger);
                self.ledger.push(Change { object: Object::Source(source), by });
                // Its items may be listed for longer than it is, or not.
                let of_items = if linger == FOR_EVER { FOR_EVER } else { (linger * 3) % 4 };
                for kept in self.items.values_mut().filter(|kept| kept.record.source == source) {
                    kept.gone.get_or_insert(of_items);
                }
            }
            What::DeleteItem(_, item) => {
                self.items.get_mut(&item).unwrap().gone = Some(linger);
                self.ledger.push(Change { object: Object::Item(item), by });
            }
            What::Reply(source, item) => {
                self.sources.get_mut(&source).unwrap().record.writes += 1;
                // Whoever writes a reply has seen it.
                let record = ItemRecord { source, seen_by: BTreeSet::from([by.who()]) };
                self.items.insert(item, Kept { record, gone: None });
                self.ledger.push(Change { object: Object::Item(item), by });
            }
        }
        if let By::Row(row, who) = by {
            self.performed.insert(row);
            if what.reply().is_some() {
                self.answered.push((row, who, what));
            }
        }
        Verdict::Done
    }

    /// Whether the object of a request is there, listed or not.
    pub(super) fn is_there(&self, what: What) -> bool {
        match what.item() {
            Some(item) => self.has(item),
            None => self.sources.get(&what.source()).is_some_and(|kept| kept.gone.is_none()),
        }
    }

    /// Whether an item is there, listed or not.
    pub(super) fn has(&self, item: Itm) -> bool {
        self.items.get(&item).is_some_and(|kept| kept.gone.is_none())
    }

    /// The replies that were written here and are there.
    pub(super) fn answers(&self) -> Vec<(Src, Itm)> {
        let there = |(item, kept): &(&Itm, &Kept<ItemRecord>)| item.is_answer() && kept.gone.is_none();
        self.items.iter().filter(there).map(|(item, kept)| (kept.record.source, *item)).collect()
    }

    /// Whether a journalist's mark is on an item.
    pub(super) fn has_seen(&self, item: Itm, who: Who) -> bool {
        self.items.get(&item).is_some_and(|kept| kept.record.seen_by.contains(&who))
    }

    pub(super) fn list_sources(&mut self) -> SourceList {
        list(&mut self.sources)
    }

    pub(super) fn list_items(&mut self) -> ItemList {
        list(&mut self.items)
    }

    pub(super) fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Nothing was done twice: two changes of one object that one row made had somebody else's between them.
    pub(super) fn assert_no_doubles(&self) {
        for (at, change) in self.ledger.iter().enumerate() {
            let By::Row(row, who) = change.by else { continue };
            let own = |by: By| matches!(by, By::Row(_, other) if other == who);
            let others_since =
                |from: usize| self.ledger[from..at].iter().any(|other| other.object == change.object && !own(other.by));
            let earlier = self.ledger[..at]
                .iter()
                .rposition(|earlier| earlier.object == change.object && earlier.by == change.by);
            if let Some(earlier) = earlier {
                assert!(others_since(earlier), "row {row} has changed {:?} twice", change.object);
            }
        }
    }
}

/// What is listed. A list that was read is one less to come for what is deleted.
fn list<K: Copy + Ord, R: Clone>(kept: &mut BTreeMap<K, Kept<R>>) -> BTreeMap<K, R> {
    let mut listed = BTreeMap::new();
    for (key, kept) in kept {
        match &mut kept.gone {
            None | Some(FOR_EVER) => {}
            Some(0) => continue,
            Some(left) => *left -= 1,
        }
        listed.insert(*key, kept.record.clone());
    }
    listed
}
