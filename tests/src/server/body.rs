//! The bodies of answers, sound ones and those that go wrong on the way.
//!
//! **Invariant:** a body that hangs ends when the server stops or the connection closes, whichever is first.
//!
//! **Invariant:** no body is larger in memory than what the world itself makes it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

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

type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a body that stops early does then.
pub(crate) enum Then {
    /// Waits until the connection has flushed what there is, and closes it.
    Cut { flushes: watch::Receiver<u64> },
    /// Waits for ever: until this future, the end of the server, is ready.
    Hang { stopped: Wait },
}

enum Part {
    Whole(Body),
    Start { bytes: Option<Bytes>, then: Option<Then> },
    Waiting { until: Wait, error: fn() -> BodyError },
    Padded { head: Option<Bytes>, blanks: u64, tail: Option<Bytes>, announced: bool },
}

/// The body of an answer. While it is there, its request is in flight.
pub(crate) struct AnswerBody {
    part: Part,
    _request: RequestGuard,
}

impl AnswerBody {
    /// A sound body.
    pub(crate) fn whole(body: Body, request: RequestGuard) -> Self {
        Self::new(Part::Whole(body), request)
    }

    /// A body that stops after these bytes. Its length must be promised by a header.
    pub(crate) fn start(bytes: Bytes, then: Then, request: RequestGuard) -> Self {
        Self::new(Part::Start { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()), then: Some(then) }, request)
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

    fn new(part: Part, request: RequestGuard) -> Self {
        Self { part, _request: request }
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

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Part::Start { bytes, then } = &mut self.part {
            let bytes = bytes.take();
            let (until, error): (Wait, fn() -> BodyError) = match then.take() {
                Some(Then::Cut { flushes }) => (flushed(flushes), || BodyError::Cut),
                Some(Then::Hang { stopped }) => (stopped, || BodyError::Stopped),
                None => (Box::pin(std::future::ready(())), || BodyError::Cut),
            };
            self.part = Part::Waiting { until, error };
            if let Some(bytes) = bytes {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
        match &mut self.part {
            Part::Whole(body) => Pin::new(body).poll_frame(cx).map_err(BodyError::Inner),
            Part::Start { .. } => Poll::Ready(Some(Err(BodyError::Cut))),
            Part::Waiting { until, error } => {
                ready!(until.as_mut().poll(cx));
                Poll::Ready(Some(Err(error())))
            }
            Part::Padded { head, blanks, tail, .. } => {
                let next = head.take().or_else(|| {
                    let most = usize::try_from(*blanks).unwrap_or(CHUNK).min(CHUNK);
                    let chunk = BLANKS.get(..most).filter(|chunk| !chunk.is_empty())?;
                    *blanks -= u64::try_from(most).unwrap_or(*blanks);
                    Some(Bytes::from_static(chunk))
                });
                let next = next.or_else(|| tail.take());
                Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.part {
            Part::Whole(body) => body.is_end_stream(),
            Part::Start { .. } | Part::Waiting { .. } => false,
            Part::Padded { head, tail, .. } => head.is_none() && tail.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.part {
            Part::Whole(body) => body.size_hint(),
            Part::Start { .. } | Part::Waiting { .. } => SizeHint::default(),
            Part::Padded { head, blanks, tail, announced: true } => {
                let length =
                    |part: &Option<Bytes>| part.as_ref().map_or(0, |part| u64::try_from(part.len()).unwrap_or(0));
                SizeHint::with_exact(length(head) + *blanks + length(tail))
            }
            Part::Padded { announced: false, .. } => SizeHint::default(),
        }
    }
}
