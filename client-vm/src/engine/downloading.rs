//! The lanes that download: messages and replies by themselves, several in one call; files when the user asks, each in its
//! own call.
//!
//! **Invariant:** at most one fetch an item. One that was told to stop counts until it has ended.
//!
//! **Invariant:** what is being deleted, or is not shown any more, is not fetched, and what was fetched of it goes.

mod call;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use control::{
    DownloadChange, DownloadEntry, DownloadLane, DownloadState, DownloadStep, Event, Failure, FailureKind, SessionEnd,
    Wanted,
};
use protocol::Scope;
use protocol::value::{ItemId, Timestamp};
use qubes_rpc::qrexec::{OpenError, QrexecCall};
use tokio::sync::broadcast;
use tokio::task::Id;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::call::MessagesCall;
use super::handle::Answer;
use super::session::SessionState;
use super::{Ended, Engine};
use crate::download::{Desk, FetchError, Fetched, Step, Verdict, Watcher, fetch};
use crate::failure::{self, failure};
use crate::files::Files;
use crate::proxy::{Patience, ProxyError};
use crate::store::StoreError;
use crate::store::downloads::{self, Candidate};

/// How many messages are fetched at the same time.
const MESSAGES_AT_ONCE: usize = 8;
/// How many files are fetched at the same time, each in its own call.
const FILES_AT_ONCE: usize = 2;
/// How many items are read from the store at once.
const READ_AT_ONCE: usize = 512;
/// How long to leave a store alone that has failed.
const AFTER_STORE_FAULT: Duration = Duration::from_secs(5);
/// How long to rest where only the user can say that it goes on: as good as for ever.
const UNTIL_THE_USER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[derive(Debug)]
pub(super) struct Downloading {
    desk: Desk,
    running: HashMap<Id, Fetching>,
    messages: Lane,
    files: Lane,
    pub(super) call: MessagesCall,
    /// How often in a row dom0 let no call through.
    refusals: u32,
    /// Nothing is begun until then: the store has failed, or dom0 let no call through.
    rest: Option<Instant>,
    /// When something is due.
    pub(super) wake: Option<Instant>,
}

#[derive(Debug)]
struct Fetching {
    lane: DownloadLane,
    candidate: Candidate,
    received: Arc<AtomicU64>,
    cancel: CancellationToken,
}

/// What the store said was due.
#[derive(Debug, Default)]
struct Lane {
    due: VecDeque<Candidate>,
    /// Whether that is still so.
    fresh: bool,
    /// Whether more than that was due.
    more: bool,
    /// When something more is due.
    next: Option<Instant>,
}

/// How a fetch ended.
#[derive(Debug)]
pub(super) enum FetchEnded {
    /// As the session with the proxy went.
    Fetched(Result<Fetched, FetchError>),
    /// The file's own call could not be opened.
    NotOpened(ProxyError),
}

impl Downloading {
    pub(super) fn new(desk: Desk) -> Self {
        Self {
            desk,
            running: HashMap::new(),
            messages: Lane::default(),
            files: Lane::default(),
            call: MessagesCall::None,
            refusals: 0,
            rest: None,
            wake: None,
        }
    }

    fn lane(&mut self, lane: DownloadLane) -> &mut Lane {
        match lane {
            DownloadLane::Messages => &mut self.messages,
            DownloadLane::Files => &mut self.files,
        }
    }

    pub(super) fn running_in(&self, lane: DownloadLane) -> usize {
        self.running.values().filter(|fetching| fetching.lane == lane).count()
    }

    pub(super) fn files(&self) -> &Files {
        &self.desk.files
    }

    pub(super) fn busy(&self) -> HashSet<ItemId> {
        self.running.values().map(|fetching| fetching.candidate.item.id()).collect()
    }

    /// Something of one's own has failed: it is tried again, and not at once.
    fn rest_a_little(&mut self) {
        self.rest = Some(Instant::now() + AFTER_STORE_FAULT);
        self.wake = self.rest;
    }

    /// dom0 may be asked again, at once.
    pub(super) fn forget_refusals(&mut self) {
        self.refusals = 0;
        self.rest = None;
    }

    /// What is shown or wanted has changed.
    pub(super) fn look_again(&mut self) {
        self.messages.fresh = false;
        self.files.fresh = false;
    }
}

/// Tells the front ends how a fetch goes on.
struct Reporter {
    candidate: Candidate,
    received: Arc<AtomicU64>,
    events: broadcast::Sender<Event>,
}

impl Watcher for Reporter {
    fn step(&self, step: Step) {
        tracing::debug!(item = %self.candidate.item.id(), ?step, "download");
    }

    fn progress(&self, received: u64, total: Option<u64>) {
        self.received.store(received, Ordering::Relaxed);
        let step = DownloadStep::Progress { received, total };
        drop(self.events.send(change(self.candidate, step)));
    }
}

fn change(candidate: Candidate, step: DownloadStep) -> Event {
    Event::Download(DownloadChange { source: candidate.source, item: candidate.item.id(), step })
}

impl Engine {
    /// Starts whatever is due and has room.
    pub(super) async fn start_downloads(&mut self) {
        let now = Instant::now();
        self.downloading.wake = self.downloading.rest.filter(|rest| *rest > now);
        if self.downloading.wake.is_some() {
            return;
        }
        self.downloading.rest = None;
        for lane in [DownloadLane::Files, DownloadLane::Messages] {
            if let Err(error) = self.refill(lane).await {
                tracing::error!(error = failure::chain(&error), "could not read what is to be fetched");
                self.downloading.rest = Some(now + AFTER_STORE_FAULT);
                self.downloading.wake = self.downloading.rest;
                return;
            }
        }
        // What is not to be fetched any more has been stopped by now, whatever holds up the rest.
        if let Err(until) = self.may_go_on() {
            self.downloading.wake = until;
            return;
        }
        while self.downloading.running_in(DownloadLane::Files) < FILES_AT_ONCE {
            let Some(candidate) = self.downloading.files.due.pop_front() else { break };
            self.start_file(candidate);
        }
        while self.downloading.running_in(DownloadLane::Messages) < MESSAGES_AT_ONCE
            && !self.downloading.messages.due.is_empty()
        {
            let Some(call) = self.messages_call() else { break };
            let Some(candidate) = self.downloading.messages.due.pop_front() else { break };
            self.start_message(candidate, call);
        }
        let next = [self.downloading.messages.next, self.downloading.files.next];
        self.downloading.wake = next.into_iter().flatten().min();
    }

    /// Reads what is due in a lane, where that may have changed or is used up; stops what is not to be fetched any more.
    async fn refill(&mut self, lane: DownloadLane) -> Result<(), StoreError> {
        let now = Instant::now();
        let of_lane = self.downloading.lane(lane);
        let something_is_due = of_lane.next.is_some_and(|next| next <= now);
        let used_up = of_lane.due.is_empty() && of_lane.more;
        if of_lane.fresh && !something_is_due && !used_up {
            return Ok(());
        }
        let (busy, wall) = (self.downloading.busy(), self.clock.now());
        let running: Vec<_> = self.downloading.running.values().map(|fetching| fetching.candidate).collect();
        let read = move |transaction: &rusqlite::Transaction<'_>| {
            let due = downloads::due(transaction, lane, wall, &busy, READ_AT_ONCE)?;
            let mut doomed = HashSet::new();
            for candidate in running {
                if downloads::job(transaction, candidate)?.is_none() {
                    doomed.insert(candidate.item.id());
                }
            }
            Ok((due, doomed))
        };
        let (due, doomed) = self.store.read(read).await?;
        for fetching in self.downloading.running.values() {
            if doomed.contains(&fetching.candidate.item.id()) {
                fetching.cancel.cancel();
            }
        }
        *self.downloading.lane(lane) = Lane {
            fresh: true,
            more: due.items.len() >= READ_AT_ONCE,
            next: due.next.map(|wait| now + wait),
            due: due.items.into(),
        };
        Ok(())
    }

    fn start_message(&mut self, candidate: Candidate, call: Arc<QrexecCall>) {
        let SessionState::In(session) = &self.session else { return };
        let (token, desk) = (session.token.clone(), self.downloading.desk.clone());
        let (reporter, cancel) = self.reporter(candidate);
        let received = Arc::clone(&reporter.received);
        let stop = cancel.clone();
        let task = self.tasks.spawn(async move {
            let fetched = fetch(call.connection(), &token, candidate, &desk, &reporter, &stop).await;
            // At the session's end the last one that uses the call closes it in order: the proxy is told to stop.
            if let Some(call) = Arc::into_inner(call) {
                call.close().await;
            }
            Ended::Fetch(Box::new(FetchEnded::Fetched(fetched)))
        });
        self.started(task.id(), Fetching { lane: DownloadLane::Messages, candidate, received, cancel });
    }

    fn start_file(&mut self, candidate: Candidate) {
        let SessionState::In(session) = &self.session else { return };
        let (token, level, desk) = (session.token.clone(), session.api_level, self.downloading.desk.clone());
        let (proxy, waiting) = (self.proxy.clone(), self.waiting_event());
        let (reporter, cancel) = self.reporter(candidate);
        let received = Arc::clone(&reporter.received);
        let stop = cancel.clone();
        let task = self.tasks.spawn(async move {
            let opened = tokio::select! {
                biased;
                () = stop.cancelled() => return stopped(),
                opened = proxy.open(Scope::Download, Some(level), Patience::Usual, waiting) => opened,
            };
            let call = match opened {
                Ok(call) => call,
                Err(error) => return Ended::Fetch(Box::new(FetchEnded::NotOpened(error))),
            };
            let fetched = fetch(call.connection(), &token, candidate, &desk, &reporter, &stop).await;
            call.close().await;
            Ended::Fetch(Box::new(FetchEnded::Fetched(fetched)))
        });
        self.started(task.id(), Fetching { lane: DownloadLane::Files, candidate, received, cancel });
    }

    fn reporter(&self, candidate: Candidate) -> (Reporter, CancellationToken) {
        let reporter = Reporter { candidate, received: Arc::default(), events: self.events.clone() };
        (reporter, CancellationToken::new())
    }

    fn started(&mut self, task: Id, fetching: Fetching) {
        self.emit(change(fetching.candidate, DownloadStep::Started));
        self.downloading.running.insert(task, fetching);
    }

    /// A fetch has ended.
    pub(super) async fn fetch_ended(&mut self, task: Id, ended: FetchEnded) {
        let Some(fetching) = self.downloading.running.remove(&task) else { return };
        // What an older session is told says nothing of the present one; what was stored stays.
        let over = fetching.cancel.is_cancelled();
        match ended {
            FetchEnded::Fetched(Ok(Fetched::Stored(size))) => {
                self.downloading.refusals = 0;
                if !over {
                    self.lift_network_pause();
                }
                self.emit(change(fetching.candidate, DownloadStep::Stored { size }));
                self.sources_changed([fetching.candidate.source]);
                self.reading.add(fetching.candidate);
                self.start_reading().await;
            }
            FetchEnded::Fetched(Ok(Fetched::Gone) | Err(FetchError::Cancelled)) => self.fetch_stopped(&fetching),
            FetchEnded::Fetched(Err(_)) | FetchEnded::NotOpened(_) if over => self.fetch_stopped(&fetching),
            FetchEnded::Fetched(Err(error)) => self.fetch_failed(&fetching, &error).await,
            FetchEnded::NotOpened(error) => {
                let told = failure::of_proxy(&error);
                // Where dom0 asks about each file, what it says of one says nothing of the others.
                if !self.goes_on_by_the_user(fetching.lane) {
                    self.downloads_not_opened(&error, &told);
                }
                self.postpone(&fetching, &told.message, false, Duration::ZERO).await;
            }
        }
        self.fetch_over().await;
    }

    fn fetch_stopped(&mut self, fetching: &Fetching) {
        self.emit(change(fetching.candidate, DownloadStep::Stopped));
        self.downloading.lane(fetching.lane).fresh = false;
        self.erase();
    }

    /// A call for downloads could not be opened. Where dom0 lets none through, or cannot start the VM, which looks the same,
    /// only downloads wait.
    pub(super) fn downloads_not_opened(&mut self, error: &ProxyError, told: &Failure) {
        let refused = matches!(error, ProxyError::Open(OpenError::Refused { .. } | OpenError::NoSuchService { .. }));
        if refused || error.nobody_answered() {
            tracing::warn!("downloads wait: their calls are refused, or nobody answers");
            self.downloading.refusals = self.downloading.refusals.saturating_add(1);
            let wait = match self.proxy.asks(Scope::Download) {
                true => UNTIL_THE_USER,
                false => self.acting.waits().after(self.downloading.refusals, fastrand::f64()),
            };
            self.downloading.rest = Some(Instant::now() + wait);
        } else {
            self.pause_network(told);
        }
    }

    /// Whether dom0 asks about each call of the lane's: then what is not fetched in one is fetched only when the user says
    /// so again.
    fn goes_on_by_the_user(&self, lane: DownloadLane) -> bool {
        lane == DownloadLane::Files && self.proxy.asks(Scope::Download)
    }

    /// What rests goes on, unless only the user can say so.
    pub(super) fn end_downloads_rest(&mut self) {
        if !self.proxy.asks(Scope::Download) {
            self.downloading.forget_refusals();
        }
    }

    /// Goes on after a fetch: what it kept from being erased goes now.
    async fn fetch_over(&mut self) {
        self.erase_what_was_left();
        self.send_acts().await;
        self.start_downloads().await;
    }

    /// The task of a fetch panicked.
    pub(super) async fn fetch_panicked(&mut self, task: Id) -> bool {
        let Some(fetching) = self.downloading.running.remove(&task) else { return false };
        let reason = "fetching it met a fault: see the daemon's log";
        self.postpone(&fetching, reason, true, Duration::ZERO).await;
        self.fetch_over().await;
        true
    }

    async fn fetch_failed(&mut self, fetching: &Fetching, error: &FetchError) {
        let (reason, item) = (error.reason(), fetching.candidate.item);
        let verdict = error.verdict();
        tracing::warn!(item = %item.id(), ?verdict, "a download failed");
        match verdict {
            Verdict::Cancelled => {}
            Verdict::SessionOver => {
                self.put_back(fetching, &reason, false, Duration::ZERO).await;
                self.session = SessionState::Out;
                self.leave(SessionEnd::Expired);
            }
            Verdict::Barred => {
                self.pause_network(&failure(FailureKind::Unreachable, reason.clone()));
                self.postpone(fetching, &reason, false, Duration::ZERO).await;
            }
            Verdict::Lost => {
                self.close_messages_call_if_broken();
                if fetching.lane == DownloadLane::Messages && self.proxy.asks(Scope::Download) {
                    // dom0 would be asked about another call.
                    self.downloading.rest = Some(Instant::now() + UNTIL_THE_USER);
                }
                // A proxy that ends as soon as it is asked would be started again and again.
                self.pause_network(&failure(FailureKind::Unreachable, reason.clone()));
                self.postpone(fetching, &reason, true, Duration::ZERO).await;
            }
            Verdict::Later { retry_after } => {
                self.postpone(fetching, &reason, true, retry_after.unwrap_or_default()).await;
            }
            Verdict::Failed => self.fail_download(fetching, reason).await,
        }
    }

    /// The item is fetched only when the user says so.
    async fn fail_download(&mut self, fetching: &Fetching, reason: String) {
        let (item, stored) = (fetching.candidate.item, reason.clone());
        let failed = self.store.write(move |transaction| downloads::fail(transaction, item, &stored)).await;
        if let Err(error) = failed {
            tracing::error!(error = failure::chain(&error), "could not note that a download failed");
        }
        let told = failure(FailureKind::ServerFault, reason);
        self.emit(change(fetching.candidate, DownloadStep::Failed(told)));
        self.sources_changed([fetching.candidate.source]);
    }

    /// The item goes back to its place; where it was its own fault, not before some time.
    async fn postpone(&mut self, fetching: &Fetching, reason: &str, own_fault: bool, asked: Duration) {
        if self.goes_on_by_the_user(fetching.lane) {
            return self.fail_download(fetching, reason.to_owned()).await;
        }
        self.put_back(fetching, reason, own_fault, asked).await;
    }

    /// The same, whatever dom0 asks about.
    async fn put_back(&mut self, fetching: &Fetching, reason: &str, own_fault: bool, asked: Duration) {
        let (item, stored, now) = (fetching.candidate.item, reason.to_owned(), self.clock.now());
        let (waits, jitter) = (self.acting.waits(), fastrand::f64());
        let postponed = self.store.write(move |transaction| {
            let wait = own_fault.then_some((now, &waits, jitter, asked));
            downloads::postpone(transaction, item, &stored, wait)
        });
        let next_try: Option<Timestamp> = match postponed.await {
            Ok(next_try) => next_try,
            Err(error) => {
                tracing::error!(error = failure::chain(&error), "could not note why a download waits");
                self.downloading.rest = Some(Instant::now() + AFTER_STORE_FAULT);
                None
            }
        };
        self.downloading.lane(fetching.lane).fresh = false;
        let told = failure(FailureKind::Unreachable, reason);
        self.emit(change(fetching.candidate, DownloadStep::Postponed { failure: told, next_try }));
    }

    /// The user asks for files, or again for what has failed.
    pub(super) async fn want(&mut self, items: Vec<ItemId>, answer: Answer<Wanted>) {
        let now = self.clock.now();
        let wanted = self.store.write(move |transaction| {
            let items = if items.is_empty() { downloads::absent_files(transaction)? } else { items };
            downloads::want(transaction, &items, now)
        });
        let wanted = wanted.await;
        self.downloading.forget_refusals();
        self.downloading.look_again();
        answer.give(wanted.map_err(|error| failure::of_store(&error)));
        self.reading.forget_failures();
        self.reading.look_again();
        self.start_downloads().await;
        self.start_reading().await;
    }

    /// The user does not want files after all.
    pub(super) async fn unwant(&mut self, items: Vec<ItemId>, answer: Answer<Wanted>) {
        let running: Vec<_> = self
            .downloading
            .running
            .values()
            .filter(|fetching| fetching.lane == DownloadLane::Files)
            .map(|fetching| fetching.candidate.item.id())
            .collect();
        let unwanted = self.store.write(move |transaction| {
            let items = if items.is_empty() { downloads::wanted_files(transaction)? } else { items };
            let taken_back = downloads::unwant(transaction, &items)?;
            let already = u64::try_from(items.len().saturating_sub(taken_back.len())).unwrap_or(u64::MAX);
            Ok((taken_back, already))
        });
        match unwanted.await {
            Ok((taken_back, already)) => {
                for fetching in self.downloading.running.values() {
                    let id = fetching.candidate.item.id();
                    if taken_back.contains(&id) && running.contains(&id) {
                        fetching.cancel.cancel();
                    }
                }
                self.downloading.look_again();
                let asked = u64::try_from(taken_back.len()).unwrap_or(u64::MAX);
                answer.give(Ok(Wanted { asked, already }));
            }
            Err(error) => answer.give(Err(failure::of_store(&error))),
        }
        self.start_downloads().await;
    }

    pub(super) fn downloads(&mut self, answer: Answer<Vec<DownloadEntry>>) {
        let (store, now) = (self.store.clone(), self.clock.now());
        let received: HashMap<_, _> = self
            .downloading
            .running
            .values()
            .map(|fetching| (fetching.candidate.item.id(), fetching.received.load(Ordering::Relaxed)))
            .collect();
        self.tasks.spawn(async move {
            let read = store.read(move |transaction| {
                let mut entries = downloads::entries(transaction, DownloadLane::Messages, now)?;
                entries.extend(downloads::entries(transaction, DownloadLane::Files, now)?);
                for entry in &mut entries {
                    if let Some(received) = received.get(&entry.item) {
                        entry.state = DownloadState::Running { received: *received };
                    }
                }
                Ok(entries)
            });
            answer.give(read.await.map_err(|error| failure::of_store(&error)));
            Ended::Done
        });
    }

    /// Stops what runs; what is there of it stays.
    pub(super) fn stop_downloads(&mut self) {
        for fetching in self.downloading.running.values() {
            fetching.cancel.cancel();
        }
        self.downloading.wake = None;
        self.downloading.look_again();
    }

    /// The session is over.
    pub(super) fn end_downloads(&mut self) {
        self.stop_downloads();
        self.downloading.forget_refusals();
        self.close_messages_call();
    }
}

fn stopped() -> Ended {
    Ended::Fetch(Box::new(FetchEnded::Fetched(Err(FetchError::Cancelled))))
}

#[cfg(test)]
mod tests;
