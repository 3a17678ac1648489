//! Reaches the daemon, and starts one if asked to.

use std::process::Stdio;
use std::time::Duration;

use control::client::{Client, ClientError};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::exit::CliError;
use crate::daemon::READY;
use crate::settings::Settings;

/// How long a started daemon may take until it listens.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// How much of a failed daemon's message is shown, in bytes.
const MAX_MESSAGE: u64 = 4096;

pub(super) async fn connect(settings: &Settings, start: bool) -> Result<Client, CliError> {
    match Client::connect(&settings.socket).await {
        Err(ClientError::NoDaemon { .. }) if start => {
            start_daemon(settings).await?;
            Ok(Client::connect(&settings.socket).await?)
        }
        result => Ok(result?),
    }
}

/// Starts a daemon of the same settings and waits until it listens. It gets a process group of its own, so that it
/// outlives this command and its terminal's Ctrl-C. Its log is a file, since nobody reads its standard error later.
async fn start_daemon(settings: &Settings) -> Result<(), CliError> {
    let log_file = settings.log_file.clone().unwrap_or_else(|| settings.home.join("daemon.log"));
    let mut daemon = Command::new(std::env::current_exe()?)
        .arg("daemon")
        .arg("--socket")
        .arg(&settings.socket)
        .arg("--log-file")
        .arg(log_file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let output = daemon.stdout.take().map(BufReader::new);
    let ready = async {
        match output {
            Some(output) => output.lines().next_line().await,
            None => Ok(None),
        }
    };
    match tokio::time::timeout(START_DEADLINE, ready).await {
        Ok(Ok(Some(line))) if line.starts_with(READY) => Ok(()),
        Ok(_) => Err(CliError::NotStarted(last_words(&mut daemon).await)),
        Err(_) => Err(CliError::NotStarted(format!("it does not listen after {} s", START_DEADLINE.as_secs()))),
    }
}

/// What a daemon that has ended said.
async fn last_words(daemon: &mut Child) -> String {
    let mut words = Vec::new();
    if let Some(stderr) = daemon.stderr.take() {
        // A message that breaks off is still worth showing.
        let _ = stderr.take(MAX_MESSAGE).read_to_end(&mut words).await;
    }
    String::from_utf8_lossy(&words).trim().trim_start_matches("splitdrop: ").to_owned()
}
