//! What `qrexec-client-vm` asks of the broker, and how names of services are cleaned.
//!
//! On the socket: the target and `SERVICE[+ARGUMENT]`, each followed by a zero byte. The answers are in
//! [`descriptors`](super::descriptors).
//!
//! **Invariant:** past [`receive`] the service, its argument and the target hold only bytes that qrexec lets through.

use tokio::io::{AsyncRead, AsyncReadExt};

/// `SERVICE+ARGUMENT` over this many bytes ends the calling VM's agent: its channel to dom0 holds no longer message.
const SERVICE_CAP: usize = 3_900;
/// No more than this is read of a request; one that goes on is refused, as the agent refuses what no name can be.
const REQUEST_CAP: u64 = 8_192;

/// A request, cleaned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The target as asked for: a name or `@...`; empty for none.
    pub(super) target: String,
    /// The service without its argument.
    pub(super) service: String,
    /// The argument without its `+`; empty when there is none.
    pub(super) argument: String,
}

/// A request is refused before any policy is asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("the request could not be read: {0}")]
    Read(#[from] std::io::Error),
    #[error("the request ended early or is too long")]
    Incomplete,
    /// In Qubes the calling VM's agent does not survive this.
    #[error("the service's name and argument are longer than {SERVICE_CAP} bytes")]
    TooLong,
    #[error("the request names no service")]
    NoService,
}

/// The bytes of a request.
pub(super) fn encode(target: &[u8], service: &[u8]) -> Vec<u8> {
    [target, b"\0", service, b"\0"].concat()
}

/// Reads one request. Not cancel-safe: a request that was read in part is lost with the connection.
pub(super) async fn receive(connection: &mut (impl AsyncRead + Unpin)) -> Result<Request, RequestError> {
    let mut limited = connection.take(REQUEST_CAP);
    let target = field(&mut limited).await?;
    let service = field(&mut limited).await?;
    if service.len() > SERVICE_CAP {
        return Err(RequestError::TooLong);
    }
    let full_name = clean(&service, b"+");
    let (service, argument) = full_name.split_once('+').unwrap_or((&full_name, ""));
    if service.is_empty() {
        return Err(RequestError::NoService);
    }
    Ok(Request { target: clean(&target, b"@:"), service: service.to_owned(), argument: argument.to_owned() })
}

async fn field(connection: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, RequestError> {
    let mut bytes = Vec::new();
    loop {
        // Byte by byte: requests are short, and nothing behind one may be swallowed.
        match connection.read_u8().await {
            Ok(0) => return Ok(bytes),
            Ok(byte) => bytes.push(byte),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(RequestError::Incomplete),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Every byte that is not a letter, a digit, `-`, `.`, `_` or in `also` becomes `_`.
fn clean(bytes: &[u8], also: &[u8]) -> String {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte) || also.contains(&byte);
    bytes.iter().map(|&byte| if allowed(byte) { char::from(byte) } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn round(target: &str, service: &[u8]) -> Result<Request, RequestError> {
        receive(&mut encode(target.as_bytes(), service).as_slice()).await
    }

    #[tokio::test]
    async fn services_arguments_and_targets_are_split_and_cleaned() {
        for (service, name, argument) in [
            (&b"a.B"[..], "a.B", ""),
            (b"a.B+", "a.B", ""),
            (b"a.B+x", "a.B", "x"),
            (b"a.B+x+y", "a.B", "x+y"),
            (b"a.B+-f..", "a.B", "-f.."),
            (b"a/B+../x y\xc3\xa9;@:", "a_B", ".._x_y_____"),
        ] {
            let request = round("sd-proxy", service).await.expect("a request");
            assert_eq!((request.service.as_str(), request.argument.as_str()), (name, argument));
        }
        assert_eq!(round("@dispvm:a b+", b"s").await.expect("a request").target, "@dispvm:a_b_");
        assert_eq!(round("", b"s").await.expect("a request").target, "");
    }

    #[tokio::test]
    async fn endless_and_cut_requests_are_refused() {
        assert!(round("a", &[b'x'; SERVICE_CAP]).await.is_ok());
        assert!(matches!(round("a", &[b'x'; SERVICE_CAP + 1]).await, Err(RequestError::TooLong)));
        assert!(matches!(round("a", &[b'x'; 9_000]).await, Err(RequestError::Incomplete)));
        for nameless in [&b""[..], b"+", b"+x"] {
            assert!(matches!(round("a", nameless).await, Err(RequestError::NoService)));
        }
        assert!(matches!(receive(&mut &b"a\0b"[..]).await, Err(RequestError::Incomplete)));
    }
}
