//! Starts a qrexec call, watches it and ends it.
//!
//! **Invariant:** every process that was started is ended and reaped, also when its [`QrexecCall`] is only dropped. Until
//! then it keeps its call's place.
//!
//! `qrexec-client-vm` gets fresh pipes, since it makes what it inherits non-blocking and leaves it so. When its reader
//! goes away it does not end by itself.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use protocol::Hello;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::connection::{Connection, HelloError};
use crate::name::{ServiceName, VmName};
use crate::places::{Place, Places};

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
    process: Process,
}

impl Qrexec {
    /// Calls `service` in `vm` in this place and shakes hands. `deadline` has to allow for the VM's start and for a
    /// question in dom0.
    ///
    /// # Errors
    /// [`OpenError`]. The process has ended then.
    pub async fn open(
        &self,
        vm: &VmName,
        service: &ServiceName,
        hello: &Hello,
        deadline: Duration,
        place: Place,
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
        let process = Process::watch(child, place);
        match Connection::open(output, input, hello, deadline).await {
            Ok(connection) => Ok(QrexecCall { connection, process }),
            Err(error) => Err(explain(process, vm, service, error).await),
        }
    }
}

/// Ends the process of a call that did not come about, and finds out why.
async fn explain(mut process: Process, vm: &VmName, service: &ServiceName, error: HelloError) -> OpenError {
    let ended_by_itself = matches!(error, HelloError::Ended | HelloError::Channel(_));
    let status = if ended_by_itself { process.ends_within(EXIT_DEADLINE).await } else { None };
    if status.is_none() {
        process.kill().await;
    }
    let (vm, service) = (vm.clone(), service.clone());
    let Some(Some(status)) = status else { return OpenError::Hello { vm, source: error } };
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

    /// Kills the process, at once: the call is of no use any more, whoever else still has it.
    pub fn break_off(&self) {
        self.process.end.cancel();
    }

    /// Ends the call: closes its input, waits a little, then kills the process and reaps it. Cancelled, and when its place
    /// is wanted for something that cannot wait, the process is killed at once.
    pub async fn close(self) {
        let Self { connection, mut process } = self;
        let places = process.places.clone();
        let in_order = async {
            connection.close().await;
            process.ends_within(END_DEADLINE).await
        };
        let ended = tokio::select! {
            ended = in_order => ended,
            () = places.urgently_wanted() => None,
        };
        if ended.is_none() {
            process.kill().await;
        }
    }
}

/// The process of one call. Dropped, it is killed.
#[derive(Debug)]
struct Process {
    /// Whether it is to be killed.
    end: CancellationToken,
    /// How it ended, once it is reaped; none where it was killed.
    ended: JoinHandle<Option<ExitStatus>>,
    places: Places,
    _end: DropGuard,
}

impl Process {
    /// Has a task of its own wait for the process's end.
    fn watch(mut child: Child, place: Place) -> Self {
        let (end, places) = (CancellationToken::new(), place.places().clone());
        let told = end.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "the process is reaped and its place given back whatever becomes of the call's owner: no owner could \
                      wait for it in its drop. There are only as many of these tasks as there are places"
        )]
        let ended = tokio::spawn(async move {
            let status = tokio::select! {
                status = child.wait() => status.ok(),
                () = told.cancelled() => {
                    if let Err(error) = child.kill().await {
                        tracing::error!(%error, "could not end a qrexec call");
                    }
                    None
                }
            };
            drop(place);
            status
        });
        Self { _end: end.clone().drop_guard(), end, ended, places }
    }

    /// How the process ended, if that is within so long. Not to be called again afterwards.
    async fn ends_within(&mut self, deadline: Duration) -> Option<Option<ExitStatus>> {
        let ended = tokio::time::timeout(deadline, &mut self.ended).await.ok()?;
        Some(ended.unwrap_or(None))
    }

    /// Kills the process and waits until it is reaped.
    async fn kill(self) {
        self.end.cancel();
        if let Err(error) = self.ended.await {
            tracing::error!(%error, "the end of a qrexec call was not seen");
        }
    }
}
