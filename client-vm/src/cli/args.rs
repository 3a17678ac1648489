//! What can be said on the command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use control::ActId;
use protocol::value::{Fingerprint, ValueError};

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    another failure; the message says which
  2    the command line or the configuration is not valid
  3    no daemon runs, or it does not answer
  4    nobody is signed in
  5    the server did not accept the credentials, or somebody is signed in or signing in already
  6    no such source, item or act, or more than one fits; no drive or no printer
  7    dom0 refused a call, or could not start the VM that it was for
  8    the proxy or the server cannot be reached, or did not answer in time
  9    another daemon runs already
  10   what was asked contradicts what is there
  11   the server refused, or a drive its passphrase
  12   the private key cannot be reached, or its use was denied
  13   what is there cannot be decrypted
  14   this VM has a network, or the program cannot be confined
  15   `doctor` has found what does not work
  130  interrupted

Environment:
  SPLITDROP_HOME    the data directory
                    [default: $XDG_DATA_HOME/splitdrop, else ~/.local/share/splitdrop]
  SPLITDROP_CONFIG  the configuration file
                    [default: $XDG_CONFIG_HOME/splitdrop/config.toml,
                    else ~/.config/splitdrop/config.toml]
  XDG_RUNTIME_DIR   the control socket is there, and what `reply` has open in an editor
                    [default: the data directory]
  VISUAL, EDITOR    the editor that `reply` opens, with arguments [default: nano, else vi]
  SPLITDROP_QREXEC  the program that makes qrexec calls [default: /usr/bin/qrexec-client-vm]
  SPLITDROP_LOG     the daemon's log level: off, error, warn, info, debug or trace
                    [default: info]";

#[derive(Debug, Parser)]
#[command(
    name = "splitdrop",
    version,
    about = "Read and answer what sources send to your SecureDrop, from a VM that has no network",
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
    /// Run the daemon in the foreground, until `quit`, SIGTERM, Ctrl-C or its terminal's end
    ///
    /// The daemon owns the data, the session and the calls to the proxy VM; the other commands talk to it. One daemon
    /// runs for each data directory.
    #[command(
        after_help = "Examples:\n  splitdrop daemon\n  splitdrop daemon --log-file ~/.local/share/splitdrop/daemon.log"
    )]
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
    /// Sign out; the token is gone at once
    ///
    /// Names your acts that are not sent yet, and asks on the terminal unless --yes is given: they go on when you sign in
    /// again.
    #[command(after_help = "Example:\n  splitdrop logout")]
    Logout(Leave),
    /// End the daemon, and wait until it has ended; somebody who is signed in is signed out
    ///
    /// Asks as `logout` does.
    #[command(after_help = "Example:\n  splitdrop quit")]
    Quit(Leave),
    /// Sync with the server now, and wait for the end
    ///
    /// A refresh during a sync waits for one more sync.
    #[command(after_help = "Examples:\n  splitdrop refresh\n  splitdrop refresh --json")]
    Refresh,
    /// Show who is signed in, how old the inbox is, what waits, and how proxy and keys are
    #[command(after_help = "Examples:\n  splitdrop status\n  splitdrop status --json")]
    Status,
    /// List the sources, the one that wrote last first
    #[command(after_help = "Examples:\n  splitdrop sources\n  splitdrop sources --json")]
    Sources,
    /// Show a conversation: what was said, and how far each part of it is
    ///
    /// It marks nothing as seen.
    #[command(after_help = "Examples:\n  splitdrop show 'candid marmot'\n  splitdrop show 3f2a --json")]
    Show {
        /// The source's designation, its id, or the beginning of its id
        source: String,
    },
    /// Search what messages and replies say, names of files, and designations
    ///
    /// All of the words must be there, in any order and in capitals or not. Quotes make a phrase, and a star at the end of a
    /// word finds all that begins so: keep both from your shell. What is not decrypted yet is not found; files are found by
    /// their names. The source that wrote last comes first.
    #[command(after_help = "Examples:\n  splitdrop search harbour crane\n  \
        splitdrop search '\"fourth box\" warehous*'\n  splitdrop search harbour --limit 200 --json")]
    Search(Search),
    /// Answer a source
    ///
    /// The text is what --message says, else what comes on standard input, else what you write in your editor, which begins
    /// with your draft. It is stored, and reaches the server as soon as that can be. What cannot be taken is kept as your
    /// draft.
    #[command(after_help = "Examples:\n  splitdrop reply 'candid marmot'\n  \
        splitdrop reply 'candid marmot' --message 'Thank you.'\n  splitdrop reply 3f2a --draft < answer.txt")]
    Reply(Reply),
    /// Pin another key of a source, once somebody has compared its fingerprint
    ///
    /// It must be the key that the server offers, as `splitdrop show` says. Replies that were refused because of the other
    /// key are sent with `splitdrop retry`.
    #[command(after_help = "Example:\n  \
        splitdrop trust-key 'candid marmot' --fingerprint 0123456789abcdef0123456789abcdef01234567")]
    TrustKey {
        /// The source's designation, its id, or the beginning of its id
        source: String,
        /// The key's fingerprint; spaces and small letters may be in it
        #[arg(long, value_name = "FPR", value_parser = fingerprint)]
        fingerprint: Fingerprint,
    },
    /// Fetch and decrypt files, or once more what could not be fetched or decrypted
    ///
    /// Messages and replies are fetched by themselves, files when they are asked for. On a terminal this waits until all is
    /// decrypted; Ctrl-C ends the waiting, and the download goes on.
    #[command(after_help = "Examples:\n  splitdrop download 9b04\n  splitdrop download 9b04 --wait --json\n  \
        splitdrop download --all --no-wait\n  splitdrop download --stop 9b04")]
    Download(Download),
    /// Open an item in a disposable VM, which can only show it
    ///
    /// Nothing comes back from there. This waits until the document is closed; Ctrl-C ends the waiting, and leaves it open.
    /// At most eight documents are open at a time.
    #[command(after_help = "Examples:\n  splitdrop open 9b04\n  splitdrop open 9b04 --no-wait")]
    Open(Open),
    /// Copy items out of Splitdrop: into a folder of this VM, or to an encrypted drive
    ///
    /// In a folder nothing is changed that is there: copies get new names. To a drive the device VM copies. Where the drive is
    /// locked, its passphrase is asked for; Ctrl-C ends the call, and what the drive has by then stays on it.
    #[command(after_help = "Examples:\n  splitdrop export 9b04 --to ~/Splitdrop\n  splitdrop export 9b04 --usb\n  \
        splitdrop export --usb --check")]
    Export(Export),
    /// Print an item, by the printer of another VM
    #[command(after_help = "Examples:\n  splitdrop print 9b04\n  splitdrop print --check")]
    Print(Print),
    /// Write a conversation as a plain text
    ///
    /// It marks nothing as seen.
    #[command(after_help = "Examples:\n  splitdrop transcript 'candid marmot'\n  \
        splitdrop transcript 3f2a --to ~/Splitdrop")]
    Transcript {
        /// The source's designation, its id, or the beginning of its id
        source: String,
        /// Into a new file in this folder [default: to standard output]
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
    /// Star sources, for all journalists
    ///
    /// It shows at once and reaches the server as soon as that can be.
    #[command(after_help = "Examples:\n  splitdrop star 'candid marmot'\n  splitdrop star 3f2a 'candid marmot'")]
    Star {
        /// The sources' designations, their ids, or the beginnings of their ids
        #[arg(required = true, value_name = "SOURCE")]
        sources: Vec<String>,
    },
    /// Take the stars of sources away, for all journalists
    #[command(after_help = "Examples:\n  splitdrop unstar 'candid marmot'\n  splitdrop unstar 3f2a --json")]
    Unstar {
        /// The sources' designations, their ids, or the beginnings of their ids
        #[arg(required = true, value_name = "SOURCE")]
        sources: Vec<String>,
    },
    /// Mark what is in a conversation as seen by you
    ///
    /// Without items: all that is unread in the conversation now.
    #[command(after_help = "Examples:\n  splitdrop seen 'candid marmot'\n  splitdrop seen 'candid marmot' 9b04")]
    Seen {
        /// The source's designation, its id, or the beginning of its id
        source: String,
        /// The items' ids, or the beginnings of their ids, as `splitdrop show` lists them
        #[arg(value_name = "ITEM")]
        items: Vec<String>,
    },
    /// Delete sources, conversations or items, for all journalists
    ///
    /// Shows what will go and asks on the terminal, unless --yes is given.
    #[command(
        subcommand,
        after_help = "Examples:\n  splitdrop delete item 9b04 --yes\n  splitdrop delete conversation 'candid marmot'\n  \
            splitdrop delete source 'candid marmot'"
    )]
    Delete(Delete),
    /// Take back a deletion that is not sent yet
    ///
    /// A deletion waits for 10 s before it is sent, or for as long as `delete_grace_ms` in the configuration says. Without
    /// acts: the newest that still waits.
    #[command(after_help = "Examples:\n  splitdrop undo\n  splitdrop undo 12")]
    Undo {
        /// The acts' numbers, as `splitdrop queue` lists them
        #[arg(value_name = "ACT", value_parser = act)]
        acts: Vec<ActId>,
    },
    /// List what waits, what is under way, and what was refused or has failed
    #[command(after_help = "Examples:\n  splitdrop queue\n  splitdrop queue --json")]
    Queue,
    /// Try again at once what waits, needs you, was refused, or was not deleted
    #[command(after_help = "Examples:\n  splitdrop retry 12\n  splitdrop retry --all")]
    Retry(Acts),
    /// Take back what was certainly not sent
    #[command(after_help = "Examples:\n  splitdrop cancel 12\n  splitdrop cancel --all")]
    Cancel(Acts),
    /// Forget what was refused
    #[command(after_help = "Examples:\n  splitdrop dismiss 12\n  splitdrop dismiss --all")]
    Dismiss(Acts),
    /// Give up deletions that the server confirmed and did not make
    ///
    /// What the server lists is shown again.
    #[command(after_help = "Example:\n  splitdrop restore 12")]
    Restore {
        /// The acts' numbers, as `splitdrop queue` lists them
        #[arg(required = true, value_name = "ACT", value_parser = act)]
        acts: Vec<ActId>,
    },
    /// Decide on what the server lists no more, though nobody here has deleted it
    ///
    /// A few removals a day are taken as they come. More than five, and more than a tenth of the sources, are held: hidden,
    /// and not erased, until you accept or reject them, or the server lists them again.
    #[command(
        subcommand,
        after_help = "Examples:\n  splitdrop removals show\n  splitdrop removals reject 'candid marmot'\n  \
            splitdrop removals accept --all"
    )]
    Removals(Removals),
    /// Pause the queue: nothing is sent or fetched until `resume`
    ///
    /// A download that runs stops, and goes on later where it is. Syncs go on.
    #[command(after_help = "Example:\n  splitdrop pause")]
    Pause,
    /// Let the queue go on, and at once
    #[command(after_help = "Example:\n  splitdrop resume")]
    Resume,
    /// Look at each hop to the server and the key, and say what to do where one is broken
    #[command(after_help = "Examples:\n  splitdrop doctor\n  splitdrop doctor --ask\n  splitdrop doctor --json")]
    Doctor {
        /// Try the call for deletions too, about which dom0 may ask
        #[arg(long)]
        ask: bool,
    },
    /// Print what happens as it happens, until Ctrl-C
    #[command(after_help = "Examples:\n  splitdrop watch\n  splitdrop watch --json")]
    Watch,
}

/// What can be done about removals that are held.
#[derive(Debug, Subcommand)]
pub(super) enum Removals {
    /// List what is held
    #[command(after_help = "Examples:\n  splitdrop removals show\n  splitdrop removals show --json")]
    Show,
    /// Erase here too what was removed; asks on the terminal, unless --yes is given
    #[command(after_help = "Examples:\n  splitdrop removals accept 'candid marmot'\n  \
        splitdrop removals accept --all --yes")]
    Accept {
        #[command(flatten)]
        which: HeldSources,
        #[command(flatten)]
        consent: Yes,
    },
    /// Keep what was removed, and show it as no longer on the server
    #[command(after_help = "Examples:\n  splitdrop removals reject 3f2a\n  splitdrop removals reject --all")]
    Reject {
        #[command(flatten)]
        which: HeldSources,
    },
}

/// Of which sources.
#[derive(Debug, clap::Args)]
pub(super) struct HeldSources {
    /// The sources' designations, their ids, or the beginnings of their ids, as `splitdrop removals show` lists them
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "SOURCE")]
    pub(super) sources: Vec<String>,
    /// All that is held
    #[arg(long)]
    pub(super) all: bool,
}

/// What can be deleted.
#[derive(Debug, Subcommand)]
pub(super) enum Delete {
    /// Delete sources, with all that belongs to them
    #[command(after_help = "Examples:\n  splitdrop delete source 'candid marmot'\n  \
        splitdrop delete source 3f2a 'candid marmot' --yes")]
    Source {
        /// The sources' designations, their ids, or the beginnings of their ids
        #[arg(required = true, value_name = "SOURCE")]
        sources: Vec<String>,
        /// How many sources these are; must be given, and right, for more than 30
        #[arg(long, value_name = "N")]
        count: Option<usize>,
        #[command(flatten)]
        consent: Yes,
    },
    /// Delete what is in a conversation now; the source stays, and what it sends later
    #[command(after_help = "Examples:\n  splitdrop delete conversation 'candid marmot'\n  \
        splitdrop delete conversation 3f2a --yes")]
    Conversation {
        /// The source's designation, its id, or the beginning of its id
        source: String,
        #[command(flatten)]
        consent: Yes,
    },
    /// Delete messages, files or replies
    #[command(after_help = "Examples:\n  splitdrop delete item 9b04\n  splitdrop delete item 9b04 --yes --json")]
    Item {
        /// The items' ids, or the beginnings of their ids, as `splitdrop show` lists them
        #[arg(required = true, value_name = "ITEM")]
        items: Vec<String>,
        #[command(flatten)]
        consent: Yes,
    },
}

/// What is fetched, and whether to wait for it.
#[derive(Debug, clap::Args)]
pub(super) struct Download {
    /// The items' ids, or the beginnings of their ids, as `splitdrop show` lists them
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "ITEM")]
    pub(super) items: Vec<String>,
    /// All files that are not there, and all messages and replies that have failed; with --stop all files that are to be
    /// fetched
    #[arg(long)]
    pub(super) all: bool,
    /// Do not fetch these files after all; what there is of them stays, and is gone on with when they are asked for again
    #[arg(long, conflicts_with_all = ["wait", "no_wait"])]
    pub(super) stop: bool,
    /// Wait until all is decrypted or has failed, also without a terminal and with --json
    #[arg(long, conflicts_with = "no_wait")]
    pub(super) wait: bool,
    /// Do not wait
    #[arg(long)]
    pub(super) no_wait: bool,
}

/// What is opened, and whether to wait for its end.
#[derive(Debug, clap::Args)]
pub(super) struct Open {
    /// The item's id, or the beginning of it, as `splitdrop show` lists it
    pub(super) item: String,
    /// Do not wait until it is closed
    #[arg(long)]
    pub(super) no_wait: bool,
}

/// What is copied out, and where to.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["to", "usb"]))]
pub(super) struct Export {
    /// The items' ids, or the beginnings of their ids, as `splitdrop show` lists them
    #[arg(required_unless_present = "check", conflicts_with = "check", value_name = "ITEM")]
    pub(super) items: Vec<String>,
    /// Into this folder, which must be there; where AppArmor confines the client: ~/Splitdrop, or below
    #[arg(long, value_name = "DIR")]
    pub(super) to: Option<PathBuf>,
    /// To the encrypted drive that is attached to the device VM
    #[arg(long)]
    pub(super) usb: bool,
    /// Only look whether there is a drive that can be used
    #[arg(long, conflicts_with = "to")]
    pub(super) check: bool,
    /// Read the drive's passphrase from standard input, one line
    #[arg(long, conflicts_with_all = ["to", "check"])]
    pub(super) passphrase_stdin: bool,
}

/// What is printed.
#[derive(Debug, clap::Args)]
pub(super) struct Print {
    /// The item's id, or the beginning of it, as `splitdrop show` lists it
    #[arg(required_unless_present = "check", conflicts_with = "check", value_name = "ITEM")]
    pub(super) item: Option<String>,
    /// Only look whether there is a printer that can be used
    #[arg(long)]
    pub(super) check: bool,
}

/// What is searched for.
#[derive(Debug, clap::Args)]
pub(super) struct Search {
    /// Words, phrases in quotes, beginnings with a star; at most 32, in 1,000 characters
    #[arg(required = true, value_name = "WORDS")]
    pub(super) words: Vec<String>,
    /// The most hits that are shown, up to 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) limit: u32,
}

/// What is answered, and whether it is sent.
#[derive(Debug, clap::Args)]
pub(super) struct Reply {
    /// The source's designation, its id, or the beginning of its id
    pub(super) source: String,
    /// What to say, in 1 to 100,000 characters
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) message: Option<String>,
    /// Keep it as your draft and send nothing; a blank text forgets the draft
    #[arg(long)]
    pub(super) draft: bool,
}

/// Whether somebody is asked.
#[derive(Debug, clap::Args)]
pub(super) struct Yes {
    /// Do not ask: delete
    #[arg(long)]
    pub(super) yes: bool,
}

/// Whether somebody who leaves is asked.
#[derive(Debug, clap::Args)]
pub(super) struct Leave {
    /// Do not ask, whatever is not sent yet
    #[arg(long)]
    pub(super) yes: bool,
}

/// Which acts are dealt with.
#[derive(Debug, clap::Args)]
pub(super) struct Acts {
    /// The acts' numbers, as `splitdrop queue` lists them
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "ACT", value_parser = act)]
    pub(super) acts: Vec<ActId>,
    /// All of your acts for which it can be done
    #[arg(long)]
    pub(super) all: bool,
}

fn act(word: &str) -> Result<ActId, std::num::ParseIntError> {
    word.parse().map(ActId)
}

/// A fingerprint as people write it.
fn fingerprint(words: &str) -> Result<Fingerprint, ValueError> {
    let digits: String = words.chars().filter(|character| !character.is_whitespace()).collect();
    Fingerprint::try_new(digits.to_ascii_uppercase())
}

#[cfg(test)]
mod tests;
