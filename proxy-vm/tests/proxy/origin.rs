//! N4: nothing is connected to but the origin.

use protocol::{ErrorKind, Scope, Stage};

use crate::client::{Client, get_sources};
use crate::server::{Act, Server, answer, ok};

#[tokio::test]
async fn n4_no_redirect_is_followed() {
    let trap = Server::answering(ok("{}")).await;
    for status in ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"] {
        for location in [format!("http://{}/api/v1/sources", trap.address), "/api/v1/users".to_owned()] {
            let redirect = answer(status, &[("Location", &location)], b"");
            let server = Server::new(move |_| Act::Send(redirect.clone())).await;
            let error = Client::to(Scope::Metadata, server.address).await.call(get_sources()).await.failure();
            assert_eq!((error.kind, error.stage), (ErrorKind::BadResponse, Stage::FirstByte), "{status}");
            assert_eq!(server.seen().len(), 1, "{status}");
        }
    }
    assert_eq!(trap.connections(), 0);
}
