//! Commands over HTTP, for a person with a shell.
//!
//! ```text
//! curl -H 'Content-Type: application/json' -d '{"do": "new_source"}' http://127.0.0.1:PORT/control
//! ```
//!
//! `GET /control/requests` gives the log, `GET /control/faults` the rules, `GET /control/changes` what journalists changed
//! through the API, with how many times. There is no authentication: the listener takes loopback connections only, and a
//! command must say that it is JSON, which a page in a browser cannot do unasked.

use axum::Router;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde_json::json;

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
