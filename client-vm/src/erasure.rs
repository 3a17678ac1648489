//! Erases what is doomed: the files of items that are gone, what is noted of them, and what the write-ahead log still says.
//!
//! What is doomed is a query over the store, so a crash at any step leaves nothing that the next start does not find. What
//! no program can erase, such as the journal of a file system or a volume's old revisions, is told in docs/THREAT-MODEL.md.
//!
//! **Invariant:** the note of an item goes only after its files: else nobody would look for them. What it says goes at once.
//!
//! **Invariant:** when an erasure has ended well and the pages were written anew, no page of the database and no frame of its
//! log holds what was erased.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::Arc;

use protocol::value::ItemId;

use crate::files::{FileNumber, Files};
use crate::store::{Store, StoreError, downloads};

/// A step of an erasure, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// It is known what is doomed.
    Read,
    /// What is noted of it says nothing any more.
    Blanked,
    /// The files of one item are gone.
    Unlinked,
    /// The items whose files are gone are forgotten.
    Forgotten,
    /// The pages of the database were written anew.
    Rewritten,
    /// The write-ahead log is empty.
    Truncated,
}

impl Step {
    /// Every step.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Blanked, Self::Unlinked, Self::Forgotten, Self::Rewritten, Self::Truncated];
}

/// Who is told which steps were taken.
pub trait Watcher: Send + Sync {
    /// A step was taken.
    fn step(&self, _step: Step) {}
}

/// Nobody.
impl Watcher for () {}

/// What is to be erased besides what is doomed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftover {
    /// Files that nobody has noted.
    pub orphans: BTreeSet<FileNumber>,
    /// Whether something has gone that the write-ahead log may still say.
    pub log: bool,
    /// Whether something has gone of which unused parts of the database's pages may hold copies.
    pub pages: bool,
    /// Whether what was made for a device VM is still there; nothing may be made for one meanwhile.
    pub archive: bool,
}

/// What an erasure has done.
#[derive(Debug, Default)]
pub struct Erased {
    /// How many items are gone.
    pub removed: usize,
    /// Whether something was left since it is in use.
    pub left: bool,
    /// What could not be removed.
    pub failed: Option<Stuck>,
    /// The files that nobody has noted among that.
    pub orphans: BTreeSet<FileNumber>,
    /// Whether what was made for a device VM is among that.
    pub archive: bool,
    /// Whether something has gone since the pages were written anew, as [`Leftover::pages`] says.
    pub pages: bool,
    /// How the write-ahead log is.
    pub log: Log,
}

/// Files that could not be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// Of how many items. What was made for a device VM counts as one.
    pub items: u64,
    /// Why the first of them could not.
    pub reason: String,
}

impl Stuck {
    /// One more, of an item or of none.
    fn note(stuck: &mut Option<Self>, number: Option<FileNumber>, error: &io::Error) {
        tracing::error!(number = number.map(|number| number.0), %error, "could not remove a file");
        match stuck {
            Some(stuck) => stuck.items = stuck.items.saturating_add(1),
            None => *stuck = Some(Self { items: 1, reason: error.to_string() }),
        }
    }
}

/// How the database's write-ahead log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Log {
    /// Nothing went that could be in it.
    #[default]
    Untouched,
    /// It was emptied.
    Empty,
    /// A reader kept it from being emptied: what was erased may be in it.
    Full,
}

/// Erases what is doomed and what is left over, but for what is in use. Empties the log as well where something went;
/// writes the pages anew only where `leftover` says so, since that takes its time.
///
/// # Errors
/// [`StoreError`]; what is left is found again.
pub async fn erase(
    store: &Store,
    files: &Files,
    busy: &HashSet<ItemId>,
    leftover: Leftover,
    watcher: Arc<dyn Watcher>,
) -> Result<Erased, StoreError> {
    let mut erased = Erased::default();
    let doomed = store.read(downloads::doomed).await?;
    watcher.step(Step::Read);
    erased.left = doomed.iter().any(|(_, item)| busy.contains(item));
    if doomed.iter().any(|(_, item)| !busy.contains(item)) {
        let busy = busy.clone();
        let (numbers, said) = store.write(move |transaction| downloads::blank(transaction, &busy)).await?;
        erased.pages = said;
        watcher.step(Step::Blanked);
        let (removed, _) = unlink(files, numbers, &mut erased.failed, &watcher).await?;
        erased.removed = removed.len();
        store.write(move |transaction| downloads::forget(transaction, &removed)).await?;
        watcher.step(Step::Forgotten);
    }
    let orphans = leftover.orphans.into_iter().collect();
    erased.orphans = unlink(files, orphans, &mut erased.failed, &watcher).await?.1;
    if leftover.archive {
        let files = files.clone();
        let removing = tokio::task::spawn_blocking(move || files.remove_archive());
        if let Err(error) = removing.await.map_err(|_| StoreError::CutOff)? {
            Stuck::note(&mut erased.failed, None, &error);
            erased.archive = true;
        }
    }
    if leftover.pages {
        store.rewrite().await?;
        watcher.step(Step::Rewritten);
        erased.pages = false;
    }
    if leftover.log || leftover.pages || erased.pages || erased.removed > 0 {
        erased.log = if store.checkpoint().await? { Log::Empty } else { Log::Full };
        watcher.step(Step::Truncated);
    }
    Ok(erased)
}

/// Removes files; gives those that are gone and those that are not, and adds these to what is stuck.
async fn unlink(
    files: &Files,
    numbers: Vec<FileNumber>,
    stuck: &mut Option<Stuck>,
    watcher: &Arc<dyn Watcher>,
) -> Result<(Vec<FileNumber>, BTreeSet<FileNumber>), StoreError> {
    if numbers.is_empty() {
        return Ok(Default::default());
    }
    let (files, watcher) = (files.clone(), Arc::clone(watcher));
    let removing = tokio::task::spawn_blocking(move || {
        let (mut removed, mut failed) = (Vec::new(), Vec::new());
        for number in numbers {
            match files.remove(number) {
                Ok(()) => {
                    removed.push(number);
                    watcher.step(Step::Unlinked);
                }
                Err(error) => failed.push((number, error)),
            }
        }
        (removed, failed)
    });
    let (removed, failed) = removing.await.map_err(|_| StoreError::CutOff)?;
    for (number, error) in &failed {
        Stuck::note(stuck, Some(*number), error);
    }
    Ok((removed, failed.into_iter().map(|(number, _)| number).collect()))
}
