//! How things are: the session, the syncs, the proxy, what is held.

use protocol::Health;
use protocol::value::{JournalistId, SoftwareVersion, Timestamp, Username};
use serde::{Deserialize, Serialize};

use crate::download::QueueStatus;
use crate::failure::Failure;
use crate::reading::OpenPgpStatus;

/// How things are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: SoftwareVersion,
    /// Since when the daemon runs.
    pub started: Timestamp,
    /// Who is signed in.
    pub session: Session,
    /// The sync that runs now.
    pub running_sync: Option<SyncStart>,
    /// The last sync that ended, also before the daemon was started.
    pub last_sync: Option<SyncReport>,
    /// When the last sync that succeeded had ended.
    pub last_success: Option<Timestamp>,
    /// When the next sync starts by itself; none while one runs or nobody is signed in.
    pub next_sync: Option<Timestamp>,
    /// Whether what is shown is old: syncs fail, or none has succeeded for long.
    pub stale: bool,
    /// How the queue is.
    pub queue: QueueStatus,
    /// How the proxy is.
    pub proxy: ProxyStatus,
    /// How decrypting and encrypting stand.
    pub openpgp: OpenPgpStatus,
    /// What is to be erased and is still on the disk.
    pub erasure: Option<ErasureFault>,
    /// What is held.
    pub totals: Totals,
}

/// Something that is to be erased is still on the disk. It is tried again after each sync, and at each start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErasureFault {
    /// Of how many items files are left; 0 where only the database could not be rid of what it said.
    pub items: u64,
    /// Why, and what to do.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

/// Who is signed in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Session {
    /// Nobody.
    SignedOut,
    /// A login is under way.
    SigningIn,
    /// Somebody.
    SignedIn {
        /// The journalist's id.
        journalist: JournalistId,
        /// The login name.
        username: Username,
        /// Since when.
        since: Timestamp,
        /// When the server said the session would expire. A hint: it prolongs sessions that are used.
        expires: Timestamp,
    },
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SessionEnd {
    /// The journalist signed out.
    Logout,
    /// The server no longer accepts the session.
    Expired,
    /// The daemon ends.
    Shutdown,
}

/// How the proxy is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProxyStatus {
    /// No call to the proxy is open; one is opened when there is work.
    NotConnected,
    /// A call is open and the proxy answers.
    Connected {
        /// The proxy's version.
        software: SoftwareVersion,
        /// What it says of itself.
        health: Health,
    },
    /// A call is open, or was, and the proxy does not answer.
    Failed {
        /// What is wrong.
        message: String,
    },
}

/// The start of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncStart {
    /// When it was asked for.
    pub asked: Timestamp,
    /// When it started.
    pub started: Timestamp,
}

/// A sync that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReport {
    /// When it was asked for and started.
    pub start: SyncStart,
    /// When it ended.
    pub ended: Timestamp,
    /// How.
    pub outcome: SyncOutcome,
    /// What the server lists; of the last complete snapshot.
    pub counts: Counts,
    /// How many rows of the mirror the sync wrote or removed.
    pub rows_written: u64,
    /// How long each call to the proxy took.
    pub calls: Vec<CallTime>,
}

/// How a sync ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncOutcome {
    /// Something had changed and was applied.
    Ok,
    /// Nothing had changed.
    Unchanged,
    /// It failed, and nothing was applied.
    Failed(Failure),
    /// It was given up, and nothing was applied.
    Cancelled,
}

/// What a complete snapshot lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Journalists.
    pub journalists: u64,
    /// Sources.
    pub sources: u64,
    /// Messages.
    pub messages: u64,
    /// Files.
    pub files: u64,
    /// Replies.
    pub replies: u64,
    /// Records that could not be read; what was held of them stays.
    pub unreadable: u64,
    /// Items that are listed and not shown, since their source is not listed.
    pub not_shown: u64,
}

/// How long a call took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallTime {
    /// The call's name.
    pub call: String,
    /// From the request to the answer's end, in milliseconds.
    pub took_ms: u64,
}

/// What the daemon holds and shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Sources shown.
    pub sources: u64,
    /// Items shown.
    pub items: u64,
    /// Items unread by the journalist.
    pub unread: u64,
    /// Records that could not be read when they were last listed.
    pub unreadable: OverTime,
    /// Of how many sources a removal that nobody here asked for is held.
    pub held_removals: u64,
    /// What waits to be done at the server.
    pub queue: QueueCounts,
}

/// What waits to be done at the server, by any journalist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueCounts {
    /// Sources and items that acts of whoever signed in last wait to change.
    pub waiting: u64,
    /// Those of other journalists.
    pub of_others: u64,
    /// Refused, and not dismissed yet.
    pub refused: u64,
    /// Deleted as the server says, and listed all the same.
    pub not_deleted: u64,
}

/// A count of faults, and since when there is at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OverTime {
    /// How many.
    pub count: u64,
    /// Since when.
    pub since: Option<Timestamp>,
}
