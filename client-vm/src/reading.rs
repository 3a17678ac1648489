//! Opens one item whose ciphertext is here: decrypted, unpacked, on the disk, under its final name, noted; then the
//! ciphertext goes. It needs no session.
//!
//! **Invariant:** a plaintext counts only once it was decrypted and unpacked to its end, and the ciphertext goes only after
//! the plaintext is durable and noted.
//!
//! **Invariant:** what was decrypted is written under numbers of our own, and the name that a source gave it is only ever
//! shown.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, Write};
use std::sync::Arc;

use control::{Inner, Seal};
use tokio_util::sync::CancellationToken;

use crate::failure::chain;
use crate::files::{FileNumber, Files, Growing, Stage};
use crate::openpgp::decrypt::{DecryptError, Decryptor, Limits, Verdict};
use crate::shown_name::shown_name;
use crate::store::downloads::{self, Candidate};
use crate::store::outbox::ItemName;
use crate::store::reading::{self, Plaintext};
use crate::store::{Store, StoreError};
use crate::unpack::{UnpackError, gunzip, is_gzip};

/// The longest text of a message or reply, in bytes, also after what is no UTF-8 of it was replaced: the server takes
/// 100,000 characters. It has to fit a message to a front end.
pub const MAX_TEXT: u64 = 512 * 1024;
/// How an armored message begins.
const ARMOR: &[u8] = b"-----BEGIN PGP MESSAGE-----";
/// How much of a file is looked at to tell what it is, in bytes.
const LOOK: usize = 64;
/// What is gathered before it is written, in bytes.
const BUFFER: usize = 256 * 1024;

/// What opening needs.
#[derive(Debug, Clone)]
pub struct ReadingDesk {
    /// The store.
    pub store: Store,
    /// The files.
    pub files: Files,
    /// The way to the private key.
    pub decryptor: Arc<dyn Decryptor>,
    /// How much may come out of an item.
    pub limits: Limits,
}

/// The steps of opening an item, in their order. A message or reply has no file, and skips those of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Its ciphertext is open.
    Prepared,
    /// It is decrypted.
    Decrypted,
    /// It is unpacked, and so is what was in it.
    Unpacked,
    /// It is on the disk.
    Synced,
    /// It has its final name.
    Renamed,
    /// It is noted.
    Noted,
    /// Its ciphertext is gone.
    Removed,
}

impl Step {
    /// Every step.
    pub const ALL: [Self; 7] =
        [Self::Prepared, Self::Decrypted, Self::Unpacked, Self::Synced, Self::Renamed, Self::Noted, Self::Removed];
}

/// Who is told which steps were taken.
pub trait Watcher: Send + Sync {
    /// A step was taken.
    fn step(&self, _step: Step) {}
}

/// Nobody.
impl Watcher for () {}

/// An item could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It could not be decrypted.
    #[error(transparent)]
    Decrypt(#[from] DecryptError),
    /// What was decrypted could not be unpacked.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// The disk has no room left.
    #[error("the disk has no room left: make some, and it goes on by itself")]
    NoRoom,
    /// The text of a message or reply is longer than any that the server takes.
    #[error("the text is longer than {MAX_TEXT} bytes")]
    LongText,
    /// The plaintext could not be written, or the ciphertext not be read.
    #[error("the files could not be read or written")]
    Io(#[from] io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its ciphertext is not there any more: it is fetched again.
    #[error("its ciphertext has vanished")]
    Vanished,
}

/// What a failure to open an item means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Nothing can be decrypted at present.
    Barred,
    /// This item is tried again later.
    Later,
    /// This item is not tried again by itself.
    Sealed(Seal),
    /// It was told to stop, or is fetched again.
    Stopped,
}

impl ReadError {
    /// What it means.
    #[must_use]
    pub fn meaning(&self) -> Meaning {
        match self {
            Self::Decrypt(error) => of_decrypt(error),
            Self::Unpack(error) => match error {
                UnpackError::Cut => Meaning::Sealed(Seal::Cut),
                UnpackError::NotGzip | UnpackError::Corrupt => Meaning::Sealed(Seal::Corrupt),
                UnpackError::TooLarge { .. } => Meaning::Sealed(Seal::TooLarge),
                UnpackError::Stopped => Meaning::Stopped,
                UnpackError::Read(_) | UnpackError::Write(_) => Meaning::Later,
            },
            Self::NoRoom => Meaning::Barred,
            Self::LongText => Meaning::Sealed(Seal::TooLarge),
            Self::Io(_) | Self::Store(_) => Meaning::Later,
            Self::Vanished => Meaning::Stopped,
        }
    }

    /// The reason, in one line.
    #[must_use]
    pub fn reason(&self) -> String {
        chain(self)
    }
}

fn of_decrypt(error: &DecryptError) -> Meaning {
    match error {
        DecryptError::NoSecretKey { .. } | DecryptError::NoPublicKey(_) | DecryptError::Locked => {
            Meaning::Sealed(Seal::NoKey)
        }
        DecryptError::Denied(_) => Meaning::Sealed(Seal::Denied),
        DecryptError::Unavailable(_) => Meaning::Barred,
        DecryptError::Cut => Meaning::Sealed(Seal::Cut),
        DecryptError::Corrupt(_) | DecryptError::Unprotected | DecryptError::NotEncrypted => {
            Meaning::Sealed(Seal::Corrupt)
        }
        DecryptError::TooLarge { .. } | DecryptError::TooDeep { .. } => Meaning::Sealed(Seal::TooLarge),
        DecryptError::ForPassphrase | DecryptError::Unsupported(_) | DecryptError::Stalled(_) => {
            Meaning::Sealed(Seal::Other)
        }
        DecryptError::Read(_) | DecryptError::Write(_) => Meaning::Later,
        DecryptError::Cancelled => Meaning::Stopped,
    }
}

/// How opening an item ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// It can be read.
    Decrypted,
    /// It is not to be opened any more, and nothing of it was noted.
    Gone,
}

/// Opens one item.
///
/// `stop` stops it between two blocks; nothing is left of it then. Nobody else may open the same item meanwhile.
///
/// Where only the ciphertext cannot be removed the item is opened, and the log says so.
///
/// # Errors
/// [`ReadError`]; the ciphertext is still there, but for [`ReadError::Vanished`].
pub async fn read(
    desk: &ReadingDesk,
    candidate: Candidate,
    watcher: Arc<dyn Watcher>,
    stop: &CancellationToken,
) -> Result<Read, ReadError> {
    let Some(number) = desk.store.read(move |transaction| reading::job(transaction, candidate)).await? else {
        return Ok(Read::Gone);
    };
    let opening = Opening { desk: desk.clone(), candidate, number, watcher: Arc::clone(&watcher), stop: stop.clone() };
    let files = desk.files.clone();
    let opened = blocking(move || {
        let opened = opening.open();
        // Whatever came of it, what the stages left is of no use.
        opening.desk.files.remove_stages(number)?;
        opened
    });
    let plaintext = match opened.await {
        Err(ReadError::Vanished) => {
            desk.store.write(move |transaction| downloads::note_vanished(transaction, number)).await?;
            return Err(ReadError::Vanished);
        }
        opened => opened?,
    };
    let is_text = plaintext.text.is_some();
    let noted =
        desk.store.write(move |transaction| reading::note_decrypted(transaction, candidate, number, &plaintext)).await;
    if !matches!(noted, Ok(true)) && !is_text {
        // Nobody knows of it, or it was deleted meanwhile.
        let files = files.clone();
        blocking(move || Ok(files.remove_plaintext(number)?)).await?;
    }
    if !noted? {
        return Ok(Read::Gone);
    }
    watcher.step(Step::Noted);
    match blocking(move || Ok(files.remove_ciphertext(number)?)).await {
        Ok(()) => watcher.step(Step::Removed),
        // It can be read all the same. The next start removes it.
        Err(error) => tracing::error!(number = number.0, error = chain(&error), "could not remove a ciphertext"),
    }
    Ok(Read::Decrypted)
}

/// Work with files, off the async threads. It is never cut in two.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> Result<T, ReadError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            // The engine notices.
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(ReadError::Io(io::Error::other(error))),
        },
    }
}

struct Opening {
    desk: ReadingDesk,
    candidate: Candidate,
    number: FileNumber,
    watcher: Arc<dyn Watcher>,
    stop: CancellationToken,
}

impl Opening {
    fn open(&self) -> Result<Plaintext, ReadError> {
        // A text grows the database, which nothing else bounds.
        if !self.desk.files.has_room_for(MAX_TEXT) {
            return Err(ReadError::NoRoom);
        }
        let ciphertext = self.desk.files.open_ciphertext(self.number)?.ok_or(ReadError::Vanished)?;
        self.watcher.step(Step::Prepared);
        match self.candidate.item {
            ItemName::Message(_) | ItemName::Reply(_) => self.text(ciphertext),
            ItemName::File(_) => self.file(ciphertext),
        }
    }

    /// A message or reply: a text.
    fn text(&self, ciphertext: File) -> Result<Plaintext, ReadError> {
        let limits = Limits { bytes: self.desk.limits.bytes.min(MAX_TEXT), ..self.desk.limits };
        let mut bytes = Vec::new();
        self.desk.decryptor.decrypt(ciphertext, &mut bytes, &limits, &self.stop)?;
        self.watcher.step(Step::Decrypted);
        let mut inner = Inner::None;
        if is_openpgp(&bytes) {
            let mut message = self.desk.files.begin_stage(self.number, Stage::Decrypted)?;
            message.write_all(&bytes)?;
            message.rewind()?;
            let mut within = Vec::new();
            inner = self.inner(message, &mut within, &limits)?;
            if inner == Inner::Opened {
                bytes = within;
            }
        }
        self.watcher.step(Step::Unpacked);
        let text =
            String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        // What takes the place of a byte that is no UTF-8 is three bytes long.
        if bytes > MAX_TEXT {
            return Err(ReadError::LongText);
        }
        Ok(Plaintext { bytes, inner, name: None, text: Some(text) })
    }

    /// A file: unpacked, if it is packed as gzip. Archives stay as they are.
    fn file(&self, ciphertext: File) -> Result<Plaintext, ReadError> {
        let (files, number, limits) = (&self.desk.files, self.number, &self.desk.limits);
        let mut stage = Stage::Decrypted;
        let mut file = files.begin_stage(number, stage)?;
        let decrypted =
            self.write_to(&mut file, |out| Ok(self.desk.decryptor.decrypt(ciphertext, out, limits, &self.stop)?))?;
        let mut bytes = decrypted.bytes;
        self.watcher.step(Step::Decrypted);
        let mut name = None;
        if is_gzip(&look(&mut file)?) {
            stage = Stage::Unpacked;
            let mut unpacked_file = files.begin_stage(number, stage)?;
            let packed = BufReader::with_capacity(BUFFER, file);
            let unpacked =
                self.write_to(&mut unpacked_file, |mut out| Ok(gunzip(packed, &mut out, limits, &self.stop)?))?;
            (bytes, name) = (unpacked.bytes, unpacked.name.and_then(|name| shown_name(&name)));
            file = unpacked_file;
        }
        let mut inner = Inner::None;
        if is_openpgp(&look(&mut file)?) {
            let mut within = files.begin_stage(number, Stage::Inner)?;
            let message = file.try_clone()?;
            inner = self.write_to(&mut within, |out| self.inner(message, out, limits))?;
            if inner == Inner::Opened {
                stage = Stage::Inner;
                bytes = within.metadata()?.len();
                file = within;
                name = name.map(without_envelope);
            }
        }
        self.watcher.step(Step::Unpacked);
        file.sync_all()?;
        self.watcher.step(Step::Synced);
        files.finish_plaintext(number, stage)?;
        self.watcher.step(Step::Renamed);
        Ok(Plaintext { bytes, inner, name, text: None })
    }

    /// Gives `work` a buffer in front of a file, and writes out what is left in it. The file stands at its beginning then.
    fn write_to<T>(
        &self,
        file: &mut File,
        work: impl FnOnce(&mut (dyn Write + Send)) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let growing = Growing::new(file, &self.desk.files);
        let mut out = io::BufWriter::with_capacity(BUFFER, growing);
        let done = work(&mut out)?;
        out.flush()?;
        drop(out);
        file.rewind()?;
        Ok(done)
    }

    /// Decrypts a message that was in the plaintext of another: the source encrypted it itself. Where that cannot be done
    /// now it is tried again with all of the item; where it cannot be done at all the message is what is held.
    fn inner(&self, message: File, out: &mut (dyn Write + Send), limits: &Limits) -> Result<Inner, ReadError> {
        match self.desk.decryptor.decrypt(message, out, limits, &self.stop) {
            Ok(_) => Ok(Inner::Opened),
            // It only began like one.
            Err(DecryptError::NotEncrypted) => Ok(Inner::None),
            Err(error) => match error.verdict() {
                Verdict::Never | Verdict::AfterKeyChange => Ok(Inner::Closed),
                Verdict::WhenUserActs | Verdict::Later => Err(error.into()),
            },
        }
    }
}

/// Whether what begins so may be an encrypted OpenPGP message: armored, or with an encrypted session key (RFC 9580, 4.2 and
/// 5.1) at its beginning.
fn is_openpgp(first: &[u8]) -> bool {
    let packet = match first {
        // The old form of a header with a length of one or two bytes, and the new one with the same.
        [0x84, _, packet @ ..] | [0x85, _, _, packet @ ..] => packet,
        [0xc1, length, packet @ ..] if *length < 192 => packet,
        [0xc1, 192..=223, _, packet @ ..] => packet,
        _ => return first.trim_ascii_start().starts_with(ARMOR),
    };
    match packet {
        // The key's id, and which of the algorithms for encryption it is for.
        [3, rest @ ..] => rest.get(8).is_some_and(|algorithm| matches!(algorithm, 1 | 2 | 16 | 18 | 25 | 26)),
        // How long its fingerprint is, of a key of version 4 or 6, or hidden.
        [6, 0 | 21 | 33, ..] => true,
        _ => false,
    }
}

/// The name of a file without what says that it is encrypted, which it is no more.
fn without_envelope(name: String) -> String {
    let is_envelope = |last: &str| ["gpg", "pgp", "asc"].iter().any(|known| last.eq_ignore_ascii_case(known));
    match name.rsplit_once('.') {
        Some((rest, last)) if is_envelope(last) && !rest.is_empty() => rest.to_owned(),
        _ => name,
    }
}

/// How a file begins. It stands at its beginning then.
fn look(file: &mut File) -> io::Result<Vec<u8>> {
    let mut first = Vec::with_capacity(LOOK);
    file.take(u64::try_from(LOOK).unwrap_or(u64::MAX)).read_to_end(&mut first)?;
    file.rewind()?;
    Ok(first)
}
