use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, ready};
use std::time::Duration;

use hyper::body::{Body, Frame};
use protocol::answer::Part;
use protocol::handshake::{decode_welcome, encode_hello};
use protocol::value::{RequestId, SoftwareVersion};
use protocol::{
    Call, CallId, Deadline, ErrorKind, FromProxy, Hello, Limits as SessionLimits, Refusal, Request, Scope, Stage,
    ToProxy, Welcome,
};
use qubes_rpc::channel::FrameReader;
use qubes_rpc::serve::{Responder, Service, serve};
use reqwest::header::HeaderValue;
use tokio::io::{AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::journalist_api::http::Limits;
use crate::outlet::Contacts;

const ID: &str = "9c5e2f10-1a2b-4c3d-8e4f-5a6b7c8d9e01";
/// A whole day, the longest that there is.
const DAY: Duration = Duration::from_millis(Deadline::MAX_MS as u64);

fn size(bytes: u64) -> Size {
    Size::try_new(bytes).unwrap()
}

fn headers(of: &[(HeaderName, &str)]) -> HeaderMap {
    of.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
}

#[test]
fn an_etag_is_a_sha256_or_nothing() {
    let digits = "0123456789abcdef".repeat(4);
    let digest = Sha256::parse_hex(&digits).unwrap();
    let claimed = |text: &str| etag(&headers(&[(ETAG, text)]));
    for text in [
        format!("sha256:{digits}"),
        format!("\"sha256:{digits}\""),
        format!("SHA256:{}", digits.to_uppercase()),
        format!("\"Sha256:{}\"", digits.to_uppercase()),
    ] {
        assert_eq!(claimed(&text), Some(digest), "{text}");
    }
    for text in [
        String::new(),
        digits.clone(),
        format!("\"{digits}\""),
        format!("W/\"sha256:{digits}\""),
        format!("w/sha256:{digits}"),
        format!("\"sha256:{digits}"),
        format!("sha256:{digits}\""),
        format!("\"\"sha256:{digits}\"\""),
        format!("sha256: {digits}"),
        format!("sha256:{digits}0"),
        format!("sha256:{}", digits.trim_end_matches('f')),
        format!("sha1:{}", "0".repeat(40)),
        format!("sha512:{digits}"),
        format!("sha256:{}", "g".repeat(64)),
        format!("sha256:{digits}, sha256:{digits}"),
        "\"".to_owned(),
    ] {
        assert_eq!(claimed(&text), None, "{text}");
    }
    let mut twice = HeaderMap::new();
    for _ in 0..2 {
        twice.append(ETAG, HeaderValue::from_str(&format!("sha256:{digits}")).unwrap());
    }
    assert_eq!((etag(&twice), etag(&HeaderMap::new())), (None, None));
    let mut no_text = HeaderMap::new();
    no_text.insert(ETAG, HeaderValue::from_bytes(b"sha256:\xff").unwrap());
    assert_eq!(etag(&no_text), None);
}

#[test]
fn a_content_range_is_read_whole_or_not_at_all() {
    let range = |first, last, whole| Some(ContentRange { first, last, whole });
    for (text, expected) in [
        ("bytes 5-9/10", range(5, 9, Some(10))),
        ("Bytes 0-0/1", range(0, 0, Some(1))),
        ("bytes 5-9/*", range(5, 9, None)),
        ("bytes 0-18446744073709551615/*", range(0, u64::MAX, None)),
        ("bytes */10", None),
        ("bytes 5-/10", None),
        ("bytes -9/10", None),
        ("bytes 5-9", None),
        ("bytes 5-9/", None),
        ("bytes=5-9/10", None),
        ("bytes  5-9/10", None),
        ("bytes +5-9/10", None),
        ("bytes 5 - 9/10", None),
        ("bytes 5-9-9/10", None),
        ("bytes 5-9/10/10", None),
        ("bytes 5-9/10, 10-11/12", None),
        ("bytes 5-18446744073709551616/*", None),
        ("items 5-9/10", None),
        ("", None),
    ] {
        assert_eq!(ContentRange::parse(text), expected, "{text}");
    }
}

#[test]
fn a_part_is_the_one_that_was_asked_for_up_to_the_end() {
    let read = |range: &str, length, asked| {
        let headers = headers(&[(CONTENT_RANGE, range)]);
        Head::read(StatusCode::PARTIAL_CONTENT, &headers, length, size(asked))
    };
    let head = |from, whole: Option<u64>, bytes| {
        Ok(Head { file: Download { length: whole.map(size), from: size(from), etag: None }, bytes: Some(bytes) })
    };
    for (range, length, asked, expected) in [
        ("bytes 5-9/10", Some(5), 5, head(5, Some(10), 5)),
        ("bytes 5-9/10", None, 5, head(5, Some(10), 5)),
        ("bytes 9-9/*", Some(1), 9, head(9, None, 1)),
        ("bytes 4-9/10", Some(6), 5, Err(HeadError::OtherRange)),
        ("bytes 6-9/10", Some(4), 5, Err(HeadError::OtherRange)),
        ("bytes 5-8/10", Some(4), 5, Err(HeadError::OtherRange)),
        ("bytes 5-10/10", Some(6), 5, Err(HeadError::OtherRange)),
        ("bytes 5-4/5", Some(0), 5, Err(HeadError::UnknownRange)),
        ("bytes 5-3/4", None, 5, Err(HeadError::UnknownRange)),
        ("bytes 5-18446744073709551615/*", None, 5, Err(HeadError::UnknownRange)),
        ("bytes 5-9223372036854775807/9223372036854775808", None, 5, Err(HeadError::Length)),
        ("bytes 5-9/10", Some(4), 5, Err(HeadError::Length)),
        ("bytes 5-9/10", Some(10), 5, Err(HeadError::Length)),
        ("bytes */10", Some(0), 5, Err(HeadError::UnknownRange)),
    ] {
        assert_eq!(read(range, length, asked), expected, "{range} {length:?} {asked}");
    }
    let mut twice = headers(&[(CONTENT_RANGE, "bytes 5-9/10")]);
    twice.append(CONTENT_RANGE, HeaderValue::from_static("bytes 5-9/10"));
    for headers in [HeaderMap::new(), twice] {
        let read = Head::read(StatusCode::PARTIAL_CONTENT, &headers, Some(5), size(5));
        assert_eq!(read, Err(HeadError::UnknownRange));
    }
}

#[test]
fn a_whole_file_begins_at_0_whatever_was_asked_for() {
    for (length, asked) in [(Some(10), 0), (Some(10), 5), (None, 5), (Some(0), 0)] {
        // A range in an answer that is none means nothing.
        let headers = headers(&[(CONTENT_RANGE, "bytes 5-9/10")]);
        let file = Download { length: length.map(size), from: size(0), etag: None };
        let read = Head::read(StatusCode::OK, &headers, length, size(asked));
        assert_eq!(read, Ok(Head { file, bytes: length }));
    }
    let longer = Head::read(StatusCode::OK, &HeaderMap::new(), Some(u64::MAX), size(0));
    assert_eq!(longer, Err(HeadError::Length));
}

/// A body that comes as the test feeds it, and counts what is taken.
struct Fed {
    parts: mpsc::UnboundedReceiver<Bytes>,
    taken: Arc<AtomicU64>,
}

impl Body for Fed {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        let part = ready!(self.parts.poll_recv(cx));
        if let Some(part) = &part {
            self.taken.fetch_add(u64::try_from(part.len()).unwrap(), Ordering::SeqCst);
        }
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }
}

/// A session whose one call passes on `answer`.
struct OneDownload {
    answer: Mutex<Option<Answer>>,
    contacts: Contacts,
}

impl Service for OneDownload {
    fn admit(&self, _hello: &Hello) -> Result<(), Refusal> {
        Ok(())
    }

    async fn perform(&self, _call: Call, deadline: Duration, answer: &mut Responder) -> Result<(), CallError> {
        let mut outlet = Outlet::new(answer, &self.contacts, Instant::now(), deadline);
        outlet.reached(Stage::Body);
        let answer = self.answer.lock().unwrap().take().unwrap();
        pass_on(answer, size(0), &mut outlet).await
    }
}

/// The client of such a session, and what feeds the body of its download.
struct Client {
    reader: FrameReader<ReadHalf<DuplexStream>>,
    _writer: WriteHalf<DuplexStream>,
    parts: Option<mpsc::UnboundedSender<Bytes>>,
    taken: Arc<AtomicU64>,
    _serving: JoinSet<()>,
}

/// How many bytes the pipe to the client holds.
const PIPE: usize = 64 * 1024;

impl Client {
    /// A download that has begun.
    async fn new() -> Self {
        let (feeding, parts) = mpsc::unbounded_channel();
        let taken = Arc::new(AtomicU64::new(0));
        let body = Fed { parts, taken: Arc::clone(&taken) };
        let submission = ID.parse().unwrap();
        let answer = Answer {
            response: hyper::Response::new(reqwest::Body::wrap(body)).into(),
            idle: Limits::default().idle,
            left: u64::MAX,
            bytes: 0,
            endpoint: Endpoint::DownloadSubmission(ID.parse().unwrap(), submission, size(0)),
            request_id: String::new(),
            asked: Instant::now(),
        };
        let service = Arc::new(OneDownload { answer: Mutex::new(Some(answer)), contacts: Contacts::default() });
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (from_client, to_client) = tokio::io::split(theirs);
        let software = SoftwareVersion::try_new("0").unwrap();
        let hello =
            Hello { scope: Scope::Download, limits: SessionLimits::OURS, api_level: None, software: software.clone() };
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let stop = CancellationToken::new();
            let _ended = serve(from_client, to_client, Scope::Download, software, service, stop).await;
        });
        let (reader, mut writer) = tokio::io::split(ours);
        let mut reader = FrameReader::new(reader);
        let hello = protocol::frame::frame_bytes(&encode_hello(&hello).unwrap()).unwrap();
        writer.write_all(&hello).await.unwrap();
        let welcome = reader.next_payload().await.unwrap().unwrap();
        assert!(matches!(decode_welcome(&welcome).unwrap(), Welcome::Ready { .. }));
        let token = Token::try_new("t").unwrap();
        let call = Call::DownloadSubmission { token, source: ID.parse().unwrap(), submission, from: size(0) };
        let request = Request {
            id: CallId(1),
            request: RequestId::new([7; 16]),
            deadline: Deadline::try_new(DAY).unwrap(),
            call,
        };
        writer.write_all(&protocol::frame::encode_frame(&ToProxy::Call(request)).unwrap()).await.unwrap();
        let mut client = Self { reader, _writer: writer, parts: Some(feeding), taken, _serving: serving };
        assert_eq!(client.next().await, Part::Begin);
        let file = Download { length: None, from: size(0), etag: None };
        assert_eq!(client.next().await, Part::Items(Items::Download(file)));
        client
    }

    fn feed(&self, part: Bytes) {
        self.parts.as_ref().unwrap().send(part).unwrap();
    }

    async fn next(&mut self) -> Part {
        let FromProxy { id, part } = self.reader.next_message().await.unwrap().unwrap();
        assert_eq!(id, CallId(1));
        part
    }

    async fn piece(&mut self) -> Vec<u8> {
        let Part::Items(Items::Chunk(chunk)) = self.next().await else { panic!("no piece") };
        chunk.as_slice().to_vec()
    }

    async fn assert_ends(&mut self, pieces: &[u8], count: u32) {
        let sum = Sum { length: size(pieces.len() as u64), sha256: Sha256::new(sha2::Sha256::digest(pieces).into()) };
        assert_eq!(self.next().await, Part::Items(Items::Sum(sum)));
        assert_eq!(self.next().await, Part::End { count });
    }
}

/// F7: of 5 MB no more is taken than what the pipe and its queue hold, though the client takes hours.
#[tokio::test(start_paused = true)]
async fn f7_nothing_is_taken_ahead_of_a_slow_client_and_its_slowness_is_no_pause_of_the_server() {
    const PART: usize = 20_000;
    /// 8 frames in the queue, one that is being written and one that waits; what the pipe holds, and the client's reader;
    /// and a bit of their heads.
    const AHEAD: usize = 10 * Chunk::MAX + PIPE + 64 * 1024 + PART + 1000;
    let mut client = Client::new().await;
    let mut body = Vec::new();
    for number in 0..250 {
        let part: Vec<u8> = (0..PART).map(|at| u8::try_from((number * 7 + at) % 251).unwrap()).collect();
        body.extend_from_slice(&part);
        client.feed(part.into());
    }
    client.parts = None;
    let (mut got, mut most) = (Vec::new(), 0);
    while got.len() < body.len() {
        // All that can happen has happened when the time passes.
        tokio::time::sleep(10 * Limits::default().idle).await;
        let taken = usize::try_from(client.taken.load(Ordering::SeqCst)).unwrap();
        most = most.max(taken - got.len());
        got.extend_from_slice(&client.piece().await);
    }
    assert!(most <= AHEAD, "{most}");
    // It is the client that was waited for.
    assert!(most >= Chunk::MAX, "{most}");
    assert!(got == body);
    client.assert_ends(&body, 2 + u32::try_from(body.len().div_ceil(Chunk::MAX)).unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_at_hand_is_one_piece_and_no_piece_waits() {
    let mut client = Client::new().await;
    let mut sent = Vec::new();
    for round in 1..=3_u8 {
        for at in 0..round {
            client.feed(vec![at; 100].into());
            sent.extend_from_slice(&[at; 100]);
        }
        // It comes, though more may follow and does not: no time passes.
        let before = Instant::now();
        assert_eq!(client.piece().await.len(), usize::from(round) * 100);
        assert_eq!(before.elapsed(), Duration::ZERO);
    }
    client.parts = None;
    client.assert_ends(&sent, 5).await;
}

#[tokio::test(start_paused = true)]
async fn a_large_part_comes_in_pieces_of_the_largest_size() {
    let mut client = Client::new().await;
    let part: Vec<u8> = (0..3 * Chunk::MAX + 5).map(|at| u8::try_from(at % 250).unwrap()).collect();
    client.feed(Bytes::from(part.clone()));
    client.parts = None;
    let mut got = VecDeque::new();
    for expected in [Chunk::MAX, Chunk::MAX, Chunk::MAX, 5] {
        let piece = client.piece().await;
        assert_eq!(piece.len(), expected);
        got.extend(piece);
    }
    assert!(got == part);
    client.assert_ends(&part, 6).await;
}

/// F2: a download that moves is not ended for being slow, and one that does not is, 60 s after what came last.
#[tokio::test(start_paused = true)]
async fn f2_only_a_pause_of_the_server_ends_a_download() {
    let mut client = Client::new().await;
    let idle = Limits::default().idle;
    for _ in 0..300 {
        tokio::time::sleep(idle - Duration::from_millis(1)).await;
        client.feed(Bytes::from_static(b"x"));
        assert_eq!(client.piece().await, b"x");
    }
    let last = Instant::now();
    let Part::Failed(error) = client.next().await else { panic!("not failed") };
    assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::Body));
    assert_eq!(error.detail.unwrap().as_str(), "the answer stopped coming");
    // The clock of the tests has steps of a millisecond.
    assert!((idle..idle + Duration::from_millis(5)).contains(&last.elapsed()), "{:?}", last.elapsed());
}
