//! The routes of the API, and what they answer to whoever may ask.
//!
//! Who may ask is decided before a route is looked for, in [`exchange`](super::exchange). What journalists do is in
//! [`acts`] and [`replies`], what they fetch in [`downloads`].

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, post};
use axum::{Router, http::HeaderValue};
use serde::Serialize;
use serde_json::Value;

use super::acts;
use super::answer::{Answer, Refusal, json, json_bytes};
use super::desk::{Desk, List, SignedIn};
use super::downloads;
use super::login::Credentials;
use super::replies;
use super::wire::{self, HintsJson, Pen, ROOT, TokenJson};
use super::world::{Source, SourceState, World};
use crate::generator::Prng;

/// The least number in `Prefer: securedrop=N` for which a login is answered with hints.
const HINTS_SINCE: u32 = 4;
/// The newest number that a server knows; it takes anything beyond it for this one.
const NEWEST_MINOR: u32 = 4;

/// All routes.
pub(crate) fn router(desk: Arc<Desk>) -> Router {
    let mut routes = sessions()
        .merge(lists())
        .merge(records())
        .merge(downloads::routes())
        .merge(acts::routes())
        .merge(replies::routes());
    if desk.options.api.is_newer() {
        routes =
            routes.route("/api/v1/auth", get(|| async { json(StatusCode::OK, &Value::Object(Default::default())) }));
    }
    routes
        .fallback(|| async { Refusal::NotFound })
        .method_not_allowed_fallback(|| async { Refusal::WrongMethod })
        // What is too long was refused before: see `exchange.rs`.
        .layer(DefaultBodyLimit::disable())
        .with_state(desk)
}

fn sessions() -> Router<Arc<Desk>> {
    Router::new()
        .route("/api/v1/", get(|| async { json(StatusCode::OK, &ROOT) }))
        .route(
            "/api/v1/token",
            post(|State(desk): State<Arc<Desk>>, headers: HeaderMap, body: Bytes| async move {
                log_in(&desk, &headers, &body)
            }),
        )
        .route(
            "/api/v1/logout",
            post(|State(desk): State<Arc<Desk>>, Extension(who): Extension<SignedIn>, body: Bytes| async move {
                log_out(&desk, &who, &body)
            }),
        )
        .route(
            "/api/v1/user",
            get(|State(desk): State<Arc<Desk>>, Extension(who): Extension<SignedIn>| async move {
                let world = desk.world();
                let journalist = world.journalist(&who.journalist).ok_or(Refusal::NotSignedIn)?;
                Answer::Ok(json(StatusCode::OK, &desk.pen().current_user(journalist)))
            }),
        )
}

fn lists() -> Router<Arc<Desk>> {
    Router::new()
        .route("/api/v1/sources", list(List::Sources))
        .route("/api/v1/submissions", list(List::Submissions))
        .route("/api/v1/replies", list(List::Replies))
        .route("/api/v1/users", list(List::Users))
}

fn list(list: List) -> MethodRouter<Arc<Desk>> {
    get(
        move |State(desk): State<Arc<Desk>>| async move { desk.list(list).map(|bytes| json_bytes(StatusCode::OK, bytes)) },
    )
}

fn records() -> Router<Arc<Desk>> {
    Router::new()
        .route("/api/v1/sources/{source}", of_source(|pen, world, source| ok(&pen.source(world, source))))
        .route(
            "/api/v1/sources/{source}/submissions",
            list_of_source(|pen, world, source| ok(&pen.submissions(world.submissions_of(source)))),
        )
        .route(
            "/api/v1/sources/{source}/replies",
            list_of_source(|pen, world, source| ok(&pen.replies(world, world.replies_of(source)))),
        )
        .route(
            "/api/v1/sources/{source}/submissions/{item}",
            of_item(|pen, world, item| {
                let submission = world.submission(item).ok_or(Refusal::NotFound)?;
                ok(&pen.submission(submission))
            }),
        )
        .route(
            "/api/v1/sources/{source}/replies/{item}",
            of_item(|pen, world, item| {
                let reply = world.reply(item).ok_or(Refusal::NotFound)?;
                let authors = wire::authors(world);
                ok(&pen.reply(&authors, reply).ok_or(Refusal::NotFound)?)
            }),
        )
}

/// A route about a source, listed or not.
fn of_source(answer: fn(&Pen, &World, &Source) -> Answer) -> MethodRouter<Arc<Desk>> {
    get(move |State(desk): State<Arc<Desk>>, Path(source): Path<String>| async move {
        let pen = desk.pen();
        let world = desk.world();
        let source = world.source(&source).ok_or(Refusal::NotFound)?;
        answer(&pen, &world, source)
    })
}

/// A list of a source's, listed or not.
fn list_of_source(answer: fn(&Pen, &World, &Source) -> Answer) -> MethodRouter<Arc<Desk>> {
    get(move |State(desk): State<Arc<Desk>>, Path(source): Path<String>| async move {
        desk.with_listed(|world, pen| {
            let source = world.source(&source).ok_or(Refusal::NotFound)?;
            answer(&pen, world, source)
        })
    })
}

/// A route about an item. The source in its path must exist and need not be the item's.
fn of_item(answer: fn(&Pen, &World, &str) -> Answer) -> MethodRouter<Arc<Desk>> {
    get(move |State(desk): State<Arc<Desk>>, Path((source, item)): Path<(String, String)>| async move {
        let pen = desk.pen();
        let world = desk.world();
        world.source(&source).ok_or(Refusal::NotFound)?;
        answer(&pen, &world, &item)
    })
}

fn ok(value: &impl Serialize) -> Answer {
    Ok(json(StatusCode::OK, value))
}

fn log_in(desk: &Desk, headers: &HeaderMap, body: &[u8]) -> Answer {
    let body: Value = serde_json::from_slice(body).map_err(|_| Refusal::Malformed)?;
    let field = |name: &'static str| match body.get(name) {
        None | Some(Value::Null) => Err(Refusal::MissingField(name)),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(Refusal::LoginFailed),
    };
    let credentials = Credentials {
        username: field("username")?,
        passphrase: field("passphrase")?,
        one_time_code: field("one_time_code")?,
    };
    let now = desk.clock.now();
    let mut world = desk.world();
    let opened = desk.logins().log_in(&world, now, &credentials).map_err(|reason| {
        tracing::debug!(%reason, "a login failed");
        Refusal::LoginFailed
    })?;
    world.note_login(&opened.journalist, now);
    let journalist = world.journalist(&opened.journalist).ok_or(Refusal::Internal)?;
    let api = desk.options.api;
    ok(&TokenJson {
        expiration: api.expiration(opened.expires),
        hints: (api.is_newer() && wants_hints(headers)).then(|| hints(&world)),
        journalist_first_name: journalist.first_name.as_deref(),
        journalist_last_name: journalist.last_name.as_deref(),
        journalist_uuid: &opened.journalist,
        token: &opened.token,
    })
}

/// Whether the client says that it speaks the second version of the API, in an edition that has hints. What cannot be
/// understood counts as the newest edition, as everywhere in that version; only here saying nothing means the first.
fn wants_hints(headers: &HeaderMap) -> bool {
    let Some(prefer) = headers.get("prefer") else {
        return false;
    };
    let minor = prefer
        .to_str()
        .ok()
        .and_then(|prefer| prefer.trim().strip_prefix("securedrop="))
        .and_then(|minor| minor.parse().ok())
        .filter(|minor| *minor <= NEWEST_MINOR)
        .unwrap_or(NEWEST_MINOR);
    minor >= HINTS_SINCE
}

/// How much there is to fetch. The version only changes when the world does; what it is of, the second version of the
/// API defines, and this server does not speak that yet.
fn hints(world: &World) -> HintsJson {
    let mut digits = Prng::new(world.revision());
    let there = |source: &&Source| source.state != SourceState::MarkedDeleted;
    HintsJson {
        items: world
            .sources()
            .filter(there)
            .map(|source| world.submissions_of(source).count() + world.replies_of(source).count())
            .sum(),
        sources: world.sources().filter(there).count(),
        version: (0..4).map(|_| format!("{:016x}", digits.next_u64())).collect(),
    }
}

fn log_out(desk: &Desk, who: &SignedIn, body: &[u8]) -> Answer {
    acts::check_optional(body)?;
    desk.logins().log_out(&who.token);
    let message = serde_json::json!({"message": "Your token has been revoked."});
    let mut answer = json(StatusCode::OK, &message).into_response();
    // The cookie belongs to the web interface and means nothing here; the real server sends one all the same.
    let headers = answer.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("Cookie"));
    headers
        .insert(header::SET_COOKIE, HeaderValue::from_static("js=nothing.to.keep; HttpOnly; Path=/; SameSite=Strict"));
    Ok(answer)
}
