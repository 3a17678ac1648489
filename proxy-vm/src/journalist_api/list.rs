//! Lists, as they arrive: `{"sources": [RECORD, ...]}`.
//!
//! [`ListSplitter`] is fed the answer's body in pieces and hands out the records one by one. It finds where a value ends;
//! whether a value is valid JSON is `serde_json`'s to say. [`Batches`] gathers what was read of them for the protocol.
//!
//! **Invariant:** memory stays flat: at most one record is held, and of one over the cap only the cap's length and a byte.
//! Nesting costs a counter.
//!
//! **Invariant:** a list is complete only when [`ListSplitter::finish`] says so: cut anywhere it is an error.

use std::collections::VecDeque;

use protocol::answer::{Batch, MAX_BATCH};
use protocol::{Field, Listed, Unreadable};
use serde_json::value::RawValue;

use super::sanitize::{ServerRecord, listed};

/// A batch is sent when it has so many bytes, encoded. A record has at most about as many again, so that a batch is far
/// below the frame's cap.
const BATCH_BYTES: usize = 64 * 1024;

/// A body is no list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ListError {
    /// It is no JSON, or ends early.
    #[error("the list is not valid JSON")]
    Syntax,
    /// It is no object with the list under its key, once.
    #[error("the answer is not built as a list")]
    Shape,
    /// A value beside the list is over the cap.
    #[error("a value beside the list is too large")]
    TooLarge,
}

/// What the splitter expects next, white space aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// The object's `{`.
    Object,
    /// A key, or the end of an object that has none.
    FirstKey,
    /// A key.
    Key,
    /// The `:` after a key.
    Colon { is_list: bool },
    /// The value of a key.
    Value { is_list: bool },
    /// A record, or the end of a list that has none.
    FirstRecord,
    /// A record.
    Record,
    /// A `,` or the list's end.
    AfterRecord,
    /// A `,` or the object's end.
    AfterValue,
    /// More of a value.
    Inside { scan: Scan, what: Inside },
    /// Nothing.
    End,
}

/// The value that the splitter is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    Key,
    Record,
    Other,
}

/// Whether the list has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Awaited,
    Begun,
}

/// Takes the body of a list apart.
#[derive(Debug)]
pub(super) struct ListSplitter {
    key: &'static str,
    cap: usize,
    expect: Expect,
    list: List,
    /// The value that it is in. One byte over the cap stands for all that is not held.
    value: Vec<u8>,
}

impl ListSplitter {
    /// Takes apart the list under `key`, whose records have at most `cap` bytes.
    pub(super) fn new(key: &'static str, cap: usize) -> Self {
        Self { key, cap, expect: Expect::Object, list: List::Awaited, value: Vec::new() }
    }

    /// Takes the next piece of the body and gives each record that ends in it to `found`: its JSON, or `None` for one that
    /// is too large or no text.
    ///
    /// # Errors
    /// [`ListError`]; the splitter is not to be used any more then.
    pub(super) fn feed(&mut self, piece: &[u8], mut found: impl FnMut(Option<&str>)) -> Result<(), ListError> {
        let mut rest = piece;
        while let Some((&byte, after)) = rest.split_first() {
            if let Expect::Inside { mut scan, what } = self.expect {
                // Most of a list is text of its strings.
                let text = scan.text_at_the_start_of(rest);
                if text > 0 {
                    let (text, after) = rest.split_at(text);
                    self.hold(text);
                    rest = after;
                    continue;
                }
                let step = scan.step(byte);
                self.expect = Expect::Inside { scan, what };
                match step {
                    Step::Inside => self.hold(&[byte]),
                    Step::Last => {
                        self.hold(&[byte]);
                        self.value_ended(what, &mut found)?;
                    }
                    Step::After => {
                        self.value_ended(what, &mut found)?;
                        self.between(byte)?;
                    }
                }
            } else {
                self.between(byte)?;
            }
            rest = after;
        }
        Ok(())
    }

    /// The body has ended.
    ///
    /// # Errors
    /// [`ListError`] when the list is not complete.
    pub(super) fn finish(&self) -> Result<(), ListError> {
        match (self.expect, self.list) {
            (Expect::End, List::Begun) => Ok(()),
            (Expect::End, List::Awaited) => Err(ListError::Shape),
            (
                Expect::Object
                | Expect::FirstKey
                | Expect::Key
                | Expect::Colon { .. }
                | Expect::Value { .. }
                | Expect::FirstRecord
                | Expect::Record
                | Expect::AfterRecord
                | Expect::AfterValue
                | Expect::Inside { .. },
                List::Awaited | List::Begun,
            ) => Err(ListError::Syntax),
        }
    }

    /// Takes a byte that belongs to no value.
    fn between(&mut self, byte: u8) -> Result<(), ListError> {
        if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
            return Ok(());
        }
        self.expect = match self.expect {
            Expect::Object if byte == b'{' => Expect::FirstKey,
            Expect::Object => return Err(ListError::Shape),
            Expect::FirstKey if byte == b'}' => Expect::End,
            Expect::FirstKey | Expect::Key if byte == b'"' => self.begin(byte, Inside::Key)?,
            Expect::Colon { is_list } if byte == b':' => Expect::Value { is_list },
            Expect::Value { is_list: true } if byte == b'[' && self.list == List::Awaited => {
                self.list = List::Begun;
                Expect::FirstRecord
            }
            Expect::Value { is_list: true } => return Err(ListError::Shape),
            Expect::Value { is_list: false } => self.begin(byte, Inside::Other)?,
            Expect::FirstRecord | Expect::AfterRecord if byte == b']' => Expect::AfterValue,
            Expect::FirstRecord | Expect::Record => self.begin(byte, Inside::Record)?,
            Expect::AfterRecord if byte == b',' => Expect::Record,
            Expect::AfterValue if byte == b',' => Expect::Key,
            Expect::AfterValue if byte == b'}' => Expect::End,
            Expect::FirstKey
            | Expect::Key
            | Expect::Colon { .. }
            | Expect::AfterRecord
            | Expect::AfterValue
            // What is inside a value never comes here.
            | Expect::Inside { .. }
            | Expect::End => return Err(ListError::Syntax),
        };
        Ok(())
    }

    fn begin(&mut self, byte: u8, what: Inside) -> Result<Expect, ListError> {
        let scan = Scan::begin(byte).ok_or(ListError::Syntax)?;
        self.value.clear();
        self.hold(&[byte]);
        Ok(Expect::Inside { scan, what })
    }

    fn hold(&mut self, bytes: &[u8]) {
        let room = self.cap.saturating_add(1).saturating_sub(self.value.len());
        let (held, _) = bytes.split_at(room.min(bytes.len()));
        self.value.extend_from_slice(held);
    }

    /// Whether the value is over the cap.
    fn is_too_large(&self) -> bool {
        self.value.len() > self.cap
    }

    fn value_ended(&mut self, what: Inside, found: &mut impl FnMut(Option<&str>)) -> Result<(), ListError> {
        self.expect = match what {
            Inside::Record => {
                match std::str::from_utf8(&self.value) {
                    Ok(text) if !self.is_too_large() => {
                        serde_json::from_str::<&RawValue>(text).map_err(|_| ListError::Syntax)?;
                        found(Some(text));
                    }
                    Ok(_) | Err(_) => found(None),
                }
                Expect::AfterRecord
            }
            Inside::Key | Inside::Other if self.is_too_large() => return Err(ListError::TooLarge),
            Inside::Key => {
                let key: String = serde_json::from_slice(&self.value).map_err(|_| ListError::Syntax)?;
                Expect::Colon { is_list: key == self.key }
            }
            Inside::Other => {
                serde_json::from_slice::<&RawValue>(&self.value).map_err(|_| ListError::Syntax)?;
                Expect::AfterValue
            }
        };
        Ok(())
    }
}

/// Finds the end of one JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scan {
    /// How many objects and arrays are open.
    depth: u64,
    place: Place,
}

/// Where in a value the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Outside of every string: between things, or in a number or a word.
    Open,
    /// In a string.
    String,
    /// In a string, behind a `\`.
    Escaped,
}

/// Where a byte lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// In the value, which goes on.
    Inside,
    /// It is the value's last.
    Last,
    /// It follows the value: a number or a word ends only before something else.
    After,
}

impl Scan {
    /// Begins a value; `None` when no value begins so.
    fn begin(byte: u8) -> Option<Self> {
        let (depth, place) = match byte {
            b'"' => (0, Place::String),
            b'{' | b'[' => (1, Place::Open),
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => (0, Place::Open),
            _ => return None,
        };
        Some(Self { depth, place })
    }

    /// How many of the next bytes are text of a string that goes on behind them, or ends there.
    fn text_at_the_start_of(self, bytes: &[u8]) -> usize {
        match self.place {
            Place::String => bytes.iter().position(|byte| matches!(byte, b'"' | b'\\')).unwrap_or(bytes.len()),
            Place::Open | Place::Escaped => 0,
        }
    }

    fn step(&mut self, byte: u8) -> Step {
        match (self.place, byte) {
            (Place::Escaped, _) => self.place = Place::String,
            (Place::String, b'\\') => self.place = Place::Escaped,
            (Place::String, b'"') => {
                self.place = Place::Open;
                if self.depth == 0 {
                    return Step::Last;
                }
            }
            (Place::String, _) => {}
            // A number or a word, which only what follows it ends.
            (Place::Open, b',' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n') if self.depth == 0 => return Step::After,
            (Place::Open, _) if self.depth == 0 => {}
            (Place::Open, b'"') => self.place = Place::String,
            (Place::Open, b'{' | b'[') => self.depth = self.depth.saturating_add(1),
            (Place::Open, b'}' | b']') => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Step::Last;
                }
            }
            (Place::Open, _) => {}
        }
        Step::Inside
    }
}

/// Gathers records into batches of the protocol.
#[derive(Debug)]
pub(super) struct Batches<T: ServerRecord> {
    ready: VecDeque<Batch<T>>,
    open: Vec<Listed<T>>,
    open_bytes: usize,
    /// How many records there were.
    pub(super) records: u32,
    /// How many of them are unreadable.
    pub(super) unreadable: u32,
}

impl<T: ServerRecord> Batches<T> {
    /// No batches yet.
    pub(super) fn new() -> Self {
        Self { ready: VecDeque::new(), open: Vec::new(), open_bytes: 0, records: 0, unreadable: 0 }
    }

    /// Reads a record as [`ListSplitter::feed`] finds it, and keeps it if `check` finds nothing wrong with it.
    pub(super) fn add(&mut self, json: Option<&str>, check: impl Fn(&T) -> Result<(), Field>) {
        let entry = match json.map(listed::<T>) {
            None => Listed::Unreadable(Unreadable { id: None, field: Field::Record }),
            Some(Listed::Readable(record)) => match check(&record) {
                Ok(()) => Listed::Readable(record),
                Err(field) => Listed::Unreadable(Unreadable { id: Some(record.id()), field }),
            },
            Some(unreadable) => unreadable,
        };
        self.records = self.records.saturating_add(1);
        if matches!(entry, Listed::Unreadable(_)) {
            self.unreadable = self.unreadable.saturating_add(1);
        }
        let bytes = protocol::codec::encoded_length(&entry).unwrap_or(BATCH_BYTES);
        if self.open.len() >= MAX_BATCH || self.open_bytes.saturating_add(bytes) > BATCH_BYTES {
            self.close();
        }
        self.open_bytes = self.open_bytes.saturating_add(bytes);
        self.open.push(entry);
    }

    /// Closes the batch that is being gathered.
    pub(super) fn close(&mut self) {
        self.open_bytes = 0;
        // Never more than `MAX_BATCH`: `add` sees to it.
        if let Ok(batch) = Batch::try_new(std::mem::take(&mut self.open))
            && !batch.as_slice().is_empty()
        {
            self.ready.push_back(batch);
        }
    }

    /// The next closed batch.
    pub(super) fn next(&mut self) -> Option<Batch<T>> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests;
