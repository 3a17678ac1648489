//! A folder of this VM that copies are written into.
//!
//! **Invariant:** nothing is written but regular files that are new, directly in the folder that was named, for this user
//! alone. No link is followed, and nothing that is there is changed.
//!
//! **Invariant:** a copy that is not finished is removed, whatever ends it but SIGKILL.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};

use super::super::apart;
use super::super::exit::CliError;
use crate::handover::naming;

/// How many names are tried for one copy.
const MAX_NAMES: u32 = 10_000;

/// An existing folder.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
    directory: Arc<OwnedFd>,
}

/// A file that is being written. Dropped unfinished, it is removed.
#[derive(Debug)]
pub(super) struct Copy {
    folder: Folder,
    name: String,
    file: Arc<File>,
    finished: bool,
}

impl Folder {
    /// Opens a folder, which must be there, and be one itself.
    pub(super) async fn open(path: &Path) -> Result<Self, CliError> {
        // A slash at its end would have a link followed.
        let path: PathBuf = path.components().collect();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let named = path.clone();
        match apart(move || open(&named, flags, Mode::empty())).await? {
            Ok(directory) => Ok(Self { path, directory: Arc::new(directory) }),
            Err(error) => Err(CliError::NoFolder { path, source: error.into() }),
        }
    }

    /// Whether so many bytes have room.
    pub(super) async fn check_room(&self, bytes: u64) -> Result<(), CliError> {
        let directory = Arc::clone(&self.directory);
        let found = apart(move || fstatvfs(&*directory)).await?.map_err(|error| self.failed(error.into()))?;
        check_room(bytes, found.blocks_available().saturating_mul(found.fragment_size()), &self.path)
    }

    /// Begins a copy, under this name or, where that is taken, under one with a number.
    pub(super) async fn create(&self, name: String) -> Result<Copy, CliError> {
        let folder = self.clone();
        // The copy comes back by itself, or goes with the thread's result: nobody has to know of it to remove it.
        apart(move || folder.create_now(&name)).await?
    }

    fn create_now(&self, name: &str) -> Result<Copy, CliError> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        for at in 1..=MAX_NAMES {
            let name = naming::numbered(name, at);
            match openat(&*self.directory, name.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR) {
                Ok(file) => {
                    return Ok(Copy { folder: self.clone(), name, file: Arc::new(file.into()), finished: false });
                }
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(self.failed(error.into())),
            }
        }
        Err(self.failed(Errno::EEXIST.into()))
    }

    /// Sees to it that so many finished copies stay.
    pub(super) async fn sync(&self, copies: usize) -> Result<(), CliError> {
        let directory = Arc::clone(&self.directory);
        let synced = apart(move || fsync(&*directory)).await?;
        synced.map_err(|error| CliError::NotDurable { copies, path: self.path.clone(), source: error.into() })
    }

    fn failed(&self, source: io::Error) -> CliError {
        CliError::NotWritten { path: self.path.clone(), source }
    }
}

impl Copy {
    /// Its name in the folder.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Writes what comes next.
    pub(super) async fn write(&mut self, bytes: Vec<u8>) -> Result<(), CliError> {
        let file = Arc::clone(&self.file);
        apart(move || (&*file).write_all(&bytes)).await?.map_err(|error| self.folder.failed(error))
    }

    /// Finishes it, durably; gives its name.
    pub(super) async fn finish(mut self) -> Result<String, CliError> {
        let file = Arc::clone(&self.file);
        apart(move || file.sync_all()).await?.map_err(|error| self.folder.failed(error))?;
        self.finished = true;
        Ok(std::mem::take(&mut self.name))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if !self.finished {
            // Whoever removed it before was faster.
            let _ = unlinkat(&*self.folder.directory, self.name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

fn check_room(bytes: u64, room: u64, path: &Path) -> Result<(), CliError> {
    if bytes <= room { Ok(()) } else { Err(CliError::NoRoom { path: path.to_owned(), bytes, room }) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::super::exit::Exit;
    use super::*;

    async fn write(folder: &Folder, name: &str, text: &str) -> String {
        let mut copy = folder.create(name.to_owned()).await.unwrap();
        copy.write(text.as_bytes().to_vec()).await.unwrap();
        copy.finish().await.unwrap()
    }

    #[tokio::test]
    async fn what_is_there_is_neither_changed_nor_followed() {
        let root = tempfile::tempdir().unwrap();
        let (path, outside) = (root.path().join("folder"), root.path().join("outside"));
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("a.txt"), "before").unwrap();
        symlink(&outside, path.join("a (2).txt")).unwrap();
        std::fs::create_dir(path.join("a (3).txt")).unwrap();
        let folder = Folder::open(&path).await.unwrap();
        assert_eq!(write(&folder, "a.txt", "after").await, "a (4).txt");
        assert_eq!(write(&folder, "a.txt", "later").await, "a (5).txt");
        folder.sync(2).await.unwrap();
        assert_eq!(std::fs::read_to_string(path.join("a.txt")).unwrap(), "before");
        assert_eq!(std::fs::read_to_string(path.join("a (4).txt")).unwrap(), "after");
        assert_eq!(std::fs::metadata(path.join("a (4).txt")).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!outside.exists());
    }

    #[tokio::test]
    async fn a_copy_that_is_not_finished_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).await.unwrap();
        let mut copy = folder.create("a".to_owned()).await.unwrap();
        copy.write(b"half".to_vec()).await.unwrap();
        assert!(root.path().join("a").exists());
        drop(copy);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    /// The copies are there: that none is would send somebody to copy them once more.
    #[tokio::test]
    async fn where_a_folder_cannot_be_synced_it_is_not_said_that_the_copies_are_removed() {
        let root = tempfile::tempdir().unwrap();
        // What cannot be synced: a descriptor that only names a place.
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = Arc::new(open(root.path(), flags, Mode::empty()).unwrap());
        let folder = Folder { path: root.path().to_owned(), directory };
        assert_eq!(write(&folder, "a.txt", "text").await, "a.txt");
        let error = folder.sync(2).await.unwrap_err();
        let told = error.to_string();
        assert!(told.starts_with("all 2 copies are finished") && !told.contains("removed"), "{told}");
        assert_eq!(error.exit(), Exit::Failure);
        assert!(root.path().join("a.txt").exists());
    }

    #[tokio::test]
    async fn only_a_folder_that_is_one_itself_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let (real, link, file) = (root.path().join("real"), root.path().join("link"), root.path().join("file"));
        std::fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        std::fs::write(&file, "").unwrap();
        Folder::open(&real.join("")).await.unwrap();
        for wrong in [link.join(""), link, file, root.path().join("none")] {
            let error = Folder::open(&wrong).await.unwrap_err();
            assert_eq!(error.exit(), Exit::Usage, "{error}");
        }
    }

    #[tokio::test]
    async fn room_is_looked_for_before_anything_is_written() {
        assert!(check_room(4096, 4096, Path::new("/folder")).is_ok());
        let error = check_room(4097, 4096, Path::new("/folder")).unwrap_err();
        assert_eq!(error.exit(), Exit::Failure);
        let told = error.to_string();
        for part in ["/folder", "4.0 kB", "nothing was written"] {
            assert!(told.contains(part), "{told}");
        }
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).await.unwrap();
        folder.check_room(1).await.unwrap();
        assert!(matches!(folder.check_room(u64::MAX).await, Err(CliError::NoRoom { .. })));
    }
}
