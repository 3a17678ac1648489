//! The processes of an environment, as the kernel lists them: whether one is left is asked of nobody who could be wrong.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

/// How often to look again. Nobody is told of the end of a process that is not its child.
const PAUSE: Duration = Duration::from_millis(20);

/// The children of a process, those that have ended and were not waited for included.
///
/// # Errors
/// The operating system's, among others when there is no such process.
pub fn children(pid: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended in between.
        let list = std::fs::read_to_string(entry?.path().join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
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
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that has ended meanwhile, or that waits to be waited for, has no variables.
        let variables = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if variables.windows(wanted.len().max(1)).any(|window| window == wanted) {
            found.push(pid);
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
    use std::process::{Command, Stdio};

    use super::*;

    #[tokio::test]
    async fn a_process_is_found_by_its_parent_and_by_its_variables_until_it_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let named = directory.path().join("sd-app");
        let mut child = Command::new("/bin/cat").env("SOME_HOME", &named).stdin(Stdio::piped()).spawn().unwrap();
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
