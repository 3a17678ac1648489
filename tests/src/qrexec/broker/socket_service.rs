//! A service that is a Unix socket: no process is started, a program that runs already takes the connection.
//!
//! The broker copies between the caller and the socket, since only it can tell when both are through.
//!
//! **Invariant:** such a call has no stderr and no exit code but 0.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use crate::qrexec::descriptors::CallerEnds;
use crate::qrexec::rpc_config::RpcConfig;
use crate::qrexec::system::QubeName;

/// A call that a socket serves. Dropping it closes the connection.
pub(super) struct SocketService {
    /// `None` once it has ended.
    relay: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl fmt::Debug for SocketService {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SocketService").field("runs", &self.relay.is_some()).finish()
    }
}

impl SocketService {
    /// Connects, and returns the caller's ends. The service is told first what it is called for and by whom, unless
    /// its configuration says otherwise.
    pub(super) async fn start(
        path: &Path,
        full_name: &str,
        source: &QubeName,
        config: &RpcConfig,
    ) -> io::Result<(Self, CallerEnds)> {
        let service = UnixStream::connect(path).await?;
        let descriptor =
            if config.skip_service_descriptor { Vec::new() } else { format!("{full_name} {source}\0").into_bytes() };
        let (stdin, caller_stdin) = UnixStream::pair()?;
        let (stdout, caller_stdout) = UnixStream::pair()?;
        // Its other end is gone at once: there is no stderr.
        let (stderr, _) = io::pipe()?;
        let ends =
            CallerEnds { stdin: blocking(caller_stdin)?, stdout: blocking(caller_stdout)?, stderr: stderr.into() };
        let relay = relay(service, stdin, stdout, descriptor, config.clone());
        Ok((Self { relay: Some(Box::pin(relay)) }, ends))
    }

    /// Waits until it is over. Cancel-safe: called again it goes on where it was.
    pub(super) async fn ended(&mut self) {
        if let Some(relay) = &mut self.relay {
            relay.await;
        }
        self.relay = None;
    }
}

fn blocking(stream: UnixStream) -> io::Result<OwnedFd> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream.into())
}

/// Copies both ways until both are through, or the configuration says that one is enough. A connection that fails is
/// one that is through.
async fn relay(
    service: UnixStream,
    mut stdin: UnixStream,
    mut stdout: UnixStream,
    descriptor: Vec<u8>,
    config: RpcConfig,
) {
    // A second descriptor of the connection, to see it hung up while the halves are in use.
    let Ok(watched) = service.as_fd().try_clone_to_owned() else { return };
    let Ok(watched) = UnixStream::from_std(watched.into()) else { return };
    let (mut from, mut to) = service.into_split();
    let input = async {
        if to.write_all(&descriptor).await.is_ok() && tokio::io::copy(&mut stdin, &mut to).await.is_ok() {
            let _ = to.shutdown().await;
        }
    };
    let output = async {
        if tokio::io::copy(&mut from, &mut stdout).await.is_ok() {
            let _ = stdout.shutdown().await;
        }
    };
    tokio::pin!(input, output);
    let (mut reads, mut writes) = (true, true);
    while reads || writes {
        tokio::select! {
            () = &mut input, if reads => {
                reads = false;
                if config.exit_on_client_eof {
                    return;
                }
            }
            () = &mut output, if writes => {
                writes = false;
                if config.exit_on_service_eof {
                    return;
                }
            }
            () = hung_up(&watched), if reads && !writes => reads = false,
        }
    }
}

/// Waits until the other side has closed the connection altogether, not only its half. Cancel-safe.
async fn hung_up(connection: &UnixStream) {
    let look = || {
        let mut polled = [PollFd::new(connection.as_fd(), PollFlags::empty())];
        poll(&mut polled, PollTimeout::ZERO)?;
        let [polled] = polled;
        // Not for these it would be asked again at the connection's next change, and not before.
        match polled.revents() {
            Some(seen) if seen.intersects(PollFlags::POLLHUP | PollFlags::POLLERR) => Ok(()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    };
    // An error is an end too.
    let _ = connection.async_io(Interest::WRITABLE, look).await;
}
