//! The two wrappings of files: gzip (RFC 1952) and zip (APPNOTE 6.3), written by hand so that their lengths are known.
//!
//! Noise goes into stored blocks of deflate, whose length is that of their content and five bytes each; into zip, all
//! goes as it is.

use flate2::Crc;

use super::Pieces;
use super::text::{NOISE_PIECE, Noise};

/// Bytes of gzip around its blocks, but for the name: header, the name's end, trailer.
pub(super) const GZIP_ENDS: u64 = 10 + 1 + 8;
/// Bytes before what a stored block holds.
pub(super) const BLOCK_HEAD: u64 = 5;
/// Bytes of zip around one file, but for the name, which is in it twice: local header, central header, end.
pub(super) const ZIP_ENDS: u64 = 30 + 46 + 22;
/// Deflate, a name, no time, best compression, unknown system: as Python's gzip module writes it.
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 2, 255];
/// 1980-01-01, midnight: where time begins for zip.
const ZIP_TIME: [u8; 4] = [0, 0, 0x21, 0];

/// How many stored blocks fill `room` bytes: as few as can, and at least one. What they hold is then five bytes each
/// less, which they always have room for; the last may be empty.
pub(super) fn blocks(room: u64) -> u64 {
    room.div_ceil(NOISE_PIECE + BLOCK_HEAD).max(1)
}

/// A file in gzip.
pub(super) struct Gzip {
    ready: Option<Vec<u8>>,
    noise: Noise,
    blocks: u64,
    crc: Crc,
    ended: bool,
}

impl Gzip {
    /// `deflated` is `text` in blocks that are not the last; `noise` goes into as many stored blocks as it takes, or one.
    pub(super) fn new(name: &str, text: &[u8], deflated: Vec<u8>, noise: Noise, blocks: u64) -> Self {
        let mut crc = Crc::new();
        crc.update(text);
        let mut ready = GZIP_HEAD.to_vec();
        ready.extend_from_slice(name.as_bytes());
        ready.push(0);
        ready.extend_from_slice(&deflated);
        Self { ready: Some(ready), noise, blocks, crc, ended: false }
    }
}

impl Pieces for Gzip {
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        if let Some(ready) = self.ready.take() {
            return Some(ready);
        }
        if self.blocks > 0 {
            self.blocks = self.blocks.saturating_sub(1);
            let noise = self.noise.next_piece().unwrap_or_default();
            self.crc.update(&noise);
            let length = u16::try_from(noise.len()).unwrap_or(u16::MAX);
            let mut block = Vec::with_capacity(noise.len().saturating_add(8));
            block.push(u8::from(self.blocks == 0));
            block.extend_from_slice(&length.to_le_bytes());
            block.extend_from_slice(&(!length).to_le_bytes());
            block.extend_from_slice(&noise);
            return Some(block);
        }
        if self.ended {
            return None;
        }
        self.ended = true;
        // The length modulo 2^32, which is how both count.
        Some([self.crc.sum().to_le_bytes(), self.crc.amount().to_le_bytes()].concat())
    }
}

/// A file in zip.
pub(super) struct Zip<P> {
    name: String,
    fields: Vec<u8>,
    contents: P,
    begun: bool,
    ended: bool,
    length: u32,
}

impl<P: Pieces> Zip<P> {
    /// The contents are made twice: once to sum them up for the header, which comes first.
    pub(super) fn new(name: String, length: u64, contents: impl Fn() -> P) -> Self {
        let mut crc = Crc::new();
        let mut summed = contents();
        while let Some(piece) = summed.next_piece() {
            crc.update(&piece);
        }
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let name_length = u16::try_from(name.len()).unwrap_or(u16::MAX);
        // What both headers say: version 2.0, no flags, stored, when, sum, two lengths, the name's, nothing extra.
        let mut fields = vec![20, 0, 0, 0, 0, 0];
        fields.extend_from_slice(&ZIP_TIME);
        fields.extend_from_slice(&crc.sum().to_le_bytes());
        fields.extend_from_slice(&length.to_le_bytes());
        fields.extend_from_slice(&length.to_le_bytes());
        fields.extend_from_slice(&name_length.to_le_bytes());
        fields.extend_from_slice(&[0, 0]);
        Self { name, fields, contents: contents(), begun: false, ended: false, length }
    }

    fn local_header(&self) -> Vec<u8> {
        [b"PK\x03\x04".as_slice(), &self.fields, self.name.as_bytes()].concat()
    }

    /// The directory and the end.
    fn tail(&self) -> Vec<u8> {
        let made_by = [20, 0];
        // No comment, first disk, attributes, and where the local header is: at the start.
        let rest = [0; 14];
        let directory = [b"PK\x01\x02".as_slice(), &made_by, &self.fields, &rest, self.name.as_bytes()].concat();
        let before = u32::try_from(self.local_header().len()).unwrap_or(u32::MAX).saturating_add(self.length);
        let mut tail = directory.clone();
        tail.extend_from_slice(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
        tail.extend_from_slice(&u32::try_from(directory.len()).unwrap_or(u32::MAX).to_le_bytes());
        tail.extend_from_slice(&before.to_le_bytes());
        tail.extend_from_slice(&[0, 0]);
        tail
    }
}

impl<P: Pieces> Pieces for Zip<P> {
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        if !self.begun {
            self.begun = true;
            return Some(self.local_header());
        }
        if let Some(piece) = self.contents.next_piece() {
            return Some(piece);
        }
        if self.ended {
            return None;
        }
        self.ended = true;
        Some(self.tail())
    }
}
