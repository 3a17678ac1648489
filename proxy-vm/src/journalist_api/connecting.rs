//! Tells, for one request, whether it still waits for a connection, and bounds the wait for its answer once it does not.
//!
//! A call that runs out of time must say whether the server may have seen it. The HTTP client does both, connecting and
//! sending, in one step; a layer around its connector says when the first ends.
//!
//! **Invariant:** "connecting" is said only while nothing of the request can have been sent. In doubt it is "sending".
//!
//! **Invariant:** the bound for the first byte counts the time from when the request has its connection, and no other.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use protocol::Stage;
use tokio::time::Sleep;
use tower_layer::Layer;
use tower_service::Service;

use crate::outlet::Outlet;

tokio::task_local! {
    /// Whether the request that the current task performs waits for its own new connection.
    static CONNECTING: Connecting;
}

/// Whether a connector had to wait when it was last polled for a request.
#[derive(Debug, Clone, Default)]
struct Connecting(Arc<AtomicBool>);

impl Connecting {
    fn set(&self, connecting: bool) {
        self.0.store(connecting, Ordering::Relaxed);
    }

    /// How far the request is that `poll` polls.
    ///
    /// A request that waits for a new connection polls its connector each time. One that does not has another connection,
    /// though its own connector may go on in a task of its own.
    fn polled<T>(&self, poll: impl FnOnce() -> Poll<T>) -> (Poll<T>, Stage) {
        self.set(false);
        let polled = poll();
        let waits = polled.is_pending() && self.0.load(Ordering::Relaxed);
        (polled, if waits { Stage::Connect } else { Stage::FirstByte })
    }
}

/// The server took too long for the head of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no first byte within the bound")]
pub(super) struct NoFirstByte;

/// Performs `request`, saying through `outlet` how far it is. Once it has its connection its answer's head must come within
/// `first_byte`.
///
/// # Errors
/// [`NoFirstByte`] when it does not.
pub(super) async fn watched<T>(
    request: impl Future<Output = T>,
    first_byte: Duration,
    outlet: &mut Outlet<'_>,
) -> Result<T, NoFirstByte> {
    let connecting = Connecting::default();
    let mut request = std::pin::pin!(CONNECTING.scope(connecting.clone(), request));
    let mut bound = std::pin::pin!(None::<Sleep>);
    std::future::poll_fn(|cx| {
        let (polled, stage) = connecting.polled(|| request.as_mut().poll(cx));
        outlet.reached(stage);
        if let Poll::Ready(done) = polled {
            return Poll::Ready(Ok(done));
        }
        if stage == Stage::Connect {
            bound.set(None);
            return Poll::Pending;
        }
        if bound.is_none() {
            bound.set(Some(tokio::time::sleep(first_byte)));
        }
        if let Some(bound) = bound.as_mut().as_pin_mut() {
            ready!(bound.poll(cx));
            return Poll::Ready(Err(NoFirstByte));
        }
        Poll::Pending
    })
    .await
}

/// The layer around the HTTP client's connector.
#[derive(Debug, Clone, Copy)]
pub(super) struct WatchConnector;

impl<S> Layer<S> for WatchConnector {
    type Service = Watched<S>;

    fn layer(&self, inner: S) -> Watched<S> {
        Watched(inner)
    }
}

/// A connector that says when it begins and ends.
#[derive(Debug, Clone)]
pub(super) struct Watched<S>(S);

impl<S, R> Service<R> for Watched<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, to: R) -> Self::Future {
        let connect = self.0.call(to);
        let Ok(connecting) = CONNECTING.try_with(Clone::clone) else { return Box::pin(connect) };
        Box::pin(async move {
            let mut connect = std::pin::pin!(connect);
            std::future::poll_fn(|cx| {
                let polled = connect.as_mut().poll(cx);
                // Where another connection became free, the client goes on with that one and leaves this one to a task of
                // its own, which speaks for no request.
                if CONNECTING.try_with(|_| ()).is_ok() {
                    connecting.set(polled.is_pending());
                }
                polled
            })
            .await
        })
    }
}
