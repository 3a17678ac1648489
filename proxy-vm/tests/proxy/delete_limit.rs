//! How much one session may delete.

use protocol::answer::ServerContact;
use protocol::value::{Bounded, OrderNumber};
use protocol::{Call, CallError, ErrorKind, Scope, Stage};
use proxy_vm::config;
use proxy_vm::journalist_api::Limits;

use crate::client::{Client, token};
use crate::fixtures::{id, list};
use crate::server::{Act, Server, answer, ok};

fn source(n: usize) -> Call {
    Call::DeleteSource { token: token(), source: id(1, n).parse().unwrap() }
}

fn conversation(n: usize) -> Call {
    let (source, items) = (id(1, n).parse().unwrap(), Bounded::default());
    Call::DeleteConversation { token: token(), source, items, upper_bound: OrderNumber::MAX }
}

fn submission(n: usize) -> Call {
    let (source, submission) = (id(1, n).parse().unwrap(), id(2, n).parse().unwrap());
    Call::DeleteSubmission { token: token(), source, submission }
}

fn reply(n: usize) -> Call {
    Call::DeleteReply { token: token(), source: id(1, n).parse().unwrap(), reply: id(3, n).parse().unwrap() }
}

async fn limited(scope: Scope, server: &Server, limit: &str) -> Client {
    let origin = format!("http://{}", server.address);
    let settings = [(config::ORIGIN, origin.as_str()), (config::TOR, "off"), (config::DELETE_LIMIT, limit)];
    Client::with(scope, &settings, Limits::default()).await
}

/// A server that deletes everything and lists nothing.
async fn willing() -> Server {
    Server::new(|seen| {
        let body = match seen.path() {
            path if path.ends_with("/submissions") => list("submissions", Vec::new()),
            path if path.ends_with("/replies") => list("replies", Vec::new()),
            _ => "{}".to_owned(),
        };
        Act::Send(ok(&body))
    })
    .await
}

#[track_caller]
fn assert_over_the_limit(error: &CallError, limit: usize) {
    assert_eq!((error.kind, error.stage), (ErrorKind::RateLimited, Stage::Admission));
    let detail = format!("one session may delete {limit} targets (SD_PROXY_DELETE_LIMIT)");
    assert_eq!(error.detail.as_ref().unwrap().as_str(), detail);
}

#[tokio::test]
async fn one_session_deletes_200_targets_and_no_more() {
    let server = willing().await;
    let mut client = Client::to(Scope::Delete, server.address).await;
    for n in 1..=200 {
        assert_eq!(client.call(source(n)).await.end, Ok(0));
    }
    assert_over_the_limit(&client.call(source(201)).await.failure(), 200);
    // What was named may be asked for again.
    assert_eq!(client.call(source(200)).await.end, Ok(0));
    assert_over_the_limit(&client.call(source(201)).await.failure(), 200);
    assert_eq!(server.seen().len(), 201);
    // Each session has its own count.
    assert_eq!(Client::to(Scope::Delete, server.address).await.call(source(201)).await.end, Ok(0));
}

#[tokio::test]
async fn every_kind_of_deletion_counts_and_the_items_of_a_conversation_are_one() {
    let server = willing().await;
    let mut client = limited(Scope::Delete, &server, "4").await;
    for call in [source(1), conversation(1), submission(1), reply(1), conversation(1), submission(1)] {
        assert_eq!(client.call(call).await.end, Ok(0));
    }
    let seen = server.seen().len();
    for call in [source(2), conversation(2), submission(2), reply(2)] {
        assert_over_the_limit(&client.call(call).await.failure(), 4);
    }
    assert_eq!(server.seen().len(), seen);
}

#[tokio::test]
async fn a_deletion_that_failed_has_counted() {
    let server = Server::answering(answer("500 INTERNAL SERVER ERROR", &[], b"{}")).await;
    let mut client = limited(Scope::Delete, &server, "1").await;
    assert_eq!(client.call(source(1)).await.failure().kind, ErrorKind::Server);
    assert_over_the_limit(&client.call(source(2)).await.failure(), 1);
    assert_eq!(client.call(source(1)).await.failure().kind, ErrorKind::Server);
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn a_refusal_for_the_limit_is_no_contact_with_the_server() {
    let server = willing().await;
    let mut client = limited(Scope::Delete, &server, "1").await;
    assert_eq!(client.contact().await, ServerContact::NoneYet);
    assert_eq!(client.call(source(1)).await.end, Ok(0));
    assert!(matches!(client.contact().await, ServerContact::Answered { .. }));
    assert_over_the_limit(&client.call(source(2)).await.failure(), 1);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn what_deletes_nothing_has_no_limit() {
    let server = Server::answering(answer("201 CREATED", &[], b"{}")).await;
    let mut client = limited(Scope::Mark, &server, "1").await;
    for n in 1..=3 {
        let star = Call::Star { token: token(), source: id(1, n).parse().unwrap() };
        assert_eq!(client.call(star).await.end, Ok(0));
    }
}
