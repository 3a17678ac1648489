//! What a crash left: files that nobody knows of, and notes of files that are not there.

use std::collections::HashMap;

use super::{Desk, FetchError, blocking};
use crate::files::FileNumber;
use crate::store::downloads;

/// Makes files and notes agree again, at start: a file without a note goes, a whole one that is not noted as verified is a
/// part again, a note without its file is fetched anew, and what is not listed any more, or was deleted, goes.
///
/// # Errors
/// [`FetchError`] of the operating system or the store.
pub async fn sweep(desk: &Desk) -> Result<(), FetchError> {
    let doomed: Vec<_> = desk.store.read(downloads::doomed).await?.into_iter().map(|(number, _)| number).collect();
    let (files, removed) = (desk.files.clone(), doomed.clone());
    blocking(move || removed.into_iter().try_for_each(|number| files.remove(number))).await?;
    desk.store.write(move |transaction| downloads::forget(transaction, &doomed)).await?;
    let noted: HashMap<FileNumber, bool> = desk.store.read(downloads::numbers).await?.into_iter().collect();
    let files = desk.files.clone();
    let vanished = blocking(move || {
        let listing = files.list()?;
        // Names of files are in no log.
        if !listing.strange.is_empty() {
            tracing::warn!(count = listing.strange.len(), "files that are none of Splitdrop's are left alone");
        }
        for number in &listing.ciphertext {
            match noted.get(number) {
                Some(true) => {}
                Some(false) => files.unfinish(*number)?,
                None => files.remove(*number)?,
            }
        }
        for number in listing.partial {
            if !noted.contains_key(&number) {
                files.remove(number)?;
            }
        }
        let whole = |number: &FileNumber| listing.ciphertext.contains(number);
        let vanished = noted.iter().filter(|(number, downloaded)| **downloaded && !whole(number));
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
