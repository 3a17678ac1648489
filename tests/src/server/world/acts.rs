//! What journalists do through the API, counted.
//!
//! **Invariant:** whatever a function here changes for the eyes of the API is counted, once, and nothing else is.

use std::sync::Arc;

use super::{Change, ItemFile, RecordId, Sealed, SourceState, World, WorldError};

/// How the deletion of a row went. The row is gone in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Deletion {
    /// Row and file are gone.
    Clean,
    /// There was no file to delete, of which the server makes an error.
    FileMissing,
}

impl Deletion {
    fn of(file: ItemFile) -> Self {
        match file.is_missing() {
            false => Self::Clean,
            true => Self::FileMissing,
        }
    }
}

impl World {
    /// Sets or takes a source's star. The way it was already, nothing changes.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`], also for one that is not listed.
    pub(crate) fn star_by_journalist(&mut self, id: &str, starred: bool) -> Result<(), WorldError> {
        let source = self.sources.get_mut(id).filter(|source| source.state == SourceState::Listed);
        let source = source.ok_or_else(|| WorldError::NoSource(id.into()))?;
        if source.is_starred == starred {
            return Ok(());
        }
        source.is_starred = starred;
        let source = source.id.clone();
        self.made(match starred {
            true => Change::StarSet { source },
            false => Change::StarRemoved { source },
        });
        Ok(())
    }

    /// A journalist replies, and has thereby seen the reply; whether the source is listed does not matter. Where the id is
    /// taken, the file is there all the same and no record names it; the number that it has goes to the next item.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`], [`WorldError::NoJournalist`], or [`WorldError::TakenId`].
    pub(crate) fn reply_by_journalist(
        &mut self,
        id: RecordId,
        source: &RecordId,
        author: &RecordId,
        sealed: Sealed,
    ) -> Result<(), WorldError> {
        self.check_journalist(author)?;
        if self.replies.get(id.as_str()).is_some() {
            self.orphan_reply(source)?;
            return Err(WorldError::TakenId(id));
        }
        let size = sealed.length();
        self.insert_reply(id.clone(), source, author, size, Some(Arc::new(sealed)))?;
        self.made(Change::ReplySent { reply: id, source: source.clone(), journalist: author.clone() });
        Ok(())
    }

    /// The file of a reply is written, and the reply is refused. No list shows that.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`].
    pub(crate) fn orphan_reply(&mut self, source: &RecordId) -> Result<(), WorldError> {
        let owner = self.source_mut(source)?;
        let filename = owner.filename_to_come("reply.gpg");
        owner.orphans.insert(filename);
        Ok(())
    }

    /// A journalist sees a submission. Seeing it twice changes nothing.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoJournalist`] or [`WorldError::NoItem`].
    pub(crate) fn see_submission(&mut self, id: &str, by: &RecordId) -> Result<(), WorldError> {
        self.check_journalist(by)?;
        let submission = self.submissions.get_mut(id).ok_or_else(|| WorldError::NoItem(id.into()))?;
        if !submission.seen_by.contains(by) {
            submission.seen_by.push(by.clone());
            let submission = submission.id.clone();
            self.made(Change::SubmissionSeen { submission, journalist: by.clone() });
        }
        Ok(())
    }

    /// A journalist sees a reply. Seeing it twice changes nothing.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoJournalist`] or [`WorldError::NoReply`].
    pub(crate) fn see_reply(&mut self, id: &str, by: &RecordId) -> Result<(), WorldError> {
        self.check_journalist(by)?;
        let reply = self.replies.get_mut(id).ok_or_else(|| WorldError::NoReply(id.into()))?;
        if !reply.seen_by.contains(by) {
            reply.seen_by.push(by.clone());
            let reply = reply.id.clone();
            self.made(Change::ReplySeen { reply, journalist: by.clone() });
        }
        Ok(())
    }

    /// A journalist downloads a submission, which counts as read from then on, with nobody's mark on it. Downloaded once
    /// more, nothing changes.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoItem`].
    pub(crate) fn download_by_journalist(&mut self, id: &str) -> Result<(), WorldError> {
        let submission = self.submissions.get_mut(id).ok_or_else(|| WorldError::NoItem(id.into()))?;
        if !submission.is_downloaded {
            submission.is_downloaded = true;
            let submission = submission.id.clone();
            self.made(Change::SubmissionDownloaded { submission });
        }
        Ok(())
    }

    /// A journalist deletes a submission; a reply with the same id stays.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoItem`].
    pub(crate) fn delete_submission_by_journalist(&mut self, id: &str) -> Result<Deletion, WorldError> {
        let submission = self.take_submission(id).ok_or_else(|| WorldError::NoItem(id.into()))?;
        self.made(Change::SubmissionDeleted { submission: submission.id });
        Ok(Deletion::of(submission.file))
    }

    /// A journalist deletes a reply; a submission with the same id stays.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoReply`].
    pub(crate) fn delete_reply_by_journalist(&mut self, id: &str) -> Result<Deletion, WorldError> {
        let reply = self.take_reply(id).ok_or_else(|| WorldError::NoReply(id.into()))?;
        self.made(Change::ReplyDeleted { reply: reply.id });
        Ok(Deletion::of(reply.file))
    }

    /// A journalist deletes a source's items, submissions first. It ends with the first one whose file is missing: that
    /// one is gone and those after it are there.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`], also for one that is marked deleted.
    pub(crate) fn delete_conversation_by_journalist(&mut self, id: &str) -> Result<Deletion, WorldError> {
        let source = self.undeleted(id)?;
        let submissions: Vec<_> = self.submissions_of(source).map(|row| row.id.clone()).collect();
        let replies: Vec<_> = self.replies_of(source).map(|row| row.id.clone()).collect();
        for submission in submissions {
            match self.delete_submission_by_journalist(submission.as_str())? {
                Deletion::Clean => {}
                Deletion::FileMissing => return Ok(Deletion::FileMissing),
            }
        }
        for reply in replies {
            match self.delete_reply_by_journalist(reply.as_str())? {
                Deletion::Clean => {}
                Deletion::FileMissing => return Ok(Deletion::FileMissing),
            }
        }
        Ok(Deletion::Clean)
    }

    /// A journalist deletes a source: it is marked deleted, and is there with all it has until the purge.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`], also for one that is marked already.
    pub(crate) fn delete_source_by_journalist(&mut self, id: &str) -> Result<(), WorldError> {
        let source = self.undeleted(id)?.id.clone();
        self.edit_source(&source, |source| source.state = SourceState::MarkedDeleted)?;
        self.made(Change::SourceDeleted { source });
        Ok(())
    }

    fn undeleted(&self, id: &str) -> Result<&super::Source, WorldError> {
        let source = self.sources.get(id).filter(|source| match source.state {
            SourceState::Listed | SourceState::Pending => true,
            SourceState::MarkedDeleted => false,
        });
        source.ok_or_else(|| WorldError::NoSource(id.into()))
    }

    fn made(&mut self, change: Change) {
        self.changes.count(change);
        self.changed();
    }
}
