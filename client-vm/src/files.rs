//! The files beside the database: ciphertext of items, whole and in part, and plaintext of files.
//!
//! **Invariant:** a file's name is a number of our own. No text of a server or a source is ever part of a path.
//!
//! **Invariant:** what stands under `ciphertext` was complete, verified and on the disk before it got its name; what stands
//! under `plaintext` was decrypted and unpacked to its end, and on the disk.
//!
//! **Invariant:** what is fetched or decrypted leaves the database room (`files/room.rs`).
//!
//! **Invariant:** what stands under `opening` belongs to work that is under way, and is worth nothing without it. What
//! stands under `viewing` (`files/viewing.rs`) belongs to a call of another VM, and goes with it.

mod room;
mod viewing;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::room::{Growing, KEPT, LOOK_AFTER, Room};
pub use self::viewing::Extension;
use crate::private;

/// The number that an item's files are named by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub i64);

/// The directories of the files.
#[derive(Debug, Clone)]
pub struct Files {
    partial: Arc<Path>,
    ciphertext: Arc<Path>,
    opening: Arc<Path>,
    plaintext: Arc<Path>,
    viewing: Arc<Path>,
    room: Room,
}

/// A stage of opening an item, whose outcome is a file under `opening` that the next stage reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Decrypted.
    Decrypted,
    /// Unpacked.
    Unpacked,
    /// The message in it decrypted.
    Inner,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Decrypted, Self::Unpacked, Self::Inner];

    fn letter(self) -> char {
        match self {
            Self::Decrypted => 'd',
            Self::Unpacked => 'u',
            Self::Inner => 'i',
        }
    }
}

/// What the directories hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// Parts.
    pub partial: Vec<FileNumber>,
    /// Whole ciphertexts.
    pub ciphertext: Vec<FileNumber>,
    /// Plaintexts.
    pub plaintext: Vec<FileNumber>,
    /// What is none of ours.
    pub strange: Vec<PathBuf>,
}

impl Files {
    /// The directories in `home`, made if need be, with mode 0700.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(home: &Path) -> io::Result<Self> {
        let directory = |name| -> io::Result<Arc<Path>> {
            let path = home.join(name);
            private::directory(&path)?;
            private::files_in(&path)?;
            Ok(path.into())
        };
        Ok(Self {
            partial: directory("partial")?,
            ciphertext: directory("ciphertext")?,
            opening: directory("opening")?,
            plaintext: directory("plaintext")?,
            viewing: directory("viewing")?,
            room: Room::Disk,
        })
    }

    /// Where a file's plaintext stands once it is whole.
    #[must_use]
    pub fn plaintext(&self, number: FileNumber) -> PathBuf {
        self.plaintext.join(number.0.to_string())
    }

    fn stage(&self, number: FileNumber, stage: Stage) -> PathBuf {
        self.opening.join(format!("{}{}", number.0, stage.letter()))
    }

    /// Opens an item's ciphertext; `None` when it is not there.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open_ciphertext(&self, number: FileNumber) -> io::Result<Option<File>> {
        match OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(self.ciphertext(number)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Begins the file of a stage, whatever there was, to write and to read.
    ///
    /// # Errors
    /// The operating system's.
    pub fn begin_stage(&self, number: FileNumber, stage: Stage) -> io::Result<File> {
        OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(self.stage(number, stage))
    }

    /// Gives the outcome of a stage, which is on the disk, its final name, durably.
    ///
    /// # Errors
    /// The operating system's.
    pub fn finish_plaintext(&self, number: FileNumber, stage: Stage) -> io::Result<()> {
        std::fs::rename(self.stage(number, stage), self.plaintext(number))?;
        sync_directory(&self.plaintext)?;
        sync_directory(&self.opening)
    }

    /// Removes what the stages of opening an item left.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove_stages(&self, number: FileNumber) -> io::Result<()> {
        Stage::ALL.map(|stage| remove(&self.stage(number, stage), &self.opening)).into_iter().collect()
    }

    /// Removes all that work which ended with the last start was opening. Gives what could not be removed, with the item's
    /// number where it is a stage's file.
    ///
    /// # Errors
    /// The operating system's, where the directory cannot be read.
    pub fn clear_opening(&self) -> io::Result<Vec<(Option<FileNumber>, io::Error)>> {
        let mut failed = Vec::new();
        for entry in std::fs::read_dir(&self.opening)? {
            let path = entry?.path();
            if let Err(error) = remove(&path, &self.opening) {
                let name = path.file_name().and_then(|name| name.to_str());
                let number = name.and_then(|name| name.strip_suffix(Stage::ALL.map(Stage::letter)));
                failed.push((number.and_then(file_number), error));
            }
        }
        Ok(failed)
    }

    /// Removes an item's ciphertext, durably: its plaintext has taken its place.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove_ciphertext(&self, number: FileNumber) -> io::Result<()> {
        self.remove_ciphertext_part(number)?;
        remove(&self.ciphertext(number), &self.ciphertext)
    }

    /// Where an item's ciphertext stands once it is verified.
    #[must_use]
    pub fn ciphertext(&self, number: FileNumber) -> PathBuf {
        self.ciphertext.join(number.0.to_string())
    }

    /// Opens what there is of an item's ciphertext, or a new file, to read and write at its end.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open_partial(&self, number: FileNumber) -> io::Result<File> {
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .append(true)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(self.partial.join(number.0.to_string()))
    }

    /// How many bytes there are of an item's ciphertext in part; none where nobody can say.
    #[must_use]
    pub fn partial_len(&self, number: FileNumber) -> u64 {
        std::fs::symlink_metadata(self.partial.join(number.0.to_string())).map_or(0, |part| part.len())
    }

    /// Empties what there is of an item's ciphertext in part, durably, so that nothing of it is taken for another's.
    ///
    /// # Errors
    /// The operating system's.
    pub fn empty_partial(&self, number: FileNumber) -> io::Result<()> {
        let file = self.open_partial(number)?;
        if file.metadata()?.len() > 0 {
            file.set_len(0)?;
            file.sync_all()?;
        }
        Ok(())
    }

    /// Gives a part that is whole, verified and on the disk its final name, durably.
    ///
    /// # Errors
    /// The operating system's.
    pub fn finish(&self, number: FileNumber) -> io::Result<()> {
        std::fs::rename(self.partial.join(number.0.to_string()), self.ciphertext(number))?;
        sync_directory(&self.ciphertext)?;
        sync_directory(&self.partial)
    }

    /// Makes a whole ciphertext a part again: nobody knows any more that it was verified.
    ///
    /// # Errors
    /// The operating system's.
    pub fn unfinish(&self, number: FileNumber) -> io::Result<()> {
        std::fs::rename(self.ciphertext(number), self.partial.join(number.0.to_string()))?;
        sync_directory(&self.partial)?;
        sync_directory(&self.ciphertext)
    }

    /// Removes what there is of an item's ciphertext in part, durably.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove_ciphertext_part(&self, number: FileNumber) -> io::Result<()> {
        remove(&self.partial.join(number.0.to_string()), &self.partial)
    }

    /// Removes a file's plaintext, durably.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove_plaintext(&self, number: FileNumber) -> io::Result<()> {
        remove(&self.plaintext(number), &self.plaintext)
    }

    /// Removes whatever there is of an item, durably. What can be removed goes, whatever becomes of the rest.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove(&self, number: FileNumber) -> io::Result<()> {
        let plaintext = self.remove_plaintext(number);
        let stages = self.remove_stages(number);
        let part = self.remove_ciphertext_part(number);
        let ciphertext = remove(&self.ciphertext(number), &self.ciphertext);
        // Last: without the plaintext nobody shows it any more.
        plaintext.and(stages).and(part).and(ciphertext).and(self.hide(number))
    }

    /// What there is.
    ///
    /// # Errors
    /// The operating system's.
    pub fn list(&self) -> io::Result<Listing> {
        let mut listing = Listing::default();
        let directories = [
            (&self.partial, &mut listing.partial),
            (&self.ciphertext, &mut listing.ciphertext),
            (&self.plaintext, &mut listing.plaintext),
        ];
        for (directory, found) in directories {
            for entry in std::fs::read_dir(directory)? {
                let path = entry?.path();
                match path.file_name().and_then(|name| name.to_str()).and_then(file_number) {
                    Some(number) => found.push(number),
                    None => listing.strange.push(path),
                }
            }
        }
        Ok(listing)
    }
}

/// The number that a file is named by.
fn file_number(name: &str) -> Option<FileNumber> {
    name.parse().ok().filter(|number: &i64| number.to_string() == name).map(FileNumber)
}

/// Removes a file of a directory durably, if it is there.
fn remove(path: &Path, directory: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => sync_directory(directory),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_part_becomes_a_whole_and_goes() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        let number = FileNumber(7);
        files.open_partial(number).unwrap().write_all(b"one").unwrap();
        files.open_partial(number).unwrap().write_all(b", two").unwrap();
        assert_eq!(files.list().unwrap(), Listing { partial: vec![number], ..Listing::default() });
        files.finish(number).unwrap();
        assert_eq!(std::fs::read(files.ciphertext(number)).unwrap(), b"one, two");
        assert_eq!(files.list().unwrap(), Listing { ciphertext: vec![number], ..Listing::default() });
        files.unfinish(number).unwrap();
        assert_eq!(files.list().unwrap().partial, [number]);
        files.remove(number).unwrap();
        files.remove(number).unwrap();
        assert_eq!(files.list().unwrap(), Listing::default());
    }

    #[test]
    fn directories_and_files_are_for_this_user_alone() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        let file = files.open_partial(FileNumber(1)).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        for name in ["partial", "ciphertext", "opening", "plaintext", "viewing"] {
            let mode = std::fs::metadata(home.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{name}");
        }
    }

    #[test]
    fn what_is_none_of_ours_is_told_apart_and_links_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        for name in ["007", "x", "-", "1.part"] {
            std::fs::write(home.path().join("partial").join(name), "").unwrap();
        }
        let listing = files.list().unwrap();
        assert_eq!((listing.partial, listing.strange.len()), (Vec::new(), 4));
        std::os::unix::fs::symlink("/etc/passwd", home.path().join("partial/3")).unwrap();
        assert!(files.open_partial(FileNumber(3)).is_err());
    }
}
