//! What a crash left: files that nobody knows of, and notes of files that are not there.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use super::{Desk, FetchError, blocking};
use crate::erasure::{Leftover, Log, erase};
use crate::files::{FileNumber, Files, Listing};
use crate::store::downloads::{self, Held};

/// Makes files and notes agree again, at start: what is doomed is erased, a file without a note goes, a whole ciphertext that
/// is not noted as verified is a part again, a ciphertext whose plaintext is there goes, a plaintext that is not noted goes,
/// what has lost its plaintext is decrypted anew where its ciphertext is there, and what has lost its file otherwise is
/// fetched anew. Gives what is to be tried again: what is doomed
/// and could not be erased is found and told by the next erasure.
///
/// # Errors
/// [`FetchError`] of the operating system, where a directory cannot be read, or of the store.
pub async fn sweep(desk: &Desk) -> Result<Leftover, FetchError> {
    let log = Leftover { log: true, ..Leftover::default() };
    let erased = erase(&desk.store, &desk.files, &HashSet::new(), log, Arc::new(())).await?;
    let noted: HashMap<FileNumber, Held> = desk.store.read(downloads::numbers).await?.into_iter().collect();
    let files = desk.files.clone();
    let (sealed_again, vanished, orphans, archive) = blocking(move || {
        let listing = files.list()?;
        // Names of files are in no log.
        if !listing.strange.is_empty() {
            tracing::warn!(count = listing.strange.len(), "files that are none of Splitdrop's are left alone");
        }
        let mut failed = files.clear_opening()?;
        failed.extend(files.clear_viewing()?);
        let ciphertexts =
            listing.ciphertext.iter().map(|number| (*number, tidy_ciphertext(&files, &listing, &noted, *number)));
        let parts = listing.partial.iter().map(|number| (*number, tidy_part(&files, &noted, *number)));
        let plaintexts = listing.plaintext.iter().map(|number| (*number, tidy_plaintext(&files, &noted, *number)));
        for (number, tidied) in ciphertexts.chain(parts).chain(plaintexts) {
            if let Err(error) = tidied {
                failed.push((Some(number), error));
            }
        }
        for (number, error) in &failed {
            tracing::error!(number = number.map(|number| number.0), %error, "could not remove or rename a file");
        }
        let archive = failed.iter().any(|(number, _)| number.is_none());
        // Of an item that is noted they go with the item.
        let orphans = failed.into_iter().filter_map(|(number, _)| number).filter(|number| !noted.contains_key(number));
        let orphans: BTreeSet<_> = orphans.collect();
        let there = |(number, held): (&FileNumber, &Held)| match held {
            Held::Ciphertext => listing.ciphertext.contains(number),
            Held::Plaintext => listing.plaintext.contains(number),
            Held::Part | Held::Text => true,
        };
        let vanished = noted.iter().filter(|(number, held)| !there((number, held))).map(|(number, _)| *number);
        // Only of a plaintext that has vanished the ciphertext can still be there.
        let (sealed_again, vanished): (Vec<_>, Vec<_>) =
            vanished.partition(|number| listing.ciphertext.contains(number));
        Ok((sealed_again, vanished, orphans, archive))
    })
    .await?;
    desk.store
        .write(move |transaction| {
            sealed_again.into_iter().try_for_each(|number| downloads::note_sealed_again(transaction, number))?;
            vanished.into_iter().try_for_each(|number| downloads::note_vanished(transaction, number))
        })
        .await?;
    // Nobody knows whether the last start came so far.
    let pages = desk.store.needs_rewriting().await?;
    Ok(Leftover { orphans, log: erased.log == Log::Full, pages, archive })
}

type Noted = HashMap<FileNumber, Held>;

fn tidy_ciphertext(files: &Files, listing: &Listing, noted: &Noted, number: FileNumber) -> io::Result<()> {
    match noted.get(&number) {
        Some(Held::Ciphertext) => Ok(()),
        // Without its plaintext it is all that there is of the item.
        Some(Held::Plaintext) if !listing.plaintext.contains(&number) => Ok(()),
        Some(Held::Part) => files.unfinish(number),
        // Its plaintext is noted, which is durable.
        Some(Held::Text | Held::Plaintext) => files.remove_ciphertext(number),
        None => files.remove(number),
    }
}

fn tidy_part(files: &Files, noted: &Noted, number: FileNumber) -> io::Result<()> {
    match noted.get(&number) {
        Some(Held::Part) => Ok(()),
        Some(Held::Ciphertext | Held::Text | Held::Plaintext) => files.remove_ciphertext_part(number),
        None => files.remove(number),
    }
}

fn tidy_plaintext(files: &Files, noted: &Noted, number: FileNumber) -> io::Result<()> {
    match noted.get(&number) {
        Some(Held::Plaintext) => Ok(()),
        // It was not noted: it is decrypted again.
        Some(Held::Part | Held::Ciphertext | Held::Text) => files.remove_plaintext(number),
        None => files.remove(number),
    }
}
