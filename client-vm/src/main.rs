//! Splitdrop's client: the daemon and the commands. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    client_vm::cli::main()
}
