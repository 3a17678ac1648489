//! When to sync, and what becomes of it.

mod schedule;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use control::{Event, Failure, FailureKind, SessionEnd, SyncOutcome, SyncReport, SyncStart};
use protocol::Scope;
use protocol::value::{SourceId, Timestamp};
use qubes_rpc::qrexec::QrexecCall;
use tokio::task::Id;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(super) use self::schedule::Schedule;
use self::schedule::Told;
use super::handle::Answer;
use super::session::SessionState;
use super::sync_task::{Opened, SyncEnded, SyncStop, SyncTask};
use super::{Ended, Engine, given_up};
use crate::failure;
use crate::store::mirror;
use crate::sync::{Erases, SnapshotNumber, Synced};

/// A sync that somebody asked for, and who waits for its end.
#[derive(Debug)]
pub(super) struct Asked {
    at: Timestamp,
    waiting: Vec<Answer<SyncReport>>,
}

#[derive(Debug)]
pub(super) struct RunningSync {
    pub(super) start: SyncStart,
    begun: Instant,
    waiting: Vec<Answer<SyncReport>>,
    cancel: CancellationToken,
    task: Id,
}

impl RunningSync {
    /// Whether it is run by this task.
    pub(super) fn is(&self, task: Id) -> bool {
        self.task == task
    }
}

impl Engine {
    /// Asks for a sync: at once, or once more after the running one.
    pub(super) fn ask_sync(&mut self, answer: Option<Answer<SyncReport>>) {
        let at = self.clock.now();
        if self.running.is_none() {
            self.start_sync(Asked { at, waiting: answer.into_iter().collect() });
        } else {
            self.again.get_or_insert_with(|| Asked { at, waiting: Vec::new() }).waiting.extend(answer);
        }
    }

    fn start_sync(&mut self, asked: Asked) {
        let SessionState::In(session) = &self.session else {
            give_all(asked.waiting, &Err(failure::not_signed_in()));
            return;
        };
        let asks = self.proxy.asks(Scope::Metadata);
        let is_open = self.metadata.as_ref().is_some_and(|call| call.connection().broken_by().is_none());
        if !is_open && let Some(broken) = self.metadata.take() {
            // Another one needs its place, whoever still has it.
            broken.break_off();
        }
        let may_open = std::mem::take(&mut self.lists_wanted) || !asks;
        self.schedule.started();
        if !is_open && !may_open {
            // Nothing but the user's word asks dom0 again.
            let told = self.not_opened.get_or_insert_with(dom0_would_ask).clone();
            give_all(asked.waiting, &Err(told));
            return;
        }
        let start = SyncStart { asked: asked.at, started: self.clock.now() };
        let cancel = CancellationToken::new();
        let task = SyncTask {
            proxy: self.proxy.clone(),
            call: self.metadata.clone(),
            may_open,
            token: session.token.clone(),
            api_level: session.api_level,
            store: self.store.clone(),
            clock: self.clock.clone(),
            start,
            snapshot: SnapshotNumber { number: self.acting.next_snapshot(), overdue: self.acting.overdue() },
            cancel: cancel.clone(),
            opened: self.opened.0.clone(),
        };
        let waiting = self.waiting_event();
        let task = self.tasks.spawn(async move { Ended::Sync(Box::new(task.run(waiting).await)) });
        self.running =
            Some(RunningSync { start, begun: Instant::now(), waiting: asked.waiting, cancel, task: task.id() });
        self.emit(Event::SyncStarted(start));
    }

    /// The user wants the lists: dom0 may ask once more about the calls that bring them, and what comes after them.
    pub(super) fn let_dom0_ask(&mut self) {
        self.lists_wanted = true;
        if self.proxy.asks(Scope::Download) {
            self.let_downloads_ask();
        }
    }

    /// Starts a sync at once, in the place of the running one: whoever waits for that waits for this one. Where dom0 asks about
    /// the lists' call the running one is left its call, and its time.
    pub(super) fn sync_anew(&mut self) {
        let at = self.clock.now();
        match &mut self.running {
            Some(running) if !self.proxy.asks(Scope::Metadata) => {
                running.cancel.cancel();
                let waiting = std::mem::take(&mut running.waiting);
                self.again.get_or_insert_with(|| Asked { at, waiting: Vec::new() }).waiting.extend(waiting);
            }
            Some(_) | None => self.ask_sync(None),
        }
    }

    /// Stops the running sync, drops the one to follow and closes the calls: the session is over.
    pub(super) fn stop_syncing(&mut self, told: Failure) {
        if let Some(running) = &self.running {
            running.cancel.cancel();
        }
        if let Some(again) = self.again.take() {
            give_all(again.waiting, &Err(told));
        }
        self.not_opened = None;
        self.lists_wanted = false;
        let told = self.schedule.end();
        self.tell_age(told);
        self.close_metadata();
    }

    /// The running sync has opened the metadata call: from here on the proxy can be asked how it is.
    pub(super) fn metadata_opened(&mut self, opened: Opened) {
        if !opened.cancel.is_cancelled() && self.running.is_some() {
            self.metadata = Some(opened.call);
            self.not_opened = None;
        }
    }

    /// Takes the call that a sync used, unless it is broken or of a session that is over.
    fn keep_or_close(&mut self, call: Option<Arc<QrexecCall>>, cancel: &CancellationToken) {
        self.metadata = call;
        let usable = self.metadata.as_ref().is_some_and(|call| call.connection().broken_by().is_none());
        if !usable || cancel.is_cancelled() {
            self.close_metadata();
        }
    }

    /// Closes the metadata call in the background, if nobody uses it any more.
    fn close_metadata(&mut self) {
        if let Some(call) = self.metadata.take() {
            self.close_call(call);
        }
    }

    pub(super) async fn sync_ended(&mut self, ended: SyncEnded) {
        let Some(running) = self.running.take() else { return };
        self.keep_or_close(ended.call, &running.cancel);
        // A sync that was told to stop belongs to a session that is over: what it says of its session says nothing of
        // the present one.
        let expired =
            !running.cancel.is_cancelled() && ended.result.as_ref().err().is_some_and(SyncStop::is_unauthorized);
        let reached = ended.result.as_ref().map_or_else(SyncStop::reached_the_server, |_| true);
        let (mut after, mut wrote, mut erases) = (None, false, Erases::Nothing);
        let changed;
        let report = match ended.result {
            Ok(Synced { report, changed_sources, effects, held, erased }) => {
                tracing::info!(rows = report.rows_written, unreadable = report.counts.unreadable, "sync succeeded");
                self.sources_changed(changed_sources);
                self.history.last_success = Some(report.ended);
                wrote = report.rows_written > 0;
                // With nothing new there is nothing else to do than before, and finding that out costs more than the sync.
                changed = wrote || !effects.sources.is_empty() || !held.is_empty();
                erases = erased;
                self.tell_held(held);
                after = Some(effects);
                report
            }
            Err(stop) => {
                // What it has written is no news to the next one.
                changed = stop.may_have_written();
                if changed {
                    self.erase_with_the_next_sync();
                }
                self.report_stop(&running, stop).await
            }
        };
        self.history.report = Some(report.clone());
        let told = outcome_for_waiting(&report);
        // Who has waited for the end, and listens from then on, is not told of it again.
        self.emit(Event::SyncEnded(report));
        give_all(running.waiting, &told);
        if expired {
            self.session = SessionState::Out;
            self.leave(SessionEnd::Expired);
        }
        if !running.cancel.is_cancelled() && matches!(self.session, SessionState::In(_)) {
            self.schedule_next(after.is_some(), running.begun.elapsed());
        }
        if let Some(again) = self.again.take() {
            self.start_sync(again);
        }
        if reached {
            self.lift_network_pause();
        }
        if let Some(effects) = after {
            self.acts_after_snapshot(effects);
            match erases {
                Erases::Records => self.erase_pages(),
                Erases::Rows => self.erase_log(),
                Erases::Nothing if changed || self.erasing.is_open() => self.erase(),
                Erases::Nothing => {}
            }
            if wrote || self.keys_left {
                self.look_at_keys();
            }
            if self.newsroom_key.is_err() && self.newsroom.is_near() {
                self.look_for_newsroom_key();
            }
        }
        if changed {
            self.work().await;
        } else {
            self.go_on().await;
        }
    }

    /// Removals are held from now on.
    fn tell_held(&self, held: BTreeSet<SourceId>) {
        let held: Vec<_> = held.into_iter().collect();
        for some in held.chunks(control::message::MAX_ROWS) {
            self.emit(Event::RemovalsHeld(some.to_vec()));
        }
    }

    fn schedule_next(&mut self, succeeded: bool, took: Duration) {
        let told = match succeeded {
            true => self.schedule.succeeded(took),
            false => self.schedule.failed(fastrand::f64()),
        };
        self.tell_age(told);
    }

    /// There has been no success for too long.
    pub(super) fn grow_stale(&mut self) {
        let told = self.schedule.grow_stale();
        self.tell_age(told);
    }

    fn tell_age(&self, told: Told) {
        match told {
            Told::Stale => {
                tracing::warn!("what is shown is old");
                self.emit(Event::SyncStale { last_success: self.history.last_success });
            }
            Told::Fresh => self.emit(Event::SyncFresh),
            Told::Nothing => {}
        }
    }

    /// When the next sync starts by itself.
    pub(super) fn next_sync(&self) -> Option<Timestamp> {
        let wait = self.schedule.next()?.saturating_duration_since(Instant::now());
        let at = self.clock.now().get().saturating_add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
        Some(Timestamp::try_new(at).unwrap_or(Timestamp::MAX))
    }

    async fn report_stop(&mut self, running: &RunningSync, stop: SyncStop) -> SyncReport {
        let outcome = match stop.failure() {
            Some(told) => {
                tracing::warn!(kind = ?told.kind, "sync failed");
                self.not_opened = matches!(stop, SyncStop::Open(_)).then(|| told.clone());
                SyncOutcome::Failed(told)
            }
            None => SyncOutcome::Cancelled,
        };
        let report = SyncReport {
            start: running.start,
            ended: self.clock.now(),
            outcome,
            counts: self.history.report.as_ref().map(|report| report.counts).unwrap_or_default(),
            rows_written: 0,
            calls: Vec::new(),
        };
        let stored = report.clone();
        if let Err(error) = self.store.write(move |transaction| mirror::store_failure(transaction, &stored)).await {
            tracing::error!(error = failure::chain(&error), "could not store how the sync ended");
        }
        report
    }
}

/// No sync is made: the call for the lists is lost, and somebody in dom0 would be asked about another one.
fn dom0_would_ask() -> Failure {
    failure::failure(FailureKind::PolicyRefused, "dom0 would be asked about the lists again: run `splitdrop refresh`")
}

/// What whoever asked for a sync is told: its report, or why it failed.
fn outcome_for_waiting(report: &SyncReport) -> Result<SyncReport, Failure> {
    match &report.outcome {
        SyncOutcome::Ok | SyncOutcome::Unchanged => Ok(report.clone()),
        SyncOutcome::Failed(failure) => Err(failure.clone()),
        SyncOutcome::Cancelled => Err(given_up()),
    }
}

fn give_all(waiting: Vec<Answer<SyncReport>>, result: &Result<SyncReport, Failure>) {
    for answer in waiting {
        answer.give(result.clone());
    }
}

#[cfg(test)]
impl Engine {
    /// Lets a sync run that comes to no end by itself. Gives what hears of its end.
    pub(super) fn hanging_sync(&mut self) -> tokio::sync::oneshot::Receiver<Result<SyncReport, Failure>> {
        let (answer, waiting) = tokio::sync::oneshot::channel();
        let task = self.tasks.spawn(std::future::pending()).id();
        let start = SyncStart { asked: Timestamp::MAX, started: Timestamp::MAX };
        let (cancel, answer) = (CancellationToken::new(), Answer::new(answer));
        self.running = Some(RunningSync { start, begun: Instant::now(), waiting: vec![answer], cancel, task });
        waiting
    }

    /// Whether the running sync was told to end; none where none runs.
    pub(super) fn running_is_cancelled(&self) -> Option<bool> {
        self.running.as_ref().map(|running| running.cancel.is_cancelled())
    }

    /// The running sync succeeds, and has written so many rows.
    pub(super) async fn end_sync_well(&mut self, rows_written: u64) {
        let (start, ended) = (SyncStart { asked: Timestamp::MAX, started: Timestamp::MAX }, Timestamp::MAX);
        let (outcome, counts, calls) = (SyncOutcome::Ok, control::Counts::default(), Vec::new());
        let report = SyncReport { start, ended, outcome, counts, rows_written, calls };
        let (changed_sources, held) = (BTreeSet::new(), BTreeSet::new());
        let (effects, erased) = (crate::store::outbox::SnapshotEffects::default(), Erases::Nothing);
        let synced = Synced { report, changed_sources, effects, held, erased };
        self.sync_ended(SyncEnded { call: None, result: Ok(synced) }).await;
    }

    /// The running sync ends as one that was told to.
    pub(super) async fn end_hanging_sync(&mut self) {
        self.sync_ended(SyncEnded::cancelled()).await;
    }
}

#[cfg(test)]
mod tests {
    use protocol::{CallError, ErrorKind, Retry, Stage};
    use qubes_rpc::connection::CallFailure;
    use qubes_rpc::places::Places;

    use super::*;
    use crate::engine::EngineParts;
    use crate::engine::session::OpenSession;
    use crate::engine::stand_in::{FAILED, open_call};
    use crate::store::Store;
    use crate::sync::SyncFailure;

    /// Case N3.
    #[tokio::test]
    async fn n3_what_a_sync_of_an_old_session_is_told_does_not_end_the_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let (mut engine, handle) = Engine::new(EngineParts::without_qrexec(directory.path(), store)).await.unwrap();
        let mut events = handle.subscribe().unwrap();
        for old in [true, false] {
            engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
            let cancel = CancellationToken::new();
            if old {
                cancel.cancel();
            }
            let task = engine.tasks.spawn(async { Ended::Done }).id();
            let start = SyncStart { asked: Timestamp::MAX, started: Timestamp::MAX };
            engine.running = Some(RunningSync { start, begun: Instant::now(), waiting: Vec::new(), cancel, task });
            let refused = CallError::new(ErrorKind::Unauthorized, Stage::FirstByte, Retry::WhenUserActs);
            let failure = SyncFailure::Call { call: "get_users", failure: CallFailure::Failed(refused) };
            engine.sync_ended(SyncEnded { call: None, result: Err(SyncStop::Failed(failure)) }).await;
            assert_eq!(matches!(engine.session, SessionState::In(_)), old);
            assert!(matches!(events.recv().await.unwrap(), Event::SyncEnded(_)));
            let told = events.try_recv().ok();
            assert_eq!(told, (!old).then_some(Event::SessionEnded(SessionEnd::Expired)));
        }
    }

    /// The proxy writes what it may not, and stays.
    #[tokio::test]
    async fn a_broken_call_for_the_lists_has_no_place_while_another_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let (mut engine, _handle) = Engine::new(EngineParts::without_qrexec(directory.path(), store)).await.unwrap();
        engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
        let places = Places::new(1);
        let garbage = r"printf '\377\377\377\377\377\377\377\377'";
        let call = open_call(directory.path(), Scope::Metadata, garbage, places.take().await).await;
        // Somebody else has it too, and asks how the proxy is.
        let call = Arc::new(call);
        engine.metadata = Some(Arc::clone(&call));
        while call.connection().broken_by().is_none() {
            tokio::task::yield_now().await;
        }
        engine.ask_sync(None);
        assert!(engine.running.is_some() && engine.metadata.is_none());
        let _place = tokio::time::timeout(FAILED, places.take()).await.expect("its process stays");
        drop(call);
    }

    /// Those of the events so far that say how old what is shown is, whether there is a way to the server, and that a
    /// session has ended.
    fn alarms(events: &mut tokio::sync::broadcast::Receiver<Event>) -> Vec<&'static str> {
        let mut alarms = Vec::new();
        while let Ok(event) = events.try_recv() {
            match event {
                Event::SyncStale { .. } => alarms.push("stale"),
                Event::SyncFresh => alarms.push("fresh"),
                Event::Paused(_) => alarms.push("paused"),
                Event::Resumed => alarms.push("resumed"),
                Event::SessionEnded(_) => alarms.push("ended"),
                _other => {}
            }
        }
        alarms
    }

    /// Case S7.
    #[tokio::test]
    async fn s7_what_was_told_of_a_server_that_cannot_be_reached_is_withdrawn_once_when_the_session_ends() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let (mut engine, handle) = Engine::new(EngineParts::without_qrexec(directory.path(), store)).await.unwrap();
        let mut events = handle.subscribe().unwrap();
        for (why, told) in [(SessionEnd::Logout, true), (SessionEnd::Expired, true), (SessionEnd::Logout, false)] {
            engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
            engine.schedule.begin();
            if told {
                engine.grow_stale();
                engine.pause_network(&failure::not_signed_in());
                assert_eq!(alarms(&mut events), ["stale", "paused"]);
            }
            engine.session = SessionState::Out;
            engine.leave(why);
            let withdrawn = if told { &["fresh", "resumed", "ended"][..] } else { &["ended"] };
            assert_eq!(alarms(&mut events), withdrawn);
        }
    }

    /// Case S8.
    #[tokio::test]
    async fn s8_a_sync_whose_task_panics_has_one_end_and_another_comes() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let (mut engine, handle) = Engine::new(EngineParts::without_qrexec(directory.path(), store)).await.unwrap();
        let mut events = handle.subscribe().unwrap();
        engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
        engine.schedule.begin();
        let waiting = engine.hanging_sync();
        let panicking = engine.tasks.spawn(async { panic!("a fault, which the test wants") }).id();
        if let Some(running) = &mut engine.running {
            running.task = panicking;
        }
        let ended = engine.tasks.join_next_with_id().await.unwrap();
        engine.ended(ended).await;
        let told = waiting.await.unwrap().unwrap_err();
        assert_eq!((told.kind, told.message.contains("see the daemon's log")), (FailureKind::Internal, true));
        let mut ends = Vec::new();
        while let Ok(event) = events.try_recv() {
            match event {
                Event::SyncEnded(report) => ends.push(report.outcome),
                other => assert!(!matches!(other, Event::SyncStarted(_)), "{other:?}"),
            }
        }
        assert_eq!(ends, [SyncOutcome::Failed(told)]);
        assert!(engine.running.is_none() && engine.schedule.next().is_some());
    }
}
