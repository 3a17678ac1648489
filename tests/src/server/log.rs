//! What the server has been asked, for tests to look at.
//!
//! Times in it are ticks, not seconds: each beginning and each end of a request takes the next number, so that "these
//! ran at the same time" is a fact of the log and not of a stopwatch.
//!
//! **Invariant:** a request ends when its answer's last byte went to the connection or will never go there, and not when
//! the answer was thought of.
//!
//! **Invariant:** the value of an `Authorization` header is never kept.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::header;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Requests kept; older ones go, counters stay.
const KEPT: usize = 200_000;
/// Distinct `METHOD path` pairs counted; beyond that, new ones share a counter.
const COUNTED: usize = 100_000;
const OTHERS: &str = "others";

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedRequest {
    /// Which request this was, from 1.
    pub number: u64,
    /// On which connection it came, from 1.
    pub connection: u64,
    /// The method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// Whatever stood behind the `?`.
    pub query: Option<String>,
    /// The headers, names in lower case, without the value of `Authorization`.
    pub headers: Vec<(String, String)>,
    /// What came as `X-Request-ID`, well formed or not.
    pub request_id: Option<String>,
    /// The status of the answer; nothing while there is none, and when the connection was dropped instead.
    pub status: Option<u16>,
    /// Bytes of the answer's body that were handed to the connection. What a client that went away has received of them
    /// is at most that.
    pub body_bytes: u64,
    /// The rule that interfered, by its id.
    pub fault: Option<u64>,
    /// Whether the server has done what it was asked and the answer does not go out: a rule holds it, or hangs on to it.
    pub held: bool,
    /// The tick at which it began.
    pub began: u64,
    /// The tick at which it ended; nothing while it goes on.
    pub ended: Option<u64>,
}

impl LoggedRequest {
    /// The value of a header, if it came.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The value of `Range`, if it came.
    pub fn range(&self) -> Option<&str> {
        self.header("range")
    }
}

/// The log at one moment.
#[derive(Debug, Clone, Default)]
pub struct RequestLog {
    requests: VecDeque<LoggedRequest>,
    counts: BTreeMap<String, u64>,
    next_number: u64,
    tick: u64,
    in_flight: usize,
    max_in_flight: usize,
    connections: u64,
    open_connections: usize,
}

impl RequestLog {
    /// The requests, oldest first. Only the newest 200,000 are kept.
    pub fn requests(&self) -> impl Iterator<Item = &LoggedRequest> {
        self.requests.iter()
    }

    /// How many requests with this method and exact path began.
    pub fn count(&self, method: &str, path: &str) -> u64 {
        let key = format!("{method} {path}");
        self.counts.get(&key).copied().unwrap_or(0)
    }

    /// How many requests began, by `METHOD path`.
    pub fn counts(&self) -> &BTreeMap<String, u64> {
        &self.counts
    }

    /// How many requests began in all.
    pub fn total(&self) -> u64 {
        self.next_number
    }

    /// How many requests have begun and not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How many of the kept requests that are in flight are [held](LoggedRequest::held): their effect took place, their
    /// answer is outstanding.
    pub fn held(&self) -> usize {
        self.requests.iter().filter(|request| request.held && request.ended.is_none()).count()
    }

    /// How many requests were in flight at once, at most.
    pub fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    /// How many of the kept requests that `matches` picks were in flight at once, at most.
    pub fn max_in_flight_of(&self, matches: impl Fn(&LoggedRequest) -> bool) -> usize {
        let mut steps = Vec::new();
        for request in self.requests.iter().filter(|request| matches(request)) {
            steps.push((request.began, true));
            steps.extend(request.ended.map(|ended| (ended, false)));
        }
        steps.sort_unstable();
        let mut now = 0_usize;
        let mut most = 0;
        for (_, begins) in steps {
            now = match begins {
                true => now.saturating_add(1),
                false => now.saturating_sub(1),
            };
            most = most.max(now);
        }
        most
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> usize {
        self.open_connections
    }

    fn tick(&mut self) -> u64 {
        self.tick = self.tick.saturating_add(1);
        self.tick
    }

    fn find(&mut self, number: u64) -> Option<&mut LoggedRequest> {
        let at = self.requests.binary_search_by_key(&number, |request| request.number).ok()?;
        self.requests.get_mut(at)
    }
}

/// The log as the server writes it. Clones write the same log.
#[derive(Debug, Clone)]
pub(crate) struct Logbook {
    log: Arc<Mutex<RequestLog>>,
    changes: Arc<watch::Sender<u64>>,
}

impl Logbook {
    pub(crate) fn new() -> Self {
        Self { log: Arc::default(), changes: Arc::new(watch::Sender::new(0)) }
    }

    /// Looks at the log as it is now.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&RequestLog) -> R) -> R {
        look(&self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until `wanted` is true of the log. Cancel-safe.
    pub(crate) async fn wait_until(&self, mut wanted: impl FnMut(&RequestLog) -> bool) {
        let mut changes = self.changes.subscribe();
        while !self.read(&mut wanted) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Forgets the ended requests and all counters; those in flight stay.
    pub(crate) fn clear(&self) {
        self.write(|log| {
            log.requests.retain(|request| request.ended.is_none());
            log.counts.clear();
            log.max_in_flight = log.in_flight;
        });
    }

    pub(crate) fn connection(&self) -> ConnectionGuard {
        let number = self.write(|log| {
            log.connections = log.connections.saturating_add(1);
            log.open_connections = log.open_connections.saturating_add(1);
            log.connections
        });
        ConnectionGuard { logbook: self.clone(), number }
    }

    /// Notes that a request began; it ends when the guard goes.
    ///
    /// Until then `busy`, its connection's count, is one higher.
    pub(crate) fn begin(&self, connection: u64, parts: &Parts, busy: watch::Sender<usize>) -> RequestGuard {
        let number = self.write(|log| {
            let number = log.next_number.saturating_add(1);
            let entry = LoggedRequest::new(number, connection, parts, log.tick());
            let mut key = format!("{} {}", entry.method, entry.path);
            if log.counts.len() >= COUNTED && !log.counts.contains_key(&key) {
                OTHERS.clone_into(&mut key);
            }
            let count = log.counts.entry(key).or_insert(0);
            *count = count.saturating_add(1);
            log.next_number = number;
            log.in_flight = log.in_flight.saturating_add(1);
            log.max_in_flight = log.max_in_flight.max(log.in_flight);
            if log.requests.len() >= KEPT {
                log.requests.pop_front();
            }
            log.requests.push_back(entry);
            number
        });
        busy.send_modify(|requests| *requests = requests.saturating_add(1));
        RequestGuard { logbook: self.clone(), number, busy }
    }

    fn write<R>(&self, change: impl FnOnce(&mut RequestLog) -> R) -> R {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut log);
        drop(log);
        self.changes.send_modify(|version| *version = version.wrapping_add(1));
        result
    }
}

impl LoggedRequest {
    fn new(number: u64, connection: u64, parts: &Parts, began: u64) -> Self {
        let headers = parts.headers.iter().map(|(name, value)| {
            let value = match *name == header::AUTHORIZATION {
                true => String::from("(not kept)"),
                false => String::from_utf8_lossy(value.as_bytes()).into_owned(),
            };
            (name.as_str().to_owned(), value)
        });
        let mut entry = Self {
            number,
            connection,
            method: parts.method.as_str().to_owned(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().map(str::to_owned),
            headers: headers.collect(),
            request_id: None,
            status: None,
            body_bytes: 0,
            fault: None,
            held: false,
            began,
            ended: None,
        };
        entry.request_id = entry.header("x-request-id").map(str::to_owned);
        entry
    }
}

/// A request that goes on. Dropping it ends the request.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    logbook: Logbook,
    number: u64,
    busy: watch::Sender<usize>,
}

impl RequestGuard {
    pub(crate) fn answered(&self, status: u16) {
        self.note(|request| request.status = Some(status));
    }

    /// Notes that so much of the body went out.
    pub(crate) fn sent(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.note(|request| request.body_bytes = request.body_bytes.saturating_add(bytes));
    }

    pub(crate) fn interfered(&self, fault: u64) {
        self.note(|request| request.fault = Some(fault));
    }

    pub(crate) fn held(&self, held: bool) {
        self.note(|request| request.held = held);
    }

    fn note(&self, change: impl FnOnce(&mut LoggedRequest)) {
        self.logbook.write(|log| {
            if let Some(request) = log.find(self.number) {
                change(request);
            }
        });
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.logbook.write(|log| {
            let tick = log.tick();
            log.in_flight = log.in_flight.saturating_sub(1);
            if let Some(request) = log.find(self.number) {
                request.ended = Some(tick);
            }
        });
        self.busy.send_modify(|requests| *requests = requests.saturating_sub(1));
    }
}

/// A connection that is open. Dropping it closes it in the log.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    logbook: Logbook,
    pub(crate) number: u64,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.logbook.write(|log| log.open_connections = log.open_connections.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(logbook: &Logbook, connection: u64, path: &str) -> RequestGuard {
        logbook.begin(connection, &parts(path), watch::Sender::new(0))
    }

    fn parts(path: &str) -> Parts {
        let request =
            axum::http::Request::get(path).header("Authorization", "Token secret").header("X-Request-ID", "req-1");
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn overlap_is_counted_by_kind() {
        let logbook = Logbook::new();
        let first = begin(&logbook, 1, "/a");
        let second = begin(&logbook, 2, "/a");
        drop(first);
        let third = begin(&logbook, 1, "/b");
        drop(second);
        drop(third);
        drop(begin(&logbook, 1, "/b"));
        logbook.read(|log| {
            let most = |path| log.max_in_flight_of(|request| request.path == path);
            assert_eq!((most("/a"), most("/b")), (2, 1));
            assert_eq!((log.max_in_flight(), log.in_flight()), (2, 0));
            assert_eq!((log.count("GET", "/b"), log.total()), (2, 4));
        });
    }

    #[test]
    fn a_token_is_not_kept() {
        let logbook = Logbook::new();
        let guard = begin(&logbook, 1, "/a?b=c");
        guard.answered(200);
        logbook.read(|log| {
            let entry = log.requests().next().unwrap();
            assert!(!format!("{entry:?}").contains("secret"));
            assert_eq!(entry.query.as_deref(), Some("b=c"));
            assert_eq!(entry.request_id.as_deref(), Some("req-1"));
            assert_eq!((entry.status, entry.ended), (Some(200), None));
        });
    }

    #[test]
    fn a_cleared_log_still_finds_what_is_in_flight() {
        let logbook = Logbook::new();
        let early = begin(&logbook, 1, "/early");
        drop(begin(&logbook, 1, "/gone"));
        let late = begin(&logbook, 1, "/late");
        logbook.clear();
        early.answered(200);
        late.answered(403);
        logbook.read(|log| {
            let statuses: Vec<_> = log.requests().map(|r| (r.path.as_str(), r.status)).collect();
            assert_eq!(statuses, [("/early", Some(200)), ("/late", Some(403))]);
            assert_eq!(log.count("GET", "/gone"), 0);
        });
    }
}
