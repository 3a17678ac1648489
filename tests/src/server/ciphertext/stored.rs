//! A ciphertext where it is kept, and parts of it on their way out.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame, SizeHint};
use sequoia_openpgp::crypto::hash;
use sequoia_openpgp::types::HashAlgorithm;

use super::message::digest;
use super::{CiphertextError, LARGEST_IN_MEMORY};

/// How much of a file goes out at a time.
const CHUNK: u64 = 256 * 1024;

#[derive(Debug)]
enum Place {
    Memory(Bytes),
    /// Without a name: it is gone when it is closed.
    File(File),
}

/// A ciphertext.
#[derive(Debug)]
pub(crate) struct Ciphertext {
    place: Place,
    /// Bytes.
    pub(crate) length: u64,
    /// Its SHA-256 as the server writes it: `sha256:` and 64 lower-case hex digits.
    pub(crate) etag: String,
}

impl Ciphertext {
    /// All of it.
    pub(crate) fn whole(&self) -> io::Result<Vec<u8>> {
        let mut whole = Vec::new();
        let mut at = 0;
        while at < self.length {
            let bytes = self.read(at, self.length)?;
            if bytes.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            whole.extend_from_slice(&bytes);
            at = u64::try_from(whole.len()).unwrap_or(u64::MAX);
        }
        Ok(whole)
    }

    /// Bytes from `from` on: at least one and not beyond `to`. Reading a file blocks for as long as copying from the
    /// machine's cache takes, which is where it was just written to.
    fn read(&self, from: u64, to: u64) -> io::Result<Bytes> {
        match &self.place {
            Place::Memory(bytes) => {
                let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(bytes.len());
                Ok(bytes.slice(at(from)..at(to)))
            }
            Place::File(file) => {
                let mut chunk = vec![0; usize::try_from(to.saturating_sub(from).min(CHUNK)).unwrap_or(0)];
                file.read_exact_at(&mut chunk, from)?;
                Ok(chunk.into())
            }
        }
    }
}

/// Where a ciphertext is written.
pub(super) struct Store {
    place: StorePlace,
    length: u64,
    digest: hash::Context,
}

enum StorePlace {
    Memory(Vec<u8>),
    File(File),
}

impl Store {
    /// A place for `size` bytes.
    pub(super) fn new(size: u64) -> Result<Self, CiphertextError> {
        let place = match size > LARGEST_IN_MEMORY {
            true => StorePlace::File(tempfile::tempfile().map_err(CiphertextError::Store)?),
            false => StorePlace::Memory(Vec::with_capacity(usize::try_from(size).unwrap_or(0))),
        };
        Ok(Self { place, length: 0, digest: digest(HashAlgorithm::SHA256)? })
    }

    pub(super) fn finish(mut self) -> Result<Ciphertext, CiphertextError> {
        let mut sum = [0; 32];
        self.digest.digest(&mut sum).map_err(CiphertextError::Encrypt)?;
        let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        let place = match self.place {
            StorePlace::Memory(bytes) => Place::Memory(bytes.into()),
            StorePlace::File(file) => Place::File(file),
        };
        Ok(Ciphertext { place, length: self.length, etag: format!("sha256:{hex}") })
    }
}

impl Write for Store {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.place {
            StorePlace::Memory(memory) => memory.extend_from_slice(bytes),
            StorePlace::File(file) => file.write_all(bytes)?,
        }
        self.digest.update(bytes);
        self.length = self.length.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A part of what is served.
#[derive(Debug)]
pub(crate) enum Part {
    /// A range of the ciphertext, in bytes.
    Range(Range<u64>),
    /// Something between ranges.
    Text(Bytes),
}

impl Part {
    fn length(&self) -> u64 {
        match self {
            Self::Range(range) => range.end.saturating_sub(range.start),
            Self::Text(text) => u64::try_from(text.len()).unwrap_or(u64::MAX),
        }
    }
}

/// Parts of a ciphertext as the body of an answer, read as they go out.
#[derive(Debug)]
pub(crate) struct Served {
    ciphertext: Arc<Ciphertext>,
    parts: VecDeque<Part>,
}

impl Served {
    pub(crate) fn new(ciphertext: Arc<Ciphertext>, parts: impl IntoIterator<Item = Part>) -> Self {
        Self { ciphertext, parts: parts.into_iter().filter(|part| part.length() > 0).collect() }
    }

    /// Bytes that are left.
    pub(crate) fn length(&self) -> u64 {
        self.parts.iter().map(Part::length).sum()
    }
}

impl hyper::body::Body for Served {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(part) = self.parts.pop_front() else {
            return Poll::Ready(None);
        };
        let bytes = match part {
            Part::Text(text) => text,
            Part::Range(range) => {
                let bytes = match self.ciphertext.read(range.start, range.end) {
                    Ok(bytes) if bytes.is_empty() => {
                        return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
                    }
                    Ok(bytes) => bytes,
                    Err(error) => return Poll::Ready(Some(Err(error))),
                };
                let read = range.start.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                if read < range.end {
                    self.parts.push_front(Part::Range(read..range.end));
                }
                bytes
            }
        };
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length())
    }
}
