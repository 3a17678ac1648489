//! One item is opened: decrypted, unpacked, noted; and what a crash leaves at each step.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod crashes;
mod hostile;
mod opening;
mod stage;
