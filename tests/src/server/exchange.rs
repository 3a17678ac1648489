//! One request and its answer: the log, what goes wrong on purpose, who is allowed, and the route.
//!
//! **Invariant:** a request takes at most one rule from the table of faults, before anything else looks at it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use hyper::body::{Bytes, Incoming};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::answer::{Refusal, encode, json_bytes};
use super::body::{AnswerBody, Then};
use super::desk::{Desk, SignedIn};
use super::faults::{FaultAct, Taken, edit};
use super::gzip;
use super::log::RequestGuard;
use super::options::WebServer;

/// The largest body that is read, as at a real server's web server, in bytes. A reply is far smaller.
const LARGEST_REQUEST: usize = 524_288_000;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// What a production web server says to a method that it does not let through.
const METHOD_PAGE: &str = "<!DOCTYPE html>\n<html><head><title>403 Forbidden</title></head>\n<body><h1>Forbidden</h1>\
                           </body></html>\n";
/// What a production web server adds to every answer.
const PRODUCTION_HEADERS: [(HeaderName, &str); 5] = [
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'"),
    (header::CACHE_CONTROL, "no-store"),
];
/// Sound JSON around the blanks of an oversized body.
const PADDED_HEAD: &str = "{\"sources\":[";
const PADDED_TAIL: &str = "]}\n";

/// There is no answer: the connection closes.
#[derive(Debug, Error)]
#[error("dropped on purpose, or because the server stops")]
pub(crate) struct Dropped;

/// Where requests of one connection are answered.
pub(crate) struct Exchange {
    pub(crate) desk: Arc<Desk>,
    pub(crate) router: Router,
    pub(crate) stop: CancellationToken,
    /// Counts how often all that was written went out.
    pub(crate) flushes: watch::Receiver<u64>,
    /// Counts the requests that are being answered.
    pub(crate) busy: watch::Sender<usize>,
    pub(crate) connection: u64,
}

impl Exchange {
    /// Answers a request. Dropping the future drops the request.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Result<Response<AnswerBody>, Dropped> {
        let (parts, body) = request.into_parts();
        let guard = self.desk.logbook.begin(self.connection, &parts, self.busy.clone());
        let method = parts.method.clone();
        let asked = parts.headers.clone();
        let mut taken = self.take_fault(&parts, &guard).await?;
        // Read in any case: hyper notices that a client has gone only once it has read all that the client sent.
        let body = read(&asked, body).await?;

        let act = taken.as_ref().map(|taken| taken.fault.act.clone());
        let (answer, rest) = match act {
            None | Some(FaultAct::Pass) => (self.route(parts, body).await?, None),
            Some(FaultAct::Drop) => return Err(Dropped),
            Some(FaultAct::LoseAnswer) => {
                self.route(parts, body).await?;
                return Err(Dropped);
            }
            Some(FaultAct::FailAfter { status }) => {
                self.route(parts, body).await?;
                (canned(status, header::CONTENT_TYPE, "text/html", String::new())?, None)
            }
            Some(FaultAct::Hang) => return self.hang().await,
            Some(FaultAct::HangAnswer) => {
                self.route(parts, body).await?;
                guard.held(true);
                return self.hang().await;
            }
            Some(FaultAct::Answer { status, content_type, body, headers }) => {
                let mut answer = canned(status, header::CONTENT_TYPE, &content_type, body)?;
                for (name, value) in headers {
                    let name = HeaderName::try_from(name).map_err(|_| Dropped)?;
                    answer.headers_mut().append(name, HeaderValue::try_from(value).map_err(|_| Dropped)?);
                }
                (answer, None)
            }
            Some(FaultAct::Redirect { status, location }) => {
                (canned(status, header::LOCATION, &location, String::new())?, None)
            }
            Some(FaultAct::Oversize { bytes, announced }) => {
                guard.answered(StatusCode::OK.as_u16());
                let body = AnswerBody::padded(PADDED_HEAD, PADDED_TAIL, bytes, announced, guard);
                let kind = HeaderValue::from_static("application/json");
                let mut answer = Response::new(body);
                answer.headers_mut().insert(header::CONTENT_TYPE, kind);
                return Ok(answer);
            }
            Some(FaultAct::BadRecord { which, edits }) => {
                let answer = self.route(parts, body).await?;
                (change(answer, &which, &edits).await?, None)
            }
            Some(
                act @ (FaultAct::DropAfter { .. }
                | FaultAct::Truncate { .. }
                | FaultAct::HangAfter { .. }
                | FaultAct::Drip { .. }
                | FaultAct::FlipByte { .. }
                | FaultAct::EditHeaders { .. }
                | FaultAct::HoldAnswer),
            ) => (self.route(parts, body).await?, Some(act)),
        };
        let answer = self.compress(answer, &asked, &method).await?;
        guard.answered(answer.status().as_u16());
        match rest {
            Some(FaultAct::HoldAnswer) => {
                if let Some(taken) = &mut taken {
                    self.hold(taken, &guard).await?;
                }
                Ok(answer.map(|body| AnswerBody::whole(body, guard)))
            }
            Some(FaultAct::EditHeaders { headers }) => {
                let mut answer = answer;
                edit_headers(answer.headers_mut(), &headers)?;
                Ok(answer.map(|body| AnswerBody::whole(body, guard)))
            }
            Some(act) if method != Method::HEAD => self.spoil(answer, &act, guard).await,
            _ => Ok(answer.map(|body| AnswerBody::whole(body, guard))),
        }
    }

    /// Waits until the rule lets the answer go.
    async fn hold(&self, taken: &mut Taken, guard: &RequestGuard) -> Result<(), Dropped> {
        guard.held(true);
        tokio::select! {
            () = taken.released() => {}
            () = self.stop.cancelled() => return Err(Dropped),
        }
        guard.held(false);
        Ok(())
    }

    /// The rule for this request, after its delay.
    async fn take_fault(&self, parts: &Parts, guard: &RequestGuard) -> Result<Option<Taken>, Dropped> {
        let taken = self.desk.faults().take(parts.method.as_str(), parts.uri.path());
        let Some(taken) = taken else {
            return Ok(None);
        };
        guard.interfered(taken.id);
        if taken.fault.delay_ms > 0 {
            let delay = std::time::Duration::from_millis(taken.fault.delay_ms);
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = self.stop.cancelled() => return Err(Dropped),
            }
        }
        Ok(Some(taken))
    }

    /// The server's honest answer.
    async fn route(&self, parts: Parts, body: Body) -> Result<Response<Body>, Dropped> {
        let production = match self.desk.options.web_server {
            WebServer::Production => true,
            WebServer::Development => false,
        };
        let request_id = self.returned_request_id(&parts.headers);
        let let_through = [Method::GET, Method::POST, Method::HEAD, Method::DELETE];
        let mut answer = if production && !let_through.contains(&parts.method) {
            canned(
                StatusCode::FORBIDDEN.as_u16(),
                header::CONTENT_TYPE,
                "text/html; charset=iso-8859-1",
                String::from(METHOD_PAGE),
            )?
        } else if let Some(length) = too_large(&parts.headers) {
            tracing::debug!(length, "a request is too large");
            Refusal::TooLarge.into_response()
        } else {
            self.route_allowed(parts, body).await?
        };
        if production {
            for (name, value) in PRODUCTION_HEADERS {
                answer.headers_mut().insert(name, HeaderValue::from_static(value));
            }
        }
        if let Some(id) = request_id {
            answer.headers_mut().insert(REQUEST_ID, id);
        }
        Ok(answer)
    }

    /// The answer of a route, to whoever may ask. The real server looks at the session before it looks at the route.
    async fn route_allowed(&self, parts: Parts, body: Body) -> Result<Response<Body>, Dropped> {
        let signed_in = self.desk.signed_in(&parts.headers);
        if signed_in.is_none() && !is_public(&parts) {
            return Ok(Refusal::NotSignedIn.into_response());
        }
        let mut request = Request::from_parts(parts, body);
        if let Some(signed_in) = signed_in {
            request.extensions_mut().insert::<SignedIn>(signed_in);
        }
        let router = TowerToHyperService::new(self.router.clone());
        router.call(request).await.map_err(|never| match never {})
    }

    fn returned_request_id(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let id = headers.get(REQUEST_ID)?;
        let uuid = id.to_str().ok()?.strip_prefix("req-")?;
        let well_formed = uuid.len() == 36 && Uuid::parse_str(uuid).is_ok();
        (well_formed && self.desk.options.api.is_newer()).then(|| id.clone())
    }

    async fn compress(
        &self,
        answer: Response<Body>,
        asked: &HeaderMap,
        method: &Method,
    ) -> Result<Response<Body>, Dropped> {
        let spared = *method == Method::HEAD || !is(&answer, "application/json");
        if !self.desk.options.gzip || spared || !gzip::is_accepted(asked) {
            return Ok(answer);
        }
        let (mut parts, body) = answer.into_parts();
        let body = whole(body).await?;
        if body.is_empty() {
            return Ok(Response::from_parts(parts, Body::from(body)));
        }
        let body = gzip::compress(&body).map_err(|_| Dropped)?;
        let encoding = HeaderValue::from_static("gzip");
        parts.headers.insert(header::CONTENT_ENCODING, encoding);
        parts.headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        parts.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(parts, Body::from(body)))
    }

    /// The answer with something wrong with its body.
    async fn spoil(
        &self,
        answer: Response<Body>,
        act: &FaultAct,
        guard: RequestGuard,
    ) -> Result<Response<AnswerBody>, Dropped> {
        let stopped = || Box::pin(self.stop.clone().cancelled_owned());
        let (bytes, then) = match act {
            FaultAct::DropAfter { bytes } => (*bytes, Then::Cut { flushes: self.flushes.clone() }),
            FaultAct::HangAfter { bytes } => (*bytes, Then::Hang { stopped: stopped() }),
            FaultAct::Truncate { bytes } => (*bytes, Then::End),
            FaultAct::Drip { bytes, every_ms } => {
                let every = std::time::Duration::from_millis(*every_ms);
                return Ok(answer.map(|body| AnswerBody::drip(body, *bytes, every, stopped(), guard)));
            }
            FaultAct::FlipByte { at } => return Ok(answer.map(|body| AnswerBody::flipped(body, *at, guard))),
            _other => return Ok(answer.map(|body| AnswerBody::whole(body, guard))),
        };
        let (mut parts, body) = answer.into_parts();
        let (body, length) = measured(body).await?;
        let body = match then {
            Then::Cut { .. } | Then::Hang { .. } => {
                parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
                AnswerBody::start(body, bytes.min(length.saturating_sub(1)), then, guard)
            }
            Then::End => {
                parts.headers.remove(header::CONTENT_LENGTH);
                AnswerBody::start(body, bytes, then, guard)
            }
        };
        Ok(Response::from_parts(parts, body))
    }

    async fn hang(&self) -> Result<Response<AnswerBody>, Dropped> {
        self.stop.cancelled().await;
        Err(Dropped)
    }
}

/// Whether this may be asked without a session.
fn is_public(parts: &Parts) -> bool {
    match parts.uri.path() {
        "/api/v1/" => [Method::GET, Method::HEAD].contains(&parts.method),
        "/api/v1/token" => parts.method == Method::POST,
        _ => false,
    }
}

/// The length that a request announces, when it is beyond our limit.
fn too_large(headers: &HeaderMap) -> Option<u64> {
    let length = headers.get(header::CONTENT_LENGTH)?.to_str().ok()?;
    let length = length.parse().ok()?;
    usize::try_from(length)
        .is_ok_and(|length: usize| length <= LARGEST_REQUEST)
        .then_some(())
        .map_or(Some(length), |()| None)
}

async fn read(headers: &HeaderMap, body: Incoming) -> Result<Body, Dropped> {
    if too_large(headers).is_some() {
        return Ok(Body::empty());
    }
    match to_bytes(Body::new(body), LARGEST_REQUEST).await {
        Ok(bytes) => Ok(Body::from(bytes)),
        Err(_) => Err(Dropped),
    }
}

async fn whole(body: Body) -> Result<Bytes, Dropped> {
    to_bytes(body, usize::MAX).await.map_err(|_| Dropped)
}

/// The body and how long it is. One that does not say is short, and read for it.
async fn measured(body: Body) -> Result<(Body, u64), Dropped> {
    if let Some(length) = hyper::body::Body::size_hint(&body).exact() {
        return Ok((body, length));
    }
    let body = whole(body).await?;
    let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
    Ok((Body::from(body), length))
}

/// Whether the answer says that it is of this kind.
fn is(answer: &Response<Body>, kind: &str) -> bool {
    answer.headers().get(header::CONTENT_TYPE).is_some_and(|value| value == kind)
}

fn edit_headers(headers: &mut HeaderMap, edits: &BTreeMap<String, Option<String>>) -> Result<(), Dropped> {
    for (name, value) in edits {
        let name = HeaderName::try_from(name).map_err(|_| Dropped)?;
        match value {
            Some(value) => {
                headers.insert(name, HeaderValue::from_bytes(value.as_bytes()).map_err(|_| Dropped)?);
            }
            None => {
                headers.remove(name);
            }
        }
    }
    Ok(())
}

fn canned(status: u16, name: HeaderName, value: &str, body: String) -> Result<Response<Body>, Dropped> {
    Response::builder().status(status).header(name, value).body(Body::from(body)).map_err(|_| Dropped)
}

/// The answer with a record of it changed; as it was when there is no such record.
async fn change(answer: Response<Body>, which: &edit::Which, edits: &[edit::Edit]) -> Result<Response<Body>, Dropped> {
    if !is(&answer, "application/json") {
        return Ok(answer);
    }
    let (mut parts, body) = answer.into_parts();
    let body = whole(body).await?;
    let Ok(mut value) = serde_json::from_slice::<Value>(&body) else {
        return Ok(Response::from_parts(parts, Body::from(body)));
    };
    if !edit::apply(&mut value, which, edits) {
        tracing::warn!("a rule found no record to change");
    }
    let body = encode(&value).map_err(|_| Dropped)?;
    parts.headers.remove(header::CONTENT_LENGTH);
    let changed = json_bytes(parts.status, body);
    let (_, body) = changed.into_parts();
    Ok(Response::from_parts(parts, body))
}
