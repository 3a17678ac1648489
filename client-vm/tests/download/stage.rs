//! A client with one file to fetch, and a proxy that serves it as it is told.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client_vm::download::{Desk, FetchError, Fetched, Watcher, fetch};
use client_vm::files::Files;
use client_vm::store::downloads::{self, Candidate};
use client_vm::store::outbox::ItemName;
use client_vm::store::{Store, mirror};
use client_vm::sync::{Mirror, Plan, Snapshot};
use protocol::value::{
    Bounded, Chunk, Designation, JournalistId, OrderNumber, Sha256, Size, SoftwareVersion, SourceId, SubmissionId,
    Timestamp, Token,
};
use protocol::{
    Call, CallError, Download, ErrorKind, Hello, Items, Limits, Listed, Refusal, Retry, Scope, Source, Stage,
    Submission, SubmissionKind, Sum,
};
use qubes_rpc::connection::Connection;
use qubes_rpc::serve::{Responder, Service, serve};
use sha2::Digest as _;
use tokio::io::{duplex, split};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) const SOURCE: &str = "00000010-0000-4000-8000-000000000000";
pub(crate) const FILE: &str = "00000020-0000-4000-8000-000000000000";

fn software() -> SoftwareVersion {
    SoftwareVersion::try_new("0.0.0-test").unwrap()
}

pub(crate) fn digest(bytes: &[u8]) -> Sha256 {
    Sha256::new(sha2::Sha256::digest(bytes).into())
}

/// Bytes that look like nothing, the same for the same length and seed.
pub(crate) fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 11).to_le_bytes()[..5]);
    }
    bytes.truncate(length);
    bytes
}

/// What a download is answered with.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) content: Arc<Vec<u8>>,
    pub(crate) etag: Option<Sha256>,
    /// Whether it can be gone on with.
    pub(crate) ranges: bool,
    /// The session breaks off after so many bytes of the answer.
    pub(crate) breaks_after: Option<usize>,
    /// Nothing comes any more after so many bytes of the answer.
    pub(crate) silent_after: Option<usize>,
    /// How long each part of the answer takes.
    pub(crate) pace: Duration,
    /// Whether the answer begins ten bytes later than was asked for.
    pub(crate) misplaced: bool,
    /// A byte of the content that is another one on the way.
    pub(crate) flipped: Option<usize>,
}

impl Served {
    pub(crate) fn honest(content: Vec<u8>) -> Self {
        let etag = Some(digest(&content));
        Self {
            content: Arc::new(content),
            etag,
            ranges: true,
            breaks_after: None,
            silent_after: None,
            pace: Duration::ZERO,
            misplaced: false,
            flipped: None,
        }
    }
}

/// Serves downloads, and writes down where each began and how much of each was sent.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) served: Mutex<Served>,
    pub(crate) asked: Mutex<Vec<(u64, usize)>>,
}

impl Proxy {
    pub(crate) fn new(served: Served) -> Arc<Self> {
        Arc::new(Self { served: Mutex::new(served), asked: Mutex::default() })
    }

    pub(crate) fn asked(&self) -> Vec<(u64, usize)> {
        self.asked.lock().unwrap().clone()
    }
}

struct Serving(Arc<Proxy>, CancellationToken);

impl Service for Serving {
    fn admit(&self, _: &Hello) -> Result<(), Refusal> {
        Ok(())
    }

    async fn perform(&self, call: Call, _: Duration, answer: &mut Responder) -> Result<(), CallError> {
        let Call::DownloadSubmission { from, .. } = call else { panic!("{} is no download", call.name()) };
        let served = self.0.served.lock().unwrap().clone();
        let length = served.content.len();
        let at = usize::try_from(from.get()).unwrap();
        let begin = if served.ranges { at } else { 0 } + if served.misplaced { 10 } else { 0 };
        self.0.asked.lock().unwrap().push((from.get(), 0));
        if at > 0 && begin >= length {
            return Err(CallError::new(ErrorKind::Conflict, Stage::FirstByte, Retry::Now));
        }
        answer.begin().await?;
        let size = |bytes: usize| Size::try_new(u64::try_from(bytes).unwrap()).unwrap();
        let head = Download { length: Some(size(length)), from: size(begin), etag: served.etag };
        answer.items(Items::Download(head)).await?;
        let mut rest = served.content[begin..].to_vec();
        if let Some(byte) = served.flipped.and_then(|flipped| rest.get_mut(flipped.checked_sub(begin)?)) {
            *byte ^= 1;
        }
        let mut sent = 0;
        for piece in rest.chunks(16 * 1024) {
            if served.breaks_after.is_some_and(|bytes| sent >= bytes) {
                self.1.cancel();
                std::future::pending::<()>().await;
            }
            if served.silent_after.is_some_and(|bytes| sent >= bytes) {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(served.pace).await;
            answer.items(Items::Chunk(Chunk::try_new(piece.to_vec()).unwrap())).await?;
            sent += piece.len();
            self.0.asked.lock().unwrap().last_mut().unwrap().1 = sent;
        }
        answer.items(Items::Sum(Sum { length: size(rest.len()), sha256: digest(&rest) })).await
    }
}

/// A client's data directory.
pub(crate) struct Client {
    pub(crate) desk: Desk,
    /// What the item is.
    kind: SubmissionKind,
}

impl Client {
    /// A client that knows of one file of so many bytes, which the user wants.
    pub(crate) async fn new(home: &Path, listed: usize) -> Self {
        Self::with(home, listed, SubmissionKind::File).await
    }

    /// A client that knows of one message of so many bytes.
    pub(crate) async fn with_message(home: &Path, listed: usize) -> Self {
        Self::with(home, listed, SubmissionKind::Message).await
    }

    async fn with(home: &Path, listed: usize, kind: SubmissionKind) -> Self {
        let client = Self { kind, ..Self::open(home) };
        let file = Listed::Readable(Submission {
            id: FILE.parse().unwrap(),
            source: SOURCE.parse().unwrap(),
            kind,
            order: OrderNumber::try_new(1).unwrap(),
            filename: None,
            size: Size::try_new(u64::try_from(listed).unwrap()).unwrap(),
            read: false,
            seen_by: Bounded::default(),
            version: None,
        });
        client.list(Some(file)).await;
        let item = "00000020-0000-4000-8000-000000000000".parse::<SubmissionId>().unwrap();
        let wanted = client.desk.store.write(move |transaction| {
            downloads::want(transaction, &[protocol::value::ItemId::Submission(item)], Timestamp::try_new(1).unwrap())
        });
        assert_eq!(wanted.await.unwrap().asked, 1);
        client
    }

    /// The client of a data directory that is there.
    pub(crate) fn open(home: &Path) -> Self {
        let (store, files) = (Store::open(home).unwrap(), Files::open(home).unwrap());
        Self { desk: Desk { store, files, files_without_etag: false }, kind: SubmissionKind::File }
    }

    /// How often what came in full was not what had been claimed.
    pub(crate) async fn mismatches(&self) -> u32 {
        let read = |transaction: &rusqlite::Transaction<'_>| {
            Ok(transaction.query_row("SELECT coalesce(sum(mismatches), 0) FROM local_item", [], |row| row.get(0))?)
        };
        self.desk.store.read(read).await.unwrap()
    }

    /// Applies a snapshot with one source and this file, or none.
    pub(crate) async fn list(&self, file: Option<Listed<Submission>>) {
        let known: Mirror = self.desk.store.read(mirror::load_mirror).await.unwrap();
        let source = Listed::Readable(Source {
            id: SOURCE.parse().unwrap(),
            designation: Designation::try_new("calm sea").unwrap(),
            starred: false,
            last_updated: Timestamp::try_new(5).unwrap(),
            interactions: OrderNumber::try_new(1).unwrap(),
            key: None,
            version: None,
        });
        let (mut sources, mut submissions) = (Snapshot::default(), Snapshot::default());
        sources.observe(&known.sources, source).unwrap();
        if let Some(file) = file {
            submissions.observe(&known.submissions, file).unwrap();
        }
        let plan = Plan {
            users: Snapshot::default().diff(&known.users),
            sources: sources.diff(&known.sources),
            submissions: submissions.diff(&known.submissions),
            replies: Snapshot::default().diff(&known.replies),
        };
        let anna: JournalistId = "00000001-0000-4000-8000-000000000000".parse().unwrap();
        let applied = self.desk.store.write(move |transaction| {
            mirror::store_journalist(transaction, anna, &protocol::value::Username::try_new("anna")?)?;
            mirror::apply(transaction, &plan)
        });
        applied.await.unwrap();
    }

    /// Fetches the file in a session of its own.
    pub(crate) async fn fetch(&self, proxy: &Arc<Proxy>, watcher: &dyn Watcher) -> Result<Fetched, FetchError> {
        self.fetch_until(proxy, watcher, &CancellationToken::new()).await
    }

    pub(crate) async fn fetch_until(
        &self,
        proxy: &Arc<Proxy>,
        watcher: &dyn Watcher,
        cancel: &CancellationToken,
    ) -> Result<Fetched, FetchError> {
        let (ours, theirs) = duplex(64 * 1024);
        let mut tasks = JoinSet::new();
        let (proxy, ended) = (Arc::clone(proxy), CancellationToken::new());
        let breaking = ended.clone();
        tasks.spawn(async move {
            let (reader, writer) = split(theirs);
            let service = Arc::new(Serving(proxy, breaking.clone()));
            // A proxy that is gone: its stream ends without a word.
            tokio::select! {
                served = serve(reader, writer, Scope::Download, software(), service, CancellationToken::new()) => drop(served),
                () = breaking.cancelled() => {}
            }
        });
        let (reader, writer) = split(ours);
        let hello = Hello { scope: Scope::Download, limits: Limits::OURS, api_level: None, software: software() };
        let connection = Connection::open(reader, writer, &hello, Duration::from_secs(30)).await.unwrap();
        let token = Token::try_new("token").unwrap();
        fetch(&connection, &token, self.candidate(), &self.desk, watcher, cancel).await
    }

    fn candidate(&self) -> Candidate {
        let (source, item): (SourceId, SubmissionId) = (SOURCE.parse().unwrap(), FILE.parse().unwrap());
        let item = match self.kind {
            SubmissionKind::File => ItemName::File(item),
            SubmissionKind::Message => ItemName::Message(item),
        };
        Candidate { source, item }
    }

    /// The ciphertext that is noted as downloaded, if there is one.
    pub(crate) async fn stored(&self) -> Option<Vec<u8>> {
        let numbers = self.desk.store.read(downloads::numbers).await.unwrap();
        let (number, _) = numbers.into_iter().find(|(_, held)| *held == downloads::Held::Ciphertext)?;
        Some(std::fs::read(self.desk.files.ciphertext(number)).unwrap())
    }
}

/// Watches nothing.
pub(crate) struct Nobody;

impl Watcher for Nobody {}
