//! Splitdrop's proxy: the only code with a network.
//!
//! One process serves one qrexec call, in one scope. [`session`] maps the calls of the protocol to the
//! [`JournalistApi`](journalist_api::JournalistApi) trait, and [`journalist_api`] implements that trait over HTTP.
//!
//! **Invariant:** nothing is connected to but the one configured origin, through the SOCKS server unless the configuration
//! switches Tor off.
//!
//! **Invariant:** before it reads anything from a client the process gives up, through its kernel, what a session does not
//! need ([`confinement`]).
//!
//! **Invariant:** nothing is written to disk but the log, and the log holds ids, sizes, durations and codes: no token, name,
//! passphrase, code, header, designation, file name or address.
#![forbid(unsafe_code)]

pub mod config;
pub mod confinement;
pub mod delete_limit;
pub mod journalist_api;
pub mod log;
pub mod outlet;
pub mod session;
