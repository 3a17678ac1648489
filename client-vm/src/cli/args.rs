//! What can be said on the command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    another failure; the message says which
  2    the command line or the configuration is not valid
  3    no daemon runs, or it does not answer
  4    nobody is signed in
  5    the server did not accept the credentials, or somebody is signed in or signing in already
  6    no such source, or more than one fits
  7    dom0 refused the call to the proxy, or could not start its VM
  8    the proxy or the server cannot be reached, or did not answer in time
  9    another daemon runs already
  130  interrupted

Environment:
  SPLITDROP_HOME    the data directory
                    [default: $XDG_DATA_HOME/splitdrop, else ~/.local/share/splitdrop]
  SPLITDROP_CONFIG  the configuration file
                    [default: $XDG_CONFIG_HOME/splitdrop/config.toml,
                    else ~/.config/splitdrop/config.toml]
  SPLITDROP_QREXEC  the program that makes qrexec calls [default: /usr/bin/qrexec-client-vm]
  SPLITDROP_LOG     the daemon's log level: error, warn, info, debug [default: info]";

#[derive(Debug, Parser)]
#[command(
    name = "splitdrop",
    version,
    about = "Read what sources send to your SecureDrop, from a VM that has no network",
    after_help = EXIT_CODES,
    after_long_help = EXIT_CODES,
    max_term_width = 100
)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
    /// Print one JSON object; one a line when watching
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Never ask: fail where a person would have to answer
    #[arg(long, global = true)]
    pub(super) batch: bool,
    /// Start a daemon if none runs
    #[arg(long, global = true)]
    pub(super) start: bool,
    /// The daemon's control socket [default: $XDG_RUNTIME_DIR/splitdrop/control.sock, else control.sock in the data
    /// directory]
    #[arg(long, global = true, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the daemon in the foreground, until SIGTERM, Ctrl-C or its terminal's end
    ///
    /// The daemon owns the data, the session and the calls to the proxy VM; the other commands talk to it. One daemon
    /// runs for each data directory.
    #[command(after_help = "Examples:\n  splitdrop daemon\n  splitdrop daemon --log-file ~/splitdrop.log")]
    Daemon {
        /// Write the log to this file [default: journald, or standard error where there is none]
        #[arg(long, value_name = "FILE")]
        log_file: Option<PathBuf>,
    },
    /// Sign in, then sync
    ///
    /// Asks for the user name, the passphrase and the one-time code. The server takes each code once, so a login is
    /// never repeated by itself.
    #[command(after_help = "Examples:\n  splitdrop login --start\n  splitdrop login --username mara\n  \
        splitdrop login --credentials-stdin < credentials")]
    Login {
        /// The user name; asked for if it is not given
        #[arg(long, value_name = "NAME")]
        username: Option<String>,
        /// Read three lines from standard input: user name, passphrase, code
        #[arg(long, conflicts_with = "username")]
        credentials_stdin: bool,
    },
    /// Sign out; returns at once
    #[command(after_help = "Example:\n  splitdrop logout")]
    Logout,
    /// Sync with the server now, and wait for the end
    ///
    /// A refresh during a sync waits for one more sync.
    #[command(after_help = "Examples:\n  splitdrop refresh\n  splitdrop refresh --json")]
    Refresh,
    /// Show who is signed in, how the last sync ended and how the proxy is
    #[command(after_help = "Examples:\n  splitdrop status\n  splitdrop status --json")]
    Status,
    /// List the sources, the one that wrote last first
    #[command(after_help = "Examples:\n  splitdrop sources\n  splitdrop sources --json")]
    Sources,
    /// Show what is in a conversation
    #[command(after_help = "Examples:\n  splitdrop show 'candid marmot'\n  splitdrop show 3f2a --json")]
    Show {
        /// The source's designation, its id, or the beginning of its id
        source: String,
    },
    /// Print what happens as it happens, until Ctrl-C
    #[command(after_help = "Examples:\n  splitdrop watch\n  splitdrop watch --json")]
    Watch,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_example_in_the_help_parses() {
        let mut examples = 0;
        for command in Args::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().filter(|line| line.starts_with("  splitdrop")) {
                let line = line.split(" < ").next().unwrap_or_default().replace("'candid marmot'", "candid");
                Args::try_parse_from(line.split_whitespace()).unwrap();
                examples += 1;
            }
            assert!(help.contains("Example"), "{} has no example", command.get_name());
        }
        assert!(examples >= 14);
    }

    #[test]
    fn the_help_names_all_that_decides_where_things_are() {
        let help = Args::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for name in [
            "SPLITDROP_HOME",
            "SPLITDROP_CONFIG",
            "SPLITDROP_QREXEC",
            "SPLITDROP_LOG",
            "$XDG_DATA_HOME/splitdrop, else ~/.local/share/splitdrop",
            "$XDG_CONFIG_HOME/splitdrop/config.toml, else ~/.config/splitdrop/config.toml",
            "$XDG_RUNTIME_DIR/splitdrop/control.sock, else",
        ] {
            assert!(help.contains(name), "{name} is not in\n{help}");
        }
    }
}
