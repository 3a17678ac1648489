//! Commands of the client, run to their end.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// How long a command may take: a bound for what hangs, not a measure.
pub(super) const DEADLINE: Duration = Duration::from_secs(300);

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it said besides.
    pub stderr: String,
}

/// Why a command has no end to tell of.
#[derive(Debug)]
pub(super) enum Failed {
    /// The operating system said so.
    Io {
        /// What was being done.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// It did not end in time, and was killed.
    Hangs,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Failed {
    move |source| Failed::Io { what, source }
}

/// Runs a client's command to its end, and kills it where it has none within `bound`.
pub(super) async fn to_its_end(mut command: Command, input: &str, bound: Duration) -> Result<Output, Failed> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed("start a command"))?;
    let ended = async {
        if let Some(mut stdin) = child.stdin.take() {
            // A command that reads nothing may be gone already.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await.map_err(failed("wait for a command"))
    };
    let output = tokio::time::timeout(bound, ended).await.map_err(|_| Failed::Hangs)??;
    Ok(Output {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes;

    fn shell(line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).kill_on_drop(true);
        command
    }

    #[tokio::test]
    async fn a_command_is_given_its_input_and_heard_to_its_end() {
        let output = to_its_end(shell("cat; echo so >&2; exit 4"), "said", DEADLINE).await.unwrap();
        assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (Some(4), "said", "so\n"));
    }

    #[tokio::test]
    async fn a_command_without_an_end_is_given_up_and_killed() {
        let home = tempfile::tempdir().unwrap();
        let mut command = shell("exec tail -f /dev/null");
        command.env("SOME_HOME", home.path());
        let ended = to_its_end(command, "", Duration::from_millis(50)).await;
        assert!(matches!(ended, Err(Failed::Hangs)), "{ended:?}");
        let left = processes::until_none(DEADLINE, || processes::with_directory(home.path())).await.unwrap();
        assert_eq!(left, [] as [u32; 0]);
    }
}
