//! One sync from the first call to the committed transaction.

use std::collections::BTreeSet;
use std::time::Duration;

use control::{SyncOutcome, SyncReport, SyncStart};
use protocol::value::{SourceId, Token};
use qubes_rpc::connection::Connection;
use tokio_util::sync::CancellationToken;

use super::failure::SyncFailure;
use super::gather::gather;
use super::plan::{Budget, Plan};
use crate::clock::Clock;
use crate::store::outbox::{self, SnapshotEffects};
use crate::store::{Store, mirror, removals};

/// How long a list may take at least. A server with 1,000 sources was seen to need 90 s, and Tor often gives 100 kB/s.
const LIST_DEADLINE: Duration = Duration::from_secs(300);
/// What each record that the mirror holds adds to that.
const PER_RECORD: Duration = Duration::from_millis(100);
/// How long a list may take at most.
pub const MAX_LIST_DEADLINE: Duration = Duration::from_secs(3600);

/// A snapshot's number among all that this daemon asks for, and what the outbox needs besides to judge it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotNumber {
    /// It grows; taken before the first call.
    pub number: u64,
    /// How long after its confirmation a deletion may be listed.
    pub overdue: Duration,
}

/// A sync succeeded, and what it brought is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    /// The report, as stored.
    pub report: SyncReport,
    /// The sources that changed.
    pub changed_sources: BTreeSet<SourceId>,
    /// What it did to the outbox.
    pub effects: SnapshotEffects,
    /// The sources of which a removal is held from now on.
    pub held: BTreeSet<SourceId>,
    /// What went with it that may have said something.
    pub erased: Erases,
}

/// What goes with a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Erases {
    /// Nothing.
    Nothing,
    /// Rows of the outbox that are settled.
    Rows,
    /// What the server lists no more.
    Records,
}

/// Asks for the four lists at the same time and applies what they say.
///
/// `cancel` stops it until the four answers are there; the transaction itself is never cut in two.
///
/// # Errors
/// [`SyncFailure`].
pub async fn sync(
    connection: &Connection,
    token: &Token,
    store: &Store,
    clock: &Clock,
    start: SyncStart,
    snapshot: SnapshotNumber,
    cancel: &CancellationToken,
) -> Result<Synced, SyncFailure> {
    let known = store.read(mirror::load_mirror).await?;
    let records = known.users.len() + known.sources.len() + known.submissions.len() + known.replies.len();
    let deadline = list_deadline(records);
    let budget = Budget::default();
    let gathering = async {
        tokio::try_join!(
            gather(connection, token, &known.users, deadline, &budget),
            gather(connection, token, &known.sources, deadline, &budget),
            gather(connection, token, &known.submissions, deadline, &budget),
            gather(connection, token, &known.replies, deadline, &budget),
        )
    };
    let (users, sources, submissions, replies) = tokio::select! {
        lists = gathering => lists?,
        () = cancel.cancelled() => return Err(SyncFailure::Cancelled),
    };
    let calls = vec![users.1, sources.1, submissions.1, replies.1];
    let plan = Plan {
        users: users.0.diff(&known.users),
        sources: sources.0.diff(&known.sources),
        submissions: submissions.0.diff(&known.submissions),
        replies: replies.0.diff(&known.replies),
    };
    drop(known);
    let clock = clock.clone();
    let synced = store
        .write(move |transaction| {
            let held = removals::hold(transaction, &plan, clock.now())?;
            let applied = mirror::apply(transaction, &plan)?;
            removals::listed_again(transaction, clock.now())?;
            let effects = outbox::after_snapshot(transaction, snapshot.number, clock.now(), snapshot.overdue, &plan)?;
            let outcome = if applied.rows_written == 0 { SyncOutcome::Unchanged } else { SyncOutcome::Ok };
            let report = SyncReport {
                start,
                ended: clock.now(),
                outcome,
                counts: applied.counts,
                rows_written: applied.rows_written,
                calls,
            };
            mirror::store_success(transaction, &report)?;
            let mut changed_sources = applied.changed_sources;
            changed_sources.extend(&effects.sources);
            let erased = match (plan.removes_something(), effects.sources.is_empty()) {
                (true, _) => Erases::Records,
                (false, false) => Erases::Rows,
                (false, true) => Erases::Nothing,
            };
            Ok(Synced { report, changed_sources, effects, held, erased })
        })
        .await?;
    Ok(synced)
}

/// How long each of the four lists may take where the mirror holds so many `records`.
#[must_use]
pub fn list_deadline(records: usize) -> Duration {
    let extra = PER_RECORD.saturating_mul(u32::try_from(records).unwrap_or(u32::MAX));
    LIST_DEADLINE.saturating_add(extra).min(MAX_LIST_DEADLINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s3_a_list_has_the_longer_the_more_is_held_and_at_most_an_hour() {
        for (records, seconds) in [(0, 300), (1_000, 400), (5_000, 800), (33_000, 3_600), (100_000, 3_600)] {
            assert_eq!(list_deadline(records), Duration::from_secs(seconds), "{records}");
        }
        assert_eq!(list_deadline(usize::MAX), MAX_LIST_DEADLINE);
        let rising: Vec<_> = (0..40_000).step_by(7).map(list_deadline).collect();
        assert!(rising.is_sorted());
    }
}
