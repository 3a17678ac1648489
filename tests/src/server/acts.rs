//! What journalists do: stars, seen marks, deletions.
//!
//! As on a real server, an act that finds things the way it wants them succeeds or is not found, by its kind: stars and
//! marks succeed, deletions of what is gone do not, and emptying an empty conversation does.
//!
//! **Invariant:** an act takes effect whole, under one lock of the world, before its answer is made. The one exception is
//! the real server's: it deletes row after row, and a row whose file is missing ends that in the middle.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{delete, post};
use serde::Serialize;
use serde_json::Value;

use super::answer::{Answer, Refusal, SeenKind, json};
use super::desk::{Desk, SignedIn};
use super::world::{Deletion, RecordId, World, WorldError};

/// All acts but sending replies.
pub(crate) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route(
            "/api/v1/sources/{source}",
            delete(|State(desk): State<Arc<Desk>>, Path(source): Path<String>| async move {
                delete_source(&desk, &source)
            }),
        )
        .route(
            "/api/v1/sources/{source}/conversation",
            delete(|State(desk): State<Arc<Desk>>, Path(source): Path<String>| async move {
                deleted(desk.world().delete_conversation_by_journalist(&source), "Source data deleted")
            }),
        )
        .route(
            "/api/v1/sources/{source}/add_star",
            post(|State(desk): State<Arc<Desk>>, Path(source): Path<String>, body: Bytes| async move {
                check_optional(&body)?;
                desk.world().star_by_journalist(&source, true).map_err(not_found)?;
                Answer::Ok(said(StatusCode::CREATED, "Star added"))
            }),
        )
        .route(
            "/api/v1/sources/{source}/remove_star",
            delete(|State(desk): State<Arc<Desk>>, Path(source): Path<String>| async move {
                desk.world().star_by_journalist(&source, false).map_err(not_found)?;
                Answer::Ok(said(StatusCode::OK, "Star removed"))
            }),
        )
        .route(
            "/api/v1/sources/{source}/flag",
            post(|State(desk): State<Arc<Desk>>, Path(source): Path<String>, body: Bytes| async move {
                check_optional(&body)?;
                desk.world().source(&source).ok_or(Refusal::NotFound)?;
                Answer::Ok(said(StatusCode::OK, "Sources no longer need to be flagged for reply"))
            }),
        )
        .route(
            "/api/v1/sources/{source}/submissions/{item}",
            delete(|State(desk): State<Arc<Desk>>, Path(path): Path<(String, String)>| async move {
                delete_item(&desk, &path, World::delete_submission_by_journalist, "Submission deleted")
            }),
        )
        .route(
            "/api/v1/sources/{source}/replies/{item}",
            delete(|State(desk): State<Arc<Desk>>, Path(path): Path<(String, String)>| async move {
                delete_item(&desk, &path, World::delete_reply_by_journalist, "Reply deleted")
            }),
        )
        .route(
            "/api/v1/seen",
            post(
                |State(desk): State<Arc<Desk>>,
                 Extension(who): Extension<SignedIn>,
                 headers: HeaderMap,
                 body: Bytes| async move { mark_seen(&desk, &who, &headers, &body) },
            ),
        )
}

/// A body that may be missing, but must be JSON when it is there. What it says is of no interest.
pub(crate) fn check_optional(body: &[u8]) -> Result<(), Refusal> {
    match body.is_empty() || serde_json::from_slice::<Value>(body).is_ok() {
        true => Ok(()),
        false => Err(Refusal::Malformed),
    }
}

fn delete_source(desk: &Desk, source: &str) -> Answer {
    let mut world = desk.world();
    world.delete_source_by_journalist(source).map_err(not_found)?;
    if desk.options.purge_at_once {
        world.purge_source(&source.into()).map_err(not_found)?;
    }
    Ok(said(StatusCode::OK, "Source and submissions deleted"))
}

/// Deletes an item. The source in its path must exist and need not be the item's.
fn delete_item(
    desk: &Desk,
    (source, item): &(String, String),
    delete: fn(&mut World, &str) -> Result<Deletion, WorldError>,
    words: &'static str,
) -> Answer {
    let mut world = desk.world();
    world.source(source).ok_or(Refusal::NotFound)?;
    deleted(delete(&mut world, item), words)
}

fn deleted(deletion: Result<Deletion, WorldError>, words: &'static str) -> Answer {
    match deletion.map_err(not_found)? {
        Deletion::Clean => Ok(said(StatusCode::OK, words)),
        Deletion::FileMissing => Err(Refusal::Internal),
    }
}

/// Marks files, messages and replies seen: all that are named, or none.
fn mark_seen(desk: &Desk, who: &SignedIn, headers: &HeaderMap, body: &[u8]) -> Answer {
    let body: Value = serde_json::from_slice(body).map_err(|_| Refusal::Malformed)?;
    if !says_json(headers) {
        return Err(Refusal::UndeclaredJson);
    }
    let Value::Object(body) = body else {
        return Err(Refusal::NotAnObject);
    };
    let lists = [("files", SeenKind::File), ("messages", SeenKind::Message), ("replies", SeenKind::Reply)];
    if lists.iter().all(|(name, _)| body.get(*name).is_none_or(is_nothing)) {
        return Err(Refusal::NothingToSee);
    }
    let mut world = desk.world();
    let mut named = Vec::new();
    for (name, kind) in lists {
        match body.get(name) {
            None => {}
            Some(Value::Array(ids)) => {
                for id in ids {
                    named.push((kind, there_to_see(&world, kind, id)?));
                }
            }
            // The real server fails here as well.
            Some(_) => return Err(Refusal::Internal),
        }
    }
    for (kind, id) in named {
        let marked = match kind {
            SeenKind::File | SeenKind::Message => world.see_submission(id.as_str(), &who.journalist),
            SeenKind::Reply => world.see_reply(id.as_str(), &who.journalist),
        };
        // All of them are there; the journalist may have been deleted since the session was looked at.
        marked.map_err(|_| Refusal::NotSignedIn)?;
    }
    Ok(said(StatusCode::OK, "resources marked seen"))
}

/// The id of something that is there and of this kind.
fn there_to_see(world: &World, kind: SeenKind, id: &Value) -> Result<RecordId, Refusal> {
    let uuid = match id {
        Value::String(uuid) => uuid.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => id.to_string(),
    };
    let there = match kind {
        SeenKind::File => world.submission(&uuid).is_some_and(|row| row.kind.is_file()),
        SeenKind::Message => world.submission(&uuid).is_some_and(|row| !row.kind.is_file()),
        SeenKind::Reply => world.reply(&uuid).is_some(),
    };
    match there {
        true => Ok(uuid.into()),
        false => Err(Refusal::NotThereToSee { kind, uuid }),
    }
}

/// Whether there is nothing in a list, as the real server sees it.
pub(crate) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

pub(crate) fn says_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json")
}

/// What is not there is not found, whatever it is.
fn not_found(_: WorldError) -> Refusal {
    Refusal::NotFound
}

fn said(status: StatusCode, message: &'static str) -> axum::response::Response {
    #[derive(Serialize)]
    struct MessageJson {
        message: &'static str,
    }
    json(status, &MessageJson { message })
}
