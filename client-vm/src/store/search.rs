//! Search over what messages and replies say, the names of files, and designations.
//!
//! The index is a table of FTS5 that triggers keep (`migrations/0005_search.sql`): whatever brings a plaintext or takes one
//! away does so in the index too, in the same transaction. Designations are few and have no index.
//!
//! **Invariant:** what is found is shown, and not being deleted, whatever the index holds.
//!
//! **Invariant:** what is taken out of the index leaves nothing in it when its transaction ends.

mod query;
mod residue;
mod words;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use control::search::MAX_EXCERPT_CHARS;
use control::{Excerpt, Hit, HitCount, HitPlace};
use protocol::SubmissionKind;
use protocol::value::{Designation, OrderNumber, SourceId};
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, Row, Transaction};

use super::StoreError;
use super::outbox::ItemName;

pub use query::{MAX_TERMS, Query, QueryError};
pub(super) use residue::erase;

/// The most entries of the index that are all looked at. Where there are more, one source after the other is, until there
/// are hits enough: whether an item is shown costs some microseconds to find out.
const ALL: usize = 4_000;
/// How many sources are looked at first; then twice as many, and so on.
const FIRST_SOURCES: usize = 16;
/// How much of an excerpt comes before what was found, in characters.
const BEFORE: usize = 60;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The hits: designations first, then the source that wrote last first, and of one source what came last first.
    pub hits: Vec<Hit>,
    /// How many there are, whether given or not.
    pub count: HitCount,
}

/// Gives a connection that writes the function that the index's triggers use.
pub(super) fn add_function(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function("search_words", 1, flags, |context| {
        Ok(context.get_raw(0).as_str_or_null()?.map(words::indexed))
    })
}

/// Finds what a query asks for, and gives at most `limit` hits.
///
/// # Errors
/// [`StoreError`].
pub fn find(transaction: &Transaction<'_>, query: &Query, limit: usize) -> Result<Found, StoreError> {
    let sources = sources(transaction)?;
    let mut hits = Vec::new();
    for source in sources.iter().filter(|source| query.fits(source.designation.as_str())) {
        hits.push(source.hit(HitPlace::Designation));
    }
    let entries = entries(transaction, query)?;
    let wanted = limit.saturating_sub(hits.len());
    let (items, whole) = if entries.len() <= ALL {
        (items_of(transaction, query, &entries, &sources)?, true)
    } else {
        items_by_source(transaction, &entries, &sources, wanted)?
    };
    let count = u64::try_from(hits.len().saturating_add(items.len())).unwrap_or(u64::MAX);
    hits.truncate(limit);
    for item in items.into_iter().take(wanted) {
        if let Some(source) = sources.get(item.rank) {
            hits.push(item.hit(transaction, query, source)?);
        }
    }
    Ok(Found { hits, count: if whole { HitCount::Exactly(count) } else { HitCount::AtLeast(count) } })
}

/// A source that is shown.
struct Source {
    id: SourceId,
    designation: Designation,
}

impl Source {
    fn hit(&self, place: HitPlace) -> Hit {
        Hit { source: self.id, designation: self.designation.clone(), place }
    }
}

/// The sources that are shown and not being deleted, the one that wrote last first.
fn sources(transaction: &Transaction<'_>) -> Result<Vec<Source>, StoreError> {
    let mut statement = transaction.prepare_cached(
        "SELECT id, designation FROM visible_source WHERE NOT being_deleted ORDER BY last_updated_us DESC, id",
    )?;
    let mut rows = statement.query([])?;
    let mut sources = Vec::new();
    while let Some(row) = rows.next()? {
        let (id, designation): (String, String) = (row.get(0)?, row.get(1)?);
        sources.push(Source { id: id.parse()?, designation: Designation::try_new(designation)? });
    }
    Ok(sources)
}

/// The index's entries that fit: numbers of what is held of items, shown or not.
fn entries(transaction: &Transaction<'_>, query: &Query) -> Result<HashSet<i64>, StoreError> {
    let mut statement = transaction.prepare_cached("SELECT rowid FROM search WHERE search MATCH ?1")?;
    let numbers = statement.query_map([query.expression()], |row| row.get(0))?;
    Ok(numbers.collect::<Result<_, _>>()?)
}

const ITEMS: &str = "
    SELECT c.number, c.source_id, c.kind, c.id, c.item_order FROM item_content AS c
    WHERE c.number IS NOT NULL AND NOT c.being_deleted";

/// An item that is shown and in which something was found.
struct Item {
    number: i64,
    /// Where its source is in the list of sources.
    rank: usize,
    name: ItemName,
    order: OrderNumber,
}

impl Item {
    fn of(row: &Row<'_>, ranks: &HashMap<String, usize>, entries: &HashSet<i64>) -> Result<Option<Self>, StoreError> {
        let number = row.get(0)?;
        if !entries.contains(&number) {
            return Ok(None);
        }
        let (source, kind, id): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
        let Some(rank) = ranks.get(&source).copied() else { return Ok(None) };
        let order = OrderNumber::try_new(row.get(4)?)?;
        Ok(Some(Self { number, rank, name: ItemName::parse(&kind, &id)?, order }))
    }

    fn hit(self, transaction: &Transaction<'_>, query: &Query, source: &Source) -> Result<Hit, StoreError> {
        let text: Option<String> = transaction
            .prepare_cached("SELECT coalesce(text, name) FROM local_item WHERE id = ?1")?
            .query_row([self.number], |row| row.get(0))?;
        let (order, excerpt) = (self.order, excerpt(&text.unwrap_or_default(), query));
        Ok(source.hit(match self.name {
            ItemName::Message(id) => HitPlace::Submission { id, kind: SubmissionKind::Message, order, excerpt },
            ItemName::File(id) => HitPlace::Submission { id, kind: SubmissionKind::File, order, excerpt },
            ItemName::Reply(id) => HitPlace::Reply { id, order, excerpt },
        }))
    }
}

fn sort(items: &mut [Item]) {
    items.sort_by_cached_key(|item| (item.rank, std::cmp::Reverse(item.order.get()), item.name.id().to_string()));
}

fn ranks(sources: &[Source], first: usize) -> HashMap<String, usize> {
    sources.iter().zip(first..).map(|(source, rank)| (source.id.to_string(), rank)).collect()
}

/// The items of all these entries.
fn items_of(
    transaction: &Transaction<'_>,
    query: &Query,
    entries: &HashSet<i64>,
    sources: &[Source],
) -> Result<Vec<Item>, StoreError> {
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    let ranks = ranks(sources, 0);
    let mut statement = transaction.prepare_cached(&format!(
        "{ITEMS} AND c.id IN (SELECT item_id FROM local_item WHERE id IN (SELECT rowid FROM search WHERE search MATCH ?1))"
    ))?;
    let mut rows = statement.query([query.expression()])?;
    let mut items = Vec::new();
    while let Some(row) = rows.next()? {
        items.extend(Item::of(row, &ranks, entries)?);
    }
    sort(&mut items);
    Ok(items)
}

/// So many items of these entries, or more, and whether these are all.
fn items_by_source(
    transaction: &Transaction<'_>,
    entries: &HashSet<i64>,
    sources: &[Source],
    wanted: usize,
) -> Result<(Vec<Item>, bool), StoreError> {
    let mut statement =
        transaction.prepare_cached(&format!("{ITEMS} AND c.source_id IN (SELECT value FROM json_each(?1))"))?;
    let (mut items, mut done, mut count) = (Vec::new(), 0_usize, FIRST_SOURCES);
    while items.len() < wanted.max(1) && done < sources.len() {
        let some = sources.get(done..done.saturating_add(count).min(sources.len())).unwrap_or_default();
        let ranks = ranks(some, done);
        let ids: Vec<_> = some.iter().map(|source| source.id.as_str()).collect();
        let mut rows = statement.query([serde_json::Value::from(ids).to_string()])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.extend(Item::of(row, &ranks, entries)?);
        }
        sort(&mut found);
        items.extend(found);
        done = done.saturating_add(some.len());
        count = count.saturating_mul(2);
    }
    Ok((items, done == sources.len()))
}

/// What is around the first place where something was found, or the beginning where nothing was.
fn excerpt(text: &str, query: &Query) -> Excerpt {
    let mut places = query.places(text);
    let first = places.next();
    let start = first.as_ref().map_or(0, |first| {
        let before = text.get(..first.start).unwrap_or_default();
        before.char_indices().rev().take(BEFORE).last().map_or(first.start, |(at, _)| at)
    });
    let from = text.get(start..).unwrap_or_default();
    let shown = from.char_indices().nth(MAX_EXCERPT_CHARS).and_then(|(end, _)| from.get(..end)).unwrap_or(from);
    let end = start.saturating_add(shown.len());
    let mut matches: Vec<Range<usize>> = Vec::new();
    for place in first.into_iter().chain(places).take_while(|place| place.start < end) {
        // A phrase may be longer than an excerpt.
        let place = place.start.max(start)..place.end.min(end);
        match matches.last_mut().filter(|last| place.start <= last.end) {
            Some(last) => *last = last.start.min(place.start)..last.end.max(place.end),
            None => matches.push(place),
        }
    }
    let at = |byte: usize| u32::try_from(byte.saturating_sub(start)).unwrap_or(u32::MAX);
    Excerpt {
        text: shown.to_owned(),
        matches: matches.into_iter().map(|place| (at(place.start), at(place.end))).collect(),
        cut_before: start > 0,
        cut_after: end < text.len(),
    }
}

#[cfg(test)]
mod tests;
