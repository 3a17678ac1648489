//! Answering sources: keys that came are looked at, and replies are encrypted.
//!
//! **Invariant:** a reply is encrypted to the source's pinned key and the newsroom's key and to no other, and only when both
//! can be used.

use std::sync::Arc;

use control::{Act, Event, FailureKind, KeyProblem, KeyState, ReplyText, Taken};
use protocol::value::{ArmoredKey, ArmoredMessage, Fingerprint, JournalistId, SourceId, Timestamp};
use tokio_util::sync::CancellationToken;

use super::handle::Answer;
use super::key_places::{KeyPlace, KeyPlaces, work_in};
use super::{Ended, Engine};
use crate::clock::Clock;
use crate::failure::{self, failure};
use crate::newsroom::{Newsroom, NewsroomError};
use crate::openpgp::encrypt::encrypt;
use crate::openpgp::recipient::{KeyError, Recipient, fingerprint_of};
use crate::store::keys::{self, CHANGED, Finding, Offered, TrustError};
use crate::store::outbox::{self, Row};
use crate::store::{Store, StoreError, drafts};

/// How many keys are looked at in one go.
const KEYS_AT_ONCE: usize = 64;

/// What encrypting a reply needs.
#[derive(Debug, Clone)]
pub(super) struct ReplyDesk {
    pub(super) store: Store,
    pub(super) newsroom: Arc<Newsroom>,
    /// What every use of the private key's backend takes one of.
    pub(super) permits: KeyPlaces,
    pub(super) clock: Clock,
}

/// A reply that somebody wants to send, and whether the newsroom's key is there.
#[derive(Debug)]
pub(super) struct CheckedReply {
    checked: Result<Fingerprint, NewsroomError>,
    journalist: JournalistId,
    act: Act,
    answer: Answer<Taken>,
}

/// A reply could not be encrypted.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    /// The store failed: nothing is known.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot be now: it is tried again later.
    #[error("{0}")]
    Later(String),
    /// It is held back until somebody does something.
    #[error("{0}")]
    HeldBack(String),
}

impl ReplyDesk {
    /// Encrypts the reply of a row; `None` when there is nothing to send now: the row is gone, or waits until the key that
    /// its source is offered with has been looked at.
    pub(super) async fn prepare(
        &self,
        row: Row,
        stop: CancellationToken,
    ) -> Result<Option<ArmoredMessage>, PrepareError> {
        let source = row.source;
        let read = move |transaction: &rusqlite::Transaction<'_>| {
            Ok((outbox::text(transaction, &row)?, keys::pinned(transaction, source)?))
        };
        let (text, pinned) = self.store.read(read).await?;
        let Some(text) = text else { return Ok(None) };
        let (fingerprint, armored) = match pinned {
            Ok(pinned) => pinned,
            Err(KeyState::New { .. }) => return Ok(None),
            Err(state) => return Err(PrepareError::HeldBack(why_not(state))),
        };
        let (newsroom, now) = (Arc::clone(&self.newsroom), self.clock.now());
        let place = place_for(&newsroom, &self.permits).await;
        let encrypting = work_in(place, move || {
            let newsroom = newsroom.key(now, &stop).map_err(|error| match error.is_passing() {
                true => PrepareError::Later(error.to_string()),
                false => PrepareError::HeldBack(error.to_string()),
            })?;
            to_both(&text, &fingerprint, &armored, &newsroom, now).map_err(PrepareError::HeldBack)
        });
        match encrypting.await {
            Ok(prepared) => prepared.map(Some),
            Err(_panicked) => Err(PrepareError::HeldBack("encrypting it met a fault: see the daemon's log".to_owned())),
        }
    }
}

/// What looking for the newsroom's key needs, where that asks another VM.
async fn place_for(newsroom: &Newsroom, permits: &KeyPlaces) -> Option<KeyPlace> {
    if newsroom.is_near() { None } else { Some(permits.take().await) }
}

fn to_both(
    text: &ReplyText,
    fingerprint: &Fingerprint,
    armored: &ArmoredKey,
    newsroom: &Recipient,
    now: Timestamp,
) -> Result<ArmoredMessage, String> {
    let source = Recipient::try_new(armored.as_str().as_bytes(), fingerprint, now)
        .map_err(|error| format!("the source's key cannot be used: {error}"))?;
    let message = encrypt(text.as_str(), &[&source, newsroom]).map_err(|error| failure::chain(&error))?;
    ArmoredMessage::try_new(message).map_err(|error| error.to_string())
}

fn why_not(state: KeyState) -> String {
    match state {
        KeyState::None => "the source has no key".to_owned(),
        KeyState::Held { detail, .. } => detail,
        KeyState::New { .. } | KeyState::Pinned { .. } => String::new(),
    }
}

/// Says of an offered key what it is.
fn look_at(offered: &Offered, now: Timestamp) -> Finding {
    let bytes = offered.armored.as_str().as_bytes();
    let own = fingerprint_of(bytes).ok();
    match Recipient::try_new(bytes, &offered.claimed, now) {
        Ok(_) => Finding::Good,
        Err(KeyError::OtherKey { .. }) => Finding::Bad {
            problem: KeyProblem::Mismatch,
            fingerprint: own,
            detail: format!("the server sends a key of another fingerprint than it says; {COMPARE}"),
        },
        // Another key is told as that, whether it could be used or not.
        Err(_) if offered.pinned.as_ref().is_some_and(|pinned| own.as_ref().is_some_and(|own| own != pinned)) => {
            Finding::Bad { problem: KeyProblem::Changed, fingerprint: own, detail: CHANGED.to_owned() }
        }
        Err(error) => Finding::Bad {
            problem: KeyProblem::Unusable,
            fingerprint: own,
            detail: format!("the source's key cannot be used: {error}"),
        },
    }
}

const COMPARE: &str =
    "compare fingerprints with the source, and then run `splitdrop trust-key SOURCE --fingerprint FPR`";
impl Engine {
    /// What encrypting replies needs.
    pub(super) fn reply_desk(&self) -> ReplyDesk {
        ReplyDesk {
            store: self.store.clone(),
            newsroom: Arc::clone(&self.newsroom),
            permits: self.reading.permits(),
            clock: self.clock.clone(),
        }
    }

    /// Takes a reply, if the newsroom's key is there. That may ask another VM, so the engine goes on meanwhile.
    pub(super) fn reply(&mut self, act: Act, answer: Answer<Taken>) {
        let Some(journalist) = self.session.journalist() else {
            answer.give(Err(failure::not_signed_in()));
            return;
        };
        self.with_newsroom_key(move |checked| {
            Ended::ReplyChecked(Box::new(CheckedReply { checked, journalist, act, answer }))
        });
    }

    /// Looks for the newsroom's key; what is found goes to `ended`.
    fn with_newsroom_key(&mut self, ended: impl FnOnce(Result<Fingerprint, NewsroomError>) -> Ended + Send + 'static) {
        let (newsroom, now, stop) = (Arc::clone(&self.newsroom), self.clock.now(), self.quit.clone());
        let permits = self.reading.permits();
        self.tasks.spawn(async move {
            let place = place_for(&newsroom, &permits).await;
            let key = work_in(place, move || newsroom.key(now, &stop)).await;
            ended(key.unwrap_or(Err(NewsroomError::Fault)).map(|key| key.fingerprint()))
        });
    }

    /// Looks for the newsroom's key, to say how it stands.
    pub(super) fn look_for_newsroom_key(&mut self) {
        self.with_newsroom_key(Ended::NewsroomKey);
    }

    pub(super) fn note_newsroom_key(&mut self, checked: &Result<Fingerprint, NewsroomError>) {
        if let Err(error) = checked {
            tracing::warn!(error = failure::chain(error), "nobody can be answered: there is no newsroom key");
        }
        self.newsroom_key = checked.clone().map_err(|error| error.to_string());
    }

    pub(super) async fn reply_checked(&mut self, reply: CheckedReply) {
        let CheckedReply { checked, journalist, act, answer } = reply;
        self.note_newsroom_key(&checked);
        match checked {
            // Whoever wanted to send it has called it off meanwhile: the text stays what it was, a draft or nothing.
            Ok(_) if answer.is_closed() => tracing::info!("a reply was called off before it was taken"),
            // Somebody else may have signed in meanwhile.
            Ok(_) if self.session.journalist() != Some(journalist) => answer.give(Err(failure::not_signed_in())),
            Ok(_) => self.take_act(act, answer).await,
            Err(error) => answer.give(Err(failure(FailureKind::Conflict, error.to_string()))),
        }
    }

    /// Looks at keys anew that could not be used, and at those that nobody has looked at.
    pub(super) async fn look_at_keys_again(&mut self) {
        if let Err(error) = self.store.write(keys::look_again).await {
            tracing::error!(error = failure::chain(&error), "could not look at the sources' keys again");
        }
        self.look_at_keys();
    }

    /// Looks at the keys that came with a snapshot.
    pub(super) fn look_at_keys(&mut self) {
        let (store, now) = (self.store.clone(), self.clock.now());
        self.tasks.spawn(async move {
            let mut held = Vec::new();
            let looked = async {
                loop {
                    let offered = store.read(|transaction| keys::to_look_at(transaction, KEYS_AT_ONCE)).await?;
                    if offered.is_empty() {
                        return Ok(());
                    }
                    let found = tokio::task::spawn_blocking(move || {
                        offered
                            .into_iter()
                            .map(|offered| {
                                let finding = look_at(&offered, now);
                                (offered, finding)
                            })
                            .collect::<Vec<_>>()
                    });
                    let found = found.await.map_err(|_| StoreError::CutOff)?;
                    let noted = store.write(move |transaction| {
                        let mut problems = Vec::new();
                        for (offered, finding) in found {
                            problems.push((offered.source, keys::note(transaction, &offered, &finding)?));
                        }
                        Ok(problems)
                    });
                    held.extend(noted.await?);
                }
            };
            let looked: Result<(), StoreError> = looked.await;
            if let Err(error) = &looked {
                tracing::error!(error = failure::chain(error), "could not look at the sources' keys");
            }
            Ended::KeysLookedAt { held, all: looked.is_ok() }
        });
    }

    /// Keys were looked at: tells which are held back.
    pub(super) async fn keys_looked_at(&mut self, looked_at: Vec<(SourceId, Option<KeyProblem>)>, all: bool) {
        self.keys_left = !all;
        if looked_at.is_empty() {
            return;
        }
        self.sources_changed(looked_at.iter().map(|(source, _)| *source));
        for (source, problem) in looked_at {
            if let Some(problem) = problem {
                tracing::warn!(%source, ?problem, "replies to a source are held back");
                self.emit(Event::KeyHeld { source, problem });
            }
        }
        self.work().await;
    }

    pub(super) async fn trust_key(&mut self, source: SourceId, fingerprint: Fingerprint, answer: Answer<()>) {
        let now = self.clock.now();
        let usable = move |armored: &ArmoredKey| {
            let bytes = armored.as_str().as_bytes();
            let own = fingerprint_of(bytes).map_err(|error| error.to_string())?;
            Recipient::try_new(bytes, &own, now).map_err(|error| error.to_string())?;
            Ok(own)
        };
        let trusted =
            self.store.write_or(move |transaction| keys::trust(transaction, source, &fingerprint, usable)).await;
        match trusted {
            Ok(()) => {
                tracing::info!(%source, "another key is pinned");
                answer.give(Ok(()));
                self.sources_changed([source]);
                self.work().await;
            }
            Err(TrustError::Store(error)) => answer.give(Err(failure::of_store(&error))),
            Err(error @ (TrustError::NoSource(_) | TrustError::NoKey(_))) => {
                answer.give(Err(failure(FailureKind::NotFound, error.to_string())));
            }
            Err(error @ (TrustError::Other { .. } | TrustError::Unusable { .. })) => {
                answer.give(Err(failure(FailureKind::Conflict, error.to_string())));
            }
        }
    }

    pub(super) async fn draft(&mut self, source: SourceId, text: Option<ReplyText>, answer: Answer<()>) {
        let Some(journalist) = self.session.journalist() else {
            answer.give(Err(failure::not_signed_in()));
            return;
        };
        let (now, forgotten) = (self.clock.now(), text.is_none());
        let kept = self
            .store
            .write(move |transaction| drafts::keep(transaction, journalist, source, text.as_ref(), now))
            .await;
        self.erase_log();
        // A source that was there only for its draft goes with it.
        if forgotten && matches!(kept, Ok(true)) {
            self.sources_changed([source]);
        }
        answer.give(match kept {
            Ok(true) => Ok(()),
            Ok(false) => Err(failure(FailureKind::NotFound, format!("there is no source {source}"))),
            Err(error) => Err(failure::of_store(&error)),
        });
    }
}

#[cfg(test)]
mod tests {
    use control::Session;
    use rusqlite::params;
    use tokio::sync::oneshot;

    use super::*;
    use crate::engine::EngineParts;
    use crate::engine::session::{OpenSession, SessionState};
    use crate::store::mirror;

    const SOURCE: &str = "10000000-0000-4000-8000-000000000001";
    const FINGERPRINT: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    /// An engine whose qrexec calls cannot be made, over a store that knows one source, which can be answered.
    async fn engine(directory: &std::path::Path) -> Engine {
        let store = Store::open(directory).unwrap();
        let (mut engine, _handle) = Engine::new(EngineParts::without_qrexec(directory, store)).await.unwrap();
        engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
        let Session::SignedIn { journalist, username, .. } = engine.session.shown() else { unreachable!() };
        let fill = move |transaction: &rusqlite::Transaction<'_>| {
            transaction.execute(
                "INSERT INTO server_source (id, digest, designation, starred, last_updated_us, interactions)
                 VALUES (?1, zeroblob(32), 'candid marmot', 0, 0, 0)",
                params![SOURCE],
            )?;
            transaction.execute(
                "INSERT INTO local_key (source_id, fingerprint, armored, offered_armored, offered_claim,
                                        offered_fingerprint)
                 VALUES (?1, ?2, 'a key', 'a key', ?2, ?2)",
                params![SOURCE, FINGERPRINT],
            )?;
            mirror::store_journalist(transaction, journalist, &username)
        };
        engine.store.write(fill).await.unwrap();
        engine
    }

    /// The newsroom's key may be in another VM, which somebody has to be asked about: that takes minutes.
    #[tokio::test]
    async fn a_reply_that_was_called_off_while_the_newsrooms_key_was_looked_for_is_not_sent() {
        let directory = tempfile::tempdir().unwrap();
        let mut engine = engine(directory.path()).await;
        let source: SourceId = SOURCE.parse().unwrap();
        let text = ReplyText::try_new("not to them").unwrap();
        let (answer, kept) = oneshot::channel();
        engine.draft(source, Some(text.clone()), Answer::new(answer)).await;
        kept.await.unwrap().unwrap();
        for called_off in [true, false] {
            let (answer, waiting) = oneshot::channel();
            let waiting = (!called_off).then_some(waiting);
            let reply = CheckedReply {
                checked: Ok(Fingerprint::try_new(FINGERPRINT).unwrap()),
                journalist: engine.session.journalist().unwrap(),
                act: Act::Reply {
                    source,
                    reply: "20000000-0000-4000-8000-000000000001".parse().unwrap(),
                    text: text.clone(),
                },
                answer: Answer::new(answer),
            };
            engine.reply_checked(reply).await;
            let rows = engine.store.read(|transaction| {
                let count = |table: &str| {
                    transaction.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, u32>(0))
                };
                Ok((count("outbox")?, count("local_draft")?))
            });
            assert_eq!(rows.await.unwrap(), if called_off { (0, 1) } else { (1, 0) });
            if let Some(waiting) = waiting {
                assert!(waiting.await.unwrap().unwrap().act.is_some());
            }
        }
    }
}
