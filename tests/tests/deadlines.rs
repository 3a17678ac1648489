//! The bounds of a list as they are in the programs: each holds what the next inner one allows.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use client_vm::sync::list_deadline;
use proxy_vm::journalist_api::Limits;

/// What a server with 1,000 sources was seen to need for the first byte of a list.
const SLOWEST_SEEN: Duration = Duration::from_secs(90);

/// S3: connecting, then the first byte, then the call, also for who has never seen the server's lists.
#[test]
fn s3_connecting_and_the_first_byte_fit_into_a_lists_deadline() {
    let proxy = Limits::default();
    let call = list_deadline(0);
    assert!(proxy.connect < SLOWEST_SEEN && SLOWEST_SEEN < proxy.first_byte, "{proxy:?}");
    assert!(proxy.connect + proxy.first_byte + proxy.idle < call, "{proxy:?} {call:?}");
    // What is kept of a list's deadline for its body covers connecting too, so the first byte's bound ends before the call's.
    assert!(proxy.connect < proxy.idle, "{proxy:?}");
}
