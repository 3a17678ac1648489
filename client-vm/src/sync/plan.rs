//! What a snapshot changes, as a pure comparison.
//!
//! **Invariant:** unreadable is not absent. An entry without a readable id could be any of those that are not listed, so a
//! list with such an entry removes nothing.
//!
//! **Invariant:** the lists of one sync together take no more memory than [`MAX_MEMORY`], whatever they say.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    budget: Budget,
    listed: HashSet<T::Id>,
    changed: Vec<Change<T>>,
    /// How many entries could not be read, `nameless` ones included.
    unreadable: u64,
    nameless: u64,
}

/// The lists are larger than this client takes.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Too many entries, or too much in those that are new.
    #[error(
        "the server's lists need more memory than the {} MiB that a sync may take: whoever runs the server can remove old \
         sources",
        MAX_MEMORY / (1024 * 1024)
    )]
    TooLarge,
    /// An entry could not be encoded for its digest.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// The most bytes that the lists of one sync take in memory, as far as they are counted: about 7,500 sources with ten items
/// each that are all new, or 500,000 records that are known. 5,000 such sources were measured: docs/PERFORMANCE.md.
pub const MAX_MEMORY: usize = 48 * 1024 * 1024;
/// What each entry counts at least, whatever it says: its id in the set of those that are listed.
const ENTRY: usize = 96;

/// What is left of the memory that the lists of one sync may take together. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget {
    left: Arc<AtomicUsize>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: Arc::new(AtomicUsize::new(MAX_MEMORY)) }
    }
}

impl Budget {
    fn take(&self, bytes: usize) -> Result<(), SnapshotError> {
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes))
            .map(drop)
            .map_err(|_| SnapshotError::TooLarge)
    }
}

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
        Self::within(Budget::default())
    }
}

impl<T: Record> Snapshot<T> {
    /// One that shares its memory with the other lists of a sync.
    #[must_use]
    pub fn within(budget: Budget) -> Self {
        Self { budget, listed: HashSet::new(), changed: Vec::new(), unreadable: 0, nameless: 0 }
    }

    /// Takes the list's next entry. Of two entries with the same id the first counts, and the second as unreadable.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn observe(&mut self, known: &Known<T::Id>, entry: Listed<T>) -> Result<(), SnapshotError> {
        self.budget.take(ENTRY)?;
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
            self.budget.take(encoded.len().saturating_add(size_of::<Change<T>>()))?;
            self.changed.push(Change { id, digest, entry });
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
        let whole = self.nameless == 0;
        ListPlan { changes: self.changed, removals, listed: self.listed, unreadable: self.unreadable, whole }
    }
}

/// What to do to one list of the mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPlan<T: Record> {
    /// Entries to write.
    pub changes: Vec<Change<T>>,
    /// Entries that are no longer listed.
    pub removals: Vec<T::Id>,
    /// The ids of all entries of the list, changed or not, and readable or not. What the mirror holds besides was named by
    /// an earlier list.
    pub listed: HashSet<T::Id>,
    /// How many of the list's entries could not be read, changed or not.
    pub unreadable: u64,
    /// Whether the id of every entry could be read: what is not among them is not listed.
    pub whole: bool,
}

impl<T: Record> Default for ListPlan<T> {
    /// That of an empty list, where nothing is known.
    fn default() -> Self {
        Snapshot::default().diff(&Known::default())
    }
}

/// What to do to the mirror.
#[derive(Debug, Clone, Default)]
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
        assert_eq!(plan.listed, [uuid('a')].into());
        assert_eq!(plan.changes[0].entry, user('a', "anna"));
        assert!(plan.removals.is_empty());
    }

    /// Cases F7 and N5: names that are listed without end, known or unknown, readable or not.
    #[test]
    fn f7_the_lists_of_a_sync_share_one_budget_whatever_their_entries_are() {
        let numbered = |number: usize| uuid_of::<JournalistId>(number);
        let known: Known<_> =
            (0..10).map(|number| (numbered(number), Digest::of(&listed_user(numbered(number))).unwrap())).collect();
        type Entry = Box<dyn Fn(usize) -> Listed<Journalist>>;
        let kinds: [(Entry, bool); 4] = [
            (Box::new(|_| Listed::Unreadable(Unreadable { id: None, field: Field::Id })), true),
            (Box::new(move |number| listed_user(numbered(number % 10))), true),
            (
                Box::new(move |number| Listed::Unreadable(Unreadable { id: Some(numbered(number)), field: Field::Id })),
                false,
            ),
            (Box::new(move |number| listed_user(numbered(100 + number))), false),
        ];
        for (entry, keeps_nothing) in kinds {
            let budget = Budget::default();
            let mut lists = [(); 4].map(|()| Snapshot::within(budget.clone()));
            let taken = (0..).find(|number| {
                let observed = lists[number % 4].observe(&known, entry(*number));
                assert!(matches!(observed, Ok(()) | Err(SnapshotError::TooLarge)));
                observed.is_err()
            });
            let taken = taken.unwrap();
            let kept: usize = lists.iter().map(|list| list.changed.capacity() * size_of::<Change<Journalist>>()).sum();
            assert!(kept <= 2 * MAX_MEMORY && taken <= MAX_MEMORY / ENTRY, "{taken} entries and {kept} bytes");
            if keeps_nothing {
                assert_eq!(taken, MAX_MEMORY / ENTRY);
            }
        }
    }

    /// What was measured fits, with room: 5,000 sources with their keys, and 44,000 items.
    #[test]
    fn the_lists_of_a_large_server_are_taken() {
        let key = protocol::SourceKey {
            armored: protocol::value::ArmoredKey::try_new(format!(
                "-----BEGIN PGP PUBLIC KEY BLOCK-----\n{}",
                "K".repeat(2_000)
            ))
            .unwrap(),
            fingerprint: protocol::value::Fingerprint::try_new("A".repeat(40)).unwrap(),
        };
        let budget = Budget::default();
        let mut sources = Snapshot::within(budget.clone());
        let mut replies = Snapshot::within(budget);
        for number in 0..5_000 {
            let source = Source {
                id: uuid_of(number),
                designation: protocol::value::Designation::try_new("preternatural clarinet").unwrap(),
                starred: false,
                last_updated: protocol::value::Timestamp::try_new(1).unwrap(),
                interactions: OrderNumber::try_new(9).unwrap(),
                key: Some(key.clone()),
                version: None,
            };
            sources.observe(&Known::default(), Listed::Readable(source)).unwrap();
        }
        for number in 0..44_000 {
            replies.observe(&Known::default(), listed_reply(uuid_of(number))).unwrap();
        }
    }

    fn uuid_of<I: std::str::FromStr<Err: std::fmt::Debug>>(number: usize) -> I {
        format!("{number:08x}-0000-4000-8000-000000000000").parse().unwrap()
    }

    fn listed_user(id: JournalistId) -> Listed<Journalist> {
        let username = Username::try_new("anna").unwrap();
        Listed::Readable(Journalist { id, username, first_name: None, last_name: None, version: None })
    }

    fn listed_reply(id: ReplyId) -> Listed<Reply> {
        Listed::Readable(Reply {
            id,
            source: uuid('1'),
            author: uuid('2'),
            order: OrderNumber::try_new(1).unwrap(),
            filename: None,
            size: Size::try_new(1).unwrap(),
            deleted_by_source: false,
            seen_by: protocol::value::Bounded::default(),
            version: None,
        })
    }

    #[test]
    fn ids_that_differ_in_case_are_two() {
        let mut snapshot = Snapshot::default();
        for id in ["C321599E-02FE-4B80-A2E8-81CA252C3BCA", "c321599e-02fe-4b80-a2e8-81ca252c3bca"] {
            snapshot.observe(&Known::default(), listed_reply(id.parse().unwrap())).unwrap();
        }
        let plan = snapshot.diff(&Known::default());
        assert_eq!((plan.changes.len(), plan.unreadable), (2, 0));
    }
}
