//! One attempt at a batch, as a task of its own.

use std::sync::Arc;
use std::time::Duration;

use protocol::value::Token;
use qubes_rpc::qrexec::QrexecCall;
use tokio_util::sync::CancellationToken;

use crate::acts::{Performed, Step, Watcher, Way, perform};
use crate::engine::replying::{PrepareError, ReplyDesk};
use crate::store::outbox::{self, Outcome, Row, Waits, Work};
use crate::store::{Store, StoreError};

/// What an attempt needs.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) store: Store,
    pub(super) call: Arc<QrexecCall>,
    pub(super) token: Token,
    pub(super) rows: Vec<Row>,
    /// The last snapshot that was asked for.
    pub(super) snapshot: u64,
    pub(super) deadline: Duration,
    pub(super) waits: Waits,
    pub(super) replies: ReplyDesk,
    pub(super) watcher: Arc<dyn Watcher>,
    /// The session is over.
    pub(super) cancel: CancellationToken,
}

impl Attempt {
    /// Makes it; `None` when its session ended before it did.
    pub(super) async fn run(self) -> Option<Result<Performed, StoreError>> {
        let performed = tokio::select! {
            performed = self.perform() => Some(performed),
            () = self.cancel.cancelled() => None,
        };
        if performed.is_none() {
            // The proxy is told to stop: without that it would go on for as long as an act may take.
            if let Some(call) = Arc::into_inner(self.call) {
                call.close().await;
            }
        }
        performed
    }

    async fn perform(&self) -> Result<Performed, StoreError> {
        // A reply is encrypted before it counts as being sent.
        let message = match self.rows.as_slice() {
            [row] if matches!(row.work, Work::Reply(_)) => {
                match self.replies.prepare(row.clone(), self.cancel.clone()).await {
                    Ok(Some(message)) => {
                        self.watcher.step(Step::Prepared);
                        Some(message)
                    }
                    Ok(None) => return Ok(Performed { rows: Vec::new(), way: Way::Open }),
                    Err(PrepareError::Store(error)) => return Err(error),
                    Err(PrepareError::Later(reason)) => return self.put_off(row.clone(), reason).await,
                    Err(PrepareError::HeldBack(reason)) => return self.hold_back(&reason).await,
                }
            }
            _ => None,
        };
        let rows = self.begin().await?;
        Ok(perform(self.call.connection(), &self.token, rows, message, self.deadline, &*self.watcher).await)
    }

    /// Notes that the rows are being sent.
    async fn begin(&self) -> Result<Vec<Row>, StoreError> {
        let (rows, snapshot, cancel) = (self.rows.clone(), self.snapshot, self.cancel.clone());
        let begin = move |transaction: &rusqlite::Transaction<'_>| {
            if cancel.is_cancelled() {
                // Nobody waits any more, and nothing is sent.
                return Ok(Vec::new());
            }
            outbox::begin_attempt(transaction, &rows, snapshot)
        };
        let begun = self.store.write(begin).await?;
        if !begun.is_empty() {
            self.watcher.step(Step::Begun);
        }
        Ok(begun)
    }

    /// A reply cannot be encrypted now, and nothing is sent: it waits for its time.
    async fn put_off(&self, row: Row, reason: String) -> Result<Performed, StoreError> {
        tracing::warn!(row = row.id, "a reply cannot be encrypted now");
        let (now, waits, jitter) = (self.replies.clock.now(), self.waits, fastrand::f64());
        let put_off = move |transaction: &rusqlite::Transaction<'_>| {
            outbox::put_off(transaction, &row, &reason, now, &waits, jitter)
        };
        self.store.write(put_off).await?;
        Ok(Performed { rows: Vec::new(), way: Way::Open })
    }

    /// A reply cannot be encrypted, and nothing is sent: it is refused, with its text, until somebody has done something
    /// about that.
    async fn hold_back(&self, reason: &str) -> Result<Performed, StoreError> {
        let refused = |row| (row, Outcome::Refused { reason: reason.to_owned() });
        Ok(Performed { rows: self.begin().await?.into_iter().map(refused).collect(), way: Way::Open })
    }
}
