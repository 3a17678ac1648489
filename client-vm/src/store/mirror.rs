//! Writes what a sync brought: the mirror's tables and the sync's state.

use std::collections::{BTreeSet, HashMap};

use control::{Counts, OverTime, SyncReport};
use protocol::codec;
use protocol::record::Record;
use protocol::value::{JournalistId, SourceId, Timestamp, Username};
use protocol::{Journalist, Listed, Reply, Source, Submission, SubmissionKind};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{StoreError, keys};
use crate::sync::{Digest, Known, ListPlan, Mirror, Plan};

/// What an applied snapshot changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// How many rows of the mirror were written or removed.
    pub rows_written: u64,
    /// The sources that changed: they themselves or an item of theirs.
    pub changed_sources: BTreeSet<SourceId>,
    /// What the mirror holds now.
    pub counts: Counts,
}

/// What is known of earlier syncs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SyncHistory {
    /// The last one that ended.
    pub report: Option<SyncReport>,
    /// When the last one that succeeded had ended.
    pub last_success: Option<Timestamp>,
}

/// A record's place in the mirror.
trait Mirrored: Record {
    /// The record's table.
    const TABLE: &'static str;
    /// Whether the table has a column `source_id`.
    const HAS_SOURCE: bool;

    /// Writes the record over what the table holds of it; gives the number of rows.
    fn write(&self, transaction: &Transaction<'_>, digest: &Digest) -> rusqlite::Result<usize>;

    /// The source that a reader would look at to see the record.
    fn source(&self) -> Option<SourceId>;
}

impl Mirrored for Journalist {
    const TABLE: &'static str = "server_journalist";
    const HAS_SOURCE: bool = false;

    fn write(&self, transaction: &Transaction<'_>, digest: &Digest) -> rusqlite::Result<usize> {
        transaction
            .prepare_cached("INSERT OR REPLACE INTO server_journalist VALUES (?1, ?2, NULL, ?3, ?4, ?5)")?
            .execute(params![
                self.id.as_str(),
                digest.0,
                self.username.as_str(),
                self.first_name.as_ref().map(|name| name.as_str()),
                self.last_name.as_ref().map(|name| name.as_str()),
            ])
    }

    fn source(&self) -> Option<SourceId> {
        None
    }
}

impl Mirrored for Source {
    const TABLE: &'static str = "server_source";
    const HAS_SOURCE: bool = false;

    fn write(&self, transaction: &Transaction<'_>, digest: &Digest) -> rusqlite::Result<usize> {
        keys::note_offered(transaction, self.id, self.key.as_ref().map(|key| (&key.armored, &key.fingerprint)))?;
        transaction
            .prepare_cached("INSERT OR REPLACE INTO server_source VALUES (?1, ?2, NULL, ?3, ?4, ?5, ?6, ?7, ?8)")?
            .execute(params![
                self.id.as_str(),
                digest.0,
                self.designation.as_str(),
                self.starred,
                self.last_updated.as_i64(),
                self.interactions.as_i64(),
                self.key.as_ref().map(|key| key.armored.as_str()),
                self.key.as_ref().map(|key| key.fingerprint.as_str()),
            ])
    }

    fn source(&self) -> Option<SourceId> {
        Some(self.id)
    }
}

impl Mirrored for Submission {
    const TABLE: &'static str = "server_submission";
    const HAS_SOURCE: bool = true;

    fn write(&self, transaction: &Transaction<'_>, digest: &Digest) -> rusqlite::Result<usize> {
        let kind = match self.kind {
            SubmissionKind::Message => "message",
            SubmissionKind::File => "file",
        };
        let rows = transaction
            .prepare_cached(
                "INSERT INTO server_submission VALUES (?1, ?2, NULL, ?3, ?4, ?5, ?6, ?7, ?8)
                 ON CONFLICT DO UPDATE SET digest = ?2, unreadable = NULL, source_id = ?3, kind = ?4, item_order = ?5,
                     filename = ?6, size_bytes = ?7, read = ?8",
            )?
            .execute(params![
                self.id.as_str(),
                digest.0,
                self.source.as_str(),
                kind,
                self.order.as_i64(),
                self.filename.as_ref().map(|name| name.as_str()),
                self.size.as_i64(),
                self.read,
            ])?;
        Ok(rows + write_seen(transaction, "submission", self.id.as_str(), self.seen_by.as_slice())?)
    }

    fn source(&self) -> Option<SourceId> {
        Some(self.source)
    }
}

impl Mirrored for Reply {
    const TABLE: &'static str = "server_reply";
    const HAS_SOURCE: bool = true;

    fn write(&self, transaction: &Transaction<'_>, digest: &Digest) -> rusqlite::Result<usize> {
        let rows = transaction
            .prepare_cached(
                "INSERT INTO server_reply VALUES (?1, ?2, NULL, ?3, ?4, ?5, ?6, ?7, ?8)
                 ON CONFLICT DO UPDATE SET digest = ?2, unreadable = NULL, source_id = ?3, author_id = ?4,
                     item_order = ?5, filename = ?6, size_bytes = ?7, deleted_by_source = ?8",
            )?
            .execute(params![
                self.id.as_str(),
                digest.0,
                self.source.as_str(),
                self.author.as_str(),
                self.order.as_i64(),
                self.filename.as_ref().map(|name| name.as_str()),
                self.size.as_i64(),
                self.deleted_by_source,
            ])?;
        Ok(rows + write_seen(transaction, "reply", self.id.as_str(), self.seen_by.as_slice())?)
    }

    fn source(&self) -> Option<SourceId> {
        Some(self.source)
    }
}

/// Brings an item's seen marks to `seen_by`. `item` is "submission" or "reply".
fn write_seen(
    transaction: &Transaction<'_>,
    item: &'static str,
    id: &str,
    seen_by: &[JournalistId],
) -> rusqlite::Result<usize> {
    let mut rows =
        transaction.prepare_cached(&format!("DELETE FROM server_{item}_seen WHERE {item}_id = ?1"))?.execute([id])?;
    let mut insert =
        transaction.prepare_cached(&format!("INSERT OR IGNORE INTO server_{item}_seen VALUES (?1, ?2)"))?;
    for journalist in seen_by {
        rows += insert.execute([id, journalist.as_str()])?;
    }
    Ok(rows)
}

/// What the mirror holds.
///
/// # Errors
/// [`StoreError`].
pub fn load_mirror(transaction: &Transaction<'_>) -> Result<Mirror, StoreError> {
    Ok(Mirror {
        users: load_known::<Journalist>(transaction)?,
        sources: load_known::<Source>(transaction)?,
        submissions: load_known::<Submission>(transaction)?,
        replies: load_known::<Reply>(transaction)?,
    })
}

fn load_known<T: Mirrored>(transaction: &Transaction<'_>) -> Result<Known<T::Id>, StoreError> {
    let mut statement = transaction.prepare_cached(&format!("SELECT id, digest FROM {}", T::TABLE))?;
    let mut rows = statement.query([])?;
    let mut known = HashMap::new();
    while let Some(row) = rows.next()? {
        known.insert(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?.parse()?, Digest(row.get(1)?));
    }
    Ok(known)
}

/// Applies a plan.
///
/// # Errors
/// [`StoreError`]; the caller's transaction must then not be committed.
pub fn apply(transaction: &Transaction<'_>, plan: &Plan) -> Result<Applied, StoreError> {
    let mut writer = Writer { transaction, rows: 0, changed: BTreeSet::new() };
    writer.apply(&plan.users)?;
    writer.apply(&plan.sources)?;
    writer.apply(&plan.submissions)?;
    writer.apply(&plan.replies)?;
    let Writer { rows, changed, .. } = writer;
    Ok(Applied {
        rows_written: u64::try_from(rows).unwrap_or(u64::MAX),
        changed_sources: changed,
        counts: count(transaction, plan.unreadable())?,
    })
}

/// What is noted of an item's record that names another source than before.
const MOVED: &str = "moved";

struct Writer<'a> {
    transaction: &'a Transaction<'a>,
    rows: usize,
    changed: BTreeSet<SourceId>,
}

impl Writer<'_> {
    fn apply<T: Mirrored>(&mut self, plan: &ListPlan<T>) -> Result<(), StoreError> {
        for id in &plan.removals {
            self.note_source_of::<T>(id)?;
            self.rows += self
                .transaction
                .prepare_cached(&format!("DELETE FROM {} WHERE id = ?1", T::TABLE))?
                .execute([id.to_string()])?;
        }
        for change in &plan.changes {
            self.note_source_of::<T>(&change.id)?;
            match &change.entry {
                Listed::Readable(record) if self.moves(record, &change.id)? => {
                    self.mark_unreadable::<T>(&change.id, &change.digest, MOVED)?;
                }
                Listed::Readable(record) => {
                    self.changed.extend(record.source());
                    self.rows += record.write(self.transaction, &change.digest)?;
                }
                Listed::Unreadable(mark) => self.mark_unreadable::<T>(&change.id, &change.digest, mark.field.name())?,
            }
        }
        Ok(())
    }

    /// Keeps what is held of the record, and notes that it could not be read.
    fn mark_unreadable<T: Mirrored>(&mut self, id: &T::Id, digest: &Digest, field: &str) -> Result<(), StoreError> {
        self.rows += self
            .transaction
            .prepare_cached(&format!(
                "INSERT INTO {} (id, digest, unreadable) VALUES (?1, ?2, ?3)
                 ON CONFLICT DO UPDATE SET digest = ?2, unreadable = ?3",
                T::TABLE
            ))?
            .execute(params![id.to_string(), digest.0, field])?;
        Ok(())
    }

    /// Whether an item is listed under another source than before. No server does that, and one that did could let what
    /// belongs to many sources go with one: the record counts as unreadable.
    fn moves<T: Mirrored>(&self, record: &T, id: &T::Id) -> Result<bool, StoreError> {
        let (true, Some(source)) = (T::HAS_SOURCE, record.source()) else { return Ok(false) };
        Ok(self
            .transaction
            .prepare_cached(&format!(
                "SELECT 1 FROM {} WHERE id = ?1 AND source_id <> ?2
                 UNION ALL
                 SELECT 1 FROM local_removed_item WHERE id = ?1 AND is_reply = ?3 AND source_id <> ?2",
                T::TABLE
            ))?
            .exists(params![id.to_string(), source.as_str(), T::TABLE == Reply::TABLE])?)
    }

    /// Notes the source under which the record stood until now.
    fn note_source_of<T: Mirrored>(&mut self, id: &T::Id) -> Result<(), StoreError> {
        let text = id.to_string();
        if T::HAS_SOURCE {
            let source: Option<Option<String>> = self
                .transaction
                .prepare_cached(&format!("SELECT source_id FROM {} WHERE id = ?1", T::TABLE))?
                .query_row([&text], |row| row.get(0))
                .optional()?;
            if let Some(source) = source.flatten() {
                self.changed.insert(source.parse()?);
            }
        } else if T::TABLE == Source::TABLE {
            self.changed.insert(text.parse()?);
        }
        Ok(())
    }
}

/// Counts what the mirror holds. How many records were unreadable is the snapshot's own count: a mark stays in the mirror
/// when its record is not named in a later one.
fn count(transaction: &Transaction<'_>, unreadable: u64) -> Result<Counts, StoreError> {
    Ok(transaction
        .prepare_cached(
            "SELECT (SELECT count(*) FROM server_journalist WHERE username IS NOT NULL),
                    (SELECT count(*) FROM server_source WHERE designation IS NOT NULL),
                    (SELECT count(*) FROM server_submission WHERE kind = 'message'),
                    (SELECT count(*) FROM server_submission WHERE kind = 'file'),
                    (SELECT count(*) FROM server_reply WHERE source_id IS NOT NULL),
                    (SELECT count(*) FROM server_submission
                     WHERE source_id NOT IN (SELECT id FROM visible_source))
                        + (SELECT count(*) FROM server_reply
                           WHERE source_id NOT IN (SELECT id FROM visible_source)),
                    (SELECT count(*) FROM server_submission WHERE unreadable = ?1)
                        + (SELECT count(*) FROM server_reply WHERE unreadable = ?1)",
        )?
        .query_row([MOVED], |row| {
            Ok(Counts {
                journalists: row.get(0)?,
                sources: row.get(1)?,
                messages: row.get(2)?,
                files: row.get(3)?,
                replies: row.get(4)?,
                unreadable: unreadable.saturating_add(row.get(6)?),
                not_shown: row.get(5)?,
            })
        })?)
}

/// Stores the report of a sync whose snapshot was applied.
///
/// # Errors
/// [`StoreError`].
pub fn store_success(transaction: &Transaction<'_>, report: &SyncReport) -> Result<(), StoreError> {
    transaction.execute(
        "UPDATE sync_state SET report = ?1, last_success_us = ?2, unreadable = ?3,
             unreadable_since_us = CASE WHEN ?3 = 0 THEN NULL ELSE coalesce(unreadable_since_us, ?2) END",
        params![
            codec::encode(report)?,
            report.ended.as_i64(),
            i64::try_from(report.counts.unreadable).unwrap_or(i64::MAX)
        ],
    )?;
    Ok(())
}

/// Stores the report of a sync of which nothing was applied.
///
/// # Errors
/// [`StoreError`].
pub fn store_failure(transaction: &Transaction<'_>, report: &SyncReport) -> Result<(), StoreError> {
    transaction.execute("UPDATE sync_state SET report = ?1", params![codec::encode(report)?])?;
    Ok(())
}

/// What is known of earlier syncs.
///
/// # Errors
/// [`StoreError`].
pub fn load_history(transaction: &Transaction<'_>) -> Result<SyncHistory, StoreError> {
    let (report, last_success): (Option<Vec<u8>>, Option<u64>) =
        transaction
            .query_row("SELECT report, last_success_us FROM sync_state", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(SyncHistory {
        report: report.and_then(|bytes| read_report(&bytes)),
        last_success: last_success.map(Timestamp::try_new).transpose()?,
    })
}

/// Records that could not be read when they were last listed.
///
/// # Errors
/// [`StoreError`].
pub fn load_unreadable(transaction: &Transaction<'_>) -> Result<OverTime, StoreError> {
    let (count, since): (u64, Option<u64>) =
        transaction.query_row("SELECT unreadable, unreadable_since_us FROM sync_state", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    Ok(OverTime { count, since: since.map(Timestamp::try_new).transpose()? })
}

/// A report of an earlier version of this program may have another form. It is only shown, so it may be missing.
fn read_report(bytes: &[u8]) -> Option<SyncReport> {
    codec::decode_exact(bytes)
        .inspect_err(|error| tracing::warn!(%error, "the last sync's report cannot be read and is not shown"))
        .ok()
}

/// Notes who signed in: until somebody else does, their seen marks decide what is unread.
///
/// # Errors
/// [`StoreError`].
pub fn store_journalist(
    transaction: &Transaction<'_>,
    journalist: JournalistId,
    username: &Username,
) -> Result<(), StoreError> {
    transaction.execute(
        "INSERT INTO local_journalist VALUES (1, ?1, ?2) ON CONFLICT DO UPDATE SET journalist_id = ?1, username = ?2",
        params![journalist.as_str(), username.as_str()],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests;
