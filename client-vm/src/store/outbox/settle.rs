//! What becomes of rows after an attempt.

use std::time::Duration;

use control::{ActId, ActKind};
use protocol::value::{JournalistId, SourceId, Timestamp};
use rusqlite::{OptionalExtension as _, ToSql, Transaction, params};

use super::snapshot::SET_ASIDE;
use super::{Before, Row, Work, parse_kind, reduce_item, reduce_source};
use crate::store::StoreError;

/// How an attempt ended for one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The server has done it, or had already.
    Done,
    /// It certainly had no effect. The whole queue waits, or the session is over: the row itself does not wait.
    NoEffect {
        /// Why.
        reason: String,
    },
    /// Nobody knows.
    Unknown {
        /// Why.
        reason: String,
        /// How long the server wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// Definitely not.
    Refused {
        /// Why.
        reason: String,
    },
}

/// How long rows wait between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// After the first attempt; each later one waits twice as long.
    pub first: Duration,
    /// At most, unless the server asks for more.
    pub most: Duration,
}

impl Default for Waits {
    /// Eleven attempts in the first ten minutes.
    fn default() -> Self {
        Self { first: Duration::from_secs(5), most: Duration::from_secs(75) }
    }
}

/// The most that a server's `Retry-After` counts.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

impl Waits {
    /// How long to wait after so many attempts. `jitter`, from 0 to 1, adds up to a quarter.
    #[must_use]
    pub fn after(&self, attempts: u32, jitter: f64) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(self.most).mul_f64(1.0 + jitter.clamp(0.0, 1.0) / 4.0)
    }
}

/// Notes that a row that waits could not be sent, and was not, and when to try again.
///
/// # Errors
/// [`StoreError`].
pub fn put_off(
    transaction: &Transaction<'_>,
    row: &Row,
    reason: &str,
    now: Timestamp,
    waits: &Waits,
    jitter: f64,
) -> Result<(), StoreError> {
    let attempts: Option<u32> = transaction
        .prepare_cached(
            "UPDATE outbox SET attempts = attempts + 1, reason = ?2 WHERE id = ?1 AND state = 'pending'
             RETURNING attempts",
        )?
        .query_row(params![row.id, reason], |row| row.get(0))
        .optional()?;
    let wait = waits.after(attempts.unwrap_or(1), jitter);
    transaction
        .prepare_cached("UPDATE outbox SET wait_from_us = ?2, wait_us = ?3 WHERE id = ?1 AND state = 'pending'")?
        .execute(params![row.id, now.as_i64(), i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)])?;
    Ok(())
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It is confirmed.
    Confirmed,
    /// It is refused.
    Refused,
    /// It waits; its own time is over then, if it has one.
    Waiting {
        /// When it is due.
        next_try: Option<Timestamp>,
    },
    /// It was gone already: a snapshot had shown its effect.
    Gone,
}

/// Notes how an attempt ended. `snapshot` is the last one that was asked for by now.
///
/// # Errors
/// [`StoreError`].
pub fn settle(
    transaction: &Transaction<'_>,
    row: &Row,
    outcome: &Outcome,
    now: Timestamp,
    snapshot: u64,
    waits: &Waits,
    jitter: f64,
) -> Result<Settled, StoreError> {
    // What the server has done is done, also where dom0 has refused to let it be sent again meanwhile, or a snapshot did not
    // list its object.
    let attempts: Option<u32> = transaction
        .prepare_cached(&format!(
            "SELECT attempts FROM outbox
             WHERE id = ?1 AND (state = 'attempted' OR ?2 AND (state = 'refused' OR {SET_ASIDE}))"
        ))?
        .query_row(params![row.id, *outcome == Outcome::Done], |sql| sql.get(0))
        .optional()?;
    let Some(attempts) = attempts else { return Ok(Settled::Gone) };
    if matches!(row.work, Work::Reply(_)) {
        // From now on a snapshot can tell.
        transaction
            .prepare_cached("UPDATE outbox SET in_flight = 0, snapshot = max(snapshot, ?2) WHERE id = ?1")?
            .execute(params![row.id, i64::try_from(snapshot).unwrap_or(i64::MAX)])?;
    }
    match outcome {
        Outcome::Done => {
            confirm(transaction, row, now, snapshot)?;
            Ok(Settled::Confirmed)
        }
        Outcome::Refused { reason } => {
            transaction
                .prepare_cached("UPDATE outbox SET state = 'refused', sent = ?3, held = 0, reason = ?2 WHERE id = ?1")?
                .execute(params![row.id, reason, row.before == Before::Attempted])?;
            Ok(Settled::Refused)
        }
        Outcome::NoEffect { reason } => {
            let state = match row.before {
                Before::Pending => "pending",
                Before::Attempted => "attempted",
            };
            // The attempt does not count.
            transaction
                .prepare_cached(
                    "UPDATE outbox SET state = ?2, attempts = max(attempts - 1, 0), reason = ?3 WHERE id = ?1",
                )?
                .execute(params![row.id, state, reason])?;
            Ok(Settled::Waiting { next_try: None })
        }
        Outcome::Unknown { reason, retry_after } => {
            let asked = retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
            let wait = i64::try_from(waits.after(attempts, jitter).max(asked).as_micros()).unwrap_or(i64::MAX);
            transaction
                .prepare_cached("UPDATE outbox SET wait_from_us = ?2, wait_us = ?3, reason = ?4 WHERE id = ?1")?
                .execute(params![row.id, now.as_i64(), wait, reason])?;
            let due = now.get().saturating_add(wait.unsigned_abs());
            Ok(Settled::Waiting { next_try: Some(Timestamp::try_new(due).unwrap_or(Timestamp::MAX)) })
        }
    }
}

fn confirm(transaction: &Transaction<'_>, row: &Row, now: Timestamp, snapshot: u64) -> Result<(), StoreError> {
    let snapshot = i64::try_from(snapshot).unwrap_or(i64::MAX);
    transaction
        .prepare_cached(
            "UPDATE outbox SET state = 'confirmed', held = 0, reason = NULL, confirmed_us = ?2, snapshot = ?3,
                 listed = 0, not_deleted = 0
             WHERE id = ?1",
        )?
        .execute(params![row.id, now.as_i64(), snapshot])?;
    let source = row.source.as_str();
    match row.work {
        Work::Star | Work::Unstar => {
            // What was confirmed before is no longer so.
            transaction
                .prepare_cached(
                    "DELETE FROM outbox WHERE source_id = ?1 AND kind IN ('star', 'unstar') AND state = 'confirmed'
                         AND confirmed_us IS NOT NULL AND id <> ?2",
                )?
                .execute(params![source, row.id])?;
        }
        // What a reply says is needed until the server lists it.
        Work::Seen(_) | Work::Reply(_) => {}
        Work::DeleteSource => {
            // Nothing is left to be done to it, by anybody.
            transaction
                .prepare_cached("DELETE FROM outbox WHERE source_id = ?1 AND id <> ?2")?
                .execute(params![source, row.id])?;
            reduce_source(transaction, &row.source)?;
        }
        Work::DeleteItem(item) => {
            let id = item.name.id();
            transaction
                .prepare_cached("DELETE FROM outbox WHERE item_id = ?1 AND (item_kind = 'reply') = ?2 AND id <> ?3")?
                .execute(params![id.as_str(), item.name.table() == "reply", row.id])?;
            reduce_item(transaction, item.name)?;
        }
    }
    Ok(())
}

/// Which rows a call that could not be opened was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsent {
    /// The marks of a journalist.
    Marks(JournalistId),
    /// The deletions of one act.
    Deletions(ActId),
    /// The reply of one act.
    Reply(ActId),
}

/// Refuses what is still to be sent: the way to the server is definitely barred.
///
/// # Errors
/// [`StoreError`].
pub fn refuse_unsent(
    transaction: &Transaction<'_>,
    unsent: Unsent,
    reason: &str,
) -> Result<Vec<(ActId, ActKind, SourceId, u64)>, StoreError> {
    let (condition, key): (_, &dyn ToSql) = match &unsent {
        Unsent::Marks(journalist) => {
            ("journalist_id = ?1 AND kind IN ('star', 'unstar', 'seen')", &journalist.as_str())
        }
        Unsent::Deletions(act) => ("act = ?1 AND kind IN ('delete_source', 'delete_item')", &act.0),
        // One that was sent waits for a snapshot, and needs no call.
        Unsent::Reply(act) => ("act = ?1 AND kind = 'reply' AND state = 'pending'", &act.0),
    };
    let mut statement = transaction.prepare_cached(&format!(
        "UPDATE outbox SET state = 'refused', sent = state = 'attempted', held = 0, reason = ?2
         WHERE {condition} AND state IN ('pending', 'attempted')
         RETURNING act, kind, source_id"
    ))?;
    let mut rows = statement.query(params![key, reason])?;
    let mut refused: Vec<(ActId, ActKind, SourceId, u64)> = Vec::new();
    while let Some(row) = rows.next()? {
        let (act, kind) = (ActId(row.get(0)?), parse_kind(&row.get::<_, String>(1)?)?);
        let source: SourceId = row.get::<_, String>(2)?.parse()?;
        match refused.last_mut() {
            Some(last) if (last.0, last.1, last.2) == (act, kind, source) => last.3 += 1,
            _ => refused.push((act, kind, source, 1)),
        }
    }
    Ok(refused)
}

/// Notes durably whether what is still to be deleted of an act needs the user's word: dom0 asks about every call that
/// deletes, and may not ask twice by itself.
///
/// # Errors
/// [`StoreError`].
pub fn hold(transaction: &Transaction<'_>, act: ActId, held: bool) -> Result<(), StoreError> {
    transaction
        .prepare_cached(
            "UPDATE outbox SET held = ?2
             WHERE act = ?1 AND kind IN ('delete_source', 'delete_item') AND state IN ('pending', 'attempted')",
        )?
        .execute(params![act.0, held])?;
    Ok(())
}

/// Whether anything of an act is still to be sent.
///
/// # Errors
/// [`StoreError`].
pub fn is_open(transaction: &Transaction<'_>, act: ActId) -> Result<bool, StoreError> {
    Ok(transaction
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM outbox WHERE act = ?1 AND state IN ('pending', 'attempted'))")?
        .query_row([act.0], |row| row.get(0))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_jitter_only_lengthens_them() {
        let waits = Waits { first: Duration::from_secs(5), most: Duration::from_secs(60) };
        let seconds = |attempts, jitter| waits.after(attempts, jitter).as_secs();
        assert_eq!([1, 2, 3, 4, 5, 40, u32::MAX].map(|attempts| seconds(attempts, 0.0)), [5, 10, 20, 40, 60, 60, 60]);
        assert_eq!((seconds(5, 1.0), seconds(5, 77.0), seconds(5, -1.0)), (75, 75, 60));
    }

    /// Case S4: a change that is always refused with a fault is sent eleven times in ten minutes.
    #[test]
    fn s4_ten_minutes_have_room_for_eleven_attempts() {
        let waits = Waits::default();
        let (mut time, mut attempts) = (Duration::ZERO, 0);
        while time < Duration::from_secs(600) {
            attempts += 1;
            time += waits.after(attempts, 0.0);
        }
        assert_eq!(attempts, 11);
    }
}
