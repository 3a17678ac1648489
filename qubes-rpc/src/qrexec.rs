//! Starts a qrexec call, watches it and ends it.
//!
//! **Invariant:** every process that was started is ended and reaped, also when its [`QrexecCall`] is only dropped.
//!
//! `qrexec-client-vm` gets fresh pipes, since it makes what it inherits non-blocking and leaves it so. When its reader
//! goes away it does not end by itself.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use protocol::Hello;
use tokio::process::{Child, Command};

use crate::connection::{Connection, HelloError};
use crate::name::{ServiceName, VmName};

/// How long the process may take to end by itself once its input is closed.
const END_DEADLINE: Duration = Duration::from_secs(2);
/// How long a process whose output has ended may take until its exit code is there.
const EXIT_DEADLINE: Duration = Duration::from_secs(2);

/// The exit codes of `qrexec-client-vm` that are not the service's own.
mod exit_code {
    pub(super) const REFUSED: i32 = 126;
    pub(super) const NO_SUCH_SERVICE: i32 = 127;
    pub(super) const FAILED: i32 = 125;
    pub(super) const AGENT_DIED: i32 = 255;
}

/// How to make qrexec calls.
#[derive(Debug, Clone)]
pub struct Qrexec {
    /// The program that makes a call, normally `/usr/bin/qrexec-client-vm`.
    pub program: PathBuf,
}

/// A call could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The program could not be started.
    #[error("could not start {}", .program.display())]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// dom0's policy, or the person it asked, refused the call; or the other VM could not be started, which the caller
    /// is told in the same way.
    #[error("dom0 refused the call of {service} to {vm}, or could not start {vm}: see the policy and the log in dom0")]
    Refused {
        /// The VM called.
        vm: VmName,
        /// The service called.
        service: ServiceName,
    },
    /// The other VM has no such service.
    #[error("{vm} has no service {service}: is Splitdrop's proxy installed there?")]
    NoSuchService {
        /// The VM called.
        vm: VmName,
        /// The service called.
        service: ServiceName,
    },
    /// qrexec itself failed, or the other VM could not be started.
    #[error("qrexec could not call {vm}: it may be unable to start, see dom0's log")]
    QrexecFailed {
        /// The VM called.
        vm: VmName,
    },
    /// The call ended before the proxy answered the handshake.
    #[error("the call to {vm} ended before the handshake ({status}): see the log of {vm}")]
    Died {
        /// The VM called.
        vm: VmName,
        /// How the program ended.
        status: ExitStatus,
    },
    /// The call is there and the handshake failed.
    #[error("the handshake with {vm} failed")]
    Hello {
        /// The VM called.
        vm: VmName,
        /// Why.
        #[source]
        source: HelloError,
    },
}

/// An open call: a session, and the process that carries it.
#[derive(Debug)]
pub struct QrexecCall {
    connection: Connection,
    child: Child,
}

impl Qrexec {
    /// Calls `service` in `vm` and shakes hands. `deadline` has to allow for the VM's start and for a question in dom0.
    ///
    /// # Errors
    /// [`OpenError`]. The process has ended then.
    pub async fn open(
        &self,
        vm: &VmName,
        service: &ServiceName,
        hello: &Hello,
        deadline: Duration,
    ) -> Result<QrexecCall, OpenError> {
        let not_started = |source| OpenError::NotStarted { program: self.program.clone(), source };
        let mut child = Command::new(&self.program)
            .args(["--", vm.as_str(), service.as_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The other VM's standard error comes here too: it is not to be trusted, and its log has it.
            .stderr(Stdio::null())
            .kill_on_drop(true)
            // A terminal's Ctrl-C is for the program that makes the call, which still has to sign out.
            .process_group(0)
            .spawn()
            .map_err(not_started)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(not_started(io::ErrorKind::BrokenPipe.into()));
        };
        match Connection::open(output, input, hello, deadline).await {
            Ok(connection) => Ok(QrexecCall { connection, child }),
            Err(error) => Err(explain(child, vm, service, error).await),
        }
    }
}

/// Ends the process of a call that did not come about, and finds out why.
async fn explain(mut child: Child, vm: &VmName, service: &ServiceName, error: HelloError) -> OpenError {
    let ended_by_itself = matches!(error, HelloError::Ended | HelloError::Channel(_));
    let status = if ended_by_itself { tokio::time::timeout(EXIT_DEADLINE, child.wait()).await.ok() } else { None };
    if status.is_none() {
        kill(&mut child).await;
    }
    let (vm, service) = (vm.clone(), service.clone());
    let Some(Ok(status)) = status else { return OpenError::Hello { vm, source: error } };
    match status.code() {
        Some(exit_code::REFUSED) => OpenError::Refused { vm, service },
        Some(exit_code::NO_SUCH_SERVICE) => OpenError::NoSuchService { vm, service },
        Some(exit_code::FAILED | exit_code::AGENT_DIED) => OpenError::QrexecFailed { vm },
        _ => OpenError::Died { vm, status },
    }
}

impl QrexecCall {
    /// The session.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Ends the call: closes its input, waits a little, then kills the process and reaps it. Cancelled, the process is
    /// killed at once.
    pub async fn close(self) {
        let Self { connection, mut child } = self;
        connection.close().await;
        if tokio::time::timeout(END_DEADLINE, child.wait()).await.is_err() {
            kill(&mut child).await;
        }
    }
}

async fn kill(child: &mut Child) {
    if let Err(error) = child.kill().await {
        tracing::error!(%error, "could not end a qrexec call");
    }
}
