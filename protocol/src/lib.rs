//! What the client VM and the proxy VM say to each other.
//!
//! This crate is pure: no I/O, no async runtime, no clock. It says which values exist on the wire, which calls may be
//! made in which scope, how an answer is built, and which bytes stand for all that. How the bytes travel is `qubes-rpc`'s
//! work. `docs/PROTOCOL.md` describes the bytes for readers who do not read Rust.
//!
//! **Invariant:** a value of a type of this crate is valid. Every type has a checked constructor, and decoding goes
//! through the same check.
//!
//! **Invariant:** no input makes this crate panic, or allocate more than a few times the frame's cap by a length that the
//! peer merely claims.
#![forbid(unsafe_code)]

pub mod answer;
pub mod call;
pub mod codec;
pub mod confinement;
pub mod error;
pub mod frame;
pub mod handshake;
pub mod record;
pub mod scope;
pub mod value;

pub use answer::{
    Answer, Deletion, Download, FromProxy, Health, Items, Probe, ServerContact, SignedIn, StoredReply, Sum,
};
pub use call::{Call, CallId, Deadline, Request, SeenItems, ToProxy};
pub use confinement::{Confinement, Landlock, Seccomp};
pub use error::{CallError, ErrorKind, Retry, Stage};
pub use handshake::{ApiLevel, Hello, Limits, Refusal, Welcome};
pub use record::{Field, Journalist, Listed, Reply, Source, SourceKey, Submission, SubmissionKind, Unreadable};
pub use scope::Scope;
