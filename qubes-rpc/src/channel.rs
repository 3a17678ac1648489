//! Framed messages on a byte stream.

use protocol::frame::{Frame, FrameDecoder, FrameError};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use zeroize::{Zeroize as _, Zeroizing};

/// How much is read at once, in bytes: as much as qrexec carries in one message.
const READ_SIZE: usize = 64 * 1024;
/// How many frames may wait for the writer. A full queue holds up whoever wants to send.
const QUEUED_FRAMES: usize = 8;

/// Reading or writing a framed stream failed. The stream is lost.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The operating system said so.
    #[error("the stream failed")]
    Io(#[from] std::io::Error),
    /// What came is no frame or no message.
    #[error("the peer sent what is no message")]
    Frame(#[from] FrameError),
}

/// The reading half.
#[derive(Debug)]
pub struct FrameReader<R> {
    reader: R,
    decoder: FrameDecoder,
    chunk: Vec<u8>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads frames from `reader`.
    pub fn new(reader: R) -> Self {
        Self { reader, decoder: FrameDecoder::new(), chunk: vec![0; READ_SIZE] }
    }

    /// The next message; `None` where the stream ends between two frames. Cancel-safe.
    ///
    /// # Errors
    /// [`ChannelError`]; a stream that ends inside a frame is [`FrameError::Truncated`].
    pub async fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ChannelError> {
        loop {
            if let Some(message) = self.decoder.next_message()? {
                return Ok(Some(message));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// The next frame's payload; `None` where the stream ends between two frames. Cancel-safe.
    ///
    /// # Errors
    /// As [`Self::next_message`], without decoding.
    pub async fn next_payload(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, ChannelError> {
        loop {
            if let Some(payload) = self.decoder.next_payload()? {
                return Ok(Some(Zeroizing::new(payload.to_vec())));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// How many bytes the frame that was given out last took on the wire.
    #[must_use]
    pub fn last_frame(&self) -> u64 {
        u64::try_from(self.decoder.last_frame()).unwrap_or(u64::MAX)
    }

    /// Reads more; `false` at the stream's end.
    async fn fill(&mut self) -> Result<bool, ChannelError> {
        let count = self.reader.read(&mut self.chunk).await?;
        if count == 0 {
            self.decoder.finish()?;
            return Ok(false);
        }
        let arrived = self.chunk.get_mut(..count).unwrap_or_default();
        self.decoder.feed(arrived);
        arrived.zeroize();
        Ok(true)
    }
}

/// The sending end of a queue of frames. Clones feed the same queue.
#[derive(Debug, Clone)]
pub struct FrameSender(mpsc::Sender<Frame>);

/// Room in a queue of frames, kept for one frame.
#[derive(Debug)]
pub struct Room<'a>(mpsc::Permit<'a, Frame>);

impl Room<'_> {
    /// Queues the frame, at once.
    pub fn send(self, frame: Frame) {
        self.0.send(frame);
    }
}

/// Nobody writes the queue's frames any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream is closed")]
pub struct Closed;

impl FrameSender {
    /// Queues a frame, waiting while the queue is full. Cancel-safe: cancelled, the frame is not queued.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn send(&self, frame: Frame) -> Result<(), Closed> {
        self.0.send(frame).await.map_err(|_| Closed)
    }

    /// Waits for room for one frame. Cancel-safe.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn reserve(&self) -> Result<Room<'_>, Closed> {
        self.0.reserve().await.map(Room).map_err(|_| Closed)
    }

    /// Closes the stream once what is queued is written, though other senders may be left.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn finish(&self) -> Result<(), Closed> {
        // A frame is never empty: it has a header.
        self.send(Frame::default()).await
    }

    /// Whether nobody writes the queue's frames any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// A bounded queue of frames, and what takes them out: give the second to [`write_frames`].
#[must_use]
pub fn frame_queue() -> (FrameSender, mpsc::Receiver<Frame>) {
    let (sender, receiver) = mpsc::channel(QUEUED_FRAMES);
    (FrameSender(sender), receiver)
}

/// Writes the queue's frames until every [`FrameSender`] is gone or one has finished, then closes the stream. Not
/// cancel-safe.
///
/// # Errors
/// The operating system's, at the first write that fails.
pub async fn write_frames<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut queue: mpsc::Receiver<Frame>,
) -> Result<(), std::io::Error> {
    while let Some(frame) = queue.recv().await
        && !frame.is_empty()
    {
        writer.write_all(&frame).await?;
        if queue.is_empty() {
            writer.flush().await?;
        }
    }
    writer.shutdown().await
}
