//! Settings that dom0 gives a VM: `/vm-config/NAME` in QubesDB, with the environment as the source where there is none.
//!
//! dom0 sets them with `qvm-features VM vm-config.NAME value`.

use std::path::Path;
use std::process::{Command, Stdio};

const QUBESDB_READ: &str = "/usr/bin/qubesdb-read";
/// The exit code of `qubesdb-read` for a key that is not there.
const ABSENT: i32 = 2;
/// A value is one line of at most so many bytes.
const MAX_VALUE: usize = 4096;

/// A setting could not be read.
#[derive(Debug, thiserror::Error)]
pub enum QubesDbError {
    /// `qubesdb-read` could not be run.
    #[error("could not run {QUBESDB_READ}")]
    Run(#[source] std::io::Error),
    /// `qubesdb-read` failed otherwise than for an absent key.
    #[error("{QUBESDB_READ} failed with exit code {code:?}")]
    Failed {
        /// The exit code, unless a signal ended it.
        code: Option<i32>,
    },
    /// The value is no UTF-8 text, or is too long.
    #[error("the value is not a text of at most {MAX_VALUE} bytes")]
    Value,
}

/// Reads the setting `name` from QubesDB, else from the environment variable of the same name. Surrounding white space
/// is dropped; an empty value counts as none.
///
/// # Errors
/// [`QubesDbError`] when QubesDB is there and does not answer, or the value is no text.
pub fn setting(name: &str) -> Result<Option<String>, QubesDbError> {
    read_setting(Path::new(QUBESDB_READ), name)
}

fn read_setting(program: &Path, name: &str) -> Result<Option<String>, QubesDbError> {
    let from_db = match Command::new(program).arg(format!("/vm-config/{name}")).stdin(Stdio::null()).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(QubesDbError::Run(error)),
        Ok(output) if output.status.success() => Some(output.stdout),
        Ok(output) if output.status.code() == Some(ABSENT) => None,
        Ok(output) => return Err(QubesDbError::Failed { code: output.status.code() }),
    };
    let value = match from_db {
        Some(bytes) => String::from_utf8(bytes).map_err(|_| QubesDbError::Value)?,
        None => match std::env::var(name) {
            Ok(value) => value,
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => return Err(QubesDbError::Value),
        },
    };
    if value.len() > MAX_VALUE {
        return Err(QubesDbError::Value);
    }
    let value = value.trim();
    Ok((!value.is_empty()).then(|| value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in place of `qubesdb-read`, which the test machine does not have. Another process writes it: while this
    /// one had it open for writing, a process that another test starts would inherit that, and could keep it from being
    /// executed.
    fn program(directory: &tempfile::TempDir, script: &str) -> std::path::PathBuf {
        let path = directory.path().join("qubesdb-read");
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 700 "$1""#;
        assert!(Command::new("/bin/sh").args(["-c", write, "sh"]).arg(&path).arg(script).status().unwrap().success());
        path
    }

    #[test]
    fn qubesdb_comes_before_the_environment() {
        let directory = tempfile::tempdir().unwrap();
        let path = program(&directory, r#"test "$1" = /vm-config/PATH && echo " from-db ""#);
        assert_eq!(read_setting(&path, "PATH").unwrap().as_deref(), Some("from-db"));
    }

    #[test]
    fn an_absent_key_or_program_leaves_it_to_the_environment() {
        let directory = tempfile::tempdir().unwrap();
        let path = std::env::var("PATH").unwrap();
        let absent = program(&directory, "exit 2");
        assert_eq!(read_setting(&absent, "PATH").unwrap().as_deref(), Some(path.trim()));
        assert_eq!(read_setting(Path::new("/nowhere/qubesdb-read"), "PATH").unwrap().as_deref(), Some(path.trim()));
        assert_eq!(read_setting(&absent, "SPLITDROP_NO_SUCH_SETTING").unwrap(), None);
    }

    #[test]
    fn a_failing_qubesdb_is_no_absent_key() {
        let directory = tempfile::tempdir().unwrap();
        let failing = program(&directory, "exit 1");
        assert!(matches!(read_setting(&failing, "PATH"), Err(QubesDbError::Failed { code: Some(1) })));
    }
}
