//! What requests have changed.
//!
//! **Invariant:** only what took effect is in it: a star on a starred source, a mark that was there, a deletion of what is
//! gone change nothing and are not counted. Neither is anything that a command does instead of a request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::RecordId;

/// A change that a journalist made through the API. A submission and a reply with the same id are told apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "change", deny_unknown_fields)]
pub enum Change {
    /// A source without a star got one.
    StarSet {
        /// Which source.
        source: RecordId,
    },
    /// A starred source lost its star.
    StarRemoved {
        /// Which source.
        source: RecordId,
    },
    /// A journalist's mark came onto a submission.
    SubmissionSeen {
        /// Which submission.
        submission: RecordId,
        /// Whose mark.
        journalist: RecordId,
    },
    /// A journalist's mark came onto a reply.
    ReplySeen {
        /// Which reply.
        reply: RecordId,
        /// Whose mark.
        journalist: RecordId,
    },
    /// A reply was stored, seen by its author. That mark is not counted besides.
    ReplySent {
        /// Which reply.
        reply: RecordId,
        /// To whom.
        source: RecordId,
        /// Who wrote it.
        journalist: RecordId,
    },
    /// A submission was downloaded for the first time, and is read since.
    SubmissionDownloaded {
        /// Which submission.
        submission: RecordId,
    },
    /// A submission went: alone, or with the rest of its conversation. One that goes with its source is not counted.
    SubmissionDeleted {
        /// Which submission.
        submission: RecordId,
    },
    /// A reply went: alone, or with the rest of its conversation. One that goes with its source is not counted.
    ReplyDeleted {
        /// Which reply.
        reply: RecordId,
    },
    /// A source was marked deleted. The purge is no change of a journalist's.
    SourceDeleted {
        /// Which source.
        source: RecordId,
    },
}

/// How often each change was made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    times: BTreeMap<Change, u64>,
}

impl Changes {
    /// How often this change was made.
    pub fn of(&self, change: &Change) -> u64 {
        self.times.get(change).copied().unwrap_or(0)
    }

    /// How often the changes that `which` picks were made, together.
    pub fn sum(&self, which: impl Fn(&Change) -> bool) -> u64 {
        self.iter().filter(|(change, _)| which(change)).map(|(_, times)| times).sum()
    }

    /// How many changes were made.
    pub fn total(&self) -> u64 {
        self.sum(|_| true)
    }

    /// How often the change that was made most often was made; 1 when everything was done once.
    pub fn most(&self) -> u64 {
        self.iter().map(|(_, times)| times).max().unwrap_or(0)
    }

    /// The changes that were made at least once, and how often, by kind and id.
    pub fn iter(&self) -> impl Iterator<Item = (&Change, u64)> {
        self.times.iter().map(|(change, times)| (change, *times))
    }

    /// What was changed after `earlier`, which must be an earlier state of the same world's.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let more = |(change, times): (&Change, u64)| (change.clone(), times.saturating_sub(earlier.of(change)));
        Self { times: self.iter().map(more).filter(|(_, times)| *times > 0).collect() }
    }

    pub(super) fn count(&mut self, change: Change) {
        let times = self.times.entry(change).or_insert(0);
        *times = times.saturating_add(1);
    }
}

/// A set of changes that were made once each, for tests to compare with.
impl FromIterator<Change> for Changes {
    fn from_iter<I: IntoIterator<Item = Change>>(changes: I) -> Self {
        let mut all = Self::default();
        for change in changes {
            all.count(change);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn star(source: &str) -> Change {
        Change::StarSet { source: source.into() }
    }

    #[test]
    fn changes_are_counted_by_object_and_kind() {
        let removed = Change::StarRemoved { source: "a".into() };
        let changes: Changes = [star("a"), removed.clone(), star("a"), star("b")].into_iter().collect();
        assert_eq!((changes.of(&star("a")), changes.of(&star("b")), changes.of(&removed)), (2, 1, 1));
        assert_eq!(changes.of(&star("c")), 0);
        assert_eq!((changes.total(), changes.most()), (4, 2));
        assert_eq!(changes.sum(|change| matches!(change, Change::StarSet { .. })), 3);
        assert_eq!((Changes::default().total(), Changes::default().most()), (0, 0));
    }

    #[test]
    fn what_happened_since_is_the_difference() {
        let earlier: Changes = [star("a"), star("b")].into_iter().collect();
        let mut later = earlier.clone();
        later.count(star("a"));
        later.count(star("c"));
        assert_eq!(later.since(&earlier), [star("a"), star("c")].into_iter().collect());
        assert_eq!(later.since(&later), Changes::default());
    }
}
