//! GnuPG homes, what stands in for `qubes-gpg-client`, and the backends over them.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use client_vm::openpgp::decrypt::{DecryptError, Decryptor, KeyFile, Limits, SplitGpg};
use sequoia_openpgp::Cert;
use sequoia_openpgp::parse::Parse as _;
use sequoia_openpgp::serialize::SerializeInto as _;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Long enough for whatever a test waits for, and short enough to see that it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the test is to be left out. A missing tool fails it otherwise.
pub(crate) fn is_skipped(tool: &str, package: &str) -> bool {
    if std::env::var("SPLITDROP_SKIP").unwrap_or_default().split(',').any(|name| name == tool) {
        return true;
    }
    let there = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    assert!(there, "{tool} is missing: apt-get install {package}");
    false
}

/// The newsroom's keys, which protect nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Rsa4096,
    Curve25519,
}

impl Key {
    pub(crate) fn path(self) -> PathBuf {
        let name = match self {
            Self::Rsa4096 => "newsroom-rsa4096.asc",
            Self::Curve25519 => "newsroom-curve25519.asc",
        };
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/keys").join(name)
    }

    pub(crate) fn cert(self) -> Cert {
        Cert::from_file(self.path()).unwrap()
    }

    pub(crate) fn fingerprint(self) -> String {
        self.cert().fingerprint().to_hex()
    }

    /// The id of the subkey that messages are encrypted to.
    pub(crate) fn id(self) -> String {
        self.cert().keys().subkeys().next().unwrap().key().keyid().to_hex()
    }

    pub(crate) fn file(self) -> KeyFile {
        KeyFile::new(self.path())
    }
}

/// A GnuPG home directory, with whatever GnuPG started in it.
#[derive(Debug)]
pub(crate) struct Gpg {
    home: TempDir,
    programs: AtomicUsize,
}

impl Gpg {
    /// An empty one. Its path is short, since an agent's socket is in it.
    pub(crate) fn new() -> Self {
        let home = tempfile::Builder::new().prefix("sd").tempdir_in("/tmp").unwrap();
        Self { home, programs: AtomicUsize::new(0) }
    }

    /// One with the public halves of the newsroom's keys.
    pub(crate) fn with_public_keys() -> Self {
        let gpg = Self::new();
        for key in [Key::Rsa4096, Key::Curve25519] {
            gpg.run(&["--import"], &key.cert().strip_secret_key_material().to_vec().unwrap());
        }
        gpg
    }

    /// One with the newsroom's keys.
    pub(crate) fn with_secret_keys() -> Self {
        let gpg = Self::new();
        for key in [Key::Rsa4096, Key::Curve25519] {
            gpg.run(&["--import"], &std::fs::read(key.path()).unwrap());
        }
        gpg
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Runs GnuPG, which has to succeed.
    pub(crate) fn run(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let mut command = Command::new("gpg");
        command.arg("--homedir").arg(self.home()).args(["--batch", "--no-tty", "--trust-model", "always"]);
        let output = feed(command.args(arguments), input);
        assert!(output.status.success(), "gpg {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Encrypts to `key`, which has to be there.
    pub(crate) fn encrypt(&self, key: Key, arguments: &[&str], plaintext: &[u8]) -> Vec<u8> {
        let recipient = key.fingerprint();
        self.run(&[arguments, &["--encrypt", "--recipient", &recipient]].concat(), plaintext)
    }

    /// What stands in for `qubes-gpg-client`, with this home as that of the key's VM.
    pub(crate) fn split(&self) -> SplitGpg {
        let allowed = r#"
            [ -n "$QUBES_GPG_DOMAIN" ] || { echo "ERROR: Destination domain not defined! Set it." >&2; exit 1; }
            for argument in "$@"; do
                case $argument in
                --batch | --status-fd | 2 | --decrypt | --with-colons | --list-secret-keys | --export) ;;
                --* | -?) echo "Forbidden option: $argument" >&2; exit 1 ;;
                esac
            done"#;
        self.client(&format!(
            "{allowed}\nexec gpg --homedir '{}' --no-tty --disable-dirmngr --batch --exit-on-status-write-error \"$@\"",
            self.home().display()
        ))
    }

    /// A program in the place of `qubes-gpg-client`, as a shell's script.
    pub(crate) fn client(&self, script: &str) -> SplitGpg {
        SplitGpg::new(Some("sd-gpg".parse().unwrap())).program(self.program(script)).patience(PATIENCE)
    }

    /// A program, as a shell's script.
    pub(crate) fn program(&self, script: &str) -> PathBuf {
        let path = self.home().join(format!("program-{}", self.programs.fetch_add(1, Ordering::SeqCst)));
        // Another process writes it: as long as this one has it open for writing, so has each child of another test, and
        // it cannot be started.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "cat >\"$0\" && chmod 700 \"$0\""]).arg(&path);
        assert!(feed(&mut command, format!("#!/bin/sh\n{script}\n").as_bytes()).status.success());
        path
    }

    /// Has the agent forget the passphrases that it was given.
    #[cfg(feature = "gpg-agent")]
    pub(crate) fn forget_passphrases(&self) {
        self.gpgconf(&["--reload", "gpg-agent"]);
    }

    /// Ends the agent.
    pub(crate) fn end_agent(&self) {
        self.gpgconf(&["--kill", "gpg-agent"]);
    }

    fn gpgconf(&self, arguments: &[&str]) {
        let ended = Command::new("gpgconf").arg("--homedir").arg(self.home()).args(arguments).status();
        assert!(ended.unwrap().success() || std::thread::panicking(), "gpgconf {arguments:?}");
    }
}

impl Drop for Gpg {
    fn drop(&mut self) {
        self.gpgconf(&["--kill", "all"]);
    }
}

fn feed(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // Whether it takes all of it is its own affair.
        scope.spawn(move || drop(pipe.write_all(input)));
        child.wait_with_output().unwrap()
    })
}

/// A file with this content, at its beginning.
pub(crate) fn file(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file
}

/// Decrypts within the usual limits.
pub(crate) fn decrypt(decryptor: &dyn Decryptor, message: &[u8]) -> Result<Vec<u8>, DecryptError> {
    decrypt_within(decryptor, message, &Limits::default())
}

pub(crate) fn decrypt_within(
    decryptor: &dyn Decryptor,
    message: &[u8],
    limits: &Limits,
) -> Result<Vec<u8>, DecryptError> {
    let mut plaintext = Vec::new();
    let decrypted = decryptor.decrypt(file(message), &mut plaintext, limits, &CancellationToken::new());
    assert!(u64::try_from(plaintext.len()).unwrap() <= limits.bytes);
    decrypted.map(|decrypted| {
        assert_eq!(decrypted.bytes, u64::try_from(plaintext.len()).unwrap());
        plaintext
    })
}
