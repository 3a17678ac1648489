//! A part of an item's ciphertext on the disk, and the digest of what is there.

use std::fs::File;
use std::io::{self, Read as _, Write as _};

use protocol::value::Sha256;
use sha2::Digest as _;

use super::blocking;
use crate::files::{FileNumber, Files};

/// How much is gathered before it is digested and written, in bytes.
const BUFFER: usize = 512 * 1024;
/// How much is read at once of what is there already, in bytes.
const READ: usize = 1024 * 1024;

/// A part that grows. Dropped, what was not flushed is lost.
#[derive(Debug)]
pub(super) struct Partial {
    number: FileNumber,
    length: u64,
    buffer: Vec<u8>,
    /// `None` only while it is at work off the async threads.
    inner: Option<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    /// Of all that is in the file.
    whole: sha2::Sha256,
    /// Of what was written since it was opened, where that is not all.
    answer: Option<sha2::Sha256>,
}

impl Partial {
    /// Begins at the first byte, whatever there was.
    pub(super) async fn begin(files: &Files, number: FileNumber) -> io::Result<Self> {
        let files = files.clone();
        let file = blocking(move || {
            files.empty_partial(number)?;
            files.open_partial(number)
        });
        let inner = Inner { file: file.await?, whole: sha2::Sha256::new(), answer: None };
        Ok(Self { number, length: 0, buffer: Vec::new(), inner: Some(inner) })
    }

    /// Reads what there is.
    pub(super) async fn resume(files: &Files, number: FileNumber) -> io::Result<Self> {
        let files = files.clone();
        let read = blocking(move || {
            let mut file = files.open_partial(number)?;
            let (mut whole, mut length, mut buffer) = (sha2::Sha256::new(), 0_u64, vec![0; READ]);
            loop {
                let count = file.read(&mut buffer)?;
                let Some(read @ [_, ..]) = buffer.get(..count) else { break };
                whole.update(read);
                length = length.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
            }
            Ok((file, whole, length))
        });
        let (file, whole, length) = read.await?;
        let inner = Inner { file, whole, answer: Some(sha2::Sha256::new()) };
        Ok(Self { number, length, buffer: Vec::new(), inner: Some(inner) })
    }

    pub(super) fn number(&self) -> FileNumber {
        self.number
    }

    /// How many bytes there are.
    pub(super) fn len(&self) -> u64 {
        self.length
    }

    /// Adds bytes. After an error nothing more may be done with it.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        self.length = self.length.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if self.buffer.len() >= BUFFER { self.flush().await } else { Ok(()) }
    }

    /// Writes what was gathered.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        let Some(mut inner) = self.inner.take() else { return Err(io::Error::other("a part was given up")) };
        let mut buffer = std::mem::take(&mut self.buffer);
        let done = blocking(move || {
            inner.whole.update(&buffer);
            if let Some(answer) = &mut inner.answer {
                answer.update(&buffer);
            }
            inner.file.write_all(&buffer)?;
            buffer.clear();
            Ok((inner, buffer))
        });
        let (inner, buffer) = done.await?;
        (self.inner, self.buffer) = (Some(inner), buffer);
        Ok(())
    }

    /// The digest of all that was flushed.
    pub(super) fn digest(&self) -> Sha256 {
        self.inner.as_ref().map_or(Sha256::new([0; 32]), |inner| finished(&inner.whole))
    }

    /// Whether that is what was claimed.
    pub(super) fn digest_is(&self, claim: Option<Sha256>) -> bool {
        claim.is_some_and(|claim| claim == self.digest())
    }

    /// The digest of what was flushed since it was opened.
    pub(super) fn sum_of_answer(&self) -> Sha256 {
        match self.inner.as_ref().and_then(|inner| inner.answer.as_ref()) {
            Some(answer) => finished(answer),
            None => self.digest(),
        }
    }

    /// Waits until it is on the disk.
    pub(super) async fn sync(self) -> io::Result<()> {
        let Some(inner) = self.inner else { return Err(io::Error::other("a part was given up")) };
        blocking(move || inner.file.sync_all()).await
    }
}

fn finished(digest: &sha2::Sha256) -> Sha256 {
    Sha256::new(digest.clone().finalize().into())
}
