//! The bodies of answers, sound ones and those that go wrong on the way.
//!
//! **Invariant:** a body that hangs or drips ends when the server stops or the connection closes, whichever is first.
//!
//! **Invariant:** no body is larger in memory than what the world itself makes it, and a download passes by in chunks.
//!
//! **Invariant:** every byte that goes to the connection is counted in the log.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use hyper::body::{Bytes, Frame, SizeHint};
use thiserror::Error;
use tokio::sync::watch;

use super::log::RequestGuard;

/// How much padding goes out at a time.
const CHUNK: usize = 64 * 1024;
static BLANKS: [u8; CHUNK] = [b' '; CHUNK];

/// Why a body ended before its end. hyper answers any of them by closing the connection.
#[derive(Debug, Error)]
pub(crate) enum BodyError {
    #[error("cut on purpose")]
    Cut,
    #[error("the server stops")]
    Stopped,
    #[error(transparent)]
    Inner(#[from] axum::Error),
}

/// Something to wait for.
pub(crate) type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a body that stops early does then.
pub(crate) enum Then {
    /// It was all.
    End,
    /// Waits until the connection has flushed what there is, and closes it.
    Cut { flushes: watch::Receiver<u64> },
    /// Waits for ever: until this future, the end of the server, is ready.
    Hang { stopped: Wait },
}

enum Part {
    Whole(Body),
    Start { body: Body, left: u64, then: Option<Then> },
    Waiting { until: Wait, error: fn() -> BodyError },
    Padded { head: Option<Bytes>, blanks: u64, tail: Option<Bytes>, announced: bool },
    Dripping(Drip),
    Flipped { body: Body, before: Option<u64> },
}

/// A body that comes a little at a time.
struct Drip {
    body: Body,
    /// What the body gave and is not sent yet.
    rest: Bytes,
    bytes: usize,
    every: Duration,
    pause: Option<Wait>,
    stopped: Wait,
}

/// The body of an answer. While it is there, its request is in flight.
pub(crate) struct AnswerBody {
    part: Part,
    request: RequestGuard,
}

impl AnswerBody {
    /// A sound body.
    pub(crate) fn whole(body: Body, request: RequestGuard) -> Self {
        Self::new(Part::Whole(body), request)
    }

    /// A body that stops after this many bytes, or where it ends. Unless that is meant to be its end, its length must be
    /// promised by a header.
    pub(crate) fn start(body: Body, bytes: u64, then: Then, request: RequestGuard) -> Self {
        Self::new(Part::Start { body, left: bytes, then: Some(then) }, request)
    }

    /// `head`, blanks, `tail`: `length` bytes of them, and at least head and tail.
    pub(crate) fn padded(
        head: &'static str,
        tail: &'static str,
        length: u64,
        announced: bool,
        request: RequestGuard,
    ) -> Self {
        let ends = u64::try_from(head.len().saturating_add(tail.len())).unwrap_or(u64::MAX);
        Self::new(
            Part::Padded {
                head: Some(Bytes::from_static(head.as_bytes())),
                blanks: length.saturating_sub(ends),
                tail: Some(Bytes::from_static(tail.as_bytes())),
                announced,
            },
            request,
        )
    }

    /// A body of which `bytes` bytes come at once and as many again after each pause, until the end or until `stopped`.
    pub(crate) fn drip(body: Body, bytes: u64, every: Duration, stopped: Wait, request: RequestGuard) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).max(1);
        Self::new(Part::Dripping(Drip { body, rest: Bytes::new(), bytes, every, pause: None, stopped }), request)
    }

    /// A body in which all bits of the byte at place `at` are flipped.
    pub(crate) fn flipped(body: Body, at: u64, request: RequestGuard) -> Self {
        Self::new(Part::Flipped { body, before: Some(at) }, request)
    }

    fn new(part: Part, request: RequestGuard) -> Self {
        Self { part, request }
    }
}

/// One flush more than there have been.
fn flushed(mut flushes: watch::Receiver<u64>) -> Wait {
    let before = *flushes.borrow_and_update();
    Box::pin(async move {
        // A closed channel means that the connection is gone; there is nothing to wait for either.
        let _ = flushes.wait_for(|now| *now > before).await;
    })
}

type Next = Option<Result<Bytes, BodyError>>;

/// The next bytes of a body, never none at all. Trailers are not something that answers here have.
fn poll_bytes(body: &mut Body, cx: &mut Context<'_>) -> Poll<Next> {
    loop {
        let frame = ready!(hyper::body::Body::poll_frame(Pin::new(&mut *body), cx));
        match frame.map(|frame| frame.map(Frame::into_data)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(BodyError::Inner(error)))),
            Some(Ok(Ok(bytes))) if !bytes.is_empty() => return Poll::Ready(Some(Ok(bytes))),
            Some(Ok(_)) => {}
        }
    }
}

fn length_of(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

impl Drip {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        if self.stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(BodyError::Stopped)));
        }
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        if self.rest.is_empty() {
            match ready!(poll_bytes(&mut self.body, cx)) {
                Some(Ok(bytes)) => self.rest = bytes,
                end => return Poll::Ready(end),
            }
        }
        let drop = self.rest.split_to(self.bytes.min(self.rest.len()));
        self.pause = Some(Box::pin(tokio::time::sleep(self.every)));
        Poll::Ready(Some(Ok(drop)))
    }
}

impl Part {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        match self {
            Self::Whole(body) => poll_bytes(body, cx),
            Self::Start { body, left, then } => {
                let next = match *left {
                    0 => None,
                    _ => ready!(poll_bytes(body, cx)),
                };
                let next = next.map(|bytes| {
                    bytes.map(|mut bytes| {
                        bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                        *left = left.saturating_sub(length_of(&bytes));
                        bytes
                    })
                });
                let is_over = next.is_none() || *left == 0;
                let waits = match then {
                    Some(Then::Cut { .. } | Then::Hang { .. }) => is_over,
                    Some(Then::End) | None => false,
                };
                if waits {
                    self.stop();
                }
                match next {
                    None if waits => self.poll_next(cx),
                    next => Poll::Ready(next),
                }
            }
            Self::Waiting { until, error } => {
                ready!(until.as_mut().poll(cx));
                Poll::Ready(Some(Err(error())))
            }
            Self::Padded { head, blanks, tail, .. } => {
                let next = head.take().or_else(|| {
                    let most = usize::try_from(*blanks).unwrap_or(CHUNK).min(CHUNK);
                    let chunk = BLANKS.get(..most).filter(|chunk| !chunk.is_empty())?;
                    *blanks -= u64::try_from(most).unwrap_or(*blanks);
                    Some(Bytes::from_static(chunk))
                });
                Poll::Ready(next.or_else(|| tail.take()).map(Ok))
            }
            Self::Dripping(drip) => drip.poll_next(cx),
            Self::Flipped { body, before } => {
                let next = ready!(poll_bytes(body, cx));
                Poll::Ready(next.map(|bytes| bytes.map(|bytes| flip(bytes, before))))
            }
        }
    }

    /// From a body that has been cut to one that waits, unless it has ended. What was handed out before has not been
    /// flushed by then.
    fn stop(&mut self) {
        if let Self::Start { then, .. } = self {
            let (until, error): (Wait, fn() -> BodyError) = match then.take() {
                Some(Then::Cut { flushes }) => (flushed(flushes), || BodyError::Cut),
                Some(Then::Hang { stopped }) => (stopped, || BodyError::Stopped),
                Some(Then::End) | None => return,
            };
            *self = Self::Waiting { until, error };
        }
    }
}

/// Flips the byte that `before` bytes come before, if it is among these, and counts these otherwise.
fn flip(bytes: Bytes, before: &mut Option<u64>) -> Bytes {
    let Some(at) = *before else {
        return bytes;
    };
    let mut bytes = bytes.to_vec();
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    match usize::try_from(at).ok().and_then(|at| bytes.get_mut(at)) {
        Some(byte) => {
            *byte = !*byte;
            *before = None;
        }
        None => *before = Some(at.saturating_sub(length)),
    }
    bytes.into()
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let next = ready!(self.part.poll_next(cx));
        if let Some(Ok(bytes)) = &next {
            self.request.sent(bytes.len());
        }
        Poll::Ready(next.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.part {
            Part::Whole(body) | Part::Flipped { body, .. } => body.is_end_stream(),
            Part::Start { body, left, then } => match then {
                Some(Then::End) | None => *left == 0 || body.is_end_stream(),
                Some(Then::Cut { .. } | Then::Hang { .. }) => false,
            },
            Part::Waiting { .. } => false,
            Part::Padded { head, tail, .. } => head.is_none() && tail.is_none(),
            Part::Dripping(drip) => drip.rest.is_empty() && drip.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.part {
            Part::Whole(body) | Part::Flipped { body, .. } => body.size_hint(),
            Part::Start { body, left, then: Some(Then::End) | None } => match body.size_hint().exact() {
                Some(length) => SizeHint::with_exact(length.min(*left)),
                None => SizeHint::default(),
            },
            Part::Start { .. } | Part::Waiting { .. } => SizeHint::default(),
            Part::Padded { head, blanks, tail, announced: true } => {
                let length = |part: &Option<Bytes>| part.as_ref().map_or(0, length_of);
                SizeHint::with_exact(length(head) + *blanks + length(tail))
            }
            Part::Padded { announced: false, .. } => SizeHint::default(),
            Part::Dripping(drip) => match drip.body.size_hint().exact() {
                Some(length) => SizeHint::with_exact(length.saturating_add(length_of(&drip.rest))),
                None => SizeHint::default(),
            },
        }
    }
}
