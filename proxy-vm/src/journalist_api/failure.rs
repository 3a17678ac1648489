//! How the server, the way to it and its answers fail, and what the client is told.
//!
//! | What happens | kind | stage | retry |
//! |---|---|---|---|
//! | nobody listens at the SOCKS server's address, or it hangs up | unreachable | socks | later |
//! | what listens there wants a sign-in, or is no SOCKS server | unreachable | socks | later |
//! | the SOCKS server answers that it has no way, or Tor says why an onion service cannot be reached | unreachable | route | later |
//! | name, TCP or TLS fail without Tor; TLS fails with it | unreachable | connect | later |
//! | no connection within the bound for connecting | timeout | connect | later |
//! | the connection ends before the answer | unreachable | first byte | later |
//! | what comes is no HTTP | bad response | first byte | later |
//! | no answer within the bound for the first byte, which for a list goes with the call's deadline | timeout | first byte | later |
//! | nothing comes before the call's deadline | timeout | how far it was | later |
//! | 400, and every 4xx not named here | refused | first byte | never |
//! | 401, 403 | unauthorized | first byte | when the user acts |
//! | 404, 410 | not found | first byte | never |
//! | 409 | conflict | first byte | never |
//! | 416 to a request for a range: the file is shorter than what the client has of it | conflict | first byte | now |
//! | 413 | too large | first byte | never |
//! | 429 | rate limited | first byte | later, as `Retry-After` says |
//! | 5xx | server | first byte | later, as `Retry-After` says |
//! | 1xx, 2xx other than the request's own, 3xx | bad response | first byte | later |
//! | a download is encoded, or its head says another range than was asked for | bad response | first byte | later |
//! | nothing more of the body for the idle bound | timeout | body | later |
//! | the body is cut short, or goes on beyond what its head says | bad response | body | later |
//! | the body is over its cap | too large | body | never |
//! | the body is not what the call is answered with | bad response | parse | later |
//! | the answer to a reply is over its cap | bad response | body | later |
//! | the server says that it stored a reply under another id | bad response | parse | never |
//! | no items to mark as seen | refused | admission | never |
//!
//! What only changes something on the server, and reads nothing of the answer, has happened once the status says so:
//! whatever becomes of the body then is no failure, and the call ends before its deadline can make it one.
//!
//! The answer to a reply is read, since it says under which id the server stored it: a server that takes no notice of our
//! id would store each attempt as one more reply. What fails behind its 201 leaves open what became of the reply, and is
//! never told in a kind that says "not stored".
//!
//! The items of a conversation fail one by one:
//!
//! | What happens | kind | stage | retry |
//! |---|---|---|---|
//! | the item is beyond the bound | refused | admission | never |
//! | the list does not say of which source the item is, or where it stands | bad response | parse | later |
//! | the item is not in a list with an entry of which not even the id can be read | bad response | parse | later |
//! | the server does not delete it | as above | as above | as above |
//!
//! A login that may have reached the server is repeated only by the user: the server takes a one-time code once.
//!
//! **Invariant:** texts of the libraries, which hold addresses, are neither logged nor told. Details are this file's words.

use std::error::Error;

use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::SocksV5;
use protocol::{CallError, ErrorKind, Retry, Stage};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use tower_service::Service;

use super::http::HeadError;
use super::list::ListError;
use super::socks::Found;

/// What a SOCKS handshake fails with. The type has no public name of its own.
type SocksError = <SocksV5<HttpConnector> as Service<Uri>>::Error;

const LATER: Retry = Retry::Later { wait_ms: None };

/// The server answered with another status than the request's own.
pub(super) fn status(status: StatusCode, headers: &HeaderMap) -> CallError {
    let (kind, retry) = match status.as_u16() {
        401 | 403 => (ErrorKind::Unauthorized, Retry::WhenUserActs),
        404 | 410 => (ErrorKind::NotFound, Retry::Never),
        409 => (ErrorKind::Conflict, Retry::Never),
        413 => (ErrorKind::TooLarge, Retry::Never),
        429 => (ErrorKind::RateLimited, retry_after(headers)),
        400..=499 => (ErrorKind::Refused, Retry::Never),
        500..=599 => (ErrorKind::Server, retry_after(headers)),
        _ => (ErrorKind::BadResponse, LATER),
    };
    CallError::new(kind, Stage::FirstByte, retry).with_detail(&format!("HTTP {}", status.as_u16()))
}

/// The server has no such range of a file: another call, from its beginning, makes sense at once.
pub(super) fn no_such_range() -> CallError {
    CallError::new(ErrorKind::Conflict, Stage::FirstByte, Retry::Now).with_detail("the range is not there")
}

/// The head of a download is not what such an answer begins with.
pub(super) fn download_head(error: HeadError) -> CallError {
    CallError::new(ErrorKind::BadResponse, Stage::FirstByte, LATER).with_detail(&error.to_string())
}

/// `Retry-After` in seconds. A date, which it may be too, would need a clock that agrees with the server's.
fn retry_after(headers: &HeaderMap) -> Retry {
    let seconds =
        headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).and_then(|text| text.trim().parse().ok());
    Retry::Later { wait_ms: seconds.map(|seconds: u32| seconds.saturating_mul(1000)) }
}

/// No answer came to a request.
pub(super) fn sending(error: &reqwest::Error) -> CallError {
    if error.is_connect() {
        return connecting(error);
    }
    let no_http = causes(error).filter_map(|cause| cause.downcast_ref::<hyper::Error>()).any(hyper::Error::is_parse);
    if no_http {
        return CallError::new(ErrorKind::BadResponse, Stage::FirstByte, LATER).with_detail("the answer is no HTTP");
    }
    if error.is_builder() || error.is_redirect() {
        return CallError::new(ErrorKind::Internal, Stage::Admission, Retry::Never)
            .with_detail("the request was not made");
    }
    CallError::new(ErrorKind::Unreachable, Stage::FirstByte, LATER)
        .with_detail("the connection ended before the answer")
}

/// The server had a request, and nothing came.
pub(super) fn no_first_byte() -> CallError {
    CallError::new(ErrorKind::Timeout, Stage::FirstByte, LATER).with_detail("the server did not answer")
}

fn connecting(error: &reqwest::Error) -> CallError {
    let unreachable = |stage, detail| CallError::new(ErrorKind::Unreachable, stage, LATER).with_detail(detail);
    if let Some(socks) = causes(error).find_map(|cause| cause.downcast_ref::<SocksError>()) {
        return match socks {
            SocksError::Inner(_) => unreachable(Stage::Socks, "nobody listens at the SOCKS server's address"),
            SocksError::Io(_) => unreachable(Stage::Socks, "the SOCKS server hung up"),
            SocksError::V5(_) if is_sign_in(socks) => socks_found(Found::WantsSignIn),
            SocksError::V5(_) => unreachable(Stage::Route, "the SOCKS server has no way to the server"),
            SocksError::Parsing(_) => unreachable(Stage::Route, "the SOCKS server answered with an unknown reply"),
            SocksError::DnsFailure
            | SocksError::MissingHost
            | SocksError::MissingPort
            | SocksError::V4(_)
            | SocksError::Serialize(_) => unreachable(Stage::Route, "the SOCKS server was not asked"),
        };
    }
    if error.is_timeout() {
        return CallError::new(ErrorKind::Timeout, Stage::Connect, LATER).with_detail("no connection to the server");
    }
    let detail = if error.is_dns() {
        "the server's name was not found"
    } else if causes(error).any(is_tls) {
        "TLS failed"
    } else {
        "the connection failed"
    };
    unreachable(Stage::Connect, detail)
}

/// Whether something at the SOCKS server's address answered what the HTTP client does not know: then [`super::socks::look`]
/// says more.
pub(super) fn is_unknown_to_socks(error: &reqwest::Error) -> bool {
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<SocksError>())
        .any(|socks| matches!(socks, SocksError::Parsing(_)))
}

/// Whether what failed was the sign-in at the SOCKS server. The type of these errors has no public name; what `Debug` derives
/// begins with the variant's.
fn is_sign_in(error: &SocksError) -> bool {
    format!("{error:?}").starts_with("V5(Auth(")
}

/// What is at the SOCKS server's address gives no connection, for this reason.
pub(super) fn socks_found(found: Found) -> CallError {
    let (stage, detail) = match found {
        Found::NoSocks => (Stage::Socks, "what listens at the SOCKS server's address does not speak SOCKS 5"),
        Found::WantsSignIn => (Stage::Socks, "the SOCKS server wants a sign-in, which Tor does not"),
        Found::Reply(code) => (Stage::Route, socks_reply(code)),
    };
    CallError::new(ErrorKind::Unreachable, stage, LATER).with_detail(detail)
}

/// What a reply says that is none of SOCKS 5. Tor has eight of its own for onion services, as its extensions of SOCKS list
/// them (`ExtendedErrors`).
fn socks_reply(code: u8) -> &'static str {
    match code {
        0xF0 => "Tor finds no such onion service: the address may be wrong, or the server is down",
        0xF1 => "Tor finds what the onion service says of itself and cannot read it",
        0xF2 => "Tor finds the onion service, and no introduction to it succeeds: the server may be down",
        0xF3 => "Tor finds the onion service and does not meet it: the server may be down, or the way to it is bad",
        0xF4 => "the onion service wants a client authorization, and Tor has none for it",
        0xF5 => "the onion service does not accept Tor's client authorization",
        0xF6 => "the address is not one that an onion service can have",
        0xF7 => "Tor finds the onion service, and every introduction to it takes too long",
        _ => "the SOCKS server answered with an unknown reply",
    }
}

/// A body that should go on does not.
pub(super) fn idle() -> CallError {
    CallError::new(ErrorKind::Timeout, Stage::Body, LATER).with_detail("the answer stopped coming")
}

/// A body ended before its end, or its compression is broken.
pub(super) fn cut_short() -> CallError {
    CallError::new(ErrorKind::BadResponse, Stage::Body, LATER).with_detail("the answer was cut short")
}

/// A body goes on beyond the end that its head says.
pub(super) fn too_long() -> CallError {
    CallError::new(ErrorKind::BadResponse, Stage::Body, LATER).with_detail("the answer is longer than it says")
}

/// A body is over its cap.
pub(super) fn too_large() -> CallError {
    CallError::new(ErrorKind::TooLarge, Stage::Body, Retry::Never).with_detail("the answer is over the cap")
}

/// A body is not what the call is answered with.
pub(super) fn not_understood() -> CallError {
    CallError::new(ErrorKind::BadResponse, Stage::Parse, LATER)
}

/// Something answers, and it is not the Journalist API.
pub(super) fn not_the_api() -> CallError {
    not_understood().with_detail("what answers is not SecureDrop's Journalist API")
}

/// A body is no list.
pub(super) fn list(error: ListError) -> CallError {
    match error {
        ListError::Syntax => not_understood().with_detail("the list is not valid JSON"),
        ListError::Shape => not_understood().with_detail("the answer is not built as a list"),
        ListError::TooLarge => too_large(),
    }
}

/// A call that would mark nothing, which the server refuses too.
pub(super) fn nothing_to_mark() -> CallError {
    CallError::new(ErrorKind::Refused, Stage::Admission, Retry::Never).with_detail("no items to mark as seen")
}

/// An item of a conversation is beyond the bound up to which that is to be deleted.
pub(super) fn beyond_the_bound() -> CallError {
    CallError::new(ErrorKind::Refused, Stage::Admission, Retry::Never).with_detail("the item is beyond the upper bound")
}

/// An item is listed, and whose it is or where it stands cannot be read.
pub(super) fn unclear_item() -> CallError {
    not_understood().with_detail("the server's record of the item cannot be read")
}

/// An item is not listed, and one that is has no id that can be read: it may be this one.
pub(super) fn nameless_items() -> CallError {
    not_understood().with_detail("the server lists an item without an id")
}

/// The answer to a reply that the server says it stored could not be read.
pub(super) fn stored_reply(error: CallError) -> CallError {
    match error.kind {
        // Of a request this kind says that the server did not take it.
        ErrorKind::TooLarge => CallError { kind: ErrorKind::BadResponse, retry: LATER, ..error },
        ErrorKind::Unauthorized
        | ErrorKind::NotFound
        | ErrorKind::Conflict
        | ErrorKind::Refused
        | ErrorKind::RateLimited
        | ErrorKind::Server
        | ErrorKind::Unreachable
        | ErrorKind::Timeout
        | ErrorKind::BadResponse
        | ErrorKind::OutOfScope
        | ErrorKind::Cancelled
        | ErrorKind::Internal => error,
    }
}

/// The server stored a reply and gave it an id of its own: sent again, it would be stored again.
pub(super) fn other_reply_id() -> CallError {
    CallError::new(ErrorKind::BadResponse, Stage::Parse, Retry::Never)
        .with_detail("the server stored the reply under another id")
}

/// The request could not be built.
pub(super) fn request(detail: &str) -> CallError {
    CallError::new(ErrorKind::Internal, Stage::Admission, Retry::Never).with_detail(detail)
}

/// A login failed with `error`.
pub(super) fn login(error: CallError) -> CallError {
    let retry = if error.stage.before_the_server() { error.retry } else { Retry::WhenUserActs };
    let error = CallError { retry, ..error };
    match error.kind {
        ErrorKind::Unauthorized => error.with_detail(
            "wrong user name, passphrase or one-time code, a code that was used before, or too many attempts in a minute",
        ),
        ErrorKind::NotFound
        | ErrorKind::Conflict
        | ErrorKind::Refused
        | ErrorKind::RateLimited
        | ErrorKind::Server
        | ErrorKind::Unreachable
        | ErrorKind::Timeout
        | ErrorKind::BadResponse
        | ErrorKind::OutOfScope
        | ErrorKind::TooLarge
        | ErrorKind::Cancelled
        | ErrorKind::Internal => error,
    }
}

/// The errors beneath `error`, outermost first.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause| beneath(*cause))
}

fn beneath<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match cause.downcast_ref::<std::io::Error>() {
        // An I/O error that wraps another one passes over it in its `source`.
        Some(io) => io.get_ref().map(|inner| -> &(dyn Error + 'static) { inner }),
        None => cause.source(),
    }
}

fn is_tls(cause: &(dyn Error + 'static)) -> bool {
    cause.is::<rustls::Error>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(code: u16, retry_after: Option<&str>) -> CallError {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert(RETRY_AFTER, value.parse().unwrap());
        }
        status(StatusCode::from_u16(code).unwrap(), &headers)
    }

    #[test]
    fn every_status_has_its_kind() {
        for (code, kind, retry) in [
            (400, ErrorKind::Refused, Retry::Never),
            (401, ErrorKind::Unauthorized, Retry::WhenUserActs),
            (403, ErrorKind::Unauthorized, Retry::WhenUserActs),
            (404, ErrorKind::NotFound, Retry::Never),
            (405, ErrorKind::Refused, Retry::Never),
            (409, ErrorKind::Conflict, Retry::Never),
            (410, ErrorKind::NotFound, Retry::Never),
            (413, ErrorKind::TooLarge, Retry::Never),
            (422, ErrorKind::Refused, Retry::Never),
            (429, ErrorKind::RateLimited, LATER),
            (500, ErrorKind::Server, LATER),
            (502, ErrorKind::Server, LATER),
            (599, ErrorKind::Server, LATER),
            (101, ErrorKind::BadResponse, LATER),
            (201, ErrorKind::BadResponse, LATER),
            (204, ErrorKind::BadResponse, LATER),
            (206, ErrorKind::BadResponse, LATER),
            (301, ErrorKind::BadResponse, LATER),
            (304, ErrorKind::BadResponse, LATER),
            (600, ErrorKind::BadResponse, LATER),
        ] {
            let error = mapped(code, None);
            assert_eq!((error.kind, error.stage, error.retry), (kind, Stage::FirstByte, retry), "{code}");
            assert_eq!(error.detail.unwrap().as_str(), format!("HTTP {code}"));
        }
    }

    #[test]
    fn retry_after_is_obeyed_where_it_is_a_number() {
        for (code, value, wait_ms) in [
            (429, "7", Some(7000)),
            (503, " 120 ", Some(120_000)),
            (503, "4294967295", Some(u32::MAX)),
            (503, "Wed, 21 Oct 2026 07:28:00 GMT", None),
            (429, "-1", None),
            (429, "99999999999", None),
        ] {
            assert_eq!(mapped(code, Some(value)).retry, Retry::Later { wait_ms }, "{value}");
        }
        assert_eq!(mapped(404, Some("7")).retry, Retry::Never);
    }

    #[test]
    fn what_fails_behind_a_201_never_says_that_the_reply_was_not_stored() {
        for error in [too_large(), cut_short(), idle(), too_long()] {
            let told = stored_reply(error.clone());
            assert!(matches!(told.kind, ErrorKind::BadResponse | ErrorKind::Timeout), "{told:?}");
            assert_eq!((told.stage, told.retry, &told.detail), (Stage::Body, LATER, &error.detail));
        }
    }

    #[test]
    fn a_login_is_left_to_the_user_once_the_server_may_have_seen_it() {
        assert_eq!(login(mapped(503, Some("7"))).retry, Retry::WhenUserActs);
        assert!(login(mapped(403, None)).detail.unwrap().as_str().contains("one-time code"));
        let before = CallError::new(ErrorKind::Unreachable, Stage::Socks, LATER);
        assert_eq!(login(before).retry, LATER);
    }
}
