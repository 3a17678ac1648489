//! Where the log goes: to syslog, else to journald, or to a file that the settings name.
//!
//! Syslog comes first, also where journald takes its lines: it gets each line whole. By its own protocol journald gets the ids
//! and codes as fields, and passes on to nobody but the text before them; in another VM's log no call could be followed.
//!
//! **Invariant:** only this project's own lines are logged. The libraries below log addresses.
//!
//! **Invariant:** the log never goes to standard output, and to standard error neither: qrexec hands that to the caller.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::OFlag;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::Registry;

use crate::config::LogSettings;

/// Whose lines are logged.
const TARGETS: [&str; 4] = ["splitdrop_proxy", "proxy_vm", "qubes_rpc", "protocol"];
const IDENTIFIER: &str = "splitdrop-proxy";
const SYSLOG: &str = "/dev/log";
const FILE_MODE: u32 = 0o600;

type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The log file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The operating system's word; a symbolic link is refused this way too.
    #[error("could not open the log file")]
    Open(#[source] io::Error),
    /// It is a directory, a pipe, a device or a socket.
    #[error("the log file is no regular file")]
    NotRegular,
}

/// Starts the log. Where there is neither syslog nor journald, and no file is named, nothing is logged.
///
/// # Errors
/// [`LogError`] when the settings name a file and it cannot be used.
pub fn start(settings: &LogSettings) -> Result<(), LogError> {
    if let Some(layer) = layer(settings, Path::new(SYSLOG))? {
        install(Registry::default().with(layer.with_filter(own_lines(settings.level))));
    }
    Ok(())
}

/// Where lines go; `None` where there is no place for them. Syslog takes them at the socket `syslog`.
fn layer(settings: &LogSettings, syslog: &Path) -> Result<Option<AnyLayer>, LogError> {
    if let Some(path) = &settings.file {
        return Ok(Some(lines(Arc::new(open(path)?))));
    }
    let journald = || Some(tracing_journald::layer().ok()?.with_syslog_identifier(IDENTIFIER.to_owned()).boxed());
    Ok(syslog_lines(syslog).or_else(journald))
}

/// From now on a panic is a line of the log that says where, and nothing on standard error: its text may hold anything.
pub fn panics() {
    std::panic::set_hook(Box::new(|panic| {
        let (file, line) = panic.location().map_or(("", 0), |location| (location.file(), location.line()));
        tracing::error!(file, line, "panicked");
    }));
}

/// Only the first log of a process counts; a test that starts another keeps the first.
fn install(subscriber: impl Subscriber + Send + Sync) {
    let _first_wins = tracing::subscriber::set_global_default(subscriber);
}

fn own_lines(level: LevelFilter) -> Targets {
    TARGETS.into_iter().fold(Targets::new(), |targets, target| targets.with_target(target, level))
}

/// Lines for syslog, which adds the time; the level is the priority. `None` where nobody listens.
fn syslog_lines(socket: &Path) -> Option<AnyLayer> {
    let syslog = Syslog::connect(socket).ok()?;
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).without_time().with_level(false).with_writer(syslog);
    Some(layer.boxed())
}

fn lines(file: Arc<File>) -> AnyLayer {
    tracing_subscriber::fmt::layer().with_ansi(false).with_writer(file).boxed()
}

/// Opens the file for appending, readable by its owner alone.
fn open(path: &Path) -> Result<File, LogError> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(FILE_MODE)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(path)
        .map_err(LogError::Open)?;
    let metadata = file.metadata().map_err(LogError::Open)?;
    if !metadata.is_file() {
        return Err(LogError::NotRegular);
    }
    if metadata.permissions().mode() & 0o7777 != FILE_MODE {
        file.set_permissions(std::fs::Permissions::from_mode(FILE_MODE)).map_err(LogError::Open)?;
    }
    Ok(file)
}

/// Sends lines to syslog's socket, one datagram each (RFC 3164).
#[derive(Debug)]
struct Syslog(UnixDatagram);

impl Syslog {
    fn connect(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        // A line that syslog has no room for is lost: the log holds up no call.
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = SyslogLine<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        SyslogLine { socket: &self.0, level: Level::INFO }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        SyslogLine { socket: &self.0, level: *metadata.level() }
    }
}

/// One line on its way to syslog: the formatter writes each with a single call.
#[derive(Debug)]
struct SyslogLine<'a> {
    socket: &'a UnixDatagram,
    level: Level,
}

impl Write for SyslogLine<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        /// The facility `daemon`.
        const FACILITY: u8 = 3 << 3;
        let severity: u8 = match self.level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        let mut datagram = format!("<{}>{IDENTIFIER}[{}]: ", FACILITY | severity, std::process::id()).into_bytes();
        datagram.extend_from_slice(line.trim_ascii_end());
        self.socket.send(&datagram)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_appended_to_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        open(&path).unwrap().write_all(b"after\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before\nafter\n");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let fresh = directory.path().join("fresh");
        open(&fresh).unwrap();
        assert_eq!(std::fs::metadata(&fresh).unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn a_symbolic_link_or_a_directory_is_no_log_file() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        std::fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(matches!(open(&link), Err(LogError::Open(_))));
        assert!(open(directory.path()).is_err());
    }

    /// What comes at a syslog's socket while `happens` logs at this level and above.
    fn syslogged(level: LevelFilter, happens: impl FnOnce()) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        daemon.set_nonblocking(true).unwrap();
        let settings = LogSettings { level, file: None };
        let layer = layer(&settings, &path).unwrap().unwrap().with_filter(own_lines(settings.level));
        tracing::subscriber::with_default(Registry::default().with(layer), happens);
        let mut lines = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(length) = daemon.recv(&mut buffer) {
            lines.push(std::str::from_utf8(&buffer[..length]).unwrap().to_owned());
        }
        lines
    }

    #[test]
    fn syslog_gets_each_line_as_a_datagram_with_its_priority() {
        let lines = syslogged(LevelFilter::TRACE, || {
            tracing::error!(code = 1, "something");
            tracing::warn!(code = 2, "something");
            tracing::info!(code = 3, "something");
            tracing::debug!(code = 4, "something");
            tracing::trace!(code = 5, "something");
        });
        // The facility `daemon` is 3, so 24 and the severity (RFC 3164, 4.1.1).
        let expected: Vec<_> = [(27, 1), (28, 2), (30, 3), (31, 4), (31, 5)]
            .map(|(priority, code)| {
                let head = format!("<{priority}>splitdrop-proxy[{}]: ", std::process::id());
                format!("{head}proxy_vm::log::tests: something code={code}")
            })
            .into();
        assert_eq!(lines, expected);
    }

    #[test]
    fn syslog_gets_own_lines_of_the_level_and_no_others() {
        let lines = syslogged(LevelFilter::WARN, || {
            tracing::info!("something small");
            tracing::error!(target: "reqwest::connect", "a library's line");
            tracing::warn!("something");
        });
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(line.ends_with(": something"), "{line:?}");
        assert_eq!(syslogged(LevelFilter::OFF, || tracing::error!("something")), [] as [String; 0]);
    }

    #[test]
    fn a_line_that_syslog_does_not_take_holds_nothing_up() {
        let lines = syslogged(LevelFilter::INFO, || {
            tracing::info!(long = "x".repeat(1 << 20), "too long for a datagram");
            // More than a socket keeps for who does not read it.
            for number in 0..10_000 {
                tracing::info!(number, "something");
            }
        });
        assert!(!lines.is_empty() && lines.len() < 10_000, "{}", lines.len());
        assert!(lines[0].ends_with("something number=0"), "{:?}", lines[0]);
    }

    #[test]
    fn a_file_comes_before_syslog_and_without_a_socket_there_is_no_syslog() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, file) = (directory.path().join("log"), directory.path().join("file"));
        assert!(syslog_lines(&socket).is_none());
        let daemon = UnixDatagram::bind(&socket).unwrap();
        daemon.set_nonblocking(true).unwrap();
        let settings = LogSettings { level: LevelFilter::INFO, file: Some(file.clone()) };
        let layer = layer(&settings, &socket).unwrap().unwrap();
        tracing::subscriber::with_default(Registry::default().with(layer), || tracing::info!(code = 7, "something"));
        assert!(std::fs::read_to_string(&file).unwrap().ends_with("something code=7\n"));
        assert!(daemon.recv(&mut [0; 64]).is_err());
    }

    #[test]
    fn only_own_lines_pass() {
        let filter = own_lines(LevelFilter::INFO);
        assert!(filter.would_enable("proxy_vm::session", &Level::INFO));
        assert!(!filter.would_enable("proxy_vm::session", &Level::DEBUG));
        for library in ["reqwest::connect", "hyper_util::client", "rustls", "h2"] {
            assert!(!filter.would_enable(library, &Level::ERROR), "{library}");
        }
    }
}
