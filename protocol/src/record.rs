//! The records that the metadata calls list.
//!
//! A record carries what no other record says and what cannot be derived: no URLs, no counts of other records.
//!
//! **Invariant:** unreadable is not absent. A record that the proxy could not read is listed as [`Unreadable`], so that
//! nothing that is held of it is taken for deleted.

use std::fmt;
use std::hash::Hash;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::value::{
    ArmoredKey, Bounded, Designation, Filename, Fingerprint, JournalistId, OrderNumber, PersonName, ReplyId,
    ServerVersion, Size, SourceId, SubmissionId, Timestamp, Username, ValueError,
};

/// The most journalists that one item's seen marks name.
pub const MAX_SEEN_BY: usize = 1024;

/// What every kind of record has.
pub trait Record: Clone + fmt::Debug + PartialEq + Eq + Serialize + DeserializeOwned {
    /// The type of its id.
    type Id: Copy
        + fmt::Debug
        + fmt::Display
        + FromStr<Err = ValueError>
        + Eq
        + Ord
        + Hash
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static;

    /// Its id.
    fn id(&self) -> Self::Id;
}

/// One entry of a list: a record, or the mark of one that the proxy could not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "")]
pub enum Listed<T: Record> {
    /// A record.
    Readable(T),
    /// A record that is there and cannot be read.
    Unreadable(Unreadable<T::Id>),
}

impl<T: Record> Listed<T> {
    /// The entry's id; `None` when not even that could be read.
    pub fn id(&self) -> Option<T::Id> {
        match self {
            Self::Readable(record) => Some(record.id()),
            Self::Unreadable(unreadable) => unreadable.id,
        }
    }
}

/// The mark of a record that the proxy could not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable<I> {
    /// The record's id, if that much could be read.
    pub id: Option<I>,
    /// What could not be read.
    pub field: Field,
}

/// A part of a record, as named in an [`Unreadable`] mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Field {
    /// The record as a whole: no object, a field missing or of another type, or too large.
    Record,
    /// Its id.
    Id,
    /// The source it belongs to.
    Source,
    /// The source's designation.
    Designation,
    /// The moment of the last change.
    LastUpdated,
    /// The key or its fingerprint, or one without the other.
    Key,
    /// The order number, or the count of items ever.
    Order,
    /// The file name.
    Filename,
    /// The size.
    Size,
    /// Whether it is a message or a file: neither, or both.
    Kind,
    /// The journalist who wrote it.
    Author,
    /// The journalists who have seen it.
    SeenBy,
    /// The journalist's login name.
    Username,
    /// A journalist's first or last name.
    Name,
}

impl Field {
    /// Every part.
    pub const ALL: [Self; 14] = [
        Self::Record,
        Self::Id,
        Self::Source,
        Self::Designation,
        Self::LastUpdated,
        Self::Key,
        Self::Order,
        Self::Filename,
        Self::Size,
        Self::Kind,
        Self::Author,
        Self::SeenBy,
        Self::Username,
        Self::Name,
    ];

    /// The field's name, for messages and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Id => "id",
            Self::Source => "source",
            Self::Designation => "designation",
            Self::LastUpdated => "last_updated",
            Self::Key => "key",
            Self::Order => "order",
            Self::Filename => "filename",
            Self::Size => "size",
            Self::Kind => "kind",
            Self::Author => "author",
            Self::SeenBy => "seen_by",
            Self::Username => "username",
            Self::Name => "name",
        }
    }
}

/// A source: somebody who writes to the newsroom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its id.
    pub id: SourceId,
    /// Its designation.
    pub designation: Designation,
    /// Whether a journalist starred it. Shared by all journalists.
    pub starred: bool,
    /// When the source last sent something.
    pub last_updated: Timestamp,
    /// How many items its conversation ever had, deleted ones included.
    pub interactions: OrderNumber,
    /// The key for replies; none while the server has not made one.
    pub key: Option<SourceKey>,
    /// The record's version, where the server's API has versions.
    pub version: Option<ServerVersion>,
}

/// A source's public key, as the server sent it. Whether armor and fingerprint belong together is not checked here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceKey {
    /// The key in ASCII armor.
    pub armored: ArmoredKey,
    /// The fingerprint that the server claims for it.
    pub fingerprint: Fingerprint,
}

/// What a source sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// Its id.
    pub id: SubmissionId,
    /// Who sent it.
    pub source: SourceId,
    /// Message or file.
    pub kind: SubmissionKind,
    /// Its place in the conversation.
    pub order: OrderNumber,
    /// The name under which the server lists it; version 2 of the API has none.
    pub filename: Option<Filename>,
    /// The length of its ciphertext in bytes.
    pub size: Size,
    /// Whether the server counts it as read; it can be read and seen by nobody in particular.
    pub read: bool,
    /// Who has seen it, in ascending order, each once.
    pub seen_by: Bounded<JournalistId, MAX_SEEN_BY>,
    /// The record's version, where the server's API has versions.
    pub version: Option<ServerVersion>,
}

/// The two kinds of submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SubmissionKind {
    /// A text.
    Message,
    /// A document.
    File,
}

/// What a journalist wrote to a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Its id.
    pub id: ReplyId,
    /// To whom it was written.
    pub source: SourceId,
    /// Who wrote it. The replies of a deleted journalist belong to the account named `deleted`.
    pub author: JournalistId,
    /// Its place in the conversation.
    pub order: OrderNumber,
    /// The name under which the server lists it; version 2 of the API has none.
    pub filename: Option<Filename>,
    /// The length of its ciphertext in bytes.
    pub size: Size,
    /// Whether the source has read it and deleted it on its side.
    pub deleted_by_source: bool,
    /// Who has seen it, in ascending order, each once.
    pub seen_by: Bounded<JournalistId, MAX_SEEN_BY>,
    /// The record's version, where the server's API has versions.
    pub version: Option<ServerVersion>,
}

/// A journalist's account on the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journalist {
    /// Its id.
    pub id: JournalistId,
    /// The login name.
    pub username: Username,
    /// The first name, if the account has one.
    pub first_name: Option<PersonName>,
    /// The last name, if the account has one.
    pub last_name: Option<PersonName>,
    /// The record's version, where the server's API has versions.
    pub version: Option<ServerVersion>,
}

macro_rules! record {
    ($($record:ty => $id:ty),+ $(,)?) => {
        $(impl Record for $record {
            type Id = $id;

            fn id(&self) -> $id {
                self.id
            }
        })+
    };
}
record! { Source => SourceId, Submission => SubmissionId, Reply => ReplyId, Journalist => JournalistId }
