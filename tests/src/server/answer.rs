//! Answers as the real server writes them: compact JSON in ASCII with a line feed at its end, and errors in one shape.

use std::io;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Bytes;
use serde::Serialize;
use serde_json::ser::Formatter;

/// What the server says when it is at fault.
const INTERNAL: &str = "The server encountered an internal error and was unable to complete your request. Either the \
                        server is overloaded or there is an error in the application.";

/// What a route answers.
pub(crate) type Answer = Result<Response, Refusal>;

/// What can be marked seen, as the API calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeenKind {
    File,
    Message,
    Reply,
}

impl SeenKind {
    fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Message => "message",
            Self::Reply => "reply",
        }
    }
}

/// A refusal, with the words that the real server uses for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No live session, whatever was asked for.
    NotSignedIn,
    /// A login that failed, for any reason.
    LoginFailed,
    /// No such route, or no such record.
    NotFound,
    /// A route that does not know this method.
    WrongMethod,
    /// A body that is missing or is not JSON.
    Malformed,
    /// A body that does not say it is JSON.
    UndeclaredJson,
    /// JSON that is no object.
    NotAnObject,
    /// Something is to be marked seen, and nobody says what.
    NothingToSee,
    /// One of the things to be marked seen is not there, or is of another kind.
    NotThereToSee { kind: SeenKind, uuid: String },
    /// A reply without its text.
    NoReply,
    /// A reply whose text is empty.
    EmptyReply,
    /// A reply that is not encrypted.
    NotEncrypted,
    /// A reply with an id that is no UUID.
    BadUuid,
    /// A reply with the id of another one.
    TakenUuid,
    /// A login without one of its fields.
    MissingField(&'static str),
    /// A body beyond the server's limit.
    TooLarge,
    /// A range of a file that is not there.
    RangeNotThere,
    /// Our own fault.
    Internal,
}

#[derive(Serialize)]
struct ErrorJson<'a> {
    error: &'a str,
    message: &'a str,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let words;
        let (status, error, message) = match self {
            Self::NotSignedIn => (
                StatusCode::FORBIDDEN,
                "Forbidden",
                "You don't have the permission to access the requested resource. It is either read-protected or not \
                 readable by the server.",
            ),
            Self::LoginFailed => (StatusCode::FORBIDDEN, "Forbidden", "Token authentication failed."),
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "Not Found",
                "The requested URL was not found on the server. If you entered the URL manually please check your \
                 spelling and try again.",
            ),
            Self::WrongMethod => (
                StatusCode::METHOD_NOT_ALLOWED,
                "Method Not Allowed",
                "The method is not allowed for the requested URL.",
            ),
            Self::Malformed => (StatusCode::BAD_REQUEST, "Bad Request", "malformed request"),
            Self::UndeclaredJson => (
                StatusCode::BAD_REQUEST,
                "Bad Request",
                "The browser (or proxy) sent a request that this server could not understand.",
            ),
            Self::NotAnObject => (StatusCode::BAD_REQUEST, "Bad Request", "Please send requests in valid JSON."),
            Self::NothingToSee => {
                (StatusCode::BAD_REQUEST, "Bad Request", "Please specify the resources to mark seen.")
            }
            Self::NotThereToSee { kind, uuid } => {
                words = format!("{} not found: {uuid}", kind.name());
                (StatusCode::NOT_FOUND, "Not Found", words.as_str())
            }
            Self::NoReply => (StatusCode::BAD_REQUEST, "Bad Request", "reply not found in request body"),
            Self::EmptyReply => (StatusCode::BAD_REQUEST, "Bad Request", "reply should not be empty"),
            // The one that does not say what kind of error it is.
            Self::NotEncrypted => {
                let message = serde_json::json!({"message": "You must encrypt replies client side"});
                return json(StatusCode::BAD_REQUEST, &message);
            }
            Self::BadUuid => (StatusCode::BAD_REQUEST, "Bad Request", "'uuid' was not a valid UUID"),
            Self::TakenUuid => (StatusCode::CONFLICT, "Conflict", "That UUID is already in use."),
            Self::MissingField(field) => {
                words = format!("{field} field is missing");
                (StatusCode::BAD_REQUEST, "Bad Request", words.as_str())
            }
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "Request Entity Too Large",
                "The data value transmitted exceeds the capacity limit.",
            ),
            Self::RangeNotThere => (
                StatusCode::RANGE_NOT_SATISFIABLE,
                "Requested Range Not Satisfiable",
                "The server cannot provide the requested range.",
            ),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error", INTERNAL),
        };
        json(status, &ErrorJson { error, message })
    }
}

/// An answer with a record or list.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match encode(value) {
        Ok(bytes) => json_bytes(status, bytes),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written");
            (StatusCode::INTERNAL_SERVER_ERROR, INTERNAL).into_response()
        }
    }
}

/// An answer whose JSON is written already.
pub(crate) fn json_bytes(status: StatusCode, bytes: Bytes) -> Response {
    let kind = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, kind)], bytes).into_response()
}

/// JSON as the server writes it.
pub(crate) fn encode(value: &impl Serialize) -> serde_json::Result<Bytes> {
    let mut text = Vec::new();
    let mut writer = serde_json::Serializer::with_formatter(&mut text, Ascii);
    value.serialize(&mut writer)?;
    text.push(b'\n');
    Ok(Bytes::from(text))
}

/// Compact JSON in which everything beyond ASCII is escaped.
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if fragment.is_ascii() {
            return writer.write_all(fragment.as_bytes());
        }
        let mut units = [0; 2];
        for letter in fragment.chars() {
            if letter.is_ascii() {
                write!(writer, "{letter}")?;
            } else {
                for unit in letter.encode_utf16(&mut units) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_compact_ascii_with_a_line_feed() {
        let value = serde_json::json!({"a": "Zoë\n\"𝄞\"", "b": [1, null]});
        let text = encode(&value).unwrap();
        assert_eq!(text, "{\"a\":\"Zo\\u00eb\\n\\\"\\ud834\\udd1e\\\"\",\"b\":[1,null]}\n");
        let back: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(back, value);
    }
}
