//! Splitdrop's proxy: one process per qrexec call. Only wires things up.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use protocol::value::{SettingName, SoftwareVersion};
use protocol::{Refusal, Scope};
use proxy_vm::config::{self, Config, LogSettings, Route, SettingError, SettingProblem};
use proxy_vm::confinement::{Reach, confine};
use proxy_vm::journalist_api::{HttpApi, Limits};
use proxy_vm::log;
use proxy_vm::session::Session;
use qubes_rpc::{qubesdb, stdio};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const HELP: &str = "\
Splitdrop's proxy: speaks to the SecureDrop server for the client VM.

It is no command to run by hand. qrexec starts it in the proxy VM, as the service
splitdrop.Proxy+SCOPE, and speaks to it on standard input and output. SCOPE is
session, metadata, mark, delete, download or reply.

Settings (dom0: qvm-features VM vm-config.NAME VALUE; elsewhere the environment):
  SD_PROXY_ORIGIN        the server: http:// or https://, host, port (required)
  SD_PROXY_TOR           on or off (default: on, which an onion service requires)
  SD_PROXY_SOCKS         Tor's SOCKS server (default: 127.0.0.1:9150)
  SD_PROXY_DELETE_LIMIT  how many targets one session may delete (default: 200)
  SD_PROXY_CLIENTS       the VMs that may call, with commas between (default: sd-app)
  SD_PROXY_REQUIRE_LANDLOCK
                         on: no session where the kernel does not confine files and
                         network; or off (default: off)
  SD_PROXY_LOG           off, error, warn, info, debug or trace (default: info)
  SD_PROXY_LOG_FILE      log to this file, not to syslog or journald

Exit codes:
  0  the session ended in order
  1  the session was refused or broke off
  2  not started by qrexec, or for no scope
  3  could not start
";

/// What the process exits with. Success is said in the protocol, not here.
#[derive(Debug, Clone, Copy)]
enum Exit {
    Ended = 0,
    Failed = 1,
    NoScope = 2,
    NotStarted = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

fn main() -> ExitCode {
    let by_qrexec = ["QREXEC_SERVICE_FULL_NAME", "QREXEC_SERVICE_ARGUMENT", "QREXEC_REMOTE_DOMAIN"]
        .into_iter()
        .any(|name| std::env::var_os(name).is_some());
    // qrexec passes the service's argument, which the caller chooses, as the first argument.
    if !by_qrexec && let Some(text) = std::env::args_os().nth(1).and_then(asked_for) {
        return match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => Exit::Ended.into(),
            Err(_) => Exit::NotStarted.into(),
        };
    }
    let variable = |name: &str| std::env::var(name).ok();
    let scope =
        config::scope(variable("QREXEC_SERVICE_ARGUMENT").as_deref(), variable("QREXEC_SERVICE_FULL_NAME").as_deref());
    let exit = match scope {
        Some(scope) => start(scope).unwrap_or_else(|error| {
            complain(&format!("could not start: {error:#}"));
            Exit::NotStarted
        }),
        None => {
            complain("not started by qrexec for one of this proxy's scopes; see --help");
            Exit::NoScope
        }
    };
    exit.into()
}

fn asked_for(argument: OsString) -> Option<String> {
    match argument.to_str() {
        Some("--help" | "-h") => Some(HELP.to_owned()),
        Some("--version" | "-V") => Some(format!("splitdrop-proxy {}\n", env!("CARGO_PKG_VERSION"))),
        _ => None,
    }
}

/// Says why the process ends before it has a log. qrexec shows it to the caller too.
fn complain(text: &str) {
    // Nobody is left to tell when this fails.
    let _ignored = writeln!(std::io::stderr(), "splitdrop-proxy: {text}");
}

fn start(scope: Scope) -> anyhow::Result<Exit> {
    let config = start_log(Config::load(qubesdb::setting));
    log::panics();
    let ready = ready(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exit = runtime.block_on(serve(scope, ready));
    // A name look-up may hang in the operating system.
    runtime.shutdown_timeout(Duration::from_millis(100));
    exit
}

/// Starts the log as the settings say; without valid settings, as it is by default.
fn start_log(config: Result<Config, SettingError>) -> Result<Config, SettingError> {
    let settings = config.as_ref().map_or_else(|_| LogSettings::default(), |config| config.log.clone());
    match log::start(&settings) {
        Ok(()) => config,
        Err(_) => {
            // Without a file there is nothing that can fail.
            let _cannot_fail = log::start(&LogSettings { file: None, ..settings });
            Err(SettingError { name: config::LOG_FILE, problem: SettingProblem::Invalid("a file to log to") })
        }
    }
}

/// All that a session needs and that reads files; or why there is none.
fn ready(config: Result<Config, SettingError>) -> anyhow::Result<Result<(Config, HttpApi), Refusal>> {
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(%error, "no session without valid settings");
            return Ok(Err(error.refusal()?));
        }
    };
    let caller = std::env::var_os("QREXEC_REMOTE_DOMAIN").map(|name| name.to_string_lossy().into_owned());
    if let Err(reason) = config.callers.check(caller.as_deref()) {
        tracing::error!(%reason, "no session for this caller");
        return Ok(Err(Refusal::Caller(SettingName::try_new(config::CLIENTS)?)));
    }
    warn_of(&config);
    // Certificates are read here.
    let api = HttpApi::try_new(&config, Limits::default())?;
    Ok(Ok((config, api)))
}

/// The session of this process, which is confined from here on.
fn confined(ready: Result<(Config, HttpApi), Refusal>) -> anyhow::Result<Session<HttpApi>> {
    let reach = ready.as_ref().map_or(Reach::Nothing, |(config, _)| Reach::of(config));
    let confinement = match confine(reach) {
        Ok(confinement) => confinement,
        Err(error) => {
            tracing::error!(error = format!("{:#}", anyhow::Error::new(error)), "no session without confinement");
            return Ok(Session::refused(Refusal::Unconfined));
        }
    };
    tracing::info!(seccomp = confinement.seccomp.name(), landlock = confinement.landlock.name(), "confined");
    let (config, api) = match ready {
        Ok(ready) => ready,
        Err(refusal) => return Ok(Session::refused(refusal)),
    };
    if confinement.landlock < config.least_landlock {
        tracing::error!("no session: {} demands more than this kernel enforces", config::REQUIRE_LANDLOCK);
        return Ok(Session::refused(Refusal::Landlock(SettingName::try_new(config::REQUIRE_LANDLOCK)?)));
    }
    let tor = matches!(config.route, Route::Tor { .. });
    Ok(Session::new(api, tor, config.delete_limit, confinement))
}

fn warn_of(config: &Config) {
    if config.route == Route::Direct {
        tracing::warn!("TOR IS OFF: the server is reached directly, and whoever watches the network can tell");
        if !config.origin.is_https() && !config.origin.is_loopback() {
            tracing::warn!(
                "NO ENCRYPTION: without Tor and https, passphrases and tokens cross the network in the clear"
            );
        }
    } else if !config.origin.is_https() && !config.origin.is_onion() && !config.origin.is_loopback() {
        tracing::warn!("NO ENCRYPTION beyond Tor: the origin is neither https nor an onion service");
    }
}

async fn serve(scope: Scope, ready: Result<(Config, HttpApi), Refusal>) -> anyhow::Result<Exit> {
    let (input, output) = stdio::take()?;
    let mut terminated = signal(SignalKind::terminate())?;
    let software = SoftwareVersion::try_new(env!("CARGO_PKG_VERSION"))?;
    // All is open that must be, there is one thread, and nothing of the client's was read yet.
    let session = confined(ready)?;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let asked_to_stop = stop.clone();
    tasks.spawn(async move {
        terminated.recv().await;
        asked_to_stop.cancel();
    });
    tracing::info!(%scope, "session started");
    match qubes_rpc::serve::serve(input, output, scope, software, Arc::new(session), stop).await {
        Ok(()) => {
            tracing::info!(%scope, "session ended");
            Ok(Exit::Ended)
        }
        Err(error) => {
            tracing::error!(%scope, %error, "session failed");
            Ok(Exit::Failed)
        }
    }
}
