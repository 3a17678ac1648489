//! How much room there is on the disk, and how much of it is left to the database.
//!
//! **Invariant:** nothing that is fetched or decrypted takes the last [`KEPT`] bytes: with these the store can always take
//! what somebody does, a login and a deletion included.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::statvfs::statvfs;

use super::Files;

/// How much room is left to the database, in bytes: 100 MiB. `doctor` finds fault with the same.
pub const KEPT: u64 = 100 << 20;
/// After how many bytes a file that grows looks at the room again: 8 MiB.
pub const LOOK_AFTER: u64 = 8 << 20;

/// Where it is known from how much room there is.
#[derive(Debug, Clone)]
pub enum Room {
    /// The disk under the data directory.
    Disk,
    /// So many bytes, as somebody says.
    Told(Arc<AtomicU64>),
}

impl Files {
    /// The same files, whose room is known from somewhere else.
    #[must_use]
    pub fn with_room(self, room: Room) -> Self {
        Self { room, ..self }
    }

    /// How many bytes there is room for, those that are [`KEPT`] included.
    ///
    /// # Errors
    /// The operating system's.
    pub fn room(&self) -> io::Result<u64> {
        match &self.room {
            Room::Disk => {
                let disk = statvfs(&*self.partial)?;
                Ok(disk.blocks_available().saturating_mul(disk.fragment_size()))
            }
            Room::Told(bytes) => Ok(bytes.load(Ordering::Relaxed)),
        }
    }

    /// Whether there is room for so many bytes besides those that are [`KEPT`]. Where nobody can say, there is.
    #[must_use]
    pub fn has_room_for(&self, bytes: u64) -> bool {
        self.room().map_or(true, |room| room >= KEPT.saturating_add(bytes))
    }
}

/// A file that grows, and fails with [`io::ErrorKind::StorageFull`] before it takes what is [`KEPT`].
#[derive(Debug)]
pub struct Growing<'a> {
    file: &'a mut File,
    files: &'a Files,
    /// How much may still be written before the room is looked at.
    unlooked: u64,
}

impl<'a> Growing<'a> {
    /// It was not looked at yet.
    pub fn new(file: &'a mut File, files: &'a Files) -> Self {
        Self { file, files, unlooked: 0 }
    }
}

impl Write for Growing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if self.unlooked < length {
            if !self.files.has_room_for(length) {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "the disk has no room left"));
            }
            self.unlooked = LOOK_AFTER;
        }
        self.unlooked = self.unlooked.saturating_sub(length);
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{FileNumber, Stage};

    #[test]
    fn the_disk_says_how_much_room_there_is() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        assert!(files.room().unwrap() > 0);
        assert!(!files.has_room_for(u64::MAX));
    }

    #[test]
    fn a_file_that_grows_leaves_what_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let room = Arc::new(AtomicU64::new(KEPT + 100));
        let files = Files::open(home.path()).unwrap().with_room(Room::Told(Arc::clone(&room)));
        assert!(files.has_room_for(100) && !files.has_room_for(101));
        let mut file = files.begin_stage(FileNumber(1), Stage::Decrypted).unwrap();
        let mut growing = Growing::new(&mut file, &files);
        growing.write_all(&[0; 100]).unwrap();
        room.store(KEPT - 1, Ordering::Relaxed);
        let block = [0; 64 * 1024];
        let error = std::iter::repeat_with(|| growing.write_all(&block)).take(200).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(file.metadata().unwrap().len() <= 100 + LOOK_AFTER);
    }
}
