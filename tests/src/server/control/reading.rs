//! What is in items, as the server made them or as those read them to whom they are addressed.

use std::sync::Arc;

use sequoia_openpgp::Cert;
use sequoia_openpgp::parse::Parse;

use super::super::ciphertext::{CiphertextError, Letter};
use super::super::reading::{Parties, Reading, ReadingError, Recipient, read, recipients};
use super::super::world::{RecordId, SourceKey};
use super::Control;
use crate::generator::{Form, Plaintext};

impl Control {
    /// What is in a submission or reply: the text, or the file with its name, as it is before encryption: what a client must
    /// show. Where both have this id it is the submission's; see [`Self::reply_plaintext`].
    ///
    /// # Errors
    ///
    /// [`CiphertextError::NoItem`]; [`CiphertextError::NothingToShow`] of what the newsroom cannot read, or what is more than a
    /// client should unpack; the others mean that the server could not serve it either.
    pub fn plaintext(&self, item: &RecordId) -> Result<Plaintext, CiphertextError> {
        self.plaintext_of(&self.letter(item)?)
    }

    /// What is in a reply.
    ///
    /// # Errors
    ///
    /// As [`Self::plaintext`].
    pub fn reply_plaintext(&self, reply: &RecordId) -> Result<Plaintext, CiphertextError> {
        let letter = self.reply_letter(reply).ok_or_else(|| CiphertextError::NoItem(reply.clone()))?;
        self.plaintext_of(&letter)
    }

    /// What was made here is known, and what was posted must be read.
    fn plaintext_of(&self, letter: &Letter) -> Result<Plaintext, CiphertextError> {
        let Some(posted) = letter.posted() else {
            return self.desk.ciphertexts.plaintext(letter);
        };
        let message = posted.whole().map_err(CiphertextError::Store)?;
        let text = read(&letter.id, &message, &[self.newsroom()?]);
        let text = text.map_err(|_| CiphertextError::NothingToShow(letter.id.clone()))?;
        Ok(Plaintext::given(Form::Text, None, text.as_bytes(), text.as_bytes()))
    }

    /// Reads a reply as its source does: with the secret half of a key that the source has or had. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`ReadingError`].
    pub async fn source_reads(&self, reply: &RecordId) -> Result<Reading, ReadingError> {
        let letter = self.reply_letter(reply).ok_or_else(|| CiphertextError::NoItem(reply.clone()))?;
        let parties = self.parties(reply)?;
        self.reading(&letter, &parties, &parties.source).await
    }

    /// Reads a submission or reply as the newsroom does: of a file what is unpacked is no text. Where both have this id it
    /// is the submission. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`ReadingError`].
    pub async fn newsroom_reads(&self, item: &RecordId) -> Result<Reading, ReadingError> {
        let parties = self.parties(item)?;
        self.reading(&self.letter(item)?, &parties, std::slice::from_ref(&parties.newsroom)).await
    }

    /// Whom a submission or reply is encrypted to, in the order of the message. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`ReadingError`].
    pub async fn recipients(&self, item: &RecordId) -> Result<Vec<Recipient>, ReadingError> {
        let message = self.message(&self.letter(item)?).await?;
        recipients(&message, &self.parties(item)?).map_err(|source| ReadingError::Decrypt { id: item.clone(), source })
    }

    async fn reading(&self, letter: &Letter, parties: &Parties, keys: &[Cert]) -> Result<Reading, ReadingError> {
        let message = self.message(letter).await?;
        let text = read(&letter.id, &message, keys)?;
        let recipients =
            recipients(&message, parties).map_err(|source| ReadingError::Decrypt { id: letter.id.clone(), source })?;
        Ok(Reading { text, recipients })
    }

    async fn message(&self, letter: &Letter) -> Result<Vec<u8>, CiphertextError> {
        self.desk.ciphertexts.get(letter).await?.whole().map_err(CiphertextError::Store)
    }

    /// The keys of those who may have to do with an item. A key of a source that is none is passed over.
    fn parties(&self, item: &RecordId) -> Result<Parties, ReadingError> {
        let keys: Vec<Arc<SourceKey>> = {
            let world = self.desk.world();
            let submission = world.submission(item.as_str()).map(|row| (&row.source, None));
            let reply = world.reply(item.as_str()).map(|row| (&row.source, row.key.clone()));
            let found = submission.or(reply).ok_or_else(|| CiphertextError::NoItem(item.clone()))?;
            let source = world.source(found.0.as_str()).ok_or_else(|| CiphertextError::NoItem(item.clone()))?;
            source.key.iter().chain(&source.past_keys).cloned().chain(found.1).collect()
        };
        let cert = |key: &Arc<SourceKey>| Cert::from_bytes(key.secret_armor.as_deref().unwrap_or(&key.armor)).ok();
        Ok(Parties { source: keys.iter().filter_map(cert).collect(), newsroom: self.newsroom()? })
    }

    fn newsroom(&self) -> Result<Cert, CiphertextError> {
        let newsroom = self.desk.ciphertexts.newsroom();
        Cert::from_bytes(newsroom.secret_armor())
            .map_err(|source| CiphertextError::Key { fingerprint: newsroom.fingerprint().to_owned(), source })
    }

    pub(super) fn letter(&self, item: &RecordId) -> Result<Letter, CiphertextError> {
        let world = self.desk.world();
        let submission = world.submission(item.as_str()).map(Letter::of_submission);
        let letter = submission.or_else(|| world.reply(item.as_str()).map(Letter::of_reply));
        letter.ok_or_else(|| CiphertextError::NoItem(item.clone()))
    }

    fn reply_letter(&self, id: &RecordId) -> Option<Letter> {
        self.desk.world().reply(id.as_str()).map(Letter::of_reply)
    }
}
