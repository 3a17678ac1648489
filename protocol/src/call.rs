//! The calls that a client may make.
//!
//! **Invariant:** no URL, method, path or header crosses the boundary: a call names an operation and typed values.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::scope::Scope;
use crate::value::{OneTimeCode, Passphrase, Problem, SourceId, Token, Username, ValueError};

/// Names a call within one qrexec call. Chosen by the client; free again once the call's answer has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallId(pub u32);

/// How long the proxy may take for a call: 1 ms to 24 h. A duration and no moment, since the VMs' clocks differ and jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32")]
pub struct Deadline(u32);

impl Deadline {
    /// The longest deadline, in milliseconds.
    pub const MAX_MS: u32 = 24 * 60 * 60 * 1000;

    /// Checks that `deadline` is 1 ms to 24 h; what is finer than a millisecond is cut.
    ///
    /// # Errors
    /// [`ValueError`] when it is not: a call without a deadline is refused.
    pub fn try_new(deadline: Duration) -> Result<Self, ValueError> {
        Self::try_from(u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX))
    }

    /// The deadline.
    #[must_use]
    pub fn get(self) -> Duration {
        Duration::from_millis(u64::from(self.0))
    }
}

impl TryFrom<u32> for Deadline {
    type Error = ValueError;

    fn try_from(ms: u32) -> Result<Self, ValueError> {
        if (1..=Self::MAX_MS).contains(&ms) {
            Ok(Self(ms))
        } else {
            Err(ValueError { what: "a deadline", problem: Problem::OutOfRange })
        }
    }
}

/// What the client sends after the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToProxy {
    /// Makes a call.
    Call(Request),
    /// Stops the call of that id, if it is still running. Its answer ends with a `cancelled` error, or with what was
    /// already under way.
    Cancel(CallId),
}

/// A call with its id and deadline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Names the call in its answer.
    pub id: CallId,
    /// How long the proxy may take.
    pub deadline: Deadline,
    /// What to do.
    pub call: Call,
}

/// An operation of the proxy. The ones that act for a journalist carry the session's token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Says how the proxy is; answered without asking the server.
    Health,
    /// Signs in. Never to be repeated by itself: the server takes each one-time code once, and a wrong passphrase uses
    /// it up too.
    Login {
        /// The journalist's login name.
        username: Username,
        /// The passphrase.
        passphrase: Passphrase,
        /// The one-time code.
        one_time_code: OneTimeCode,
    },
    /// Ends the session of the token.
    Logout {
        /// The session.
        token: Token,
    },
    /// Lists the journalists.
    GetUsers {
        /// The session.
        token: Token,
    },
    /// Lists the sources.
    GetSources {
        /// The session.
        token: Token,
    },
    /// Lists the submissions, of all sources or of one.
    GetSubmissions {
        /// The session.
        token: Token,
        /// The one source; `None` for all.
        source: Option<SourceId>,
    },
    /// Lists the replies to all sources.
    GetAllReplies {
        /// The session.
        token: Token,
    },
}

impl Call {
    /// The scope that the call belongs to; `None` for [`Call::Health`], which every scope has.
    #[must_use]
    pub fn scope(&self) -> Option<Scope> {
        match self {
            Self::Health => None,
            Self::Login { .. } | Self::Logout { .. } => Some(Scope::Session),
            Self::GetUsers { .. }
            | Self::GetSources { .. }
            | Self::GetSubmissions { .. }
            | Self::GetAllReplies { .. } => Some(Scope::Metadata),
        }
    }

    /// Whether a session of `scope` may perform the call.
    #[must_use]
    pub fn allowed_in(&self, scope: Scope) -> bool {
        self.scope().is_none_or(|own| own == scope)
    }

    /// The operation's name, for logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Login { .. } => "login",
            Self::Logout { .. } => "logout",
            Self::GetUsers { .. } => "get_users",
            Self::GetSources { .. } => "get_sources",
            Self::GetSubmissions { .. } => "get_submissions",
            Self::GetAllReplies { .. } => "get_all_replies",
        }
    }
}
