//! What a journalist does, and what waits to be done at the server.

use protocol::value::{Designation, ItemId, JournalistId, ReplyId, SourceId, Timestamp, Username};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::reply::ReplyText;

/// The most sources or items that one act names.
pub const MAX_OBJECTS: usize = 2048;

/// Something that a journalist does. It shows at once, is stored, and reaches the server as soon as that can be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// Stars sources, for all journalists.
    Star {
        /// Which.
        sources: Vec<SourceId>,
    },
    /// Takes the stars of sources away.
    Unstar {
        /// Which.
        sources: Vec<SourceId>,
    },
    /// Marks items of a conversation as seen by the journalist.
    Seen {
        /// Whose conversation.
        source: SourceId,
        /// Which items.
        items: Vec<ItemId>,
    },
    /// Deletes sources with all that belongs to them.
    DeleteSources {
        /// Which.
        sources: Vec<SourceId>,
    },
    /// Deletes items of a conversation: some, or all that were known when the journalist decided.
    DeleteItems {
        /// Whose conversation.
        source: SourceId,
        /// Which items.
        items: Vec<ItemId>,
    },
    /// Answers a source. The journalist's draft to it is gone then.
    Reply {
        /// Whom.
        source: SourceId,
        /// The reply's id, chosen at random by whoever asks: an id that is known already is not taken twice.
        reply: ReplyId,
        /// What to say.
        text: ReplyText,
    },
}

/// An act's number. It grows with every act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ActId(pub u64);

/// An act was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Its number; none when nothing was to be done.
    pub act: Option<ActId>,
    /// How many sources or items it changes.
    pub objects: u64,
    /// How many were so already, or are on their way to be.
    pub already: u64,
    /// For how long it can be taken back before it is first sent, in milliseconds; 0 where it is sent as soon as can be.
    pub grace_ms: u32,
}

/// Rows of one act about one source that were taken back before they were sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undone {
    /// The act.
    pub act: ActId,
    /// What it was to do.
    pub kind: ActKind,
    /// About which source.
    pub source: SourceId,
    /// Its designation, while it is known.
    pub designation: Option<Designation>,
    /// How many items; 1 where the act was about the source itself.
    pub objects: u64,
}

/// The kinds of act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ActKind {
    /// Starring a source.
    Star,
    /// Taking a source's star away.
    Unstar,
    /// Marking items as seen.
    Seen,
    /// Deleting a source.
    DeleteSource,
    /// Deleting items.
    DeleteItem,
    /// Answering a source.
    Reply,
}

/// How far an act has come, for one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActState {
    /// It was not sent, or certainly had no effect.
    Waiting,
    /// A deletion that is not sent yet, so that it can be taken back.
    Grace,
    /// The call to the proxy for it is being opened: the VM may be starting, or dom0 may be asking.
    Opening,
    /// It is being sent.
    Running,
    /// It was sent and nobody knows what became of it. It is sent again.
    Unconfirmed,
    /// It was sent or is to be sent, and goes on only by `retry`: dom0 would ask again.
    Held,
    /// It was refused and has no effect.
    Refused,
    /// The server has confirmed the deletion and lists the object all the same, since an hour and several snapshots.
    NotDeleted,
}

/// What waits, runs or was refused: the rows of one act about one source that are in the same state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueEntry {
    /// The act.
    pub act: ActId,
    /// What it does.
    pub kind: ActKind,
    /// About which source.
    pub source: SourceId,
    /// Its designation, while it is known.
    pub designation: Option<Designation>,
    /// How many items; 1 where the act is about the source itself.
    pub objects: u64,
    /// Whose act it is.
    pub journalist: JournalistId,
    /// That journalist's login name, if the server lists them.
    pub username: Option<Username>,
    /// Whether that is who is signed in, or who was last.
    pub own: bool,
    /// How far it has come.
    pub state: ActState,
    /// When the journalist did it.
    pub since: Timestamp,
    /// How often it was sent, of the row that was sent most.
    pub attempts: u32,
    /// When it is tried again; none when that is now, or only by the user.
    pub next_try: Option<Timestamp>,
    /// What went wrong the last time.
    pub reason: Option<String>,
}

impl QueueEntry {
    /// Whether it is of whoever is signed in, or was last, and was certainly not sent.
    #[must_use]
    pub fn is_own_and_unsent(&self) -> bool {
        self.own
            && match self.state {
                ActState::Waiting | ActState::Grace | ActState::Opening => true,
                // An attempt that certainly had no effect does not count.
                ActState::Held => self.attempts == 0,
                ActState::Running | ActState::Unconfirmed | ActState::Refused | ActState::NotDeleted => false,
            }
    }
}

/// What the user does about acts that wait or were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deal {
    /// Tries again at once what waits, was refused, is held, or was not deleted.
    Retry,
    /// Takes back what was certainly not sent.
    Cancel,
    /// Forgets what was refused.
    Dismiss,
    /// Gives up deletions that the server confirmed and did not make: what it lists is shown again.
    Restore,
}

/// What became of rows of an act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActChange {
    /// The act.
    pub act: ActId,
    /// What it does.
    pub kind: ActKind,
    /// About which source.
    pub source: SourceId,
    /// How many rows.
    pub objects: u64,
    /// What became of them.
    pub step: ActStep,
}

/// A step in the life of an act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActStep {
    /// It was taken, and what it does shows.
    Taken,
    /// It is being sent.
    Started,
    /// The server has confirmed it.
    Confirmed,
    /// A snapshot shows it: nothing is left to be done, though the server's answer never came.
    Settled,
    /// It was refused, and what it did no longer shows.
    Refused(Failure),
    /// It did not come through and waits for its next try.
    Postponed {
        /// Why.
        failure: Failure,
        /// When it is tried again; none when the whole queue waits, or only the user can go on.
        next_try: Option<Timestamp>,
    },
    /// The user has dealt with it.
    Dealt(Deal),
    /// The server has confirmed the deletion and lists the object all the same.
    NotDeleted,
    /// What it is about is no longer on the server, and it was not done: nothing is left to be done.
    Gone,
    /// What was gone, or done as it seemed, is listed again: it is still to be done.
    ListedAgain,
    /// The server has confirmed the reply and does not list it. It counts as refused, with its text.
    NotListed,
}
