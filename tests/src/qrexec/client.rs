//! The program `qrexec-client-vm`: makes one call, moves its bytes, ends with its exit code.
//!
//! The broker hands back the caller's ends of the service's streams and this program copies between them and its own
//! stdio, one thread each. So a killed caller is, with no code for it, what it is in Qubes: closed streams and no
//! signal. And the broker stays out of the way of the data, so callers cannot slow each other down.
//!
//! Like the real one it sets `O_NONBLOCK` on the stdin and stdout that it inherits, for whoever shares them too; it
//! reads its stdin ahead of the service; and when nobody reads its stdout any more it throws the output away and stays.
//! Where the broker bounds the rate, it rests between small pieces, each way on its own.
//!
//! **Invariant:** it ends by itself only when the service's stdout and stderr have ended and the exit code is known,
//! or when the broker is gone.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::descriptors::{self, CallerEnds, FirstAnswer};
use super::pace::Pace;
use super::{Ending, SOCKET_VARIABLE, request};

/// A call could not be made at all.
#[derive(Debug, thiserror::Error)]
enum ClientError {
    #[error("usage: qrexec-client-vm [--] TARGET SERVICE[+ARGUMENT]")]
    Usage,
    #[error("{SOCKET_VARIABLE} is not set: it names the socket of the calling VM")]
    NoSocket,
    #[error("cannot reach the broker: {0}")]
    Connect(#[source] io::Error),
    #[error("cannot send the request: {0}")]
    Send(#[source] io::Error),
    #[error("cannot read the broker's answer: {0}")]
    Answer(#[source] io::Error),
    #[error("cannot use stdin or stdout: {0}")]
    Stdio(#[source] Errno),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

impl ClientError {
    /// The real program's exit codes for its own troubles.
    const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage => 2,
            Self::NoSocket | Self::Connect(_) | Self::Send(_) | Self::Answer(_) | Self::Stdio(_) | Self::Thread(_) => 1,
        }
    }
}

/// Makes the call that the command line (without the program's name) asks for, on the socket at `socket`.
///
/// Returns the exit code. Uses the process's stdin and stdout up, so the process should end after it.
pub fn run(arguments: impl IntoIterator<Item = OsString>, socket: Option<OsString>) -> u8 {
    match call(arguments.into_iter().collect(), socket) {
        Ok(Ending::Refused) => {
            complain("Request refused");
            Ending::Refused.exit_code()
        }
        Ok(ending) => ending.exit_code(),
        Err(error) => {
            complain(&error.to_string());
            error.exit_code()
        }
    }
}

fn complain(text: &str) {
    // Nothing is left to tell when stderr is gone.
    let _ = writeln!(io::stderr(), "{text}");
}

fn call(arguments: Vec<OsString>, socket: Option<OsString>) -> Result<Ending, ClientError> {
    let (target, service) = match arguments.as_slice() {
        [dashes, target, service] if dashes == "--" => (target, service),
        [target, service] if !target.as_bytes().starts_with(b"-") => (target, service),
        _ => return Err(ClientError::Usage),
    };
    let mut connection = UnixStream::connect(socket.ok_or(ClientError::NoSocket)?).map_err(ClientError::Connect)?;
    // Old scripts write "$" where "@" is meant; the real program puts that right.
    let target: Vec<u8> = target.as_bytes().iter().map(|&byte| if byte == b'$' { b'@' } else { byte }).collect();
    connection.write_all(&request::encode(&target, service.as_bytes())).map_err(ClientError::Send)?;
    match descriptors::receive_first(&connection).map_err(ClientError::Answer)? {
        FirstAnswer::Refused => Ok(Ending::Refused),
        FirstAnswer::Ended => Ok(exit_code(&connection)),
        FirstAnswer::Started(ends, pace) => attend(connection, ends, pace),
    }
}

/// The exit code that follows [`descriptors::ENDED`].
fn exit_code(mut connection: &UnixStream) -> Ending {
    let mut code = [0];
    match connection.read_exact(&mut code) {
        Ok(()) => Ending::Exited(u8::from_be_bytes(code)),
        Err(_) => Ending::Lost,
    }
}

enum Event {
    /// The service's stdout or stderr has ended and is written.
    StreamEnded,
    /// The broker said how the call ended, or is gone.
    Ended(Ending),
}

fn attend(connection: UnixStream, ends: CallerEnds, pace: Pace) -> Result<Ending, ClientError> {
    let CallerEnds { stdin, stdout, stderr } = ends;
    let connection = Arc::new(connection);
    set_nonblocking(io::stdin().as_fd())?;
    set_nonblocking(io::stdout().as_fd())?;

    let (events, happened) = mpsc::channel();
    // Nobody waits for this one: it may sit in a read that never returns.
    spawn("stdin", move || feed(&stdin, pace))?;
    let ended = events.clone();
    let broker = Arc::clone(&connection);
    spawn("stdout", move || {
        drain(&stdout, io::stdout().as_fd(), pace);
        // The reader sees the end now, even if the service goes on without a stdout.
        if let Ok(nothing) = void() {
            let _ = nix::unistd::dup2_stdout(nothing);
        }
        // The broker cannot see it. Should it be gone, the thread below notices.
        let _ = (&*broker).write_all(&[descriptors::STDOUT_ENDED]);
        let _ = ended.send(Event::StreamEnded);
    })?;
    let ended = events.clone();
    spawn("stderr", move || {
        drain(&stderr, io::stderr().as_fd(), Pace(None));
        let _ = ended.send(Event::StreamEnded);
    })?;
    spawn("ending", move || {
        let ending = match descriptors::receive_first(&*connection) {
            Ok(FirstAnswer::Ended) => exit_code(&connection),
            Ok(FirstAnswer::Refused | FirstAnswer::Started(..)) | Err(_) => Ending::Lost,
        };
        let _ = events.send(Event::Ended(ending));
    })?;

    let mut open_streams = 2_u8;
    let mut ending = None;
    for event in happened {
        match event {
            Event::StreamEnded => open_streams = open_streams.saturating_sub(1),
            Event::Ended(Ending::Lost) => return Ok(Ending::Lost),
            Event::Ended(how) => ending = Some(how),
        }
        if let (0, Some(ending)) = (open_streams, ending) {
            return Ok(ending);
        }
    }
    Ok(Ending::Lost)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ClientError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop).map_err(ClientError::Thread)
}

/// Copies stdin to the service. Dropping the service's end afterwards is its end of file.
fn feed(service: &OwnedFd, pace: Pace) {
    let stdin = io::stdin();
    let mut buffer = vec![0; pace.piece()];
    while let Some(bytes) = read_some(stdin.as_fd(), &mut buffer) {
        if write_all(service.as_fd(), bytes).is_err() {
            // The service reads no more: whoever writes to our stdin is to notice.
            if let Ok(nothing) = void() {
                let _ = nix::unistd::dup2_stdin(nothing);
            }
            return;
        }
        if let Some(rest) = pace.rest(bytes.len()) {
            thread::sleep(rest);
        }
    }
}

/// Copies a stream of the service until it ends, whether or not anybody still reads `to`.
fn drain(service: &OwnedFd, to: BorrowedFd<'_>, pace: Pace) {
    let mut buffer = vec![0; pace.piece()];
    let mut listening = true;
    while let Some(bytes) = read_some(service.as_fd(), &mut buffer) {
        listening = listening && write_all(to, bytes).is_ok();
        if let Some(rest) = pace.rest(bytes.len()) {
            thread::sleep(rest);
        }
    }
}

/// What is there to read, waiting if nothing is; `None` at the end or when the descriptor fails.
fn read_some<'b>(from: BorrowedFd<'_>, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let count = loop {
        match nix::unistd::read(from, buffer) {
            Err(Errno::EAGAIN) => wait(from, PollFlags::POLLIN).ok()?,
            Err(Errno::EINTR) => {}
            Ok(0) | Err(_) => return None,
            Ok(count) => break count,
        }
    };
    buffer.get(..count)
}

fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match nix::unistd::write(to, bytes) {
            Err(Errno::EAGAIN) => wait(to, PollFlags::POLLOUT)?,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
        }
    }
    Ok(())
}

fn wait(descriptor: BorrowedFd<'_>, flags: PollFlags) -> Result<(), Errno> {
    match poll(&mut [PollFd::new(descriptor, flags)], PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}

fn set_nonblocking(descriptor: BorrowedFd<'_>) -> Result<(), ClientError> {
    let flags = fcntl(descriptor, FcntlArg::F_GETFL).map_err(ClientError::Stdio)?;
    let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
    fcntl(descriptor, FcntlArg::F_SETFL(flags)).map(drop).map_err(ClientError::Stdio)
}

/// Takes the place of a descriptor that is to be closed for others: its number must not be given to anything else.
fn void() -> io::Result<std::fs::File> {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")
}
