//! Reading, end to end with the real programs: what is fetched is decrypted by itself, and what it says is shown.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod calls;
mod deletions;
mod lanes;
mod long;
mod names;
mod seals;
mod search;
mod shown;
mod split_gpg;
mod stand_in;
mod states;
mod support;
