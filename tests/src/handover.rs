//! Stands in for the program that opens files in other VMs, and for these VMs: disposable ones that show documents, and the
//! device VM with a drive and a printer.
//!
//! Each call of the program tells this module what it was given, and then ends as it is told to: at once, or when somebody
//! closes the document.
//!
//! **Invariant:** no call outlives what it is told by: the program ends when its connection does.

mod program;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::environment::Environment;

pub use self::program::run;

/// Leads the program to its socket.
pub const SOCKET_VARIABLE: &str = "SPLITDROP_STAGING_HANDOVER";

/// What a call is about: a document, or what an archive's metadata names.
pub const DOCUMENT: &str = "document";
/// Looking for a drive.
pub const CHECK_DRIVE: &str = "usb-test";
/// Copying to a drive.
pub const COPY: &str = "disk";
/// Looking for a printer.
pub const CHECK_PRINTER: &str = "printer-preflight";
/// Printing.
pub const PRINT: &str = "printer";

/// A call, as the program was made to make it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Its process.
    pub pid: u32,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The file that the last argument names, where it can be read.
    pub file: Option<GivenFile>,
}

/// A file that another VM was given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GivenFile {
    /// Its name, which the other VM sees.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
    /// Its permissions.
    pub mode: u32,
    /// Those of its folder.
    pub folder_mode: u32,
    /// The names in its folder.
    pub folder: Vec<String>,
    /// What is in it, where it is an archive for a device VM.
    pub archive: Option<GivenArchive>,
}

/// An archive for a device VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GivenArchive {
    /// Its `metadata.json`.
    pub metadata: Value,
    /// Its other entries, in their order.
    pub entries: Vec<GivenEntry>,
}

/// An entry of an archive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GivenEntry {
    /// Its path in the archive.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
}

impl Call {
    /// What it is about, as the constants of this module have it.
    #[must_use]
    pub fn about(&self) -> &str {
        let archive = self.file.as_ref().and_then(|file| file.archive.as_ref());
        archive.and_then(|archive| archive.metadata.get("device")).and_then(Value::as_str).unwrap_or(DOCUMENT)
    }
}

/// How a call ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The program's exit code.
    pub code: i32,
    /// What it says on standard error.
    pub said: String,
    /// How many bytes it prints on standard output, as if something came back.
    pub printed: usize,
}

impl End {
    /// In order, with a status.
    #[must_use]
    pub fn status(word: &str) -> Self {
        Self { code: 0, said: format!("{word}\n"), printed: 0 }
    }

    /// With an exit code, and no word.
    #[must_use]
    pub fn code(code: i32) -> Self {
        Self { code, said: String::new(), printed: 0 }
    }
}

/// What becomes of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Play {
    Ends(End),
    Stays,
}

/// The other VMs.
#[derive(Debug)]
pub struct OtherVms {
    socket: PathBuf,
    state: Arc<State>,
    _calls: JoinSet<()>,
}

#[derive(Debug)]
struct State {
    inner: Mutex<Inner>,
    count: watch::Sender<usize>,
}

#[derive(Debug)]
struct Inner {
    plays: BTreeMap<String, Play>,
    calls: Vec<Call>,
    /// Calls that stay, by their places among all.
    staying: BTreeMap<usize, oneshot::Sender<End>>,
}

impl OtherVms {
    /// VMs that work: documents are closed at once, there is an unlocked drive with room, and a printer. The socket is put
    /// into `folder`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(folder: &Path) -> io::Result<Self> {
        let socket = folder.join("handover.sock");
        let listener = UnixListener::bind(&socket)?;
        let ends = |word: &str| Play::Ends(End::status(word));
        let plays = [
            (DOCUMENT, Play::Ends(End::code(0))),
            (CHECK_DRIVE, ends("DEVICE_WRITABLE")),
            (COPY, ends("SUCCESS_EXPORT")),
            (CHECK_PRINTER, ends("PRINTER_PREFLIGHT_SUCCESS")),
            (PRINT, ends("PRINTER_SUCCESS")),
        ];
        let plays = plays.into_iter().map(|(about, play)| (about.to_owned(), play)).collect();
        let inner = Mutex::new(Inner { plays, calls: Vec::new(), staying: BTreeMap::new() });
        let state = Arc::new(State { inner, count: watch::Sender::new(0) });
        let mut calls = JoinSet::new();
        calls.spawn(accept(listener, Arc::clone(&state)));
        Ok(Self { socket, state, _calls: calls })
    }

    /// Where the program finds this.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// From now on calls about this end so.
    pub fn end(&self, about: &str, end: End) {
        self.state.lock().plays.insert(about.to_owned(), Play::Ends(end));
    }

    /// From now on calls about this stay until they are told to end.
    pub fn stay(&self, about: &str) {
        self.state.lock().plays.insert(about.to_owned(), Play::Stays);
    }

    /// Ends a call that stays, by its place among all calls from 0 on; gives whether there was one.
    pub fn close(&self, place: usize, end: End) -> bool {
        let staying = self.state.lock().staying.remove(&place);
        staying.is_some_and(|staying| staying.send(end).is_ok())
    }

    /// All calls so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.state.lock().calls.clone()
    }

    /// Waits for so many calls in all; gives them.
    pub async fn until_calls(&self, count: usize) -> Vec<Call> {
        let mut counted = self.state.count.subscribe();
        // It goes on as long as this does.
        let _ = counted.wait_for(|calls| *calls >= count).await;
        self.calls()
    }
}

impl Environment {
    /// The VMs that documents and archives go to.
    #[must_use]
    pub fn other_vms(&self) -> &OtherVms {
        &self.vms
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call; gives how it ends, or when that will be known.
    fn note(&self, call: Call) -> Result<End, oneshot::Receiver<End>> {
        let mut inner = self.lock();
        let play = inner.plays.get(call.about()).cloned();
        let place = inner.calls.len();
        inner.calls.push(call);
        let ends = match play {
            Some(Play::Ends(end)) => Ok(end),
            Some(Play::Stays) => {
                let (sender, receiver) = oneshot::channel();
                inner.staying.insert(place, sender);
                Err(receiver)
            }
            None => Ok(End { code: 1, said: "the archive names no task\n".to_owned(), printed: 0 }),
        };
        drop(inner);
        self.count.send_replace(place.saturating_add(1));
        ends
    }
}

async fn accept(listener: UnixListener, state: Arc<State>) {
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = calls.join_next() => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                calls.spawn(play(stream, Arc::clone(&state)));
            }
        }
    }
}

async fn play(stream: UnixStream, state: Arc<State>) {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    let Ok(Some(line)) = lines.next_line().await else { return };
    let Ok(call) = serde_json::from_str(&line) else { return };
    let end = match state.note(call) {
        Ok(end) => end,
        Err(told) => tokio::select! {
            end = told => match end {
                Ok(end) => end,
                Err(_) => return,
            },
            // The program was ended.
            _ = lines.next_line() => return,
        },
    };
    if let Ok(mut line) = serde_json::to_vec(&end) {
        line.push(b'\n');
        // A program that was ended is told nothing.
        let _ = writer.write_all(&line).await;
    }
}
