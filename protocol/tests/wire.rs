//! The bytes on the wire: golden vectors both ways, and properties of the codec.
//!
//! `vectors/v1.txt` holds the encoding of a value of every variant; [`variants`] sees to it that none is missing. A change of it
//! is a change of the protocol's version. `SPLITDROP_BLESS=1` writes the file anew, and fails.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::string_slice, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::path::Path;

use protocol::answer::Part;
use protocol::codec::{decode_exact, encode};
use protocol::frame::{FrameDecoder, encode_frame};
use protocol::handshake::{decode_hello, decode_welcome, encode_hello, encode_welcome, mismatch_answer};
use protocol::value::*;
use protocol::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

#[path = "wire/properties.rs"]
mod properties;
#[path = "wire/variants.rs"]
mod variants;

const UUID: &str = "6f6d21bc-7f5e-4d0e-9a3c-0d9ab2a3c001";
const REQUEST: RequestId = RequestId::new([0xa1, 2, 3, 4, 5, 6, 0x47, 8, 0x89, 10, 11, 12, 13, 14, 15, 16]);
const KEY: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nxjMEZ\n-----END PGP PUBLIC KEY BLOCK-----\n";

fn id<I: std::str::FromStr<Err: Debug>>() -> I {
    UUID.parse().unwrap()
}

fn message() -> ArmoredMessage {
    ArmoredMessage::try_new("-----BEGIN PGP MESSAGE-----\n\nwcDMA\n-----END PGP MESSAGE-----\n").unwrap()
}

fn token() -> Token {
    Token::try_new("token").unwrap()
}

fn source() -> Source {
    Source {
        id: UUID.parse().unwrap(),
        designation: Designation::try_new("verschwiegene Möwe").unwrap(),
        starred: true,
        last_updated: Timestamp::try_new(1_729_785_077_123_456).unwrap(),
        interactions: OrderNumber::try_new(4).unwrap(),
        key: Some(SourceKey {
            armored: ArmoredKey::try_new(KEY).unwrap(),
            fingerprint: Fingerprint::try_new("0123456789ABCDEF0123456789ABCDEF01234567").unwrap(),
        }),
        version: None,
    }
}

fn submission() -> Submission {
    Submission {
        id: UUID.to_uppercase().parse().unwrap(),
        source: UUID.parse().unwrap(),
        kind: SubmissionKind::File,
        order: OrderNumber::MAX,
        filename: Some(Filename::try_new("2-verschwiegene_Möwe-doc.gz.gpg").unwrap()),
        size: Size::try_new(300).unwrap(),
        read: true,
        seen_by: Bounded::try_new(vec![UUID.parse().unwrap()]).unwrap(),
        version: Some(ServerVersion::try_new("ab".repeat(32)).unwrap()),
    }
}

fn message_of_source() -> Submission {
    Submission { kind: SubmissionKind::Message, read: false, filename: None, ..submission() }
}

fn reply() -> Reply {
    Reply {
        id: UUID.parse().unwrap(),
        source: UUID.parse().unwrap(),
        author: UUID.parse().unwrap(),
        order: OrderNumber::try_new(3).unwrap(),
        filename: None,
        size: Size::try_new(0).unwrap(),
        deleted_by_source: false,
        seen_by: Bounded::default(),
        version: None,
    }
}

fn journalist() -> Journalist {
    Journalist {
        id: UUID.parse().unwrap(),
        username: Username::try_new("mara").unwrap(),
        first_name: Some(PersonName::try_new("Mára").unwrap()),
        last_name: None,
        version: None,
    }
}

fn calls() -> Vec<(&'static str, Call)> {
    vec![
        ("health", Call::Health),
        (
            "login",
            Call::Login {
                username: Username::try_new("mara").unwrap(),
                passphrase: Passphrase::try_new("a passphrase of words").unwrap(),
                one_time_code: OneTimeCode::try_new("012345").unwrap(),
            },
        ),
        ("logout", Call::Logout { token: token() }),
        ("get_users", Call::GetUsers { token: token() }),
        ("get_sources", Call::GetSources { token: token() }),
        ("get_submissions", Call::GetSubmissions { token: token(), source: None }),
        ("get_submissions_of_one", Call::GetSubmissions { token: token(), source: Some(UUID.parse().unwrap()) }),
        ("get_all_replies", Call::GetAllReplies { token: token() }),
        ("star", Call::Star { token: token(), source: id() }),
        ("unstar", Call::Unstar { token: token(), source: id() }),
        (
            "mark_seen",
            Call::MarkSeen {
                token: token(),
                items: SeenItems {
                    files: Bounded::default(),
                    messages: Bounded::try_new(vec![id()]).unwrap(),
                    replies: Bounded::try_new(vec![id()]).unwrap(),
                },
            },
        ),
        ("delete_source", Call::DeleteSource { token: token(), source: id() }),
        (
            "delete_conversation",
            Call::DeleteConversation {
                token: token(),
                source: id(),
                items: Bounded::try_new(vec![ItemId::Submission(id()), ItemId::Reply(id())]).unwrap(),
                upper_bound: OrderNumber::try_new(4).unwrap(),
            },
        ),
        ("delete_submission", Call::DeleteSubmission { token: token(), source: id(), submission: id() }),
        ("delete_reply", Call::DeleteReply { token: token(), source: id(), reply: id() }),
        (
            "download_submission",
            Call::DownloadSubmission { token: token(), source: id(), submission: id(), from: size(0) },
        ),
        ("download_reply", Call::DownloadReply { token: token(), source: id(), reply: id(), from: size(70_000) }),
        ("send_reply", Call::SendReply { token: token(), source: id(), reply: id(), message: message() }),
        ("probe", Call::Probe),
    ]
}

fn to_proxy() -> Vec<(String, ToProxy)> {
    let deadline = Deadline::try_from(30_000).unwrap();
    let mut messages: Vec<_> = calls()
        .into_iter()
        .map(|(name, call)| {
            (format!("call/{name}"), ToProxy::Call(Request { id: CallId(1), request: REQUEST, deadline, call }))
        })
        .collect();
    messages.push(("cancel".to_owned(), ToProxy::Cancel(CallId(70_000))));
    messages
}

fn parts() -> Vec<(String, Part)> {
    fn batch<T: protocol::record::Record>(record: T) -> Bounded<Listed<T>, { protocol::answer::MAX_BATCH }> {
        let unreadable = |id| Listed::Unreadable(Unreadable { id, field: Field::Order });
        Bounded::try_new(vec![unreadable(Some(record.id())), unreadable(None), Listed::Readable(record)]).unwrap()
    }
    let signed_in = SignedIn {
        token: token(),
        journalist: UUID.parse().unwrap(),
        first_name: None,
        last_name: Some(PersonName::try_new("Óskar").unwrap()),
        expires: Timestamp::MAX,
        api_level: ApiLevel::V2,
    };
    let contacts = [
        ("none", ServerContact::NoneYet),
        ("answered", ServerContact::Answered { ago_ms: 5 }),
        ("failed", ServerContact::Failed { kind: ErrorKind::Timeout, stage: Stage::Route, ago_ms: u64::MAX }),
    ];
    let mut parts: Vec<_> = contacts
        .into_iter()
        .map(|(name, contact)| {
            let health = Health { tor: true, speaks: ApiLevel::V1, contact, confinement: Confinement::NONE };
            (format!("health/{name}"), Part::Items(Items::Health(health)))
        })
        .collect();
    let levels = [Landlock::None, Landlock::Files, Landlock::FilesAndNetwork, Landlock::FilesNetworkAndSignals];
    parts.extend(levels.into_iter().map(|landlock| {
        let confinement = Confinement { seccomp: Seccomp::Enforced, landlock };
        let health = Health { tor: true, speaks: ApiLevel::V1, contact: ServerContact::NoneYet, confinement };
        (format!("health/confined/{}", landlock.name()), Part::Items(Items::Health(health)))
    }));
    parts.extend(
        [
            ("begin", Part::Begin),
            ("signed_in", Part::Items(Items::SignedIn(signed_in))),
            ("users", Part::Items(Items::Users(batch(journalist())))),
            ("sources", Part::Items(Items::Sources(batch(source())))),
            ("submissions", Part::Items(Items::Submissions(batch(submission())))),
            ("submission_that_is_a_message", Part::Items(Items::Submissions(batch(message_of_source())))),
            ("replies", Part::Items(Items::Replies(batch(reply())))),
            ("deletions", Part::Items(Items::Deletions(deletions()))),
            ("download", Part::Items(Items::Download(download(true)))),
            ("download_of_unknown_length", Part::Items(Items::Download(download(false)))),
            ("chunk", Part::Items(Items::Chunk(Chunk::try_new(vec![0, 250, 255]).unwrap()))),
            ("sum", Part::Items(Items::Sum(Sum { length: size(3), sha256: Sha256::new([0xcd; 32]) }))),
            ("stored", Part::Items(Items::Stored(stored(true)))),
            ("stored_under_no_readable_name", Part::Items(Items::Stored(stored(false)))),
            ("probe", Part::Items(Items::Probe(probe(Some(1_729_785_077_000_000))))),
            ("probe_without_a_date", Part::Items(Items::Probe(probe(None)))),
            ("end", Part::End { count: 1_000 }),
        ]
        .map(|(name, part)| (name.to_owned(), part)),
    );
    parts.extend(Field::ALL.into_iter().map(|field| {
        let unreadable = Listed::<Source>::Unreadable(Unreadable { id: None, field });
        let batch = Bounded::try_new(vec![unreadable]).unwrap();
        (format!("unreadable/{}", field.name()), Part::Items(Items::Sources(batch)))
    }));
    let retries = [Retry::Now, Retry::Later { wait_ms: Some(1_000) }, Retry::WhenUserActs, Retry::Never];
    let stages =
        [Stage::Admission, Stage::Socks, Stage::Route, Stage::Connect, Stage::FirstByte, Stage::Body, Stage::Parse];
    for (at, kind) in ErrorKind::ALL.into_iter().enumerate() {
        let error = CallError::new(kind, stages[at % stages.len()], retries[at % retries.len()]);
        let error = if at % 2 == 0 { error } else { error.with_detail("HTTP 500") };
        parts.push((format!("failed/{}", kind.name()), Part::Failed(error)));
    }
    parts
}

fn deletions() -> Bounded<Deletion, { protocol::call::MAX_DELETED }> {
    let refused = CallError::new(ErrorKind::Refused, Stage::Admission, Retry::Never);
    Bounded::try_new(vec![
        Deletion { item: ItemId::Submission(id()), result: Ok(()) },
        Deletion { item: ItemId::Reply(id()), result: Err(refused) },
    ])
    .unwrap()
}

fn size(bytes: u64) -> Size {
    Size::try_new(bytes).unwrap()
}

fn download(known: bool) -> Download {
    Download { length: known.then(|| size(70_003)), from: size(70_000), etag: known.then(|| Sha256::new([0xab; 32])) }
}

fn probe(date: Option<u64>) -> Probe {
    Probe { server_date: date.map(|date| Timestamp::try_new(date).unwrap()), took_ms: 300 }
}

fn stored(named: bool) -> StoredReply {
    StoredReply {
        reply: id(),
        order: named.then(|| OrderNumber::try_new(5).unwrap()),
        filename: named.then(|| Filename::try_new("5-verschwiegene_Möwe-reply.gpg").unwrap()),
    }
}

fn hellos() -> Vec<(&'static str, Hello)> {
    let hello = |scope, api_level| Hello {
        scope,
        limits: Limits::OURS,
        api_level,
        software: SoftwareVersion::try_new("0.1.0").unwrap(),
    };
    vec![
        ("session", hello(Scope::Session, None)),
        ("metadata", hello(Scope::Metadata, Some(ApiLevel::V1))),
        ("mark", hello(Scope::Mark, None)),
        ("delete", hello(Scope::Delete, Some(ApiLevel::V2))),
        ("download", hello(Scope::Download, None)),
        ("reply", hello(Scope::Reply, Some(ApiLevel::V1))),
    ]
}

fn welcomes() -> Vec<(&'static str, Welcome)> {
    let setting = || SettingName::try_new("SD_PROXY_ORIGIN").unwrap();
    vec![
        (
            "ready",
            Welcome::Ready {
                scope: Scope::Metadata,
                limits: Limits::OURS,
                software: SoftwareVersion::try_new("0.1.0").unwrap(),
            },
        ),
        ("scope", Welcome::Refused(Refusal::Scope { started: Scope::Session })),
        ("missing", Welcome::Refused(Refusal::SettingMissing(setting()))),
        ("invalid", Welcome::Refused(Refusal::SettingInvalid(setting()))),
        ("caller", Welcome::Refused(Refusal::Caller(setting()))),
        ("landlock", Welcome::Refused(Refusal::Landlock(setting()))),
        ("unconfined", Welcome::Refused(Refusal::Unconfined)),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2));
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Encodes the value under its name, after checking that its recorded bytes decode to it.
fn pin<T>(recorded: &BTreeMap<String, Vec<u8>>, now: &mut BTreeMap<String, Vec<u8>>, name: String, value: &T)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    if let Some(bytes) = recorded.get(&name) {
        assert_eq!(&decode_exact::<T>(bytes).unwrap(), value, "{name}: the recorded bytes decode to something else");
    }
    now.insert(name, encode(value).unwrap());
}

#[test]
fn golden_vectors_hold_both_ways() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/v1.txt");
    let bless = std::env::var_os("SPLITDROP_BLESS").is_some();
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut recorded: BTreeMap<String, Vec<u8>> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_once(' ').map(|(name, bytes)| (name.to_owned(), unhex(bytes))).unwrap())
        .collect();
    if bless {
        recorded.clear();
    }
    let mut now = BTreeMap::new();
    for (name, message) in to_proxy() {
        pin(&recorded, &mut now, format!("to_proxy/{name}"), &message);
    }
    for (name, part) in parts() {
        pin(&recorded, &mut now, format!("from_proxy/{name}"), &FromProxy { id: CallId(1), part });
    }
    for (name, hello) in hellos() {
        let name = format!("hello/{name}");
        if let Some(bytes) = recorded.get(&name) {
            assert_eq!(decode_hello(bytes).unwrap(), hello, "{name}");
        }
        now.insert(name, encode_hello(&hello).unwrap());
    }
    for (name, welcome) in welcomes() {
        let name = format!("welcome/{name}");
        if let Some(bytes) = recorded.get(&name) {
            assert_eq!(decode_welcome(bytes).unwrap(), welcome, "{name}");
        }
        now.insert(name, encode_welcome(&welcome).unwrap());
    }
    now.insert("welcome/mismatch".to_owned(), mismatch_answer());
    now.insert("frame/cancel".to_owned(), encode_frame(&ToProxy::Cancel(CallId(1))).unwrap().to_vec());

    if bless {
        let mut text = String::from(
            "# Splitdrop's protocol, version 1: a name, then the bytes in hexadecimal. See docs/PROTOCOL.md.\n",
        );
        for (name, bytes) in &now {
            writeln!(text, "{name} {}", hex(bytes)).unwrap();
        }
        std::fs::write(&path, text).unwrap();
    }
    assert!(!bless, "the vectors are written anew and were not checked: look at the difference, and run this again");
    assert_eq!(recorded, now, "the encoding has changed: a new version of the protocol?");
}

#[test]
fn every_cut_of_a_message_is_refused() {
    for (name, part) in parts() {
        let bytes = encode(&FromProxy { id: CallId(9), part }).unwrap();
        for end in 0..bytes.len() {
            assert!(decode_exact::<FromProxy>(&bytes[..end]).is_err(), "{name} cut at {end}");
        }
    }
    for (name, message) in to_proxy() {
        let bytes = encode(&message).unwrap();
        for end in 0..bytes.len() {
            assert!(decode_exact::<ToProxy>(&bytes[..end]).is_err(), "{name} cut at {end}");
        }
    }
}

#[test]
fn a_call_without_a_deadline_is_refused() {
    let health_within = |ms: u32| {
        let bytes = [vec![0, 1], encode(&REQUEST).unwrap(), encode(&ms).unwrap(), vec![0]].concat();
        decode_exact::<ToProxy>(&bytes)
    };
    for ms in [0, Deadline::MAX_MS + 1] {
        assert!(health_within(ms).is_err(), "{ms} ms");
    }
    assert!(health_within(1).is_ok());
}

#[test]
fn a_huge_list_of_small_entries_is_refused() {
    // 80,000 unreadable marks of three bytes each fit a frame, and are far over the batch's cap.
    let marks = vec![Listed::<Reply>::Unreadable(Unreadable { id: None, field: Field::Record }); 80_000];
    let mut bytes = vec![1, 1, 5];
    bytes.extend(encode(&marks).unwrap());
    assert!(bytes.len() < protocol::frame::MAX_FRAME);
    assert!(decode_exact::<FromProxy>(&bytes).is_err());
}

#[test]
fn the_longest_reply_fits_a_frame() {
    let (begin, end) = ("-----BEGIN PGP MESSAGE-----\n\n", "\n-----END PGP MESSAGE-----\n");
    let body = "x".repeat(ArmoredMessage::MAX - begin.len() - end.len());
    let message = ArmoredMessage::try_new(format!("{begin}{body}{end}")).unwrap();
    let token = Token::try_new("t".repeat(4_096)).unwrap();
    let call = Call::SendReply { token, source: id(), reply: id(), message };
    let deadline = Deadline::try_from(Deadline::MAX_MS).unwrap();
    let sent = ToProxy::Call(Request { id: CallId(u32::MAX), request: REQUEST, deadline, call });
    let mut decoder = FrameDecoder::new();
    decoder.feed(&encode_frame(&sent).unwrap());
    assert_eq!(decoder.next_message::<ToProxy>().unwrap(), Some(sent));
}

#[test]
fn a_reply_that_is_not_encrypted_is_refused() {
    let text = |message: &str| {
        let mut bytes = [vec![0, 1], encode(&REQUEST).unwrap(), vec![1, 16]].concat();
        for part in ["token", UUID, UUID, message] {
            bytes.extend(encode(&part).unwrap());
        }
        decode_exact::<ToProxy>(&bytes)
    };
    assert!(text(message().as_str()).is_ok());
    for refused in ["", "in plain words", &"x".repeat(ArmoredMessage::MAX + 1), KEY] {
        assert!(text(refused).is_err());
    }
}
