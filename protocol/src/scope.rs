//! Scopes: which kind of act a qrexec call may perform.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::value::{Problem, ValueError};

/// What one qrexec call of the service `splitdrop.Proxy` may be used for. dom0's policy names it as the service's
/// argument, and the proxy takes it from qrexec, never from the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// Signing in and out.
    Session,
    /// Listing sources, submissions, replies and journalists.
    Metadata,
    /// Starring sources and marking items as seen.
    Mark,
    /// Deleting sources and items. dom0 can be told to ask somebody first.
    Delete,
    /// Downloading what sources and journalists sent.
    Download,
    /// Sending replies to sources.
    Reply,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 6] = [Self::Session, Self::Metadata, Self::Mark, Self::Delete, Self::Download, Self::Reply];

    /// The scope's name: the argument of the qrexec service.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Metadata => "metadata",
            Self::Mark => "mark",
            Self::Delete => "delete",
            Self::Download => "download",
            Self::Reply => "reply",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.name() == text)
            .ok_or(ValueError { what: "a scope", problem: Problem::Malformed })
    }
}
