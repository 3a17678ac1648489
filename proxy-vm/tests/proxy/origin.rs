//! N4: nothing is connected to but the origin.

use protocol::value::Size;
use protocol::{Call, ErrorKind, Scope, Stage};

use crate::acts::acts;
use crate::client::{Client, get_all_replies, get_sources, get_submissions, get_users, token};
use crate::fixtures::id;
use crate::login::login;
use crate::replies::reply;
use crate::server::{Act, Server, answer, ok};

pub(crate) const REDIRECTS: [&str; 5] = ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"];

/// Every call that makes one request, whatever it carries and whatever it does.
fn calls() -> Vec<Call> {
    let from = Size::try_new(0).unwrap();
    let source = || id(1, 1).parse().unwrap();
    let mut calls: Vec<_> = acts().into_iter().map(|act| act.call).collect();
    calls.extend([
        login(),
        Call::Logout { token: token() },
        reply(1),
        Call::Probe,
        get_users(),
        get_sources(),
        get_submissions(),
        get_all_replies(),
        Call::DownloadSubmission { token: token(), source: source(), submission: id(2, 1).parse().unwrap(), from },
        Call::DownloadReply { token: token(), source: source(), reply: id(3, 1).parse().unwrap(), from },
    ]);
    calls
}

/// The name of a call that the test below makes, or why it does not.
fn redirected(call: &Call) -> &'static str {
    match call {
        Call::Health => "is answered without the server",
        Call::DeleteConversation { .. } => "makes several requests: its own test has it",
        Call::Login { .. }
        | Call::Logout { .. }
        | Call::Probe
        | Call::GetUsers { .. }
        | Call::GetSources { .. }
        | Call::GetSubmissions { .. }
        | Call::GetAllReplies { .. }
        | Call::Star { .. }
        | Call::Unstar { .. }
        | Call::MarkSeen { .. }
        | Call::DeleteSource { .. }
        | Call::DeleteSubmission { .. }
        | Call::DeleteReply { .. }
        | Call::DownloadSubmission { .. }
        | Call::DownloadReply { .. }
        | Call::SendReply { .. } => call.name(),
    }
}

/// A server that sends everybody on to `location`.
async fn sending_on(status: &'static str, location: String) -> Server {
    Server::new(move |_| Act::Send(answer(status, &[("Location", &location)], b""))).await
}

/// Neither to another server, nor to this one once more: nothing that a request carries is sent again, or elsewhere.
#[tokio::test]
async fn n4_no_redirect_is_followed_whatever_the_request_carries() {
    let trap = Server::answering(ok("{}")).await;
    let calls = calls();
    for call in &calls {
        assert_eq!(redirected(call), call.name());
        for status in REDIRECTS {
            for location in [format!("http://{}/api/v1/sources", trap.address), "/api/v1/users".to_owned()] {
                let server = sending_on(status, location).await;
                let scope = call.scope().unwrap_or(Scope::Session);
                let error = Client::to(scope, server.address).await.call(call.clone()).await.failure();
                let name = call.name();
                assert_eq!((error.kind, error.stage), (ErrorKind::BadResponse, Stage::FirstByte), "{name} {status}");
                assert_eq!(server.seen().len(), 1, "{name} {status}");
            }
        }
    }
    assert_eq!(trap.connections(), 0);
    let mut names: Vec<_> = calls.iter().map(Call::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 16, "a call is missing: {names:?}");
}
