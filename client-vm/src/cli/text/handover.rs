//! What left Splitdrop, in words.

use control::{DeviceStatus, ViewerStep};
use protocol::value::ItemId;

use super::super::handover::Exported;
use super::super::safe_text::sanitized;
use super::amount::bytes;
use super::{counted, short_id};

/// A document is open, and somebody waits for its end.
pub(in crate::cli) fn is_open() -> &'static str {
    "Handed to a disposable VM. Ctrl-C ends the waiting, and leaves the document open."
}

/// A document is open, and nobody waits for its end.
pub(in crate::cli) fn handed_over() -> String {
    "Handed to a disposable VM.\n".to_owned()
}

/// A document was closed.
pub(in crate::cli) fn closed() -> String {
    "Closed.\n".to_owned()
}

/// A step in the life of an open document.
pub(super) fn viewer(item: ItemId, step: &ViewerStep) -> String {
    let item = short_id(item.as_str());
    match step {
        ViewerStep::Opened => format!("{item} is open in a disposable VM.\n"),
        ViewerStep::Closed => format!("{item} was closed in its VM.\n"),
        ViewerStep::Failed(failure) => {
            format!("{item} is not open in a disposable VM: {}\n", sanitized(&failure.message))
        }
    }
}

/// How far a copy is.
pub(in crate::cli) fn copying(name: &str, done: u64, total: u64) -> String {
    format!("{} of {}  {}", bytes(done), bytes(total), sanitized(name))
}

/// What was copied into a folder, one a line.
pub(in crate::cli) fn exported(exported: &[Exported]) -> String {
    let mut text = format!("Copied {}:\n", counted(u64::try_from(exported.len()).unwrap_or(u64::MAX), "item"));
    for one in exported {
        text.push_str(&format!("  {}  {}  {}\n", short_id(one.item.as_str()), bytes(one.bytes), sanitized(&one.name)));
    }
    text
}

/// A transcript was written.
pub(in crate::cli) fn written(name: &str) -> String {
    format!("Written: {}\n", sanitized(name))
}

/// What a device VM said, as a line.
pub(in crate::cli) fn device_said(status: DeviceStatus) -> String {
    format!("{}.\n", super::capitalized(device(status)))
}

/// What a device VM's word means, and what to do.
pub(in crate::cli) fn device(status: DeviceStatus) -> &'static str {
    match status {
        DeviceStatus::NoDrive => "no drive is attached: plug one in, attach it to the device VM, and try again",
        DeviceStatus::InvalidDrive => {
            "the drive cannot be used: it must be encrypted with LUKS or VeraCrypt, and have one such part only"
        }
        DeviceStatus::SeveralDrives => "more than one drive is attached: leave one, and try again",
        DeviceStatus::UnknownDrive => {
            "what is attached is not known: unlock a VeraCrypt drive in the device VM first, or use one with LUKS"
        }
        DeviceStatus::DriveLocked => "there is a drive, and it is locked: its passphrase unlocks it",
        DeviceStatus::DriveWritable => "there is a drive, and it is unlocked",
        DeviceStatus::WrongPassphrase => {
            "the passphrase does not unlock the drive, and nothing was copied: try again with the right one"
        }
        DeviceStatus::NotUnlocked => {
            "the drive could not be unlocked, and nothing was copied: unplug it, plug it in again, and try again"
        }
        DeviceStatus::NotMounted => {
            "the drive was unlocked and could not be mounted, and nothing was copied: check its file system"
        }
        DeviceStatus::Copied => "everything was copied, and the drive is locked again",
        DeviceStatus::NotCopied => {
            "the files could not be written: see whether the drive has room, and what of them is on it"
        }
        DeviceStatus::CopiedDriveBusy => {
            "everything was copied, and the drive is in use: close what uses it in the device VM, and eject it there"
        }
        DeviceStatus::CopiedNotClosed => {
            "everything was copied, and the drive could not be locked again: eject it in the device VM"
        }
        DeviceStatus::DriveFault => "the drive could not be looked at: unplug it, plug it in again, and try again",
        DeviceStatus::PrinterReady => "there is a printer, and it can be used",
        DeviceStatus::TestPagePrinted => "the printer's test page was printed",
        DeviceStatus::Printed => "handed to the printer",
        DeviceStatus::NoPrinter => "no printer is attached: plug one in, attach it to its VM, and try again",
        DeviceStatus::NotPrinted => "it could not be printed: see the printer, and the log of its VM",
        DeviceStatus::Unprintable => "documents of this type cannot be printed: open it, or export it to a drive",
        DeviceStatus::TypeUnsupported => {
            "the printer's VM has no program for documents of this type: open it, or export it to a drive"
        }
        DeviceStatus::TypeUnknown => {
            "it could not be found out of what type the document is: open it, or export it to a drive"
        }
        DeviceStatus::BadTask => "the device VM does not know the task: is its export program of another version?",
        DeviceStatus::BadMetadata => "the device VM could not read its task: is its export program of another version?",
        DeviceStatus::NotUnpacked => "the device VM could not unpack the archive: see whether it has room, and its log",
        DeviceStatus::ArchiveMissing => "the archive did not arrive in the device VM: try again",
        DeviceStatus::NoLog => "the device VM could not write its log, and did nothing: see whether it has room",
        DeviceStatus::Fault => "the device VM failed, and does not say at what: see the log of it",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use control::{Failure, FailureKind};

    use super::super::super::samples::item;
    use super::*;

    #[test]
    fn each_status_has_words_of_its_own() {
        let words: HashSet<_> = DeviceStatus::all().map(device).collect();
        assert_eq!(words.len(), DeviceStatus::all().count());
        assert_eq!(device_said(DeviceStatus::Copied), "Everything was copied, and the drive is locked again.\n");
    }

    #[test]
    fn names_of_copies_and_reasons_are_made_harmless() {
        let one = Exported { item: item(1), name: "a\u{202e}b".to_owned(), bytes: 1_200 };
        assert_eq!(exported(&[one]), "Copied 1 item:\n  9b040001  1.2 kB  a\\u{202e}b\n");
        assert_eq!(copying("a\u{1b}b", 0, 1_200), "0 B of 1.2 kB  a\\u{1b}b");
        let failed = Failure { kind: FailureKind::OtherVm, message: "no\nVM".to_owned() };
        let told = viewer(item(1), &ViewerStep::Failed(failed));
        assert_eq!(told, "9b040001 is not open in a disposable VM: no\\u{a}VM\n");
    }
}
