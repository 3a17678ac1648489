//! Frames: a little-endian `u32` length, then that many bytes.
//!
//! The decoder does no I/O: it is fed what arrived and gives back whole frames.
//!
//! **Invariant:** the decoder holds at most one frame and what was fed beyond it, in at most twice as much memory; it never
//! reserves room for a length that has not arrived.
//!
//! **Invariant:** however small the pieces are, a byte is moved a few times at most.
//!
//! **Invariant:** frames and what the decoder holds are wiped when they are let go: passphrases and tokens are in them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use crate::codec::{self, DecodeError, EncodeError, MAX_MESSAGE};

/// The largest frame's payload, in bytes: one message.
pub const MAX_FRAME: usize = MAX_MESSAGE;

const HEADER: usize = 4;

/// A frame's bytes, wiped when dropped.
pub type Frame = Zeroizing<Vec<u8>>;

/// A frame could not be built or read. After a read error the stream is lost: where the next frame starts is unknown.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The peer announced a frame over the cap.
    #[error("a frame of {length} bytes is over the cap of {cap}")]
    TooLarge {
        /// The announced length.
        length: usize,
        /// The cap.
        cap: usize,
    },
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame")]
    Truncated,
    /// The frame's payload is no valid message.
    #[error("a frame does not hold a valid message")]
    Decode(#[from] DecodeError),
    /// The message could not be encoded.
    #[error("a message could not be put into a frame")]
    Encode(#[from] EncodeError),
    /// An earlier error already ended this stream.
    #[error("the stream is unusable after an earlier error")]
    Poisoned,
}

/// Encodes `message` as one frame.
///
/// # Errors
/// [`FrameError::TooLarge`] when it is over [`MAX_FRAME`], [`FrameError::Encode`] when it cannot be encoded.
pub fn encode_frame<T: Serialize>(message: &T) -> Result<Frame, FrameError> {
    let mut frame = begin(codec::encoded_length(message)?)?;
    codec::encode_into(message, &mut frame)?;
    Ok(frame)
}

/// Puts `payload` into one frame.
///
/// # Errors
/// [`FrameError::TooLarge`] when it is over [`MAX_FRAME`].
pub fn frame_bytes(payload: &[u8]) -> Result<Frame, FrameError> {
    let mut frame = begin(payload.len())?;
    frame.extend_from_slice(payload);
    Ok(frame)
}

/// A frame's header, with room for a payload of `length` bytes, so that the frame never has to grow.
fn begin(length: usize) -> Result<Frame, FrameError> {
    let too_large = FrameError::TooLarge { length, cap: MAX_FRAME };
    if length > MAX_FRAME {
        return Err(too_large);
    }
    let header = u32::try_from(length).map_err(|_| too_large)?.to_le_bytes();
    let mut frame = Frame::new(Vec::with_capacity(HEADER + length));
    frame.extend_from_slice(&header);
    Ok(frame)
}

/// Takes a stream apart into frames.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Zeroizing<Vec<u8>>,
    /// How many bytes at the buffer's start were given out already.
    consumed: usize,
    /// How many bytes the last frame took, with its header.
    last_frame: usize,
    poisoned: bool,
}

impl FrameDecoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes over bytes that arrived.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.consumed == 0 && self.buffer.capacity() - self.buffer.len() >= bytes.len() {
            self.buffer.extend_from_slice(bytes);
            return;
        }
        // A new buffer, with as much room again: one that grew or was moved in place would leave bytes behind.
        let waiting = self.buffer.get(self.consumed..).unwrap_or_default();
        let mut buffer = Zeroizing::new(Vec::with_capacity(2 * (waiting.len() + bytes.len())));
        buffer.extend_from_slice(waiting);
        buffer.extend_from_slice(bytes);
        self.buffer = buffer;
        self.consumed = 0;
    }

    /// The next message, or `None` while it is incomplete.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] as soon as the length has arrived, [`FrameError::Decode`] when the payload is no `T`;
    /// [`FrameError::Poisoned`] ever after.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(payload) = self.next_payload()? else {
            return Ok(None);
        };
        match codec::decode_exact(payload) {
            Ok(message) => Ok(Some(message)),
            Err(error) => {
                self.poisoned = true;
                Err(error.into())
            }
        }
    }

    /// The next frame's payload, or `None` while it is incomplete.
    ///
    /// # Errors
    /// As [`Self::next_message`], without decoding.
    pub fn next_payload(&mut self) -> Result<Option<&[u8]>, FrameError> {
        if self.poisoned {
            return Err(FrameError::Poisoned);
        }
        let waiting = self.buffer.get(self.consumed..).unwrap_or_default();
        let Some((header, rest)) = waiting.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX);
        if length > MAX_FRAME {
            self.poisoned = true;
            return Err(FrameError::TooLarge { length, cap: MAX_FRAME });
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        self.last_frame = HEADER + length;
        self.consumed += self.last_frame;
        Ok(Some(payload))
    }

    /// How many bytes the frame that was given out last took on the wire, with its header; 0 before the first.
    #[must_use]
    pub fn last_frame(&self) -> usize {
        self.last_frame
    }

    /// Says whether the stream may end here.
    ///
    /// # Errors
    /// [`FrameError::Truncated`] when a frame has begun and is not complete.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.buffer.len() > self.consumed { Err(FrameError::Truncated) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_claimed_length_over_the_cap_before_it_arrives() {
        let mut decoder = FrameDecoder::new();
        decoder.feed(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.next_payload(), Err(FrameError::TooLarge { .. })));
        assert!(matches!(decoder.next_payload(), Err(FrameError::Poisoned)));
        assert!(decoder.buffer.capacity() < 64);
    }

    #[test]
    fn a_claimed_length_reserves_nothing() {
        let mut decoder = FrameDecoder::new();
        decoder.feed(&u32::try_from(MAX_FRAME).unwrap().to_le_bytes());
        assert!(decoder.next_payload().unwrap().is_none());
        assert!(decoder.buffer.capacity() < 64);
        assert!(matches!(decoder.finish(), Err(FrameError::Truncated)));
    }

    #[test]
    fn the_largest_frame_comes_whole_out_of_single_bytes() {
        let frame = frame_bytes(&vec![7; MAX_FRAME]).unwrap();
        let mut decoder = FrameDecoder::new();
        let (last, most) = frame.split_last().unwrap();
        let mut buffers = 0;
        for byte in most {
            let before = decoder.buffer.as_ptr();
            decoder.feed(&[*byte]);
            buffers += usize::from(decoder.buffer.as_ptr() != before);
            assert!(decoder.next_payload().unwrap().is_none());
        }
        assert!(buffers < 32, "{buffers}");
        assert!(decoder.buffer.capacity() <= 2 * frame.len(), "{}", decoder.buffer.capacity());
        decoder.feed(&[*last]);
        assert_eq!(decoder.next_payload().unwrap().unwrap().len(), MAX_FRAME);
        assert_eq!(decoder.last_frame(), frame.len());
        assert!(decoder.finish().is_ok());
        // What was given out does not stay once more has come.
        decoder.feed(&[0]);
        assert!(decoder.buffer.capacity() < 64);
    }

    #[test]
    fn gives_back_frames_however_they_are_cut() {
        let mut stream = frame_bytes(b"one").unwrap();
        stream.extend_from_slice(&frame_bytes(b"").unwrap());
        stream.extend_from_slice(&frame_bytes(&[7; 1000]).unwrap());
        for cut in 0..=stream.len() {
            let mut decoder = FrameDecoder::new();
            let mut frames = Vec::new();
            let (head, tail) = stream.split_at(cut);
            for part in [head, tail] {
                decoder.feed(part);
                while let Some(payload) = decoder.next_payload().unwrap() {
                    frames.push(payload.to_vec());
                }
            }
            assert_eq!(frames, [b"one".to_vec(), Vec::new(), vec![7; 1000]], "cut at {cut}");
            assert!(decoder.finish().is_ok());
        }
    }

    #[test]
    fn trailing_bytes_in_a_frame_are_refused() {
        let mut decoder = FrameDecoder::new();
        let mut payload = codec::encode(&5_u8).unwrap();
        payload.push(0);
        decoder.feed(&frame_bytes(&payload).unwrap());
        assert!(matches!(decoder.next_message::<u8>(), Err(FrameError::Decode(DecodeError::Trailing { extra: 1 }))));
        assert!(matches!(decoder.next_message::<u8>(), Err(FrameError::Poisoned)));
    }
}
