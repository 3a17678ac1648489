//! Deleting the items of one conversation.

use std::time::Duration;

use protocol::answer::Part;
use protocol::value::{Bounded, ItemId, OrderNumber};
use protocol::{Call, CallError, ErrorKind, FromProxy, Items, Retry, Scope, Stage, ToProxy};
use proxy_vm::config;
use proxy_vm::journalist_api::Limits;
use serde_json::{Value, json};

use crate::client::{Client, Outcome, pass, token};
use crate::fixtures::{id, list, reply, submission};
use crate::origin::REDIRECTS;
use crate::server::{Act, Seen, Server, answer, ok};
use crate::socks_stub::{SocksStub, Way};

/// The source of all calls here.
const SOURCE: usize = 7;
/// More than any bound but a call's deadline.
const VERY_LONG: Duration = Duration::from_secs(3600);
const LATER: Retry = Retry::Later { wait_ms: None };

fn sub(n: usize) -> ItemId {
    ItemId::Submission(id(2, n).parse().unwrap())
}

fn rep(n: usize) -> ItemId {
    ItemId::Reply(id(3, n).parse().unwrap())
}

fn call_to(items: Vec<ItemId>, upper_bound: u64) -> Call {
    Call::DeleteConversation {
        token: token(),
        source: id(1, SOURCE).parse().unwrap(),
        items: Bounded::try_new(items).unwrap(),
        upper_bound: OrderNumber::try_new(upper_bound).unwrap(),
    }
}

/// A server that lists these items for the source and does with a deletion what `delete` says.
async fn server_with(
    submissions: Vec<Value>,
    replies: Vec<Value>,
    delete: impl Fn(&Seen) -> Act + Send + Sync + 'static,
) -> Server {
    let (submissions, replies) = (list("submissions", submissions), list("replies", replies));
    Server::new(move |seen| match seen.line.as_str() {
        line if line == lists()[0] => Act::Send(ok(&submissions)),
        line if line == lists()[1] => Act::Send(ok(&replies)),
        _ => delete(seen),
    })
    .await
}

/// The server with two submissions and a reply, numbered 1 to 3.
async fn three(delete: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Server {
    server_with(vec![submission(1, SOURCE), submission(2, SOURCE)], vec![reply(3, SOURCE)], delete).await
}

fn deleted(_: &Seen) -> Act {
    Act::Send(ok(r#"{"message":"Submission deleted"}"#))
}

fn lists() -> [String; 2] {
    ["submissions", "replies"].map(|list| format!("GET /api/v1/sources/{}/{list} HTTP/1.1", id(1, SOURCE)))
}

fn delete_line(item: ItemId) -> String {
    let kind = match item {
        ItemId::Submission(_) => "submissions",
        ItemId::Reply(_) => "replies",
    };
    format!("DELETE /api/v1/sources/{}/{kind}/{item} HTTP/1.1", id(1, SOURCE))
}

/// The items that the server was asked to delete; the two lists come before the first.
#[track_caller]
fn assert_asked_to_delete(server: &Server, items: &[ItemId]) {
    let seen: Vec<_> = server.seen().into_iter().map(|seen| seen.line).collect();
    let expected: Vec<_> = lists().into_iter().chain(items.iter().map(|item| delete_line(*item))).collect();
    assert_eq!(seen, expected);
}

async fn delete(server: &Server, items: Vec<ItemId>, upper_bound: u64) -> Outcome {
    Client::to(Scope::Delete, server.address).await.call(call_to(items, upper_bound)).await
}

/// An item, and what became of it: the kind and stage of its error.
type Short = (ItemId, Result<(), (ErrorKind, Stage)>);

fn results(outcome: &Outcome) -> Vec<Short> {
    let short = |error: CallError| (error.kind, error.stage);
    outcome.deletions().into_iter().map(|deletion| (deletion.item, deletion.result.map_err(short))).collect()
}

#[tokio::test]
async fn items_are_deleted_in_the_order_of_the_call_over_one_connection() {
    let server = three(deleted).await;
    let outcome = delete(&server, vec![rep(3), sub(2), sub(1)], 3).await;
    assert_eq!(results(&outcome), [(rep(3), Ok(())), (sub(2), Ok(())), (sub(1), Ok(()))]);
    assert_eq!(outcome.end, Ok(3));
    assert_asked_to_delete(&server, &[rep(3), sub(2), sub(1)]);
    assert_eq!(server.connections(), 1);
    for seen in server.seen() {
        assert_eq!(seen.header("authorization"), Some("Token made.up-token_1"));
        assert_eq!((seen.header("content-length"), seen.body.len()), (None, 0));
    }
}

#[tokio::test]
async fn what_the_call_does_not_name_stays() {
    let server = three(deleted).await;
    assert_eq!(results(&delete(&server, vec![sub(2)], 3).await), [(sub(2), Ok(()))]);
    assert_asked_to_delete(&server, &[sub(2)]);
}

/// Also where it exists: the server would delete it under the name of any source.
#[tokio::test]
async fn an_item_that_is_not_listed_for_the_source_is_never_asked_for() {
    let server = three(deleted).await;
    let outcome = delete(&server, vec![sub(50), sub(1), rep(1), sub(3)], 3).await;
    let gone = [sub(50), sub(1), rep(1), sub(3)].map(|item| (item, Ok(())));
    assert_eq!(results(&outcome), gone);
    assert_asked_to_delete(&server, &[sub(1)]);
}

#[tokio::test]
async fn an_item_that_is_listed_as_another_sources_is_not_deleted() {
    let mut nobodys = submission(4, SOURCE);
    nobodys["source_url"] = json!(null);
    let server = server_with(vec![submission(1, 8), submission(2, SOURCE), nobodys], vec![reply(3, 9)], deleted).await;
    let outcome = delete(&server, vec![sub(1), sub(2), rep(3), sub(4)], 9).await;
    let unclear = Err((ErrorKind::BadResponse, Stage::Parse));
    assert_eq!(results(&outcome), [(sub(1), unclear), (sub(2), Ok(())), (rep(3), unclear), (sub(4), unclear)]);
    assert_asked_to_delete(&server, &[sub(2)]);
}

#[tokio::test]
async fn nothing_beyond_the_bound_is_deleted() {
    let server = three(deleted).await;
    let outcome = delete(&server, vec![sub(1), sub(2), rep(3)], 2).await;
    let beyond = Err((ErrorKind::Refused, Stage::Admission));
    assert_eq!(results(&outcome), [(sub(1), Ok(())), (sub(2), Ok(())), (rep(3), beyond)]);
    assert_eq!(outcome.deletions()[2].result.as_ref().unwrap_err().retry, Retry::Never);
    assert_asked_to_delete(&server, &[sub(1), sub(2)]);

    let server = three(deleted).await;
    assert_eq!(delete(&server, vec![sub(1), sub(2), rep(3)], 0).await.end, Ok(3));
    assert_asked_to_delete(&server, &[]);
}

/// It may be the one that the call names.
#[tokio::test]
async fn an_entry_without_an_id_leaves_open_what_is_gone_from_its_list_and_no_other() {
    let mut nameless = submission(2, SOURCE);
    nameless["uuid"] = json!("nonsense");
    for entry in [nameless, json!(null), json!({})] {
        let server = server_with(vec![submission(1, SOURCE), entry], vec![reply(3, SOURCE)], deleted).await;
        let outcome = delete(&server, vec![sub(1), sub(2), rep(3), rep(4)], 9).await;
        let open = Err((ErrorKind::BadResponse, Stage::Parse));
        assert_eq!(results(&outcome), [(sub(1), Ok(())), (sub(2), open), (rep(3), Ok(())), (rep(4), Ok(()))]);
        assert_eq!(outcome.deletions()[1].result.as_ref().unwrap_err().retry, LATER);
        assert_asked_to_delete(&server, &[sub(1), rep(3)]);
    }
    let server = server_with(vec![submission(1, SOURCE)], vec![json!([])], deleted).await;
    let outcome = delete(&server, vec![sub(5), rep(4)], 9).await;
    assert_eq!(results(&outcome), [(sub(5), Ok(())), (rep(4), Err((ErrorKind::BadResponse, Stage::Parse)))]);
}

#[tokio::test]
async fn only_the_place_of_a_record_must_be_readable() {
    let mut submissions: Vec<_> = (1..=4).map(|n| submission(n, SOURCE)).collect();
    submissions[0]["size"] = json!(-1);
    submissions[0]["seen_by"] = json!("nobody");
    submissions[1]["is_file"] = json!(true);
    submissions[1]["is_message"] = json!(true);
    submissions[2]["filename"] = json!("none");
    submissions[3]["filename"] = json!(null);
    let server = server_with(submissions, Vec::new(), deleted).await;
    let outcome = delete(&server, vec![sub(1), sub(2), sub(3), sub(4)], 9).await;
    let unclear = Err((ErrorKind::BadResponse, Stage::Parse));
    assert_eq!(results(&outcome), [(sub(1), Ok(())), (sub(2), Ok(())), (sub(3), unclear), (sub(4), unclear)]);
    assert_asked_to_delete(&server, &[sub(1), sub(2)]);
}

#[tokio::test]
async fn an_item_listed_twice_must_be_the_same_both_times() {
    let mut elsewhere = submission(2, SOURCE);
    elsewhere["filename"] = json!("9-quiet_meadow-msg.gpg");
    let submissions =
        vec![submission(1, SOURCE), submission(2, SOURCE), submission(1, SOURCE), elsewhere, submission(2, SOURCE)];
    let server = server_with(submissions, Vec::new(), deleted).await;
    let outcome = delete(&server, vec![sub(1), sub(2)], 9).await;
    assert_eq!(results(&outcome), [(sub(1), Ok(())), (sub(2), Err((ErrorKind::BadResponse, Stage::Parse)))]);
    assert_asked_to_delete(&server, &[sub(1)]);
}

#[tokio::test]
async fn what_was_gone_when_it_was_asked_for_is_gone() {
    for status in ["404 NOT FOUND", "410 GONE"] {
        let server = three(move |_| Act::Send(answer(status, &[], b"{}"))).await;
        let outcome = delete(&server, vec![sub(1), rep(3)], 3).await;
        assert_eq!(results(&outcome), [(sub(1), Ok(())), (rep(3), Ok(()))], "{status}");
    }
}

#[tokio::test]
async fn an_item_that_fails_does_not_stop_the_others() {
    for (status, kind, retry) in [
        ("400 BAD REQUEST", ErrorKind::Refused, Retry::Never),
        ("409 CONFLICT", ErrorKind::Conflict, Retry::Never),
        ("413 TOO LARGE", ErrorKind::TooLarge, Retry::Never),
        ("500 INTERNAL SERVER ERROR", ErrorKind::Server, LATER),
        ("503 SERVICE UNAVAILABLE", ErrorKind::Server, LATER),
        ("201 CREATED", ErrorKind::BadResponse, LATER),
        ("204 NO CONTENT", ErrorKind::BadResponse, LATER),
        ("302 FOUND", ErrorKind::BadResponse, LATER),
    ] {
        let server =
            three(
                move |seen| {
                    if seen.line == delete_line(sub(2)) { Act::Send(answer(status, &[], b"")) } else { deleted(seen) }
                },
            )
            .await;
        let outcome = delete(&server, vec![sub(1), sub(2), rep(3)], 3).await;
        let failed = Err((kind, Stage::FirstByte));
        assert_eq!(results(&outcome), [(sub(1), Ok(())), (sub(2), failed), (rep(3), Ok(()))], "{status}");
        assert_eq!(outcome.deletions()[1].result.as_ref().unwrap_err().retry, retry, "{status}");
        assert_eq!(outcome.end, Ok(3), "{status}");
        assert_asked_to_delete(&server, &[sub(1), sub(2), rep(3)]);
    }
}

#[tokio::test]
async fn n4_no_redirect_is_followed_while_items_are_deleted() {
    let trap = Server::answering(ok("{}")).await;
    for status in REDIRECTS {
        for location in [format!("http://{}/api/v1/sources", trap.address), "/api/v1/users".to_owned()] {
            let redirect = answer(status, &[("Location", &location)], b"");
            let server =
                three(
                    move |seen| {
                        if seen.line == delete_line(sub(2)) { Act::Send(redirect.clone()) } else { deleted(seen) }
                    },
                )
                .await;
            let outcome = delete(&server, vec![sub(1), sub(2), rep(3)], 3).await;
            let failed = Err((ErrorKind::BadResponse, Stage::FirstByte));
            assert_eq!(results(&outcome), [(sub(1), Ok(())), (sub(2), failed), (rep(3), Ok(()))], "{status}");
            assert_asked_to_delete(&server, &[sub(1), sub(2), rep(3)]);
        }
    }
    assert_eq!(trap.connections(), 0);
}

#[tokio::test]
async fn what_the_next_item_would_meet_too_ends_the_call_and_what_was_told_stands() {
    for (act, kind, stage) in [
        (Act::Send(answer("401 UNAUTHORIZED", &[], b"")), ErrorKind::Unauthorized, Stage::FirstByte),
        (Act::Send(answer("403 FORBIDDEN", &[], b"")), ErrorKind::Unauthorized, Stage::FirstByte),
        (Act::Send(answer("429 TOO MANY REQUESTS", &[], b"")), ErrorKind::RateLimited, Stage::FirstByte),
        (Act::SendAndClose(Vec::new()), ErrorKind::Unreachable, Stage::FirstByte),
    ] {
        let server =
            three(move |seen| if seen.line == delete_line(sub(2)) { act.clone() } else { deleted(seen) }).await;
        let outcome = delete(&server, vec![sub(50), sub(1), sub(2), rep(3)], 3).await;
        assert_eq!(results(&outcome), [(sub(50), Ok(())), (sub(1), Ok(()))], "{kind:?}");
        let error = outcome.failure();
        assert_eq!((error.kind, error.stage), (kind, stage));
        assert_asked_to_delete(&server, &[sub(1), sub(2)]);
    }
}

#[tokio::test]
async fn n6_a_silent_server_ends_the_call() {
    let server =
        three(|seen| if seen.line == delete_line(sub(2)) { Act::SendAndHang(Vec::new()) } else { deleted(seen) }).await;
    let mut client = Client::to(Scope::Delete, server.address).await;
    let call = client.start(call_to(vec![sub(1), sub(2), rep(3)], 3), VERY_LONG).await;
    assert_eq!(client.next().await, FromProxy { id: call, part: Part::Begin });
    assert!(matches!(client.next().await.part, Part::Items(Items::Deletions(_))));
    server.until_seen(4).await;
    pass(Limits::default().first_byte).await;
    let error = client.next_failure(call).await;
    assert_eq!((error.kind, error.stage, error.retry), (ErrorKind::Timeout, Stage::FirstByte, LATER));
    assert_asked_to_delete(&server, &[sub(1), sub(2)]);
}

/// The way to the server is lost after the first deletion, which was told; of the rest the server certainly saw nothing.
#[tokio::test]
async fn a_way_that_is_lost_ends_the_call_before_the_server() {
    let server = three(|_| Act::SendAndClose(answer("200 OK", &[("Connection", "close")], b"{}"))).await;
    let socks = SocksStub::in_turn(vec![Way::Relay(server.address), Way::Reply(4)]).await;
    let address = socks.address.to_string();
    let settings = [(config::ORIGIN, "http://madeup.onion"), (config::SOCKS, address.as_str())];
    let mut client = Client::with(Scope::Delete, &settings, Limits::default()).await;
    let outcome = client.call(call_to(vec![sub(1), sub(2), rep(3)], 3)).await;
    assert_eq!(results(&outcome), [(sub(1), Ok(()))]);
    let error = outcome.failure();
    assert_eq!((error.kind, error.stage), (ErrorKind::Unreachable, Stage::Route));
    assert!(error.stage.before_the_server());
    assert_asked_to_delete(&server, &[sub(1)]);
}

/// An outcome does not wait for the next item, whatever that takes, nor for what the server says beyond the status.
#[tokio::test]
async fn an_outcome_is_told_before_anything_else_is_waited_for() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{".to_vec();
    let server = three(move |seen| {
        if seen.line == delete_line(sub(2)) { Act::SendAndHang(Vec::new()) } else { Act::SendAndHang(head.clone()) }
    })
    .await;
    let mut client = Client::to(Scope::Delete, server.address).await;
    let call = client.start(call_to(vec![sub(50), sub(1), sub(51), sub(2), rep(3)], 3), VERY_LONG).await;
    assert_eq!(client.next().await, FromProxy { id: call, part: Part::Begin });
    let mut told = Vec::new();
    for expected in [vec![sub(50)], vec![sub(1)], vec![sub(51)]] {
        if told.len() == 2 {
            // The rest of the answer does not come. That is no failure, and the next item has its turn.
            pass(Limits::default().idle).await;
        }
        let Part::Items(Items::Deletions(batch)) = client.next().await.part else { panic!("no deletions") };
        let items: Vec<_> = batch.as_slice().iter().map(|deletion| deletion.item).collect();
        assert!(batch.as_slice().iter().all(|deletion| deletion.result.is_ok()));
        assert_eq!(items, expected);
        told.extend(items);
    }
    server.until_seen(4).await;
    client.send(&ToProxy::Cancel(call)).await;
    let error = client.next_failure(call).await;
    assert_eq!((error.kind, error.stage), (ErrorKind::Cancelled, Stage::FirstByte));
    assert_asked_to_delete(&server, &[sub(1), sub(2)]);
}

#[tokio::test]
async fn an_item_is_deleted_though_the_answer_is_cut() {
    let server = three(|_| Act::SendAndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{".to_vec())).await;
    let outcome = delete(&server, vec![sub(1), sub(2), rep(3)], 3).await;
    assert_eq!(results(&outcome), [(sub(1), Ok(())), (sub(2), Ok(())), (rep(3), Ok(()))]);
    assert_eq!((outcome.end, server.connections()), (Ok(3), 3));
    assert_asked_to_delete(&server, &[sub(1), sub(2), rep(3)]);
}

#[tokio::test]
async fn an_item_named_twice_is_asked_for_once_and_has_one_outcome() {
    let server = three(|seen| {
        if seen.line == delete_line(sub(2)) {
            Act::Send(answer("500 INTERNAL SERVER ERROR", &[], b""))
        } else {
            deleted(seen)
        }
    })
    .await;
    let outcome = delete(&server, vec![sub(1), sub(1), sub(2), rep(3), sub(2), sub(1)], 3).await;
    let failed = Err((ErrorKind::Server, Stage::FirstByte));
    assert_eq!(
        results(&outcome),
        [(sub(1), Ok(())), (sub(1), Ok(())), (sub(2), failed), (rep(3), Ok(())), (sub(2), failed), (sub(1), Ok(()))]
    );
    assert_eq!(outcome.end, Ok(6));
    assert_asked_to_delete(&server, &[sub(1), sub(2), rep(3)]);
}

/// A submission and a reply may have the same id.
#[tokio::test]
async fn a_reply_is_not_taken_for_a_submission_of_the_same_id() {
    let mut twin = reply(3, SOURCE);
    twin["uuid"] = json!(id(2, 1));
    let server = server_with(vec![submission(1, SOURCE)], vec![twin], deleted).await;
    let twin = ItemId::Reply(id(2, 1).parse().unwrap());
    assert_eq!(results(&delete(&server, vec![twin], 3).await), [(twin, Ok(()))]);
    assert_asked_to_delete(&server, &[twin]);
}

#[tokio::test]
async fn no_items_are_no_deletions() {
    let server = three(deleted).await;
    let outcome = delete(&server, Vec::new(), 3).await;
    assert_eq!((outcome.begun, outcome.items.len(), outcome.end), (true, 0, Ok(0)));
    assert_asked_to_delete(&server, &[]);
}

#[tokio::test]
async fn many_outcomes_come_in_small_batches() {
    let server = three(deleted).await;
    let items: Vec<_> = (100..200).map(sub).collect();
    let outcome = delete(&server, items.clone(), 3).await;
    let sizes: Vec<_> = outcome.items.iter().map(Items::count).collect();
    assert_eq!((sizes, outcome.end.clone()), (vec![32, 32, 32, 4], Ok(100)));
    let told: Vec<_> = outcome.deletions().into_iter().map(|deletion| deletion.item).collect();
    assert_eq!(told, items);
}

#[tokio::test]
async fn without_both_lists_nothing_is_deleted() {
    let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"replies\":[".to_vec();
    for (act, kind, stage) in [
        (Act::Send(answer("404 NOT FOUND", &[], b"{}")), ErrorKind::NotFound, Stage::FirstByte),
        (Act::Send(answer("403 FORBIDDEN", &[], b"{}")), ErrorKind::Unauthorized, Stage::FirstByte),
        (Act::Send(answer("500 INTERNAL SERVER ERROR", &[], b"{}")), ErrorKind::Server, Stage::FirstByte),
        (Act::Send(ok(r#"{"sources":[]}"#)), ErrorKind::BadResponse, Stage::Parse),
        (Act::SendAndClose(cut), ErrorKind::BadResponse, Stage::Body),
    ] {
        for failing in lists() {
            let act = act.clone();
            let server = Server::new(move |seen| {
                if seen.line == failing {
                    act.clone()
                } else if seen.line == lists()[0] {
                    Act::Send(ok(&list("submissions", vec![submission(1, SOURCE)])))
                } else {
                    Act::Send(ok(&list("replies", Vec::new())))
                }
            })
            .await;
            let outcome = delete(&server, vec![sub(1)], 3).await;
            assert!(!outcome.begun);
            let error = outcome.failure();
            assert_eq!((error.kind, error.stage), (kind, stage));
            assert!(server.seen().iter().all(|seen| seen.line.starts_with("GET ")));
        }
    }
}

#[tokio::test]
async fn a_long_list_beside_the_named_items_is_read() {
    let mut submissions: Vec<_> = (1..=1000).map(|n| submission(n, SOURCE)).collect();
    submissions.rotate_left(500);
    let server = server_with(submissions, Vec::new(), deleted).await;
    assert_eq!(results(&delete(&server, vec![sub(999)], 1000).await), [(sub(999), Ok(()))]);
    assert_asked_to_delete(&server, &[sub(999)]);
}
