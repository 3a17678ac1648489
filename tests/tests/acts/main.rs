//! What journalists do, end to end with the real programs: it shows at once, reaches the server once, and outlives what goes
//! wrong on the way.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod shown;
mod support;
