//! How the rest of the daemon talks to the engine.

use control::{
    Act, ActId, Deal, DeviceStatus, DeviceTask, DownloadEntry, Event, Failure, FailureKind, HeldRemoval, OutgoingReply,
    QueueEntry, RemovalVerdict, ReplyText, Session, Status, SyncReport, Taken, Undone, Wanted,
};
use protocol::value::{Fingerprint, ItemId, OneTimeCode, Passphrase, SourceId, Username};
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::failure::failure;

/// Where one answer goes.
#[derive(Debug)]
pub(super) struct Answer<T>(oneshot::Sender<Result<T, Failure>>);

impl<T> Answer<T> {
    pub(super) fn new(answer: oneshot::Sender<Result<T, Failure>>) -> Self {
        Self(answer)
    }

    /// Gives the answer; whoever asked may be gone.
    pub(super) fn give(self, result: Result<T, Failure>) {
        drop(self.0.send(result));
    }

    /// Waits until nobody waits for it any more. Cancel-safe.
    pub(super) async fn closed(&mut self) {
        self.0.closed().await;
    }

    /// Whether nobody waits any more.
    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

#[derive(Debug)]
pub(super) enum Command {
    Status(Answer<Status>),
    Login { username: Username, passphrase: Passphrase, one_time_code: OneTimeCode, answer: Answer<Session> },
    Logout(Answer<()>),
    Refresh(Answer<SyncReport>),
    Act { act: Act, answer: Answer<Taken> },
    Deal { deal: Deal, acts: Vec<ActId>, answer: Answer<()> },
    Undo { acts: Vec<ActId>, answer: Answer<Vec<Undone>> },
    Queue(Answer<Vec<QueueEntry>>),
    SettleRemovals { verdict: RemovalVerdict, held: Vec<HeldRemoval>, answer: Answer<()> },
    Outgoing { source: SourceId, answer: Answer<Vec<OutgoingReply>> },
    Draft { source: SourceId, text: Option<ReplyText>, answer: Answer<()> },
    TrustKey { source: SourceId, fingerprint: Fingerprint, answer: Answer<()> },
    Download { items: Vec<ItemId>, answer: Answer<Wanted> },
    StopDownload { items: Vec<ItemId>, answer: Answer<Wanted> },
    Downloads(Answer<Vec<DownloadEntry>>),
    Pause(Answer<()>),
    Resume(Answer<()>),
    Open { item: ItemId, answer: Answer<()> },
    Viewers(Answer<Vec<ItemId>>),
    Device { task: DeviceTask, answer: Answer<DeviceStatus> },
}

/// A handle to the engine. Clones reach the same one.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
    /// Weak, so that whoever watches sees the events end with the engine.
    events: broadcast::WeakSender<Event>,
}

impl EngineHandle {
    pub(super) fn new(commands: mpsc::Sender<Command>, events: &broadcast::Sender<Event>) -> Self {
        Self { commands, events: events.downgrade() }
    }

    /// How things are.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn status(&self) -> Result<Status, Failure> {
        self.ask(Command::Status).await
    }

    /// Signs in. When the future is dropped the login is given up: a session that comes of it is ended again.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn login(
        &self,
        username: Username,
        passphrase: Passphrase,
        one_time_code: OneTimeCode,
    ) -> Result<Session, Failure> {
        self.ask(|answer| Command::Login { username, passphrase, one_time_code, answer }).await
    }

    /// Says what is to become of removals that are held.
    ///
    /// # Errors
    /// [`Failure`]; nothing is done where something else is held by now.
    pub async fn settle_removals(&self, verdict: RemovalVerdict, held: Vec<HeldRemoval>) -> Result<(), Failure> {
        self.ask(|answer| Command::SettleRemovals { verdict, held, answer }).await
    }

    /// The replies to a source that the server does not list.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn outgoing(&self, source: SourceId) -> Result<Vec<OutgoingReply>, Failure> {
        self.ask(|answer| Command::Outgoing { source, answer }).await
    }

    /// Keeps a draft of whoever is signed in, or forgets it.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn draft(&self, source: SourceId, text: Option<ReplyText>) -> Result<(), Failure> {
        self.ask(|answer| Command::Draft { source, text, answer }).await
    }

    /// Pins the key that the server offers for a source.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn trust_key(&self, source: SourceId, fingerprint: Fingerprint) -> Result<(), Failure> {
        self.ask(|answer| Command::TrustKey { source, fingerprint, answer }).await
    }

    /// Signs out.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn logout(&self) -> Result<(), Failure> {
        self.ask(Command::Logout).await
    }

    /// Syncs at once, or once more after a running sync, and waits for its end.
    ///
    /// # Errors
    /// [`Failure`]; a sync that fails is one.
    pub async fn refresh(&self) -> Result<SyncReport, Failure> {
        self.ask(Command::Refresh).await
    }

    /// Does something, which shows when this returns and reaches the server later.
    ///
    /// # Errors
    /// [`Failure`]; then nothing was done.
    pub async fn act(&self, act: Act) -> Result<Taken, Failure> {
        self.ask(|answer| Command::Act { act, answer }).await
    }

    /// Deals with acts that wait or were refused.
    ///
    /// # Errors
    /// [`Failure`]; then nothing was done.
    pub async fn deal(&self, deal: Deal, acts: Vec<ActId>) -> Result<(), Failure> {
        self.ask(|answer| Command::Deal { deal, acts, answer }).await
    }

    /// Takes deletions back that were not sent; the newest that waits where none are named.
    ///
    /// # Errors
    /// [`Failure`]; then nothing was done.
    pub async fn undo(&self, acts: Vec<ActId>) -> Result<Vec<Undone>, Failure> {
        self.ask(|answer| Command::Undo { acts, answer }).await
    }

    /// What waits, runs or was refused, oldest first.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn queue(&self) -> Result<Vec<QueueEntry>, Failure> {
        self.ask(Command::Queue).await
    }

    /// Fetches files, or again what has failed; all files and all that has failed where none are named.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn download(&self, items: Vec<ItemId>) -> Result<Wanted, Failure> {
        self.ask(|answer| Command::Download { items, answer }).await
    }

    /// Does not fetch files after all; all where none are named.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn stop_download(&self, items: Vec<ItemId>) -> Result<Wanted, Failure> {
        self.ask(|answer| Command::StopDownload { items, answer }).await
    }

    /// The downloads that wait, run or have failed, in the order in which they come.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn downloads(&self) -> Result<Vec<DownloadEntry>, Failure> {
        self.ask(Command::Downloads).await
    }

    /// Pauses the queue.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn pause(&self) -> Result<(), Failure> {
        self.ask(Command::Pause).await
    }

    /// Lets the queue go on.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn resume(&self) -> Result<(), Failure> {
        self.ask(Command::Resume).await
    }

    /// Opens an item in a disposable VM. Events tell when it is closed.
    ///
    /// # Errors
    /// [`Failure`]; then it was not opened.
    pub async fn open(&self, item: ItemId) -> Result<(), Failure> {
        self.ask(|answer| Command::Open { item, answer }).await
    }

    /// The items that are open in disposable VMs.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn viewers(&self) -> Result<Vec<ItemId>, Failure> {
        self.ask(Command::Viewers).await
    }

    /// Has a device VM do something, and waits for its end. When the future is dropped the call is ended.
    ///
    /// # Errors
    /// [`Failure`] where the device VM has not said how it went.
    pub async fn device(&self, task: DeviceTask) -> Result<DeviceStatus, Failure> {
        self.ask(|answer| Command::Device { task, answer }).await
    }

    /// The events from now on, until the engine has ended.
    ///
    /// # Errors
    /// [`Failure`] when it has ended already.
    pub fn subscribe(&self) -> Result<broadcast::Receiver<Event>, Failure> {
        self.events.upgrade().map(|events| events.subscribe()).ok_or_else(ending)
    }

    async fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T, Failure> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(Answer::new(answer))).await.map_err(|_| ending())?;
        answered.await.map_err(|_| ending())?
    }
}

fn ending() -> Failure {
    failure(FailureKind::Cancelled, "the daemon is ending")
}
