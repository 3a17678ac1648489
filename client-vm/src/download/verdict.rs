//! Why an item was not fetched, and what that means for it and for the way to the server.

use std::io;
use std::time::Duration;

use protocol::{ErrorKind, Retry};
use qubes_rpc::connection::CallFailure;

use super::MAX_MISMATCHES;
use crate::failure::chain;
use crate::store::StoreError;

/// Why a fetch did not bring the item.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallFailure),
    /// Nothing came for too long.
    #[error("the download stopped coming")]
    Silent,
    /// What came is not what the server had claimed. It is begun anew.
    #[error("what came is not what the server had announced")]
    Mismatch,
    /// That was so several times.
    #[error("what came was not what the server had announced, {MAX_MISMATCHES} times")]
    Mismatches,
    /// The server claims no SHA-256.
    #[error("the server does not say what the file's SHA-256 is, and it is not taken without")]
    NoClaim,
    /// There is not enough room for it on the disk.
    #[error("the disk has not enough room for it: it comes once there is more")]
    NoRoom,
    /// What came does not begin where it was asked for.
    #[error("the proxy sent another part of it than was asked for")]
    Misplaced,
    /// Its time was over, and some of it had come. It is gone on with.
    #[error("its time was over, and it is gone on with")]
    Unfinished,
    /// More came than the server lists.
    #[error("the server sends more than it lists")]
    TooLong,
    /// The file could not be written.
    #[error("the file could not be written")]
    Io(#[from] io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It was told to stop.
    #[error("stopped")]
    Cancelled,
}

/// What a fetch's end means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The server no longer accepts the session.
    SessionOver,
    /// The session with the proxy is broken; it was not the item's fault.
    Lost,
    /// There is no way to the server at present.
    Barred,
    /// This item is tried again later.
    Later {
        /// How long the server wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// Some of it has come: it goes on at once.
    GoOn,
    /// It waits for room on the disk.
    NoRoom,
    /// The server does not give it. A file is not tried again by itself then; a message or reply, which nobody has asked
    /// for, is, for it may be passing.
    Denied,
    /// This item is not tried again by itself.
    Failed,
    /// It was told to stop.
    Cancelled,
}

impl FetchError {
    /// What it means for the item and for the way to the server.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let failure = match self {
            Self::Call(failure) => failure,
            Self::Io(error) if error.kind() == io::ErrorKind::StorageFull => return Verdict::NoRoom,
            Self::Silent | Self::Mismatch | Self::Misplaced | Self::Store(_) | Self::Io(_) => {
                return Verdict::Later { retry_after: None };
            }
            Self::NoRoom => return Verdict::NoRoom,
            Self::Unfinished => return Verdict::GoOn,
            Self::TooLong => return Verdict::Denied,
            Self::Mismatches | Self::NoClaim => return Verdict::Failed,
            Self::Cancelled => return Verdict::Cancelled,
        };
        match failure {
            CallFailure::NotSent(_) | CallFailure::Incomplete(_) | CallFailure::Silent => return Verdict::Lost,
            CallFailure::Failed(_) | CallFailure::Deadline(_) => {}
        }
        let retry_after = match failure.retry() {
            Retry::Later { wait_ms } => wait_ms.map(|ms| Duration::from_millis(ms.into())),
            Retry::Now | Retry::WhenUserActs | Retry::Never => None,
        };
        match failure.kind() {
            ErrorKind::Unauthorized => Verdict::SessionOver,
            ErrorKind::Unreachable | ErrorKind::Timeout if failure.before_the_server() => Verdict::Barred,
            ErrorKind::NotFound | ErrorKind::Refused | ErrorKind::TooLarge | ErrorKind::OutOfScope => Verdict::Denied,
            ErrorKind::Conflict
            | ErrorKind::RateLimited
            | ErrorKind::Server
            | ErrorKind::Unreachable
            | ErrorKind::Timeout
            | ErrorKind::BadResponse
            | ErrorKind::Cancelled
            | ErrorKind::Internal => Verdict::Later { retry_after },
        }
    }

    /// The same, where some of the item had come: that its time was over is no fault then.
    pub(super) fn after_progress(self) -> Self {
        match self {
            Self::Call(CallFailure::Failed(error)) if error.kind == ErrorKind::Timeout => Self::Unfinished,
            other => other,
        }
    }

    /// The reason, in one line.
    #[must_use]
    pub fn reason(&self) -> String {
        chain(self)
    }
}
