//! Downloads of submissions and replies, as the real server answers them.
//!
//! The oddities are kept: an `Etag` without quotes, which is why no condition that names it is ever met; `Last-Modified`
//! of the files of a source, which all change whenever it sends something; a file that was cut on the disk and is served
//! as if that were all of it. Ranges are answered by the application on a development server and by the web server on a
//! production one, and each does it in its own way: see [`range`].
//!
//! **Invariant:** the world is looked at once, before the ciphertext is made: what happens meanwhile is not in the answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::body::{Bytes, Frame};
use jiff::Timestamp;
use jiff::fmt::rfc2822;

use super::answer::{Answer, Refusal};
use super::ciphertext::{Ciphertext, Letter, Part, Served};
use super::desk::Desk;
use super::options::WebServer;
use super::world::{FileState, ItemFile, World};
use range::{Selection, Span};

mod range;

/// What all items are said to be.
pub(crate) const PGP: &str = "application/pgp-encrypted";
/// What a production web server says to a range that is beyond the end.
const RANGE_PAGE: &str = "<!DOCTYPE HTML PUBLIC \"-//W3C//DTD HTML 4.01//EN\" \"http://www.w3.org/TR/html4/strict.dtd\">\n\
                          <html><head>\n<title>416 Requested Range Not Satisfiable</title>\n</head><body>\n\
                          <h1>Requested Range Not Satisfiable</h1>\n\
                          <p>None of the range-specifier values in the Range\nrequest-header field overlap the current \
                          extent\nof the selected resource.</p>\n</body></html>\n";
/// What stands between the ranges of an answer with several.
const BOUNDARY: &str = "5d97a3c01be6f482";

/// `GET` and `HEAD` of every item's ciphertext.
pub(crate) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route(
            "/api/v1/sources/{source}/submissions/{item}/download",
            get(|State(desk): State<Arc<Desk>>, Path((source, item)): Path<(String, String)>, headers: HeaderMap| async move {
                let found = submission(&desk, &source, &item)?;
                answer(&desk, found, &headers).await
            }),
        )
        .route(
            "/api/v1/sources/{source}/replies/{item}/download",
            get(|State(desk): State<Arc<Desk>>, Path((source, item)): Path<(String, String)>, headers: HeaderMap| async move {
                let found = reply(&desk, &source, &item)?;
                answer(&desk, found, &headers).await
            }),
        )
}

/// What an answer is made from.
struct Found {
    letter: Letter,
    filename: String,
    file: ItemFile,
    touched: Timestamp,
}

/// The source in the path must exist and need not be the item's. Whatever becomes of the answer, the submission is read.
fn submission(desk: &Desk, source: &str, item: &str) -> Result<Found, Refusal> {
    let mut world = desk.world();
    world.source(source).ok_or(Refusal::NotFound)?;
    if desk.options.downloads_mark_read {
        world.download_by_journalist(item).map_err(|_| Refusal::NotFound)?;
    }
    let row = world.submission(item).ok_or(Refusal::NotFound)?;
    let touched = touched(&world, row.source.as_str(), row.file)?;
    Ok(Found { letter: Letter::of_submission(row), filename: row.filename.clone(), file: row.file, touched })
}

/// Replies are read by those who wrote them and by marks; a download changes nothing.
fn reply(desk: &Desk, source: &str, item: &str) -> Result<Found, Refusal> {
    let world = desk.world();
    world.source(source).ok_or(Refusal::NotFound)?;
    let row = world.reply(item).ok_or(Refusal::NotFound)?;
    let touched = touched(&world, row.source.as_str(), row.file)?;
    Ok(Found { letter: Letter::of_reply(row), filename: row.filename.clone(), file: row.file, touched })
}

fn touched(world: &World, owner: &str, file: ItemFile) -> Result<Timestamp, Refusal> {
    world.source(owner).map(|owner| file.touched(owner)).ok_or(Refusal::Internal)
}

async fn answer(desk: &Desk, found: Found, asked: &HeaderMap) -> Answer {
    let missing = found.file.is_missing();
    let kind = found.letter.kind;
    if missing {
        tracing::debug!(?kind, id = %found.letter.id, "the file of a download is missing");
        return Err(Refusal::Internal);
    }
    let ciphertext = desk.ciphertexts.get(&found.letter).await.map_err(|error| {
        tracing::error!(%error, id = %found.letter.id, "a ciphertext could not be made");
        Refusal::Internal
    })?;
    let length = match found.file.state {
        FileState::Whole | FileState::Missing => ciphertext.length,
        FileState::Shortened(bytes) => bytes.min(ciphertext.length),
    };
    let server = desk.options.web_server;
    let modified =
        rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&found.touched).map_err(|_| Refusal::Internal)?;
    let selection = match range_counts(asked, found.touched, server) {
        true => range::select(asked, length, server),
        false => Selection::Whole,
    };
    let mut answer = match selection {
        Selection::None => return Ok(beyond(server)),
        Selection::Whole if is_unmodified(asked, found.touched) => {
            return unmodified(&found, &ciphertext, &modified, server);
        }
        Selection::Whole => parts(StatusCode::OK, PGP, &ciphertext, [Part::Range(0..length)]),
        Selection::One(span) => {
            let mut answer = parts(StatusCode::PARTIAL_CONTENT, PGP, &ciphertext, [Part::Range(span.range())]);
            answer.headers_mut().insert(header::CONTENT_RANGE, value(&content_range(&span, length))?);
            answer
        }
        Selection::Several(spans) => {
            let kind = format!("multipart/byteranges; boundary={BOUNDARY}");
            parts(StatusCode::PARTIAL_CONTENT, &kind, &ciphertext, several(&spans, length))
        }
    };
    describe(&mut answer, &found, &ciphertext)?;
    answer.headers_mut().insert(header::LAST_MODIFIED, value(&modified)?);
    Ok(answer)
}

/// An answer with parts of a ciphertext. Its length is said also where `HEAD` leaves the body away.
fn parts(
    status: StatusCode,
    kind: &str,
    ciphertext: &Arc<Ciphertext>,
    parts: impl IntoIterator<Item = Part>,
) -> Response {
    let served = Served::new(Arc::clone(ciphertext), parts);
    let length = HeaderValue::from(served.length());
    let kind = HeaderValue::from_str(kind).unwrap_or(HeaderValue::from_static(PGP));
    (status, [(header::CONTENT_TYPE, kind), (header::CONTENT_LENGTH, length)], Body::new(served)).into_response()
}

/// The headers that every answer about a file has, also one without the file.
fn describe(answer: &mut Response, found: &Found, ciphertext: &Ciphertext) -> Result<(), Refusal> {
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_DISPOSITION, value(&disposition(&found.filename))?);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::ETAG, value(&ciphertext.etag)?);
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    Ok(())
}

fn value(text: &str) -> Result<HeaderValue, Refusal> {
    HeaderValue::from_str(text).map_err(|_| Refusal::Internal)
}

/// 304, for those who ask by date.
fn unmodified(found: &Found, ciphertext: &Ciphertext, modified: &str, server: WebServer) -> Answer {
    let mut answer = StatusCode::NOT_MODIFIED.into_response();
    describe(&mut answer, found, ciphertext)?;
    match server {
        WebServer::Production => {
            answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PGP));
            answer.headers_mut().insert(header::LAST_MODIFIED, value(modified)?);
        }
        WebServer::Development => {}
    }
    Ok(answer)
}

/// 416, which says nothing of how long the file is.
fn beyond(server: WebServer) -> Response {
    match server {
        WebServer::Development => Refusal::RangeNotThere.into_response(),
        WebServer::Production => {
            let kind = HeaderValue::from_static("text/html; charset=iso-8859-1");
            let page = Body::new(Chunked(Some(Bytes::from_static(RANGE_PAGE.as_bytes()))));
            (StatusCode::RANGE_NOT_SATISFIABLE, [(header::CONTENT_TYPE, kind)], page).into_response()
        }
    }
}

/// Whether a range is looked at: `If-Range` lets it be only with a date, since the server does not know its own `Etag`
/// again.
fn range_counts(asked: &HeaderMap, touched: Timestamp, server: WebServer) -> bool {
    let Some(condition) = asked.get(header::IF_RANGE) else {
        return true;
    };
    match (date(condition), server) {
        (None, _) => false,
        (Some(date), WebServer::Production) => date == touched.as_second(),
        (Some(date), WebServer::Development) => date >= touched.as_second(),
    }
}

/// Whether the client has what there is. Only `If-Modified-Since` can say so, and `If-None-Match` overrules it.
fn is_unmodified(asked: &HeaderMap, touched: Timestamp) -> bool {
    let date = asked.get(header::IF_MODIFIED_SINCE).and_then(date);
    !asked.contains_key(header::IF_NONE_MATCH) && date.is_some_and(|date| date >= touched.as_second())
}

/// The second that a header names.
fn date(header: &HeaderValue) -> Option<i64> {
    let date = rfc2822::DateTimeParser::new().parse_timestamp(header.as_bytes()).ok()?;
    Some(date.as_second())
}

fn content_range(span: &Span, length: u64) -> String {
    format!("bytes {}-{}/{length}", span.first, span.last)
}

/// The ranges of an answer with several, and what stands between them.
fn several(spans: &[Span], length: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    for span in spans {
        let range = content_range(span, length);
        let head = format!("\r\n--{BOUNDARY}\r\nContent-type: {PGP}\r\nContent-range: {range}\r\n\r\n");
        parts.push(Part::Text(head.into()));
        parts.push(Part::Range(span.range()));
    }
    parts.push(Part::Text(format!("\r\n--{BOUNDARY}--\r\n").into()));
    parts
}

/// `Content-Disposition` as the application's framework writes it: bare, quoted, or percent-encoded, as the name needs.
fn disposition(filename: &str) -> String {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if filename.bytes().all(is_token) {
        return format!("attachment; filename={filename}");
    }
    if filename.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        let escaped = filename.replace('\\', "\\\\").replace('"', "\\\"");
        return format!("attachment; filename=\"{escaped}\"");
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encoded: String = filename
        .bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect();
    format!("attachment; filename*=UTF-8''{encoded}")
}

/// A body that does not say how long it is, and so comes in chunks.
struct Chunked(Option<Bytes>);

impl hyper::body::Body for Chunked {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_written_as_plainly_as_it_can_be() {
        let cases = [
            ("1-level_reef-msg.gpg", "attachment; filename=1-level_reef-msg.gpg"),
            ("1-a \"b\\-msg.gpg", "attachment; filename=\"1-a \\\"b\\\\-msg.gpg\""),
            ("1-é_x-msg.gpg", "attachment; filename*=UTF-8''1-%C3%A9_x-msg.gpg"),
        ];
        for (name, written) in cases {
            assert_eq!(disposition(name), written);
        }
    }
}
