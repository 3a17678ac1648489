//! The archive that tells the device VM its task: a gzipped tar with `metadata.json`, and the files under `export_data`, as
//! the SecureDrop Workstation's export program takes it.
//!
//! **Invariant:** names in it are clean, and each is there once. It is written as a stream: nothing of a file's size is in
//! memory.
//!
//! **Invariant:** it may hold the passphrase of a drive. It is for this user alone, and whoever asked for it removes it
//! after the call, also where none came about.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use control::DeviceTask;
use flate2::Compression;
use flate2::write::GzEncoder;
use protocol::value::Passphrase;
use serde::Serialize;
use tar::{Builder, EntryType, Header};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{HandoverError, naming};
use crate::files::Files;
use crate::store::handover::Readable;

const METADATA: &str = "metadata.json";
const FOLDER: &str = "export_data";
/// What is gathered before it is written, in bytes.
const BUFFER: usize = 256 * 1024;

/// What the archive says of the task. Names and values are the export program's.
#[derive(Serialize)]
struct Metadata<'a> {
    device: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    encryption_key: Option<&'a str>,
}

impl<'a> Metadata<'a> {
    fn of(task: &'a DeviceTask) -> Self {
        match task {
            DeviceTask::CheckDrive => Self { device: "usb-test", encryption_key: None },
            DeviceTask::Copy { passphrase, .. } => {
                Self { device: "disk", encryption_key: passphrase.as_ref().map(Passphrase::expose) }
            }
            DeviceTask::CheckPrinter => Self { device: "printer-preflight", encryption_key: None },
            DeviceTask::Print { .. } => Self { device: "printer", encryption_key: None },
        }
    }
}

/// Writes the archive of a task. What there is of one that fails is left.
pub(super) fn write(
    files: &Files,
    task: &DeviceTask,
    items: &[Readable],
    stop: &CancellationToken,
) -> Result<PathBuf, HandoverError> {
    let (file, path) = files.begin_archive()?;
    match fill(files, task, items, file, stop) {
        Ok(()) => Ok(path),
        // What was read from is what gave up.
        Err(_) if stop.is_cancelled() => Err(HandoverError::GivenUp),
        Err(error) => Err(error),
    }
}

fn fill(
    files: &Files,
    task: &DeviceTask,
    items: &[Readable],
    file: File,
    stop: &CancellationToken,
) -> Result<(), HandoverError> {
    let out = io::BufWriter::with_capacity(BUFFER, file);
    let mut archive = Builder::new(GzEncoder::new(out, Compression::fast()));
    let metadata = Zeroizing::new(serde_json::to_vec(&Metadata::of(task)).map_err(io::Error::from)?);
    let mut entry = header(EntryType::Regular, length(&metadata));
    archive.append_data(&mut entry, METADATA, metadata.as_slice())?;
    if !items.is_empty() {
        archive.append_data(&mut header(EntryType::Directory, 0), format!("{FOLDER}/"), io::empty())?;
    }
    let mut taken = HashSet::new();
    for item in items {
        let name = format!("{FOLDER}/{}", unique(&mut taken, item));
        let mut entry = header(EntryType::Regular, item.bytes);
        match &item.text {
            Some(text) => archive.append_data(&mut entry, name, Whole::new(text.as_bytes(), item.bytes, stop))?,
            None => {
                let file = files.open_plaintext(item.number)?.ok_or(HandoverError::Vanished(item.item.id()))?;
                archive.append_data(&mut entry, name, Whole::new(file, item.bytes, stop))?;
            }
        }
    }
    let out = archive.into_inner()?.finish()?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(())
}

/// A name that is not there yet, in any case of letters: the drive may not tell them apart.
fn unique(taken: &mut HashSet<String>, item: &Readable) -> String {
    let name = match &item.text {
        Some(_) => naming::of_text(&item.designation, item.order),
        None => naming::of_file(item.name.as_deref(), &item.designation, item.order),
    };
    let mut at = 1;
    loop {
        let numbered = naming::numbered(&name, at);
        if taken.insert(numbered.to_lowercase()) {
            return numbered;
        }
        at = at.saturating_add(1);
    }
}

/// The head of an entry. It tells nothing of this VM: no owner, and no time.
fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(if kind == EntryType::Directory { 0o700 } else { 0o600 });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Something that must have exactly the length that its head says; otherwise what follows in the archive would be read as
/// something else.
struct Whole<'a, R> {
    inner: R,
    left: u64,
    stop: &'a CancellationToken,
}

impl<'a, R> Whole<'a, R> {
    fn new(inner: R, length: u64, stop: &'a CancellationToken) -> Self {
        Self { inner, left: length, stop }
    }
}

impl<R: Read> Read for Whole<'_, R> {
    fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_cancelled() {
            return Err(io::Error::other("given up"));
        }
        let count = self.inner.read(block)?;
        let left = u64::try_from(count).ok().and_then(|count| self.left.checked_sub(count));
        self.left = left.ok_or_else(|| io::Error::other("a file is longer than noted"))?;
        if count == 0 && self.left > 0 && !block.is_empty() {
            return Err(io::Error::other("a file is shorter than noted"));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flate2::read::GzDecoder;
    use protocol::value::OrderNumber;
    use serde_json::{Value, json};

    use super::*;
    use crate::files::FileNumber;
    use crate::store::outbox::ItemName;

    fn file(number: i64, name: Option<&str>, bytes: u64) -> Readable {
        Readable {
            item: ItemName::File(format!("9b04{number:04}-0000-4000-8000-000000000000").parse().unwrap()),
            number: FileNumber(number),
            designation: "candid marmot".to_owned(),
            order: OrderNumber::try_new(number.unsigned_abs()).unwrap(),
            bytes,
            name: name.map(str::to_owned),
            text: None,
        }
    }

    fn copy(passphrase: Option<&str>) -> DeviceTask {
        let passphrase = passphrase.map(|text| Passphrase::try_new(text).unwrap());
        DeviceTask::Copy { items: Vec::new(), passphrase }
    }

    fn made(task: &DeviceTask, items: &[Readable]) -> (Value, BTreeMap<String, Vec<u8>>) {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        for item in items.iter().filter(|item| item.text.is_none()) {
            std::fs::write(files.plaintext(item.number), vec![b'x'; usize::try_from(item.bytes).unwrap()]).unwrap();
        }
        let path = write(&files, task, items, &CancellationToken::new()).unwrap();
        let mut archive = tar::Archive::new(GzDecoder::new(File::open(path).unwrap()));
        let mut entries = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_str().unwrap().to_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            assert!(entries.insert(name, bytes).is_none(), "each name is there once");
        }
        (serde_json::from_slice(&entries.remove(METADATA).unwrap()).unwrap(), entries)
    }

    #[test]
    fn each_task_has_its_word() {
        let print = DeviceTask::Print { item: file(1, None, 0).item.id() };
        for (task, metadata) in [
            (DeviceTask::CheckDrive, json!({ "device": "usb-test" })),
            (DeviceTask::CheckPrinter, json!({ "device": "printer-preflight" })),
            (print, json!({ "device": "printer" })),
            (copy(None), json!({ "device": "disk" })),
            (copy(Some("a \"b\" \\")), json!({ "device": "disk", "encryption_key": "a \"b\" \\" })),
        ] {
            assert_eq!(made(&task, &[]), (metadata, BTreeMap::new()));
        }
    }

    /// Case F8.
    #[test]
    fn f8_names_are_clean_and_each_is_there_once() {
        let hostile = "../../.config/autostart/x.desktop";
        let message = Readable { text: Some("hello".to_owned()), designation: hostile.to_owned(), ..file(5, None, 5) };
        let long = format!("{}.pdf", "n".repeat(5_000));
        let items = [
            file(1, Some(hostile), 3),
            file(2, Some("X.Desktop"), 0),
            file(3, None, 4),
            file(4, Some(&long), 1),
            message,
        ];
        let (_, entries) = made(&copy(None), &items);
        let long = format!("export_data/{}.pdf", "n".repeat(251));
        let expected: BTreeMap<_, Vec<u8>> = [
            ("export_data/".to_owned(), Vec::new()),
            ("export_data/x.desktop".to_owned(), b"xxx".to_vec()),
            ("export_data/X (2).Desktop".to_owned(), Vec::new()),
            ("export_data/candid marmot-3".to_owned(), b"xxxx".to_vec()),
            (long, b"x".to_vec()),
            ("export_data/x.desktop-5.txt".to_owned(), b"hello".to_vec()),
        ]
        .into();
        assert_eq!(entries, expected);
    }

    #[test]
    fn a_file_that_is_not_as_long_as_noted_or_a_stop_makes_no_archive() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        std::fs::write(files.plaintext(FileNumber(1)), "12345").unwrap();
        for noted in [4, 6] {
            let error = write(&files, &copy(None), &[file(1, None, noted)], &CancellationToken::new()).unwrap_err();
            assert!(matches!(error, HandoverError::Io(_)), "{error}");
        }
        let error = write(&files, &copy(None), &[file(2, None, 1)], &CancellationToken::new()).unwrap_err();
        assert!(matches!(error, HandoverError::Vanished(_)), "{error}");
        let stop = CancellationToken::new();
        stop.cancel();
        let error = write(&files, &copy(None), &[file(1, None, 5)], &stop).unwrap_err();
        assert!(matches!(error, HandoverError::GivenUp), "{error}");
    }
}
