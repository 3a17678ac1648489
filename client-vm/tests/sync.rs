//! One sync over a session with a proxy that this test plays: what is applied, and above all what is not.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client_vm::clock::Clock;
use client_vm::store::{Store, StoreError, mirror, view};
use client_vm::sync::{SnapshotNumber, SyncFailure, Synced, sync};
use control::{SyncOutcome, SyncStart};
use protocol::answer::{Batch, MAX_BATCH};
use protocol::record::Record;
use protocol::value::{
    Bounded, Designation, JournalistId, OrderNumber, Size, SoftwareVersion, SourceId, Timestamp, Token, Username,
};
use protocol::{
    Call, CallError, ErrorKind, Hello, Items, Journalist, Limits, Listed, Refusal, Reply, Retry, Scope, Source, Stage,
    Submission, SubmissionKind, ToProxy,
};
use qubes_rpc::channel::FrameReader;
use qubes_rpc::connection::{CallFailure, Connection, HelloError};
use qubes_rpc::serve::{Responder, Service, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const SOURCE: &str = "00000010-0000-4000-8000-000000000000";
const JOURNALIST: &str = "00000001-0000-4000-8000-000000000000";
/// What every pipe of these tests holds: more than a whole session.
const PIPE: usize = 64 * 1024;

fn software() -> SoftwareVersion {
    SoftwareVersion::try_new("0.0.0-test").unwrap()
}

fn one<T: Record>(record: T) -> Batch<T> {
    Batch::try_new(vec![Listed::Readable(record)]).unwrap()
}

/// A proxy that lists one record of each kind, and other sources besides, or fails one call.
struct Lists {
    designation: &'static str,
    fails: Option<(&'static str, ErrorKind)>,
    /// How long it takes for the first byte of each list.
    after: Duration,
    /// How many sources it lists.
    sources: u32,
    /// The calls, in the order in which they came.
    called: Mutex<Vec<&'static str>>,
}

impl Lists {
    fn source(&self, id: &str) -> Source {
        Source {
            id: id.parse().unwrap(),
            designation: Designation::try_new(self.designation).unwrap(),
            starred: false,
            last_updated: Timestamp::try_new(5).unwrap(),
            interactions: OrderNumber::try_new(2).unwrap(),
            key: None,
            version: None,
        }
    }

    fn new(designation: &'static str) -> Arc<Self> {
        Arc::new(Self::plain(designation))
    }

    /// The same with so many more sources.
    fn of_many(designation: &'static str, more_sources: u32) -> Arc<Self> {
        Arc::new(Self { sources: 1 + more_sources, ..Self::plain(designation) })
    }

    fn plain(designation: &'static str) -> Self {
        Self { designation, fails: None, after: Duration::ZERO, sources: 1, called: Mutex::default() }
    }

    fn items(&self, call: &Call) -> Items {
        match call {
            Call::GetUsers { .. } => Items::Users(one(Journalist {
                id: JOURNALIST.parse().unwrap(),
                username: Username::try_new("anna").unwrap(),
                first_name: None,
                last_name: None,
                version: None,
            })),
            Call::GetSources { .. } => Items::Sources(one(self.source(SOURCE))),
            Call::GetSubmissions { .. } => Items::Submissions(one(Submission {
                id: "00000020-0000-4000-8000-000000000000".parse().unwrap(),
                source: SOURCE.parse().unwrap(),
                kind: SubmissionKind::Message,
                order: OrderNumber::try_new(1).unwrap(),
                filename: None,
                size: Size::try_new(612).unwrap(),
                read: false,
                seen_by: Bounded::default(),
                version: None,
            })),
            Call::GetAllReplies { .. } => Items::Replies(one(Reply {
                id: "00000030-0000-4000-8000-000000000000".parse().unwrap(),
                source: SOURCE.parse().unwrap(),
                author: JOURNALIST.parse().unwrap(),
                order: OrderNumber::try_new(2).unwrap(),
                filename: None,
                size: Size::try_new(7).unwrap(),
                deleted_by_source: false,
                seen_by: Bounded::default(),
                version: None,
            })),
            other => panic!("{} is no metadata call", other.name()),
        }
    }
}

impl Service for Lists {
    fn admit(&self, _: &Hello) -> Result<(), Refusal> {
        Ok(())
    }

    async fn perform(&self, call: Call, _: Duration, answer: &mut Responder) -> Result<(), CallError> {
        self.called.lock().unwrap().push(call.name());
        if let Some((name, kind)) = self.fails
            && name == call.name()
        {
            return Err(CallError::new(kind, Stage::FirstByte, Retry::Later { wait_ms: None }));
        }
        answer.reached(Stage::FirstByte);
        tokio::time::sleep(self.after).await;
        answer.begin().await?;
        answer.items(self.items(&call)).await?;
        if matches!(call, Call::GetSources { .. }) {
            let source = |number| Listed::Readable(self.source(&format!("00000010-0000-4000-8000-{number:012}")));
            let more: Vec<_> = (1..self.sources).map(source).collect();
            for some in more.chunks(MAX_BATCH) {
                answer.items(Items::Sources(Batch::try_new(some.to_vec()).unwrap())).await?;
            }
        }
        Ok(())
    }
}

/// A client's store, and a clock that stands.
struct Client {
    directory: tempfile::TempDir,
    store: Store,
    time: Arc<AtomicU64>,
    clock: Clock,
}

/// Every row of every table, by table.
type Dump = BTreeMap<String, Vec<Vec<rusqlite::types::Value>>>;

/// What a failed sync must leave alone.
#[derive(Debug, PartialEq, Eq)]
struct State {
    designations: Vec<String>,
    items: u64,
    users: Vec<JournalistId>,
    sources: Vec<(SourceId, [u8; 32])>,
    submissions: usize,
    replies: usize,
}

impl Client {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let time = Arc::new(AtomicU64::new(1_000_000));
        Self { store, directory, clock: Clock::Manual(Arc::clone(&time)), time }
    }

    async fn sync(&self, connection: &Connection, cancel: &CancellationToken) -> Result<Synced, SyncFailure> {
        let start = SyncStart { asked: self.clock.now(), started: self.clock.now() };
        let snapshot = SnapshotNumber { number: 1, overdue: Duration::from_secs(3600) };
        sync(connection, &Token::try_new("token").unwrap(), &self.store, &self.clock, start, snapshot, cancel).await
    }

    async fn sync_with(&self, lists: &Arc<Lists>) -> Result<Synced, SyncFailure> {
        let mut tasks = JoinSet::new();
        let (ours, theirs) = duplex(PIPE);
        proxy(lists, theirs, &mut tasks);
        let connection = open(ours).await.unwrap();
        self.sync(&connection, &CancellationToken::new()).await
    }

    /// All that is stored, and how many rows were written since the store was opened.
    async fn dump(&self) -> (Dump, u64) {
        let dump = |transaction: &rusqlite::Transaction<'_>| {
            let mut dump = Dump::new();
            let mut tables =
                transaction.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")?;
            let tables: Vec<String> = tables.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
            for table in tables {
                let mut rows = transaction.prepare(&format!("SELECT * FROM \"{table}\" ORDER BY 1"))?;
                let columns = rows.column_count();
                let read = |row: &rusqlite::Row<'_>| (0..columns).map(|column| row.get(column)).collect();
                let rows = rows.query_map([], read)?.collect::<Result<_, _>>()?;
                dump.insert(table, rows);
            }
            Ok((dump, transaction.total_changes()))
        };
        self.store.write(dump).await.unwrap()
    }

    async fn pragma(&self, name: &'static str, value: i64) {
        let set = move |transaction: &rusqlite::Transaction<'_>| {
            Ok(transaction.query_row(&format!("PRAGMA {name} = {value}"), [], |row| row.get::<_, i64>(0))?)
        };
        self.store.write(set).await.unwrap();
    }

    async fn state(&self) -> State {
        let rows = self.store.read(view::sources).await.unwrap();
        let mirror = self.store.read(mirror::load_mirror).await.unwrap();
        State {
            designations: rows.into_iter().map(|row| row.designation.as_str().to_owned()).collect(),
            items: self.store.read(view::totals).await.unwrap().items,
            users: mirror.users.keys().copied().collect(),
            sources: mirror.sources.iter().map(|(id, digest)| (*id, digest.0)).collect(),
            submissions: mirror.submissions.len(),
            replies: mirror.replies.len(),
        }
    }
}

/// Serves one session on `stream` in the background.
fn proxy(lists: &Arc<Lists>, stream: DuplexStream, tasks: &mut JoinSet<()>) {
    let (reader, writer) = split(stream);
    let service = Arc::clone(lists);
    tasks.spawn(async move {
        drop(serve(reader, writer, Scope::Metadata, software(), service, CancellationToken::new()).await);
    });
}

async fn open(stream: DuplexStream) -> Result<Connection, HelloError> {
    let (reader, writer) = split(stream);
    let hello = Hello { scope: Scope::Metadata, limits: Limits::OURS, api_level: None, software: software() };
    Connection::open(reader, writer, &hello, Duration::from_secs(30)).await
}

#[tokio::test]
async fn a_sync_asks_for_the_four_lists_once_and_applies_them() {
    let (client, lists) = (Client::new(), Lists::new("calm sea"));
    let synced = client.sync_with(&lists).await.unwrap();
    assert_eq!(synced.report.outcome, SyncOutcome::Ok);
    let calls: Vec<_> = synced.report.calls.iter().map(|call| call.call.as_str()).collect();
    assert_eq!(calls, ["get_users", "get_sources", "get_submissions", "get_all_replies"]);
    let mut called = lists.called.lock().unwrap().clone();
    called.sort_unstable();
    assert_eq!(called, ["get_all_replies", "get_sources", "get_submissions", "get_users"]);
    assert_eq!(client.state().await.designations, ["calm sea"]);

    let again = client.sync_with(&lists).await.unwrap();
    assert_eq!((again.report.outcome, again.report.rows_written), (SyncOutcome::Unchanged, 0));
}

/// S3: the first sync, too, waits for a server that is slow, and does not have to ask twice.
#[tokio::test(start_paused = true)]
async fn s3_a_thousand_sources_after_90_s_arrive_the_first_time() {
    let after = Duration::from_secs(90);
    let client = Client::new();
    let lists = Arc::new(Lists { after, sources: 1_000, ..Lists::plain("calm sea") });
    let began = tokio::time::Instant::now();
    let synced = client.sync_with(&lists).await.unwrap();
    assert!(began.elapsed() >= after);
    assert_eq!((synced.report.outcome, synced.report.counts.sources), (SyncOutcome::Ok, 1_000));
    assert_eq!(client.state().await.sources.len(), 1_000);
    assert_eq!(lists.called.lock().unwrap().len(), 4);
}

/// An unchanged sync writes the sync's state, and in each new hour how much is shown; that is all.
#[tokio::test]
async fn an_unchanged_sync_writes_one_row() {
    let (client, lists) = (Client::new(), Lists::of_many("calm sea", 20));
    client.sync_with(&lists).await.unwrap();
    let (mut before, written) = client.dump().await;
    assert!(before["sync_state"].len() == 1 && before["server_source"].len() == 21, "it looks at the right tables");
    let again = client.sync_with(&lists).await.unwrap();
    assert_eq!((again.report.outcome, again.report.rows_written), (SyncOutcome::Unchanged, 0));
    let (mut after, written_again) = client.dump().await;
    assert_eq!(written_again - written, 1);
    let states = [before.remove("sync_state"), after.remove("sync_state")];
    assert_ne!(states[0], states[1]);
    assert_eq!(after, before);

    client.time.fetch_add(3_600_000_000, Ordering::SeqCst);
    client.sync_with(&lists).await.unwrap();
    let (mut later, written_later) = client.dump().await;
    assert_eq!(written_later - written_again, 2);
    later.remove("sync_state");
    assert_eq!(later.remove("local_shown").unwrap().len(), after.remove("local_shown").unwrap().len() + 1);
    assert_eq!(later, after);
}

fn code(failed: &SyncFailure) -> Option<rusqlite::ErrorCode> {
    match failed {
        SyncFailure::Store(StoreError::Sqlite(error)) => error.sqlite_error_code(),
        _ => None,
    }
}

/// Case T1.
#[tokio::test]
async fn t1_a_sync_that_does_not_fit_is_rolled_back_reported_and_made_when_there_is_room() {
    let (client, lists) = (Client::new(), Lists::of_many("rough sea", 400));
    client.sync_with(&Lists::new("calm sea")).await.unwrap();
    client.store.rewrite().await.unwrap();
    let pages = |transaction: &rusqlite::Transaction<'_>| {
        Ok(transaction.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0))?)
    };
    let pages = client.store.read(pages).await.unwrap();
    client.pragma("max_page_count", pages).await;
    let before = client.dump().await.0;
    let failed = client.sync_with(&lists).await.unwrap_err();
    assert_eq!(code(&failed), Some(rusqlite::ErrorCode::DiskFull), "{failed}");
    assert_eq!(client.dump().await.0, before);
    client.pragma("max_page_count", 1_000_000).await;
    assert_eq!(client.sync_with(&lists).await.unwrap().report.outcome, SyncOutcome::Ok);
    assert_eq!(client.state().await.designations.len(), 401);
}

/// Case T1.
#[tokio::test]
async fn t1_a_sync_that_meets_a_lock_is_rolled_back_reported_and_made_when_it_is_gone() {
    let (client, lists) = (Client::new(), Lists::new("rough sea"));
    client.sync_with(&Lists::new("calm sea")).await.unwrap();
    client.pragma("busy_timeout", 1).await;
    let before = client.dump().await.0;
    let other = rusqlite::Connection::open(client.directory.path().join("store.sqlite3")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let failed = client.sync_with(&lists).await.unwrap_err();
    assert_eq!(code(&failed), Some(rusqlite::ErrorCode::DatabaseBusy), "{failed}");
    drop(other);
    assert_eq!(client.dump().await.0, before);
    client.sync_with(&lists).await.unwrap();
    assert_eq!(client.state().await.designations, ["rough sea"]);
}

#[tokio::test]
async fn one_failed_call_applies_nothing() {
    for name in ["get_users", "get_sources", "get_submissions", "get_all_replies"] {
        let client = Client::new();
        client.sync_with(&Lists::new("calm sea")).await.unwrap();
        let before = client.state().await;
        let fails = Some((name, ErrorKind::Server));
        let lists = Arc::new(Lists { fails, ..Lists::plain("rough sea") });
        match client.sync_with(&lists).await.unwrap_err() {
            SyncFailure::Call { call, failure } => assert_eq!((call, failure.kind()), (name, ErrorKind::Server)),
            other => panic!("{other}"),
        }
        assert_eq!(client.state().await, before, "{name}");
    }
}

#[tokio::test]
async fn a_cancelled_sync_applies_nothing() {
    let client = Client::new();
    // A proxy that welcomes, and then says nothing for ever.
    let (ours, mut theirs) = duplex(PIPE);
    let recording = record(&Lists::new("calm sea")).await;
    theirs.write_all(&recording.welcome).await.unwrap();
    let connection = open(ours).await.unwrap();
    let cancel = CancellationToken::new();
    let (synced, ()) = tokio::join!(client.sync(&connection, &cancel), async {
        let mut reader = FrameReader::new(&mut theirs);
        reader.next_payload().await.unwrap();
        reader.next_message::<ToProxy>().await.unwrap();
        cancel.cancel();
    });
    assert!(matches!(synced.unwrap_err(), SyncFailure::Cancelled));
    assert!(client.state().await.designations.is_empty());
}

/// What a proxy wrote in a whole session: its welcome, then its answers.
struct Recording {
    welcome: Vec<u8>,
    answers: Vec<u8>,
}

/// Records a session by standing between a client and a proxy.
async fn record(lists: &Arc<Lists>) -> Recording {
    let (client_end, middle_of_client) = duplex(PIPE);
    let (middle_of_proxy, proxy_end) = duplex(PIPE);
    let mut tasks = JoinSet::new();
    proxy(lists, proxy_end, &mut tasks);
    let (mut from_client, mut to_client) = split(middle_of_client);
    let (mut from_proxy, mut to_proxy) = split(middle_of_proxy);
    tasks.spawn(async move {
        drop(tokio::io::copy(&mut from_client, &mut to_proxy).await);
    });
    let written = Arc::new(Mutex::new(Vec::new()));
    let welcome = Arc::new(AtomicUsize::new(0));
    let (log, welcome_length) = (Arc::clone(&written), Arc::clone(&welcome));
    tasks.spawn(async move {
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = from_proxy.read(&mut chunk).await {
            let total = {
                let mut log = log.lock().unwrap();
                log.extend_from_slice(&chunk[..count]);
                log.len()
            };
            // The welcome is all there is before the first call.
            let _ = welcome_length.compare_exchange(0, total, Ordering::SeqCst, Ordering::SeqCst);
            to_client.write_all(&chunk[..count]).await.unwrap();
        }
    });
    let connection = open(client_end).await.unwrap();
    Client::new().sync(&connection, &CancellationToken::new()).await.unwrap();
    let mut bytes = written.lock().unwrap().clone();
    let answers = bytes.split_off(welcome.load(Ordering::SeqCst));
    Recording { welcome: bytes, answers }
}

/// Plays a recording that breaks off: the welcome, then, once the four calls have come, so much of the answers.
async fn play(stream: DuplexStream, recording: Arc<Recording>, answers: usize) {
    let (reader, mut writer) = split(stream);
    writer.write_all(&recording.welcome).await.unwrap();
    let mut reader = FrameReader::new(reader);
    reader.next_payload().await.unwrap();
    for _ in 0..4 {
        assert!(matches!(reader.next_message::<ToProxy>().await.unwrap(), Some(ToProxy::Call(_))));
    }
    writer.write_all(&recording.answers[..answers]).await.unwrap();
    writer.shutdown().await.unwrap();
}

/// Case S6.
#[tokio::test]
async fn s6_an_answer_cut_at_any_byte_is_incomplete_and_changes_nothing() {
    let recording = Arc::new(record(&Lists::new("rough sea")).await);
    let client = Client::new();
    client.sync_with(&Lists::new("calm sea")).await.unwrap();
    let before = client.state().await;

    for cut in 0..recording.welcome.len() {
        let (ours, mut theirs) = duplex(PIPE);
        theirs.write_all(&recording.welcome[..cut]).await.unwrap();
        theirs.shutdown().await.unwrap();
        assert!(open(ours).await.is_err(), "welcome cut at {cut}");
    }
    for cut in 0..=recording.answers.len() {
        let (ours, theirs) = duplex(PIPE);
        let mut tasks = JoinSet::new();
        tasks.spawn(play(theirs, Arc::clone(&recording), cut));
        let connection = open(ours).await.unwrap();
        let result = client.sync(&connection, &CancellationToken::new()).await;
        if cut == recording.answers.len() {
            // The whole recording is a good one: the cuts before it fail for being cuts.
            assert_eq!(result.unwrap().report.outcome, SyncOutcome::Ok);
            assert_eq!(client.state().await.designations, ["rough sea"]);
        } else {
            match result.unwrap_err() {
                SyncFailure::Call { failure: CallFailure::Incomplete(_), .. } => {}
                other => panic!("cut at {cut}: {other}"),
            }
            assert_eq!(client.state().await, before, "cut at {cut}");
        }
    }
}
