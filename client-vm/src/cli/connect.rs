//! Reaches the daemon, and starts one if asked to.

use std::process::Stdio;
use std::time::Duration;

use control::client::{Client, ClientError};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::exit::{CliError, Exit};
use crate::daemon::READY;
use crate::settings::Settings;

/// How long a started daemon may take until it listens, whoever has started it.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// How often it is looked for meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How much of a failed daemon's message is shown, in bytes.
const MAX_MESSAGE: u64 = 4096;

pub(super) async fn connect(settings: &Settings, start: bool) -> Result<Client, CliError> {
    match Client::connect(&settings.socket).await {
        Err(ClientError::NoDaemon { .. }) if start => {}
        result => return Ok(result?),
    }
    match wait_until_ready(spawn_daemon(settings)?, START_DEADLINE).await {
        Ok(()) => Ok(Client::connect(&settings.socket).await?),
        // Somebody else may have started one at the same time.
        Err(NotReady { words, another_runs }) => {
            let patience = if another_runs { START_DEADLINE } else { Duration::ZERO };
            others_daemon(settings, patience).await.ok_or(CliError::NotStarted(words))
        }
    }
}

/// The daemon that somebody else starts, if it listens in time.
async fn others_daemon(settings: &Settings, patience: Duration) -> Option<Client> {
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        match Client::connect(&settings.socket).await {
            Ok(client) => return Some(client),
            Err(ClientError::NoDaemon { .. }) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(_) => return None,
        }
    }
}

/// Starts a daemon of the same settings. It gets a process group of its own, so that it outlives this command and its
/// terminal's Ctrl-C. Its log is a file, since nobody reads its standard error later.
fn spawn_daemon(settings: &Settings) -> Result<Child, CliError> {
    let log_file = settings.log_file.clone().unwrap_or_else(|| settings.home.join("daemon.log"));
    let daemon = Command::new(std::env::current_exe()?)
        .arg("daemon")
        .arg("--socket")
        .arg(&settings.socket)
        .arg("--log-file")
        .arg(log_file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // As the unit of systemd has it: glibc's many heaps would take twice the memory.
        .env("MALLOC_ARENA_MAX", "2")
        .process_group(0)
        .spawn()?;
    Ok(daemon)
}

/// A daemon that was started does not listen, and has ended.
#[derive(Debug)]
struct NotReady {
    words: String,
    /// It ended because another one has its data directory or its socket.
    another_runs: bool,
}

/// Waits until a started daemon listens. One that does not in time is ended.
async fn wait_until_ready(mut daemon: Child, deadline: Duration) -> Result<(), NotReady> {
    let output = daemon.stdout.take().map(BufReader::new);
    let ready = async {
        match output {
            Some(output) => output.lines().next_line().await,
            None => Ok(None),
        }
    };
    match tokio::time::timeout(deadline, ready).await {
        Ok(Ok(Some(line))) if line.starts_with(READY) => Ok(()),
        Ok(_) => {
            let words = last_words(&mut daemon).await;
            let code = daemon.wait().await.ok().and_then(|status| status.code());
            Err(NotReady { words, another_runs: code == Some(Exit::AlreadyRunning as i32) })
        }
        Err(_) => {
            let ended = if daemon.kill().await.is_ok() { "it was ended" } else { "it could not be ended" };
            let words = format!("it did not listen after {} s, and {ended}", deadline.as_secs());
            Err(NotReady { words, another_runs: false })
        }
    }
}

/// What a daemon that has ended said, in one line.
async fn last_words(daemon: &mut Child) -> String {
    let mut words = Vec::new();
    if let Some(stderr) = daemon.stderr.take() {
        // A message that breaks off is still worth showing.
        let _ = stderr.take(MAX_MESSAGE).read_to_end(&mut words).await;
    }
    let words = String::from_utf8_lossy(&words);
    let lines: Vec<_> = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").trim_start_matches("splitdrop: ").to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A shell script in a started daemon's place.
    fn daemon(script: &str) -> Child {
        Command::new("/bin/sh")
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap()
    }

    #[tokio::test]
    async fn a_daemon_that_does_not_listen_in_time_is_ended() {
        let stuck = daemon("exec tail -f /dev/null");
        let process = format!("/proc/{}", stuck.id().unwrap());
        let error = wait_until_ready(stuck, Duration::from_millis(1)).await.unwrap_err();
        assert!(error.words.contains("it was ended") && !error.another_runs, "{error:?}");
        assert!(!Path::new(&process).exists(), "it is still there");
    }

    #[tokio::test]
    async fn a_daemon_that_ends_is_heard_in_one_line_and_whether_another_runs() {
        let deadline = Duration::from_secs(60);
        let error = wait_until_ready(daemon("printf 'splitdrop: one\\n\\n two\\n' >&2; exit 9"), deadline).await;
        let error = error.unwrap_err();
        assert_eq!((error.words.as_str(), error.another_runs), ("one; two", true));
        let error = wait_until_ready(daemon("exit 1"), deadline).await.unwrap_err();
        assert_eq!((error.words.as_str(), error.another_runs), ("", false));
        wait_until_ready(daemon("echo listening on a socket"), deadline).await.unwrap();
    }
}
