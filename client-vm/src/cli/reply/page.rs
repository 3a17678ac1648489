//! What somebody writes: in a private file while an editor has it, and in memory from then on.
//!
//! **Invariant:** the file is this user's alone from its first byte on, in a directory of its own, and both are removed,
//! unless something in there is all there is of a text: what was saved and is nowhere else, or what an editor that did not
//! end well has left beside it. That is kept in the data directory, which outlives the session.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::super::exit::CliError;
use super::super::sanitized;
use super::{Kept, read};

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const FILE: &str = "reply.txt";
/// How directories of pages are called while somebody writes, and those that are kept.
const WRITTEN: &str = "reply-";
const UNSENT: &str = "unsent-";
/// When a page was last changed, until somebody saves it.
const UNTOUCHED: SystemTime = SystemTime::UNIX_EPOCH;
/// What is more than this is left where an editor has left it: so many files, and so many bytes of one.
const MAX_LEFT: usize = 64;
const MAX_LEFT_BYTES: u64 = 16 << 20;
/// How many entries of the data directory are looked at.
const MAX_ENTRIES: usize = 1_000;

/// Where pages may be.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// Files there last no longer than a session: best for what is there only while somebody writes.
    session: Option<PathBuf>,
    /// The data directory: for what is kept.
    data: PathBuf,
}

impl Places {
    pub(super) fn new(session: Option<PathBuf>, data: PathBuf) -> Self {
        Self { session, data }
    }

    /// What is left in the data directory of replies that were not sent.
    pub(super) fn unsent(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(&self.data) else { return Vec::new() };
        let is_unsent = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(UNSENT))
        };
        entries.take(MAX_ENTRIES).flatten().map(|entry| entry.path()).filter(is_unsent).collect()
    }
}

/// What becomes of a page that is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Removed,
    /// It is removed if nobody has saved it and nothing was left beside it, and else kept.
    Rescued,
    Stays,
}

/// A private file, in a directory of its own. Dropped, both are removed, unless somebody may have written there.
#[derive(Debug)]
pub(super) struct Page {
    directory: PathBuf,
    places: Places,
    fate: Fate,
}

impl Page {
    /// Makes one to be written on, with this text in it: where it lasts no longer than the session, if that can be.
    pub(super) fn try_new(places: &Places, text: &str) -> io::Result<Self> {
        let orders = [places.session.as_ref(), Some(&places.data)];
        Self::in_first(orders.into_iter().flatten(), WRITTEN, places, text)
    }

    /// Makes one that keeps this text, where it outlives the session if that can be.
    fn to_keep(places: &Places, text: &str) -> io::Result<Self> {
        let orders = [Some(&places.data), places.session.as_ref()];
        Self::in_first(orders.into_iter().flatten(), UNSENT, places, text)
    }

    fn in_first<'a>(
        from: impl Iterator<Item = &'a PathBuf>,
        kind: &str,
        places: &Places,
        text: &str,
    ) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for place in from {
            match Self::in_directory(place.join(unique(kind)), places.clone(), text) {
                Ok(page) => return Ok(page),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn in_directory(directory: PathBuf, places: Places, text: &str) -> io::Result<Self> {
        // One that is there already is not ours.
        DirBuilder::new().mode(DIRECTORY_MODE).create(&directory)?;
        let page = Self { directory, places, fate: Fate::Removed };
        let mut file = new_file(&page.path())?;
        file.write_all(text.as_bytes())?;
        if !text.is_empty() {
            file.write_all(b"\n")?;
        }
        file.set_modified(UNTOUCHED)?;
        Ok(page)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// From now on somebody may write there: dropped, it is not removed with what they wrote.
    pub(super) fn lend(&mut self) {
        self.fate = Fate::Rescued;
    }

    /// Nothing there is worth keeping.
    pub(super) fn settle(mut self) {
        self.fate = Fate::Removed;
    }

    /// Whether somebody has saved it since it was made: what is only looked at is not meant to be sent.
    pub(super) fn is_saved(&self) -> io::Result<bool> {
        match std::fs::symlink_metadata(self.path()) {
            Ok(metadata) => Ok(metadata.modified()? != UNTOUCHED),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether there is anything beside it, which may hold what nobody has saved. Links only lock.
    pub(super) fn has_leftovers(&self) -> bool {
        let entries = match std::fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) => return error.kind() != io::ErrorKind::NotFound,
        };
        entries.into_iter().any(|entry| {
            entry.is_ok_and(|entry| {
                entry.file_name() != FILE && entry.file_type().map_or(true, |kind| !kind.is_symlink())
            })
        })
    }

    /// What it says, if that is not longer than so many bytes.
    pub(super) fn read(&self, most: u64) -> Result<String, CliError> {
        let file = open(&self.path())?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "what the editor left is no regular file").into());
        }
        read(file, most)
    }

    /// Keeps all that is there, and says where its text is.
    pub(super) fn keep(self) -> Kept {
        Kept::File(self.kept().join(FILE))
    }

    /// Keeps all that is there, and says where what an editor left is.
    pub(super) fn keep_leftovers(self) -> Kept {
        Kept::Left(self.kept())
    }

    /// Has it stay, in the data directory if that can be; gives its own directory.
    fn kept(mut self) -> PathBuf {
        self.stay()
    }

    fn stay(&mut self) -> PathBuf {
        self.fate = Fate::Stays;
        let kept = self.places.data.join(unique(UNSENT));
        match moved(&self.directory, &kept) {
            Ok(()) => kept,
            // It is safe where it is, for now.
            Err(_) => self.directory.clone(),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        match self.fate {
            Fate::Stays => {}
            Fate::Rescued if !matches!(self.is_saved(), Ok(false)) || self.has_leftovers() => {
                let kept = Kept::Left(self.stay());
                say(&kept.to_string());
            }
            Fate::Removed | Fate::Rescued => {
                if let Err(error) = std::fs::remove_dir_all(&self.directory) {
                    say(&format!("could not remove {}: {error}", self.directory.display()));
                }
            }
        }
    }
}

fn unique(kind: &str) -> String {
    format!("{kind}{}", uuid::Uuid::new_v4())
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Opens what somebody has left. No link is followed, and a pipe holds nothing up.
fn open(path: &Path) -> io::Result<File> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Moves a directory with all its files, also to another file system; or leaves it as it is.
fn moved(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {}
        renamed => return renamed,
    }
    copied(from, to)?;
    if let Err(error) = std::fs::remove_dir_all(from) {
        say(&format!("could not remove {}: {error}", from.display()));
    }
    Ok(())
}

/// Copies a directory's files durably, or nothing.
pub(super) fn copied(from: &Path, to: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).create(to)?;
    let copied = copy_files(from, to);
    if copied.is_err() {
        // The first fault is what counts.
        let _ = std::fs::remove_dir_all(to);
    }
    copied
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    for (at, entry) in std::fs::read_dir(from)?.enumerate() {
        let entry = entry?;
        if entry.file_type()?.is_symlink() {
            continue;
        }
        let file = open(&entry.path())?;
        if at >= MAX_LEFT || !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut copy = new_file(&to.join(entry.file_name()))?;
        if io::copy(&mut file.take(MAX_LEFT_BYTES.saturating_add(1)), &mut copy)? > MAX_LEFT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        copy.sync_all()?;
    }
    File::open(to)?.sync_all()
}

/// Where the text of a reply is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Safe {
    Nowhere,
    AsDraft,
    Settled,
}

/// The text of a reply that is on its way. Dropped before it is settled, it says where the text is.
#[derive(Debug)]
pub(super) struct Manuscript {
    text: String,
    /// The file that it was written in.
    page: Option<Page>,
    /// Where a file may be made for it.
    places: Places,
    safe: Safe,
}

impl Manuscript {
    pub(super) fn new(text: String, places: Places) -> Self {
        Self { text, page: None, places, safe: Safe::Nowhere }
    }

    /// What was read from a page, which is removed with it.
    pub(super) fn of_page(text: String, mut page: Page) -> Self {
        page.fate = Fate::Removed;
        Self { text, places: page.places.clone(), page: Some(page), safe: Safe::Nowhere }
    }

    /// Keeps what an editor left beside the page, if there is any.
    pub(super) fn keep_leftovers(&mut self) -> Option<Kept> {
        self.page.take_if(|page| page.has_leftovers()).map(Page::keep_leftovers)
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// It is kept as the draft.
    pub(super) fn is_draft(&mut self) {
        self.safe = Safe::AsDraft;
    }

    /// Nothing has to be kept of it here.
    pub(super) fn settle(mut self) {
        self.safe = Safe::Settled;
    }

    /// Leaves it in a file.
    pub(super) fn into_file(mut self) -> Kept {
        self.safe = Safe::Settled;
        self.put_in_file()
    }

    fn put_in_file(&mut self) -> Kept {
        let page = match self.page.take() {
            Some(page) => Ok(page),
            None => match Page::to_keep(&self.places, &self.text) {
                // It is where it belongs.
                Ok(mut page) => {
                    page.fate = Fate::Stays;
                    return Kept::File(page.path());
                }
                Err(error) => Err(error),
            },
        };
        page.map_or_else(Kept::Nowhere, Page::keep)
    }
}

impl Drop for Manuscript {
    fn drop(&mut self) {
        match self.safe {
            Safe::Settled => {}
            Safe::AsDraft => say("the reply may not have been taken; if not, the text is kept as the draft"),
            Safe::Nowhere if self.text.trim().is_empty() => {}
            Safe::Nowhere => {
                let kept = self.put_in_file();
                say(&kept.to_string());
            }
        }
    }
}

/// Says something to whoever sits there, if anybody does.
pub(super) fn say(words: &str) {
    // Whoever cannot be told is gone.
    let _ = writeln!(io::stderr(), "splitdrop: {}", sanitized(words));
}
