//! What the tests of the command line show and act on.

use control::{
    ActId, ActKind, ActState, Content, ConversationItem, Deletion, DownloadEntry, DownloadLane, DownloadState, Excerpt,
    HeldRemoval, Hit, HitPlace, Inner, ItemKind, KeyProblem, KeyState, OpenPgpStatus, OutgoingReply, Presence,
    ProxyStatus, QueueEntry, QueueStatus, ReplyText, Seen, Session, SourceCounts, SourceRow, Status, Taken, Totals,
    Undone,
};
use protocol::SubmissionKind;
use protocol::value::{
    Designation, Filename, Fingerprint, ItemId, OrderNumber, Size, SoftwareVersion, SourceId, Timestamp, Username,
};

pub(super) fn source_id(number: u32) -> SourceId {
    format!("3f2a6f8e-0000-4000-8000-{number:012}").parse().unwrap()
}

pub(super) fn source(number: u32, designation: &str) -> SourceRow {
    SourceRow {
        id: source_id(number),
        designation: Designation::try_new(designation).unwrap(),
        starred: false,
        last_updated: Timestamp::try_new(0).unwrap(),
        key: KeyState::None,
        counts: SourceCounts::default(),
        deletion: Deletion::None,
        presence: Presence::Listed,
    }
}

/// What is held of a source, all of it.
pub(super) fn held(number: u32, designation: &str) -> HeldRemoval {
    let row = source(number, designation);
    HeldRemoval { source: row.id, designation: Some(row.designation), whole: true, items: 4, since: at(0) }
}

pub(super) fn at(seconds: u64) -> Timestamp {
    Timestamp::try_new(seconds * 1_000_000).unwrap()
}

/// The id of a file.
pub(super) fn item(number: u32) -> ItemId {
    super::act::item_id(&file(number))
}

/// A file that nobody has seen or fetched.
pub(super) fn file(number: u32) -> ConversationItem {
    ConversationItem {
        kind: ItemKind::Submission {
            id: format!("9b04{number:04}-0000-4000-8000-000000000000").parse().unwrap(),
            kind: SubmissionKind::File,
        },
        order: OrderNumber::try_new(number.into()).unwrap(),
        filename: Some(Filename::try_new(format!("{number}-leak.gz.gpg")).unwrap()),
        size: Size::try_new(612).unwrap(),
        seen: Seen::Unread,
        deletion: Deletion::None,
        presence: Presence::Listed,
        content: Content::Absent,
    }
}

/// A fingerprint of one digit.
pub(super) fn fingerprint(digit: char) -> Fingerprint {
    Fingerprint::try_new(digit.to_string().repeat(40)).unwrap()
}

/// A key that the server has exchanged.
pub(super) fn held_key() -> KeyState {
    KeyState::Held {
        problem: KeyProblem::Changed,
        pinned: Some(fingerprint('A')),
        offered: fingerprint('B'),
        detail: "compare".to_owned(),
    }
}

/// What can be read.
pub(super) fn decrypted(name: Option<&str>) -> Content {
    Content::Decrypted { bytes: 1_200, inner: Inner::None, name: name.map(str::to_owned) }
}

/// A message that can be read.
pub(super) fn message(number: u32) -> ConversationItem {
    let ItemKind::Submission { id, .. } = file(number).kind else { panic!("a file is a submission") };
    let kind = ItemKind::Submission { id, kind: SubmissionKind::Message };
    ConversationItem { kind, seen: Seen::Seen, content: decrypted(None), ..file(number) }
}

/// A reply that the server lists; those of marlow are one's own.
pub(super) fn reply(number: u32, author: Option<&str>) -> ConversationItem {
    let kind = ItemKind::Reply {
        id: format!("4e110000-0000-4000-8000-{number:012}").parse().unwrap(),
        author: author.map(|name| Username::try_new(name).unwrap()),
        own: author == Some("marlow"),
    };
    ConversationItem { kind, ..message(number) }
}

/// A reply of one's own that the server does not list.
pub(super) fn outgoing(act: u64, state: Option<ActState>) -> OutgoingReply {
    OutgoingReply {
        reply: format!("4e110000-0000-4000-8000-{act:012}").parse().unwrap(),
        act: ActId(act),
        source: source_id(1),
        journalist: "7d1c0000-0000-4000-8000-000000000001".parse().unwrap(),
        username: None,
        own: true,
        written: at(0),
        state,
        reason: None,
        text: ReplyText::try_new("Thank you.").unwrap(),
    }
}

/// What was taken back of a source.
pub(super) fn undone(kind: ActKind, objects: u64) -> Undone {
    let designation = Some(Designation::try_new("candid marmot").unwrap());
    Undone { act: ActId(12), kind, source: source_id(1), designation, objects }
}

pub(super) fn taken(objects: u64, already: u64) -> Taken {
    Taken { act: (objects > 0).then_some(ActId(12)), objects, already, grace_ms: 0 }
}

/// One's own act of starring, which waits.
pub(super) fn entry(act: u64) -> QueueEntry {
    QueueEntry {
        act: ActId(act),
        kind: ActKind::Star,
        source: source_id(1),
        designation: Some(Designation::try_new("candid marmot").unwrap()),
        objects: 1,
        journalist: "7d1c0000-0000-4000-8000-000000000001".parse().unwrap(),
        username: None,
        own: true,
        state: ActState::Waiting,
        since: Timestamp::try_new(1_729_785_077_123_456).unwrap(),
        attempts: 0,
        next_try: None,
        reason: None,
    }
}

/// The download of a file of the candid marmot's.
pub(super) fn download(number: u32, state: DownloadState) -> DownloadEntry {
    DownloadEntry {
        lane: DownloadLane::Files,
        source: source_id(1),
        designation: Designation::try_new("candid marmot").unwrap(),
        item: item(number),
        size: Size::try_new(25_000_000).unwrap(),
        attempts: 0,
        state,
    }
}

/// A daemon that was just started for the first time.
pub(super) fn status() -> Status {
    Status {
        erasure: None,
        version: SoftwareVersion::try_new("0.1.0").unwrap(),
        started: at(0),
        session: Session::SignedOut,
        running_sync: None,
        last_sync: None,
        last_success: None,
        next_sync: None,
        stale: false,
        queue: QueueStatus::default(),
        proxy: ProxyStatus::NotConnected,
        openpgp: OpenPgpStatus {
            backend: "split-gpg".to_owned(),
            problem: None,
            newsroom_key: Ok(fingerprint('A')),
            held_keys: 0,
        },
        totals: Totals::default(),
    }
}

/// A whole text in which something was found.
pub(super) fn excerpt(text: &str, matches: &[(u32, u32)]) -> Excerpt {
    Excerpt { text: text.to_owned(), matches: matches.to_vec(), cut_before: false, cut_after: false }
}

/// Something that was found in a message of the candid marmot's.
pub(super) fn hit_in_message(number: u32, excerpt: Excerpt) -> Hit {
    let ConversationItem { kind: ItemKind::Submission { id, kind }, order, .. } = message(number) else {
        panic!("a message is a submission")
    };
    let place = HitPlace::Submission { id, kind, order, excerpt };
    Hit { source: source_id(1), designation: Designation::try_new("candid marmot").unwrap(), place }
}
