//! What is deleted is erased, and what the server lists no more without reason is held, end to end.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod deletions;
mod held;
mod kills;
#[path = "../reading/support.rs"]
#[allow(dead_code, reason = "other tests need the rest")]
mod reading;
mod stuck;
mod support;
