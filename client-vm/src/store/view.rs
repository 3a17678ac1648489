//! What front ends see, read through the views.

use control::{Content, ConversationItem, Deletion, ItemKind, Presence, Seen, SourceCounts, SourceRow, Totals};
use protocol::SubmissionKind;
use protocol::value::{Designation, Filename, OrderNumber, Problem, Size, SourceId, Timestamp, Username, ValueError};
use rusqlite::{OptionalExtension as _, Row, Transaction};

use super::outbox::ItemName;
use super::{StoreError, downloads, keys, mirror, outbox, reading, removals};

const SOURCES: &str = "
    SELECT s.id, s.designation, s.starred, s.last_updated_us, s.key_fingerprint,
           coalesce(c.messages, 0), coalesce(c.files, 0), coalesce(c.replies, 0), coalesce(c.unread, 0),
           s.being_deleted, CASE WHEN k.armored <> '' THEN k.fingerprint END, k.problem, k.offered_fingerprint, k.detail, coalesce(k.looked_at, 0),
           s.gone
    FROM visible_source AS s
    LEFT JOIN local_key AS k ON k.source_id = s.id
    LEFT JOIN (
        SELECT source_id, sum(kind = 'message') AS messages, sum(kind = 'file') AS files,
               sum(kind = 'reply') AS replies, sum(unread) AS unread
        FROM visible_item
        WHERE (?1 IS NULL OR source_id = ?1) AND NOT being_deleted
        GROUP BY source_id
    ) AS c ON c.source_id = s.id
    WHERE ?1 IS NULL OR s.id = ?1
    ORDER BY s.last_updated_us DESC, s.id";

/// What a person's word for a source fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceMatch {
    /// One source.
    One(Box<SourceRow>),
    /// None.
    None,
    /// So many.
    Many(usize),
}

/// The sources, the one that wrote last first.
///
/// # Errors
/// [`StoreError`].
pub fn sources(transaction: &Transaction<'_>) -> Result<Vec<SourceRow>, StoreError> {
    select_sources(transaction, None)
}

fn select_sources(transaction: &Transaction<'_>, only: Option<SourceId>) -> Result<Vec<SourceRow>, StoreError> {
    let only = only.map(|id| id.to_string());
    let mut statement = transaction.prepare_cached(SOURCES)?;
    let mut rows = statement.query([only])?;
    let mut sources = Vec::new();
    while let Some(row) = rows.next()? {
        sources.push(source(row)?);
    }
    Ok(sources)
}

fn source(row: &Row<'_>) -> Result<SourceRow, StoreError> {
    let key = keys::Columns {
        claimed: row.get(4)?,
        pinned: row.get(10)?,
        problem: row.get(11)?,
        offered: row.get(12)?,
        detail: row.get(13)?,
        looked_at: row.get(14)?,
    };
    Ok(SourceRow {
        id: text(row, 0)?.parse()?,
        designation: Designation::try_new(text(row, 1)?)?,
        starred: row.get(2)?,
        last_updated: Timestamp::try_new(row.get(3)?)?,
        key: key.state()?,
        counts: SourceCounts { messages: row.get(5)?, files: row.get(6)?, replies: row.get(7)?, unread: row.get(8)? },
        deletion: deletion(row.get(9)?),
        presence: presence(row.get(15)?),
    })
}

fn presence(gone: bool) -> Presence {
    if gone { Presence::Gone } else { Presence::Listed }
}

fn deletion(being_deleted: bool) -> Deletion {
    if being_deleted { Deletion::Pending } else { Deletion::None }
}

fn text(row: &Row<'_>, column: usize) -> Result<String, rusqlite::Error> {
    row.get(column)
}

/// Finds the source that a person means: by its id as spelled, else in any case of letters by its id, by its designation,
/// by the beginning of its id.
///
/// # Errors
/// [`StoreError`].
pub fn find_source(transaction: &Transaction<'_>, word: &str) -> Result<SourceMatch, StoreError> {
    let exact = word.trim();
    let word = exact.to_lowercase();
    if word.is_empty() {
        return Ok(SourceMatch::None);
    }
    let mut statement = transaction.prepare_cached("SELECT id, designation FROM visible_source")?;
    let mut rows = statement.query([])?;
    let [mut by_spelling, mut by_id, mut by_designation, mut by_prefix] = [const { Vec::new() }; 4];
    while let Some(row) = rows.next()? {
        let id: SourceId = text(row, 0)?.parse()?;
        let spelled = id.as_str().to_lowercase();
        if id.as_str() == exact {
            by_spelling.push(id);
        } else if spelled == word {
            by_id.push(id);
        } else if text(row, 1)?.to_lowercase() == word {
            by_designation.push(id);
        } else if spelled.starts_with(&word) {
            by_prefix.push(id);
        }
    }
    let best =
        [by_spelling, by_id, by_designation, by_prefix].into_iter().find(|found| !found.is_empty()).unwrap_or_default();
    match best.as_slice() {
        [] => Ok(SourceMatch::None),
        [id] => Ok(match select_sources(transaction, Some(*id))?.pop() {
            Some(row) => SourceMatch::One(Box::new(row)),
            None => SourceMatch::None,
        }),
        more => Ok(SourceMatch::Many(more.len())),
    }
}

/// A source's conversation, in its order.
///
/// # Errors
/// [`StoreError`].
pub fn conversation(transaction: &Transaction<'_>, source: SourceId) -> Result<Vec<ConversationItem>, StoreError> {
    let mut statement =
        transaction.prepare_cached(&format!("{} WHERE i.source_id = ?1 ORDER BY i.item_order, i.id", items()))?;
    let mut rows = statement.query([source.as_str()])?;
    let mut items = Vec::new();
    while let Some(row) = rows.next()? {
        items.push(item(row)?);
    }
    Ok(items)
}

/// The messages and replies of a conversation that can be read, in its order.
///
/// # Errors
/// [`StoreError`].
pub fn readable(transaction: &Transaction<'_>, source: SourceId) -> Result<Vec<ItemName>, StoreError> {
    let mut statement = transaction.prepare_cached(
        "SELECT i.id, i.kind FROM item_content AS i
         WHERE i.source_id = ?1 AND i.text IS NOT NULL ORDER BY i.item_order, i.id",
    )?;
    let mut rows = statement.query([source.as_str()])?;
    let mut items = Vec::new();
    while let Some(row) = rows.next()? {
        items.push(ItemName::parse(&text(row, 1)?, &text(row, 0)?)?);
    }
    Ok(items)
}

/// What a message or reply of a conversation says; `None` when it cannot be read, or is not shown any more.
///
/// # Errors
/// [`StoreError`].
pub fn text_of(transaction: &Transaction<'_>, source: SourceId, item: ItemName) -> Result<Option<String>, StoreError> {
    let found: Option<Option<String>> = transaction
        .prepare_cached("SELECT text FROM item_content WHERE source_id = ?1 AND id = ?2 AND kind = ?3")?
        .query_row([source.as_str(), item.id().as_str(), item.kind()], |row| row.get(0))
        .optional()?;
    Ok(found.flatten())
}

/// Finds the items that a person means by an id or the beginning of one, in any case of letters: those that are spelled
/// just so, else all that fit.
///
/// # Errors
/// [`StoreError`].
pub fn find_items(transaction: &Transaction<'_>, word: &str) -> Result<Vec<(SourceId, ConversationItem)>, StoreError> {
    let word = word.trim();
    if word.is_empty() {
        return Ok(Vec::new());
    }
    let mut statement = transaction
        .prepare_cached(&format!("{} WHERE lower(substr(i.id, 1, length(?1))) = lower(?1) ORDER BY i.id", items()))?;
    let mut rows = statement.query([word])?;
    let (mut exact, mut fitting) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let found = (text(row, 8)?.parse()?, item(row)?);
        if text(row, 0)? == word { exact.push(found) } else { fitting.push(found) }
    }
    Ok(if exact.is_empty() { fitting } else { exact })
}

fn items() -> String {
    format!(
        "
    SELECT i.id, i.kind, i.item_order, i.filename, i.size_bytes, i.unread, j.username, i.being_deleted, i.source_id,
           i.state, i.wanted, i.reason, i.seal, i.inner, i.plain_bytes, i.name,
           i.author_id = (SELECT journalist_id FROM local_journalist), i.gone, {}
    FROM item_content AS i LEFT JOIN server_journalist AS j ON j.id = i.author_id",
        downloads::too_large("i")
    )
}

fn item(row: &Row<'_>) -> Result<ConversationItem, StoreError> {
    let (id, author): (String, Option<String>) = (row.get(0)?, row.get(6)?);
    let submission = |kind| -> Result<ItemKind, ValueError> { Ok(ItemKind::Submission { id: id.parse()?, kind }) };
    let kind = match text(row, 1)?.as_str() {
        "message" => submission(SubmissionKind::Message)?,
        "file" => submission(SubmissionKind::File)?,
        "reply" => ItemKind::Reply {
            id: id.parse()?,
            author: author.map(Username::try_new).transpose()?,
            own: row.get::<_, Option<bool>>(16)?.unwrap_or(false),
        },
        _ => return Err(ValueError { what: "an item's kind", problem: Problem::Malformed }.into()),
    };
    let filename: Option<String> = row.get(3)?;
    Ok(ConversationItem {
        kind,
        order: OrderNumber::try_new(row.get(2)?)?,
        filename: filename.map(Filename::try_new).transpose()?,
        size: Size::try_new(row.get(4)?)?,
        seen: if row.get(5)? { Seen::Unread } else { Seen::Seen },
        deletion: deletion(row.get(7)?),
        presence: presence(row.get(17)?),
        content: content(row)?,
    })
}

fn content(row: &Row<'_>) -> Result<Content, StoreError> {
    let reason: Option<String> = row.get(11)?;
    if let Some(reason) = row.get(18)? {
        return Ok(Content::Failed { reason });
    }
    Ok(match text(row, 9)?.as_str() {
        "downloaded" => Content::Downloaded { reason },
        "decrypted" => Content::Decrypted {
            bytes: row.get(14)?,
            inner: reading::parse_inner(row.get::<_, Option<String>>(13)?.as_deref()),
            name: row.get(15)?,
        },
        "sealed" => Content::Sealed { seal: reading::parse_seal(&text(row, 12)?), reason: reason.unwrap_or_default() },
        "failed" => Content::Failed { reason: reason.unwrap_or_default() },
        _absent if row.get(10)? => Content::Wanted { reason },
        _absent => Content::Absent,
    })
}

/// What is held and shown.
///
/// # Errors
/// [`StoreError`].
pub fn totals(transaction: &Transaction<'_>) -> Result<Totals, StoreError> {
    let (sources, items, unread) = transaction
        .prepare_cached(
            "SELECT (SELECT count(*) FROM visible_source WHERE NOT being_deleted), count(*), coalesce(sum(unread), 0)
             FROM visible_item WHERE NOT being_deleted",
        )?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    Ok(Totals {
        sources,
        items,
        unread,
        unreadable: mirror::load_unreadable(transaction)?,
        held_removals: removals::count(transaction)?,
        queue: outbox::counts(transaction)?,
    })
}
