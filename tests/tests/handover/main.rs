//! What leaves the client's VM, end to end with the real programs: documents that are opened in disposable VMs, copies in
//! folders and on drives, prints, transcripts. Stand-ins play the other VMs.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod copies;
mod devices;
mod names;
mod support;
mod transcripts;
mod viewers;
