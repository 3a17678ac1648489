//! What came to the SOCKS server and what became of it, for tests to look at and to wait for.
//!
//! **Invariant:** memory is bounded: old events go, and names beyond [`NAMES`] share a counter.
//!
//! **Invariant:** bytes are counted when they have been written to the side that they were for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::faults::Direction;
use super::handshake::Target;
use super::names::Refusal;

/// Events kept.
const EVENTS: usize = 10_000;
/// Distinct targets counted; beyond that, new ones share a counter.
const NAMES: usize = 1_000;
const OTHERS: &str = "others";

/// Numbers since the server started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that were closed at once since there were too many.
    pub turned_away: u64,
    /// Connections that are open.
    pub open: usize,
    /// Connections that were open at once, at most.
    pub max_open: usize,
    /// Connections whose client gave a user name and a passphrase.
    pub with_password: u64,
    /// Requests for a name, by `NAME:PORT` as asked, known or not.
    pub requests: BTreeMap<String, u64>,
    /// Requests that were refused, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Streams that came to be.
    pub established: u64,
    /// Connections on which a rule acted.
    pub faulted: u64,
    /// Connections that a rule holds still now.
    pub hanging: usize,
    /// Connections whose client did not speak SOCKS 5.
    pub malformed: u64,
    /// Connections whose client did not say in time what it wants.
    pub too_slow: u64,
    /// Bytes that reached servers.
    pub bytes_to_server: u64,
    /// Bytes of servers that reached clients.
    pub bytes_to_client: u64,
}

impl Counts {
    /// How many requests asked for this name and port.
    #[must_use]
    pub fn requests_for(&self, name: &str, port: u16) -> u64 {
        self.requests.get(&format!("{name}:{port}")).copied().unwrap_or(0)
    }

    /// How many requests were refused for this reason.
    #[must_use]
    pub fn refused_for(&self, reason: Refusal) -> u64 {
        self.refused.get(&reason).copied().unwrap_or(0)
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocksEvent {
    /// On which connection, from 1.
    pub connection: u64,
    /// What.
    pub what: What,
}

/// What happened on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It was accepted.
    Accepted,
    /// The client asked for this.
    Asked(Target),
    /// The request was refused.
    Refused(Refusal),
    /// A stream came to be; the server behind the name sees it come from this address.
    Established(SocketAddr),
    /// This rule acts on it.
    Faulted(u64),
    /// It ended.
    Ended(Ending),
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// One side closed the stream.
    Finished,
    /// The request was refused.
    Refused,
    /// The client did not speak SOCKS 5.
    Malformed,
    /// The client did not say in time what it wants.
    TooSlow,
    /// A rule ended it, or held it until the client went.
    Faulted,
    /// A side broke off.
    Broken,
    /// It was cut from here.
    Cut,
}

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    open: BTreeSet<u64>,
    events: VecDeque<SocksEvent>,
}

impl State {
    fn event(&mut self, connection: u64, what: What) {
        if self.events.len() >= EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(SocksEvent { connection, what });
    }
}

/// Counts and events. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    state: Arc<Mutex<State>>,
    changes: Arc<watch::Sender<u64>>,
}

impl Ledger {
    pub(super) fn counts(&self) -> Counts {
        self.read(|state| state.counts.clone())
    }

    pub(super) fn events(&self) -> Vec<SocksEvent> {
        self.read(|state| state.events.iter().cloned().collect())
    }

    /// Waits until `wanted` is true of the counts. Cancel-safe.
    pub(super) async fn wait_for(&self, mut wanted: impl FnMut(&Counts) -> bool) {
        self.wait_until(|state| wanted(&state.counts)).await;
    }

    /// Waits until the connections up to the one with this number have ended. Cancel-safe.
    pub(super) async fn wait_for_the_end_of(&self, newest: u64) {
        self.wait_until(|state| state.open.first().is_none_or(|oldest| *oldest > newest)).await;
    }

    async fn wait_until(&self, mut wanted: impl FnMut(&State) -> bool) {
        let mut changes = self.changes.subscribe();
        while !self.read(&mut wanted) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// A connection was accepted; it ends with the answer. With `limit` or more open ones it is turned away.
    pub(super) fn connection(&self, limit: usize) -> Option<OpenConnection> {
        let number = self.write(|state| {
            if state.open.len() >= limit {
                state.counts.turned_away = state.counts.turned_away.saturating_add(1);
                return None;
            }
            state.counts.accepted = state.counts.accepted.saturating_add(1);
            let number = state.counts.accepted;
            state.open.insert(number);
            state.counts.open = state.open.len();
            state.counts.max_open = state.counts.max_open.max(state.counts.open);
            state.event(number, What::Accepted);
            Some(number)
        })?;
        Some(OpenConnection { ledger: self.clone(), number, ending: Ending::Cut })
    }

    pub(super) fn moved(&self, direction: Direction, bytes: u64) {
        self.write(|state| {
            let count = match direction {
                Direction::ToServer => &mut state.counts.bytes_to_server,
                Direction::ToClient => &mut state.counts.bytes_to_client,
            };
            *count = count.saturating_add(bytes);
        });
    }

    /// A connection hangs until the answer is dropped.
    pub(super) fn hanging(&self) -> Hanging {
        self.write(|state| state.counts.hanging = state.counts.hanging.saturating_add(1));
        Hanging { ledger: self.clone() }
    }

    fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        drop(state);
        self.changes.send_modify(|version| *version = version.wrapping_add(1));
        result
    }
}

/// A connection that is open; dropping it ends it in the ledger.
#[derive(Debug)]
pub(super) struct OpenConnection {
    ledger: Ledger,
    number: u64,
    ending: Ending,
}

impl OpenConnection {
    pub(super) fn with_password(&self) {
        self.ledger.write(|state| state.counts.with_password = state.counts.with_password.saturating_add(1));
    }

    pub(super) fn asked(&self, target: Target) {
        self.ledger.write(|state| {
            if let Target::Name(..) = target {
                let mut key = target.to_string();
                if state.counts.requests.len() >= NAMES && !state.counts.requests.contains_key(&key) {
                    OTHERS.clone_into(&mut key);
                }
                let count = state.counts.requests.entry(key).or_insert(0);
                *count = count.saturating_add(1);
            }
            state.event(self.number, What::Asked(target));
        });
    }

    pub(super) fn refused(&self, reason: Refusal) {
        self.ledger.write(|state| {
            let count = state.counts.refused.entry(reason).or_insert(0);
            *count = count.saturating_add(1);
            state.event(self.number, What::Refused(reason));
        });
    }

    pub(super) fn established(&self, from: SocketAddr) {
        self.ledger.write(|state| {
            state.counts.established = state.counts.established.saturating_add(1);
            state.event(self.number, What::Established(from));
        });
    }

    pub(super) fn faulted(&self, rule: u64) {
        self.ledger.write(|state| {
            state.counts.faulted = state.counts.faulted.saturating_add(1);
            state.event(self.number, What::Faulted(rule));
        });
    }

    pub(super) fn ended(mut self, ending: Ending) {
        self.ending = ending;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let (number, ending) = (self.number, self.ending);
        self.ledger.write(|state| {
            let count = match ending {
                Ending::Malformed => Some(&mut state.counts.malformed),
                Ending::TooSlow => Some(&mut state.counts.too_slow),
                Ending::Finished | Ending::Refused | Ending::Faulted | Ending::Broken | Ending::Cut => None,
            };
            if let Some(count) = count {
                *count = count.saturating_add(1);
            }
            state.open.remove(&number);
            state.counts.open = state.open.len();
            state.event(number, What::Ended(ending));
        });
    }
}

/// A connection that hangs.
#[derive(Debug)]
pub(super) struct Hanging {
    ledger: Ledger,
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.ledger.write(|state| state.counts.hanging = state.counts.hanging.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_are_counted_and_bounded() {
        let ledger = Ledger::default();
        let first = ledger.connection(2).unwrap();
        let second = ledger.connection(2).unwrap();
        assert!(ledger.connection(2).is_none());
        first.ended(Ending::Malformed);
        let third = ledger.connection(2).unwrap();
        drop((second, third));
        let counts = ledger.counts();
        assert_eq!((counts.accepted, counts.turned_away, counts.open, counts.max_open), (3, 1, 0, 2));
        assert_eq!((counts.malformed, counts.too_slow), (1, 0));
        let last = ledger.events().pop().unwrap();
        assert_eq!(last, SocksEvent { connection: 3, what: What::Ended(Ending::Cut) });
    }

    #[test]
    fn memory_is_bounded_whatever_is_asked_for() {
        let ledger = Ledger::default();
        let open = ledger.connection(1).unwrap();
        for number in 0..EVENTS + 5 {
            open.asked(Target::Name(format!("{number}.onion"), 80));
        }
        let counts = ledger.counts();
        assert_eq!(counts.requests.len(), NAMES + 1);
        assert_eq!(counts.requests.values().sum::<u64>(), (EVENTS + 5) as u64);
        assert_eq!((counts.requests_for("0.onion", 80), counts.requests_for("0.onion", 81)), (1, 0));
        assert_eq!(ledger.events().len(), EVENTS);
    }

    #[tokio::test]
    async fn whoever_waits_for_an_end_does_not_wait_for_later_ones() {
        let ledger = Ledger::default();
        let early = ledger.connection(9).unwrap();
        let mut waiting = tokio::task::JoinSet::new();
        let other = ledger.clone();
        waiting.spawn(async move { other.wait_for_the_end_of(1).await });
        let _late = ledger.connection(9).unwrap();
        tokio::task::yield_now().await;
        assert!(waiting.try_join_next().is_none());
        drop(early);
        waiting.join_next().await.unwrap().unwrap();
    }
}
