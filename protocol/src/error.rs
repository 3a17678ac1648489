//! How a call can fail, and what to do then.

use serde::{Deserialize, Serialize};

use crate::value::Detail;

/// A call failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}{}", .kind.describe(), .detail.as_ref().map(|detail| format!(" ({})", detail.as_str())).unwrap_or_default())]
pub struct CallError {
    /// What went wrong.
    pub kind: ErrorKind,
    /// How far the call had come.
    pub stage: Stage,
    /// When it makes sense to try again.
    pub retry: Retry,
    /// More for a person; bounded, and never a secret, a header or an address.
    pub detail: Option<Detail>,
}

impl CallError {
    /// An error without detail.
    #[must_use]
    pub fn new(kind: ErrorKind, stage: Stage, retry: Retry) -> Self {
        Self { kind, stage, retry, detail: None }
    }

    /// The same error with a detail of this program's own words.
    #[must_use]
    pub fn with_detail(mut self, text: &str) -> Self {
        self.detail = Detail::from_own_text(text);
        self
    }
}

/// What went wrong. The kinds are disjoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The server does not accept the session or the credentials.
    Unauthorized,
    /// What the call names does not exist.
    NotFound,
    /// The call contradicts the server's state.
    Conflict,
    /// The server, or the proxy's own rules, refuse the call as it is.
    Refused,
    /// Too many calls in too short a time, or at the same time.
    RateLimited,
    /// The server has a fault of its own.
    Server,
    /// No connection to the server.
    Unreachable,
    /// A deadline ran out.
    Timeout,
    /// The server's answer cannot be understood, or was cut short.
    BadResponse,
    /// The call does not belong to the session's scope.
    OutOfScope,
    /// The answer is over a limit.
    TooLarge,
    /// The client cancelled the call.
    Cancelled,
    /// A fault in the proxy.
    Internal,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::Unauthorized,
        Self::NotFound,
        Self::Conflict,
        Self::Refused,
        Self::RateLimited,
        Self::Server,
        Self::Unreachable,
        Self::Timeout,
        Self::BadResponse,
        Self::OutOfScope,
        Self::TooLarge,
        Self::Cancelled,
        Self::Internal,
    ];

    /// The kind's name in logs and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::RateLimited => "rate_limited",
            Self::Server => "server",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::BadResponse => "bad_response",
            Self::OutOfScope => "out_of_scope",
            Self::TooLarge => "too_large",
            Self::Cancelled => "cancelled",
            Self::Internal => "internal",
        }
    }

    /// The kind in a few words.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Unauthorized => "the server does not accept the session or the credentials",
            Self::NotFound => "the server does not have it",
            Self::Conflict => "the server's state does not allow it",
            Self::Refused => "refused",
            Self::RateLimited => "too many calls",
            Self::Server => "the server has a fault",
            Self::Unreachable => "the server cannot be reached",
            Self::Timeout => "it took too long",
            Self::BadResponse => "the server's answer cannot be understood",
            Self::OutOfScope => "the call does not belong to this scope",
            Self::TooLarge => "the answer is too large",
            Self::Cancelled => "cancelled",
            Self::Internal => "a fault in the proxy",
        }
    }
}

/// How far a call had come when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// Before anything was sent anywhere: the proxy did not take the call up.
    Admission,
    /// Reaching the SOCKS server (Tor) in the proxy's VM.
    Socks,
    /// Tor's way to the server: the SOCKS server answered that it has none.
    Route,
    /// The connection to the server, TLS included.
    Connect,
    /// Sending the request and waiting for the answer's first byte.
    FirstByte,
    /// Reading the answer's body.
    Body,
    /// Understanding the answer.
    Parse,
}

impl Stage {
    /// The stage's name in logs and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Socks => "socks",
            Self::Route => "route",
            Self::Connect => "connect",
            Self::FirstByte => "first_byte",
            Self::Body => "body",
            Self::Parse => "parse",
        }
    }

    /// Whether the server certainly never saw the request.
    #[must_use]
    pub fn before_the_server(self) -> bool {
        match self {
            Self::Admission | Self::Socks | Self::Route | Self::Connect => true,
            Self::FirstByte | Self::Body | Self::Parse => false,
        }
    }
}

/// When it makes sense to try a failed call again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Retry {
    /// At once.
    Now,
    /// After a wait.
    Later {
        /// At least so long, in milliseconds, where the server said so.
        wait_ms: Option<u32>,
    },
    /// When the user has done something about it.
    WhenUserActs,
    /// Not at all: the same call will fail the same way.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ErrorKind::ALL.len());
    }

    #[test]
    fn an_error_says_its_kind_and_detail() {
        let error = CallError::new(ErrorKind::Server, Stage::FirstByte, Retry::Later { wait_ms: None });
        assert_eq!(error.to_string(), "the server has a fault");
        assert_eq!(error.with_detail("HTTP 502").to_string(), "the server has a fault (HTTP 502)");
    }
}
