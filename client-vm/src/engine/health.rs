//! How the proxy is, asked in a call that others use.
//!
//! **Invariant:** a proxy that is late with this costs those others nothing.

use std::time::Duration;

use control::ProxyStatus;
use protocol::{Call, Items};
use qubes_rpc::connection::{CallFailure, Connection};

use crate::failure;
use crate::sync::MAX_LIST_DEADLINE;

/// How long the proxy may take to say how it is.
const HEALTH_DEADLINE: Duration = Duration::from_secs(5);
/// How long it may take until it counts as one that answers nothing any more. That ends the whole session, a sync that runs
/// in it included, so it is longer than any list may take.
const GONE: Duration = MAX_LIST_DEADLINE.saturating_add(Duration::from_secs(60));

pub(super) async fn ask_health(connection: &Connection) -> ProxyStatus {
    let asking = async { connection.call(Call::Health, GONE).await?.one().await };
    // What is late is called off, and the session goes on.
    let asked = tokio::time::timeout(HEALTH_DEADLINE, asking).await.unwrap_or(Err(CallFailure::Silent));
    match asked {
        Ok(Some(Items::Health(health))) => ProxyStatus::Connected { software: connection.software().clone(), health },
        // The connection has checked the answer's kind and count.
        Ok(_) => ProxyStatus::NotConnected,
        Err(error) => ProxyStatus::Failed { message: failure::chain(&error) },
    }
}

#[cfg(test)]
mod tests {
    use protocol::answer::Part;
    use protocol::frame::{encode_frame, frame_bytes};
    use protocol::handshake::encode_welcome;
    use protocol::value::{SoftwareVersion, Token};
    use protocol::{CallId, FromProxy, Hello, Limits, Scope, Welcome};
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_says_late_how_it_is_costs_the_sync_nothing() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let software = SoftwareVersion::try_new("0.0.0-test").unwrap();
        let ready = Welcome::Ready { scope: Scope::Metadata, limits: Limits::OURS, software: software.clone() };
        theirs.write_all(&frame_bytes(&encode_welcome(&ready).unwrap()).unwrap()).await.unwrap();
        let hello = Hello { scope: Scope::Metadata, limits: Limits::OURS, api_level: None, software };
        let (reader, writer) = tokio::io::split(ours);
        let connection = Connection::open(reader, writer, &hello, HEALTH_DEADLINE).await.unwrap();
        let lists = Call::GetUsers { token: Token::try_new("token").unwrap() };
        let mut lists = connection.call(lists, MAX_LIST_DEADLINE).await.unwrap();
        // It stalls, and three ask meanwhile how it is.
        for _ in 0..3 {
            let status = ask_health(&connection).await;
            assert!(matches!(&status, ProxyStatus::Failed { message } if message.contains("deadline")), "{status:?}");
            tokio::time::advance(Duration::from_secs(20)).await;
        }
        // A large list takes its time to begin, or the proxy VM is paused.
        tokio::time::advance(MAX_LIST_DEADLINE - Duration::from_secs(120)).await;
        tokio::task::yield_now().await;
        assert_eq!(connection.broken_by(), None);
        for part in [Part::Begin, Part::End { count: 0 }] {
            let frame = encode_frame(&FromProxy { id: CallId(1), part }).unwrap();
            theirs.write_all(frame.as_ref()).await.unwrap();
        }
        assert_eq!(lists.next().await, Ok(None), "the list has come");
    }
}
