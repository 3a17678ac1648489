//! The server's JSON, version 1 of the Journalist API.
//!
//! Records keep each field raw, so that a field that cannot be read is told apart from the record around it. Fields that
//! are not used are not named and do not matter.

use protocol::value::{JournalistId, ReplyId, SubmissionId, Token};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A field of a record: `None` when it is absent or null.
pub(super) type Raw<'a> = Option<&'a RawValue>;

/// What the API consists of. Only this much of it is looked at: nothing else than SecureDrop says it.
#[derive(Debug, Deserialize)]
pub(super) struct Root<'a> {
    #[serde(borrow, rename = "auth_token_url")]
    pub(super) _auth_token_url: std::borrow::Cow<'a, str>,
    #[serde(borrow, rename = "sources_url")]
    pub(super) _sources_url: std::borrow::Cow<'a, str>,
}

/// An entry of `/sources`.
#[derive(Debug, Deserialize)]
pub(super) struct Source<'a> {
    #[serde(borrow)]
    pub(super) uuid: Raw<'a>,
    #[serde(borrow)]
    pub(super) journalist_designation: Raw<'a>,
    #[serde(borrow)]
    pub(super) is_starred: Raw<'a>,
    #[serde(borrow)]
    pub(super) last_updated: Raw<'a>,
    #[serde(borrow)]
    pub(super) interaction_count: Raw<'a>,
    #[serde(borrow)]
    pub(super) key: Raw<'a>,
}

/// A source's `key`: without a key both fields are null.
#[derive(Debug, Deserialize)]
pub(super) struct Key<'a> {
    #[serde(borrow)]
    pub(super) public: Raw<'a>,
    #[serde(borrow)]
    pub(super) fingerprint: Raw<'a>,
}

/// An entry of `/submissions`.
#[derive(Debug, Deserialize)]
pub(super) struct Submission<'a> {
    #[serde(borrow)]
    pub(super) uuid: Raw<'a>,
    #[serde(borrow)]
    pub(super) source_url: Raw<'a>,
    #[serde(borrow)]
    pub(super) filename: Raw<'a>,
    #[serde(borrow)]
    pub(super) size: Raw<'a>,
    #[serde(borrow)]
    pub(super) is_file: Raw<'a>,
    #[serde(borrow)]
    pub(super) is_message: Raw<'a>,
    #[serde(borrow)]
    pub(super) is_read: Raw<'a>,
    #[serde(borrow)]
    pub(super) seen_by: Raw<'a>,
}

/// An entry of `/replies`.
#[derive(Debug, Deserialize)]
pub(super) struct Reply<'a> {
    #[serde(borrow)]
    pub(super) uuid: Raw<'a>,
    #[serde(borrow)]
    pub(super) source_url: Raw<'a>,
    #[serde(borrow)]
    pub(super) filename: Raw<'a>,
    #[serde(borrow)]
    pub(super) size: Raw<'a>,
    #[serde(borrow)]
    pub(super) journalist_uuid: Raw<'a>,
    #[serde(borrow)]
    pub(super) is_deleted_by_source: Raw<'a>,
    #[serde(borrow)]
    pub(super) seen_by: Raw<'a>,
}

/// An entry of `/users`.
#[derive(Debug, Deserialize)]
pub(super) struct User<'a> {
    #[serde(borrow)]
    pub(super) uuid: Raw<'a>,
    #[serde(borrow)]
    pub(super) username: Raw<'a>,
    #[serde(borrow)]
    pub(super) first_name: Raw<'a>,
    #[serde(borrow)]
    pub(super) last_name: Raw<'a>,
}

/// What submissions and replies have in common, as far as it says which item an entry is.
#[derive(Debug, Deserialize)]
pub(super) struct Item<'a> {
    #[serde(borrow)]
    pub(super) uuid: Raw<'a>,
    #[serde(borrow)]
    pub(super) source_url: Raw<'a>,
    #[serde(borrow)]
    pub(super) filename: Raw<'a>,
}

/// What is left of an entry that is not as it should be.
#[derive(Debug, Deserialize)]
pub(super) struct IdAlone<'a> {
    #[serde(borrow)]
    pub(super) uuid: Raw<'a>,
}

/// The body of a login.
#[derive(Serialize)]
pub(super) struct LoginRequest<'a> {
    pub(super) username: &'a str,
    pub(super) passphrase: &'a str,
    pub(super) one_time_code: &'a str,
}

/// The body of a call that marks items as seen. The server takes an empty list for none given.
#[derive(Debug, Serialize)]
pub(super) struct SeenRequest<'a> {
    #[serde(skip_serializing_if = "<[SubmissionId]>::is_empty")]
    pub(super) files: &'a [SubmissionId],
    #[serde(skip_serializing_if = "<[SubmissionId]>::is_empty")]
    pub(super) messages: &'a [SubmissionId],
    #[serde(skip_serializing_if = "<[ReplyId]>::is_empty")]
    pub(super) replies: &'a [ReplyId],
}

/// The body of a reply.
#[derive(Serialize)]
pub(super) struct ReplyRequest<'a> {
    /// The armored message.
    pub(super) reply: &'a str,
    pub(super) uuid: ReplyId,
}

/// The answer to a reply.
#[derive(Debug, Deserialize)]
pub(super) struct ReplyAnswer<'a> {
    #[serde(borrow)]
    pub(super) uuid: Raw<'a>,
    #[serde(borrow)]
    pub(super) filename: Raw<'a>,
}

/// The answer to a login.
#[derive(Debug, Deserialize)]
pub(super) struct LoginAnswer<'a> {
    pub(super) token: Token,
    pub(super) expiration: String,
    pub(super) journalist_uuid: JournalistId,
    #[serde(borrow)]
    pub(super) journalist_first_name: Raw<'a>,
    #[serde(borrow)]
    pub(super) journalist_last_name: Raw<'a>,
    /// Only where the server speaks version 2 and was asked for it.
    #[serde(borrow)]
    pub(super) hints: Raw<'a>,
}
