//! A front end's connection to the daemon.

use std::io;
use std::path::{Path, PathBuf};

use protocol::frame::{FrameDecoder, FrameError, encode_frame, frame_bytes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::greeting::{self, GreetingError};
use crate::message::{Event, Failure, FromDaemon, Reply, Request, ToDaemon};

const READ_SIZE: usize = 64 * 1024;

/// The daemon cannot be talked to.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens on the socket.
    #[error("no daemon listens on {}", .socket.display())]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// Why it could not be connected.
        source: io::Error,
    },
    /// The connection failed.
    #[error("the connection to the daemon failed")]
    Io(#[from] io::Error),
    /// The daemon ended.
    #[error("the daemon ended")]
    Ended,
    /// What came is no message.
    #[error("the daemon sent what is no message")]
    Frame(#[from] FrameError),
    /// The daemon is of another version.
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    /// The daemon answered what was not asked.
    #[error("the daemon answered what was not asked")]
    Unexpected,
    /// The request failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// What arrives while a request is under way.
#[derive(Debug)]
pub enum Arrival {
    /// An item of the answer.
    Reply(Reply),
    /// An event; only after [`Request::Watch`].
    Event(Event),
}

/// A connection to the daemon, for one request at a time.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    decoder: FrameDecoder,
    last_id: u32,
}

impl Client {
    /// Connects to the daemon that listens on `socket`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect(socket: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(socket)
            .await
            .map_err(|source| ClientError::NoDaemon { socket: socket.to_owned(), source })?;
        let mut client = Self { stream, decoder: FrameDecoder::new(), last_id: 0 };
        client.stream.write_all(&frame_bytes(&greeting::greeting())?).await?;
        loop {
            if let Some(payload) = client.decoder.next_payload()? {
                greeting::check(payload)?;
                return Ok(client);
            }
            client.fill().await?;
        }
    }

    /// Makes a request and gives `arrived` what comes until its answer has ended.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Failed`] is the daemon's own answer.
    pub async fn request(&mut self, request: Request, mut arrived: impl FnMut(Arrival)) -> Result<(), ClientError> {
        self.last_id = self.last_id.wrapping_add(1);
        let own = self.last_id;
        self.stream.write_all(&encode_frame(&ToDaemon { id: own, request })?).await?;
        loop {
            match self.next_message().await? {
                FromDaemon::Item { id, reply } if id == own => arrived(Arrival::Reply(reply)),
                FromDaemon::Done { id, result } if id == own => return Ok(result?),
                FromDaemon::Event(event) => arrived(Arrival::Event(event)),
                FromDaemon::Item { .. } | FromDaemon::Done { .. } => return Err(ClientError::Unexpected),
            }
        }
    }

    /// The next event, after [`Request::Watch`]. Cancel-safe.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn next_event(&mut self) -> Result<Event, ClientError> {
        match self.next_message().await? {
            FromDaemon::Event(event) => Ok(event),
            FromDaemon::Item { .. } | FromDaemon::Done { .. } => Err(ClientError::Unexpected),
        }
    }

    async fn next_message(&mut self) -> Result<FromDaemon, ClientError> {
        loop {
            if let Some(message) = self.decoder.next_message()? {
                return Ok(message);
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), ClientError> {
        let mut chunk = vec![0; READ_SIZE];
        let count = self.stream.read(&mut chunk).await?;
        if count == 0 {
            return Err(ClientError::Ended);
        }
        self.decoder.feed(chunk.get(..count).unwrap_or_default());
        Ok(())
    }
}
