//! The proxy's settings, from QubesDB or the environment.
//!
//! | Setting | Value | Default |
//! |---|---|---|
//! | `SD_PROXY_ORIGIN` | the server's origin: `http://` or `https://`, host, port | none: required |
//! | `SD_PROXY_TOR` | `on`, or `off` to connect directly, which no onion service permits | `on` |
//! | `SD_PROXY_SOCKS` | Tor's SOCKS server, as IP address and port | `127.0.0.1:9150` |
//! | `SD_PROXY_DELETE_LIMIT` | how many targets one session may delete, 1 to 10000 | `200` |
//! | `SD_PROXY_CLIENTS` | the VMs that may call, with commas between them | `sd-app` |
//! | `SD_PROXY_REQUIRE_LANDLOCK` | `on`: no session where the kernel does not confine files and network; or `off` | `off` |
//! | `SD_PROXY_LOG` | `off`, `error`, `warn`, `info`, `debug` or `trace` | `info` |
//! | `SD_PROXY_LOG_FILE` | an absolute path: log to this file instead of syslog or journald | none |
//!
//! **Invariant:** a setting is valid or an error that names it; no invalid setting falls back to a default.
//!
//! **Invariant:** the name of an onion service is never looked up: without Tor there is none to connect to.

mod callers;
mod origin;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use protocol::value::SettingName;
use protocol::{Landlock, Refusal, Scope};
use qubes_rpc::qubesdb::QubesDbError;
use tracing_subscriber::filter::LevelFilter;

pub use callers::{CallerRefused, Callers};
pub use origin::{Origin, OriginError};

use crate::delete_limit::DeleteLimit;

/// The setting that holds the server's origin.
pub const ORIGIN: &str = "SD_PROXY_ORIGIN";
/// The setting that switches Tor on or off.
pub const TOR: &str = "SD_PROXY_TOR";
/// The setting that holds the SOCKS server's address.
pub const SOCKS: &str = "SD_PROXY_SOCKS";
/// The setting that holds how much one session may delete.
pub const DELETE_LIMIT: &str = "SD_PROXY_DELETE_LIMIT";
/// The setting that lists who may call.
pub const CLIENTS: &str = "SD_PROXY_CLIENTS";
/// The setting that insists on Landlock.
pub const REQUIRE_LANDLOCK: &str = "SD_PROXY_REQUIRE_LANDLOCK";
/// The setting that holds the log's level.
pub const LOG: &str = "SD_PROXY_LOG";
/// The setting that sends the log to a file.
pub const LOG_FILE: &str = "SD_PROXY_LOG_FILE";

/// Where Tor listens for SOCKS in the proxy VM.
const DEFAULT_SOCKS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9150);

/// The settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// The one server.
    pub origin: Origin,
    /// The way to it.
    pub route: Route,
    /// How much one session may delete.
    pub delete_limit: DeleteLimit,
    /// Who may call.
    pub callers: Callers,
    /// What the kernel must enforce.
    pub least_landlock: Landlock,
    /// The log.
    pub log: LogSettings,
}

/// The way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Through Tor; names are resolved by Tor.
    Tor {
        /// Its SOCKS server.
        socks: SocketAddr,
    },
    /// Without Tor: for development, and for servers inside the newsroom.
    Direct,
}

/// What is logged and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// The least important level that is logged.
    pub level: LevelFilter,
    /// The file to log to; syslog or journald when there is none.
    pub file: Option<PathBuf>,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { level: LevelFilter::INFO, file: None }
    }
}

/// A setting is missing or invalid. The text names it and never shows its value.
#[derive(Debug, thiserror::Error)]
#[error("the setting {name} {problem}")]
pub struct SettingError {
    /// Which.
    pub name: &'static str,
    /// What is wrong.
    pub problem: SettingProblem,
}

/// What is wrong with a setting.
#[derive(Debug, thiserror::Error)]
pub enum SettingProblem {
    /// It is required and there is none.
    #[error("is missing")]
    Missing,
    /// Its value is not of the form that it must have.
    #[error("is not {0}")]
    Invalid(&'static str),
    /// The origin is none.
    #[error("is no origin: {0}")]
    Origin(#[from] OriginError),
    /// It could not be read.
    #[error("could not be read: {0}")]
    Unreadable(#[from] QubesDbError),
}

impl SettingError {
    /// What the client is told instead of a welcome.
    ///
    /// # Errors
    /// [`ValueError`](protocol::value::ValueError) when the setting's name is none, which no constant of this module is.
    pub fn refusal(&self) -> Result<Refusal, protocol::value::ValueError> {
        let name = SettingName::try_new(self.name)?;
        Ok(match self.problem {
            SettingProblem::Missing => Refusal::SettingMissing(name),
            SettingProblem::Invalid(_) | SettingProblem::Origin(_) | SettingProblem::Unreadable(_) => {
                Refusal::SettingInvalid(name)
            }
        })
    }
}

impl Config {
    /// Loads the settings through `read`, which gives a setting's value by its name.
    ///
    /// # Errors
    /// [`SettingError`] for the first setting that is missing or invalid.
    pub fn load(read: impl Fn(&str) -> Result<Option<String>, QubesDbError>) -> Result<Self, SettingError> {
        let value = |name: &'static str| read(name).map_err(|error| fault(name, error));
        let origin = match value(ORIGIN)? {
            Some(text) => Origin::parse(&text).map_err(|error| fault(ORIGIN, error))?,
            None => return Err(fault(ORIGIN, SettingProblem::Missing)),
        };
        let route = match value(TOR)?.as_deref() {
            None | Some("on") => Route::Tor { socks: socks(value(SOCKS)?.as_deref())? },
            // Its name would be asked for in the clear, of whoever answers for names.
            Some("off") if origin.is_onion() => {
                return Err(fault(TOR, SettingProblem::Invalid("`on`, as an onion service requires")));
            }
            Some("off") => Route::Direct,
            Some(_) => return Err(fault(TOR, SettingProblem::Invalid("`on` or `off`"))),
        };
        let delete_limit = match value(DELETE_LIMIT)?.as_deref() {
            None => DeleteLimit::default(),
            Some(text) => DeleteLimit::parse(text)
                .ok_or_else(|| fault(DELETE_LIMIT, SettingProblem::Invalid("a number from 1 to 10000")))?,
        };
        let callers = match value(CLIENTS)?.as_deref() {
            None => Callers::default(),
            Some(text) => {
                Callers::parse(text).ok_or_else(|| fault(CLIENTS, SettingProblem::Invalid("names of VMs")))?
            }
        };
        let least_landlock = match value(REQUIRE_LANDLOCK)?.as_deref() {
            None | Some("off") => Landlock::None,
            Some("on") => Landlock::FilesAndNetwork,
            Some(_) => return Err(fault(REQUIRE_LANDLOCK, SettingProblem::Invalid("`on` or `off`"))),
        };
        let level = match value(LOG)?.as_deref() {
            None => LevelFilter::INFO,
            Some(name) => level(name).ok_or_else(|| fault(LOG, SettingProblem::Invalid("a level")))?,
        };
        let file = value(LOG_FILE)?.map(PathBuf::from);
        if file.as_ref().is_some_and(|path| !path.is_absolute()) {
            return Err(fault(LOG_FILE, SettingProblem::Invalid("an absolute path")));
        }
        Ok(Self { origin, route, delete_limit, callers, least_landlock, log: LogSettings { level, file } })
    }
}

fn fault(name: &'static str, problem: impl Into<SettingProblem>) -> SettingError {
    SettingError { name, problem: problem.into() }
}

fn socks(text: Option<&str>) -> Result<SocketAddr, SettingError> {
    let Some(text) = text else { return Ok(DEFAULT_SOCKS) };
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => Ok(address),
        Ok(_) | Err(_) => Err(fault(SOCKS, SettingProblem::Invalid("an IP address and a port"))),
    }
}

fn level(name: &str) -> Option<LevelFilter> {
    match name {
        "off" => Some(LevelFilter::OFF),
        "error" => Some(LevelFilter::ERROR),
        "warn" => Some(LevelFilter::WARN),
        "info" => Some(LevelFilter::INFO),
        "debug" => Some(LevelFilter::DEBUG),
        "trace" => Some(LevelFilter::TRACE),
        _ => None,
    }
}

/// The scope of this process, from what qrexec says of the service that it starts: `argument` is
/// `QREXEC_SERVICE_ARGUMENT`, `full_name` is `QREXEC_SERVICE_FULL_NAME`, whose argument follows its first `+`.
///
/// `None` when neither is there or what they say is no scope.
#[must_use]
pub fn scope(argument: Option<&str>, full_name: Option<&str>) -> Option<Scope> {
    let argument = match argument {
        Some(argument) => argument,
        None => full_name?.split_once('+')?.1,
    };
    argument.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn load(settings: &[(&str, &str)]) -> Result<Config, SettingError> {
        let settings: HashMap<_, _> = settings.iter().copied().collect();
        Config::load(|name| Ok(settings.get(name).map(|value| (*value).to_owned())))
    }

    fn refusal(settings: &[(&str, &str)]) -> Refusal {
        load(settings).unwrap_err().refusal().unwrap()
    }

    #[test]
    fn only_the_origin_is_required() {
        let config = load(&[(ORIGIN, "http://example.onion")]).unwrap();
        assert_eq!(config.route, Route::Tor { socks: "127.0.0.1:9150".parse().unwrap() });
        assert_eq!(config.delete_limit, DeleteLimit::default());
        assert_eq!(config.callers, Callers::default());
        assert_eq!(config.least_landlock, Landlock::None);
        assert_eq!(config.log, LogSettings::default());
        assert_eq!(refusal(&[]), Refusal::SettingMissing(SettingName::try_new(ORIGIN).unwrap()));
    }

    #[test]
    fn each_invalid_setting_is_refused_by_its_name() {
        for (name, value) in [
            (ORIGIN, "example.onion"),
            (TOR, "On"),
            (TOR, "false"),
            (SOCKS, "localhost:9150"),
            (SOCKS, "127.0.0.1"),
            (SOCKS, "127.0.0.1:0"),
            (SOCKS, "socks5h://127.0.0.1:9150"),
            (DELETE_LIMIT, "0"),
            (DELETE_LIMIT, "10001"),
            (DELETE_LIMIT, "none"),
            (CLIENTS, "sd-app,*"),
            (REQUIRE_LANDLOCK, "yes"),
            (LOG, "proxy_vm=trace"),
            (LOG_FILE, "proxy.log"),
        ] {
            let mut settings = vec![(ORIGIN, "http://example.onion")];
            settings.push((name, value));
            assert_eq!(refusal(&settings), Refusal::SettingInvalid(SettingName::try_new(name).unwrap()), "{value}");
        }
    }

    #[test]
    fn an_onion_service_is_reached_through_tor_or_not_at_all() {
        let invalid = Refusal::SettingInvalid(SettingName::try_new(TOR).unwrap());
        for origin in
            ["http://example.onion", "https://sub.EXAMPLE.onion:8443", "http://example.onion.", "http://onion"]
        {
            assert_eq!(refusal(&[(ORIGIN, origin), (TOR, "off")]), invalid, "{origin}");
            assert!(load(&[(ORIGIN, origin)]).is_ok(), "{origin}");
        }
        for origin in ["http://onion.example.org", "http://example.onions", "http://10.0.0.1"] {
            assert_eq!(load(&[(ORIGIN, origin), (TOR, "off")]).unwrap().route, Route::Direct, "{origin}");
        }
    }

    #[test]
    fn a_setting_that_cannot_be_read_is_refused() {
        let error = Config::load(|_| Err(QubesDbError::Failed { code: Some(1) })).unwrap_err();
        assert_eq!(error.refusal().unwrap(), Refusal::SettingInvalid(SettingName::try_new(ORIGIN).unwrap()));
    }

    #[test]
    fn neither_config_nor_errors_show_the_host() {
        let config = load(&[(ORIGIN, "http://secretname.example"), (TOR, "off")]).unwrap();
        assert_eq!(config.route, Route::Direct);
        assert!(!format!("{config:?}").contains("secretname"));
        let error = load(&[(ORIGIN, "http://secretname.onion/path")]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secretname"));
    }

    #[test]
    fn the_scope_is_what_qrexec_says_and_nothing_else() {
        assert_eq!(scope(Some("metadata"), None), Some(Scope::Metadata));
        assert_eq!(scope(None, Some("splitdrop.Proxy+session")), Some(Scope::Session));
        assert_eq!(scope(Some("metadata"), Some("splitdrop.Proxy+session")), Some(Scope::Metadata));
        for (argument, full_name) in [
            (None, None),
            (Some(""), Some("splitdrop.Proxy+session")),
            (Some("Metadata"), None),
            (Some("../metadata"), None),
            (Some("-metadata"), None),
            (None, Some("splitdrop.Proxy")),
            (None, Some("splitdrop.Proxy+")),
            (None, Some("splitdrop.Proxy+session+metadata")),
        ] {
            assert_eq!(scope(argument, full_name), None, "{argument:?} {full_name:?}");
        }
    }
}
