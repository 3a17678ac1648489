//! Tells, for one request, whether it still waits for a connection.
//!
//! A call that runs out of time must say whether the server may have seen it. The HTTP client does both, connecting and
//! sending, in one step; a layer around its connector says when the first ends.
//!
//! **Invariant:** "connecting" is said only while nothing of the request can have been sent. In doubt it is "sending".

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use protocol::Stage;
use tower_layer::Layer;
use tower_service::Service;

use crate::outlet::Outlet;

tokio::task_local! {
    /// Whether the request that the current task performs waits for its own new connection.
    static CONNECTING: Connecting;
}

#[derive(Debug, Clone, Default)]
struct Connecting(Arc<AtomicBool>);

impl Connecting {
    fn set(&self, connecting: bool) {
        self.0.store(connecting, Ordering::Relaxed);
    }

    fn stage(&self) -> Stage {
        if self.0.load(Ordering::Relaxed) { Stage::Connect } else { Stage::FirstByte }
    }
}

/// Performs `request`, saying through `outlet` how far it is.
pub(super) async fn watched<T>(request: impl Future<Output = T>, outlet: &mut Outlet<'_>) -> T {
    let connecting = Connecting::default();
    let mut request = std::pin::pin!(CONNECTING.scope(connecting.clone(), request));
    std::future::poll_fn(|cx| {
        let polled = request.as_mut().poll(cx);
        outlet.reached(connecting.stage());
        polled
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
        connecting.set(true);
        Box::pin(async move {
            let mut connect = std::pin::pin!(connect);
            std::future::poll_fn(|cx| {
                // The client goes on with another connection that became free, and leaves this one to a task of its own.
                if CONNECTING.try_with(|_| ()).is_err() {
                    connecting.set(false);
                }
                let polled = connect.as_mut().poll(cx);
                if polled.is_ready() {
                    connecting.set(false);
                }
                polled
            })
            .await
        })
    }
}
