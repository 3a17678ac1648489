//! Measures what the path costs, with the real programs. Figures, never verdicts.

mod process;
pub mod sync;

use std::io::{self, Write as _};

use crate::environment::EnvironmentError;
use crate::server::{ControlError, WorldError};

/// A benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The environment failed.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The world could not be made.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The staging server refused to be played with.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The server could not be asked directly.
    #[error("could not ask the server directly")]
    Direct(#[from] reqwest::Error),
    /// A call to the proxy failed.
    #[error("a call to the proxy failed: {0}")]
    Call(String),
    /// A process's figures could not be read.
    #[error("could not read a process's figures")]
    Process(#[source] io::Error),
    /// Writing failed.
    #[error("could not write")]
    Io(#[from] io::Error),
    /// A program printed something else than expected.
    #[error("{0} is missing")]
    Missing(String),
}

/// Prints columns as wide as their widest cell, numbers to the right.
fn print_table(rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or_default();
    let mut out = io::stdout().lock();
    for row in rows {
        let cells: Vec<_> =
            (0..columns).zip(row).map(|(column, cell)| format!("{cell:>width$}", width = width(column))).collect();
        writeln!(out, "{}", cells.join("  "))?;
    }
    out.flush()
}
