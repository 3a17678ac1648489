//! The client's end of a session.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::answer::{Part, ServerContact};
use protocol::handshake::{Welcome, decode_welcome, encode_hello};
use protocol::value::{RequestId, SoftwareVersion, Token};
use protocol::{
    Answer, Call, CallError, CallId, Confinement, Deadline, Deletion, FromProxy, Hello, Items, Limits as SessionLimits,
    Listed, Request, Scope, ToProxy,
};
use proxy_vm::config::{self, Config};
use proxy_vm::journalist_api::{HttpApi, Limits};
use proxy_vm::session::Session;
use qubes_rpc::channel::FrameReader;
use qubes_rpc::serve::serve;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Longer than any test takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// So much time passes at once, for everything in this process: what a bound does is seen without waiting for it, and when
/// it runs out is the test's to say and not the machine's speed.
pub(crate) async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// How one call ended, and what came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) begun: bool,
    pub(crate) items: Vec<Items>,
    pub(crate) end: Result<u32, CallError>,
}

impl Outcome {
    #[track_caller]
    pub(crate) fn failure(self) -> CallError {
        self.end.expect_err("the call must fail")
    }

    /// How many entries came, and how many of them unreadable.
    #[track_caller]
    pub(crate) fn entries(&self) -> (usize, usize) {
        fn of<T: protocol::record::Record>(entries: &[Listed<T>]) -> (usize, usize) {
            (entries.len(), entries.iter().filter(|entry| matches!(entry, Listed::Unreadable(_))).count())
        }
        let mut sum = (0, 0);
        for items in &self.items {
            let (all, unreadable) = match items {
                Items::Users(batch) => of(batch.as_slice()),
                Items::Sources(batch) => of(batch.as_slice()),
                Items::Submissions(batch) => of(batch.as_slice()),
                Items::Replies(batch) => of(batch.as_slice()),
                Items::Health(_)
                | Items::SignedIn(_)
                | Items::Deletions(_)
                | Items::Download(_)
                | Items::Chunk(_)
                | Items::Sum(_)
                | Items::Stored(_)
                | Items::Probe(_) => panic!("no list"),
            };
            sum = (sum.0 + all, sum.1 + unreadable);
        }
        sum
    }

    /// What became of the items of a conversation, as far as it was told.
    #[track_caller]
    pub(crate) fn deletions(&self) -> Vec<Deletion> {
        let mut deletions = Vec::new();
        for items in &self.items {
            let Items::Deletions(batch) = items else { panic!("no deletions: {items:?}") };
            deletions.extend_from_slice(batch.as_slice());
        }
        deletions
    }

    /// The entries of a complete list.
    #[track_caller]
    pub(crate) fn listed(&self) -> (usize, usize) {
        let entries = self.entries();
        assert_eq!(self.end.as_ref().map(|count| usize::try_from(*count).unwrap()), Ok(entries.0));
        entries
    }
}

/// A session, and what serves it.
pub(crate) struct Client {
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    reader: FrameReader<Box<dyn AsyncRead + Send + Unpin>>,
    next_id: u32,
    _serving: JoinSet<()>,
}

impl Client {
    /// A session that goes to `origin` directly.
    pub(crate) async fn direct(scope: Scope, origin: &str) -> Self {
        Self::with(scope, &[(config::ORIGIN, origin), (config::TOR, "off")], Limits::default()).await
    }

    /// A session with a server at `address`.
    pub(crate) async fn to(scope: Scope, address: SocketAddr) -> Self {
        Self::direct(scope, &format!("http://{address}")).await
    }

    pub(crate) async fn with(scope: Scope, settings: &[(&str, &str)], limits: Limits) -> Self {
        let settings: HashMap<_, _> = settings.iter().copied().collect();
        let config = Config::load(|name| Ok(settings.get(name).map(|value| (*value).to_owned()))).unwrap();
        let tor = config.route != config::Route::Direct;
        let api = HttpApi::try_new(&config, limits).unwrap();
        // This process is the tests' own; `process.rs` has the confined one.
        let session = Arc::new(Session::new(api, tor, config.delete_limit, Confinement::NONE));
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (from_client, to_client) = tokio::io::split(theirs);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let software = SoftwareVersion::try_new("0").unwrap();
            // The tests look at what the client sees.
            let _ended = serve(from_client, to_client, scope, software, session, CancellationToken::new()).await;
        });
        let (reader, writer) = tokio::io::split(ours);
        let mut client = Self::over(Box::new(reader), Box::new(writer), serving);
        assert!(matches!(client.handshake(scope).await, Some(Welcome::Ready { .. })));
        client
    }

    /// A session over streams that something else serves.
    pub(crate) fn over(
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        serving: JoinSet<()>,
    ) -> Self {
        Self { writer, reader: FrameReader::new(reader), next_id: 0, _serving: serving }
    }

    /// The proxy's answer to the handshake; `None` when it ends without one.
    pub(crate) async fn handshake(&mut self, scope: Scope) -> Option<Welcome> {
        let hello = Hello {
            scope,
            limits: SessionLimits::OURS,
            api_level: None,
            software: SoftwareVersion::try_new("0").unwrap(),
        };
        let frame = protocol::frame::frame_bytes(&encode_hello(&hello).unwrap()).unwrap();
        self.writer.write_all(&frame).await.ok()?;
        let payload = self.reader.next_payload().await.unwrap()?;
        Some(decode_welcome(&payload).unwrap())
    }

    pub(crate) async fn start(&mut self, call: Call, deadline: Duration) -> CallId {
        self.next_id += 1;
        let id = CallId(self.next_id);
        let deadline = Deadline::try_new(deadline).unwrap();
        let request = RequestId::new(*uuid::Uuid::new_v4().as_bytes());
        self.send(&ToProxy::Call(Request { id, request, deadline, call })).await;
        id
    }

    pub(crate) async fn send(&mut self, message: &ToProxy) {
        self.writer.write_all(&protocol::frame::encode_frame(message).unwrap()).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> FromProxy {
        self.reader.next_message().await.unwrap().expect("the proxy ended the session")
    }

    /// The error of a call that ends without a beginning.
    pub(crate) async fn next_failure(&mut self, of: CallId) -> CallError {
        let FromProxy { id, part } = self.next().await;
        let Part::Failed(error) = part else { panic!("no failure: {part:?}") };
        assert_eq!(id, of);
        error
    }

    /// Makes `calls` at the same time and waits until all have ended.
    pub(crate) async fn calls(&mut self, calls: Vec<Call>, deadline: Duration) -> Vec<Outcome> {
        let mut running = Vec::new();
        for call in calls {
            let answer = Answer::to(&call);
            let id = self.start(call, deadline).await;
            running.push((id, answer, Outcome { begun: false, items: Vec::new(), end: Ok(0) }));
        }
        let mut left = running.len();
        while left > 0 {
            let FromProxy { id, part } = self.next().await;
            let (_, answer, outcome) = running.iter_mut().find(|(running, ..)| *running == id).unwrap();
            answer.accept(&part).unwrap();
            match part {
                Part::Begin => outcome.begun = true,
                Part::Items(items) => outcome.items.push(items),
                Part::End { count } => {
                    outcome.end = Ok(count);
                    left -= 1;
                }
                Part::Failed(error) => {
                    outcome.end = Err(error);
                    left -= 1;
                }
            }
        }
        running.into_iter().map(|(_, _, outcome)| outcome).collect()
    }

    pub(crate) async fn call_within(&mut self, call: Call, deadline: Duration) -> Outcome {
        self.calls(vec![call], deadline).await.pop().unwrap()
    }

    pub(crate) async fn call(&mut self, call: Call) -> Outcome {
        self.call_within(call, LONG).await
    }

    pub(crate) async fn contact(&mut self) -> ServerContact {
        let outcome = self.call(Call::Health).await;
        let [Items::Health(health)] = outcome.items.as_slice() else { panic!("no health: {outcome:?}") };
        health.contact
    }
}

pub(crate) fn token() -> Token {
    Token::try_new("made.up-token_1").unwrap()
}

pub(crate) fn get_sources() -> Call {
    Call::GetSources { token: token() }
}

pub(crate) fn get_submissions() -> Call {
    Call::GetSubmissions { token: token(), source: None }
}

pub(crate) fn get_all_replies() -> Call {
    Call::GetAllReplies { token: token() }
}

pub(crate) fn get_users() -> Call {
    Call::GetUsers { token: token() }
}
