//! Sessions: both ends over an in-memory pipe, or one end against a peer that a test plays byte by byte.
//!
//! Time is paused: it goes on when everybody waits, so a hang shows at once as a deadline that ran out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod calls;
mod client_misbehaves;
mod ends;
mod handshake;
mod proxy_misbehaves;
mod support;
mod truncation;
