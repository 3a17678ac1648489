//! Where the daemon's log goes: a configured file, else journald, else standard error.
//!
//! **Invariant:** the log holds ids, sizes, durations and codes. Never text, names, tokens, file names or addresses.
//!
//! **Invariant:** only this project's own lines are logged, at every level: the libraries below log what they are given.

use std::ffi::OsStr;
use std::io::IsTerminal as _;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::private;

/// The environment variable that sets the level, such as `debug`.
const LEVEL: &str = "SPLITDROP_LOG";
/// The levels that it may say.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];
/// Whose lines are logged.
const TARGETS: [&str; 5] = ["splitdrop", "client_vm", "control", "qubes_rpc", "protocol"];

/// The log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The configured file cannot be opened.
    #[error("could not open the log {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// SPLITDROP_LOG is no level.
    #[error("{LEVEL} is not valid: give off, error, warn, info, debug or trace")]
    Level,
    /// A log was set up before.
    #[error("the log was set up twice")]
    Twice(#[from] TryInitError),
}

pub(super) fn start(file: Option<&Path>) -> Result<(), LogError> {
    let filter = own_lines(level(std::env::var_os(LEVEL).as_deref())?);
    let registry = tracing_subscriber::registry().with(filter);
    if let Some(path) = file {
        let open = private::append(path).map_err(|source| LogError::File { path: path.to_owned(), source })?;
        registry.with(tracing_subscriber::fmt::layer().with_ansi(false).with_writer(Arc::new(open))).try_init()?;
    } else if let (false, Ok(journald)) = (std::io::stderr().is_terminal(), tracing_journald::layer()) {
        registry.with(journald).try_init()?;
    } else {
        registry.with(tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr)).try_init()?;
    }
    Ok(())
}

/// The level that the variable says.
fn level(said: Option<&OsStr>) -> Result<LevelFilter, LogError> {
    let Some(said) = said else { return Ok(LevelFilter::INFO) };
    LEVELS.into_iter().find_map(|(word, level)| (said == word).then_some(level)).ok_or(LogError::Level)
}

fn own_lines(level: LevelFilter) -> Targets {
    TARGETS.into_iter().fold(Targets::new(), |targets, target| targets.with_target(target, level))
}

/// From now on a panic is a line of the log that says where, and nothing on standard error: its text may hold anything,
/// and standard error may be gone.
pub(super) fn panics() {
    std::panic::set_hook(Box::new(note));
}

fn note(panic: &PanicHookInfo<'_>) {
    let (file, line) = panic.location().map_or(("", 0), |location| (location.file(), location.line()));
    tracing::error!(file, line, "panicked");
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_level_is_one_of_the_words_and_nothing_else() {
        assert_eq!(level(None).unwrap(), LevelFilter::INFO);
        for (word, filter) in LEVELS {
            assert_eq!(level(Some(OsStr::new(word))).unwrap(), filter);
        }
        // Neither filters by target nor anything else that would let the lines of libraries in.
        for word in ["", "DEBUG", "verbose", "client_vm=debug", "debug,rusqlite=trace"] {
            let error = level(Some(OsStr::new(word))).unwrap_err();
            assert!(error.to_string().ends_with("trace"), "{error}");
        }
    }

    #[test]
    fn only_own_lines_pass() {
        let filter = own_lines(LevelFilter::DEBUG);
        for own in ["client_vm::engine::session", "qubes_rpc::connection", "splitdrop"] {
            assert!(filter.would_enable(own, &Level::DEBUG), "{own}");
            assert!(!filter.would_enable(own, &Level::TRACE), "{own}");
        }
        for library in ["sequoia_openpgp::parse", "mio::poll", "rusqlite", "log"] {
            assert!(!filter.would_enable(library, &Level::ERROR), "{library}");
        }
    }

    #[test]
    fn a_panic_is_a_line_that_says_where_and_not_what() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let writer = Arc::new(private::append(&path).unwrap());
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
        let before = std::panic::take_hook();
        panics();
        let panicked = tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            std::panic::catch_unwind(|| panic!("candid marmot wrote"))
        });
        std::panic::set_hook(before);
        assert!(panicked.is_err());
        let log = std::fs::read_to_string(&path).unwrap();
        assert!(log.contains("panicked") && log.contains("log.rs") && log.contains("line="), "{log}");
        assert!(!log.contains("marmot"), "{log}");
    }
}
