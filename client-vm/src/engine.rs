//! The daemon's heart: one task that owns the session, the sync and the calls to the proxy.
//!
//! **Invariant:** one sync at a time; requests during a run cause exactly one more. Each has one visible start and one
//! visible end.
//!
//! **Invariant:** the token lives in this task and in the work that it started; it is gone once the session has ended,
//! whatever becomes of the logout call.

mod handle;
mod sync_task;

use std::sync::Arc;
use std::time::Duration;

use control::{
    Event, Failure, FailureKind, ProxyStatus, Session, SessionEnd, Status, SyncOutcome, SyncReport, SyncStart,
};
use protocol::value::{JournalistId, SoftwareVersion, Timestamp, Token, Username};
use protocol::{ApiLevel, Call, Items, SignedIn};
use qubes_rpc::qrexec::QrexecCall;
use tokio::sync::{broadcast, mpsc};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

pub use handle::EngineHandle;
use handle::{Answer, Command};
use sync_task::{SyncEnded, SyncStop, SyncTask};

use crate::clock::Clock;
use crate::failure::{self, failure};
use crate::proxy::{Proxy, ProxyError};
use crate::store::{Store, StoreError, SyncEnd, mirror, view};
use crate::sync::Synced;

/// How many commands may wait for the engine.
const QUEUED_COMMANDS: usize = 64;
/// How many events a slow front end may lag behind before it misses some.
const KEPT_EVENTS: usize = 1024;
/// How long the logout call may go on after the session has ended here.
const LOGOUT_DEADLINE: Duration = Duration::from_secs(10);
/// The same when the daemon ends.
const LAST_LOGOUT_DEADLINE: Duration = Duration::from_secs(1);
/// How long the proxy may take to say how it is.
const HEALTH_DEADLINE: Duration = Duration::from_secs(5);
/// How long work that was told to end may take when the daemon ends. A transaction is never cut in two.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// The engine, before it runs.
#[derive(Debug)]
pub struct Engine {
    proxy: Proxy,
    store: Store,
    clock: Clock,
    software: SoftwareVersion,
    started: Timestamp,
    commands: mpsc::Receiver<Command>,
    events: broadcast::Sender<Event>,
    session: SessionState,
    /// The long-lived call of scope `metadata`, opened when first needed.
    metadata: Option<Arc<QrexecCall>>,
    running: Option<RunningSync>,
    /// The one sync to run after the running one.
    again: Option<Asked>,
    last: SyncEnd,
    tasks: JoinSet<Ended>,
}

#[derive(Debug)]
enum SessionState {
    Out,
    SigningIn { task: AbortHandle, username: Username, answer: Answer<Session> },
    In(Box<OpenSession>),
}

#[derive(Debug)]
struct OpenSession {
    token: Token,
    api_level: ApiLevel,
    journalist: JournalistId,
    username: Username,
    since: Timestamp,
    expires: Timestamp,
}

impl OpenSession {
    fn shown(&self) -> Session {
        Session::SignedIn {
            journalist: self.journalist,
            username: self.username.clone(),
            since: self.since,
            expires: self.expires,
        }
    }
}

/// A sync that somebody asked for, and who waits for its end.
#[derive(Debug)]
struct Asked {
    at: Timestamp,
    waiting: Vec<Answer<SyncReport>>,
}

#[derive(Debug)]
struct RunningSync {
    start: SyncStart,
    waiting: Vec<Answer<SyncReport>>,
    cancel: CancellationToken,
    task: Id,
}

/// How a task of the engine ended.
#[derive(Debug)]
enum Ended {
    Login(Result<SignedIn, ProxyError>),
    Sync(Box<SyncEnded>),
    /// Work that nobody waits for: a logout, a closed call, a status.
    Done,
}

impl Engine {
    /// An engine over `store`, and the handle to it.
    ///
    /// # Errors
    /// [`StoreError`] when what earlier syncs left cannot be read.
    pub async fn new(
        proxy: Proxy,
        store: Store,
        clock: Clock,
        software: SoftwareVersion,
    ) -> Result<(Self, EngineHandle), StoreError> {
        let last = store.read(mirror::load_sync_end).await?;
        let (sender, commands) = mpsc::channel(QUEUED_COMMANDS);
        let (events, _) = broadcast::channel(KEPT_EVENTS);
        let handle = EngineHandle::new(sender, events.clone());
        let engine = Self {
            proxy,
            store,
            started: clock.now(),
            clock,
            software,
            commands,
            events,
            session: SessionState::Out,
            metadata: None,
            running: None,
            again: None,
            last,
            tasks: JoinSet::new(),
        };
        Ok((engine, handle))
    }

    /// Runs until `stop`, then shuts down.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended).await,
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => break,
                },
            }
        }
        self.shut_down().await;
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Status(answer) => self.status(answer),
            Command::Login { username, passphrase, one_time_code, answer } => {
                if !matches!(self.session, SessionState::Out) {
                    let text = "somebody is signed in already: run `splitdrop logout` first";
                    answer.give(Err(failure(FailureKind::AlreadySignedIn, text)));
                    return;
                }
                let (proxy, name, waiting) = (self.proxy.clone(), username.clone(), self.waiting_event());
                let task = self
                    .tasks
                    .spawn(async move { Ended::Login(proxy.login(name, passphrase, one_time_code, waiting).await) });
                self.session = SessionState::SigningIn { task, username, answer };
            }
            Command::Logout(answer) => match std::mem::replace(&mut self.session, SessionState::Out) {
                SessionState::Out => answer.give(Err(failure::not_signed_in())),
                SessionState::SigningIn { task, answer: login, .. } => {
                    task.abort();
                    login.give(Err(cancelled()));
                    answer.give(Ok(()));
                }
                SessionState::In(session) => {
                    self.leave(SessionEnd::Logout);
                    let proxy = self.proxy.clone();
                    self.tasks.spawn(log_out(proxy, session.token, session.api_level, LOGOUT_DEADLINE));
                    answer.give(Ok(()));
                }
            },
            Command::Refresh(answer) => match &self.session {
                SessionState::In(_) => self.ask_sync(Some(answer)),
                SessionState::Out | SessionState::SigningIn { .. } => answer.give(Err(failure::not_signed_in())),
            },
        }
    }

    async fn ended(&mut self, ended: Result<(Id, Ended), JoinError>) {
        match ended {
            Ok((_, Ended::Done)) => {}
            Ok((task, Ended::Login(result))) => self.login_ended(task, result).await,
            Ok((_, Ended::Sync(ended))) => self.sync_ended(*ended).await,
            Err(error) if error.is_cancelled() => {}
            Err(error) => {
                tracing::error!("a task of the engine panicked");
                self.panicked(error.id()).await;
            }
        }
    }

    /// A task panicked: whoever waits for it is told.
    async fn panicked(&mut self, task: Id) {
        if self.running.as_ref().is_some_and(|running| running.task == task) {
            self.sync_ended(SyncEnded { call: None, result: Err(SyncStop::Panicked) }).await;
        } else if let SessionState::SigningIn { task: signing_in, .. } = &self.session
            && signing_in.id() == task
            && let SessionState::SigningIn { answer, .. } = std::mem::replace(&mut self.session, SessionState::Out)
        {
            answer.give(Err(failure(FailureKind::Internal, "the login met a fault: see the daemon's log")));
        }
    }

    async fn login_ended(&mut self, task: Id, result: Result<SignedIn, ProxyError>) {
        let (username, answer) = match std::mem::replace(&mut self.session, SessionState::Out) {
            SessionState::SigningIn { task: current, username, answer } if current.id() == task => (username, answer),
            other => {
                // A login that was given up a moment too late: nobody waits for it, and its session is nobody's.
                self.session = other;
                if let Ok(SignedIn { token, api_level, .. }) = result {
                    self.tasks.spawn(log_out(self.proxy.clone(), token, api_level, LOGOUT_DEADLINE));
                }
                return;
            }
        };
        let signed_in = match result {
            Ok(signed_in) => signed_in,
            Err(error) => {
                let told = failure::of_login(&error);
                tracing::warn!(kind = ?told.kind, "login failed");
                answer.give(Err(told));
                return;
            }
        };
        let (journalist, name) = (signed_in.journalist, username.clone());
        let stored =
            self.store.write(move |transaction| mirror::store_journalist(transaction, journalist, &name)).await;
        if let Err(error) = stored {
            tracing::error!(error = failure::chain(&error), "could not note who signed in");
        }
        let session = Box::new(OpenSession {
            token: signed_in.token,
            api_level: signed_in.api_level,
            journalist: signed_in.journalist,
            username,
            since: self.clock.now(),
            expires: signed_in.expires,
        });
        tracing::info!(journalist = %session.journalist, "signed in");
        let shown = session.shown();
        self.session = SessionState::In(session);
        self.emit(Event::SessionStarted(shown.clone()));
        answer.give(Ok(shown));
        self.ask_sync(None);
    }

    /// Ends the session here: the sync stops, the calls close, front ends are told. The token is the caller's to drop.
    fn leave(&mut self, why: SessionEnd) {
        tracing::info!(?why, "session ended");
        if let Some(running) = &self.running {
            running.cancel.cancel();
        }
        if let Some(again) = self.again.take() {
            give_all(again.waiting, &Err(cancelled()));
        }
        self.close_metadata();
        self.emit(Event::SessionEnded(why));
    }

    /// Closes the metadata call in the background, if nobody uses it any more.
    fn close_metadata(&mut self) {
        if let Some(call) = self.metadata.take().and_then(Arc::into_inner) {
            self.tasks.spawn(async move {
                call.close().await;
                Ended::Done
            });
        }
    }

    /// Asks for a sync: at once, or once more after the running one.
    fn ask_sync(&mut self, answer: Option<Answer<SyncReport>>) {
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
            cancel: cancel.clone(),
        };
        let waiting = self.waiting_event();
        let task = self.tasks.spawn(async move { Ended::Sync(Box::new(task.run(waiting).await)) });
        self.running = Some(RunningSync { start, waiting: asked.waiting, cancel, task: task.id() });
        self.emit(Event::SyncStarted(start));
    }

    async fn sync_ended(&mut self, ended: SyncEnded) {
        let Some(running) = self.running.take() else { return };
        // A sync that was told to stop belongs to a session that is over: what it says of its session says nothing of
        // the present one.
        let current = !running.cancel.is_cancelled();
        self.keep_or_close(ended.call, current);
        let expired = current && ended.result.as_ref().err().is_some_and(SyncStop::is_unauthorized);
        let report = match ended.result {
            Ok(Synced { report, changed_sources }) => {
                tracing::info!(rows = report.rows_written, unreadable = report.counts.unreadable, "sync succeeded");
                let changed: Vec<_> = changed_sources.into_iter().collect();
                for some in changed.chunks(control::message::MAX_ROWS) {
                    self.emit(Event::SourcesChanged(some.to_vec()));
                }
                self.last.last_success = Some(report.ended);
                report
            }
            Err(stop) => self.report_stop(&running, stop).await,
        };
        self.last.report = Some(report.clone());
        give_all(running.waiting, &outcome_for_waiting(&report));
        self.emit(Event::SyncEnded(report));
        if expired {
            self.session = SessionState::Out;
            self.leave(SessionEnd::Expired);
        }
        if let Some(again) = self.again.take() {
            self.start_sync(again);
        }
    }

    async fn report_stop(&mut self, running: &RunningSync, stop: SyncStop) -> SyncReport {
        let outcome = match stop.failure() {
            Some(told) => {
                tracing::warn!(kind = ?told.kind, "sync failed");
                SyncOutcome::Failed(told)
            }
            None => SyncOutcome::Cancelled,
        };
        let report = SyncReport {
            start: running.start,
            ended: self.clock.now(),
            outcome,
            counts: self.last.report.as_ref().map(|report| report.counts).unwrap_or_default(),
            rows_written: 0,
            calls: Vec::new(),
        };
        let stored = report.clone();
        if let Err(error) = self.store.write(move |transaction| mirror::store_report(transaction, &stored, false)).await
        {
            tracing::error!(error = failure::chain(&error), "could not store how the sync ended");
        }
        report
    }

    /// Takes the call that a sync used, unless it is broken or of a session that is over.
    fn keep_or_close(&mut self, call: Option<Arc<QrexecCall>>, current: bool) {
        self.metadata = call;
        let usable = self.metadata.as_ref().is_some_and(|call| call.connection().broken_by().is_none());
        if !usable || !current {
            self.close_metadata();
        }
    }

    fn status(&mut self, answer: Answer<Status>) {
        let session = match &self.session {
            SessionState::Out => Session::SignedOut,
            SessionState::SigningIn { .. } => Session::SigningIn,
            SessionState::In(session) => session.shown(),
        };
        let (store, call, last) = (self.store.clone(), self.metadata.clone(), self.last.clone());
        let (software, started) = (self.software.clone(), self.started);
        let running_sync = self.running.as_ref().map(|running| running.start);
        self.tasks.spawn(async move {
            let proxy = proxy_status(call).await;
            let status = store.read(view::totals).await.map(|totals| Status {
                version: software,
                started,
                session,
                running_sync,
                last_sync: last.report,
                last_success: last.last_success,
                proxy,
                totals,
            });
            answer.give(status.map_err(|error| failure::of_store(&error)));
            Ended::Done
        });
    }

    /// What to do when a call to the proxy takes long to open.
    fn waiting_event(&self) -> impl FnOnce() + Send + 'static {
        let events = self.events.clone();
        move || drop(events.send(Event::ProxyWaiting))
    }

    /// Tells the front ends that watch; there may be none.
    fn emit(&self, event: Event) {
        drop(self.events.send(event));
    }

    /// The order of shutdown: no more commands; the session ends; the sync stops, or its transaction ends; the server is
    /// told; the calls close; the database is tidied up.
    async fn shut_down(mut self) {
        self.commands.close();
        let session = match std::mem::replace(&mut self.session, SessionState::Out) {
            SessionState::In(session) => Some(session),
            SessionState::SigningIn { task, answer, .. } => {
                task.abort();
                answer.give(Err(cancelled()));
                None
            }
            SessionState::Out => None,
        };
        if session.is_some() || self.running.is_some() {
            self.leave(SessionEnd::Shutdown);
        }
        let stopping = async {
            while self.running.is_some() {
                match self.tasks.join_next_with_id().await {
                    Some(ended) => self.ended(ended).await,
                    None => break,
                }
            }
        };
        if tokio::time::timeout(END_DEADLINE, stopping).await.is_err() {
            tracing::error!("a sync did not stop in time");
        }
        if let Some(session) = session {
            log_out(self.proxy.clone(), session.token, session.api_level, LAST_LOGOUT_DEADLINE).await;
        }
        let closing = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(END_DEADLINE, closing).await.is_err() {
            tracing::warn!("some work did not end in time");
        }
        self.tasks.shutdown().await;
        if let Err(error) = self.store.checkpoint().await {
            tracing::error!(error = failure::chain(&error), "could not tidy up the database");
        }
    }
}

/// Tells the server that the session has ended, for so long as `deadline` allows. The token is gone afterwards.
async fn log_out(proxy: Proxy, token: Token, api_level: ApiLevel, deadline: Duration) -> Ended {
    let logging_out = proxy.logout(token, api_level, deadline);
    match tokio::time::timeout(deadline, logging_out).await {
        Ok(Ok(())) => tracing::info!("the server has ended the session"),
        Ok(Err(error)) => tracing::warn!(kind = ?failure::of_proxy(&error).kind, "the logout call failed"),
        Err(_) => tracing::warn!("the logout call took too long"),
    }
    Ended::Done
}

async fn proxy_status(call: Option<Arc<QrexecCall>>) -> ProxyStatus {
    let Some(call) = call else { return ProxyStatus::NotConnected };
    let connection = call.connection();
    let asked = match connection.call(Call::Health, HEALTH_DEADLINE).await {
        Ok(answer) => answer.one().await,
        Err(error) => Err(error),
    };
    match asked {
        Ok(Some(Items::Health(health))) => ProxyStatus::Connected { software: connection.software().clone(), health },
        Ok(_) => ProxyStatus::Failed { message: "the proxy answered what was not asked".to_owned() },
        Err(error) => ProxyStatus::Failed { message: failure::chain(&error) },
    }
}

fn cancelled() -> Failure {
    failure(FailureKind::Cancelled, "given up: the session ended")
}

/// What whoever asked for a sync is told: its report, or why it failed.
fn outcome_for_waiting(report: &SyncReport) -> Result<SyncReport, Failure> {
    match &report.outcome {
        SyncOutcome::Ok | SyncOutcome::Unchanged => Ok(report.clone()),
        SyncOutcome::Failed(failure) => Err(failure.clone()),
        SyncOutcome::Cancelled => Err(cancelled()),
    }
}

fn give_all(waiting: Vec<Answer<SyncReport>>, result: &Result<SyncReport, Failure>) {
    for answer in waiting {
        answer.give(result.clone());
    }
}
