//! One sync as a task: opens the metadata call if need be, syncs, and brings the call back.

use std::sync::Arc;

use control::{Failure, FailureKind, SyncStart};
use protocol::value::Token;
use protocol::{ApiLevel, ErrorKind, Scope};
use qubes_rpc::connection::{Break, CallFailure};
use qubes_rpc::qrexec::QrexecCall;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::failure::{self, failure};
use crate::proxy::{Patience, Proxy, ProxyError};
use crate::store::Store;
use crate::sync::{SnapshotNumber, SyncFailure, Synced, sync};

#[derive(Debug)]
pub(super) struct SyncTask {
    pub(super) proxy: Proxy,
    /// The call that is open already, and was not broken when the sync began.
    pub(super) call: Option<Arc<QrexecCall>>,
    /// Whether another may be opened.
    pub(super) may_open: bool,
    pub(super) token: Token,
    pub(super) api_level: ApiLevel,
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) start: SyncStart,
    pub(super) snapshot: SnapshotNumber,
    pub(super) cancel: CancellationToken,
    /// Where to say that a call was opened.
    pub(super) opened: mpsc::Sender<Opened>,
}

/// A sync has opened the metadata call.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) call: Arc<QrexecCall>,
    /// The sync's own: cancelled, its session is over.
    pub(super) cancel: CancellationToken,
}

#[derive(Debug)]
pub(super) struct SyncEnded {
    /// The call that was used, to be kept for the next sync.
    pub(super) call: Option<Arc<QrexecCall>>,
    pub(super) result: Result<Synced, SyncStop>,
}

impl SyncEnded {
    /// The task of a sync panicked.
    pub(super) fn panicked() -> Self {
        Self { call: None, result: Err(SyncStop::Panicked) }
    }

    /// A sync was told to stop.
    #[cfg(test)]
    pub(super) fn cancelled() -> Self {
        Self { call: None, result: Err(SyncStop::Failed(SyncFailure::Cancelled)) }
    }
}

/// Why a sync did not succeed.
#[derive(Debug)]
pub(super) enum SyncStop {
    Open(ProxyError),
    Failed(SyncFailure),
    Panicked,
}

impl SyncStop {
    /// Whether the server no longer accepts the session.
    pub(super) fn is_unauthorized(&self) -> bool {
        match self {
            Self::Failed(SyncFailure::Call { failure, .. }) => failure.kind() == ErrorKind::Unauthorized,
            Self::Failed(SyncFailure::Snapshot(_) | SyncFailure::Store(_) | SyncFailure::Cancelled)
            | Self::Open(_)
            | Self::Panicked => false,
        }
    }

    /// Whether the server was there all the same.
    pub(super) fn reached_the_server(&self) -> bool {
        match self {
            // A proxy that ends, or answers no more, says nothing of the server.
            Self::Failed(SyncFailure::Call {
                failure: CallFailure::Incomplete(_) | CallFailure::NotSent(_) | CallFailure::Silent,
                ..
            }) => false,
            Self::Failed(SyncFailure::Call { failure, .. }) if failure.before_the_server() => false,
            Self::Failed(SyncFailure::Call { failure, .. }) => match failure.kind() {
                ErrorKind::Unreachable | ErrorKind::Timeout => false,
                ErrorKind::BadResponse
                | ErrorKind::Cancelled
                | ErrorKind::Unauthorized
                | ErrorKind::NotFound
                | ErrorKind::Conflict
                | ErrorKind::Refused
                | ErrorKind::RateLimited
                | ErrorKind::Server
                | ErrorKind::OutOfScope
                | ErrorKind::TooLarge
                | ErrorKind::Internal => true,
            },
            Self::Failed(SyncFailure::Snapshot(_) | SyncFailure::Store(_)) => true,
            Self::Failed(SyncFailure::Cancelled) | Self::Open(_) | Self::Panicked => false,
        }
    }

    /// Whether it may have been applied all the same.
    pub(super) fn may_have_written(&self) -> bool {
        match self {
            Self::Failed(SyncFailure::Store(_)) | Self::Panicked => true,
            Self::Failed(SyncFailure::Call { .. } | SyncFailure::Snapshot(_) | SyncFailure::Cancelled)
            | Self::Open(_) => false,
        }
    }

    /// What to say; `None` when the sync was cancelled.
    pub(super) fn failure(&self) -> Option<Failure> {
        match self {
            Self::Open(error) => Some(failure::of_proxy(error)),
            Self::Failed(SyncFailure::Cancelled) => None,
            Self::Failed(error) => Some(failure::of_sync(error)),
            Self::Panicked => Some(failure(FailureKind::Internal, "the sync met a fault: see the daemon's log")),
        }
    }
}

impl SyncTask {
    pub(super) async fn run(mut self, waiting: impl FnOnce()) -> SyncEnded {
        if let Some(open) = self.call.take() {
            let result = self.sync(&open).await;
            // The proxy may have ended since the last sync without anybody noticing; what is asked here can be asked
            // twice. Any other result stands.
            let gone = matches!(
                &result,
                Err(SyncFailure::Call { failure: CallFailure::Incomplete(broken) | CallFailure::NotSent(broken), .. })
                    if *broken != Break::Silent
            );
            if !gone || !self.may_open {
                return SyncEnded { call: Some(open), result: result.map_err(SyncStop::Failed) };
            }
            // Somebody else still has it, and another one needs its place.
            open.break_off();
        }
        let opened = tokio::select! {
            biased;
            () = self.cancel.cancelled() => {
                return SyncEnded { call: None, result: Err(SyncStop::Failed(SyncFailure::Cancelled)) };
            }
            opened = self.proxy.open(Scope::Metadata, Some(self.api_level), Patience::Usual, waiting) => opened,
        };
        match opened {
            Ok(open) => {
                let open = Arc::new(open);
                // The engine has to do with one sync at a time, so there is room.
                drop(self.opened.try_send(Opened { call: Arc::clone(&open), cancel: self.cancel.clone() }));
                let result = self.sync(&open).await;
                SyncEnded { call: Some(open), result: result.map_err(SyncStop::Failed) }
            }
            Err(error) => SyncEnded { call: None, result: Err(SyncStop::Open(error)) },
        }
    }

    async fn sync(&self, call: &QrexecCall) -> Result<Synced, SyncFailure> {
        sync(call.connection(), &self.token, &self.store, &self.clock, self.start, self.snapshot, &self.cancel).await
    }
}

#[cfg(test)]
mod tests {
    use protocol::answer::AnswerError;
    use protocol::{CallError, Retry, Stage};

    use super::*;

    fn of_call(failure: CallFailure) -> SyncStop {
        SyncStop::Failed(SyncFailure::Call { call: "get_users", failure })
    }

    #[test]
    fn only_what_came_from_the_server_says_that_there_is_a_way_to_it() {
        let breaks = [
            Break::Ended,
            Break::Stream,
            Break::Answer(AnswerError::OutOfOrder),
            Break::UnknownCall,
            Break::Silent,
            Break::Closed,
        ];
        for broken in breaks {
            assert!(!of_call(CallFailure::Incomplete(broken)).reached_the_server(), "{broken}");
            assert!(!of_call(CallFailure::NotSent(broken)).reached_the_server(), "{broken}");
        }
        assert!(!of_call(CallFailure::Silent).reached_the_server());
        let said = |kind| of_call(CallError::new(kind, Stage::FirstByte, Retry::Now).into()).reached_the_server();
        for kind in [ErrorKind::Unreachable, ErrorKind::Timeout] {
            assert!(!said(kind), "{kind:?}");
        }
        let not_made = CallError::new(ErrorKind::RateLimited, Stage::Admission, Retry::Now);
        assert!(!of_call(not_made.into()).reached_the_server(), "the server was not asked");
        for kind in [ErrorKind::Server, ErrorKind::BadResponse, ErrorKind::Unauthorized, ErrorKind::RateLimited] {
            assert!(said(kind), "{kind:?}");
        }
        assert!(!SyncStop::Failed(SyncFailure::Cancelled).reached_the_server());
        assert!(!SyncStop::Panicked.reached_the_server());
    }
}
