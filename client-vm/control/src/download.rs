//! What is fetched of items' content.

use protocol::value::{Designation, ItemId, Size, SourceId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::reading::{Inner, Seal};

/// The lanes that download.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DownloadLane {
    /// Messages and replies, by themselves.
    Messages,
    /// Files, when the user asks for them.
    Files,
}

/// What is held of an item's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Nothing. A file stays so until somebody asks for it.
    Absent,
    /// Nothing yet: it waits to be downloaded, or is being downloaded.
    Wanted {
        /// Why the last attempt did not bring it.
        reason: Option<String>,
    },
    /// Its ciphertext, verified; it waits to be decrypted, or is being decrypted.
    Downloaded {
        /// Why the last attempt did not decrypt it.
        reason: Option<String>,
    },
    /// Its plaintext.
    Decrypted {
        /// The plaintext's length in bytes.
        bytes: u64,
        /// Whether it was an OpenPGP message itself.
        inner: Inner,
        /// Of a file: the name under which its source packed it, made clean.
        name: Option<String>,
    },
    /// Its ciphertext, which could not be decrypted and is tried again only by `download`.
    Sealed {
        /// What kind of reason.
        seal: Seal,
        /// Why.
        reason: String,
    },
    /// It could not be had, and is tried again only by `download`.
    Failed {
        /// Why.
        reason: String,
    },
}

/// What of a download request is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Wanted {
    /// How many items are to be fetched now.
    pub asked: u64,
    /// How many are there already, or were asked for before.
    pub already: u64,
}

/// How much of a lane waits, runs and has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LaneCounts {
    /// To be done, what runs included.
    pub waiting: u64,
    /// Being done.
    pub running: u64,
    /// Not tried again by itself.
    pub failed: u64,
}

/// A download that waits, runs or has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownloadEntry {
    /// Its lane.
    pub lane: DownloadLane,
    /// Whose conversation the item is in.
    pub source: SourceId,
    /// The source's designation.
    pub designation: Designation,
    /// The item.
    pub item: ItemId,
    /// The length of its ciphertext as the server lists it.
    pub size: Size,
    /// How many attempts have failed since something of it came, or since it was asked for.
    pub attempts: u32,
    /// How far it is.
    pub state: DownloadState,
}

/// How far a download is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DownloadState {
    /// It is being fetched; so many bytes are there.
    Running {
        /// How many.
        received: u64,
    },
    /// It waits.
    Waiting {
        /// When it is tried again; none when that is as soon as there is room.
        next_try: Option<Timestamp>,
        /// Why the last attempt did not bring it.
        reason: Option<String>,
    },
    /// It is not tried again by itself.
    Failed {
        /// Why.
        reason: String,
    },
}

/// A download has come a step further.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownloadChange {
    /// Whose conversation the item is in.
    pub source: SourceId,
    /// The item.
    pub item: ItemId,
    /// What happened.
    pub step: DownloadStep,
}

/// A step of a download.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DownloadStep {
    /// It has begun.
    Started,
    /// More of it is there. At most five times a second, whatever comes at the same time.
    Progress {
        /// So many bytes.
        received: u64,
        /// Of so many, if the server says so.
        total: Option<u64>,
    },
    /// All of it is there, verified.
    Stored {
        /// Its length in bytes.
        size: u64,
    },
    /// It did not come through and is tried again.
    Postponed {
        /// Why.
        failure: Failure,
        /// When; none when the whole queue waits.
        next_try: Option<Timestamp>,
    },
    /// It did not come and is not tried again by itself.
    Failed(Failure),
    /// It was stopped: by the user, by a logout, or since its item is being deleted.
    Stopped,
}

/// Why nothing of the queue is sent or fetched, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PauseReason {
    /// Nobody is signed in.
    NoSession,
    /// There is no way to the server. It is tried again by itself.
    Network {
        /// Since when.
        since: Timestamp,
        /// What is wrong.
        message: String,
    },
    /// The user has paused it.
    User,
    /// The disk has not room for all that is to be fetched. What does not fit waits until there is some; what is sent goes
    /// on.
    NoRoom {
        /// How many bytes are free, all told.
        free: u64,
        /// Below so many nothing is fetched.
        kept: u64,
    },
    /// dom0 would ask somebody about another call for messages and replies: it let none through, or the one that it had let
    /// through is lost. They are not fetched until the user says so, by a refresh, say; all else goes on.
    Dom0,
}

/// How the queue is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Why nothing is done at present; empty when work goes on.
    pub paused: Vec<PauseReason>,
    /// Stars, marks and deletions.
    pub acts: LaneCounts,
    /// Messages and replies to be fetched.
    pub messages: LaneCounts,
    /// Files to be fetched.
    pub files: LaneCounts,
    /// Items to be decrypted.
    pub decrypt: LaneCounts,
    /// How many qrexec calls wait until another one has ended: there may be 8 at the same time.
    pub waiting_for_call: u64,
}
