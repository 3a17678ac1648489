//! The metadata sync: asks the proxy for the four lists and brings the mirror to what they say.
//!
//! **Invariant:** nothing is applied unless all four answers are complete; what is applied is one transaction.

mod failure;
mod gather;
mod plan;
mod run;

pub use failure::SyncFailure;
pub use plan::{Budget, Change, Digest, Known, ListPlan, MAX_MEMORY, Mirror, Plan, Snapshot, SnapshotError};
pub use run::{Erases, MAX_LIST_DEADLINE, SnapshotNumber, Synced, list_deadline, sync};
