//! What the machine does about deletions that can be taken back.

use control::ActId;

use super::super::super as outbox;
use super::Machine;

impl Machine<'_> {
    /// What the engine does when it has looked for what is due: a clock that was set back is heeded.
    pub(super) fn mend_grace(&mut self, to_mend: bool) {
        let now = self.time();
        let must = self.signed_in.is_some_and(|who| self.reference.is_to_mend(who, self.now));
        assert_eq!(to_mend, must, "whether the clock was set back to before something began to wait");
        if to_mend {
            self.write(|transaction| outbox::mend_grace(transaction, now)).unwrap();
            self.reference.mend_grace(self.now);
        }
    }

    /// Takes deletions back, the newest where no act is named; gives how many rows, or `None` when that cannot be.
    pub(in super::super) fn undo(&mut self, acts: &[u64]) -> Option<u64> {
        let who = self.signed_in?;
        let named: Vec<_> = acts.iter().copied().map(ActId).collect();
        let undone = self.write(|transaction| outbox::undo(transaction, who.id(), &named));
        let undone = undone.ok().map(|undone| undone.iter().map(|one| one.objects).sum());
        assert_eq!(undone, self.reference.undo(who, acts), "undo of {acts:?}");
        undone
    }
}
