//! The ciphertexts of items: made when somebody first asks for one, kept for a while, and made again just the same.
//!
//! A ciphertext is a function of its [`Letter`] and of the server's [`Envelopes`], which are made once. It is a real
//! OpenPGP message of exactly the size that the lists tell, whose plaintext tests can have.
//!
//! **Invariant:** while a server runs, all that is served of an item comes from one and the same ciphertext, until a
//! command replaces the item's file.
//!
//! **Invariant:** memory holds at most [`MOST_IN_MEMORY`] bytes of ciphertexts that are made here, whatever is asked for,
//! and of those that came as they are at most [`LARGEST_IN_MEMORY`] each. Larger ones are in files without a name, of which
//! nothing stays when the server goes.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;
use tokio::sync::OnceCell;

mod envelope;
mod handmade;
mod message;
mod sealed;
mod stored;

use super::world::{RecordId, Reply, SourceKey, Submission, SubmissionKind};
use crate::generator::{Form, NewsroomKey, Plaintext, PlaintextError};
pub(crate) use envelope::{Envelopes, at};
pub use handmade::{Body, GzipFlaw, MOST_LAYERS, MOST_ZEROS, Protection, Reader, Seal};
pub use message::{LARGEST_ITEM, SMALLEST_FILE, SMALLEST_MESSAGE, SMALLEST_REPLY, SMALLEST_ZIPPED_FILE};
pub(crate) use sealed::Sealed;
pub(crate) use stored::{Ciphertext, Part, Served};

/// Ciphertexts above this size go to files.
const LARGEST_IN_MEMORY: u64 = 1024 * 1024;
/// Bytes of ciphertexts that are kept in memory.
const MOST_IN_MEMORY: u64 = 32 * 1024 * 1024;
/// Bytes of ciphertexts that are kept in files. The newest is kept in any case.
const MOST_IN_FILES: u64 = 2 * 1024 * 1024 * 1024;

/// Why there is no ciphertext, or no plaintext of it.
#[derive(Debug, Error)]
pub enum CiphertextError {
    /// No submission and no reply has this id.
    #[error("there is no item {0}")]
    NoItem(RecordId),
    /// The newsroom's key cannot be encrypted to.
    #[error("cannot encrypt to {fingerprint}")]
    Key {
        /// The key's fingerprint.
        fingerprint: String,
        /// What was wrong.
        source: anyhow::Error,
    },
    /// The message cannot be encrypted.
    #[error("cannot encrypt")]
    Encrypt(#[source] anyhow::Error),
    /// More zeros or layers than anybody sends.
    #[error("more zeros or layers of encryption than can be sent")]
    TooMuch,
    /// A client has nothing to show of it.
    #[error("there is nothing to show of {0}")]
    NothingToShow(RecordId),
    /// There is nothing to encrypt.
    #[error(transparent)]
    Plaintext(#[from] PlaintextError),
    /// The ciphertext cannot be stored.
    #[error("cannot store a ciphertext")]
    Store(#[source] io::Error),
}

/// What kind of item a ciphertext is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LetterKind {
    Submission(SubmissionKind),
    Reply,
}

impl LetterKind {
    fn form(self) -> Form {
        match self {
            Self::Submission(SubmissionKind::Message) | Self::Reply => Form::Text,
            Self::Submission(SubmissionKind::File) => Form::Gzip,
            Self::Submission(SubmissionKind::ZippedFile) => Form::Zip,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Submission(SubmissionKind::Message) => "message",
            Self::Submission(SubmissionKind::File) => "file",
            Self::Submission(SubmissionKind::ZippedFile) => "zipped file",
            Self::Reply => "reply",
        }
    }
}

/// All that decides what a ciphertext is.
#[derive(Debug, Clone)]
pub(crate) struct Letter {
    pub(crate) id: RecordId,
    pub(crate) kind: LetterKind,
    /// Bytes of ciphertext.
    pub(crate) size: u64,
    /// How often the file was replaced.
    pub(crate) edition: u64,
    /// Who can read it besides the newsroom.
    pub(crate) reader: Option<Arc<SourceKey>>,
    /// The ciphertext, where it came as it is: then nothing is made.
    pub(crate) sealed: Option<Arc<Sealed>>,
}

impl Letter {
    pub(crate) fn of_submission(submission: &Submission) -> Self {
        Self {
            id: submission.id.clone(),
            kind: LetterKind::Submission(submission.kind),
            size: submission.size,
            edition: submission.file.edition,
            reader: None,
            sealed: submission.sealed.clone(),
        }
    }

    pub(crate) fn of_reply(reply: &Reply) -> Self {
        Self {
            id: reply.id.clone(),
            kind: LetterKind::Reply,
            size: reply.size,
            edition: reply.file.edition,
            reader: reply.key.clone(),
            sealed: reply.sealed.clone(),
        }
    }

    /// The ciphertext of a reply that came through the API.
    pub(crate) fn posted(&self) -> Option<&Ciphertext> {
        match self.kind {
            LetterKind::Reply => self.sealed.as_ref().map(|sealed| sealed.ciphertext.as_ref()),
            LetterKind::Submission(_) => None,
        }
    }

    fn key(&self) -> LetterKey {
        LetterKey {
            id: self.id.clone(),
            kind: self.kind,
            size: self.size,
            edition: self.edition,
            reader: self.reader.as_ref().map(|key| key.fingerprint.clone()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LetterKey {
    id: RecordId,
    kind: LetterKind,
    size: u64,
    edition: u64,
    reader: Option<String>,
}

type Slot = Arc<OnceCell<Arc<Ciphertext>>>;

/// What was made, by letter; the oldest goes first.
#[derive(Debug, Default)]
struct Kept {
    slots: HashMap<LetterKey, Slot>,
    in_memory: Shelf,
    in_files: Shelf,
}

/// Letters in the order in which they were made, and the bytes of them all.
#[derive(Debug, Default)]
struct Shelf {
    order: VecDeque<LetterKey>,
    bytes: u64,
}

impl Kept {
    fn slot(&mut self, key: LetterKey) -> Slot {
        if let Some(slot) = self.slots.get(&key) {
            return Arc::clone(slot);
        }
        let slot = Slot::default();
        let (shelf, most) = match key.size > LARGEST_IN_MEMORY {
            true => (&mut self.in_files, MOST_IN_FILES),
            false => (&mut self.in_memory, MOST_IN_MEMORY),
        };
        shelf.bytes = shelf.bytes.saturating_add(key.size);
        while shelf.bytes > most
            && let Some(oldest) = shelf.order.pop_front()
        {
            shelf.bytes = shelf.bytes.saturating_sub(oldest.size);
            self.slots.remove(&oldest);
        }
        shelf.order.push_back(key.clone());
        self.slots.insert(key, Arc::clone(&slot));
        slot
    }
}

/// All ciphertexts of a server.
#[derive(Debug)]
pub(crate) struct Ciphertexts {
    envelopes: Envelopes,
    kept: Mutex<Kept>,
}

impl Ciphertexts {
    pub(crate) fn new(newsroom: NewsroomKey) -> Self {
        Self { envelopes: Envelopes::new(newsroom), kept: Mutex::default() }
    }

    /// The ciphertext of a letter. Whoever asks for one that is being made waits for it. Cancel-safe: when the one who
    /// makes it goes, the next begins anew.
    pub(crate) async fn get(&self, letter: &Letter) -> Result<Arc<Ciphertext>, CiphertextError> {
        if let Some(sealed) = &letter.sealed {
            return Ok(Arc::clone(&sealed.ciphertext));
        }
        let slot = self.kept.lock().unwrap_or_else(PoisonError::into_inner).slot(letter.key());
        let made = slot.get_or_try_init(async || message::make(letter, &self.envelopes).await.map(Arc::new)).await?;
        Ok(Arc::clone(made))
    }

    /// Encrypts what a source sends in the form that a test wants.
    pub(crate) fn seal(&self, kind: SubmissionKind, body: &Body, seal: Seal) -> Result<Sealed, CiphertextError> {
        handmade::seal(&self.envelopes, kind, body, seal)
    }

    /// The newsroom's key.
    pub(crate) fn newsroom(&self) -> NewsroomKey {
        self.envelopes.newsroom()
    }

    /// What is in a letter.
    pub(crate) fn plaintext(&self, letter: &Letter) -> Result<Plaintext, CiphertextError> {
        if let Some(sealed) = &letter.sealed {
            return sealed.shown.clone().ok_or_else(|| CiphertextError::NothingToShow(letter.id.clone()));
        }
        let envelope = self.envelopes.address(letter.reader.as_deref())?;
        message::plaintext(letter, &message::Layout::new(letter.size, &envelope))
    }
}

#[cfg(test)]
mod tests;
