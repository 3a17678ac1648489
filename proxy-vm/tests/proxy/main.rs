//! The proxy against servers that each test makes up: real sockets on loopback, real HTTP, the real protocol.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test fails by panicking"
)]

mod client;
mod fixtures;
mod server;
mod socks_stub;

mod acts;
mod confined;
mod conversation;
mod delete_limit;
mod downloads;
mod failures;
mod lists;
mod login;
mod origin;
mod probe;
mod process;
mod replies;
mod socks;
mod tls;
