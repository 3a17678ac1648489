//! Listening, and the life of each connection.
//!
//! **Invariant:** every task belongs to the set of the accept loop, and the loop to its server: when the server goes,
//! nothing of it goes on.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::desk::Desk;
use super::exchange::Exchange;

/// How long answers may take to end once the server is asked to stop.
const GRACE: Duration = Duration::from_secs(2);
/// How long to wait after the machine refused to hand over a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How connections end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manners {
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) close_after_answer: bool,
}

/// Accepts connections until `stop` and has each served by `serve`, which must end soon after `stop` by itself; those
/// that do not are ended after a grace period.
pub(crate) async fn accept<F>(listener: TcpListener, stop: CancellationToken, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_ended) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _peer)) => {
                    connections.spawn(serve(stream));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, drained).await.is_err() {
        connections.shutdown().await;
    }
}

/// Serves the API on a connection.
pub(crate) async fn serve_api(
    stream: TcpStream,
    desk: Arc<Desk>,
    router: Router,
    manners: Manners,
    stop: CancellationToken,
) {
    let open = desk.logbook.connection();
    let flushes = watch::Sender::new(0);
    let busy = watch::Sender::new(0_usize);
    let exchange = Arc::new(Exchange {
        desk,
        router,
        stop: stop.clone(),
        flushes: flushes.subscribe(),
        busy: busy.clone(),
        connection: open.number,
    });
    let io = TokioIo::new(Flushing { stream, flushes });
    let service = service_fn(move |request| {
        let exchange = Arc::clone(&exchange);
        async move { exchange.answer(request).await }
    });
    let connection = http1::Builder::new().keep_alive(!manners.close_after_answer).serve_connection(io, service);
    let closing = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = idle(busy.subscribe(), manners.idle_timeout) => {}
        }
    };
    if let Err(error) = drive(connection, closing).await {
        tracing::debug!(connection = open.number, %error, "a connection ended early");
    }
}

/// Serves commands on a connection.
pub(crate) async fn serve_control(stream: TcpStream, router: Router, stop: CancellationToken) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| router.call(request.map(Body::new)));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = drive(connection, stop.cancelled()).await {
        tracing::debug!(%error, "a control connection ended early");
    }
}

/// Runs a connection to its end; from `closing` on it takes no more requests.
async fn drive<I, S, B>(connection: http1::Connection<I, S>, closing: impl Future<Output = ()>) -> hyper::Result<()>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = closing => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

/// Ready when nothing was asked for as long as `timeout`; never without one.
async fn idle(mut busy: watch::Receiver<usize>, timeout: Option<Duration>) {
    let Some(timeout) = timeout else {
        return std::future::pending().await;
    };
    loop {
        if busy.wait_for(|requests| *requests == 0).await.is_err() {
            return std::future::pending().await;
        }
        tokio::select! {
            () = tokio::time::sleep(timeout) => return,
            _ = busy.changed() => {}
        }
    }
}

/// A stream that tells when all that was written to it has been handed to the machine.
struct Flushing {
    stream: TcpStream,
    flushes: watch::Sender<u64>,
}

impl AsyncRead for Flushing {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Flushing {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.flushes.send_modify(|count| *count = count.wrapping_add(1));
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_when_nothing_was_asked_for_long_enough() {
        let busy = watch::Sender::new(0);
        let start = Instant::now();
        idle(busy.subscribe(), Some(TIMEOUT)).await;
        assert_eq!(start.elapsed(), TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_starts_the_wait_anew_however_long_it_took() {
        let busy = watch::Sender::new(1);
        let start = Instant::now();
        let requests = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            busy.send_replace(0);
            tokio::time::sleep(Duration::from_secs(4)).await;
            busy.send_replace(1);
            busy.send_replace(0);
        };
        tokio::join!(idle(busy.subscribe(), Some(TIMEOUT)), requests);
        assert_eq!(start.elapsed(), Duration::from_secs(109));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_timeout_no_connection_is_idle() {
        let busy = watch::Sender::new(0);
        let waited = tokio::time::timeout(Duration::from_secs(1_000_000), idle(busy.subscribe(), None));
        assert!(waited.await.is_err());
    }
}
