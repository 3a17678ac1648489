//! Where the daemon's log goes: a configured file, else journald, else standard error.
//!
//! **Invariant:** the log holds ids, sizes, durations and codes. Never text, names, tokens, file names or addresses.

use std::io::IsTerminal as _;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::private;

/// The environment variable that sets the level, such as `debug`.
const LEVEL: &str = "SPLITDROP_LOG";

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
    #[error("{LEVEL} is not valid")]
    Level(#[source] tracing_subscriber::filter::FromEnvError),
    /// A log was set up before.
    #[error("the log was set up twice")]
    Twice(#[from] TryInitError),
}

pub(super) fn start(file: Option<&Path>) -> Result<(), LogError> {
    let filter = match std::env::var_os(LEVEL) {
        Some(_) => EnvFilter::try_from_env(LEVEL).map_err(LogError::Level)?,
        None => EnvFilter::new("info"),
    };
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
    use super::*;

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
