//! Requests, answers and events.

use protocol::SubmissionKind;
use protocol::value::{
    Designation, Filename, Fingerprint, ItemId, OneTimeCode, OrderNumber, Passphrase, ReplyId, Size, SourceId,
    SubmissionId, Timestamp, Username,
};
use serde::{Deserialize, Serialize};

use crate::act::{Act, ActChange, ActId, Deal, QueueEntry, Taken, Undone};
use crate::download::{Content, DownloadChange, DownloadEntry, PauseReason, Wanted};
use crate::failure::Failure;
use crate::handover::{ContentPart, DeviceStatus, DeviceTask, ViewerStep};
use crate::reading::{ItemText, KeyProblem, KeyState, OutgoingReply, ReadChange};
use crate::removal::{HeldRemoval, Presence, RemovalVerdict};
use crate::reply::ReplyText;
use crate::search::{Hit, HitCount, SearchWords};
use crate::status::{ErasureFault, Session, SessionEnd, Status, SyncReport, SyncStart};

/// The most rows in one message, so that it fits a frame whatever the rows hold.
pub const MAX_ROWS: usize = 128;

/// What a front end sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToDaemon {
    /// Names the request in its answer.
    pub id: u32,
    /// What is asked.
    pub request: Request,
}

/// What a front end can ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// How things are: one [`Reply::Status`].
    Status,
    /// Sign in: one [`Reply::SignedIn`].
    Login {
        /// The login name.
        username: Username,
        /// The passphrase.
        passphrase: Passphrase,
        /// The one-time code.
        one_time_code: OneTimeCode,
    },
    /// Sign out: no item.
    Logout,
    /// Sync at once and wait for its end: one [`Reply::Synced`].
    Refresh,
    /// List the sources: [`Reply::Sources`], newest first.
    Sources,
    /// Show one conversation: one [`Reply::Source`], then [`Reply::Conversation`] in the conversation's order, then one
    /// [`Reply::Text`] for each message and reply that was decrypted and one [`Reply::Outgoing`] for each reply that the
    /// server does not list, both in their order, then one [`Reply::Draft`] if there is one of whoever signed in last. It
    /// marks nothing as seen.
    Show {
        /// A source's id, a unique prefix of one, or a designation.
        source: String,
    },
    /// Find the sources that words mean: [`Reply::Sources`], one for each word in their order. A word that means none or
    /// several fails.
    FindSources {
        /// Ids, unique prefixes of ids, or designations.
        words: Vec<String>,
    },
    /// Find the items that words mean: one [`Reply::Found`] for each word in their order. A word that means none or several
    /// fails.
    FindItems {
        /// Ids or unique prefixes of ids.
        words: Vec<String>,
    },
    /// Search what is decrypted and shown, and designations: one [`Reply::HitCount`], then [`Reply::Hits`]: designations
    /// first, then the source that wrote last first, and of one source what came last first.
    Search {
        /// What for.
        words: SearchWords,
        /// The most hits that are wanted; never more than [`MAX_HITS`](crate::search::MAX_HITS) are given.
        limit: u32,
    },
    /// Do something: one [`Reply::Taken`]. It has not reached the server then.
    Act(Act),
    /// List what waits, runs or was refused: [`Reply::Queue`], oldest first.
    Queue,
    /// Deal with acts: no item. An act for which that cannot be done fails, and then nothing is done.
    Deal {
        /// What to do.
        deal: Deal,
        /// With which acts.
        acts: Vec<ActId>,
    },
    /// Take deletions back that are not sent yet: [`Reply::Undone`]. If one of them cannot be, none is.
    Undo {
        /// The acts; the newest deletion that waits for the end of its time of grace where none are named.
        acts: Vec<ActId>,
    },
    /// End the daemon, in order: no item.
    Quit,
    /// Fetch files, or fetch again what has failed: one [`Reply::Wanted`].
    Download {
        /// Which items; where none are named all files that are not there, and all messages and replies that have failed.
        items: Vec<ItemId>,
    },
    /// Do not fetch files after all: one [`Reply::Wanted`] that counts those that were to be fetched. What there is of them
    /// stays.
    StopDownload {
        /// Which items; all where none are named.
        items: Vec<ItemId>,
    },
    /// List the downloads that wait, run or have failed: [`Reply::Downloads`], in the order in which they come.
    Downloads,
    /// Keep what the journalist has begun to write to a source, or forget it: no item.
    Draft {
        /// To whom.
        source: SourceId,
        /// What; nothing is kept where there is none.
        text: Option<ReplyText>,
    },
    /// Pin another key of a source, which must be the one that the server offers: no item.
    TrustKey {
        /// Whose.
        source: SourceId,
        /// The key's fingerprint, as somebody has compared it.
        fingerprint: Fingerprint,
    },
    /// List the removals that are held: [`Reply::Removals`], the latest first.
    Removals,
    /// Say what is to become of removals that are held: no item. Where something else is held of one of the sources than was
    /// listed, or nothing, that fails, and then nothing is done.
    SettleRemovals {
        /// What.
        verdict: RemovalVerdict,
        /// Of which, as they were listed.
        held: Vec<HeldRemoval>,
    },
    /// Pause the queue, until `Resume`: no item. What runs stops.
    Pause,
    /// Let the queue go on, at once: no item.
    Resume,
    /// Send events from now on: one [`Reply::Status`], then events until the front end goes.
    Watch,
    /// Open an item in a disposable VM, which can only show it: no item, as soon as it is handed over. [`Event::Viewer`]
    /// tells when it is closed.
    Open {
        /// Which.
        item: ItemId,
    },
    /// List the items that are open in a disposable VM: one [`Reply::Viewers`].
    Viewers,
    /// Read a piece of what can be read of an item: one [`Reply::Content`].
    Content {
        /// Which item.
        item: ItemId,
        /// From which byte on.
        offset: u64,
    },
    /// Have a device VM do something, and wait for its end: one [`Reply::Device`]. It ends when the front end goes.
    Device(DeviceTask),
}

/// What the daemon sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDaemon {
    /// An item of an answer.
    Item {
        /// The request's id.
        id: u32,
        /// The item.
        reply: Reply,
    },
    /// An answer's end.
    Done {
        /// The request's id.
        id: u32,
        /// Whether the request succeeded.
        result: Result<(), Failure>,
    },
    /// Something happened; only to front ends that watch.
    Event(Event),
}

/// An item of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// How things are.
    Status(Box<Status>),
    /// Who signed in.
    SignedIn(Session),
    /// How the sync ended.
    Synced(SyncReport),
    /// Some sources, at most [`MAX_ROWS`].
    Sources(Vec<SourceRow>),
    /// One source.
    Source(Box<SourceRow>),
    /// Some items of a conversation, at most [`MAX_ROWS`].
    Conversation(Vec<ConversationItem>),
    /// What an item of a conversation says.
    Text(ItemText),
    /// A reply that the server does not list.
    Outgoing(Box<OutgoingReply>),
    /// What the journalist has begun to write.
    Draft(ReplyText),
    /// An item, and whose conversation it is in.
    Found {
        /// The conversation's source.
        source: SourceId,
        /// The item.
        item: Box<ConversationItem>,
    },
    /// How many hits there are, whether they are given or not.
    HitCount(HitCount),
    /// Some hits, at most [`MAX_ROWS`].
    Hits(Vec<Hit>),
    /// An act was taken.
    Taken(Taken),
    /// Some of what was taken back, at most [`MAX_ROWS`].
    Undone(Vec<Undone>),
    /// Some of what waits, runs or was refused, at most [`MAX_ROWS`].
    Queue(Vec<QueueEntry>),
    /// What was asked for.
    Wanted(Wanted),
    /// Some downloads, at most [`MAX_ROWS`].
    Downloads(Vec<DownloadEntry>),
    /// Some removals that are held, at most [`MAX_ROWS`].
    Removals(Vec<HeldRemoval>),
    /// The items that are open in a disposable VM.
    Viewers(Vec<ItemId>),
    /// A piece of what can be read of an item.
    Content(ContentPart),
    /// What the device VM said at its end.
    Device(DeviceStatus),
}

/// A source, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRow {
    /// Its id.
    pub id: SourceId,
    /// Its designation.
    pub designation: Designation,
    /// Whether it is starred.
    pub starred: bool,
    /// When the source last sent something.
    pub last_updated: Timestamp,
    /// Its key, and whether it can be answered.
    pub key: KeyState,
    /// What is in its conversation. What is being deleted is not counted.
    pub counts: SourceCounts,
    /// Whether it is being deleted.
    pub deletion: Deletion,
    /// Whether the server lists it.
    pub presence: Presence,
}

/// Whether something is being deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Deletion {
    /// No.
    None,
    /// Somebody here has deleted it, and the server has not confirmed that yet.
    Pending,
}

/// What is in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SourceCounts {
    /// Messages.
    pub messages: u64,
    /// Files.
    pub files: u64,
    /// Replies.
    pub replies: u64,
    /// Items that the journalist who signed in last has not seen.
    pub unread: u64,
}

/// An item of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationItem {
    /// What it is, with its id.
    pub kind: ItemKind,
    /// Its place in the conversation.
    pub order: OrderNumber,
    /// The name under which the server lists it.
    pub filename: Option<Filename>,
    /// The length of its ciphertext in bytes.
    pub size: Size,
    /// Whether the journalist who signed in last has seen it.
    pub seen: Seen,
    /// Whether it is being deleted.
    pub deletion: Deletion,
    /// Whether the server lists it.
    pub presence: Presence,
    /// What is held of its content.
    pub content: Content,
}

impl ConversationItem {
    /// Whether it is the reply of this id.
    #[must_use]
    pub fn is_reply(&self, reply: ReplyId) -> bool {
        matches!(&self.kind, ItemKind::Reply { id, .. } if *id == reply)
    }
}

/// Whether a journalist has seen an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Seen {
    /// Yes.
    Seen,
    /// No.
    Unread,
}

/// The kinds of item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemKind {
    /// What the source sent.
    Submission {
        /// Its id.
        id: SubmissionId,
        /// Message or file.
        kind: SubmissionKind,
    },
    /// What a journalist wrote.
    Reply {
        /// Its id.
        id: ReplyId,
        /// The author's login name, if the server lists the author.
        author: Option<Username>,
        /// Whether the author is who is signed in, or who was last.
        own: bool,
    },
}

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A call to the proxy waits for its answer: the VM may be starting, or dom0 may be asking.
    ProxyWaiting,
    /// Somebody signed in.
    SessionStarted(Session),
    /// The session ended.
    SessionEnded(SessionEnd),
    /// A sync started.
    SyncStarted(SyncStart),
    /// The sync ended.
    SyncEnded(SyncReport),
    /// Sources have changed, appeared or gone. At most [`MAX_ROWS`] an event.
    SourcesChanged(Vec<SourceId>),
    /// A download has come a step further.
    Download(DownloadChange),
    /// An item has come a step further to being read.
    Read(ReadChange),
    /// Replies to a source are held back: something is wrong with its key.
    KeyHeld {
        /// Whose.
        source: SourceId,
        /// What.
        problem: KeyProblem,
    },
    /// The server lists much less than before: removals of these sources, or of items of theirs, are held. At most
    /// [`MAX_ROWS`] an event.
    RemovalsHeld(Vec<SourceId>),
    /// All that was to be erased is gone, of so many items.
    Erased(u64),
    /// Something that is to be erased is still on the disk. Told once, until all of it is gone.
    ErasureFailed(ErasureFault),
    /// The queue is paused, for one more reason.
    Paused(PauseReason),
    /// The queue is no longer paused: it goes on, or the session ends and with it what had paused the queue.
    Resumed,
    /// What is shown is old: syncs have failed several times in a row, or none has succeeded for long. Told once.
    SyncStale {
        /// When the last one had succeeded.
        last_success: Option<Timestamp>,
    },
    /// What is shown no longer counts as old: a sync has succeeded, or the session ends. Told once.
    SyncFresh,
    /// An act has come a step further.
    Act(ActChange),
    /// A document that is open in a disposable VM has come a step further.
    Viewer {
        /// Which item.
        item: ItemId,
        /// What happened.
        step: ViewerStep,
    },
    /// Events were lost, since this front end did not take them in time: ask for everything anew.
    Missed(u64),
}
