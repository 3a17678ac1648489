//! What the tests stand on: a broker with shell scripts as services, callers, gates.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use staging::qrexec::SOCKET_VARIABLE;
use staging::qrexec::broker::{Broker, BrokerOptions, Event, EventKind, Installation};
use staging::qrexec::system::{QubeName, System};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Only bounds how long a failed test hangs.
pub(crate) const FAILURE_BOUND: Duration = Duration::from_secs(60);
pub(crate) const ALLOW_ALL: &str = "* * @anyvm @anyvm allow\n";
pub(crate) const SHIPPED_POLICY: &str = include_str!("../../../qubes-rpc/dom0/31-splitdrop.policy");

pub(crate) async fn bounded<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(FAILURE_BOUND, work).await.expect("a test does not hang")
}

pub(crate) fn vm(name: &str) -> QubeName {
    QubeName::try_new(name).unwrap()
}

/// Writes an executable, from another process: a descriptor of our own, open for writing, would be with every process
/// that a test beside this one forks just now, and a file that is open for writing cannot be executed.
pub(crate) fn install(path: &Path, script: &str) {
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
pub(crate) struct Stage {
    pub(crate) folder: TempDir,
    pub(crate) broker: Option<Broker>,
}

impl Stage {
    /// Services are names and shell scripts.
    pub(crate) fn new(services: &[(&str, &str)]) -> Self {
        Self::with(services, ALLOW_ALL, |_| {})
    }

    pub(crate) fn with(services: &[(&str, &str)], policy: &str, change: impl FnOnce(&mut BrokerOptions)) -> Self {
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
        let installation = Installation { services: scripts, ..Installation::default() };
        let policy = vec![("31-test.policy".to_owned(), policy.to_owned())];
        let mut options = BrokerOptions {
            installed: BTreeMap::from([(vm("sd-proxy"), installation)]),
            grace: Duration::from_millis(20),
            ..BrokerOptions::new(folder.path(), policy, System::workstation())
        };
        change(&mut options);
        Self { folder, broker: Some(Broker::start(options).unwrap()) }
    }

    pub(crate) fn broker(&self) -> &Broker {
        self.broker.as_ref().expect("the broker runs")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command_of(&self, source: &str, arguments: &[&str]) -> Command {
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
    pub(crate) fn call(&self, service: &str) -> Caller {
        Caller::new(self.command_of("sd-app", &["--", "sd-proxy", service]).spawn().unwrap())
    }

    /// Makes a whole call with no input.
    pub(crate) async fn output(&self, service: &str) -> Output {
        bounded(self.command_of("sd-app", &["sd-proxy", service]).stdin(Stdio::null()).output()).await.unwrap()
    }

    pub(crate) async fn stop(&mut self) {
        bounded(self.broker.take().expect("the broker runs").stop()).await.unwrap();
    }

    pub(crate) fn kinds(&self) -> Vec<EventKind> {
        self.broker().events().into_iter().map(|Event { kind, .. }| kind).collect()
    }

    /// Waits until so many events of this kind have been.
    pub(crate) async fn until(&self, kind: &EventKind, count: usize) {
        let seen = |events: &[Event]| events.iter().filter(|event| event.kind == *kind).count() >= count;
        bounded(self.broker().until_events(seen)).await;
    }

    pub(crate) fn last_event(&self) -> EventKind {
        self.kinds().pop().expect("an event")
    }
}

pub(crate) struct Caller {
    pub(crate) process: Child,
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) stdout: BufReader<ChildStdout>,
}

impl Caller {
    pub(crate) fn new(mut process: Child) -> Self {
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Self { process, stdin, stdout }
    }

    pub(crate) async fn line(&mut self) -> String {
        let mut line = String::new();
        bounded(self.stdout.read_line(&mut line)).await.unwrap();
        line
    }

    pub(crate) async fn rest(&mut self) -> String {
        let mut text = String::new();
        bounded(self.stdout.read_to_string(&mut text)).await.unwrap();
        text
    }

    pub(crate) async fn write(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        bounded(stdin.write_all(text.as_bytes())).await.unwrap();
    }

    pub(crate) async fn code(&mut self) -> Option<i32> {
        bounded(self.process.wait()).await.unwrap().code()
    }
}

/// A FIFO from which a service reads a line, and so waits until it may go on.
pub(crate) struct Gate(std::fs::File);

impl Gate {
    pub(crate) fn new(path: &Path) -> Self {
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Both ways, so that opening never waits for a service.
        Self(std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap())
    }

    pub(crate) fn open(&mut self) {
        self.0.write_all(b"go\n").unwrap();
    }
}

/// The read end of a FIFO that a service holds open for writing: it ends when the service, and all it left, is dead.
pub(crate) struct LifeLine(tokio::net::unix::pipe::Receiver);

impl LifeLine {
    pub(crate) fn new(path: &Path) -> Self {
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        Self(tokio::net::unix::pipe::OpenOptions::new().open_receiver(path).unwrap())
    }

    /// Waits until somebody has written a line.
    pub(crate) async fn taken(&mut self) {
        assert_eq!(bounded(self.0.read_u8()).await.unwrap(), b'x');
    }

    pub(crate) async fn cut(mut self) {
        let mut rest = Vec::new();
        bounded(self.0.read_to_end(&mut rest)).await.unwrap();
    }
}
