//! Reads one list's answer into a snapshot.

use std::time::Duration;

use control::CallTime;
use protocol::answer::Batch;
use protocol::record::Record;
use protocol::value::Token;
use protocol::{Call, Items, Journalist, Reply, Source, Submission};
use qubes_rpc::connection::Connection;
use tokio::time::Instant;

use super::failure::SyncFailure;
use super::plan::{Budget, Known, Snapshot};

/// A list that can be asked for.
pub(super) trait Listing: Record {
    /// The call that asks for it.
    fn call(token: Token) -> Call;

    /// The list's entries in a part of its answer.
    fn entries(items: Items) -> Option<Batch<Self>>;
}

macro_rules! listing {
    ($record:ty, $items:ident, $token:ident => $call:expr) => {
        impl Listing for $record {
            fn call($token: Token) -> Call {
                $call
            }

            fn entries(items: Items) -> Option<Batch<Self>> {
                match items {
                    Items::$items(batch) => Some(batch),
                    _other => None,
                }
            }
        }
    };
}
listing!(Journalist, Users, token => Call::GetUsers { token });
listing!(Source, Sources, token => Call::GetSources { token });
listing!(Submission, Submissions, token => Call::GetSubmissions { token, source: None });
listing!(Reply, Replies, token => Call::GetAllReplies { token });

/// Asks for a list and reads it to its end, as far as the `budget` goes that the sync's lists share.
pub(super) async fn gather<T: Listing>(
    connection: &Connection,
    token: &Token,
    known: &Known<T::Id>,
    deadline: Duration,
    budget: &Budget,
) -> Result<(Snapshot<T>, CallTime), SyncFailure> {
    let started = Instant::now();
    let call = T::call(token.clone());
    let name = call.name();
    let failed = |failure| SyncFailure::Call { call: name, failure };
    let mut answer = connection.call(call, deadline).await.map_err(failed)?;
    let mut snapshot = Snapshot::within(budget.clone());
    while let Some(items) = answer.next().await.map_err(failed)? {
        // The connection has checked that the items are of the call's kind.
        let entries = T::entries(items).map(Batch::into_vec).unwrap_or_default();
        for entry in entries {
            snapshot.observe(known, entry)?;
        }
    }
    let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok((snapshot, CallTime { call: name.to_owned(), took_ms }))
}
