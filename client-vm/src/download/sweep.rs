//! What a crash left: files that nobody knows of, and notes of files that are not there.

use std::collections::HashMap;

use super::{Desk, FetchError, blocking};
use crate::files::FileNumber;
use crate::store::downloads::{self, Held};

/// Makes files and notes agree again, at start: a file without a note goes, a whole ciphertext that is not noted as verified
/// is a part again, a ciphertext whose plaintext is noted goes, a plaintext that is not noted goes, a note without its file
/// is fetched anew, and what is not listed any more, or was deleted, goes.
///
/// # Errors
/// [`FetchError`] of the operating system or the store.
pub async fn sweep(desk: &Desk) -> Result<(), FetchError> {
    let doomed: Vec<_> = desk.store.read(downloads::doomed).await?.into_iter().map(|(number, _)| number).collect();
    let (files, removed) = (desk.files.clone(), doomed.clone());
    blocking(move || removed.into_iter().try_for_each(|number| files.remove(number))).await?;
    desk.store.write(move |transaction| downloads::forget(transaction, &doomed)).await?;
    let noted: HashMap<FileNumber, Held> = desk.store.read(downloads::numbers).await?.into_iter().collect();
    let files = desk.files.clone();
    let vanished = blocking(move || {
        let listing = files.list()?;
        // Names of files are in no log.
        if !listing.strange.is_empty() {
            tracing::warn!(count = listing.strange.len(), "files that are none of Splitdrop's are left alone");
        }
        files.clear_opening()?;
        files.clear_viewing()?;
        for number in &listing.ciphertext {
            match noted.get(number) {
                Some(Held::Ciphertext) => {}
                Some(Held::Part) => files.unfinish(*number)?,
                // Its plaintext is noted, which is durable.
                Some(Held::Text) => files.remove_ciphertext(*number)?,
                Some(Held::Plaintext) if listing.plaintext.contains(number) => files.remove_ciphertext(*number)?,
                Some(Held::Plaintext) | None => files.remove(*number)?,
            }
        }
        for number in listing.partial {
            match noted.get(&number) {
                Some(Held::Part) => {}
                Some(Held::Ciphertext | Held::Text | Held::Plaintext) => files.remove_ciphertext_part(number)?,
                None => files.remove(number)?,
            }
        }
        for number in &listing.plaintext {
            match noted.get(number) {
                Some(Held::Plaintext) => {}
                // It was not noted: it is decrypted again.
                Some(Held::Part | Held::Ciphertext | Held::Text) => files.remove_plaintext(*number)?,
                None => files.remove(*number)?,
            }
        }
        let there = |(number, held): (&FileNumber, &Held)| match held {
            Held::Ciphertext => listing.ciphertext.contains(number),
            Held::Plaintext => listing.plaintext.contains(number),
            Held::Part | Held::Text => true,
        };
        let vanished = noted.iter().filter(|(number, held)| !there((number, held)));
        Ok(vanished.map(|(number, _)| *number).collect::<Vec<_>>())
    });
    let vanished = vanished.await?;
    desk.store
        .write(move |transaction| {
            vanished.into_iter().try_for_each(|number| downloads::note_vanished(transaction, number))
        })
        .await?;
    Ok(())
}
