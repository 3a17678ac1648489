//! Storing replies, as the real server does it.
//!
//! It writes the file before it looks at the id, so a reply that is refused for its id leaves a file that no record names,
//! and whose number the next item gets. It looks at no more of the text than that it begins like a message; this server
//! looks whether it is one, so that a client that sends anything else is found out here.
//!
//! **Invariant:** the world is locked once: a reply is stored whole, with its author's mark, or not at all.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use sequoia_openpgp::Packet;
use sequoia_openpgp::parse::{PacketParser, PacketParserResult, Parse};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::acts::{is_nothing, says_json};
use super::answer::{Answer, Refusal, json};
use super::ciphertext::Sealed;
use super::desk::{Desk, SignedIn};
use super::world::{RecordId, WorldError};

/// What an encrypted message begins with, in armor.
const HEADER: &str = "-----BEGIN PGP MESSAGE-----";

/// `POST` of a reply.
pub(crate) fn routes() -> Router<Arc<Desk>> {
    Router::new().route(
        "/api/v1/sources/{source}/replies",
        post(
            |State(desk): State<Arc<Desk>>,
             Extension(who): Extension<SignedIn>,
             Path(source): Path<String>,
             headers: HeaderMap,
             body: Bytes| async move { store(&desk, &who, &source, &headers, &body) },
        ),
    )
}

fn store(desk: &Desk, who: &SignedIn, source: &str, headers: &HeaderMap, body: &[u8]) -> Answer {
    let body: Value = serde_json::from_slice(body).map_err(|_| Refusal::Malformed)?;
    let mut world = desk.world();
    let source = world.source(source).ok_or(Refusal::NotFound)?.id.clone();
    if !says_json(headers) {
        return Err(Refusal::UndeclaredJson);
    }
    let text = match body.get("reply") {
        _ if body.is_null() => return Err(Refusal::NotAnObject),
        None => return Err(Refusal::NoReply),
        Some(reply) if is_nothing(reply) => return Err(Refusal::EmptyReply),
        Some(Value::String(text)) => text,
        // The real server fails here as well.
        Some(_) => return Err(Refusal::Internal),
    };
    if !is_encrypted(text) {
        return Err(Refusal::NotEncrypted);
    }
    let sealed = Sealed::try_new(text.as_bytes(), None).map_err(|_| Refusal::Internal)?;
    let id = match body.get("uuid") {
        None | Some(Value::Null) => Ok(desk.maker().prng.uuid()),
        Some(Value::String(uuid)) if Uuid::parse_str(uuid).is_ok() => Ok(RecordId::from(uuid.as_str())),
        Some(Value::String(_)) => Err(Refusal::BadUuid),
        Some(_) => Err(Refusal::Internal),
    };
    let id = match id {
        Ok(id) => id,
        Err(refusal) => {
            world.orphan_reply(&source).map_err(|_| Refusal::NotFound)?;
            return Err(refusal);
        }
    };
    world.reply_by_journalist(id.clone(), &source, &who.journalist, sealed).map_err(|error| match error {
        WorldError::TakenId(_) => Refusal::TakenUuid,
        // The journalist may have been deleted since the session was looked at.
        WorldError::NoJournalist(_) => Refusal::NotSignedIn,
        WorldError::NoSource(_)
        | WorldError::NoItem(_)
        | WorldError::NoReply(_)
        | WorldError::Size { .. }
        | WorldError::NotShorter { .. } => Refusal::NotFound,
    })?;
    let reply = world.reply(id.as_str()).ok_or(Refusal::Internal)?;
    let stored = StoredJson { filename: &reply.filename, message: "Your reply has been stored", uuid: &id };
    Ok(json(StatusCode::CREATED, &stored))
}

#[derive(Serialize)]
struct StoredJson<'a> {
    filename: &'a str,
    message: &'static str,
    uuid: &'a RecordId,
}

/// Whether a text is an encrypted message in armor: whether it begins as one, and with a session key for somebody.
fn is_encrypted(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.contains(HEADER))
        && match PacketParser::from_bytes(text.as_bytes()) {
            Ok(PacketParserResult::Some(parser)) => matches!(parser.packet, Packet::PKESK(_) | Packet::SKESK(_)),
            Ok(PacketParserResult::EOF(_)) | Err(_) => false,
        }
}
