//! What can happen to a server, and what comes of it.

use serde::{Deserialize, Serialize};

use super::super::ciphertext::{Body, Seal};
use super::super::faults::Fault;
use super::super::world::{RecordId, SourceState, SubmissionKind};

/// Bytes of ciphertext of a new item when nobody says how many.
const USUAL_SIZE: u64 = 1_536;

/// Something that happens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do", deny_unknown_fields)]
pub enum Command {
    /// Somebody becomes a source. Answered with [`Outcome::Source`].
    NewSource {
        /// Two words; made up when not given.
        #[serde(default)]
        designation: Option<String>,
        /// Which key.
        #[serde(default)]
        key: KeyChoice,
        /// Whether the source is listed.
        #[serde(default = "listed")]
        state: SourceState,
    },
    /// A source sends text. Answered with [`Outcome::Item`].
    NewMessage {
        /// Which source.
        source: RecordId,
        /// Bytes of ciphertext, at least [`SMALLEST_MESSAGE`](crate::server::SMALLEST_MESSAGE).
        #[serde(default = "usual_size")]
        size: u64,
    },
    /// A source sends a file. Answered with [`Outcome::Item`].
    NewFile {
        /// Which source.
        source: RecordId,
        /// Bytes of ciphertext, at least [`SMALLEST_FILE`](crate::server::SMALLEST_FILE).
        #[serde(default = "usual_size")]
        size: u64,
    },
    /// A source sends exactly this. Answered with [`Outcome::Item`].
    NewSubmission {
        /// Which source.
        source: RecordId,
        /// As what the server takes it, whatever it is.
        kind: SubmissionKind,
        /// What decryption gives.
        body: Body,
        /// How it is encrypted; to the newsroom when not given.
        #[serde(default)]
        seal: Seal,
    },
    /// A journalist replies, elsewhere. Answered with [`Outcome::Item`].
    NewReply {
        /// To which source.
        source: RecordId,
        /// The journalist's name to sign in with.
        journalist: String,
        /// Bytes of ciphertext, at least [`SMALLEST_REPLY`](crate::server::SMALLEST_REPLY).
        #[serde(default = "usual_size")]
        size: u64,
    },
    /// A colleague stars a source.
    Star {
        /// Which source.
        source: RecordId,
    },
    /// A colleague takes a star away.
    Unstar {
        /// Which source.
        source: RecordId,
    },
    /// A journalist sees an item, elsewhere.
    MarkSeen {
        /// Which submission or reply.
        item: RecordId,
        /// The journalist's name to sign in with.
        journalist: String,
    },
    /// Somebody downloads a submission in the web interface of old: read, and nobody's mark on it.
    MarkDownloaded {
        /// Which submission.
        item: RecordId,
    },
    /// A source becomes listed, or stops being listed while its items are.
    SetState {
        /// Which source.
        source: RecordId,
        /// Whether it is listed.
        state: SourceState,
    },
    /// A source's key comes, changes or goes.
    SetKey {
        /// Which source.
        source: RecordId,
        /// Which key.
        key: KeyChoice,
    },
    /// A source's key comes, changes or goes, to one that is not in the pool, or whose fingerprint is a lie. Without armor and
    /// fingerprint the source has no key.
    SetSourceKey {
        /// Which source.
        source: RecordId,
        /// The key in armor. The server sends the public half as it is here; of a secret one it makes the public half, and
        /// the source can read with it. When not given it is the one that the source has.
        #[serde(default)]
        key: Option<String>,
        /// What the server says is the primary fingerprint; the key's own when not given.
        #[serde(default)]
        fingerprint: Option<String>,
    },
    /// The database forgets when a source was last heard of; the API then says "now", whenever it is asked.
    ForgetLastUpdated {
        /// Which source.
        source: RecordId,
    },
    /// A colleague deletes a source and the purge comes by: nothing of it is left. To mark it deleted, set its state.
    DeleteSource {
        /// Which source.
        source: RecordId,
    },
    /// A colleague deletes all items of a source.
    DeleteConversation {
        /// Which source.
        source: RecordId,
    },
    /// A colleague deletes a submission or reply.
    DeleteItem {
        /// Which one.
        item: RecordId,
    },
    /// The purge comes by: nothing is left of the sources that are marked deleted. Answered with [`Outcome::Purged`].
    Purge,
    /// The file of a submission or reply vanishes from the server's disk. Its deletion is an error once, though it is gone.
    LoseFile {
        /// Which one.
        item: RecordId,
    },
    /// The file of a submission or reply is cut on the server's disk. Lists and the `Etag` go on telling of the whole.
    ShortenFile {
        /// Which one.
        item: RecordId,
        /// Bytes that are left, fewer than there are.
        bytes: u64,
    },
    /// The file of a submission or reply is replaced by a whole one of the same size with something else in it, and the
    /// `Etag` with it. An answer that is on its way stays as it is.
    ReplaceFile {
        /// Which one.
        item: RecordId,
    },
    /// From now on all lists, those of one source included, say how things are now, whatever happens: acts and commands go
    /// on taking effect, and single records tell. Once more, and they say how things are then.
    FreezeLists,
    /// Lists say how things are again.
    ThawLists,
    /// A source deletes its copy of a reply.
    DeleteReplyBySource {
        /// Which reply.
        reply: RecordId,
    },
    /// An administrator deletes a journalist, whose sessions end.
    DeleteJournalist {
        /// The journalist's name to sign in with.
        journalist: String,
    },
    /// Sessions end at once, as if they had expired. Answered with [`Outcome::Sessions`].
    EndSessions {
        /// One journalist's, by the name to sign in with; everybody's when not given.
        #[serde(default)]
        journalist: Option<String>,
    },
    /// From now on something goes wrong. Answered with [`Outcome::Fault`].
    AddFault {
        /// The rule.
        fault: Fault,
    },
    /// A rule goes, and the answers that it holds go out.
    RemoveFault {
        /// Which one.
        id: u64,
    },
    /// All rules go, and the answers that they hold go out.
    ClearFaults,
    /// The answers that a rule holds go out; the rule stays.
    ReleaseAnswers {
        /// Which one.
        id: u64,
    },
    /// Time passes, for one-time codes, sessions and new items. Answered with [`Outcome::Time`].
    AdvanceClock {
        /// How much.
        seconds: u64,
    },
    /// The log forgets what has ended.
    ClearLog,
}

fn listed() -> SourceState {
    SourceState::Listed
}

fn usual_size() -> u64 {
    USUAL_SIZE
}

/// Which key a source has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyChoice {
    /// None.
    None,
    /// Any of the pool.
    #[default]
    Any,
    /// The one at this place of the pool, from 0.
    Pool(usize),
}

/// What a command led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is done, and there is nothing more to say.
    Done,
    /// There is a source.
    Source {
        /// Its id.
        uuid: RecordId,
        /// Its two words.
        designation: String,
    },
    /// There is an item.
    Item {
        /// Its id.
        uuid: RecordId,
        /// Its file name.
        filename: String,
    },
    /// There is a rule.
    Fault {
        /// By which it is removed.
        id: u64,
    },
    /// The purge came by.
    Purged {
        /// How many sources it found.
        sources: usize,
    },
    /// Sessions ended.
    Sessions {
        /// How many.
        ended: usize,
    },
    /// It is a certain time.
    Time {
        /// Which, as RFC 3339 writes it.
        now: String,
    },
}
