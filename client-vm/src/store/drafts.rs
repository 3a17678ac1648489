//! Drafts: what a journalist has begun to write to a source.
//!
//! **Invariant:** a draft belongs to one journalist and one source, and is shown to nobody else.

use control::ReplyText;
use protocol::value::{JournalistId, SourceId, Timestamp};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{StoreError, removals};

/// Keeps a draft, in the place of the one before, or forgets it, and with it a source that is there for nothing else. Gives
/// `false`, and changes nothing, where no such source is shown.
///
/// # Errors
/// [`StoreError`].
pub fn keep(
    transaction: &Transaction<'_>,
    journalist: JournalistId,
    source: SourceId,
    text: Option<&ReplyText>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let shown: bool = transaction
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM visible_source WHERE id = ?1 AND NOT being_deleted)")?
        .query_row([source.as_str()], |row| row.get(0))?;
    if !shown {
        return Ok(false);
    }
    match text {
        Some(text) => {
            transaction
                .prepare_cached(
                    "INSERT INTO local_draft (journalist_id, source_id, text, written_us) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT DO UPDATE SET text = ?3, written_us = ?4",
                )?
                .execute(params![journalist.as_str(), source.as_str(), text.as_str(), now.as_i64()])?;
        }
        None => {
            transaction
                .prepare_cached("DELETE FROM local_draft WHERE journalist_id = ?1 AND source_id = ?2")?
                .execute(params![journalist.as_str(), source.as_str()])?;
            // The source may have been there only for it.
            removals::forget_without_replies(transaction)?;
        }
    }
    Ok(true)
}

/// The draft to a source of whoever signed in last.
///
/// # Errors
/// [`StoreError`].
pub fn load(transaction: &Transaction<'_>, source: SourceId) -> Result<Option<ReplyText>, StoreError> {
    let text: Option<String> = transaction
        .prepare_cached(
            "SELECT d.text FROM local_draft AS d JOIN local_journalist AS l ON l.journalist_id = d.journalist_id
             WHERE d.source_id = ?1 AND d.source_id IN (SELECT id FROM visible_source)",
        )?
        .query_row([source.as_str()], |row| row.get(0))
        .optional()?;
    Ok(text.map(ReplyText::try_new).transpose()?)
}

#[cfg(test)]
mod tests;
