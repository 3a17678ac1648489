//! What happens by itself, end to end with the real programs: syncs, downloads, pauses, and what ends them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod bounds;
mod ends;
mod files;
mod messages;
mod pauses;
mod places;
mod storage;
mod support;
mod syncs;
