//! What is to be decrypted next, and what came of it.
//!
//! **Invariant:** nothing is decrypted, and no plaintext is noted, of what is not shown or is being deleted.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use control::{Inner, LaneCounts, Seal};
use protocol::value::{Fingerprint, ItemId, Timestamp};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::StoreError;
use super::downloads::{Candidate, Due};
use super::outbox::ItemName;
use crate::files::FileNumber;

/// The items whose ciphertext is there and that are to be decrypted.
const TO_DECRYPT: &str = "c.state = 'downloaded' AND NOT c.being_deleted";

/// What is to be decrypted next, at most `most` items: what was tried less often first, so that nothing that fails holds up
/// the rest; of these messages and replies before files, and of these those of the source that wrote last first.
///
/// # Errors
/// [`StoreError`].
pub fn due(
    transaction: &Transaction<'_>,
    now: Timestamp,
    busy: &HashSet<ItemId>,
    most: usize,
) -> Result<Due<Candidate>, StoreError> {
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT c.source_id, c.id, c.kind,
                CASE WHEN c.wait_from_us IS NULL OR ?1 < c.wait_from_us THEN 0
                     ELSE max(c.wait_from_us + c.wait_us - ?1, 0) END
         FROM item_content AS c JOIN local_item AS l ON l.id = c.number LEFT JOIN server_source AS s ON s.id = c.source_id
         WHERE c.id IN (SELECT item_id FROM local_item WHERE state = 'downloaded') AND {TO_DECRYPT}
         ORDER BY l.attempts, c.kind = 'file', CASE WHEN c.kind = 'file' THEN c.wanted_us END, s.last_updated_us DESC, c.source_id, c.item_order, c.id"
    ))?;
    let mut rows = statement.query([now.as_i64()])?;
    let mut due = Due { items: Vec::new(), next: None };
    while let Some(row) = rows.next()? {
        let item = ItemName::parse(&row.get::<_, String>(2)?, &row.get::<_, String>(1)?)?;
        let wait = Duration::from_micros(row.get(3)?);
        if busy.contains(&item.id()) {
            continue;
        }
        if !wait.is_zero() {
            due.next = Some(due.next.map_or(wait, |next| next.min(wait)));
        } else if due.items.len() < most {
            due.items.push(Candidate { source: row.get::<_, String>(0)?.parse()?, item });
        }
    }
    Ok(due)
}

/// The number of an item that is to be decrypted; `None` when it is not any more.
///
/// # Errors
/// [`StoreError`].
pub fn job(transaction: &Transaction<'_>, candidate: Candidate) -> Result<Option<FileNumber>, StoreError> {
    let number: Option<i64> = transaction
        .prepare_cached(&format!(
            "SELECT c.number FROM item_content AS c
             WHERE c.source_id = ?1 AND c.id = ?2 AND c.kind = ?3 AND {TO_DECRYPT}"
        ))?
        .query_row(params![candidate.source.as_str(), candidate.item.id().as_str(), candidate.item.kind()], |row| {
            row.get(0)
        })
        .optional()?;
    Ok(number.map(FileNumber))
}

/// A plaintext that is durable where it is no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plaintext {
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether it was an OpenPGP message itself.
    pub inner: Inner,
    /// Of a file: the name under which its source packed it, made clean.
    pub name: Option<String>,
    /// Of a message or reply: what it says.
    pub text: Option<String>,
}

/// Notes that an item can be read. Gives `false`, and notes nothing, where it is not to be decrypted any more.
///
/// # Errors
/// [`StoreError`].
pub fn note_decrypted(
    transaction: &Transaction<'_>,
    candidate: Candidate,
    number: FileNumber,
    plaintext: &Plaintext,
) -> Result<bool, StoreError> {
    if job(transaction, candidate)? != Some(number) {
        return Ok(false);
    }
    transaction
        .prepare_cached(
            "UPDATE local_item SET state = 'decrypted', plain_bytes = ?2, inner = ?3, name = ?4, text = ?5, reason = NULL,
                 wait_from_us = NULL, wait_us = NULL
             WHERE id = ?1",
        )?
        .execute(params![
            number.0,
            i64::try_from(plaintext.bytes).unwrap_or(i64::MAX),
            inner_name(plaintext.inner),
            plaintext.name,
            plaintext.text
        ])?;
    Ok(true)
}

/// Notes that an item was, or is being, tried once more; and why it could not be opened, if that is known.
///
/// # Errors
/// [`StoreError`].
pub fn note_attempt(
    transaction: &Transaction<'_>,
    candidate: Candidate,
    reason: Option<&str>,
) -> Result<(), StoreError> {
    if let Some(number) = job(transaction, candidate)? {
        transaction
            .prepare_cached(
                "UPDATE local_item SET attempts = attempts + 1, reason = coalesce(?2, reason) WHERE id = ?1",
            )?
            .execute(params![number.0, reason])?;
    }
    Ok(())
}

/// Takes back an attempt at an item that was noted before its end was known.
///
/// # Errors
/// [`StoreError`].
pub fn take_back_attempt(transaction: &Transaction<'_>, candidate: Candidate) -> Result<(), StoreError> {
    if let Some(number) = job(transaction, candidate)? {
        transaction
            .prepare_cached("UPDATE local_item SET attempts = max(attempts - 1, 0) WHERE id = ?1")?
            .execute([number.0])?;
    }
    Ok(())
}

/// Notes that an item could not be decrypted and is not tried again by itself. Gives `false`, and notes nothing, where it is
/// not to be decrypted any more.
///
/// # Errors
/// [`StoreError`].
pub fn note_sealed(
    transaction: &Transaction<'_>,
    candidate: Candidate,
    seal: Seal,
    reason: &str,
) -> Result<bool, StoreError> {
    let Some(number) = job(transaction, candidate)? else { return Ok(false) };
    transaction
        .prepare_cached(
            "UPDATE local_item SET state = 'sealed', attempts = attempts + 1, seal = ?2, reason = ?3,
                 wait_from_us = NULL, wait_us = NULL
             WHERE id = ?1",
        )?
        .execute(params![number.0, seal_name(seal), reason])?;
    Ok(true)
}

/// Notes which secret keys are there. With others than before, what found none is tried again; gives whether that is so.
///
/// # Errors
/// [`StoreError`].
pub fn note_secret_keys(transaction: &Transaction<'_>, keys: &BTreeSet<Fingerprint>) -> Result<bool, StoreError> {
    let keys: Vec<_> = keys.iter().map(Fingerprint::as_str).collect();
    let changed =
        transaction.execute("UPDATE local_queue SET secret_keys = ?1 WHERE secret_keys <> ?1", [keys.join(" ")])? > 0;
    if changed {
        transaction.execute(
            "UPDATE local_item SET state = 'downloaded', attempts = 0, seal = NULL, reason = NULL
             WHERE state = 'sealed' AND seal = 'no_key'",
            [],
        )?;
    }
    Ok(changed)
}

/// Whether anything could not be decrypted for want of a key.
///
/// # Errors
/// [`StoreError`].
pub fn misses_keys(transaction: &Transaction<'_>) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM local_item WHERE state = 'sealed' AND seal = 'no_key')";
    Ok(transaction.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

/// How much is to be decrypted, and how much could not be.
///
/// # Errors
/// [`StoreError`].
pub fn lane_counts(transaction: &Transaction<'_>) -> Result<LaneCounts, StoreError> {
    Ok(transaction
        .prepare_cached(&format!(
            "SELECT coalesce(sum({TO_DECRYPT}), 0), coalesce(sum(c.state = 'sealed' AND NOT c.being_deleted), 0)
             FROM item_content AS c"
        ))?
        .query_row([], |row| Ok(LaneCounts { waiting: row.get(0)?, running: 0, failed: row.get(1)? }))?)
}

fn inner_name(inner: Inner) -> Option<&'static str> {
    match inner {
        Inner::None => None,
        Inner::Opened => Some("opened"),
        Inner::Closed => Some("closed"),
    }
}

/// Reads the column `inner`.
pub(super) fn parse_inner(name: Option<&str>) -> Inner {
    match name {
        Some("opened") => Inner::Opened,
        Some(_closed) => Inner::Closed,
        None => Inner::None,
    }
}

const SEALS: [(Seal, &str); 6] = [
    (Seal::NoKey, "no_key"),
    (Seal::Denied, "denied"),
    (Seal::Cut, "cut"),
    (Seal::Corrupt, "corrupt"),
    (Seal::TooLarge, "too_large"),
    (Seal::Other, "other"),
];

fn seal_name(seal: Seal) -> &'static str {
    SEALS.into_iter().find(|(known, _)| *known == seal).map_or("other", |(_, name)| name)
}

/// Reads the column `seal`.
pub(super) fn parse_seal(name: &str) -> Seal {
    SEALS.into_iter().find(|(_, known)| *known == name).map_or(Seal::Other, |(seal, _)| seal)
}

#[cfg(test)]
mod tests;
