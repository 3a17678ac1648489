//! What the kernel keeps the proxy from, by trying it.
//!
//! A confined process cannot be let go again. So each trial runs in a process of its own: this very program, started for
//! the one test that is ignored otherwise, which confines itself and prints what came of each attempt.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, sendto, socket};
use nix::unistd::getppid;
use protocol::handshake::Welcome;
use protocol::value::SettingName;
use protocol::{Call, Confinement, Items, Landlock, Refusal, Scope, Seccomp};
use proxy_vm::confinement::{Reach, confine};

use crate::client::get_sources;
use crate::fixtures::any_list;
use crate::process::{code_and_stderr, start, start_as};
use crate::server::{Act, Server, ok};

/// What a process is to try, and where.
const TRIAL: &str = "SPLITDROP_TRIAL";
const FOLDER: &str = "SPLITDROP_TRIAL_FOLDER";
const MAY: &str = "SPLITDROP_TRIAL_MAY_CONNECT_TO";
const OTHER: &str = "SPLITDROP_TRIAL_OTHER";
/// Before what came of something, on a line that the test harness may have begun.
const MARK: &str = "tried ";
/// What came of what was not refused.
const DONE: &str = "done";
const NOBODY: u32 = 65534;

/// How much of Landlock this machine's kernel has, asked of it without the library that the proxy uses.
fn offered() -> Landlock {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel reads no memory, and answers with a number.
    #[expect(unsafe_code, reason = "a system call that no library here has")]
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) };
    match abi {
        ..=0 => Landlock::None,
        1..=3 => Landlock::Files,
        4..=5 => Landlock::FilesAndNetwork,
        6.. => Landlock::FilesNetworkAndSignals,
    }
}

/// Whether the kernel has as much of Landlock as a check needs. Where it has not, that is said.
fn has(level: Landlock, what: &str) -> bool {
    let there = offered() >= level;
    if !there {
        // Straight to the terminal: the harness keeps what a passing test prints.
        let _ = writeln!(io::stderr(), "NOT CHECKED: {what}: this kernel's Landlock is `{}`", offered().name());
    }
    there
}

/// What was tried, and what the kernel said to it.
type Outcomes = BTreeMap<String, String>;

/// Where a trial finds things that it must not touch, and whom it may connect to.
struct Place {
    folder: tempfile::TempDir,
    may: TcpListener,
    other: TcpListener,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("there"), "as it was").unwrap();
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self { folder, may: listen(), other: listen() }
    }

    fn command(&self, program: &Path, trial: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["--ignored", "--exact", "confined::inside", "--nocapture", "--test-threads=1"]);
        command.env(TRIAL, trial).env(FOLDER, self.folder.path());
        command.env(MAY, self.may.local_addr().unwrap().to_string());
        command.env(OTHER, self.other.local_addr().unwrap().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, trial: &str) -> Output {
        self.command(&std::env::current_exe().unwrap(), trial).output().unwrap()
    }

    fn tried(&self, trial: &str) -> Outcomes {
        let output = self.run(trial);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{:?}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        outcomes(&text)
    }
}

fn outcomes(text: &str) -> Outcomes {
    let lines = text.lines().filter_map(|line| line.split_once(MARK));
    lines.map(|(_, line)| line.split_once(": ").unwrap()).map(|(name, came)| (name.into(), came.into())).collect()
}

fn assert_came(outcomes: &Outcomes, expected: &[(&str, &str)]) {
    for (name, came) in expected {
        assert_eq!(outcomes.get(*name).map(String::as_str), Some(*came), "{name}: {outcomes:?}");
    }
}

/// What the process does that another test starts.
#[test]
#[ignore = "run by the other tests of this file, in a process that is confined"]
fn inside() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the others"));
    let (trial, folder) = (variable(TRIAL), PathBuf::from(variable(FOLDER)));
    let (may, other): (SocketAddr, SocketAddr) = (variable(MAY).parse().unwrap(), variable(OTHER).parse().unwrap());
    // As the log is: open before.
    let mut log = OpenOptions::new().append(true).create(true).open(folder.join("log")).unwrap();
    let reach = match trial.as_str() {
        "nothing" => Reach::Nothing,
        "name" => Reach::Name { port: may.port() },
        _ => Reach::Address(may),
    };
    let confinement = confine(reach).unwrap();
    assert_eq!(confinement.seccomp, Seccomp::Enforced);
    say("landlock", Ok(confinement.landlock.name()));
    match trial.as_str() {
        "exec" => {
            let failed = nix::unistd::execv(c"/bin/true", &[c"true"]).unwrap_err();
            say("exec", Err(failed.into()));
        }
        "trace_me" => say("trace_me", nix::sys::ptrace::traceme().map(|()| DONE).map_err(Into::into)),
        "attach" => say("attach", nix::sys::ptrace::attach(getppid()).map(|()| DONE).map_err(Into::into)),
        "wait" => {
            say("ready", Ok(DONE));
            let _ended = io::stdin().read(&mut [0]).unwrap();
        }
        _ => {
            say("log", log.write_all(b"a line\n").map(|()| DONE));
            try_files(&folder);
            try_connections(may, other);
            try_processes();
        }
    }
}

fn say(name: &str, came: io::Result<&str>) {
    let came = match came {
        Ok(came) => came.to_owned(),
        Err(error) => {
            error.raw_os_error().map_or_else(|| error.to_string(), |code| format!("{:?}", Errno::from_raw(code)))
        }
    };
    #[expect(clippy::print_stdout, reason = "the test that started this process reads it")]
    {
        println!("{MARK}{name}: {came}");
    }
}

fn attempt<T>(name: &str, came: io::Result<T>) {
    say(name, came.map(|_| DONE));
}

fn try_files(folder: &Path) {
    let there = folder.join("there");
    attempt("create", File::create(folder.join("new")));
    attempt("append", OpenOptions::new().append(true).open(&there));
    attempt("truncate", OpenOptions::new().write(true).truncate(true).open(&there));
    attempt("own memory", OpenOptions::new().write(true).open("/proc/self/mem"));
    attempt("directory", std::fs::create_dir(folder.join("directory")));
    attempt("rename", std::fs::rename(&there, folder.join("elsewhere")));
    attempt("remove", std::fs::remove_file(&there));
    attempt("mode", std::fs::set_permissions(&there, std::fs::Permissions::from_mode(0o777)));
    attempt("link", std::os::unix::fs::symlink("/bin/sh", folder.join("link")));
    attempt("list", std::fs::read_dir(folder));
    attempt("read", File::open(&there));
    attempt("read hosts", File::open("/etc/hosts"));
}

fn try_connections(may: SocketAddr, other: SocketAddr) {
    attempt("connect", TcpStream::connect(may));
    attempt("connect elsewhere", TcpStream::connect(other));
    attempt("connect by IPv6", TcpStream::connect((Ipv6Addr::LOCALHOST, may.port())));
    attempt("listen", TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    attempt("UDP", UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    let new = |family, kind, protocol| -> io::Result<OwnedFd> {
        // `nix` has no word for most protocols.
        // SAFETY: the call reads no memory, and its answer is a descriptor that nobody else has.
        #[expect(unsafe_code, reason = "protocols that no library here has a name for")]
        unsafe {
            Errno::result(libc::socket(family, kind, protocol)).map(|fd| OwnedFd::from_raw_fd(fd)).map_err(Into::into)
        }
    };
    attempt("raw", new(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP));
    attempt("packets", new(libc::AF_PACKET, libc::SOCK_RAW, 0));
    attempt("netlink", new(libc::AF_NETLINK, libc::SOCK_RAW, 0));
    attempt("several paths", new(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP));
    attempt("Unix", new(libc::AF_UNIX, libc::SOCK_STREAM, 0));
    let SocketAddr::V4(other) = other else { panic!("an IPv4 address was asked for") };
    let by_sending = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).and_then(|fd| {
        sendto(fd.as_raw_fd(), b"hi", &SockaddrIn::from(other), MsgFlags::from_bits_retain(libc::MSG_FASTOPEN))
    });
    attempt("connect by sending", by_sending.map_err(Into::into));
}

fn try_processes() {
    attempt("spawn", Command::new("/bin/true").status());
    attempt("thread", std::thread::Builder::new().spawn(|| ()).map(|thread| thread.join().unwrap()));
    attempt("signal", kill(getppid(), Signal::SIGCONT).map_err(Into::into));
    attempt("pipe", io::pipe());
    attempt(
        "limit",
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 64, 64).map_err(Into::into),
    );
    attempt("dumpable again", nix::sys::prctl::set_dumpable(true).map_err(Into::into));
    let mapped = |protection| {
        let page = NonZeroUsize::new(4096).unwrap();
        // SAFETY: a new mapping, at a place that the kernel chooses, touches no memory that is in use.
        #[expect(unsafe_code, reason = "a mapping is made by hand")]
        unsafe {
            mmap_anonymous(None, page, protection, MapFlags::MAP_PRIVATE).map_err(io::Error::from)
        }
    };
    attempt("memory", mapped(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE));
    attempt("memory to execute", mapped(ProtFlags::PROT_READ | ProtFlags::PROT_EXEC));
}

/// What no session may do, wherever it connects to.
const NEVER: [(&str, &str); 22] = [
    ("create", "EPERM"),
    ("append", "EPERM"),
    ("truncate", "EPERM"),
    ("own memory", "EPERM"),
    ("directory", "EPERM"),
    ("rename", "EPERM"),
    ("remove", "EPERM"),
    ("mode", "EPERM"),
    ("link", "EPERM"),
    ("listen", "EPERM"),
    ("UDP", "EPERM"),
    ("raw", "EPERM"),
    ("packets", "EPERM"),
    ("netlink", "EPERM"),
    ("several paths", "EPERM"),
    ("Unix", "EPERM"),
    ("connect by sending", "EPERM"),
    ("spawn", "EPERM"),
    ("signal", "EPERM"),
    ("limit", "EPERM"),
    ("dumpable again", "EPERM"),
    ("memory to execute", "EPERM"),
];

#[test]
fn a_session_at_one_address_connects_there_and_does_nothing_else() {
    let place = Place::new();
    let came = place.tried("address");
    assert_came(&came, &NEVER);
    assert_came(&came, &[("log", DONE), ("connect", DONE), ("memory", DONE)]);
    assert_came(&came, &[("list", "EPERM"), ("read", "EPERM"), ("read hosts", "EPERM"), ("pipe", "EPERM")]);
    assert_came(&came, &[("connect by IPv6", "EPERM"), ("thread", "EPERM"), ("landlock", offered().name())]);
    if has(Landlock::FilesAndNetwork, "connecting to another port") {
        assert_came(&came, &[("connect elsewhere", "EACCES")]);
    }
    let mut names: Vec<_> =
        std::fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["log", "there"]);
    assert_eq!(std::fs::read_to_string(place.folder.path().join("there")).unwrap(), "as it was");
    assert_eq!(std::fs::read_to_string(place.folder.path().join("log")).unwrap(), "a line\n");
}

#[test]
fn a_session_that_looks_up_names_reads_what_that_takes() {
    let place = Place::new();
    let came = place.tried("name");
    // It binds nothing, but may have a socket for UDP.
    assert_came(&came, &NEVER);
    assert_came(&came, &[("log", DONE), ("connect", DONE), ("read hosts", DONE), ("thread", DONE), ("memory", DONE)]);
    assert_came(&came, &[("pipe", "EPERM"), ("landlock", offered().name())]);
    if has(Landlock::Files, "reading files that a look-up does not need") {
        assert_came(&came, &[("read", "EACCES"), ("list", "EACCES")]);
    }
    if has(Landlock::FilesAndNetwork, "connecting to another port") {
        assert_came(&came, &[("connect elsewhere", "EACCES")]);
    }
}

#[test]
fn without_a_session_nothing_is_connected_to() {
    let came = Place::new().tried("nothing");
    assert_came(&came, &NEVER);
    assert_came(&came, &[("connect", "EPERM"), ("connect elsewhere", "EPERM"), ("read", "EPERM"), ("thread", "EPERM")]);
}

#[test]
fn running_a_program_or_debugging_is_the_end() {
    let place = Place::new();
    for trial in ["exec", "trace_me", "attach"] {
        let output = place.run(trial);
        assert_eq!(output.status.signal(), Some(Signal::SIGSYS as i32), "{trial}: {output:?}");
        assert!(!outcomes(&String::from_utf8(output.stdout).unwrap()).contains_key(trial));
    }
}

/// A process that tells what it is to a file of the kernel's, while it waits.
fn status_of(pid: u32, name: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap()
}

fn field<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().split_whitespace().collect()
}

fn assert_confined(pid: u32) {
    let status = status_of(pid, "status");
    assert_eq!((field(&status, "NoNewPrivs:"), field(&status, "Seccomp:")), (vec!["1"], vec!["2"]));
    assert_eq!(field(&status, "Threads:"), ["1"]);
    let limits = status_of(pid, "limits");
    assert_eq!(field(&limits, "Max core file size")[..2], ["0", "0"]);
    assert_eq!(field(&limits, "Max open files")[..2], ["256", "256"]);
}

/// The kernel gives what is under /proc of a process that cannot be dumped to root. Whoever is root needs somebody else to
/// see that.
#[test]
fn no_other_process_of_its_user_reads_its_memory() {
    let place = Place::new();
    let program = place.folder.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for (path, mode) in [(place.folder.path(), 0o777), (&program, 0o755)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut command = place.command(&program, "wait");
    let user = if nix::unistd::Uid::effective().is_root() {
        command.uid(NOBODY).gid(NOBODY);
        NOBODY
    } else {
        nix::unistd::Uid::effective().as_raw()
    };
    let mut child = command.spawn().unwrap();
    let mut output = io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert_ne!(io::BufRead::read_line(&mut output, &mut line).unwrap(), 0, "it ended");
    }
    let status = status_of(child.id(), "status");
    assert_eq!(field(&status, "Uid:")[0], user.to_string());
    assert_eq!(std::fs::metadata(format!("/proc/{}/mem", child.id())).unwrap().uid(), 0);
    // As ourselves, and not confined, it would be the user's own.
    assert_eq!(std::fs::metadata("/proc/self/mem").unwrap().uid(), nix::unistd::Uid::effective().as_raw());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[tokio::test]
async fn the_program_is_confined_and_says_how_far() {
    let (mut client, child) = start(&[("SD_PROXY_ORIGIN", "http://secretname.onion")]);
    assert!(matches!(client.handshake(Scope::Metadata).await, Some(Welcome::Ready { .. })));
    assert_confined(child.id().unwrap());
    let outcome = client.call(Call::Health).await;
    let [Items::Health(health)] = outcome.items.as_slice() else { panic!("no health: {outcome:?}") };
    assert_eq!(health.confinement, Confinement { seccomp: Seccomp::Enforced, landlock: offered() });
    drop(client);
    assert_eq!(code_and_stderr(child).await.0.code(), Some(0));
}

#[tokio::test]
async fn whoever_insists_on_landlock_has_it_or_no_session() {
    let name = "SD_PROXY_REQUIRE_LANDLOCK";
    let (mut client, _child) = start(&[("SD_PROXY_ORIGIN", "http://secretname.onion"), (name, "on")]);
    let welcome = client.handshake(Scope::Metadata).await;
    if offered() >= Landlock::FilesAndNetwork {
        assert!(matches!(welcome, Some(Welcome::Ready { .. })), "{welcome:?}");
    } else {
        assert_eq!(welcome, Some(Welcome::Refused(Refusal::Landlock(SettingName::try_new(name).unwrap()))));
    }
}

#[tokio::test]
async fn a_name_is_looked_up_in_a_confined_session() {
    let server = Server::new(|seen| Act::Send(ok(&any_list(seen.path())))).await;
    let origin = format!("http://localhost:{}", server.address.port());
    let (mut client, child) = start(&[("SD_PROXY_ORIGIN", &origin), ("SD_PROXY_TOR", "off")]);
    client.handshake(Scope::Metadata).await.unwrap();
    assert_eq!(client.call(get_sources()).await.listed(), (2, 0));
    drop(client);
    assert_eq!(code_and_stderr(child).await.0.code(), Some(0));
}

#[tokio::test]
async fn only_listed_vms_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.log");
    let settings = |clients| {
        let mut settings = vec![("SD_PROXY_ORIGIN", "http://secretname.onion")];
        settings.push(("SD_PROXY_LOG_FILE", path.to_str().unwrap()));
        settings.extend(clients);
        settings
    };
    let refused = Welcome::Refused(Refusal::Caller(SettingName::try_new("SD_PROXY_CLIENTS").unwrap()));
    let listed = ("SD_PROXY_CLIENTS", "sd-app-2,sd-app-3");
    for (clients, caller, served) in [
        (None, Some("sd-app"), true),
        (None, Some("untrusted"), false),
        (None, Some("sd-app\n\u{1b}[2Jforged"), false),
        (None, None, false),
        (Some(listed), Some("sd-app-3"), true),
        (Some(listed), Some("sd-app"), false),
    ] {
        let (mut client, child) = start_as(caller, &settings(clients));
        let welcome = client.handshake(Scope::Metadata).await;
        match served {
            true => assert!(matches!(welcome, Some(Welcome::Ready { .. })), "{caller:?}: {welcome:?}"),
            false => assert_eq!(welcome, Some(refused.clone()), "{caller:?}"),
        }
        drop(client);
        let (status, stderr) = code_and_stderr(child).await;
        assert_eq!((status.code(), stderr.as_str()), (Some(i32::from(!served)), ""), "{caller:?}");
    }
    let log = std::fs::read_to_string(path).unwrap();
    assert!(log.contains("untrusted is not in the list"), "{log}");
    // Those too that only say why there is no session.
    assert_eq!(log.matches("confined seccomp=\"enforced\"").count(), 6, "{log}");
    assert!(!log.contains("forged") && !log.contains('\u{1b}'), "{log}");
}
