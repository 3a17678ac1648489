//! Removals that nobody here has asked for: what the server stops listing.
//!
//! A few a day are taken as they come: colleagues delete too. More than that in a day are held, since a server or a proxy
//! that is taken over would else erase all that is here: what they are about is hidden, and nothing of it is erased until
//! somebody says so.
//!
//! **Invariant:** what is held is not shown, not searched, not fetched and not erased. It is shown again when the server
//! lists it again.
//!
//! **Invariant:** what somebody here has deleted is never held. A deletion that can still be taken back does not count as one:
//! it waits as long as what it is about is held, and whoever rejects the removal has the last word over it.
//!
//! A removal that is taken as it comes leaves something where somebody here has answered the source and that was not sent:
//! the source's row, shown as no longer on the server, until those replies are dismissed or the source is deleted. What is
//! written since (a draft, or a reply that is taken back) keeps it there as well. Nothing else of it is kept: no draft from
//! before, no item, and of its key only the fingerprint, so that no other key may pass for that one later.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use control::{HeldRemoval, RemovalVerdict};
use protocol::record::Record;
use protocol::value::{Designation, SourceId, Timestamp};
use protocol::{Reply, Submission};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::outbox::{self, ItemName};
use super::{StoreError, keys};
use crate::sync::Plan;

/// So many objects may go in a day, whatever is here: a source with all that belongs to it is one, and so is all that one
/// source loses in one snapshot.
const AT_LEAST: u64 = 5;
/// The part of the sources that may go in a day, where that is more.
const ONE_IN: u64 = 10;
/// How long a removal counts.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// An hour, in microseconds.
const HOUR_US: u64 = 60 * 60 * 1_000_000;

/// What a snapshot removes that is shown and that nobody here has deleted.
#[derive(Debug, Default)]
struct Lost {
    sources: BTreeSet<SourceId>,
    /// Items by their sources: those of sources that go too are among them.
    items: BTreeMap<SourceId, Vec<Removed>>,
}

/// A removed item's id, and the mirror's table of it.
#[derive(Debug)]
struct Removed {
    id: String,
    table: Table,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    Submission,
    Reply,
}

impl Lost {
    /// How many objects: a source with its items is one, and so are the items that a source loses.
    fn objects(&self) -> u64 {
        let others = self.items.keys().filter(|source| !self.sources.contains(source)).count();
        u64::try_from(self.sources.len().saturating_add(others)).unwrap_or(u64::MAX)
    }
}

/// Before a snapshot is applied: keeps what its removals are about where there are too many of them, and counts them where
/// not. Gives the sources of what is held from now on.
///
/// # Errors
/// [`StoreError`].
pub fn hold(transaction: &Transaction<'_>, plan: &Plan, now: Timestamp) -> Result<BTreeSet<SourceId>, StoreError> {
    let (sources, items) = (&plan.sources.removals, plan.submissions.removals.len() + plan.replies.removals.len());
    if sources.is_empty() && items == 0 {
        return Ok(BTreeSet::new());
    }
    let mut desk = Desk { transaction, now, removed: removed_sources(transaction)?, lost: Lost::default() };
    let asked = Asked::load(transaction, now)?;
    for source in sources {
        desk.lose_source(*source, &asked)?;
    }
    let mut of_removed = Vec::new();
    for id in &plan.submissions.removals {
        desk.lose_item::<Submission>(id, Table::Submission, &asked, &mut of_removed)?;
    }
    for id in &plan.replies.removals {
        desk.lose_item::<Reply>(id, Table::Reply, &asked, &mut of_removed)?;
    }
    // What is held already is held whole.
    for (source, item) in &of_removed {
        desk.keep_item(*source, item)?;
    }
    let held = desk.decide()?;
    for source in sources {
        keep_for_replies(transaction, source, now)?;
    }
    Ok(held)
}

/// The value of `kept` of a source that is there only for the replies that were not sent to it.
pub(super) const FOR_REPLIES: i64 = 2;

/// The source is taken off the list. Shows it on, as gone, where there are replies to it that nobody is known to have sent,
/// unless its deletion was confirmed or its removal is held. Its drafts go, as they do with any source.
fn keep_for_replies(transaction: &Transaction<'_>, source: &SourceId, now: Timestamp) -> Result<(), StoreError> {
    let kept = transaction
        .prepare_cached(&format!(
            "INSERT OR IGNORE INTO local_removed_source
                 (id, designation, starred, last_updated_us, key_fingerprint, removed_us, kept)
             SELECT id, designation, starred, last_updated_us, NULL, ?2, {FOR_REPLIES} FROM server_source AS s
             WHERE id = ?1 AND designation IS NOT NULL AND EXISTS (
                 SELECT 1 FROM outbox WHERE source_id = s.id AND kind = 'reply' AND state <> 'confirmed'
             )"
        ))?
        .execute(params![source.as_str(), now.as_i64()])?;
    if kept > 0 {
        for change in [
            "DELETE FROM local_draft WHERE source_id = ?1",
            "DELETE FROM local_key WHERE source_id = ?1 AND fingerprint IS NULL",
            &format!("{} source_id = ?1", keys::REDUCE),
        ] {
            transaction.prepare_cached(change)?.execute([source.as_str()])?;
        }
    }
    Ok(())
}

/// Forgets sources that were there only for replies, and have none any more. What somebody has begun to write since the source
/// was taken off the list is in no other place: until that is forgotten, the source stays.
pub(super) fn forget_without_replies(transaction: &Transaction<'_>) -> Result<(), StoreError> {
    let forgotten = transaction
        .prepare_cached(&format!(
            "DELETE FROM local_removed_source
             WHERE kept = {FOR_REPLIES} AND id NOT IN (SELECT source_id FROM outbox WHERE kind = 'reply')
               AND id NOT IN (SELECT source_id FROM local_draft)"
        ))?
        .execute([])?;
    if forgotten > 0 { outbox::forget_gone(transaction) } else { Ok(()) }
}

struct Desk<'a> {
    transaction: &'a Transaction<'a>,
    now: Timestamp,
    /// The sources that are held or kept already.
    removed: HashSet<SourceId>,
    lost: Lost,
}

impl Desk<'_> {
    fn lose_source(&mut self, source: SourceId, asked: &Asked) -> Result<(), StoreError> {
        let shown = self
            .transaction
            .prepare_cached("SELECT 1 FROM server_source WHERE id = ?1 AND designation IS NOT NULL")?
            .exists([source.as_str()])?;
        if shown && !asked.sources.contains(&source) {
            self.lost.sources.insert(source);
        }
        Ok(())
    }

    /// `of_removed` gets the item where its source is held or kept.
    fn lose_item<T: Record>(
        &mut self,
        id: &T::Id,
        table: Table,
        asked: &Asked,
        of_removed: &mut Vec<(SourceId, Removed)>,
    ) -> Result<(), StoreError> {
        let id = id.to_string();
        let found: Option<Option<String>> = self
            .transaction
            .prepare_cached(&format!("SELECT source_id FROM server_{} WHERE id = ?1", table.name()))?
            .query_row([&id], |row| row.get(0))
            .optional()?;
        let Some(source) = found.flatten() else { return Ok(()) };
        let source: SourceId = source.parse()?;
        if asked.sources.contains(&source) || asked.items.contains(&(table == Table::Reply, id.clone())) {
            return Ok(());
        }
        let removed = Removed { id, table };
        if self.removed.contains(&source) {
            of_removed.push((source, removed));
        } else if self.lost.sources.contains(&source) || self.is_shown(source)? {
            self.lost.items.entry(source).or_default().push(removed);
        }
        Ok(())
    }

    fn is_shown(&self, source: SourceId) -> Result<bool, StoreError> {
        Ok(self
            .transaction
            .prepare_cached("SELECT 1 FROM server_source WHERE id = ?1 AND designation IS NOT NULL")?
            .exists([source.as_str()])?)
    }

    /// Holds what is lost, or takes it as it comes.
    fn decide(self) -> Result<BTreeSet<SourceId>, StoreError> {
        let objects = self.lost.objects();
        if objects == 0 {
            return Ok(BTreeSet::new());
        }
        if !self.is_too_much(objects)? {
            self.transaction
                .prepare_cached("INSERT INTO local_removal (at_us, objects) VALUES (?1, ?2)")?
                .execute(params![self.now.as_i64(), objects])?;
            return Ok(BTreeSet::new());
        }
        tracing::warn!(objects, "the server lists much less than before: nothing of it is erased");
        let mut held = self.lost.sources.clone();
        for source in &self.lost.sources {
            self.keep_source(*source)?;
        }
        for (source, items) in &self.lost.items {
            held.insert(*source);
            for item in items {
                self.keep_item(*source, item)?;
            }
        }
        Ok(held)
    }

    fn is_too_much(&self, objects: u64) -> Result<bool, StoreError> {
        let since = self.now.get().saturating_sub(u64::try_from(DAY.as_micros()).unwrap_or(u64::MAX));
        self.transaction
            .prepare_cached("DELETE FROM local_removal WHERE at_us < ?1")?
            .execute([i64::try_from(since).unwrap_or(i64::MAX)])?;
        // What was made up of late raises no bound.
        let (taken, shown): (u64, u64) = self
            .transaction
            .prepare_cached(
                "SELECT (SELECT coalesce(sum(objects), 0) FROM local_removal),
                        min((SELECT count(*) FROM visible_source),
                            coalesce((SELECT min(sources) FROM local_shown WHERE hour >= ?1), 9e15))",
            )?
            .query_row([since / HOUR_US], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let sum = taken.saturating_add(objects);
        if sum > AT_LEAST && sum.saturating_mul(ONE_IN) > shown {
            return Ok(true);
        }
        // What is held or kept of a source would go with it.
        let mut has_removed =
            self.transaction.prepare_cached("SELECT 1 FROM local_removed_item WHERE source_id = ?1")?;
        for source in &self.lost.sources {
            if has_removed.exists([source.as_str()])? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn keep_source(&self, source: SourceId) -> Result<(), StoreError> {
        self.transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO local_removed_source
                     (id, designation, starred, last_updated_us, key_fingerprint, removed_us)
                 SELECT id, designation, starred, last_updated_us, key_fingerprint, ?2 FROM server_source WHERE id = ?1",
            )?
            .execute(params![source.as_str(), self.now.as_i64()])?;
        Ok(())
    }

    fn keep_item(&self, source: SourceId, item: &Removed) -> Result<(), StoreError> {
        let columns = match item.table {
            Table::Submission => "0, source_id, kind, item_order, filename, size_bytes, NULL",
            Table::Reply => "1, source_id, 'reply', item_order, filename, size_bytes, author_id",
        };
        self.transaction
            .prepare_cached(&format!(
                "INSERT OR REPLACE INTO local_removed_item
                     (id, is_reply, source_id, kind, item_order, filename, size_bytes, author_id, removed_us, kept)
                 SELECT id, {columns}, ?2, coalesce((SELECT kept FROM local_removed_source WHERE id = ?3), 0)
                 FROM server_{} WHERE id = ?1",
                item.table.name()
            ))?
            .execute(params![item.id, self.now.as_i64(), source.as_str()])?;
        Ok(())
    }
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Self::Submission => "submission",
            Self::Reply => "reply",
        }
    }
}

/// What somebody here has deleted, whether the server has confirmed it or not.
struct Asked {
    sources: HashSet<SourceId>,
    /// Whether it is a reply, and its id.
    items: HashSet<(bool, String)>,
}

impl Asked {
    fn load(transaction: &Transaction<'_>, now: Timestamp) -> Result<Self, StoreError> {
        let mut asked = Self { sources: HashSet::new(), items: HashSet::new() };
        let mut statement = transaction.prepare_cached(&format!(
            "SELECT source_id, item_kind = 'reply', item_id FROM outbox
             WHERE kind IN ('delete_source', 'delete_item') AND state <> 'refused'
               AND NOT ({})",
            outbox::grace_is_left("?1")
        ))?;
        let mut rows = statement.query([now.as_i64()])?;
        while let Some(row) = rows.next()? {
            match row.get::<_, Option<String>>(2)? {
                Some(item) => {
                    asked.items.insert((row.get(1)?, item));
                }
                None => {
                    asked.sources.insert(row.get::<_, String>(0)?.parse()?);
                }
            }
        }
        Ok(asked)
    }
}

fn removed_sources(transaction: &Transaction<'_>) -> Result<HashSet<SourceId>, StoreError> {
    let mut statement =
        transaction.prepare_cached(&format!("SELECT id FROM local_removed_source WHERE kept <> {FOR_REPLIES}"))?;
    let mut rows = statement.query([])?;
    let mut sources = HashSet::new();
    while let Some(row) = rows.next()? {
        sources.insert(row.get::<_, String>(0)?.parse()?);
    }
    Ok(sources)
}

/// After a snapshot was applied: what it lists is held and kept no longer, and it is noted how much is shown.
///
/// # Errors
/// [`StoreError`].
pub fn listed_again(transaction: &Transaction<'_>, now: Timestamp) -> Result<(), StoreError> {
    for statement in [
        "DELETE FROM local_removed_source WHERE id IN (SELECT id FROM server_source WHERE designation IS NOT NULL)",
        "DELETE FROM local_removed_item AS r
         WHERE CASE WHEN r.is_reply
             THEN EXISTS (SELECT 1 FROM server_reply AS s WHERE s.id = r.id AND s.source_id = r.source_id)
             ELSE EXISTS (SELECT 1 FROM server_submission AS s WHERE s.id = r.id AND s.source_id = r.source_id) END",
    ] {
        transaction.prepare_cached(statement)?.execute([])?;
    }
    let hour = now.get() / HOUR_US;
    transaction
        .prepare_cached(
            "INSERT INTO local_shown (hour, sources) SELECT ?1, count(*) FROM visible_source WHERE true
             ON CONFLICT DO UPDATE SET sources = excluded.sources WHERE excluded.sources < sources",
        )?
        .execute([hour])?;
    transaction.prepare_cached("DELETE FROM local_shown WHERE hour < ?1")?.execute([hour.saturating_sub(48)])?;
    Ok(())
}

/// The deletion of a source is confirmed: nothing of it is held or kept.
pub(super) fn forget_source(transaction: &Transaction<'_>, source: &SourceId) -> rusqlite::Result<()> {
    for statement in
        ["DELETE FROM local_removed_item WHERE source_id = ?1", "DELETE FROM local_removed_source WHERE id = ?1"]
    {
        transaction.prepare_cached(statement)?.execute([source.as_str()])?;
    }
    Ok(())
}

/// The same for an item.
pub(super) fn forget_item(transaction: &Transaction<'_>, item: ItemName) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM local_removed_item WHERE id = ?1 AND is_reply = ?2")?
        .execute(params![item.id().as_str(), matches!(item, ItemName::Reply(_))])?;
    Ok(())
}

/// What is held, the latest first.
///
/// # Errors
/// [`StoreError`].
pub fn held(transaction: &Transaction<'_>) -> Result<Vec<HeldRemoval>, StoreError> {
    // Items of a held source may still be listed: they are hidden with it.
    let mut statement = transaction.prepare_cached(
        "SELECT h.source_id, coalesce(r.designation, s.designation), r.id IS NOT NULL,
                (SELECT count(*) FROM local_removed_item AS i WHERE i.source_id = h.source_id AND NOT i.kept)
                + CASE WHEN r.id IS NULL THEN 0 ELSE
                      (SELECT count(*) FROM server_submission AS i WHERE i.source_id = h.source_id)
                      + (SELECT count(*) FROM server_reply AS i WHERE i.source_id = h.source_id) END,
                max(h.removed_us)
         FROM (
             SELECT id AS source_id, removed_us FROM local_removed_source WHERE NOT kept
             UNION ALL
             SELECT source_id, removed_us FROM local_removed_item WHERE NOT kept
         ) AS h
         LEFT JOIN local_removed_source AS r ON r.id = h.source_id AND NOT r.kept
         LEFT JOIN server_source AS s ON s.id = h.source_id
         GROUP BY h.source_id ORDER BY max(h.removed_us) DESC, h.source_id",
    )?;
    let mut rows = statement.query([])?;
    let mut held = Vec::new();
    while let Some(row) = rows.next()? {
        held.push(HeldRemoval {
            source: row.get::<_, String>(0)?.parse()?,
            designation: row.get::<_, Option<String>>(1)?.map(Designation::try_new).transpose()?,
            whole: row.get(2)?,
            items: row.get(3)?,
            since: Timestamp::try_new(row.get(4)?)?,
        });
    }
    Ok(held)
}

/// Of how many sources something is held.
///
/// # Errors
/// [`StoreError`].
pub fn count(transaction: &Transaction<'_>) -> Result<u64, StoreError> {
    Ok(transaction
        .prepare_cached(
            "SELECT count(*) FROM (
                 SELECT id FROM local_removed_source WHERE NOT kept
                 UNION SELECT source_id FROM local_removed_item WHERE NOT kept
             )",
        )?
        .query_row([], |row| row.get(0))?)
}

/// Why a reply to a source that is kept is refused.
pub(super) const GONE: &str = "the source is no longer on the server";

/// Why a deletion is refused of what is kept.
const REJECTED: &str = "its removal was rejected since: `splitdrop retry` deletes it all the same";

/// Says what is to become of what is held of sources. Accepted, it is there no more, and its files are doomed. Rejected, it
/// is shown again, as no longer on the server, and deletions of it that were not sent are refused: the server would say at
/// once that they are done. Gives the sources of which something was held.
///
/// # Errors
/// [`StoreError`].
pub fn settle(
    transaction: &Transaction<'_>,
    verdict: RemovalVerdict,
    sources: &[SourceId],
) -> Result<BTreeSet<SourceId>, StoreError> {
    let mut settled = BTreeSet::new();
    for source in sources {
        let statements = match verdict {
            RemovalVerdict::Accept => [
                "DELETE FROM local_removed_item WHERE source_id = ?1 AND NOT kept",
                "DELETE FROM local_removed_source WHERE id = ?1 AND NOT kept",
            ],
            RemovalVerdict::Reject => [
                "UPDATE local_removed_item SET kept = 1 WHERE source_id = ?1 AND NOT kept",
                "UPDATE local_removed_source SET kept = 1 WHERE id = ?1 AND NOT kept",
            ],
        };
        let mut rows = 0;
        for statement in statements {
            rows += transaction.prepare_cached(statement)?.execute([source.as_str()])?;
        }
        if rows > 0 {
            settled.insert(*source);
        }
        match verdict {
            RemovalVerdict::Accept => {
                // With the source goes what was kept of it before, and what was to be done to it.
                transaction
                    .prepare_cached(
                        "DELETE FROM local_removed_item
                         WHERE source_id = ?1 AND source_id NOT IN (SELECT id FROM known_source)",
                    )?
                    .execute([source.as_str()])?;
                let known = transaction
                    .prepare_cached("SELECT 1 FROM known_source WHERE id = ?1")?
                    .exists([source.as_str()])?;
                if !known {
                    outbox::drop_source(transaction, source)?;
                }
            }
            RemovalVerdict::Reject => {
                transaction
                    .prepare_cached(
                        "UPDATE outbox SET state = 'refused', sent = state = 'attempted', in_flight = 0, held = 0,
                             reason = ?2
                         WHERE source_id = ?1 AND kind = 'reply' AND state IN ('pending', 'attempted')
                           AND source_id IN (SELECT id FROM local_removed_source)",
                    )?
                    .execute([source.as_str(), GONE])?;
                if rows > 0 {
                    transaction
                        .prepare_cached(
                            "UPDATE outbox SET state = 'refused', sent = 0, held = 0, reason = ?2, wait_from_us = NULL,
                                 wait_us = NULL
                             WHERE source_id = ?1 AND kind IN ('delete_source', 'delete_item') AND state = 'pending'
                               AND (kind = 'delete_source' OR source_id IN (SELECT id FROM local_removed_source)
                                    OR (item_id, item_kind = 'reply') IN (SELECT id, is_reply FROM local_removed_item))",
                        )?
                        .execute([source.as_str(), REJECTED])?;
                }
            }
        }
    }
    outbox::forget_gone(transaction)?;
    Ok(settled)
}

#[cfg(test)]
mod tests;
