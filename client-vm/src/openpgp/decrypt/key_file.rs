//! The private key in a file of this VM. For staging only: whoever takes this VM over has the key.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::PathBuf;

use protocol::value::Fingerprint;
use sequoia_openpgp::Cert;
use sequoia_openpgp::cert::CertParser;
use sequoia_openpgp::packet::PKESK;
use sequoia_openpgp::packet::key::{SecretParts, UnspecifiedRole};
use sequoia_openpgp::parse::Parse as _;
use sequoia_openpgp::serialize::MarshalInto as _;
use sequoia_openpgp::types::SymmetricAlgorithm;
use tokio_util::sync::CancellationToken;

use super::envelope::Envelope;
use super::sequoia::{self, Guesses, Opened, SessionKeys, UseSessionKey};
use super::sink::Sink;
use super::{DecryptError, Decrypted, Decryptor, Limits, Unavailable, fingerprint};

/// The longest key file, in bytes.
const MAX_FILE: u64 = 4 << 20;

type SecretKey = sequoia_openpgp::packet::Key<SecretParts, UnspecifiedRole>;

/// The private key in a file, armored or not, of one key or of several, without a passphrase. Read anew for each message.
#[derive(Debug, Clone)]
pub struct KeyFile {
    path: PathBuf,
}

impl KeyFile {
    /// The key in the file `path`.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn read(&self) -> Result<Vec<Cert>, DecryptError> {
        let unreadable = |source| Unavailable::KeyFile { path: self.path.clone(), source };
        let mut bytes = Vec::new();
        let file = File::open(&self.path).map_err(unreadable)?;
        file.take(MAX_FILE.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE {
            return Err(unreadable(io::ErrorKind::FileTooLarge.into()).into());
        }
        certs(&bytes)
    }
}

/// The keys in a file's content, armored or not; at least one.
pub(super) fn certs(bytes: &[u8]) -> Result<Vec<Cert>, DecryptError> {
    let parser = CertParser::from_bytes(bytes).map_err(|_| Unavailable::NoKeys)?;
    let certs: Vec<Cert> = parser.collect::<Result<_, _>>().map_err(|_| Unavailable::NoKeys)?;
    if certs.is_empty() { Err(Unavailable::NoKeys.into()) } else { Ok(certs) }
}

/// The public half of the key with this primary fingerprint.
pub(super) fn public_key(certs: Vec<Cert>, wanted: &Fingerprint) -> Result<Vec<u8>, DecryptError> {
    let cert = certs.into_iter().find(|cert| cert.fingerprint().to_hex() == wanted.as_str());
    let cert = cert.ok_or_else(|| DecryptError::NoPublicKey(wanted.clone()))?;
    cert.strip_secret_key_material().export_to_vec().map_err(|_| Unavailable::NoKeys.into())
}

impl Decryptor for KeyFile {
    fn name(&self) -> &'static str {
        "key-file"
    }

    fn decrypt(
        &self,
        ciphertext: File,
        plaintext: &mut (dyn Write + Send),
        limits: &Limits,
        stop: &CancellationToken,
    ) -> Result<Decrypted, DecryptError> {
        let envelope = Envelope::open(ciphertext)?;
        let secrets = self.read()?.iter().flat_map(|cert| cert.keys().secret()).map(|key| key.key().clone()).collect();
        let sink = Sink::new(plaintext, limits.of(envelope.length), stop);
        sequoia::decrypt(envelope, &mut Secrets(secrets), sink, limits, stop)
    }

    fn secret_keys(&self, _: &CancellationToken) -> Result<BTreeSet<Fingerprint>, DecryptError> {
        let certs = self.read()?;
        let keys = certs.iter().flat_map(|cert| cert.keys().unencrypted_secret());
        Ok(keys.filter_map(|key| fingerprint(&key.key().fingerprint().to_hex())).collect())
    }

    fn public_key(&self, wanted: &Fingerprint, _: &CancellationToken) -> Result<Vec<u8>, DecryptError> {
        public_key(self.read()?, wanted)
    }
}

/// Secret keys. Whether they are expired, revoked or meant for this does not matter for reading.
struct Secrets(Vec<SecretKey>);

impl SessionKeys for Secrets {
    fn open(
        &mut self,
        pkesk: &PKESK,
        hint: Option<SymmetricAlgorithm>,
        guesses: &mut Guesses<'_>,
        use_it: UseSessionKey<'_>,
    ) -> Result<Opened, DecryptError> {
        let recipient = pkesk.recipient();
        let mut outcome = Opened::NoKey;
        for key in &self.0 {
            let named = recipient.as_ref().is_some_and(|recipient| key.key_handle().aliases(recipient));
            let may_be = recipient.is_none() && key.pk_algo() == pkesk.pk_algo();
            let tried = named || (may_be && guesses.another()?);
            if !tried {
                continue;
            }
            if key.secret().is_encrypted() {
                if named {
                    return Err(DecryptError::Locked);
                }
                continue;
            }
            let opened = key
                .clone()
                .into_keypair()
                .ok()
                .and_then(|mut pair| pkesk.decrypt(&mut pair, hint))
                .is_some_and(|(algorithm, session_key)| use_it(algorithm, &session_key));
            if opened {
                return Ok(Opened::Yes);
            }
            if named {
                outcome = Opened::Failed;
            }
        }
        Ok(outcome)
    }
}
