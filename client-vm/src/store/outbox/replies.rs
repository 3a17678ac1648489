//! Replies: what they say, what becomes of those that were sent, and those that the server does not list.

use std::collections::{HashMap, HashSet};

use control::{ActId, ActState, OutgoingReply, QueueEntry, ReplyText};
use protocol::value::{SourceId, Timestamp, Username};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{Lane, Row, queue};
use crate::store::{StoreError, keys};

/// What the reply of a row says; `None` when the row is gone.
///
/// # Errors
/// [`StoreError`].
pub fn text(transaction: &Transaction<'_>, row: &Row) -> Result<Option<ReplyText>, StoreError> {
    let text: Option<String> = transaction
        .prepare_cached("SELECT text FROM outbox WHERE id = ?1 AND kind = 'reply'")?
        .query_row([row.id], |row| row.get(0))
        .optional()?;
    Ok(text.map(ReplyText::try_new).transpose()?)
}

/// Notes that no row but these is being sent: a session ended, or the program, or what became of an attempt could not be
/// stored. What was being sent waits for a snapshot that is asked for from now on; `snapshot` is the last one before.
///
/// # Errors
/// [`StoreError`].
pub fn land(transaction: &Transaction<'_>, snapshot: u64, running: &HashSet<i64>) -> Result<(), StoreError> {
    let snapshot = i64::try_from(snapshot).unwrap_or(i64::MAX);
    let mut select = transaction.prepare_cached("SELECT id FROM outbox WHERE in_flight")?;
    let in_flight: Vec<i64> = select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut update =
        transaction.prepare_cached("UPDATE outbox SET in_flight = 0, snapshot = max(snapshot, ?2) WHERE id = ?1")?;
    for id in in_flight.into_iter().filter(|id| !running.contains(id)) {
        update.execute([id, snapshot])?;
    }
    Ok(())
}

/// In how many lists that were not whole a reply may be missing before it counts as not listed.
const PATIENCE: u32 = 3;

/// Keeps what listed replies say, as what is held of the items that they have become, and lets those be sent again that were
/// sent and are not listed. A list of replies that was not `whole` may hold one without naming it; several such lists decide
/// all the same, or nobody could ever be sure. The rows of the listed ones are ended by the caller.
pub(super) fn after_snapshot(transaction: &Transaction<'_>, number: i64, whole: bool) -> Result<(), StoreError> {
    transaction
        .prepare_cached(
            "INSERT INTO local_item (item_id, is_reply, state, plain_bytes, text)
             SELECT item_id, 1, 'decrypted', length(CAST(text AS BLOB)), text FROM outbox
             WHERE kind = 'reply' AND EXISTS (
                 SELECT 1 FROM server_reply AS r WHERE r.id = item_id AND r.source_id = outbox.source_id
             )
             ON CONFLICT (item_id, is_reply) DO UPDATE SET state = 'decrypted', plain_bytes = excluded.plain_bytes,
                 text = excluded.text, seal = NULL, reason = NULL, wait_from_us = NULL, wait_us = NULL
             WHERE state <> 'decrypted'",
        )?
        .execute([])?;
    const NOT_LISTED: &str = "kind = 'reply' AND state = 'attempted' AND NOT in_flight AND snapshot < ?1
        AND NOT EXISTS (SELECT 1 FROM server_reply AS r WHERE r.id = item_id)
        AND EXISTS (SELECT 1 FROM server_source AS s WHERE s.id = source_id)";
    transaction
        .prepare_cached(&format!(
            "UPDATE outbox SET listed = CASE WHEN ?2 OR listed + 1 >= ?3 THEN 0 ELSE listed + 1 END,
                 state = CASE WHEN ?2 OR listed + 1 >= ?3 THEN 'pending' ELSE state END
             WHERE {NOT_LISTED}"
        ))?
        .execute(params![number, whole, PATIENCE])?;
    forget_gone(transaction)
}

/// Forgets drafts and keys of sources of which nothing is there any more. Which key one had is forgotten only where it was
/// deleted here: one that is listed again later is to have that one.
///
/// # Errors
/// [`StoreError`].
pub fn forget_gone(transaction: &Transaction<'_>) -> Result<(), StoreError> {
    const GONE: &str = "source_id NOT IN (SELECT id FROM known_source)";
    for change in [
        format!("DELETE FROM local_draft WHERE {GONE}"),
        format!(
            "DELETE FROM local_key WHERE {GONE} AND (fingerprint IS NULL OR source_id IN (
                 SELECT source_id FROM outbox
                 WHERE kind = 'delete_source' AND state = 'confirmed' AND confirmed_us IS NOT NULL
             ))"
        ),
        format!("{} {GONE}", keys::REDUCE),
    ] {
        transaction.prepare_cached(&change)?.execute([])?;
    }
    Ok(())
}

/// The replies to a source that the server does not list, in the order in which they were written.
///
/// # Errors
/// [`StoreError`].
pub fn outgoing(
    transaction: &Transaction<'_>,
    source: SourceId,
    now: Timestamp,
    lane: &Lane,
) -> Result<Vec<OutgoingReply>, StoreError> {
    let states: HashMap<ActId, QueueEntry> = queue(transaction, now, lane)?
        .into_iter()
        .filter(|entry| entry.source == source)
        .map(|entry| (entry.act, entry))
        .collect();
    let mut statement = transaction.prepare_cached(
        "SELECT o.item_id, o.act, o.journalist_id, j.username,
                o.journalist_id = (SELECT journalist_id FROM local_journalist), o.created_us, o.state, o.reason, o.text
         FROM outbox AS o LEFT JOIN server_journalist AS j ON j.id = o.journalist_id
         WHERE o.kind = 'reply' AND o.source_id = ?1 AND o.source_id IN (SELECT id FROM visible_source)
         ORDER BY o.id",
    )?;
    let mut rows = statement.query(params![source.as_str()])?;
    let mut replies = Vec::new();
    while let Some(row) = rows.next()? {
        let act = ActId(row.get(1)?);
        let state = match row.get::<_, String>(6)?.as_str() {
            "confirmed" => None,
            state => Some(states.get(&act).map_or_else(|| state_without_lane(state), |entry| entry.state.clone())),
        };
        replies.push(OutgoingReply {
            reply: row.get::<_, String>(0)?.parse()?,
            act,
            source,
            journalist: row.get::<_, String>(2)?.parse()?,
            username: row.get::<_, Option<String>>(3)?.map(Username::try_new).transpose()?,
            own: row.get::<_, Option<bool>>(4)?.unwrap_or(false),
            written: Timestamp::try_new(row.get(5)?)?,
            state,
            reason: row.get(7)?,
            text: ReplyText::try_new(row.get::<_, String>(8)?)?,
        });
    }
    Ok(replies)
}

fn state_without_lane(state: &str) -> ActState {
    match state {
        "refused" => ActState::Refused,
        "attempted" => ActState::Unconfirmed,
        _pending => ActState::Waiting,
    }
}
