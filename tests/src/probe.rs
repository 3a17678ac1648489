//! Tries to reach an address: what a wall is worth is tried from inside.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;

/// How long an attempt may take: a wall that swallows everything lets nothing through either.
const PATIENCE: Duration = Duration::from_secs(2);

/// What became of an attempt.
#[derive(Debug)]
pub enum Reach {
    /// Somebody answered.
    Reached,
    /// The attempt came as far as the address, where nobody listens.
    Refused,
    /// There is no way to the address.
    NoWay(io::Error),
    /// Nothing came back.
    Nothing,
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reached => f.write_str("reached"),
            Self::Refused => f.write_str("refused"),
            Self::NoWay(error) => write!(f, "no way: {error}"),
            Self::Nothing => f.write_str("nothing came back"),
        }
    }
}

/// Tries to connect to an address by TCP.
pub async fn reach(address: SocketAddr) -> Reach {
    match tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Reach::Reached,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Reach::Refused,
        Ok(Err(error)) => Reach::NoWay(error),
        Err(_) => Reach::Nothing,
    }
}
