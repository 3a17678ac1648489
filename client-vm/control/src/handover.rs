//! What leaves the VM: documents that are opened in a disposable one, content that is copied out, and what the device VM
//! does with files and says of it.

use protocol::value::{Chunk, ItemId, Passphrase};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// A step in the life of an open document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ViewerStep {
    /// It was handed to a disposable VM.
    Opened,
    /// It was closed there.
    Closed,
    /// It could not be opened, or the call broke off.
    Failed(Failure),
}

/// A piece of what can be read of an item, as it came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentPart {
    /// The bytes; none of an item that is empty, and none beyond its end.
    pub chunk: Option<Chunk>,
    /// Whether these are the last ones.
    pub end: bool,
    /// The length of the whole in bytes.
    pub total: u64,
}

/// What a device VM is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceTask {
    /// Look whether there is a drive that can be written.
    CheckDrive,
    /// Copy items to the drive.
    Copy {
        /// Which.
        items: Vec<ItemId>,
        /// What unlocks the drive; none where it is unlocked.
        passphrase: Option<Passphrase>,
    },
    /// Look whether there is a printer that can be used.
    CheckPrinter,
    /// Print an item.
    Print {
        /// Which.
        item: ItemId,
    },
}

/// What a device VM says at the end of a task. The words on the wire are those of the SecureDrop Workstation's export
/// program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceStatus {
    /// No drive is there.
    NoDrive,
    /// The drive is not encrypted in a way that is known, or has too many encrypted parts.
    InvalidDrive,
    /// There is more than one drive.
    SeveralDrives,
    /// It cannot be told what the drive is.
    UnknownDrive,
    /// There is one drive, and it is locked.
    DriveLocked,
    /// There is one drive, and it can be written.
    DriveWritable,
    /// The passphrase does not unlock the drive.
    WrongPassphrase,
    /// The drive could not be unlocked, for another reason.
    NotUnlocked,
    /// The drive was unlocked and could not be mounted.
    NotMounted,
    /// Everything was copied, and the drive is closed.
    Copied,
    /// The files could not be written to the drive.
    NotCopied,
    /// Everything was copied, and the drive is in use and stays open.
    CopiedDriveBusy,
    /// Everything was copied, and the drive could not be closed.
    CopiedNotClosed,
    /// The drive could not be looked at.
    DriveFault,
    /// There is a printer that can be used.
    PrinterReady,
    /// The printer's test page was printed.
    TestPagePrinted,
    /// The document was given to the printer.
    Printed,
    /// No printer is there.
    NoPrinter,
    /// The document could not be printed.
    NotPrinted,
    /// Documents of this type cannot be printed.
    Unprintable,
    /// The type of the document is not known to the printing program.
    TypeUnsupported,
    /// The type of the document could not be found out.
    TypeUnknown,
    /// The archive names no task that is known.
    BadTask,
    /// What the archive says of its task could not be read.
    BadMetadata,
    /// The archive could not be unpacked.
    NotUnpacked,
    /// The archive did not arrive.
    ArchiveMissing,
    /// The program there could not write its log.
    NoLog,
    /// The program there failed and does not say at what.
    Fault,
}

/// Every status, and its word on the wire.
const WORDS: [(DeviceStatus, &str); 28] = [
    (DeviceStatus::NoDrive, "NO_DEVICE_DETECTED"),
    (DeviceStatus::InvalidDrive, "INVALID_DEVICE_DETECTED"),
    (DeviceStatus::SeveralDrives, "MULTI_DEVICE_DETECTED"),
    (DeviceStatus::UnknownDrive, "UNKNOWN_DEVICE_DETECTED"),
    (DeviceStatus::DriveLocked, "DEVICE_LOCKED"),
    (DeviceStatus::DriveWritable, "DEVICE_WRITABLE"),
    (DeviceStatus::WrongPassphrase, "ERROR_UNLOCK_LUKS"),
    (DeviceStatus::NotUnlocked, "ERROR_UNLOCK_GENERIC"),
    (DeviceStatus::NotMounted, "ERROR_MOUNT"),
    (DeviceStatus::Copied, "SUCCESS_EXPORT"),
    (DeviceStatus::NotCopied, "ERROR_EXPORT"),
    (DeviceStatus::CopiedDriveBusy, "ERROR_UNMOUNT_VOLUME_BUSY"),
    (DeviceStatus::CopiedNotClosed, "ERROR_EXPORT_CLEANUP"),
    (DeviceStatus::DriveFault, "DEVICE_ERROR"),
    (DeviceStatus::PrinterReady, "PRINTER_PREFLIGHT_SUCCESS"),
    (DeviceStatus::TestPagePrinted, "PRINTER_TEST_SUCCESS"),
    (DeviceStatus::Printed, "PRINTER_SUCCESS"),
    (DeviceStatus::NoPrinter, "ERROR_PRINTER_NOT_FOUND"),
    (DeviceStatus::NotPrinted, "ERROR_PRINT"),
    (DeviceStatus::Unprintable, "ERROR_UNPRINTABLE_TYPE"),
    (DeviceStatus::TypeUnsupported, "ERROR_MIMETYPE_UNSUPPORTED"),
    (DeviceStatus::TypeUnknown, "ERROR_MIMETYPE_DISCOVERY"),
    (DeviceStatus::BadTask, "ERROR_ARCHIVE_METADATA"),
    (DeviceStatus::BadMetadata, "ERROR_METADATA_PARSING"),
    (DeviceStatus::NotUnpacked, "ERROR_EXTRACTION"),
    (DeviceStatus::ArchiveMissing, "ERROR_FILE_NOT_FOUND"),
    (DeviceStatus::NoLog, "ERROR_LOGGING"),
    (DeviceStatus::Fault, "ERROR_GENERIC"),
];

impl DeviceStatus {
    /// Every status.
    pub fn all() -> impl Iterator<Item = Self> {
        WORDS.into_iter().map(|(status, _)| status)
    }

    /// Reads a word of the device VM; `None` for one that is not known.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        WORDS.into_iter().find(|(_, known)| *known == word).map(|(status, _)| status)
    }

    /// The word on the wire.
    #[must_use]
    pub fn word(self) -> &'static str {
        WORDS.into_iter().find(|(known, _)| *known == self).map_or("ERROR_GENERIC", |(_, word)| word)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_status_has_a_word_of_its_own() {
        let statuses: HashSet<_> = DeviceStatus::all().collect();
        let words: HashSet<_> = DeviceStatus::all().map(DeviceStatus::word).collect();
        assert_eq!((statuses.len(), words.len()), (WORDS.len(), WORDS.len()));
        for status in DeviceStatus::all() {
            assert_eq!(DeviceStatus::parse(status.word()), Some(status));
        }
        for unknown in ["", "SUCCESS", "success_export", "SUCCESS_EXPORT ", "UNEXPECTED_RETURN_STATUS"] {
            assert_eq!(DeviceStatus::parse(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn no_passphrase_and_no_content_shows_when_a_task_is_printed_for_developers() {
        let passphrase = Some(Passphrase::try_new("correct horse").unwrap());
        let shown = format!("{:?}", DeviceTask::Copy { items: Vec::new(), passphrase });
        assert!(!shown.contains("horse"), "{shown}");
        let chunk = Some(Chunk::try_new(b"the fourth box".to_vec()).unwrap());
        let shown = format!("{:?}", ContentPart { chunk, end: true, total: 14 });
        assert!(!shown.contains("116") && shown.contains("14"), "{shown}");
    }
}
