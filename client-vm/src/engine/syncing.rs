//! When to sync, and what becomes of it.

use std::sync::Arc;

use control::{Event, Failure, SessionEnd, SyncOutcome, SyncReport, SyncStart};
use protocol::value::Timestamp;
use qubes_rpc::qrexec::QrexecCall;
use tokio::task::Id;
use tokio_util::sync::CancellationToken;

use super::handle::Answer;
use super::session::SessionState;
use super::sync_task::{Opened, SyncEnded, SyncStop, SyncTask};
use super::{Ended, Engine, given_up};
use crate::failure;
use crate::store::mirror;
use crate::sync::{SnapshotNumber, Synced};

/// A sync that somebody asked for, and who waits for its end.
#[derive(Debug)]
pub(super) struct Asked {
    at: Timestamp,
    waiting: Vec<Answer<SyncReport>>,
}

#[derive(Debug)]
pub(super) struct RunningSync {
    pub(super) start: SyncStart,
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
        let start = SyncStart { asked: asked.at, started: self.clock.now() };
        let cancel = CancellationToken::new();
        let task = SyncTask {
            proxy: self.proxy.clone(),
            call: self.metadata.clone(),
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
        self.running = Some(RunningSync { start, waiting: asked.waiting, cancel, task: task.id() });
        self.emit(Event::SyncStarted(start));
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
        let mut after = None;
        let report = match ended.result {
            Ok(Synced { report, changed_sources, effects }) => {
                tracing::info!(rows = report.rows_written, unreadable = report.counts.unreadable, "sync succeeded");
                self.sources_changed(changed_sources);
                self.history.last_success = Some(report.ended);
                after = Some(effects);
                report
            }
            Err(stop) => self.report_stop(&running, stop).await,
        };
        self.history.report = Some(report.clone());
        give_all(running.waiting, &outcome_for_waiting(&report));
        self.emit(Event::SyncEnded(report));
        if expired {
            self.session = SessionState::Out;
            self.leave(SessionEnd::Expired);
        }
        if let Some(again) = self.again.take() {
            self.start_sync(again);
        }
        if let Some(effects) = after {
            self.acts_after_snapshot(effects).await;
        }
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
mod tests {
    use protocol::value::SoftwareVersion;
    use protocol::{CallError, ErrorKind, Retry, Stage};
    use qubes_rpc::connection::CallFailure;
    use qubes_rpc::qrexec::Qrexec;

    use super::*;
    use crate::clock::Clock;
    use crate::engine::session::OpenSession;
    use crate::proxy::Proxy;
    use crate::settings::ActSettings;
    use crate::store::Store;
    use crate::sync::SyncFailure;

    /// Case N3.
    #[tokio::test]
    async fn n3_what_a_sync_of_an_old_session_is_told_does_not_end_the_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let version = SoftwareVersion::try_new("0.0.0-test").unwrap();
        let qrexec = Qrexec { program: directory.path().join("no-program") };
        let proxy = Proxy::new(qrexec, "sd-proxy".parse().unwrap(), version.clone());
        let (mut engine, handle) =
            Engine::new(proxy, store, Clock::System, ActSettings::default(), version).await.unwrap();
        let mut events = handle.subscribe().unwrap();
        for old in [true, false] {
            engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
            let cancel = CancellationToken::new();
            if old {
                cancel.cancel();
            }
            let task = engine.tasks.spawn(async { Ended::Done }).id();
            let start = SyncStart { asked: Timestamp::MAX, started: Timestamp::MAX };
            engine.running = Some(RunningSync { start, waiting: Vec::new(), cancel, task });
            let refused = CallError::new(ErrorKind::Unauthorized, Stage::FirstByte, Retry::WhenUserActs);
            let failure = SyncFailure::Call { call: "get_users", failure: CallFailure::Failed(refused) };
            engine.sync_ended(SyncEnded { call: None, result: Err(SyncStop::Failed(failure)) }).await;
            assert_eq!(matches!(engine.session, SessionState::In(_)), old);
            assert!(matches!(events.recv().await.unwrap(), Event::SyncEnded(_)));
            let told = events.try_recv().ok();
            assert_eq!(told, (!old).then_some(Event::SessionEnded(SessionEnd::Expired)));
        }
    }
}
