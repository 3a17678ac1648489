//! What an applied snapshot says about rows.

use std::collections::BTreeSet;
use std::time::Duration;

use control::{ActChange, ActId, ActStep};
use protocol::value::{SourceId, Timestamp};
use rusqlite::{Row, Transaction, params};

use super::{ItemName, parse_kind, reduce_item, reduce_source, replies};
use crate::store::StoreError;

/// In how many snapshots a deleted object may be listed before that is told.
const PATIENCE: u32 = 3;

/// What a snapshot did to the outbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotEffects {
    /// The sources of the rows that ended.
    pub sources: BTreeSet<SourceId>,
    /// What became of acts: those that the server had not confirmed and that are settled now, and deletions of which it is to
    /// be told that the server has not made them.
    pub changes: Vec<ActChange>,
}

/// The number of the last snapshot that any row knows of: numbers go on from there.
///
/// # Errors
/// [`StoreError`].
pub fn last_snapshot(transaction: &Transaction<'_>) -> Result<u64, StoreError> {
    Ok(transaction.query_row("SELECT coalesce(max(snapshot), 0) FROM outbox", [], |row| row.get(0))?)
}

/// Whether a row's object is listed, held or kept.
const LISTED: &str = "CASE
    WHEN item_id IS NULL THEN source_id IN (SELECT id FROM known_source)
    WHEN item_kind = 'reply' THEN EXISTS (SELECT 1 FROM server_reply AS r WHERE r.id = item_id)
        OR EXISTS (SELECT 1 FROM local_removed_item AS r WHERE r.id = item_id AND r.is_reply)
    ELSE EXISTS (SELECT 1 FROM server_submission AS i WHERE i.id = item_id)
        OR EXISTS (SELECT 1 FROM local_removed_item AS r WHERE r.id = item_id AND NOT r.is_reply) END";

/// Ends what the mirror, to which the snapshot of this number was just applied, shows as done or as gone, and reduces again
/// what is deleted and still listed. `overdue` is how long after its confirmation a deletion may be listed at most; `whole` says
/// whether every entry of the list of replies had an id that could be read.
///
/// # Errors
/// [`StoreError`].
pub fn after_snapshot(
    transaction: &Transaction<'_>,
    number: u64,
    now: Timestamp,
    overdue: Duration,
    whole: bool,
) -> Result<SnapshotEffects, StoreError> {
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    let mut effects = SnapshotEffects::default();
    replies::after_snapshot(transaction, number, whole)?;
    settle_unreadable(transaction, &mut effects)?;
    end(transaction, number, whole, &mut effects)?;
    reduce_again(transaction)?;
    note_listed(transaction, number, now, overdue, &mut effects)?;
    Ok(effects)
}

/// A reply that is listed and cannot be read, or under another source, was sent. Its row stays, with what it says, until it
/// can be read where it belongs.
fn settle_unreadable(transaction: &Transaction<'_>, effects: &mut SnapshotEffects) -> Result<(), StoreError> {
    let mut statement = transaction.prepare_cached(
        "UPDATE outbox SET state = 'confirmed', in_flight = 0, reason = NULL, wait_from_us = NULL, wait_us = NULL
         WHERE kind = 'reply' AND state <> 'confirmed'
           AND EXISTS (
               SELECT 1 FROM server_reply AS r
               WHERE r.id = item_id AND (r.source_id <> outbox.source_id OR r.source_id IS NULL AND r.unreadable IS NOT NULL)
           )
         RETURNING act, kind, source_id",
    )?;
    let mut settled = statement.query([])?;
    while let Some(row) = settled.next()? {
        effects.sources.insert(row.get::<_, String>(2)?.parse()?);
        effects.add(row, ActStep::Settled)?;
    }
    Ok(())
}

/// Deletes the rows whose effect the mirror shows, and those about what is not listed any more.
fn end(
    transaction: &Transaction<'_>,
    number: i64,
    whole: bool,
    effects: &mut SnapshotEffects,
) -> Result<(), StoreError> {
    // An object of a source that is not listed is doomed like the source itself, unless that is held or kept. A confirmation
    // counts against snapshots that were asked for before it.
    let mut statement = transaction.prepare_cached(&format!(
        "DELETE FROM outbox
         WHERE CASE
             WHEN kind = 'reply' THEN EXISTS (
                     SELECT 1 FROM server_reply AS r WHERE r.id = item_id AND r.source_id = outbox.source_id
                 )
                 OR ?2 AND state = 'confirmed' AND snapshot < ?1 AND NOT ({LISTED})
                     AND EXISTS (SELECT 1 FROM server_source AS s WHERE s.id = source_id)
                 OR source_id NOT IN (SELECT id FROM known_source)
             WHEN NOT ({LISTED}) OR source_id NOT IN (SELECT id FROM known_source)
                 THEN state <> 'confirmed' OR snapshot < ?1
                     AND (kind <> 'delete_item' OR NOT ({LISTED}))
             WHEN kind IN ('star', 'unstar') THEN snapshot < ?1 AND (
                 state = 'confirmed' OR state = 'attempted' AND EXISTS (
                     SELECT 1 FROM server_source AS s WHERE s.id = source_id AND s.starred = (kind = 'star')
                 ))
             WHEN kind = 'seen' THEN state = 'confirmed' AND snapshot < ?1 OR state IN ('pending', 'attempted')
                 AND CASE WHEN item_kind = 'reply' THEN EXISTS (
                         SELECT 1 FROM server_reply_seen AS m
                         WHERE m.reply_id = item_id AND m.journalist_id = outbox.journalist_id
                     ) ELSE EXISTS (
                         SELECT 1 FROM server_submission_seen AS m
                         WHERE m.submission_id = item_id AND m.journalist_id = outbox.journalist_id
                     ) END
             ELSE 0 END
         RETURNING act, kind, source_id, state"
    ))?;
    let mut ended = statement.query(params![number, whole])?;
    while let Some(row) = ended.next()? {
        effects.sources.insert(row.get::<_, String>(2)?.parse()?);
        if row.get::<_, String>(3)? != "confirmed" {
            effects.add(row, ActStep::Settled)?;
        }
    }
    Ok(())
}

impl SnapshotEffects {
    /// Adds what became of a row, whose act, kind and source stand in the first columns.
    fn add(&mut self, row: &Row<'_>, step: ActStep) -> Result<(), StoreError> {
        let (act, kind) = (ActId(row.get(0)?), parse_kind(&row.get::<_, String>(1)?)?);
        let source: SourceId = row.get::<_, String>(2)?.parse()?;
        match self.changes.last_mut() {
            Some(last) if (last.act, last.kind, last.source, &last.step) == (act, kind, source, &step) => {
                last.objects += 1;
            }
            _ => self.changes.push(ActChange { act, kind, source, objects: 1, step }),
        }
        Ok(())
    }
}

/// The snapshot may have brought back what is deleted, where its record had changed.
fn reduce_again(transaction: &Transaction<'_>) -> Result<(), StoreError> {
    let mut statement = transaction.prepare_cached(
        "SELECT source_id, item_kind, item_id FROM outbox
         WHERE state = 'confirmed' AND kind IN ('delete_source', 'delete_item')",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (source, kind, id): (String, Option<String>, Option<String>) = (row.get(0)?, row.get(1)?, row.get(2)?);
        match (kind, id) {
            (Some(kind), Some(id)) => reduce_item(transaction, ItemName::parse(&kind, &id)?)?,
            _ => reduce_source(transaction, &source.parse()?)?,
        };
    }
    Ok(())
}

/// Counts the snapshots that list what is deleted, and finds what has been listed for too long.
fn note_listed(
    transaction: &Transaction<'_>,
    number: i64,
    now: Timestamp,
    overdue: Duration,
    effects: &mut SnapshotEffects,
) -> Result<(), StoreError> {
    transaction
        .prepare_cached(
            "UPDATE outbox SET listed = listed + 1
             WHERE state = 'confirmed' AND kind IN ('delete_source', 'delete_item') AND snapshot < ?1",
        )?
        .execute([number])?;
    let overdue = i64::try_from(overdue.as_micros()).unwrap_or(i64::MAX);
    let mut statement = transaction.prepare_cached(
        "UPDATE outbox SET not_deleted = 1
         WHERE state = 'confirmed' AND kind IN ('delete_source', 'delete_item') AND not_deleted = 0
           AND listed >= ?1 AND confirmed_us + ?2 <= ?3
         RETURNING act, kind, source_id",
    )?;
    let mut rows = statement.query(params![PATIENCE, overdue, now.as_i64()])?;
    while let Some(row) = rows.next()? {
        effects.add(row, ActStep::NotDeleted)?;
    }
    Ok(())
}
