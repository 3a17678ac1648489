//! From the server's records to the protocol's, one by one.
//!
//! **Invariant:** a record that cannot be read becomes an unreadable mark, with its id wherever that can be read, and
//! never an error of its list.
//!
//! **Invariant:** nothing here panics or repairs: what is not as the server writes it is unreadable.

use protocol::answer::Batch;
use protocol::record::{MAX_SEEN_BY, Record};
use protocol::value::{
    ArmoredKey, Bounded, Designation, Filename, Fingerprint, JournalistId, OrderNumber, PersonName, ReplyId, Size,
    SourceId, SubmissionId, Timestamp, Username,
};
use protocol::{
    ApiLevel, Field, Items, Journalist, Listed, Reply, SignedIn, Source, SourceKey, StoredReply, Submission,
    SubmissionKind, Unreadable,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::wire::{self, Raw};

/// The records of one of the server's lists.
pub(super) trait ServerRecord: Record + Send + 'static {
    /// The list's key in the answer.
    const KEY: &'static str;

    /// Reads one record of the list.
    fn read(json: &str) -> Result<Self, Unreadable<Self::Id>>;

    /// A batch of them, for the answer.
    fn items(batch: Batch<Self>) -> Items;
}

/// Reads one entry of a list, which must be valid JSON.
pub(super) fn listed<T: ServerRecord>(json: &str) -> Listed<T> {
    match T::read(json) {
        Ok(record) => Listed::Readable(record),
        Err(unreadable) => Listed::Unreadable(unreadable),
    }
}

impl ServerRecord for Source {
    const KEY: &'static str = "sources";

    fn read(json: &str) -> Result<Self, Unreadable<Self::Id>> {
        read_record(json, |record: &wire::Source<'_>| record.uuid, read_source)
    }

    fn items(batch: Batch<Self>) -> Items {
        Items::Sources(batch)
    }
}

impl ServerRecord for Submission {
    const KEY: &'static str = "submissions";

    fn read(json: &str) -> Result<Self, Unreadable<Self::Id>> {
        read_record(json, |record: &wire::Submission<'_>| record.uuid, read_submission)
    }

    fn items(batch: Batch<Self>) -> Items {
        Items::Submissions(batch)
    }
}

impl ServerRecord for Reply {
    const KEY: &'static str = "replies";

    fn read(json: &str) -> Result<Self, Unreadable<Self::Id>> {
        read_record(json, |record: &wire::Reply<'_>| record.uuid, read_reply)
    }

    fn items(batch: Batch<Self>) -> Items {
        Items::Replies(batch)
    }
}

impl ServerRecord for Journalist {
    const KEY: &'static str = "users";

    fn read(json: &str) -> Result<Self, Unreadable<Self::Id>> {
        read_record(json, |record: &wire::User<'_>| record.uuid, read_journalist)
    }

    fn items(batch: Batch<Self>) -> Items {
        Items::Users(batch)
    }
}

/// An item of a conversation: which one it is and where it stands, whatever else of its record can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListedItem<I> {
    /// Its id.
    pub(super) id: I,
    /// Its source and its place in the conversation; `None` when one of them cannot be read.
    pub(super) place: Option<(SourceId, OrderNumber)>,
}

/// Reads of an entry of `/submissions` or `/replies` which item it is; `None` when not even its id can be read.
pub(super) fn listed_item<I: Copy + DeserializeOwned>(json: &str) -> Option<ListedItem<I>> {
    let read = read_record(
        json,
        |record: &wire::Item<'_>| record.uuid,
        |id, record| {
            let filename = field::<Filename>(record.filename, Field::Filename)?;
            Ok(ListedItem { id, place: Some((source(record.source_url)?, order(&filename)?)) })
        },
    );
    match read {
        Ok(item) => Some(item),
        Err(unreadable) => unreadable.id.map(|id| ListedItem { id, place: None }),
    }
}

/// Reads the answer to a login; `None` when it is not what a login is answered with.
///
/// A name that is no name is left out: it decides nothing here, and the list of journalists marks it.
pub(super) fn signed_in(json: &[u8]) -> Option<SignedIn> {
    let answer: wire::LoginAnswer<'_> = serde_json::from_slice(json).ok()?;
    Some(SignedIn {
        token: answer.token,
        journalist: answer.journalist_uuid,
        first_name: name(answer.journalist_first_name).unwrap_or_default(),
        last_name: name(answer.journalist_last_name).unwrap_or_default(),
        expires: timestamp(&answer.expiration)?,
        api_level: if answer.hints.is_some() { ApiLevel::V2 } else { ApiLevel::V1 },
    })
}

/// Reads the answer to a reply that was stored; `None` when it is not what a reply is answered with.
///
/// A file name that cannot be read, or without a number, is left out: the reply is stored, and the lists mark it.
pub(super) fn stored_reply(json: &[u8]) -> Option<StoredReply> {
    let json = std::str::from_utf8(json).ok().filter(|json| is_object(json))?;
    let answer: wire::ReplyAnswer<'_> = serde_json::from_str(json).ok()?;
    let filename = field::<Filename>(answer.filename, Field::Filename).ok();
    let order = filename.as_ref().and_then(|filename| order(filename).ok());
    Some(StoredReply { reply: field(answer.uuid, Field::Id).ok()?, order, filename })
}

/// Reads a record whose wire form is `W`: first its id, so that whatever else fails is marked with it.
fn read_record<'a, W, I, T>(
    json: &'a str,
    uuid: impl Fn(&W) -> Raw<'a>,
    read: impl Fn(I, &W) -> Result<T, Field>,
) -> Result<T, Unreadable<I>>
where
    W: Deserialize<'a>,
    I: Copy + DeserializeOwned,
{
    let record = match serde_json::from_str::<W>(json) {
        Ok(record) if is_object(json) => record,
        Ok(_) => return Err(Unreadable { id: None, field: Field::Record }),
        Err(_) => return Err(Unreadable { id: id_alone(json), field: Field::Record }),
    };
    let id: I = field(uuid(&record), Field::Id).map_err(|field| Unreadable { id: None, field })?;
    read(id, &record).map_err(|field| Unreadable { id: Some(id), field })
}

/// Whether JSON is an object: serde would take an array for one too, field by field.
fn is_object(json: &str) -> bool {
    json.trim_ascii_start().starts_with('{')
}

fn id_alone<I: DeserializeOwned>(json: &str) -> Option<I> {
    let record: wire::IdAlone<'_> = serde_json::from_str(json).ok().filter(|_| is_object(json))?;
    field(record.uuid, Field::Id).ok()
}

fn read_source(id: SourceId, record: &wire::Source<'_>) -> Result<Source, Field> {
    Ok(Source {
        id,
        designation: field::<Designation>(record.journalist_designation, Field::Designation)?,
        starred: field(record.is_starred, Field::Record)?,
        last_updated: timestamp(&field::<String>(record.last_updated, Field::LastUpdated)?)
            .ok_or(Field::LastUpdated)?,
        interactions: field::<OrderNumber>(record.interaction_count, Field::Order)?,
        key: key(record.key)?,
        version: None,
    })
}

fn read_submission(id: SubmissionId, record: &wire::Submission<'_>) -> Result<Submission, Field> {
    let kind = match (field(record.is_message, Field::Kind)?, field(record.is_file, Field::Kind)?) {
        (true, false) => SubmissionKind::Message,
        (false, true) => SubmissionKind::File,
        (false, false) | (true, true) => return Err(Field::Kind),
    };
    let filename = field::<Filename>(record.filename, Field::Filename)?;
    Ok(Submission {
        id,
        source: source(record.source_url)?,
        kind,
        order: order(&filename)?,
        filename: Some(filename),
        size: field::<Size>(record.size, Field::Size)?,
        read: field(record.is_read, Field::Record)?,
        seen_by: seen_by(record.seen_by)?,
        version: None,
    })
}

fn read_reply(id: ReplyId, record: &wire::Reply<'_>) -> Result<Reply, Field> {
    let filename = field::<Filename>(record.filename, Field::Filename)?;
    Ok(Reply {
        id,
        source: source(record.source_url)?,
        author: field(record.journalist_uuid, Field::Author)?,
        order: order(&filename)?,
        filename: Some(filename),
        size: field::<Size>(record.size, Field::Size)?,
        deleted_by_source: field(record.is_deleted_by_source, Field::Record)?,
        seen_by: seen_by(record.seen_by)?,
        version: None,
    })
}

fn read_journalist(id: JournalistId, record: &wire::User<'_>) -> Result<Journalist, Field> {
    Ok(Journalist {
        id,
        username: field::<Username>(record.username, Field::Username)?,
        first_name: name(record.first_name)?,
        last_name: name(record.last_name)?,
        version: None,
    })
}

/// Reads a field that must be there. The protocol's types check themselves.
fn field<'a, T: Deserialize<'a>>(raw: Raw<'a>, field: Field) -> Result<T, Field> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).ok_or(field)
}

/// The server writes "no name" as null or as an empty text.
fn name(raw: Raw<'_>) -> Result<Option<PersonName>, Field> {
    let Some(raw) = raw else { return Ok(None) };
    let text: String = serde_json::from_str(raw.get()).map_err(|_| Field::Name)?;
    if text.is_empty() { Ok(None) } else { PersonName::try_new(text).map(Some).map_err(|_| Field::Name) }
}

/// A source without a key has a `key` of two nulls; one without the other is a fault.
fn key(raw: Raw<'_>) -> Result<Option<SourceKey>, Field> {
    let key: wire::Key<'_> = field(raw.filter(|raw| is_object(raw.get())), Field::Key)?;
    match (key.public, key.fingerprint) {
        (None, None) => Ok(None),
        (public, fingerprint) => Ok(Some(SourceKey {
            armored: field::<ArmoredKey>(public, Field::Key)?,
            fingerprint: field::<Fingerprint>(fingerprint, Field::Key)?,
        })),
    }
}

/// An item names its source only by the source's URL, whose last component is the id.
fn source(raw: Raw<'_>) -> Result<SourceId, Field> {
    let url: String = field(raw, Field::Source)?;
    url.strip_prefix("/api/v1/sources/").and_then(|id| id.parse().ok()).ok_or(Field::Source)
}

/// The item's place in its conversation: the number before the file name's first `-`.
fn order(filename: &Filename) -> Result<OrderNumber, Field> {
    let digits = filename.as_str().split_once('-').map_or("", |(digits, _)| digits);
    // `u64::from_str` would take a sign too.
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Field::Order);
    }
    digits.parse().ok().and_then(|number| OrderNumber::try_new(number).ok()).ok_or(Field::Order)
}

/// The server gives seen marks in no fixed order; here the same marks are always the same list.
fn seen_by(raw: Raw<'_>) -> Result<Bounded<JournalistId, MAX_SEEN_BY>, Field> {
    let mut journalists: Vec<JournalistId> = field(raw, Field::SeenBy)?;
    journalists.sort_unstable();
    journalists.dedup();
    Bounded::try_new(journalists).map_err(|_| Field::SeenBy)
}

/// Reads a time stamp in any form that servers write: with `Z`, with an offset, with both (older servers append a `Z` to
/// an offset), or with neither, which means UTC. The fraction may be absent.
fn timestamp(text: &str) -> Option<Timestamp> {
    if text.len() > 40 || !text.contains('T') {
        return None;
    }
    let bare = text.strip_suffix('Z').unwrap_or(text);
    let moment = match bare.parse::<jiff::Timestamp>() {
        Ok(moment) => moment,
        Err(_) => {
            let civil: jiff::civil::DateTime = bare.parse().ok()?;
            jiff::tz::TimeZone::UTC.to_timestamp(civil).ok()?
        }
    };
    u64::try_from(moment.as_microsecond()).ok().and_then(|micros| Timestamp::try_new(micros).ok())
}

#[cfg(test)]
mod tests;
