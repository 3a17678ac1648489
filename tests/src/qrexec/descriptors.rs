//! The broker's answers on a caller's socket, and the descriptors that travel with one of them.
//!
//! An answer is one byte: [`STARTED`], with the caller's ends of the service's stdin, stdout and stderr attached and
//! followed by the most bytes a second to move each way (8 bytes, big-endian, 0 for no bound), or [`ENDED`], followed by
//! the exit code. A connection that closes with neither is a refusal, as with the real agent. The caller says one thing
//! more: [`STDOUT_ENDED`].
//!
//! **Invariant:** every descriptor that arrives is owned and closed on exec.

use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};

use super::pace::Pace;

/// The service runs, and its descriptors are attached.
pub(super) const STARTED: u8 = 1;
/// The call is over; its exit code follows.
pub(super) const ENDED: u8 = 2;
/// From the caller: nobody holds the service's stdout any more.
pub(super) const STDOUT_ENDED: u8 = 3;

/// The caller's ends of a service's streams.
#[derive(Debug)]
pub(super) struct CallerEnds {
    /// What is written here, the service reads. Closed for end of file.
    pub(super) stdin: OwnedFd,
    /// What the service writes.
    pub(super) stdout: OwnedFd,
    /// What the service complains about.
    pub(super) stderr: OwnedFd,
}

/// Sends [`STARTED`] with the bound of the rate and the descriptors, which stay open here too.
pub(super) fn send_started(socket: impl AsFd, ends: &CallerEnds, rate: Option<u64>) -> io::Result<()> {
    let descriptors = [ends.stdin.as_raw_fd(), ends.stdout.as_raw_fd(), ends.stderr.as_raw_fd()];
    let rate = rate.unwrap_or_default().to_be_bytes();
    let sent = sendmsg::<UnixAddr>(
        socket.as_fd().as_raw_fd(),
        &[IoSlice::new(&[STARTED]), IoSlice::new(&rate)],
        &[ControlMessage::ScmRights(&descriptors)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    if sent == rate.len().saturating_add(1) { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// The first answer.
#[derive(Debug)]
pub(super) enum FirstAnswer {
    /// The connection was closed instead.
    Refused,
    /// The service runs.
    Started(CallerEnds, Pace),
    /// There is no service; the exit code is the next byte.
    Ended,
}

/// Waits for the first answer on a blocking socket.
pub(super) fn receive_first(socket: impl AsFd) -> io::Result<FirstAnswer> {
    let mut kind = [0];
    let mut space = cmsg_space!([RawFd; 3]);
    let mut owned = Vec::new();
    let received = {
        let mut parts = [IoSliceMut::new(&mut kind)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<UnixAddr>(socket.as_fd().as_raw_fd(), &mut parts, Some(&mut space), flags)?;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(descriptors) = control {
                owned.extend(descriptors.into_iter().map(own));
            }
        }
        message.bytes
    };
    let mut owned = owned.into_iter();
    match (received, kind, owned.next(), owned.next(), owned.next()) {
        (0, ..) => Ok(FirstAnswer::Refused),
        (_, [STARTED], Some(stdin), Some(stdout), Some(stderr)) => {
            let mut rate = [0; 8];
            read_exact(&socket, &mut rate)?;
            let pace = Pace(NonZeroU64::new(u64::from_be_bytes(rate)));
            Ok(FirstAnswer::Started(CallerEnds { stdin, stdout, stderr }, pace))
        }
        (_, [ENDED], ..) => Ok(FirstAnswer::Ended),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not an answer of the broker")),
    }
}

fn read_exact(from: impl AsFd, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match nix::unistd::read(&from, buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = buffer.get_mut(count..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "neither std nor nix hands out received descriptors as owned ones")]
/// Owns a descriptor that was received just now.
pub(crate) fn own(descriptor: RawFd) -> OwnedFd {
    // SAFETY: recvmsg has just made this descriptor for this process, and nothing else knows its number.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_arrive_in_order_and_the_next_byte_stays() {
        let (mut broker, caller) = UnixStream::pair().expect("a pair");
        let (stdin, mut service_stdin) = UnixStream::pair().expect("a pair");
        let (stdout, mut service_stdout) = UnixStream::pair().expect("a pair");
        let (stderr, service_stderr) = UnixStream::pair().expect("a pair");
        let ends = CallerEnds { stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() };
        send_started(&broker, &ends, Some(70_000)).expect("sent");
        drop(ends);
        broker.write_all(&[ENDED, 7]).expect("written");
        service_stdout.write_all(b"out").expect("written");
        drop((service_stdout, service_stderr));

        let FirstAnswer::Started(ends, pace) = receive_first(&caller).expect("an answer") else {
            panic!("not started")
        };
        assert_eq!(pace.0, NonZeroU64::new(70_000));
        let mut text = String::new();
        UnixStream::from(ends.stdout).read_to_string(&mut text).expect("read");
        assert_eq!(text, "out");
        UnixStream::from(ends.stdin).write_all(b"in").expect("written");
        text.clear();
        service_stdin.read_to_string(&mut text).expect("read");
        assert_eq!(text, "in");
        assert!(matches!(receive_first(&caller), Ok(FirstAnswer::Ended)));
    }

    #[test]
    fn a_closed_connection_is_a_refusal_and_nonsense_an_error() {
        let (broker, caller) = UnixStream::pair().expect("a pair");
        drop(broker);
        assert!(matches!(receive_first(&caller), Ok(FirstAnswer::Refused)));
        for bytes in [[STARTED], [9]] {
            let (mut broker, caller) = UnixStream::pair().expect("a pair");
            broker.write_all(&bytes).expect("written");
            assert!(receive_first(&caller).is_err());
        }
    }
}
