//! The stand-in for qrexec, end to end: real `qrexec-client-vm` processes, a broker, small shell scripts as services.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests may fail as loudly as tests")]

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use staging::qrexec::broker::{Broker, BrokerError, BrokerOptions, Counts, Event, EventKind, Installation, RefusedBy};
use staging::qrexec::policy::{PolicyError, Refusal, ServiceTarget};
use staging::qrexec::system::{QubeName, System};
use staging::qrexec::{Ending, SOCKET_VARIABLE};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

/// Only bounds how long a failed test hangs.
const FAILURE_BOUND: Duration = Duration::from_secs(60);
const ALLOW_ALL: &str = "* * @anyvm @anyvm allow\n";
const SHIPPED_POLICY: &str = include_str!("../../qubes-rpc/dom0/31-splitdrop.policy");

async fn bounded<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(FAILURE_BOUND, work).await.expect("a test does not hang")
}

fn vm(name: &str) -> QubeName {
    QubeName::try_new(name).unwrap()
}

/// Writes an executable, from another process: a descriptor of our own, open for writing, would be with every process
/// that a test beside this one forks just now, and a file that is open for writing cannot be executed.
fn install(path: &Path, script: &str) {
    let mut shell = std::process::Command::new("/bin/sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

/// A broker with services in `sd-proxy`, and the folder that all of it lives in.
struct Stage {
    folder: TempDir,
    broker: Option<Broker>,
}

impl Stage {
    /// Services are names and shell scripts.
    fn new(services: &[(&str, &str)]) -> Self {
        Self::with(services, ALLOW_ALL, |_| {})
    }

    fn with(services: &[(&str, &str)], policy: &str, change: impl FnOnce(&mut BrokerOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scripts: BTreeMap<String, PathBuf> = services
            .iter()
            .map(|(name, script)| {
                let path = folder.path().join(name);
                let script = script.replace("FOLDER", folder.path().to_str().unwrap());
                install(&path, &format!("#!/bin/sh\n{script}\n"));
                ((*name).to_owned(), path)
            })
            .collect();
        let installation = Installation { services: scripts, environment: BTreeMap::new() };
        let mut options = BrokerOptions {
            folder: folder.path().to_owned(),
            policy: vec![("31-test.policy".to_owned(), policy.to_owned())],
            system: System::workstation(),
            installed: BTreeMap::from([(vm("sd-proxy"), installation)]),
            grace: Duration::from_millis(20),
        };
        change(&mut options);
        Self { folder, broker: Some(Broker::start(options).unwrap()) }
    }

    fn broker(&self) -> &Broker {
        self.broker.as_ref().expect("the broker runs")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command_of(&self, source: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qrexec-client-vm"));
        command
            .args(arguments)
            .env(SOCKET_VARIABLE, self.broker().socket(source).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Starts a call of sd-app to sd-proxy.
    fn call(&self, service: &str) -> Caller {
        Caller::new(self.command_of("sd-app", &["--", "sd-proxy", service]).spawn().unwrap())
    }

    /// Makes a whole call with no input.
    async fn output(&self, service: &str) -> Output {
        bounded(self.command_of("sd-app", &["sd-proxy", service]).stdin(Stdio::null()).output()).await.unwrap()
    }

    async fn stop(&mut self) {
        bounded(self.broker.take().expect("the broker runs").stop()).await.unwrap();
    }

    fn kinds(&self) -> Vec<EventKind> {
        self.broker().events().into_iter().map(|Event { kind, .. }| kind).collect()
    }

    fn last_event(&self) -> EventKind {
        self.kinds().pop().expect("an event")
    }
}

struct Caller {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Caller {
    fn new(mut process: Child) -> Self {
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Self { process, stdin, stdout }
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        bounded(self.stdout.read_line(&mut line)).await.unwrap();
        line
    }

    async fn rest(&mut self) -> String {
        let mut text = String::new();
        bounded(self.stdout.read_to_string(&mut text)).await.unwrap();
        text
    }

    async fn write(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        bounded(stdin.write_all(text.as_bytes())).await.unwrap();
    }

    async fn code(&mut self) -> Option<i32> {
        bounded(self.process.wait()).await.unwrap().code()
    }
}

/// A FIFO from which a service reads a line, and so waits until it may go on.
struct Gate(std::fs::File);

impl Gate {
    fn new(path: &Path) -> Self {
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Both ways, so that opening never waits for a service.
        Self(std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap())
    }

    fn open(&mut self) {
        self.0.write_all(b"go\n").unwrap();
    }
}

/// The read end of a FIFO that a service holds open for writing: it ends when the service, and all it left, is dead.
struct LifeLine(tokio::net::unix::pipe::Receiver);

impl LifeLine {
    fn new(path: &Path) -> Self {
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        Self(tokio::net::unix::pipe::OpenOptions::new().open_receiver(path).unwrap())
    }

    /// Waits until somebody has written a line.
    async fn taken(&mut self) {
        assert_eq!(bounded(self.0.read_u8()).await.unwrap(), b'x');
    }

    async fn cut(mut self) {
        let mut rest = Vec::new();
        bounded(self.0.read_to_end(&mut rest)).await.unwrap();
    }
}

#[tokio::test]
async fn a_service_sees_what_qrexec_tells_it_and_nothing_else() {
    let script = r#"
        env | grep -v -e '^_=' -e '^PWD=' -e '^SHLVL=' -e '^OLDPWD=' -e '^QREXEC_AGENT_PID=' | sort
        echo "arguments: $#${1:+ $1}"
        case "$QREXEC_AGENT_PID" in ''|*[!0-9]*) echo "no agent" ;; esac
        ( : < /dev/stdin ) 2>/dev/null || echo "stdin cannot be opened"
        ( : > /dev/stdout ) 2>/dev/null || echo "stdout cannot be opened"
    "#;
    let stage = Stage::with(&[("test.Env", script)], ALLOW_ALL, |options| {
        let installation = options.installed.get_mut(&vm("sd-proxy")).unwrap();
        installation.environment = BTreeMap::from([
            ("SD_PROXY_ORIGIN".to_owned(), "http://127.0.0.1:1".to_owned()),
            ("QREXEC_REMOTE_DOMAIN".to_owned(), "forged".to_owned()),
        ]);
    });
    let common = "SD_PROXY_ORIGIN=http://127.0.0.1:1";
    for (service, source, argument) in
        [("test.Env", "sd-app", ""), ("test.Env+", "sd-app", ""), ("test.Env+one", "sd-gpg", "one")]
    {
        let output = bounded(stage.command_of(source, &["sd-proxy", service]).stdin(Stdio::null()).output()).await;
        let count = if argument.is_empty() { "0".to_owned() } else { format!("1 {argument}") };
        assert_eq!(
            String::from_utf8(output.unwrap().stdout).unwrap(),
            format!(
                "PATH=/usr/bin:/bin\nQREXEC_REMOTE_DOMAIN={source}\nQREXEC_SERVICE_ARGUMENT={argument}\n\
                 QREXEC_SERVICE_FULL_NAME=test.Env+{argument}\n{common}\narguments: {count}\n\
                 stdin cannot be opened\nstdout cannot be opened\n"
            )
        );
    }
}

#[tokio::test]
async fn arguments_are_cleaned_and_the_rest_is_left_to_the_service() {
    let stage = Stage::new(&[("test.Argument", "printf '%s|%s' \"$QREXEC_SERVICE_ARGUMENT\" \"$1\"")]);
    for (given, cleaned) in
        [("a b/c;d\n", "a_b_c_d_"), ("é", "__"), ("-f", "-f"), ("../..", ".._.."), ("a+b", "a+b"), ("$x@:", "_x__")]
    {
        let output = stage.output(&format!("test.Argument+{given}")).await;
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{cleaned}|{cleaned}"));
    }
}

#[tokio::test]
async fn the_program_of_the_argument_comes_before_the_one_of_the_service() {
    let stage = Stage::new(&[("s", "echo any"), ("s+one", "echo one"), ("s+", "echo none"), ("t+one", "echo t")]);
    for (service, output) in
        [("s+one", "one\n"), ("s+two", "any\n"), ("s", "none\n"), ("s+", "none\n"), ("t+one", "t\n")]
    {
        assert_eq!(String::from_utf8(stage.output(service).await.stdout).unwrap(), output, "{service}");
    }
    assert_eq!(stage.output("t+two").await.status.code(), Some(127));
}

#[tokio::test]
async fn exit_codes_tell_how_the_call_ended() {
    let policy = "closed * * * deny\nasks * * * ask\n* * @anyvm @anyvm allow\n";
    let services = [
        ("ok", "exit 0"),
        ("own", "exit 42"),
        ("like-a-refusal", "exit 126"),
        ("killed", "kill -9 $$"),
        ("terminated", "kill -15 $$"),
        ("closed", "exit 0"),
        ("asks", "exit 0"),
    ];
    let stage = Stage::with(&services, policy, |options| {
        let services = &mut options.installed.get_mut(&vm("sd-proxy")).unwrap().services;
        let plain = options.folder.join("plain");
        std::fs::write(&plain, "#!/bin/sh\n").unwrap();
        services.insert("not-executable".to_owned(), plain);
        services.insert("dangling".to_owned(), options.folder.join("nowhere"));
    });
    for (service, code, ending) in [
        ("ok", 0, Some(Ending::Exited(0))),
        ("own", 42, Some(Ending::Exited(42))),
        ("like-a-refusal", 126, Some(Ending::Exited(126))),
        ("killed", 128 + 9, Some(Ending::Killed(9))),
        ("terminated", 128 + 15, Some(Ending::Killed(15))),
        ("no-such", 127, Some(Ending::Missing)),
        ("dangling", 127, Some(Ending::Missing)),
        ("not-executable", 125, Some(Ending::Failed)),
        ("closed", 126, None),
        ("asks", 126, None),
    ] {
        let output = stage.output(service).await;
        assert_eq!(output.status.code(), Some(code), "{service}");
        assert!(output.stdout.is_empty(), "{service}");
        let said = if ending.is_none() { "Request refused\n" } else { "" };
        assert_eq!(String::from_utf8(output.stderr).unwrap(), said, "{service}");
        match (stage.last_event(), ending) {
            (EventKind::Ended(ended), Some(ending)) => assert_eq!(ended, ending, "{service}"),
            (EventKind::Refused(RefusedBy::Policy(Refusal::Denied(_)) | RefusedBy::NobodyToAsk), None) => {}
            (other, _) => panic!("{service}: {other:?}"),
        }
    }
    assert_eq!(
        stage.broker().counts(),
        Counts { started: 5, refused: 2, failed: 3, abandoned: 0, open: 0, max_open: 1 }
    );
}

#[tokio::test]
async fn the_shipped_policy_lets_sd_app_through_and_nobody_else() {
    let stage = Stage::with(&[("splitdrop.Proxy", "echo \"$1\"")], SHIPPED_POLICY, |_| {});
    for (source, target, service, code) in [
        ("sd-app", "sd-proxy", "splitdrop.Proxy+session", 0),
        ("sd-app", "sd-proxy", "splitdrop.Proxy+metadata", 0),
        ("sd-app", "sd-proxy", "splitdrop.Proxy+delete", 126),
        ("sd-app", "sd-proxy", "splitdrop.Proxy", 126),
        ("sd-app", "sd-proxy", "other.Service", 126),
        ("sd-app", "@default", "splitdrop.Proxy+session", 126),
        ("sd-app", "", "splitdrop.Proxy+session", 126),
        ("sd-app", "@dispvm", "splitdrop.Proxy+session", 126),
        ("sd-app", "$adminvm", "splitdrop.Proxy+session", 126),
        ("sd-gpg", "sd-proxy", "splitdrop.Proxy+session", 126),
        ("sd-proxy", "sd-proxy", "splitdrop.Proxy+session", 126),
    ] {
        let mut command = stage.command_of(source, &["--", target, service]);
        let output = bounded(command.stdin(Stdio::null()).output()).await.unwrap();
        assert_eq!(output.status.code(), Some(code), "{source} {target} {service}");
    }
    assert_eq!(
        stage.kinds().into_iter().take(2).next(),
        Some(EventKind::Requested {
            source: vm("sd-app"),
            target: "sd-proxy".to_owned(),
            service: "splitdrop.Proxy".to_owned(),
            argument: "session".to_owned(),
        })
    );
}

#[tokio::test]
async fn one_bad_line_in_any_file_refuses_every_call() {
    let stage = Stage::with(&[("ok", "exit 0")], ALLOW_ALL, |options| {
        options.policy.push(("80-other.policy".to_owned(), "s * * * allow # a comment\n".to_owned()));
    });
    assert_eq!(stage.output("ok").await.status.code(), Some(126));
    assert!(matches!(stage.last_event(), EventKind::Refused(RefusedBy::BrokenPolicy(PolicyError::Syntax { .. }))));
    assert!(stage.broker().policy_error().unwrap().to_string().starts_with("80-other.policy:1: "));
}

#[tokio::test]
async fn bad_command_lines_and_a_missing_broker_have_codes_of_their_own() {
    let stage = Stage::new(&[]);
    for arguments in [&[][..], &["sd-proxy"], &["--", "sd-proxy"], &["sd-proxy", "s", "program"], &["--help", "s"]] {
        let output = bounded(stage.command_of("sd-app", arguments).output()).await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let mut nowhere = stage.command_of("sd-app", &["sd-proxy", "s"]);
    nowhere.env(SOCKET_VARIABLE, stage.path("no-socket"));
    assert_eq!(bounded(nowhere.output()).await.unwrap().status.code(), Some(1));
    nowhere.env_remove(SOCKET_VARIABLE);
    assert_eq!(bounded(nowhere.output()).await.unwrap().status.code(), Some(1));
    assert_eq!(stage.broker().counts(), Counts::default());
}

#[tokio::test]
async fn sockets_are_for_their_owner_only_and_go_with_the_broker() {
    let mut stage = Stage::new(&[]);
    let socket = stage.broker().socket("sd-app").unwrap().to_owned();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(stage.broker().socket("no-such-vm"), None);
    stage.stop().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_taken_socket_path_is_an_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sd-log.sock"), "").unwrap();
    let options = BrokerOptions {
        folder: folder.path().to_owned(),
        policy: Vec::new(),
        system: System::workstation(),
        installed: BTreeMap::new(),
        grace: Duration::ZERO,
    };
    assert!(matches!(Broker::start(options), Err(BrokerError::Listen { path, .. }) if path.ends_with("sd-log.sock")));
    let left: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["sd-log.sock"]);
}

#[tokio::test]
async fn the_callers_end_of_file_reaches_the_service_and_later_output_the_caller() {
    let stage = Stage::new(&[("s", "cat; echo; echo after the end; exit 3")]);
    let mut caller = stage.call("s");
    caller.write("before").await;
    caller.stdin = None;
    assert_eq!(caller.rest().await, "before\nafter the end\n");
    assert_eq!(caller.code().await, Some(3));
}

#[tokio::test]
async fn a_service_that_closes_its_stdout_goes_on() {
    let stage = Stage::new(&[("s", "echo last; exec >&-; read line; exit \"$line\"")]);
    let mut caller = stage.call("s");
    // The end of the caller's stdout comes while the service runs.
    assert_eq!(caller.rest().await, "last\n");
    assert_eq!(stage.broker().counts().open, 1);
    caller.write("9\n").await;
    assert_eq!(caller.code().await, Some(9));
}

#[tokio::test]
async fn a_service_may_end_without_reading_its_input() {
    let stage = Stage::new(&[("s", "exec <&-; echo closed; exit 4")]);
    let mut caller = stage.call("s");
    assert_eq!(caller.rest().await, "closed\n");
    // The caller's stdin is still open.
    assert_eq!(caller.code().await, Some(4));
}

#[tokio::test]
async fn a_child_that_holds_a_stream_keeps_the_call_open() {
    let stage = Stage::new(&[("s", "( exec >&-; read line < FOLDER/fifo ) & exit 5")]);
    let mut gate = Gate::new(&stage.path("fifo"));
    let mut caller = stage.call("s");
    assert_eq!(caller.rest().await, "");
    // The leader is a zombie or about to be; its child holds stderr.
    assert_eq!(stage.broker().counts().open, 1);
    gate.open();
    assert_eq!(caller.code().await, Some(5));
    assert_eq!(stage.broker().counts().open, 0);
}

#[tokio::test]
async fn a_killed_caller_is_only_an_end_of_file_to_the_service() {
    let script = "trap '' PIPE; echo ready; cat; read line < FOLDER/fifo; echo lost || echo broken >&2; exit 6";
    let stage = Stage::new(&[("s", script)]);
    let mut gate = Gate::new(&stage.path("fifo"));
    let mut caller = stage.call("s");
    assert_eq!(caller.line().await, "ready\n");
    bounded(caller.process.kill()).await.unwrap();
    bounded(stage.broker().until(|counts| counts.abandoned == 1)).await;
    assert_eq!(stage.broker().counts().open, 1);
    // Only a service that has seen the end of its input waits here.
    gate.open();
    bounded(stage.broker().until(|counts| counts.open == 0)).await;
    let kinds = stage.kinds();
    assert_eq!(kinds.last(), Some(&EventKind::Ended(Ending::Exited(6))));
    assert!(kinds.contains(&EventKind::CallerGone));
    let log = String::from_utf8(stage.broker().service_log("sd-proxy")).unwrap();
    assert!(log.ends_with("broken\n"), "{log}");
}

#[tokio::test]
async fn output_that_nobody_reads_is_thrown_away_and_the_service_goes_on() {
    let lines = "i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done";
    let stage = Stage::new(&[("s", &format!("echo ready; read line; {lines} && {lines} && cat && exit 7"))]);
    let Caller { mut process, stdin, mut stdout } = stage.call("s");
    let mut line = String::new();
    bounded(stdout.read_line(&mut line)).await.unwrap();
    drop(stdout);
    let mut stdin = stdin.unwrap();
    stdin.write_all(b"go\n").await.unwrap();
    drop(stdin);
    assert_eq!(bounded(process.wait()).await.unwrap().code(), Some(7));
}

#[tokio::test]
async fn descriptors_that_a_caller_lends_stay_nonblocking() {
    let stage = Stage::new(&[("s", "exit 0")]);
    let (stdin, _lent) = std::io::pipe().unwrap();
    let (_lent_too, stdout) = std::io::pipe().unwrap();
    let mut command = stage.command_of("sd-app", &["sd-proxy", "s"]);
    command.stdin(stdin.try_clone().unwrap()).stdout(stdout.try_clone().unwrap());
    assert!(bounded(command.status()).await.unwrap().success());
    for flags in [nix::fcntl::fcntl(&stdin, nix::fcntl::F_GETFL), nix::fcntl::fcntl(&stdout, nix::fcntl::F_GETFL)] {
        assert!(nix::fcntl::OFlag::from_bits_retain(flags.unwrap()).contains(nix::fcntl::OFlag::O_NONBLOCK));
    }
}

#[tokio::test]
async fn stderr_goes_to_the_caller_and_to_the_targets_log() {
    let stage = Stage::new(&[("s", "echo complaint >&2; echo answer")]);
    let output = stage.output("s").await;
    assert_eq!(output.stderr, b"complaint\n");
    assert_eq!(output.stdout, b"answer\n");
    assert_eq!(stage.broker().service_log("sd-proxy"), b"complaint\n");
    assert!(stage.broker().service_log("sd-app").is_empty());
}

#[tokio::test]
async fn a_mebibyte_goes_through_unchanged_both_ways_in_odd_pieces() {
    const LENGTH: usize = 1_048_576 + 13;
    let stage = Stage::new(&[("s", "exec /bin/cat")]);
    let Caller { mut process, stdin, mut stdout } = stage.call("s");
    let data: Vec<u8> = (0..LENGTH).map(|index| u8::try_from(index * index % 251).unwrap()).collect();
    let mut stdin = stdin.unwrap();
    let writing = async {
        let mut rest = data.as_slice();
        for size in [1, 7, 4_093, 65_528, 65_537, 2].into_iter().cycle() {
            let (piece, later) = rest.split_at(size.min(rest.len()));
            stdin.write_all(piece).await.unwrap();
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        drop(stdin);
    };
    let reading = async {
        let mut received = Vec::new();
        let mut buffer = [0; 3_001];
        loop {
            match stdout.read(&mut buffer).await.unwrap() {
                0 => return received,
                count => received.extend_from_slice(buffer.get(..count).unwrap()),
            }
        }
    };
    let ((), received) = bounded(async { tokio::join!(writing, reading) }).await;
    assert!(received == data, "{} bytes of {LENGTH} came back, or others", received.len());
    assert_eq!(bounded(process.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn ten_calls_at_once_keep_apart() {
    let stage = Stage::new(&[("s", "cat; exit \"$1\"")]);
    let mut callers: Vec<Caller> = (0..10).map(|number| stage.call(&format!("s+{number}"))).collect();
    // All of them have answered before any of them ends.
    for (number, caller) in callers.iter_mut().enumerate() {
        caller.write(&format!("call {number}\n")).await;
    }
    for (number, caller) in callers.iter_mut().enumerate() {
        assert_eq!(caller.line().await, format!("call {number}\n"));
    }
    assert_eq!(stage.broker().counts().open, 10);
    let mut ends = JoinSet::new();
    for (number, mut caller) in callers.into_iter().enumerate() {
        ends.spawn(async move {
            caller.stdin = None;
            (caller.code().await, number)
        });
    }
    for (code, number) in bounded(ends.join_all()).await {
        assert_eq!(code, Some(i32::try_from(number).unwrap()));
    }
    let counts = stage.broker().counts();
    assert_eq!((counts.started, counts.open, counts.max_open), (10, 0, 10));
}

#[tokio::test]
async fn stopping_the_broker_ends_services_and_the_callers_see_a_dead_agent() {
    let mut stage = Stage::with(
        &[("s", "trap 'echo told to end >&2; exit 0' TERM; echo ready; read line")],
        ALLOW_ALL,
        |options| {
            options.grace = FAILURE_BOUND;
        },
    );
    let mut caller = stage.call("s");
    assert_eq!(caller.line().await, "ready\n");
    let pid = stage
        .kinds()
        .into_iter()
        .find_map(|kind| match kind {
            EventKind::Started { target: ServiceTarget::Qube(_), pid } => i32::try_from(pid).ok(),
            _ => None,
        })
        .expect("the service's process");
    assert!(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok());
    stage.stop().await;
    // Dead and reaped.
    assert_eq!(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None), Err(nix::errno::Errno::ESRCH));
    assert_eq!(caller.code().await, Some(255));
}

/// Deaf to SIGTERM and to the end of its input, with a child that is too.
const DEAF: &str = "trap '' TERM; ( exec 9> FOLDER/life; echo x >&9; read line < FOLDER/never ) & \
                    exec 8> FOLDER/life; echo ready; read line < FOLDER/never";

#[tokio::test]
async fn stopping_the_broker_kills_what_does_not_end() {
    let mut stage = Stage::new(&[("s", DEAF)]);
    let _shut = Gate::new(&stage.path("never"));
    let mut life = LifeLine::new(&stage.path("life"));
    let mut caller = stage.call("s");
    assert_eq!(caller.line().await, "ready\n");
    life.taken().await;
    stage.stop().await;
    life.cut().await;
    assert_eq!(caller.code().await, Some(255));
}

#[tokio::test]
async fn dropping_the_broker_kills_the_services() {
    let mut stage = Stage::new(&[("s", DEAF)]);
    let _shut = Gate::new(&stage.path("never"));
    let mut life = LifeLine::new(&stage.path("life"));
    let mut caller = stage.call("s");
    assert_eq!(caller.line().await, "ready\n");
    life.taken().await;
    drop(stage.broker.take());
    life.cut().await;
    assert_eq!(caller.code().await, Some(255));
}

#[tokio::test]
async fn a_caller_that_asks_for_nothing_does_not_hold_up_the_end() {
    let mut stage = Stage::new(&[]);
    let silent = std::os::unix::net::UnixStream::connect(stage.broker().socket("sd-app").unwrap()).unwrap();
    stage.stop().await;
    drop(silent);
}
