//! Runs a program that leads to the private key: feeds it, reads what it says, and ends it.
//!
//! **Invariant:** whatever happens, the program and the processes it started are ended, and it is reaped.
//!
//! **Invariant:** the program gets fresh pipes and none of our files, and it can neither hold us up for longer than our
//! patience nor make us remember more than we ask for.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{DecryptError, Unavailable};

const BLOCK: usize = 64 * 1024;
/// How much talk on standard error counts as a sign of life, in bytes.
const MAX_TALK: usize = 64 * 1024;
/// How long pipes may stay open once the program has ended: somebody that it started holds them.
const LINGER: Duration = Duration::from_secs(5);

/// A program and how to run it.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(&'static str, OsString)>,
    /// How long it may show no sign of life.
    pub(super) patience: Duration,
}

/// What becomes of a program's output.
pub(super) trait Listener {
    /// A block of standard output.
    fn output(&mut self, block: &[u8]) -> Result<(), DecryptError>;
    /// A block of standard error. Gives whether it is a sign of life.
    fn talk(&mut self, block: &[u8]) -> Result<bool, DecryptError>;
    /// How long the program may show no sign of life from now on, if that is no more than its patience, and what it means if
    /// it is longer.
    fn limit(&self) -> Option<(Duration, DecryptError)> {
        None
    }
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Whether it took all of its input.
    pub(super) fed: bool,
}

impl Program {
    /// Runs the program to its end. Blocks, with a small runtime of its own: nobody else's has to turn for it.
    pub(super) fn run(
        &self,
        input: &mut dyn Read,
        listener: &mut dyn Listener,
        stop: &CancellationToken,
    ) -> Result<Ended, DecryptError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|source| self.failed(source))?;
        runtime.block_on(async {
            let mut child = self.spawn()?;
            let group = child.id();
            let ended = self.talk(&mut child, input, listener, stop).await;
            self.end(&mut child, group).await;
            ended
        })
    }

    fn failed(&self, source: io::Error) -> DecryptError {
        Unavailable::Program { program: self.path.clone(), source }.into()
    }

    fn spawn(&self) -> Result<Child, DecryptError> {
        Command::new(&self.path)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // It starts others, which end with it.
            .process_group(0)
            .spawn()
            .map_err(|source| self.failed(source))
    }

    /// How long there may be no sign of life now, and what it means if it is longer.
    fn limit(&self, listener: &dyn Listener) -> (Duration, DecryptError) {
        let usual = || (self.patience, Unavailable::Silent(self.patience).into());
        listener.limit().filter(|(limit, _)| *limit <= self.patience).unwrap_or_else(usual)
    }

    async fn talk(
        &self,
        child: &mut Child,
        input: &mut dyn Read,
        listener: &mut dyn Listener,
        stop: &CancellationToken,
    ) -> Result<Ended, DecryptError> {
        let mut feed = Feed::new(child.stdin.take(), input);
        let mut output = Pipe::new(child.stdout.take());
        let mut talk = Pipe::new(child.stderr.take());
        let mut heard = 0_usize;
        let mut status = None;
        // Since when there was no sign of life, and what that means after a while.
        let mut since = Instant::now();
        loop {
            if let (Some(status), true, true) = (status, output.ended, talk.ended) {
                return Ok(Ended { status, fed: feed.done });
            }
            feed.fill()?;
            let (limit, meaning): (Duration, DecryptError) = match status {
                Some(_) => (LINGER.min(self.patience), Unavailable::Silent(self.patience).into()),
                None => self.limit(&*listener),
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(DecryptError::Cancelled),
                read = output.read(), if !output.ended => {
                    listener.output(read.map_err(|source| self.failed(source))?)?;
                }
                read = talk.read(), if !talk.ended => {
                    let block = read.map_err(|source| self.failed(source))?;
                    heard = heard.saturating_add(block.len());
                    if !listener.talk(block)? || heard > MAX_TALK {
                        // Whoever only talks shows no sign of life.
                        continue;
                    }
                }
                written = feed.write(), if feed.waits() => written.map_err(|source| self.failed(source))?,
                ended = child.wait(), if status.is_none() => {
                    status = Some(ended.map_err(|source| self.failed(source))?);
                    feed.close();
                    since = Instant::now();
                    continue;
                }
                () = tokio::time::sleep_until(since + limit) => return Err(meaning),
            }
            if status.is_none() {
                since = Instant::now();
            }
        }
    }

    /// Ends the program and what it started, and reaps it.
    async fn end(&self, child: &mut Child, group: Option<u32>) {
        if let Some(group) = group.and_then(|id| i32::try_from(id).ok()) {
            match killpg(Pid::from_raw(group), Signal::SIGKILL) {
                // Everybody has ended by themselves.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => tracing::error!(%error, "could not end a program"),
            }
        }
        if let Err(error) = child.wait().await {
            tracing::error!(%error, "could not reap a program");
        }
    }
}

/// What goes into a program.
struct Feed<'a> {
    pipe: Option<ChildStdin>,
    input: &'a mut dyn Read,
    block: Vec<u8>,
    /// What of the block is still to be written.
    rest: std::ops::Range<usize>,
    done: bool,
}

impl<'a> Feed<'a> {
    fn new(pipe: Option<ChildStdin>, input: &'a mut dyn Read) -> Self {
        Self { pipe, input, block: vec![0; BLOCK], rest: 0..0, done: false }
    }

    /// Sees to it that there is something to write, as long as there is any input; closes the pipe after the last of it.
    fn fill(&mut self) -> Result<(), DecryptError> {
        if self.pipe.is_none() || !self.rest.is_empty() {
            return Ok(());
        }
        let read = self.input.read(&mut self.block).map_err(DecryptError::Read)?;
        self.rest = 0..read;
        if read == 0 {
            self.done = true;
            self.close();
        }
        Ok(())
    }

    fn waits(&self) -> bool {
        self.pipe.is_some() && !self.rest.is_empty()
    }

    /// Writes some of it. Cancelled, nothing was written.
    async fn write(&mut self) -> io::Result<()> {
        let block = self.block.get(self.rest.clone()).unwrap_or_default();
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        match pipe.write(block).await {
            Ok(written) => {
                self.rest.start = self.rest.start.saturating_add(written);
                Ok(())
            }
            // It takes no more; how it ends says why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.close();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn close(&mut self) {
        self.pipe = None;
    }
}

/// What comes out of a program.
struct Pipe<R> {
    pipe: Option<R>,
    block: Vec<u8>,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Pipe<R> {
    fn new(pipe: Option<R>) -> Self {
        Self { ended: pipe.is_none(), pipe, block: vec![0; BLOCK] }
    }

    /// The next block; an empty one is the end. Cancelled, nothing was read.
    async fn read(&mut self) -> io::Result<&[u8]> {
        let Some(pipe) = &mut self.pipe else { return Ok(&[]) };
        let read = pipe.read(&mut self.block).await?;
        self.ended = read == 0;
        Ok(self.block.get(..read).unwrap_or_default())
    }
}
