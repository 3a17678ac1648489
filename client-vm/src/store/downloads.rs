//! What is held of items' content, and which of it is to be fetched next.
//!
//! There is no table of jobs: a lane is a query over what is shown and what is held, so there is one job for each item, and
//! it goes with its item.
//!
//! **Invariant:** what is listed as larger than what a SecureDrop server takes is not fetched. That is so as long as it is
//! listed so, and nobody has to end it.
//!
//! **Invariant:** nothing is fetched, and nothing is noted as downloaded, of what is not shown or is being deleted.

mod attempts;

use std::collections::HashSet;
use std::time::Duration;

use control::{DownloadEntry, DownloadLane, DownloadState, LaneCounts, Wanted};
use protocol::value::{Designation, ItemId, Sha256, Size, SourceId, Timestamp};
use rusqlite::{OptionalExtension as _, Transaction, params};

pub use self::attempts::{Wait, end_waits, fail, note_mismatch, note_progress, postpone};
use super::StoreError;
use super::outbox::ItemName;
use crate::files::FileNumber;

/// An item to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Whose conversation it is in.
    pub source: SourceId,
    /// Which.
    pub item: ItemName,
}

/// An item whose time has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueItem {
    /// Which.
    pub candidate: Candidate,
    /// How many bytes the server lists it with.
    pub listed: Size,
    /// The number of its files, if there may be a part of it that is gone on with.
    pub part: Option<FileNumber>,
}

/// What can be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due<Item> {
    /// What is due now, in the order in which it is to be fetched.
    pub items: Vec<Item>,
    /// How long until something more is due, if anything waits for its time.
    pub next: Option<Duration>,
}

/// An item that is being fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// The item.
    pub candidate: Candidate,
    /// How many bytes the server lists it with.
    pub listed: Size,
    /// Its number, if there may be a part of it.
    pub number: Option<FileNumber>,
    /// What the server claimed of it before.
    pub sha256: Option<Sha256>,
}

/// The largest ciphertext of a message or reply that is fetched, in bytes: 2 MiB. The server takes 100,000 characters, which
/// are at most 400,000 bytes; armor, and a message that its source has encrypted too, add less than as much again.
pub const MAX_MESSAGE: u64 = 2 << 20;
/// The largest ciphertext of a file that is fetched, in bytes: 512 MiB. The server takes 524,288,000 bytes, to which packing
/// and encryption add less than a hundredth.
pub const MAX_FILE: u64 = 512 << 20;

/// Why a message or reply is not fetched.
const MESSAGE_TOO_LARGE: &str = "the server lists it with more than 2 MiB, which is more than a message can have";
/// Why a file is not fetched.
const FILE_TOO_LARGE: &str = "the server lists it with more than 512 MiB, which is more than a file can have";

/// Why an item of `item_content` is not fetched as long as it is listed as it is: it is too large. Null where it may be.
/// `of` is the name of the row.
pub(super) fn too_large(of: &str) -> String {
    format!(
        "CASE WHEN {of}.state <> 'absent' THEN NULL
              WHEN {of}.kind = 'file' AND {of}.size_bytes > {MAX_FILE} THEN '{FILE_TOO_LARGE}'
              WHEN {of}.kind <> 'file' AND {of}.size_bytes > {MAX_MESSAGE} THEN '{MESSAGE_TOO_LARGE}' END"
    )
}

/// What can be told of a lane's items without a look at what is shown, which takes long. Most often that leaves none.
fn may_be_due(lane: DownloadLane) -> &'static str {
    match lane {
        DownloadLane::Messages => {
            "(c.kind = 'reply', c.id) NOT IN (SELECT is_reply, item_id FROM local_item WHERE state <> 'absent')"
        }
        DownloadLane::Files => {
            "c.id IN (SELECT item_id FROM local_item WHERE wanted_us IS NOT NULL AND state = 'absent')"
        }
    }
}

/// The items of a lane.
const OF_LANE: &str = "c.wanted AND NOT c.being_deleted AND (c.kind = 'file') = (?1 = 'files')";

fn lane_name(lane: DownloadLane) -> &'static str {
    match lane {
        DownloadLane::Messages => "messages",
        DownloadLane::Files => "files",
    }
}

/// What is to be fetched next in a lane, at most `most` items: messages and replies of the source that wrote last first,
/// files in the order in which they were asked for.
///
/// # Errors
/// [`StoreError`].
pub fn due(
    transaction: &Transaction<'_>,
    lane: DownloadLane,
    now: Timestamp,
    busy: &HashSet<ItemId>,
    most: usize,
) -> Result<Due<DueItem>, StoreError> {
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT c.source_id, c.id, c.kind,
                CASE WHEN c.wait_from_us IS NULL OR ?2 < c.wait_from_us THEN 0
                     ELSE max(c.wait_from_us + c.wait_us - ?2, 0) END,
                c.size_bytes, CASE WHEN c.sha256 IS NOT NULL THEN c.number END
         FROM item_content AS c JOIN server_source AS s ON s.id = c.source_id
         WHERE {} AND {OF_LANE} AND c.state = 'absent' AND {} IS NULL
         ORDER BY CASE WHEN c.kind = 'file' THEN c.wanted_us END, s.last_updated_us DESC, c.source_id, c.item_order, c.id",
        may_be_due(lane),
        too_large("c")
    ))?;
    let mut rows = statement.query(params![lane_name(lane), now.as_i64()])?;
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
            due.items.push(DueItem {
                candidate: Candidate { source: row.get::<_, String>(0)?.parse()?, item },
                listed: Size::try_new(row.get(4)?)?,
                part: row.get::<_, Option<i64>>(5)?.map(FileNumber),
            });
        }
    }
    Ok(due)
}

/// What fetching an item needs; `None` when it is not to be fetched any more.
///
/// # Errors
/// [`StoreError`].
pub fn job(transaction: &Transaction<'_>, candidate: Candidate) -> Result<Option<Job>, StoreError> {
    let id = candidate.item.id();
    let found = transaction
        .prepare_cached(&format!(
            "SELECT size_bytes, number, sha256 FROM item_content AS c
             WHERE source_id = ?1 AND id = ?2 AND kind = ?3 AND NOT being_deleted AND wanted AND state = 'absent'
               AND {} IS NULL",
            too_large("c")
        ))?
        .query_row(params![candidate.source.as_str(), id.as_str(), candidate.item.kind()], |row| {
            Ok((row.get::<_, u64>(0)?, row.get::<_, Option<i64>>(1)?, row.get::<_, Option<[u8; 32]>>(2)?))
        })
        .optional()?;
    let Some((listed, number, sha256)) = found else { return Ok(None) };
    Ok(Some(Job {
        candidate,
        listed: Size::try_new(listed)?,
        number: number.map(FileNumber),
        sha256: sha256.map(Sha256::new),
    }))
}

/// The number of an item's files, if it has one.
///
/// # Errors
/// [`StoreError`].
pub fn number(transaction: &Transaction<'_>, item: ItemName) -> Result<Option<FileNumber>, StoreError> {
    let id = item.id();
    Ok(transaction
        .prepare_cached("SELECT id FROM local_item WHERE item_id = ?1 AND is_reply = ?2")?
        .query_row(params![id.as_str(), is_reply(item)], |row| Ok(FileNumber(row.get(0)?)))
        .optional()?)
}

/// Notes what the server claims of an item that is being fetched, before anything of it is written; gives the number of its
/// files.
///
/// # Errors
/// [`StoreError`].
pub fn note_claim(
    transaction: &Transaction<'_>,
    item: ItemName,
    sha256: Option<Sha256>,
) -> Result<FileNumber, StoreError> {
    let id = item.id();
    Ok(FileNumber(
        transaction
            .prepare_cached(
                "INSERT INTO local_item (item_id, is_reply, sha256) VALUES (?1, ?2, ?3)
                 ON CONFLICT DO UPDATE SET sha256 = ?3 RETURNING id",
            )?
            .query_row(params![id.as_str(), is_reply(item), sha256.map(|digest| *digest.as_bytes())], |row| {
                row.get(0)
            })?,
    ))
}

/// Notes that the verified ciphertext has its final name. Gives `false`, and notes nothing, where the item is not shown any
/// more or is being deleted.
///
/// # Errors
/// [`StoreError`].
pub fn note_downloaded(transaction: &Transaction<'_>, candidate: Candidate, size: u64) -> Result<bool, StoreError> {
    let id = candidate.item.id();
    let rows = transaction
        .prepare_cached(
            "UPDATE local_item SET state = 'downloaded', size_bytes = ?4, attempts = 0, reason = NULL,
                 wait_from_us = NULL, wait_us = NULL
             WHERE item_id = ?2 AND is_reply = ?3 AND state = 'absent' AND EXISTS (
                 SELECT 1 FROM visible_item AS i
                 WHERE i.source_id = ?1 AND i.id = ?2 AND (i.kind = 'reply') = ?3 AND NOT i.being_deleted
             )",
        )?
        .execute(params![
            candidate.source.as_str(),
            id.as_str(),
            is_reply(candidate.item),
            i64::try_from(size).unwrap_or(i64::MAX)
        ])?;
    Ok(rows > 0)
}

/// The user asks for items: files are fetched from now on, and what had failed is tried again.
///
/// # Errors
/// [`StoreError`].
pub fn want(transaction: &Transaction<'_>, items: &[ItemId], now: Timestamp) -> Result<Wanted, StoreError> {
    let mut wanted = Wanted::default();
    // Behind all that was asked for before, also where the clock was set back since.
    let last: Option<i64> = transaction.query_row("SELECT max(wanted_us) FROM local_item", [], |row| row.get(0))?;
    let first = last.map_or(now.as_i64(), |last| now.as_i64().max(last.saturating_add(1)));
    for (at, id) in (0..).zip(items) {
        let reply = matches!(id, ItemId::Reply(_));
        let rows = transaction
            .prepare_cached(
                "INSERT INTO local_item (item_id, is_reply, wanted_us)
                 SELECT i.id, i.kind = 'reply', ?3 FROM visible_item AS i
                 WHERE i.id = ?1 AND (i.kind = 'reply') = ?2 AND NOT i.being_deleted
                   AND (NOT i.gone OR EXISTS (SELECT 1 FROM local_item AS l WHERE l.item_id = i.id AND l.state = 'sealed'))
                 ON CONFLICT DO UPDATE SET wanted_us = coalesce(wanted_us, ?3),
                     -- What is there is not fetched again.
                     state = CASE WHEN state IN ('sealed', 'downloaded') THEN 'downloaded' ELSE 'absent' END,
                     attempts = 0, mismatches = 0, seal = NULL, reason = NULL, wait_from_us = NULL, wait_us = NULL
                 WHERE state IN ('failed', 'sealed') OR (state = 'downloaded' AND wait_us IS NOT NULL)
                     OR (state = 'absent' AND (wanted_us IS NULL OR wait_us IS NOT NULL))",
            )?
            // In the order in which they were named.
            .execute(params![id.as_str(), reply, first.saturating_add(at)])?;
        if rows > 0 {
            wanted.asked += 1;
        } else {
            wanted.already += 1;
        }
    }
    Ok(wanted)
}

/// All files that are shown and not held, and all messages and replies that have failed.
///
/// # Errors
/// [`StoreError`].
pub fn absent(transaction: &Transaction<'_>) -> Result<Vec<ItemId>, StoreError> {
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT c.kind, c.id FROM item_content AS c JOIN server_source AS s ON s.id = c.source_id
         WHERE NOT c.being_deleted AND NOT c.gone AND (c.kind = 'file' AND c.state = 'absent' OR c.state = 'failed')
           AND {} IS NULL
         ORDER BY s.last_updated_us DESC, c.source_id, c.item_order, c.id",
        too_large("c")
    ))?;
    let mut rows = statement.query([])?;
    let mut items = Vec::new();
    while let Some(row) = rows.next()? {
        items.push(ItemName::parse(&row.get::<_, String>(0)?, &row.get::<_, String>(1)?)?.id());
    }
    Ok(items)
}

/// All files that were asked for and are not there.
///
/// # Errors
/// [`StoreError`].
pub fn wanted_files(transaction: &Transaction<'_>) -> Result<Vec<ItemId>, StoreError> {
    let mut statement = transaction.prepare_cached(
        "SELECT item_id FROM local_item WHERE NOT is_reply AND wanted_us IS NOT NULL AND state = 'absent'",
    )?;
    let mut rows = statement.query([])?;
    let mut files = Vec::new();
    while let Some(row) = rows.next()? {
        files.push(ItemId::Submission(row.get::<_, String>(0)?.parse()?));
    }
    Ok(files)
}

/// The user does not want these files any more; gives those that were wanted. What there is of them stays, to be gone on
/// with.
///
/// # Errors
/// [`StoreError`].
pub fn unwant(transaction: &Transaction<'_>, items: &[ItemId]) -> Result<Vec<ItemId>, StoreError> {
    let mut taken_back = Vec::new();
    for id in items {
        let rows = transaction
            .prepare_cached(
                "UPDATE local_item SET wanted_us = NULL, reason = NULL, wait_from_us = NULL, wait_us = NULL
                 WHERE item_id = ?1 AND is_reply = ?2 AND wanted_us IS NOT NULL AND state = 'absent'",
            )?
            .execute(params![id.as_str(), matches!(id, ItemId::Reply(_))])?;
        if rows > 0 {
            taken_back.push(*id);
        }
    }
    Ok(taken_back)
}

/// How much of a lane is to be fetched, and how much has failed.
///
/// # Errors
/// [`StoreError`].
pub fn lane_counts(transaction: &Transaction<'_>, lane: DownloadLane) -> Result<LaneCounts, StoreError> {
    Ok(transaction
        .prepare_cached(&format!(
            "SELECT coalesce(sum(c.state = 'absent' AND {0} IS NULL), 0),
                    coalesce(sum(c.state = 'failed' OR {0} IS NOT NULL), 0)
             FROM item_content AS c WHERE {OF_LANE}",
            too_large("c")
        ))?
        .query_row([lane_name(lane)], |row| Ok(LaneCounts { waiting: row.get(0)?, running: 0, failed: row.get(1)? }))?)
}

/// The downloads of a lane that wait or have failed, in the order in which they come.
///
/// # Errors
/// [`StoreError`].
pub fn entries(
    transaction: &Transaction<'_>,
    lane: DownloadLane,
    now: Timestamp,
) -> Result<Vec<DownloadEntry>, StoreError> {
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT c.source_id, s.designation, c.id, c.kind, c.size_bytes, c.state, coalesce({0}, c.reason),
                CASE WHEN c.wait_from_us > ?2 THEN NULL ELSE c.wait_from_us + c.wait_us END,
                {0} IS NOT NULL, coalesce(l.attempts, 0)
         FROM item_content AS c JOIN server_source AS s ON s.id = c.source_id
         LEFT JOIN local_item AS l ON l.id = c.number
         WHERE {OF_LANE} AND c.state IN ('absent', 'failed')
         ORDER BY CASE WHEN c.kind = 'file' THEN c.wanted_us END, s.last_updated_us DESC, c.source_id, c.item_order, c.id",
        too_large("c")
    ))?;
    let mut rows = statement.query(params![lane_name(lane), now.as_i64()])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        let reason: Option<String> = row.get(6)?;
        let state = if row.get(8)? || row.get::<_, String>(5)? == "failed" {
            DownloadState::Failed { reason: reason.unwrap_or_default() }
        } else {
            let due = row.get::<_, Option<u64>>(7)?.filter(|due| *due > now.get());
            DownloadState::Waiting { next_try: due.map(Timestamp::try_new).transpose()?, reason }
        };
        entries.push(DownloadEntry {
            lane,
            source: row.get::<_, String>(0)?.parse()?,
            designation: Designation::try_new(row.get::<_, String>(1)?)?,
            item: ItemName::parse(&row.get::<_, String>(3)?, &row.get::<_, String>(2)?)?.id(),
            size: Size::try_new(row.get(4)?)?,
            attempts: row.get(9)?,
            state,
        });
    }
    Ok(entries)
}

/// Items of which something is held and that are not listed any more, or whose deletion is confirmed; but not those whose
/// removal is held or was rejected.
///
/// # Errors
/// [`StoreError`].
pub fn doomed(transaction: &Transaction<'_>) -> Result<Vec<(FileNumber, ItemId)>, StoreError> {
    let mut statement = transaction.prepare_cached(
        "SELECT l.id, l.is_reply, l.item_id FROM local_item AS l
         WHERE CASE WHEN l.is_reply
             THEN NOT EXISTS (SELECT 1 FROM server_reply AS r
                              WHERE r.id = l.item_id AND r.source_id IN (SELECT id FROM known_source))
             ELSE NOT EXISTS (SELECT 1 FROM server_submission AS s
                              WHERE s.id = l.item_id AND s.source_id IN (SELECT id FROM known_source)) END
           AND NOT EXISTS (SELECT 1 FROM local_removed_item AS r WHERE r.id = l.item_id AND r.is_reply = l.is_reply)",
    )?;
    let mut rows = statement.query([])?;
    let mut items = Vec::new();
    while let Some(row) = rows.next()? {
        let id: String = row.get(2)?;
        let item = if row.get(1)? { ItemId::Reply(id.parse()?) } else { ItemId::Submission(id.parse()?) };
        items.push((FileNumber(row.get(0)?), item));
    }
    Ok(items)
}

/// Forgets what doomed items say, before their files go, but for those that are in use; gives whose files are to go, and
/// whether any of them said something.
///
/// # Errors
/// [`StoreError`].
pub fn blank(transaction: &Transaction<'_>, busy: &HashSet<ItemId>) -> Result<(Vec<FileNumber>, bool), StoreError> {
    let mut said = false;
    let numbers: Vec<_> =
        doomed(transaction)?.into_iter().filter(|(_, item)| !busy.contains(item)).map(|(number, _)| number).collect();
    for number in &numbers {
        said |= transaction
            .prepare_cached(
                "UPDATE local_item SET state = 'absent', text = NULL, name = NULL, plain_bytes = NULL, inner = NULL,
                     seal = NULL, reason = NULL
                 WHERE id = ?1 AND (state <> 'absent' OR coalesce(text, name, reason) IS NOT NULL)",
            )?
            .execute([number.0])?
            > 0;
    }
    Ok((numbers, said))
}

/// Forgets items whose files are gone. One that is listed again meanwhile may have others, and is not forgotten.
///
/// # Errors
/// [`StoreError`].
pub fn forget(transaction: &Transaction<'_>, numbers: &[FileNumber]) -> Result<(), StoreError> {
    let doomed: HashSet<_> = doomed(transaction)?.into_iter().map(|(number, _)| number).collect();
    for number in numbers.iter().filter(|number| doomed.contains(number)) {
        transaction.prepare_cached("DELETE FROM local_item WHERE id = ?1")?.execute([number.0])?;
    }
    Ok(())
}

/// What is on the disk of an item, as far as is noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Nothing, or part of its ciphertext.
    Part,
    /// Its whole ciphertext.
    Ciphertext,
    /// Its plaintext, which is a text of the database.
    Text,
    /// Its plaintext, which is a file.
    Plaintext,
}

/// The numbers of all items of which something is noted, and what there is.
///
/// # Errors
/// [`StoreError`].
pub fn numbers(transaction: &Transaction<'_>) -> Result<Vec<(FileNumber, Held)>, StoreError> {
    let mut statement = transaction.prepare_cached("SELECT id, state, text IS NOT NULL FROM local_item")?;
    let rows = statement.query_map([], |row| {
        let state: String = row.get(1)?;
        let held = match (state.as_str(), row.get(2)?) {
            ("downloaded" | "sealed", _) => Held::Ciphertext,
            ("decrypted", true) => Held::Text,
            ("decrypted", false) => Held::Plaintext,
            _absent_or_failed => Held::Part,
        };
        Ok((FileNumber(row.get(0)?), held))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// What was held of an item has vanished: it is fetched anew.
///
/// # Errors
/// [`StoreError`].
pub fn note_vanished(transaction: &Transaction<'_>, number: FileNumber) -> Result<(), StoreError> {
    transaction
        .prepare_cached(
            "UPDATE local_item SET state = 'absent', size_bytes = NULL, seal = NULL, inner = NULL, plain_bytes = NULL,
                 name = NULL
             WHERE id = ?1",
        )?
        .execute([number.0])?;
    Ok(())
}

/// The plaintext of an item has vanished, and its ciphertext is there: it is decrypted anew.
///
/// # Errors
/// [`StoreError`].
pub fn note_sealed_again(transaction: &Transaction<'_>, number: FileNumber) -> Result<(), StoreError> {
    transaction
        .prepare_cached(
            "UPDATE local_item SET state = 'downloaded', attempts = 0, seal = NULL, inner = NULL, plain_bytes = NULL,
                 name = NULL, reason = NULL, wait_from_us = NULL, wait_us = NULL
             WHERE id = ?1",
        )?
        .execute([number.0])?;
    Ok(())
}

/// Whether the user has paused the queue.
///
/// # Errors
/// [`StoreError`].
pub fn is_paused(transaction: &Transaction<'_>) -> Result<bool, StoreError> {
    Ok(transaction.query_row("SELECT paused FROM local_queue", [], |row| row.get(0))?)
}

/// Notes whether messages and replies are fetched by themselves.
///
/// # Errors
/// [`StoreError`].
pub fn set_fetch_messages(transaction: &Transaction<'_>, fetch: bool) -> Result<(), StoreError> {
    transaction.execute("UPDATE local_queue SET fetch_messages = ?1", [fetch])?;
    Ok(())
}

/// The user pauses the queue or lets it go on.
///
/// # Errors
/// [`StoreError`].
pub fn set_paused(transaction: &Transaction<'_>, paused: bool) -> Result<(), StoreError> {
    transaction.execute("UPDATE local_queue SET paused = ?1", [paused])?;
    Ok(())
}

fn is_reply(item: ItemName) -> bool {
    matches!(item, ItemName::Reply(_))
}

#[cfg(test)]
mod tests;
