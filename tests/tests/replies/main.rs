//! What sources are answered, end to end with the real programs: it shows at once, the source reads it once, and what was
//! written is never lost.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod asking;
mod drafts;
mod hostile;
mod keys;
mod newsroom;
mod order;
mod refusals;
mod sent;
mod sessions;
mod support;
mod unknown;
