//! The daemon's heart: one task that owns the session, the sync and the calls to the proxy.
//!
//! **Invariant:** one sync at a time; requests during a run cause exactly one more. Each has one visible start and one
//! visible end.
//!
//! **Invariant:** the token lives in this task and in the work that it started; it is gone once the session has ended,
//! whatever becomes of the logout call.

mod acting;
mod awake;
mod downloading;
mod erasing;
mod handing_over;
mod handle;
mod health;
mod key_places;
mod pause;
mod reading;
mod replying;
mod session;
#[cfg(test)]
mod stand_in;
mod sync_task;
mod syncing;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use control::{
    Act, DeviceStatus, DownloadLane, Event, Failure, FailureKind, KeyProblem, LaneCounts, OpenPgpStatus, ProxyStatus,
    QueueStatus, SessionEnd, Status,
};
use protocol::SignedIn;
use protocol::value::{Fingerprint, SoftwareVersion, SourceId, Timestamp};
use qubes_rpc::qrexec::QrexecCall;
use tokio::sync::{broadcast, mpsc};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use acting::Acting;
use awake::Awake;
use downloading::{Downloading, FetchEnded};
use erasing::Erasing;
use handing_over::HandingOver;
pub use handle::EngineHandle;
use handle::{Answer, Command};
use health::ask_health;
use pause::Pauses;
use reading::Reading;
use replying::CheckedReply;
use session::SessionState;
use sync_task::{Opened, SyncEnded};
use syncing::{Asked, RunningSync, Schedule};

use crate::acts::{Performed, Watcher};
use crate::clock::Clock;
use crate::download::Desk;
use crate::erasure::{Erased, Leftover};
use crate::failure::{self, failure};
use crate::handover::HandoverDesk;
use crate::newsroom::{Newsroom, NewsroomError};
use crate::openpgp::decrypt::{Decryptor, Limits};
use crate::proxy::{Proxy, ProxyError};
use crate::reading::{Read, ReadError, ReadingDesk};
use crate::settings::{ActSettings, HandoverSettings, SyncSettings};
use crate::store::{Store, StoreError, SyncHistory, downloads, keys, mirror, outbox, reading as reading_store, view};

/// How many commands may wait for the engine.
const QUEUED_COMMANDS: usize = 64;
/// How many events a slow front end may lag behind before it misses some.
const KEPT_EVENTS: usize = 1024;
/// How long work that was told to end may take when the daemon ends. A transaction is never cut in two.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// What an engine is made of.
#[derive(Debug)]
pub struct EngineParts {
    /// The way to the proxy.
    pub proxy: Proxy,
    /// The store and the files.
    pub desk: Desk,
    /// The clock.
    pub clock: Clock,
    /// This program's version.
    pub software: SoftwareVersion,
    /// When to sync.
    pub sync: SyncSettings,
    /// How acts are sent.
    pub acts: ActSettings,
    /// The way to the private key.
    pub decryptor: Arc<dyn Decryptor>,
    /// The newsroom's key.
    pub newsroom: Newsroom,
    /// What could not be erased at start.
    pub leftover: Leftover,
    /// Who is told the steps of acts; `()` in the daemon.
    pub watcher: Arc<dyn Watcher>,
    /// Where documents are opened, copied and printed.
    pub handover: HandoverSettings,
}

#[cfg(test)]
impl EngineParts {
    /// Those of an engine over `store` whose qrexec calls cannot be made.
    fn without_qrexec(directory: &std::path::Path, store: Store) -> Self {
        let software = SoftwareVersion::try_new("0.0.0-test").unwrap();
        let qrexec = qubes_rpc::qrexec::Qrexec { program: directory.join("no-program") };
        let decryptor: Arc<dyn Decryptor> = Arc::new(crate::openpgp::decrypt::KeyFile::new(directory.join("no-key")));
        Self {
            proxy: Proxy::new(qrexec, "sd-proxy".parse().unwrap(), software.clone()),
            desk: Desk { store, files: crate::files::Files::open(directory).unwrap(), files_without_etag: false },
            clock: Clock::System,
            software,
            sync: SyncSettings::default(),
            acts: ActSettings::default(),
            newsroom: Newsroom::new(None, None, Arc::clone(&decryptor)),
            decryptor,
            leftover: Leftover::default(),
            watcher: Arc::new(()),
            handover: HandoverSettings::without_qubes(directory),
        }
    }
}

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
    /// The daemon ends.
    quit: CancellationToken,
    session: SessionState,
    /// The long-lived call of scope `metadata`, opened when first needed.
    metadata: Option<Arc<QrexecCall>>,
    /// Whether dom0 may ask somebody about another one: the user has said so, by a login or a refresh. Counts where dom0
    /// asks about such calls.
    lists_wanted: bool,
    /// Why it could not be opened the last time.
    not_opened: Option<Failure>,
    /// What the running sync says of it.
    opened: (mpsc::Sender<Opened>, mpsc::Receiver<Opened>),
    running: Option<RunningSync>,
    awake: Awake,
    /// The one sync to run after the running one.
    again: Option<Asked>,
    history: SyncHistory,
    schedule: Schedule,
    pauses: Pauses,
    acting: Acting,
    downloading: Downloading,
    reading: Reading,
    handing_over: HandingOver,
    newsroom: Arc<Newsroom>,
    /// The newsroom key's fingerprint, or why there is none, when it was last looked for.
    newsroom_key: Result<Fingerprint, String>,
    /// Keys that came could not all be looked at.
    keys_left: bool,
    erasing: Erasing,
    tasks: JoinSet<Ended>,
}

/// How a task of the engine ended.
#[derive(Debug)]
enum Ended {
    Login(Result<SignedIn, ProxyError>),
    Sync(Box<SyncEnded>),
    /// A call for acts was opened, or not.
    ActCall(Result<Box<QrexecCall>, ProxyError>),
    /// The call for messages was opened, or not.
    MessagesCall(Result<Box<QrexecCall>, ProxyError>),
    /// An item was fetched, or not.
    Fetch(Box<FetchEnded>),
    /// Acts were attempted.
    Act(Box<Result<Performed, StoreError>>),
    /// An item was opened, or not.
    Read(Box<Result<Read, ReadError>>),
    /// The secret keys were looked for; whether there are others than before.
    SecretKeys(bool),
    /// The newsroom's key was looked for.
    NewsroomKey(Result<Fingerprint, NewsroomError>),
    /// The same, for a reply that somebody wants to send.
    ReplyChecked(Box<CheckedReply>),
    /// What was doomed was erased, or not.
    Erased(Box<Result<Erased, StoreError>>),
    /// Keys that came were looked at.
    KeysLookedAt {
        held: Vec<(SourceId, Option<KeyProblem>)>,
        all: bool,
    },
    /// A document was closed, or broke off; none where it was not opened.
    Viewer(Option<Result<(), Failure>>),
    /// A device VM's call has ended.
    Device(Answer<DeviceStatus>, Result<DeviceStatus, Failure>, bool),
    /// Work that nobody waits for: a logout, a closed call, a status.
    Done,
}

impl Engine {
    /// An engine, and the handle to it.
    ///
    /// # Errors
    /// [`StoreError`] when what earlier syncs left cannot be read.
    pub async fn new(parts: EngineParts) -> Result<(Self, EngineHandle), StoreError> {
        let EngineParts { proxy, desk, clock, software, sync, acts, decryptor, newsroom, leftover, watcher, handover } =
            parts;
        let (store, places) = (desk.store.clone(), proxy.places().clone());
        let history = store.read(mirror::load_history).await?;
        let (snapshot, paused) = store
            .read(|transaction| Ok((outbox::last_snapshot(transaction)?, downloads::is_paused(transaction)?)))
            .await?;
        let (sender, commands) = mpsc::channel(QUEUED_COMMANDS);
        let (events, _) = broadcast::channel(KEPT_EVENTS);
        let handle = EngineHandle::new(sender, &events);
        let awake = Awake::new(clock.now());
        let engine = Self {
            proxy,
            store,
            started: clock.now(),
            clock,
            software,
            commands,
            events,
            quit: CancellationToken::new(),
            session: SessionState::Out,
            metadata: None,
            lists_wanted: false,
            not_opened: None,
            opened: mpsc::channel(1),
            running: None,
            awake,
            again: None,
            history,
            schedule: Schedule::new(sync),
            pauses: Pauses::new(paused),
            acting: Acting::new(acts, snapshot, watcher),
            reading: Reading::new(
                ReadingDesk {
                    store: desk.store.clone(),
                    files: desk.files.clone(),
                    decryptor,
                    limits: Limits::default(),
                },
                places,
            ),
            handing_over: HandingOver::new(
                HandoverDesk { store: desk.store.clone(), files: desk.files.clone() },
                handover,
            ),
            downloading: Downloading::new(desk),
            newsroom: Arc::new(newsroom),
            newsroom_key: Err("it is being looked for".to_owned()),
            keys_left: false,
            erasing: Erasing::new(leftover),
            tasks: JoinSet::new(),
        };
        Ok((engine, handle))
    }

    /// Runs until `stop`, then shuts down.
    pub async fn run(mut self, stop: CancellationToken) {
        self.look_for_secret_keys();
        self.look_for_newsroom_key();
        self.look_at_keys_again().await;
        // What the last start left to do.
        self.erase();
        loop {
            let next_look = self.next_look();
            tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended).await,
                Some(opened) = self.opened.1.recv() => self.metadata_opened(opened),
                () = self.session.login_abandoned() => self.give_up_login(),
                () = at(self.acting.wake) => self.send_acts().await,
                () = at(self.downloading.wake) => self.start_downloads().await,
                () = at(self.reading.wake) => self.start_reading().await,
                () = at(self.erasing.wake) => self.erase(),
                () = at(next_look) => self.look_at_clocks().await,
                () = at(self.schedule.next()) => self.ask_sync(None),
                () = at(self.schedule.stale_at()) => self.grow_stale(),
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command).await,
                    None => break,
                },
            }
        }
        self.shut_down().await;
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Status(answer) => self.status(answer),
            Command::Login { username, passphrase, one_time_code, answer } => {
                self.log_in(username, passphrase, one_time_code, answer);
            }
            Command::Logout(answer) => self.log_out(answer),
            Command::Act { act: act @ Act::Reply { .. }, answer } => self.reply(act, answer),
            Command::Act { act, answer } => self.take_act(act, answer).await,
            Command::Outgoing { source, answer } => self.outgoing(source, answer),
            Command::Draft { source, text, answer } => self.draft(source, text, answer).await,
            Command::TrustKey { source, fingerprint, answer } => self.trust_key(source, fingerprint, answer).await,
            Command::Deal { deal, acts, answer } => self.deal(deal, acts, answer).await,
            Command::Undo { acts, answer } => self.undo(acts, answer).await,
            Command::Queue(answer) => self.queue(answer),
            Command::SettleRemovals { verdict, held, answer } => {
                self.settle_removals(verdict, held, answer).await;
            }
            Command::Download { items, answer } => self.want(items, answer).await,
            Command::StopDownload { items, answer } => self.unwant(items, answer).await,
            Command::Downloads(answer) => self.downloads(answer),
            Command::Open { item, answer } => self.open(item, answer),
            Command::Viewers(answer) => self.viewers(answer),
            Command::Device { task, answer } => self.have_device_do(task, answer),
            Command::Pause(answer) => self.pause(answer).await,
            Command::Resume(answer) => self.resume(answer).await,
            Command::Refresh(answer) => match &self.session {
                SessionState::In(_) => {
                    self.let_dom0_ask();
                    self.look_for_secret_keys_if_missed().await;
                    self.ask_sync(Some(answer));
                }
                SessionState::Out | SessionState::SigningIn { .. } => answer.give(Err(failure::not_signed_in())),
            },
        }
    }

    async fn ended(&mut self, ended: Result<(Id, Ended), JoinError>) {
        match ended {
            Ok((_, Ended::Done)) => {}
            Ok((task, Ended::Login(result))) => self.login_ended(task, result).await,
            Ok((_, Ended::Sync(ended))) => self.sync_ended(*ended).await,
            Ok((task, Ended::ActCall(opened))) => self.act_call_opened(task, opened).await,
            Ok((task, Ended::Act(performed))) => self.act_ended(task, *performed).await,
            Ok((task, Ended::MessagesCall(opened))) => self.messages_call_opened(task, opened).await,
            Ok((task, Ended::Fetch(ended))) => self.fetch_ended(task, *ended).await,
            Ok((task, Ended::Read(ended))) => self.read_ended(task, *ended).await,
            Ok((task, Ended::Viewer(ended))) => self.viewer_ended(task, ended),
            Ok((_, Ended::Device(answer, done, gone))) => self.device_ended(answer, done, gone),
            Ok((_, Ended::SecretKeys(changed))) => self.secret_keys_ended(changed).await,
            Ok((_, Ended::NewsroomKey(checked))) => self.note_newsroom_key(&checked),
            Ok((_, Ended::ReplyChecked(reply))) => self.reply_checked(*reply).await,
            Ok((_, Ended::Erased(erased))) => self.erased(*erased),
            Ok((_, Ended::KeysLookedAt { held, all })) => self.keys_looked_at(held, all).await,
            Err(error) if error.is_cancelled() => {}
            Err(error) => {
                tracing::error!("a task of the engine panicked");
                self.panicked(error.id()).await;
            }
        }
    }

    /// A task panicked: whoever waits for it is told.
    async fn panicked(&mut self, task: Id) {
        if self.running.as_ref().is_some_and(|running| running.is(task)) {
            self.sync_ended(SyncEnded::panicked()).await;
        } else if let Some(login) = self.take_login(task) {
            login.answer.give(Err(failure(FailureKind::Internal, "the login met a fault: see the daemon's log")));
        } else if !self.act_panicked(task).await
            && !self.messages_call_panicked(task)
            && !self.fetch_panicked(task).await
            && !self.handover_panicked(task)
            && !self.erasure_panicked(task)
        {
            self.read_panicked(task).await;
        }
    }

    fn status(&mut self, answer: Answer<Status>) {
        let session = self.session.shown();
        let (store, call, history) = (self.store.clone(), self.metadata.clone(), self.history.clone());
        let (software, started) = (self.software.clone(), self.started);
        let running_sync = self.running.as_ref().map(|running| running.start);
        let not_opened = self.not_opened.clone();
        let (next_sync, stale) = (self.next_sync(), self.schedule.is_stale());
        let mut queue = QueueStatus {
            paused: self.pause_reasons(),
            waiting_for_call: u64::try_from(self.proxy.places().waiting()).unwrap_or(u64::MAX),
            ..QueueStatus::default()
        };
        let running =
            |count: usize| LaneCounts { running: u64::try_from(count).unwrap_or(u64::MAX), ..LaneCounts::default() };
        queue.acts = running(self.acting.running());
        queue.messages = running(self.downloading.running_in(DownloadLane::Messages));
        queue.files = running(self.downloading.running_in(DownloadLane::Files));
        queue.decrypt = running(self.reading.running());
        let erasure = self.erasing.fault.clone();
        let openpgp = OpenPgpStatus {
            backend: self.reading.backend().to_owned(),
            problem: self.reading.problem.clone(),
            newsroom_key: self.newsroom_key.clone(),
            held_keys: 0,
        };
        self.tasks.spawn(async move {
            let proxy = match call {
                Some(call) => ask_health(call.connection()).await,
                None => not_opened
                    .map_or(ProxyStatus::NotConnected, |failure| ProxyStatus::Failed { message: failure.message }),
            };
            let read = store.read(|transaction| {
                let lane = |lane| downloads::lane_counts(transaction, lane);
                Ok((
                    view::totals(transaction)?,
                    lane(DownloadLane::Messages)?,
                    lane(DownloadLane::Files)?,
                    reading_store::lane_counts(transaction)?,
                    keys::held(transaction)?,
                ))
            });
            let status = read.await.map(|(totals, messages, files, decrypt, held_keys)| Status {
                version: software,
                started,
                session,
                running_sync,
                last_sync: history.report,
                last_success: history.last_success,
                next_sync,
                stale,
                queue: QueueStatus {
                    acts: LaneCounts { waiting: totals.queue.waiting, failed: totals.queue.refused, ..queue.acts },
                    messages: LaneCounts { running: queue.messages.running, ..messages },
                    files: LaneCounts { running: queue.files.running, ..files },
                    decrypt: LaneCounts { running: queue.decrypt.running, ..decrypt },
                    paused: queue.paused,
                    waiting_for_call: queue.waiting_for_call,
                },
                proxy,
                openpgp: OpenPgpStatus { held_keys, ..openpgp },
                erasure,
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

    /// Goes on with whatever is to be sent, fetched or read, after something that may have changed which that is.
    async fn work(&mut self) {
        self.downloading.look_again();
        self.reading.look_again();
        self.go_on().await;
    }

    /// The same where nothing has.
    async fn go_on(&mut self) {
        self.send_acts().await;
        self.start_downloads().await;
        self.start_reading().await;
    }

    /// Tells that sources, or their items, show otherwise now.
    fn sources_changed(&self, sources: impl IntoIterator<Item = SourceId>) {
        let sources: BTreeSet<_> = sources.into_iter().collect();
        let sources: Vec<_> = sources.into_iter().collect();
        for some in sources.chunks(control::message::MAX_ROWS) {
            self.emit(Event::SourcesChanged(some.to_vec()));
        }
    }

    /// Closes a call in the background. Where somebody still uses it, it ends with its last user.
    fn close_call(&mut self, call: Arc<QrexecCall>) {
        if let Some(call) = Arc::into_inner(call) {
            self.tasks.spawn(async move {
                call.close().await;
                Ended::Done
            });
        }
    }

    /// Tells the front ends that watch; there may be none.
    fn emit(&self, event: Event) {
        drop(self.events.send(event));
    }

    /// The order of shutdown: no more commands; the log says what was not sent; what is being decrypted stops, and documents
    /// in other VMs are let go; the session ends; the sync stops, or its
    /// transaction ends; meanwhile the server is told and the calls close; the database is tidied up.
    async fn shut_down(mut self) {
        self.commands.close();
        self.quit.cancel();
        self.log_unsent().await;
        self.stop_reading();
        match std::mem::replace(&mut self.session, SessionState::Out) {
            SessionState::In(session) => {
                self.leave(SessionEnd::Shutdown);
                self.tell_server(session.token, session.api_level);
            }
            SessionState::SigningIn(login) => login.give_up(),
            SessionState::Out => {}
        }
        self.finish_erasing();
        let ending = async {
            while let Some(ended) = self.tasks.join_next_with_id().await {
                self.ended(ended).await;
            }
        };
        if tokio::time::timeout(END_DEADLINE, ending).await.is_err() {
            tracing::warn!("some work did not end in time");
        }
        self.tasks.shutdown().await;
        match tokio::time::timeout(END_DEADLINE, self.store.checkpoint()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::error!(error = failure::chain(&error), "could not tidy up the database"),
            Err(_) => tracing::warn!("the database could not be tidied up in time; the next start does it"),
        }
    }
}

/// Waits until then; for ever where there is no such time.
async fn at(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

fn given_up() -> Failure {
    failure(FailureKind::Cancelled, "given up: the session ended")
}
