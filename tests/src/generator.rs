//! Worlds for the staging server, made from a recipe.
//!
//! A world is a function of its [`Recipe`]: ids, designations, counts, sizes and times come from the recipe's seed and
//! from nothing else, on any machine. Its spread is that of a newsroom: most sources have a key and some do not yet,
//! some are starred, some conversations are read by both journalists, by one, or by nobody, replies are by both and by
//! `deleted`, and a few sources are not listed though their items are.
//!
//! **Invariant:** a recipe makes exactly `sources` listed sources with exactly `items_per_source` items each.
//!
//! **Invariant:** no secret is made here that opens anything but a staging server.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::server::{
    DELETED_JOURNALIST, Journalist, RecordId, SMALLEST_REPLY, SourceKey, SourceState, SubmissionKind, World, WorldError,
};

mod accounts;
mod content;
mod key_pair;
mod keys;
mod prng;
mod words;

pub use accounts::{Account, MARLOW, TERNBERG};
pub use content::{Form, Plaintext, PlaintextError};
pub use key_pair::KeyPair;
pub use keys::{NewsroomKey, pool};
pub use prng::Prng;
pub use words::Designations;

/// One source in so many has no key yet.
const KEYLESS_EVERY: u64 = 16;
/// One source in so many is starred.
const STARRED_EVERY: u64 = 8;
/// One submission in so many was downloaded the old way: read, with nobody's mark.
const DOWNLOADED_EVERY: u64 = 20;
/// One time stamp in so many falls on a whole second.
const WHOLE_SECOND_EVERY: u64 = 8;
/// One listed source in so many has an unlisted companion of each kind.
const UNLISTED_EVERY: u32 = 50;
/// How far back conversations begin, in seconds: about three months.
const SPAN_SECS: u64 = 90 * 24 * 3600;
/// The longest silence between two items of a conversation, in seconds.
const PAUSE_SECS: u64 = 6 * 3600;
/// The latest time in a world unless the recipe says otherwise: 2026-11-01T09:00:00Z.
const UNTIL: Timestamp = Timestamp::constant(1_793_523_600, 0);

/// What a world is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    /// What everything random comes from.
    pub seed: u64,
    /// How many listed sources.
    pub sources: u32,
    /// How many items each source has, listed or not.
    pub items_per_source: u32,
    /// How many sources are pending, besides.
    pub pending: u32,
    /// How many sources are marked deleted and not purged, besides.
    pub marked_deleted: u32,
    /// The moment before which everything happened.
    pub until: Timestamp,
}

impl Recipe {
    /// A world of `sources` listed sources with `items_per_source` items each, and a few unlisted ones for every
    /// fifty. Seed 1.
    pub fn new(sources: u32, items_per_source: u32) -> Self {
        let unlisted = sources.div_ceil(UNLISTED_EVERY);
        Self { seed: 1, sources, items_per_source, pending: unlisted, marked_deleted: unlisted, until: UNTIL }
    }

    /// Makes the world.
    ///
    /// # Errors
    ///
    /// [`WorldError::TakenId`] should the dice give the same id twice.
    pub fn generate(&self) -> Result<World, WorldError> {
        let mut generator = Generator::new(self);
        let [marlow, ternberg, deleted] = generator.journalists()?;
        let mut states = Vec::new();
        states.extend((0..self.sources).map(|_| SourceState::Listed));
        states.extend((0..self.pending).map(|_| SourceState::Pending));
        states.extend((0..self.marked_deleted).map(|_| SourceState::MarkedDeleted));
        shuffle(&mut states, &mut generator.prng);
        let authors = [marlow, ternberg, deleted];
        for (number, state) in (0_u64..).zip(states) {
            generator.source(number, state, &authors)?;
        }
        Ok(generator.world)
    }
}

struct Generator<'a> {
    recipe: &'a Recipe,
    prng: Prng,
    designations: Designations,
    keys: Vec<Arc<SourceKey>>,
    world: World,
}

impl<'a> Generator<'a> {
    fn new(recipe: &'a Recipe) -> Self {
        let mut prng = Prng::new(recipe.seed);
        let designations = Designations::new(&mut prng);
        Self { recipe, prng, designations, keys: pool(), world: World::new() }
    }

    fn journalists(&mut self) -> Result<[RecordId; 3], WorldError> {
        let ids = [self.prng.uuid(), self.prng.uuid(), self.prng.uuid()];
        let [marlow, ternberg, deleted] = ids.clone();
        self.world.add_journalist(Journalist {
            id: marlow,
            username: MARLOW.username.to_owned(),
            first_name: Some("Zoë".to_owned()),
            last_name: Some("Mårlöw-Šimková 夏".to_owned()),
            is_admin: true,
            account: Some(MARLOW),
            last_login: None,
        })?;
        self.world.add_journalist(Journalist {
            id: ternberg,
            username: TERNBERG.username.to_owned(),
            first_name: None,
            last_name: None,
            is_admin: false,
            account: Some(TERNBERG),
            last_login: None,
        })?;
        self.world.add_journalist(Journalist {
            id: deleted,
            username: DELETED_JOURNALIST.to_owned(),
            first_name: None,
            last_name: None,
            is_admin: false,
            account: None,
            last_login: None,
        })?;
        Ok(ids)
    }

    fn source(&mut self, number: u64, state: SourceState, authors: &[RecordId]) -> Result<(), WorldError> {
        let id = self.prng.uuid();
        let designation = self.designations.next_pair();
        let key = if number % KEYLESS_EVERY == KEYLESS_EVERY - 1 {
            None
        } else {
            let at = usize::try_from(number).unwrap_or(0) % self.keys.len().max(1);
            self.keys.get(at).map(Arc::clone)
        };
        let mut at = self.moment();
        self.world.add_source(id.clone(), designation, key, at)?;
        // Whose eyes pass over this conversation: a share of its items, by each of these.
        let readers: Vec<RecordId> = authors.iter().filter(|_| self.prng.chance(2, 5)).cloned().collect();
        for _ in 0..self.recipe.items_per_source {
            at = self.after(at);
            let item = self.item(&id, authors, at)?;
            for reader in &readers {
                if self.prng.chance(4, 5) {
                    self.world.mark_seen(&item, reader)?;
                }
            }
        }
        self.world.edit_source(&id, |source| {
            source.state = state;
            source.is_starred = number % STARRED_EVERY == 2;
        })
    }

    /// Adds an item of some kind: half are messages, the rest are files and replies.
    fn item(&mut self, source: &RecordId, authors: &[RecordId], at: Timestamp) -> Result<RecordId, WorldError> {
        let id = self.prng.uuid();
        let (kind, spread) = match self.prng.below(20) {
            0..10 => (SubmissionKind::Message, 3_000),
            10..14 => (SubmissionKind::File, 2_000_000),
            14 => (SubmissionKind::ZippedFile, 90_000),
            _ => {
                let author = self.prng.pick(authors).cloned();
                let author = author.ok_or_else(|| WorldError::NoJournalist(String::new()))?;
                let size = SMALLEST_REPLY + self.prng.below(2_500);
                self.world.add_reply(id.clone(), source, &author, size)?;
                return Ok(id);
            }
        };
        let size = kind.smallest_size() + self.prng.below(spread);
        self.world.add_submission(id.clone(), source, kind, size, at)?;
        if self.prng.chance(1, DOWNLOADED_EVERY) {
            self.world.mark_downloaded(&id)?;
        }
        Ok(id)
    }

    /// A moment at which a conversation begins.
    fn moment(&mut self) -> Timestamp {
        let longest = PAUSE_SECS.saturating_mul(u64::from(self.recipe.items_per_source));
        let back = Duration::from_secs(longest.saturating_add(self.prng.below(SPAN_SECS)));
        let at = self.recipe.until.checked_sub(back);
        self.with_fraction(at.unwrap_or(Timestamp::UNIX_EPOCH))
    }

    /// A moment after `at`, and not too long after.
    fn after(&mut self, at: Timestamp) -> Timestamp {
        let pause = Duration::from_secs(1 + self.prng.below(PAUSE_SECS - 2));
        let at = at.checked_add(pause).unwrap_or(Timestamp::MAX);
        self.with_fraction(at)
    }

    /// The same second, with microseconds in most cases.
    fn with_fraction(&mut self, at: Timestamp) -> Timestamp {
        let micros = match self.prng.chance(1, WHOLE_SECOND_EVERY) {
            true => 0,
            false => self.prng.below(1_000_000),
        };
        let nanos = i32::try_from(micros * 1_000).unwrap_or(0);
        Timestamp::new(at.as_second(), nanos).unwrap_or(at)
    }
}

/// Puts `items` into an order that `prng` leads to.
fn shuffle<T>(items: &mut [T], prng: &mut Prng) {
    for last in (1..items.len()).rev() {
        let bound = u64::try_from(last).unwrap_or(0).saturating_add(1);
        items.swap(last, usize::try_from(prng.below(bound)).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests;
