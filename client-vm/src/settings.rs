//! Where things are: the configuration file and the environment.

mod times;

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::Scope;
use qubes_rpc::name::{NameError, TargetName, VmName};
use serde::Deserialize;

pub use self::times::TimeError;
use self::times::{LEAST_DEADLINE_MS, LEAST_MS, Times};
use crate::store::outbox::Waits;

const DEFAULT_PROXY_VM: &str = "sd-proxy";
const DEFAULT_QREXEC_CLIENT: &str = "/usr/bin/qrexec-client-vm";
const DEFAULT_OPEN_IN_VM: &str = "/usr/bin/qvm-open-in-vm";
const DEFAULT_VIEWER_VM: &str = "@dispvm:sd-viewer";
const DEFAULT_DEVICE_VM: &str = "sd-devices";
/// A workstation has printers in a VM of their own.
const DEFAULT_PRINTER_VM: &str = "sd-printers";
/// The longest time for one act: with 2 s for each of 2,048 items it is still a deadline.
const MAX_ACT_DEADLINE: Duration = Duration::from_secs(12 * 60 * 60);
/// The longest time in which a deletion can be taken back, in milliseconds.
const MAX_GRACE_MS: u32 = 600_000;
/// The longest path of a Unix socket, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// What daemon and commands are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The data directory.
    pub home: PathBuf,
    /// The control socket.
    pub socket: PathBuf,
    /// The VM of the proxy.
    pub proxy_vm: VmName,
    /// The program that makes qrexec calls.
    pub qrexec_client: PathBuf,
    /// The daemon's log; none means journald, or standard error where there is no journald.
    pub log_file: Option<PathBuf>,
    /// When to sync.
    pub sync: SyncSettings,
    /// How acts are sent.
    pub acts: ActSettings,
    /// What dom0 asks about.
    pub dom0_asks: Asks,
    /// Whether the daemon starts in a VM that has a network.
    pub allow_network: bool,
    /// Whether messages and replies are fetched by themselves.
    pub fetch_messages: bool,
    /// Whether files are taken of which the server claims no SHA-256.
    pub files_without_etag: bool,
    /// How to reach the private key.
    pub openpgp: OpenPgpSettings,
    /// Where documents are opened, copied and printed.
    pub handover: HandoverSettings,
}

/// Where documents are opened, copied and printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoverSettings {
    /// The program that opens a file in another VM.
    pub open_in_vm: PathBuf,
    /// Where documents are opened: a disposable VM.
    pub viewer_vm: TargetName,
    /// The VM with the drives.
    pub device_vm: TargetName,
    /// The VM with the printer.
    pub printer_vm: TargetName,
}

#[cfg(test)]
impl HandoverSettings {
    /// Those with which nothing can be opened.
    pub(crate) fn without_qubes(directory: &Path) -> Self {
        Self {
            open_in_vm: directory.join("no-program"),
            viewer_vm: DEFAULT_VIEWER_VM.parse().unwrap(),
            device_vm: DEFAULT_DEVICE_VM.parse().unwrap(),
            printer_vm: DEFAULT_PRINTER_VM.parse().unwrap(),
        }
    }
}

/// How to reach the private key, and where the newsroom's public one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenPgpSettings {
    /// Who decrypts.
    pub backend: Backend,
    /// The newsroom's public key; without it the backend exports it.
    pub submission_key: Option<PathBuf>,
}

/// Who decrypts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// Qubes split-gpg: another VM decrypts everything.
    SplitGpg {
        /// The program that calls it, unless it is where Qubes has it.
        program: Option<PathBuf>,
    },
    /// gpg-agent, in this VM or by Qubes split-gpg2 in another: it decrypts session keys.
    GpgAgent {
        /// GnuPG's home directory, unless it is the user's usual one.
        home: Option<PathBuf>,
    },
    /// A file with the private key. For staging only.
    KeyFile {
        /// The file.
        path: PathBuf,
    },
}

/// When to sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncSettings {
    /// How long to wait after a sync; at least four times as long as it took.
    pub interval: Duration,
    /// How long to wait after syncs that fail.
    pub waits: Waits,
    /// After how long without a success what is shown is old.
    pub stale: Duration,
}

impl Default for SyncSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(15),
            // With all of the jitter, 60 s.
            waits: Waits { first: Duration::from_secs(5), most: Duration::from_secs(48) },
            stale: Duration::from_secs(300),
        }
    }
}

/// How acts are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActSettings {
    /// How long to wait between attempts.
    pub waits: Waits,
    /// How long the proxy may take for one act; each item of a conversation adds 2 s.
    pub deadline: Duration,
    /// How long after its confirmation a deletion may be listed by the server.
    pub overdue: Duration,
    /// How long a deletion waits before it is first sent, so that it can be taken back; zero is no time.
    pub delete_grace: Duration,
}

impl Default for ActSettings {
    fn default() -> Self {
        Self {
            waits: Waits::default(),
            deadline: Duration::from_secs(120),
            overdue: Duration::from_secs(3600),
            delete_grace: Duration::from_secs(10),
        }
    }
}

/// The scopes whose calls somebody in dom0 is asked about. Such a call waits for the answer for minutes, and is not made
/// again without the user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asks(HashSet<Scope>);

impl Asks {
    /// Whether somebody is asked about calls of the scope.
    #[must_use]
    pub fn about(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }

    /// Those with these names.
    fn parse(names: &[String]) -> Result<Self, SettingsError> {
        let scope =
            |name: &String| name.parse::<Scope>().map_err(|_| SettingsError::Asks(name.escape_debug().to_string()));
        names.iter().map(scope).collect()
    }
}

impl FromIterator<Scope> for Asks {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().collect())
    }
}

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// There is no home directory to put data into.
    #[error("neither SPLITDROP_HOME nor HOME is set")]
    NoHome,
    /// The configuration file cannot be read.
    #[error("could not read the configuration {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The configuration file is not valid.
    #[error("the configuration {} is not valid: {message}", .path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        message: String,
    },
    /// `proxy_vm` is no VM's name.
    #[error("`proxy_vm` in the configuration is not valid")]
    ProxyVm(#[from] NameError),
    /// A VM of the table `[handover]` is no VM's name.
    #[error("`{name}` in the configuration is not valid")]
    HandoverVm {
        /// Which.
        name: &'static str,
        /// Why.
        source: NameError,
    },
    /// A setting of one backend stands with another.
    #[error("`{name}` in the configuration belongs to the backend `{backend}`, which is not chosen")]
    OtherBackend {
        /// The setting.
        name: &'static str,
        /// Its backend.
        backend: &'static str,
    },
    /// The backend `key-file` has no file.
    #[error("the backend `key-file` needs `key_file` in the configuration")]
    NoKeyFile,
    /// A time is out of its range, or contradicts another one.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// A call's scope that there is not.
    #[error("`dom0_asks` in the configuration names `{0}`, which is none of {known}", known = known_scopes())]
    Asks(String),
    /// The time in which a deletion can be taken back is out of its range.
    #[error(
        "`delete_grace_ms` in the configuration is not 0 (not at all), nor {LEAST_MS} to {MAX_GRACE_MS} milliseconds"
    )]
    Grace,
    /// The control socket's path is too long for a socket.
    #[error("the socket's path {} is longer than {MAX_SOCKET_PATH} bytes: choose another with --socket", .0.display())]
    SocketPath(PathBuf),
}

/// The names of all scopes.
fn known_scopes() -> String {
    Scope::ALL.map(Scope::name).join(", ")
}

/// The configuration file. Unknown keys are errors: a misspelt one would be ignored otherwise.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    proxy_vm: Option<String>,
    qrexec_client: Option<PathBuf>,
    log_file: Option<PathBuf>,
    sync: Option<SyncTable>,
    acts: Option<ActsTable>,
    dom0_asks: Option<Vec<String>>,
    allow_network: Option<bool>,
    fetch_messages: Option<bool>,
    files_without_etag: Option<bool>,
    /// For staging: times may be so short that nobody could mean them.
    short_times: Option<bool>,
    openpgp: Option<OpenPgpTable>,
    handover: Option<HandoverTable>,
}

/// The table `[handover]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HandoverTable {
    open_in_vm: Option<PathBuf>,
    viewer_vm: Option<String>,
    device_vm: Option<String>,
    printer_vm: Option<String>,
}

impl HandoverTable {
    fn settings(self) -> Result<HandoverSettings, SettingsError> {
        let target = |name: &'static str, given: Option<String>, default: &str| -> Result<TargetName, SettingsError> {
            let target = given.as_deref().unwrap_or(default).parse();
            target.map_err(|source| SettingsError::HandoverVm { name, source })
        };
        Ok(HandoverSettings {
            open_in_vm: self.open_in_vm.unwrap_or_else(|| DEFAULT_OPEN_IN_VM.into()),
            viewer_vm: target("viewer_vm", self.viewer_vm, DEFAULT_VIEWER_VM)?,
            device_vm: target("device_vm", self.device_vm, DEFAULT_DEVICE_VM)?,
            printer_vm: target("printer_vm", self.printer_vm, DEFAULT_PRINTER_VM)?,
        })
    }
}

/// The table `[openpgp]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OpenPgpTable {
    backend: Option<BackendName>,
    key_file: Option<PathBuf>,
    gpg_client: Option<PathBuf>,
    gnupg_home: Option<PathBuf>,
    submission_key: Option<PathBuf>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum BackendName {
    #[default]
    SplitGpg,
    GpgAgent,
    KeyFile,
}

impl OpenPgpTable {
    fn settings(self) -> Result<OpenPgpSettings, SettingsError> {
        let Self { backend, key_file, gpg_client, gnupg_home, submission_key } = self;
        let other =
            |set: bool, name, backend| if set { Err(SettingsError::OtherBackend { name, backend }) } else { Ok(()) };
        let backend = match backend.unwrap_or_default() {
            BackendName::SplitGpg => {
                other(key_file.is_some(), "key_file", "key-file")?;
                other(gnupg_home.is_some(), "gnupg_home", "gpg-agent")?;
                Backend::SplitGpg { program: gpg_client }
            }
            BackendName::GpgAgent => {
                other(key_file.is_some(), "key_file", "key-file")?;
                other(gpg_client.is_some(), "gpg_client", "split-gpg")?;
                Backend::GpgAgent { home: gnupg_home }
            }
            BackendName::KeyFile => {
                other(gpg_client.is_some(), "gpg_client", "split-gpg")?;
                other(gnupg_home.is_some(), "gnupg_home", "gpg-agent")?;
                Backend::KeyFile { path: key_file.ok_or(SettingsError::NoKeyFile)? }
            }
        };
        Ok(OpenPgpSettings { backend, submission_key })
    }
}

/// The table `[sync]`. Times are in milliseconds.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct SyncTable {
    interval_ms: Option<u32>,
    first_wait_ms: Option<u32>,
    most_wait_ms: Option<u32>,
    stale_ms: Option<u32>,
}

impl SyncTable {
    fn settings(self, times: Times) -> Result<SyncSettings, TimeError> {
        let default = SyncSettings::default();
        Ok(SyncSettings {
            interval: times.read(self.interval_ms, "interval_ms", LEAST_MS, default.interval)?,
            waits: times.waits(self.first_wait_ms, self.most_wait_ms, default.waits)?,
            stale: times.read(self.stale_ms, "stale_ms", LEAST_MS, default.stale)?,
        })
    }
}

/// The table `[acts]`. Times are in milliseconds.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct ActsTable {
    first_wait_ms: Option<u32>,
    most_wait_ms: Option<u32>,
    deadline_ms: Option<u32>,
    overdue_ms: Option<u32>,
    delete_grace_ms: Option<u32>,
}

impl ActsTable {
    fn settings(self, times: Times) -> Result<ActSettings, SettingsError> {
        let default = ActSettings::default();
        let deadline = times.read(self.deadline_ms, "deadline_ms", LEAST_DEADLINE_MS, default.deadline)?;
        let least_grace = times.least(LEAST_MS);
        Ok(ActSettings {
            waits: times.waits(self.first_wait_ms, self.most_wait_ms, default.waits)?,
            // The time for the items of a conversation comes on top.
            deadline: deadline.min(MAX_ACT_DEADLINE),
            overdue: times.read(self.overdue_ms, "overdue_ms", LEAST_MS, default.overdue)?,
            delete_grace: match self.delete_grace_ms {
                None => default.delete_grace,
                Some(0) => Duration::ZERO,
                Some(ms) if (least_grace..=MAX_GRACE_MS).contains(&ms) => Duration::from_millis(ms.into()),
                Some(_) => return Err(SettingsError::Grace),
            },
        })
    }
}

impl Settings {
    /// Reads the settings; `variable` gives an environment variable, `socket` is the command line's choice.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn load(variable: impl Fn(&str) -> Option<OsString>, socket: Option<PathBuf>) -> Result<Self, SettingsError> {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let user_home = path("HOME");
        let in_home = |rest: &str| user_home.as_ref().map(|home| home.join(rest));
        let home = path("SPLITDROP_HOME")
            .or_else(|| path("XDG_DATA_HOME").map(|data| data.join("splitdrop")))
            .or_else(|| in_home(".local/share/splitdrop"))
            .ok_or(SettingsError::NoHome)?;
        let file = match path("SPLITDROP_CONFIG") {
            Some(named) => read(&named, false)?,
            None => path("XDG_CONFIG_HOME")
                .map(|config| config.join("splitdrop/config.toml"))
                .or_else(|| in_home(".config/splitdrop/config.toml"))
                .map_or_else(|| Ok(File::default()), |default| read(&default, true))?,
        };
        let socket = socket
            .or_else(|| path("XDG_RUNTIME_DIR").map(|runtime| runtime.join("splitdrop/control.sock")))
            .unwrap_or_else(|| home.join("control.sock"));
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(SettingsError::SocketPath(socket));
        }
        let times = if file.short_times.unwrap_or(false) { Times::Any } else { Times::Useful };
        Ok(Self {
            proxy_vm: file.proxy_vm.as_deref().unwrap_or(DEFAULT_PROXY_VM).parse()?,
            qrexec_client: path("SPLITDROP_QREXEC")
                .or(file.qrexec_client)
                .unwrap_or_else(|| DEFAULT_QREXEC_CLIENT.into()),
            log_file: file.log_file,
            acts: file.acts.unwrap_or_default().settings(times)?,
            dom0_asks: Asks::parse(&file.dom0_asks.unwrap_or_default())?,
            sync: file.sync.unwrap_or_default().settings(times)?,
            allow_network: file.allow_network.unwrap_or(false),
            fetch_messages: file.fetch_messages.unwrap_or(true),
            files_without_etag: file.files_without_etag.unwrap_or(false),
            openpgp: file.openpgp.unwrap_or_default().settings()?,
            handover: file.handover.unwrap_or_default().settings()?,
            home,
            socket,
        })
    }
}

fn read(path: &Path, may_be_absent: bool) -> Result<File, SettingsError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if may_be_absent && error.kind() == std::io::ErrorKind::NotFound => return Ok(File::default()),
        Err(source) => return Err(SettingsError::Read { path: path.to_owned(), source }),
    };
    toml::from_str(&text)
        .map_err(|error| SettingsError::Invalid { path: path.to_owned(), message: in_one_line(&error, &text) })
}

/// What is wrong with the text, and in which line. The parser's own message is a drawing of several lines.
fn in_one_line(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    let before = error.span().and_then(|span| text.get(..span.start));
    match before {
        Some(before) => format!("line {}: {message}", before.matches('\n').count().saturating_add(1)),
        None => message,
    }
}

#[cfg(test)]
mod tests;
