//! What must become of deletions that can be taken back.

use super::super::world::Who;
use super::{End, Entry, Reference, Status};

impl Entry {
    /// Whether it was never sent, and dom0 was not asked about it, since it began to wait.
    pub(super) fn in_grace(&self) -> bool {
        let unsent = self.status == Status::Open { sent: false } && self.attempts == 0;
        self.what.is_deletion() && unsent && !self.held && self.wait.is_some()
    }

    /// Whether its time of grace is not over, or the clock was set back to before it.
    pub(in super::super) fn grace_is_left(&self, now: u64) -> bool {
        self.in_grace() && self.wait.is_some_and(|(from, wait)| from + wait > now)
    }

    fn is_unsent_deletion_of(&self, who: Who) -> bool {
        let unsent = matches!(self.status, Status::Open { sent: false } | Status::Aside { sent: false });
        self.who == who && self.what.is_deletion() && unsent
    }
}

impl Reference {
    /// What an act deletes that was just taken waits, in microseconds.
    pub(in super::super) fn give_grace(&mut self, act: u64, now: u64, grace: u64) {
        let deletions = |entry: &&mut Entry| entry.act == act && entry.what.is_deletion();
        self.entries.iter_mut().filter(deletions).for_each(|entry| entry.wait = (grace > 0).then_some((now, grace)));
    }

    /// It signs in: what waits begins to wait.
    pub(in super::super) fn give_grace_anew(&mut self, who: Who, now: u64, grace: u64) {
        let waits = |entry: &&mut Entry| entry.who == who && entry.in_grace();
        self.entries.iter_mut().filter(waits).for_each(|entry| entry.wait = (grace > 0).then_some((now, grace)));
    }

    /// Whether the clock was set back to before something of `who` began to wait.
    pub(in super::super) fn is_to_mend(&self, who: Who, now: u64) -> bool {
        self.entries.iter().any(|entry| entry.who == who && entry.in_grace() && entry.begins_after(now))
    }

    pub(in super::super) fn mend_grace(&mut self, now: u64) {
        for entry in self.entries.iter_mut().filter(|entry| entry.in_grace() && entry.begins_after(now)) {
            entry.wait = entry.wait.map(|(_, wait)| (now, wait));
        }
    }

    /// Takes deletions back; gives how many rows, or `None` when one of the acts cannot be.
    pub(in super::super) fn undo(&mut self, who: Who, acts: &[u64]) -> Option<u64> {
        let newest = || self.entries.iter().filter(|entry| entry.who == who && entry.in_grace()).map(|entry| entry.act);
        let acts = if acts.is_empty() { vec![newest().max()?] } else { acts.to_vec() };
        let fits = |entry: &Entry, act: u64| entry.act == act && entry.is_unsent_deletion_of(who);
        if acts.iter().any(|act| !self.entries.iter().any(|entry| fits(entry, *act))) {
            return None;
        }
        let before = self.entries.len();
        self.end(End::GivenUp, |entry| acts.iter().any(|act| fits(entry, *act)));
        u64::try_from(before - self.entries.len()).ok()
    }
}

impl Entry {
    fn begins_after(&self, now: u64) -> bool {
        self.wait.is_some_and(|(from, _)| from > now)
    }
}
