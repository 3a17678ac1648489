//! The JSON of the API's records: fields in alphabetical order, as the real server sorts them.
//!
//! Everything borrows from the [`World`]; nothing of it is copied but the addresses that are put together here.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::flavour::ApiFlavour;
use super::world::{Journalist, RecordId, Reply, Source, Submission, World};

/// How to write records this time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pen {
    pub(crate) flavour: ApiFlavour,
    /// Whether to name those who saw an item in reverse: the API promises no order.
    pub(crate) reverse_marks: bool,
    /// For sources of which nobody knows when they were last heard of.
    pub(crate) now: Timestamp,
}

#[derive(Serialize)]
pub(crate) struct RootJson {
    all_users_url: &'static str,
    auth_token_url: &'static str,
    current_user_url: &'static str,
    replies_url: &'static str,
    seen_url: &'static str,
    sources_url: &'static str,
    submissions_url: &'static str,
}

pub(crate) const ROOT: RootJson = RootJson {
    all_users_url: "/api/v1/users",
    auth_token_url: "/api/v1/token",
    current_user_url: "/api/v1/user",
    replies_url: "/api/v1/replies",
    seen_url: "/api/v1/seen",
    sources_url: "/api/v1/sources",
    submissions_url: "/api/v1/submissions",
};

#[derive(Serialize)]
pub(crate) struct SourcesJson<'a> {
    sources: Vec<SourceJson<'a>>,
}

#[derive(Serialize)]
pub(crate) struct SubmissionsJson<'a> {
    submissions: Vec<SubmissionJson<'a>>,
}

#[derive(Serialize)]
pub(crate) struct RepliesJson<'a> {
    replies: Vec<ReplyJson<'a>>,
}

#[derive(Serialize)]
pub(crate) struct UsersJson<'a> {
    users: Vec<UserJson<'a>>,
}

#[derive(Serialize)]
struct KeyJson<'a> {
    fingerprint: Option<&'a str>,
    public: Option<&'a RawValue>,
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
pub(crate) struct SourceJson<'a> {
    add_star_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    has_attachment: Option<bool>,
    interaction_count: u64,
    is_flagged: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_seen: Option<bool>,
    is_starred: bool,
    journalist_designation: &'a str,
    key: KeyJson<'a>,
    last_updated: String,
    number_of_documents: usize,
    number_of_messages: usize,
    remove_star_url: String,
    replies_url: String,
    submissions_url: String,
    url: String,
    uuid: &'a RecordId,
}

#[derive(Serialize)]
pub(crate) struct SubmissionJson<'a> {
    download_url: String,
    filename: &'a str,
    is_file: bool,
    is_message: bool,
    is_read: bool,
    seen_by: Vec<&'a RecordId>,
    size: u64,
    source_url: String,
    submission_url: String,
    uuid: &'a RecordId,
}

#[derive(Serialize)]
pub(crate) struct ReplyJson<'a> {
    filename: &'a str,
    is_deleted_by_source: bool,
    journalist_first_name: &'a str,
    journalist_last_name: &'a str,
    journalist_username: &'a str,
    journalist_uuid: &'a RecordId,
    reply_url: String,
    seen_by: Vec<&'a RecordId>,
    size: u64,
    source_url: String,
    uuid: &'a RecordId,
}

#[derive(Serialize)]
struct UserJson<'a> {
    first_name: Option<&'a str>,
    last_name: Option<&'a str>,
    username: &'a str,
    uuid: &'a RecordId,
}

#[derive(Serialize)]
pub(crate) struct CurrentUserJson<'a> {
    first_name: Option<&'a str>,
    is_admin: bool,
    last_login: Option<String>,
    last_name: Option<&'a str>,
    username: &'a str,
    uuid: &'a RecordId,
}

#[derive(Serialize)]
pub(crate) struct HintsJson {
    pub(crate) items: usize,
    pub(crate) sources: usize,
    pub(crate) version: String,
}

#[derive(Serialize)]
pub(crate) struct TokenJson<'a> {
    pub(crate) expiration: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hints: Option<HintsJson>,
    pub(crate) journalist_first_name: Option<&'a str>,
    pub(crate) journalist_last_name: Option<&'a str>,
    pub(crate) journalist_uuid: &'a RecordId,
    pub(crate) token: &'a str,
}

impl Pen {
    pub(crate) fn source<'a>(&self, world: &'a World, source: &'a Source) -> SourceJson<'a> {
        let url = source_url(&source.id);
        let files = || world.submissions_of(source).filter(|s| s.kind.is_file());
        let documents = files().count();
        let newer = self.flavour.is_newer();
        let key = source.key.as_deref();
        SourceJson {
            add_star_url: format!("{url}/add_star"),
            has_attachment: newer.then_some(documents > 0),
            interaction_count: source.interaction_count,
            is_flagged: false,
            is_seen: newer.then(|| {
                world.submissions_of(source).all(is_read) && world.replies_of(source).all(|r| !r.seen_by.is_empty())
            }),
            is_starred: source.is_starred,
            journalist_designation: &source.designation,
            key: KeyJson {
                fingerprint: key.map(|key| key.fingerprint.as_str()),
                public: key.and_then(|key| key.armor_json.as_deref()),
                kind: "PGP",
            },
            last_updated: self.flavour.date(source.last_updated.unwrap_or(self.now)),
            number_of_documents: documents,
            number_of_messages: world.submissions_of(source).count() - documents,
            remove_star_url: format!("{url}/remove_star"),
            replies_url: format!("{url}/replies"),
            submissions_url: format!("{url}/submissions"),
            url,
            uuid: &source.id,
        }
    }

    pub(crate) fn submission<'a>(&self, submission: &'a Submission) -> SubmissionJson<'a> {
        let source_url = source_url(&submission.source);
        let submission_url = format!("{source_url}/submissions/{}", submission.id);
        SubmissionJson {
            download_url: format!("{submission_url}/download"),
            filename: &submission.filename,
            is_file: submission.kind.is_file(),
            is_message: !submission.kind.is_file(),
            is_read: is_read(submission),
            seen_by: self.marks(&submission.seen_by),
            size: submission.size,
            source_url,
            submission_url,
            uuid: &submission.id,
        }
    }

    /// A reply, by somebody among `authors`; nothing when its author is not there.
    pub(crate) fn reply<'a>(
        &self,
        authors: &HashMap<&'a RecordId, &'a Journalist>,
        reply: &'a Reply,
    ) -> Option<ReplyJson<'a>> {
        let author = authors.get(&reply.author)?;
        let source_url = source_url(&reply.source);
        Some(ReplyJson {
            filename: &reply.filename,
            is_deleted_by_source: reply.is_deleted_by_source,
            journalist_first_name: author.first_name.as_deref().unwrap_or_default(),
            journalist_last_name: author.last_name.as_deref().unwrap_or_default(),
            journalist_username: &author.username,
            journalist_uuid: &author.id,
            reply_url: format!("{source_url}/replies/{}", reply.id),
            seen_by: self.marks(&reply.seen_by),
            size: reply.size,
            source_url,
            uuid: &reply.id,
        })
    }

    pub(crate) fn sources<'a>(&self, world: &'a World, sources: impl Iterator<Item = &'a Source>) -> SourcesJson<'a> {
        SourcesJson { sources: sources.map(|source| self.source(world, source)).collect() }
    }

    pub(crate) fn submissions<'a>(&self, submissions: impl Iterator<Item = &'a Submission>) -> SubmissionsJson<'a> {
        SubmissionsJson { submissions: submissions.map(|item| self.submission(item)).collect() }
    }

    pub(crate) fn replies<'a>(&self, world: &'a World, replies: impl Iterator<Item = &'a Reply>) -> RepliesJson<'a> {
        let authors = authors(world);
        RepliesJson { replies: replies.filter_map(|reply| self.reply(&authors, reply)).collect() }
    }

    pub(crate) fn users<'a>(&self, world: &'a World) -> UsersJson<'a> {
        UsersJson {
            users: world
                .journalists()
                .iter()
                .map(|journalist| UserJson {
                    first_name: journalist.first_name.as_deref(),
                    last_name: journalist.last_name.as_deref(),
                    username: &journalist.username,
                    uuid: &journalist.id,
                })
                .collect(),
        }
    }

    pub(crate) fn current_user<'a>(&self, journalist: &'a Journalist) -> CurrentUserJson<'a> {
        CurrentUserJson {
            first_name: journalist.first_name.as_deref(),
            is_admin: journalist.is_admin,
            last_login: journalist.last_login.map(|at| self.flavour.date(at)),
            last_name: journalist.last_name.as_deref(),
            username: &journalist.username,
            uuid: &journalist.id,
        }
    }

    fn marks<'a>(&self, seen_by: &'a [RecordId]) -> Vec<&'a RecordId> {
        let mut marks: Vec<_> = seen_by.iter().collect();
        if self.reverse_marks {
            marks.reverse();
        }
        marks
    }
}

/// All journalists by id.
pub(crate) fn authors(world: &World) -> HashMap<&RecordId, &Journalist> {
    world.journalists().iter().map(|j| (&j.id, j)).collect()
}

fn is_read(submission: &Submission) -> bool {
    submission.is_downloaded || !submission.seen_by.is_empty()
}

fn source_url(id: &RecordId) -> String {
    format!("/api/v1/sources/{id}")
}
