//! What sources and journalists write and send: text, and files in the wrapping in which the server stores them.
//!
//! Everything is a function of a seed, a form and a length, and is made piece by piece as it is read, so that half a
//! gigabyte of it needs no memory.
//!
//! **Invariant:** what is inside the wrapping is chosen such that the whole, wrapping included, has exactly the length
//! that was asked for. Any length from the form's smallest on can be had.

use std::io::{self, Read};
use std::sync::Arc;

use flate2::{Compress, CompressError, Compression, FlushCompress};
use thiserror::Error;

mod text;
mod wrapping;

use super::prng::Prng;
use super::words::all_words;
use text::{Noise, Text};
use wrapping::{Gzip, Zip};

/// The longest name of a file inside a wrapping, in bytes.
const LONGEST_NAME: u64 = 64;
/// How much of a file is text, which compresses, at most. The rest is noise, which does not.
const MOST_TEXT: u64 = 16 * 1024;
/// From this length on a compressed file begins with text.
const TEXT_FROM: u64 = 512;
/// What deflate may add to text that it cannot compress, for certain.
const DEFLATE_SLACK: u64 = 1_024;
/// Tells the dice for a name from those for what is in the file, and noise from text.
const NAME: u64 = 0x6e61_6d65;
const NOISE: u64 = 0x6e6f_6973;
const EXTENSIONS: [&str; 6] = ["pdf", "odt", "jpg", "csv", "mp4", "txt"];

/// In which form something is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// UTF-8, as it is.
    Text,
    /// A file, compressed with gzip, its name in gzip's header.
    Gzip,
    /// A file in a zip archive, under its name.
    Zip,
}

impl Form {
    /// The least length that the whole can have, in bytes.
    pub const fn smallest(self) -> u64 {
        match self {
            Self::Text => 8,
            Self::Gzip => wrapping::GZIP_ENDS + LONGEST_NAME + wrapping::BLOCK_HEAD,
            Self::Zip => wrapping::ZIP_ENDS + 2 * LONGEST_NAME,
        }
    }
}

/// Why something was not made.
#[derive(Debug, Error)]
pub enum PlaintextError {
    /// Less than [`Form::smallest`].
    #[error("{length} bytes are too few for {form:?}")]
    TooShort {
        /// The form.
        form: Form,
        /// Bytes that were asked for.
        length: u64,
    },
    /// Compressing failed, which it has no reason to.
    #[error("cannot compress")]
    Compress(#[from] CompressError),
}

/// Something that was sent, before it was encrypted.
#[derive(Debug, Clone)]
pub struct Plaintext {
    seed: u64,
    form: Form,
    name: Option<String>,
    wrapped_length: u64,
    /// Bytes of text at the start of the contents.
    text: u64,
    /// Bytes of noise after it.
    noise: u64,
    /// Stored blocks that hold the noise, where there are any.
    blocks: u64,
    /// The text, compressed, when it is.
    deflated: Vec<u8>,
    /// What is here in the place of all that, where somebody said what.
    given: Option<Given>,
}

/// Contents that somebody chose, and the whole in its wrapping.
#[derive(Debug, Clone)]
struct Given {
    contents: Arc<[u8]>,
    wrapped: Arc<[u8]>,
}

impl Plaintext {
    /// What `seed` leads to, with `length` bytes in its wrapping.
    ///
    /// # Errors
    ///
    /// [`PlaintextError::TooShort`] below the form's smallest length.
    pub fn try_new(seed: u64, form: Form, length: u64) -> Result<Self, PlaintextError> {
        if length < form.smallest() {
            return Err(PlaintextError::TooShort { form, length });
        }
        let name = match form {
            Form::Text => None,
            Form::Gzip | Form::Zip => Some(file_name(seed)),
        };
        let name_length = name.as_deref().map_or(0, length_of);
        let mut plaintext = Self {
            seed,
            form,
            name,
            wrapped_length: length,
            text: 0,
            noise: 0,
            blocks: 0,
            deflated: Vec::new(),
            given: None,
        };
        match form {
            Form::Text => plaintext.text = length,
            Form::Zip => {
                let inside = length.saturating_sub(wrapping::ZIP_ENDS).saturating_sub(name_length.saturating_mul(2));
                plaintext.text = inside.min(MOST_TEXT);
                plaintext.noise = inside.saturating_sub(plaintext.text);
            }
            Form::Gzip => {
                let mut room = length.saturating_sub(wrapping::GZIP_ENDS).saturating_sub(name_length);
                if length >= TEXT_FROM {
                    let text = MOST_TEXT.min(room / 2);
                    let deflated = deflate(&read_all(Text::new(seed, text)))?;
                    let taken = length_of(&deflated);
                    // It always fits: words compress.
                    if taken.saturating_add(wrapping::BLOCK_HEAD) <= room {
                        room = room.saturating_sub(taken);
                        plaintext.text = text;
                        plaintext.deflated = deflated;
                    }
                }
                plaintext.blocks = wrapping::blocks(room);
                plaintext.noise = room.saturating_sub(plaintext.blocks.saturating_mul(wrapping::BLOCK_HEAD));
            }
        }
        Ok(plaintext)
    }

    /// What somebody chose to send: `contents`, and what they are in their wrapping.
    pub(crate) fn given(form: Form, name: Option<String>, contents: &[u8], wrapped: &[u8]) -> Self {
        Self {
            seed: 0,
            form,
            name,
            wrapped_length: length_of(wrapped),
            text: length_of(contents),
            noise: 0,
            blocks: 0,
            deflated: Vec::new(),
            given: Some(Given { contents: contents.into(), wrapped: wrapped.into() }),
        }
    }

    /// In which form it was sent.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The name of the file; text has none.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Bytes of text or of the file itself.
    pub fn length(&self) -> u64 {
        self.text.saturating_add(self.noise)
    }

    /// The text, or the file itself. Reading never fails.
    pub fn contents(&self) -> impl Read + Send + use<> {
        Reader::new(self.pieces())
    }

    /// Bytes of the whole in its wrapping.
    pub fn wrapped_length(&self) -> u64 {
        self.wrapped_length
    }

    /// The whole in its wrapping: what decryption gives. Reading never fails.
    pub fn wrapped(&self) -> impl Read + Send + use<> {
        let name = self.name.clone().unwrap_or_default();
        if let Some(given) = &self.given {
            return Reader::new(Wrapped::Given(Some(Arc::clone(&given.wrapped))));
        }
        Reader::new(match self.form {
            Form::Text => Wrapped::Text(self.pieces()),
            Form::Gzip => {
                let text = read_all(Text::new(self.seed, self.text));
                let noise = Noise::new(self.seed ^ NOISE, self.noise);
                Wrapped::Gzip(Gzip::new(&name, &text, self.deflated.clone(), noise, self.blocks))
            }
            Form::Zip => Wrapped::Zip(Zip::new(name, self.length(), || self.pieces())),
        })
    }

    fn pieces(&self) -> Contents {
        let given = self.given.as_ref().map(|given| Arc::clone(&given.contents));
        let text = if given.is_some() { 0 } else { self.text };
        Contents { given, text: Text::new(self.seed, text), noise: Noise::new(self.seed ^ NOISE, self.noise) }
    }
}

/// Something that comes in pieces.
trait Pieces {
    /// The next piece, never an empty one; nothing at the end.
    fn next_piece(&mut self) -> Option<Vec<u8>>;
}

/// What somebody chose, or text, and noise after it.
struct Contents {
    given: Option<Arc<[u8]>>,
    text: Text,
    noise: Noise,
}

impl Pieces for Contents {
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        take_given(&mut self.given).or_else(|| self.text.next_piece()).or_else(|| self.noise.next_piece())
    }
}

/// Chosen bytes as one piece.
fn take_given(given: &mut Option<Arc<[u8]>>) -> Option<Vec<u8>> {
    given.take().filter(|bytes| !bytes.is_empty()).map(|bytes| bytes.to_vec())
}

/// Contents in their wrapping.
enum Wrapped {
    Given(Option<Arc<[u8]>>),
    Text(Contents),
    Gzip(Gzip),
    Zip(Zip<Contents>),
}

impl Pieces for Wrapped {
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Given(given) => take_given(given),
            Self::Text(contents) => contents.next_piece(),
            Self::Gzip(gzip) => gzip.next_piece(),
            Self::Zip(zip) => zip.next_piece(),
        }
    }
}

/// Pieces, read as a stream.
struct Reader<P> {
    pieces: P,
    piece: io::Cursor<Vec<u8>>,
}

impl<P: Pieces> Reader<P> {
    fn new(pieces: P) -> Self {
        Self { pieces, piece: io::Cursor::default() }
    }
}

impl<P: Pieces> Read for Reader<P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.piece.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            match self.pieces.next_piece() {
                Some(piece) => self.piece = io::Cursor::new(piece),
                None => return Ok(0),
            }
        }
    }
}

fn read_all(mut pieces: impl Pieces) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = pieces.next_piece() {
        all.extend_from_slice(&piece);
    }
    all
}

/// Blocks of deflate without a last one, ending on a whole byte.
fn deflate(text: &[u8]) -> Result<Vec<u8>, CompressError> {
    let most = length_of(text).saturating_add(DEFLATE_SLACK);
    let mut blocks = Vec::with_capacity(usize::try_from(most).unwrap_or(0));
    Compress::new(Compression::default(), false).compress_vec(text, &mut blocks, FlushCompress::Sync)?;
    Ok(blocks)
}

/// A name as the server lets it through: plain ASCII.
fn file_name(seed: u64) -> String {
    let mut prng = Prng::new(seed ^ NAME);
    let (adjectives, nouns) = all_words();
    let adjective = prng.pick(&adjectives).copied().unwrap_or("nameless");
    let noun = prng.pick(&nouns).copied().unwrap_or("file");
    let number = prng.below(100);
    let extension = prng.pick(&EXTENSIONS).copied().unwrap_or("bin");
    format!("{adjective}_{noun}-{number}.{extension}")
}

fn length_of<T: AsRef<[u8]> + ?Sized>(bytes: &T) -> u64 {
    u64::try_from(bytes.as_ref().len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
