//! The private key in another VM, behind split-gpg: `qubes-gpg-client` runs GnuPG there, and what it decrypts comes here.
//!
//! **Invariant:** this VM never has the private key nor a session key.
//!
//! **Invariant:** whether a message was decrypted is told by GnuPG's status lines together with the exit code, never by
//! what came out.
//!
//! What `qubes-gpg-client` does not let through (`--no-tty`, `--output FILE`, `--skip-verify`) is not used. It ends with 1
//! when its qrexec call fails, whatever qrexec's own exit code was; of a refusal it repeats what qrexec says.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use protocol::value::Fingerprint;
use qubes_rpc::name::VmName;
use tokio_util::sync::CancellationToken;

use super::envelope::{Envelope, Protection};
use super::process::{Listener, Program};
use super::sink::Sink;
use super::status::{Alarm, Status};
use super::{DecryptError, Decrypted, Decryptor, Limits, PATIENCE, Unavailable, fingerprint};

/// The program of split-gpg's client side.
const PROGRAM: &str = "/usr/bin/qubes-gpg-client";
/// The environment variable that names the VM with the key.
const DOMAIN: &str = "QUBES_GPG_DOMAIN";
/// How long GnuPG may take between two blocks of plaintext once it has the session key: nobody is asked and nothing is
/// waited for any more. It unpacks more than 100 MB/s, and lets any number of bytes be hidden in a small message.
const UNPACKING: Duration = Duration::from_secs(60);
/// The longest list of keys, and the longest key, in bytes.
const MAX_ANSWER: usize = 4 << 20;

/// The private key behind split-gpg.
#[derive(Debug, Clone)]
pub struct SplitGpg {
    program: PathBuf,
    domain: Option<VmName>,
    patience: Duration,
}

impl SplitGpg {
    /// The key in the VM `domain`; without one it is for the environment variable `QUBES_GPG_DOMAIN` to name it.
    #[must_use]
    pub fn new(domain: Option<VmName>) -> Self {
        Self { program: PROGRAM.into(), domain, patience: PATIENCE }
    }

    /// With another program in the place of `/usr/bin/qubes-gpg-client`.
    #[must_use]
    pub fn program(self, program: PathBuf) -> Self {
        Self { program, ..self }
    }

    /// With another limit to how long there may be no sign of life. It has to allow for the start of a VM and for a
    /// question in dom0 or in the key's VM.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    fn call(&self, arguments: &[&str]) -> Program {
        Program {
            path: self.program.clone(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: self.domain.iter().map(|domain| (DOMAIN, domain.as_str().into())).collect(),
            patience: self.patience,
        }
    }

    /// Asks something else than to decrypt; nothing when GnuPG was asked and has nothing to give.
    fn ask(&self, arguments: &[&str], stop: &CancellationToken) -> Result<Vec<u8>, DecryptError> {
        let mut answer = Answer { bytes: Vec::new(), status: Status::default() };
        let ended = self.call(arguments).run(&mut io::empty(), &mut answer, stop)?;
        if ended.status.success() || (answer.status.has_spoken() && answer.bytes.is_empty()) {
            Ok(answer.bytes)
        } else {
            Err(answer.status.explain(ended.status, &[]))
        }
    }
}

impl Decryptor for SplitGpg {
    fn name(&self) -> &'static str {
        "split-gpg"
    }

    fn decrypt(
        &self,
        ciphertext: File,
        plaintext: &mut (dyn Write + Send),
        limits: &Limits,
        stop: &CancellationToken,
    ) -> Result<Decrypted, DecryptError> {
        let Envelope { recipients, protection, length, mut body, findings } = Envelope::open(ciphertext)?;
        let mut conversation = Conversation {
            sink: Sink::new(plaintext, limits.of(length), stop),
            status: Status::default(),
            layers: limits.layers,
            unpacking: UNPACKING.min(self.patience / 2),
            patience: self.patience,
        };
        // Not quietly: GnuPG keeps back then which keys are missing.
        let call = self.call(&["--batch", "--status-fd", "2", "--decrypt"]);
        let ended = call.run(&mut body, &mut conversation, stop);
        if let Some(fault) = findings.take_fault() {
            return Err(fault);
        }
        let ended = ended?;
        let Conversation { sink, status, .. } = conversation;
        if ended.fed && findings.complete() && status.is_good(ended.status) {
            return sink.finish();
        }
        match (status.explain(ended.status, &recipients), protection) {
            (DecryptError::Corrupt(_), Protection::Aead) => {
                Err(DecryptError::Unsupported("authenticated encryption, unless the message is damaged"))
            }
            (DecryptError::Corrupt(_), Protection::GnupgAead) => {
                Err(DecryptError::Unsupported("GnuPG's own authenticated encryption, unless the message is damaged"))
            }
            (error, _) => Err(error),
        }
    }

    fn secret_keys(&self, stop: &CancellationToken) -> Result<BTreeSet<Fingerprint>, DecryptError> {
        let list = self.ask(&["--batch", "--status-fd", "2", "--with-colons", "--list-secret-keys"], stop)?;
        Ok(listed(&String::from_utf8_lossy(&list)))
    }

    fn public_key(&self, wanted: &Fingerprint, stop: &CancellationToken) -> Result<Vec<u8>, DecryptError> {
        let key = self.ask(&["--batch", "--status-fd", "2", "--export", wanted.as_str()], stop)?;
        if key.is_empty() { Err(DecryptError::NoPublicKey(wanted.clone())) } else { Ok(key) }
    }
}

/// The keys in a list of secret keys whose secret half is there. Fields: GnuPG's doc/DETAILS, "Format of the colon
/// listings".
fn listed(list: &str) -> BTreeSet<Fingerprint> {
    let mut keys = BTreeSet::new();
    let mut secret = false;
    for line in list.lines() {
        let mut fields = line.split(':');
        match fields.next() {
            // In the 15th field `#` is a key whose secret half is elsewhere.
            Some("sec" | "ssb") => secret = fields.nth(13) != Some("#"),
            Some("fpr") if secret => keys.extend(fields.nth(8).and_then(fingerprint)),
            _ => {}
        }
    }
    keys
}

/// Plaintext, and what GnuPG says about it.
struct Conversation<'a> {
    sink: Sink<'a>,
    status: Status,
    layers: u32,
    /// How long GnuPG may unpack without a sign of life.
    unpacking: Duration,
    /// How long it may be silent where somebody may be asked.
    patience: Duration,
}

impl Listener for Conversation<'_> {
    fn output(&mut self, block: &[u8]) -> Result<(), DecryptError> {
        self.sink.write(block)
    }

    fn talk(&mut self, block: &[u8]) -> Result<bool, DecryptError> {
        let before = self.status.progress();
        match self.status.feed(block) {
            Some(Alarm::Passphrase) => Err(DecryptError::ForPassphrase),
            Some(Alarm::Layers(layers)) if layers > self.layers => Err(DecryptError::TooDeep { limit: self.layers }),
            // The packets inside can have GnuPG say much.
            Some(Alarm::Layers(_)) | None => Ok(!self.status.has_opened() || self.status.progress() != before),
        }
    }

    /// Once a layer is open, it is the message that keeps GnuPG silent: a session key's packet inside need not be followed by
    /// a question to anybody.
    fn limit(&self) -> Option<(Duration, DecryptError)> {
        let limit = if self.status.is_working() { self.unpacking } else { self.patience };
        self.status.has_opened().then_some((limit, DecryptError::Stalled(limit)))
    }
}

/// An answer that is kept.
struct Answer {
    bytes: Vec<u8>,
    status: Status,
}

impl Listener for Answer {
    fn output(&mut self, block: &[u8]) -> Result<(), DecryptError> {
        if self.bytes.len().saturating_add(block.len()) > MAX_ANSWER {
            return Err(Unavailable::Answer.into());
        }
        self.bytes.extend_from_slice(block);
        Ok(())
    }

    fn talk(&mut self, block: &[u8]) -> Result<bool, DecryptError> {
        // Nothing that raises an alarm is asked for.
        let _ = self.status.feed(block);
        Ok(true)
    }
}
