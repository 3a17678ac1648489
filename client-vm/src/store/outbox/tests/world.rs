//! The few journalists, sources and items of these tests, as ids and records.

use std::collections::{BTreeMap, BTreeSet};

use control::{Act, ReplyText};
use protocol::value::{
    ArmoredKey, Bounded, Designation, Fingerprint, ItemId, JournalistId, OrderNumber, ReplyId, Size, SourceId,
    SubmissionId, Timestamp, Username,
};
use protocol::{Field, Listed, Reply, Source, SourceKey, Submission, SubmissionKind, Unreadable};
use rusqlite::Connection;

use super::super::{Item, ItemName, Work};
use crate::store::migration;

/// Journalists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Who {
    Anna,
    Ben,
}

impl Who {
    pub(super) const BOTH: [Self; 2] = [Self::Anna, Self::Ben];

    pub(super) fn id(self) -> JournalistId {
        match self {
            Self::Anna => id(1),
            Self::Ben => id(2),
        }
    }

    pub(super) fn name(self) -> Username {
        Username::try_new(match self {
            Self::Anna => "anna",
            Self::Ben => "ben",
        })
        .unwrap()
    }

    pub(super) fn of(journalist: JournalistId) -> Self {
        Self::BOTH.into_iter().find(|who| who.id() == journalist).unwrap()
    }
}

/// Sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Src(pub(super) u16);

impl Src {
    pub(super) fn id(self) -> SourceId {
        id(self.0)
    }

    pub(super) fn of(source: SourceId) -> Self {
        Self(number(source.as_str()))
    }
}

/// Items. One with an odd number is a reply, and its id is spelled like that of the submission before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Itm(pub(super) u16);

/// The first of the items that are replies written here.
const FIRST_ANSWER: u16 = 4_001;

impl Itm {
    /// A reply that is written here, before the server knows of it.
    pub(super) fn answer(number: u16) -> Self {
        Self(FIRST_ANSWER + 2 * number)
    }

    pub(super) fn is_answer(self) -> bool {
        self.0 >= FIRST_ANSWER
    }

    /// What a reply that is written here says.
    pub(super) fn text(self) -> ReplyText {
        ReplyText::try_new(format!("answer {}, für dich", self.0)).unwrap()
    }

    pub(super) fn name(self) -> ItemName {
        match self.0 % 4 {
            0 => ItemName::Message(id(self.0 / 2)),
            2 => ItemName::File(id(self.0 / 2)),
            _ => ItemName::Reply(id(self.0 / 2)),
        }
    }

    pub(super) fn id(self) -> ItemId {
        self.name().id()
    }

    pub(super) fn order(self) -> OrderNumber {
        OrderNumber::try_new(u64::from(self.0) + 1).unwrap()
    }

    pub(super) fn reply_id(self) -> ReplyId {
        id(self.0 / 2)
    }

    pub(super) fn of(item: ItemId) -> Self {
        match item {
            ItemId::Submission(id) => Self(number(id.as_str()) * 2),
            ItemId::Reply(id) => Self(number(id.as_str()) * 2 + 1),
        }
    }
}

fn id<I: std::str::FromStr<Err: std::fmt::Debug>>(number: u16) -> I {
    format!("{number:08x}-0000-4000-8000-000000000000").parse().unwrap()
}

fn number(id: &str) -> u16 {
    u16::from_str_radix(id.split_once('-').unwrap().0, 16).unwrap()
}

/// What one row does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Star(Src),
    Unstar(Src),
    Seen(Src, Itm),
    DeleteSource(Src),
    DeleteItem(Src, Itm),
    Reply(Src, Itm),
}

impl What {
    pub(super) fn source(self) -> Src {
        match self {
            Self::Star(source)
            | Self::Unstar(source)
            | Self::Seen(source, _)
            | Self::DeleteSource(source)
            | Self::DeleteItem(source, _)
            | Self::Reply(source, _) => source,
        }
    }

    /// The item that must be there for it.
    pub(super) fn item(self) -> Option<Itm> {
        match self {
            Self::Seen(_, item) | Self::DeleteItem(_, item) => Some(item),
            Self::Star(_) | Self::Unstar(_) | Self::DeleteSource(_) | Self::Reply(..) => None,
        }
    }

    /// The item that it makes.
    pub(super) fn reply(self) -> Option<Itm> {
        match self {
            Self::Reply(_, item) => Some(item),
            Self::Star(_) | Self::Unstar(_) | Self::Seen(..) | Self::DeleteSource(_) | Self::DeleteItem(..) => None,
        }
    }

    /// What a source's star becomes by it.
    pub(super) fn star(self) -> Option<bool> {
        match self {
            Self::Star(_) => Some(true),
            Self::Unstar(_) => Some(false),
            Self::Seen(..) | Self::DeleteSource(_) | Self::DeleteItem(..) | Self::Reply(..) => None,
        }
    }

    pub(super) fn is_mark(self) -> bool {
        !self.is_deletion() && self.reply().is_none()
    }

    pub(super) fn is_deletion(self) -> bool {
        matches!(self, Self::DeleteSource(_) | Self::DeleteItem(..))
    }

    pub(super) fn work(self) -> Work {
        let item = |item: Itm| Item { name: item.name(), order: item.order() };
        match self {
            Self::Star(_) => Work::Star,
            Self::Unstar(_) => Work::Unstar,
            Self::Seen(_, seen) => Work::Seen(item(seen)),
            Self::DeleteSource(_) => Work::DeleteSource,
            Self::DeleteItem(_, deleted) => Work::DeleteItem(item(deleted)),
            Self::Reply(_, reply) => Work::Reply(reply.reply_id()),
        }
    }
}

/// What a journalist asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    Star(Vec<Src>),
    Unstar(Vec<Src>),
    Seen(Src, Vec<Itm>),
    DeleteSources(Vec<Src>),
    DeleteItems(Src, Vec<Itm>),
    Reply(Src, Itm),
}

impl Wish {
    pub(super) fn is_deletion(&self) -> bool {
        matches!(self, Self::DeleteSources(_) | Self::DeleteItems(..))
    }

    pub(super) fn act(&self) -> Act {
        let ids = |sources: &[Src]| sources.iter().map(|source| source.id()).collect();
        let items = |items: &[Itm]| items.iter().map(|item| item.id()).collect();
        match self {
            Self::Star(sources) => Act::Star { sources: ids(sources) },
            Self::Unstar(sources) => Act::Unstar { sources: ids(sources) },
            Self::Seen(source, seen) => Act::Seen { source: source.id(), items: items(seen) },
            Self::DeleteSources(sources) => Act::DeleteSources { sources: ids(sources) },
            Self::DeleteItems(source, deleted) => Act::DeleteItems { source: source.id(), items: items(deleted) },
            Self::Reply(source, reply) => {
                Act::Reply { source: source.id(), reply: reply.reply_id(), text: reply.text() }
            }
        }
    }
}

/// A source as the server lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceRecord {
    pub(super) starred: bool,
    /// Grows with each item that comes, and shows in the record.
    pub(super) writes: u16,
}

/// An item as the server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ItemRecord {
    pub(super) source: Src,
    pub(super) seen_by: BTreeSet<Who>,
}

/// An entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry<R> {
    Record(R),
    /// Only its id could be read.
    Unreadable,
}

/// What was wrong with the lists of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Damage {
    /// This source is listed, and its id cannot be read; if it is not listed, something else was.
    pub(super) nameless_source: Option<Src>,
    /// The same for an item: one of the list of replies, or of the other.
    pub(super) nameless_item: Option<Itm>,
    pub(super) unreadable_source: Option<Src>,
    pub(super) unreadable_item: Option<Itm>,
    /// The server leaves this source out, or some of its items, though they are there.
    pub(super) left_out: Option<LeftOut>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub(super) source: Src,
    pub(super) itself: bool,
    pub(super) items: bool,
}

/// Lists as they came.
#[derive(Debug, Clone)]
pub(super) struct Lists {
    pub(super) sources: BTreeMap<Src, Entry<SourceRecord>>,
    pub(super) items: BTreeMap<Itm, Entry<ItemRecord>>,
    pub(super) whole_sources: bool,
    pub(super) whole_submissions: bool,
    pub(super) whole_replies: bool,
    /// Something that is there is not named.
    pub(super) hides: bool,
}

impl Lists {
    pub(super) fn new((mut sources, mut items): (SourceList, ItemList), damage: &Damage) -> Self {
        if let Some(LeftOut { source, itself, items: also_items }) = damage.left_out {
            sources.retain(|listed, _| !(itself && *listed == source));
            items.retain(|_, record| !(also_items && record.source == source));
        }
        sources.retain(|listed, _| Some(*listed) != damage.nameless_source);
        items.retain(|listed, _| Some(*listed) != damage.nameless_item);
        let is_reply = damage.nameless_item.map(|item| matches!(item.name(), ItemName::Reply(_)));
        Self {
            sources: entries(sources, damage.unreadable_source),
            items: entries(items, damage.unreadable_item),
            whole_sources: damage.nameless_source.is_none(),
            whole_submissions: is_reply != Some(false),
            whole_replies: is_reply != Some(true),
            hides: damage.left_out.is_some() || damage.nameless_item.is_some(),
        }
    }

    /// Whether every entry of the list that this item would be in had an id.
    pub(super) fn whole_for(&self, item: Itm) -> bool {
        if matches!(item.name(), ItemName::Reply(_)) { self.whole_replies } else { self.whole_submissions }
    }
}

fn entries<K: Ord, R>(records: BTreeMap<K, R>, unreadable: Option<K>) -> BTreeMap<K, Entry<R>> {
    let entry =
        |key: &K, record| if unreadable.as_ref() == Some(key) { Entry::Unreadable } else { Entry::Record(record) };
    records.into_iter().map(|(key, record)| (entry(&key, record), key)).map(|(entry, key)| (key, entry)).collect()
}

pub(super) type SourceList = BTreeMap<Src, SourceRecord>;
pub(super) type ItemList = BTreeMap<Itm, ItemRecord>;

pub(super) fn listed_source(source: Src, entry: &Entry<SourceRecord>) -> Listed<Source> {
    let record = match entry {
        Entry::Record(record) => record,
        Entry::Unreadable => {
            return Listed::Unreadable(Unreadable { id: Some(source.id()), field: Field::Designation });
        }
    };
    Listed::Readable(Source {
        id: source.id(),
        designation: Designation::try_new("quiet harbour").unwrap(),
        starred: record.starred,
        last_updated: Timestamp::try_new(u64::from(record.writes)).unwrap(),
        interactions: OrderNumber::try_new(u64::from(record.writes)).unwrap(),
        key: Some(SourceKey {
            armored: ArmoredKey::try_new("-----BEGIN PGP PUBLIC KEY BLOCK-----\n").unwrap(),
            fingerprint: Fingerprint::try_new(format!("{:040X}", source.0)).unwrap(),
        }),
        version: None,
    })
}

/// An entry of one of the two lists of items.
pub(super) enum ListedItem {
    Submission(Listed<Submission>),
    Reply(Listed<Reply>),
}

/// An entry of which nothing can be read.
pub(super) fn nameless<T: protocol::record::Record>() -> Listed<T> {
    Listed::Unreadable(Unreadable { id: None, field: Field::Id })
}

pub(super) fn listed_item(item: Itm, entry: &Entry<ItemRecord>) -> ListedItem {
    let record = match entry {
        Entry::Record(record) => record,
        Entry::Unreadable => {
            let field = Field::Size;
            return match item.name() {
                ItemName::Message(id) | ItemName::File(id) => {
                    ListedItem::Submission(Listed::Unreadable(Unreadable { id: Some(id), field }))
                }
                ItemName::Reply(id) => ListedItem::Reply(Listed::Unreadable(Unreadable { id: Some(id), field })),
            };
        }
    };
    let (source, order, size) = (record.source.id(), item.order(), Size::try_new(612).unwrap());
    let seen_by = Bounded::try_new(record.seen_by.iter().map(|who| who.id()).collect()).unwrap();
    let submission = |id: SubmissionId, kind| {
        ListedItem::Submission(Listed::Readable(Submission {
            id,
            source,
            kind,
            order,
            filename: None,
            size,
            read: false,
            seen_by: seen_by.clone(),
            version: None,
        }))
    };
    let reply = |id: ReplyId| {
        ListedItem::Reply(Listed::Readable(Reply {
            id,
            source,
            author: Who::Anna.id(),
            order,
            filename: None,
            size,
            deleted_by_source: false,
            seen_by: seen_by.clone(),
            version: None,
        }))
    };
    match item.name() {
        ItemName::Message(id) => submission(id, SubmissionKind::Message),
        ItemName::File(id) => submission(id, SubmissionKind::File),
        ItemName::Reply(id) => reply(id),
    }
}

/// A new store in memory, as the daemon would have it.
pub(super) fn new_store() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    connection.set_prepared_statement_cache_capacity(256);
    connection.pragma_update(None, "foreign_keys", "ON").unwrap();
    migration::migrate(&mut connection).unwrap();
    connection
}
