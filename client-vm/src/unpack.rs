//! Unpacks what a source packed: gzip.
//!
//! SecureDrop's servers keep each uploaded file as gzip, with the file's name in the header (RFC 1952, FNAME), and
//! encrypt that. So what comes out of a decryption is unpacked once more.
//!
//! **Invariant:** nothing is unpacked past the limits, and memory does not grow with the input: a header field of more
//! than 64 KiB is an error.
//!
//! **Invariant:** `Ok` means that every member was whole and its checksum and length right. After an error what was
//! written is worth nothing: the caller removes it.

use std::io::{self, BufRead, BufReader, Read, Write};

use flate2::bufread::GzDecoder;
use tokio_util::sync::CancellationToken;

use crate::limits::Limits;

/// The first two bytes of a gzip member, and deflate, the only method there is.
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];
/// How zip archives begin: with a file, empty, or as one part of several.
const ZIP: [[u8; 4]; 3] = [*b"PK\x03\x04", *b"PK\x05\x06", *b"PK\x07\x08"];
/// What is read, unpacked and written at a time, in bytes.
const BLOCK: usize = 64 * 1024;

/// What came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// How many bytes were written.
    pub bytes: u64,
    /// The file's name as the first member's header has it, if it has one: any bytes but NUL, up to 64 KiB. Hostile;
    /// see [`shown_name`](crate::shown_name::shown_name).
    pub name: Option<Vec<u8>>,
}

/// Why a file was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It does not begin as gzip does.
    #[error("the file is not gzip")]
    NotGzip,
    /// It ends before its end.
    #[error("the packed file is cut off")]
    Cut,
    /// A header, the data, a checksum or a length is wrong, or something else follows the data.
    #[error("the packed file is damaged")]
    Corrupt,
    /// More would come out than is allowed.
    #[error("the file would unpack to more than {bytes} bytes, or to more than {ratio} times its size")]
    TooLarge {
        /// The limit in bytes.
        bytes: u64,
        /// The limit of output to input.
        ratio: u32,
    },
    /// Somebody asked to stop.
    #[error("unpacking was stopped")]
    Stopped,
    /// The packed file could not be read.
    #[error("could not read the packed file")]
    Read(#[source] io::Error),
    /// What came out could not be written.
    #[error("could not write the unpacked file")]
    Write(#[source] io::Error),
}

/// Whether a file that begins so is gzip. Three bytes are enough.
#[must_use]
pub fn is_gzip(first_bytes: &[u8]) -> bool {
    first_bytes.starts_with(&GZIP)
}

/// Whether a file that begins so is a zip archive. These stay as they are: unpacking them is up to whoever opens them.
/// Four bytes are enough.
#[must_use]
pub fn is_zip(first_bytes: &[u8]) -> bool {
    ZIP.iter().any(|magic| first_bytes.starts_with(magic))
}

/// Unpacks gzip of any number of members. Blocks until it is done; `stop` is looked at for each 64 KiB and each member.
///
/// # Errors
/// [`UnpackError`] when the input is not whole and sound gzip, the limits would be passed, reading or writing fails, or
/// `stop` was cancelled. Never more is written than `limits` allow.
pub fn gunzip(
    from: impl Read,
    to: &mut impl Write,
    limits: &Limits,
    stop: &CancellationToken,
) -> Result<Unpacked, UnpackError> {
    let mut from = from;
    let mut first = Vec::new();
    from.by_ref().take(GZIP.len().try_into().unwrap_or(u64::MAX)).read_to_end(&mut first).map_err(UnpackError::Read)?;
    // What ends within these bytes is cut, and the decoder says so.
    if first.is_empty() || !GZIP.starts_with(&first) {
        return Err(UnpackError::NotGzip);
    }
    let from = first.as_slice().chain(from);
    let mut input = BufReader::with_capacity(BLOCK, Counted { from, bytes: 0, failed: false });
    let (mut bytes, mut name, mut members) = (0_u64, None, 0_u64);
    let mut block = vec![0; BLOCK];
    loop {
        let mut member = GzDecoder::new(&mut input);
        if members == 0 {
            name = member.header().and_then(|header| header.filename()).map(<[u8]>::to_vec);
        }
        members = members.saturating_add(1);
        loop {
            if stop.is_cancelled() {
                return Err(UnpackError::Stopped);
            }
            let length = match member.read(&mut block) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(why(error, member.get_ref().get_ref().failed)),
            };
            let Some(unpacked) = block.get(..length).filter(|unpacked| !unpacked.is_empty()) else { break };
            bytes = bytes.saturating_add(length.try_into().unwrap_or(u64::MAX));
            if bytes > limits.of(consumed(member.get_ref())) {
                return Err(UnpackError::TooLarge { bytes: limits.bytes, ratio: limits.ratio });
            }
            to.write_all(unpacked).map_err(UnpackError::Write)?;
        }
        // A member was whole. What follows it is another one, or nothing.
        match peek(&mut input)? {
            None => return Ok(Unpacked { bytes, name }),
            Some(first) if GZIP.first() == Some(&first) => {}
            Some(_) => return Err(UnpackError::Corrupt),
        }
    }
}

/// The next byte, not taken. `None` at the end.
fn peek<R: Read>(input: &mut BufReader<Counted<R>>) -> Result<Option<u8>, UnpackError> {
    loop {
        match input.fill_buf() {
            Ok(next) => return Ok(next.first().copied()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(UnpackError::Read(error)),
        }
    }
}

/// How much of the input the decoder has taken.
fn consumed<R: Read>(input: &BufReader<Counted<R>>) -> u64 {
    input.get_ref().bytes.saturating_sub(input.buffer().len().try_into().unwrap_or(u64::MAX))
}

/// The decoder passes the reader's errors on among its own.
fn why(error: io::Error, reader_failed: bool) -> UnpackError {
    if reader_failed {
        UnpackError::Read(error)
    } else if error.kind() == io::ErrorKind::UnexpectedEof {
        UnpackError::Cut
    } else {
        UnpackError::Corrupt
    }
}

/// A reader that counts, and remembers that it failed.
struct Counted<R> {
    from: R,
    bytes: u64,
    failed: bool,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.from.read(into) {
            Ok(length) => {
                self.bytes = self.bytes.saturating_add(length.try_into().unwrap_or(u64::MAX));
                Ok(length)
            }
            Err(error) => {
                self.failed |= error.kind() != io::ErrorKind::Interrupted;
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
