//! Exit codes, and the errors that lead to them.

use std::io;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use control::client::ClientError;
use control::{DeviceStatus, FailureKind};
use protocol::value::{ItemId, SourceId, ValueError};

use super::reply::Kept;
use super::text;
use crate::confinement::ConfinementError;
use crate::daemon::DaemonError;
use crate::failure::chain;
use crate::settings::SettingsError;

/// The program's exit codes. They are listed in `--help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    Success = 0,
    Failure = 1,
    Usage = 2,
    NoDaemon = 3,
    NotSignedIn = 4,
    LoginRefused = 5,
    NotFound = 6,
    PolicyRefused = 7,
    Unreachable = 8,
    AlreadyRunning = 9,
    Conflict = 10,
    Refused = 11,
    KeyUnreachable = 12,
    Sealed = 13,
    NotConfined = 14,
    Unhealthy = 15,
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// As clap says it, in one line.
    #[error("{0}")]
    CommandLine(String),
    #[error("{}", chain(.0))]
    Settings(#[from] SettingsError),
    #[error("{}", chain(.0))]
    Confinement(#[from] ConfinementError),
    #[error("{}", chain(.0))]
    Daemon(#[from] DaemonError),
    #[error("{}{}", chain(.0), if matches!(.0, ClientError::NoDaemon { .. }) {
        ": start one with `splitdrop daemon`, or add --start"
    } else {
        ""
    })]
    Client(#[from] ClientError),
    #[error("the daemon that was started did not come up{}", if .0.is_empty() { String::new() } else { format!(": {}", .0) })]
    NotStarted(String),
    #[error("{username} is signed in already: run `splitdrop logout` first")]
    AlreadySignedIn { username: String },
    #[error("a login is under way already: wait for it, or run `splitdrop logout`")]
    SigningIn,
    #[error("{0}")]
    Value(#[from] ValueError),
    #[error("there is no terminal to ask on: use --credentials-stdin")]
    NoTerminal,
    #[error("nobody is signed in: run `splitdrop login` first")]
    NotSignedIn,
    #[error(
        "another journalist is signed in than when this was begun, and nothing was sent: have them sign out, run \
         `splitdrop login`, and give the text to `splitdrop reply SOURCE` on standard input"
    )]
    AnotherSignedIn,
    #[error("a login is under way: wait for its end")]
    StillSigningIn,
    #[error("with --batch nobody is asked whether to delete: add --yes")]
    BatchWithoutYes,
    #[error("there is no terminal to ask on whether to delete: add --yes")]
    NoTerminalToConfirm,
    #[error("{}, and so many are deleted only with --count {actual}; nothing was deleted", match .given {
        Some(given) => format!("--count is {given} and these are {actual} sources"),
        None => format!("these are {actual} sources"),
    })]
    Count { actual: usize, given: Option<usize> },
    #[error("the answer was no: nothing was deleted")]
    AnsweredNo,
    #[error("the answer was no: nothing was ended")]
    Stayed,
    #[error("the daemon was told to end, and has not ended yet: its log says what it does")]
    NotEnded,
    #[error("the item {item} is not in the conversation of {designation}: it is in that of {owner}")]
    OtherConversation { item: String, designation: String, owner: SourceId },
    #[error(
        "{error}; {taken} sources or items that were named before were taken all the same: `splitdrop queue` lists them"
    )]
    PartlyTaken {
        taken: u64,
        // Not a source: its words are part of these.
        error: Box<CliError>,
    },
    #[error("the item {item} is being deleted, and is not fetched any more")]
    BeingDeleted { item: ItemId },
    #[error("nobody is signed in: what was asked for is fetched after the next `splitdrop login`")]
    NobodyFetches,
    #[error("{failed} of {of} could not be fetched: {item}: {reason}{}", if *.failed > 1 {
        "; `splitdrop queue` lists them all"
    } else {
        ""
    })]
    NotDownloaded {
        /// The first of them.
        item: ItemId,
        reason: String,
        /// None if nobody told it.
        kind: Option<FailureKind>,
        failed: usize,
        of: usize,
    },
    #[error("{stopped} of {of} are not fetched any more: the download was stopped, or they are deleted")]
    DownloadStopped { stopped: usize, of: usize },
    #[error("nothing is held of `{word}`: `splitdrop removals show` lists what is")]
    NotHeld { word: String },
    #[error("{count} sources that are held fit `{word}`: give the id, as `splitdrop removals show` lists it")]
    SeveralHeld { word: String, count: usize },
    #[error("{designation} is being deleted, and cannot be answered")]
    SourceBeingDeleted { designation: String },
    #[error("{designation} cannot be answered: {why}")]
    Unanswerable { designation: String, why: String },
    #[error("the reply is blank, and nothing was sent; where there is no terminal it is read from standard input")]
    BlankReply,
    #[error("with --batch no editor is opened: use --message, or give the text on standard input")]
    BatchWithoutText,
    #[error("there is no editor: set VISUAL or EDITOR, use --message, or give the text on standard input")]
    NoEditor,
    #[error("the editor could not be started: {0}")]
    EditorNotStarted(#[source] io::Error),
    #[error("the editor failed ({status}), and nothing was sent")]
    EditorFailed { status: ExitStatus },
    #[error("nothing was saved in the editor: nothing was sent, and a draft is as it was")]
    NotSaved,
    #[error("told to end while the editor was open: nothing was sent")]
    ToldToEnd,
    #[error("{error}; {kept}")]
    NotTaken {
        // Not a source: its words are part of these.
        error: Box<CliError>,
        kept: Kept,
    },
    #[error(
        "{error}; whether the reply was taken is not known: `splitdrop show SOURCE` says it once a daemon runs; {kept}"
    )]
    Unconfirmed {
        // Not a source: its words are part of these.
        error: Box<CliError>,
        kept: Kept,
    },
    #[error("the item {item} is being deleted, and is handed over to nobody any more")]
    NotHandedOver { item: ItemId },
    #[error("the item {item} is not decrypted: `splitdrop download {item}` fetches and decrypts it")]
    NotDecrypted { item: ItemId },
    #[error("{} is no folder that can be written into: name one that is there, and no link to one{}: {source}", .path.display(), if .source.kind() == io::ErrorKind::PermissionDenied {
        "; where AppArmor confines the client, one below ~/Splitdrop"
    } else {
        ""
    })]
    NoFolder {
        path: PathBuf,
        // Its words are part of these.
        source: io::Error,
    },
    #[error("{} has room for {} and {} are to be copied: nothing was written", .path.display(), text::bytes(*.room), text::bytes(*.bytes))]
    NoRoom { path: PathBuf, bytes: u64, room: u64 },
    #[error("could not write into {}, and what was begun there is removed: {source}", .path.display())]
    NotWritten {
        path: PathBuf,
        // Its words are part of these.
        source: io::Error,
    },
    #[error("{}, and may be gone after a power cut: the folder {} could not be written out to the disk: {source}", if *.copies == 1 {
        "the copy is finished".to_owned()
    } else {
        format!("all {copies} copies are finished")
    }, .path.display())]
    NotDurable {
        copies: usize,
        path: PathBuf,
        // Its words are part of these.
        source: io::Error,
    },
    #[error("{error}; {}", if *.copies == 1 { "the copy that was finished before stays".to_owned() } else { format!("the {copies} copies that were finished before stay") })]
    PartlyExported {
        copies: usize,
        // Not a source: its words are part of these.
        error: Box<CliError>,
    },
    #[error("these are {count} items, and at most {max} are copied at once: name fewer", max = control::act::MAX_OBJECTS)]
    TooManyItems { count: usize },
    #[error("{}", text::device(*.status))]
    Device { status: DeviceStatus },
    #[error("the device VM answered what was not asked ({}): see the log of it", text::device(*.status))]
    OtherAnswer { status: DeviceStatus },
    #[error("there is no terminal to ask for the drive's passphrase on: use --passphrase-stdin")]
    NoTerminalForPassphrase,
    #[error("standard input has not one line, the drive's passphrase")]
    PassphraseLine,
    #[error("standard input has no three lines: user name, passphrase, code")]
    CredentialLines,
    #[error("there was no answer")]
    NoAnswer,
    #[error("what was given is no text in UTF-8")]
    NotText,
    #[error("the daemon has ended")]
    DaemonEnded,
    #[error("nobody reads the output any more")]
    ReaderGone,
    #[error("{}", chain(.0))]
    Io(#[from] io::Error),
}

impl CliError {
    /// What is wrong with the command line, without how it is to be used.
    pub(super) fn of_command_line(error: &clap::Error) -> Self {
        use clap::error::ErrorKind;
        if matches!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand) {
            return Self::CommandLine("a command is missing: see `splitdrop --help`".to_owned());
        }
        let said = error.render().to_string();
        let words: Vec<_> =
            said.lines().take_while(|line| !line.starts_with("Usage:")).flat_map(str::split_whitespace).collect();
        let words = words.join(" ");
        Self::CommandLine(words.strip_prefix("error: ").unwrap_or(&words).to_owned())
    }

    /// The error, and that so many sources or items were taken before it.
    pub(super) fn after(self, before: u64) -> Self {
        match (before, self) {
            (0, error) => error,
            (before, Self::PartlyTaken { taken, error }) => {
                Self::PartlyTaken { taken: before.saturating_add(taken), error }
            }
            (before, error) => Self::PartlyTaken { taken: before, error: Box::new(error) },
        }
    }

    /// The error's name in JSON.
    pub(super) fn name(&self) -> &'static str {
        match self.exit() {
            Exit::Success => "none",
            Exit::Failure => "failure",
            Exit::Usage => "usage",
            Exit::NoDaemon => "no_daemon",
            Exit::NotSignedIn => "not_signed_in",
            Exit::LoginRefused => "login_refused",
            Exit::NotFound => "not_found",
            Exit::PolicyRefused => "policy_refused",
            Exit::Unreachable => "unreachable",
            Exit::AlreadyRunning => "already_running",
            Exit::Conflict => "conflict",
            Exit::Refused => "refused",
            Exit::KeyUnreachable => "key_unreachable",
            Exit::Sealed => "sealed",
            Exit::NotConfined => "not_confined",
            Exit::Unhealthy => "unhealthy",
            Exit::Interrupted => "interrupted",
        }
    }

    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::CommandLine(_)
            | Self::Settings(_)
            | Self::Value(_)
            | Self::CredentialLines
            | Self::PassphraseLine
            | Self::NoTerminalForPassphrase
            | Self::NoFolder { .. }
            | Self::TooManyItems { .. }
            | Self::NoAnswer
            | Self::NotText
            | Self::NoTerminal
            | Self::BatchWithoutYes
            | Self::NoTerminalToConfirm
            | Self::BlankReply
            | Self::BatchWithoutText
            | Self::NoEditor
            | Self::Count { .. } => Exit::Usage,
            Self::Daemon(DaemonError::AlreadyRunning(_) | DaemonError::SocketTaken(_)) => Exit::AlreadyRunning,
            Self::Confinement(_) | Self::Daemon(DaemonError::Network(_)) => Exit::NotConfined,
            Self::Client(ClientError::NoDaemon { .. } | ClientError::Silent { .. } | ClientError::Ended)
            | Self::DaemonEnded => Exit::NoDaemon,
            Self::Client(ClientError::Failed(failure)) => of_failure(failure.kind),
            Self::AlreadySignedIn { .. } | Self::SigningIn => Exit::LoginRefused,
            Self::NotSignedIn | Self::AnotherSignedIn | Self::StillSigningIn | Self::NobodyFetches => Exit::NotSignedIn,
            Self::OtherConversation { .. } | Self::NotHeld { .. } | Self::SeveralHeld { .. } => Exit::NotFound,
            Self::BeingDeleted { .. }
            | Self::NotHandedOver { .. }
            | Self::NotDecrypted { .. }
            | Self::DownloadStopped { .. }
            | Self::SourceBeingDeleted { .. }
            | Self::Unanswerable { .. } => Exit::Conflict,
            Self::Device { status } => of_device(*status),
            Self::PartlyExported { error, .. } => error.exit(),
            Self::NotDownloaded { kind, .. } => of_failed_download(*kind),
            Self::PartlyTaken { error, .. } | Self::NotTaken { error, .. } | Self::Unconfirmed { error, .. } => {
                error.exit()
            }
            Self::ToldToEnd => Exit::Interrupted,
            Self::Daemon(_)
            | Self::Client(_)
            | Self::NotStarted(_)
            | Self::AnsweredNo
            | Self::Stayed
            | Self::NotEnded
            | Self::EditorNotStarted(_)
            | Self::EditorFailed { .. }
            | Self::NotSaved
            | Self::NoRoom { .. }
            | Self::OtherAnswer { .. }
            | Self::NotWritten { .. }
            | Self::NotDurable { .. }
            | Self::ReaderGone
            | Self::Io(_) => Exit::Failure,
        }
    }
}

/// What a device VM says where what was asked was not done, or not to its end.
fn of_device(status: DeviceStatus) -> Exit {
    match status {
        DeviceStatus::NoDrive | DeviceStatus::NoPrinter => Exit::NotFound,
        DeviceStatus::InvalidDrive
        | DeviceStatus::SeveralDrives
        | DeviceStatus::UnknownDrive
        | DeviceStatus::DriveLocked
        | DeviceStatus::Unprintable
        | DeviceStatus::TypeUnsupported
        | DeviceStatus::TypeUnknown => Exit::Conflict,
        DeviceStatus::WrongPassphrase => Exit::Refused,
        DeviceStatus::NotUnlocked
        | DeviceStatus::NotMounted
        | DeviceStatus::NotCopied
        | DeviceStatus::CopiedDriveBusy
        | DeviceStatus::CopiedNotClosed
        | DeviceStatus::DriveFault
        | DeviceStatus::NotPrinted
        | DeviceStatus::BadTask
        | DeviceStatus::BadMetadata
        | DeviceStatus::NotUnpacked
        | DeviceStatus::ArchiveMissing
        | DeviceStatus::NoLog
        | DeviceStatus::Fault
        // What was done is not what was asked.
        | DeviceStatus::DriveWritable
        | DeviceStatus::Copied
        | DeviceStatus::PrinterReady
        | DeviceStatus::TestPagePrinted
        | DeviceStatus::Printed => Exit::Failure,
    }
}

/// A download ends as failed where trying again would not help: by what the server says of the item, or by what it sends.
fn of_failed_download(kind: Option<FailureKind>) -> Exit {
    match kind {
        Some(FailureKind::NotFound | FailureKind::ServerFault) | None => Exit::Refused,
        Some(kind) => of_failure(kind),
    }
}

fn of_failure(kind: FailureKind) -> Exit {
    match kind {
        FailureKind::NotSignedIn => Exit::NotSignedIn,
        FailureKind::AlreadySignedIn | FailureKind::LoginRefused => Exit::LoginRefused,
        FailureKind::NotFound | FailureKind::Ambiguous => Exit::NotFound,
        FailureKind::Conflict => Exit::Conflict,
        FailureKind::Invalid => Exit::Usage,
        FailureKind::Refused => Exit::Refused,
        FailureKind::PolicyRefused => Exit::PolicyRefused,
        FailureKind::Unreachable => Exit::Unreachable,
        FailureKind::KeyUnreachable => Exit::KeyUnreachable,
        FailureKind::Sealed => Exit::Sealed,
        FailureKind::ServerFault
        | FailureKind::OtherVm
        | FailureKind::Cancelled
        | FailureKind::Store
        | FailureKind::Internal => Exit::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_does_not_answer_is_told_from_a_fault() {
        let error = CliError::from(ClientError::Silent { socket: "/run/control.sock".into() });
        assert_eq!((error.exit(), error.name()), (Exit::NoDaemon, "no_daemon"));
        // It runs: to start another would not help.
        assert!(!error.to_string().contains("--start"), "{error}");
    }

    #[test]
    fn what_is_wrong_with_the_command_line_is_one_line() {
        use super::super::args::Args;
        use clap::Parser as _;
        for (line, told) in [
            ("splitdrop --json show", "the following required arguments were not provided: <SOURCE>"),
            ("splitdrop shwo", "unrecognized subcommand 'shwo'"),
            ("splitdrop queue --al", "unexpected argument '--al' found"),
            ("splitdrop", "a command is missing"),
            ("splitdrop --json delete", "a command is missing"),
        ] {
            let error = CliError::of_command_line(&Args::try_parse_from(line.split_whitespace()).unwrap_err());
            assert_eq!((error.exit(), error.name()), (Exit::Usage, "usage"));
            let said = error.to_string();
            assert!(said.starts_with(told) && !said.contains('\n') && !said.contains("Usage"), "{said}");
        }
    }

    #[test]
    fn each_kind_of_failure_about_keys_has_its_code() {
        let exit = |kind| {
            let error = CliError::from(ClientError::from(control::Failure { kind, message: String::new() }));
            (error.exit(), error.name())
        };
        assert_eq!(exit(FailureKind::KeyUnreachable), (Exit::KeyUnreachable, "key_unreachable"));
        assert_eq!(exit(FailureKind::Sealed), (Exit::Sealed, "sealed"));
    }

    #[test]
    fn a_folder_that_must_not_be_written_into_is_told_with_the_one_that_the_profile_allows() {
        let told = |kind: io::ErrorKind| CliError::NoFolder { path: "/home/a".into(), source: kind.into() }.to_string();
        assert!(told(io::ErrorKind::PermissionDenied).contains("below ~/Splitdrop"));
        assert!(!told(io::ErrorKind::NotFound).contains("AppArmor"));
    }

    #[test]
    fn what_was_kept_does_not_change_the_code() {
        let error = || Box::new(CliError::DaemonEnded);
        let not_taken = CliError::NotTaken { error: error(), kept: Kept::Draft };
        let unconfirmed = CliError::Unconfirmed { error: error(), kept: Kept::File("/run/reply.txt".into()) };
        assert_eq!((not_taken.exit(), unconfirmed.exit()), (Exit::NoDaemon, Exit::NoDaemon));
        assert!(not_taken.to_string().contains("as the draft") && unconfirmed.to_string().contains("/run/reply.txt"));
        assert_eq!(CliError::ToldToEnd.exit(), Exit::Interrupted);
    }
}
