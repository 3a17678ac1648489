//! What goes wrong on purpose: a table of rules, looked up for every request.
//!
//! The first rule in the table that matches a request and is not used up acts on it, and one use of it is spent. So a
//! script is a row of rules: `pass` once, `hang` five times, and then nothing more goes wrong.
//!
//! **Invariant:** a rule acts on at most `times` requests, also when they come at the same time.
//!
//! **Invariant:** an answer that a rule holds goes out when the rule goes, however it goes.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;

pub(crate) mod edit;

pub use edit::{Edit, Which};

/// The most padding that a body is blown up with: 8 GiB.
pub const LARGEST_BODY: u64 = 8 << 30;
/// The longest delay: an hour.
pub const LONGEST_DELAY: Duration = Duration::from_secs(3_600);

/// Which requests a rule is about.
///
/// The path is compared segment by segment: `*` stands for any one segment, and a `**` at the end for any rest. A query
/// does not count. So `/api/v1/sources` is the list, `/api/v1/sources/*` any one source, `/api/v1/**` everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matching {
    /// One method, or any.
    #[serde(default)]
    pub method: Option<String>,
    /// The path or pattern.
    pub path: String,
}

impl Matching {
    /// Any request to a path or pattern.
    pub fn path(path: &str) -> Self {
        Self { method: None, path: path.to_owned() }
    }

    /// Requests of one method to a path or pattern.
    pub fn method(method: &str, path: &str) -> Self {
        Self { method: Some(method.to_owned()), path: path.to_owned() }
    }

    fn matches(&self, method: &str, path: &str) -> bool {
        if self.method.as_deref().is_some_and(|wanted| wanted != method) {
            return false;
        }
        let mut segments = path.split('/');
        for wanted in self.path.split('/') {
            match (wanted, segments.next()) {
                ("**", _) => return true,
                ("*", Some(_)) => {}
                (wanted, Some(segment)) if wanted == segment => {}
                (_, _) => return false,
            }
        }
        segments.next().is_none()
    }
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Which requests it is about.
    pub matching: Matching,
    /// On how many requests it acts; for ever when not said.
    #[serde(default)]
    pub times: Option<u32>,
    /// How long the server waits before it looks at the request, in milliseconds: the answer tells of the time after the
    /// delay. For one that tells of the time before, see [`FaultAct::HoldAnswer`].
    #[serde(default)]
    pub delay_ms: u64,
    /// What goes wrong then.
    #[serde(default)]
    pub act: FaultAct,
}

impl Fault {
    /// A rule that acts for ever.
    pub fn new(matching: Matching, act: FaultAct) -> Self {
        Self { matching, times: None, delay_ms: 0, act }
    }

    /// The same rule for `times` requests.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// The same rule after a delay.
    #[must_use]
    pub fn after_ms(mut self, delay_ms: u64) -> Self {
        self.delay_ms = delay_ms;
        self
    }
}

/// What a rule does. Numbers of bytes count what goes over the wire, so compressed bytes when answers are compressed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum FaultAct {
    /// Nothing: the request is answered as it should be.
    #[default]
    Pass,
    /// The connection is closed; the server never looked at the request.
    Drop,
    /// The server does what it was asked and closes the connection without a word.
    LoseAnswer,
    /// The server does what it was asked and answers that something went wrong.
    FailAfter {
        /// The status.
        status: u16,
    },
    /// The connection is closed after this many bytes of the body, though `Content-Length` promises all of it. At least
    /// the last byte is always missing.
    DropAfter {
        /// Bytes of the body that are sent.
        bytes: u64,
    },
    /// The body ends early, and `Content-Length` says so: a sound answer with half a list in it.
    Truncate {
        /// Bytes of the body that are left.
        bytes: u64,
    },
    /// Some other answer; the server never looked at the request.
    Answer {
        /// The status.
        status: u16,
        /// What the body is said to be.
        #[serde(default = "json_type")]
        content_type: String,
        /// The body.
        body: String,
        /// More headers, such as `Retry-After`, as names and values. Those of which HTTP itself makes use are refused.
        #[serde(default)]
        headers: Vec<(String, String)>,
    },
    /// A redirection elsewhere; the server never looked at the request.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: u16,
        /// Where to.
        location: String,
    },
    /// One record of the answer is changed, in a list or alone. An answer without such a record stays as it is.
    BadRecord {
        /// Which record.
        which: Which,
        /// What happens to it, in this order.
        edits: Vec<Edit>,
    },
    /// Endless blanks inside sound JSON, up to [`LARGEST_BODY`]. They are made as they are sent.
    Oversize {
        /// How many bytes the body has.
        bytes: u64,
        /// Whether `Content-Length` announces it; otherwise it comes in chunks.
        #[serde(default)]
        announced: bool,
    },
    /// No byte of an answer ever comes; the server never looked at the request.
    Hang,
    /// The server does what it was asked, and no byte of an answer ever comes.
    HangAnswer,
    /// The server does what it was asked and writes the answer, which waits as it is: whatever changes meanwhile is not in
    /// it. It goes out when the rule is removed, or at a command that releases the answers and leaves the rule. A request
    /// whose answer waits is [held](super::LoggedRequest::held) in the log.
    HoldAnswer,
    /// The answer stops after this many bytes of the body and the connection stays. At least the last byte is always
    /// missing.
    HangAfter {
        /// Bytes of the body that are sent.
        bytes: u64,
    },
    /// The body comes slowly: some bytes at once, and some more after each pause. All of it comes in the end.
    Drip {
        /// Bytes at a time, at most; at least 1.
        bytes: u64,
        /// The pause, in milliseconds.
        every_ms: u64,
    },
    /// All bits of one byte of the body are flipped. A body that ends before it stays as it is.
    FlipByte {
        /// Which byte of the body that is sent, from 0: of a range, counted from the range's start.
        at: u64,
    },
    /// Some headers of the answer are others. Those of which HTTP itself makes use are refused.
    EditHeaders {
        /// Values by name, any UTF-8 that a header can hold; null takes the header away.
        headers: BTreeMap<String, Option<String>>,
    },
}

fn json_type() -> String {
    String::from("application/json")
}

impl FaultAct {
    /// An answer with this status and JSON.
    pub fn json(status: u16, body: &serde_json::Value) -> Self {
        Self::json_with(status, &[], body)
    }

    /// An answer with this status, more headers and JSON.
    pub fn json_with(status: u16, headers: &[(&str, &str)], body: &serde_json::Value) -> Self {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self::Answer { status, content_type: json_type(), body: body.to_string(), headers: headers.collect() }
    }

    /// An answer with this status and a page for people.
    pub fn html(status: u16, body: &str) -> Self {
        let content_type = String::from("text/html; charset=iso-8859-1");
        Self::Answer { status, content_type, body: body.to_owned(), headers: Vec::new() }
    }

    /// The right answer, with these headers instead of what it has of them, or without them.
    pub fn edit_headers(headers: &[(&str, Option<&str>)]) -> Self {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
        Self::EditHeaders { headers: headers.collect() }
    }

    /// A success that says it is JSON and is not.
    pub fn not_json() -> Self {
        let body = String::from("{\"sources\": [oops");
        Self::Answer { status: 200, content_type: json_type(), body, headers: Vec::new() }
    }
}

/// Why a rule was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FaultError {
    /// Not a status that an answer can have.
    #[error("{0} is not a status of an answer")]
    Status(u16),
    /// Not a redirection.
    #[error("{0} is not one of 301, 302, 303, 307 and 308")]
    Redirection(u16),
    /// A header cannot hold this.
    #[error("a header cannot hold {0:?}")]
    Header(String),
    /// No header, or one that a rule cannot set.
    #[error("a rule cannot set the header {0:?}")]
    HeaderName(String),
    /// Longer than [`LONGEST_DELAY`].
    #[error("a delay of {0} ms is too long")]
    Delay(u64),
    /// More than [`LARGEST_BODY`].
    #[error("a body of {0} bytes is too large")]
    Size(u64),
    /// A body that never comes to its end.
    #[error("a body cannot come by 0 bytes at a time")]
    NoDrip,
}

impl Fault {
    /// Whether the server can do what the rule asks.
    pub(crate) fn check(&self) -> Result<(), FaultError> {
        if Duration::from_millis(self.delay_ms) > LONGEST_DELAY {
            return Err(FaultError::Delay(self.delay_ms));
        }
        match &self.act {
            FaultAct::Answer { status, content_type, body: _, headers } => {
                check_header(content_type)?;
                for (name, value) in headers {
                    check_name(name)?;
                    check_header(value)?;
                }
                match (200..600).contains(status) {
                    true => Ok(()),
                    false => Err(FaultError::Status(*status)),
                }
            }
            FaultAct::FailAfter { status } => match (200..600).contains(status) {
                true => Ok(()),
                false => Err(FaultError::Status(*status)),
            },
            FaultAct::Redirect { status, location } => {
                check_header(location)?;
                match [301, 302, 303, 307, 308].contains(status) {
                    true => Ok(()),
                    false => Err(FaultError::Redirection(*status)),
                }
            }
            FaultAct::Oversize { bytes, .. } if *bytes > LARGEST_BODY => Err(FaultError::Size(*bytes)),
            FaultAct::Drip { bytes: 0, .. } => Err(FaultError::NoDrip),
            FaultAct::Drip { every_ms, .. } if Duration::from_millis(*every_ms) > LONGEST_DELAY => {
                Err(FaultError::Delay(*every_ms))
            }
            FaultAct::EditHeaders { headers } => {
                for (name, value) in headers {
                    check_edited(name)?;
                    let value = value.as_deref().unwrap_or_default();
                    HeaderValue::from_bytes(value.as_bytes()).map_err(|_| FaultError::Header(value.to_owned()))?;
                }
                Ok(())
            }
            FaultAct::Pass
            | FaultAct::Drop
            | FaultAct::LoseAnswer
            | FaultAct::DropAfter { .. }
            | FaultAct::Truncate { .. }
            | FaultAct::BadRecord { .. }
            | FaultAct::Oversize { .. }
            | FaultAct::Hang
            | FaultAct::HangAnswer
            | FaultAct::HoldAnswer
            | FaultAct::HangAfter { .. }
            | FaultAct::Drip { .. }
            | FaultAct::FlipByte { .. } => Ok(()),
        }
    }
}

fn check_header(value: &str) -> Result<(), FaultError> {
    HeaderValue::from_str(value).map(|_| ()).map_err(|_| FaultError::Header(value.to_owned()))
}

/// Whether an answer can have this header besides those that are written anyway.
fn check_name(name: &str) -> Result<(), FaultError> {
    check_edited(name)?;
    match name.eq_ignore_ascii_case(header::CONTENT_TYPE.as_str()) {
        true => Err(FaultError::HeaderName(name.to_owned())),
        false => Ok(()),
    }
}

/// Whether an answer's header can be another, or none.
fn check_edited(name: &str) -> Result<(), FaultError> {
    let ours = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION];
    match HeaderName::try_from(name) {
        Ok(name) if !ours.contains(&name) => Ok(()),
        _ => Err(FaultError::HeaderName(name.to_owned())),
    }
}

/// A rule in the table, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FaultStatus {
    /// By which it is removed, and named in the log.
    pub id: u64,
    /// On how many requests it has acted.
    pub acted: u64,
    /// The rule; `times` is what is left.
    pub fault: Fault,
}

/// A rule, and those who wait for it.
#[derive(Debug)]
struct Rule {
    status: FaultStatus,
    /// Counts how often answers were released; closed when the rule goes.
    releases: watch::Sender<u64>,
}

/// A use of a rule.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) id: u64,
    pub(crate) fault: Fault,
    releases: watch::Receiver<u64>,
}

impl Taken {
    /// Ready when the rule goes or releases its answers, as it may have done already since it was taken. Cancel-safe.
    pub(crate) async fn released(&mut self) {
        // A closed channel means that the rule is gone.
        let _ = self.releases.changed().await;
    }
}

/// The rules, in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct FaultTable {
    last_id: u64,
    rules: Vec<Rule>,
}

impl FaultTable {
    pub(crate) fn add(&mut self, fault: Fault) -> Result<u64, FaultError> {
        fault.check()?;
        self.last_id = self.last_id.saturating_add(1);
        let status = FaultStatus { id: self.last_id, acted: 0, fault };
        self.rules.push(Rule { status, releases: watch::Sender::new(0) });
        Ok(self.last_id)
    }

    /// Removes a rule and tells whether it was there.
    pub(crate) fn remove(&mut self, id: u64) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| rule.status.id != id);
        self.rules.len() != before
    }

    /// Releases the answers that a rule holds and tells whether it was there.
    pub(crate) fn release(&self, id: u64) -> bool {
        let rule = self.rules.iter().find(|rule| rule.status.id == id);
        if let Some(rule) = rule {
            rule.releases.send_modify(|count| *count = count.wrapping_add(1));
        }
        rule.is_some()
    }

    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(crate) fn statuses(&self) -> Vec<FaultStatus> {
        self.rules.iter().map(|rule| rule.status.clone()).collect()
    }

    /// Spends one use of the rule that is about this request.
    pub(crate) fn take(&mut self, method: &str, path: &str) -> Option<Taken> {
        let about = |fault: &Fault| fault.times != Some(0) && fault.matching.matches(method, path);
        let Rule { status, releases } = self.rules.iter_mut().find(|rule| about(&rule.status.fault))?;
        status.acted = status.acted.saturating_add(1);
        let fault = status.fault.clone();
        if let Some(times) = &mut status.fault.times {
            *times = times.saturating_sub(1);
        }
        Some(Taken { id: status.id, fault, releases: releases.subscribe() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        let cases = [
            ("/api/v1/sources", "/api/v1/sources", true),
            ("/api/v1/sources", "/api/v1/sources/x", false),
            ("/api/v1/sources", "/api/v1", false),
            ("/api/v1/sources/*", "/api/v1/sources", false),
            ("/api/v1/sources/*", "/api/v1/sources/x", true),
            ("/api/v1/sources/*/replies", "/api/v1/sources/x/replies", true),
            ("/api/v1/sources/*/replies", "/api/v1/sources/x/submissions", false),
            ("/api/v1/**", "/api/v1/sources/x", true),
            ("/api/v1/**", "/api/v2/index", false),
            ("/**", "/", true),
        ];
        for (pattern, path, matches) in cases {
            assert_eq!(Matching::path(pattern).matches("GET", path), matches, "{pattern} {path}");
        }
        let post = Matching::method("POST", "/a");
        assert!(post.matches("POST", "/a") && !post.matches("GET", "/a"));
    }

    #[test]
    fn rules_are_used_up_in_order() {
        let mut table = FaultTable::default();
        let path = || Matching::path("/a");
        table.add(Fault::new(path(), FaultAct::Pass).times(1)).unwrap();
        table.add(Fault::new(path(), FaultAct::Hang).times(2)).unwrap();
        table.add(Fault::new(Matching::path("/b"), FaultAct::Drop)).unwrap();
        let mut acts = Vec::new();
        while let Some(taken) = table.take("GET", "/a") {
            acts.push((taken.id, taken.fault.act));
        }
        assert_eq!(acts, [(1, FaultAct::Pass), (2, FaultAct::Hang), (2, FaultAct::Hang)]);
        for _ in 0..3 {
            assert_eq!(table.take("GET", "/b").unwrap().id, 3);
        }
        let statuses: Vec<_> = table.statuses().iter().map(|s| s.acted).collect();
        assert_eq!(statuses, [1, 2, 3]);
        assert!(table.remove(3) && !table.remove(3));
        assert!(table.take("GET", "/b").is_none());
    }

    #[test]
    fn what_the_server_cannot_do_is_refused() {
        let refused = |act| Fault::new(Matching::path("/a"), act).check().unwrap_err();
        let redirect = |status, location: &str| FaultAct::Redirect { status, location: location.to_owned() };
        assert_eq!(refused(redirect(304, "/b")), FaultError::Redirection(304));
        assert_eq!(refused(redirect(302, "/b\n")), FaultError::Header("/b\n".to_owned()));
        assert_eq!(refused(FaultAct::html(99, "")), FaultError::Status(99));
        let with = |name: &str, value: &str| FaultAct::json_with(503, &[(name, value)], &serde_json::Value::Null);
        for name in ["Content-Length", "transfer-encoding", "Connection", "Content-Type", "", "Retry After"] {
            assert_eq!(refused(with(name, "1")), FaultError::HeaderName(name.to_owned()));
        }
        assert_eq!(refused(with("Retry-After", "1\r\n")), FaultError::Header("1\r\n".to_owned()));
        let bytes = LARGEST_BODY + 1;
        let announced = true;
        assert_eq!(refused(FaultAct::Oversize { bytes, announced }), FaultError::Size(bytes));
        let slow = Fault::new(Matching::path("/a"), FaultAct::Pass).after_ms(3_600_001);
        assert_eq!(slow.check(), Err(FaultError::Delay(3_600_001)));
    }

    #[test]
    fn a_rule_can_be_written_by_hand() {
        let written = r#"{"matching": {"path": "/a"}, "times": 2, "act": {"kind": "drop_after", "bytes": 10}}"#;
        let fault: Fault = serde_json::from_str(written).unwrap();
        assert_eq!(fault, Fault::new(Matching::path("/a"), FaultAct::DropAfter { bytes: 10 }).times(2));
        assert!(serde_json::from_str::<Fault>(r#"{"matching": {"path": "/a"}, "tmes": 2}"#).is_err());
        let written = r#"{"kind": "answer", "status": 503, "body": "null", "headers": [["Retry-After", "30"]]}"#;
        let act: FaultAct = serde_json::from_str(written).unwrap();
        assert_eq!(act, FaultAct::json_with(503, &[("Retry-After", "30")], &serde_json::Value::Null));
        let written = r#"{"kind": "answer", "status": 503, "body": "null"}"#;
        let act: FaultAct = serde_json::from_str(written).unwrap();
        assert_eq!(act, FaultAct::json(503, &serde_json::Value::Null));
    }

    #[tokio::test]
    async fn a_rule_releases_at_a_word_and_when_it_goes() {
        let mut table = FaultTable::default();
        for path in ["/a", "/b", "/c"] {
            table.add(Fault::new(Matching::path(path), FaultAct::HoldAnswer)).unwrap();
        }
        let mut taken = ["/a", "/b", "/c"].map(|path| table.take("GET", path).unwrap());
        let is_released = |taken: &Taken| taken.releases.has_changed().unwrap_or(true);
        assert!(table.release(1) && table.remove(2) && !table.release(2));
        assert_eq!(taken.each_ref().map(is_released), [true, true, false]);
        // What is taken afterwards is not released with what was held before.
        let again = table.take("GET", "/a").unwrap();
        assert!(!is_released(&again));
        table.clear();
        for taken in taken.iter_mut().chain([&mut { again }]) {
            taken.released().await;
        }
    }
}
