//! The proxy's standard streams, as qrexec hands them over: socket pairs, or pipes elsewhere.
//!
//! **Invariant:** after [`take`] nothing but the returned writer reaches the descriptor that was standard output: a stray
//! print goes to standard error and cannot corrupt the stream.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;

use nix::unistd::{dup2_stdin, dup2_stdout};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixStream, unix::pipe};

/// What was standard input.
pub type Input = Box<dyn AsyncRead + Send + Unpin>;
/// What was standard output.
pub type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// Takes standard input and output over. Afterwards the process's standard input is empty, and what it prints to
/// standard output goes to standard error.
///
/// # Errors
/// The operating system's; among others when a stream is neither a socket nor a pipe, as on a terminal.
pub fn take() -> io::Result<(Input, Output)> {
    // The copies close on exec: a child process that held them would keep the call open.
    let input: Input = match stream(io::stdin().as_fd().try_clone_to_owned()?)? {
        Stream::Socket(socket) => Box::new(socket),
        Stream::Pipe(fd) => Box::new(pipe::Receiver::from_owned_fd(fd)?),
    };
    let output: Output = match stream(io::stdout().as_fd().try_clone_to_owned()?)? {
        Stream::Socket(socket) => Box::new(socket),
        Stream::Pipe(fd) => Box::new(pipe::Sender::from_owned_fd(fd)?),
    };
    dup2_stdin(File::open("/dev/null")?)?;
    dup2_stdout(io::stderr())?;
    Ok((input, output))
}

enum Stream {
    Socket(UnixStream),
    Pipe(OwnedFd),
}

fn stream(fd: OwnedFd) -> io::Result<Stream> {
    let file = File::from(fd);
    let kind = file.metadata()?.file_type();
    if kind.is_socket() {
        let socket = StdUnixStream::from(OwnedFd::from(file));
        socket.set_nonblocking(true)?;
        Ok(Stream::Socket(UnixStream::from_std(socket)?))
    } else if kind.is_fifo() {
        Ok(Stream::Pipe(file.into()))
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "a standard stream is neither a socket nor a pipe"))
    }
}
