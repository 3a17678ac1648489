//! GnuPG with a home of its own, at a time of its own.

use std::io::Write as _;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A home for GnuPG, which takes its agent with it when it goes.
pub(crate) struct Home {
    directory: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        // The agent's socket has a path of at most 107 bytes.
        let directory = tempfile::Builder::new().prefix("sd-").tempdir_in("/tmp").unwrap();
        Self { directory }
    }

    /// Runs gpg when it was `time` (`20130514T000000`), with something to read, and gives what it printed.
    pub(crate) fn run(&self, time: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let mut command = Command::new("gpg");
        command.arg("--homedir").arg(self.directory.path());
        command.args([
            "--yes",
            "--no-tty",
            "--quiet",
            "--no-greeting",
            "--pinentry-mode",
            "loopback",
            "--passphrase",
            "",
        ]);
        command.args(["--no-auto-check-trustdb", "--trust-model", "always", "--faked-system-time", time]);
        command.args(arguments).env("LC_ALL", "C");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("gpg does not start ({error}): apt-get install gnupg, or set SPLITDROP_SKIP=gpg"),
        };
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            // It may print before it has read everything. If it does not read, its exit code says so.
            scope.spawn(move || stdin.write_all(input));
            let output = child.wait_with_output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "gpg {arguments:?}: {errors}");
            output.stdout
        })
    }

    /// Makes a key by gpg's parameters, without a passphrase, and gives its fingerprint.
    pub(crate) fn make(&self, time: &str, options: &[&str], parameters: &str) -> String {
        let parameters = format!("%no-protection\n%transient-key\n{parameters}\n%commit\n");
        self.run(time, &[options, &["--batch", "--full-generate-key"]].concat(), parameters.as_bytes());
        let listed = self.run(time, &["--batch", "--with-colons", "--list-keys"], b"");
        let listed = String::from_utf8(listed).unwrap();
        // The last primary key's, whose line follows its own.
        let mut fingerprint = None;
        let mut after_primary = false;
        for line in listed.lines() {
            if after_primary && line.starts_with("fpr:") {
                fingerprint = line.split(':').nth(9).map(str::to_owned);
            }
            after_primary = line.starts_with("pub:");
        }
        fingerprint.unwrap()
    }

    /// The public key.
    pub(crate) fn exported(&self, time: &str, fingerprint: &str) -> Vec<u8> {
        self.run(time, &["--batch", "--export", fingerprint], b"")
    }

    /// The revocation that gpg makes with each key, as it would be imported.
    pub(crate) fn revocation(&self, fingerprint: &str) -> Vec<u8> {
        let path = self.directory.path().join("openpgp-revocs.d").join(format!("{fingerprint}.rev"));
        // A colon keeps it from being imported by mistake.
        std::fs::read_to_string(path).unwrap().replace(":-----BEGIN", "-----BEGIN").into_bytes()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let killed =
            Command::new("gpgconf").arg("--homedir").arg(self.directory.path()).args(["--kill", "all"]).status();
        // While a test fails already, a second panic would hide why.
        if !std::thread::panicking() {
            assert!(killed.unwrap().success(), "gpg-agent stays behind");
        }
    }
}
