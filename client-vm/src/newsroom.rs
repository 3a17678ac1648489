//! The newsroom's own key, which every reply is encrypted to besides the source's, so that journalists can read what was
//! answered.
//!
//! **Invariant:** it has the fingerprint that dom0 has set, or nothing is sent.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::value::{Fingerprint, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::openpgp::decrypt::{DecryptError, Decryptor, Verdict};
use crate::openpgp::recipient::{KeyError, Recipient};

/// The setting of this VM in which dom0 keeps the fingerprint.
pub const FINGERPRINT_SETTING: &str = "SD_SUBMISSION_KEY_FPR";
/// The longest key file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// There is no newsroom key to encrypt to.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NewsroomError {
    /// dom0 has not said which.
    #[error(
        "{FINGERPRINT_SETTING} is not set: in dom0 run `qvm-features VM vm-config.{FINGERPRINT_SETTING} FINGERPRINT`"
    )]
    NoFingerprint,
    /// What dom0 has set is no fingerprint, or cannot be read.
    #[error("{FINGERPRINT_SETTING} is no fingerprint: set 40 or 64 hexadecimal digits in dom0")]
    BadFingerprint,
    /// The file cannot be read.
    #[error("could not read the newsroom's key {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Arc<std::io::Error>,
    },
    /// The backend does not give it out.
    #[error("the newsroom's key could not be exported: {0}")]
    Export(Arc<DecryptError>),
    /// It is no good.
    #[error("the newsroom's key cannot be used: {0}")]
    Key(Arc<KeyError>),
    /// Getting it met a fault.
    #[error("looking for the newsroom's key met a fault: see the daemon's log")]
    Fault,
}

impl NewsroomError {
    /// Whether it may be over by itself.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Export(error) => error.verdict() == Verdict::Later,
            Self::Read { source, .. } => source.kind() != std::io::ErrorKind::NotFound,
            Self::NoFingerprint | Self::BadFingerprint | Self::Key(_) | Self::Fault => false,
        }
    }
}

/// Where the newsroom's key comes from.
#[derive(Debug)]
pub struct Newsroom {
    fingerprint: Result<Fingerprint, NewsroomError>,
    file: Option<PathBuf>,
    decryptor: Arc<dyn Decryptor>,
    /// As the backend has exported it.
    exported: Mutex<Option<Vec<u8>>>,
}

impl Newsroom {
    /// The key with the fingerprint that dom0 has `set`, from a file, or as the backend exports it.
    #[must_use]
    pub fn new(set: Option<&str>, file: Option<PathBuf>, decryptor: Arc<dyn Decryptor>) -> Self {
        let fingerprint = match set {
            None => Err(NewsroomError::NoFingerprint),
            Some(text) => {
                let digits: String = text.chars().filter(|digit| *digit != ' ').collect();
                Fingerprint::try_new(digits.to_uppercase()).map_err(|_| NewsroomError::BadFingerprint)
            }
        };
        Self { fingerprint, file, decryptor, exported: Mutex::new(None) }
    }

    /// Whether looking for the key asks no other VM.
    #[must_use]
    pub fn is_near(&self) -> bool {
        // Where it is being asked for, whoever holds the lock has asked.
        let exported = || self.exported.try_lock().is_ok_and(|exported| exported.is_some());
        self.file.is_some() || self.fingerprint.is_err() || exported()
    }

    /// The key, checked as of `now`. Blocks, and may make a call of the key's VM.
    ///
    /// # Errors
    /// [`NewsroomError`].
    pub fn key(&self, now: Timestamp, stop: &CancellationToken) -> Result<Recipient, NewsroomError> {
        let fingerprint = self.fingerprint.clone()?;
        let bytes = match &self.file {
            Some(path) => {
                let failed = |source| NewsroomError::Read { path: path.clone(), source: Arc::new(source) };
                let mut bytes = Vec::new();
                let file = std::fs::File::open(path).map_err(failed)?;
                file.take(MAX_FILE).read_to_end(&mut bytes).map_err(failed)?;
                bytes
            }
            None => self.export(&fingerprint, stop)?,
        };
        Recipient::try_new(&bytes, &fingerprint, now).map_err(|error| NewsroomError::Key(Arc::new(error)))
    }

    fn export(&self, fingerprint: &Fingerprint, stop: &CancellationToken) -> Result<Vec<u8>, NewsroomError> {
        // Held while it is asked for, so that it is asked for once.
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = &*exported {
            return Ok(bytes.clone());
        }
        let bytes =
            self.decryptor.public_key(fingerprint, stop).map_err(|error| NewsroomError::Export(Arc::new(error)))?;
        Ok(exported.insert(bytes).clone())
    }
}
