//! Splitdrop without Qubes: a staging SecureDrop server, a stand-in for qrexec that obeys the real policy files, and an
//! environment that puts the real programs between them.
//!
//! **Invariant:** whatever is started here ends with what started it: no process stays, and nothing listens elsewhere
//! than on the loopback.

pub mod bench;
pub mod clock;
pub mod demo;
pub mod environment;
pub mod gate;
pub mod generator;
pub mod handover;
pub mod impatient;
pub mod isolation;
pub mod netns;
pub mod probe;
pub mod processes;
pub mod programs;
pub mod qrexec;
pub mod residue;
pub mod server;
pub mod soak;
pub mod socks;
pub mod trace;
pub mod up;
