//! The process of one service.
//!
//! **Invariant:** the process leads a group of its own. The group is signalled only while its leader is not reaped, or
//! at once afterwards, so its number cannot have passed to anybody else.
//! **Invariant:** a dropped [`Service`] is killed with its whole group.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStderr, Command};

use crate::qrexec::Ending;
use crate::qrexec::descriptors::CallerEnds;
use crate::qrexec::system::QubeName;

/// The only PATH that services get.
const PATH: &str = "/usr/bin:/bin";
/// Bytes of stderr copied at once.
const CHUNK: usize = 8_192;

/// What to start.
#[derive(Debug)]
pub(super) struct ServiceSpec<'h> {
    pub(super) program: &'h Path,
    pub(super) environment: &'h BTreeMap<String, String>,
    pub(super) source: &'h QubeName,
    /// The service's name with a `+` and its argument.
    pub(super) full_name: &'h str,
    pub(super) argument: &'h str,
    /// The user that policy or configuration name.
    pub(super) user: Option<&'h str>,
}

/// A service could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("the program, or its interpreter, does not exist: {0}")]
    NoProgram(#[source] io::Error),
    #[error("the program cannot be run: {0}")]
    Program(#[source] io::Error),
    #[error("its streams cannot be made: {0}")]
    Streams(#[source] io::Error),
}

/// A running service.
#[derive(Debug)]
pub(super) struct Service {
    // Before the child: the group is killed while its leader is not reaped yet.
    group: Group,
    child: Child,
    /// Whether the caller still reads stdout. The call stays open as long as somebody holds it.
    stdout_open: bool,
    /// `None` after its end.
    stderr: Option<ChildStderr>,
    /// Where the caller reads stderr; `None` when it does not any more.
    caller_stderr: Option<pipe::Sender>,
    /// What was read of stderr and is not with the caller yet.
    pending: Vec<u8>,
}

#[derive(Debug)]
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.0 {
            // Fails when nobody is left in it, which is as well.
            let _ = killpg(leader, signal);
        }
    }

    /// Kills what the leader may have left, right after it was reaped.
    fn finish(&mut self) {
        self.signal(Signal::SIGKILL);
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Service {
    /// Starts it and returns the caller's ends of its streams.
    pub(super) fn start(spec: &ServiceSpec<'_>) -> Result<(Self, CallerEnds), StartError> {
        let (stdin, service_stdin) = UnixStream::pair().map_err(StartError::Streams)?;
        let (stdout, service_stdout) = UnixStream::pair().map_err(StartError::Streams)?;
        let (caller_stderr, stderr) = pipe::pipe().map_err(StartError::Streams)?;
        let stderr = stderr.into_blocking_fd().map_err(StartError::Streams)?;

        let mut command = Command::new(spec.program);
        if !spec.argument.is_empty() {
            command.arg(spec.argument);
        }
        command
            .env_clear()
            .env("PATH", PATH)
            .envs(spec.environment)
            .envs(spec.user.into_iter().flat_map(|user| [("USER", user), ("LOGNAME", user)]))
            .env("QREXEC_REMOTE_DOMAIN", spec.source.as_str())
            .env("QREXEC_SERVICE_FULL_NAME", spec.full_name)
            .env("QREXEC_SERVICE_ARGUMENT", spec.argument)
            .env("QREXEC_AGENT_PID", std::process::id().to_string())
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(service_stdin)))
            .stdout(Stdio::from(OwnedFd::from(service_stdout)))
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StartError::NoProgram(error),
            _ => StartError::Program(error),
        })?;
        let leader = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        let service = Self {
            group: Group(leader),
            stderr: child.stderr.take(),
            child,
            stdout_open: true,
            caller_stderr: Some(caller_stderr),
            pending: Vec::new(),
        };
        Ok((service, CallerEnds { stdin: stdin.into(), stdout: stdout.into(), stderr }))
    }

    /// The process, until its end.
    pub(super) fn pid(&self) -> Option<u32> {
        self.group.0.and_then(|pid| u32::try_from(pid.as_raw()).ok())
    }

    /// The caller says that nobody holds stdout any more, or is gone.
    pub(super) fn stdout_ended(&mut self) {
        self.stdout_open = false;
    }

    /// Waits until its streams have ended and it has, while stderr goes to the log and to the caller. A child of it that
    /// holds stdout or stderr keeps it going. Of stdout's end it is told by [`Self::stdout_ended`], before another call
    /// of this.
    ///
    /// Cancel-safe: called again it goes on where it was.
    pub(super) async fn ended(&mut self, mut log: impl FnMut(&[u8])) -> io::Result<Ending> {
        loop {
            self.deliver().await;
            let Some(stderr) = &mut self.stderr else { break };
            self.pending.reserve(CHUNK);
            match stderr.read_buf(&mut self.pending).await {
                Ok(0) | Err(_) => self.stderr = None,
                Ok(_) => log(&self.pending),
            }
        }
        // The caller's stderr ends with the service's.
        self.caller_stderr = None;
        if self.stdout_open {
            // Not reaped yet: the group's number stays its own.
            std::future::pending::<()>().await;
        }
        let status = self.child.wait().await?;
        self.group.finish();
        Ok(ending(status))
    }

    /// Writes what is pending to the caller, or forgets it when the caller does not read.
    async fn deliver(&mut self) {
        while !self.pending.is_empty() {
            let Some(caller) = &mut self.caller_stderr else { break };
            match caller.write(&self.pending).await {
                Ok(count) => drop(self.pending.drain(..count)),
                Err(_) => self.caller_stderr = None,
            }
        }
        self.pending.clear();
    }

    /// Ends it: SIGTERM, and SIGKILL when it, or what it left behind, takes longer than `grace`.
    ///
    /// The caller hears no more of its stderr; the log does until the kill.
    pub(super) async fn stop(&mut self, grace: Duration, log: impl FnMut(&[u8])) {
        self.caller_stderr = None;
        self.stdout_open = false;
        self.group.signal(Signal::SIGTERM);
        if let Ok(Ok(_)) = tokio::time::timeout(grace, self.ended(log)).await {
            return;
        }
        self.group.signal(Signal::SIGKILL);
        // Not `ended`: a process that left the group may hold stderr for ever.
        if let Err(error) = self.child.wait().await {
            tracing::warn!(%error, "a killed service could not be waited for");
        }
        self.group.finish();
    }
}

fn ending(status: ExitStatus) -> Ending {
    let number = |number: Option<i32>| number.and_then(|number| u8::try_from(number).ok());
    match (number(status.code()), number(status.signal())) {
        (Some(code), _) => Ending::Exited(code),
        (None, Some(signal)) => Ending::Killed(signal),
        (None, None) => Ending::Lost,
    }
}
