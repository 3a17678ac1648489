//! The proxy confines itself: what it will not need any more, its kernel keeps it from, whoever may have taken it over.
//!
//! [`confine`] is called once, when everything has been opened that a session needs (settings, certificates, the log, the
//! standard streams, the runtime), before any thread starts and before a byte of the client's is read. Threads that start
//! later inherit all of it, and nothing takes it back.
//!
//! | Means | Keeps the process from |
//! |---|---|
//! | no new privileges | gaining rights by a program that has more |
//! | not dumpable, no core | leaving its memory, where passphrases are, on a disk or to other processes of its user |
//! | a limit of descriptors | using up the VM's |
//! | seccomp, by a list | system calls that a session does not make: other programs, files, listening, debugging |
//! | Landlock, if the kernel has it | files, and TCP ports other than the one of the SOCKS server (or of the origin) |
//!
//! **Invariant:** there is no session without seccomp. Landlock is taken as far as the kernel has it; how far that is, is
//! reported, and whoever runs the proxy can insist.
//!
//! **Invariant:** nothing can be opened for writing afterwards: seccomp says so too, where there is no Landlock.

mod landlock;
mod reach;
mod seccomp;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use protocol::{Confinement, Seccomp};

pub use reach::Reach;

/// How many descriptors a process may have: its calls have some twenty connections at most.
const DESCRIPTORS: u64 = 256;

/// The process could not be confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    /// The kernel did not take it from the process to gain privileges.
    #[error("could not set no_new_privs")]
    Privileges(#[source] Errno),
    /// The kernel did not make the process undumpable.
    #[error("could not make the process undumpable")]
    Dumpable(#[source] Errno),
    /// A limit could not be set.
    #[error("could not limit {what}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// The operating system's word.
        #[source]
        source: Errno,
    },
    /// A rule of Landlock's was refused by a kernel that has Landlock.
    #[error("could not set up Landlock")]
    Landlock(#[source] ::landlock::RulesetError),
    /// There is no list of system calls for this kind of processor.
    #[error("seccomp: there is no list of system calls for this processor: use x86_64 or aarch64")]
    Processor,
    /// The kernel did not take the list of system calls.
    #[error("could not set up seccomp: the kernel needs CONFIG_SECCOMP_FILTER")]
    Seccomp(#[source] seccompiler::Error),
}

/// Confines this process, for good, to `reach`, and says how far the kernel did.
///
/// To be called while the process has one thread.
///
/// # Errors
/// [`ConfinementError`]. The process may be confined in part then, and must serve nobody.
pub fn confine(reach: Reach) -> Result<Confinement, ConfinementError> {
    prctl::set_no_new_privs().map_err(ConfinementError::Privileges)?;
    prctl::set_dumpable(false).map_err(ConfinementError::Dumpable)?;
    limit("core dumps", Resource::RLIMIT_CORE, 0)?;
    limit("descriptors", Resource::RLIMIT_NOFILE, DESCRIPTORS)?;
    let landlock = landlock::restrict(reach)?;
    // Last, since what is above makes calls that the list does not have.
    seccomp::restrict(reach)?;
    Ok(Confinement { seccomp: Seccomp::Enforced, landlock })
}

/// Lowers a limit for good; one that is lower already stays.
fn limit(what: &'static str, resource: Resource, most: u64) -> Result<(), ConfinementError> {
    let failed = |source| ConfinementError::Limit { what, source };
    let (soft, hard) = getrlimit(resource).map_err(failed)?;
    setrlimit(resource, soft.min(most), hard.min(most)).map_err(failed)
}
