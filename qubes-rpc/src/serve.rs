//! The proxy's side of one qrexec call: the handshake, then calls that run at the same time.
//!
//! **Invariant:** at most `max_calls` calls run; one more is refused. Every call ends with one `End` or one `Failed`, also
//! when its service panics, runs out of time or is cancelled.
//!
//! **Invariant:** a call's id and its place are free again before the client can see the answer's end.
//!
//! **Invariant:** reading goes on while answers are written; only a refusal waits for the writer.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use protocol::answer::Part;
use protocol::frame::{encode_frame, frame_bytes};
use protocol::handshake::{HandshakeError, decode_hello, encode_welcome, mismatch_answer};
use protocol::value::{RequestId, SoftwareVersion};
use protocol::{
    Call, CallError, CallId, ErrorKind, FromProxy, Hello, Items, Limits, Refusal, Request, Retry, Scope, Stage,
    ToProxy, Welcome,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::channel::{ChannelError, Closed, FrameReader, FrameSender, frame_queue, write_frames};

/// How long the client may take for its first frame. It sends it without being asked.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);
/// How long calls may go on after the input's end, unless their own deadlines are shorter.
const DRAIN_DEADLINE: Duration = Duration::from_secs(60);
/// How long a session that was told to stop may take to write what is queued.
const STOP_DEADLINE: Duration = Duration::from_secs(1);

/// What performs the calls of a session.
pub trait Service: Send + Sync + 'static {
    /// Says whether the session may be used at all.
    ///
    /// # Errors
    /// The [`Refusal`] to send instead of a welcome.
    fn admit(&self, hello: &Hello) -> Result<(), Refusal>;

    /// Performs one call: `begin`, then items, then `Ok`, which becomes the answer's end. The future is dropped when the
    /// call is cancelled or runs out of time.
    fn perform(
        &self,
        call: Call,
        deadline: Duration,
        answer: &mut Responder,
    ) -> impl Future<Output = Result<(), CallError>> + Send;
}

/// How a session ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The client ended without a first frame, or did not send it in the time it has.
    #[error("the client sent no handshake within {} s, or ended before", HELLO_DEADLINE.as_secs())]
    NoHello,
    /// The handshake failed.
    #[error("the handshake failed")]
    Handshake(#[from] HandshakeError),
    /// The session was refused, and the client was told.
    #[error("the session was refused")]
    Refused(#[source] Refusal),
    /// What the client sent is no message, or the stream failed.
    #[error("the stream from the client failed")]
    Channel(#[from] ChannelError),
    /// The client used the id of a running call again.
    #[error("the client used the id of a running call again")]
    DuplicateId,
    /// Nothing can be sent to the client any more.
    #[error("the stream to the client failed")]
    Output(#[source] std::io::Error),
}

/// How far a call has come, shared between the service, which knows, and what stops the call from outside.
#[derive(Debug, Clone)]
struct Progress(Arc<Mutex<Stage>>);

impl Progress {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Stage::Admission)))
    }

    fn get(&self) -> Stage {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stage: Stage) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }
}

/// Sends one call's answer.
#[derive(Debug)]
pub struct Responder {
    id: CallId,
    request: RequestId,
    sender: FrameSender,
    count: u32,
    /// How much of the answer was sent, with the frames' headers.
    bytes: u64,
    progress: Progress,
}

impl Responder {
    /// The call's id in the logs of both VMs.
    #[must_use]
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// Says how far the call has come: what an error says when the call is stopped from outside.
    pub fn reached(&self, stage: Stage) {
        self.progress.set(stage);
    }

    /// Begins the answer.
    ///
    /// # Errors
    /// A `cancelled` error when the client is gone.
    pub async fn begin(&mut self) -> Result<(), CallError> {
        self.send(Part::Begin).await
    }

    /// Sends some items, waiting while the client is slow.
    ///
    /// # Errors
    /// A `cancelled` error when the client is gone; `internal` when they do not fit a frame.
    pub async fn items(&mut self, items: Items) -> Result<(), CallError> {
        let count = u32::try_from(items.count()).unwrap_or(u32::MAX);
        self.send(Part::Items(items)).await?;
        self.count = self.count.saturating_add(count);
        Ok(())
    }

    async fn send(&mut self, part: Part) -> Result<(), CallError> {
        let stage = self.progress.get();
        let frame = encode_frame(&FromProxy { id: self.id, part }).map_err(|_too_large| {
            CallError::new(ErrorKind::Internal, stage, Retry::Never).with_detail("answer over the cap")
        })?;
        let length = u64::try_from(frame.len()).unwrap_or(u64::MAX);
        match self.sender.send(frame).await {
            Ok(()) => {
                self.bytes = self.bytes.saturating_add(length);
                Ok(())
            }
            Err(Closed) => Err(CallError::new(ErrorKind::Cancelled, stage, Retry::Now)),
        }
    }
}

/// Serves one session until the input ends and the running calls with it, or until `stop`.
///
/// # Errors
/// [`ServeError`]; the client has been told where that was possible.
pub async fn serve<R, W, S>(
    reader: R,
    writer: W,
    scope: Scope,
    software: SoftwareVersion,
    service: Arc<S>,
    stop: CancellationToken,
) -> Result<(), ServeError>
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send + 'static,
    S: Service,
{
    let (sender, queue) = frame_queue();
    let mut writing = JoinSet::new();
    writing.spawn(write_frames(writer, queue));
    let served = tokio::select! {
        served = session(reader, sender, scope, software, service, &mut writing) => served,
        () = stop.cancelled() => Ok(()),
    };
    // Every sender is gone with the session: what is queued is written, if the client still reads.
    let stopped = async {
        stop.cancelled().await;
        tokio::time::sleep(STOP_DEADLINE).await;
    };
    let written = tokio::select! {
        written = writing.join_next() => written,
        () = tokio::time::sleep(DRAIN_DEADLINE) => None,
        () = stopped => None,
    };
    match (served, written) {
        (Err(error), _) => Err(error),
        (Ok(()), Some(Ok(Err(error)))) => Err(ServeError::Output(error)),
        (Ok(()), _) => Ok(()),
    }
}

async fn session<R, S>(
    reader: R,
    sender: FrameSender,
    scope: Scope,
    software: SoftwareVersion,
    service: Arc<S>,
    writing: &mut JoinSet<Result<(), std::io::Error>>,
) -> Result<(), ServeError>
where
    R: AsyncRead + Unpin + Send,
    S: Service,
{
    let mut reader = FrameReader::new(reader);
    let limits = handshake(&mut reader, &sender, scope, software, service.as_ref()).await?;
    let mut calls = Calls { sender, scope, limits, service, running: JoinSet::new(), slots: Slots::default() };
    loop {
        tokio::select! {
            message = reader.next_message() => match message? {
                Some(ToProxy::Call(request)) => calls.start(request).await?,
                Some(ToProxy::Cancel(id)) => calls.slots.cancel(id),
                None => break,
            },
            Some(ended) = calls.running.join_next() => note(ended),
            Some(written) = writing.join_next() => return Err(ServeError::Output(output_error(written))),
        }
    }
    let drained = async {
        while let Some(ended) = calls.running.join_next().await {
            note(ended);
        }
    };
    tokio::select! {
        () = drained => Ok(()),
        () = tokio::time::sleep(DRAIN_DEADLINE) => Ok(()),
        Some(written) = writing.join_next() => Err(ServeError::Output(output_error(written))),
    }
}

fn output_error(written: Result<Result<(), std::io::Error>, tokio::task::JoinError>) -> std::io::Error {
    match written {
        Ok(Err(error)) => error,
        Ok(Ok(())) | Err(_) => std::io::ErrorKind::BrokenPipe.into(),
    }
}

async fn handshake<R: AsyncRead + Unpin, S: Service>(
    reader: &mut FrameReader<R>,
    sender: &FrameSender,
    scope: Scope,
    software: SoftwareVersion,
    service: &S,
) -> Result<Limits, ServeError> {
    let first =
        tokio::time::timeout(HELLO_DEADLINE, reader.next_payload()).await.map_err(|_| ServeError::NoHello)??;
    let payload = first.ok_or(ServeError::NoHello)?;
    let hello = match decode_hello(&payload) {
        Ok(hello) => hello,
        Err(error) => {
            if matches!(error, HandshakeError::VersionMismatch { .. }) {
                answer(sender, &mismatch_answer()).await?;
            }
            return Err(error.into());
        }
    };
    let admitted = if hello.scope == scope { service.admit(&hello) } else { Err(Refusal::Scope { started: scope }) };
    match admitted {
        Ok(()) => {
            let limits = Limits::OURS.agree(hello.limits);
            answer(sender, &encode_welcome(&Welcome::Ready { scope, limits, software })?).await?;
            Ok(limits)
        }
        Err(refusal) => {
            answer(sender, &encode_welcome(&Welcome::Refused(refusal.clone()))?).await?;
            Err(ServeError::Refused(refusal))
        }
    }
}

async fn answer(sender: &FrameSender, payload: &[u8]) -> Result<(), ServeError> {
    let frame = frame_bytes(payload).map_err(ChannelError::from)?;
    sender.send(frame).await.map_err(|Closed| ServeError::Output(std::io::ErrorKind::BrokenPipe.into()))
}

/// The running calls of a session.
struct Calls<S> {
    sender: FrameSender,
    scope: Scope,
    limits: Limits,
    service: Arc<S>,
    running: JoinSet<()>,
    slots: Slots,
}

impl<S: Service> Calls<S> {
    async fn start(&mut self, request: Request) -> Result<(), ServeError> {
        while let Some(ended) = self.running.try_join_next() {
            note(ended);
        }
        if self.slots.taken(request.id) {
            return Err(ServeError::DuplicateId);
        }
        let refusal = if !request.call.allowed_in(self.scope) {
            Some(CallError::new(ErrorKind::OutOfScope, Stage::Admission, Retry::Never))
        } else if self.slots.count() >= self.limits.max_calls.get() {
            Some(CallError::new(ErrorKind::RateLimited, Stage::Admission, Retry::Now))
        } else {
            None
        };
        if let Some(error) = refusal {
            let (id, call, kind) = (request.request, request.call.name(), error.kind.name());
            tracing::warn!(request = %id, call, kind, "call refused");
            finish(&self.sender, request.id, Part::Failed(error), None).await;
            return Ok(());
        }
        let slot = self.slots.take(request.id);
        self.running.spawn(run(self.sender.clone(), Arc::clone(&self.service), request, slot));
        Ok(())
    }
}

/// `run` contains the panics of the service, so only a fault of this module ends a call's task early.
fn note(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a call ended without an answer");
    }
}

/// The ids of the running calls, each with what cancels it.
#[derive(Clone, Default)]
struct Slots(Arc<Mutex<HashMap<CallId, CancellationToken>>>);

impl Slots {
    fn lock(&self) -> MutexGuard<'_, HashMap<CallId, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.lock().len()
    }

    fn taken(&self, id: CallId) -> bool {
        self.lock().contains_key(&id)
    }

    fn take(&self, id: CallId) -> Slot {
        let cancel = CancellationToken::new();
        self.lock().insert(id, cancel.clone());
        Slot { id, cancel, slots: self.clone() }
    }

    fn cancel(&self, id: CallId) {
        if let Some(cancel) = self.lock().get(&id) {
            cancel.cancel();
        }
    }
}

/// A running call's place, free again when dropped.
struct Slot {
    id: CallId,
    cancel: CancellationToken,
    slots: Slots,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().remove(&self.id);
    }
}

/// Runs one call to its end and says how it ended.
async fn run<S: Service>(sender: FrameSender, service: Arc<S>, request: Request, slot: Slot) {
    let Request { id, request, deadline, call } = request;
    let (name, deadline, began) = (call.name(), deadline.get(), Instant::now());
    tracing::debug!(%request, call = name, "call began");
    let progress = Progress::new();
    let mut responder =
        Responder { id, request, sender: sender.clone(), count: 0, bytes: 0, progress: progress.clone() };
    // Inside a future of our own, so that a panic before the service's first await is caught too.
    let performing = AssertUnwindSafe(async { service.perform(call, deadline, &mut responder).await }).catch_unwind();
    let performed = tokio::select! {
        result = performing => result.unwrap_or_else(|_panic| {
            tracing::error!(%request, call = name, "a call panicked");
            Err(CallError::new(ErrorKind::Internal, progress.get(), Retry::Later { wait_ms: None }))
        }),
        () = slot.cancel.cancelled() => Err(CallError::new(ErrorKind::Cancelled, progress.get(), Retry::Now)),
        () = tokio::time::sleep(deadline) => {
            Err(CallError::new(ErrorKind::Timeout, progress.get(), Retry::Later { wait_ms: None }))
        }
    };
    let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let Responder { bytes, count, .. } = responder;
    let last = match performed {
        Ok(()) => {
            tracing::debug!(%request, call = name, bytes, items = count, elapsed_ms, "call answered");
            Part::End { count }
        }
        Err(error) => {
            let (kind, stage) = (error.kind.name(), error.stage.name());
            tracing::warn!(%request, call = name, kind, stage, bytes, elapsed_ms, "call failed");
            Part::Failed(error)
        }
    };
    finish(&sender, id, last, Some(slot)).await;
}

/// Sends an answer's last part; when the client is gone there is nobody to tell. The call's place is freed as soon as
/// there is room for that part: later the client could use it again before it is free, sooner there could be any number
/// of calls that wait for room.
async fn finish(sender: &FrameSender, id: CallId, part: Part, slot: Option<Slot>) {
    match encode_frame(&FromProxy { id, part }) {
        Ok(frame) => {
            if let Ok(room) = sender.reserve().await {
                drop(slot);
                room.send(frame);
            }
        }
        Err(error) => tracing::error!(%error, "an answer's last part does not fit a frame"),
    }
}
