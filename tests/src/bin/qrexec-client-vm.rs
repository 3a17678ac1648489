//! The stand-in for the program by which a VM calls a service of another one.

use std::process::ExitCode;

use staging::qrexec::{SOCKET_VARIABLE, client};

fn main() -> ExitCode {
    client::run(std::env::args_os().skip(1), std::env::var_os(SOCKET_VARIABLE)).into()
}
