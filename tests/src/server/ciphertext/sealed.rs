//! Ciphertexts that came as they are: replies that were posted, and what sources send in the exact form that a test wants.

use std::io::Write;
use std::sync::Arc;

use super::stored::Store;
use super::{Ciphertext, CiphertextError};
use crate::generator::Plaintext;

/// A ciphertext that is kept as it came, and served so.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(super) ciphertext: Arc<Ciphertext>,
    /// What a client must show of it, where that is known and there is anything.
    pub(super) shown: Option<Plaintext>,
}

impl Sealed {
    /// Keeps `ciphertext`.
    pub(crate) fn try_new(ciphertext: &[u8], shown: Option<Plaintext>) -> Result<Self, CiphertextError> {
        let mut store = Store::new(u64::try_from(ciphertext.len()).unwrap_or(u64::MAX))?;
        store.write_all(ciphertext).map_err(CiphertextError::Store)?;
        Ok(Self { ciphertext: Arc::new(store.finish()?), shown })
    }

    /// Bytes of it.
    pub(crate) fn length(&self) -> u64 {
        self.ciphertext.length
    }
}
