//! Signing in and staying signed in.
//!
//! The rules are the real server's: a one-time code is burnt as soon as it was right, whatever the passphrase; the last
//! code that was right is refused again; all failures look the same; a session that is used shortly before its end is
//! prolonged, a few times, and nobody tells the client.
//!
//! **Invariant:** a token names its session and nothing else does; a revoked or expired session never comes back.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::world::{RecordId, World};

/// Attempts of one user within [`ATTEMPTS_WINDOW`] that are still looked at.
const ATTEMPTS: usize = 5;
const ATTEMPTS_WINDOW: SignedDuration = SignedDuration::from_secs(60);
/// A session that ends sooner than this is prolonged by use.
const RENEWAL_THRESHOLD: SignedDuration = SignedDuration::from_secs(30 * 60);
/// How often a session is prolonged.
const RENEWALS: u32 = 5;
const SHORTEST_USERNAME: usize = 3;

/// What somebody signs in with, unchecked.
pub(crate) struct Credentials<'a> {
    pub(crate) username: &'a str,
    pub(crate) passphrase: &'a str,
    pub(crate) one_time_code: &'a str,
}

/// Why a login failed. The client is not told; the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoginRefusal {
    UnknownUser,
    Throttled,
    ReusedCode,
    WrongCode,
    WrongPassphrase,
}

impl fmt::Display for LoginRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownUser => "unknown user",
            Self::Throttled => "throttled",
            Self::ReusedCode => "one-time code used before",
            Self::WrongCode => "wrong one-time code",
            Self::WrongPassphrase => "wrong passphrase",
        })
    }
}

/// A session that was just opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) token: String,
    pub(crate) journalist: RecordId,
    pub(crate) expires: Timestamp,
}

#[derive(Debug)]
struct Session {
    journalist: RecordId,
    expires: Timestamp,
    renewals_left: u32,
}

/// All sessions, and what the rules remember of each user.
#[derive(Debug)]
pub(crate) struct Logins {
    lifetime: SignedDuration,
    throttle: bool,
    attempts: HashMap<RecordId, VecDeque<Timestamp>>,
    last_codes: HashMap<RecordId, String>,
    sessions: HashMap<String, Session>,
}

impl Logins {
    pub(crate) fn new(lifetime: Duration, throttle: bool) -> Self {
        Self {
            lifetime: SignedDuration::try_from(lifetime).unwrap_or(SignedDuration::MAX),
            throttle,
            attempts: HashMap::new(),
            last_codes: HashMap::new(),
            sessions: HashMap::new(),
        }
    }

    /// The tokens of all sessions that were not revoked.
    pub(crate) fn tokens(&self) -> Vec<String> {
        self.sessions.keys().cloned().collect()
    }

    /// Opens a session, or says what was wrong.
    pub(crate) fn log_in(
        &mut self,
        world: &World,
        now: Timestamp,
        credentials: &Credentials<'_>,
    ) -> Result<Opened, LoginRefusal> {
        let journalist = world
            .journalist_named(credentials.username)
            .filter(|_| credentials.username.chars().count() >= SHORTEST_USERNAME)
            .ok_or(LoginRefusal::UnknownUser)?;
        let account = journalist.account.ok_or(LoginRefusal::UnknownUser)?;
        if self.throttle && self.note_attempt(&journalist.id, now) > ATTEMPTS {
            return Err(LoginRefusal::Throttled);
        }
        let code = credentials.one_time_code;
        if self.last_codes.get(&journalist.id).is_some_and(|last| last == code) {
            return Err(LoginRefusal::ReusedCode);
        }
        if !account.accepts(code, now) {
            return Err(LoginRefusal::WrongCode);
        }
        self.last_codes.insert(journalist.id.clone(), code.to_owned());
        if credentials.passphrase != account.passphrase {
            return Err(LoginRefusal::WrongPassphrase);
        }
        let opened = Opened { token: token(), journalist: journalist.id.clone(), expires: later(now, self.lifetime) };
        self.sessions.insert(
            opened.token.clone(),
            Session { journalist: opened.journalist.clone(), expires: opened.expires, renewals_left: RENEWALS },
        );
        Ok(opened)
    }

    /// Whose live session this token names; using it may prolong it.
    pub(crate) fn use_token(&mut self, token: &str, now: Timestamp) -> Option<RecordId> {
        let session = self.sessions.get_mut(token)?;
        if session.expires <= now {
            self.sessions.remove(token);
            return None;
        }
        let left = session.expires.duration_since(now);
        if left < RENEWAL_THRESHOLD && session.renewals_left > 0 {
            session.renewals_left -= 1;
            session.expires = later(session.expires, self.lifetime);
        }
        Some(session.journalist.clone())
    }

    /// Ends the session that this token names.
    pub(crate) fn log_out(&mut self, token: &str) {
        self.sessions.remove(token);
    }

    /// Ends all sessions, or those of one journalist, and tells how many.
    pub(crate) fn revoke(&mut self, journalist: Option<&RecordId>) -> usize {
        let before = self.sessions.len();
        self.sessions.retain(|_, session| journalist.is_some_and(|id| session.journalist != *id));
        before - self.sessions.len()
    }

    /// Counts an attempt, and tells how many there were of late.
    fn note_attempt(&mut self, journalist: &RecordId, now: Timestamp) -> usize {
        let attempts = self.attempts.entry(journalist.clone()).or_default();
        while attempts.front().is_some_and(|at| now.duration_since(*at) >= ATTEMPTS_WINDOW) {
            attempts.pop_front();
        }
        attempts.push_back(now);
        attempts.len()
    }
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// A fresh token: three parts between dots, of letters, digits, `-` and `_`, as long as those of the real server.
fn token() -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const PARTS: [usize; 3] = [62, 6, 27];
    let mut dice = std::iter::repeat_with(|| Uuid::new_v4().into_bytes())
        // Bytes 6 and 8 of a version 4 uuid are not all random.
        .flat_map(|bytes| bytes.into_iter().take(6));
    PARTS
        .map(|length| {
            dice.by_ref()
                .take(length)
                .filter_map(|byte| ALPHABET.get(usize::from(byte % 64)).copied())
                .map(char::from)
                .collect::<String>()
        })
        .join(".")
}

#[cfg(test)]
mod tests;
