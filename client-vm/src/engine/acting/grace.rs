//! Deletions wait before they are first sent, and are taken back meanwhile.
//!
//! **Invariant:** what waits has no call: none is opened for it, and dom0 is not asked.

use std::time::Duration;

use control::{Act, ActChange, ActId, ActStep, Deal, Undone};
use protocol::value::{JournalistId, Timestamp};
use rusqlite::Transaction;

use super::Acting;
use crate::engine::Engine;
use crate::engine::handle::Answer;
use crate::failure;
use crate::store::outbox::{self, EnqueueError, Enqueued};

/// Takes an act, and lets what it deletes wait for so long.
pub(super) fn take(
    transaction: &Transaction<'_>,
    journalist: JournalistId,
    act: &Act,
    now: Timestamp,
    grace: Duration,
) -> Result<Enqueued, EnqueueError> {
    let mut enqueued = outbox::enqueue(transaction, journalist, act, now)?;
    if let Some(act) = enqueued.taken.act
        && outbox::give_grace(transaction, act, now, grace)?
    {
        enqueued.taken.grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
    }
    Ok(enqueued)
}

impl Acting {
    /// How long a deletion waits before it is first sent.
    pub(in crate::engine) fn delete_grace(&self) -> Duration {
        self.settings.delete_grace
    }
}

impl Engine {
    /// Takes deletions back that were not sent.
    pub(in crate::engine) async fn undo(&mut self, acts: Vec<ActId>, answer: Answer<Vec<Undone>>) {
        let Some(journalist) = self.session.journalist() else {
            answer.give(Err(failure::not_signed_in()));
            return;
        };
        let undone = self.store.write_or(move |transaction| outbox::undo(transaction, journalist, &acts)).await;
        let undone = match undone {
            Ok(undone) => undone,
            Err(error) => {
                answer.give(Err(failure::of_undo(&error)));
                return;
            }
        };
        self.sources_changed(undone.iter().map(|one| one.source));
        for Undone { act, kind, source, objects, .. } in &undone {
            let step = ActStep::Dealt(Deal::Cancel);
            self.tell(ActChange { act: *act, kind: *kind, source: *source, objects: *objects, step });
        }
        answer.give(Ok(undone));
        // What is there again is fetched and decrypted again.
        self.work().await;
    }

    /// The clock was set back: what waits begins to wait anew. Gives whether that could be stored.
    pub(super) async fn mend_grace(&mut self, now: Timestamp) -> bool {
        match self.store.write(move |transaction| outbox::mend_grace(transaction, now)).await {
            Ok(()) => true,
            Err(error) => {
                self.store_fault(&error);
                false
            }
        }
    }

    /// Says in the log how many acts the daemon leaves unsent: at its end it cannot ask.
    pub(in crate::engine) async fn log_unsent(&self) {
        match self.store.read(outbox::counts).await {
            Ok(counts) if counts.waiting + counts.of_others > 0 => {
                tracing::info!(
                    own = counts.waiting,
                    of_others = counts.of_others,
                    "acts wait that are not confirmed: they go on after the next login of their journalists"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::error!(error = failure::chain(&error), "could not count the acts that wait"),
        }
    }
}
