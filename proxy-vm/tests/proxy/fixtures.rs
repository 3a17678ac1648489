//! Records as servers write them, all made up.

use serde_json::{Value, json};

/// The `n`th id of a kind.
pub(crate) fn id(kind: u32, n: usize) -> String {
    format!("{kind:08x}-1111-4222-8333-{n:012x}")
}

fn armored(n: usize) -> String {
    let line = format!("{n:064}\n");
    format!(
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\nComment: made up\n\n{}-----END PGP PUBLIC KEY BLOCK-----\n",
        line.repeat(65)
    )
}

/// A source; `newer` servers add fields and leave the zone out of a time stamp.
pub(crate) fn source(n: usize, newer: bool) -> Value {
    let id = id(1, n);
    let mut source = json!({
        "uuid": id, "url": format!("/api/v1/sources/{id}"), "journalist_designation": format!("quiet meadow {n}"),
        "is_flagged": false, "is_starred": n.is_multiple_of(2), "last_updated": "2026-03-04T05:06:07.000008Z",
        "interaction_count": n, "number_of_documents": 0, "number_of_messages": n,
        "key": {"type": "PGP", "public": armored(n), "fingerprint": format!("{n:040X}")},
        "submissions_url": format!("/api/v1/sources/{id}/submissions"),
        "add_star_url": format!("/api/v1/sources/{id}/add_star"),
        "remove_star_url": format!("/api/v1/sources/{id}/remove_star"),
        "replies_url": format!("/api/v1/sources/{id}/replies"),
    });
    if newer {
        source["has_attachment"] = json!(false);
        source["is_seen"] = json!(true);
        source["last_updated"] = json!("2026-03-04T05:06:07.000008");
    }
    source
}

pub(crate) fn submission(n: usize, of: usize) -> Value {
    let (id, source) = (id(2, n), id(1, of));
    let (file, suffix) = if n.is_multiple_of(3) { (true, "doc.gz.gpg") } else { (false, "msg.gpg") };
    json!({
        "uuid": id, "source_url": format!("/api/v1/sources/{source}"),
        "submission_url": format!("/api/v1/sources/{source}/submissions/{id}"),
        "download_url": format!("/api/v1/sources/{source}/submissions/{id}/download"),
        "filename": format!("{n}-quiet_meadow-{suffix}"), "size": 600 + n, "is_file": file, "is_message": !file,
        "is_read": true, "seen_by": [self::id(4, 2), self::id(4, 1)],
    })
}

pub(crate) fn reply(n: usize, to: usize) -> Value {
    let (id, source) = (id(3, n), id(1, to));
    json!({
        "uuid": id, "source_url": format!("/api/v1/sources/{source}"),
        "reply_url": format!("/api/v1/sources/{source}/replies/{id}"),
        "filename": format!("{n}-quiet_meadow-reply.gpg"), "size": 1100 + n, "journalist_username": "ada",
        "journalist_first_name": "", "journalist_last_name": "", "journalist_uuid": self::id(4, 1),
        "is_deleted_by_source": false, "seen_by": [self::id(4, 1)],
    })
}

pub(crate) fn user(n: usize) -> Value {
    json!({"uuid": id(4, n), "username": format!("user{n}"), "first_name": null, "last_name": null})
}

/// The answer that lists `records` under `key`.
pub(crate) fn list(key: &str, records: Vec<Value>) -> String {
    let mut list = serde_json::Map::new();
    list.insert(key.to_owned(), Value::from(records));
    Value::Object(list).to_string()
}

pub(crate) fn sources(count: usize) -> String {
    list("sources", (1..=count).map(|n| source(n, false)).collect())
}

/// The answer to a login.
pub(crate) fn signed_in() -> Value {
    json!({
        "token": "made.up-token_1", "expiration": "2026-03-04T07:06:07.000008Z", "journalist_uuid": id(4, 1),
        "journalist_first_name": null, "journalist_last_name": null,
    })
}

/// The list of `path`, small.
pub(crate) fn any_list(path: &str) -> String {
    if path.ends_with("/submissions") {
        list("submissions", (1..=4).map(|n| submission(n, 1)).collect())
    } else if path.ends_with("/replies") {
        list("replies", (1..=3).map(|n| reply(n, 1)).collect())
    } else if path.ends_with("/users") {
        list("users", (1..=2).map(user).collect())
    } else {
        sources(2)
    }
}
