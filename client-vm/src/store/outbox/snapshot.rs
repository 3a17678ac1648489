//! What an applied snapshot says about rows.
//!
//! **Invariant:** only what the snapshot has named says anything of itself, and only where it could be read. What the mirror
//! holds besides is what an earlier snapshot said.
//!
//! **Invariant:** one snapshot that leaves an object out forgets no act about it. The act is set aside, unless it was refused,
//! and ends with the next one whose list is whole and without the object; one that lists it again brings the act back as it
//! was.
//!
//! A row that is set aside is `confirmed` without a time of confirmation: nobody has confirmed it but the list. `sent` says
//! what it was before.

use std::collections::BTreeSet;
use std::time::Duration;

use control::{ActChange, ActId, ActStep, FailureKind};
use protocol::value::{ReplyId, SourceId, SubmissionId, Timestamp};
use rusqlite::{Params, Row, Transaction, params};

use super::grace::grace_is_left;
use super::{ItemName, parse_kind, reduce_item, reduce_source, replies};
use crate::failure::failure;
use crate::store::{StoreError, removals};
use crate::sync::Plan;

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
/// Whether the mirror holds a row's object, and its source. What is only held or kept is named by no list: nothing would ever
/// end an act about it that the server has confirmed.
const MIRRORED: &str = "(source_id IN (SELECT id FROM server_source) AND CASE
    WHEN item_id IS NULL THEN true
    WHEN item_kind = 'reply' THEN EXISTS (SELECT 1 FROM server_reply AS r WHERE r.id = item_id)
    ELSE EXISTS (SELECT 1 FROM server_submission AS i WHERE i.id = item_id) END)";
/// Whether what the mirror holds of a row's object could be read when it was last named.
const READABLE: &str = "CASE
    WHEN item_id IS NULL THEN EXISTS (SELECT 1 FROM server_source AS s WHERE s.id = source_id AND s.unreadable IS NULL)
    WHEN item_kind = 'reply' THEN
        EXISTS (SELECT 1 FROM server_reply AS r WHERE r.id = item_id AND r.unreadable IS NULL)
    ELSE EXISTS (SELECT 1 FROM server_submission AS i WHERE i.id = item_id AND i.unreadable IS NULL) END";
/// Whether a row is set aside.
pub(super) const SET_ASIDE: &str = "(state = 'confirmed' AND confirmed_us IS NULL AND kind <> 'reply')";
/// Of a reply: whether its source is only kept, and the server takes nothing for it.
const TO_KEPT: &str = "source_id IN (SELECT id FROM local_removed_source WHERE kept)
    AND source_id NOT IN (SELECT id FROM server_source)";

/// Whether a row's object is there, or held or kept. One of a source that is not is doomed like the source itself.
fn there() -> String {
    format!("({LISTED} AND source_id IN (SELECT id FROM known_source))")
}

/// What a snapshot is to the rows.
struct Applied {
    number: i64,
    now: i64,
    /// The numbers of the rows whose objects it has named, as a JSON array: the form in which SQL takes a set.
    named: String,
    /// Whether every entry of the list of replies had an id that could be read.
    whole: bool,
    /// The same of the lists of sources and of submissions.
    whole_sources: bool,
    whole_submissions: bool,
}

/// Ends what the snapshot of this number, which was just applied to the mirror by this plan, shows as done or as gone, and
/// reduces again what is deleted and still listed. `overdue` is how long after its confirmation a deletion may be listed at
/// most.
///
/// # Errors
/// [`StoreError`].
pub fn after_snapshot(
    transaction: &Transaction<'_>,
    number: u64,
    now: Timestamp,
    overdue: Duration,
    plan: &Plan,
) -> Result<SnapshotEffects, StoreError> {
    let snapshot = Applied {
        number: i64::try_from(number).unwrap_or(i64::MAX),
        now: now.as_i64(),
        named: named(transaction, plan)?,
        whole: plan.replies.whole,
        whole_sources: plan.sources.whole,
        whole_submissions: plan.submissions.whole,
    };
    let mut effects = SnapshotEffects::default();
    replies::after_snapshot(transaction, snapshot.number, snapshot.whole)?;
    settle_unreadable(transaction, &mut effects)?;
    end_replies(transaction, &snapshot, &mut effects)?;
    bring_back(transaction, &mut effects)?;
    end_set_aside(transaction, &snapshot, &mut effects)?;
    set_aside(transaction, &snapshot, &mut effects)?;
    end_stars(transaction, &snapshot, &mut effects)?;
    end_marks(transaction, &snapshot, &mut effects)?;
    end_deletions(transaction, &snapshot, &mut effects)?;
    removals::forget_without_replies(transaction)?;
    reduce_again(transaction)?;
    note_listed(transaction, &snapshot, overdue, &mut effects)?;
    Ok(effects)
}

/// Which rows are about what the plan's lists name.
fn named(transaction: &Transaction<'_>, plan: &Plan) -> Result<String, StoreError> {
    let mut select = transaction.prepare_cached("SELECT id, source_id, item_id, item_kind FROM outbox")?;
    let mut rows = select.query([])?;
    let mut named = Vec::new();
    while let Some(row) = rows.next()? {
        let (item, kind): (Option<String>, Option<String>) = (row.get(2)?, row.get(3)?);
        let is_named = match (item, kind.as_deref()) {
            (None, _) => plan.sources.listed.contains(&row.get::<_, String>(1)?.parse()?),
            (Some(item), Some("reply")) => plan.replies.listed.contains(&item.parse::<ReplyId>()?),
            (Some(item), _) => plan.submissions.listed.contains(&item.parse::<SubmissionId>()?),
        };
        if is_named {
            named.push(row.get::<_, i64>(0)?.to_string());
        }
    }
    Ok(format!("[{}]", named.join(",")))
}

/// Runs a change of rows that gives the act, kind and source of each, and in words what it was; `step` says what is told.
fn change(
    transaction: &Transaction<'_>,
    sql: &str,
    params: impl Params,
    effects: &mut SnapshotEffects,
    step: impl Fn(&str) -> Option<ActStep>,
) -> Result<(), StoreError> {
    let mut statement = transaction.prepare_cached(sql)?;
    let mut changed = statement.query(params)?;
    while let Some(row) = changed.next()? {
        effects.sources.insert(row.get::<_, String>(2)?.parse()?);
        if let Some(step) = step(&row.get::<_, String>(3)?) {
            effects.add(row, step)?;
        }
    }
    Ok(())
}

/// What is told of a row that had not been told to be done.
fn unless_confirmed(state: &str, step: ActStep) -> Option<ActStep> {
    (state != "confirmed").then_some(step)
}

/// A reply that is listed and cannot be read, or under another source, was sent. Its row stays, with what it says, until it
/// can be read where it belongs.
fn settle_unreadable(transaction: &Transaction<'_>, effects: &mut SnapshotEffects) -> Result<(), StoreError> {
    let sql = "UPDATE outbox SET state = 'confirmed', in_flight = 0, reason = NULL, wait_from_us = NULL, wait_us = NULL
         WHERE kind = 'reply' AND state <> 'confirmed'
           AND EXISTS (
               SELECT 1 FROM server_reply AS r
               WHERE r.id = item_id AND (r.source_id <> outbox.source_id OR r.source_id IS NULL AND r.unreadable IS NOT NULL)
           )
         RETURNING act, kind, source_id, state";
    change(transaction, sql, [], effects, |_| Some(ActStep::Settled))
}

/// Replies: one that is listed is done; one whose source is gone goes with it, or is refused where the source is kept; one
/// that was confirmed and is not listed is as good as refused.
fn end_replies(
    transaction: &Transaction<'_>,
    snapshot: &Applied,
    effects: &mut SnapshotEffects,
) -> Result<(), StoreError> {
    // The server's own record is there, and what it says is kept beside that.
    let listed = "DELETE FROM outbox
         WHERE kind = 'reply'
           AND EXISTS (SELECT 1 FROM server_reply AS r WHERE r.id = item_id AND r.source_id = outbox.source_id)
         RETURNING act, kind, source_id, state";
    change(transaction, listed, [], effects, |state| unless_confirmed(state, ActStep::Settled))?;
    // Its source was deleted by somebody here, or its removal accepted.
    let gone = "DELETE FROM outbox
         WHERE kind = 'reply' AND source_id NOT IN (SELECT id FROM known_source)
         RETURNING act, kind, source_id, state";
    change(transaction, gone, [], effects, |state| unless_confirmed(state, ActStep::Gone))?;
    // Its source was taken off the list, and is shown only for what was not sent to it. This was.
    let sent = format!(
        "DELETE FROM outbox
         WHERE kind = 'reply' AND state = 'confirmed' AND {TO_KEPT}
           AND source_id IN (SELECT id FROM local_removed_source WHERE kept = {})
         RETURNING act, kind, source_id, state",
        removals::FOR_REPLIES
    );
    change(transaction, &sent, [], effects, |_| None)?;
    // Nothing can be sent to its source any more. One that is being sent is told by its own answer.
    let kept = format!(
        "UPDATE outbox SET sent = state = 'attempted', state = 'refused', held = 0, reason = ?1
         WHERE kind = 'reply' AND state IN ('pending', 'attempted') AND NOT in_flight AND {TO_KEPT}
         RETURNING act, kind, source_id, state"
    );
    let refused = || ActStep::Refused(failure(FailureKind::NotFound, removals::GONE.to_owned()));
    change(transaction, &kept, [removals::GONE], effects, |_| Some(refused()))?;
    // A colleague may have deleted it, or the server has lost it: that is for a person to say. It is not sent again by itself.
    let not_listed = format!(
        "UPDATE outbox SET state = 'refused', sent = 1, reason = ?2
         WHERE kind = 'reply' AND state = 'confirmed' AND snapshot < ?1 AND ?3 AND NOT {LISTED}
           AND source_id IN (SELECT id FROM server_source)
         RETURNING act, kind, source_id, state"
    );
    let of = params![snapshot.number, NOT_LISTED, snapshot.whole];
    change(transaction, &not_listed, of, effects, |_| Some(ActStep::NotListed))
}

/// Why a reply counts as refused that the server has confirmed.
const NOT_LISTED: &str = "the server has confirmed it and does not list it: somebody may have deleted it";

/// What was set aside is to be done after all: its object is there again.
fn bring_back(transaction: &Transaction<'_>, effects: &mut SnapshotEffects) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE outbox SET state = CASE WHEN sent THEN 'attempted' ELSE 'pending' END, sent = 0
         WHERE {SET_ASIDE} AND {}
         RETURNING act, kind, source_id, state",
        there()
    );
    change(transaction, &sql, [], effects, |_| Some(ActStep::ListedAgain))
}

/// What was set aside by an earlier snapshot, and told to be gone, is gone; so is what was refused, with the second list that
/// does not have its object. (`listed` says there whether the last one did not.) Which key a source had is forgotten where a
/// deletion may have been made: nobody will ever confirm it.
fn end_set_aside(
    transaction: &Transaction<'_>,
    snapshot: &Applied,
    effects: &mut SnapshotEffects,
) -> Result<(), StoreError> {
    let (there, known) = (there(), "source_id IN (SELECT id FROM known_source)");
    // A list that is not whole may have it all the same.
    let missing = format!(
        "(NOT {LISTED} AND CASE WHEN item_id IS NULL THEN ?2 WHEN item_kind = 'reply' THEN ?3 ELSE ?4 END
             OR NOT {known} AND ?2)"
    );
    let of = params![snapshot.number, snapshot.whole_sources, snapshot.whole, snapshot.whole_submissions];
    let ends = format!(
        "kind <> 'reply' AND {missing} AND (state = 'refused' AND listed > 0 OR {SET_ASIDE} AND snapshot < ?1)"
    );
    transaction
        .prepare_cached(&format!(
            "DELETE FROM local_key WHERE NOT {known}
                 AND source_id IN (SELECT source_id FROM outbox WHERE kind = 'delete_source' AND sent AND {ends})"
        ))?
        .execute(of)?;
    let sql = format!("DELETE FROM outbox WHERE {ends} RETURNING act, kind, source_id, state");
    change(transaction, &sql, of, effects, |state| unless_confirmed(state, ActStep::Gone))?;
    transaction
        .prepare_cached(&format!(
            "UPDATE outbox SET listed = NOT {there}
             WHERE kind <> 'reply' AND state = 'refused' AND listed <> NOT {there} AND ({there} OR {missing})"
        ))?
        .execute(of)?;
    Ok(())
}

/// What is about an object that is not there is set aside. A deletion that may have been made is done, as far as can be
/// seen. One that can still be taken back is left to its author.
fn set_aside(
    transaction: &Transaction<'_>,
    snapshot: &Applied,
    effects: &mut SnapshotEffects,
) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE outbox SET sent = state = 'attempted', state = 'confirmed', confirmed_us = NULL,
             snapshot = max(snapshot, ?1), not_deleted = 0
         WHERE kind <> 'reply' AND state IN ('pending', 'attempted') AND NOT {} AND NOT ({})
         RETURNING act, kind, source_id,
             CASE WHEN sent AND kind IN ('delete_source', 'delete_item') THEN 'done' ELSE 'gone' END",
        there(),
        grace_is_left("?2")
    );
    change(transaction, &sql, params![snapshot.number, snapshot.now], effects, |what| {
        Some(if what == "done" { ActStep::Settled } else { ActStep::Gone })
    })
}

/// Stars: one that was confirmed ends with a snapshot that was asked for after that and could read its source, whatever that
/// says: a colleague may have been there since. It ends too where its source is no longer listed. One that may have come
/// through ends where such a snapshot shows it.
fn end_stars(
    transaction: &Transaction<'_>,
    snapshot: &Applied,
    effects: &mut SnapshotEffects,
) -> Result<(), StoreError> {
    let sql = format!(
        "DELETE FROM outbox
         WHERE kind IN ('star', 'unstar') AND snapshot < ?1 AND NOT {SET_ASIDE} AND (
             state = 'confirmed' AND (NOT {MIRRORED} OR id IN (SELECT value FROM json_each(?2)) AND {READABLE})
             OR state = 'attempted' AND id IN (SELECT value FROM json_each(?2)) AND {READABLE}
                AND EXISTS (SELECT 1 FROM server_source AS s WHERE s.id = source_id AND s.starred = (kind = 'star'))
         )
         RETURNING act, kind, source_id, state"
    );
    let of = params![snapshot.number, snapshot.named];
    change(transaction, &sql, of, effects, |state| unless_confirmed(state, ActStep::Settled))
}

/// Seen marks: like stars, and one that was never sent ends too where the mark is there: another session has set it.
fn end_marks(
    transaction: &Transaction<'_>,
    snapshot: &Applied,
    effects: &mut SnapshotEffects,
) -> Result<(), StoreError> {
    let sql = format!(
        "DELETE FROM outbox
         WHERE kind = 'seen' AND NOT {SET_ASIDE} AND (
             state = 'confirmed' AND snapshot < ?1
                 AND (NOT {MIRRORED} OR id IN (SELECT value FROM json_each(?2)) AND {READABLE})
             OR state IN ('pending', 'attempted') AND id IN (SELECT value FROM json_each(?2)) AND {READABLE}
                 AND CASE WHEN item_kind = 'reply' THEN EXISTS (
                     SELECT 1 FROM server_reply_seen AS m
                     WHERE m.reply_id = item_id AND m.journalist_id = outbox.journalist_id
                 ) ELSE EXISTS (
                     SELECT 1 FROM server_submission_seen AS m
                     WHERE m.submission_id = item_id AND m.journalist_id = outbox.journalist_id
                 ) END
         )
         RETURNING act, kind, source_id, state"
    );
    let of = params![snapshot.number, snapshot.named];
    change(transaction, &sql, of, effects, |state| unless_confirmed(state, ActStep::Settled))
}

/// Deletions: one that was confirmed ends with a snapshot that was asked for after that and does not list its object.
fn end_deletions(
    transaction: &Transaction<'_>,
    snapshot: &Applied,
    effects: &mut SnapshotEffects,
) -> Result<(), StoreError> {
    let sql = format!(
        "DELETE FROM outbox
         WHERE kind IN ('delete_source', 'delete_item') AND state = 'confirmed' AND NOT {SET_ASIDE} AND snapshot < ?1
           AND NOT {LISTED}
         RETURNING act, kind, source_id, state"
    );
    change(transaction, &sql, [snapshot.number], effects, |state| unless_confirmed(state, ActStep::Settled))
}

/// The removal of a source was accepted: deletions that were on their way to it are set aside, and nothing else of it is left.
pub(in crate::store) fn drop_source(transaction: &Transaction<'_>, source: &SourceId) -> rusqlite::Result<()> {
    for change in [
        "UPDATE outbox SET sent = state = 'attempted', state = 'confirmed', confirmed_us = NULL,
             snapshot = (SELECT max(snapshot) FROM outbox), not_deleted = 0
         WHERE source_id = ?1 AND kind IN ('delete_source', 'delete_item') AND state IN ('pending', 'attempted')",
        "DELETE FROM outbox
         WHERE source_id = ?1 AND NOT (kind IN ('delete_source', 'delete_item') AND state = 'confirmed')",
    ] {
        transaction.prepare_cached(change)?.execute([source.as_str()])?;
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
         WHERE state = 'confirmed' AND confirmed_us IS NOT NULL AND kind IN ('delete_source', 'delete_item')",
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
    snapshot: &Applied,
    overdue: Duration,
    effects: &mut SnapshotEffects,
) -> Result<(), StoreError> {
    transaction
        .prepare_cached(
            "UPDATE outbox SET listed = listed + 1
             WHERE state = 'confirmed' AND confirmed_us IS NOT NULL AND kind IN ('delete_source', 'delete_item')
               AND snapshot < ?1 AND id IN (SELECT value FROM json_each(?2))",
        )?
        .execute(params![snapshot.number, snapshot.named])?;
    let overdue = i64::try_from(overdue.as_micros()).unwrap_or(i64::MAX);
    let mut statement = transaction.prepare_cached(
        "UPDATE outbox SET not_deleted = 1
         WHERE state = 'confirmed' AND kind IN ('delete_source', 'delete_item') AND not_deleted = 0
           AND listed >= ?1 AND confirmed_us + ?2 <= ?3
         RETURNING act, kind, source_id",
    )?;
    let mut rows = statement.query(params![PATIENCE, overdue, snapshot.now])?;
    while let Some(row) = rows.next()? {
        effects.add(row, ActStep::NotDeleted)?;
    }
    Ok(())
}
