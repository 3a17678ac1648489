//! GnuPG in the place of the key's VM: a home directory with the newsroom's key, and what stands in for `qubes-gpg-client`.
//!
//! **Invariant:** what GnuPG started in the home directory ends with it.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use sequoia_openpgp::Cert;
use sequoia_openpgp::parse::Parse as _;
use sequoia_openpgp::serialize::SerializeInto as _;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::super::BenchError;
use crate::generator::NewsroomKey;

/// What stands in for `qubes-gpg-client`: takes the options that the client uses, and no other, notes the call, and runs
/// GnuPG with those that split-gpg's server adds.
const CLIENT: &str = r#"#!/bin/sh
PATH=/usr/local/bin:/usr/bin:/bin
export PATH
for word; do
    case $word in
    --batch | --status-fd | 2 | --decrypt | --export | --list-secret-keys | --with-colons) ;;
    *[!0-9A-F]*) echo "not let through: $word" >&2; exit 1 ;;
    esac
done
here=${0%/*}
echo "$*" >>"$here/calls"
exec gpg --homedir "$here/home" --no-tty --disable-dirmngr --exit-on-status-write-error "$@"
"#;

/// What gpg-agent writes to its log for each command of this kind that a client gives: it decrypts one session key.
const DECRYPTS: &str = " <- PKDECRYPT";

/// GnuPG's home directory, and what stands beside it. None of it can be used before the key is imported.
#[derive(Debug)]
pub(super) struct Gnupg {
    directory: TempDir,
}

impl Gnupg {
    /// Whether GnuPG is on this machine.
    pub(super) async fn is_here() -> bool {
        let found = Command::new("gpg").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().await;
        found.is_ok_and(|status| status.success())
    }

    /// Without a home directory yet, and with the newsroom's public key. The path is short, since an agent's socket is in
    /// it.
    pub(super) fn new() -> Result<Self, BenchError> {
        let gnupg = Self { directory: tempfile::Builder::new().prefix("sd").tempdir_in("/tmp")? };
        let public = Cert::from_bytes(NewsroomKey::default().secret_armor())
            .and_then(|key| key.strip_secret_key_material().armored().to_vec())
            .map_err(|error| BenchError::Otherwise(format!("the newsroom's key cannot be read: {error}")))?;
        std::fs::write(gnupg.public_key(), public)?;
        Ok(gnupg)
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn client(&self) -> PathBuf {
        self.directory.path().join("qubes-gpg-client")
    }

    fn public_key(&self) -> PathBuf {
        self.directory.path().join("newsroom.asc")
    }

    fn agent_log(&self) -> PathBuf {
        self.directory.path().join("agent.log")
    }

    /// The client's settings with which it calls the stand-in.
    pub(super) fn split_gpg_table(&self) -> String {
        format!("[openpgp]\nbackend = \"split-gpg\"\ngpg_client = \"{}\"\n", self.client().display())
    }

    /// The client's settings with which it speaks to the agent.
    pub(super) fn agent_table(&self) -> String {
        let (home, key) = (self.home(), self.public_key());
        format!(
            "[openpgp]\nbackend = \"gpg-agent\"\ngnupg_home = \"{}\"\nsubmission_key = \"{}\"\n",
            home.display(),
            key.display()
        )
    }

    /// Makes the home directory, with this key.
    pub(super) async fn import(&self, key: &str) -> Result<(), BenchError> {
        std::fs::DirBuilder::new().mode(0o700).create(self.home())?;
        // The agent notes every command that it is given. No secret that is worth one goes through it.
        let agent = format!("debug ipc\nlog-file {}\n", self.agent_log().display());
        std::fs::write(self.home().join("gpg-agent.conf"), agent)?;
        let mut gpg = Command::new("gpg");
        gpg.arg("--homedir").arg(self.home()).args(["--batch", "--no-tty", "--quiet", "--import"]);
        feed(&mut gpg, key).await
    }

    /// Writes what stands in for `qubes-gpg-client`.
    pub(super) async fn write_client(&self) -> Result<(), BenchError> {
        // Another process writes it: a fork of this one could hold the file open for writing when it is to be run.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "cat >\"$0\" && chmod 700 \"$0\""]).arg(self.client());
        feed(&mut shell, CLIENT).await
    }

    /// How often the agent was told to decrypt a session key, as its log says.
    pub(super) fn agent_calls(&self) -> Result<usize, BenchError> {
        let log = std::fs::read(self.agent_log())?;
        let calls = String::from_utf8_lossy(&log).lines().filter(|line| line.trim_end().ends_with(DECRYPTS)).count();
        match calls {
            0 => Err(BenchError::Otherwise("gpg-agent has decrypted, and its log does not say so".to_owned())),
            calls => Ok(calls),
        }
    }

    /// How often the stand-in was called.
    pub(super) fn calls(&self) -> io::Result<usize> {
        Ok(std::fs::read_to_string(self.directory.path().join("calls"))?.lines().count())
    }
}

impl Drop for Gnupg {
    fn drop(&mut self) {
        let mut gpgconf = std::process::Command::new("gpgconf");
        gpgconf.arg("--homedir").arg(self.home()).args(["--kill", "all"]);
        // Where the agent stays in spite of it, it sees that its home directory is gone, and ends.
        let _ = gpgconf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Runs a program that reads this, and has to succeed.
async fn feed(command: &mut Command, input: &str) -> Result<(), BenchError> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).await?;
    }
    let ended = child.wait_with_output().await?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
    Err(BenchError::Otherwise(format!("the key could not be made reachable: {said}")))
}
