//! The calls that a client may make.
//!
//! **Invariant:** no URL, method, path or header crosses the boundary: a call names an operation and typed values.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::scope::Scope;
use crate::value::{
    ArmoredMessage, Bounded, ItemId, OneTimeCode, OrderNumber, Passphrase, Problem, ReplyId, RequestId, Size, SourceId,
    SubmissionId, Token, Username, ValueError,
};

/// The most items of each kind that one call marks as seen.
pub const MAX_SEEN: usize = 512;
/// The most items that one call deletes.
pub const MAX_DELETED: usize = 2048;

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

/// A call with its ids and its deadline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Names the call in its answer.
    pub id: CallId,
    /// Names the call in the logs of both VMs.
    pub request: RequestId,
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
    /// Stars a source, for all journalists. A source that is starred stays so.
    Star {
        /// The session.
        token: Token,
        /// The source.
        source: SourceId,
    },
    /// Takes a source's star away. A source without one stays so.
    Unstar {
        /// The session.
        token: Token,
        /// The source.
        source: SourceId,
    },
    /// Marks items as seen by the session's journalist: all, or none where the server does not have one of them.
    MarkSeen {
        /// The session.
        token: Token,
        /// Which items; at least one.
        items: SeenItems,
    },
    /// Deletes a source with all that belongs to it.
    DeleteSource {
        /// The session.
        token: Token,
        /// The source.
        source: SourceId,
    },
    /// Deletes items of one conversation and keeps the source. What the server received since the client's last look
    /// stays.
    DeleteConversation {
        /// The session.
        token: Token,
        /// Whose conversation.
        source: SourceId,
        /// The items that the client knows. Those that the server does not list for this source count as gone, and are not
        /// asked for.
        items: Bounded<ItemId, MAX_DELETED>,
        /// The highest order number among them: an item beyond it is not deleted, whatever its id.
        upper_bound: OrderNumber,
    },
    /// Deletes a message or a file.
    DeleteSubmission {
        /// The session.
        token: Token,
        /// Whose it is.
        source: SourceId,
        /// Which one.
        submission: SubmissionId,
    },
    /// Deletes a reply, for the journalists and for the source.
    DeleteReply {
        /// The session.
        token: Token,
        /// To whom it was.
        source: SourceId,
        /// Which one.
        reply: ReplyId,
    },
    /// Downloads the ciphertext of a message or a file.
    DownloadSubmission {
        /// The session.
        token: Token,
        /// Whose it is.
        source: SourceId,
        /// Which one.
        submission: SubmissionId,
        /// How many bytes the client has already: the answer begins there, or at 0 where the server does not resume.
        from: Size,
    },
    /// Downloads the ciphertext of a reply.
    DownloadReply {
        /// The session.
        token: Token,
        /// To whom it is.
        source: SourceId,
        /// Which one.
        reply: ReplyId,
        /// As for a submission.
        from: Size,
    },
    /// Sends a reply to a source, for all journalists to see. Repeated with the same id it is stored once: the server
    /// answers a second one with `conflict`, and has the first.
    SendReply {
        /// The session.
        token: Token,
        /// To whom.
        source: SourceId,
        /// The reply's id, which the client has chosen.
        reply: ReplyId,
        /// The reply, encrypted.
        message: ArmoredMessage,
    },
    /// Asks the server whether it is there, without a session and without any data of a user.
    Probe,
}

/// Items to mark as seen, by kind: the server keeps its marks by kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SeenItems {
    /// Files.
    pub files: Bounded<SubmissionId, MAX_SEEN>,
    /// Messages.
    pub messages: Bounded<SubmissionId, MAX_SEEN>,
    /// Replies.
    pub replies: Bounded<ReplyId, MAX_SEEN>,
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
            | Self::GetAllReplies { .. }
            | Self::Probe => Some(Scope::Metadata),
            Self::Star { .. } | Self::Unstar { .. } | Self::MarkSeen { .. } => Some(Scope::Mark),
            Self::DeleteSource { .. }
            | Self::DeleteConversation { .. }
            | Self::DeleteSubmission { .. }
            | Self::DeleteReply { .. } => Some(Scope::Delete),
            Self::DownloadSubmission { .. } | Self::DownloadReply { .. } => Some(Scope::Download),
            Self::SendReply { .. } => Some(Scope::Reply),
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
            Self::Star { .. } => "star",
            Self::Unstar { .. } => "unstar",
            Self::MarkSeen { .. } => "mark_seen",
            Self::DeleteSource { .. } => "delete_source",
            Self::DeleteConversation { .. } => "delete_conversation",
            Self::DeleteSubmission { .. } => "delete_submission",
            Self::DeleteReply { .. } => "delete_reply",
            Self::DownloadSubmission { .. } => "download_submission",
            Self::DownloadReply { .. } => "download_reply",
            Self::SendReply { .. } => "send_reply",
            Self::Probe => "probe",
        }
    }
}
