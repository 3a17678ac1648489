//! The stand-in for qrexec, end to end: real `qrexec-client-vm` processes, a broker, small shell scripts as services.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests may fail as loudly as tests")]

mod asking;
mod conditions;
mod decisions;
mod ends;
mod services;
mod sockets;
mod streams;
mod support;
