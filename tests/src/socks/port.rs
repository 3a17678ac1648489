//! The port that clients connect to: accepting, closing it so that connecting is refused, and opening it again.
//!
//! The listening socket is kept through it all, only its state changes: one that was made in another network namespace
//! could not be made again from here.
//!
//! **Invariant:** when the port has been closed, whoever connects is refused by the operating system, and whoever was not
//! accepted yet is reset.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{Backlog, Shutdown, SockaddrStorage, bind, listen, shutdown};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::control::Shared;
use super::session;

/// How long to wait after the machine refused to hand over a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Whether the port is open, and for which time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortState {
    Open(u64),
    Closed(u64),
}

#[derive(Debug)]
pub(super) struct Port {
    listener: TcpListener,
    address: SocketAddr,
    state: watch::Sender<PortState>,
}

impl Port {
    pub(super) fn try_new(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, state: watch::Sender::new(PortState::Open(0)) })
    }

    /// The same port, whose number stays ours while it is closed, though the system may have chosen it. Nobody may know
    /// of it yet.
    pub(super) fn kept(self) -> io::Result<Self> {
        // Opening it asks for it by its number.
        self.close()?;
        self.open()?;
        Ok(self)
    }

    /// Closes the port; connections that were accepted stay.
    pub(super) fn close(&self) -> io::Result<()> {
        let mut result = Ok(());
        self.state.send_if_modified(|state| match *state {
            PortState::Open(times) => {
                result = shutdown(self.listener.as_raw_fd(), Shutdown::Read).map_err(io::Error::from);
                *state = PortState::Closed(times);
                true
            }
            PortState::Closed(_) => false,
        });
        result
    }

    /// Opens the port again, with the same number.
    pub(super) fn open(&self) -> io::Result<()> {
        let mut result = Ok(());
        self.state.send_if_modified(|state| match *state {
            PortState::Open(_) => false,
            PortState::Closed(times) => {
                result = self.listen();
                if result.is_ok() {
                    *state = PortState::Open(times.wrapping_add(1));
                }
                result.is_ok()
            }
        });
        result
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    fn listen(&self) -> io::Result<()> {
        // A port that the system chose is given back when it closes; one that was asked for by its number is kept, and
        // asking for it again is an error that means nothing.
        match bind(self.listener.as_raw_fd(), &SockaddrStorage::from(self.address)) {
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(listen(&self.listener, Backlog::MAXALLOWABLE)?)
    }

    /// A socket to accept with as long as the port is open this time. What tokio has once seen closed stays so for it,
    /// so each time has its own.
    fn acceptor(&self) -> io::Result<tokio::net::TcpListener> {
        tokio::net::TcpListener::from_std(self.listener.try_clone()?)
    }
}

/// Accepts connections and serves each, until `stop`; then all of them are cut.
pub(super) async fn accept(shared: Arc<Shared>, stop: CancellationToken) {
    let mut state = shared.port.state.subscribe();
    let mut connections = JoinSet::new();
    loop {
        let now = *state.borrow_and_update();
        let accepting = async {
            match now {
                PortState::Open(_) => accept_while_open(&shared, &mut connections).await,
                PortState::Closed(_) => while connections.join_next().await.is_some() {},
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = stop.cancelled() => break,
            _changed = state.changed() => {}
            () = accepting => {}
        }
    }
    // Nothing depends on it: the socket is gone with the last who holds it.
    let _already_closed = shared.port.close();
    connections.shutdown().await;
}

/// Accepts as long as it is polled.
async fn accept_while_open(shared: &Arc<Shared>, connections: &mut JoinSet<()>) {
    let acceptor = loop {
        match shared.port.acceptor() {
            Ok(acceptor) => break acceptor,
            Err(error) => {
                tracing::warn!(%error, "the SOCKS server cannot accept connections yet");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    };
    loop {
        tokio::select! {
            Some(_ended) = connections.join_next() => {}
            accepted = acceptor.accept() => match accepted {
                Ok((stream, _peer)) => serve(stream, shared, connections),
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

fn serve(stream: TcpStream, shared: &Arc<Shared>, connections: &mut JoinSet<()>) {
    // First this, so that whoever is in the ledger when all are cut is cut.
    let cut = shared.cut();
    // One too many is closed by being dropped.
    let Some(open) = shared.ledger.connection(shared.max_connections) else { return };
    // Small answers should not wait for more of them.
    let _only_slower = stream.set_nodelay(true);
    connections.spawn(session::serve(stream, Arc::clone(shared), open, cut));
}
