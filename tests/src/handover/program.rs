//! The program itself: `qvm-open-in-vm --view-only VM FILE`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use flate2::read::GzDecoder;
use sha2::{Digest as _, Sha256};

use super::{Call, End, GivenArchive, GivenEntry, GivenFile};

/// By what its end the other VM knows an archive.
const ARCHIVE: &str = ".sd-export";
const METADATA: &str = "metadata.json";
/// What it ends with when nobody tells it how.
const UNTOLD: u8 = 70;

/// Makes a call: tells what it was given, and ends as it is told to. Gives the exit code.
pub fn run(arguments: impl Iterator<Item = OsString>, socket: Option<OsString>) -> u8 {
    let arguments: Vec<_> = arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    match tell(arguments, socket) {
        Ok(end) => u8::try_from(end.code).unwrap_or(UNTOLD),
        Err(error) => {
            drop(writeln!(io::stderr(), "qvm-open-in-vm: {error}"));
            UNTOLD
        }
    }
}

fn tell(arguments: Vec<String>, socket: Option<OsString>) -> io::Result<End> {
    let socket = socket.ok_or_else(|| io::Error::other("nobody says where the other VMs are"))?;
    let mut stream = UnixStream::connect(socket)?;
    let file = arguments.last().and_then(|path| look_at(Path::new(path)).ok());
    let call = Call { pid: std::process::id(), arguments, file };
    let mut line = serde_json::to_vec(&call)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    let end: End = serde_json::from_str(&answer)?;
    io::stdout().write_all(&vec![b'x'; end.printed])?;
    io::stderr().write_all(end.said.as_bytes())?;
    Ok(end)
}

/// Reads a file to its end, as the real program does before anything is shown.
fn look_at(path: &Path) -> io::Result<GivenFile> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = path.parent().unwrap_or(Path::new("/"));
    let (bytes, sha256) = digest(File::open(path)?)?;
    let mut others = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        others.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(GivenFile {
        archive: if name.ends_with(ARCHIVE) { Some(unpack(File::open(path)?)?) } else { None },
        name,
        bytes,
        sha256,
        mode: std::fs::metadata(path)?.permissions().mode() & 0o7777,
        folder_mode: std::fs::metadata(folder)?.permissions().mode() & 0o7777,
        folder: others,
    })
}

fn unpack(file: File) -> io::Result<GivenArchive> {
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    let (mut metadata, mut entries) = (serde_json::Value::Null, Vec::new());
    for entry in archive.entries()? {
        let entry = entry?;
        let name = entry.path()?.to_string_lossy().into_owned();
        if name == METADATA {
            metadata = serde_json::from_reader(entry)?;
        } else {
            let (bytes, sha256) = digest(entry)?;
            entries.push(GivenEntry { name, bytes, sha256 });
        }
    }
    Ok(GivenArchive { metadata, entries })
}

/// The length and the SHA-256 of what can be read.
fn digest(mut content: impl Read) -> io::Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let bytes = io::copy(&mut content, &mut hasher)?;
    Ok((bytes, hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
}
