//! When what is doomed is erased, and what is told where that fails.
//!
//! **Invariant:** one erasure at a time. What is doomed meanwhile, or was in use, is erased after it.

use std::sync::Arc;
use std::time::Duration;

use control::{ErasureFault, Event, FailureKind, RemovalVerdict};
use protocol::value::SourceId;
use tokio::time::Instant;

use super::handle::Answer;
use super::{Ended, Engine};
use crate::erasure::{Erased, Log, Stuck, erase};
use crate::failure;
use crate::store::{StoreError, removals};

/// How long to wait with what could not be erased or is still in the log.
const AGAIN: Duration = Duration::from_secs(30);

/// How erasing stands.
#[derive(Debug, Default)]
pub(super) struct Erasing {
    running: bool,
    /// Something is doomed since the running one looked.
    again: bool,
    /// Something that was in use had to be left.
    left: bool,
    /// Something has gone from the database that may be in its log.
    log: bool,
    pub(super) fault: Option<ErasureFault>,
    /// What nobody has noted and could not be removed at start.
    stuck: Option<Stuck>,
    /// How many items went since it was last told that all is gone.
    gone: u64,
    /// When to try again by itself.
    pub(super) wake: Option<Instant>,
}

impl Erasing {
    pub(super) fn new(stuck: Option<Stuck>) -> Self {
        Self { stuck, ..Self::default() }
    }
}

impl Engine {
    /// Texts went from the database: they are to leave its log too.
    pub(super) fn erase_log(&mut self) {
        self.erasing.log = true;
        self.erase();
    }

    /// Erases what is not listed any more and not held, and whose deletion is confirmed.
    pub(super) fn erase(&mut self) {
        if self.erasing.running {
            self.erasing.again = true;
            return;
        }
        self.erasing.running = true;
        self.erasing.again = false;
        self.erasing.left = false;
        self.erasing.wake = None;
        let (store, files) = (self.store.clone(), self.downloading.files().clone());
        let mut busy = self.downloading.busy();
        busy.extend(self.reading.busy());
        let log = std::mem::take(&mut self.erasing.log);
        self.tasks.spawn(async move { Ended::Erased(Box::new(erase(&store, &files, &busy, log, Arc::new(())).await)) });
    }

    /// Erases what was in use when it was last tried.
    pub(super) fn erase_what_was_left(&mut self) {
        if self.erasing.left {
            self.erase();
        } else if self.erasing.running {
            self.erasing.again = true;
        }
    }

    /// An erasure has ended.
    pub(super) fn erased(&mut self, erased: Result<Erased, StoreError>) {
        self.erasing.running = false;
        match erased {
            Ok(erased) => {
                self.erasing.left = erased.left;
                self.erasing.log |= erased.log == Log::Full;
                self.erasing.gone = self.erasing.gone.saturating_add(u64::try_from(erased.removed).unwrap_or(u64::MAX));
                self.note_fault(erased.failed);
            }
            Err(error) => {
                tracing::error!(error = failure::chain(&error), "could not erase what is doomed");
                self.erasing.log = true;
                self.erasing.again = false;
            }
        }
        if self.erasing.again {
            self.erase();
            return;
        }
        if !self.erasing.log && !self.erasing.left && self.erasing.fault.is_none() && self.erasing.gone > 0 {
            let gone = std::mem::take(&mut self.erasing.gone);
            self.emit(Event::Erased(gone));
        }
        if self.erasing.log || self.erasing.fault.is_some() {
            self.erasing.wake = Some(Instant::now() + AGAIN);
        }
    }

    fn note_fault(&mut self, failed: Option<Stuck>) {
        let (now, before) = (self.clock.now(), self.erasing.fault.take());
        let stuck = failed
            .into_iter()
            .chain(self.erasing.stuck.clone())
            .reduce(|one, other| Stuck { items: one.items.saturating_add(other.items), reason: one.reason });
        self.erasing.fault = stuck.map(|stuck| ErasureFault {
            items: stuck.items,
            reason: format!("{}: look at the data directory's permissions and at its file system", stuck.reason),
            since: before.as_ref().map_or(now, |before| before.since),
        });
        if let (None, Some(fault)) = (before, &self.erasing.fault) {
            self.emit(Event::ErasureFailed(fault.clone()));
        }
    }

    /// The user says what is to become of removals that are held.
    pub(super) async fn settle_removals(
        &mut self,
        verdict: RemovalVerdict,
        sources: Vec<SourceId>,
        answer: Answer<()>,
    ) {
        let settle = move |transaction: &rusqlite::Transaction<'_>| {
            let settled = removals::settle(transaction, verdict, &sources)?;
            match sources.into_iter().find(|source| !settled.contains(source)) {
                Some(source) => Err(SettleError::NotHeld(source)),
                None => Ok(settled),
            }
        };
        match self.store.write_or(settle).await {
            Ok(settled) => {
                answer.give(Ok(()));
                self.sources_changed(settled);
                self.erase_log();
                self.work().await;
            }
            Err(SettleError::NotHeld(source)) => {
                let text = format!("nothing is held of {source}: `splitdrop removals show` lists what is");
                answer.give(Err(failure::failure(FailureKind::NotFound, text)));
            }
            Err(SettleError::Store(error)) => answer.give(Err(failure::of_store(&error))),
        }
    }
}

/// Removals were not settled, and nothing has changed.
#[derive(Debug, thiserror::Error)]
enum SettleError {
    #[error("nothing is held of {0}")]
    NotHeld(SourceId),
    #[error(transparent)]
    Store(#[from] StoreError),
}
