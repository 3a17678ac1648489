//! What a server knows: journalists, sources, submissions and replies, as rows in the order in which they came.
//!
//! **Invariant:** every id names at most one row of its table; a submission and a reply may share one, as on a real
//! server. Every item's source and every reply's author exist.
//!
//! **Invariant:** whatever changes an answer of the API also changes [`World::revision`], so an answer may be kept for
//! as long as the revision stands.

mod acts;
mod changes;
mod files;
mod record;
mod table;

use std::sync::Arc;

use jiff::Timestamp;
use thiserror::Error;

use super::ciphertext::{LARGEST_ITEM, SMALLEST_REPLY, Sealed};
pub(crate) use acts::Deletion;
pub use changes::{Change, Changes};
pub use record::{
    FileState, ItemFile, Journalist, RecordId, Reply, Source, SourceKey, SourceState, Submission, SubmissionKind,
};
use table::Table;

/// The name of the account to which the replies and marks of deleted journalists move.
pub const DELETED_JOURNALIST: &str = "deleted";

/// Why a change to the world was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum WorldError {
    /// No source has this id.
    #[error("there is no source {0}")]
    NoSource(RecordId),
    /// No submission and no reply has this id.
    #[error("there is no item {0}")]
    NoItem(RecordId),
    /// No reply has this id.
    #[error("there is no reply {0}")]
    NoReply(RecordId),
    /// Nobody has this name or id.
    #[error("there is no journalist {0}")]
    NoJournalist(String),
    /// A row of the same table has this id already.
    #[error("the id {0} is taken")]
    TakenId(RecordId),
    /// An item that no ciphertext can have the size of, or that is absurdly large.
    #[error("a size of {size} bytes is not between {smallest} and {LARGEST_ITEM}")]
    Size {
        /// Bytes of ciphertext that were wanted.
        size: u64,
        /// The least that such an item can have.
        smallest: u64,
    },
    /// A file is to be cut where it ends already.
    #[error("the file of {item} has no more than {bytes} bytes")]
    NotShorter {
        /// Which item.
        item: RecordId,
        /// Bytes that were to be left.
        bytes: u64,
    },
}

/// The whole state of a server.
#[derive(Debug, Clone, Default)]
pub struct World {
    revision: u64,
    journalists: Vec<Journalist>,
    sources: Table<Source>,
    submissions: Table<Submission>,
    replies: Table<Reply>,
    changes: Changes,
}

impl World {
    /// A server where nobody has been yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A number that grows with every change that a list can show.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// What journalists changed through the API so far, and how often each change was made.
    pub fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// All journalists, `deleted` included.
    pub fn journalists(&self) -> &[Journalist] {
        &self.journalists
    }

    /// The journalist with this name to sign in with.
    pub fn journalist_named(&self, username: &str) -> Option<&Journalist> {
        self.journalists.iter().find(|j| j.username == username)
    }

    /// The journalist with this id.
    pub fn journalist(&self, id: &RecordId) -> Option<&Journalist> {
        self.journalists.iter().find(|j| j.id == *id)
    }

    /// All sources, listed or not, in the order in which they came.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter()
    }

    /// The source with this id, listed or not.
    pub fn source(&self, id: &str) -> Option<&Source> {
        self.sources.get(id)
    }

    /// All submissions, those of unlisted sources included.
    pub fn submissions(&self) -> impl Iterator<Item = &Submission> {
        self.submissions.iter()
    }

    /// The submissions of one source.
    pub fn submissions_of<'a>(&'a self, source: &'a Source) -> impl Iterator<Item = &'a Submission> {
        source.submission_rows.iter().filter_map(|row| self.submissions.row(*row))
    }

    /// The submission with this id.
    pub fn submission(&self, id: &str) -> Option<&Submission> {
        self.submissions.get(id)
    }

    /// All replies, those to unlisted sources included.
    pub fn replies(&self) -> impl Iterator<Item = &Reply> {
        self.replies.iter()
    }

    /// The replies to one source.
    pub fn replies_of<'a>(&'a self, source: &'a Source) -> impl Iterator<Item = &'a Reply> {
        source.reply_rows.iter().filter_map(|row| self.replies.row(*row))
    }

    /// The reply with this id.
    pub fn reply(&self, id: &str) -> Option<&Reply> {
        self.replies.get(id)
    }

    /// Adds a journalist.
    ///
    /// # Errors
    ///
    /// [`WorldError::TakenId`] when the id is in use.
    pub fn add_journalist(&mut self, journalist: Journalist) -> Result<(), WorldError> {
        if self.journalist(&journalist.id).is_some() {
            return Err(WorldError::TakenId(journalist.id));
        }
        self.journalists.push(journalist);
        self.changed();
        Ok(())
    }

    /// Adds a source that has sent nothing yet.
    ///
    /// # Errors
    ///
    /// [`WorldError::TakenId`] when the id is in use.
    pub fn add_source(
        &mut self,
        id: RecordId,
        designation: String,
        key: Option<Arc<SourceKey>>,
        now: Timestamp,
    ) -> Result<(), WorldError> {
        let source = Source::new(id.clone(), designation, key, now);
        self.sources.insert(&id, source)?;
        self.changed();
        Ok(())
    }

    /// A source sends a message or a file of `size` bytes of ciphertext. The item takes the next number of the
    /// conversation.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`], [`WorldError::TakenId`], or [`WorldError::Size`] below
    /// [`SubmissionKind::smallest_size`].
    pub fn add_submission(
        &mut self,
        id: RecordId,
        source: &RecordId,
        kind: SubmissionKind,
        size: u64,
        now: Timestamp,
    ) -> Result<(), WorldError> {
        if self.submissions.get(id.as_str()).is_some() {
            return Err(WorldError::TakenId(id));
        }
        check_size(size, kind.smallest_size())?;
        self.insert_submission(id, source, kind, size, None, now)
    }

    /// A source sends something whose ciphertext is there already.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`] or [`WorldError::TakenId`].
    pub(crate) fn add_sealed_submission(
        &mut self,
        id: RecordId,
        source: &RecordId,
        kind: SubmissionKind,
        sealed: Sealed,
        now: Timestamp,
    ) -> Result<(), WorldError> {
        if self.submissions.get(id.as_str()).is_some() {
            return Err(WorldError::TakenId(id));
        }
        let size = sealed.length();
        self.insert_submission(id, source, kind, size, Some(Arc::new(sealed)), now)
    }

    fn insert_submission(
        &mut self,
        id: RecordId,
        source: &RecordId,
        kind: SubmissionKind,
        size: u64,
        sealed: Option<Arc<Sealed>>,
        now: Timestamp,
    ) -> Result<(), WorldError> {
        let owner = self.source_mut(source)?;
        let filename = owner.next_filename(kind.suffix());
        let submission = Submission {
            id: id.clone(),
            source: source.clone(),
            filename,
            kind,
            size,
            sealed,
            is_downloaded: false,
            file: ItemFile::new(),
            seen_by: Vec::new(),
        };
        let row = self.submissions.insert(&id, submission)?;
        let owner = self.source_mut(source)?;
        owner.last_updated = Some(now);
        owner.files_touched = now;
        owner.submission_rows.push(row);
        self.changed();
        Ok(())
    }

    /// A journalist replies with `size` bytes of ciphertext, and has thereby seen the reply. The source's
    /// `last_updated` stays: it tells when the source was last heard of.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`], [`WorldError::NoJournalist`], [`WorldError::TakenId`], or [`WorldError::Size`] below
    /// [`SMALLEST_REPLY`].
    pub fn add_reply(
        &mut self,
        id: RecordId,
        source: &RecordId,
        author: &RecordId,
        size: u64,
    ) -> Result<(), WorldError> {
        if self.replies.get(id.as_str()).is_some() {
            return Err(WorldError::TakenId(id));
        }
        check_size(size, SMALLEST_REPLY)?;
        self.insert_reply(id, source, author, size, None)
    }

    /// Adds a reply whose id is free.
    fn insert_reply(
        &mut self,
        id: RecordId,
        source: &RecordId,
        author: &RecordId,
        size: u64,
        sealed: Option<Arc<Sealed>>,
    ) -> Result<(), WorldError> {
        self.check_journalist(author)?;
        let owner = self.source_mut(source)?;
        let filename = owner.next_filename("reply.gpg");
        let key = owner.key.clone();
        let reply = Reply {
            id: id.clone(),
            source: source.clone(),
            author: author.clone(),
            filename,
            size,
            sealed,
            key,
            is_deleted_by_source: false,
            file: ItemFile::new(),
            seen_by: vec![author.clone()],
        };
        let row = self.replies.insert(&id, reply)?;
        self.source_mut(source)?.reply_rows.push(row);
        self.changed();
        Ok(())
    }

    /// Changes what a source itself says of itself: star, state, key, dates.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`].
    pub fn edit_source(&mut self, id: &RecordId, edit: impl FnOnce(&mut Source)) -> Result<(), WorldError> {
        edit(self.source_mut(id)?);
        self.changed();
        Ok(())
    }

    /// A source's key comes, changes or goes. What the source was sent before, it reads with the key of that time.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`].
    pub fn set_key(&mut self, id: &RecordId, key: Option<Arc<SourceKey>>) -> Result<(), WorldError> {
        self.edit_source(id, |source| {
            let past = std::mem::replace(&mut source.key, key);
            source.past_keys.extend(past);
        })
    }

    /// A journalist sees an item. Seeing it twice changes nothing.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoJournalist`] or [`WorldError::NoItem`].
    pub fn mark_seen(&mut self, item: &RecordId, by: &RecordId) -> Result<(), WorldError> {
        self.check_journalist(by)?;
        let mut found = false;
        let submission = self.submissions.get_mut(item.as_str());
        let reply = self.replies.get_mut(item.as_str());
        for seen_by in submission.map(|s| &mut s.seen_by).into_iter().chain(reply.map(|r| &mut r.seen_by)) {
            found = true;
            if !seen_by.contains(by) {
                seen_by.push(by.clone());
            }
        }
        if !found {
            return Err(WorldError::NoItem(item.clone()));
        }
        self.changed();
        Ok(())
    }

    /// Somebody downloads a submission the old way: it counts as read, though nobody's mark is on it.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoItem`].
    pub fn mark_downloaded(&mut self, item: &RecordId) -> Result<(), WorldError> {
        let submission = self.submissions.get_mut(item.as_str()).ok_or_else(|| WorldError::NoItem(item.clone()))?;
        submission.is_downloaded = true;
        self.changed();
        Ok(())
    }

    /// The source deletes its copy of a reply; the journalists' copy stays.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoReply`].
    pub fn delete_reply_by_source(&mut self, reply: &RecordId) -> Result<(), WorldError> {
        let row = self.replies.get_mut(reply.as_str()).ok_or_else(|| WorldError::NoReply(reply.clone()))?;
        row.is_deleted_by_source = true;
        self.changed();
        Ok(())
    }

    /// Deletes a submission or reply.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoItem`].
    pub fn delete_item(&mut self, item: &RecordId) -> Result<(), WorldError> {
        let submission = self.take_submission(item.as_str());
        let reply = self.take_reply(item.as_str());
        if submission.is_none() && reply.is_none() {
            return Err(WorldError::NoItem(item.clone()));
        }
        self.changed();
        Ok(())
    }

    /// Deletes all items of a source and keeps the source. Its numbering goes on where it was.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`].
    pub fn delete_conversation(&mut self, id: &RecordId) -> Result<(), WorldError> {
        let source = self.source_mut(id)?;
        let submissions = std::mem::take(&mut source.submission_rows);
        let replies = std::mem::take(&mut source.reply_rows);
        self.submissions.remove_rows(&submissions, |row| &row.id);
        self.replies.remove_rows(&replies, |row| &row.id);
        self.changed();
        Ok(())
    }

    /// Removes a source and all it had, as the purge does.
    ///
    /// # Errors
    ///
    /// [`WorldError::NoSource`].
    pub fn purge_source(&mut self, id: &RecordId) -> Result<(), WorldError> {
        self.delete_conversation(id)?;
        self.sources.remove(id.as_str());
        Ok(())
    }

    /// Removes all sources that are marked deleted and all they had, and tells how many.
    pub fn purge(&mut self) -> usize {
        let marked = self.sources().filter(|source| source.state == SourceState::MarkedDeleted);
        let marked: Vec<_> = marked.map(|source| source.id.clone()).collect();
        marked.iter().filter(|id| self.purge_source(id).is_ok()).count()
    }

    /// Deletes a journalist, whose replies and marks move to [`DELETED_JOURNALIST`].
    ///
    /// # Errors
    ///
    /// [`WorldError::NoJournalist`] when there is no such journalist, or nobody to move things to.
    pub fn delete_journalist(&mut self, username: &str) -> Result<(), WorldError> {
        let id_of = |name: &str| {
            self.journalist_named(name).map(|j| j.id.clone()).ok_or_else(|| WorldError::NoJournalist(name.to_owned()))
        };
        let heir = id_of(DELETED_JOURNALIST)?;
        let gone = id_of(username)?;
        if gone == heir {
            return Err(WorldError::NoJournalist(username.to_owned()));
        }
        for submission in self.submissions.iter_mut() {
            record::bequeath(&mut submission.seen_by, &gone, &heir);
        }
        for reply in self.replies.iter_mut() {
            record::bequeath(&mut reply.seen_by, &gone, &heir);
            if reply.author == gone {
                reply.author = heir.clone();
            }
        }
        self.journalists.retain(|j| j.id != gone);
        self.changed();
        Ok(())
    }

    /// Notes a sign-in, which no list shows.
    pub(crate) fn note_login(&mut self, id: &RecordId, at: Timestamp) {
        if let Some(journalist) = self.journalists.iter_mut().find(|j| j.id == *id) {
            journalist.last_login = Some(at);
        }
    }

    fn source_mut(&mut self, id: &RecordId) -> Result<&mut Source, WorldError> {
        self.sources.get_mut(id.as_str()).ok_or_else(|| WorldError::NoSource(id.clone()))
    }

    fn check_journalist(&self, id: &RecordId) -> Result<(), WorldError> {
        match self.journalist(id) {
            Some(_) => Ok(()),
            None => Err(WorldError::NoJournalist(id.to_string())),
        }
    }

    /// Takes a submission out of its table and its source's list.
    fn take_submission(&mut self, id: &str) -> Option<Submission> {
        let (row, submission) = self.submissions.remove(id)?;
        if let Some(source) = self.sources.get_mut(submission.source.as_str()) {
            source.submission_rows.retain(|other| *other != row);
        }
        Some(submission)
    }

    /// Takes a reply out of its table and its source's list.
    fn take_reply(&mut self, id: &str) -> Option<Reply> {
        let (row, reply) = self.replies.remove(id)?;
        if let Some(source) = self.sources.get_mut(reply.source.as_str()) {
            source.reply_rows.retain(|other| *other != row);
        }
        Some(reply)
    }

    fn changed(&mut self) {
        self.revision = self.revision.wrapping_add(1);
    }
}

fn check_size(size: u64, smallest: u64) -> Result<(), WorldError> {
    match (smallest..=LARGEST_ITEM).contains(&size) {
        true => Ok(()),
        false => Err(WorldError::Size { size, smallest }),
    }
}

#[cfg(test)]
mod tests;
