//! The commands that take something out of Splitdrop: into a disposable VM to be looked at, into a folder of this VM, to an
//! encrypted drive, to a printer, or to standard output.
//!
//! The daemon owns the files and makes the calls of other VMs; a front end only asks, and writes what it reads into the
//! folder that somebody named.

mod device;
mod export;
mod folder;
mod open;
mod transcript;

use control::client::Client;
use control::{Content, ConversationItem, Deletion};
use protocol::value::SourceId;

pub(super) use device::{export_to_drive, print_item};
pub(super) use export::{Exported, export_to_folder};
pub(super) use open::open;
pub(super) use transcript::transcript;

use super::act::{find_items, item_id};
use super::exit::CliError;

/// What may be copied out: an item that can be read, and its length.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Readable {
    source: SourceId,
    item: ConversationItem,
    bytes: u64,
}

/// The items that words mean, each once, all of which can be read.
async fn find_readable(client: &mut Client, words: &[String]) -> Result<Vec<Readable>, CliError> {
    let found = find_items(client, words).await?;
    found.into_iter().map(|(source, item)| readable(source, item)).collect()
}

/// What is being deleted is handed over to nobody, and what is not decrypted cannot be.
fn readable(source: SourceId, item: ConversationItem) -> Result<Readable, CliError> {
    if item.deletion == Deletion::Pending {
        return Err(CliError::NotHandedOver { item: item_id(&item) });
    }
    match item.content {
        Content::Decrypted { bytes, .. } => Ok(Readable { source, item, bytes }),
        Content::Absent
        | Content::Wanted { .. }
        | Content::Downloaded { .. }
        | Content::Sealed { .. }
        | Content::Failed { .. } => Err(CliError::NotDecrypted { item: item_id(&item) }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::exit::Exit;
    use super::super::samples::{decrypted, file, message, source_id};
    use super::*;

    #[test]
    fn what_cannot_be_read_or_is_being_deleted_is_refused_with_what_to_do() {
        let absent = readable(source_id(1), file(1)).unwrap_err();
        assert_eq!(absent.exit(), Exit::Conflict);
        assert!(absent.to_string().contains("`splitdrop download 9b040001-"), "{absent}");
        let going = ConversationItem { deletion: Deletion::Pending, ..message(2) };
        let told = readable(source_id(1), going).unwrap_err();
        assert!(told.exit() == Exit::Conflict && told.to_string().contains("being deleted"), "{told}");
        let there = ConversationItem { content: decrypted(Some("a.pdf")), ..file(3) };
        assert_eq!(readable(source_id(1), there).unwrap().bytes, 1_200);
    }
}
