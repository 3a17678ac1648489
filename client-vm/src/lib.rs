//! Splitdrop's client: the inbox in the VM that has no network.
//!
//! The daemon owns the store, the calls to the proxy and the session; commands and other front ends talk to it over the
//! control socket.
//!
//! **Invariant:** nothing here opens a network connection: the only ways out are qrexec calls and the control socket.
#![forbid(unsafe_code)]

pub mod acts;
mod characters;
pub mod cli;
pub mod clock;
pub mod confinement;
pub mod daemon;
pub mod download;
pub mod engine;
pub mod erasure;
mod failure;
pub mod files;
pub mod handover;
pub mod limits;
pub mod newsroom;
pub mod openpgp;
mod private;
pub mod proxy;
pub mod reading;
pub mod settings;
pub mod shown_name;
mod signals;
pub mod store;
pub mod sync;
pub mod unpack;
