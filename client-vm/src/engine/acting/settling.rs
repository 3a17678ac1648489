//! What an attempt's outcome means: for its rows, for its call, for the session.

use control::{ActChange, ActKind, ActStep, FailureKind, SessionEnd};

use super::Running;
use super::calls::UsedUp;
use crate::acts::{Performed, Step, Way};
use crate::engine::Engine;
use crate::engine::session::SessionState;
use crate::failure::failure;
use crate::store::outbox::{self, Outcome, Settled, SnapshotEffects};

impl Engine {
    /// Notes what became of the rows of an attempt, and what that says of its call and of the session.
    pub(super) async fn settle_act(&mut self, running: &Running, performed: Performed) {
        let Performed { rows, way } = performed;
        let done = rows.iter().any(|(_, outcome)| *outcome == Outcome::Done);
        if done {
            self.lift_network_pause();
        }
        let barred = rows.iter().find_map(|(_, outcome)| match outcome {
            Outcome::NoEffect { reason } => Some(failure(FailureKind::Unreachable, reason.clone())),
            Outcome::Done | Outcome::Unknown { .. } | Outcome::Refused { .. } => None,
        });
        let (now, snapshot, waits) = (self.clock.now(), self.acting.snapshot, self.acting.settings.waits);
        // Another call is another question. The user's word covers all of the act, as long as calls are of use.
        let used_up = self.acting.calls.note(running.call, done, way == Way::UsedUp);
        let act = running.act;
        let jitter = fastrand::f64();
        let settled = self
            .store
            .write(move |transaction| {
                let mut settled = Vec::with_capacity(rows.len());
                for (row, outcome) in rows {
                    let end = outbox::settle(transaction, &row, &outcome, now, snapshot, &waits, jitter)?;
                    settled.push((outcome, end));
                }
                if used_up == UsedUp::WithUse {
                    outbox::hold(transaction, act, false)?;
                }
                Ok(settled)
            })
            .await;
        // What was learnt of the call and of the session holds, whether it could be stored what became of the rows or not.
        match settled {
            Ok(settled) => {
                self.acting.watcher.step(Step::Settled);
                self.tell_settled(running, settled);
            }
            Err(error) => self.store_fault(&error),
        }
        match way {
            Way::Open | Way::UsedUp => {}
            Way::Lost => {
                let is_ours = self.drop_call(running.call);
                // A proxy that ends as soon as it is asked would be started again and again.
                if let Some(told) = barred.as_ref().filter(|_| is_ours) {
                    self.pause_network(told);
                }
            }
            Way::Barred => {
                if let Some(told) = &barred {
                    self.pause_network(told);
                }
            }
            Way::SessionOver => {
                self.session = SessionState::Out;
                self.leave(SessionEnd::Expired);
                return;
            }
        }
        match used_up {
            UsedUp::No => {}
            UsedUp::WithUse => drop(self.drop_call(running.call)),
            UsedUp::ForNothing => {
                self.drop_call(running.call);
                self.pause_network(&barred.unwrap_or_else(|| failure(FailureKind::Refused, "the proxy takes no acts")));
            }
        }
    }

    /// Tells what became of rows: one event for all that came out alike.
    fn tell_settled(&mut self, running: &Running, settled: Vec<(Outcome, Settled)>) {
        let mut steps: Vec<(ActStep, u64)> = Vec::new();
        for (outcome, end) in settled {
            let because = |kind| match &outcome {
                Outcome::Done => failure(kind, ""),
                Outcome::NoEffect { reason } | Outcome::Unknown { reason, .. } | Outcome::Refused { reason } => {
                    failure(kind, reason.clone())
                }
            };
            let step = match end {
                Settled::Confirmed => ActStep::Confirmed,
                Settled::Refused => ActStep::Refused(because(FailureKind::Refused)),
                Settled::Waiting { next_try } => {
                    ActStep::Postponed { failure: because(FailureKind::Unreachable), next_try }
                }
                Settled::Gone => continue,
            };
            match steps.iter_mut().find(|(known, _)| *known == step) {
                Some((_, objects)) => *objects += 1,
                None => steps.push((step, 1)),
            }
        }
        if running.kind == ActKind::Reply && steps.iter().any(|(step, _)| !matches!(step, ActStep::Refused(_))) {
            // The server's own record is wanted: it says what became of the reply, and where it stands.
            self.ask_sync(None);
        }
        if steps.iter().any(|(step, _)| matches!(step, ActStep::Confirmed | ActStep::Refused(_))) {
            self.sources_changed([running.source]);
            // A deletion that was refused lets downloads go on; one that was confirmed leaves something to remove.
            self.downloading.look_again();
            match running.kind {
                ActKind::DeleteSource | ActKind::DeleteItem => self.erase_pages(),
                ActKind::Reply => self.erase_log(),
                ActKind::Star | ActKind::Unstar | ActKind::Seen => {}
            }
        }
        for (step, objects) in steps {
            self.tell(ActChange { act: running.act, kind: running.kind, source: running.source, objects, step });
        }
    }

    /// A snapshot was applied.
    pub(in crate::engine) fn acts_after_snapshot(&mut self, effects: SnapshotEffects) {
        for change in effects.changes {
            if change.step == ActStep::NotDeleted {
                tracing::warn!(act = change.act.0, "the server lists what it said it had deleted");
            }
            self.tell(change);
        }
    }
}
