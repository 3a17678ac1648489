//! Why a sync did not succeed.

use qubes_rpc::connection::CallFailure;

use super::plan::SnapshotError;
use crate::store::StoreError;

/// A sync failed; nothing was applied.
#[derive(Debug, thiserror::Error)]
pub enum SyncFailure {
    /// A call failed.
    #[error("{call} failed")]
    Call {
        /// The call's name.
        call: &'static str,
        /// Why.
        #[source]
        failure: CallFailure,
    },
    /// A list cannot be taken.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It was given up before anything was applied.
    #[error("the sync was cancelled")]
    Cancelled,
}
