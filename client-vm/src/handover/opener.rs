//! Runs the program that opens a file in another VM, and ends it.
//!
//! **Invariant:** whatever happens, the program and the processes it started are ended, and it is reaped.
//!
//! **Invariant:** the program gets no input and can neither hold us up once it has ended nor make us remember more than
//! [`MAX_SAID`] bytes.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use qubes_rpc::name::TargetName;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{HandoverError, status};

/// How much of the end of standard error is kept, in bytes.
const MAX_SAID: usize = 4096;
const BLOCK: usize = 4096;
/// How long pipes may stay open once the program has ended: somebody that it started holds them.
const LINGER: Duration = Duration::from_secs(2);
/// How long the program may take to end when it is told to.
const END_DEADLINE: Duration = Duration::from_secs(1);

/// The program that opens files in other VMs.
#[derive(Debug, Clone)]
pub(crate) struct Opener {
    pub(crate) program: PathBuf,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(super) status: ExitStatus,
    /// The end of what it said on standard error.
    pub(super) said: Vec<u8>,
}

/// A call that goes on.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    vm: TargetName,
}

impl Opener {
    /// Hands a file to a VM, to be looked at only.
    pub(crate) fn open(&self, vm: &TargetName, file: &Path) -> Result<Running, HandoverError> {
        let child = Command::new(&self.program)
            .arg("--view-only")
            .arg(vm.as_str())
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // It starts others, which end with it; and a terminal's Ctrl-C is not for it.
            .process_group(0)
            .spawn();
        match child {
            Ok(child) => Ok(Running { child, vm: vm.clone() }),
            Err(source) => Err(HandoverError::NotStarted { program: self.program.clone(), source }),
        }
    }
}

impl Running {
    /// Waits for the end of a document that is shown. `stop` ends it.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub(crate) async fn closed(self, stop: &CancellationToken) -> Result<(), HandoverError> {
        let vm = self.vm.clone();
        status::check(self.ended(stop).await?.status, &vm)
    }

    /// Waits for the end. `stop` ends it.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub(crate) async fn ended(mut self, stop: &CancellationToken) -> Result<Ended, HandoverError> {
        let group = self.child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let ended = self.listen(stop).await;
        if ended.is_err() {
            signal(group, Signal::SIGTERM);
            let _ = tokio::time::timeout(END_DEADLINE, self.child.wait()).await;
        }
        signal(group, Signal::SIGKILL);
        if let Err(error) = self.child.wait().await {
            tracing::error!(%error, "could not reap a program");
        }
        ended
    }

    async fn listen(&mut self, stop: &CancellationToken) -> Result<Ended, HandoverError> {
        let (mut output, mut talk) = (self.child.stdout.take(), self.child.stderr.take());
        let (mut heard, mut said) = ([0; BLOCK], Vec::new());
        let mut spoken = [0; BLOCK];
        let (mut status, mut until) = (None, None);
        loop {
            if let (Some(status), None, None) = (status, &output, &talk) {
                return Ok(Ended { status, said });
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(HandoverError::GivenUp),
                count = read(&mut output, &mut heard) => {
                    // Nothing comes back: what it says there is for nobody.
                    if count? == 0 {
                        output = None;
                    }
                }
                count = read(&mut talk, &mut spoken) => match count? {
                    0 => talk = None,
                    count => {
                        said.extend_from_slice(spoken.get(..count).unwrap_or_default());
                        let over = said.len().saturating_sub(MAX_SAID);
                        said.drain(..over);
                    }
                },
                ended = self.child.wait(), if status.is_none() => {
                    status = Some(ended?);
                    until = Some(Instant::now() + LINGER);
                }
                () = at(until) => (output, talk) = (None, None),
            }
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Some bytes; none at the end. Without a pipe it waits for ever. Cancel-safe.
async fn read<R: AsyncRead + Unpin>(pipe: &mut Option<R>, block: &mut [u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read(block).await,
        None => std::future::pending().await,
    }
}

fn signal(group: Option<Pid>, signal: Signal) {
    let Some(group) = group else { return };
    match killpg(group, signal) {
        // Everybody has ended by themselves.
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => tracing::error!(%error, "could not end a program"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A program of these lines, written by another process: a fork of this one could hold it open for writing.
    fn opener(folder: &Path, lines: &str) -> Opener {
        let program = folder.join("program");
        let script = format!("#!/bin/sh\n{lines}\n");
        let written = std::process::Command::new("/bin/sh")
            .args(["-c", "printf %s \"$1\" > \"$2\" && chmod 700 \"$2\"", "sh", &script])
            .arg(&program)
            .status();
        assert!(written.unwrap().success());
        assert_eq!(std::fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o700);
        Opener { program }
    }

    fn vm() -> TargetName {
        "@dispvm:sd-viewer".parse().unwrap()
    }

    async fn run(lines: &str) -> Result<Ended, HandoverError> {
        let folder = tempfile::tempdir().unwrap();
        let running = opener(folder.path(), lines).open(&vm(), Path::new("/a file"))?;
        running.ended(&CancellationToken::new()).await
    }

    #[tokio::test]
    async fn only_the_end_of_what_is_said_is_kept_and_arguments_are_whole() {
        let ended =
            run("head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2; echo \"$# $1 $2 $3\" >&2").await.unwrap();
        assert_eq!(ended.said.len(), MAX_SAID);
        assert!(ended.said.ends_with(b"3 --view-only @dispvm:sd-viewer /a file\n"));
    }

    #[tokio::test]
    async fn whoever_holds_the_pipes_after_the_end_holds_up_nobody() {
        let ended = run("sleep 600 & exit 3").await.unwrap();
        assert_eq!(ended.status.code(), Some(3));
    }

    #[tokio::test]
    async fn a_call_that_does_not_want_to_end_is_ended_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let lines = "trap '' TERM; echo $$ > \"$0.pid\"; echo ready; sleep 600 & wait; sleep 600";
        let mut running = opener(folder.path(), lines).open(&vm(), Path::new("/a")).unwrap();
        let mut ready = [0; 6];
        running.child.stdout.as_mut().unwrap().read_exact(&mut ready).await.unwrap();
        let group: i32 = std::fs::read_to_string(folder.path().join("program.pid")).unwrap().trim().parse().unwrap();
        let stop = CancellationToken::new();
        stop.cancel();
        assert!(matches!(running.closed(&stop).await, Err(HandoverError::GivenUp)));
        // Those that it started are waited for by somebody else; a signal says whether any is left.
        let left = async {
            while killpg(Pid::from_raw(group), None::<Signal>) != Err(Errno::ESRCH) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), left).await.unwrap();
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named_with_what_to_do() {
        let opener = Opener { program: "/no/such/program".into() };
        let told = opener.open(&vm(), Path::new("/a")).unwrap_err().to_string();
        assert!(told.contains("/no/such/program") && told.contains("open_in_vm"), "{told}");
    }

    #[tokio::test]
    async fn dom0s_refusal_is_told_from_other_failures() {
        let closed = |lines: &'static str| async move {
            let folder = tempfile::tempdir().unwrap();
            let running = opener(folder.path(), lines).open(&vm(), Path::new("/a")).unwrap();
            running.closed(&CancellationToken::new()).await
        };
        closed("exit 0").await.unwrap();
        assert!(matches!(closed("exit 126").await, Err(HandoverError::Refused { .. })));
        for lines in ["exit 1", "exit 127", "kill -9 $$"] {
            assert!(matches!(closed(lines).await, Err(HandoverError::Failed { .. })), "{lines}");
        }
    }
}
