//! What the journalist does in a round: acts on objects of their own, and what each must change.

use std::collections::BTreeSet;

use control::{Act, Deletion, Failure, FailureKind, Reply, ReplyText, SourceRow, Taken};
use protocol::value::{ItemId, ReplyId, SourceId};

use super::{SoakError, wrong};
use crate::generator::{Prng, TERNBERG};
use crate::server::{Change, Command, Control, KeyChoice, Outcome, RecordId, SourceState};

/// The most items of a source.
const MOST_ITEMS: u64 = 4;
/// The most sources that one act deletes, while others act on sources of their own.
const MOST_SOURCES: u64 = 3;
/// The most replies to a source.
const MOST_REPLIES: u64 = 3;
/// The place of a key on Curve25519 in the pool.
const QUICK_KEY: usize = 1;
/// Bytes of ciphertext of an item.
const SIZE: u64 = 1_536;

/// An act, and what must come of it.
#[derive(Debug)]
pub(super) struct Deed {
    pub(super) act: Act,
    /// What it changes at the server.
    pub(super) changes: Changed,
    /// Whether it undoes what the deed before it did. Then that one need not show any more.
    pub(super) undoes: bool,
    /// How many sources or items it names.
    objects: u64,
    /// How its sources show from the moment at which it is taken.
    shows: Vec<(SourceId, Shows)>,
    /// Whether it was asked for, be it without an answer.
    pub(super) tried: bool,
    /// Whether the daemon has taken it.
    pub(super) taken: bool,
}

/// What acts change at the server.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// Each of them once.
    pub(super) once: Vec<Change>,
    /// Each of them once or, where an act was undone before it was sent, not at all.
    pub(super) at_most_once: Vec<Change>,
}

/// How a source shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shows {
    Starred(bool),
    NothingUnread,
    Items(u64),
    Going,
}

impl Deed {
    /// Whether the daemon's answer is that it has taken the act: now or, where it was asked `again`, before.
    pub(super) fn is_taken(&self, again: bool, answer: &Result<Taken, Failure>) -> bool {
        match answer {
            Ok(taken) if again => taken.objects + taken.already == self.objects,
            Ok(taken) => taken.objects == self.objects && taken.already == 0,
            // What is deleted cannot be found any more.
            Err(failure) => {
                let deletes = matches!(self.act, Act::DeleteSources { .. } | Act::DeleteItems { .. });
                again && deletes && failure.kind == FailureKind::NotFound
            }
        }
    }

    /// Another act was asked for that undoes it.
    pub(super) fn undone(&mut self) {
        self.shows.clear();
    }

    /// Whom it answers, under which id and what it says, if it is a reply that was taken.
    pub(super) fn told(&self) -> Option<(SourceId, ReplyId, &str)> {
        match &self.act {
            Act::Reply { source, reply, text } if self.taken => Some((*source, *reply, text.as_str())),
            Act::Reply { .. }
            | Act::Star { .. }
            | Act::Unstar { .. }
            | Act::Seen { .. }
            | Act::DeleteSources { .. }
            | Act::DeleteItems { .. } => None,
        }
    }

    /// What of it does not show though it was taken; `rows` are all sources that are shown.
    pub(super) fn not_shown(&self, rows: &[SourceRow]) -> Option<String> {
        for (source, shows) in self.shows.iter().filter(|_| self.taken) {
            let row = rows.iter().find(|row| row.id == *source);
            let good = match (shows, row) {
                (Shows::Starred(starred), Some(row)) => row.starred == *starred,
                (Shows::NothingUnread, Some(row)) => row.counts.unread == 0,
                (Shows::Items(items), Some(row)) => {
                    row.counts.messages + row.counts.files + row.counts.replies == *items
                }
                (Shows::Going, row) => row.is_none_or(|row| row.deletion == Deletion::Pending),
                (Shows::Starred(_) | Shows::NothingUnread | Shows::Items(_), None) => false,
            };
            if !good {
                return Some(format!("{:?} was taken, and {source} shows as {row:?}", self.act));
            }
        }
        None
    }

    /// The sources that it is about.
    fn sources(&self) -> Vec<SourceId> {
        match &self.act {
            Act::Star { sources } | Act::Unstar { sources } | Act::DeleteSources { sources } => sources.clone(),
            Act::Seen { source, .. } | Act::DeleteItems { source, .. } | Act::Reply { source, .. } => vec![*source],
        }
    }
}

/// Sources write, and acts are drawn for them: at least as many as asked for.
pub(super) fn of_a_round(
    control: &Control,
    journalist: &RecordId,
    acts: usize,
    dice: &mut Prng,
) -> Result<Vec<Deed>, SoakError> {
    let mut newcomers = Newcomers { control, dice };
    let mut deeds = Vec::new();
    while deeds.len() < acts {
        match newcomers.dice.below(8) {
            0 => deeds.push(newcomers.star()?),
            1 => deeds.push(newcomers.unstar()?),
            2 => deeds.extend(newcomers.star_and_unstar()?),
            3 => deeds.push(newcomers.seen(journalist)?),
            4 => deeds.push(newcomers.delete_item()?),
            5 => deeds.push(newcomers.delete_conversation()?),
            6 => deeds.extend(newcomers.replies(journalist)?),
            _ => deeds.push(newcomers.delete_sources()?),
        }
    }
    Ok(deeds)
}

/// Deletes the sources of these acts that are still there, by one act.
pub(super) fn rest_of_a_round(control: &Control, deeds: &[Deed]) -> Result<Vec<Deed>, SoakError> {
    let all: BTreeSet<SourceId> = deeds.iter().flat_map(Deed::sources).collect();
    let listed = |id: &SourceId| {
        control.with_world(|world| {
            let source = world.source(id.as_str()).filter(|source| source.state == SourceState::Listed);
            source.map(|source| source.id.clone())
        })
    };
    let left: Vec<_> = all.into_iter().filter_map(|id| listed(&id)).collect();
    if left.is_empty() { Ok(Vec::new()) } else { Ok(vec![deletion(&left)?]) }
}

/// What a shown conversation says under the id of a reply, which the server may list or not.
pub(super) fn said(conversation: &[Reply], id: ReplyId) -> Option<&str> {
    conversation.iter().find_map(|part| match part {
        Reply::Text(text) if text.item == ItemId::Reply(id) => Some(text.text.as_str()),
        Reply::Outgoing(outgoing) if outgoing.reply == id => Some(outgoing.text.as_str()),
        _other => None,
    })
}

fn deletion(sources: &[RecordId]) -> Result<Deed, SoakError> {
    let ids: Vec<SourceId> = sources.iter().map(|id| id.as_str().parse()).collect::<Result<_, _>>()?;
    Ok(Deed {
        changes: once(sources.iter().map(|source| Change::SourceDeleted { source: source.clone() }).collect()),
        undoes: false,
        objects: u64::try_from(ids.len()).unwrap_or(u64::MAX),
        shows: ids.iter().map(|id| (*id, Shows::Going)).collect(),
        act: Act::DeleteSources { sources: ids },
        tried: false,
        taken: false,
    })
}

struct Newcomers<'a> {
    control: &'a Control,
    dice: &'a mut Prng,
}

/// An item as the server and the protocol name it.
struct Item {
    record: RecordId,
    id: ItemId,
}

impl Item {
    fn deleted(&self) -> Change {
        match self.id {
            ItemId::Submission(_) => Change::SubmissionDeleted { submission: self.record.clone() },
            ItemId::Reply(_) => Change::ReplyDeleted { reply: self.record.clone() },
        }
    }

    fn seen_by(&self, journalist: &RecordId) -> Change {
        let (record, journalist) = (self.record.clone(), journalist.clone());
        match self.id {
            ItemId::Submission(_) => Change::SubmissionSeen { submission: record, journalist },
            ItemId::Reply(_) => Change::ReplySeen { reply: record, journalist },
        }
    }
}

impl Newcomers<'_> {
    fn source(&mut self) -> Result<RecordId, SoakError> {
        self.source_with(KeyChoice::Any)
    }

    fn source_with(&mut self, key: KeyChoice) -> Result<RecordId, SoakError> {
        let command = Command::NewSource { designation: None, key, state: SourceState::Listed };
        match self.control.apply(command)? {
            Outcome::Source { uuid, .. } => Ok(uuid),
            other => Err(wrong(format!("the server made no source: {other:?}"))),
        }
    }

    /// A source with one item at least.
    fn conversation(&mut self) -> Result<(RecordId, Vec<Item>), SoakError> {
        let source = self.source()?;
        let items = (0..=self.dice.below(MOST_ITEMS)).map(|_| self.item(&source)).collect::<Result<_, _>>()?;
        Ok((source, items))
    }

    fn item(&mut self, source: &RecordId) -> Result<Item, SoakError> {
        let (source, size) = (source.clone(), SIZE);
        let (command, is_reply) = match self.dice.below(3) {
            0 => (Command::NewMessage { source, size }, false),
            1 => (Command::NewFile { source, size }, false),
            // Somebody else's: one's own is seen by writing it.
            _ => (Command::NewReply { source, journalist: TERNBERG.username.to_owned(), size }, true),
        };
        let Outcome::Item { uuid: record, .. } = self.control.apply(command)? else {
            return Err(wrong("the server made no item"));
        };
        let id = match is_reply {
            true => ItemId::Reply(record.as_str().parse()?),
            false => ItemId::Submission(record.as_str().parse()?),
        };
        Ok(Item { record, id })
    }

    fn star(&mut self) -> Result<Deed, SoakError> {
        let source = self.source()?;
        let id: SourceId = source.as_str().parse()?;
        Ok(about(id, Act::Star { sources: vec![id] }, vec![Change::StarSet { source }], Shows::Starred(true)))
    }

    fn star_and_unstar(&mut self) -> Result<[Deed; 2], SoakError> {
        let source = self.source()?;
        let id: SourceId = source.as_str().parse()?;
        let perhaps = |change| Changed { once: Vec::new(), at_most_once: vec![change] };
        let star = about(id, Act::Star { sources: vec![id] }, Vec::new(), Shows::Starred(true));
        let unstar = about(id, Act::Unstar { sources: vec![id] }, Vec::new(), Shows::Starred(false));
        let set = perhaps(Change::StarSet { source: source.clone() });
        Ok([
            Deed { changes: set, objects: 1, ..star },
            Deed { changes: perhaps(Change::StarRemoved { source }), objects: 1, undoes: true, ..unstar },
        ])
    }

    fn unstar(&mut self) -> Result<Deed, SoakError> {
        let source = self.source()?;
        self.control.apply(Command::Star { source: source.clone() })?;
        let id: SourceId = source.as_str().parse()?;
        Ok(about(id, Act::Unstar { sources: vec![id] }, vec![Change::StarRemoved { source }], Shows::Starred(false)))
    }

    fn seen(&mut self, journalist: &RecordId) -> Result<Deed, SoakError> {
        let (source, items) = self.conversation()?;
        let source: SourceId = source.as_str().parse()?;
        let changes = items.iter().map(|item| item.seen_by(journalist)).collect();
        let act = Act::Seen { source, items: items.iter().map(|item| item.id).collect() };
        Ok(about(source, act, changes, Shows::NothingUnread))
    }

    /// Some replies to one source, which reads them with a quick key.
    fn replies(&mut self, journalist: &RecordId) -> Result<Vec<Deed>, SoakError> {
        let record = self.source_with(KeyChoice::Pool(QUICK_KEY))?;
        let source: SourceId = record.as_str().parse()?;
        let mut deeds = Vec::new();
        for number in 0..=self.dice.below(MOST_REPLIES) {
            let id = self.dice.uuid();
            let (reply, text) = (id.as_str().parse()?, ReplyText::try_new(format!("reply {number} as {id}"))?);
            let sent = Change::ReplySent { reply: id, source: record.clone(), journalist: journalist.clone() };
            let deed = about(source, Act::Reply { source, reply, text }, vec![sent], Shows::Starred(false));
            deeds.push(deed);
        }
        Ok(deeds)
    }

    fn delete_item(&mut self) -> Result<Deed, SoakError> {
        let (source, items) = self.conversation()?;
        let source: SourceId = source.as_str().parse()?;
        let item = self.dice.pick(&items).ok_or_else(|| wrong("a conversation is empty"))?;
        let left = u64::try_from(items.len()).unwrap_or(u64::MAX) - 1;
        let act = Act::DeleteItems { source, items: vec![item.id] };
        Ok(about(source, act, vec![item.deleted()], Shows::Items(left)))
    }

    fn delete_conversation(&mut self) -> Result<Deed, SoakError> {
        let (source, items) = self.conversation()?;
        let source: SourceId = source.as_str().parse()?;
        let changes = items.iter().map(Item::deleted).collect();
        let act = Act::DeleteItems { source, items: items.iter().map(|item| item.id).collect() };
        Ok(about(source, act, changes, Shows::Items(0)))
    }

    fn delete_sources(&mut self) -> Result<Deed, SoakError> {
        let count = 1 + self.dice.below(MOST_SOURCES);
        let sources: Vec<_> = (0..count).map(|_| Ok(self.conversation()?.0)).collect::<Result<_, SoakError>>()?;
        deletion(&sources)
    }
}

fn once(changes: Vec<Change>) -> Changed {
    Changed { once: changes, at_most_once: Vec::new() }
}

/// An act about one source, or items of it.
fn about(source: SourceId, act: Act, changes: Vec<Change>, shows: Shows) -> Deed {
    let objects = u64::try_from(changes.len()).unwrap_or(u64::MAX);
    let changes = once(changes);
    Deed { act, changes, undoes: false, objects, shows: vec![(source, shows)], tried: false, taken: false }
}
