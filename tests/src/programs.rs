//! Builds the programs that the environment runs.
//!
//! Running one package does not build another's programs, so they are built here, by the same cargo and with the same
//! profile as this one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde::Deserialize;

/// Where the programs are.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The client: daemon and commands.
    pub splitdrop: PathBuf,
    /// The proxy.
    pub proxy: PathBuf,
    /// The stand-in for `qrexec-client-vm`.
    pub qrexec_client: PathBuf,
    /// The stand-in for `qvm-open-in-vm`.
    pub open_in_vm: PathBuf,
    /// This package's own program, for what has to be a process of its own.
    pub staging: PathBuf,
}

/// The programs could not be built.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BuildError {
    /// cargo could not be run.
    #[error("could not run {cargo}: {reason}")]
    Run {
        /// Which cargo.
        cargo: String,
        /// Why not.
        reason: String,
    },
    /// The build failed.
    #[error("`{command}` failed: {message}")]
    Failed {
        /// What was run.
        command: String,
        /// What it said last.
        message: String,
    },
    /// cargo did not say where a program is.
    #[error("the build made no program {0}")]
    Missing(&'static str),
}

/// What cargo says of a built artifact.
#[derive(Deserialize)]
struct Artifact {
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

impl Programs {
    /// Builds the programs, once in a process. `say` is told before that.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn build(say: impl FnOnce(&str)) -> Result<Self, BuildError> {
        static BUILT: OnceLock<Result<Programs, BuildError>> = OnceLock::new();
        BUILT.get_or_init(|| build(say)).clone()
    }
}

/// How the variables begin that cargo sets for the package whose program or test it runs. Build scripts look at some of them:
/// with these of another package they would build anew, and again at the next build without.
const OF_A_PACKAGE: [&str; 6] =
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_PACKAGE", "CARGO_TARGET_TMPDIR"];

fn build(say: impl FnOnce(&str)) -> Result<Programs, BuildError> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut arguments = vec!["build", "--locked", "--workspace", "--bins"];
    if !cfg!(debug_assertions) {
        arguments.push("--release");
    }
    if cfg!(feature = "gpg-agent") {
        arguments.extend(["--features", "staging/gpg-agent"]);
    }
    let command = format!("cargo {}", arguments.join(" "));
    say(&command);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut build = Command::new(&cargo);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| OF_A_PACKAGE.iter().any(|beginning| name.starts_with(beginning))) {
            build.env_remove(name);
        }
    }
    let output = build
        .args(&arguments)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| BuildError::Run { cargo, reason: error.to_string() })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<_> = said.lines().rev().take(20).collect();
        let message = last.into_iter().rev().collect::<Vec<_>>().join("\n");
        return Err(BuildError::Failed { command, message });
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    // Messages of other kinds have no executable, or another form.
    let executables: Vec<_> = messages.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok()).collect();
    let find = |name: &'static str| {
        executables
            .iter()
            .find(|artifact| artifact.target.name == name && artifact.executable.is_some())
            .and_then(|artifact| artifact.executable.clone())
            .ok_or(BuildError::Missing(name))
    };
    Ok(Programs {
        splitdrop: find("splitdrop")?,
        proxy: find("splitdrop-proxy")?,
        qrexec_client: find("qrexec-client-vm")?,
        open_in_vm: find("qvm-open-in-vm")?,
        staging: find("splitdrop-staging")?,
    })
}
