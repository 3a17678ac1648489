//! The outbox: what journalists want, from their act until a snapshot shows it.
//!
//! A row is about one source or one item and goes `pending -> attempted -> confirmed`, or ends as `refused`. What anybody
//! sees are views over the mirror and these rows, so an act shows at once and undoes itself when it is refused.
//!
//! **Invariant:** a row is `attempted`, durably, before anything of it is sent, and it is `pending` again only after an
//! attempt that certainly had no effect, unless an earlier one may have had.
//!
//! **Invariant:** rows of one source are attempted in their order, one attempt at a time. A source's deletion comes before
//! its other rows, which end with it. A deletion that waits in its time of grace holds them back as well.
//!
//! **Invariant:** no snapshot undoes a row. It ends one whose effect it shows; two in a row that do not list its object end it
//! as well (where their lists are whole: others say nothing of what they do not name), and one alone does not.
//!
//! **Invariant:** a reply that may have been stored is sent again only after a snapshot that was asked for after the
//! attempt's end does not list it, and then under the same id. (One that a colleague has deleted before that snapshot cannot
//! be told from one that was never stored.) Where lists have entries that nobody can read, three of them say so, or one
//! and the user: the id keeps the server from storing it twice.
//!
//! **Invariant:** what a reply says stays until the server lists it, somebody dismisses it, or its source is deleted here or
//! its removal accepted. A source that the server takes off its list meanwhile is shown, without its content, as long as
//! there is a reply that was not sent to it, or a draft written since.

mod attempt;
mod deal;
mod enqueue;
mod grace;
mod queue;
mod replies;
mod settle;
mod snapshot;

use control::{ActId, ActKind};
use protocol::SubmissionKind;
use protocol::value::{ItemId, OrderNumber, Problem, ReplyId, SourceId, SubmissionId, ValueError};
use rusqlite::{Row as SqlRow, Transaction};

pub use attempt::{Batch, Ready, begin_attempt, ready};
pub use deal::{DealError, deal};
pub use enqueue::{EnqueueError, Enqueued, enqueue};
pub(in crate::store) use grace::grace_is_left;
pub use grace::{UndoError, give_grace, give_grace_anew, mend_grace, undo};
pub use queue::{Lane, counts, queue};
pub use replies::{forget_gone, land, outgoing, text};
pub use settle::{MAX_RETRY_AFTER, Outcome, Settled, Unsent, Waits, hold, is_open, put_off, refuse_unsent, settle};
pub(in crate::store) use snapshot::drop_source;
pub use snapshot::{SnapshotEffects, after_snapshot, last_snapshot};

use super::{StoreError, keys, removals};

/// A row, as far as sending it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its number: rows are sent in this order.
    pub id: i64,
    /// Its act.
    pub act: ActId,
    /// What it does.
    pub work: Work,
    /// The source that it is about, itself or as the item's.
    pub source: SourceId,
    /// Whether an earlier attempt may have had an effect.
    pub before: Before,
}

/// What a row was before an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Never sent, or certainly without effect.
    Pending,
    /// Sent before, and nobody knows what became of it.
    Attempted,
}

/// What a row does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Stars the source.
    Star,
    /// Takes the source's star away.
    Unstar,
    /// Marks the item as seen by the row's journalist.
    Seen(Item),
    /// Deletes the source.
    DeleteSource,
    /// Deletes the item.
    DeleteItem(Item),
    /// Sends the reply of this id.
    Reply(ReplyId),
}

impl Work {
    /// Its kind.
    #[must_use]
    pub fn kind(self) -> ActKind {
        match self {
            Self::Star => ActKind::Star,
            Self::Unstar => ActKind::Unstar,
            Self::Seen(_) => ActKind::Seen,
            Self::DeleteSource => ActKind::DeleteSource,
            Self::DeleteItem(_) => ActKind::DeleteItem,
            Self::Reply(_) => ActKind::Reply,
        }
    }
}

/// An item that a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Item {
    /// Which.
    pub name: ItemName,
    /// Its place in its conversation.
    pub order: OrderNumber,
}

/// An item's id and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ItemName {
    /// A message.
    Message(SubmissionId),
    /// A file.
    File(SubmissionId),
    /// A reply.
    Reply(ReplyId),
}

impl ItemName {
    /// Its id.
    #[must_use]
    pub fn id(self) -> ItemId {
        match self {
            Self::Message(id) | Self::File(id) => ItemId::Submission(id),
            Self::Reply(id) => ItemId::Reply(id),
        }
    }

    fn submission(id: SubmissionId, kind: SubmissionKind) -> Self {
        match kind {
            SubmissionKind::Message => Self::Message(id),
            SubmissionKind::File => Self::File(id),
        }
    }

    /// Its kind as columns hold it.
    pub(in crate::store) fn kind(self) -> &'static str {
        match self {
            Self::Message(_) => "message",
            Self::File(_) => "file",
            Self::Reply(_) => "reply",
        }
    }

    /// The mirror's table of its kind.
    pub(in crate::store) fn table(self) -> &'static str {
        match self {
            Self::Message(_) | Self::File(_) => "submission",
            Self::Reply(_) => "reply",
        }
    }

    pub(in crate::store) fn parse(kind: &str, id: &str) -> Result<Self, ValueError> {
        match kind {
            "message" => Ok(Self::submission(id.parse()?, SubmissionKind::Message)),
            "file" => Ok(Self::submission(id.parse()?, SubmissionKind::File)),
            "reply" => Ok(Self::Reply(id.parse()?)),
            _ => Err(ValueError { what: "an item's kind", problem: Problem::Malformed }),
        }
    }
}

/// The columns that [`read_row`] reads.
const ROW: &str = "id, act, kind, source_id, item_id, item_kind, item_order, state";

fn read_row(row: &SqlRow<'_>) -> Result<Row, StoreError> {
    let state: String = row.get(7)?;
    Ok(Row {
        id: row.get(0)?,
        act: ActId(row.get(1)?),
        work: read_work(row, 2, 4)?,
        source: row.get::<_, String>(3)?.parse()?,
        before: if state == "pending" { Before::Pending } else { Before::Attempted },
    })
}

/// Reads the column `kind`, and from column `item` on the item's id, kind and order.
fn read_work(row: &SqlRow<'_>, kind: usize, item: usize) -> Result<Work, StoreError> {
    let of_item = || -> Result<Item, StoreError> {
        let (id, kind): (String, String) = (row.get(item)?, row.get(item + 1)?);
        Ok(Item { name: ItemName::parse(&kind, &id)?, order: OrderNumber::try_new(row.get(item + 2)?)? })
    };
    Ok(match row.get::<_, String>(kind)?.as_str() {
        "star" => Work::Star,
        "unstar" => Work::Unstar,
        "seen" => Work::Seen(of_item()?),
        "delete_source" => Work::DeleteSource,
        "delete_item" => Work::DeleteItem(of_item()?),
        "reply" => Work::Reply(row.get::<_, String>(item)?.parse()?),
        _ => return Err(ValueError { what: "an act's kind", problem: Problem::Malformed }.into()),
    })
}

fn kind_name(kind: ActKind) -> &'static str {
    match kind {
        ActKind::Star => "star",
        ActKind::Unstar => "unstar",
        ActKind::Seen => "seen",
        ActKind::DeleteSource => "delete_source",
        ActKind::DeleteItem => "delete_item",
        ActKind::Reply => "reply",
    }
}

fn parse_kind(text: &str) -> Result<ActKind, ValueError> {
    let kinds =
        [ActKind::Star, ActKind::Unstar, ActKind::Seen, ActKind::DeleteSource, ActKind::DeleteItem, ActKind::Reply];
    kinds
        .into_iter()
        .find(|kind| kind_name(*kind) == text)
        .ok_or(ValueError { what: "an act's kind", problem: Problem::Malformed })
}

/// Reduces what the mirror holds of a source and its items to ids and digests: its deletion is confirmed. The digests keep
/// the server's list from bringing them back as long as it names them.
fn reduce_source(transaction: &Transaction<'_>, source: &SourceId) -> rusqlite::Result<usize> {
    let mut rows = 0;
    for table in ["submission", "reply"] {
        rows += transaction
            .prepare_cached(&format!(
                "DELETE FROM server_{table}_seen
                 WHERE {table}_id IN (SELECT id FROM server_{table} WHERE source_id = ?1)"
            ))?
            .execute([source.as_str()])?;
    }
    rows += transaction.prepare_cached(&format!("{REDUCE_SUBMISSION} source_id = ?1"))?.execute([source.as_str()])?;
    rows += transaction.prepare_cached(&format!("{REDUCE_REPLY} source_id = ?1"))?.execute([source.as_str()])?;
    rows += transaction
        .prepare_cached(
            "UPDATE server_source SET unreadable = NULL, designation = NULL, starred = NULL, last_updated_us = NULL,
                 interactions = NULL, key_armored = NULL, key_fingerprint = NULL
             WHERE id = ?1 AND designation IS NOT NULL",
        )?
        .execute([source.as_str()])?;
    removals::forget_source(transaction, source)?;
    // What is ours about it goes as well. Which key it had is kept until the server stops listing it: it may be restored,
    // and no other key may pass for the first one then.
    for change in [
        "DELETE FROM local_draft WHERE source_id = ?1",
        "DELETE FROM local_key WHERE source_id = ?1 AND fingerprint IS NULL",
        &format!("{} source_id = ?1", keys::REDUCE),
    ] {
        transaction.prepare_cached(change)?.execute([source.as_str()])?;
    }
    Ok(rows)
}

const REDUCE_SUBMISSION: &str = "UPDATE server_submission SET unreadable = NULL, source_id = NULL, kind = NULL,
    item_order = NULL, filename = NULL, size_bytes = NULL, read = NULL WHERE source_id IS NOT NULL AND";
const REDUCE_REPLY: &str = "UPDATE server_reply SET unreadable = NULL, source_id = NULL, author_id = NULL,
    item_order = NULL, filename = NULL, size_bytes = NULL, deleted_by_source = NULL WHERE source_id IS NOT NULL AND";

/// The same for one item.
fn reduce_item(transaction: &Transaction<'_>, item: ItemName) -> rusqlite::Result<usize> {
    let (table, id) = (item.table(), item.id());
    let marks = transaction
        .prepare_cached(&format!("DELETE FROM server_{table}_seen WHERE {table}_id = ?1"))?
        .execute([id.as_str()])?;
    let reduce = match item {
        ItemName::Message(_) | ItemName::File(_) => REDUCE_SUBMISSION,
        ItemName::Reply(_) => REDUCE_REPLY,
    };
    removals::forget_item(transaction, item)?;
    Ok(marks + transaction.prepare_cached(&format!("{reduce} id = ?1"))?.execute([id.as_str()])?)
}

/// Makes the next snapshot write anew whatever was reduced: no entry has this digest.
fn forget_reduced(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(
        "UPDATE server_source SET digest = zeroblob(32) WHERE designation IS NULL AND unreadable IS NULL;
         UPDATE server_submission SET digest = zeroblob(32) WHERE source_id IS NULL AND unreadable IS NULL;
         UPDATE server_reply SET digest = zeroblob(32) WHERE source_id IS NULL AND unreadable IS NULL;",
    )
}

#[cfg(test)]
mod tests;
