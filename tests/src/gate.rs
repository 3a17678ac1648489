//! A gate on the way to a server: what comes waits until it is opened, so that tests are about the order of events and
//! not about time.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Lets as many connections through as it was told to. Those that wait have been accepted: whoever opened them has sent
/// its request and waits for an answer.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    permits: Arc<Semaphore>,
    /// Ends with the gate, and all connections with it.
    _tasks: JoinSet<()>,
}

impl Gate {
    /// A closed gate before `server`, on the loopback.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn before(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let permits = Arc::new(Semaphore::new(0));
        let (gate, mut tasks) = (Arc::clone(&permits), JoinSet::new());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(pass(client, server, Arc::clone(&gate)));
            }
        });
        Ok(Self { address, permits, _tasks: tasks })
    }

    /// Where it stands.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets so many more connections through.
    pub fn admit(&self, connections: usize) {
        self.permits.add_permits(connections);
    }

    /// Lets everything through from now on.
    pub fn open(&self) {
        self.permits.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

async fn pass(mut client: TcpStream, server: SocketAddr, gate: Arc<Semaphore>) {
    let Ok(permit) = gate.acquire().await else { return };
    permit.forget();
    if let Ok(mut server) = TcpStream::connect(server).await {
        // It ends when either side does, which is all there is to know.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}
