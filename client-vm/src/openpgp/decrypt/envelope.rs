//! The outside of a message: whom it is encrypted to, how, and whether all of it is there.
//!
//! **Invariant:** a [`Body`] ends without an error only where the message ends: whatever is cut off, or follows, is an
//! error, whichever backend reads it.
//!
//! **Invariant:** nothing here takes memory by a length that the message claims.
//!
//! What is passed on is the session keys' packets that are encrypted to keys, and the encrypted packet. Passphrases'
//! packets, markers and padding are left out: so nobody can be asked for a passphrase of the message's outermost layer.
//! What is encrypted is not seen here: GnuPG in the key's VM may ask for a passphrase of what is in it.
//!
//! Packets and their lengths: RFC 9580, section 4.2.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sequoia_openpgp::armor::{Kind, Reader, ReaderMode};

use super::{Corruption, DecryptError, MAX_NAMED};

/// The most packets before the encrypted one.
const MAX_HEAD_PACKETS: usize = 64;
/// The longest packet before the encrypted one, in bytes: a session key for RSA 16384 takes 2,061.
const MAX_HEAD_PACKET: u64 = 8192;
/// The longest line of an armored message, in bytes.
const MAX_LINE: usize = 16 * 1024;
/// The first line of an armored message, and the last.
const ARMOR_BEGIN: &[u8] = b"-----BEGIN PGP MESSAGE-----";
const ARMOR_END: &[u8] = b"-----END PGP MESSAGE-----";
/// How much is looked at of both ends of a file, to find these lines, in bytes.
const SURVEYED: u64 = 1024;
const BUFFER: usize = 64 * 1024;

/// How the message is protected from being changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protection {
    /// A hash at the end: version 1 of the encrypted and integrity-protected packet.
    Mdc,
    /// Authenticated encryption: version 2 of it.
    Aead,
    /// Authenticated encryption as GnuPG 2.3 does it.
    GnupgAead,
}

/// What is known of a message before it is decrypted.
pub(super) struct Envelope {
    /// Whom it is encrypted to, as key ids or fingerprints; hidden recipients are left out. At most 32.
    pub(super) recipients: Vec<String>,
    /// How it is protected.
    pub(super) protection: Protection,
    /// The ciphertext's length in bytes, armor included.
    pub(super) length: u64,
    /// The message, to be read once.
    pub(super) body: Body,
    /// What is learnt as it is read.
    pub(super) findings: Findings,
}

/// What is learnt of a message while it is read: the first fault, and whether it ended well. Readers can only say that
/// something is wrong.
#[derive(Debug, Clone, Default)]
pub(super) struct Findings(Arc<Found>);

#[derive(Debug, Default)]
struct Found {
    fault: Mutex<Option<DecryptError>>,
    complete: AtomicBool,
}

impl Findings {
    fn lock(&self) -> MutexGuard<'_, Option<DecryptError>> {
        self.0.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a fault, if it is the first, and gives what a reader says.
    pub(super) fn note(&self, error: DecryptError) -> io::Error {
        self.lock().get_or_insert(error);
        io::ErrorKind::InvalidData.into()
    }

    /// Takes the fault, if there was one.
    pub(super) fn take_fault(&self) -> Option<DecryptError> {
        self.lock().take()
    }

    /// Whether the message was read to its end, and nothing follows it.
    pub(super) fn complete(&self) -> bool {
        self.0.complete.load(Ordering::SeqCst)
    }
}

impl Envelope {
    /// Opens a message from where `file` stands.
    ///
    /// # Errors
    /// What is no encrypted message, is encrypted to a passphrase only, or is not protected, is told as such.
    pub(super) fn open(file: File) -> Result<Self, DecryptError> {
        let (mut reader, length) = Source::open(file)?;
        let mut head = Head::default();
        for _ in 0..=MAX_HEAD_PACKETS {
            let header = match Header::read(&mut reader) {
                Ok(Some(header)) => header,
                Ok(None) => return Err(DecryptError::Cut),
                Err(DecryptError::NotEncrypted) if head.any() => {
                    return Err(DecryptError::Corrupt(Corruption::Malformed));
                }
                Err(error) => return Err(error),
            };
            match header.tag {
                tag::PKESK => head.take_key(&header, &mut reader)?,
                tag::SKESK => {
                    header.body(&mut reader)?;
                    head.passphrases = true;
                }
                tag::MARKER | tag::PADDING => drop(header.body(&mut reader)?),
                tag::SED => return Err(DecryptError::Unprotected),
                tag::SEIPD | tag::GNUPG_AEAD => return head.seal(header, reader, length),
                _ if head.any() => return Err(DecryptError::Corrupt(Corruption::Malformed)),
                _ => return Err(DecryptError::NotEncrypted),
            }
        }
        Err(DecryptError::Corrupt(Corruption::Recipients))
    }
}

/// What comes before the encrypted packet.
#[derive(Default)]
struct Head {
    recipients: Vec<String>,
    bytes: Vec<u8>,
    keys: bool,
    passphrases: bool,
}

impl Head {
    fn any(&self) -> bool {
        self.keys || self.passphrases
    }

    /// Takes a session key that is encrypted to a key.
    fn take_key(&mut self, header: &Header, reader: &mut Source) -> Result<(), DecryptError> {
        let body = header.body(reader)?;
        if let Some(recipient) = recipient(&body)
            && self.recipients.len() < MAX_NAMED
            && !self.recipients.contains(&recipient)
        {
            self.recipients.push(recipient);
        }
        self.keys = true;
        self.bytes.extend_from_slice(&header.bytes);
        self.bytes.extend_from_slice(&body);
        Ok(())
    }

    /// Closes the envelope: the encrypted packet begins.
    fn seal(mut self, header: Header, mut reader: Source, length: u64) -> Result<Envelope, DecryptError> {
        if !self.keys {
            return Err(if self.passphrases {
                DecryptError::ForPassphrase
            } else {
                DecryptError::Corrupt(Corruption::Malformed)
            });
        }
        let Some(version) = reader.peek()? else { return Err(DecryptError::Cut) };
        let protection = match (header.tag, version) {
            (tag::SEIPD, 1) => Protection::Mdc,
            (tag::SEIPD, 2) => Protection::Aead,
            (tag::GNUPG_AEAD, 1) => Protection::GnupgAead,
            _ => return Err(DecryptError::Unsupported("an encrypted packet of an unknown version")),
        };
        self.bytes.extend_from_slice(&header.bytes);
        let findings = Findings::default();
        let body = Body {
            reader,
            pending: io::Cursor::new(self.bytes),
            part: header.length,
            failed: false,
            findings: findings.clone(),
        };
        Ok(Envelope { recipients: self.recipients, protection, length, body, findings })
    }
}

/// Whom a session key is encrypted to, if that is not hidden: RFC 9580, section 5.1.
fn recipient(body: &[u8]) -> Option<String> {
    let (version, rest) = body.split_first()?;
    let id = match version {
        // GnuPG takes version 2 too.
        2 | 3 => rest.get(..8)?,
        6 => {
            let (length, rest) = rest.split_first()?;
            // The key's version comes first.
            rest.get(1..usize::from(*length))?
        }
        _ => return None,
    };
    if id.iter().all(|byte| *byte == 0) {
        return None;
    }
    Some(id.iter().map(|byte| format!("{byte:02X}")).collect())
}

/// The message without what does not belong to it, as bytes.
pub(super) struct Body {
    reader: Source,
    /// What comes before the rest of the packet.
    pending: io::Cursor<Vec<u8>>,
    part: Length,
    failed: bool,
    findings: Findings,
}

impl Body {
    /// How much comes before the encrypted packet's body, in bytes; asked before anything is read.
    pub(super) fn head(&self) -> u64 {
        u64::try_from(self.pending.get_ref().len()).unwrap_or(u64::MAX)
    }

    /// Reads on; an error says all.
    fn advance(&mut self, buffer: &mut [u8]) -> Result<usize, DecryptError> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let taken = self.pending.read(buffer).map_err(DecryptError::Read)?;
            if taken > 0 {
                return Ok(taken);
            }
            match self.part {
                Length::Whole(0) => {
                    if !self.findings.complete() {
                        self.end()?;
                    }
                    return Ok(0);
                }
                Length::Partial(0) => {
                    let (length, bytes) = Length::read(&mut self.reader)?;
                    self.part = length;
                    self.pending = io::Cursor::new(bytes);
                }
                Length::Whole(left) => {
                    let taken = self.reader.take_some(buffer, left)?;
                    self.part = Length::Whole(left.saturating_sub(taken));
                    return Ok(in_memory(taken));
                }
                Length::Partial(left) => {
                    let taken = self.reader.take_some(buffer, left)?;
                    self.part = Length::Partial(left.saturating_sub(taken));
                    return Ok(in_memory(taken));
                }
                Length::ToTheEnd => {
                    let taken = self.reader.read_some(buffer)?;
                    if taken == 0 {
                        self.ended()?;
                    }
                    return Ok(taken);
                }
            }
        }
    }

    fn ended(&self) -> Result<(), DecryptError> {
        // The armor's reader is content with less than the whole last line.
        if self.reader.armor == Armor::Cut {
            return Err(DecryptError::Cut);
        }
        self.findings.0.complete.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Looks at what follows the encrypted packet: nothing but padding may.
    fn end(&mut self) -> Result<(), DecryptError> {
        for _ in 0..MAX_HEAD_PACKETS {
            let Some(header) = Header::read(&mut self.reader).map_err(trailing)? else {
                return self.ended();
            };
            match header.tag {
                tag::MARKER | tag::PADDING => drop(header.body(&mut self.reader).map_err(trailing)?),
                _ => return Err(DecryptError::Corrupt(Corruption::Trailing)),
            }
        }
        Err(DecryptError::Corrupt(Corruption::Trailing))
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.failed {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.advance(buffer).map_err(|error| {
            self.failed = true;
            self.findings.note(error)
        })
    }
}

/// What is wrong with what follows a message.
fn trailing(error: DecryptError) -> DecryptError {
    match error {
        DecryptError::NotEncrypted | DecryptError::Corrupt(Corruption::Malformed) => {
            DecryptError::Corrupt(Corruption::Trailing)
        }
        other => other,
    }
}

/// The kinds of packets that matter here: RFC 9580, section 5; and one of GnuPG's.
mod tag {
    pub(super) const PKESK: u8 = 1;
    pub(super) const SKESK: u8 = 3;
    pub(super) const SED: u8 = 9;
    pub(super) const MARKER: u8 = 10;
    pub(super) const SEIPD: u8 = 18;
    pub(super) const GNUPG_AEAD: u8 = 20;
    pub(super) const PADDING: u8 = 21;
}

/// How much of a packet is to come, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// So much.
    Whole(u64),
    /// So much, and then there is another length.
    Partial(u64),
    /// Everything up to the end.
    ToTheEnd,
}

impl Length {
    /// Reads a length of the new format, and gives its bytes too.
    fn read(reader: &mut Source) -> Result<(Self, Vec<u8>), DecryptError> {
        let first = reader.byte()?;
        let (length, more) = match first {
            0..=191 => (Self::Whole(first.into()), Vec::new()),
            192..=223 => {
                let more = reader.exactly(1)?;
                let high = u64::from(first - 192) << 8;
                (Self::Whole(high.saturating_add(number(&more)).saturating_add(192)), more)
            }
            224..=254 => (Self::Partial(1 << (first & 0x1f)), Vec::new()),
            255 => {
                let more = reader.exactly(4)?;
                (Self::Whole(number(&more)), more)
            }
        };
        let mut bytes = vec![first];
        bytes.extend_from_slice(&more);
        Ok((length, bytes))
    }
}

/// What a packet begins with.
struct Header {
    tag: u8,
    length: Length,
    bytes: Vec<u8>,
}

impl Header {
    /// Reads a header; none where the message ends.
    fn read(reader: &mut Source) -> Result<Option<Self>, DecryptError> {
        let Some(first) = reader.peek()? else { return Ok(None) };
        if first & 0x80 == 0 {
            return Err(DecryptError::NotEncrypted);
        }
        reader.byte()?;
        if first & 0x40 != 0 {
            let (length, mut bytes) = Length::read(reader)?;
            bytes.insert(0, first);
            return Ok(Some(Self { tag: first & 0x3f, length, bytes }));
        }
        let size = match first & 0x03 {
            0 => 1,
            1 => 2,
            2 => 4,
            _ => 0,
        };
        let more = reader.exactly(size)?;
        let length = if size == 0 { Length::ToTheEnd } else { Length::Whole(number(&more)) };
        let mut bytes = vec![first];
        bytes.extend_from_slice(&more);
        Ok(Some(Self { tag: (first >> 2) & 0x0f, length, bytes }))
    }

    /// Reads the rest of a small packet.
    fn body(&self, reader: &mut Source) -> Result<Vec<u8>, DecryptError> {
        match self.length {
            Length::Whole(length) if length <= MAX_HEAD_PACKET => reader.exactly(in_memory(length)),
            Length::Whole(_) | Length::Partial(_) | Length::ToTheEnd => {
                Err(DecryptError::Corrupt(Corruption::Malformed))
            }
        }
    }
}

/// The number that these bytes are, at most 8.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

/// A length that is known to be one in memory.
fn in_memory(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// The message's packets as bytes, out of their armor.
struct Source {
    reader: BufReader<Box<dyn Read + Send + Sync>>,
    armor: Armor,
}

/// What can be seen of a message's armor at both ends of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armor {
    /// There is none: it is binary.
    None,
    /// It is neither binary nor begins as armor does.
    Absent,
    /// It begins as armor does and does not end so.
    Cut,
    /// It begins and ends as armor does.
    Whole,
}

impl Source {
    /// Takes the file from where it stands, and says how long it is from there.
    fn open(mut file: File) -> Result<(Self, u64), DecryptError> {
        let (length, armor) = survey(&mut file).map_err(DecryptError::Read)?;
        if length == 0 {
            return Err(DecryptError::Cut);
        }
        let reader: Box<dyn Read + Send + Sync> = match armor {
            Armor::None => Box::new(file),
            Armor::Absent | Armor::Cut | Armor::Whole => {
                let lines = ShortLines { inner: BufReader::with_capacity(BUFFER, file), line: 0 };
                Box::new(Reader::from_reader(lines, ReaderMode::Tolerant(Some(Kind::Message))))
            }
        };
        Ok((Self { reader: BufReader::with_capacity(BUFFER, reader), armor }, length))
    }

    /// The next byte, which stays to be read; none where the message ends.
    fn peek(&mut self) -> Result<Option<u8>, DecryptError> {
        let armor = self.armor;
        let next = self.reader.fill_buf().map_err(|error| explain(error, armor))?;
        Ok(next.first().copied())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, DecryptError> {
        loop {
            match self.reader.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read.map_err(|error| explain(error, self.armor)),
            }
        }
    }

    /// Reads at least one byte and at most `most`; where the message ends, it was cut.
    fn take_some(&mut self, buffer: &mut [u8], most: u64) -> Result<u64, DecryptError> {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(buffer.len());
        let taken = match buffer.get_mut(..most) {
            Some(part) => self.read_some(part)?,
            None => 0,
        };
        if taken == 0 { Err(DecryptError::Cut) } else { Ok(u64::try_from(taken).unwrap_or(u64::MAX)) }
    }

    fn exactly(&mut self, length: usize) -> Result<Vec<u8>, DecryptError> {
        let mut bytes = vec![0; length];
        let mut rest = bytes.as_mut_slice();
        while !rest.is_empty() {
            match self.read_some(rest)? {
                0 => return Err(DecryptError::Cut),
                taken => rest = rest.get_mut(taken..).unwrap_or_default(),
            }
        }
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, DecryptError> {
        self.exactly(1)?.first().copied().ok_or(DecryptError::Cut)
    }
}

/// How long the file is from where it stands, and what can be seen of its armor.
fn survey(file: &mut File) -> io::Result<(u64, Armor)> {
    let start = file.stream_position()?;
    let end = file.seek(SeekFrom::End(0))?;
    let mut piece = |from: u64| -> io::Result<Vec<u8>> {
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(SURVEYED).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let tail = piece(end.saturating_sub(SURVEYED).max(start))?;
    let first = piece(start)?;
    file.seek(SeekFrom::Start(start))?;
    let holds = |text: &[u8], line: &[u8]| text.windows(line.len()).any(|window| window == line);
    let begins = holds(&first, ARMOR_BEGIN) || ARMOR_BEGIN.starts_with(&first);
    let armor = match first.first() {
        Some(byte) if byte & 0x80 != 0 => Armor::None,
        _ if !begins => Armor::Absent,
        _ if holds(&tail, ARMOR_END) => Armor::Whole,
        _ => Armor::Cut,
    };
    Ok((end.saturating_sub(start), armor))
}

/// What an error of reading means. The system's errors have a number; what is wrong with the armor has none.
fn explain(error: io::Error, armor: Armor) -> DecryptError {
    match armor {
        _ if error.raw_os_error().is_some() => DecryptError::Read(error),
        Armor::None => DecryptError::Read(error),
        Armor::Absent => DecryptError::NotEncrypted,
        Armor::Cut => DecryptError::Cut,
        Armor::Whole => DecryptError::Corrupt(Corruption::Armor),
    }
}

/// Refuses long lines, which the armor's reader would take into memory.
struct ShortLines {
    inner: BufReader<File>,
    line: usize,
}

impl Read for ShortLines {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        for byte in buffer.iter().take(read) {
            self.line = if *byte == b'\n' { 0 } else { self.line.saturating_add(1) };
            if self.line > MAX_LINE {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(read)
    }
}
