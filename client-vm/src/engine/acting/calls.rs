//! The qrexec calls for acts: one for marks, and one for each act that deletes or answers.

use std::collections::HashSet;
use std::sync::Arc;

use control::{ActId, ActKind};
use protocol::Scope;
use qubes_rpc::qrexec::QrexecCall;
use tokio::time::Instant;

use crate::store::outbox::{Batch, Work};

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CallKey {
    /// Marks, of any act.
    Marks,
    /// What one act deletes: dom0 may be asked about each.
    Deletions(ActId),
    /// One reply.
    Reply(ActId),
}

impl CallKey {
    pub(super) fn of(batch: &Batch) -> Self {
        match batch.work {
            Work::Star | Work::Unstar | Work::Seen(_) => Self::Marks,
            Work::DeleteSource | Work::DeleteItem(_) => Self::Deletions(batch.act),
            Work::Reply(_) => Self::Reply(batch.act),
        }
    }

    /// Whether acts of the kind are sent in the call for marks.
    pub(super) fn is_for_marks(kind: ActKind) -> bool {
        match kind {
            ActKind::Star | ActKind::Unstar | ActKind::Seen => true,
            ActKind::DeleteSource | ActKind::DeleteItem | ActKind::Reply => false,
        }
    }

    /// Whether somebody in dom0 may be asked about each, for all that is known here: it is for one decision of the user's.
    fn is_one_decision(self) -> bool {
        match self {
            Self::Marks => false,
            Self::Deletions(_) | Self::Reply(_) => true,
        }
    }

    pub(super) fn scope(self) -> Scope {
        match self {
            Self::Marks => Scope::Mark,
            Self::Deletions(_) => Scope::Delete,
            Self::Reply(_) => Scope::Reply,
        }
    }
}

#[derive(Debug)]
enum State {
    Opening,
    Open {
        number: CallNumber,
        call: Arc<QrexecCall>,
        running: usize,
        /// Whether anything was done in it.
        done: bool,
        /// Whether the proxy takes no more in it.
        full: bool,
        /// When it is idle for long enough, while nothing runs in it.
        idle_at: Instant,
    },
}

/// One call among all that there were: another one for the same key is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallNumber(u64);

#[cfg(test)]
impl CallNumber {
    /// A number that no call has.
    pub(super) fn of_none() -> Self {
        Self(0)
    }
}

/// Whether a call takes no more, and nothing runs in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsedUp {
    /// It does.
    No,
    /// It does not, and the server has done something in it.
    WithUse,
    /// It does not, and nothing was done in it.
    ForNothing,
}

/// The calls, at most a few.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: Vec<(CallKey, State)>,
    last: u64,
}

impl Calls {
    fn get_mut(&mut self, key: CallKey) -> Option<&mut State> {
        self.calls.iter_mut().find(|(known, _)| *known == key).map(|(_, state)| state)
    }

    pub(super) fn has(&self, key: CallKey) -> bool {
        self.calls.iter().any(|(known, _)| *known == key)
    }

    /// The acts whose calls are open.
    pub(super) fn open_acts(&self) -> HashSet<ActId> {
        self.calls
            .iter()
            .filter_map(|(key, state)| match (key, state) {
                (CallKey::Deletions(act) | CallKey::Reply(act), State::Open { .. }) => Some(*act),
                (CallKey::Marks, _) | (_, State::Opening) => None,
            })
            .collect()
    }

    /// The call, for one more attempt, if it is open and has room.
    pub(super) fn take(&mut self, key: CallKey, most: usize) -> Option<(CallNumber, Arc<QrexecCall>)> {
        match self.get_mut(key)? {
            State::Open { number, call, running, full: false, .. } if *running < most => {
                *running += 1;
                Some((*number, Arc::clone(call)))
            }
            State::Open { .. } | State::Opening => None,
        }
    }

    /// An attempt in the call has ended.
    pub(super) fn give_back(&mut self, call: CallNumber, idle_from_now: Instant) {
        for (_, state) in &mut self.calls {
            if let State::Open { number, running, idle_at, .. } = state
                && *number == call
            {
                *running = running.saturating_sub(1);
                *idle_at = idle_from_now;
            }
        }
    }

    /// An attempt in the call has ended: the server has done something in it, or the proxy takes no more in it. Gives
    /// whether the call is used up, once nothing runs in it any more, and whether it was of use then.
    pub(super) fn note(&mut self, call: CallNumber, was_done: bool, is_full: bool) -> UsedUp {
        for (_, state) in &mut self.calls {
            if let State::Open { number, running, done, full, .. } = state
                && *number == call
            {
                *done |= was_done;
                *full |= is_full;
                return match (*full && *running == 0, *done) {
                    (false, _) => UsedUp::No,
                    (true, true) => UsedUp::WithUse,
                    (true, false) => UsedUp::ForNothing,
                };
            }
        }
        UsedUp::No
    }

    /// Whether there is room for one more call, and the idle one that had to go for it. While a call is opening that
    /// somebody in dom0 may be asked about no other such may: what else there is to do goes on meanwhile. Where dom0 `asks`
    /// about calls, deletions leave one place to marks, and such a call goes only when it has been idle for long: what is
    /// left of its act needs the user's word then.
    pub(super) fn make_room(
        &mut self,
        key: CallKey,
        most: usize,
        asks: impl Fn(Scope) -> bool,
        now: Instant,
    ) -> (bool, Option<Arc<QrexecCall>>) {
        let may_be_asked = |key: CallKey| key.is_one_decision() || asks(key.scope());
        let opening = |(key, state): &(CallKey, State)| may_be_asked(*key) && matches!(state, State::Opening);
        if may_be_asked(key) && self.calls.iter().any(opening) {
            return (false, None);
        }
        let deletes = |key: &CallKey| matches!(key, CallKey::Deletions(_));
        let deletions = self.calls.iter().filter(|(key, _)| deletes(key)).count();
        let no_more_deletions = asks(Scope::Delete) && deletes(&key) && deletions + 1 >= most;
        if self.calls.len() < most && !no_more_deletions {
            return (true, None);
        }
        let idle = self.calls.iter().position(|(known, state)| match state {
            // One more deletion takes no place but a deletion's.
            State::Open { .. } if no_more_deletions && !deletes(known) => false,
            State::Open { running: 0, idle_at, .. } if asks(known.scope()) => *idle_at <= now,
            State::Open { running: 0, .. } => true,
            State::Open { .. } | State::Opening => false,
        });
        match idle {
            Some(at) => match self.calls.swap_remove(at).1 {
                State::Open { call, .. } => (true, Some(call)),
                State::Opening => (true, None),
            },
            None => (false, None),
        }
    }

    pub(super) fn opening(&mut self, key: CallKey) {
        self.calls.push((key, State::Opening));
    }

    pub(super) fn opened(&mut self, key: CallKey, call: QrexecCall, idle_at: Instant) {
        self.last += 1;
        let number = CallNumber(self.last);
        if let Some(state) = self.get_mut(key) {
            *state = State::Open { number, call: Arc::new(call), running: 0, done: false, full: false, idle_at };
        }
    }

    /// The call could not be opened.
    pub(super) fn not_opened(&mut self, key: CallKey) {
        self.calls.retain(|(known, state)| *known != key || !matches!(state, State::Opening));
    }

    /// Removes a call, if it is still there.
    pub(super) fn remove(&mut self, call: CallNumber) -> Option<Arc<QrexecCall>> {
        let its = |state: &State| matches!(state, State::Open { number, .. } if *number == call);
        let at = self.calls.iter().position(|(_, state)| its(state))?;
        match self.calls.swap_remove(at).1 {
            State::Open { call, .. } => Some(call),
            State::Opening => None,
        }
    }

    /// Removes the call of an act that is over, unless something of it still runs.
    pub(super) fn finish(&mut self, act: ActId) -> Option<Arc<QrexecCall>> {
        let at = self.calls.iter().position(|(key, state)| {
            (*key == CallKey::Deletions(act) || *key == CallKey::Reply(act))
                && matches!(state, State::Open { running: 0, .. })
        })?;
        match self.calls.swap_remove(at).1 {
            State::Open { call, .. } => Some(call),
            State::Opening => None,
        }
    }

    /// Removes the call for marks if nobody has used it for long. Not to be called where dom0 asks about it.
    pub(super) fn close_idle(&mut self, now: Instant) -> Vec<Arc<QrexecCall>> {
        let idle = |key: &CallKey, state: &State| {
            *key == CallKey::Marks && matches!(state, State::Open { running: 0, idle_at, .. } if *idle_at <= now)
        };
        let mut closed = Vec::new();
        while let Some(at) = self.calls.iter().position(|(key, state)| idle(key, state)) {
            if let State::Open { call, .. } = self.calls.swap_remove(at).1 {
                closed.push(call);
            }
        }
        closed
    }

    /// When the next of them will have been idle for long.
    pub(super) fn next_idle(&self, now: Instant) -> Option<Instant> {
        self.calls
            .iter()
            .filter_map(|(key, state)| match state {
                State::Open { running: 0, idle_at, .. } if *key == CallKey::Marks && *idle_at > now => Some(*idle_at),
                State::Open { .. } | State::Opening => None,
            })
            .min()
    }

    /// Removes all of them.
    pub(super) fn drain(&mut self) -> Vec<Arc<QrexecCall>> {
        self.calls
            .drain(..)
            .filter_map(|(_, state)| match state {
                State::Open { call, .. } => Some(call),
                State::Opening => None,
            })
            .collect()
    }
}
