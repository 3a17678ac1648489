//! What client and server say before bytes flow: RFC 1928, and RFC 1929 for those who give a name.
//!
//! **Invariant:** not a byte beyond the handshake is taken from the stream, so a client may send its first data early.
//!
//! **Invariant:** no more memory is used than a length of one byte can ask for.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

const VERSION: u8 = 5;
/// The version of the exchange of name and passphrase.
const PASSWORD_VERSION: u8 = 1;
const NO_AUTHENTICATION: u8 = 0;
const PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xFF;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// What a SOCKS server answers to a request. The first nine are RFC 1928's; those from 0xF0 on are Tor's own for onion
/// services (its option `ExtendedErrors`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply(pub u8);

impl Reply {
    /// The connection is there.
    pub const SUCCEEDED: Self = Self(0);
    /// Something went wrong.
    pub const GENERAL_FAILURE: Self = Self(1);
    /// The server's rules do not allow it.
    pub const NOT_ALLOWED: Self = Self(2);
    /// No way to the network.
    pub const NETWORK_UNREACHABLE: Self = Self(3);
    /// No way to the host.
    pub const HOST_UNREACHABLE: Self = Self(4);
    /// Nobody listens there.
    pub const CONNECTION_REFUSED: Self = Self(5);
    /// It took too long.
    pub const TTL_EXPIRED: Self = Self(6);
    /// The command is not served.
    pub const COMMAND_NOT_SUPPORTED: Self = Self(7);
    /// The kind of address is not served.
    pub const ADDRESS_NOT_SUPPORTED: Self = Self(8);
    /// Tor: the onion service's descriptor was not found.
    pub const ONION_NOT_FOUND: Self = Self(0xF0);
    /// Tor: the descriptor is not valid.
    pub const ONION_INVALID: Self = Self(0xF1);
    /// Tor: the service could not be introduced to.
    pub const ONION_INTRODUCTION_FAILED: Self = Self(0xF2);
    /// Tor: the service did not come to the rendezvous.
    pub const ONION_RENDEZVOUS_FAILED: Self = Self(0xF3);
    /// Tor: the service wants a key that there is none of.
    pub const ONION_KEY_MISSING: Self = Self(0xF4);
    /// Tor: the service wants another key.
    pub const ONION_KEY_WRONG: Self = Self(0xF5);
    /// Tor: the address is none.
    pub const ONION_ADDRESS_INVALID: Self = Self(0xF6);
    /// Tor: introducing took too long.
    pub const ONION_INTRODUCTION_TIMED_OUT: Self = Self(0xF7);

    /// All that are named here and are no success.
    pub const FAILURES: [Self; 16] = [
        Self::GENERAL_FAILURE,
        Self::NOT_ALLOWED,
        Self::NETWORK_UNREACHABLE,
        Self::HOST_UNREACHABLE,
        Self::CONNECTION_REFUSED,
        Self::TTL_EXPIRED,
        Self::COMMAND_NOT_SUPPORTED,
        Self::ADDRESS_NOT_SUPPORTED,
        Self::ONION_NOT_FOUND,
        Self::ONION_INVALID,
        Self::ONION_INTRODUCTION_FAILED,
        Self::ONION_RENDEZVOUS_FAILED,
        Self::ONION_KEY_MISSING,
        Self::ONION_KEY_WRONG,
        Self::ONION_ADDRESS_INVALID,
        Self::ONION_INTRODUCTION_TIMED_OUT,
    ];
}

/// Where a client wants to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A name, as it was sent, and a port.
    Name(String, u16),
    /// An IP address and a port, also when the address came as text.
    Address(SocketAddr),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Connect(Target),
    OtherCommand(Target),
    UnknownAddressType,
}

/// How a client came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Open,
    WithPassword,
}

/// A handshake came to no end.
#[derive(Debug, Error)]
pub(super) enum HandshakeError {
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Malformed(&'static str),
}

/// Reads the client's greeting, chooses a method and goes through it.
pub(super) async fn choose_method<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> Result<Method, HandshakeError> {
    if stream.read_u8().await? != VERSION {
        return Err(HandshakeError::Malformed("not SOCKS 5"));
    }
    let methods = read_counted(stream).await?;
    // As Tor chooses: a client that can name itself is meant to.
    if methods.contains(&PASSWORD) {
        stream.write_all(&[VERSION, PASSWORD]).await?;
        if stream.read_u8().await? != PASSWORD_VERSION {
            return Err(HandshakeError::Malformed("not the exchange of name and passphrase that was chosen"));
        }
        let _user_name = read_counted(stream).await?;
        let _passphrase = read_counted(stream).await?;
        stream.write_all(&[PASSWORD_VERSION, 0]).await?;
        Ok(Method::WithPassword)
    } else if methods.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
        Ok(Method::Open)
    } else {
        stream.write_all(&[VERSION, NO_METHOD]).await?;
        Err(HandshakeError::Malformed("no method that is served"))
    }
}

/// Reads what the client asks for.
pub(super) async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Request, HandshakeError> {
    let [version, command, _reserved, kind] = read_array(stream).await?;
    if version != VERSION {
        return Err(HandshakeError::Malformed("not SOCKS 5"));
    }
    let address = match kind {
        IPV4 => Ok(IpAddr::V4(Ipv4Addr::from(read_array::<4, _>(stream).await?))),
        IPV6 => Ok(IpAddr::V6(Ipv6Addr::from(read_array::<16, _>(stream).await?))),
        NAME => {
            let name = read_counted(stream).await?;
            let name = String::from_utf8(name).map_err(|_| HandshakeError::Malformed("a name that is no text"))?;
            name.parse().map_err(|_| name)
        }
        _ => return Ok(Request::UnknownAddressType),
    };
    let port = stream.read_u16().await?;
    let target = match address {
        Ok(address) => Target::Address(SocketAddr::new(address, port)),
        Err(name) => Target::Name(name, port),
    };
    Ok(if command == CONNECT { Request::Connect(target) } else { Request::OtherCommand(target) })
}

/// Answers the request. The bound address is none, as with Tor.
pub(super) async fn write_reply<S: AsyncWrite + Unpin>(stream: &mut S, reply: Reply) -> io::Result<()> {
    stream.write_all(&[VERSION, reply.0, 0, IPV4, 0, 0, 0, 0, 0, 0]).await?;
    stream.flush().await
}

async fn read_array<const N: usize, S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Bytes after a byte that says how many.
async fn read_counted<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::from(stream.read_u8().await?)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the server makes of a client that sends this and nothing more, and what it answers.
    async fn converse(sent: &[u8]) -> (Result<(Method, Request), HandshakeError>, Vec<u8>) {
        let (mut client, mut server) = tokio::io::duplex(4096);
        client.write_all(sent).await.unwrap();
        client.shutdown().await.unwrap();
        let result = async {
            let method = choose_method(&mut server).await?;
            Ok((method, read_request(&mut server).await?))
        };
        let result = result.await;
        drop(server);
        let mut answers = Vec::new();
        client.read_to_end(&mut answers).await.unwrap();
        (result, answers)
    }

    fn asking(kind: u8, address: &[u8], port: u16) -> Vec<u8> {
        let mut sent = vec![5, 1, 0, 5, 1, 0, kind];
        sent.extend_from_slice(address);
        sent.extend_from_slice(&port.to_be_bytes());
        sent
    }

    #[tokio::test]
    async fn reads_what_a_client_asks_for() {
        let address = |text: &str| Target::Address(text.parse().unwrap());
        for (kind, bytes, target) in [
            (3, b"\x07a.onion".as_slice(), Target::Name("a.onion".to_owned(), 80)),
            (3, b"\x00".as_slice(), Target::Name(String::new(), 80)),
            (1, &[127, 0, 0, 1], address("127.0.0.1:80")),
            (4, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], address("[::1]:80")),
            // An address that is spelled out is one.
            (3, b"\x09127.0.0.1", address("127.0.0.1:80")),
            (3, b"\x03::1", address("[::1]:80")),
        ] {
            let (result, answers) = converse(&asking(kind, bytes, 80)).await;
            assert_eq!(result.unwrap(), (Method::Open, Request::Connect(target)));
            assert_eq!(answers, [5, 0]);
        }
        let (result, _) = converse(&asking(9, b"", 80)).await;
        assert_eq!(result.unwrap().1, Request::UnknownAddressType);
        let mut bind = asking(3, b"\x07a.onion", 80);
        bind[4] = 2;
        let (result, _) = converse(&bind).await;
        assert_eq!(result.unwrap().1, Request::OtherCommand(Target::Name("a.onion".to_owned(), 80)));
    }

    #[tokio::test]
    async fn a_client_that_names_itself_is_let_in_as_one_that_does_not() {
        let mut sent = vec![5, 2, 0, 2, 1, 5];
        sent.extend_from_slice(b"alice\x00");
        sent.extend_from_slice(&asking(3, b"\x07a.onion", 80)[3..]);
        let (result, answers) = converse(&sent).await;
        assert_eq!(result.unwrap().0, Method::WithPassword);
        assert_eq!(answers, [5, 2, 1, 0]);
    }

    #[tokio::test]
    async fn no_method_in_common_is_said() {
        let (result, answers) = converse(&[5, 2, 1, 0x80]).await;
        assert!(matches!(result, Err(HandshakeError::Malformed(_))));
        assert_eq!(answers, [5, 0xFF]);
        assert!(matches!(converse(&[5, 0]).await.0, Err(HandshakeError::Malformed(_))));
    }

    #[tokio::test]
    async fn every_cut_is_an_error_and_not_a_request() {
        let whole = asking(3, b"\x07a.onion", 80);
        for end in 0..whole.len() {
            assert!(matches!(converse(&whole[..end]).await.0, Err(HandshakeError::Io(_))), "{end}");
        }
        assert!(converse(&whole).await.0.is_ok());
    }

    #[tokio::test]
    async fn what_follows_the_request_stays_in_the_stream() {
        let (mut client, mut server) = tokio::io::duplex(4096);
        let mut sent = asking(3, b"\x07a.onion", 80);
        sent.extend_from_slice(b"early");
        client.write_all(&sent).await.unwrap();
        choose_method(&mut server).await.unwrap();
        read_request(&mut server).await.unwrap();
        let mut rest = [0; 5];
        server.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"early");
    }

    proptest! {
        #[test]
        fn garbage_ends_in_a_result(sent in proptest::collection::vec(any::<u8>(), 0..600)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            // Whatever it is: it ends, and nothing panics.
            let (_result, _answers) = runtime.block_on(converse(&sent));
        }
    }
}
