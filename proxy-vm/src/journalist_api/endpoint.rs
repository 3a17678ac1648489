//! The requests that the proxy can make: the only place that forms a method and a path.
//!
//! **Invariant:** a path is built from this file's own words and from ids, which hold nothing but hexadecimal digits and
//! hyphens.

use protocol::value::SourceId;
use reqwest::Method;

/// A resource of version 1 of the Journalist API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
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
}

impl Endpoint {
    /// The request's method.
    pub(super) fn method(self) -> Method {
        match self {
            Self::Token | Self::Logout => Method::POST,
            Self::Users | Self::Sources | Self::Submissions | Self::SourceSubmissions(_) | Self::Replies => Method::GET,
        }
    }

    /// The request's path.
    pub(super) fn path(self) -> String {
        match self {
            Self::Token => "/api/v1/token".to_owned(),
            Self::Logout => "/api/v1/logout".to_owned(),
            Self::Users => "/api/v1/users".to_owned(),
            Self::Sources => "/api/v1/sources".to_owned(),
            Self::Submissions => "/api/v1/submissions".to_owned(),
            Self::SourceSubmissions(source) => format!("/api/v1/sources/{source}/submissions"),
            Self::Replies => "/api/v1/replies".to_owned(),
        }
    }

    /// The endpoint's name, for logs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Logout => "logout",
            Self::Users => "users",
            Self::Sources => "sources",
            Self::Submissions => "submissions",
            Self::SourceSubmissions(_) => "source_submissions",
            Self::Replies => "replies",
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
    }

    #[test]
    fn hostile_ids_never_get_here() {
        for text in ["../../../../api/v1/logout/x/y/z/aaaa1", "0f3a1b52-8c1d-4e6f-9a7b-2c4d6e8f0a1?", "%2e%2e", ""] {
            assert!(text.parse::<SourceId>().is_err(), "{text}");
        }
    }
}
