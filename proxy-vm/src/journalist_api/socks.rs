//! Looks again at the SOCKS server's address, where the HTTP client met something there that it does not know.
//!
//! The HTTP client knows the replies of SOCKS 5 (RFC 1928) and keeps nothing of any other. Tor has more, for onion services,
//! and they say what is to be done. So the same is asked once more, by hand, and only as far as the reply's code.
//!
//! **Invariant:** nothing but the SOCKS server is connected to, and nothing is sent through it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::config::Origin;

/// The version, which every message begins with.
const VERSION: u8 = 5;
/// Signing in without anything: the one method that is offered.
const NO_SIGN_IN: u8 = 0;
/// To connect; then a byte that is always 0.
const CONNECT: [u8; 2] = [1, 0];

/// What is at the SOCKS server's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Something that does not speak SOCKS 5.
    NoSocks,
    /// A SOCKS server that takes only who signs in.
    WantsSignIn,
    /// A SOCKS server that answered the request to connect with this code.
    Reply(u8),
}

/// Asks the SOCKS server for a way to `origin` and gives what it says. The way is not used.
///
/// # Errors
/// When there is no connection to it, or it ends too early.
pub(super) async fn look(socks: SocketAddr, origin: &Origin) -> io::Result<Found> {
    let mut stream = TcpStream::connect(socks).await?;
    stream.write_all(&[VERSION, 1, NO_SIGN_IN]).await?;
    match answer(&mut stream).await? {
        [VERSION, NO_SIGN_IN] => {}
        [VERSION, _] => return Ok(Found::WantsSignIn),
        _ => return Ok(Found::NoSocks),
    }
    stream.write_all(&request(origin)).await?;
    match answer(&mut stream).await? {
        [VERSION, code] => Ok(Found::Reply(code)),
        _ => Ok(Found::NoSocks),
    }
}

/// The first two bytes of what comes: a message's version, and what it says.
async fn answer(stream: &mut TcpStream) -> io::Result<[u8; 2]> {
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// The request to connect to `origin`. Its name is left to the SOCKS server.
fn request(origin: &Origin) -> Vec<u8> {
    let mut request = vec![VERSION];
    request.extend(CONNECT);
    match origin.address() {
        Some(IpAddr::V4(address)) => {
            request.push(1);
            request.extend(address.octets());
        }
        Some(IpAddr::V6(address)) => {
            request.push(4);
            request.extend(address.octets());
        }
        None => {
            // A longer name than this has no place in SOCKS; what is asked for then is a name that nobody has.
            let length = u8::try_from(origin.host().len()).unwrap_or(u8::MAX);
            request.extend([3, length]);
            request.extend(origin.host().bytes().take(usize::from(length)));
        }
    }
    request.extend(origin.port().to_be_bytes());
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_bytes_of_rfc_1928() {
        for (origin, bytes) in [
            ("http://a.onion", &b"\x05\x01\x00\x03\x07a.onion\x00\x50"[..]),
            ("https://a.onion", b"\x05\x01\x00\x03\x07a.onion\x01\xbb"),
            ("http://192.0.2.7:8080", b"\x05\x01\x00\x01\xc0\x00\x02\x07\x1f\x90"),
            ("http://[::1]", b"\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50"),
        ] {
            assert_eq!(request(&Origin::parse(origin).unwrap()), bytes, "{origin}");
        }
    }
}
