//! The whole of it on one machine: a staging server, a SOCKS server in the place of Tor's, the stand-in for qrexec with
//! the shipped policy, and the real programs: the daemon in the place of `sd-app`, the proxy in the place of `sd-proxy`.
//!
//! The proxy reaches the server as it does on a workstation: by an onion service's name, which only the SOCKS server
//! knows.
//!
//! **Invariant:** an environment that is stopped or dropped leaves no process and no file.

mod commands;
mod configuration;
mod keys;
mod scripts;
mod watch;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use client_vm::daemon::READY;
use client_vm::newsroom::FINGERPRINT_SETTING;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use qubes_rpc::PROXY_SERVICE;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

pub use commands::Output;
pub use configuration::{ASKED, QUIET};
pub use watch::Watch;

use crate::generator::{Account, Recipe};
use crate::handover::{self, OtherVms};
use crate::impatient::Patience;
use crate::isolation::Isolation;
use crate::netns::NetnsError;
use crate::programs::{BuildError, Programs};
use crate::qrexec::SOCKET_VARIABLE;
use crate::qrexec::broker::{Broker, BrokerError, BrokerOptions, Conditions, Installation};
use crate::qrexec::policy::{FolderError, load_folder};
use crate::qrexec::system::{QubeName, QubeNameError, System};
use crate::server::{Server, ServerError, ServerOptions, WorldError};
use crate::socks::{NameTable, SocksControl, SocksError, SocksOptions, SocksServer, TableError};

/// The client's VM.
pub const CLIENT_VM: &str = "sd-app";
/// The proxy's VM.
pub const PROXY_VM: &str = "sd-proxy";
/// The server's name as an onion service. It is made up: its checksum is none, so no Tor would look for it.
pub const ONION: &str = "stagingstagingstagingstagingstagingstagingstagingstagind.onion";
/// The port of that name.
pub const ONION_PORT: u16 = 80;

/// The client's configuration file in the environment's directory.
const CONFIG: &str = "config.toml";
/// The file with the newsroom's private key in the environment's directory.
const KEY_FILE: &str = "newsroom.asc";

/// How long a daemon may take to listen, and to end.
const DAEMON_DEADLINE: Duration = Duration::from_secs(120);
/// How long services get to end when the environment stops.
const GRACE: Duration = Duration::from_secs(2);

/// What an environment is made of.
#[derive(Debug)]
pub struct EnvironmentOptions {
    /// The server.
    pub server: ServerOptions,
    /// The proxy VM's settings beside those that the environment makes; they win over them.
    pub proxy_settings: BTreeMap<String, String>,
    /// How long the proxy waits, where that is not as long as the shipped one does.
    pub patience: Option<Patience>,
    /// The client's configuration file, but for what reaches the private key and opens files in other VMs.
    pub client_config: String,
    /// How long a deletion waits before it is first sent.
    pub delete_grace: Duration,
    /// How the client reaches the newsroom's private key.
    pub key: KeyAccess,
    /// The client VM's settings beside the fingerprint of the newsroom's key; they win over it.
    pub client_settings: BTreeMap<String, String>,
    /// The VMs.
    pub system: System,
    /// Whether what is mounted in the client's VM is mounted nowhere else, as far as this machine permits walls at all.
    pub own_mounts: bool,
    /// What serves calls in other VMs than the proxy's: the VM, the service, and the program.
    pub services: Vec<(String, String, PathBuf)>,
    /// How the stand-in for qrexec behaves.
    pub qrexec: Conditions,
    /// dom0's policy files beside the shipped one, as names and texts; one with its name takes its place. Of all rules that
    /// match the first decides, in the order of the files' names.
    pub policy: Vec<(String, String)>,
}

/// How the client reaches the newsroom's private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyAccess {
    /// By a file, which holds the server's newsroom key.
    File,
    /// Not at all: nothing is decrypted, and ciphertexts stay.
    Unreachable,
    /// By the table `[openpgp]` of this text.
    Table(String),
}

impl EnvironmentOptions {
    /// A server of `sources` sources with `items` items each, and a [`QUIET`] client.
    ///
    /// # Errors
    /// [`WorldError`].
    pub fn with_sources(sources: u32, items: u32) -> Result<Self, WorldError> {
        let world = Recipe::new(sources, items).generate()?;
        Ok(Self {
            server: ServerOptions::new(world),
            proxy_settings: BTreeMap::new(),
            patience: None,
            client_config: QUIET.to_owned(),
            delete_grace: Duration::ZERO,
            key: KeyAccess::File,
            client_settings: BTreeMap::new(),
            system: System::workstation(),
            own_mounts: false,
            services: Vec::new(),
            qrexec: Conditions::default(),
            policy: Vec::new(),
        })
    }
}

/// The environment could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// The operating system said so.
    #[error("could not {what}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The programs could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The world could not be made.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The server did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The "VMs" could not be kept apart.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The SOCKS server did not start.
    #[error(transparent)]
    Socks(#[from] SocksError),
    /// The SOCKS server's table does not take the server's name.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The stand-in for qrexec did not start or stop.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The shipped policy could not be read.
    #[error(transparent)]
    Policy(#[from] FolderError),
    /// A VM's name is none.
    #[error(transparent)]
    Name(#[from] QubeNameError),
    /// The broker has no socket for the client's VM.
    #[error("the stand-in for qrexec does not know {CLIENT_VM}")]
    NoSocket,
    /// The daemon did not come up.
    #[error("the daemon did not come up: {0}")]
    NotReady(String),
    /// A command failed.
    #[error("`splitdrop {command}` ended with {code:?}: {message}")]
    Command {
        /// What was run.
        command: String,
        /// Its exit code.
        code: Option<i32>,
        /// What it said.
        message: String,
    },
    /// A command did not end.
    #[error("`splitdrop {command}` did not end within {} s", .bound.as_secs())]
    Hangs {
        /// What was run.
        command: String,
        /// How long it was waited for.
        bound: Duration,
    },
    /// The shipped service runs something else than the proxy's program.
    #[error("the service shipped for {PROXY_VM} does not name the proxy's program once")]
    Service,
    /// No event came.
    #[error("`splitdrop watch` prints nothing, or has ended")]
    NoEvent,
    /// Events came, and none was of this name.
    #[error("`splitdrop watch` told of no `{name}` within {} s", .bound.as_secs())]
    OtherEvents {
        /// The event's name.
        name: String,
        /// How long it was waited for.
        bound: Duration,
    },
    /// An act will never be done.
    #[error("an act has ended and is not done: {0}")]
    NotDone(Value),
    /// A command printed what is no JSON object.
    #[error("`splitdrop {0}` printed no JSON object")]
    NotJson(String),
}

fn write_private(path: &Path, text: &str) -> Result<(), EnvironmentError> {
    let mut file = std::fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(failed("write a key"))?;
    file.write_all(text.as_bytes()).map_err(failed("write a key"))
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> EnvironmentError {
    move |source| EnvironmentError::Io { what, source }
}

/// What serves calls in the proxy's VM.
fn proxy(isolation: &Isolation, programs: &Programs, patience: Option<Patience>) -> Command {
    let Some(Patience { connect, first_byte }) = patience else { return isolation.in_proxy(&programs.proxy) };
    let mut proxy = isolation.in_proxy(&programs.staging);
    proxy.arg("impatient-proxy");
    for (name, bound) in [("--connect-ms", connect), ("--first-byte-ms", first_byte)] {
        proxy.args([name.to_owned(), bound.as_millis().to_string()]);
    }
    proxy
}

/// A running environment.
#[derive(Debug)]
pub struct Environment {
    directory: TempDir,
    server: Server,
    socks: SocksServer,
    broker: Broker,
    pub(crate) vms: OtherVms,
    isolation: Isolation,
    programs: Programs,
    socket: PathBuf,
    client_settings: BTreeMap<String, String>,
    daemon: Option<Child>,
}

impl Environment {
    /// Starts server, SOCKS server and broker. The daemon is started by [`Self::start_daemon`].
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn start(programs: Programs, options: EnvironmentOptions) -> Result<Self, EnvironmentError> {
        let directory = tempfile::Builder::new().prefix("splitdrop-").tempdir().map_err(failed("make a directory"))?;
        let openpgp = match options.key {
            KeyAccess::File => {
                let path = directory.path().join(KEY_FILE);
                write_private(&path, options.server.newsroom.secret_armor())?;
                format!("[openpgp]\nbackend = \"key-file\"\nkey_file = \"{}\"\n", path.display())
            }
            KeyAccess::Unreachable => {
                let path = directory.path().join(KEY_FILE);
                format!("[openpgp]\nbackend = \"key-file\"\nkey_file = \"{}\"\n", path.display())
            }
            KeyAccess::Table(text) => text,
        };
        let staging = programs.staging.clone();
        // It waits for processes.
        let make = if options.own_mounts { Isolation::with_mounts } else { Isolation::make };
        let isolation = tokio::task::spawn_blocking(move || make(&staging)).await;
        let (isolation, listen) = isolation.map_err(|error| failed("make namespaces")(io::Error::other(error)))??;
        // Without a namespace of its own the daemon sees this machine's network, and would not start.
        let network = if isolation.missing().is_some() { "allow_network = true\n" } else { "" };
        let config = configuration::with_grace(&options.client_config, options.delete_grace);
        let handover = format!("[handover]\nopen_in_vm = \"{}\"\n", programs.open_in_vm.display());
        std::fs::write(
            directory.path().join(CONFIG),
            format!("short_times = true\n{network}{config}\n{openpgp}\n{handover}"),
        )
        .map_err(failed("write a configuration"))?;
        let mut client_settings =
            BTreeMap::from([(FINGERPRINT_SETTING.to_owned(), options.server.newsroom.fingerprint().to_owned())]);
        client_settings.extend(options.client_settings);
        let server = Server::start(options.server).await?;
        let names = NameTable::new().with(ONION, ONION_PORT, server.address())?;
        let socks = SocksServer::start(SocksOptions { listen, ..SocksOptions::new(names) })?;
        let mut settings = BTreeMap::from([
            ("SD_PROXY_ORIGIN".to_owned(), format!("http://{ONION}")),
            ("SD_PROXY_TOR".to_owned(), "on".to_owned()),
            ("SD_PROXY_SOCKS".to_owned(), socks.address().to_string()),
            ("SD_PROXY_LOG_FILE".to_owned(), directory.path().join("proxy.log").display().to_string()),
        ]);
        settings.extend(options.proxy_settings);
        let service = directory.path().join("splitdrop.Proxy");
        scripts::write_script(&service, &scripts::service_that_runs(&proxy(&isolation, &programs, options.patience))?)?;
        let proxy = Installation { environment: settings, ..Installation::default() };
        let mut installed = BTreeMap::from([(QubeName::try_new(PROXY_VM)?, proxy)]);
        let services = [(PROXY_VM.to_owned(), PROXY_SERVICE.to_owned(), service)].into_iter().chain(options.services);
        for (vm, name, program) in services {
            installed.entry(QubeName::try_new(vm)?).or_default().services.insert(name, program);
        }
        let mut policy = load_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../qubes-rpc/dom0"))?;
        policy.retain(|(name, _)| options.policy.iter().all(|(other, _)| other != name));
        policy.extend(options.policy);
        let broker = Broker::start(BrokerOptions {
            installed,
            grace: GRACE,
            conditions: options.qrexec,
            ..BrokerOptions::new(directory.path(), policy, options.system)
        })?;
        let socket = broker.socket(CLIENT_VM).ok_or(EnvironmentError::NoSocket)?.to_owned();
        let vms = OtherVms::start(directory.path()).map_err(failed("start the other VMs"))?;
        Ok(Self { directory, server, socks, broker, vms, isolation, programs, socket, client_settings, daemon: None })
    }

    /// Builds the programs if need be, starts everything, the daemon included.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn with_daemon(options: EnvironmentOptions) -> Result<Self, EnvironmentError> {
        let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await;
        let programs = programs.map_err(|_| EnvironmentError::NotReady("the build was cut off".to_owned()))??;
        let mut environment = Self::start(programs, options).await?;
        environment.start_daemon().await?;
        Ok(environment)
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The SOCKS server on the proxy's way to the server.
    #[must_use]
    pub fn socks(&self) -> &SocksControl {
        self.socks.control()
    }

    /// Where the SOCKS server listens.
    #[must_use]
    pub fn socks_address(&self) -> SocketAddr {
        self.socks.address()
    }

    /// The stand-in for qrexec.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// The directory of everything that the environment writes.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The client's data directory.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.directory.path().join("sd-app")
    }

    /// The daemon's control socket.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.home().join("control.sock")
    }

    /// What a command of the client needs in its environment to belong here.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, PathBuf)> {
        let fixed = [
            ("HOME", self.directory.path().to_owned()),
            ("SPLITDROP_HOME", self.home()),
            ("SPLITDROP_CONFIG", self.directory.path().join(CONFIG)),
            ("SPLITDROP_QREXEC", self.programs.qrexec_client.clone()),
            (SOCKET_VARIABLE, self.socket.clone()),
            (handover::SOCKET_VARIABLE, self.vms.socket().to_owned()),
        ];
        let settings = self.client_settings.iter().map(|(name, value)| (name.clone(), PathBuf::from(value)));
        fixed.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(settings).collect()
    }

    /// The file with the newsroom's private key, where the client reaches it so.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.directory.path().join(KEY_FILE)
    }

    /// Where the client keeps the plaintext of files.
    #[must_use]
    pub fn plaintext_folder(&self) -> PathBuf {
        self.home().join("plaintext")
    }

    /// The client program with these arguments, in an environment that holds nothing else.
    pub fn splitdrop<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.isolation.in_client(&self.programs.splitdrop);
        command.args(arguments).env_clear().envs(self.variables()).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// How the "VMs" are kept apart.
    #[must_use]
    pub fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    /// This package's own program, to be run inside the walls.
    #[must_use]
    pub fn staging_program(&self) -> &Path {
        &self.programs.staging
    }

    /// A program that makes qrexec calls as the client's VM, for a process whose environment knows nothing of this one.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub fn caller(&self) -> Result<PathBuf, EnvironmentError> {
        let path = self.directory.path().join("caller");
        let script = scripts::script_that_runs(&Command::new(&self.programs.qrexec_client), &self.variables());
        scripts::write_script(&path, &script)?;
        Ok(path)
    }

    /// The client program's path.
    #[must_use]
    pub fn splitdrop_program(&self) -> &Path {
        &self.programs.splitdrop
    }

    /// Starts the daemon and waits until it listens.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn start_daemon(&mut self) -> Result<(), EnvironmentError> {
        let log = self.directory.path().join("daemon.log");
        let mut daemon = self
            .splitdrop([OsStr::new("daemon"), OsStr::new("--log-file"), log.as_os_str()])
            // As the unit of systemd has it.
            .env("MALLOC_ARENA_MAX", "2")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed("start the daemon"))?;
        let output = daemon.stdout.take().map(BufReader::new);
        let ready = async {
            match output {
                Some(output) => output.lines().next_line().await,
                None => Ok(None),
            }
        };
        let line = tokio::time::timeout(DAEMON_DEADLINE, ready)
            .await
            .map_err(|_| EnvironmentError::NotReady("it does not listen".to_owned()))?
            .map_err(failed("read from the daemon"))?;
        if line.is_some_and(|line| line.starts_with(READY)) {
            self.daemon = Some(daemon);
            return Ok(());
        }
        let mut said = String::new();
        if let Some(mut stderr) = daemon.stderr.take() {
            stderr.read_to_string(&mut said).await.map_err(failed("read from the daemon"))?;
        }
        Err(EnvironmentError::NotReady(said.trim().to_owned()))
    }

    /// The daemon's process id, while it runs.
    #[must_use]
    pub fn daemon_pid(&self) -> Option<u32> {
        self.daemon.as_ref().and_then(Child::id)
    }

    /// Ends the daemon with `signal` and waits for it.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn stop_daemon(&mut self, signal: Signal) -> Result<Option<i32>, EnvironmentError> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(None) };
        if let Some(pid) = daemon.id().and_then(|pid| i32::try_from(pid).ok()) {
            kill(Pid::from_raw(pid), signal).map_err(|error| failed("signal the daemon")(error.into()))?;
        }
        let status = tokio::time::timeout(DAEMON_DEADLINE, daemon.wait())
            .await
            .map_err(|_| failed("end the daemon in time")(io::ErrorKind::TimedOut.into()))?
            .map_err(failed("wait for the daemon"))?;
        Ok(status.code())
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// [`EnvironmentError::Io`] when it cannot be run, [`EnvironmentError::Hangs`] when it does not end for very long.
    pub async fn run<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
        input: &str,
    ) -> Result<Output, EnvironmentError> {
        let arguments: Vec<OsString> = arguments.into_iter().map(|word| word.as_ref().to_owned()).collect();
        commands::to_its_end(self.splitdrop(&arguments), input, commands::DEADLINE).await.map_err(|error| match error {
            commands::Failed::Io { what, source } => EnvironmentError::Io { what, source },
            commands::Failed::Hangs => {
                let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
                EnvironmentError::Hangs { command: words.join(" "), bound: commands::DEADLINE }
            }
        })
    }

    /// Runs a command with `--json` and gives the object that it prints.
    ///
    /// # Errors
    /// [`EnvironmentError`]; a command that fails is one.
    pub async fn json(&self, arguments: &[&str], input: &str) -> Result<Value, EnvironmentError> {
        let command = arguments.join(" ");
        let output = self.run(arguments.iter().chain(&["--json"]), input).await?;
        if output.code != Some(0) {
            return Err(EnvironmentError::Command {
                command,
                code: output.code,
                message: output.stderr.trim().to_owned(),
            });
        }
        serde_json::from_str(&output.stdout).map_err(|_| EnvironmentError::NotJson(command))
    }

    /// Starts `splitdrop watch` and waits until it sees every event.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn watch(&self) -> Result<Watch, EnvironmentError> {
        let mut child = self
            .splitdrop(["watch", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed("start `splitdrop watch`"))?;
        let stdout = child.stdout.take().ok_or_else(|| EnvironmentError::NotJson("watch".to_owned()))?;
        let mut watch = Watch::of(child, stdout);
        // The first line is the status: from here on nothing is missed.
        watch.next().await?;
        Ok(watch)
    }

    /// The three lines that sign an account in now.
    #[must_use]
    pub fn credentials(&self, account: &Account) -> String {
        let code = account.code_at(self.server.control().clock().now());
        format!("{}\n{}\n{code}\n", account.username, account.passphrase)
    }

    /// Signs an account in.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn login(&self, account: &Account) -> Result<Value, EnvironmentError> {
        self.json(&["login", "--credentials-stdin"], &self.credentials(account)).await
    }

    /// Ends daemon, broker and servers.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn stop(mut self) -> Result<(), EnvironmentError> {
        self.stop_daemon(Signal::SIGTERM).await?;
        self.broker.stop().await?;
        self.socks.stop().await;
        self.server.stop().await;
        self.directory.close().map_err(failed("remove the directory"))
    }
}
