//! Downloading a file, as it comes.
//!
//! **Invariant:** memory stays flat. Besides what the HTTP client has read ahead, one piece is held, and nothing more is
//! taken of the body before that one is on its way to the client.
//!
//! **Invariant:** a piece never waits for more bytes to come. What has come is sent, also where the answer then fails.
//!
//! **Invariant:** an answer ends only with all the bytes that its head announces, up to the end of the file.

use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use protocol::value::{Chunk, Sha256, Size, Token};
use protocol::{CallError, Download, Items, Sum};
use reqwest::header::{CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderMap, HeaderName};
use reqwest::{Response, StatusCode};
use sha2::Digest as _;

use super::{Answer, HttpApi, milliseconds};
use crate::journalist_api::endpoint::Endpoint;
use crate::journalist_api::failure;
use crate::outlet::Outlet;

/// The head of an answer is not that of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::journalist_api) enum HeadError {
    /// It has a `Content-Encoding`. None was asked for, and an encoded file cannot be gone on with.
    #[error("the file comes encoded")]
    Encoded,
    /// It says to be a part of the file, and not, or not clearly, which.
    #[error("the answer does not say which part of the file it is")]
    UnknownRange,
    /// It is another part of the file than what was asked for, which goes up to the file's end.
    #[error("the answer is another part of the file than was asked for")]
    OtherRange,
    /// Its length is not that of the part that it says to be, or more than any file has.
    #[error("the answer's length is wrong")]
    Length,
}

impl HttpApi {
    /// Fetches a file from the byte `from` on and passes it on as it comes.
    pub(super) async fn download(
        &self,
        endpoint: Endpoint,
        token: &Token,
        from: Size,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), CallError> {
        let answer = self.send(endpoint, Some(token), None, outlet).await?.capped(u64::MAX);
        pass_on(answer, from, outlet).await
    }
}

/// Passes on a file of which the bytes from `asked` on were asked for.
async fn pass_on(mut answer: Answer, asked: Size, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
    let head = Head::of(&answer.response, asked);
    let (endpoint, request_id) = (answer.endpoint.name(), answer.request_id.clone());
    let head = head.map_err(|error| {
        tracing::warn!(endpoint, request_id, %error, "not the head of a download");
        failure::download_head(error)
    })?;
    outlet.begin().await?;
    outlet.items(Items::Download(head.file)).await?;
    let mut pieces = Pieces::default();
    let passed = pieces.pass_on(&mut answer, head.bytes, outlet).await;
    let (from, bytes, elapsed_ms) = (head.file.from.get(), answer.bytes, milliseconds(answer.asked));
    if let Err(error) = passed {
        let (kind, stage) = (error.kind.name(), error.stage.name());
        tracing::warn!(endpoint, request_id, from, bytes, kind, stage, elapsed_ms, "download broken off");
        return Err(error);
    }
    outlet.items(Items::Sum(pieces.sum()?)).await?;
    tracing::info!(endpoint, request_id, from, bytes, elapsed_ms, "download passed on");
    Ok(())
}

/// What the head of a download says.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    /// The file, and where in it this answer begins.
    file: Download,
    /// How many bytes this answer has, if it says so.
    bytes: Option<u64>,
}

impl Head {
    fn of(response: &Response, asked: Size) -> Result<Self, HeadError> {
        Self::read(response.status(), response.headers(), response.content_length(), asked)
    }

    /// Reads the head of an answer of `length` bytes, if that is known, to a request for the bytes from `asked` on.
    fn read(status: StatusCode, headers: &HeaderMap, length: Option<u64>, asked: Size) -> Result<Self, HeadError> {
        if headers.contains_key(CONTENT_ENCODING) {
            return Err(HeadError::Encoded);
        }
        let (from, whole, bytes) = if status == StatusCode::PARTIAL_CONTENT {
            let range = only(headers, &CONTENT_RANGE).and_then(ContentRange::parse).ok_or(HeadError::UnknownRange)?;
            let end = range.last.checked_add(1).ok_or(HeadError::UnknownRange)?;
            let bytes = end.checked_sub(range.first).filter(|bytes| *bytes > 0).ok_or(HeadError::UnknownRange)?;
            // A part that stops before the file's end would look like one that was cut.
            if range.first != asked.get() || range.whole.is_some_and(|whole| whole != end) {
                return Err(HeadError::OtherRange);
            }
            if length.is_some_and(|length| length != bytes) {
                return Err(HeadError::Length);
            }
            (range.first, range.whole, Some(bytes))
        } else {
            (0, length, length)
        };
        let size = |bytes| Size::try_new(bytes).map_err(|_| HeadError::Length);
        let file = Download { length: whole.map(size).transpose()?, from: size(from)?, etag: etag(headers) };
        Ok(Self { file, bytes })
    }
}

/// A header that is there once, if it is text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() { None } else { value.to_str().ok() }
}

/// What the server's `Etag` claims. The server writes it without the quotes that belong there. A weak one is of no use:
/// it claims nothing of the bytes.
fn etag(headers: &HeaderMap) -> Option<Sha256> {
    let text = only(headers, &ETAG)?;
    let text = match text.strip_prefix('"') {
        Some(quoted) => quoted.strip_suffix('"')?,
        None => text,
    };
    let (algorithm, digits) = text.split_once(':')?;
    if algorithm.eq_ignore_ascii_case("sha256") { Sha256::parse_hex(digits).ok() } else { None }
}

/// A `Content-Range`: RFC 9110, section 14.4.
#[derive(Debug, PartialEq, Eq)]
struct ContentRange {
    first: u64,
    last: u64,
    /// The length of the whole file; `None` where that is said to be unknown.
    whole: Option<u64>,
}

impl ContentRange {
    /// Reads `bytes FIRST-LAST/WHOLE`; `None` for anything else, and for a range that was not satisfied.
    fn parse(text: &str) -> Option<Self> {
        let (unit, range) = text.split_once(' ')?;
        let (part, whole) = range.split_once('/')?;
        let (first, last) = part.split_once('-')?;
        let whole = if whole == "*" { None } else { Some(number(whole)?) };
        unit.eq_ignore_ascii_case("bytes").then_some(Self { first: number(first)?, last: number(last)?, whole })
    }
}

/// Decimal digits alone: `u64::from_str` would take a sign too.
fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// The pieces that are passed on to the client.
#[derive(Debug, Default)]
struct Pieces {
    /// What of the next piece is there.
    open: Vec<u8>,
    /// Of those that were sent.
    digest: sha2::Sha256,
    bytes: u64,
}

impl Pieces {
    /// Sends the body of `answer`, which must have so many `bytes` if its head says how many.
    async fn pass_on(
        &mut self,
        answer: &mut Answer,
        bytes: Option<u64>,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), CallError> {
        let result = loop {
            // The server is waited for only while there is nothing to send.
            let next = if self.open.is_empty() { Some(answer.chunk().await) } else { answer.at_hand().await };
            match next {
                Some(Ok(Some(_))) if bytes.is_some_and(|bytes| answer.bytes > bytes) => break Err(failure::too_long()),
                Some(Ok(Some(data))) => self.add(data, outlet).await?,
                Some(Ok(None)) if bytes.is_some_and(|bytes| answer.bytes < bytes) => break Err(failure::cut_short()),
                Some(Ok(None)) => break Ok(()),
                Some(Err(error)) => break Err(error),
                None => self.flush(outlet).await?,
            }
        };
        self.flush(outlet).await?;
        result
    }

    /// Takes more bytes, and sends each piece that is full.
    async fn add(&mut self, mut data: Bytes, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        while !data.is_empty() {
            let room = Chunk::MAX.saturating_sub(self.open.len());
            self.open.extend_from_slice(&data.split_to(room.min(data.len())));
            if self.open.len() >= Chunk::MAX {
                self.flush(outlet).await?;
            }
        }
        Ok(())
    }

    /// Sends what there is, waiting while the client is slow.
    async fn flush(&mut self, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        if self.open.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.open);
        self.digest.update(&piece);
        self.bytes = self.bytes.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        // Never more than `Chunk::MAX`: `add` sees to it.
        let chunk = Chunk::try_new(piece).map_err(|_| failure::request("a piece of a file is too large"))?;
        outlet.items(Items::Chunk(chunk)).await
    }

    /// What was sent.
    fn sum(self) -> Result<Sum, CallError> {
        let length = Size::try_new(self.bytes).map_err(|_| failure::too_large())?;
        Ok(Sum { length, sha256: Sha256::new(self.digest.finalize().into()) })
    }
}

impl Answer {
    /// As [`Self::chunk`], if that needs not wait for the server; `None` if it does. Cancel-safe.
    async fn at_hand(&mut self) -> Option<Result<Option<Bytes>, CallError>> {
        // The HTTP client hands over one part of what it has read, and the next one when it has had its turn.
        tokio::task::yield_now().await;
        let chunk = std::future::poll_fn(|cx| match pin!(self.response.chunk()).poll(cx) {
            Poll::Ready(chunk) => Poll::Ready(Some(chunk)),
            Poll::Pending => Poll::Ready(None),
        });
        let chunk = chunk.await?;
        Some(self.taken(chunk))
    }
}

#[cfg(test)]
mod tests;
