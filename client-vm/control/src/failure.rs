//! Why a request failed.

use serde::{Deserialize, Serialize};

/// A request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of failure it is.
    pub kind: FailureKind,
    /// What happened and what to do, in words.
    pub message: String,
}

/// The kinds of failure that a front end may want to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// Nobody is signed in.
    NotSignedIn,
    /// Somebody is signed in already, or is just signing in.
    AlreadySignedIn,
    /// The server did not accept the credentials.
    LoginRefused,
    /// What is asked for cannot be understood.
    Invalid,
    /// No such source.
    NotFound,
    /// More than one source fits.
    Ambiguous,
    /// What is asked for contradicts what is there: an act on what is being deleted, a deal with an act that is not there
    /// or not so far.
    Conflict,
    /// The server refused an act.
    Refused,
    /// dom0's policy refused the call.
    PolicyRefused,
    /// The proxy or the server cannot be reached, or did not answer in time.
    Unreachable,
    /// The server or the proxy answered with a fault.
    ServerFault,
    /// The work was given up: logout, or the daemon ends.
    Cancelled,
    /// The private key cannot be reached, or its use was denied.
    KeyUnreachable,
    /// What is there cannot be decrypted.
    Sealed,
    /// A viewer's VM or a device VM failed, or said what nobody understands.
    OtherVm,
    /// The store failed.
    Store,
    /// The daemon has a fault.
    Internal,
}
