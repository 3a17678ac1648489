//! Where the plaintext goes.

use std::io::Write;

use tokio_util::sync::CancellationToken;

use super::{DecryptError, Decrypted};

/// Writes plaintext, and no more of it than is allowed.
pub(super) struct Sink<'a> {
    plaintext: &'a mut (dyn Write + Send),
    written: u64,
    limit: u64,
    stop: &'a CancellationToken,
}

impl<'a> Sink<'a> {
    pub(super) fn new(plaintext: &'a mut (dyn Write + Send), limit: u64, stop: &'a CancellationToken) -> Self {
        Self { plaintext, written: 0, limit, stop }
    }

    /// Writes a block, unless it would be too much or it is time to stop.
    pub(super) fn write(&mut self, block: &[u8]) -> Result<(), DecryptError> {
        if self.stop.is_cancelled() {
            return Err(DecryptError::Cancelled);
        }
        let length = u64::try_from(block.len()).unwrap_or(u64::MAX);
        let written = self.written.saturating_add(length);
        if written > self.limit {
            return Err(DecryptError::TooLarge { limit: self.limit });
        }
        self.plaintext.write_all(block).map_err(DecryptError::Write)?;
        self.written = written;
        Ok(())
    }

    /// Everything was written.
    pub(super) fn finish(self) -> Result<Decrypted, DecryptError> {
        self.plaintext.flush().map_err(DecryptError::Write)?;
        Ok(Decrypted { bytes: self.written })
    }
}
