//! The four lists.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use protocol::frame::MAX_FRAME;
use protocol::{Call, CallId, ErrorKind, Field, Items, Listed, Scope, Stage, ToProxy};
use proxy_vm::config;
use proxy_vm::journalist_api::Limits;
use serde_json::json;
use tokio::sync::Barrier;

use crate::client::{Client, get_all_replies, get_sources, get_submissions, get_users, token};
use crate::fixtures::{any_list, id, list, source, sources, submission};
use crate::server::{Act, Server, answer, chunked, ok};

async fn client_of(server: &Server) -> Client {
    Client::to(Scope::Metadata, server.address).await
}

async fn limited(server: &Server, limits: Limits) -> Client {
    let origin = format!("http://{}", server.address);
    Client::with(Scope::Metadata, &[(config::ORIGIN, &origin), (config::TOR, "off")], limits).await
}

#[tokio::test]
async fn all_four_lists_are_read_over_one_connection() {
    let server = Server::new(|seen| Act::Send(ok(&any_list(seen.path())))).await;
    let mut client = client_of(&server).await;
    for (call, path, count) in [
        (get_sources(), "/api/v1/sources", 2),
        (get_submissions(), "/api/v1/submissions", 4),
        (get_all_replies(), "/api/v1/replies", 3),
        (get_users(), "/api/v1/users", 2),
    ] {
        assert_eq!(client.call(call).await.listed(), (count, 0), "{path}");
        assert_eq!(server.seen().last().unwrap().line, format!("GET {path} HTTP/1.1"));
    }
    assert_eq!((server.connections(), server.seen().len()), (1, 4));
}

#[tokio::test]
async fn a_request_has_these_headers_and_no_others() {
    let server = Server::new(|seen| Act::Send(ok(&any_list(seen.path())))).await;
    let mut client = client_of(&server).await;
    client.call(get_sources()).await.listed();
    client.call(get_sources()).await.listed();
    let mut request_ids = Vec::new();
    for seen in server.seen() {
        let mut headers = seen.headers.clone();
        headers.sort();
        let names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["accept", "accept-encoding", "authorization", "host", "x-request-id"]);
        assert_eq!(seen.header("authorization"), Some("Token made.up-token_1"));
        assert_eq!(seen.header("accept"), Some("application/json"));
        assert_eq!(seen.header("accept-encoding"), Some("gzip"));
        assert_eq!(seen.header("host"), Some(server.address.to_string().as_str()));
        let request_id = seen.header("x-request-id").unwrap().to_owned();
        let uuid = uuid::Uuid::parse_str(request_id.strip_prefix("req-").unwrap()).unwrap();
        assert_eq!((uuid.get_version_num(), uuid.hyphenated().to_string()), (4, request_id[4..].to_owned()));
        request_ids.push(request_id);
    }
    assert_ne!(request_ids[0], request_ids[1]);
}

#[tokio::test]
async fn records_arrive_in_order_whatever_the_server_adds() {
    let records = (1..=3).map(|n| source(n, true)).collect();
    let server = Server::answering(ok(&list("sources", records))).await;
    let outcome = client_of(&server).await.call(get_sources()).await;
    assert_eq!(outcome.listed(), (3, 0));
    let [Items::Sources(batch)] = outcome.items.as_slice() else { panic!("{outcome:?}") };
    let ids: Vec<_> = batch.as_slice().iter().map(|entry| entry.id().unwrap().to_string()).collect();
    assert_eq!(ids, [id(1, 1), id(1, 2), id(1, 3)]);
}

#[tokio::test]
async fn a_large_list_comes_in_batches_that_fit_a_frame() {
    let server = Server::answering(ok(&sources(1000))).await;
    let outcome = client_of(&server).await.call(get_sources()).await;
    assert_eq!(outcome.listed(), (1000, 0));
    assert!(outcome.items.len() > 10);
    for items in &outcome.items {
        assert!(protocol::codec::encode(items).unwrap().len() < MAX_FRAME / 2);
    }
}

#[tokio::test]
async fn s9_bad_records_are_unreadable_and_the_rest_arrives() {
    let mut records: Vec<_> = (1..=5).map(|n| source(n, false)).collect();
    records[0]["journalist_designation"] = json!("");
    records[1]["interaction_count"] = json!(1.5);
    records[2]["uuid"] = json!("nonsense");
    records[3] = json!(null);
    let server = Server::answering(ok(&list("sources", records))).await;
    let outcome = client_of(&server).await.call(get_sources()).await;
    assert_eq!(outcome.listed(), (5, 4));
    let [Items::Sources(batch)] = outcome.items.as_slice() else { panic!("{outcome:?}") };
    let marks: Vec<_> = batch
        .as_slice()
        .iter()
        .filter_map(|entry| match entry {
            Listed::Unreadable(mark) => Some((mark.id.map(|id| id.to_string()), mark.field)),
            Listed::Readable(_) => None,
        })
        .collect();
    assert_eq!(
        marks,
        [
            (Some(id(1, 1)), Field::Designation),
            (Some(id(1, 2)), Field::Order),
            (None, Field::Id),
            (None, Field::Record)
        ]
    );
}

#[tokio::test]
async fn submissions_of_one_source_are_only_its_own() {
    let records = vec![submission(1, 7), submission(2, 8), submission(3, 7)];
    let server = Server::answering(ok(&list("submissions", records))).await;
    let source = id(1, 7).parse().unwrap();
    let outcome = client_of(&server).await.call(Call::GetSubmissions { token: token(), source: Some(source) }).await;
    assert_eq!(outcome.listed(), (3, 1));
    let [Items::Submissions(batch)] = outcome.items.as_slice() else { panic!("{outcome:?}") };
    let Listed::Unreadable(mark) = &batch.as_slice()[1] else { panic!("{outcome:?}") };
    assert_eq!((mark.id.unwrap().to_string(), mark.field), (id(2, 2), Field::Source));
    assert_eq!(server.seen()[0].path(), format!("/api/v1/sources/{}/submissions", id(1, 7)));
}

#[tokio::test]
async fn four_lists_are_in_flight_at_once() {
    let all_there = Arc::new(Barrier::new(4));
    let server = Server::asynchronous(move |seen| {
        let all_there = Arc::clone(&all_there);
        Box::pin(async move {
            all_there.wait().await;
            Act::Send(ok(&any_list(seen.path())))
        })
    })
    .await;
    let mut client = client_of(&server).await;
    for _ in 0..2 {
        let calls = vec![get_sources(), get_submissions(), get_all_replies(), get_users()];
        let outcomes = client.calls(calls, Duration::from_secs(30)).await;
        let counts: Vec<_> = outcomes.iter().map(|outcome| outcome.listed().0).collect();
        assert_eq!(counts, [2, 4, 3, 2]);
    }
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn gzip_is_read_and_its_cut_is_noticed() {
    let body = gzip(sources(20).as_bytes());
    let whole = answer("200 OK", &[("Content-Encoding", "gzip")], &body);
    let server = Server::answering(whole).await;
    assert_eq!(client_of(&server).await.call(get_sources()).await.listed(), (20, 0));

    for cut in [0, 1, 10, body.len() / 2, body.len() - 8, body.len() - 1] {
        let server = Server::answering(answer("200 OK", &[("Content-Encoding", "gzip")], &body[..cut])).await;
        let error = client_of(&server).await.call(get_sources()).await.failure();
        assert_eq!(error.kind, ErrorKind::BadResponse, "cut at {cut}: {error:?}");
    }
}

#[tokio::test]
async fn a_gzip_bomb_meets_the_cap() {
    let mut body = br#"{"sources":["#.to_vec();
    body.extend(vec![b' '; 8 * 1024 * 1024]);
    let server = Server::answering(answer("200 OK", &[("Content-Encoding", "gzip")], &gzip(&body))).await;
    let mut client = limited(&server, Limits { list_bytes: 1024 * 1024, ..Limits::default() }).await;
    let error = client.call(get_sources()).await.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::TooLarge, Stage::Body));
}

#[tokio::test]
async fn a_list_over_the_cap_is_too_large_and_a_record_over_its_cap_is_unreadable() {
    let mut records = vec![source(1, false), source(2, false)];
    records[0]["extra"] = json!("x".repeat(20_000));
    let body = list("sources", records);
    let server = Server::answering(ok(&body)).await;
    let limits = Limits { record_bytes: 10_000, ..Limits::default() };
    assert_eq!(limited(&server, limits).await.call(get_sources()).await.listed(), (2, 1));

    let length = u64::try_from(body.len()).unwrap();
    let exact = Limits { list_bytes: length, ..Limits::default() };
    assert_eq!(limited(&server, exact).await.call(get_sources()).await.listed(), (2, 0));
    let less = Limits { list_bytes: length - 1, ..Limits::default() };
    let error = limited(&server, less).await.call(get_sources()).await.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::TooLarge, Stage::Body));
}

#[tokio::test]
async fn what_is_no_list_is_a_bad_response() {
    for body in [
        "",
        "null",
        "[]",
        "{}",
        "<html></html>",
        r#"{"submissions":[]}"#,
        r#"{"sources":null}"#,
        r#"{"sources":{}}"#,
        r#"{"sources":[],"sources":[]}"#,
        r#"{"sources":[]}{}"#,
        r#"{"sources":[{]}"#,
        r#"{"sources":["#,
    ] {
        let server = Server::answering(ok(body)).await;
        let error = client_of(&server).await.call(get_sources()).await.failure();
        assert_eq!((error.kind, error.stage), (ErrorKind::BadResponse, Stage::Parse), "{body}");
    }
}

/// S6: no cut of an answer passes for the answer.
#[tokio::test]
async fn s6_an_answer_cut_at_any_byte_is_incomplete() {
    let body = any_list("/api/v1/users");
    let closing = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}").into_bytes();
    for (form, bytes) in [("length", ok(&body)), ("chunked", chunked(body.as_bytes(), 50)), ("closing", closing)] {
        let cut = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let next = Arc::clone(&cut);
        let whole = bytes.clone();
        let server = Server::new(move |_| {
            let cut = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Act::SendAndClose(whole[..cut.min(whole.len())].to_vec())
        })
        .await;
        let mut client = client_of(&server).await;
        for cut in 0..bytes.len() {
            let outcome = client.call(get_users()).await;
            let error = outcome.end.expect_err(&format!("{form} cut at {cut}"));
            assert!(
                matches!(error.kind, ErrorKind::BadResponse | ErrorKind::Unreachable),
                "{form} cut at {cut}: {error:?}"
            );
        }
        assert_eq!(client.call(get_users()).await.listed(), (2, 0), "{form}");
        // Nothing was asked twice.
        assert_eq!(cut.load(std::sync::atomic::Ordering::SeqCst), bytes.len() + 1, "{form}");
    }
}

#[tokio::test]
async fn a_cancelled_call_ends_and_the_session_goes_on() {
    let part = r#"{"users":["#;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{part}").into_bytes();
    let server = Server::new(move |seen| {
        if seen.path().ends_with("/users") {
            Act::SendAndHang(head.clone())
        } else {
            Act::Send(ok(&any_list(seen.path())))
        }
    })
    .await;
    let mut client = client_of(&server).await;
    let id = client.start(get_users(), Duration::from_secs(60)).await;
    assert_eq!(client.next().await.part, protocol::answer::Part::Begin);
    client.send(&ToProxy::Cancel(id)).await;
    let protocol::answer::Part::Failed(error) = client.next().await.part else { panic!("not failed") };
    assert_eq!((error.kind, error.stage), (ErrorKind::Cancelled, Stage::Body));
    assert_eq!(client.call(get_sources()).await.listed(), (2, 0));
    assert_ne!(id, CallId(0));
}
