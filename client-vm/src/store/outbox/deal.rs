//! What the user does about acts that wait or were refused.

use std::collections::BTreeSet;

use control::reply::MAX_REPLY_CHARS;
use control::{ActChange, ActId, ActStep, Deal};
use protocol::value::{JournalistId, SourceId};
use rusqlite::{Transaction, params};

use super::snapshot::SET_ASIDE;
use super::{forget_reduced, parse_kind};
use crate::store::{StoreError, removals};

/// Nothing can be dealt with in this way. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum DealError {
    /// No row of the journalist belongs to this act.
    #[error("there is no act {} of yours: `splitdrop queue` lists them", .0.0)]
    NoAct(ActId),
    /// The act's rows are not in a state for it.
    #[error("act {} {}", .act.0, why_not(*.deal))]
    NotSo {
        /// The act.
        act: ActId,
        /// What was to be done.
        deal: Deal,
    },
    /// A reply that is taken back becomes the draft, and there is no room for it.
    #[error("the draft to the source of act {} has no room for the reply: send it or forget it first", .0.0)]
    DraftFull(ActId),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn why_not(deal: Deal) -> &'static str {
    match deal {
        Deal::Retry => "has nothing that could be tried again",
        Deal::Cancel => "has been sent, and can no longer be taken back",
        Deal::Dismiss => "was not refused",
        Deal::Restore => "is no deletion that the server has confirmed and not made",
    }
}

impl From<rusqlite::Error> for DealError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// The condition for a deal, and what is done to the rows that fulfil it.
fn words(deal: Deal) -> (String, &'static str) {
    match deal {
        Deal::Retry => (
            "state IN ('pending', 'attempted', 'refused') OR not_deleted = 1".to_owned(),
            // What may have had an effect is not taken for unsent. A reply of which a snapshot could not say whether it
            // is there is sent again when the user says so, under the id that it had.
            "UPDATE outbox SET state = CASE
                     WHEN kind = 'reply' AND state = 'attempted' AND listed > 0 AND NOT in_flight THEN 'pending'
                     WHEN state IN ('attempted', 'confirmed') OR state = 'refused' AND sent THEN 'attempted'
                     ELSE 'pending' END,
                 attempts = CASE state WHEN 'attempted' THEN attempts ELSE 0 END, held = 0, wait_from_us = NULL,
                 wait_us = NULL, not_deleted = 0, listed = 0, confirmed_us = NULL",
        ),
        // What was set aside and not sent may be called off too, before it is to be done again.
        Deal::Cancel => (format!("(state = 'pending' OR {SET_ASIDE} AND NOT sent)"), "DELETE FROM outbox"),
        Deal::Dismiss => ("state = 'refused'".to_owned(), "DELETE FROM outbox"),
        Deal::Restore => ("not_deleted = 1".to_owned(), "DELETE FROM outbox"),
    }
}

/// Deals with acts of `journalist`; gives what has changed.
///
/// # Errors
/// [`DealError`]; the caller's transaction must then not be committed.
pub fn deal(
    transaction: &Transaction<'_>,
    journalist: JournalistId,
    deal: Deal,
    acts: &[ActId],
) -> Result<Vec<ActChange>, DealError> {
    let (condition, change) = words(deal);
    let (mut changes, mut show_again): (Vec<ActChange>, bool) = (Vec::new(), false);
    for act in acts.iter().copied().collect::<BTreeSet<_>>() {
        let key = params![i64::try_from(act.0).unwrap_or(i64::MAX), journalist.as_str()];
        let (all, fitting, not_deleted): (u64, u64, bool) = transaction
            .prepare_cached(&format!(
                "SELECT count(*), coalesce(sum({condition}), 0), coalesce(max(({condition}) AND not_deleted), 0)
                 FROM outbox WHERE act = ?1 AND journalist_id = ?2"
            ))?
            .query_row(key, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        show_again |= not_deleted;
        if all == 0 {
            return Err(DealError::NoAct(act));
        }
        if fitting == 0 {
            return Err(DealError::NotSo { act, deal });
        }
        if deal == Deal::Cancel {
            // What a reply says is not lost: it is a draft again, behind what there is.
            let replies = "FROM outbox WHERE act = ?1 AND journalist_id = ?2 AND kind = 'reply' AND state = 'pending'";
            let taken_back: usize =
                transaction.prepare_cached(&format!("SELECT count(*) {replies}"))?.query_row(key, |row| row.get(0))?;
            let kept = transaction
                .prepare_cached(&format!(
                    "INSERT INTO local_draft (journalist_id, source_id, text, written_us)
                     SELECT journalist_id, source_id, text, created_us {replies}
                     ON CONFLICT DO UPDATE SET text = text || char(10) || char(10) || excluded.text
                     WHERE length(text) + 2 + length(excluded.text) <= {MAX_REPLY_CHARS}"
                ))?
                .execute(key)?;
            if kept < taken_back {
                return Err(DealError::DraftFull(act));
            }
        }
        let mut statement = transaction.prepare_cached(&format!(
            "{change} WHERE act = ?1 AND journalist_id = ?2 AND ({condition}) RETURNING kind, source_id"
        ))?;
        let mut rows = statement.query(key)?;
        while let Some(row) = rows.next()? {
            let kind = parse_kind(&row.get::<_, String>(0)?).map_err(StoreError::from)?;
            let source: SourceId = row.get::<_, String>(1)?.parse().map_err(StoreError::from)?;
            match changes.last_mut() {
                Some(last) if (last.act, last.kind, last.source) == (act, kind, source) => last.objects += 1,
                _ => changes.push(ActChange { act, kind, source, objects: 1, step: ActStep::Dealt(deal) }),
            }
        }
    }
    removals::forget_without_replies(transaction)?;
    if show_again {
        // Given up, or being deleted once more: until the server confirms that, it is there.
        forget_reduced(transaction)?;
    }
    Ok(changes)
}
