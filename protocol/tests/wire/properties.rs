//! Properties of the codec, over values of every variant.

use std::collections::BTreeSet;
use std::fmt::Debug;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use protocol::answer::Part;
use protocol::codec::{decode_exact, encode};
use protocol::frame::{FrameDecoder, encode_frame};
use protocol::handshake::{decode_hello, decode_welcome};
use protocol::record::Record;
use protocol::value::*;
use protocol::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::variants::{ALL_CALLS, ALL_PARTS, of_call, of_part};
use super::{KEY, parts, to_proxy};

fn id<I: std::str::FromStr<Err: Debug> + Debug>() -> impl Strategy<Value = I> {
    "[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-fA-F]{12}".prop_map(|text| text.parse().unwrap())
}

fn item() -> impl Strategy<Value = ItemId> {
    prop_oneof![id().prop_map(ItemId::Submission), id().prop_map(ItemId::Reply)]
}

/// A value that is checked when it is made: what does not pass is thrown away.
fn checked<T: Debug>(text: &'static str, make: fn(String) -> Result<T, ValueError>) -> impl Strategy<Value = T> {
    text.prop_filter_map("not of the type's form", move |text| make(text).ok())
}

fn token() -> impl Strategy<Value = Token> {
    checked("[!-~]{1,120}", Token::try_new)
}

fn name() -> impl Strategy<Value = Option<PersonName>> {
    proptest::option::of(checked("\\PC{1,40}", PersonName::try_new))
}

fn filename() -> impl Strategy<Value = Option<Filename>> {
    proptest::option::of(checked("\\PC{1,40}", Filename::try_new))
}

fn version() -> impl Strategy<Value = Option<ServerVersion>> {
    proptest::option::of(checked("[0-9a-f]{64}", ServerVersion::try_new))
}

fn number<T: Debug>(make: fn(u64) -> Result<T, ValueError>) -> impl Strategy<Value = T> {
    // Small ones, of one byte on the wire, and large ones.
    prop_oneof![0..300_u64, any::<u64>()].prop_filter_map("out of range", move |number| make(number).ok())
}

fn digest() -> impl Strategy<Value = Sha256> {
    any::<[u8; 32]>().prop_map(Sha256::new)
}

fn list<T: Debug, const MAX: usize>(
    entry: impl Strategy<Value = T>,
    most: usize,
) -> impl Strategy<Value = Bounded<T, MAX>> {
    proptest::collection::vec(entry, 0..=most.min(MAX)).prop_map(|entries| Bounded::try_new(entries).unwrap())
}

fn error() -> impl Strategy<Value = CallError> {
    use Stage::{Admission, Body, Connect, FirstByte, Parse, Route, Socks};
    let retry = prop_oneof![
        Just(Retry::Now),
        any::<Option<u32>>().prop_map(|wait_ms| Retry::Later { wait_ms }),
        Just(Retry::WhenUserActs),
        Just(Retry::Never),
    ];
    let stage = prop::sample::select(vec![Admission, Socks, Route, Connect, FirstByte, Body, Parse]);
    (prop::sample::select(ErrorKind::ALL.to_vec()), stage, retry, "\\PC{0,60}")
        .prop_map(|(kind, stage, retry, detail)| CallError::new(kind, stage, retry).with_detail(&detail))
}

fn key() -> impl Strategy<Value = SourceKey> {
    checked("[A-F0-9]{40}", Fingerprint::try_new)
        .prop_map(|fingerprint| SourceKey { armored: ArmoredKey::try_new(KEY).unwrap(), fingerprint })
}

fn source() -> impl Strategy<Value = Source> {
    let designation = checked("\\PC{1,40}", Designation::try_new);
    let numbers = (number(Timestamp::try_new), number(OrderNumber::try_new));
    (id(), designation, any::<bool>(), numbers, proptest::option::of(key()), version()).prop_map(
        |(id, designation, starred, (last_updated, interactions), key, version)| Source {
            id,
            designation,
            starred,
            last_updated,
            interactions,
            key,
            version,
        },
    )
}

fn submission() -> impl Strategy<Value = Submission> {
    let kind = prop::sample::select(vec![SubmissionKind::Message, SubmissionKind::File]);
    let numbers = (number(OrderNumber::try_new), number(Size::try_new));
    ((id(), id()), kind, numbers, filename(), any::<bool>(), list(id(), 5), version()).prop_map(
        |((id, source), kind, (order, size), filename, read, seen_by, version)| Submission {
            id,
            source,
            kind,
            order,
            filename,
            size,
            read,
            seen_by,
            version,
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    let numbers = (number(OrderNumber::try_new), number(Size::try_new));
    ((id(), id(), id()), numbers, filename(), any::<bool>(), list(id(), 5), version()).prop_map(
        |((id, source, author), (order, size), filename, deleted_by_source, seen_by, version)| Reply {
            id,
            source,
            author,
            order,
            filename,
            size,
            deleted_by_source,
            seen_by,
            version,
        },
    )
}

fn journalist() -> impl Strategy<Value = Journalist> {
    (id(), checked("\\PC{1,40}", Username::try_new), name(), name(), version()).prop_map(
        |(id, username, first_name, last_name, version)| Journalist { id, username, first_name, last_name, version },
    )
}

fn listed<T: Record + 'static>(record: impl Strategy<Value = T> + 'static) -> impl Strategy<Value = Listed<T>> {
    let unreadable = (proptest::option::of(id::<T::Id>()), prop::sample::select(Field::ALL.to_vec()))
        .prop_map(|(id, field)| Listed::Unreadable(Unreadable { id, field }));
    prop_oneof![4 => record.prop_map(Listed::Readable), 1 => unreadable]
}

fn any_call() -> impl Strategy<Value = Call> {
    let passphrase = checked("\\PC{1,40}", Passphrase::try_new);
    let login = (checked("\\PC{1,40}", Username::try_new), passphrase, checked("[0-9]{6}", OneTimeCode::try_new));
    let of_source = || (token(), id::<SourceId>());
    let seen = (list(id(), 5), list(id(), 5), list(id(), 5));
    let size = || number(Size::try_new);
    let message =
        checked("-----BEGIN PGP MESSAGE-----\n\n[a-z\n]{0,80}\n-----END PGP MESSAGE-----\n", ArmoredMessage::try_new);
    prop_oneof![
        Just(Call::Health),
        login.prop_map(|(username, passphrase, one_time_code)| Call::Login { username, passphrase, one_time_code }),
        token().prop_map(|token| Call::Logout { token }),
        token().prop_map(|token| Call::GetUsers { token }),
        token().prop_map(|token| Call::GetSources { token }),
        (token(), proptest::option::of(id())).prop_map(|(token, source)| Call::GetSubmissions { token, source }),
        token().prop_map(|token| Call::GetAllReplies { token }),
        of_source().prop_map(|(token, source)| Call::Star { token, source }),
        of_source().prop_map(|(token, source)| Call::Unstar { token, source }),
        (token(), seen).prop_map(|(token, (files, messages, replies))| Call::MarkSeen {
            token,
            items: SeenItems { files, messages, replies },
        }),
        of_source().prop_map(|(token, source)| Call::DeleteSource { token, source }),
        (of_source(), list(item(), 5), number(OrderNumber::try_new)).prop_map(
            |((token, source), items, upper_bound)| Call::DeleteConversation { token, source, items, upper_bound }
        ),
        (of_source(), id()).prop_map(|((token, source), submission)| Call::DeleteSubmission {
            token,
            source,
            submission
        }),
        (of_source(), id()).prop_map(|((token, source), reply)| Call::DeleteReply { token, source, reply }),
        (of_source(), id(), size()).prop_map(|((token, source), submission, from)| Call::DownloadSubmission {
            token,
            source,
            submission,
            from,
        }),
        (of_source(), id(), size()).prop_map(|((token, source), reply, from)| Call::DownloadReply {
            token,
            source,
            reply,
            from
        }),
        (of_source(), id(), message).prop_map(|((token, source), reply, message)| Call::SendReply {
            token,
            source,
            reply,
            message
        }),
        Just(Call::Probe),
    ]
}

fn any_part() -> impl Strategy<Value = Part> {
    let contact = prop_oneof![
        Just(ServerContact::NoneYet),
        any::<u64>().prop_map(|ago_ms| ServerContact::Answered { ago_ms }),
        (error(), any::<u64>()).prop_map(|(error, ago_ms)| ServerContact::Failed {
            kind: error.kind,
            stage: error.stage,
            ago_ms
        }),
    ];
    let seccomp = prop::sample::select(vec![Seccomp::Off, Seccomp::Enforced]);
    let landlock = prop::sample::select(vec![
        Landlock::None,
        Landlock::Files,
        Landlock::FilesAndNetwork,
        Landlock::FilesNetworkAndSignals,
    ]);
    let level = || prop::sample::select(vec![ApiLevel::V1, ApiLevel::V2]);
    let health =
        (any::<bool>(), level(), contact, seccomp, landlock).prop_map(|(tor, speaks, contact, seccomp, landlock)| {
            Items::Health(Health { tor, speaks, contact, confinement: Confinement { seccomp, landlock } })
        });
    let signed_in = (token(), id(), name(), name(), number(Timestamp::try_new), level()).prop_map(
        |(token, journalist, first_name, last_name, expires, api_level)| {
            Items::SignedIn(SignedIn { token, journalist, first_name, last_name, expires, api_level })
        },
    );
    let deletion =
        (item(), prop_oneof![Just(Ok(())), error().prop_map(Err)]).prop_map(|(item, result)| Deletion { item, result });
    let size = || number(Size::try_new);
    let download = (proptest::option::of(size()), size(), proptest::option::of(digest()))
        .prop_map(|(length, from, etag)| Items::Download(Download { length, from, etag }));
    let stored = (id(), proptest::option::of(number(OrderNumber::try_new)), filename())
        .prop_map(|(reply, order, filename)| Items::Stored(StoredReply { reply, order, filename }));
    let probe = (proptest::option::of(number(Timestamp::try_new)), any::<u64>())
        .prop_map(|(server_date, took_ms)| Items::Probe(Probe { server_date, took_ms }));
    let items = prop_oneof![
        health,
        signed_in,
        list(listed(journalist()), 4).prop_map(Items::Users),
        list(listed(source()), 4).prop_map(Items::Sources),
        list(listed(submission()), 4).prop_map(Items::Submissions),
        list(listed(reply()), 4).prop_map(Items::Replies),
        list(deletion, 4).prop_map(Items::Deletions),
        download,
        proptest::collection::vec(any::<u8>(), 1..300).prop_map(|bytes| Items::Chunk(Chunk::try_new(bytes).unwrap())),
        (size(), digest()).prop_map(|(length, sha256)| Items::Sum(Sum { length, sha256 })),
        stored,
        probe,
    ];
    prop_oneof![
        1 => Just(Part::Begin),
        12 => items.prop_map(Part::Items),
        1 => any::<u32>().prop_map(|count| Part::End { count }),
        1 => error().prop_map(Part::Failed),
    ]
}

fn any_message() -> impl Strategy<Value = ToProxy> {
    let call = (any::<u32>(), any::<[u8; 16]>(), 1..=Deadline::MAX_MS, any_call()).prop_map(
        |(id, request, deadline, call)| {
            let deadline = Deadline::try_from(deadline).unwrap();
            ToProxy::Call(Request { id: CallId(id), request: RequestId::new(request), deadline, call })
        },
    );
    prop_oneof![9 => call, 1 => any::<u32>().prop_map(|id| ToProxy::Cancel(CallId(id)))]
}

/// What `strategy` makes of an enum's variants is all of them.
fn assert_makes_all<T: Debug>(
    strategy: &impl Strategy<Value = T>,
    names: fn(&T) -> &'static [&'static str],
    all: &[&'static [&'static str]],
) {
    let mut runner = TestRunner::deterministic();
    let made: BTreeSet<_> = (0..1_000).map(|_| names(&strategy.new_tree(&mut runner).unwrap().current())).collect();
    assert_eq!(made, all.iter().copied().collect());
}

#[test]
fn the_properties_are_those_of_every_variant() {
    assert_makes_all(&any_call(), of_call, ALL_CALLS);
    assert_makes_all(&any_part(), of_part, ALL_PARTS);
}

/// A message, cut anywhere on its way, is the same message.
fn round_trip<T>(message: &T, cut: usize) -> Result<(), TestCaseError>
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let frame = encode_frame(message).unwrap();
    let (head, tail) = frame.split_at(cut.min(frame.len()));
    let mut decoder = FrameDecoder::new();
    decoder.feed(head);
    if !tail.is_empty() {
        prop_assert_eq!(decoder.next_message::<T>().unwrap(), None);
    }
    decoder.feed(tail);
    let arrived = decoder.next_message::<T>().unwrap();
    prop_assert_eq!(arrived.as_ref(), Some(message));
    prop_assert!(decoder.finish().is_ok());
    Ok(())
}

/// A message of which one byte is another is refused, or a valid one that is encoded as it came.
fn damaged<T>(message: &T, at: prop::sample::Index, damage: u8) -> Result<(), TestCaseError>
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let mut bytes = encode(message).unwrap();
    let at = at.index(bytes.len());
    bytes[at] ^= damage;
    if let Ok(message) = decode_exact::<T>(&bytes) {
        prop_assert_eq!(decode_exact::<T>(&encode(&message).unwrap()).unwrap(), message);
    }
    Ok(())
}

proptest! {
    #[test]
    fn decoding_an_answer_that_was_encoded_gives_it_back(id: u32, part in any_part(), cut in 0_usize..2_000) {
        round_trip(&FromProxy { id: CallId(id), part }, cut)?;
    }

    #[test]
    fn decoding_a_call_that_was_encoded_gives_it_back(message in any_message(), cut in 0_usize..600) {
        round_trip(&message, cut)?;
    }

    #[test]
    fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_exact::<ToProxy>(&bytes);
        let _ = decode_exact::<FromProxy>(&bytes);
        let _ = decode_hello(&bytes);
        let _ = decode_welcome(&bytes);
        let mut decoder = FrameDecoder::new();
        decoder.feed(&bytes);
        while let Ok(Some(_)) = decoder.next_message::<FromProxy>() {}
    }

    #[test]
    fn a_damaged_message_decodes_to_a_valid_one_or_not_at_all(
        which: prop::sample::Index, at: prop::sample::Index, damage: u8,
    ) {
        let (parts, calls) = (parts(), to_proxy());
        damaged(&FromProxy { id: CallId(1), part: which.get(&parts).1.clone() }, at, damage)?;
        damaged(&which.get(&calls).1, at, damage)?;
    }
}
