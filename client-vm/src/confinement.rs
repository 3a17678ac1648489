//! What the kernel is told to keep from this program, and from every program that it starts.
//!
//! Qubes gives the client's VM no network. This is a second wall behind the first, for the day on which somebody gives it
//! one: a filter of system calls under which the only sockets are Unix sockets. Beside it the memory of the process,
//! which has plaintext in it, is not for others: no core dump, and no other process of the same user may read it.
//!
//! A filter asks for `no_new_privs`: nothing that is started from here gets rights by a set-user-id bit. None of it needs
//! any. `qrexec-client-vm`, `qvm-open-in-vm` and `qubes-gpg-client` reach other VMs by devices that the user's group may
//! open, not by sockets; GnuPG speaks to its agent over a Unix socket; an editor edits. (`sudo` from within an editor does
//! not work.)
//!
//! **Invariant:** after [`confine`] neither this thread, nor one that it starts, nor a program that one of them runs makes
//! a socket that is no Unix socket. Filters stay for good: a program can add one and take none away.
//!
//! It is no wall against code that runs here and finds another program to do it the favour: what the user's systemd or the
//! desktop starts is not started from here.

use std::collections::BTreeMap;
use std::io;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl::set_dumpable;
use nix::sys::resource::{Resource, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

use crate::characters::is_harmless;

/// The interfaces of the network that this process is in; a process in another network namespace reads another file here.
const INTERFACES: &str = "/proc/self/net/dev";
/// The lines above the first interface.
const HEAD: usize = 2;
/// The loopback.
const LOOPBACK: &str = "lo";
/// What the kernel itself puts into each network, once it has learnt of such tunnels. Each goes by another interface, so
/// where there is no other it leads nowhere.
const TUNNELS_TO_NOWHERE: [&str; 9] =
    ["erspan0", "gre0", "gretap0", "ip6_vti0", "ip6gre0", "ip6tnl0", "ip_vti0", "sit0", "tunl0"];
/// How much of an interface's name is shown: the kernel has none that is longer.
const NAME_CAP: usize = 15;
/// What x86-64 adds to the number of a system call that is made in its x32 way, under the same name of an architecture.
const X32: i64 = 0x4000_0000;

/// The program could not be confined, and does not go on.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    /// The filter could not be made.
    #[error("no filter of system calls could be made for this machine: Splitdrop runs on x86-64 and on 64-bit ARM")]
    Filter(#[from] seccompiler::BackendError),
    /// The filter could not be installed.
    #[error(
        "the filter of system calls could not be installed, and nothing runs without it: the kernel needs \
         CONFIG_SECCOMP_FILTER, see `grep Seccomp /proc/self/status`"
    )]
    Install(#[from] seccompiler::Error),
    /// The process's memory could not be closed to others.
    #[error("core dumps could not be switched off, and nothing runs with them: see `ulimit -c` and the kernel's log")]
    Memory(#[source] Errno),
}

/// Why the daemon does not run in this VM.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// There is more than the loopback.
    #[error(
        "this VM has a network interface ({interface}), and Splitdrop's client belongs into a VM without a network: in \
         dom0, `qvm-prefs VM netvm ''` takes it away; to run all the same, set `allow_network = true` in config.toml"
    )]
    Interface {
        /// The first of the others, made harmless to show.
        interface: String,
    },
    /// The interfaces could not be listed.
    #[error(
        "whether this VM has a network could not be seen in {INTERFACES}: see whether /proc is mounted; to run all the \
         same, set `allow_network = true` in config.toml"
    )]
    Unknown(#[source] io::Error),
}

/// Confines this thread, those that it starts from now on, and every program that they run. Belongs before all else.
///
/// # Errors
/// [`ConfinementError`]. Part of it may be in force then.
pub fn confine() -> Result<(), ConfinementError> {
    // A program that is run later gets the memory's protection not from here, and core dumps only as far as this goes.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(ConfinementError::Memory)?;
    set_dumpable(false).map_err(ConfinementError::Memory)?;
    apply_filter(&only_unix_sockets()?)?;
    Ok(())
}

/// The filter: sockets of other families are refused with `EACCES`, and so is `io_uring`, which makes sockets past every
/// filter. Everything else is allowed. A call in the way of another architecture ends the process.
fn only_unix_sockets() -> Result<BpfProgram, ConfinementError> {
    let other_family = || -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
        // The kernel takes the family as an int.
        let unix = u64::from(libc::AF_UNIX.unsigned_abs());
        let other = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, unix)?;
        Ok(vec![SeccompRule::new(vec![other])?])
    };
    // No rule for a call means that it is refused whatever its arguments are.
    let mut refused = BTreeMap::from([
        (libc::SYS_socket, other_family()?),
        (libc::SYS_socketpair, other_family()?),
        (libc::SYS_io_uring_setup, Vec::new()),
    ]);
    if cfg!(target_arch = "x86_64") {
        let in_x32 = [libc::SYS_socket, libc::SYS_socketpair, libc::SYS_io_uring_setup];
        refused.extend(in_x32.map(|number| (number | X32, Vec::new())));
    }
    let filter = SeccompFilter::new(
        refused,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EACCES.unsigned_abs()),
        std::env::consts::ARCH.try_into()?,
    )?;
    Ok(filter.try_into()?)
}

/// Refuses a VM that has a network interface beside the loopback.
///
/// # Errors
/// [`NetworkError`].
pub fn refuse_a_network() -> Result<(), NetworkError> {
    let table = std::fs::read_to_string(INTERFACES).map_err(NetworkError::Unknown)?;
    first_interface(&table).map_or(Ok(()), |interface| Err(NetworkError::Interface { interface }))
}

/// The first interface that leads somewhere, made harmless to show.
fn first_interface(table: &str) -> Option<String> {
    let names = table.lines().skip(HEAD).filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let leading = |name: &&str| *name != LOOPBACK && !TUNNELS_TO_NOWHERE.contains(name);
    let shown = |character: char| if is_harmless(character) { character } else { '?' };
    names.into_iter().find(leading).map(|name| name.chars().take(NAME_CAP).map(shown).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLE: &str = "Inter-|   Receive  |  Transmit\n face |bytes    packets|bytes    packets\n";

    fn found(lines: &str) -> Option<String> {
        first_interface(&format!("{TITLE}{lines}"))
    }

    #[test]
    fn the_loopback_and_the_kernels_own_tunnels_are_no_network() {
        assert_eq!(found(""), None);
        assert_eq!(found("    lo:       0       0    0\n"), None);
        assert_eq!(found(" tunl0:       0       0    0\n    lo:11726938605 2    0\n  sit0: 0\nip6tnl0: 0\n"), None);
    }

    #[test]
    fn every_other_interface_is_one_and_its_name_is_made_harmless() {
        assert_eq!(found("    lo: 0 0\n  eth0: 865173836   60042\n wlan0: 0\n").as_deref(), Some("eth0"));
        assert_eq!(found("tunl1: 0 0\n").as_deref(), Some("tunl1"));
        assert_eq!(found("lo0:0 0\n").as_deref(), Some("lo0"));
        assert_eq!(found("a\u{1b}[2J\u{202e}b: 0\n").as_deref(), Some("a?[2J?b"));
        assert_eq!(found(&format!("{}: 0\n", "x".repeat(99))).as_deref(), Some("xxxxxxxxxxxxxxx"));
    }
}
