//! A front end's connection to the daemon.
//!
//! **Invariant:** nothing is said to a daemon of another user: a front end asks for passphrases and passes them on to whoever
//! listens.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::frame::{FrameDecoder, FrameError, encode_frame, frame_bytes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::failure::Failure;
use crate::greeting::{self, GreetingError};
use crate::message::{Event, FromDaemon, Reply, Request, ToDaemon};
use crate::peer;

const READ_SIZE: usize = 64 * 1024;
/// How long a daemon may take to answer the greeting. It has nothing else to do for it.
const GREETING_DEADLINE: Duration = Duration::from_secs(10);

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
    /// The socket is there and cannot be used.
    #[error("could not connect to {}", .socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What listens on the socket is not this user's.
    #[error("a program of another user listens on {}: nothing was said to it", .socket.display())]
    Foreign {
        /// The socket.
        socket: PathBuf,
    },
    /// Somebody listens on the socket and does not answer.
    #[error("the daemon on {} does not answer: end it, and start it again", .socket.display())]
    Silent {
        /// The socket.
        socket: PathBuf,
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
    /// Connects to the daemon that listens on `socket`, and compares versions. Takes at most ten seconds.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect(socket: &Path) -> Result<Self, ClientError> {
        tokio::time::timeout(GREETING_DEADLINE, Self::greet(socket))
            .await
            .unwrap_or_else(|_late| Err(ClientError::Silent { socket: socket.to_owned() }))
    }

    async fn greet(socket: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(socket).await.map_err(|source| {
            let socket = socket.to_owned();
            match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NoDaemon { socket, source },
                // So many wait already that nobody else may.
                io::ErrorKind::WouldBlock => ClientError::Silent { socket },
                _ => ClientError::Connect { socket, source },
            }
        })?;
        if !peer::is_of_own_user(&stream) {
            return Err(ClientError::Foreign { socket: socket.to_owned() });
        }
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

#[cfg(test)]
mod tests {
    use std::io::BufRead as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;

    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_does_not_answer_is_waited_for_no_longer_than_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let _stuck = UnixListener::bind(&socket).unwrap();
        let began = tokio::time::Instant::now();
        let error = Client::connect(&socket).await.unwrap_err();
        assert!(matches!(error, ClientError::Silent { .. }), "{error}");
        assert_eq!(began.elapsed(), GREETING_DEADLINE);
        assert!(error.to_string().contains("does not answer"), "{error}");
    }

    #[tokio::test]
    async fn a_daemon_with_no_room_for_one_more_does_not_answer() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let stuck = tokio::net::UnixSocket::new_stream().unwrap();
        stuck.bind(&socket).unwrap();
        let _stuck = stuck.listen(0).unwrap();
        let _waiting = UnixStream::connect(&socket).await.unwrap();
        let error = Client::connect(&socket).await.unwrap_err();
        assert!(matches!(error, ClientError::Silent { .. }), "{error}");
    }

    /// Names the socket on which this test listens in another process, for another user.
    const LISTEN: &str = "CONTROL_TEST_LISTEN";

    #[tokio::test]
    async fn nothing_is_said_to_what_another_user_listens_with() {
        const NAME: &str = "client::tests::nothing_is_said_to_what_another_user_listens_with";
        if let Some(socket) = std::env::var_os(LISTEN) {
            let listener = UnixListener::bind(socket).unwrap();
            println!("listens");
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut said = Vec::new();
            stream.read_to_end(&mut said).await.unwrap();
            println!("was told {} bytes", said.len());
            return;
        }
        if !nix::unistd::geteuid().is_root() {
            eprintln!("NOT CHECKED: only root can start a program of another user");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        // A copy, since others may not be let into the folder of this one.
        let program = directory.path().join("listener");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let socket = directory.path().join("control.sock");
        let mut listener = std::process::Command::new(program)
            .args(["--exact", NAME, "--nocapture"])
            .env(LISTEN, &socket)
            .uid(65_534)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufReader::new(listener.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.ends_with("listens")));
        let error = Client::connect(&socket).await.unwrap_err();
        assert!(matches!(error, ClientError::Foreign { .. }), "{error}");
        assert!(lines.any(|line| line.ends_with("was told 0 bytes")));
        assert!(listener.wait().unwrap().success());
    }

    #[tokio::test]
    async fn no_daemon_is_told_from_a_socket_that_cannot_be_used() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let none = Client::connect(&directory.path().join("none")).await.unwrap_err();
        assert!(matches!(none, ClientError::NoDaemon { .. }), "{none}");
        let below_a_file = Client::connect(&file.join("control.sock")).await.unwrap_err();
        assert!(matches!(below_a_file, ClientError::Connect { .. }), "{below_a_file}");
    }
}
