//! What can be handed over to another VM, or copied out.
//!
//! **Invariant:** nothing is handed over of what is not shown, or is being deleted.

use protocol::value::{ItemId, OrderNumber};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::StoreError;
use super::outbox::ItemName;
use crate::files::FileNumber;

/// What can be read of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readable {
    /// Which.
    pub item: ItemName,
    /// The number of its files.
    pub number: FileNumber,
    /// Its source's designation.
    pub designation: String,
    /// Its place in the conversation.
    pub order: OrderNumber,
    /// The length of its plaintext in bytes.
    pub bytes: u64,
    /// Of a file: the name under which its source packed it, made clean.
    pub name: Option<String>,
    /// Of a message or reply: what it says.
    pub text: Option<String>,
}

/// How an item stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// There is no such item, or it is not shown.
    NotThere,
    /// It is being deleted.
    BeingDeleted,
    /// It cannot be read yet.
    NotDecrypted,
    /// It can be read.
    Readable(Box<Readable>),
}

/// How an item stands, and what can be read of it.
///
/// # Errors
/// [`StoreError`].
pub fn standing(transaction: &Transaction<'_>, item: ItemId) -> Result<Standing, StoreError> {
    type Row = (String, bool, String, Option<i64>, String, u64, Option<u64>, Option<String>, Option<String>);
    let found: Option<Row> = transaction
        .prepare_cached(
            "SELECT c.kind, c.being_deleted, c.state, c.number, s.designation, c.item_order, c.plain_bytes, c.name, c.text
             FROM item_content AS c JOIN visible_source AS s ON s.id = c.source_id
             WHERE c.id = ?1 AND (c.kind = 'reply') = ?2",
        )?
        .query_row(params![item.as_str(), matches!(item, ItemId::Reply(_))], |row| {
            Ok((
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
                row.get(5)?,
                row.get(6)?,
                row.get(7)?,
                row.get(8)?,
            ))
        })
        .optional()?;
    Ok(match found {
        None => Standing::NotThere,
        Some((_, true, ..)) => Standing::BeingDeleted,
        Some((kind, false, state, Some(number), designation, order, Some(bytes), name, text))
            if state == "decrypted" =>
        {
            Standing::Readable(Box::new(Readable {
                item: ItemName::parse(&kind, item.as_str())?,
                number: FileNumber(number),
                designation,
                order: OrderNumber::try_new(order)?,
                bytes,
                name,
                text,
            }))
        }
        Some(_) => Standing::NotDecrypted,
    })
}

#[cfg(test)]
mod tests {
    use control::Inner;
    use protocol::value::{SourceId, Username};
    use rusqlite::Connection;

    use super::*;
    use crate::store::downloads::{self, Candidate};
    use crate::store::reading::{self, Plaintext};
    use crate::store::{migration, mirror};

    const SOURCE: &str = "10000000-0000-4000-8000-000000000001";
    const FILE: &str = "20000000-0000-4000-8000-000000000001";
    const MESSAGE: &str = "20000000-0000-4000-8000-000000000002";

    fn submission(id: &str) -> ItemId {
        ItemId::Submission(id.parse().unwrap())
    }

    /// A source with a file and a message, with Anna signed in.
    fn store() -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        migration::migrate(&mut connection).unwrap();
        let transaction = connection.transaction().unwrap();
        let source = "INSERT INTO server_source (id, digest, designation, starred, last_updated_us, interactions)
                      VALUES (?1, zeroblob(32), 'candid marmot', 0, 0, 1)";
        transaction.execute(source, [SOURCE]).unwrap();
        for (id, kind, order) in [(FILE, "file", 3), (MESSAGE, "message", 4)] {
            let item = "INSERT INTO server_submission (id, digest, source_id, kind, item_order, size_bytes)
                        VALUES (?1, zeroblob(32), ?2, ?3, ?4, 9)";
            transaction.execute(item, params![id, SOURCE, kind, order]).unwrap();
        }
        let anna = "30000000-0000-4000-8000-000000000001".parse().unwrap();
        mirror::store_journalist(&transaction, anna, &Username::try_new("anna").unwrap()).unwrap();
        transaction.commit().unwrap();
        connection
    }

    fn decrypt(connection: &mut Connection, item: ItemName, plaintext: &Plaintext) -> FileNumber {
        let transaction = connection.transaction().unwrap();
        let candidate = Candidate { source: SOURCE.parse::<SourceId>().unwrap(), item };
        let number = downloads::note_claim(&transaction, item, None).unwrap();
        assert!(downloads::note_downloaded(&transaction, candidate, 9).unwrap());
        assert!(reading::note_decrypted(&transaction, candidate, number, plaintext).unwrap());
        transaction.commit().unwrap();
        number
    }

    fn standing_of(connection: &mut Connection, item: ItemId) -> Standing {
        standing(&connection.transaction().unwrap(), item).unwrap()
    }

    #[test]
    fn only_what_can_be_read_and_stays_is_handed_over() {
        let mut connection = store();
        let (file, message) = (FILE.parse().unwrap(), MESSAGE.parse().unwrap());
        assert_eq!(standing_of(&mut connection, submission(SOURCE)), Standing::NotThere);
        assert_eq!(standing_of(&mut connection, submission(FILE)), Standing::NotDecrypted);
        let name = Some("ledger.pdf".to_owned());
        let plaintext = Plaintext { bytes: 12, inner: Inner::None, name: name.clone(), text: None };
        let number = decrypt(&mut connection, ItemName::File(file), &plaintext);
        let readable = Readable {
            item: ItemName::File(file),
            number,
            designation: "candid marmot".to_owned(),
            order: OrderNumber::try_new(3).unwrap(),
            bytes: 12,
            name,
            text: None,
        };
        assert_eq!(standing_of(&mut connection, submission(FILE)), Standing::Readable(Box::new(readable)));
        // A reply of the same id is another item.
        assert_eq!(standing_of(&mut connection, ItemId::Reply(FILE.parse().unwrap())), Standing::NotThere);
        let text = Some("hello".to_owned());
        decrypt(
            &mut connection,
            ItemName::Message(message),
            &Plaintext { bytes: 5, inner: Inner::None, name: None, text: text.clone() },
        );
        let Standing::Readable(found) = standing_of(&mut connection, submission(MESSAGE)) else {
            panic!("it is there")
        };
        assert_eq!((found.text, found.order.get()), (text, 4));
        let deletion = "INSERT INTO outbox (act, journalist_id, kind, source_id, created_us)
                        VALUES (1, '30000000-0000-4000-8000-000000000001', 'delete_source', ?1, 0)";
        connection.execute(deletion, [SOURCE]).unwrap();
        assert_eq!(standing_of(&mut connection, submission(FILE)), Standing::BeingDeleted);
        assert_eq!(standing_of(&mut connection, submission(MESSAGE)), Standing::BeingDeleted);
    }
}
