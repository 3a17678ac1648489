//! The requests that the proxy can make: the only place that forms a method, a path and a range, and says which status a
//! request is answered with.
//!
//! **Invariant:** a path is built from this file's own words and from ids, which hold nothing but hexadecimal digits and
//! hyphens.
//!
//! **Invariant:** only a download that does not begin at its first byte asks for a range.

use protocol::value::{ReplyId, Size, SourceId, SubmissionId};
use reqwest::{Method, StatusCode};

/// A request of version 1 of the Journalist API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// What the API consists of; shown to everybody.
    Root,
    /// Signing in.
    Token,
    /// Signing out.
    Logout,
    /// The journalists.
    Users,
    /// The sources.
    Sources,
    /// The submissions of all sources.
    Submissions,
    /// The submissions of one source.
    SourceSubmissions(SourceId),
    /// The replies to all sources.
    Replies,
    /// The replies to one source.
    SourceReplies(SourceId),
    /// Sending a reply to a source.
    SendReply(SourceId),
    /// Starring a source.
    AddStar(SourceId),
    /// Taking a source's star away.
    RemoveStar(SourceId),
    /// Marking items as seen.
    Seen,
    /// Deleting a source.
    DeleteSource(SourceId),
    /// Deleting a message or a file. The server checks that the source exists, and not that the item is its own.
    DeleteSubmission(SourceId, SubmissionId),
    /// Deleting a reply. The same holds.
    DeleteReply(SourceId, ReplyId),
    /// Downloading a message or a file, from that byte on. The same holds.
    DownloadSubmission(SourceId, SubmissionId, Size),
    /// Downloading a reply, from that byte on. The same holds.
    DownloadReply(SourceId, ReplyId, Size),
}

impl Endpoint {
    /// The request's method.
    pub(super) fn method(self) -> Method {
        match self {
            Self::Token | Self::Logout | Self::SendReply(_) | Self::AddStar(_) | Self::Seen => Method::POST,
            Self::Root
            | Self::Users
            | Self::Sources
            | Self::Submissions
            | Self::SourceSubmissions(_)
            | Self::Replies
            | Self::SourceReplies(_)
            | Self::DownloadSubmission(..)
            | Self::DownloadReply(..) => Method::GET,
            Self::RemoveStar(_) | Self::DeleteSource(_) | Self::DeleteSubmission(_, _) | Self::DeleteReply(_, _) => {
                Method::DELETE
            }
        }
    }

    /// The request's path.
    pub(super) fn path(self) -> String {
        match self {
            Self::Root => "/api/v1/".to_owned(),
            Self::Token => "/api/v1/token".to_owned(),
            Self::Logout => "/api/v1/logout".to_owned(),
            Self::Users => "/api/v1/users".to_owned(),
            Self::Sources => "/api/v1/sources".to_owned(),
            Self::Submissions => "/api/v1/submissions".to_owned(),
            Self::SourceSubmissions(source) => format!("/api/v1/sources/{source}/submissions"),
            Self::Replies => "/api/v1/replies".to_owned(),
            Self::SourceReplies(source) | Self::SendReply(source) => format!("/api/v1/sources/{source}/replies"),
            Self::AddStar(source) => format!("/api/v1/sources/{source}/add_star"),
            Self::RemoveStar(source) => format!("/api/v1/sources/{source}/remove_star"),
            Self::Seen => "/api/v1/seen".to_owned(),
            Self::DeleteSource(source) => format!("/api/v1/sources/{source}"),
            Self::DeleteSubmission(source, submission) => {
                format!("/api/v1/sources/{source}/submissions/{submission}")
            }
            Self::DeleteReply(source, reply) => format!("/api/v1/sources/{source}/replies/{reply}"),
            Self::DownloadSubmission(source, submission, _) => {
                format!("/api/v1/sources/{source}/submissions/{submission}/download")
            }
            Self::DownloadReply(source, reply, _) => format!("/api/v1/sources/{source}/replies/{reply}/download"),
        }
    }

    /// The request's `Range`, if it asks for a part: from a byte to the end.
    pub(super) fn range(self) -> Option<String> {
        self.downloads_from().filter(|from| from.get() > 0).map(|from| format!("bytes={}-", from.get()))
    }

    /// Where the request begins in a file, if the answer is one: bytes that are to come as they are, and no JSON.
    pub(super) fn downloads_from(self) -> Option<Size> {
        match self {
            Self::DownloadSubmission(_, _, from) | Self::DownloadReply(_, _, from) => Some(from),
            Self::Root
            | Self::Token
            | Self::Logout
            | Self::Users
            | Self::Sources
            | Self::Submissions
            | Self::SourceSubmissions(_)
            | Self::Replies
            | Self::SourceReplies(_)
            | Self::SendReply(_)
            | Self::AddStar(_)
            | Self::RemoveStar(_)
            | Self::Seen
            | Self::DeleteSource(_)
            | Self::DeleteSubmission(_, _)
            | Self::DeleteReply(_, _) => None,
        }
    }

    /// Whether the answer is a list, which the server makes whole before it sends any of it.
    pub(super) fn is_list(self) -> bool {
        match self {
            Self::Users
            | Self::Sources
            | Self::Submissions
            | Self::SourceSubmissions(_)
            | Self::Replies
            | Self::SourceReplies(_) => true,
            Self::Root
            | Self::Token
            | Self::Logout
            | Self::SendReply(_)
            | Self::AddStar(_)
            | Self::RemoveStar(_)
            | Self::Seen
            | Self::DeleteSource(_)
            | Self::DeleteSubmission(_, _)
            | Self::DeleteReply(_, _)
            | Self::DownloadSubmission(..)
            | Self::DownloadReply(..) => false,
        }
    }

    /// Whether `status` says that the server did what was asked. Any other status is a failure, another 2xx too: what it
    /// would mean is written nowhere.
    pub(super) fn succeeds_with(self, status: StatusCode) -> bool {
        match self {
            // What another success would say of the reply is written nowhere.
            Self::SendReply(_) => status == StatusCode::CREATED,
            // The server answers with 201, also where the source had a star. A 200 can mean nothing else either.
            Self::AddStar(_) => status == StatusCode::CREATED || status == StatusCode::OK,
            // A server that does not resume answers with the whole.
            Self::DownloadSubmission(..) | Self::DownloadReply(..) => {
                status == StatusCode::OK || (status == StatusCode::PARTIAL_CONTENT && self.range().is_some())
            }
            Self::Root
            | Self::Token
            | Self::Logout
            | Self::Users
            | Self::Sources
            | Self::Submissions
            | Self::SourceSubmissions(_)
            | Self::Replies
            | Self::SourceReplies(_)
            | Self::RemoveStar(_)
            | Self::Seen
            | Self::DeleteSource(_)
            | Self::DeleteSubmission(_, _)
            | Self::DeleteReply(_, _) => status == StatusCode::OK,
        }
    }

    /// The endpoint's name, for logs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Token => "token",
            Self::Logout => "logout",
            Self::Users => "users",
            Self::Sources => "sources",
            Self::Submissions => "submissions",
            Self::SourceSubmissions(_) => "source_submissions",
            Self::Replies => "replies",
            Self::SourceReplies(_) => "source_replies",
            Self::SendReply(_) => "send_reply",
            Self::AddStar(_) => "add_star",
            Self::RemoveStar(_) => "remove_star",
            Self::Seen => "seen",
            Self::DeleteSource(_) => "delete_source",
            Self::DeleteSubmission(_, _) => "delete_submission",
            Self::DeleteReply(_, _) => "delete_reply",
            Self::DownloadSubmission(..) => "download_submission",
            Self::DownloadReply(..) => "download_reply",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Origin;

    #[test]
    fn an_id_is_one_component_of_the_path_as_it_is_spelled() {
        let source: SourceId = "0F3A1B52-8c1d-4e6f-9a7b-2c4d6e8f0a1b".parse().unwrap();
        let path = Endpoint::SourceSubmissions(source).path();
        assert_eq!(path, "/api/v1/sources/0F3A1B52-8c1d-4e6f-9a7b-2c4d6e8f0a1b/submissions");
        let url = Origin::parse("http://127.0.0.1:8081").unwrap().at(&path);
        assert_eq!(url.as_str(), format!("http://127.0.0.1:8081{path}"));

        let reply: ReplyId = "A7c2e9f4-0d1b-4c3a-8e5f-6b7a8c9d0e1f".parse().unwrap();
        let path = Endpoint::DeleteReply(source, reply).path();
        assert_eq!(
            path,
            "/api/v1/sources/0F3A1B52-8c1d-4e6f-9a7b-2c4d6e8f0a1b/replies/A7c2e9f4-0d1b-4c3a-8e5f-6b7a8c9d0e1f"
        );
    }

    #[test]
    fn a_download_asks_for_a_range_only_where_it_goes_on() {
        let source: SourceId = "0f3a1b52-8c1d-4e6f-9a7b-2c4d6e8f0a1b".parse().unwrap();
        let of = |from| {
            let from = Size::try_new(from).unwrap();
            let submission = "a7c2e9f4-0d1b-4c3a-8e5f-6b7a8c9d0e1f".parse().unwrap();
            Endpoint::DownloadSubmission(source, submission, from)
        };
        assert_eq!((of(0).range(), of(0).path()), (None, of(7).path()));
        assert_eq!(of(1).range().unwrap(), "bytes=1-");
        assert_eq!(of(Size::MAX.get()).range().unwrap(), "bytes=9223372036854775807-");
        assert!(of(0).succeeds_with(StatusCode::OK) && !of(0).succeeds_with(StatusCode::PARTIAL_CONTENT));
        assert!(of(1).succeeds_with(StatusCode::OK) && of(1).succeeds_with(StatusCode::PARTIAL_CONTENT));
    }

    #[test]
    fn hostile_ids_never_get_here() {
        for text in ["../../../../api/v1/logout/x/y/z/aaaa1", "0f3a1b52-8c1d-4e6f-9a7b-2c4d6e8f0a1?", "%2e%2e", ""] {
            assert!(text.parse::<SourceId>().is_err(), "{text}");
            assert!(text.parse::<SubmissionId>().is_err(), "{text}");
            assert!(text.parse::<ReplyId>().is_err(), "{text}");
        }
    }
}
