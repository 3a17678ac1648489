//! What is kept from the client: by dom0's policy, by what installs it, by the proxy's scopes, and by the kernel.
//!
//! Needs systemd-analyze and apparmor_parser, unless `SPLITDROP_SKIP` names `systemd` and `apparmor`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod edges;
mod install;
mod network;
mod taken_over;
mod texts;
