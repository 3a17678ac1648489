//! Keys as GnuPG and Sequoia make them: which can be encrypted to, that GnuPG reads what is encrypted to them, and the
//! table of it in docs/OPENPGP.md.
//!
//! Needs GnuPG, unless `SPLITDROP_SKIP` names `gpg`. `SPLITDROP_BLESS=1` writes the table anew, and fails.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod gpg;
mod made;
mod table;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protocol::value::Timestamp;

/// 2026-06-01, when the keys are looked at.
const NOW: u64 = 1_780_272_000;

fn moment(seconds: u64) -> Timestamp {
    Timestamp::try_new(seconds * 1_000_000).unwrap()
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Whether tests that need GnuPG are left out, as whoever runs them asked.
fn skips_gpg() -> bool {
    std::env::var("SPLITDROP_SKIP").is_ok_and(|tools| tools.split(',').any(|tool| tool.trim() == "gpg"))
}
