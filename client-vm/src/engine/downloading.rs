//! The lanes that download: messages and replies by themselves, several in one call; files when the user asks, each in its
//! own call.
//!
//! **Invariant:** at most one fetch an item. One that was told to stop counts until it has ended.
//!
//! **Invariant:** what is being deleted, or is not shown any more, is not fetched, and what was fetched of it goes.
//!
//! **Invariant:** for what the disk has no room for no call is opened and nothing is written.
//!
//! **Invariant:** where dom0 asks about downloads, no second call for messages is made without the user's word.

mod asked;
mod call;
mod ended;
mod progress;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use control::{DownloadChange, DownloadLane, DownloadStep, Event, PauseReason};
use protocol::Scope;
use protocol::value::ItemId;
use qubes_rpc::qrexec::QrexecCall;
use tokio::task::Id;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::call::MessagesCall;
use self::progress::{Pace, Reporter};
use super::session::SessionState;
use super::{Ended, Engine};
use crate::download::{Desk, FetchError, Fetched, fetch};
use crate::failure;
use crate::files::{Files, KEPT};
use crate::proxy::{Patience, ProxyError};
use crate::store::StoreError;
use crate::store::downloads::{self, Candidate, DueItem};

/// How many messages are fetched at the same time.
const MESSAGES_AT_ONCE: usize = 8;
/// How many files are fetched at the same time, each in its own call.
const FILES_AT_ONCE: usize = 2;
/// How many items are read from the store at once.
const READ_AT_ONCE: usize = 512;
/// How long to leave a store alone that has failed.
const AFTER_STORE_FAULT: Duration = Duration::from_secs(5);
/// How long after it had none the disk is looked at again for room.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(10);

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
    /// No call for messages is opened until the user says so: dom0 would ask about another one.
    held: bool,
    /// How many bytes are free where something waits for more.
    no_room: Option<u64>,
    pace: Arc<Pace>,
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

/// What is due, and for how much of it there must be room.
#[derive(Debug, Clone, Copy)]
struct Next {
    candidate: Candidate,
    /// In bytes; what there is of it already needs none.
    missing: u64,
}

impl Next {
    fn of(due: DueItem, files: &Files) -> Self {
        let there = due.part.map_or(0, |number| files.partial_len(number));
        Self { candidate: due.candidate, missing: due.listed.get().saturating_sub(there) }
    }

    /// Whether it leaves the database room where so many bytes are free. Where nobody can say, it does.
    fn fits(&self, free: Option<u64>) -> bool {
        free.is_none_or(|free| free >= KEPT.saturating_add(self.missing))
    }
}

/// What the store said was due.
#[derive(Debug, Default)]
struct Lane {
    due: VecDeque<Next>,
    /// Whether that is still so.
    fresh: bool,
    /// Whether more than that was due.
    more: bool,
    /// When something more is due.
    next: Option<Instant>,
}

impl Lane {
    /// Takes the first that fits.
    fn take(&mut self, free: Option<u64>) -> Option<Candidate> {
        let first = self.due.iter().position(|next| next.fits(free))?;
        self.due.remove(first).map(|next| next.candidate)
    }
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
            held: false,
            no_room: None,
            pace: Arc::default(),
            wake: None,
        }
    }

    /// Why messages are not fetched, where that is for dom0's sake.
    pub(super) fn held_reason(&self) -> Option<PauseReason> {
        self.held.then_some(PauseReason::Dom0)
    }

    /// Why not all is fetched, where that is for want of room.
    pub(super) fn room_reason(&self) -> Option<PauseReason> {
        self.no_room.map(|free| PauseReason::NoRoom { free, kept: KEPT })
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

    /// Something of one's own has failed: it is tried again, and not at once. A longer rest stays as it is.
    fn rest_a_little(&mut self) {
        let rest = Instant::now() + AFTER_STORE_FAULT;
        self.rest = self.rest.max(Some(rest));
        self.wake = Some(rest);
    }

    /// What rests goes on, except for what only the user can say.
    pub(super) fn end_rest(&mut self) {
        self.refusals = 0;
        self.rest = None;
    }

    /// dom0 may be asked again, at once. Gives whether only the user could say so.
    pub(super) fn forget_refusals(&mut self) -> bool {
        self.end_rest();
        std::mem::take(&mut self.held)
    }

    /// What is shown or wanted has changed.
    pub(super) fn look_again(&mut self) {
        self.messages.fresh = false;
        self.files.fresh = false;
    }
}

fn change(candidate: Candidate, step: DownloadStep) -> Event {
    Event::Download(DownloadChange { source: candidate.source, item: candidate.item.id(), step })
}

impl Engine {
    /// Starts whatever is due and has room.
    pub(super) async fn start_downloads(&mut self) {
        let now = Instant::now();
        // First, whatever holds up the rest.
        if let Err(error) = self.stop_doomed().await {
            tracing::error!(error = failure::chain(&error), "could not read what is still to be fetched");
            self.downloading.rest_a_little();
            return;
        }
        self.downloading.rest = self.downloading.rest.filter(|rest| *rest > now);
        if let Some(rest) = self.downloading.rest {
            // What was told of the disk is withdrawn also meanwhile.
            self.look_for_room();
            self.downloading.wake = [Some(rest), self.next_look_for_room()].into_iter().flatten().min();
            return;
        }
        for lane in [DownloadLane::Files, DownloadLane::Messages] {
            if let Err(error) = self.refill(lane).await {
                tracing::error!(error = failure::chain(&error), "could not read what is to be fetched");
                self.downloading.rest_a_little();
                return;
            }
        }
        let free = self.look_for_room();
        let look = self.next_look_for_room();
        if let Err(until) = self.may_go_on() {
            self.downloading.wake = [until, look].into_iter().flatten().min();
            return;
        }
        while self.downloading.running_in(DownloadLane::Files) < FILES_AT_ONCE {
            let Some(candidate) = self.downloading.files.take(free) else { break };
            self.start_file(candidate);
        }
        while self.downloading.running_in(DownloadLane::Messages) < MESSAGES_AT_ONCE
            && self.downloading.messages.due.iter().any(|next| next.fits(free))
        {
            let Some(call) = self.messages_call() else { break };
            let Some(candidate) = self.downloading.messages.take(free) else { break };
            self.start_message(candidate, call);
        }
        let next = [self.downloading.messages.next, self.downloading.files.next, look];
        self.downloading.wake = next.into_iter().flatten().min();
    }

    /// When the disk is to be looked at again, where something waits for room.
    fn next_look_for_room(&self) -> Option<Instant> {
        self.downloading.no_room.map(|_| Instant::now() + LOOK_FOR_ROOM)
    }

    /// Looks whether the disk has room for what is due; gives how much is free, if the kernel says so. That something has none
    /// is told once, and withdrawn once.
    fn look_for_room(&mut self) -> Option<u64> {
        // One question to the kernel. Where it does not say, the writes will.
        let free = self.downloading.desk.files.room().ok();
        let was_short = self.downloading.no_room.is_some();
        let lanes = [&self.downloading.messages, &self.downloading.files];
        let does_not_fit = lanes.iter().any(|lane| lane.due.iter().any(|next| !next.fits(free)));
        let short = free.filter(|free| does_not_fit || (*free < KEPT && !self.downloading.running.is_empty()));
        self.downloading.no_room = short;
        match (was_short, self.downloading.room_reason()) {
            (false, Some(reason)) => {
                tracing::warn!(free = short, "not all is fetched: the disk has no room for it");
                self.emit(Event::Paused(reason));
            }
            (true, None) => {
                tracing::info!("the disk has room again");
                self.tell_resumed();
            }
            (false, None) | (true, Some(_)) => {}
        }
        free
    }

    /// Stops what is not to be fetched any more, where that may have changed.
    async fn stop_doomed(&self) -> Result<(), StoreError> {
        let fresh = self.downloading.messages.fresh && self.downloading.files.fresh;
        if fresh || self.downloading.running.is_empty() {
            return Ok(());
        }
        let running: Vec<_> = self.downloading.running.values().map(|fetching| fetching.candidate).collect();
        let read = move |transaction: &rusqlite::Transaction<'_>| {
            let mut doomed = HashSet::new();
            for candidate in running {
                if downloads::job(transaction, candidate)?.is_none() {
                    doomed.insert(candidate.item.id());
                }
            }
            Ok(doomed)
        };
        let doomed = self.store.read(read).await?;
        for fetching in self.downloading.running.values() {
            if doomed.contains(&fetching.candidate.item.id()) {
                fetching.cancel.cancel();
            }
        }
        Ok(())
    }

    /// Reads what is due in a lane, where that may have changed or is used up.
    async fn refill(&mut self, lane: DownloadLane) -> Result<(), StoreError> {
        let now = Instant::now();
        let of_lane = self.downloading.lane(lane);
        let something_is_due = of_lane.next.is_some_and(|next| next <= now);
        let used_up = of_lane.due.is_empty() && of_lane.more;
        if of_lane.fresh && !something_is_due && !used_up {
            return Ok(());
        }
        let (busy, wall, files) = (self.downloading.busy(), self.clock.now(), self.downloading.desk.files.clone());
        let read = move |transaction: &rusqlite::Transaction<'_>| {
            let due = downloads::due(transaction, lane, wall, &busy, READ_AT_ONCE)?;
            // Here, off the async threads: nobody writes a part that is not being fetched.
            let items: VecDeque<_> = due.items.into_iter().map(|item| Next::of(item, &files)).collect();
            Ok((items, due.next))
        };
        let (due, next) = self.store.read(read).await?;
        *self.downloading.lane(lane) =
            Lane { fresh: true, more: due.len() >= READ_AT_ONCE, next: next.map(|wait| now + wait), due };
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
        let (events, pace) = (self.events.clone(), Arc::clone(&self.downloading.pace));
        let reporter = Reporter { candidate, received: Arc::default(), events, pace };
        (reporter, CancellationToken::new())
    }

    fn started(&mut self, task: Id, fetching: Fetching) {
        self.emit(change(fetching.candidate, DownloadStep::Started));
        self.downloading.running.insert(task, fetching);
    }

    /// Stops what runs; what is there of it stays.
    pub(super) fn stop_downloads(&mut self) {
        for fetching in self.downloading.running.values() {
            fetching.cancel.cancel();
        }
        // Whether there is room is to be seen all the same.
        self.downloading.wake = self.next_look_for_room();
        self.downloading.look_again();
    }

    /// The session is over.
    pub(super) fn end_downloads(&mut self) {
        self.stop_downloads();
        self.let_downloads_ask();
        self.close_messages_call();
    }
}

fn stopped() -> Ended {
    Ended::Fetch(Box::new(FetchEnded::Fetched(Err(FetchError::Cancelled))))
}

#[cfg(test)]
mod tests;
