//! OpenPGP: what sources sent is decrypted here, and what journalists answer is encrypted here.
//!
//! **Invariant:** with `split-gpg` and `gpg-agent` this VM holds no private key.
//!
//! **Invariant:** plaintext counts only once the whole message was read and its integrity checked.

pub mod decrypt;
pub mod encrypt;
pub mod recipient;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use qubes_rpc::name::{NameError, VmName};
use qubes_rpc::qubesdb::{self, QubesDbError};

use self::decrypt::{DecryptError, Decryptor, KeyFile, SplitGpg};
use crate::newsroom::{FINGERPRINT_SETTING, Newsroom};
use crate::settings::{Backend, OpenPgpSettings};

/// The setting of this VM, and the environment variable of split-gpg, that names the VM with the private key.
const DOMAIN_SETTING: &str = "QUBES_GPG_DOMAIN";

/// The way to the private key could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// A setting of dom0 cannot be read.
    #[error("could not read the setting {name}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// Why.
        source: QubesDbError,
    },
    /// The VM with the key has no name of a VM.
    #[error("{DOMAIN_SETTING} does not name a VM")]
    Domain(#[from] NameError),
    /// The newsroom's key cannot be read.
    #[error("could not read the newsroom's key {}", .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The agent needs the newsroom's public key.
    #[error(
        "the backend gpg-agent needs the newsroom's public key: set `submission_key` in the configuration's [openpgp]"
    )]
    NoKey,
    /// This build has no such backend.
    #[error(
        "this build of Splitdrop has no backend gpg-agent: build it with `--features gpg-agent`, which needs the program \
         capnp (apt-get install capnproto), or choose another `backend`"
    )]
    NotBuilt,
    /// The backend does not take its settings.
    #[error("the backend for decryption could not be set up")]
    Backend(#[from] DecryptError),
}

/// Sets up the way to the private key and to the newsroom's public one.
///
/// # Errors
/// [`SetUpError`].
pub fn open(settings: &OpenPgpSettings) -> Result<(Arc<dyn Decryptor>, Newsroom), SetUpError> {
    let setting = |name| qubesdb::setting(name).map_err(|source| SetUpError::Setting { name, source });
    let decryptor: Arc<dyn Decryptor> = match &settings.backend {
        Backend::KeyFile { path } => Arc::new(KeyFile::new(path.clone())),
        Backend::SplitGpg { program } => {
            let domain = setting(DOMAIN_SETTING)?.map(|name| name.parse::<VmName>()).transpose()?;
            let backend = SplitGpg::new(domain);
            Arc::new(match program {
                Some(program) => backend.program(program.clone()),
                None => backend,
            })
        }
        Backend::GpgAgent { home } => agent(home.clone(), settings.submission_key.as_ref())?,
    };
    let fingerprint = setting(FINGERPRINT_SETTING)?;
    let newsroom = Newsroom::new(fingerprint.as_deref(), settings.submission_key.clone(), Arc::clone(&decryptor));
    Ok((decryptor, newsroom))
}

#[cfg(feature = "gpg-agent")]
fn agent(home: Option<PathBuf>, key: Option<&PathBuf>) -> Result<Arc<dyn Decryptor>, SetUpError> {
    let path = key.ok_or(SetUpError::NoKey)?;
    let key = std::fs::read(path).map_err(|source| SetUpError::Key { path: path.clone(), source })?;
    Ok(Arc::new(decrypt::GpgAgent::try_new(home, &[key])?))
}

#[cfg(not(feature = "gpg-agent"))]
fn agent(_home: Option<PathBuf>, _key: Option<&PathBuf>) -> Result<Arc<dyn Decryptor>, SetUpError> {
    Err(SetUpError::NotBuilt)
}
