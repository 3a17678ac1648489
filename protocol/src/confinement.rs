//! How the proxy's kernel confines the proxy.

use serde::{Deserialize, Serialize};

/// What the kernel of the proxy VM keeps the proxy from, whoever may have taken it over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// The system calls.
    pub seccomp: Seccomp,
    /// The files and the ports.
    pub landlock: Landlock,
}

impl Confinement {
    /// None at all.
    pub const NONE: Self = Self { seccomp: Seccomp::Off, landlock: Landlock::None };
}

/// Whether the proxy may make only the system calls that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seccomp {
    /// It may make any.
    Off,
    /// A list is enforced.
    Enforced,
}

impl Seccomp {
    /// Its name, as it is logged and printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Enforced => "enforced",
        }
    }
}

/// How much of what Landlock can do the kernel enforces. Each level has what the ones before it have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Landlock {
    /// The kernel has none, or it is switched off.
    None,
    /// No file is opened but those that the proxy needs, and these only to be read (Linux 5.13).
    Files,
    /// No port is listened on, and only the needed ones are connected to (Linux 6.7).
    FilesAndNetwork,
    /// No signal leaves the proxy, and no abstract Unix socket is connected to (Linux 6.12).
    FilesNetworkAndSignals,
}

impl Landlock {
    /// Its name, as it is logged and printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Files => "files",
            Self::FilesAndNetwork => "files_and_network",
            Self::FilesNetworkAndSignals => "files_network_and_signals",
        }
    }
}
