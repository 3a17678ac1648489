//! seccomp: a list of the system calls that a session makes. The kernel refuses all others.
//!
//! What is not on the list fails with `EPERM`, and does not end the process. To whoever has taken it over the two are the
//! same: the call is not made. But a C library that begins to use another call after an upgrade goes its way for older
//! kernels, or the call of the protocol fails with an error; a process that dies without a word would leave nobody
//! anything to go by. Calls that nothing in this process ever makes, and only an attack would, end it: the kernel's
//! log then says so.
//!
//! Three filters are installed, since one can answer in two ways only. Of several answers the kernel takes the strictest.
//!
//! **Invariant:** no file is opened but to be read, and that only where names are looked up. No program is started, no
//! process made, nothing listened on, no memory made executable.
//!
//! **Invariant:** sockets are TCP's, over the kinds of addresses that are needed; where names are looked up, UDP's too.
//! Landlock, which watches over ports, sees a connection only when it is made by `connect`: the other way, sending while
//! connecting, is not there.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use super::{ConfinementError, Reach};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// What is allowed whatever its arguments are, and wherever it is.
const ALWAYS: &[i64] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Descriptors that are open.
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    // Waiting.
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    // Connections.
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    // Time and chance.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    // The process itself.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
];

/// What older processors have in other words.
#[cfg(target_arch = "x86_64")]
const ALWAYS_HERE: &[i64] = &[libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const ALWAYS_HERE: &[i64] = &[];

/// What looking up a name takes: threads, and reading files.
const NAMES: &[i64] = &[
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_statx,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// What nothing here ever calls, nor the libraries below, nor a C library on its own account.
const DEADLY: &[i64] = &[
    libc::SYS_bpf,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_mount,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Takes from this thread, and from those that it starts, every system call that `reach` does not need.
pub(super) fn restrict(reach: Reach) -> Result<(), ConfinementError> {
    let processor = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| ConfinementError::Processor)?;
    let programs = programs(reach, processor).map_err(|error| ConfinementError::Seccomp(error.into()))?;
    programs.iter().try_for_each(|program| seccompiler::apply_filter(program)).map_err(ConfinementError::Seccomp)
}

/// The filters, in the order of their installation: the last one forbids installing more.
fn programs(reach: Reach, processor: TargetArch) -> Result<[BpfProgram; 3], seccompiler::BackendError> {
    let filter = |rules, listed, other| SeccompFilter::new(rules, other, listed, processor)?.try_into();
    let deadly = DEADLY.iter().map(|call| (*call, Vec::new())).collect();
    // Its flags lie in memory, where no filter can look. Without it C libraries fall back on `clone`, whose flags can be
    // seen.
    let missing = Rules::from([(libc::SYS_clone3, Vec::new())]);
    Ok([
        filter(deadly, SeccompAction::KillProcess, SeccompAction::Allow)?,
        filter(missing, SeccompAction::Errno(word(libc::ENOSYS)), SeccompAction::Allow)?,
        filter(allowed(reach)?, SeccompAction::Allow, SeccompAction::Errno(word(libc::EPERM)))?,
    ])
}

fn allowed(reach: Reach) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = ALWAYS.iter().chain(ALWAYS_HERE).map(|call| (*call, Vec::new())).collect();
    let not_executable = || rule(&[long(2).masked(word(libc::PROT_EXEC), 0)]);
    rules.insert(libc::SYS_mmap, vec![not_executable()?]);
    rules.insert(libc::SYS_mprotect, vec![not_executable()?]);
    rules.insert(
        libc::SYS_fcntl,
        one_of(1, &[libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC].map(word))?,
    );
    rules.insert(libc::SYS_ioctl, one_of(1, &[FIONBIO, FIOCLEX, FIONREAD])?);
    rules.insert(libc::SYS_prctl, one_of(0, &[word(libc::PR_SET_NAME)])?);
    // What `abort` does.
    rules.insert(libc::SYS_tgkill, one_of(0, &[std::process::id()])?);
    // Sending while connecting would pass Landlock by.
    let connected = |at| rule(&[int(at).masked(word(libc::MSG_FASTOPEN), 0)]);
    rules.insert(libc::SYS_sendto, vec![connected(3)?]);
    rules.insert(libc::SYS_sendmsg, vec![connected(2)?]);
    let mut levels = vec![libc::SOL_SOCKET, libc::IPPROTO_TCP];
    let sockets = sockets(reach)?;
    // Without any rule any socket would be allowed.
    if !sockets.is_empty() {
        rules.insert(libc::SYS_socket, sockets);
    }
    if let Reach::Name { .. } = reach {
        rules.extend(NAMES.iter().map(|call| (*call, Vec::new())));
        rules.insert(libc::SYS_openat, vec![to_read()?]);
        rules.insert(libc::SYS_clone, vec![a_thread()?]);
        // So that `programs` can answer for it.
        rules.insert(libc::SYS_clone3, Vec::new());
        rules.insert(libc::SYS_sendmmsg, vec![connected(3)?]);
        levels.extend([libc::IPPROTO_IP, libc::IPPROTO_IPV6]);
    }
    rules.insert(libc::SYS_setsockopt, one_of(1, &levels.into_iter().map(word).collect::<Vec<_>>())?);
    Ok(rules)
}

fn sockets(reach: Reach) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let (v4, v6) = reach.families();
    let mut kinds = vec![(libc::SOCK_STREAM, [0, libc::IPPROTO_TCP])];
    if let Reach::Name { .. } = reach {
        kinds.push((libc::SOCK_DGRAM, [0, libc::IPPROTO_UDP]));
    }
    let mut rules = Vec::new();
    for family in [v4.then_some(libc::AF_INET), v6.then_some(libc::AF_INET6)].into_iter().flatten() {
        for (kind, protocols) in &kinds {
            for protocol in protocols {
                let kind = int(1).masked(!word(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC), word(*kind));
                rules.push(rule(&[int(0).is(word(family)), kind, int(2).is(word(*protocol))])?);
            }
        }
    }
    Ok(rules)
}

/// A file that is there, opened to be read.
fn to_read() -> Result<SeccompRule, seccompiler::BackendError> {
    let writes = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY);
    rule(&[int(2).masked(word(writes), word(libc::O_RDONLY))])
}

/// A thread of this process, in the same name spaces.
fn a_thread() -> Result<SeccompRule, seccompiler::BackendError> {
    let spaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let thread = word(libc::CLONE_THREAD);
    rule(&[long(0).masked(thread | word(spaces), thread)])
}

/// A system call's argument, before it is said what it has to be.
#[derive(Debug, Clone, Copy)]
struct Argument {
    at: u8,
    width: Width,
}

#[derive(Debug, Clone, Copy)]
enum Width {
    /// The kernel looks at 32 bits only.
    Int,
    Long,
}

#[derive(Debug, Clone)]
struct Condition {
    argument: Argument,
    how: SeccompCmpOp,
    value: u64,
}

fn int(at: u8) -> Argument {
    Argument { at, width: Width::Int }
}

fn long(at: u8) -> Argument {
    Argument { at, width: Width::Long }
}

impl Argument {
    fn is(self, value: u32) -> Condition {
        Condition { argument: self, how: SeccompCmpOp::Eq, value: value.into() }
    }

    fn masked(self, mask: u32, value: u32) -> Condition {
        Condition { argument: self, how: SeccompCmpOp::MaskedEq(mask.into()), value: value.into() }
    }
}

/// All of these must hold.
fn rule(conditions: &[Condition]) -> Result<SeccompRule, seccompiler::BackendError> {
    let conditions = conditions.iter().map(|Condition { argument, how, value }| {
        let width = match argument.width {
            Width::Int => SeccompCmpArgLen::Dword,
            Width::Long => SeccompCmpArgLen::Qword,
        };
        SeccompCondition::new(argument.at, width, how.clone(), *value)
    });
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

fn one_of(at: u8, values: &[u32]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    values.iter().map(|value| rule(&[int(at).is(*value)])).collect()
}

/// A number of the C library's as the kernel compares it: by its bits.
fn word(number: libc::c_int) -> u32 {
    number.cast_unsigned()
}

// The same on both processors; C libraries do not agree on their type.
const FIONBIO: u32 = 0x5421;
const FIONREAD: u32 = 0x541b;
const FIOCLEX: u32 = 0x5451;
