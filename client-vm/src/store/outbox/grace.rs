//! The time of grace: a deletion waits before it is first sent, and can be taken back meanwhile.
//!
//! No column says that a row is in it. A row is if it is a deletion that was never sent, still waits for a time, and is not
//! held for the user's word: an attempt ends the wait, and puts another one off only as `attempted`.
//!
//! It is measured by the clock on the wall, which may be set. Forward, the time is over so much earlier. Back, to before its
//! beginning, it begins anew: each time the clock is set back to before that costs as much as the whole time once more, and
//! no more.
//!
//! **Invariant:** what is taken back is a row that was certainly not sent. An attempt begins, and a row is taken back, in one
//! transaction each: whichever comes first, the other finds the row sent, or gone.

use std::collections::BTreeSet;
use std::time::Duration;

use control::{ActId, ActKind, Undone};
use protocol::value::{Designation, JournalistId, Timestamp};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};

use super::parse_kind;
use super::snapshot::SET_ASIDE;
use crate::store::StoreError;

/// The condition that a row is in its time of grace, or past it and neither sent nor asked about.
pub(super) const IN_GRACE: &str = "kind IN ('delete_source', 'delete_item') AND state = 'pending' AND attempts = 0
    AND wait_us IS NOT NULL AND NOT held";

/// The condition that a row is in its time of grace at `now`, a parameter of the statement: not past it. (Where the clock was
/// set back it begins anew.)
pub(in crate::store) fn grace_is_left(now: &str) -> String {
    format!("{IN_GRACE} AND (wait_from_us > {now} OR wait_from_us + wait_us > {now})")
}

/// Nothing was taken back.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// No deletion waits.
    #[error(
        "nothing to undo: no deletion of yours waits to be sent; `splitdrop queue` lists what does, and \
         `splitdrop cancel ACT` takes it back"
    )]
    Nothing,
    /// No row of the journalist belongs to this act.
    #[error("there is no act {} of yours that is not done: `splitdrop queue` lists them", .0.0)]
    NoAct(ActId),
    /// The act is none that deletes.
    #[error("act {act} deletes nothing: `splitdrop cancel {act}` takes it back if it was not sent", act = .0.0)]
    NoDeletion(ActId),
    /// The act was sent.
    #[error("act {} has been sent, and can no longer be taken back", .0.0)]
    Sent(ActId),
    /// The act was refused.
    #[error("act {act} was refused and deletes nothing: `splitdrop dismiss {act}` forgets it", act = .0.0)]
    Refused(ActId),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<rusqlite::Error> for UndoError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Lets what an act deletes wait for so long from now on; the act was just taken. Gives whether anything waits.
///
/// # Errors
/// [`StoreError`].
pub fn give_grace(
    transaction: &Transaction<'_>,
    act: ActId,
    now: Timestamp,
    grace: Duration,
) -> Result<bool, StoreError> {
    if grace.is_zero() {
        return Ok(false);
    }
    let waiting = transaction
        .prepare_cached(
            "UPDATE outbox SET wait_from_us = ?2, wait_us = ?3
             WHERE act = ?1 AND kind IN ('delete_source', 'delete_item') AND state = 'pending'",
        )?
        .execute(params![act.0, now.as_i64(), micros(grace)])?;
    Ok(waiting > 0)
}

/// Lets the deletions of a journalist that were not sent wait once more from the beginning: nobody could take them back
/// while the journalist was not signed in. Their time is what the settings say now.
///
/// # Errors
/// [`StoreError`].
pub fn give_grace_anew(
    transaction: &Transaction<'_>,
    journalist: JournalistId,
    now: Timestamp,
    grace: Duration,
) -> Result<(), StoreError> {
    let (from, wait) = if grace.is_zero() { (None, None) } else { (Some(now.as_i64()), Some(micros(grace))) };
    transaction
        .prepare_cached(&format!(
            "UPDATE outbox SET wait_from_us = ?2, wait_us = ?3 WHERE journalist_id = ?1 AND {IN_GRACE}"
        ))?
        .execute(params![journalist.as_str(), from, wait])?;
    Ok(())
}

/// The clock was set back: what began to wait later than now begins to wait now.
///
/// # Errors
/// [`StoreError`].
pub fn mend_grace(transaction: &Transaction<'_>, now: Timestamp) -> Result<(), StoreError> {
    transaction
        .prepare_cached(&format!("UPDATE outbox SET wait_from_us = ?1 WHERE wait_from_us > ?1 AND {IN_GRACE}"))?
        .execute([now.as_i64()])?;
    Ok(())
}

/// Takes deletions of `journalist` back, whatever of them was not sent; where no act is named, the newest that is in its
/// time of grace or just past it. Gives what was taken back, act by act and source by source.
///
/// # Errors
/// [`UndoError`]; the caller's transaction must then not be committed.
pub fn undo(transaction: &Transaction<'_>, journalist: JournalistId, acts: &[ActId]) -> Result<Vec<Undone>, UndoError> {
    let acts: BTreeSet<_> = if acts.is_empty() {
        let newest: Option<u64> = transaction
            .prepare_cached(&format!("SELECT max(act) FROM outbox WHERE journalist_id = ?1 AND {IN_GRACE}"))?
            .query_row([journalist.as_str()], |row| row.get(0))?;
        [ActId(newest.ok_or(UndoError::Nothing)?)].into()
    } else {
        acts.iter().copied().collect()
    };
    let mut undone = Vec::new();
    for act in acts {
        let taken_back = undo_one(transaction, journalist, act)?;
        if taken_back.is_empty() {
            return Err(why_not(transaction, journalist, act)?);
        }
        undone.extend(taken_back);
    }
    Ok(undone)
}

fn undo_one(transaction: &Transaction<'_>, journalist: JournalistId, act: ActId) -> Result<Vec<Undone>, UndoError> {
    let unsent = format!(
        "act = ?1 AND journalist_id = ?2 AND kind IN ('delete_source', 'delete_item')
             AND (state = 'pending' OR {SET_ASIDE} AND NOT sent)"
    );
    let key = params![act_number(act), journalist.as_str()];
    let mut select = transaction.prepare_cached(&format!(
        "SELECT kind, source_id, count(*), coalesce(
                (SELECT designation FROM server_source AS s WHERE s.id = source_id),
                (SELECT designation FROM local_removed_source AS r WHERE r.id = source_id))
         FROM outbox WHERE {unsent} GROUP BY kind, source_id ORDER BY min(id)"
    ))?;
    let (mut rows, mut undone) = (select.query(key)?, Vec::new());
    while let Some(row) = rows.next()? {
        undone.push(read_undone(row, act)?);
    }
    transaction.prepare_cached(&format!("DELETE FROM outbox WHERE {unsent}"))?.execute(key)?;
    Ok(undone)
}

fn read_undone(row: &Row<'_>, act: ActId) -> Result<Undone, StoreError> {
    Ok(Undone {
        act,
        kind: parse_kind(&row.get::<_, String>(0)?)?,
        source: row.get::<_, String>(1)?.parse()?,
        objects: row.get(2)?,
        designation: row.get::<_, Option<String>>(3)?.map(Designation::try_new).transpose()?,
    })
}

/// Why nothing of an act can be taken back.
fn why_not(transaction: &Transaction<'_>, journalist: JournalistId, act: ActId) -> Result<UndoError, UndoError> {
    let found: Option<(String, bool)> = transaction
        .prepare_cached(
            "SELECT kind, state = 'refused' FROM outbox WHERE act = ?1 AND journalist_id = ?2
             ORDER BY state = 'refused' LIMIT 1",
        )?
        .query_row(params![act_number(act), journalist.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((kind, refused)) = found else { return Ok(UndoError::NoAct(act)) };
    Ok(match parse_kind(&kind).map_err(StoreError::from)? {
        ActKind::Star | ActKind::Unstar | ActKind::Seen | ActKind::Reply => UndoError::NoDeletion(act),
        ActKind::DeleteSource | ActKind::DeleteItem if refused => UndoError::Refused(act),
        ActKind::DeleteSource | ActKind::DeleteItem => UndoError::Sent(act),
    })
}

/// No act has a number that the store cannot hold.
fn act_number(act: ActId) -> i64 {
    i64::try_from(act.0).unwrap_or(i64::MAX)
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
