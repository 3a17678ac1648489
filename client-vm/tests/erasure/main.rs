//! What is deleted is erased: no file of the data directory holds it any more, whatever happens on the way.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod crashes;
mod readers;
mod stage;
mod stuck;
mod whole;
