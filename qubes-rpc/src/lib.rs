//! How the protocol travels: qrexec calls, framed messages on their standard streams, names, QubesDB.
//!
//! [`serve`] is the proxy's side of one qrexec call, [`connection`] the client's; [`qrexec`] starts, watches and ends the
//! process behind it. Neither side knows what the calls mean.

pub mod channel;
pub mod connection;
pub mod name;
pub mod places;
pub mod qrexec;
pub mod qubesdb;
pub mod serve;
pub mod stdio;

/// The name of the qrexec service that the proxy VM offers. Its argument is the scope.
pub const PROXY_SERVICE: &str = "splitdrop.Proxy";
