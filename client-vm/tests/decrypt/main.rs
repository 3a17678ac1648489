//! Decryption: real messages by GnuPG and by Sequoia, damaged in every way, through each backend. What stands in for
//! `qubes-gpg-client` takes its command line and runs the real GnuPG.
//!
//! Needs GnuPG; where it is missing, the tests fail unless the environment variable `SPLITDROP_SKIP` has `gpg` in its list.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[cfg(feature = "gpg-agent")]
mod agent;
mod bombs;
mod damage;
mod kinds;
mod messages;
mod packets;
mod random;
mod split_gpg;
mod stage;
mod table;
