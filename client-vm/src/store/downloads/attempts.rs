//! What becomes of an item after an attempt that did not bring it.

use std::time::Duration;

use protocol::value::Timestamp;
use rusqlite::{Transaction, params};

use super::is_reply;
use crate::store::StoreError;
use crate::store::outbox::{ItemName, MAX_RETRY_AFTER, Waits};

/// After how many attempts what the server does not give is tried only once an hour.
const SELDOM_AFTER: u32 = 10;
/// How often it may be for nothing that a session broke before the item itself is suspected.
const UNSUSPECTED: u32 = 2;

/// How an item waits for its next attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wait<'a> {
    /// Not at all: what held it up holds up everything, or is over.
    None,
    /// By its own fault: longer with each attempt.
    Growing {
        /// Since when.
        now: Timestamp,
        /// How long.
        waits: &'a Waits,
        /// From 0 to 1.
        jitter: f64,
        /// How long the server wants to be left alone.
        asked: Duration,
    },
    /// The same, and in the end only once an hour: the server does not give it.
    Seldom {
        /// Since when.
        now: Timestamp,
        /// How long.
        waits: &'a Waits,
        /// From 0 to 1.
        jitter: f64,
    },
    /// The session broke: at first it is not suspected of that, and does not wait.
    Suspected {
        /// Since when.
        now: Timestamp,
        /// How long.
        waits: &'a Waits,
        /// From 0 to 1.
        jitter: f64,
    },
}

impl Wait<'_> {
    fn counts(&self) -> bool {
        match self {
            Self::None => false,
            Self::Growing { .. } | Self::Seldom { .. } | Self::Suspected { .. } => true,
        }
    }

    /// Since when and how long it waits after so many attempts.
    fn after(&self, attempts: u32) -> Option<(Timestamp, Duration)> {
        match *self {
            Self::None => None,
            Self::Growing { now, waits, jitter, asked } => {
                Some((now, waits.after(attempts, jitter).max(asked.min(MAX_RETRY_AFTER))))
            }
            Self::Seldom { now, waits, jitter } if attempts <= SELDOM_AFTER => {
                Some((now, waits.after(attempts, jitter)))
            }
            Self::Seldom { now, .. } => Some((now, MAX_RETRY_AFTER)),
            Self::Suspected { now, waits, jitter } => {
                let suspected = attempts.checked_sub(UNSUSPECTED).filter(|attempts| *attempts > 0)?;
                Some((now, waits.after(suspected, jitter)))
            }
        }
    }
}

/// Notes that an attempt did not bring the item, and when to try again; gives when that is, where it waits.
///
/// # Errors
/// [`StoreError`].
pub fn postpone(
    transaction: &Transaction<'_>,
    item: ItemName,
    reason: &str,
    wait: Wait<'_>,
) -> Result<Option<Timestamp>, StoreError> {
    let id = item.id();
    let attempts: u32 = transaction
        .prepare_cached(
            "INSERT INTO local_item (item_id, is_reply, attempts, reason) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO UPDATE SET attempts = attempts + ?3, reason = ?4 RETURNING attempts",
        )?
        .query_row(params![id.as_str(), is_reply(item), wait.counts(), reason], |row| row.get(0))?;
    let Some((now, wait)) = wait.after(attempts) else { return Ok(None) };
    let wait = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
    transaction
        .prepare_cached("UPDATE local_item SET wait_from_us = ?3, wait_us = ?4 WHERE item_id = ?1 AND is_reply = ?2")?
        .execute(params![id.as_str(), is_reply(item), now.as_i64(), wait])?;
    let due = now.get().saturating_add(wait.unsigned_abs());
    Ok(Some(Timestamp::try_new(due).unwrap_or(Timestamp::MAX)))
}

/// Some of the item has come: earlier attempts do not count any more.
///
/// # Errors
/// [`StoreError`].
pub fn note_progress(transaction: &Transaction<'_>, item: ItemName) -> Result<(), StoreError> {
    transaction
        .prepare_cached("UPDATE local_item SET attempts = 0 WHERE item_id = ?1 AND is_reply = ?2")?
        .execute(params![item.id().as_str(), is_reply(item)])?;
    Ok(())
}

/// What waits its time does not wait any more: the user wants the queue to go on at once.
///
/// # Errors
/// [`StoreError`].
pub fn end_waits(transaction: &Transaction<'_>) -> Result<(), StoreError> {
    transaction.execute(
        "UPDATE local_item SET wait_from_us = NULL, wait_us = NULL
         WHERE wait_us IS NOT NULL AND state IN ('absent', 'downloaded')",
        [],
    )?;
    Ok(())
}

/// Notes that an item is not tried again by itself.
///
/// # Errors
/// [`StoreError`].
pub fn fail(transaction: &Transaction<'_>, item: ItemName, reason: &str) -> Result<(), StoreError> {
    let id = item.id();
    transaction
        .prepare_cached(
            "INSERT INTO local_item (item_id, is_reply, attempts, state, reason) VALUES (?1, ?2, 1, 'failed', ?3)
             ON CONFLICT DO UPDATE SET attempts = attempts + 1, state = 'failed', reason = ?3, wait_from_us = NULL,
                 wait_us = NULL",
        )?
        .execute(params![id.as_str(), is_reply(item), reason])?;
    Ok(())
}

/// Notes that what came was not what had been claimed; gives how often that was so.
///
/// # Errors
/// [`StoreError`].
pub fn note_mismatch(transaction: &Transaction<'_>, item: ItemName) -> Result<u32, StoreError> {
    let id = item.id();
    Ok(transaction
        .prepare_cached(
            "UPDATE local_item SET mismatches = mismatches + 1 WHERE item_id = ?1 AND is_reply = ?2 RETURNING mismatches",
        )?
        .query_row(params![id.as_str(), is_reply(item)], |row| row.get(0))?)
}
