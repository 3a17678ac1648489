//! The lane that decrypts what is there. It needs no session, and no pause holds it up.
//!
//! **Invariant:** at most [`PERMITS`] uses of the private key's backend are under way.
//!
//! **Invariant:** an item that cannot be opened is no longer the first: not after it failed, whosever fault that was, and
//! not in the next daemon, where this one ended before the item did.

use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::{Event, FailureKind, ReadChange, ReadStep, Seal};
use protocol::value::ItemId;
use qubes_rpc::places::Places;
use rusqlite::Transaction;
use tokio::task::Id;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::key_places::{KeyPlaces, work_in};
use super::{Ended, Engine};
use crate::failure::{self, failure};
use crate::reading::{Meaning, Read, ReadError, ReadingDesk, read};
use crate::store::downloads::{self, Candidate, Wait};
use crate::store::{Store, StoreError, reading};

/// How many uses of the backend may be under way: each may be a qrexec call.
pub(super) const PERMITS: usize = 2;
/// How many items are read from the store at once.
const READ_AT_ONCE: usize = 512;
/// How long to leave a store alone that has failed.
const AFTER_STORE_FAULT: Duration = Duration::from_secs(5);
/// How long an item may be being opened before that is noted.
const LONG: Duration = Duration::from_secs(10);

/// The lane's state.
#[derive(Debug)]
pub(super) struct Reading {
    desk: ReadingDesk,
    /// What every use of the backend takes one of.
    permits: KeyPlaces,
    running: HashMap<Id, Opening>,
    due: VecDeque<Candidate>,
    /// Whether `due` is what the store says, as far as it goes.
    fresh: bool,
    /// Whether the store had more than was read.
    more: bool,
    /// When something more is due.
    next: Option<Instant>,
    /// How often the backend could not be reached, in a row.
    failures: u32,
    /// Why nothing can be decrypted.
    pub(super) problem: Option<String>,
    /// Nothing is begun until then.
    rest: Option<Instant>,
    /// When to look again.
    pub(super) wake: Option<Instant>,
}

/// An item that is being opened.
#[derive(Debug)]
struct Opening {
    candidate: Candidate,
    cancel: CancellationToken,
    counted: Counted,
}

/// Whether a try of an item is noted as an attempt: it counts once, whether it takes long, fails, or both. Clones are of the
/// same try. Only looked at while the store is written to, so that no two do at the same time.
#[derive(Debug, Clone, Default)]
struct Counted(Arc<AtomicBool>);

impl Counted {
    /// It takes long.
    fn takes_long(&self, transaction: &Transaction<'_>, candidate: Candidate) -> Result<(), StoreError> {
        if self.0.swap(true, Ordering::SeqCst) {
            // It has ended meanwhile.
            return Ok(());
        }
        reading::note_attempt(transaction, candidate, None)
    }

    /// It has failed, which is about to be noted as an attempt.
    fn failed(&self, transaction: &Transaction<'_>, candidate: Candidate) -> Result<(), StoreError> {
        if self.0.swap(true, Ordering::SeqCst) {
            reading::take_back_attempt(transaction, candidate)?;
        }
        Ok(())
    }
}

impl Reading {
    /// `calls` are the places of all calls.
    pub(super) fn new(desk: ReadingDesk, calls: Places) -> Self {
        Self {
            desk,
            permits: KeyPlaces::new(PERMITS, calls),
            running: HashMap::new(),
            due: VecDeque::new(),
            fresh: false,
            more: false,
            next: None,
            failures: 0,
            problem: None,
            rest: None,
            // It begins with the daemon.
            wake: Some(Instant::now()),
        }
    }

    /// The backend's name.
    pub(super) fn backend(&self) -> &'static str {
        self.desk.decryptor.name()
    }

    pub(super) fn permits(&self) -> KeyPlaces {
        self.permits.clone()
    }

    /// How many items are being opened.
    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn busy(&self) -> HashSet<ItemId> {
        self.running.values().map(|opening| opening.candidate.item.id()).collect()
    }

    /// An item's ciphertext has come.
    pub(super) fn add(&mut self, candidate: Candidate) {
        if self.fresh && !self.more && !self.due.contains(&candidate) {
            self.due.push_back(candidate);
        }
    }

    /// What is shown, or to be opened, has changed.
    pub(super) fn look_again(&mut self) {
        self.fresh = false;
    }

    /// The user wants it to be tried again, at once.
    pub(super) fn forget_failures(&mut self) {
        (self.failures, self.rest, self.problem) = (0, None, None);
    }
}

fn change(candidate: Candidate, step: ReadStep) -> Event {
    Event::Read(ReadChange { source: candidate.source, item: candidate.item.id(), step })
}

/// Waits for an item to be opened. Where that takes long it is noted as an attempt meanwhile.
async fn noting_long<T>(store: &Store, candidate: Candidate, counted: Counted, opening: impl Future<Output = T>) -> T {
    let note = async {
        tokio::time::sleep(LONG).await;
        let noted = store.write(move |transaction| counted.takes_long(transaction, candidate));
        if let Err(error) = noted.await {
            tracing::error!(error = failure::chain(&error), "could not note that an item takes long");
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        biased;
        ended = opening => ended,
        never = note => match never {},
    }
}

impl Engine {
    /// Begins to open what is due and has room, unless the daemon ends.
    pub(super) async fn start_reading(&mut self) {
        if self.quit.is_cancelled() {
            // What is stopped now is opened after the next start.
            return;
        }
        let now = Instant::now();
        if let Err(error) = self.refill_reading().await {
            tracing::error!(error = failure::chain(&error), "could not read what is to be decrypted");
            self.reading.wake = Some(now + AFTER_STORE_FAULT);
            return;
        }
        self.reading.wake = self.reading.rest.filter(|rest| *rest > now);
        if self.reading.wake.is_some() {
            return;
        }
        self.reading.rest = None;
        while self.reading.running.len() < PERMITS {
            let Some(candidate) = self.reading.due.pop_front() else { break };
            if !self.reading.busy().contains(&candidate.item.id()) {
                self.start_opening(candidate);
            }
        }
        self.reading.wake = self.reading.next;
    }

    /// Reads what is due, where that may have changed or is used up; stops what is not to be opened any more.
    async fn refill_reading(&mut self) -> Result<(), StoreError> {
        let now = Instant::now();
        let something_is_due = self.reading.next.is_some_and(|next| next <= now);
        let used_up = self.reading.due.is_empty() && self.reading.more;
        if self.reading.fresh && !something_is_due && !used_up {
            return Ok(());
        }
        let (busy, wall) = (self.reading.busy(), self.clock.now());
        let running: Vec<_> = self.reading.running.values().map(|opening| opening.candidate).collect();
        let read = move |transaction: &Transaction<'_>| {
            let due = reading::due(transaction, wall, &busy, READ_AT_ONCE)?;
            let mut doomed = HashSet::new();
            for candidate in running {
                if reading::job(transaction, candidate)?.is_none() {
                    doomed.insert(candidate.item.id());
                }
            }
            Ok((due, doomed))
        };
        let (due, doomed) = self.store.read(read).await?;
        for opening in self.reading.running.values() {
            if doomed.contains(&opening.candidate.item.id()) {
                opening.cancel.cancel();
            }
        }
        self.reading.fresh = true;
        self.reading.more = due.items.len() >= READ_AT_ONCE;
        self.reading.next = due.next.map(|wait| now + wait);
        self.reading.due = due.items.into();
        Ok(())
    }

    fn start_opening(&mut self, candidate: Candidate) {
        let (desk, permits) = (self.reading.desk.clone(), self.reading.permits());
        let cancel = CancellationToken::new();
        let (stop, counted) = (cancel.clone(), Counted::default());
        let count = counted.clone();
        let task = self.tasks.spawn(async move {
            let _permit = permits.take().await;
            let opening = read(&desk, candidate, Arc::new(()), &stop);
            Ended::Read(Box::new(noting_long(&desk.store, candidate, count, opening).await))
        });
        self.reading.running.insert(task.id(), Opening { candidate, cancel, counted });
        self.emit(change(candidate, ReadStep::Started));
    }

    /// An item was opened, or not.
    pub(super) async fn read_ended(&mut self, task: Id, ended: Result<Read, ReadError>) {
        let Some(Opening { candidate, cancel, counted }) = self.reading.running.remove(&task) else { return };
        match ended {
            Ok(Read::Decrypted) => {
                self.reading.forget_failures();
                self.emit(change(candidate, ReadStep::Decrypted));
                self.sources_changed([candidate.source]);
            }
            // It was opened before, or is not there any more: whoever waits is told of that elsewhere.
            Ok(Read::Gone) if !cancel.is_cancelled() => self.reading.look_again(),
            Ok(Read::Gone) => self.opening_stopped(candidate),
            Err(_) if cancel.is_cancelled() => self.opening_stopped(candidate),
            Err(error) => self.read_failed(candidate, counted, &error).await,
        }
        self.read_over().await;
    }

    /// An item was told to stop. Meanwhile its deletion may have been taken back: as long as it ran it was not due.
    fn opening_stopped(&mut self, candidate: Candidate) {
        self.emit(change(candidate, ReadStep::Stopped));
        self.reading.look_again();
    }

    /// Goes on after an item: what it kept from being erased goes now.
    async fn read_over(&mut self) {
        self.erase_what_was_left();
        self.start_reading().await;
    }

    async fn read_failed(&mut self, candidate: Candidate, counted: Counted, error: &ReadError) {
        let (reason, meaning) = (error.reason(), error.meaning());
        tracing::warn!(item = %candidate.item.id(), ?meaning, "an item could not be decrypted");
        match meaning {
            Meaning::Barred => {
                // Nothing else would come out better now. Next time others are asked about first: so it does no more than
                // that if the fault is its own after all.
                self.rest_reading(&reason);
                self.postpone_reading(candidate, counted, reason, false).await;
            }
            Meaning::Later => self.postpone_reading(candidate, counted, reason, true).await,
            Meaning::Sealed(seal) => {
                if seal == Seal::Denied {
                    // Whoever said no is not asked about the next one at once.
                    self.rest_reading(&reason);
                }
                let stored = reason.clone();
                let noted = self.store.write(move |transaction| {
                    counted.failed(transaction, candidate)?;
                    reading::note_sealed(transaction, candidate, seal, &stored)
                });
                if let Err(error) = noted.await {
                    tracing::error!(error = failure::chain(&error), "could not note why an item stays sealed");
                    self.reading.rest = Some(Instant::now() + AFTER_STORE_FAULT);
                    self.reading.look_again();
                }
                self.emit(change(candidate, ReadStep::Sealed(failure(FailureKind::Sealed, reason))));
                self.sources_changed([candidate.source]);
            }
            Meaning::Stopped => {
                self.emit(change(candidate, ReadStep::Stopped));
                // What has vanished is fetched again.
                self.downloading.look_again();
                self.start_downloads().await;
            }
        }
    }

    /// The backend cannot be reached, or denied its use: it is left alone, longer each time.
    fn rest_reading(&mut self, reason: &str) {
        self.reading.failures = self.reading.failures.saturating_add(1);
        let wait = self.acting.waits().after(self.reading.failures, fastrand::f64());
        self.reading.rest = Some(Instant::now() + wait);
        self.reading.problem = Some(reason.to_owned());
    }

    async fn postpone_reading(&mut self, candidate: Candidate, counted: Counted, reason: String, own_fault: bool) {
        let (stored, now) = (reason.clone(), self.clock.now());
        let (waits, jitter) = (self.acting.waits(), fastrand::f64());
        let postponed = self.store.write(move |transaction| {
            counted.failed(transaction, candidate)?;
            if own_fault {
                let wait = Wait::Growing { now, waits: &waits, jitter, asked: Duration::ZERO };
                downloads::postpone(transaction, candidate.item, &stored, wait).map(drop)
            } else {
                reading::note_attempt(transaction, candidate, Some(&stored))
            }
        });
        if let Err(error) = postponed.await {
            tracing::error!(error = failure::chain(&error), "could not note why an item waits");
            self.reading.rest = Some(Instant::now() + AFTER_STORE_FAULT);
        }
        self.reading.look_again();
        self.emit(change(candidate, ReadStep::Postponed(failure(FailureKind::KeyUnreachable, reason))));
    }

    /// The task that opened an item panicked.
    pub(super) async fn read_panicked(&mut self, task: Id) -> bool {
        let Some(opening) = self.reading.running.remove(&task) else { return false };
        let reason = "opening it met a fault: see the daemon's log".to_owned();
        self.postpone_reading(opening.candidate, opening.counted, reason, true).await;
        self.read_over().await;
        true
    }

    /// Looks whether other secret keys are there than before: what found none is tried again then.
    pub(super) fn look_for_secret_keys(&mut self) {
        let (store, decryptor) = (self.store.clone(), Arc::clone(&self.reading.desk.decryptor));
        let (permits, stop) = (self.reading.permits(), self.quit.clone());
        self.tasks.spawn(async move {
            let place = permits.take().await;
            let keys = match work_in(Some(place), move || decryptor.secret_keys(&stop)).await {
                Ok(Ok(keys)) => keys,
                Ok(Err(error)) => {
                    tracing::warn!(error = failure::chain(&error), "could not list the secret keys");
                    return Ended::SecretKeys(false);
                }
                Err(_panicked) => return Ended::SecretKeys(false),
            };
            let noted = store.write(move |transaction| reading::note_secret_keys(transaction, &keys)).await;
            Ended::SecretKeys(noted.unwrap_or_else(|error| {
                tracing::error!(error = failure::chain(&error), "could not note which secret keys there are");
                false
            }))
        });
    }

    /// The same, if there is anything that found none.
    pub(super) async fn look_for_secret_keys_if_missed(&mut self) {
        match self.store.read(reading::misses_keys).await {
            Ok(true) => self.look_for_secret_keys(),
            Ok(false) => {}
            Err(error) => tracing::error!(error = failure::chain(&error), "could not read what misses a key"),
        }
    }

    pub(super) async fn secret_keys_ended(&mut self, changed: bool) {
        if changed {
            self.reading.look_again();
            self.start_reading().await;
        }
    }

    /// The daemon ends: what is being opened stops.
    pub(super) fn stop_reading(&mut self) {
        for opening in self.reading.running.values() {
            opening.cancel.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::value::{SourceId, SubmissionId};
    use rusqlite::params;

    use super::*;
    use crate::engine::EngineParts;
    use crate::openpgp::decrypt::DecryptError;
    use crate::store::outbox::ItemName;

    async fn attempts(store: &Store) -> u32 {
        let read = |transaction: &Transaction<'_>| {
            Ok(transaction.query_row("SELECT attempts FROM local_item", [], |row| row.get(0))?)
        };
        store.read(read).await.unwrap()
    }

    async fn note_long(engine: &Engine, candidate: Candidate, counted: &Counted) {
        let counted = counted.clone();
        engine.store.write(move |transaction| counted.takes_long(transaction, candidate)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_is_noted_while_it_runs_and_counts_once() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let source: SourceId = "00000001-0000-4000-8000-000000000000".parse().unwrap();
        let message: SubmissionId = "00000002-0000-4000-8000-000000000000".parse().unwrap();
        let candidate = Candidate { source, item: ItemName::Message(message) };
        let held = store.write(move |transaction| {
            transaction.execute(
                "INSERT INTO server_source (id, digest, designation, starred, last_updated_us, interactions)
                 VALUES (?1, zeroblob(32), 'calm sea', 0, 1, 1)",
                [source.as_str()],
            )?;
            transaction.execute(
                "INSERT INTO server_submission (id, digest, source_id, kind, item_order, size_bytes)
                 VALUES (?1, zeroblob(32), ?2, 'message', 1, 9)",
                params![message.as_str(), source.as_str()],
            )?;
            downloads::note_claim(transaction, candidate.item, None)?;
            downloads::note_downloaded(transaction, candidate, 9)
        });
        assert!(held.await.unwrap());
        noting_long(&store, candidate, Counted::default(), std::future::ready(())).await;
        assert_eq!(attempts(&store).await, 0);
        let opening = async {
            tokio::time::sleep(2 * LONG).await;
            for _ in 0..100_000 {
                if attempts(&store).await > 0 {
                    return;
                }
            }
        };
        let counted = Counted::default();
        noting_long(&store, candidate, counted.clone(), opening).await;
        assert_eq!(attempts(&store).await, 1);

        // Then it fails: that is the same attempt.
        let (mut engine, _handle) = Engine::new(EngineParts::without_qrexec(home.path(), store)).await.unwrap();
        engine.postpone_reading(candidate, counted, "why".to_owned(), true).await;
        assert_eq!(attempts(&engine.store).await, 1);
        // Another one is another, and what is to be noted of it when it has failed already counts no more.
        let counted = Counted::default();
        engine.postpone_reading(candidate, counted.clone(), "why".to_owned(), false).await;
        assert_eq!(attempts(&engine.store).await, 2);
        note_long(&engine, candidate, &counted).await;
        assert_eq!(attempts(&engine.store).await, 2);
        let counted = Counted::default();
        note_long(&engine, candidate, &counted).await;
        assert_eq!(attempts(&engine.store).await, 3);
        engine.read_failed(candidate, counted, &ReadError::Decrypt(DecryptError::Cut)).await;
        assert_eq!(attempts(&engine.store).await, 3);
    }
}
