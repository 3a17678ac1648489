//! What the tests stand on: a service that a test scripts, and both ends as raw peers.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use protocol::answer::{Batch, Part};
use protocol::frame::{encode_frame, frame_bytes};
use protocol::handshake::{MaxCalls, decode_hello, encode_hello, encode_welcome};
use protocol::value::{JournalistId, RequestId, SoftwareVersion, Token, Username};
use protocol::{
    Call, CallError, CallId, Deadline, FromProxy, Hello, Items, Journalist, Limits, Listed, Refusal, Request, Scope,
    ToProxy, Welcome,
};
use qubes_rpc::channel::{ChannelError, FrameReader};
use qubes_rpc::connection::{AnswerStream, CallFailure, Connection};
use qubes_rpc::serve::{Responder, ServeError, Service, serve};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Room enough in a pipe that nobody waits for it.
pub(crate) const WIDE: usize = 1 << 20;
/// Smaller than any frame of note.
pub(crate) const NARROW: usize = 64;
/// The deadline of calls where it does not matter.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

type Perform = dyn for<'a> Fn(Call, &'a mut Responder) -> BoxFuture<'a, Result<(), CallError>> + Send + Sync;

/// A service that does what a test says.
pub(crate) struct Scripted {
    perform: Box<Perform>,
    admit: Result<(), Refusal>,
}

impl Scripted {
    pub(crate) fn new<F>(perform: F) -> Arc<Self>
    where
        F: for<'a> Fn(Call, &'a mut Responder) -> BoxFuture<'a, Result<(), CallError>> + Send + Sync + 'static,
    {
        Arc::new(Self { perform: Box::new(perform), admit: Ok(()) })
    }

    /// Takes no calls.
    pub(crate) fn refusing(refusal: Refusal) -> Arc<Self> {
        Arc::new(Self { perform: Box::new(|_, _| Box::pin(async { Ok(()) })), admit: Err(refusal) })
    }

    /// Answers every `users` call with two batches, named after its token.
    pub(crate) fn answering() -> Arc<Self> {
        Self::new(|call, answer| {
            Box::pin(async move {
                let token = token_of(&call);
                answer.begin().await?;
                answer.items(batch(&token, 0..2)).await?;
                answer.items(batch(&token, 2..3)).await
            })
        })
    }
}

impl Service for Scripted {
    fn admit(&self, _hello: &Hello) -> Result<(), Refusal> {
        self.admit.clone()
    }

    fn perform(
        &self,
        call: Call,
        _deadline: Duration,
        answer: &mut Responder,
    ) -> impl Future<Output = Result<(), CallError>> + Send {
        (self.perform)(call, answer)
    }
}

/// Tells when it is dropped.
pub(crate) struct Guard(Option<oneshot::Sender<()>>);

pub(crate) fn guard() -> (Guard, oneshot::Receiver<()>) {
    let (sender, dropped) = oneshot::channel();
    (Guard(Some(sender)), dropped)
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(());
        }
    }
}

/// Awaits what must come. Time being paused, what never comes fails at once.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(7 * 24 * 3600), future).await.expect("nobody will ever wake this")
}

/// A call whose token tells the scripted service what to do.
pub(crate) fn users(token: &str) -> Call {
    Call::GetUsers { token: Token::try_new(token).unwrap() }
}

pub(crate) fn token_of(call: &Call) -> String {
    match call {
        Call::GetUsers { token } => token.expose().to_owned(),
        other => other.name().to_owned(),
    }
}

/// Journalists named `prefix` and a number.
pub(crate) fn batch(prefix: &str, numbers: std::ops::Range<usize>) -> Items {
    let journalist = |number| {
        let id: JournalistId = format!("00000000-0000-4000-8000-{number:012}").parse().unwrap();
        let username = Username::try_new(format!("{prefix}-{number}")).unwrap();
        Listed::Readable(Journalist { id, username, first_name: None, last_name: None, version: None })
    };
    Items::Users(Batch::try_new(numbers.map(journalist).collect()).unwrap())
}

/// What [`batch`] puts in.
pub(crate) fn names(prefix: &str, numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("{prefix}-{number}")).collect()
}

/// Reads a whole answer.
pub(crate) async fn read(mut stream: AnswerStream) -> Result<Vec<String>, CallFailure> {
    let mut names = Vec::new();
    while let Some(items) = stream.next().await? {
        let Items::Users(batch) = items else { panic!("another kind of items: {items:?}") };
        for entry in batch.into_vec() {
            let Listed::Readable(journalist) = entry else { panic!("an unreadable journalist") };
            names.push(journalist.username.as_str().to_owned());
        }
    }
    Ok(names)
}

/// Makes a call and reads its answer.
pub(crate) async fn ask(connection: &Connection, token: &str) -> Result<Vec<String>, CallFailure> {
    read(connection.call(users(token), MINUTE).await?).await
}

pub(crate) fn version() -> SoftwareVersion {
    SoftwareVersion::try_new("0.0.0-test").unwrap()
}

pub(crate) fn max_calls(number: u16) -> Limits {
    Limits { max_calls: MaxCalls::try_from(number).unwrap() }
}

pub(crate) fn hello(scope: Scope) -> Hello {
    Hello { scope, limits: Limits::OURS, api_level: None, software: version() }
}

/// The proxy's end, running.
pub(crate) struct Serving {
    pub(crate) stop: CancellationToken,
    task: JoinSet<Result<(), ServeError>>,
}

impl Serving {
    /// Serves `scope` on one end of a pipe and gives back the other.
    pub(crate) fn start(scope: Scope, service: &Arc<Scripted>, pipe: usize) -> (Self, DuplexStream) {
        let (ours, theirs) = duplex(pipe);
        let (reader, writer) = split(theirs);
        (Self::on(reader, writer, scope, service), ours)
    }

    /// Serves `scope` on two streams.
    pub(crate) fn on<R, W>(reader: R, writer: W, scope: Scope, service: &Arc<Scripted>) -> Self
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        task.spawn(serve(reader, writer, scope, version(), Arc::clone(service), stop.clone()));
        Self { stop, task }
    }

    /// How the session ended.
    pub(crate) async fn ended(mut self) -> Result<(), ServeError> {
        soon(self.task.join_next()).await.unwrap().expect("serving panicked")
    }
}

/// Both ends of a session of scope `metadata`.
pub(crate) async fn session(service: &Arc<Scripted>, pipe: usize) -> (Connection, Serving) {
    let (serving, end) = Serving::start(Scope::Metadata, service, pipe);
    let (reader, writer) = split(end);
    (soon(Connection::open(reader, writer, &hello(Scope::Metadata), MINUTE)).await.unwrap(), serving)
}

/// One end of a pipe in a test's own hands.
pub(crate) struct Raw {
    pub(crate) reader: FrameReader<ReadHalf<DuplexStream>>,
    pub(crate) writer: WriteHalf<DuplexStream>,
}

impl Raw {
    pub(crate) fn new(end: DuplexStream) -> Self {
        let (reader, writer) = split(end);
        Self { reader: FrameReader::new(reader), writer }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        soon(self.writer.write_all(bytes)).await.unwrap();
    }

    pub(crate) async fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ChannelError> {
        soon(self.reader.next_message()).await
    }

    /// The rest of what the peer sends.
    pub(crate) async fn rest<T: DeserializeOwned>(&mut self) -> Vec<T> {
        let mut messages = Vec::new();
        while let Some(message) = self.receive().await.unwrap() {
            messages.push(message);
        }
        messages
    }

    /// Plays a client that has shaken hands.
    pub(crate) async fn client(end: DuplexStream, hello: &Hello) -> Self {
        let mut raw = Self::new(end);
        raw.send(&frame_bytes(&encode_hello(hello).unwrap()).unwrap()).await;
        soon(raw.reader.next_payload()).await.unwrap().expect("no welcome");
        raw
    }

    pub(crate) async fn call(&mut self, id: u32, call: Call) {
        self.send(&request(id, call)).await;
    }

    /// Plays a proxy that has shaken hands, and gives back its client.
    pub(crate) async fn proxy(pipe: usize, limits: Limits) -> (Self, Connection) {
        let (ours, theirs) = duplex(pipe);
        let (reader, writer) = split(theirs);
        let mut raw = Self::new(ours);
        let welcome = Welcome::Ready { scope: Scope::Metadata, limits, software: version() };
        let shake = async {
            let payload = raw.reader.next_payload().await.unwrap().expect("no hello");
            decode_hello(&payload).unwrap();
            raw.writer.write_all(&frame_bytes(&encode_welcome(&welcome).unwrap()).unwrap()).await.unwrap();
        };
        let hello = hello(Scope::Metadata);
        let ((), connection) =
            soon(async { tokio::join!(shake, Connection::open(reader, writer, &hello, MINUTE)) }).await;
        (raw, connection.unwrap())
    }

    /// The next call's id.
    pub(crate) async fn called(&mut self) -> CallId {
        match self.receive().await.unwrap().expect("the client ended") {
            ToProxy::Call(request) => request.id,
            ToProxy::Cancel(id) => panic!("cancels {id:?}"),
        }
    }

    pub(crate) async fn answer(&mut self, id: CallId, part: Part) {
        self.send(&encode_frame(&FromProxy { id, part }).unwrap()).await;
    }

    /// Answers a `users` call as [`Scripted::answering`] does.
    pub(crate) async fn answer_all(&mut self, id: CallId, name: &str) {
        for part in [Part::Begin, Part::Items(batch(name, 0..3)), Part::End { count: 3 }] {
            self.answer(id, part).await;
        }
    }
}

/// A call's bytes.
pub(crate) fn request(id: u32, call: Call) -> Vec<u8> {
    let deadline = Deadline::try_new(MINUTE).unwrap();
    let request = RequestId::new([7; 16]);
    encode_frame(&ToProxy::Call(Request { id: CallId(id), request, deadline, call })).unwrap().to_vec()
}

/// A new session with the service works.
pub(crate) async fn assert_works(service: &Arc<Scripted>) {
    let (connection, serving) = session(service, WIDE).await;
    assert_eq!(soon(ask(&connection, "next")).await.unwrap(), names("next", 0..3));
    drop(connection);
    serving.ended().await.unwrap();
}
