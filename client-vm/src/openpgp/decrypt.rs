//! The way to the private key: decrypts one message.
//!
//! A [`Decryptor`] is one of the places where the private key may be: a key file here (staging only), another VM behind
//! split-gpg, or an agent, which may be in another VM behind split-gpg2. All of them block.
//!
//! What a message is taken apart into, and whether it came whole, is found out here for every backend alike (`envelope`):
//! a message that nobody could decrypt, or that nothing protects, is refused before anybody is asked.
//!
//! **Invariant:** `Ok` means that the message was read to its end, that its integrity was checked, and that nothing
//! follows it. Whatever was written before an error is to be thrown away.
//!
//! **Invariant:** no error holds plaintext, a file name, a passphrase or a session key.

mod envelope;
#[cfg(feature = "gpg-agent")]
mod gpg_agent;
mod gpg_error;
mod key_file;
mod packets;
mod process;
mod sequoia;
mod sink;
mod split_gpg;
mod status;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use protocol::value::Fingerprint;
use tokio_util::sync::CancellationToken;

pub use crate::limits::Limits;

#[cfg(feature = "gpg-agent")]
pub use self::gpg_agent::GpgAgent;
pub use self::key_file::KeyFile;
pub use self::split_gpg::SplitGpg;

/// How many recipients are named at most.
const MAX_NAMED: usize = 32;
/// How long a backend may show no sign of life: another VM takes up to 40 s to start, and somebody may be asked.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Decrypts messages by a private key that is somewhere. One call at a time makes one call of another VM at a time.
pub trait Decryptor: fmt::Debug + Send + Sync {
    /// Which backend this is, for status and logs: `gpg-agent`, `split-gpg` or `key-file`.
    fn name(&self) -> &'static str;

    /// Decrypts all of `ciphertext`, from where it stands, into `plaintext`. Blocks: to be called where that is allowed.
    /// `ciphertext` has to be a regular file. Stops soon after `stop` is cancelled.
    ///
    /// # Errors
    /// [`DecryptError`]. What was written to `plaintext` is to be thrown away then.
    fn decrypt(
        &self,
        ciphertext: File,
        plaintext: &mut (dyn Write + Send),
        limits: &Limits,
        stop: &CancellationToken,
    ) -> Result<Decrypted, DecryptError>;

    /// The fingerprints, of primary keys and of subkeys, whose secret half is there: when they change, a message without
    /// a secret key is worth another try. Blocks.
    ///
    /// # Errors
    /// [`DecryptError`].
    fn secret_keys(&self, stop: &CancellationToken) -> Result<BTreeSet<Fingerprint>, DecryptError>;

    /// The public key with this primary fingerprint, armored or not, as the backend has it. Blocks.
    ///
    /// # Errors
    /// [`DecryptError::NoPublicKey`] when it is not there, and the rest of [`DecryptError`].
    fn public_key(&self, fingerprint: &Fingerprint, stop: &CancellationToken) -> Result<Vec<u8>, DecryptError>;
}

/// A message was decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decrypted {
    /// How many bytes of plaintext were written.
    pub bytes: u64,
}

/// A message was not decrypted.
#[derive(Debug, thiserror::Error)]
pub enum DecryptError {
    /// None of the keys that it is encrypted to has its secret half here.
    #[error("no secret key for the message, which is encrypted to {}", named(.recipients))]
    NoSecretKey {
        /// The key ids or fingerprints, at most 32; none when the message hides them.
        recipients: Vec<String>,
    },
    /// It is encrypted to a passphrase only.
    #[error("the message is encrypted to a passphrase and to no key")]
    ForPassphrase,
    /// The secret key is protected by a passphrase, which a key file's may not be.
    #[error("the secret key is protected by a passphrase: a key file has to be without one")]
    Locked,
    /// There is no public key with that fingerprint.
    #[error("there is no public key {}", .0.as_str())]
    NoPublicKey(Fingerprint),
    /// Somebody, or dom0, said no.
    #[error("decryption was refused: {0}")]
    Denied(Denial),
    /// The secret key cannot be reached now.
    #[error("the secret key cannot be reached")]
    Unavailable(#[from] Unavailable),
    /// The ciphertext ends too early.
    #[error("the message was cut short")]
    Cut,
    /// The message is damaged.
    #[error("the message is damaged: {0}")]
    Corrupt(Corruption),
    /// Nothing protects the message from being changed.
    #[error("the message has no integrity protection: anybody may have changed it")]
    Unprotected,
    /// It is no encrypted OpenPGP message.
    #[error("this is no encrypted OpenPGP message")]
    NotEncrypted,
    /// The message is of a kind that this backend cannot read.
    #[error("the message uses what this backend cannot read: {0}")]
    Unsupported(&'static str),
    /// More would come out of it than is allowed.
    #[error("more than {limit} bytes would come out of the message")]
    TooLarge {
        /// The most that may come out of this message, in bytes.
        limit: u64,
    },
    /// It was open, and nothing came out of it any more.
    #[error("the key's VM had opened the message, and then unpacked it for {} s without a byte of it", .0.as_secs())]
    Stalled(Duration),
    /// It is packed too often.
    #[error("the message is encrypted or compressed more than {limit} times over")]
    TooDeep {
        /// How many layers are allowed.
        limit: u32,
    },
    /// The ciphertext could not be read.
    #[error("could not read the ciphertext")]
    Read(#[source] io::Error),
    /// The plaintext could not be written.
    #[error("could not write the plaintext")]
    Write(#[source] io::Error),
    /// It was stopped.
    #[error("decryption was stopped")]
    Cancelled,
}

/// Who said no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// dom0's policy or the person it asked; a VM that cannot start looks the same.
    #[error("dom0 refused the call, or the key's VM cannot start")]
    Dom0,
    /// The key's VM ended the call before it said anything: somebody there said no, or split-gpg is not set up there.
    #[error("the key's VM refused the call, or split-gpg is not set up there")]
    KeyVm,
    /// The question for the passphrase was cancelled, or answered wrongly, or by nobody.
    #[error("the passphrase was not given")]
    Passphrase,
}

/// Why the secret key cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The program that leads there could not be started or spoken to.
    #[error("could not run {}", .program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// No VM is named as the key's.
    #[error("no VM is set that has the key: QUBES_GPG_DOMAIN")]
    NoVm,
    /// qrexec failed, or the service is missing in the key's VM.
    #[error("the call of the key's VM failed (exit code {0})")]
    Qrexec(i32),
    /// The call ended without a result.
    #[error("the call ended without telling its result")]
    Ended,
    /// There was no sign of life.
    #[error("no sign of life for {} s", .0.as_secs())]
    Silent(Duration),
    /// The agent does not run, cannot be spoken to, or cannot ask for a passphrase.
    #[error("gpg-agent does not work: {0}")]
    Agent(&'static str),
    /// The agent failed in its own way.
    #[error("gpg-agent failed with code {0}")]
    AgentCode(u32),
    /// The key file could not be read.
    #[error("could not read the key file {}", .path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What should hold keys holds none.
    #[error("there is no OpenPGP key in what should hold some")]
    NoKeys,
    /// The answer makes no sense.
    #[error("an answer that was not understood")]
    Answer,
}

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// Its parts do not form an OpenPGP message.
    #[error("it is malformed")]
    Malformed,
    /// Its ASCII armor is damaged.
    #[error("its armor is malformed")]
    Armor,
    /// It is not as its author made it.
    #[error("it was changed after it was encrypted")]
    Integrity,
    /// What should give the session key does not.
    #[error("its session key cannot be decrypted")]
    SessionKey,
    /// Something comes after it.
    #[error("something follows it")]
    Trailing,
    /// It has more recipients than are looked at.
    #[error("it has too many recipients")]
    Recipients,
}

/// When it makes sense to try a message again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Not with this ciphertext: it stays as it is.
    Never,
    /// When the keys have changed, or when the user wishes.
    AfterKeyChange,
    /// When the user acts: asking again by itself would be a nuisance.
    WhenUserActs,
    /// Later, by itself.
    Later,
}

impl DecryptError {
    /// When it makes sense to try again.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::NoSecretKey { .. } | Self::Locked | Self::NoPublicKey(_) => Verdict::AfterKeyChange,
            Self::Denied(_) | Self::Stalled(_) => Verdict::WhenUserActs,
            Self::Unavailable(_) | Self::Read(_) | Self::Write(_) | Self::Cancelled => Verdict::Later,
            Self::ForPassphrase
            | Self::Cut
            | Self::Corrupt(_)
            | Self::Unprotected
            | Self::NotEncrypted
            | Self::Unsupported(_)
            | Self::TooLarge { .. }
            | Self::TooDeep { .. } => Verdict::Never,
        }
    }
}

fn named(recipients: &[String]) -> String {
    if recipients.is_empty() { "keys that it does not name".to_owned() } else { recipients.join(", ") }
}

/// A fingerprint as Sequoia or GnuPG writes it: upper-case hexadecimal digits.
fn fingerprint(text: &str) -> Option<Fingerprint> {
    Fingerprint::try_new(text.to_owned()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f6_an_error_names_the_keys() {
        let recipients = vec!["7D3E97CAA7341B76".to_owned(), "0123456789ABCDEF".to_owned()];
        let error = DecryptError::NoSecretKey { recipients };
        assert!(error.to_string().ends_with("encrypted to 7D3E97CAA7341B76, 0123456789ABCDEF"), "{error}");
        assert_eq!(error.verdict(), Verdict::AfterKeyChange);
        let hidden = DecryptError::NoSecretKey { recipients: Vec::new() };
        assert!(hidden.to_string().ends_with("does not name"), "{hidden}");
    }
}
