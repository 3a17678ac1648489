//! The client's side of one session: the handshake, then calls that run at the same time.
//!
//! **Invariant:** an answer is given out as complete only after its `End`; when the stream ends or breaks before, every
//! running call fails as incomplete.
//!
//! **Invariant:** reading never waits for writing. It waits for a call's consumer, which must drain its answer; one that
//! does not holds up the other calls, until its own time is over.
//!
//! **Invariant:** an id is taken from when its call is queued until its answer has ended, and by nothing else.
//!
//! **Invariant:** each call that is sent has a request id of its own, and one line in the log says how it ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protocol::answer::{Answer, AnswerError, Part};
use protocol::frame::{Frame, encode_frame, frame_bytes};
use protocol::handshake::{HandshakeError, decode_welcome, encode_hello};
use protocol::value::{RequestId, SoftwareVersion, ValueError};
use protocol::{
    Call, CallError, CallId, Deadline, ErrorKind, FromProxy, Hello, Items, Limits, Refusal, Request, Retry, ToProxy,
    Welcome,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use crate::channel::{ChannelError, Closed, FrameReader, FrameSender, frame_queue, write_frames};

/// How much longer than the proxy this side waits for an answer's end.
const GRACE: Duration = Duration::from_secs(5);
/// How long the last words of a session may take.
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);
/// How many parts of one answer may wait for their consumer.
const QUEUED_PARTS: usize = 4;

/// A session could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// No answer within the deadline.
    #[error("the proxy did not answer the handshake in time")]
    TimedOut,
    /// The stream ended before the answer.
    #[error("the proxy ended before it answered the handshake")]
    Ended,
    /// The stream failed.
    #[error("the stream to the proxy failed")]
    Channel(#[from] ChannelError),
    /// The answer is not of this protocol, or of another version.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The proxy says that it takes no calls.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallFailure {
    /// The proxy says so, or the call was not made at all.
    #[error(transparent)]
    Failed(#[from] CallError),
    /// The session ended before the answer did.
    #[error("the answer is incomplete: {0}")]
    Incomplete(Break),
    /// The session could no longer be used, and nothing of the call was sent.
    #[error("the call was not made: {0}")]
    NotSent(Break),
    /// The proxy did not end the answer within the deadline that it was given, and some seconds.
    #[error("the proxy did not keep the deadline")]
    Silent,
    /// The deadline is none.
    #[error(transparent)]
    Deadline(#[from] ValueError),
}

impl CallFailure {
    /// The kind of error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Failed(error) => error.kind,
            Self::Incomplete(_) | Self::NotSent(_) => ErrorKind::BadResponse,
            Self::Silent => ErrorKind::Timeout,
            Self::Deadline(_) => ErrorKind::Internal,
        }
    }

    /// When to try again.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Failed(error) => error.retry,
            Self::Incomplete(_) | Self::NotSent(_) | Self::Silent => Retry::Later { wait_ms: None },
            Self::Deadline(_) => Retry::Never,
        }
    }

    /// Whether the call certainly had no effect on the server.
    #[must_use]
    pub fn before_the_server(&self) -> bool {
        match self {
            Self::Failed(error) => error.stage.before_the_server(),
            Self::Incomplete(_) | Self::Silent => false,
            Self::NotSent(_) | Self::Deadline(_) => true,
        }
    }
}

/// Why a session can no longer be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Break {
    /// The stream ended.
    #[error("the proxy ended")]
    Ended,
    /// The stream failed or held what is no message.
    #[error("the stream from the proxy is broken")]
    Stream,
    /// An answer was not built as answers are.
    #[error("the proxy broke the protocol: {0}")]
    Answer(AnswerError),
    /// An answer to a call that was not made.
    #[error("the proxy answered a call that was not made")]
    UnknownCall,
    /// The proxy did not end an answer within the deadline that it was given: whatever it does, it does not answer.
    #[error("the proxy did not keep a deadline")]
    Silent,
    /// This side closed the session.
    #[error("the session was closed")]
    Closed,
}

/// One open session. Dropping it breaks off the calls that still run.
#[derive(Debug)]
pub struct Connection {
    sender: FrameSender,
    calls: SharedCalls,
    limits: Limits,
    software: SoftwareVersion,
    /// Writing; aborted with the connection.
    writing: JoinSet<()>,
    /// Reading and cancelling; aborted with the connection.
    _tasks: JoinSet<()>,
}

impl Connection {
    /// Shakes hands over the two streams.
    ///
    /// # Errors
    /// [`HelloError`].
    pub async fn open<R, W>(reader: R, writer: W, hello: &Hello, deadline: Duration) -> Result<Self, HelloError>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let first = frame_bytes(&encode_hello(hello)?).map_err(ChannelError::from)?;
        let (sender, queue) = frame_queue();
        let mut writing = JoinSet::new();
        writing.spawn(async move {
            if let Err(error) = write_frames(writer, queue).await {
                tracing::debug!(%error, "writing to the proxy ended");
            }
        });
        let mut reader = FrameReader::new(reader);
        // A proxy that is gone already is noticed by reading.
        let _ = sender.send(first).await;
        let payload = tokio::time::timeout(deadline, reader.next_payload())
            .await
            .map_err(|_| HelloError::TimedOut)??
            .ok_or(HelloError::Ended)?;
        let (limits, software) = match decode_welcome(&payload)? {
            Welcome::Ready { scope, .. } if scope != hello.scope => {
                return Err(Refusal::Scope { started: scope }.into());
            }
            Welcome::Ready { limits, software, .. } => (Limits::OURS.agree(limits), software),
            Welcome::Refused(refusal) => return Err(refusal.into()),
        };
        let calls = SharedCalls::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(read_answers(reader, calls.clone()));
        tasks.spawn(send_cancels(sender.clone(), calls.clone()));
        Ok(Self { sender, calls, limits, software, writing, _tasks: tasks })
    }

    /// Ends the session in order: tells the proxy to stop the calls that still run, and closes the stream. What the proxy
    /// does not read in time is lost. Cancelled, it is as if the connection was dropped.
    pub async fn close(mut self) {
        self.calls.abandon_all();
        let ending = async {
            while let Some(cancel) = self.calls.next_cancel() {
                self.sender.send(cancel).await?;
            }
            self.sender.finish().await?;
            self.writing.join_next().await;
            Ok::<(), Closed>(())
        };
        if !matches!(tokio::time::timeout(CLOSE_DEADLINE, ending).await, Ok(Ok(()))) {
            tracing::debug!("the proxy did not read what was left to say");
        }
    }

    /// Makes a call. Cancel-safe: cancelled, the call is not made.
    ///
    /// # Errors
    /// [`CallFailure`]; more calls at once than agreed fail as `rate_limited` without being sent.
    pub async fn call(&self, call: Call, deadline: Duration) -> Result<AnswerStream, CallFailure> {
        let wire_deadline = Deadline::try_new(deadline)?;
        let until = Instant::now() + deadline + GRACE;
        let room = match tokio::time::timeout_at(until, self.sender.reserve()).await {
            Ok(Ok(room)) => room,
            Ok(Err(Closed)) => return Err(CallFailure::NotSent(self.broken_by().unwrap_or(Break::Stream))),
            Err(_) => return Err(not_made(ErrorKind::Timeout, Retry::Later { wait_ms: None })),
        };
        let (parts, receiver) = mpsc::channel(QUEUED_PARTS);
        // From here on nothing waits: what is registered is sent.
        let note = Note::new(&call);
        let id = self.calls.begin(Answer::to(&call), Consumer { parts, until }, note, self.limits)?;
        match encode_frame(&ToProxy::Call(Request { id, request: note.request, deadline: wire_deadline, call })) {
            Ok(frame) => {
                note.sent(frame.len());
                room.send(frame);
            }
            Err(_) => {
                self.calls.forget(id);
                return Err(not_made(ErrorKind::TooLarge, Retry::Never));
            }
        }
        Ok(AnswerStream { id, parts: receiver, until, calls: self.calls.clone(), ended: false })
    }

    /// The proxy's version.
    #[must_use]
    pub fn software(&self) -> &SoftwareVersion {
        &self.software
    }

    /// Why the session can no longer be used; `None` while it can.
    #[must_use]
    pub fn broken_by(&self) -> Option<Break> {
        self.calls.lock().check().or_else(|| self.sender.is_closed().then_some(Break::Stream))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.calls.close(Break::Closed);
    }
}

/// The failure of a call that was never sent.
fn not_made(kind: ErrorKind, retry: Retry) -> CallFailure {
    CallError::new(kind, protocol::Stage::Admission, retry).into()
}

/// One answer, as it comes. Dropping it before its end cancels the call.
#[derive(Debug)]
pub struct AnswerStream {
    id: CallId,
    parts: mpsc::Receiver<Part>,
    until: Instant,
    calls: SharedCalls,
    ended: bool,
}

impl AnswerStream {
    /// The next items; `None` once the answer is complete. Cancel-safe.
    ///
    /// # Errors
    /// [`CallFailure`]: then nothing of the answer may be used.
    pub async fn next(&mut self) -> Result<Option<Items>, CallFailure> {
        loop {
            if self.ended {
                return Ok(None);
            }
            let received = tokio::time::timeout_at(self.until, self.parts.recv());
            let Ok(received) = received.await else {
                self.calls.close(Break::Silent);
                return Err(CallFailure::Silent);
            };
            let Some(part) = received else {
                return Err(self.calls.lock().broken.map_or(CallFailure::Silent, CallFailure::Incomplete));
            };
            match part {
                Part::Begin => {}
                // An answer that never ends must not go on for as long as more of it comes.
                Part::Items(_) if Instant::now() >= self.until => return Err(CallFailure::Silent),
                Part::Items(items) => return Ok(Some(items)),
                Part::End { .. } => self.ended = true,
                Part::Failed(error) => return Err(error.into()),
            }
        }
    }

    /// Reads an answer of exactly one item. Cancel-safe, but what was read is lost.
    ///
    /// # Errors
    /// [`CallFailure`].
    pub async fn one(mut self) -> Result<Option<Items>, CallFailure> {
        let mut item = None;
        while let Some(next) = self.next().await? {
            item = Some(next);
        }
        Ok(item)
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        self.calls.abandon(self.id);
    }
}

/// Who waits for an answer's parts, and how long.
#[derive(Debug, Clone)]
struct Consumer {
    parts: mpsc::Sender<Part>,
    until: Instant,
}

/// What the log says of one call.
#[derive(Debug, Clone, Copy)]
struct Note {
    request: RequestId,
    call: &'static str,
    sent: Instant,
    /// How much of the answer came, with the frames' headers.
    bytes: u64,
}

impl Note {
    fn new(call: &Call) -> Self {
        let request = RequestId::new(*Uuid::new_v4().as_bytes());
        Self { request, call: call.name(), sent: Instant::now(), bytes: 0 }
    }

    fn sent(&self, bytes: usize) {
        let Self { request, call, .. } = self;
        tracing::debug!(%request, call, bytes, "call sent");
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.sent.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn answered(&self, items: u32) {
        let (Self { request, call, bytes, .. }, elapsed_ms) = (self, self.elapsed_ms());
        tracing::debug!(%request, call, bytes, items, elapsed_ms, "call answered");
    }

    fn failed(&self, error: &CallError) {
        let (Self { request, call, bytes, .. }, elapsed_ms) = (self, self.elapsed_ms());
        let (kind, stage) = (error.kind.name(), error.stage.name());
        tracing::warn!(%request, call, kind, stage, bytes, elapsed_ms, "call failed");
    }

    fn broken_off(&self, broken: Break) {
        let (Self { request, call, bytes, .. }, elapsed_ms) = (self, self.elapsed_ms());
        tracing::warn!(%request, call, %broken, bytes, elapsed_ms, "call broken off");
    }

    fn given_up(&self) {
        let (Self { request, call, bytes, .. }, elapsed_ms) = (self, self.elapsed_ms());
        tracing::debug!(%request, call, bytes, elapsed_ms, "call given up");
    }
}

/// The calls whose answers have not ended.
#[derive(Debug, Clone, Default)]
struct SharedCalls(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    calls: Mutex<Calls>,
    /// Wakes [`send_cancels`].
    abandoned: Notify,
}

#[derive(Debug, Default)]
struct Calls {
    last_id: u32,
    running: HashMap<CallId, Running>,
    broken: Option<Break>,
}

#[derive(Debug)]
struct Running {
    answer: Answer,
    /// By when the answer must have ended.
    until: Instant,
    /// `None` once nobody waits for the answer: the id stays taken until the answer has ended.
    consumer: Option<Consumer>,
    /// Whether the proxy is told that nobody waits.
    cancelled: bool,
    note: Note,
}

impl Running {
    /// Nobody waits for the answer any more.
    fn give_up(&mut self) {
        if self.consumer.take().is_some() {
            self.note.given_up();
        }
    }
}

impl Calls {
    /// Why the session can no longer be used. A call that is past its time breaks it, also when nobody waits for it: it
    /// would keep its place for ever.
    fn check(&mut self) -> Option<Break> {
        let now = Instant::now();
        if self.broken.is_none() && self.running.values().any(|call| call.consumer.is_none() && call.until <= now) {
            self.close(Break::Silent);
        }
        self.broken
    }

    /// Ends the session: whoever waits for an answer finds its queue closed, and here why. The first reason stays.
    fn close(&mut self, broken: Break) {
        self.broken.get_or_insert(broken);
        for (_, running) in self.running.drain().filter(|(_, running)| running.consumer.is_some()) {
            running.note.broken_off(broken);
        }
    }
}

impl SharedCalls {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, answer: Answer, consumer: Consumer, note: Note, limits: Limits) -> Result<CallId, CallFailure> {
        let mut calls = self.lock();
        if let Some(broken) = calls.check() {
            return Err(CallFailure::NotSent(broken));
        }
        if calls.running.len() >= limits.max_calls.get() {
            return Err(not_made(ErrorKind::RateLimited, Retry::Now));
        }
        let id = loop {
            calls.last_id = calls.last_id.wrapping_add(1);
            let id = CallId(calls.last_id);
            if !calls.running.contains_key(&id) {
                break id;
            }
        };
        let until = consumer.until;
        calls.running.insert(id, Running { answer, until, consumer: Some(consumer), cancelled: false, note });
        Ok(id)
    }

    /// The call was not sent after all.
    fn forget(&self, id: CallId) {
        self.lock().running.remove(&id);
    }

    /// Nobody waits for the answer any more.
    fn abandon(&self, id: CallId) {
        if let Some(running) = self.lock().running.get_mut(&id) {
            running.give_up();
            self.0.abandoned.notify_one();
        }
    }

    /// Nobody waits for any answer any more.
    fn abandon_all(&self) {
        for running in self.lock().running.values_mut() {
            running.give_up();
        }
    }

    /// Tells the proxy to stop a call that runs and that nobody waits for: a frame for each such call, once.
    fn next_cancel(&self) -> Option<Frame> {
        let mut calls = self.lock();
        loop {
            let (id, running) =
                calls.running.iter_mut().find(|(_, call)| call.consumer.is_none() && !call.cancelled)?;
            running.cancelled = true;
            match encode_frame(&ToProxy::Cancel(*id)) {
                Ok(frame) => return Some(frame),
                Err(error) => tracing::error!(%error, "a cancel does not fit a frame"),
            }
        }
    }

    /// Checks a part that came in so many bytes, and says who waits for it.
    fn route(&self, id: CallId, part: &Part, bytes: u64) -> Result<Option<Consumer>, Break> {
        let mut calls = self.lock();
        if let Some(broken) = calls.broken {
            return Err(broken);
        }
        let running = calls.running.get_mut(&id).ok_or(Break::UnknownCall)?;
        running.answer.accept(part).map_err(Break::Answer)?;
        running.note.bytes = running.note.bytes.saturating_add(bytes);
        let (consumer, note) = (running.consumer.clone(), running.note);
        let waited_for = consumer.is_some();
        match part {
            Part::Begin | Part::Items(_) => return Ok(consumer),
            Part::End { count } if waited_for => note.answered(*count),
            Part::Failed(error) if waited_for => note.failed(error),
            // That nobody waits was noted, and what still came to its end is nobody's failure.
            Part::End { .. } | Part::Failed(_) => {}
        }
        calls.running.remove(&id);
        Ok(consumer)
    }

    fn close(&self, broken: Break) {
        self.lock().close(broken);
    }
}

/// Tells the proxy which calls to stop. A task of its own, since whoever drops an answer cannot wait for room.
async fn send_cancels(sender: FrameSender, calls: SharedCalls) {
    loop {
        calls.0.abandoned.notified().await;
        while let Some(cancel) = calls.next_cancel() {
            if let Err(Closed) = sender.send(cancel).await {
                return;
            }
        }
    }
}

/// Reads until the stream ends or breaks, and tells everybody who waits.
async fn read_answers<R: AsyncRead + Unpin>(mut reader: FrameReader<R>, calls: SharedCalls) {
    let broken = loop {
        let FromProxy { id, part } = match reader.next_message().await {
            Ok(Some(message)) => message,
            Ok(None) => break Break::Ended,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the stream from the proxy is broken");
                break Break::Stream;
            }
        };
        match calls.route(id, &part, reader.last_frame()) {
            Ok(Some(Consumer { parts, until })) => {
                // A consumer that is gone needs no part, and one that read nothing for its whole time gets none.
                if tokio::time::timeout_at(until, parts.send(part)).await.is_err() {
                    calls.abandon(id);
                }
            }
            Ok(None) => {}
            Err(broken) => {
                tracing::warn!(%broken, "no more answers are read");
                break broken;
            }
        }
    };
    calls.close(broken);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_still_taken_is_passed_over_when_they_start_anew() {
        let calls = SharedCalls::default();
        let begin = || {
            let (parts, _) = mpsc::channel(1);
            let consumer = Consumer { parts, until: Instant::now() };
            calls.begin(Answer::to(&Call::Health), consumer, Note::new(&Call::Health), Limits::OURS)
        };
        assert_eq!([begin(), begin()], [Ok(CallId(1)), Ok(CallId(2))]);
        calls.forget(CallId(2));
        calls.lock().last_id = u32::MAX - 1;
        assert_eq!([begin(), begin(), begin()], [u32::MAX, 0, 2].map(|id| Ok(CallId(id))));
    }
}
