//! The processes of an environment, as the kernel lists them: whether one is left is asked of nobody who could be wrong.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

/// How often to look again. Nobody is told of the end of a process that is not its child.
const PAUSE: Duration = Duration::from_millis(20);

/// The children of a process, those that have ended and were not waited for included. Each process is asked for its
/// parent: the kernel's own list of children leaves some out while others end.
///
/// # Errors
/// The operating system's, where the processes cannot be listed.
pub fn children(pid: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for (process, directory) in all()? {
        // It may have ended in between.
        let Ok(state) = std::fs::read_to_string(directory.join("stat")) else { continue };
        // The name, which stands in parentheses and may hold any, is followed by the state and the parent.
        let Some((_, after)) = state.rsplit_once(')') else { continue };
        if after.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()) == Some(pid) {
            found.push(process);
        }
    }
    Ok(found)
}

/// The running processes in whose variables `directory` stands, as an environment's own directory does with each of its
/// programs. Processes of other users are not looked at.
///
/// # Errors
/// The operating system's, where the processes cannot be listed.
pub fn with_directory(directory: &Path) -> io::Result<Vec<u32>> {
    let wanted = directory.as_os_str().as_bytes();
    let mut found = Vec::new();
    for (process, directory) in all()? {
        // One that has ended meanwhile, or that waits to be waited for, has no variables.
        let variables = std::fs::read(directory.join("environ")).unwrap_or_default();
        if variables.windows(wanted.len().max(1)).any(|window| window == wanted) {
            found.push(process);
        }
    }
    Ok(found)
}

/// All processes, with what the kernel says of each.
fn all() -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        if let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push((process, entry.path()));
        }
    }
    Ok(found)
}

/// Waits until `list` lists no process; gives those that are left after `bound`.
///
/// # Errors
/// Those of `list`.
pub async fn until_none(bound: Duration, list: impl Fn() -> io::Result<Vec<u32>>) -> io::Result<Vec<u32>> {
    let until = Instant::now() + bound;
    loop {
        let left = list()?;
        if left.is_empty() || Instant::now() >= until {
            return Ok(left);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[tokio::test]
    async fn a_process_is_found_by_its_parent_and_by_its_variables_until_it_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let named = directory.path().join("sd-app");
        let mut command = Command::new("/bin/cat");
        command.env("SOME_HOME", &named).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Whoever starts a program goes on before the kernel knows its variables; one that answers has them.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert!(children(std::process::id()).unwrap().contains(&child.id()));
        assert_eq!(with_directory(directory.path()).unwrap(), [child.id()]);
        assert_eq!(until_none(Duration::ZERO, || with_directory(directory.path())).await.unwrap(), [child.id()]);
        drop(child.stdin.take());
        let left = until_none(Duration::from_secs(60), || with_directory(directory.path())).await.unwrap();
        assert_eq!(left, [] as [u32; 0]);
        child.wait().unwrap();
        assert!(!children(std::process::id()).unwrap().contains(&child.id()));
    }
}
