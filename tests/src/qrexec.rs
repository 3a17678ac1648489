//! A stand-in for qrexec, the only way by which qubes reach each other.
//!
//! In Qubes OS a program in one VM runs `qrexec-client-vm TARGET SERVICE+ARG`, dom0 decides by its policy, and the
//! target VM starts the service and joins its stdin and stdout with the caller's. Here all VMs are processes of one
//! machine: [`broker`] plays dom0 and the target's agent, [`client`] is the program that callers run, [`policy`] reads
//! and applies the very policy files that a deployment installs in dom0, and [`system`] says which VMs there are.
//!
//! Only what callers and services can observe is kept true: who may call and who is asked about it, VMs that start
//! first, the environment, how ends of streams and deaths are seen, exit codes, what a call costs. There is no Xen, no
//! memory channel and no `uuid:` names; a call of a socket service costs what one of a program does; a service runs as whoever runs the broker, whatever `user=` says; a process
//! that a service leaves behind dies with the call.
//!
//! **Invariant:** the caller's name comes from the socket that it used, never from what it says.
//! **Invariant:** no call reaches a service unless the policy allowed it.

pub mod broker;
pub mod client;
pub(crate) mod descriptors;
mod pace;
pub mod policy;
mod request;
pub mod rpc_config;
pub mod system;

/// The environment variable in which callers find the path of their VM's socket.
pub const SOCKET_VARIABLE: &str = "SPLITDROP_STAGING_QREXEC";

/// How a call ended, as far as its caller can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The service ended with this exit code. A service may use the codes below too: callers cannot tell.
    Exited(u8),
    /// This signal ended the service.
    Killed(u8),
    /// The policy, or dom0's user, refused, or the target did not start.
    Refused,
    /// The target has no such service.
    Missing,
    /// The service exists and could not be started, its configuration cannot be read, or there are too many calls.
    Failed,
    /// The connection was lost with the service still running, as when a VM is shut down.
    Lost,
}

impl Ending {
    /// The exit code of `qrexec-client-vm` for this ending.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => signal.saturating_add(128),
            Self::Refused => 126,
            Self::Missing => 127,
            Self::Failed => 125,
            Self::Lost => 255,
        }
    }
}
