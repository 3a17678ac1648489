//! What a snapshot changes, as a pure comparison.
//!
//! **Invariant:** unreadable is not absent. An entry without a readable id could be any of those that are not listed, so a
//! list with such an entry removes nothing.

use std::collections::{HashMap, HashSet};

use protocol::codec::{self, EncodeError};
use protocol::record::Record;
use protocol::value::{JournalistId, ReplyId, SourceId, SubmissionId};
use protocol::{Journalist, Listed, Reply, Source, Submission};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of a list's entry as the proxy sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Digests an entry: a record or its unreadable mark.
    ///
    /// # Errors
    /// [`EncodeError`].
    pub fn of<T: Record>(entry: &Listed<T>) -> Result<Self, EncodeError> {
        Ok(Self::of_bytes(&codec::encode(entry)?))
    }

    fn of_bytes(encoded: &[u8]) -> Self {
        Self(Sha256::digest(encoded).into())
    }
}

/// What the mirror holds of one list.
pub type Known<I> = HashMap<I, Digest>;

/// What the mirror holds: of each list the ids, with the digest of the entry.
#[derive(Debug, Clone, Default)]
pub struct Mirror {
    /// Journalists.
    pub users: Known<JournalistId>,
    /// Sources.
    pub sources: Known<SourceId>,
    /// Submissions.
    pub submissions: Known<SubmissionId>,
    /// Replies.
    pub replies: Known<ReplyId>,
}

/// What the server lists. Of entries that the mirror holds as they are, only the id is kept.
#[derive(Debug, Clone)]
pub struct Snapshot<T: Record> {
    /// How many entries were listed, whatever they were.
    entries: usize,
    listed: HashSet<T::Id>,
    changed: Vec<Change<T>>,
    /// The length of the changed entries as encoded, in bytes.
    kept_bytes: usize,
    /// How many entries could not be read, `nameless` ones included.
    unreadable: u64,
    nameless: u64,
}

/// A list is larger than this client takes.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Too many entries, or too much in those that are new.
    #[error("a list is over the limit of {MAX_ENTRIES} entries and {MAX_KEPT_BYTES} bytes of changes")]
    TooLarge,
    /// An entry could not be encoded for its digest.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// The most entries of one list. The largest servers known have a few thousand sources.
const MAX_ENTRIES: usize = 500_000;
/// The most bytes of new entries of one list, as encoded: 20,000 sources with their keys.
const MAX_KEPT_BYTES: usize = 112 * 1024 * 1024;

/// A list's entry that the mirror does not hold as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change<T: Record> {
    /// The entry's id.
    pub id: T::Id,
    /// The entry's digest.
    pub digest: Digest,
    /// The entry.
    pub entry: Listed<T>,
}

impl<T: Record> Default for Snapshot<T> {
    fn default() -> Self {
        Self { entries: 0, listed: HashSet::new(), changed: Vec::new(), kept_bytes: 0, unreadable: 0, nameless: 0 }
    }
}

impl<T: Record> Snapshot<T> {
    /// Takes the list's next entry. Of two entries with the same id the first counts, and the second as unreadable.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn observe(&mut self, known: &Known<T::Id>, entry: Listed<T>) -> Result<(), SnapshotError> {
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            return Err(SnapshotError::TooLarge);
        }
        let Some(id) = entry.id().filter(|id| self.listed.insert(*id)) else {
            self.unreadable += 1;
            self.nameless += 1;
            return Ok(());
        };
        if matches!(entry, Listed::Unreadable(_)) {
            self.unreadable += 1;
        }
        let encoded = codec::encode(&entry)?;
        let digest = Digest::of_bytes(&encoded);
        if known.get(&id) != Some(&digest) {
            self.kept_bytes = self.kept_bytes.saturating_add(encoded.len());
            self.changed.push(Change { id, digest, entry });
        }
        if self.kept_bytes > MAX_KEPT_BYTES {
            return Err(SnapshotError::TooLarge);
        }
        Ok(())
    }

    /// Compares with what the mirror holds.
    #[must_use]
    pub fn diff(self, known: &Known<T::Id>) -> ListPlan<T> {
        let removals = if self.nameless == 0 {
            let mut gone: Vec<_> = known.keys().filter(|id| !self.listed.contains(id)).copied().collect();
            gone.sort_unstable();
            gone
        } else {
            Vec::new()
        };
        ListPlan { changes: self.changed, removals, unreadable: self.unreadable, whole: self.nameless == 0 }
    }
}

/// What to do to one list of the mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPlan<T: Record> {
    /// Entries to write.
    pub changes: Vec<Change<T>>,
    /// Entries that are no longer listed.
    pub removals: Vec<T::Id>,
    /// How many of the list's entries could not be read, changed or not.
    pub unreadable: u64,
    /// Whether the id of every entry could be read: what is not among them is not listed.
    pub whole: bool,
}

/// What to do to the mirror.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Journalists.
    pub users: ListPlan<Journalist>,
    /// Sources.
    pub sources: ListPlan<Source>,
    /// Submissions.
    pub submissions: ListPlan<Submission>,
    /// Replies.
    pub replies: ListPlan<Reply>,
}

impl Plan {
    /// Whether anything is no longer listed.
    #[must_use]
    pub fn removes_something(&self) -> bool {
        !(self.users.removals.is_empty()
            && self.sources.removals.is_empty()
            && self.submissions.removals.is_empty()
            && self.replies.removals.is_empty())
    }

    /// How many entries of the four lists could not be read.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.users.unreadable + self.sources.unreadable + self.submissions.unreadable + self.replies.unreadable
    }
}

#[cfg(test)]
mod tests {
    use protocol::value::{OrderNumber, Size, Username};
    use protocol::{Field, Unreadable};

    use super::*;

    fn user(id: char, name: &str) -> Listed<Journalist> {
        Listed::Readable(Journalist {
            id: uuid(id),
            username: Username::try_new(name).unwrap(),
            first_name: None,
            last_name: None,
            version: None,
        })
    }

    fn uuid<I: std::str::FromStr<Err: std::fmt::Debug>>(digit: char) -> I {
        "00000000-0000-4000-8000-00000000000_".replace('_', &digit.to_string()).parse().unwrap()
    }

    fn known(entries: &[Listed<Journalist>]) -> Known<JournalistId> {
        entries.iter().map(|entry| (entry.id().unwrap(), Digest::of(entry).unwrap())).collect()
    }

    fn plan(known: &Known<JournalistId>, entries: &[Listed<Journalist>]) -> ListPlan<Journalist> {
        let mut snapshot = Snapshot::default();
        for entry in entries {
            snapshot.observe(known, entry.clone()).unwrap();
        }
        snapshot.diff(known)
    }

    fn changed_ids(plan: &ListPlan<Journalist>) -> Vec<JournalistId> {
        plan.changes.iter().map(|change| change.id).collect()
    }

    #[test]
    fn the_same_list_changes_nothing() {
        let list = [user('a', "anna"), user('b', "ben")];
        let plan = plan(&known(&list), &list);
        assert!(plan.changes.is_empty() && plan.removals.is_empty());
    }

    #[test]
    fn changes_additions_and_removals_are_found() {
        let plan = plan(&known(&[user('a', "anna"), user('b', "ben")]), &[user('b', "benno"), user('c', "cleo")]);
        assert_eq!(changed_ids(&plan), [uuid('b'), uuid('c')]);
        assert_eq!(plan.removals, [uuid('a')]);
    }

    /// Case S9.
    #[test]
    fn s9_an_unreadable_entry_is_not_absent() {
        let mark = Listed::Unreadable(Unreadable { id: Some(uuid('a')), field: Field::Username });
        let plan = plan(&known(&[user('a', "anna"), user('b', "ben")]), &[mark.clone(), user('b', "ben")]);
        assert_eq!(changed_ids(&plan), [uuid('a')]);
        assert!(plan.removals.is_empty());
    }

    /// Case S9.
    #[test]
    fn s9_an_entry_without_an_id_stops_the_lists_removals_only() {
        let nameless = Listed::Unreadable(Unreadable { id: None, field: Field::Id });
        let plan = plan(&known(&[user('a', "anna"), user('b', "ben")]), &[nameless, user('c', "cleo")]);
        assert_eq!(changed_ids(&plan), [uuid('c')]);
        assert!(plan.removals.is_empty());
        assert_eq!(plan.unreadable, 1);
    }

    #[test]
    fn an_id_listed_twice_counts_once_and_stops_removals() {
        let plan = plan(&known(&[user('b', "ben")]), &[user('a', "anna"), user('a', "other")]);
        assert_eq!(changed_ids(&plan), [uuid('a')]);
        assert_eq!(plan.changes[0].entry, user('a', "anna"));
        assert!(plan.removals.is_empty());
    }

    #[test]
    fn entries_without_an_id_count_towards_the_limit() {
        let nameless = Listed::<Journalist>::Unreadable(Unreadable { id: None, field: Field::Id });
        let mut snapshot = Snapshot { entries: MAX_ENTRIES - 1, ..Snapshot::default() };
        snapshot.observe(&Known::default(), nameless.clone()).unwrap();
        assert!(matches!(snapshot.observe(&Known::default(), nameless), Err(SnapshotError::TooLarge)));
    }

    #[test]
    fn ids_that_differ_in_case_are_two() {
        let reply = |id: &str| {
            Listed::Readable(Reply {
                id: id.parse().unwrap(),
                source: uuid('1'),
                author: uuid('2'),
                order: OrderNumber::try_new(1).unwrap(),
                filename: None,
                size: Size::try_new(1).unwrap(),
                deleted_by_source: false,
                seen_by: protocol::value::Bounded::default(),
                version: None,
            })
        };
        let mut snapshot = Snapshot::default();
        for id in ["C321599E-02FE-4B80-A2E8-81CA252C3BCA", "c321599e-02fe-4b80-a2e8-81ca252c3bca"] {
            snapshot.observe(&Known::default(), reply(id)).unwrap();
        }
        let plan = snapshot.diff(&Known::default());
        assert_eq!((plan.changes.len(), plan.unreadable), (2, 0));
    }
}
