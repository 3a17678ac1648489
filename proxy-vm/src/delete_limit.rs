//! How much one session may delete.
//!
//! A session of the scope `delete` lives for one decision of a user, for which somebody in dom0 may have been asked. The
//! limit keeps that one yes from deleting everything.
//!
//! **Invariant:** a target is counted before anything is sent of the call that names it, whatever becomes of the call. The
//! same target again is a repetition and counts once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use protocol::value::{ItemId, SourceId};
use protocol::{Call, CallError, ErrorKind, Retry, Stage};

use crate::config;

/// How many targets one session may delete: 1 to 10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteLimit(usize);

impl DeleteLimit {
    /// The largest limit.
    pub const MAX: Self = Self(10_000);

    /// Reads a limit as the setting holds it: decimal digits alone. `None` for anything else and for what is out of range.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // `usize::from_str` would take a sign too.
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        text.parse().ok().filter(|limit| (1..=Self::MAX.0).contains(limit)).map(Self)
    }
}

impl Default for DeleteLimit {
    fn default() -> Self {
        Self(200)
    }
}

/// What a call deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// A source with all that belongs to it.
    Source(SourceId),
    /// Items of a source's conversation, however many: they are one decision.
    Conversation(SourceId),
    /// One item. In whose name it is asked for does not matter: the server does not look at that either.
    Item(ItemId),
}

impl Target {
    /// What `call` deletes; `None` when it deletes nothing.
    fn of(call: &Call) -> Option<Self> {
        match call {
            Call::Health
            | Call::Probe
            | Call::Login { .. }
            | Call::Logout { .. }
            | Call::GetUsers { .. }
            | Call::GetSources { .. }
            | Call::GetSubmissions { .. }
            | Call::GetAllReplies { .. }
            | Call::SendReply { .. }
            | Call::Star { .. }
            | Call::Unstar { .. }
            | Call::MarkSeen { .. }
            | Call::DownloadSubmission { .. }
            | Call::DownloadReply { .. } => None,
            Call::DeleteSource { source, .. } => Some(Self::Source(*source)),
            Call::DeleteConversation { source, .. } => Some(Self::Conversation(*source)),
            Call::DeleteSubmission { submission, .. } => Some(Self::Item(ItemId::Submission(*submission))),
            Call::DeleteReply { reply, .. } => Some(Self::Item(ItemId::Reply(*reply))),
        }
    }
}

/// The targets that the calls of one session have named so far.
#[derive(Debug)]
pub struct DeleteTargets {
    limit: DeleteLimit,
    named: Mutex<BTreeSet<Target>>,
}

impl DeleteTargets {
    /// No targets yet, and at most `limit`.
    #[must_use]
    pub fn new(limit: DeleteLimit) -> Self {
        Self { limit, named: Mutex::new(BTreeSet::new()) }
    }

    /// Counts what `call` deletes, if it deletes anything.
    ///
    /// # Errors
    /// A `rate_limited` error when it names one target too many: another session, about which dom0 may ask again, takes it.
    /// That one is not counted.
    pub fn admit(&self, call: &Call) -> Result<(), CallError> {
        let Some(target) = Target::of(call) else { return Ok(()) };
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() >= self.limit.0 && !named.contains(&target) {
            let detail = format!("one session may delete {} targets ({})", self.limit.0, config::DELETE_LIMIT);
            return Err(
                CallError::new(ErrorKind::RateLimited, Stage::Admission, Retry::WhenUserActs).with_detail(&detail)
            );
        }
        named.insert(target);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use protocol::value::{Bounded, OrderNumber, Token};

    use super::*;

    const ID: &str = "9c5e2f10-1a2b-4c3d-8e4f-5a6b7c8d9e01";
    const OTHER: &str = "9c5e2f10-1a2b-4c3d-8e4f-5a6b7c8d9e02";

    fn token() -> Token {
        Token::try_new("t").unwrap()
    }

    fn source(id: &str) -> Call {
        Call::DeleteSource { token: token(), source: id.parse().unwrap() }
    }

    fn conversation(items: Vec<ItemId>) -> Call {
        let (items, upper_bound) = (Bounded::try_new(items).unwrap(), OrderNumber::MAX);
        Call::DeleteConversation { token: token(), source: ID.parse().unwrap(), items, upper_bound }
    }

    fn submission(source: &str) -> Call {
        let (source, submission) = (source.parse().unwrap(), ID.parse().unwrap());
        Call::DeleteSubmission { token: token(), source, submission }
    }

    fn reply() -> Call {
        Call::DeleteReply { token: token(), source: ID.parse().unwrap(), reply: ID.parse().unwrap() }
    }

    #[test]
    fn a_limit_is_a_number_in_its_range() {
        for (text, limit) in [("1", 1), ("200", 200), ("10000", 10_000)] {
            assert_eq!(DeleteLimit::parse(text), Some(DeleteLimit(limit)));
        }
        for text in ["", "0", "10001", "-1", "+5", "2e2", "200 ", "99999999999999999999999"] {
            assert_eq!(DeleteLimit::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn targets_are_told_apart_by_kind_and_id_and_count_once() {
        let items = vec![ItemId::Submission(ID.parse().unwrap()), ItemId::Submission(OTHER.parse().unwrap())];
        let calls = [source(ID), source(OTHER), conversation(items), submission(ID), reply()];
        let targets = DeleteTargets::new(DeleteLimit(calls.len()));
        for call in calls.iter().chain(&calls) {
            targets.admit(call).unwrap();
        }
        // What is left of a conversation, and an item in another source's name, are the same targets.
        targets.admit(&conversation(Vec::new())).unwrap();
        targets.admit(&submission(OTHER)).unwrap();

        let full = DeleteTargets::new(DeleteLimit(1));
        full.admit(&source(ID)).unwrap();
        for call in &calls[1..] {
            let error = full.admit(call).unwrap_err();
            assert_eq!((error.kind, error.stage), (ErrorKind::RateLimited, Stage::Admission));
            let detail = error.detail.unwrap();
            assert_eq!(detail.as_str(), "one session may delete 1 targets (SD_PROXY_DELETE_LIMIT)");
        }
    }

    #[test]
    fn what_deletes_nothing_has_no_limit() {
        let targets = DeleteTargets::new(DeleteLimit(1));
        targets.admit(&source(ID)).unwrap();
        targets.admit(&Call::Health).unwrap();
        targets.admit(&Call::Star { token: token(), source: ID.parse().unwrap() }).unwrap();
    }
}
