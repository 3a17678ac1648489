//! Removals that nobody here has asked for, and that are held.

use protocol::value::{Designation, SourceId, Timestamp};
use serde::{Deserialize, Serialize};

/// What is held of one source: the server lists it no more, and much else went with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRemoval {
    /// The source.
    pub source: SourceId,
    /// Its designation, as far as it was ever known.
    pub designation: Option<Designation>,
    /// Whether the source itself is held, with all that belongs to it; else only some of its items are.
    pub whole: bool,
    /// How many items are.
    pub items: u64,
    /// When the last of it was missing first.
    pub since: Timestamp,
}

/// What is to become of what is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RemovalVerdict {
    /// It was rightly removed: erase it here too.
    Accept,
    /// Keep it, and show it as no longer on the server.
    Reject,
}

/// Whether the server lists what is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Presence {
    /// Yes.
    Listed,
    /// No longer; it was kept when its removal was rejected.
    Gone,
}
