//! HTTP servers that do what a test says, byte for byte.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Method, path and version.
    pub(crate) line: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The number of its connection, from 1.
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap()
    }
}

/// What to do with a request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Send these bytes and keep the connection.
    Send(Vec<u8>),
    /// Send these bytes and close the connection.
    SendAndClose(Vec<u8>),
    /// Send these bytes and no more, without closing the connection.
    SendAndHang(Vec<u8>),
    /// Send these bytes, each after the first when its notice comes, and keep the connection.
    SendInTurns(Vec<u8>, Vec<(Arc<Notify>, Vec<u8>)>),
}

type Handler = dyn Fn(Seen) -> Pin<Box<dyn Future<Output = Act> + Send>> + Send + Sync;

/// A server on loopback; it ends when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    seen: watch::Receiver<Vec<Seen>>,
    ended: watch::Receiver<usize>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// A server that does with each request what `act` says.
    pub(crate) async fn new(act: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        Self::asynchronous(move |seen| {
            let act = act(&seen);
            Box::pin(async move { act })
        })
        .await
    }

    /// The same, where `act` may wait.
    pub(crate) async fn asynchronous(
        act: impl Fn(Seen) -> Pin<Box<dyn Future<Output = Act> + Send>> + Send + Sync + 'static,
    ) -> Self {
        Self::start(None, act).await
    }

    /// The same over TLS.
    pub(crate) async fn tls(
        config: tokio_rustls::rustls::ServerConfig,
        act: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let act = move |seen: Seen| -> Pin<Box<dyn Future<Output = Act> + Send>> {
            let act = act(&seen);
            Box::pin(async move { act })
        };
        Self::start(Some(TlsAcceptor::from(Arc::new(config))), act).await
    }

    async fn start(
        tls: Option<TlsAcceptor>,
        act: impl Fn(Seen) -> Pin<Box<dyn Future<Output = Act> + Send>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (noting, seen) = watch::channel(Vec::new());
        let (noting_end, ended) = watch::channel(0);
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let (connections, act) = (Arc::clone(&connections), Arc::new(act) as Arc<Handler>);
            async move {
                let mut serving = JoinSet::new();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let connection = connections.fetch_add(1, Ordering::SeqCst) + 1;
                    let (tls, seen, act) = (tls.clone(), noting.clone(), Arc::clone(&act));
                    let noting_end = noting_end.clone();
                    serving.spawn(async move {
                        match tls {
                            None => speak(stream, connection, seen, act).await,
                            Some(tls) => {
                                // A client that does not trust the server ends the handshake.
                                if let Ok(stream) = tls.accept(stream).await {
                                    speak(stream, connection, seen, act).await;
                                }
                            }
                        }
                        noting_end.send_modify(|ended| *ended += 1);
                    });
                }
            }
        });
        Self { address, connections, seen, ended, _tasks: tasks }
    }

    /// A server that answers everything with `answer` and keeps its connections.
    pub(crate) async fn answering(answer: Vec<u8>) -> Self {
        Self::new(move |_| Act::Send(answer.clone())).await
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    /// Waits until so many requests have come.
    pub(crate) async fn until_seen(&self, requests: usize) {
        self.seen.clone().wait_for(|seen| seen.len() >= requests).await.unwrap();
    }

    /// Waits until so many connections have ended.
    pub(crate) async fn until_ended(&self, connections: usize) {
        self.ended.clone().wait_for(|ended| *ended >= connections).await.unwrap();
    }
}

/// Serves one connection.
async fn speak<S>(mut stream: S, connection: usize, seen: watch::Sender<Vec<Seen>>, act: Arc<Handler>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(mut request) = read_request(&mut stream).await {
        request.connection = connection;
        seen.send_modify(|seen| seen.push(request.clone()));
        // The client may be gone: that is for the test to judge.
        match act(request).await {
            Act::Send(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Act::SendAndClose(bytes) => {
                let _gone = stream.write_all(&bytes).await;
                let _gone = stream.shutdown().await;
                return;
            }
            Act::SendAndHang(bytes) => {
                let _gone = stream.write_all(&bytes).await;
                // Until the client has hung up.
                let _gone = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                return;
            }
            Act::SendInTurns(first, rest) => {
                if stream.write_all(&first).await.is_err() {
                    return;
                }
                for (notice, bytes) in rest {
                    notice.notified().await;
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> Option<Seen> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut seen = Seen { line, headers, body: Vec::new(), connection: 0 };
    let length = seen.header("content-length").map_or(0, |length| length.parse().unwrap());
    seen.body = vec![0; length];
    stream.read_exact(&mut seen.body).await.ok()?;
    Some(seen)
}

/// An answer with a `Content-Length`.
pub(crate) fn answer(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes =
        format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        bytes.push_str(&format!("{name}: {value}\r\n"));
    }
    bytes.push_str("\r\n");
    let mut bytes = bytes.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A 200 with JSON.
pub(crate) fn ok(body: &str) -> Vec<u8> {
    answer("200 OK", &[], body.as_bytes())
}

/// A 200 in chunks of `size` bytes.
pub(crate) fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(size) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}
