//! What the tasks of a SOCKS server share, and the handle through which tests watch and change it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::faults::{Direction, FaultError, FaultStatus, FaultTable, SocksFault};
use super::handshake::Reply;
use super::ledger::{Counts, Ledger, SocksEvent};
use super::names::NameTable;
use super::port::Port;
use super::shape::{Pace, Shape, piece};
use super::{SocksError, failed};

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) port: Port,
    pub(super) unknown: Reply,
    pub(super) handshake_deadline: Duration,
    pub(super) max_connections: usize,
    pub(super) ledger: Ledger,
    names: Mutex<Arc<NameTable>>,
    faults: Mutex<FaultTable>,
    shape: Mutex<Shape>,
    to_server: Mutex<Pace>,
    to_client: Mutex<Pace>,
    cut: Mutex<CancellationToken>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(
        port: Port,
        names: NameTable,
        shape: Shape,
        unknown: Reply,
        handshake_deadline: Duration,
        max_connections: usize,
    ) -> Self {
        Self {
            port,
            unknown,
            handshake_deadline,
            max_connections,
            ledger: Ledger::default(),
            names: Mutex::new(Arc::new(names)),
            faults: Mutex::default(),
            shape: Mutex::new(shape),
            to_server: Mutex::default(),
            to_client: Mutex::default(),
            cut: Mutex::default(),
        }
    }

    pub(super) fn names(&self) -> Arc<NameTable> {
        Arc::clone(&lock(&self.names))
    }

    pub(super) fn shape(&self) -> Shape {
        *lock(&self.shape)
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, FaultTable> {
        lock(&self.faults)
    }

    /// Cancelled when the connections of this moment are cut.
    pub(super) fn cut(&self) -> CancellationToken {
        lock(&self.cut).clone()
    }

    /// How many of `wanted` bytes may be written next in this direction, and from when on.
    pub(super) fn next_piece(&self, direction: Direction, wanted: u64) -> (u64, Option<Instant>) {
        let Some(rate) = self.shape().way(direction).rate else { return (wanted.min(piece(None)), None) };
        let bytes = wanted.min(piece(Some(rate)));
        let pace = match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        };
        let from = lock(pace).reserve(Instant::now(), bytes, rate);
        (bytes, Some(from))
    }
}

/// A SOCKS server's other side. Clones are handles to the same server, also after it has been stopped.
#[derive(Debug, Clone)]
pub struct SocksControl {
    shared: Arc<Shared>,
}

impl SocksControl {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// The numbers of this moment.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.ledger.counts()
    }

    /// The newest 10,000 events, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<SocksEvent> {
        self.shared.ledger.events()
    }

    /// Waits until `wanted` is true of the counts, for ever if it never is. Cancel-safe.
    pub async fn wait_for(&self, wanted: impl FnMut(&Counts) -> bool) {
        self.shared.ledger.wait_for(wanted).await;
    }

    /// How slow the way is.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shared.shape()
    }

    /// Makes the way slower or faster, for what comes from now on, on open streams too.
    pub fn set_shape(&self, shape: Shape) {
        *lock(&self.shared.shape) = shape;
    }

    /// Replaces the names that are known. Streams that are there stay.
    pub fn set_names(&self, names: NameTable) {
        *lock(&self.shared.names) = Arc::new(names);
    }

    /// Adds a rule to the end of the table, for connections that come from now on. Gives its id.
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn add_fault(&self, fault: SocksFault) -> Result<u64, FaultError> {
        self.shared.faults().add(fault)
    }

    /// Removes a rule and tells whether it was there. What it holds or will do to open connections stays.
    #[must_use = "whether the rule was there"]
    pub fn remove_fault(&self, id: u64) -> bool {
        self.shared.faults().remove(id)
    }

    /// Removes all rules.
    pub fn clear_faults(&self) {
        self.shared.faults().clear();
    }

    /// The rules, and how often each has acted.
    #[must_use]
    pub fn faults(&self) -> Vec<FaultStatus> {
        self.shared.faults().statuses()
    }

    /// Closes the port: from now on connecting to it is refused. Connections that are open stay.
    ///
    /// # Errors
    /// [`SocksError::Io`].
    pub fn close_port(&self) -> Result<(), SocksError> {
        self.port("close the port", Port::close)
    }

    /// Opens the port again.
    ///
    /// # Errors
    /// [`SocksError::Io`], among others when somebody else has taken the port meanwhile.
    pub fn open_port(&self) -> Result<(), SocksError> {
        self.port("open the port again", Port::open)
    }

    fn port(&self, what: &'static str, change: impl FnOnce(&Port) -> io::Result<()>) -> Result<(), SocksError> {
        change(&self.shared.port).map_err(failed(what))
    }

    /// Cuts every connection that is open, those that hang too, and waits until they are closed. Cancel-safe: they are
    /// cut all the same.
    pub async fn cut_all(&self) {
        // In this order: whoever is waited for is cut, and whoever comes meanwhile may be cut too.
        let newest = self.shared.ledger.counts().accepted;
        let cut = std::mem::take(&mut *lock(&self.shared.cut));
        cut.cancel();
        self.shared.ledger.wait_for_the_end_of(newest).await;
    }
}
