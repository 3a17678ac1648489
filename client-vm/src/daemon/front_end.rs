//! One front end's connection.

use std::time::Duration;

use control::message::MAX_ROWS;
use control::search::MAX_HITS;
use control::{
    ConversationItem, Event, Failure, FailureKind, FromDaemon, ItemText, OutgoingReply, Reply, Request, SearchWords,
    SourceRow, ToDaemon, peer,
};
use protocol::frame::{FrameError, encode_frame, frame_bytes};
use protocol::value::SourceId;
use qubes_rpc::channel::{ChannelError, Closed, FrameReader, FrameSender, frame_queue, write_frames};
use tokio::net::UnixStream;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::engine::EngineHandle;
use crate::failure::{self, failure};
use crate::handover::HandoverDesk;
use crate::store::search::{self, Query};
use crate::store::{SourceMatch, Store, drafts, removals, view};

/// How long a front end may take for its greeting.
const GREETING_DEADLINE: Duration = Duration::from_secs(5);
/// How long a front end may take to read its last answers.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);
/// How long the engine may take for what is under way when the daemon ends.
const LAST_ANSWERS_DEADLINE: Duration = Duration::from_secs(1);
/// How many requests of one front end may be under way.
const MAX_REQUESTS: usize = 8;

/// Serves a front end until it goes, or until `stop` and its requests have ended.
pub(super) async fn serve(stream: UnixStream, engine: EngineHandle, handover: HandoverDesk, stop: CancellationToken) {
    if !peer::is_of_own_user(&stream) {
        tracing::warn!("a front end of another user was turned away");
        return;
    }
    let (reader, writer) = stream.into_split();
    let (sender, queue) = frame_queue();
    let mut writing = JoinSet::new();
    writing.spawn(write_frames(writer, queue));
    let front_end = FrontEnd { engine, store: handover.store.clone(), handover, sender, end: stop.clone() };
    if let Err(error) = front_end.talk(FrameReader::new(reader), stop).await {
        tracing::debug!(error = failure::chain(&error), "a front end's connection failed");
    }
    // Every sender is gone: what is queued is written, unless the front end does not read it.
    let _ = tokio::time::timeout(DRAIN_DEADLINE, writing.join_next()).await;
}

/// The one source that a person meant.
fn one_source(found: SourceMatch) -> Result<Box<SourceRow>, Failure> {
    match found {
        SourceMatch::One(row) => Ok(row),
        SourceMatch::None => Err(failure(FailureKind::NotFound, "no such source: `splitdrop sources` lists them")),
        SourceMatch::Many(count) => {
            let text = format!("{count} sources fit: give more of the id, as `splitdrop sources` shows it");
            Err(failure(FailureKind::Ambiguous, text))
        }
    }
}

/// Says which of several words was meant.
fn about(word: &str, told: Failure) -> Failure {
    Failure { message: format!("`{word}`: {}", told.message), ..told }
}

#[derive(Debug, Clone)]
struct FrontEnd {
    engine: EngineHandle,
    store: Store,
    handover: HandoverDesk,
    sender: FrameSender,
    /// Ends the daemon.
    end: CancellationToken,
}

impl FrontEnd {
    async fn talk(
        self,
        mut reader: FrameReader<tokio::net::unix::OwnedReadHalf>,
        stop: CancellationToken,
    ) -> Result<(), ChannelError> {
        let greeting = tokio::time::timeout(GREETING_DEADLINE, reader.next_payload()).await;
        if !matches!(greeting, Ok(Ok(Some(_)))) {
            return Ok(());
        }
        // The front end compares: it is the one that can tell a person.
        if self.sender.send(frame_bytes(&control::greeting::greeting())?).await.is_err() {
            return Ok(());
        }
        let mut requests = JoinSet::new();
        loop {
            tokio::select! {
                message = reader.next_message::<ToDaemon>(), if requests.len() < MAX_REQUESTS => {
                    let Some(ToDaemon { id, request }) = message? else { return Ok(()) };
                    requests.spawn(self.clone().answer(id, request));
                }
                Some(_) = requests.join_next() => {}
                () = stop.cancelled() => break,
            }
        }
        // The engine answers what is under way, if only that it is given up. Watching ends with the
        // engine.
        let last_answers = async { while requests.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_ANSWERS_DEADLINE, last_answers).await;
        Ok(())
    }

    async fn answer(self, id: u32, request: Request) {
        // Before the status is asked for, so that nothing falls in between.
        let watch = matches!(request, Request::Watch).then(|| self.engine.subscribe().ok()).flatten();
        let quits = matches!(request, Request::Quit);
        let result = self.perform(id, request).await;
        let done = self.send(&FromDaemon::Done { id, result }).await;
        let sent = match done {
            // Its words are too long: the request has ended all the same.
            Err(error @ SendError::TooLarge(_)) => {
                self.send(&FromDaemon::Done { id, result: Err(unsent(&error)) }).await
            }
            done => done,
        };
        if quits {
            tracing::info!("a front end ends the daemon");
            self.end.cancel();
        }
        if sent.is_err() {
            return;
        }
        let Some(mut events) = watch else { return };
        loop {
            let event = match events.recv().await {
                Ok(event) => event,
                Err(RecvError::Lagged(missed)) => Event::Missed(missed),
                Err(RecvError::Closed) => return,
            };
            let sent = match self.send(&FromDaemon::Event(event)).await {
                // It is as good as missed.
                Err(SendError::TooLarge(_)) => self.send(&FromDaemon::Event(Event::Missed(1))).await,
                sent => sent,
            };
            if sent.is_err() {
                return;
            }
        }
    }

    async fn perform(&self, id: u32, request: Request) -> Result<(), Failure> {
        match request {
            Request::Status | Request::Watch => {
                let status = self.engine.status().await?;
                self.item(id, Reply::Status(Box::new(status))).await
            }
            Request::Login { username, passphrase, one_time_code } => {
                let session = self.engine.login(username, passphrase, one_time_code).await?;
                self.item(id, Reply::SignedIn(session)).await
            }
            Request::Logout => self.engine.logout().await,
            Request::Refresh => {
                let report = self.engine.refresh().await?;
                self.item(id, Reply::Synced(report)).await
            }
            Request::Sources => {
                let rows = self.store.read(view::sources).await.map_err(|error| failure::of_store(&error))?;
                for some in rows.chunks(MAX_ROWS) {
                    self.item(id, Reply::Sources(some.to_vec())).await?;
                }
                Ok(())
            }
            Request::Show { source } => self.show(id, source).await,
            Request::FindSources { words } => self.find_sources(id, words).await,
            Request::FindItems { words } => self.find_items(id, words).await,
            Request::Search { words, limit } => self.search(id, &words, limit).await,
            Request::Act(act) => {
                let taken = self.engine.act(act).await?;
                self.item(id, Reply::Taken(taken)).await
            }
            Request::Queue => {
                for some in self.engine.queue().await?.chunks(MAX_ROWS) {
                    self.item(id, Reply::Queue(some.to_vec())).await?;
                }
                Ok(())
            }
            Request::Deal { deal, acts } => self.engine.deal(deal, acts).await,
            Request::Undo { acts } => {
                for some in self.engine.undo(acts).await?.chunks(MAX_ROWS) {
                    self.item(id, Reply::Undone(some.to_vec())).await?;
                }
                Ok(())
            }
            // It ends once it was answered.
            Request::Quit => Ok(()),
            Request::Download { items } => {
                let wanted = self.engine.download(items).await?;
                self.item(id, Reply::Wanted(wanted)).await
            }
            Request::StopDownload { items } => {
                let wanted = self.engine.stop_download(items).await?;
                self.item(id, Reply::Wanted(wanted)).await
            }
            Request::Draft { source, text } => self.engine.draft(source, text).await,
            Request::TrustKey { source, fingerprint } => self.engine.trust_key(source, fingerprint).await,
            Request::Downloads => {
                for some in self.engine.downloads().await?.chunks(MAX_ROWS) {
                    self.item(id, Reply::Downloads(some.to_vec())).await?;
                }
                Ok(())
            }
            Request::Removals => {
                let held = self.store.read(removals::held).await.map_err(|error| failure::of_store(&error))?;
                for some in held.chunks(MAX_ROWS) {
                    self.item(id, Reply::Removals(some.to_vec())).await?;
                }
                Ok(())
            }
            Request::SettleRemovals { verdict, held } => self.engine.settle_removals(verdict, held).await,
            Request::Pause => self.engine.pause().await,
            Request::Resume => self.engine.resume().await,
            Request::Open { item } => self.engine.open(item).await,
            Request::Viewers => {
                let items = self.engine.viewers().await?;
                self.item(id, Reply::Viewers(items)).await
            }
            Request::Content { item, offset } => {
                let part = self.handover.content(item, offset).await.map_err(|error| failure::of_handover(&error))?;
                self.item(id, Reply::Content(part)).await
            }
            Request::Device(task) => {
                let status = self.engine.device(task).await?;
                self.item(id, Reply::Device(status)).await
            }
        }
    }

    async fn show(&self, id: u32, source: String) -> Result<(), Failure> {
        let stored = |error| failure::of_store(&error);
        let find = move |transaction: &rusqlite::Transaction<'_>| view::find_source(transaction, &source);
        let row = one_source(self.store.read(find).await.map_err(stored)?)?;
        let source = row.id;
        // Before the conversation: a reply that is listed meanwhile is shown there.
        let outgoing = self.engine.outgoing(source).await?;
        let read = move |transaction: &rusqlite::Transaction<'_>| {
            Ok((
                view::conversation(transaction, source)?,
                view::readable(transaction, source)?,
                drafts::load(transaction, source)?,
            ))
        };
        let (items, readable, draft) = self.store.read(read).await.map_err(stored)?;
        self.item(id, Reply::Source(row)).await?;
        for some in items.chunks(MAX_ROWS) {
            self.item(id, Reply::Conversation(some.to_vec())).await?;
        }
        // One by one: together they may be large.
        for item in readable {
            let text = self.store.read(move |transaction| view::text_of(transaction, source, item)).await;
            let Some(text) = text.map_err(stored)? else { continue };
            match self.send(&FromDaemon::Item { id, reply: Reply::Text(ItemText { item: item.id(), text }) }).await {
                // One text holds up no other: whoever shows the conversation says that this one is missing.
                Ok(()) | Err(SendError::TooLarge(_)) => {}
                Err(error @ SendError::Gone) => return Err(unsent(&error)),
            }
        }
        let listed = |reply: &OutgoingReply| items.iter().any(|item| item.is_reply(reply.reply));
        for reply in outgoing.into_iter().filter(|reply| !listed(reply)) {
            self.item(id, Reply::Outgoing(Box::new(reply))).await?;
        }
        match draft {
            Some(draft) => self.item(id, Reply::Draft(draft)).await,
            None => Ok(()),
        }
    }

    async fn find_sources(&self, id: u32, words: Vec<String>) -> Result<(), Failure> {
        let read = move |transaction: &rusqlite::Transaction<'_>| {
            words.iter().map(|word| Ok((view::find_source(transaction, word)?, word.clone()))).collect()
        };
        let found: Vec<(SourceMatch, String)> =
            self.store.read(read).await.map_err(|error| failure::of_store(&error))?;
        let mut rows = Vec::new();
        for (found, word) in found {
            rows.push(*one_source(found).map_err(|told| about(&word, told))?);
        }
        for some in rows.chunks(MAX_ROWS) {
            self.item(id, Reply::Sources(some.to_vec())).await?;
        }
        Ok(())
    }

    async fn find_items(&self, id: u32, words: Vec<String>) -> Result<(), Failure> {
        let read = move |transaction: &rusqlite::Transaction<'_>| {
            words.iter().map(|word| Ok((view::find_items(transaction, word)?, word.clone()))).collect()
        };
        let found: Vec<(Vec<(SourceId, ConversationItem)>, String)> =
            self.store.read(read).await.map_err(|error| failure::of_store(&error))?;
        let mut items = Vec::new();
        for (found, word) in found {
            let count = found.len();
            let mut found = found.into_iter();
            match (found.next(), count) {
                (Some(item), 1) => items.push(item),
                (Some(_), _) => {
                    let told = failure(FailureKind::Ambiguous, format!("{count} items fit: give more of the id"));
                    return Err(about(&word, told));
                }
                (None, _) => {
                    let text = "no such item: `splitdrop show` lists a conversation's";
                    return Err(about(&word, failure(FailureKind::NotFound, text)));
                }
            }
        }
        for (source, item) in items {
            self.item(id, Reply::Found { source, item: Box::new(item) }).await?;
        }
        Ok(())
    }

    async fn search(&self, id: u32, words: &SearchWords, limit: u32) -> Result<(), Failure> {
        let query = Query::parse(words).map_err(|error| failure(FailureKind::Invalid, error.to_string()))?;
        let limit = usize::try_from(limit.min(MAX_HITS)).unwrap_or(usize::MAX);
        let read = move |transaction: &rusqlite::Transaction<'_>| search::find(transaction, &query, limit);
        let found = self.store.read(read).await.map_err(|error| failure::of_store(&error))?;
        self.item(id, Reply::HitCount(found.count)).await?;
        for some in found.hits.chunks(MAX_ROWS) {
            self.item(id, Reply::Hits(some.to_vec())).await?;
        }
        Ok(())
    }

    async fn item(&self, id: u32, reply: Reply) -> Result<(), Failure> {
        self.send(&FromDaemon::Item { id, reply }).await.map_err(|error| unsent(&error))
    }

    async fn send(&self, message: &FromDaemon) -> Result<(), SendError> {
        match encode_frame(message) {
            Ok(frame) => self.sender.send(frame).await.map_err(|Closed| SendError::Gone),
            Err(error) => {
                tracing::error!(error = failure::chain(&error), "an answer to a front end does not fit a frame");
                Err(SendError::TooLarge(error))
            }
        }
    }
}

/// Something could not be sent to a front end.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("the front end is gone")]
    Gone,
    #[error("the answer does not fit a message: see the daemon's log")]
    TooLarge(#[source] FrameError),
}

/// What the request ends with. Nobody hears of it when the front end is gone.
fn unsent(error: &SendError) -> Failure {
    match error {
        SendError::Gone => failure(FailureKind::Cancelled, error.to_string()),
        SendError::TooLarge(_) => failure(FailureKind::Internal, error.to_string()),
    }
}
