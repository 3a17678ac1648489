//! The handshake: which version, which scope, which limits.
//!
//! The first frame of each side begins with a [`Preamble`], whose eight bytes never change. Both derive the session's
//! version from the two preambles: the newest that both speak. When there is none, each side can say which VM to upgrade.
//!
//! The client sends its [`Hello`] before it knows the proxy's versions. So all versions that one build speaks share the
//! `Hello`'s form: a version that changes it cannot be spoken beside an older one.

use serde::{Deserialize, Serialize};

use crate::codec::{self, DecodeError, EncodeError};
use crate::scope::Scope;
use crate::value::{Problem, SettingName, SoftwareVersion, ValueError};

/// The versions of the protocol that this build speaks.
pub const VERSIONS: Preamble = Preamble { oldest: 1, newest: 1 };

const MAGIC: [u8; 4] = *b"SPLT";
const PREAMBLE: usize = 8;

/// The versions that one side speaks. On the wire: the four bytes `SPLT`, the oldest and the newest version as
/// little-endian `u16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// The oldest version spoken.
    pub oldest: u16,
    /// The newest version spoken.
    pub newest: u16,
}

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The client VM.
    Client,
    /// The proxy VM.
    Proxy,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Client => "client VM",
            Self::Proxy => "proxy VM",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Client => Self::Proxy,
            Self::Proxy => Self::Client,
        }
    }
}

/// A handshake message could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer speaks something else altogether.
    #[error("the peer does not speak this protocol")]
    NotOurs,
    /// No version is spoken by both.
    #[error(
        "the {} speaks protocol versions {} to {} and this {} {} to {}: upgrade Splitdrop in the {}",
        .this.other().name(), .theirs.oldest, .theirs.newest, .this.name(), .ours.oldest, .ours.newest, .upgrade.name()
    )]
    VersionMismatch {
        /// Which end says this.
        this: Peer,
        /// What this end speaks.
        ours: Preamble,
        /// What the other end speaks.
        theirs: Preamble,
        /// The VM that is behind.
        upgrade: Peer,
    },
    /// The body does not decode.
    #[error("the handshake is malformed")]
    Malformed(#[from] DecodeError),
    /// The body could not be encoded.
    #[error("the handshake could not be encoded")]
    Encode(#[from] EncodeError),
}

impl Preamble {
    fn to_bytes(self) -> [u8; PREAMBLE] {
        let [m0, m1, m2, m3] = MAGIC;
        let [o0, o1] = self.oldest.to_le_bytes();
        let [n0, n1] = self.newest.to_le_bytes();
        [m0, m1, m2, m3, o0, o1, n0, n1]
    }

    /// Splits a handshake frame's payload into the peer's versions and the body.
    ///
    /// # Errors
    /// [`HandshakeError::NotOurs`] when it does not begin with a preamble.
    fn split(payload: &[u8]) -> Result<(Self, &[u8]), HandshakeError> {
        let Some((preamble, body)) = payload.split_first_chunk::<PREAMBLE>() else {
            return Err(HandshakeError::NotOurs);
        };
        let [m0, m1, m2, m3, o0, o1, n0, n1] = *preamble;
        let versions = Self { oldest: u16::from_le_bytes([o0, o1]), newest: u16::from_le_bytes([n0, n1]) };
        if [m0, m1, m2, m3] != MAGIC || versions.oldest > versions.newest {
            return Err(HandshakeError::NotOurs);
        }
        Ok((versions, body))
    }

    /// The newest version that both speak.
    fn agree(self, this: Peer, theirs: Self) -> Result<u16, HandshakeError> {
        let newest = self.newest.min(theirs.newest);
        if newest >= self.oldest.max(theirs.oldest) {
            return Ok(newest);
        }
        let upgrade = if self.newest < theirs.oldest { this } else { this.other() };
        Err(HandshakeError::VersionMismatch { this, ours: self, theirs, upgrade })
    }
}

/// What the server speaks, as a login shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ApiLevel {
    /// Version 1 of the Journalist API.
    V1,
    /// Version 2 as well: the login was answered with hints for it.
    V2,
}

/// Limits of one session. Each side offers its own; the smaller number counts. The frame's cap is no limit to agree
/// on: it belongs to the protocol's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The most calls that may run at the same time; one more fails as `rate_limited`.
    pub max_calls: MaxCalls,
}

impl Limits {
    /// What this build offers.
    pub const OURS: Self = Self { max_calls: MaxCalls(16) };

    /// The smaller of both.
    #[must_use]
    pub fn agree(self, theirs: Self) -> Self {
        Self { max_calls: self.max_calls.min(theirs.max_calls) }
    }
}

/// A number of calls at the same time, 1 to 65,535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u16")]
pub struct MaxCalls(u16);

impl MaxCalls {
    /// The number.
    #[must_use]
    pub fn get(self) -> usize {
        usize::from(self.0)
    }
}

impl TryFrom<u16> for MaxCalls {
    type Error = ValueError;

    fn try_from(number: u16) -> Result<Self, ValueError> {
        match number {
            0 => Err(ValueError { what: "a number of calls", problem: Problem::OutOfRange }),
            _ => Ok(Self(number)),
        }
    }
}

/// The client's opening.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The scope that the client means to use. The proxy compares it with the one that qrexec says and believes only
    /// that.
    pub scope: Scope,
    /// The client's limits.
    pub limits: Limits,
    /// What the server speaks, once a login has shown it.
    pub api_level: Option<ApiLevel>,
    /// The client's version.
    pub software: SoftwareVersion,
}

/// The proxy's answer to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// Calls may be made.
    Ready {
        /// The scope, as qrexec says it.
        scope: Scope,
        /// The agreed limits.
        limits: Limits,
        /// The proxy's version.
        software: SoftwareVersion,
    },
    /// No calls may be made; the session ends.
    Refused(Refusal),
}

/// Why the proxy takes no calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The client opened another scope than it says.
    #[error("the proxy was started for the scope {started} and not for the one asked for")]
    Scope {
        /// The scope that qrexec says.
        started: Scope,
    },
    /// A setting of the proxy VM is missing.
    #[error("the proxy VM is not configured: {} is missing", .0.as_str())]
    SettingMissing(SettingName),
    /// A setting of the proxy VM is invalid.
    #[error("the proxy VM is not configured: {} is not valid", .0.as_str())]
    SettingInvalid(SettingName),
    /// The proxy VM's settings do not list the VM that calls.
    #[error("the proxy VM takes no calls from this VM: add its name to {} in dom0", .0.as_str())]
    Caller(SettingName),
    /// The kernel of the proxy VM enforces less than a setting demands.
    #[error(
        "the kernel of the proxy VM does not confine files and network, as {} demands: \
         use Linux 6.7 or newer with Landlock there, or switch the setting off",
        .0.as_str()
    )]
    Landlock(SettingName),
    /// The proxy could not confine itself.
    #[error("the proxy could not confine itself with seccomp, and does nothing without: see its log in the proxy VM")]
    Unconfined,
}

/// Builds the client's first frame's payload.
///
/// # Errors
/// [`HandshakeError::Encode`].
pub fn encode_hello(hello: &Hello) -> Result<Vec<u8>, HandshakeError> {
    Ok(with_preamble(&codec::encode(hello)?))
}

/// Reads the client's first frame's payload, in the proxy.
///
/// # Errors
/// [`HandshakeError`]; after a version mismatch [`mismatch_answer`] should be sent.
pub fn decode_hello(payload: &[u8]) -> Result<Hello, HandshakeError> {
    let (theirs, body) = Preamble::split(payload)?;
    VERSIONS.agree(Peer::Proxy, theirs)?;
    Ok(codec::decode_exact(body)?)
}

/// Builds the proxy's first frame's payload.
///
/// # Errors
/// [`HandshakeError::Encode`].
pub fn encode_welcome(welcome: &Welcome) -> Result<Vec<u8>, HandshakeError> {
    Ok(with_preamble(&codec::encode(welcome)?))
}

/// The proxy's first frame's payload when no version fits: its versions, and nothing more.
#[must_use]
pub fn mismatch_answer() -> Vec<u8> {
    VERSIONS.to_bytes().to_vec()
}

/// Reads the proxy's first frame's payload, in the client.
///
/// # Errors
/// [`HandshakeError`].
pub fn decode_welcome(payload: &[u8]) -> Result<Welcome, HandshakeError> {
    let (theirs, body) = Preamble::split(payload)?;
    VERSIONS.agree(Peer::Client, theirs)?;
    Ok(codec::decode_exact(body)?)
}

fn with_preamble(body: &[u8]) -> Vec<u8> {
    let mut payload = VERSIONS.to_bytes().to_vec();
    payload.extend_from_slice(body);
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            scope: Scope::Metadata,
            limits: Limits::OURS,
            api_level: Some(ApiLevel::V1),
            software: SoftwareVersion::try_new("0.1.0").unwrap(),
        }
    }

    #[test]
    fn a_mismatch_names_the_vm_that_is_behind() {
        let ours = Preamble { oldest: 2, newest: 3 };
        for (theirs, upgrade) in
            [(Preamble { oldest: 4, newest: 5 }, Peer::Client), (Preamble { oldest: 1, newest: 1 }, Peer::Proxy)]
        {
            let error = ours.agree(Peer::Client, theirs).unwrap_err();
            assert!(matches!(error, HandshakeError::VersionMismatch { upgrade: named, .. } if named == upgrade));
            assert!(error.to_string().ends_with(&format!("upgrade Splitdrop in the {}", upgrade.name())), "{error}");
        }
        assert_eq!(ours.agree(Peer::Client, Preamble { oldest: 1, newest: 2 }).unwrap(), 2);
        assert_eq!(ours.agree(Peer::Client, Preamble { oldest: 3, newest: 9 }).unwrap(), 3);
    }

    #[test]
    fn a_future_hello_is_a_mismatch_and_no_garbage() {
        let mut payload = Preamble { oldest: 7, newest: 9 }.to_bytes().to_vec();
        payload.extend_from_slice(b"whatever version 7 says");
        let error = decode_hello(&payload).unwrap_err();
        assert!(matches!(error, HandshakeError::VersionMismatch { upgrade: Peer::Proxy, .. }), "{error}");
        let answer = decode_welcome(&Preamble { oldest: 7, newest: 9 }.to_bytes()).unwrap_err();
        assert!(matches!(answer, HandshakeError::VersionMismatch { upgrade: Peer::Client, .. }), "{answer}");
    }

    #[test]
    fn what_is_not_ours_is_told_apart() {
        for payload in [&b""[..], b"SPL", b"GET / HTTP/1.1\r\n", b"SPLT\x02\x00\x01\x00"] {
            assert!(matches!(decode_hello(payload), Err(HandshakeError::NotOurs)), "{payload:?}");
        }
        let cut = encode_hello(&hello()).unwrap();
        let cut = cut.split_last().unwrap().1;
        assert!(matches!(decode_hello(cut), Err(HandshakeError::Malformed(_))));
    }

    #[test]
    fn limits_agree_on_the_smaller() {
        let (small, large) = (Limits { max_calls: MaxCalls(3) }, Limits { max_calls: MaxCalls(99) });
        assert_eq!(Limits::OURS.agree(small), small);
        assert_eq!(Limits::OURS.agree(large), Limits::OURS);
    }
}
