//! The walls between the "VMs": what the client's processes reach, and what the proxy's.
//!
//! **Invariant:** with namespaces the client's processes reach no address at all, and the proxy's one port: Tor's SOCKS
//! port on their own loopback. Where namespaces are not permitted, that is said and not passed over: whoever starts an
//! environment says it, by [`Isolation::missing`] or [`Isolation::tell_if_missing`].

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use tokio::process::Command;

use crate::netns::{Namespace, NetnsError};
use crate::socks::Listen;

/// Set to `1`, nothing is isolated, and tests of isolation are passed over.
pub const OPT_OUT: &str = "SPLITDROP_NO_NETNS";

/// Where Tor listens in the proxy's VM. It is the proxy's default, and free in a namespace of its own.
const TOR_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9150);

/// How the "VMs" are kept apart.
#[derive(Debug)]
pub enum Isolation {
    /// Each has its network namespace.
    Namespaces {
        /// The client's: empty.
        client: Namespace,
        /// The proxy's: a loopback with the SOCKS port.
        proxy: Namespace,
    },
    /// They share the machine's network.
    None {
        /// Why.
        reason: String,
    },
}

impl Isolation {
    /// Keeps the "VMs" apart if this machine permits it, and says where the SOCKS server has to listen.
    ///
    /// # Errors
    /// [`NetnsError::Io`] when the operating system fails in another way than by not permitting it.
    pub fn make(staging: &Path) -> Result<(Self, Listen), NetnsError> {
        Self::with_client(staging, Namespace::empty)
    }

    /// The same, where the client has mounts of its own.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn with_mounts(staging: &Path) -> Result<(Self, Listen), NetnsError> {
        Self::with_client(staging, Namespace::with_mounts)
    }

    fn with_client(
        staging: &Path,
        client: impl FnOnce(&Path) -> Result<Namespace, NetnsError>,
    ) -> Result<(Self, Listen), NetnsError> {
        if std::env::var_os(OPT_OUT).is_some_and(|value| value == "1") {
            return Ok(Self::without(format!("{OPT_OUT}=1 is set")));
        }
        let made = client(staging).and_then(|client| Ok((client, Namespace::with_listener(staging, TOR_PORT)?)));
        match made {
            Ok((client, (proxy, listener))) => Ok((Self::Namespaces { client, proxy }, Listen::Made(listener))),
            Err(NetnsError::NotPermitted(reason)) => Ok(Self::without(reason)),
            Err(error) => Err(error),
        }
    }

    fn without(reason: String) -> (Self, Listen) {
        (Self::None { reason }, Listen::On(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))
    }

    /// Why nothing is isolated, if that is so.
    #[must_use]
    pub fn missing(&self) -> Option<&str> {
        match self {
            Self::Namespaces { .. } => None,
            Self::None { reason } => Some(reason),
        }
    }

    /// Says on standard error that nothing is isolated, where that is so: whatever is seen or measured then, it is of
    /// "VMs" without walls.
    ///
    /// # Errors
    /// The operating system's, where it cannot be said.
    pub fn tell_if_missing(&self) -> io::Result<()> {
        match self.missing() {
            None => Ok(()),
            Some(reason) => writeln!(io::stderr(), "NOT ISOLATED: both VMs have this machine's network ({reason})"),
        }
    }

    /// A command that runs `program` where the client's processes run.
    #[must_use]
    pub fn in_client(&self, program: &Path) -> Command {
        match self {
            Self::Namespaces { client, .. } => inside(client, program.as_os_str()),
            Self::None { .. } => Command::new(program),
        }
    }

    /// A command that runs `program` where the proxy's processes run.
    #[must_use]
    pub fn in_proxy(&self, program: &Path) -> Command {
        match self {
            Self::Namespaces { proxy, .. } => inside(proxy, program.as_os_str()),
            Self::None { .. } => Command::new(program),
        }
    }
}

fn inside(namespace: &Namespace, program: &OsStr) -> Command {
    let (enter, arguments) = namespace.enter(program);
    let mut command = Command::new(enter);
    command.args(arguments);
    command
}
