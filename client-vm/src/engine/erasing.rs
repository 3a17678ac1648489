//! When what is doomed is erased, and what is told where that fails.
//!
//! **Invariant:** one erasure at a time. What is doomed meanwhile, or was in use, is erased after it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use control::{ErasureFault, Event, Failure, FailureKind, HeldRemoval, RemovalVerdict};
use protocol::value::SourceId;
use tokio::task::Id;
use tokio::time::Instant;

use super::handle::Answer;
use super::{Ended, Engine};
use crate::erasure::{Erased, Leftover, Log, Stuck, erase};
use crate::failure;
use crate::files::FileNumber;
use crate::store::{StoreError, removals};

/// How long to wait with what could not be erased.
const AGAIN: Duration = Duration::from_secs(30);
/// How long to wait with a log that somebody reads: readers are short. Each time twice as long, up to [`AGAIN`].
const LOG_AGAIN: Duration = Duration::from_millis(100);

/// How many times as long as it took to write the database anew it is not done again: it holds up all that is to be stored.
const REST: u32 = 20;
/// How long at least.
const LEAST_REST: Duration = Duration::from_millis(500);

/// How erasing stands.
#[derive(Debug, Default)]
pub(super) struct Erasing {
    running: Option<Running>,
    /// Something is doomed since the running one looked.
    again: bool,
    /// Something that was in use had to be left, or may be doomed and nobody knows.
    left: bool,
    /// Something has gone from the database that may be in its log.
    log: bool,
    /// Something has gone of which the database's pages may hold copies.
    pages: bool,
    /// The daemon ends: nothing is put off any more.
    finishing: bool,
    /// Until when they are not written anew.
    rest: Option<Instant>,
    /// How long to wait with the log, once it could not be emptied.
    log_wait: Option<Duration>,
    pub(super) fault: Option<ErasureFault>,
    /// How many items went since it was last told that all is gone.
    gone: u64,
    /// Files that nobody has noted.
    orphans: BTreeSet<FileNumber>,
    /// What was made for a device VM could not be removed.
    archive: bool,
    /// When to try again by itself.
    pub(super) wake: Option<Instant>,
}

impl Erasing {
    /// Whether something is still to be erased, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        self.log || self.pages || self.left || self.fault.is_some()
    }
}

/// An erasure that runs.
#[derive(Debug)]
struct Running {
    task: Id,
    begun: Instant,
    /// Whether it writes the pages anew.
    pages: bool,
    /// Whether it removes what was made for a device VM.
    archive: bool,
}

impl Erasing {
    pub(super) fn new(leftover: Leftover) -> Self {
        let Leftover { orphans, log, pages, archive } = leftover;
        Self { orphans, log, pages, archive, ..Self::default() }
    }

    /// What is made for the next call of a device VM is not to be taken for what the last one has left.
    pub(super) fn refuse_if_it_removes_an_archive(&self) -> Result<(), Failure> {
        match &self.running {
            Some(running) if running.archive => Err(failure::failure(
                FailureKind::Conflict,
                "what was given to a device VM before is still being removed: try again",
            )),
            Some(_) | None => Ok(()),
        }
    }
}

impl Engine {
    /// Texts went from the database: they are to leave its log too.
    pub(super) fn erase_log(&mut self) {
        self.erasing.log = true;
        self.erase();
    }

    /// The daemon ends: what was only put off is not left to the next start.
    pub(super) fn finish_erasing(&mut self) {
        self.erasing.rest = None;
        self.erasing.finishing = true;
        if self.erasing.pages || self.erasing.log {
            self.erase();
        }
    }

    /// What was made for a device VM is still there, or is gone with the last call.
    pub(super) fn erase_archive(&mut self, there: bool) {
        let was_there = std::mem::replace(&mut self.erasing.archive, there);
        if there || was_there {
            self.erase();
        }
    }

    /// Something was deleted: it is to leave the pages of the database too.
    pub(super) fn erase_pages(&mut self) {
        self.erasing.pages = true;
        self.erase_log();
    }

    /// Erases what is not listed any more and not held, and whose deletion is confirmed.
    pub(super) fn erase(&mut self) {
        if self.erasing.running.is_some() {
            self.erasing.again = true;
            return;
        }
        self.erasing.again = false;
        self.erasing.left = false;
        self.erasing.wake = None;
        let (store, files) = (self.store.clone(), self.downloading.files().clone());
        let mut busy = self.downloading.busy();
        busy.extend(self.reading.busy());
        let log = std::mem::take(&mut self.erasing.log);
        let begun = Instant::now();
        let pages = self.erasing.pages && self.erasing.rest.is_none_or(|rest| rest <= begun);
        self.erasing.pages &= !pages;
        let archive = self.erasing.archive && self.handing_over.has_no_device_call();
        let leftover = Leftover { orphans: self.erasing.orphans.clone(), log, pages, archive };
        let erasing =
            async move { Ended::Erased(Box::new(erase(&store, &files, &busy, leftover, Arc::new(())).await)) };
        self.erasing.running = Some(Running { task: self.tasks.spawn(erasing).id(), begun, pages, archive });
    }

    /// Something may be doomed since a sync of which nobody knows what it did: that is looked for after the next one.
    pub(super) fn erase_with_the_next_sync(&mut self) {
        self.erasing.left = true;
    }

    /// Erases what was in use when it was last tried.
    pub(super) fn erase_what_was_left(&mut self) {
        if self.erasing.left {
            self.erase();
        } else if self.erasing.running.is_some() {
            self.erasing.again = true;
        }
    }

    /// The task of an erasure panicked.
    pub(super) fn erasure_panicked(&mut self, task: Id) -> bool {
        let is_it = self.erasing.running.as_ref().is_some_and(|running| running.task == task);
        if is_it {
            self.erased(Err(StoreError::CutOff));
        }
        is_it
    }

    /// An erasure has ended.
    pub(super) fn erased(&mut self, erased: Result<Erased, StoreError>) {
        let running = self.erasing.running.take();
        let tried_archive = running.as_ref().is_some_and(|running| running.archive);
        let rewritten = running.filter(|running| running.pages);
        if let Some(running) = rewritten.filter(|_| !self.erasing.finishing) {
            let rest = running.begun.elapsed().saturating_mul(REST).max(LEAST_REST);
            self.erasing.rest = Some(Instant::now() + rest);
        }
        match erased {
            Ok(erased) => {
                self.erasing.left = erased.left;
                self.erasing.pages |= erased.pages;
                if erased.log == Log::Full {
                    self.erasing.log = true;
                    let wait = self.erasing.log_wait.map_or(LOG_AGAIN, |wait| wait.saturating_mul(2).min(AGAIN));
                    self.erasing.log_wait = Some(wait);
                } else {
                    self.erasing.log_wait = None;
                }
                self.erasing.orphans = erased.orphans;
                if tried_archive {
                    self.erasing.archive = erased.archive;
                }
                self.erasing.gone = self.erasing.gone.saturating_add(u64::try_from(erased.removed).unwrap_or(u64::MAX));
                let why = |stuck: Stuck| {
                    let look = "look at the data directory's permissions and at its file system";
                    (stuck.items, format!("{}: {look}", stuck.reason))
                };
                self.note_fault(erased.failed.map(why));
            }
            Err(error) => {
                tracing::error!(error = failure::chain(&error), "could not erase what is doomed");
                // Files that could not be removed before are not gone either.
                let items = self.erasing.fault.as_ref().map_or(0, |fault| fault.items);
                self.note_fault(Some((items, failure::of_store(&error).message)));
                self.erasing.log = true;
                // What it has done before it failed is not known.
                self.erasing.pages = true;
                // Also where something new is doomed: what has failed would fail again.
                self.erasing.again = false;
                self.erasing.wake = Some(Instant::now() + AGAIN);
                return;
            }
        }
        if self.erasing.again {
            self.erase();
            return;
        }
        if !self.erasing.is_open() && self.erasing.gone > 0 {
            let gone = std::mem::take(&mut self.erasing.gone);
            self.emit(Event::Erased(gone));
        }
        let now = Instant::now();
        let log = self.erasing.log.then(|| now + self.erasing.log_wait.unwrap_or(AGAIN));
        let fault = self.erasing.fault.is_some().then(|| now + AGAIN);
        let pages = if self.erasing.pages { Some(self.erasing.rest.unwrap_or(now)) } else { None };
        self.erasing.wake = [log, fault, pages].into_iter().flatten().min();
    }

    /// Of how many items files could not be removed, and why; of none where the database could not be rid of what it said. It
    /// is told once, until nothing is left.
    fn note_fault(&mut self, stuck: Option<(u64, String)>) {
        let (now, before) = (self.clock.now(), self.erasing.fault.take());
        self.erasing.fault = stuck.map(|(items, reason)| ErasureFault {
            items,
            reason,
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
        shown: Vec<HeldRemoval>,
        answer: Answer<()>,
    ) {
        let settle = move |transaction: &rusqlite::Transaction<'_>| {
            // Nobody says yes to more than they were shown.
            let held = removals::held(transaction)?;
            match shown.iter().find(|shown| !held.contains(shown)) {
                Some(shown) => Err(SettleError::Other(shown.source)),
                None => {
                    let sources: Vec<_> = shown.iter().map(|shown| shown.source).collect();
                    Ok(removals::settle(transaction, verdict, &sources)?)
                }
            }
        };
        match self.store.write_or(settle).await {
            Ok(settled) => {
                answer.give(Ok(()));
                self.sources_changed(settled);
                self.erase_pages();
                self.work().await;
            }
            Err(error @ SettleError::Other(_)) => {
                answer.give(Err(failure::failure(FailureKind::Conflict, error.to_string())));
            }
            Err(SettleError::Store(error)) => answer.give(Err(failure::of_store(&error))),
        }
    }
}

/// Removals were not settled, and nothing has changed.
#[derive(Debug, thiserror::Error)]
enum SettleError {
    #[error("something else is held of {0} by now: `splitdrop removals show` lists it")]
    Other(SourceId),
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[cfg(test)]
mod tests;
