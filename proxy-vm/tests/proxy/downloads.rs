//! Downloads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use protocol::answer::{Part, ServerContact};
use protocol::value::{Bounded, OneTimeCode, OrderNumber, Passphrase, Sha256, Size, Username};
use protocol::{Call, CallId, Download, ErrorKind, FromProxy, Items, Retry, Scope, Stage, Sum, ToProxy};
use proxy_vm::journalist_api::Limits;
use sha2::Digest as _;
use tokio::sync::Notify;

use crate::client::{Client, LONG, Outcome, get_sources, pass, token};
use crate::fixtures::id;
use crate::server::{Act, Seen, Server, answer, chunked, ok};

/// More than any bound but a call's deadline.
const VERY_LONG: Duration = Duration::from_secs(3600);

fn size(bytes: usize) -> Size {
    Size::try_new(bytes.try_into().unwrap()).unwrap()
}

/// A download of the `n`th submission.
fn submission_n(n: usize, from: usize) -> Call {
    let (source, submission) = (id(1, 7).parse().unwrap(), id(2, n).parse().unwrap());
    Call::DownloadSubmission { token: token(), source, submission, from: size(from) }
}

fn submission(from: usize) -> Call {
    submission_n(5, from)
}

fn reply(from: usize) -> Call {
    let (source, reply) = (id(1, 7).parse().unwrap(), id(3, 6).parse().unwrap());
    Call::DownloadReply { token: token(), source, reply, from: size(from) }
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| u8::try_from((at * 31 + at / 256) % 251).unwrap()).collect()
}

/// The head of a 200 that announces so many bytes.
fn head(length: usize) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes()
}

fn partial(range: &str, body: &[u8]) -> Vec<u8> {
    answer("206 PARTIAL CONTENT", &[("Content-Range", range)], body)
}

async fn client_of(server: &Server) -> Client {
    Client::to(Scope::Download, server.address).await
}

/// A download from `from` on that `act` answers.
async fn downloaded(act: Act, from: usize) -> Outcome {
    let server = Server::new(move |_| act.clone()).await;
    let outcome = client_of(&server).await.call(submission(from)).await;
    assert_eq!(server.seen().len(), 1);
    outcome
}

/// A download of `body` from `from` on that must be complete.
#[track_caller]
fn assert_complete(outcome: &Outcome, length: Option<usize>, from: usize, body: &[u8]) {
    let [Items::Download(file), .., Items::Sum(sum)] = outcome.items.as_slice() else { panic!("{outcome:?}") };
    assert_eq!((file.length, file.from), (length.map(size), size(from)));
    assert!(pieces(outcome) == body);
    let sha256 = Sha256::new(sha2::Sha256::digest(body).into());
    assert_eq!(*sum, Sum { length: size(body.len()), sha256 });
    assert!(outcome.begun);
    assert_eq!(outcome.end, Ok(u32::try_from(outcome.items.len()).unwrap()));
}

/// What came of a file, whatever became of the download.
fn pieces(outcome: &Outcome) -> Vec<u8> {
    let mut bytes = Vec::new();
    for items in &outcome.items {
        if let Items::Chunk(chunk) = items {
            bytes.extend_from_slice(chunk.as_slice());
        }
    }
    bytes
}

fn file(outcome: &Outcome) -> Download {
    let Some(Items::Download(file)) = outcome.items.first() else { panic!("{outcome:?}") };
    *file
}

#[tokio::test]
async fn a_download_is_one_request_with_these_headers_and_a_range_only_where_it_goes_on() {
    let (source, submission_id, reply_id) = (id(1, 7), id(2, 5), id(3, 6));
    let of_submission = format!("GET /api/v1/sources/{source}/submissions/{submission_id}/download HTTP/1.1");
    let of_reply = format!("GET /api/v1/sources/{source}/replies/{reply_id}/download HTTP/1.1");
    let body = bytes(1000);
    let whole = body.clone();
    let server = Server::new(move |seen| {
        let from: usize = seen.header("range").map_or(0, |range| range[6..range.len() - 1].parse().unwrap());
        let part = &whole[from..];
        Act::Send(if from == 0 {
            answer("200 OK", &[], part)
        } else {
            partial(&format!("bytes {from}-999/1000"), part)
        })
    })
    .await;
    let mut client = client_of(&server).await;
    let expected = ["accept", "authorization", "host", "x-request-id"];
    for (call, line, from) in [
        (submission(0), &of_submission, 0),
        (submission(1), &of_submission, 1),
        (reply(0), &of_reply, 0),
        (reply(999), &of_reply, 999),
    ] {
        assert_complete(&client.call(call).await, Some(1000), from, &body[from..]);
        let seen = server.seen().pop().unwrap();
        assert_eq!(&seen.line, line);
        assert_eq!(seen.header("authorization"), Some("Token made.up-token_1"));
        assert_eq!(seen.header("accept"), Some("*/*"));
        assert!(seen.body.is_empty());
        let mut names: Vec<_> = seen.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        if from > 0 {
            assert_eq!(seen.header("range"), Some(format!("bytes={from}-").as_str()));
            names.retain(|name| *name != "range");
        }
        assert_eq!(names, expected, "{line} {from}");
        assert!(matches!(client.contact().await, ServerContact::Answered { .. }));
    }
    assert_eq!((server.seen().len(), server.connections()), (4, 1));
}

/// The requests whose headers no other test knows one by one.
#[tokio::test]
async fn f1_no_other_request_has_a_range() {
    let server = Server::answering(ok("{}")).await;
    let source = id(1, 7).parse().unwrap();
    let login = Call::Login {
        username: Username::try_new("ada").unwrap(),
        passphrase: Passphrase::try_new("made up").unwrap(),
        one_time_code: OneTimeCode::try_new("012345").unwrap(),
    };
    let (items, upper_bound) = (Bounded::default(), OrderNumber::MAX);
    for call in [
        login,
        Call::Logout { token: token() },
        Call::GetSubmissions { token: token(), source: Some(source) },
        Call::DeleteConversation { token: token(), source, items, upper_bound },
    ] {
        // How they end is for other tests.
        Client::to(call.scope().unwrap(), server.address).await.call(call).await;
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    let no_range = |seen: &Seen| ["range", "if-range"].iter().all(|name| seen.header(name).is_none());
    assert!(seen.iter().all(no_range));
}

#[tokio::test]
async fn an_answer_without_a_length_is_taken_to_its_end() {
    let body = bytes(10_000);
    assert_complete(&downloaded(Act::Send(chunked(&body, 7)), 0).await, None, 0, &body);
    let closing = [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", body.as_slice()].concat();
    assert_complete(&downloaded(Act::SendAndClose(closing), 0).await, None, 0, &body);
    let part = chunked(&body, 999);
    let part = [b"HTTP/1.1 206 PARTIAL\r\nContent-Range: bytes 5-10004/*\r\n", &part[17..]].concat();
    assert_complete(&downloaded(Act::Send(part), 5).await, None, 5, &body);
}

#[tokio::test]
async fn an_empty_file_is_its_sum() {
    let outcome = downloaded(Act::Send(answer("200 OK", &[], b"")), 0).await;
    assert_complete(&outcome, Some(0), 0, b"");
    assert_eq!(outcome.end, Ok(2));
    assert_complete(&downloaded(Act::Send(chunked(b"", 1)), 0).await, None, 0, b"");
}

#[tokio::test]
async fn f1_a_server_that_does_not_resume_sends_the_whole() {
    let body = bytes(100);
    assert_complete(&downloaded(Act::Send(answer("200 OK", &[], &body)), 60).await, Some(100), 0, &body);
    // Even where the client had more than there is.
    assert_complete(&downloaded(Act::Send(answer("200 OK", &[], &body)), 600).await, Some(100), 0, &body);
}

#[tokio::test]
async fn f1_another_part_than_was_asked_for_is_refused() {
    const UNKNOWN: &str = "the answer does not say which part of the file it is";
    const OTHER: &str = "the answer is another part of the file than was asked for";
    let body = bytes(10);
    for (bytes, detail) in [
        (answer("206 PARTIAL CONTENT", &[], &body), UNKNOWN),
        (partial("bytes */30", &body), UNKNOWN),
        (partial("10 bytes", &body), UNKNOWN),
        (partial("bytes 19-28/29", &body), OTHER),
        (partial("bytes 21-30/31", &body), OTHER),
        (partial("bytes 0-9/10", &body), OTHER),
        // It would end before the file does.
        (partial("bytes 20-29/31", &body), OTHER),
        (partial("bytes 20-30/31", &body), "the answer's length is wrong"),
    ] {
        let outcome = downloaded(Act::Send(bytes), 20).await;
        assert!(!outcome.begun && outcome.items.is_empty());
        let error = outcome.failure();
        assert_eq!((error.kind, error.stage), (ErrorKind::BadResponse, Stage::FirstByte), "{detail}");
        assert_eq!(error.retry, Retry::Later { wait_ms: None });
        assert_eq!(error.detail.unwrap().as_str(), detail);
    }
    // A part that nobody asked for.
    let error = downloaded(Act::Send(partial("bytes 0-9/10", &body)), 0).await.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::BadResponse, Stage::FirstByte));
}

#[tokio::test]
async fn f1_a_range_that_is_not_there_is_a_conflict_that_can_be_solved_at_once() {
    let not_there = answer("416 RANGE NOT SATISFIABLE", &[("Content-Range", "bytes */10")], b"{}");
    let error = downloaded(Act::Send(not_there.clone()), 20).await.failure();
    assert_eq!((error.kind, error.stage, error.retry), (ErrorKind::Conflict, Stage::FirstByte, Retry::Now));
    assert_eq!(error.detail.unwrap().as_str(), "the range is not there");
    // To a request for no range it says nothing of the kind.
    let error = downloaded(Act::Send(not_there), 0).await.failure();
    assert_eq!((error.kind, error.stage, error.retry), (ErrorKind::Refused, Stage::FirstByte, Retry::Never));
}

#[tokio::test]
async fn every_other_status_fails_before_the_answer_begins() {
    for (status, kind) in [
        ("201 CREATED", ErrorKind::BadResponse),
        ("204 NO CONTENT", ErrorKind::BadResponse),
        ("304 NOT MODIFIED", ErrorKind::BadResponse),
        ("400 BAD REQUEST", ErrorKind::Refused),
        ("403 FORBIDDEN", ErrorKind::Unauthorized),
        ("404 NOT FOUND", ErrorKind::NotFound),
        ("410 GONE", ErrorKind::NotFound),
        ("429 TOO MANY REQUESTS", ErrorKind::RateLimited),
        ("500 INTERNAL SERVER ERROR", ErrorKind::Server),
        ("503 SERVICE UNAVAILABLE", ErrorKind::Server),
    ] {
        for from in [0, 20] {
            let outcome = downloaded(Act::SendAndClose(answer(status, &[], b"")), from).await;
            assert!(!outcome.begun && outcome.items.is_empty(), "{status}");
            let error = outcome.failure();
            assert_eq!((error.kind, error.stage), (kind, Stage::FirstByte), "{status}");
        }
    }
}

#[tokio::test]
async fn n4_a_download_goes_nowhere_else() {
    let trap = Server::answering(ok("made up")).await;
    let elsewhere = format!("http://{}/", trap.address);
    for status in ["301 MOVED", "302 FOUND", "303 SEE OTHER", "307 TEMPORARY", "308 PERMANENT"] {
        for from in [0, 20] {
            let outcome = downloaded(Act::Send(answer(status, &[("Location", &elsewhere)], b"")), from).await;
            assert_eq!(outcome.failure().kind, ErrorKind::BadResponse, "{status}");
        }
    }
    assert_eq!(trap.connections(), 0);
}

#[tokio::test]
async fn an_etag_is_told_where_it_is_a_sha256() {
    let body = bytes(50);
    let digits = "00112233445566778899aabbccddeeff".repeat(2);
    let known = Some(Sha256::parse_hex(&digits).unwrap());
    for (etag, expected) in [
        (Some(format!("sha256:{digits}")), known),
        (Some(format!("\"sha256:{digits}\"")), known),
        (Some(format!("sha256:{}", digits.to_uppercase())), known),
        (Some(format!("W/\"sha256:{digits}\"")), None),
        (Some(digits.clone()), None),
        (Some(format!("md5:{}", &digits[..32])), None),
        (Some(String::new()), None),
        (None, None),
    ] {
        let headers: Vec<_> = etag.iter().map(|etag| ("Etag", etag.as_str())).collect();
        let whole = downloaded(Act::Send(answer("200 OK", &headers, &body)), 0).await;
        assert_complete(&whole, Some(50), 0, &body);
        assert_eq!(file(&whole).etag, expected, "{etag:?}");
        let headers = [headers.as_slice(), &[("Content-Range", "bytes 50-99/100")]].concat();
        let part = downloaded(Act::Send(answer("206 PARTIAL CONTENT", &headers, &body)), 50).await;
        assert_complete(&part, Some(100), 50, &body);
        assert_eq!(file(&part).etag, expected, "{etag:?}");
    }
}

/// What decompresses lists has no part in downloads.
#[tokio::test]
async fn a_file_comes_as_it_is_or_not_at_all() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packed, &bytes(5000)).unwrap();
    let packed = packed.finish().unwrap();
    let outcome = downloaded(Act::Send(answer("200 OK", &[("Content-Type", "application/gzip")], &packed)), 0).await;
    assert_complete(&outcome, Some(packed.len()), 0, &packed);
    for encoding in ["gzip", "x-gzip", "br", "deflate", "identity", ""] {
        let outcome = downloaded(Act::Send(answer("200 OK", &[("Content-Encoding", encoding)], &packed)), 0).await;
        assert!(!outcome.begun && outcome.items.is_empty(), "{encoding}");
        let error = outcome.failure();
        assert_eq!((error.kind, error.stage), (ErrorKind::BadResponse, Stage::FirstByte), "{encoding}");
        assert_eq!(error.detail.unwrap().as_str(), "the file comes encoded");
    }
}

#[tokio::test]
async fn a_file_cut_at_any_byte_is_incomplete_and_what_came_is_told() {
    let body = bytes(40);
    let unmeasured =
        [b"HTTP/1.1 206 PARTIAL\r\nConnection: close\r\nContent-Range: bytes 5-44/45\r\n\r\n", body.as_slice()]
            .concat();
    for (form, bytes, from) in [
        ("length", answer("200 OK", &[], &body), 0),
        ("chunked", chunked(&body, 11), 0),
        ("part", partial("bytes 5-44/45", &body), 5),
        ("part without a length", unmeasured, 5),
    ] {
        let next = Arc::new(AtomicUsize::new(0));
        let server = Server::new({
            let (whole, next) = (bytes.clone(), Arc::clone(&next));
            move |_| Act::SendAndClose(whole[..next.fetch_add(1, Ordering::SeqCst).min(whole.len())].to_vec())
        })
        .await;
        let mut client = client_of(&server).await;
        let mut most = 0;
        for cut in 0..bytes.len() {
            let outcome = client.call(submission(from)).await;
            let got = pieces(&outcome);
            assert!(body.starts_with(&got) && got.len() >= most, "{form} cut at {cut}");
            assert!(!outcome.items.iter().any(|items| matches!(items, Items::Sum(_))), "{form} cut at {cut}");
            most = got.len();
            let begun = outcome.begun;
            let error = outcome.end.expect_err(&format!("{form} cut at {cut}"));
            if begun {
                assert_eq!((error.kind, error.stage), (ErrorKind::BadResponse, Stage::Body), "{form} cut at {cut}");
            }
        }
        assert!(most >= 39, "{form}");
        assert!(pieces(&client.call(submission(from)).await) == body, "{form}");
        assert_eq!(next.load(Ordering::SeqCst), bytes.len() + 1, "{form}");
    }
}

#[tokio::test]
async fn a_part_that_is_longer_than_it_says_is_no_part() {
    let body = bytes(40);
    let longer =
        [b"HTTP/1.1 206 PARTIAL\r\nConnection: close\r\nContent-Range: bytes 5-34/35\r\n\r\n", body.as_slice()]
            .concat();
    let outcome = downloaded(Act::SendAndClose(longer), 5).await;
    assert!(pieces(&outcome).len() <= 30);
    let error = outcome.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::BadResponse, Stage::Body));
    assert_eq!(error.detail.unwrap().as_str(), "the answer is longer than it says");
}

#[tokio::test]
async fn n6_a_download_that_stops_times_out_in_the_body() {
    let first = [head(1000), bytes(10)].concat();
    let server = Server::new(move |_| Act::SendAndHang(first.clone())).await;
    // The bound for pauses runs out, and then the call's own deadline.
    let idle = Limits::default().idle;
    for (deadline, passes, told) in [(VERY_LONG, idle, true), (idle / 3, idle / 2, false)] {
        let mut client = client_of(&server).await;
        let call = begin(&mut client, submission(0), deadline, 1000).await;
        assert_eq!(next_piece(&mut client, call).await, bytes(10));
        pass(passes).await;
        let error = client.next_failure(call).await;
        assert_eq!((error.kind, error.stage), (ErrorKind::Timeout, Stage::Body));
        assert_eq!(error.detail.is_some(), told);
        // What was left of the answer is not waited for.
        drop(client);
    }
    server.until_ended(2).await;
}

/// Starts a download of so many bytes and takes what comes before the pieces.
async fn begin(client: &mut Client, call: Call, deadline: Duration, length: usize) -> CallId {
    let id = client.start(call, deadline).await;
    assert_eq!(client.next().await, FromProxy { id, part: Part::Begin });
    let file = Download { length: Some(size(length)), from: size(0), etag: None };
    assert_eq!(client.next().await, FromProxy { id, part: Part::Items(Items::Download(file)) });
    id
}

async fn next_piece(client: &mut Client, of: CallId) -> Vec<u8> {
    let FromProxy { id, part } = client.next().await;
    let Part::Items(Items::Chunk(chunk)) = part else { panic!("no piece: {part:?}") };
    assert_eq!(id, of);
    chunk.as_slice().to_vec()
}

async fn assert_ends(client: &mut Client, id: CallId, body: &[u8], count: u32) {
    let sum = Sum { length: size(body.len()), sha256: Sha256::new(sha2::Sha256::digest(body).into()) };
    assert_eq!(client.next().await, FromProxy { id, part: Part::Items(Items::Sum(sum)) });
    assert_eq!(client.next().await, FromProxy { id, part: Part::End { count } });
}

#[tokio::test]
async fn a_piece_is_told_before_the_next_one_comes() {
    let body = bytes(30);
    let (second, third) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let act = Act::SendInTurns(
        [head(30), body[..1].to_vec()].concat(),
        vec![(Arc::clone(&second), body[1..20].to_vec()), (Arc::clone(&third), body[20..].to_vec())],
    );
    let server = Server::new(move |_| act.clone()).await;
    let mut client = client_of(&server).await;
    let call = begin(&mut client, submission(0), LONG, 30).await;
    assert_eq!(next_piece(&mut client, call).await, body[..1]);
    second.notify_one();
    assert_eq!(next_piece(&mut client, call).await, body[1..20]);
    third.notify_one();
    assert_eq!(next_piece(&mut client, call).await, body[20..]);
    assert_ends(&mut client, call, &body, 5).await;
}

#[tokio::test]
async fn two_downloads_come_side_by_side() {
    let (one, other) = (bytes(300_000), bytes(7));
    let rest = Arc::new(Notify::new());
    let slow =
        Act::SendInTurns([head(one.len()), one[..5].to_vec()].concat(), vec![(Arc::clone(&rest), one[5..].to_vec())]);
    let quick = answer("200 OK", &[], &other);
    let is_one = |seen: &Seen| seen.path().contains(&id(2, 1));
    let server = Server::new(move |seen| if is_one(seen) { slow.clone() } else { Act::Send(quick.clone()) }).await;
    let mut client = client_of(&server).await;

    let first = begin(&mut client, submission_n(1, 0), LONG, one.len()).await;
    assert_eq!(next_piece(&mut client, first).await, one[..5]);
    let second = begin(&mut client, submission_n(2, 0), LONG, other.len()).await;
    assert_eq!(next_piece(&mut client, second).await, other);
    assert_ends(&mut client, second, &other, 3).await;
    rest.notify_one();
    let (mut got, mut count) = (one[..5].to_vec(), 2);
    while got.len() < one.len() {
        got.extend(next_piece(&mut client, first).await);
        count += 1;
    }
    assert!(got == one);
    assert_ends(&mut client, first, &one, count + 1).await;
    assert_eq!(server.connections(), 2);
}

/// With a pipe that holds a fraction of it, and a client that takes it piece by piece.
#[tokio::test]
async fn f7_a_large_file_comes_whole() {
    let body = bytes(5_000_000);
    let server = Server::answering(answer("200 OK", &[], &body)).await;
    let mut client = client_of(&server).await;
    let outcome = client.call(submission(0)).await;
    assert_complete(&outcome, Some(body.len()), 0, &body);
    let from = 4_999_999;
    let part = downloaded(Act::Send(partial("bytes 4999999-4999999/5000000", &body[from..])), from).await;
    assert_complete(&part, Some(body.len()), from, &body[from..]);
}

#[tokio::test]
async fn a_cancelled_download_hangs_up_and_the_session_goes_on() {
    let first = [head(1000), bytes(10)].concat();
    let rest = answer("200 OK", &[], &bytes(20));
    let is_first = |seen: &Seen| seen.path().contains(&id(2, 1));
    let server =
        Server::new(move |seen| if is_first(seen) { Act::SendAndHang(first.clone()) } else { Act::Send(rest.clone()) })
            .await;
    let mut client = client_of(&server).await;
    let call = begin(&mut client, submission_n(1, 0), LONG, 1000).await;
    assert_eq!(next_piece(&mut client, call).await, bytes(10));
    client.send(&ToProxy::Cancel(call)).await;
    let error = client.next_failure(call).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Cancelled, Stage::Body));
    server.until_ended(1).await;
    assert_complete(&client.call(submission_n(2, 0)).await, Some(20), 0, &bytes(20));
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_download_of_another_scope_is_not_performed_nor_anything_else_in_its_own() {
    let server = Server::answering(ok("{}")).await;
    for scope in Scope::ALL.into_iter().filter(|scope| *scope != Scope::Download) {
        for call in [submission(0), reply(20)] {
            let error = Client::to(scope, server.address).await.call(call).await.failure();
            assert_eq!((error.kind, error.stage), (ErrorKind::OutOfScope, Stage::Admission), "{scope}");
        }
    }
    let mut client = client_of(&server).await;
    let source = id(1, 7).parse().unwrap();
    for call in [get_sources(), Call::Logout { token: token() }, Call::DeleteSource { token: token(), source }] {
        assert_eq!(client.call(call).await.failure().kind, ErrorKind::OutOfScope);
    }
    assert_eq!(client.contact().await, ServerContact::NoneYet);
    assert_eq!(server.connections(), 0);
}

/// A kept connection that the server has closed: the next download goes over a new one, and the server sees each once.
#[tokio::test]
async fn a_stale_connection_repeats_no_download() {
    let server = Server::new(|_| Act::SendAndClose(answer("200 OK", &[], b"made up"))).await;
    let mut client = client_of(&server).await;
    for n in 0..20 {
        let outcome = client.call(submission_n(n, 0)).await;
        // Where the end of the connection crosses the request nobody knows whether it arrived, and the client decides.
        if let Err(error) = outcome.end {
            assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::FirstByte));
        }
    }
    let mut lines: Vec<_> = server.seen().into_iter().map(|seen| seen.line).collect();
    let seen = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), seen);
}
