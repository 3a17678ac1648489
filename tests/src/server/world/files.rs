//! What becomes of items' files on the server's disk. Their rows stay as they are: the database notices nothing.

use jiff::Timestamp;

use super::{FileState, ItemFile, RecordId, SMALLEST_REPLY, World, WorldError};

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
    /// [`WorldError::NoItem`], or [`WorldError::Size`] for one that came as it is and is shorter than what is made here.
    pub fn replace_file(&mut self, item: &RecordId, now: Timestamp) -> Result<(), WorldError> {
        let too_short = |size: u64, smallest: u64| (size < smallest).then_some(WorldError::Size { size, smallest });
        let submission = self.submissions.get_mut(item.as_str());
        let reply = self.replies.get_mut(item.as_str());
        let refused = submission.as_ref().and_then(|row| too_short(row.size, row.kind.smallest_size()));
        let refused = refused.or_else(|| reply.as_ref().and_then(|row| too_short(row.size, SMALLEST_REPLY)));
        if let Some(refused) = refused {
            return Err(refused);
        }
        // What is there now is made here.
        for sealed in submission.map(|row| &mut row.sealed).into_iter().chain(reply.map(|row| &mut row.sealed)) {
            *sealed = None;
        }
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
