//! What front ends and the daemon say to each other, and the front ends' client.
//!
//! A front end connects to the daemon's Unix socket. Both first send a [`greeting`]; then the front end sends requests
//! and the daemon answers each with items and one `Done`. A front end that asked to watch gets events in between. The
//! bytes are the protocol crate's frames. Both ends belong to the same package and the same user, so versions must match
//! exactly and no compatibility is kept.
#![forbid(unsafe_code)]

pub mod act;
pub mod client;
pub mod download;
pub mod failure;
pub mod greeting;
pub mod handover;
pub mod message;
pub mod peer;
pub mod reading;
pub mod removal;
pub mod reply;
pub mod search;
pub mod status;

pub use act::{Act, ActChange, ActId, ActKind, ActState, ActStep, Deal, QueueEntry, Taken, Undone};
pub use download::{
    Content, DownloadChange, DownloadEntry, DownloadLane, DownloadState, DownloadStep, LaneCounts, PauseReason,
    QueueStatus, Wanted,
};
pub use failure::{Failure, FailureKind};
pub use handover::{ContentPart, DeviceStatus, DeviceTask, ViewerStep};
pub use message::{
    ConversationItem, Deletion, Event, FromDaemon, ItemKind, Reply, Request, Seen, SourceCounts, SourceRow, ToDaemon,
};
pub use reading::{Inner, ItemText, KeyProblem, KeyState, OpenPgpStatus, OutgoingReply, ReadChange, ReadStep, Seal};
pub use removal::{HeldRemoval, Presence, RemovalVerdict};
pub use reply::ReplyText;
pub use search::{Excerpt, Hit, HitCount, HitPlace, SearchWords};
pub use status::{
    CallTime, Counts, ErasureFault, OverTime, ProxyStatus, QueueCounts, Session, SessionEnd, Status, SyncOutcome,
    SyncReport, SyncStart, Totals,
};
