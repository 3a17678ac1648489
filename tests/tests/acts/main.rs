//! What journalists do, end to end with the real programs: it shows at once, reaches the server once, and outlives what goes
//! wrong on the way.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod consent;
mod deletions;
mod lanes;
mod marks;
mod overdue;
mod policy;
mod refusals;
mod sessions;
mod shown;
mod snapshots;
mod stars;
mod support;
mod undo;
