//! What the server's parts share: the world, the sessions, the rules of what goes wrong, and the log.
//!
//! **Invariant:** while a lock is held no other is taken, except that the world's may be held first; and none is held
//! across an await.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::{HeaderMap, header};
use hyper::body::Bytes;
use jiff::Timestamp;

use super::answer::{Refusal, encode};
use super::ciphertext::Ciphertexts;
use super::faults::FaultTable;
use super::flavour::ApiFlavour;
use super::log::Logbook;
use super::login::Logins;
use super::options::{SeenByOrder, ServerOptions, WebServer};
use super::wire::Pen;
use super::world::{RecordId, SourceState, World};
use crate::clock::Clock;
use crate::generator::{Designations, Prng};

/// Keeps the ids of new things apart from those of a world made with the same seed.
const NEWCOMERS: u64 = 0x005e_ed0f_7e57;

/// The options that are looked at while serving.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Behaviour {
    pub(crate) api: ApiFlavour,
    pub(crate) web_server: WebServer,
    pub(crate) gzip: bool,
    pub(crate) seen_by_order: SeenByOrder,
    pub(crate) purge_at_once: bool,
    pub(crate) downloads_mark_read: bool,
}

/// Where ids and designations of new things come from.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(crate) prng: Prng,
    pub(crate) designations: Designations,
}

/// The lists that the API gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum List {
    Sources,
    Submissions,
    Replies,
    Users,
}

impl List {
    fn has_marks(self) -> bool {
        match self {
            Self::Submissions | Self::Replies => true,
            Self::Sources | Self::Users => false,
        }
    }
}

/// Lists that were written before, by kind and by whether marks are turned around.
#[derive(Debug, Default)]
struct Written {
    answers: HashMap<List, u64>,
    kept: HashMap<(List, bool), (u64, Bytes)>,
}

/// The world that lists are written from while they are frozen.
#[derive(Debug)]
struct Frozen {
    world: World,
    at: Timestamp,
}

/// A request with a live session.
#[derive(Debug, Clone)]
pub(crate) struct SignedIn {
    pub(crate) journalist: RecordId,
    pub(crate) token: String,
}

/// What the server's parts share.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) options: Behaviour,
    pub(crate) clock: Clock,
    pub(crate) logbook: Logbook,
    pub(crate) ciphertexts: Ciphertexts,
    world: Mutex<World>,
    frozen: Mutex<Option<Arc<Frozen>>>,
    logins: Mutex<Logins>,
    faults: Mutex<FaultTable>,
    written: Mutex<Written>,
    maker: Mutex<Maker>,
}

impl Desk {
    pub(crate) fn new(options: ServerOptions) -> Self {
        let mut prng = Prng::new(options.seed ^ NEWCOMERS);
        let designations = Designations::new(&mut prng);
        Self {
            options: Behaviour {
                api: options.api,
                web_server: options.web_server,
                gzip: options.gzip,
                seen_by_order: options.seen_by_order,
                purge_at_once: options.purge_at_once,
                downloads_mark_read: options.downloads_mark_read,
            },
            clock: options.clock,
            logbook: Logbook::new(),
            ciphertexts: Ciphertexts::new(options.newsroom),
            world: Mutex::new(options.world),
            frozen: Mutex::default(),
            logins: Mutex::new(Logins::new(options.session_lifetime, options.throttle_logins)),
            faults: Mutex::default(),
            written: Mutex::default(),
            maker: Mutex::new(Maker { prng, designations }),
        }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    pub(crate) fn logins(&self) -> MutexGuard<'_, Logins> {
        lock(&self.logins)
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, FaultTable> {
        lock(&self.faults)
    }

    pub(crate) fn maker(&self) -> MutexGuard<'_, Maker> {
        lock(&self.maker)
    }

    /// How a single record is written.
    pub(crate) fn pen(&self) -> Pen {
        Pen { flavour: self.options.api, reverse_marks: false, now: self.clock.now() }
    }

    /// Whose live session a request belongs to. Only `Authorization: Token X`, in this spelling, counts.
    pub(crate) fn signed_in(&self, headers: &HeaderMap) -> Option<SignedIn> {
        let header = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let token = header.strip_prefix("Token ")?;
        let journalist = self.logins().use_token(token, self.clock.now())?;
        Some(SignedIn { journalist, token: token.to_owned() })
    }

    /// From now on lists are written as the world is now, whatever becomes of it.
    pub(crate) fn freeze_lists(&self) {
        let world = self.world();
        let frozen = Frozen { world: world.clone(), at: self.clock.now() };
        *lock(&self.frozen) = Some(Arc::new(frozen));
    }

    /// Lists are written as the world is again.
    pub(crate) fn thaw_lists(&self) {
        *lock(&self.frozen) = None;
    }

    /// Looks at the world that lists are written from, with the pen for it.
    pub(crate) fn with_listed<R>(&self, look: impl FnOnce(&World, Pen) -> R) -> R {
        let world = self.world();
        let frozen = lock(&self.frozen).clone();
        match frozen {
            None => look(&world, self.pen()),
            Some(frozen) => look(&frozen.world, Pen { now: frozen.at, ..self.pen() }),
        }
    }

    /// A whole list. It is written once for each state of the world and kept.
    pub(crate) fn list(&self, list: List) -> Result<Bytes, Refusal> {
        let reverse_marks = match self.options.seen_by_order {
            SeenByOrder::Alternating if list.has_marks() => {
                let mut written = lock(&self.written);
                let answers = written.answers.entry(list).or_insert(0);
                *answers = answers.wrapping_add(1);
                answers.is_multiple_of(2)
            }
            SeenByOrder::Alternating | SeenByOrder::Stable => false,
        };
        let key = (list, reverse_marks);
        // A frozen world is a state that the world had, so the revision names its lists as well.
        self.with_listed(|world, pen| {
            if let Some((revision, bytes)) = lock(&self.written).kept.get(&key)
                && *revision == world.revision()
            {
                return Ok(bytes.clone());
            }
            let pen = Pen { reverse_marks, ..pen };
            let bytes = write(world, list, pen).map_err(|_| Refusal::Internal)?;
            // A source that nobody has heard of is "updated now", and now does not stand still.
            if world.sources().all(|source| source.last_updated.is_some()) {
                let kept = (world.revision(), bytes.clone());
                lock(&self.written).kept.insert(key, kept);
            }
            Ok(bytes)
        })
    }
}

fn write(world: &World, list: List, pen: Pen) -> serde_json::Result<Bytes> {
    match list {
        List::Sources => {
            let listed = |source: &&_| is_listed(source);
            encode(&pen.sources(world, world.sources().filter(listed)))
        }
        List::Submissions => encode(&pen.submissions(world.submissions())),
        List::Replies => encode(&pen.replies(world, world.replies())),
        List::Users => encode(&pen.users(world)),
    }
}

fn is_listed(source: &super::world::Source) -> bool {
    match source.state {
        SourceState::Listed => true,
        SourceState::Pending | SourceState::MarkedDeleted => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
