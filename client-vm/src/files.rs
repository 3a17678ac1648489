//! The files beside the database: ciphertext of items, whole and in part.
//!
//! **Invariant:** a file's name is a number of our own. No text of a server or a source is ever part of a path.
//!
//! **Invariant:** what stands under `ciphertext` was complete, verified and on the disk before it got its name.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::private;

/// The number that an item's files are named by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub i64);

/// The directories of the files.
#[derive(Debug, Clone)]
pub struct Files {
    partial: Arc<Path>,
    ciphertext: Arc<Path>,
}

/// What the directories hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// Parts.
    pub partial: Vec<FileNumber>,
    /// Whole ciphertexts.
    pub ciphertext: Vec<FileNumber>,
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
        Ok(Self { partial: directory("partial")?, ciphertext: directory("ciphertext")? })
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

    /// Removes whatever there is of an item's ciphertext, durably.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove(&self, number: FileNumber) -> io::Result<()> {
        for directory in [&self.partial, &self.ciphertext] {
            match std::fs::remove_file(directory.join(number.0.to_string())) {
                Ok(()) => sync_directory(directory)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What there is.
    ///
    /// # Errors
    /// The operating system's.
    pub fn list(&self) -> io::Result<Listing> {
        let mut listing = Listing::default();
        for (directory, found) in [(&self.partial, &mut listing.partial), (&self.ciphertext, &mut listing.ciphertext)] {
            for entry in std::fs::read_dir(directory)? {
                let path = entry?.path();
                let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| {
                    name.parse().ok().filter(|number: &i64| number.to_string() == name).map(FileNumber)
                });
                match number {
                    Some(number) => found.push(number),
                    None => listing.strange.push(path),
                }
            }
        }
        Ok(listing)
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
        for name in ["partial", "ciphertext"] {
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
