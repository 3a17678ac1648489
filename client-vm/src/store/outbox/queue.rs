//! What waits, runs or was refused, as front ends show it.

use std::collections::HashSet;

use control::QueueCounts;
use control::{ActId, ActKind, ActState, QueueEntry};
use protocol::value::{Designation, SourceId, Timestamp, Username};
use rusqlite::{Transaction, params};

use super::grace::IN_GRACE;
use super::parse_kind;
use crate::store::StoreError;

/// What is being done at the moment with acts of whoever signed in last, which the store does not know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lane {
    /// The acts that are being sent, and about which sources.
    pub running: HashSet<(ActId, SourceId)>,
    /// The acts that delete or answer and have their calls.
    pub open: HashSet<ActId>,
    /// Those whose calls are being opened.
    pub opening: HashSet<ActId>,
    /// Whether the call for marks is being opened.
    pub opening_marks: bool,
    /// Those that go on only by the user's word: dom0 would be asked again, and their calls are not there.
    pub held: HashSet<ActId>,
    /// Whether the same holds for marks.
    pub held_marks: bool,
    /// Whether anybody is signed in: only then time of grace runs, and only then it can be made use of.
    pub signed_in: bool,
}

/// Why what is about a source whose removal is held does not go on.
const REMOVAL_IS_HELD: &str = "the server lists its source no more: `splitdrop removals` says what is to become of it";

/// What waits, runs, was refused or was not deleted, oldest act first.
///
/// # Errors
/// [`StoreError`].
pub fn queue(transaction: &Transaction<'_>, now: Timestamp, lane: &Lane) -> Result<Vec<QueueEntry>, StoreError> {
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT o.act, o.kind, o.source_id, coalesce(s.designation, r.designation), count(*), o.journalist_id, j.username,
                o.journalist_id = (SELECT journalist_id FROM local_journalist) AS own, o.state, o.held, o.not_deleted,
                min(o.created_us), max(o.attempts),
                -- The clock was set back: it is due.
                min(CASE WHEN o.wait_from_us > ?1 THEN NULL ELSE o.wait_from_us + o.wait_us END), max(o.reason),
                {IN_GRACE} AND (wait_from_us > ?1 OR wait_from_us + wait_us > ?1) AS grace,
                r.id IS NOT NULL AND NOT r.kept
         FROM outbox AS o
         LEFT JOIN server_source AS s ON s.id = o.source_id
         LEFT JOIN local_removed_source AS r ON r.id = o.source_id
         LEFT JOIN server_journalist AS j ON j.id = o.journalist_id
         WHERE o.state <> 'confirmed' OR o.not_deleted = 1
         GROUP BY o.act, o.kind, o.source_id, o.journalist_id, o.state, o.held, o.not_deleted, grace
         ORDER BY o.act, min(o.id)"
    ))?;
    let mut rows = statement.query(params![now.as_i64()])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        let (act, source): (ActId, SourceId) = (ActId(row.get(0)?), row.get::<_, String>(2)?.parse()?);
        let kind = parse_kind(&row.get::<_, String>(1)?)?;
        let own = row.get::<_, Option<bool>>(7)?.unwrap_or(false);
        let (held, not_deleted): (bool, bool) = (row.get(9)?, row.get(10)?);
        let state = match row.get::<_, String>(8)?.as_str() {
            "refused" => ActState::Refused,
            "confirmed" => ActState::NotDeleted,
            _ if not_deleted => ActState::NotDeleted,
            _ if own && lane.running.contains(&(act, source)) => ActState::Running,
            _ if own && lane.opening.contains(&act) => ActState::Opening,
            "pending" if own && lane.opening_marks && is_mark(kind) => ActState::Opening,
            _ if held && !lane.open.contains(&act) => ActState::Held,
            "pending" if own && lane.held.contains(&act) && !lane.open.contains(&act) => ActState::Held,
            _ if own && lane.held_marks && is_mark(kind) => ActState::Held,
            "pending" if own && lane.signed_in && row.get(15)? => ActState::Grace,
            "pending" => ActState::Waiting,
            _ => ActState::Unconfirmed,
        };
        let next_try: Option<u64> = row.get(13)?;
        let (mut reason, removal_is_held): (Option<String>, bool) = (row.get(14)?, row.get(16)?);
        if removal_is_held && state == ActState::Waiting {
            reason = Some(REMOVAL_IS_HELD.to_owned());
        }
        entries.push(QueueEntry {
            act,
            kind,
            source,
            designation: row.get::<_, Option<String>>(3)?.map(Designation::try_new).transpose()?,
            objects: row.get(4)?,
            journalist: row.get::<_, String>(5)?.parse()?,
            username: row.get::<_, Option<String>>(6)?.map(Username::try_new).transpose()?,
            own,
            state,
            since: Timestamp::try_new(row.get(11)?)?,
            attempts: row.get(12)?,
            next_try: next_try.filter(|due| *due > now.get()).map(Timestamp::try_new).transpose()?,
            reason,
        });
    }
    Ok(entries)
}

fn is_mark(kind: ActKind) -> bool {
    match kind {
        ActKind::Star | ActKind::Unstar | ActKind::Seen => true,
        ActKind::DeleteSource | ActKind::DeleteItem | ActKind::Reply => false,
    }
}

/// How much waits, was refused or was not deleted.
///
/// # Errors
/// [`StoreError`].
pub fn counts(transaction: &Transaction<'_>) -> Result<QueueCounts, StoreError> {
    Ok(transaction
        .prepare_cached(
            "SELECT coalesce(sum(open AND own), 0), coalesce(sum(open AND NOT own), 0),
                    coalesce(sum(state = 'refused'), 0), coalesce(sum(not_deleted), 0)
             FROM (
                 SELECT state, not_deleted, state IN ('pending', 'attempted') AS open,
                        journalist_id = coalesce((SELECT journalist_id FROM local_journalist), '') AS own
                 FROM outbox
             )",
        )?
        .query_row([], |row| {
            Ok(QueueCounts {
                waiting: row.get(0)?,
                of_others: row.get(1)?,
                refused: row.get(2)?,
                not_deleted: row.get(3)?,
            })
        })?)
}
