//! Network namespaces, so that a "VM" without a network has none and the proxy's reaches one port and no other.
//!
//! A namespace is held by a process of this package (`splitdrop-staging hold-netns`, see [`hold`]), started by
//! `unshare`; programs are put into it with `nsenter`. Both belong to util-linux, which every Debian has. Without root a
//! user namespace is made as well, where the system permits that.
//!
//! **Invariant:** a namespace has its own loopback and nothing else; the loopback is up only where something listens on it.
//!
//! **Invariant:** the holder ends with the [`Namespace`], and with the process that made it, however that ends.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Read as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::cmsg_space;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, recvmsg, sendmsg,
    socket,
};

use crate::qrexec::descriptors::own;

const UNSHARE: &str = "/usr/bin/unshare";
const NSENTER: &str = "/usr/bin/nsenter";
/// What the holder says when the namespace is ready.
const READY: u8 = b'R';
/// How much of a failed holder's message is kept, in bytes.
const MAX_MESSAGE: u64 = 4096;

/// A namespace could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// The operating system said so.
    #[error("could not make a network namespace")]
    Io(#[from] io::Error),
    /// Namespaces are not permitted here, or the holder failed.
    #[error("network namespaces are not permitted here ({0})")]
    NotPermitted(String),
}

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    holder: Child,
    /// The holder ends when this is closed.
    line: Option<UnixStream>,
    with_user_namespace: bool,
    with_mounts: bool,
}

impl Namespace {
    /// Makes a namespace in which nothing can be reached. `staging` is this package's program.
    ///
    /// # Errors
    /// [`NetnsError`].
    pub fn empty(staging: &Path) -> Result<Self, NetnsError> {
        Ok(Self::make(staging, None, false)?.0)
    }

    /// The same, where what is mounted in it is mounted nowhere else. Whatever is run in it begins in `/`.
    ///
    /// # Errors
    /// [`NetnsError`].
    pub fn with_mounts(staging: &Path) -> Result<Self, NetnsError> {
        Ok(Self::make(staging, None, true)?.0)
    }

    /// Makes a namespace in which nothing can be reached but what listens on `address`, on its own loopback. The
    /// listener works from outside of the namespace too.
    ///
    /// # Errors
    /// [`NetnsError`].
    pub fn with_listener(staging: &Path, address: SocketAddr) -> Result<(Self, TcpListener), NetnsError> {
        let (namespace, listener) = Self::make(staging, Some(address), false)?;
        let listener = listener.ok_or_else(|| NetnsError::NotPermitted("the holder sent no listener".to_owned()))?;
        Ok((namespace, TcpListener::from(listener)))
    }

    fn make(
        staging: &Path,
        listen: Option<SocketAddr>,
        with_mounts: bool,
    ) -> Result<(Self, Option<OwnedFd>), NetnsError> {
        let with_user_namespace = !nix::unistd::geteuid().is_root();
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(UNSHARE);
        if with_user_namespace {
            command.args(["--user", "--map-root-user"]);
        }
        if with_mounts {
            command.arg("--mount");
        }
        command.args(["--net", "--"]).arg(staging).arg("hold-netns");
        if let Some(address) = listen {
            command.arg("--listen").arg(address.to_string());
        }
        let holder = command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        // The command holds the holder's end of the line.
        drop(command);
        // From here on it ends, and is waited for, with this.
        let mut made = Self { holder, line: Some(ours), with_user_namespace, with_mounts };
        match made.line.as_ref().map(receive_ready).transpose()?.flatten() {
            Some(descriptor) => Ok((made, descriptor)),
            None => {
                let mut message = String::new();
                if let Some(stderr) = made.holder.stderr.take() {
                    stderr.take(MAX_MESSAGE).read_to_string(&mut message)?;
                }
                Err(NetnsError::NotPermitted(message.trim().to_owned()))
            }
        }
    }

    /// What to run so that `program` runs in the namespace: a program and its first arguments.
    #[must_use]
    pub fn enter(&self, program: &OsStr) -> (OsString, Vec<OsString>) {
        let mut arguments: Vec<OsString> =
            ["--target", &self.holder.id().to_string(), "--net"].map(OsString::from).to_vec();
        if self.with_user_namespace {
            arguments.extend(["--user", "--preserve-credentials"].map(OsString::from));
        }
        if self.with_mounts {
            arguments.push("--mount".into());
        }
        arguments.push("--".into());
        arguments.push(program.to_owned());
        (NSENTER.into(), arguments)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.line.take());
        // It ends by itself, unless it is none that knows the line; it is waited for so that no dead process stays.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Waits for the holder's word. `None`: it ended without one.
fn receive_ready(line: &UnixStream) -> io::Result<Option<Option<OwnedFd>>> {
    let mut word = [0];
    let mut space = cmsg_space!([RawFd; 1]);
    let mut parts = [IoSliceMut::new(&mut word)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<UnixAddr>(line.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut descriptor = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            descriptor = descriptors.into_iter().next().map(own);
        }
    }
    let received = message.bytes;
    Ok((received == 1 && word == [READY]).then_some(descriptor))
}

/// The holder's whole life, in a fresh namespace with standard input as its line to whoever made it: listens if asked
/// to, says that it is ready, and waits for the line's end.
///
/// # Errors
/// The operating system's.
pub fn hold(listen: Option<SocketAddr>) -> io::Result<()> {
    let line = io::stdin();
    let listener = match listen {
        Some(address) => {
            bring_loopback_up()?;
            Some(TcpListener::bind(address)?)
        }
        None => None,
    };
    let descriptors: Vec<RawFd> = listener.iter().map(|listener| listener.as_raw_fd()).collect();
    let control = [ControlMessage::ScmRights(&descriptors)];
    let control = if descriptors.is_empty() { &control[..0] } else { &control[..] };
    sendmsg::<UnixAddr>(line.as_fd().as_raw_fd(), &[IoSlice::new(&[READY])], control, MsgFlags::MSG_NOSIGNAL, None)?;
    drop(listener);
    let mut rest = [0; 64];
    while nix::unistd::read(line.as_fd(), &mut rest)? > 0 {}
    Ok(())
}

mod request {
    nix::ioctl_write_ptr_bad!(
        /// Sets an interface's flags.
        set_interface_flags,
        nix::libc::SIOCSIFFLAGS,
        nix::libc::ifreq
    );
}

#[expect(unsafe_code, reason = "neither std nor nix has a call that brings an interface up")]
fn bring_loopback_up() -> io::Result<()> {
    let any = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut name = [0; nix::libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(*b"lo") {
        *to = nix::libc::c_char::try_from(from).unwrap_or_default();
    }
    let flags = nix::libc::c_short::try_from(nix::libc::IFF_UP).unwrap_or_default();
    let interface =
        nix::libc::ifreq { ifr_name: name, ifr_ifru: nix::libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
    // SAFETY: the request reads one `ifreq`, which lives until it returns, and its name ends with a zero byte.
    unsafe { request::set_interface_flags(any.as_raw_fd(), &raw const interface) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_cannot_start_is_an_error_and_stays_nowhere() {
        // Whether namespaces are permitted or not, this program is none.
        let error = Namespace::empty(Path::new("/nowhere/splitdrop-staging")).unwrap_err();
        assert!(matches!(error, NetnsError::NotPermitted(_) | NetnsError::Io(_)), "{error}");
    }

    #[test]
    fn a_holder_that_says_nonsense_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (holder, number) = (folder.path().join("holder"), folder.path().join("number"));
        // What it has to say is no text.
        let script = format!("#!/bin/sh\necho $$ > '{}'\nprintf '\\377' >&2\nexit 1\n", number.display());
        let write = r#"printf %s "$2" > "$1" && chmod 700 "$1""#;
        let mut shell = Command::new("/bin/sh");
        assert!(shell.args(["-c", write, "sh"]).arg(&holder).arg(script).status().unwrap().success());
        Namespace::empty(&holder).unwrap_err();
        // Where namespaces are not permitted it did not run.
        let Ok(number) = std::fs::read_to_string(number) else { return };
        let number = number.trim();
        // One that ended and was not waited for would be there, and dead.
        assert!(!Path::new("/proc").join(number).exists(), "{number} is still there");
    }
}
