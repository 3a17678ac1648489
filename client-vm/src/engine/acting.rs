//! The lane of acts: takes them, sends them, and settles what became of them.
//!
//! **Invariant:** attempts belong to a session. With its end they end, and what they would have said counts no more: their
//! rows are open, as the store says.
//!
//! **Invariant:** at most [`MAX_CALLS`] qrexec calls for acts are open, and of those that delete or answer, or that dom0 is
//! known to ask about, at most one is opening, since somebody in dom0 may have to answer first.
//!
//! **Invariant:** where dom0 is known to ask about a call, it is not opened again without the user.

mod attempt;
mod calls;
mod grace;
mod settling;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use control::{Act, ActChange, ActId, ActKind, ActStep, Deal, Event, OutgoingReply, QueueEntry, Taken};
use protocol::Scope;
use protocol::value::SourceId;
use qubes_rpc::qrexec::{OpenError, QrexecCall};
use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::attempt::Attempt;
use self::calls::{CallKey, CallNumber, Calls};
use super::handle::Answer;
use super::session::SessionState;
use super::{Ended, Engine};
use crate::acts::{Performed, Step, Watcher, Way};
use crate::failure;
use crate::proxy::{Patience, ProxyError};
use crate::settings::ActSettings;
use crate::store::StoreError;
use crate::store::outbox::{self, Batch, Outcome, Row, Unsent, Waits};

/// How many qrexec calls may be open for acts.
pub(super) const MAX_CALLS: usize = 2;
/// How many acts may be under way in one call.
const MAX_AT_ONCE: usize = 4;
/// How long a call for marks is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(30);
/// How long to rest at most before looking again what is due: the wall clock may have jumped.
const REST: Duration = Duration::from_secs(60);
/// How long to leave a store alone that has failed.
const AFTER_STORE_FAULT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Acting {
    settings: ActSettings,
    watcher: Arc<dyn Watcher>,
    /// The number of the last snapshot that was asked for.
    snapshot: u64,
    calls: Calls,
    running: HashMap<Id, Running>,
    opening: HashMap<Id, (CallKey, AbortHandle)>,
    /// What no call is opened for at present.
    barred: HashMap<CallKey, Barred>,
    /// The store has failed: it is left alone until then.
    rest: Option<Instant>,
    /// What became of an attempt could not be stored: rows may be taken for being sent that are not.
    to_land: bool,
    /// When something is due, or a call has been idle for long enough.
    pub(super) wake: Option<Instant>,
}

/// Why no call is opened.
#[derive(Debug, Clone, Copy)]
struct Barred {
    /// How often in a row nobody has answered.
    failures: u32,
    /// Until when; `None` where only the user can say.
    until: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    call: CallNumber,
    act: ActId,
    kind: ActKind,
    source: SourceId,
    rows: Vec<Row>,
    /// The session is over.
    cancel: CancellationToken,
}

impl Acting {
    /// `snapshot` is the last one that the store knows of.
    pub(super) fn new(settings: ActSettings, snapshot: u64, watcher: Arc<dyn Watcher>) -> Self {
        Self {
            settings,
            watcher,
            snapshot,
            calls: Calls::default(),
            running: HashMap::new(),
            opening: HashMap::new(),
            barred: HashMap::new(),
            rest: None,
            to_land: false,
            wake: None,
        }
    }

    /// The number of the snapshot that is asked for now.
    pub(super) fn next_snapshot(&mut self) -> u64 {
        self.snapshot += 1;
        self.snapshot
    }

    /// How long to wait between attempts.
    pub(super) fn waits(&self) -> Waits {
        self.settings.waits
    }

    /// The number of the last snapshot that was asked for.
    pub(super) fn last_snapshot(&self) -> u64 {
        self.snapshot
    }

    /// How many rows are being sent.
    pub(super) fn running(&self) -> usize {
        self.running.values().map(|running| running.rows.len()).sum()
    }

    /// The user wants acts to be sent: somebody in dom0 may be asked about them again.
    pub(super) fn let_dom0_ask(&mut self) {
        self.barred.clear();
    }

    /// What rests goes on, except for what only the user can say.
    pub(super) fn end_rests(&mut self) {
        self.rest = None;
        self.barred.retain(|_, barred| barred.until.is_none());
    }

    /// When a call may be opened next for which nobody has answered.
    fn next_unbarred(&self, now: Instant) -> Option<Instant> {
        self.barred.values().filter_map(|barred| barred.until).filter(|until| *until > now).min()
    }

    /// After how long a deletion that was confirmed and not made is told.
    pub(super) fn overdue(&self) -> Duration {
        self.settings.overdue
    }
}

impl Engine {
    /// Takes an act: it is stored, and shows, when the answer is given.
    pub(super) async fn take_act(&mut self, act: Act, answer: Answer<Taken>) {
        let Some(journalist) = self.session.journalist() else {
            answer.give(Err(failure::not_signed_in()));
            return;
        };
        let (now, time) = (self.clock.now(), self.acting.settings.delete_grace);
        // What was refused leaves the transaction as an error, so that nothing of it is kept.
        let taken = self.store.write_or(move |transaction| grace::take(transaction, journalist, &act, now, time)).await;
        let enqueued = match taken {
            Ok(enqueued) => enqueued,
            Err(error) => {
                answer.give(Err(failure::of_enqueue(&error)));
                return;
            }
        };
        if CallKey::is_for_marks(enqueued.kind) {
            self.acting.barred.remove(&CallKey::Marks);
        }
        if let Some(act) = enqueued.taken.act {
            self.acting.watcher.step(Step::Taken);
            for (source, objects) in &enqueued.sources {
                self.tell(ActChange {
                    act,
                    kind: enqueued.kind,
                    source: *source,
                    objects: *objects,
                    step: ActStep::Taken,
                });
            }
            self.sources_changed(enqueued.sources.iter().map(|(source, _)| *source));
        }
        answer.give(Ok(enqueued.taken));
        if enqueued.kind == ActKind::Reply {
            // The draft that it was is gone.
            self.erase_log();
        }
        self.work().await;
    }

    pub(super) async fn deal(&mut self, deal: Deal, acts: Vec<ActId>, answer: Answer<()>) {
        let Some(journalist) = self.session.journalist() else {
            answer.give(Err(failure::not_signed_in()));
            return;
        };
        let dealt = self.store.write_or(move |transaction| outbox::deal(transaction, journalist, deal, &acts)).await;
        let changes = match dealt {
            Ok(changes) => changes,
            Err(error) => {
                answer.give(Err(failure::of_deal(&error)));
                return;
            }
        };
        self.sources_changed(changes.iter().map(|change| change.source));
        let replies = changes.iter().any(|change| change.kind == ActKind::Reply);
        for change in changes {
            self.tell(change);
        }
        answer.give(Ok(()));
        self.erase_log();
        match deal {
            Deal::Retry => {
                self.lift_network_pause();
                self.acting.let_dom0_ask();
                if replies {
                    // One that may have been stored goes on after a snapshot only.
                    self.ask_sync(None);
                }
            }
            Deal::Restore => self.ask_sync(None),
            Deal::Cancel | Deal::Dismiss => {}
        }
        self.work().await;
    }

    /// The replies to a source that the server does not list.
    pub(super) fn outgoing(&mut self, source: SourceId, answer: Answer<Vec<OutgoingReply>>) {
        let (store, now, lane) = (self.store.clone(), self.clock.now(), self.lane());
        self.tasks.spawn(async move {
            let read = store.read(move |transaction| outbox::outgoing(transaction, source, now, &lane)).await;
            answer.give(read.map_err(|error| failure::of_store(&error)));
            Ended::Done
        });
    }

    pub(super) fn queue(&mut self, answer: Answer<Vec<QueueEntry>>) {
        let (store, now, lane) = (self.store.clone(), self.clock.now(), self.lane());
        self.tasks.spawn(async move {
            let read = store.read(move |transaction| outbox::queue(transaction, now, &lane)).await;
            answer.give(read.map_err(|error| failure::of_store(&error)));
            Ended::Done
        });
    }

    /// What is being done at the moment.
    fn lane(&self) -> outbox::Lane {
        let mut lane = outbox::Lane {
            running: self.acting.running.values().map(|running| (running.act, running.source)).collect(),
            open: self.acting.calls.open_acts(),
            signed_in: self.session.journalist().is_some(),
            ..outbox::Lane::default()
        };
        for (key, _) in self.acting.opening.values() {
            match key {
                CallKey::Marks => lane.opening_marks = true,
                CallKey::Deletions(act) | CallKey::Reply(act) => drop(lane.opening.insert(*act)),
            }
        }
        for (key, _) in self.acting.barred.iter().filter(|(_, barred)| barred.until.is_none()) {
            match key {
                CallKey::Marks => lane.held_marks = !self.acting.calls.has(CallKey::Marks),
                CallKey::Deletions(act) | CallKey::Reply(act) => drop(lane.held.insert(*act)),
            }
        }
        lane
    }

    /// Starts whatever of the acts is due and has room.
    pub(super) async fn send_acts(&mut self) {
        self.acting.wake = None;
        if let Err(until) = self.may_go_on() {
            self.acting.wake = until;
            return;
        }
        let Some(journalist) = self.session.journalist() else { return };
        let started = Instant::now();
        if let Some(rest) = self.acting.rest.filter(|rest| *rest > started) {
            self.acting.wake = Some(rest);
            return;
        }
        self.acting.rest = None;
        if self.acting.to_land && !self.land().await {
            return;
        }
        let now = self.clock.now();
        let busy: HashSet<_> = self.acting.running.values().map(|running| running.source).collect();
        let open = self.acting.calls.open_acts();
        let read = self.store.read(move |transaction| {
            let ready = outbox::ready(transaction, journalist, now, &busy, &open)?;
            let mut over = Vec::new();
            for act in open {
                if !outbox::is_open(transaction, act)? {
                    over.push(act);
                }
            }
            Ok((ready, over))
        });
        let (ready, over) = match read.await {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(error = failure::chain(&error), "could not read what is to be sent");
                self.acting.wake = Some(started + AFTER_STORE_FAULT);
                return;
            }
        };
        if ready.to_mend && !self.mend_grace(now).await {
            return;
        }
        // A deletion's call ends with its act.
        for act in over {
            if let Some(call) = self.acting.calls.finish(act) {
                self.close_call(call);
            }
        }
        for batch in ready.batches {
            self.start_act(batch).await;
        }
        if !self.proxy.asks(Scope::Mark) {
            for call in self.acting.calls.close_idle(started) {
                self.close_call(call);
            }
        }
        let rest = started + ready.next.unwrap_or(REST).min(REST);
        let soonest = [self.acting.calls.next_idle(started), self.acting.next_unbarred(started)];
        self.acting.wake = soonest.into_iter().flatten().chain([rest]).min();
    }

    /// Sends a batch, or opens the call for it, or leaves it for later.
    async fn start_act(&mut self, batch: Batch) {
        let key = CallKey::of(&batch);
        if let Some((number, call)) = self.acting.calls.take(key, MAX_AT_ONCE) {
            self.attempt(number, call, batch);
            return;
        }
        if self.acting.calls.has(key) {
            return;
        }
        let now = Instant::now();
        if self.acting.barred.get(&key).is_some_and(|barred| barred.until.is_none_or(|until| until > now)) {
            return;
        }
        // One of those that are idle makes room, unless dom0 would ask about it again.
        let (room, closed) = self.acting.calls.make_room(key, MAX_CALLS, |scope| self.proxy.asks(scope), now);
        if let Some(call) = closed {
            self.close_call(call);
        }
        if room {
            self.open_for(key).await;
        }
    }

    async fn open_for(&mut self, key: CallKey) {
        let SessionState::In(session) = &self.session else { return };
        let level = session.api_level;
        let (scope, asks) = (key.scope(), self.proxy.asks(key.scope()));
        let patience = match key {
            CallKey::Marks | CallKey::Reply(_) => {
                if asks {
                    // From here on nothing but the user's word asks dom0 again.
                    self.acting.barred.insert(key, Barred { failures: 0, until: None });
                }
                Patience::Usual
            }
            CallKey::Deletions(act) => {
                if asks {
                    // The same, and a crash changes nothing of it.
                    let held = self.store.write(move |transaction| outbox::hold(transaction, act, true)).await;
                    if let Err(error) = held {
                        self.store_fault(&error);
                        return;
                    }
                }
                Patience::Once
            }
        };
        let (proxy, waiting) = (self.proxy.clone(), self.waiting_event());
        let opening =
            async move { Ended::ActCall(proxy.open(scope, Some(level), patience, waiting).await.map(Box::new)) };
        let task = self.tasks.spawn(opening);
        self.acting.opening.insert(task.id(), (key, task));
        self.acting.calls.opening(key);
    }

    /// A call for acts was opened, or could not be.
    pub(super) async fn act_call_opened(&mut self, task: Id, opened: Result<Box<QrexecCall>, ProxyError>) {
        // One that belongs to an older session is closed by being dropped.
        let Some((key, _)) = self.acting.opening.remove(&task) else { return };
        match opened {
            Ok(call) => {
                if !self.proxy.asks(key.scope()) {
                    self.acting.barred.remove(&key);
                }
                self.acting.calls.opened(key, *call, Instant::now() + IDLE);
            }
            Err(error) => {
                self.acting.calls.not_opened(key);
                self.not_opened(key, &error).await;
            }
        }
        self.work().await;
    }

    async fn not_opened(&mut self, key: CallKey, error: &ProxyError) {
        let told = failure::of_proxy(error);
        tracing::warn!(kind = ?told.kind, scope = key.scope().name(), "a call for acts could not be opened");
        if error.nobody_answered() {
            // That says nothing of the way to the server: somebody in dom0 may have been asked, and not been there.
            self.bar(key);
            return;
        }
        if !matches!(error, ProxyError::Open(OpenError::Refused { .. })) {
            self.pause_network(&told);
            return;
        }
        let Some(journalist) = self.session.journalist() else { return };
        let unsent = match key {
            CallKey::Marks => Unsent::Marks(journalist),
            CallKey::Deletions(act) => Unsent::Deletions(act),
            CallKey::Reply(act) => Unsent::Reply(act),
        };
        let reason = told.message.clone();
        let refused = self.store.write(move |transaction| outbox::refuse_unsent(transaction, unsent, &reason)).await;
        match refused {
            Ok(refused) => {
                self.sources_changed(refused.iter().map(|(_, _, source, _)| *source));
                for (act, kind, source, objects) in refused {
                    self.tell(ActChange { act, kind, source, objects, step: ActStep::Refused(told.clone()) });
                }
            }
            Err(error) => self.store_fault(&error),
        }
    }

    /// Nobody has answered: no call is opened for this for some time, or, where dom0 has asked, without the user.
    fn bar(&mut self, key: CallKey) {
        if self.proxy.asks(key.scope()) {
            return;
        }
        let failures = self.acting.barred.get(&key).map_or(0, |barred| barred.failures).saturating_add(1);
        let until = Instant::now() + self.acting.waits().after(failures, fastrand::f64());
        self.acting.barred.insert(key, Barred { failures, until: Some(until) });
    }

    fn attempt(&mut self, number: CallNumber, call: Arc<QrexecCall>, batch: Batch) {
        let SessionState::In(session) = &self.session else { return };
        let cancel = CancellationToken::new();
        let attempt = Attempt {
            store: self.store.clone(),
            call,
            token: session.token.clone(),
            rows: batch.rows.clone(),
            snapshot: self.acting.snapshot,
            deadline: self.acting.settings.deadline,
            waits: self.acting.settings.waits,
            replies: self.reply_desk(),
            watcher: Arc::clone(&self.acting.watcher),
            cancel: cancel.clone(),
        };
        let attempt =
            async move { attempt.run().await.map_or(Ended::Done, |performed| Ended::Act(Box::new(performed))) };
        let kind = batch.work.kind();
        let task = self.tasks.spawn(attempt).id();
        self.tell(ActChange {
            act: batch.act,
            kind,
            source: batch.source,
            objects: u64::try_from(batch.rows.len()).unwrap_or(u64::MAX),
            step: ActStep::Started,
        });
        let running = Running { call: number, act: batch.act, kind, source: batch.source, rows: batch.rows, cancel };
        self.acting.running.insert(task, running);
    }

    /// An attempt has ended.
    pub(super) async fn act_ended(&mut self, task: Id, performed: Result<Performed, StoreError>) {
        // One that is not known belongs to a session that is over.
        let Some(running) = self.acting.running.remove(&task) else { return };
        self.acting.calls.give_back(running.call, Instant::now() + IDLE);
        match performed {
            Ok(performed) => self.settle_act(&running, performed).await,
            Err(error) => self.store_fault(&error),
        }
        self.work().await;
    }

    /// The task of an attempt panicked: nobody knows what became of its rows.
    pub(super) async fn act_panicked(&mut self, task: Id) -> bool {
        if let Some((key, _)) = self.acting.opening.remove(&task) {
            self.acting.calls.not_opened(key);
            self.acting.rest = Some(Instant::now() + AFTER_STORE_FAULT);
            self.send_acts().await;
            return true;
        }
        let Some(running) = self.acting.running.get(&task) else { return false };
        let reason = "sending it met a fault: see the daemon's log";
        let unknown = Outcome::Unknown { reason: reason.to_owned(), retry_after: None };
        let rows = running.rows.iter().map(|row| (row.clone(), unknown.clone())).collect();
        self.act_ended(task, Ok(Performed { rows, way: Way::Open })).await;
        true
    }

    /// The session is over: nothing more is sent.
    pub(super) fn stop_acting(&mut self) {
        for (_, (_, opening)) in self.acting.opening.drain() {
            opening.abort();
        }
        // A call in which something runs is closed by the last attempt that uses it.
        for call in self.acting.calls.drain() {
            self.close_call(call);
        }
        for (_, running) in self.acting.running.drain() {
            running.cancel.cancel();
        }
        self.acting.barred.clear();
        self.acting.wake = None;
    }

    fn store_fault(&mut self, error: &StoreError) {
        tracing::error!(error = failure::chain(error), "could not store what becomes of an act");
        self.acting.rest = Some(Instant::now() + AFTER_STORE_FAULT);
        self.acting.wake = self.acting.rest;
        self.acting.to_land = true;
    }

    /// Notes which rows are not being sent, after the store had failed.
    async fn land(&mut self) -> bool {
        let running: HashSet<_> =
            self.acting.running.values().flat_map(|running| running.rows.iter().map(|row| row.id)).collect();
        let snapshot = self.acting.snapshot;
        match self.store.write(move |transaction| outbox::land(transaction, snapshot, &running)).await {
            Ok(()) => {
                self.acting.to_land = false;
                // It says what became of the replies among them.
                self.ask_sync(None);
                true
            }
            Err(error) => {
                self.store_fault(&error);
                false
            }
        }
    }

    /// Closes a call, unless that was done already.
    fn drop_call(&mut self, call: CallNumber) -> bool {
        match self.acting.calls.remove(call) {
            Some(call) => {
                self.close_call(call);
                true
            }
            None => false,
        }
    }

    fn tell(&self, change: ActChange) {
        self.emit(Event::Act(change));
    }
}

#[cfg(test)]
mod tests;
