//! The scripts between programs: what qrexec starts in the proxy's VM, and what makes calls for others.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::{EnvironmentError, failed};

/// What qrexec starts in the proxy's VM, as it is shipped, and the program that it runs there.
const SERVICE: &str = include_str!("../../../qubes-rpc/sd-proxy/splitdrop.Proxy");
const INSTALLED_PROXY: &str = "/usr/bin/splitdrop-proxy";

/// A word as a shell reads it.
fn quoted(text: &OsStr) -> String {
    format!("'{}'", text.to_string_lossy().replace('\'', "'\\''"))
}

/// A command as a shell reads it.
fn line(command: &Command) -> String {
    let command = command.as_std();
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).map(quoted).collect();
    words.join(" ")
}

/// The shipped service, which runs `proxy` where the installed program would be.
pub(super) fn service_that_runs(proxy: &Command) -> Result<String, EnvironmentError> {
    match SERVICE.matches(INSTALLED_PROXY).count() {
        1 => Ok(SERVICE.replace(INSTALLED_PROXY, &line(proxy))),
        _ => Err(EnvironmentError::Service),
    }
}

/// A script that runs `command` with more arguments, after setting variables.
pub(super) fn script_that_runs(command: &Command, variables: &[(String, PathBuf)]) -> String {
    let mut script = "#!/bin/sh\n".to_owned();
    for (name, value) in variables {
        script.push_str(&format!("export {name}={}\n", quoted(value.as_os_str())));
    }
    script.push_str(&format!("exec {} \"$@\"\n", line(command)));
    script
}

/// Writes an executable script.
pub(super) fn write_script(path: &Path, script: &str) -> Result<(), EnvironmentError> {
    // Another process writes it: a fork of this one could hold the file open for writing when it is to be run.
    let written = std::process::Command::new("/bin/sh")
        .args(["-c", "printf %s \"$1\" > \"$2\" && chmod 700 \"$2\"", "sh", script])
        .arg(path)
        .status()
        .map_err(failed("write a script"))?;
    if written.success() { Ok(()) } else { Err(failed("write a script")(io::ErrorKind::Other.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_service_runs_another_program_and_is_otherwise_as_it_is_shipped() {
        let mut proxy = Command::new("/somewhere/it's here");
        proxy.args(["--target", "a b"]);
        let script = service_that_runs(&proxy).unwrap();
        let (said, run) = script.trim_end().rsplit_once('\n').unwrap();
        assert_eq!(run, r"exec '/somewhere/it'\''s here' '--target' 'a b'");
        assert!(SERVICE.starts_with(said) && said.starts_with("#!/bin/sh\n"), "{script}");
    }
}
