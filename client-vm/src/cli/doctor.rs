//! `splitdrop doctor`: looks at each hop between a journalist and the server, and says what to do where one is broken.
//!
//! It needs no daemon, which may be what is broken, and no session.
//!
//! **Invariant:** it changes nothing, takes no lock, and reads nothing of what sources or journalists wrote.
//!
//! **Invariant:** each check ends in one line, in a fixed order, whatever the others found. What cannot be looked at because
//! an earlier one has failed says which.
//!
//! **Invariant:** one qrexec call at a time is open.

mod check;
mod key;
mod local;
mod proxy;
mod reached;

pub(super) use check::{Check, Outcome};

use super::args::Args;
use super::exit::{CliError, Exit};
use super::{json, print, text};
use crate::settings::{Settings, SettingsError};

/// What is checked, in the order in which it is told.
mod name {
    pub(super) const CONFIGURATION: &str = "configuration";
    pub(super) const OFFLINE: &str = "offline";
    pub(super) const DAEMON: &str = "daemon";
    pub(super) const DATA_DIRECTORY: &str = "data_directory";
    pub(super) const DATA_MODES: &str = "data_modes";
    pub(super) const DATA_PERSISTS: &str = "data_persists";
    pub(super) const DISK_SPACE: &str = "disk_space";
    pub(super) const QREXEC: &str = "qrexec_program";
    pub(super) const POLICY: [&str; 6] =
        ["policy_session", "policy_metadata", "policy_mark", "policy_delete", "policy_download", "policy_reply"];
    pub(super) const PROXY: &str = "proxy";
    pub(super) const PROXY_SETTINGS: &str = "proxy_settings";
    pub(super) const PROXY_VERSION: &str = "proxy_version";
    pub(super) const PROXY_SANDBOX: &str = "proxy_sandbox";
    pub(super) const TOR: &str = "tor";
    pub(super) const ROUTE: &str = "route";
    pub(super) const SERVER: &str = "server";
    pub(super) const CLOCK: &str = "clock";
    pub(super) const KEY_BACKEND: &str = "key_backend";
    pub(super) const SECRET_KEY: &str = "secret_key";
    pub(super) const NEWSROOM_KEY: &str = "newsroom_key";
    pub(super) const VIEWER: &str = "viewer";
    /// Those that need the configuration, in their order.
    pub(super) const CONFIGURED: [&str; 24] = [
        DAEMON,
        DATA_DIRECTORY,
        DATA_MODES,
        DATA_PERSISTS,
        DISK_SPACE,
        QREXEC,
        POLICY[0],
        POLICY[1],
        POLICY[2],
        POLICY[3],
        POLICY[4],
        POLICY[5],
        PROXY,
        PROXY_SETTINGS,
        PROXY_VERSION,
        PROXY_SANDBOX,
        TOR,
        ROUTE,
        SERVER,
        CLOCK,
        KEY_BACKEND,
        SECRET_KEY,
        NEWSROOM_KEY,
        VIEWER,
    ];
}

/// Checks everything and tells it; `ask` says whether the call about which dom0 may ask is made too.
pub(super) async fn doctor(
    args: &Args,
    ask: bool,
    settings: Result<Settings, SettingsError>,
) -> Result<Exit, CliError> {
    let mut findings = Findings { args, checks: Vec::new() };
    match settings {
        Err(error) => {
            findings.add(local::bad_configuration(&error)).await?;
            findings.add(local::offline()).await?;
            for name in name::CONFIGURED {
                findings.add(Check::not_checked(name, name::CONFIGURATION)).await?;
            }
        }
        Ok(settings) => {
            findings.add(local::configuration()).await?;
            findings.add(local::offline()).await?;
            findings.add(local::daemon(&settings.socket).await).await?;
            for check in local::data(&settings.home) {
                findings.add(check).await?;
            }
            findings.add(local::qrexec_program(&settings.qrexec_client)).await?;
            proxy::checks(&mut findings, &settings, ask).await?;
            key::checks(&mut findings, &settings.openpgp).await?;
            findings.add(local::viewer(&settings.handover.open_in_vm)).await?;
        }
    }
    findings.end().await
}

/// What was found so far.
struct Findings<'a> {
    args: &'a Args,
    checks: Vec<Check>,
}

impl Findings<'_> {
    /// Notes a check; a person sees it at once.
    async fn add(&mut self, check: Check) -> Result<(), CliError> {
        if !self.args.json {
            print(self.args, String::new, || text::check(&check)).await?;
        }
        self.checks.push(check);
        Ok(())
    }

    /// Whether a check has failed, or could not be made.
    fn lacks(&self, name: &str) -> bool {
        self.checks.iter().any(|check| {
            check.name == name
                && match check.outcome {
                    Outcome::Failure | Outcome::NotChecked => true,
                    Outcome::Ok | Outcome::Warning => false,
                }
        })
    }

    async fn end(self) -> Result<Exit, CliError> {
        print(self.args, || json::checks(&self.checks), || text::checked(&self.checks)).await?;
        let unhealthy = self.checks.iter().any(|check| check.outcome == Outcome::Failure);
        Ok(if unhealthy { Exit::Unhealthy } else { Exit::Success })
    }
}
