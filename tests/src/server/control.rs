//! The other side of a staging server: what sources, colleagues and bad luck do, and what the server saw.
//!
//! Commands are the same in a test, by [`Control::apply`], and from a shell, over HTTP on a listener of its own.
//!
//! **Invariant:** the API's origin never takes a command.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ciphertext::{CiphertextError, Letter};
use super::desk::Desk;
use super::faults::{Fault, FaultError, FaultStatus};
use super::log::{LoggedRequest, RequestLog};
use super::world::{RecordId, SourceState, SubmissionKind, World, WorldError};
use crate::clock::Clock;
use crate::generator::{Plaintext, pool};

pub(crate) mod http;

/// Bytes of ciphertext of a new item when nobody says how many.
const USUAL_SIZE: u64 = 1_536;

/// Something that happens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do", deny_unknown_fields)]
pub enum Command {
    /// Somebody becomes a source. Answered with [`Outcome::Source`].
    NewSource {
        /// Two words; made up when not given.
        #[serde(default)]
        designation: Option<String>,
        /// Which key.
        #[serde(default)]
        key: KeyChoice,
        /// Whether the source is listed.
        #[serde(default = "listed")]
        state: SourceState,
    },
    /// A source sends text. Answered with [`Outcome::Item`].
    NewMessage {
        /// Which source.
        source: RecordId,
        /// Bytes of ciphertext, at least [`SMALLEST_MESSAGE`](super::SMALLEST_MESSAGE).
        #[serde(default = "usual_size")]
        size: u64,
    },
    /// A source sends a file. Answered with [`Outcome::Item`].
    NewFile {
        /// Which source.
        source: RecordId,
        /// Bytes of ciphertext, at least [`SMALLEST_FILE`](super::SMALLEST_FILE).
        #[serde(default = "usual_size")]
        size: u64,
    },
    /// A journalist replies, elsewhere. Answered with [`Outcome::Item`].
    NewReply {
        /// To which source.
        source: RecordId,
        /// The journalist's name to sign in with.
        journalist: String,
        /// Bytes of ciphertext, at least [`SMALLEST_REPLY`](super::SMALLEST_REPLY).
        #[serde(default = "usual_size")]
        size: u64,
    },
    /// A colleague stars a source.
    Star {
        /// Which source.
        source: RecordId,
    },
    /// A colleague takes a star away.
    Unstar {
        /// Which source.
        source: RecordId,
    },
    /// A journalist sees an item, elsewhere.
    MarkSeen {
        /// Which submission or reply.
        item: RecordId,
        /// The journalist's name to sign in with.
        journalist: String,
    },
    /// Somebody downloads a submission in the web interface of old: read, and nobody's mark on it.
    MarkDownloaded {
        /// Which submission.
        item: RecordId,
    },
    /// A source becomes listed, or stops being listed while its items are.
    SetState {
        /// Which source.
        source: RecordId,
        /// Whether it is listed.
        state: SourceState,
    },
    /// A source's key comes, changes or goes.
    SetKey {
        /// Which source.
        source: RecordId,
        /// Which key.
        key: KeyChoice,
    },
    /// The database forgets when a source was last heard of; the API then says "now", whenever it is asked.
    ForgetLastUpdated {
        /// Which source.
        source: RecordId,
    },
    /// A colleague deletes a source and the purge comes by: nothing of it is left. To mark it deleted, set its state.
    DeleteSource {
        /// Which source.
        source: RecordId,
    },
    /// A colleague deletes all items of a source.
    DeleteConversation {
        /// Which source.
        source: RecordId,
    },
    /// A colleague deletes a submission or reply.
    DeleteItem {
        /// Which one.
        item: RecordId,
    },
    /// The purge comes by: nothing is left of the sources that are marked deleted. Answered with [`Outcome::Purged`].
    Purge,
    /// The file of a submission or reply vanishes from the server's disk. Its deletion is an error once, though it is gone.
    LoseFile {
        /// Which one.
        item: RecordId,
    },
    /// The file of a submission or reply is cut on the server's disk. Lists and the `Etag` go on telling of the whole.
    ShortenFile {
        /// Which one.
        item: RecordId,
        /// Bytes that are left, fewer than there are.
        bytes: u64,
    },
    /// The file of a submission or reply is replaced by a whole one of the same size with something else in it, and the
    /// `Etag` with it. An answer that is on its way stays as it is.
    ReplaceFile {
        /// Which one.
        item: RecordId,
    },
    /// From now on all lists, those of one source included, say how things are now, whatever happens: acts and commands go
    /// on taking effect, and single records tell. Once more, and they say how things are then.
    FreezeLists,
    /// Lists say how things are again.
    ThawLists,
    /// A source deletes its copy of a reply.
    DeleteReplyBySource {
        /// Which reply.
        reply: RecordId,
    },
    /// An administrator deletes a journalist, whose sessions end.
    DeleteJournalist {
        /// The journalist's name to sign in with.
        journalist: String,
    },
    /// Sessions end at once, as if they had expired. Answered with [`Outcome::Sessions`].
    EndSessions {
        /// One journalist's, by the name to sign in with; everybody's when not given.
        #[serde(default)]
        journalist: Option<String>,
    },
    /// From now on something goes wrong. Answered with [`Outcome::Fault`].
    AddFault {
        /// The rule.
        fault: Fault,
    },
    /// A rule goes, and the answers that it holds go out.
    RemoveFault {
        /// Which one.
        id: u64,
    },
    /// All rules go, and the answers that they hold go out.
    ClearFaults,
    /// The answers that a rule holds go out; the rule stays.
    ReleaseAnswers {
        /// Which one.
        id: u64,
    },
    /// Time passes, for one-time codes, sessions and new items. Answered with [`Outcome::Time`].
    AdvanceClock {
        /// How much.
        seconds: u64,
    },
    /// The log forgets what has ended.
    ClearLog,
}

fn listed() -> SourceState {
    SourceState::Listed
}

fn usual_size() -> u64 {
    USUAL_SIZE
}

/// Which key a source has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyChoice {
    /// None.
    None,
    /// Any of the pool.
    #[default]
    Any,
    /// The one at this place of the pool, from 0.
    Pool(usize),
}

/// What a command led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is done, and there is nothing more to say.
    Done,
    /// There is a source.
    Source {
        /// Its id.
        uuid: RecordId,
        /// Its two words.
        designation: String,
    },
    /// There is an item.
    Item {
        /// Its id.
        uuid: RecordId,
        /// Its file name.
        filename: String,
    },
    /// There is a rule.
    Fault {
        /// By which it is removed.
        id: u64,
    },
    /// The purge came by.
    Purged {
        /// How many sources it found.
        sources: usize,
    },
    /// Sessions ended.
    Sessions {
        /// How many.
        ended: usize,
    },
    /// It is a certain time.
    Time {
        /// Which, as RFC 3339 writes it.
        now: String,
    },
}

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
    /// A designation is two words.
    #[error("{0:?} is not two words")]
    Designation(String),
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
                self.change(|world| world.edit_source(&source, |source| source.key = key))
            }
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

    /// What is in a submission or reply: the text, or the file with its name, as it is before encryption. Where both have
    /// this id it is the submission's; see [`Self::reply_plaintext`].
    ///
    /// # Errors
    ///
    /// [`CiphertextError::NoItem`]; the others mean that the server could not serve it either.
    pub fn plaintext(&self, item: &RecordId) -> Result<Plaintext, CiphertextError> {
        let letter = self.submission_letter(item).or_else(|| self.reply_letter(item));
        self.desk.ciphertexts.plaintext(&letter.ok_or_else(|| CiphertextError::NoItem(item.clone()))?)
    }

    /// What is in a reply.
    ///
    /// # Errors
    ///
    /// As [`Self::plaintext`].
    pub fn reply_plaintext(&self, reply: &RecordId) -> Result<Plaintext, CiphertextError> {
        let letter = self.reply_letter(reply).ok_or_else(|| CiphertextError::NoItem(reply.clone()))?;
        self.desk.ciphertexts.plaintext(&letter)
    }

    /// The `Etag` of a submission's or reply's download, as [`Self::plaintext`] picks it: `sha256:` and 64 lower-case hex
    /// digits of the whole ciphertext. It is made for this if it has to be. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`Self::plaintext`].
    pub async fn etag(&self, item: &RecordId) -> Result<String, CiphertextError> {
        let letter = self.submission_letter(item).or_else(|| self.reply_letter(item));
        let letter = letter.ok_or_else(|| CiphertextError::NoItem(item.clone()))?;
        Ok(self.desk.ciphertexts.get(&letter).await?.etag.clone())
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

    /// The server's clock.
    pub fn clock(&self) -> &Clock {
        &self.desk.clock
    }

    fn submission_letter(&self, id: &RecordId) -> Option<Letter> {
        self.desk.world().submission(id.as_str()).map(Letter::of_submission)
    }

    fn reply_letter(&self, id: &RecordId) -> Option<Letter> {
        self.desk.world().reply(id.as_str()).map(Letter::of_reply)
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
        let mut world = self.desk.world();
        let uuid = self.desk.maker().prng.uuid();
        world.add_submission(uuid.clone(), source, kind, size, now)?;
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

    fn key(&self, choice: KeyChoice) -> Result<Option<Arc<super::world::SourceKey>>, ControlError> {
        let keys = pool();
        match choice {
            KeyChoice::None => Ok(None),
            KeyChoice::Any => Ok(self.desk.maker().prng.pick(&keys).cloned()),
            KeyChoice::Pool(at) => match keys.get(at) {
                Some(key) => Ok(Some(Arc::clone(key))),
                None => Err(ControlError::NoKey(at)),
            },
        }
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
