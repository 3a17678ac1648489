//! What somebody writes: in a private file while an editor has it, and in memory from then on.
//!
//! **Invariant:** the file is this user's alone from its first byte on, in a directory of its own, and both are removed,
//! unless the file is all there is of the text.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::SystemTime;

use super::super::exit::CliError;
use super::super::sanitized;
use super::{Kept, read};

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const FILE: &str = "reply.txt";
/// When a page was last changed, until somebody saves it.
const UNTOUCHED: SystemTime = SystemTime::UNIX_EPOCH;

/// A private file, in a directory of its own. Dropped, both are removed.
#[derive(Debug)]
pub(super) struct Page {
    directory: PathBuf,
    stays: bool,
}

impl Page {
    /// Makes it in the first of these places in which that can be, with this text in it.
    pub(super) fn try_new(places: &[PathBuf], text: &str) -> io::Result<Self> {
        let name = format!("reply-{}", uuid::Uuid::new_v4());
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for place in places {
            match Self::in_directory(place.join(&name), text) {
                Ok(page) => return Ok(page),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn in_directory(directory: PathBuf, text: &str) -> io::Result<Self> {
        // One that is there already is not ours.
        DirBuilder::new().mode(DIRECTORY_MODE).create(&directory)?;
        let page = Self { directory, stays: false };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(page.path())?;
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

    /// Whether somebody has saved it since it was made: what is only looked at is not meant to be sent.
    pub(super) fn is_saved(&self) -> io::Result<bool> {
        match std::fs::symlink_metadata(self.path()) {
            Ok(metadata) => Ok(metadata.modified()? != UNTOUCHED),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What it says, if that is not longer than so many bytes.
    pub(super) fn read(&self, most: u64) -> Result<String, CliError> {
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.path())?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "what the editor left is no regular file").into());
        }
        read(file, most)
    }

    /// Leaves it where it is, and says where.
    pub(super) fn keep(mut self) -> PathBuf {
        self.stays = true;
        self.path()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            say(&format!("could not remove {}: {error}", self.directory.display()));
        }
    }
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
    places: Vec<PathBuf>,
    safe: Safe,
}

impl Manuscript {
    pub(super) fn new(text: String, places: Vec<PathBuf>) -> Self {
        Self { text, page: None, places, safe: Safe::Nowhere }
    }

    pub(super) fn of_page(text: String, page: Page, places: Vec<PathBuf>) -> Self {
        let mut written = Self::new(text, places);
        written.page = Some(page);
        written
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
            None => Page::try_new(&self.places, &self.text),
        };
        page.map_or_else(Kept::Nowhere, |page| Kept::File(page.keep()))
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

fn say(words: &str) {
    // Whoever cannot be told is gone.
    let _ = writeln!(io::stderr(), "splitdrop: {}", sanitized(words));
}
