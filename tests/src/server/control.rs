//! The other side of a staging server: what sources, colleagues and bad luck do, and what the server saw.
//!
//! Commands are the same in a test, by [`Control::apply`], and from a shell, over HTTP on a listener of its own.
//!
//! **Invariant:** the API's origin never takes a command.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use thiserror::Error;

use super::ciphertext::CiphertextError;
use super::desk::Desk;
use super::faults::{Fault, FaultError, FaultStatus};
use super::log::{LoggedRequest, RequestLog};
use super::world::{RecordId, SourceState, SubmissionKind, World, WorldError};
use crate::clock::Clock;

mod command;
pub(crate) mod http;
mod keys;
mod reading;

pub use command::{Command, KeyChoice, Outcome};

/// Why a command was refused. A refused command changes nothing.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ControlError {
    /// The world does not allow it.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The server cannot go wrong like that.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// No rule has this id.
    #[error("there is no rule {0}")]
    NoFault(u64),
    /// The pool of keys ends before this place.
    #[error("there is no key {0} in the pool")]
    NoKey(usize),
    /// A text is no key.
    #[error("this is no key: {0}")]
    KeyText(String),
    /// What a source is to send cannot be encrypted.
    #[error("this cannot be sent: {0}")]
    Seal(String),
    /// A designation is two words.
    #[error("{0:?} is not two words")]
    Designation(String),
}

impl ControlError {
    fn seal(error: CiphertextError) -> Self {
        Self::Seal(error.to_string())
    }
}

/// A handle to a running server's other side. Clones are the same server's, and outlive it.
#[derive(Debug, Clone)]
pub struct Control {
    desk: Arc<Desk>,
}

impl Control {
    pub(crate) fn new(desk: Arc<Desk>) -> Self {
        Self { desk }
    }

    /// Makes something happen, at once.
    ///
    /// # Errors
    ///
    /// [`ControlError`]; nothing has changed then.
    pub fn apply(&self, command: Command) -> Result<Outcome, ControlError> {
        let now = self.desk.clock.now();
        match command {
            Command::NewSource { designation, key, state } => self.new_source(designation, key, state, now),
            Command::NewMessage { source, size } => self.new_submission(&source, SubmissionKind::Message, size, now),
            Command::NewFile { source, size } => self.new_submission(&source, SubmissionKind::File, size, now),
            Command::NewSubmission { source, kind, body, seal } => {
                let sealed = self.desk.ciphertexts.seal(kind, &body, seal).map_err(ControlError::seal)?;
                self.add_submission(|world, uuid| world.add_sealed_submission(uuid, &source, kind, sealed, now))
            }
            Command::NewReply { source, journalist, size } => self.new_reply(&source, &journalist, size),
            Command::Star { source } => {
                self.change(|world| world.edit_source(&source, |source| source.is_starred = true))
            }
            Command::Unstar { source } => {
                self.change(|world| world.edit_source(&source, |source| source.is_starred = false))
            }
            Command::MarkSeen { item, journalist } => self.change(|world| {
                let by = named(world, &journalist)?;
                world.mark_seen(&item, &by)
            }),
            Command::MarkDownloaded { item } => self.change(|world| world.mark_downloaded(&item)),
            Command::SetState { source, state } => {
                self.change(|world| world.edit_source(&source, |source| source.state = state))
            }
            Command::SetKey { source, key } => {
                let key = self.key(key)?;
                self.change(|world| world.set_key(&source, key))
            }
            Command::SetSourceKey { source, key, fingerprint } => self.set_source_key(&source, key, fingerprint),
            Command::ForgetLastUpdated { source } => {
                self.change(|world| world.edit_source(&source, |source| source.last_updated = None))
            }
            Command::DeleteSource { source } => self.change(|world| world.purge_source(&source)),
            Command::DeleteConversation { source } => self.change(|world| world.delete_conversation(&source)),
            Command::DeleteItem { item } => self.change(|world| world.delete_item(&item)),
            Command::Purge => Ok(Outcome::Purged { sources: self.desk.world().purge() }),
            Command::LoseFile { item } => self.change(|world| world.lose_file(&item)),
            Command::ShortenFile { item, bytes } => self.change(|world| world.shorten_file(&item, bytes, now)),
            Command::ReplaceFile { item } => self.change(|world| world.replace_file(&item, now)),
            Command::FreezeLists => {
                self.desk.freeze_lists();
                Ok(Outcome::Done)
            }
            Command::ThawLists => {
                self.desk.thaw_lists();
                Ok(Outcome::Done)
            }
            Command::DeleteReplyBySource { reply } => self.change(|world| world.delete_reply_by_source(&reply)),
            Command::DeleteJournalist { journalist } => {
                let mut world = self.desk.world();
                let id = named(&world, &journalist)?;
                world.delete_journalist(&journalist)?;
                self.desk.logins().revoke(Some(&id));
                Ok(Outcome::Done)
            }
            Command::EndSessions { journalist } => self.end_sessions(journalist.as_deref()),
            Command::AddFault { fault } => Ok(Outcome::Fault { id: self.desk.faults().add(fault)? }),
            Command::RemoveFault { id } => match self.desk.faults().remove(id) {
                true => Ok(Outcome::Done),
                false => Err(ControlError::NoFault(id)),
            },
            Command::ClearFaults => {
                self.desk.faults().clear();
                Ok(Outcome::Done)
            }
            Command::ReleaseAnswers { id } => match self.desk.faults().release(id) {
                true => Ok(Outcome::Done),
                false => Err(ControlError::NoFault(id)),
            },
            Command::AdvanceClock { seconds } => {
                self.desk.clock.advance(Duration::from_secs(seconds));
                Ok(Outcome::Time { now: self.desk.clock.now().to_string() })
            }
            Command::ClearLog => {
                self.desk.logbook.clear();
                Ok(Outcome::Done)
            }
        }
    }

    /// Adds a rule of what goes wrong and tells its id; short for [`Command::AddFault`].
    ///
    /// # Errors
    ///
    /// [`ControlError::Fault`].
    pub fn add_fault(&self, fault: Fault) -> Result<u64, ControlError> {
        Ok(self.desk.faults().add(fault)?)
    }

    /// The rules, used up or not, and how often each acted.
    pub fn faults(&self) -> Vec<FaultStatus> {
        self.desk.faults().statuses()
    }

    /// Looks at the world as it is now. The server waits meanwhile.
    pub fn with_world<R>(&self, look: impl FnOnce(&World) -> R) -> R {
        look(&self.desk.world())
    }

    /// The `Etag` of a submission's or reply's download, as [`Self::plaintext`] picks it: `sha256:` and 64 lower-case hex
    /// digits of the whole ciphertext. It is made for this if it has to be. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`Self::plaintext`].
    pub async fn etag(&self, item: &RecordId) -> Result<String, CiphertextError> {
        Ok(self.desk.ciphertexts.get(&self.letter(item)?).await?.etag.clone())
    }

    /// Looks at the log as it is now. The server waits meanwhile.
    pub fn with_log<R>(&self, look: impl FnOnce(&RequestLog) -> R) -> R {
        self.desk.logbook.read(look)
    }

    /// The requests so far, oldest first.
    pub fn requests(&self) -> Vec<LoggedRequest> {
        self.with_log(|log| log.requests().cloned().collect())
    }

    /// How many requests with this method and exact path began.
    pub fn count(&self, method: &str, path: &str) -> u64 {
        self.with_log(|log| log.count(method, path))
    }

    /// Waits until `wanted` is true of the log, however long that takes. Cancel-safe.
    pub async fn wait_for_log(&self, wanted: impl FnMut(&RequestLog) -> bool) {
        self.desk.logbook.wait_until(wanted).await;
    }

    /// The tokens of the sessions that are open, for who looks where they have come to.
    pub fn tokens(&self) -> Vec<String> {
        self.desk.logins().tokens()
    }

    /// The server's clock.
    pub fn clock(&self) -> &Clock {
        &self.desk.clock
    }

    fn new_source(
        &self,
        designation: Option<String>,
        key: KeyChoice,
        state: SourceState,
        now: Timestamp,
    ) -> Result<Outcome, ControlError> {
        let key = self.key(key)?;
        if let Some(designation) = &designation
            && !is_two_words(designation)
        {
            return Err(ControlError::Designation(designation.clone()));
        }
        let mut world = self.desk.world();
        let mut maker = self.desk.maker();
        let designation = designation.unwrap_or_else(|| {
            let taken: HashSet<_> = world.sources().map(|s| s.designation.as_str()).collect();
            let all = maker.designations.count();
            let mut pair = maker.designations.next_pair();
            for _ in 1..all {
                if !taken.contains(pair.as_str()) {
                    break;
                }
                pair = maker.designations.next_pair();
            }
            pair
        });
        let uuid = maker.prng.uuid();
        world.add_source(uuid.clone(), designation.clone(), key, now)?;
        world.edit_source(&uuid, |source| source.state = state)?;
        Ok(Outcome::Source { uuid, designation })
    }

    fn new_submission(
        &self,
        source: &RecordId,
        kind: SubmissionKind,
        size: u64,
        now: Timestamp,
    ) -> Result<Outcome, ControlError> {
        self.add_submission(|world, uuid| world.add_submission(uuid, source, kind, size, now))
    }

    fn add_submission(
        &self,
        add: impl FnOnce(&mut World, RecordId) -> Result<(), WorldError>,
    ) -> Result<Outcome, ControlError> {
        let mut world = self.desk.world();
        let uuid = self.desk.maker().prng.uuid();
        add(&mut world, uuid.clone())?;
        let filename = world.submission(uuid.as_str()).map(|s| s.filename.clone());
        let filename = filename.ok_or_else(|| WorldError::NoItem(uuid.clone()))?;
        Ok(Outcome::Item { uuid, filename })
    }

    fn new_reply(&self, source: &RecordId, journalist: &str, size: u64) -> Result<Outcome, ControlError> {
        let mut world = self.desk.world();
        let author = named(&world, journalist)?;
        let uuid = self.desk.maker().prng.uuid();
        world.add_reply(uuid.clone(), source, &author, size)?;
        let filename = world.reply(uuid.as_str()).map(|r| r.filename.clone());
        let filename = filename.ok_or_else(|| WorldError::NoReply(uuid.clone()))?;
        Ok(Outcome::Item { uuid, filename })
    }

    fn end_sessions(&self, journalist: Option<&str>) -> Result<Outcome, ControlError> {
        let id = match journalist {
            Some(username) => Some(named(&self.desk.world(), username)?),
            None => None,
        };
        let ended = self.desk.logins().revoke(id.as_ref());
        Ok(Outcome::Sessions { ended })
    }

    fn change(&self, change: impl FnOnce(&mut World) -> Result<(), WorldError>) -> Result<Outcome, ControlError> {
        change(&mut self.desk.world())?;
        Ok(Outcome::Done)
    }
}

fn named(world: &World, username: &str) -> Result<RecordId, WorldError> {
    world
        .journalist_named(username)
        .map(|journalist| journalist.id.clone())
        .ok_or_else(|| WorldError::NoJournalist(username.to_owned()))
}

fn is_two_words(designation: &str) -> bool {
    let mut words = designation.split(' ');
    let word = |word: Option<&str>| word.is_some_and(|word| !word.is_empty());
    word(words.next()) && word(words.next()) && words.next().is_none()
}
