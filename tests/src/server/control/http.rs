//! Commands over HTTP, for a person with a shell.
//!
//! ```text
//! curl -H 'Content-Type: application/json' -d '{"do": "new_source"}' http://127.0.0.1:PORT/control
//! ```
//!
//! `GET /control/source_reads/ID` gives a reply as its source reads it, `GET /control/newsroom_reads/ID` an item as the
//! newsroom does, both with the keys that it is encrypted to, which alone are `GET /control/recipients/ID`.
//! `GET /control/requests` gives the log, `GET /control/faults` the rules, `GET /control/changes` what journalists changed
//! through the API, with how many times. There is no authentication: the listener takes loopback connections only, and a
//! command must say that it is JSON, which a page in a browser cannot do unasked.

use axum::Router;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Json, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde_json::json;

use super::super::ciphertext::CiphertextError;
use super::super::reading::ReadingError;
use super::super::world::{Change, World};
use super::{Command, Control};

/// The routes of the control listener.
pub(crate) fn router(control: Control) -> Router {
    Router::new()
        .route(
            "/control",
            post(|State(control): State<Control>, command: Result<Json<Command>, JsonRejection>| async move {
                apply(&control, command)
            }),
        )
        .route("/control/requests", get(|State(control): State<Control>| async move { Json(control.requests()) }))
        .route("/control/faults", get(|State(control): State<Control>| async move { Json(control.faults()) }))
        .route("/control/changes", get(|State(control): State<Control>| async move { changes(&control) }))
        .route(
            "/control/source_reads/{reply}",
            get(|State(control): State<Control>, Path(reply): Path<String>| async move {
                told(control.source_reads(&reply.into()).await)
            }),
        )
        .route(
            "/control/newsroom_reads/{item}",
            get(|State(control): State<Control>, Path(item): Path<String>| async move {
                told(control.newsroom_reads(&item.into()).await)
            }),
        )
        .route(
            "/control/recipients/{item}",
            get(|State(control): State<Control>, Path(item): Path<String>| async move {
                told(control.recipients(&item.into()).await)
            }),
        )
        .with_state(control)
}

/// `[{"change": "star_set", "source": ..., "times": 1}, ...]`
fn changes(control: &Control) -> Response {
    #[derive(Serialize)]
    struct CountedJson<'a> {
        #[serde(flatten)]
        change: &'a Change,
        times: u64,
    }
    let changes = control.with_world(World::changes);
    let changes: Vec<_> = changes.iter().map(|(change, times)| CountedJson { change, times }).collect();
    Json(changes).into_response()
}

/// 200 and what was read; 404 or 422 and `{"error": ...}` when there is nothing, or it cannot be read.
fn told(read: Result<impl Serialize, ReadingError>) -> Response {
    match read {
        Ok(read) => Json(read).into_response(),
        Err(error) => {
            let status = match &error {
                ReadingError::Ciphertext(CiphertextError::NoItem(_)) => StatusCode::NOT_FOUND,
                ReadingError::Ciphertext(_)
                | ReadingError::NotForReader(_)
                | ReadingError::Decrypt { .. }
                | ReadingError::NotText(_) => StatusCode::UNPROCESSABLE_ENTITY,
            };
            (status, Json(json!({ "error": error.to_string() }))).into_response()
        }
    }
}

/// 200 and the outcome; 4xx and `{"error": ...}` when the command cannot be read or is refused.
fn apply(control: &Control, command: Result<Json<Command>, JsonRejection>) -> Response {
    let refused = |status: StatusCode, error: String| (status, Json(json!({ "error": error }))).into_response();
    match command {
        Err(rejection) => refused(rejection.status(), rejection.body_text()),
        Ok(Json(command)) => match control.apply(command) {
            Ok(outcome) => Json(outcome).into_response(),
            Err(error) => refused(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
        },
    }
}
