//! The stand-in for the program by which a VM opens a file in another one.

use std::process::ExitCode;

use staging::handover::{SOCKET_VARIABLE, run};

fn main() -> ExitCode {
    run(std::env::args_os().skip(1), std::env::var_os(SOCKET_VARIABLE)).into()
}
