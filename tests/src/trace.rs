//! What this package's own parts have to say while they run, in a file beside the other programs' logs.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Mutex;

use tracing_subscriber::filter::LevelFilter;

/// The file's name.
pub const FILE: &str = "staging.log";

/// Writes what is said from now on to [`FILE`] in `directory`. Where somebody listens already, all stays as it is.
///
/// # Errors
/// The operating system's, when the file cannot be made.
pub fn start(directory: &Path) -> io::Result<()> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(directory.join(FILE))?;
    let log = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::DEBUG)
        .with_ansi(false)
        .with_writer(Mutex::new(file))
        .finish();
    let _somebody_listens = tracing::subscriber::set_global_default(log);
    Ok(())
}
