//! One download over a session with a proxy that these tests play: what is stored, what is gone on with, and what a crash
//! leaves at each step.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod crashes;
mod resuming;
mod stage;
mod stored;
