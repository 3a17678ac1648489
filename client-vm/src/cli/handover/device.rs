//! The commands that have a device VM copy to an encrypted drive, or print.
//!
//! **Invariant:** a drive's passphrase is asked for only when there is a drive that is locked. It is in no argument and in
//! no log.

use std::io;

use control::act::MAX_OBJECTS;
use control::client::{Client, ClientError};
use control::{DeviceStatus, DeviceTask, Reply, Request};
use protocol::value::Passphrase;

use super::super::act::item_id;
use super::super::args::{Args, Export, Print};
use super::super::credentials::read_secret;
use super::super::exit::CliError;
use super::super::terminal::Terminal;
use super::super::{apart, ask, json, print, text};
use super::find_readable;

pub(in crate::cli) async fn export_to_drive(args: &Args, client: &mut Client, wanted: &Export) -> Result<(), CliError> {
    let items: Vec<_> =
        find_readable(client, &wanted.items).await?.iter().map(|readable| item_id(&readable.item)).collect();
    if items.len() > MAX_OBJECTS {
        return Err(CliError::TooManyItems { count: items.len() });
    }
    let found = have_done(client, DeviceTask::CheckDrive).await?;
    match found {
        DeviceStatus::DriveLocked | DeviceStatus::DriveWritable => {}
        status => return Err(refused(status)),
    }
    if wanted.check {
        return print(args, || json::device(found), || text::device_said(found)).await;
    }
    let passphrase = match found {
        DeviceStatus::DriveLocked => Some(passphrase(args, wanted.passphrase_stdin).await?),
        _unlocked => None,
    };
    match have_done(client, DeviceTask::Copy { items, passphrase }).await? {
        status @ DeviceStatus::Copied => print(args, || json::device(status), || text::device_said(status)).await,
        status => Err(refused(status)),
    }
}

pub(in crate::cli) async fn print_item(args: &Args, client: &mut Client, wanted: &Print) -> Result<(), CliError> {
    let items = find_readable(client, wanted.item.as_slice()).await?;
    match have_done(client, DeviceTask::CheckPrinter).await? {
        DeviceStatus::PrinterReady => {}
        status => return Err(refused(status)),
    }
    let mut status = DeviceStatus::PrinterReady;
    for readable in &items {
        status = have_done(client, DeviceTask::Print { item: item_id(&readable.item) }).await?;
        if status != DeviceStatus::Printed {
            return Err(refused(status));
        }
    }
    print(args, || json::device(status), || text::device_said(status)).await
}

/// What was asked for was not done.
fn refused(status: DeviceStatus) -> CliError {
    match status {
        // Something else was.
        DeviceStatus::DriveWritable
        | DeviceStatus::Copied
        | DeviceStatus::PrinterReady
        | DeviceStatus::TestPagePrinted
        | DeviceStatus::Printed => CliError::OtherAnswer { status },
        DeviceStatus::NoDrive
        | DeviceStatus::InvalidDrive
        | DeviceStatus::SeveralDrives
        | DeviceStatus::UnknownDrive
        | DeviceStatus::DriveLocked
        | DeviceStatus::WrongPassphrase
        | DeviceStatus::NotUnlocked
        | DeviceStatus::NotMounted
        | DeviceStatus::NotCopied
        | DeviceStatus::CopiedDriveBusy
        | DeviceStatus::CopiedNotClosed
        | DeviceStatus::DriveFault
        | DeviceStatus::NoPrinter
        | DeviceStatus::NotPrinted
        | DeviceStatus::Unprintable
        | DeviceStatus::TypeUnsupported
        | DeviceStatus::TypeUnknown
        | DeviceStatus::BadTask
        | DeviceStatus::BadMetadata
        | DeviceStatus::NotUnpacked
        | DeviceStatus::ArchiveMissing
        | DeviceStatus::NoLog
        | DeviceStatus::Fault => CliError::Device { status },
    }
}

async fn have_done(client: &mut Client, task: DeviceTask) -> Result<DeviceStatus, CliError> {
    let replies = ask(client, Request::Device(task)).await?;
    let said =
        replies.into_iter().find_map(|reply| if let Reply::Device(status) = reply { Some(status) } else { None });
    said.ok_or(CliError::Client(ClientError::Unexpected))
}

/// The drive's passphrase. Called off, it leaves the terminal as it was.
async fn passphrase(args: &Args, from_stdin: bool) -> Result<Passphrase, CliError> {
    if from_stdin {
        return apart(read_line).await?;
    }
    let terminal = if args.batch { None } else { Terminal::of_a_person() };
    let terminal = terminal.ok_or(CliError::NoTerminalForPassphrase)?;
    let quiet = terminal.quiet()?;
    let answer = terminal.ask("Passphrase of the drive: ").await?;
    drop(quiet);
    Ok(Passphrase::try_new(answer.as_str())?)
}

/// Reads one line from standard input. It blocks: no signal ends it.
fn read_line() -> Result<Passphrase, CliError> {
    let input = read_secret(io::stdin().lock())?;
    let mut lines = input.lines();
    match (lines.next(), lines.next()) {
        (Some(line), None) => Ok(Passphrase::try_new(line)?),
        _ => Err(CliError::PassphraseLine),
    }
}
