//! What becomes of items' files on the server's disk. Their rows stay as they are: the database notices nothing.

use jiff::Timestamp;

use super::{FileState, ItemFile, RecordId, World, WorldError};

impl World {
    /// The file of an item vanishes.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoItem`].
    pub fn lose_file(&mut self, item: &RecordId) -> Result<(), WorldError> {
        self.each_file(item, |file, _| file.state = FileState::Missing)?;
        self.changed();
        Ok(())
    }

    /// The file of an item is cut after its first `bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoItem`], or [`WorldError::NotShorter`] when it has no more.
    pub fn shorten_file(&mut self, item: &RecordId, bytes: u64, now: Timestamp) -> Result<(), WorldError> {
        let mut longer = true;
        self.each_file(item, |file, size| longer &= bytes < file_length(*file, size))?;
        if !longer {
            return Err(WorldError::NotShorter { item: item.clone(), bytes });
        }
        self.each_file(item, |file, _| {
            file.state = FileState::Shortened(bytes);
            file.changed = Some(now);
        })?;
        self.changed();
        Ok(())
    }

    /// The file of an item is replaced by a whole one of the same size with something else in it.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoItem`].
    pub fn replace_file(&mut self, item: &RecordId, now: Timestamp) -> Result<(), WorldError> {
        self.each_file(item, |file, _| {
            *file = ItemFile { state: FileState::Whole, edition: file.edition.saturating_add(1), changed: Some(now) };
        })?;
        self.changed();
        Ok(())
    }

    /// Goes to the file of a submission and of a reply, each with the item's size.
    fn each_file(&mut self, item: &RecordId, mut go: impl FnMut(&mut ItemFile, u64)) -> Result<(), WorldError> {
        let submission = self.submissions.get_mut(item.as_str()).map(|row| (&mut row.file, row.size));
        let reply = self.replies.get_mut(item.as_str()).map(|row| (&mut row.file, row.size));
        if submission.is_none() && reply.is_none() {
            return Err(WorldError::NoItem(item.clone()));
        }
        for (file, size) in submission.into_iter().chain(reply) {
            go(file, size);
        }
        Ok(())
    }
}

/// Bytes of a file that are there, of `size` bytes.
fn file_length(file: ItemFile, size: u64) -> u64 {
    match file.state {
        FileState::Whole => size,
        FileState::Shortened(bytes) => bytes,
        FileState::Missing => 0,
    }
}
