//! Erases what is doomed: the files of items that are gone, what is noted of them, and what the write-ahead log still says.
//!
//! What is doomed is a query over the store, so a crash at any step leaves nothing that the next start does not find. What
//! no program can erase, such as the journal of a file system or a volume's old revisions, is told in docs/THREAT-MODEL.md.
//!
//! **Invariant:** the note of an item goes only after its files: else nobody would look for them. What it says goes at once.
//!
//! **Invariant:** when an erasure has ended well, no page of the database and no frame of its log holds what was erased.

use std::collections::HashSet;
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
    /// The write-ahead log is empty.
    Truncated,
}

impl Step {
    /// Every step.
    pub const ALL: [Self; 5] = [Self::Read, Self::Blanked, Self::Unlinked, Self::Forgotten, Self::Truncated];
}

/// Who is told which steps were taken.
pub trait Watcher: Send + Sync {
    /// A step was taken.
    fn step(&self, _step: Step) {}
}

/// Nobody.
impl Watcher for () {}

/// What an erasure has done.
#[derive(Debug, Default)]
pub struct Erased {
    /// How many items are gone.
    pub removed: usize,
    /// Whether something was left since it is in use.
    pub left: bool,
    /// What could not be removed.
    pub failed: Option<Stuck>,
    /// How the write-ahead log is.
    pub log: Log,
}

/// Files that could not be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// Of how many items.
    pub items: u64,
    /// Why the first of them could not.
    pub reason: String,
}

impl Stuck {
    /// One more.
    pub(crate) fn note(stuck: &mut Option<Self>, number: FileNumber, error: &io::Error) {
        tracing::error!(number = number.0, %error, "could not remove a file");
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

/// Erases what is doomed, but for what is in use. Empties the log as well where something went, or where `log` says that
/// something went before.
///
/// # Errors
/// [`StoreError`]; what is left is found again.
pub async fn erase(
    store: &Store,
    files: &Files,
    busy: &HashSet<ItemId>,
    log: bool,
    watcher: Arc<dyn Watcher>,
) -> Result<Erased, StoreError> {
    let mut erased = Erased::default();
    let doomed = store.read(downloads::doomed).await?;
    watcher.step(Step::Read);
    let numbers: Vec<_> = doomed.iter().filter(|(_, item)| !busy.contains(item)).map(|(number, _)| *number).collect();
    erased.left = numbers.len() < doomed.len();
    if !numbers.is_empty() {
        let blanked = numbers.clone();
        store.write(move |transaction| downloads::blank(transaction, &blanked)).await?;
        watcher.step(Step::Blanked);
        let (removed, failed) = unlink(files, numbers, &watcher).await?;
        erased.failed = failed;
        erased.removed = removed.len();
        store.write(move |transaction| downloads::forget(transaction, &removed)).await?;
        watcher.step(Step::Forgotten);
    }
    if log || erased.removed > 0 || erased.failed.is_some() {
        erased.log = if store.checkpoint().await? { Log::Empty } else { Log::Full };
        watcher.step(Step::Truncated);
    }
    Ok(erased)
}

type Unlinked = (Vec<FileNumber>, Option<Stuck>);

async fn unlink(files: &Files, numbers: Vec<FileNumber>, watcher: &Arc<dyn Watcher>) -> Result<Unlinked, StoreError> {
    let (files, watcher) = (files.clone(), Arc::clone(watcher));
    let removing = tokio::task::spawn_blocking(move || {
        let (mut removed, mut failed) = (Vec::new(), None);
        for number in numbers {
            match files.remove(number) {
                Ok(()) => {
                    removed.push(number);
                    watcher.step(Step::Unlinked);
                }
                Err(error) => Stuck::note(&mut failed, number, &error),
            }
        }
        (removed, failed)
    });
    removing.await.map_err(|_| StoreError::CutOff)
}
