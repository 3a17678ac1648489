//! Takes an act.

use std::collections::BTreeSet;

use control::act::MAX_OBJECTS;
use control::{Act, ActId, ActKind, KeyState, ReplyText, Taken};
use protocol::value::{ItemId, JournalistId, ReplyId, SourceId, Timestamp};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{ItemName, kind_name};
use crate::store::{StoreError, keys};

/// An act was not taken, and nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    /// Nothing that is shown has this id.
    #[error("there is no source {0}")]
    NoSource(SourceId),
    /// Nothing that is shown in the source's conversation has this id.
    #[error("there is no item {0} in this conversation")]
    NoItem(ItemId),
    /// The server has it no more, and takes nothing about it.
    #[error("the source {0} is no longer on the server: it can only be deleted here")]
    Gone(SourceId),
    /// Nothing is done to what is on its way out.
    #[error("the source {0} is being deleted")]
    BeingDeleted(SourceId),
    /// Nothing can be encrypted to the source yet.
    #[error(
        "{0} has no key yet: it can be answered once the server has made one, which happens when the source returns"
    )]
    NoKey(SourceId),
    /// Something is wrong with the source's key.
    #[error("replies to {source_id} are held back: {detail}")]
    KeyHeld {
        /// The source.
        source_id: SourceId,
        /// What is wrong and what to do.
        detail: String,
    },
    /// Too many or none.
    #[error("an act names 1 to {MAX_OBJECTS} sources or items")]
    Objects,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<rusqlite::Error> for EnqueueError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// An act was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enqueued {
    /// What to tell whoever did it.
    pub taken: Taken,
    /// What it does.
    pub kind: ActKind,
    /// Its sources, and how many rows each has got.
    pub sources: Vec<(SourceId, u64)>,
}

/// Takes an act of `journalist`: from now on it shows. Acts that wait fold: of starring and unstarring a source the last
/// counts, and what is there already, or on its way, is not done twice. A deletion is sent at once unless the same transaction
/// gives it a time of grace.
///
/// # Errors
/// [`EnqueueError`]; the caller's transaction must then not be committed.
pub fn enqueue(
    transaction: &Transaction<'_>,
    journalist: JournalistId,
    act: &Act,
    now: Timestamp,
) -> Result<Enqueued, EnqueueError> {
    let mut desk = Desk { transaction, journalist, now, act: None, sources: Vec::new(), already: 0 };
    let kind = match act {
        Act::Star { sources } => desk.star(sources, ActKind::Star)?,
        Act::Unstar { sources } => desk.star(sources, ActKind::Unstar)?,
        Act::Seen { source, items } => desk.items(*source, items, ActKind::Seen)?,
        Act::DeleteSources { sources } => desk.delete_sources(sources)?,
        Act::DeleteItems { source, items } => desk.items(*source, items, ActKind::DeleteItem)?,
        Act::Reply { source, reply, text } => desk.reply(*source, *reply, text)?,
    };
    let objects = desk.sources.iter().map(|(_, rows)| rows).sum();
    Ok(Enqueued {
        taken: Taken { act: desk.act, objects, already: desk.already, grace_ms: 0 },
        kind,
        sources: desk.sources,
    })
}

struct Desk<'a> {
    transaction: &'a Transaction<'a>,
    journalist: JournalistId,
    now: Timestamp,
    /// Known once there is a row.
    act: Option<ActId>,
    sources: Vec<(SourceId, u64)>,
    already: u64,
}

/// How a source shows.
struct Shown {
    starred: bool,
    being_deleted: bool,
    gone: bool,
}

impl Desk<'_> {
    fn shown(&self, source: &SourceId) -> Result<Shown, EnqueueError> {
        self.transaction
            .prepare_cached("SELECT starred, being_deleted, gone FROM visible_source WHERE id = ?1")?
            .query_row([source.as_str()], |row| {
                Ok(Shown { starred: row.get(0)?, being_deleted: row.get(1)?, gone: row.get(2)? })
            })
            .optional()?
            .ok_or(EnqueueError::NoSource(*source))
    }

    fn star(&mut self, sources: &[SourceId], kind: ActKind) -> Result<ActKind, EnqueueError> {
        for source in distinct(sources)? {
            let shown = self.shown(&source)?;
            if shown.being_deleted {
                return Err(EnqueueError::BeingDeleted(source));
            }
            if shown.gone {
                return Err(EnqueueError::Gone(source));
            }
            if shown.starred == (kind == ActKind::Star) {
                self.already += 1;
                continue;
            }
            self.forget(
                "DELETE FROM outbox WHERE source_id = ?1 AND journalist_id = ?2 AND kind IN ('star', 'unstar')
                     AND state IN ('pending', 'refused')",
                source.as_str(),
            )?;
            self.add(source, kind, None, None)?;
        }
        Ok(kind)
    }

    fn delete_sources(&mut self, sources: &[SourceId]) -> Result<ActKind, EnqueueError> {
        for source in distinct(sources)? {
            if self.shown(&source)?.being_deleted {
                self.already += 1;
                continue;
            }
            self.forget(
                "DELETE FROM outbox WHERE source_id = ?1 AND journalist_id = ?2 AND kind = 'delete_source'
                     AND state = 'refused'",
                source.as_str(),
            )?;
            self.add(source, ActKind::DeleteSource, None, None)?;
        }
        Ok(ActKind::DeleteSource)
    }

    /// Acts on items of one conversation.
    fn items(&mut self, source: SourceId, items: &[ItemId], kind: ActKind) -> Result<ActKind, EnqueueError> {
        let items = distinct(items)?;
        if self.shown(&source)?.being_deleted {
            return match kind {
                ActKind::DeleteItem => {
                    self.already += u64::try_from(items.len()).unwrap_or(u64::MAX);
                    Ok(kind)
                }
                ActKind::Seen | ActKind::Star | ActKind::Unstar | ActKind::DeleteSource | ActKind::Reply => {
                    Err(EnqueueError::BeingDeleted(source))
                }
            };
        }
        for item in items {
            let found = self
                .transaction
                .prepare_cached(
                    "SELECT kind, item_order, unread, being_deleted FROM visible_item
                     WHERE source_id = ?1 AND id = ?2 AND (kind = 'reply') = ?3",
                )?
                .query_row(params![source.as_str(), item.as_str(), matches!(item, ItemId::Reply(_))], |row| {
                    Ok((
                        row.get::<_, String>(0)?,
                        row.get::<_, i64>(1)?,
                        row.get::<_, bool>(2)?,
                        row.get::<_, bool>(3)?,
                    ))
                })
                .optional()?;
            let Some((item_kind, order, unread, being_deleted)) = found else {
                return Err(EnqueueError::NoItem(item));
            };
            if being_deleted || (kind == ActKind::Seen && !unread) {
                self.already += 1;
                continue;
            }
            let name = ItemName::parse(&item_kind, item.as_str()).map_err(StoreError::from)?;
            self.transaction
                .prepare_cached(
                    "DELETE FROM outbox WHERE item_id = ?1 AND (item_kind = 'reply') = ?2 AND journalist_id = ?3
                         AND kind = ?4 AND state = 'refused'",
                )?
                .execute(params![
                    item.as_str(),
                    matches!(item, ItemId::Reply(_)),
                    self.journalist.as_str(),
                    kind_name(kind)
                ])?;
            self.add(source, kind, Some((name, Some(order))), None)?;
        }
        Ok(kind)
    }

    /// Takes a reply, and the draft that it was.
    fn reply(&mut self, source: SourceId, reply: ReplyId, text: &ReplyText) -> Result<ActKind, EnqueueError> {
        let shown = self.shown(&source)?;
        if shown.being_deleted {
            return Err(EnqueueError::BeingDeleted(source));
        }
        if shown.gone {
            return Err(EnqueueError::Gone(source));
        }
        let known: bool = self
            .transaction
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM outbox WHERE kind = 'reply' AND item_id = ?1)
                     OR EXISTS (SELECT 1 FROM server_reply WHERE id = ?1)",
            )?
            .query_row([reply.as_str()], |row| row.get(0))?;
        if known {
            self.already += 1;
            return Ok(ActKind::Reply);
        }
        match keys::state(self.transaction, source)? {
            KeyState::Pinned { .. } => {}
            KeyState::None => return Err(EnqueueError::NoKey(source)),
            KeyState::New { .. } => {
                let detail = "its key has just come and is being looked at: try again".to_owned();
                return Err(EnqueueError::KeyHeld { source_id: source, detail });
            }
            KeyState::Held { detail, .. } => return Err(EnqueueError::KeyHeld { source_id: source, detail }),
        }
        self.add(source, ActKind::Reply, Some((ItemName::Reply(reply), None)), Some(text))?;
        // Another draft stays.
        self.transaction
            .prepare_cached("DELETE FROM local_draft WHERE source_id = ?1 AND journalist_id = ?2 AND text = ?3")?
            .execute([source.as_str(), self.journalist.as_str(), text.as_str()])?;
        Ok(ActKind::Reply)
    }

    fn forget(&self, sql: &str, source: &str) -> rusqlite::Result<usize> {
        self.transaction.prepare_cached(sql)?.execute([source, self.journalist.as_str()])
    }

    fn add(
        &mut self,
        source: SourceId,
        kind: ActKind,
        item: Option<(ItemName, Option<i64>)>,
        text: Option<&ReplyText>,
    ) -> Result<(), EnqueueError> {
        self.transaction
            .prepare_cached(
                "INSERT INTO outbox
                     (act, journalist_id, kind, source_id, item_id, item_kind, item_order, created_us, text)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?
            .execute(params![
                self.act.map_or(0, |act| act.0),
                self.journalist.as_str(),
                kind_name(kind),
                source.as_str(),
                item.map(|(name, _)| name.id().to_string()),
                item.map(|(name, _)| name.kind()),
                item.and_then(|(_, order)| order),
                self.now.as_i64(),
                text.map(ReplyText::as_str),
            ])?;
        if self.act.is_none() {
            let first = self.transaction.last_insert_rowid();
            self.transaction.prepare_cached("UPDATE outbox SET act = id WHERE id = ?1")?.execute([first])?;
            self.act = Some(ActId(u64::try_from(first).unwrap_or_default()));
        }
        match self.sources.last_mut() {
            Some((last, rows)) if *last == source => *rows += 1,
            _ => self.sources.push((source, 1)),
        }
        Ok(())
    }
}

/// The named objects, each once, in their order.
fn distinct<T: Copy + Ord>(objects: &[T]) -> Result<Vec<T>, EnqueueError> {
    if objects.is_empty() || objects.len() > MAX_OBJECTS {
        return Err(EnqueueError::Objects);
    }
    let mut seen = BTreeSet::new();
    Ok(objects.iter().copied().filter(|object| seen.insert(*object)).collect())
}
