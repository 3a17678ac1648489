//! A SOCKS 5 server in the place of Tor's: it knows a few names that no DNS knows, leads each to a server on the
//! loopback, and is as slow and as broken as a test wants it.
//!
//! It speaks RFC 1928, of which only CONNECT, and takes a user name and a passphrase (RFC 1929) as Tor does: clients give
//! them to be kept apart, and they are not looked at. The protocol is a page of code and every fault stands between two of
//! its bytes, where the server crates there are let nobody in: so it is written out here.
//!
//! How a stream goes wrong is said by rules ([`SocksFault`]), how slow it is by a [`Shape`], what happened by [`Counts`]
//! and a log of [`SocksEvent`]s; all of it through [`SocksControl`], while it runs.
//!
//! **Invariant:** only names of the table are reached, and they lead to the loopback. An IP address as a target is refused
//! and counted.
//!
//! **Invariant:** there is no state outside a [`SocksServer`]; when one is stopped or dropped, its tasks, connections and
//! port are gone.
//!
//! **Invariant:** what a client sends cannot make it hold more than a bounded number of connections, each with at most
//! [`LINE_BYTES`] in either direction, and a handshake ends with its deadline.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

mod control;
mod faults;
mod handshake;
mod ledger;
mod names;
mod port;
mod relay;
mod session;
mod shape;

pub use control::SocksControl;
pub use faults::{Act, Direction, FaultError, FaultStatus, Matching, SocksFault, Step};
pub use handshake::{Reply, Target};
pub use ledger::{Counts, Ending, SocksEvent, What};
pub use names::{NameTable, OnionName, OnionNameError, Refusal, TableError};
pub use relay::LINE_BYTES;
pub use shape::{Shape, Way};

use control::Shared;
use port::Port;

/// How long a client may take to say where it wants to go.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// How many connections are open at once, at most.
const MAX_CONNECTIONS: usize = 64;

/// Where clients connect to.
#[derive(Debug)]
pub enum Listen {
    /// A port of the loopback; 0 takes a free one.
    On(SocketAddr),
    /// A listener that somebody made, wherever it is: in another network namespace, for instance.
    Made(TcpListener),
}

/// What a SOCKS server is started with. [`SocksOptions::new`] gives the usual; change what a test is about.
#[derive(Debug)]
pub struct SocksOptions {
    /// Where it listens.
    pub listen: Listen,
    /// The names that it knows.
    pub names: NameTable,
    /// How slow it is.
    pub shape: Shape,
    /// What it answers when asked for a name or a port that it does not know.
    pub unknown: Reply,
    /// How long a client may take from connecting to saying where it wants to go.
    pub handshake_deadline: Duration,
    /// How many connections are open at once, at most; more are closed at once.
    pub max_connections: usize,
}

impl SocksOptions {
    /// A free port of the loopback, nothing slow, nothing broken.
    #[must_use]
    pub fn new(names: NameTable) -> Self {
        Self {
            listen: Listen::On(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)),
            names,
            shape: Shape::default(),
            unknown: Reply::HOST_UNREACHABLE,
            handshake_deadline: HANDSHAKE_DEADLINE,
            max_connections: MAX_CONNECTIONS,
        }
    }
}

/// The SOCKS server could not do what was asked.
#[derive(Debug, Error)]
pub enum SocksError {
    /// The operating system said so.
    #[error("could not {what}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// It opens no port that others can reach.
    #[error("a SOCKS server of the staging environment listens on the loopback, and {0} is not on it")]
    NotLoopback(SocketAddr),
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> SocksError {
    move |source| SocksError::Io { what, source }
}

/// A running SOCKS server. Dropping it ends it at once, [`SocksServer::stop`] also waits until it has ended.
#[derive(Debug)]
pub struct SocksServer {
    address: SocketAddr,
    control: SocksControl,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl SocksServer {
    /// Starts a server, on the tokio runtime that this is called in. It takes connections when this returns.
    ///
    /// # Errors
    /// [`SocksError`] when its address cannot be listened on.
    pub fn start(options: SocksOptions) -> Result<Self, SocksError> {
        let port = match options.listen {
            Listen::On(address) if !address.ip().is_loopback() => return Err(SocksError::NotLoopback(address)),
            Listen::On(address) => TcpListener::bind(address).and_then(Port::try_new).and_then(Port::kept),
            Listen::Made(listener) => Port::try_new(listener),
        };
        let port = port.map_err(failed("listen"))?;
        let address = port.address();
        let shared = Arc::new(Shared::new(
            port,
            options.names,
            options.shape,
            options.unknown,
            options.handshake_deadline,
            options.max_connections,
        ));
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(port::accept(Arc::clone(&shared), stop.clone()));
        Ok(Self { address, control: SocksControl::new(shared), stop, tasks })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its other side: a handle to watch it and to make it slow and broken.
    #[must_use]
    pub fn control(&self) -> &SocksControl {
        &self.control
    }

    /// Closes the port and cuts every stream; nothing of the server runs when this returns. Cancel-safe: dropped early,
    /// it ends the server at once.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for SocksServer {
    fn drop(&mut self) {
        self.stop.cancel();
        // The control's clones hold the listener too.
        let _already_closed = self.control.close_port();
    }
}

#[cfg(test)]
mod tests;
