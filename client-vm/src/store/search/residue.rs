//! What FTS5 leaves of words that it has forgotten, and its end.
//!
//! With `secure-delete` FTS5 takes words out of the leaves of its index as soon as their last text is deleted. But which
//! leaf may hold a word is written in the table `search_idx`: by the shortest text that tells a leaf's first word from the
//! word before it. That may be nearly all of a word, of which nothing else is left. What such a text has to satisfy is that
//! it comes after all words of the leaves before and not after the leaf's first word, so that word itself does, and it is one
//! that is there.
//!
//! The form of the leaves is that of the SQLite that is compiled in. Where they look otherwise, the whole index is made anew.

use rusqlite::{Transaction, params};

use crate::store::StoreError;

/// The bits of a leaf's number in its segment; those of the segment come above.
const PAGE_BITS: u32 = 37;

/// Erases what is left of words that are not in the index any more, if any were taken out of it. To be called at the end of
/// every transaction that may do so. It reads the index once, some milliseconds for 20,000 messages.
///
/// # Errors
/// [`StoreError`].
pub(in crate::store) fn erase(transaction: &Transaction<'_>) -> Result<(), StoreError> {
    let erased = transaction.prepare_cached("UPDATE search_erased SET erased = 0 WHERE erased")?.execute([])?;
    if erased == 0 {
        return Ok(());
    }
    // What the transaction has changed so far is in memory only.
    transaction.execute("INSERT INTO search (search) VALUES ('flush')", [])?;
    match outdated(transaction)? {
        Some(bounds) => {
            let mut update =
                transaction.prepare_cached("UPDATE search_idx SET term = ?3 WHERE segid = ?1 AND term = ?2")?;
            for bound in bounds {
                update.execute(params![bound.segment, bound.before, bound.after])?;
            }
        }
        None => {
            transaction.execute("INSERT INTO search (search) VALUES ('rebuild')", [])?;
        }
    }
    Ok(())
}

/// The text by which a leaf is found, and the one that it is to be found by.
struct Bound {
    segment: i64,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// The texts that are no beginnings of their leaves' first words any more; `None` where a leaf does not look as expected.
fn outdated(transaction: &Transaction<'_>) -> Result<Option<Vec<Bound>>, StoreError> {
    let mut statement = transaction.prepare_cached(
        "SELECT i.segid, i.term, d.block FROM search_idx AS i
         LEFT JOIN search_data AS d ON d.id = (i.segid << ?1) + (i.pgno >> 1)",
    )?;
    let mut rows = statement.query([PAGE_BITS])?;
    let mut bounds = Vec::new();
    while let Some(row) = rows.next()? {
        let before = row.get_ref(1)?.as_bytes_or_null().map_err(rusqlite::Error::from)?.unwrap_or_default();
        let leaf = row.get_ref(2)?.as_bytes_or_null().map_err(rusqlite::Error::from)?;
        let Some(first) = leaf.and_then(first_word) else {
            // The first leaf is found by the empty text, and may have become empty.
            if before.is_empty() {
                continue;
            }
            return Ok(None);
        };
        if !first.starts_with(before) {
            bounds.push(Bound { segment: row.get(0)?, before: before.to_owned(), after: first.to_owned() });
        }
    }
    Ok(Some(bounds))
}

/// The first word of a leaf. At the leaf's third byte stands where its content ends, in two bytes, and after that where its
/// first word begins; a word has its length before it.
fn first_word(leaf: &[u8]) -> Option<&[u8]> {
    let end = usize::from(u16::from_be_bytes(leaf.get(2..4)?.try_into().ok()?));
    let (at, _) = number(leaf.get(end..)?)?;
    let (length, word) = number(leaf.get(at..end)?)?;
    word.get(..length)
}

/// Reads one of SQLite's numbers of variable length, and gives what follows. (Longer ones than four bytes are none of a
/// leaf's.)
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut number = 0_usize;
    for (count, byte) in (1..).zip(bytes.iter().take(4)) {
        number = (number << 7) | usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((number, bytes.get(count..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leafs_first_word_is_read_and_damage_is_none() {
        let mut leaf = vec![0, 0, 0, 12, 3];
        leaf.extend(b"0ab\x01\x02\x02\x00");
        leaf.extend([4]);
        assert_eq!(first_word(&leaf), Some(b"0ab".as_slice()));
        for cut in 0..leaf.len() {
            assert_eq!(first_word(&leaf[..cut]), None, "{cut}");
        }
        leaf[4] = 0x7f;
        assert_eq!(first_word(&leaf), None);
        assert_eq!(first_word(&[0, 0, 0, 4]), None);
        assert_eq!(number(&[0x81, 0x00, 9]), Some((128, [9].as_slice())));
        assert_eq!(number(&[0xff; 5]), None);
    }
}
