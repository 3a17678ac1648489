//! The rows of a [`World`](super::World).

use std::borrow::{Borrow, Cow};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::super::ciphertext::{SMALLEST_FILE, SMALLEST_MESSAGE, SMALLEST_ZIPPED_FILE, Sealed};
use crate::generator::Account;

/// An id as the server stores it: text, exactly as it was given, compared letter by letter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(Arc<str>);

impl RecordId {
    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for RecordId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&str> for RecordId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl Borrow<str> for RecordId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for RecordId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for RecordId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// Somebody who works with the server.
#[derive(Debug, Clone)]
pub struct Journalist {
    /// The journalist's id.
    pub id: RecordId,
    /// The name to sign in with.
    pub username: String,
    /// Null when never given.
    pub first_name: Option<String>,
    /// Null when never given.
    pub last_name: Option<String>,
    /// Whether the journalist administers the server.
    pub is_admin: bool,
    /// What the journalist signs in with; nobody signs in without.
    pub account: Option<Account>,
    /// When the journalist last signed in.
    pub last_login: Option<Timestamp>,
}

/// Whether a source is in the list of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceState {
    /// It is.
    Listed,
    /// It has signed up and sent nothing: not listed, but there.
    Pending,
    /// Somebody deleted it and the purge has not come by yet: not listed, but there.
    MarkedDeleted,
}

/// A source's public key.
#[derive(Debug)]
pub struct SourceKey {
    /// The primary fingerprint, 40 upper-case hex digits.
    pub fingerprint: String,
    /// The key in armor.
    pub armor: String,
    /// The whole key in armor, secret half included, where it is at hand: only then can the source's mail be read.
    pub(crate) secret_armor: Option<Cow<'static, str>>,
    /// The armor as a JSON string, so that a list of thousands does not escape it thousands of times.
    pub(crate) armor_json: Option<Box<RawValue>>,
}

impl SourceKey {
    /// A key with its fingerprint, both taken at their word.
    pub fn new(fingerprint: &str, armor: &str) -> Self {
        Self {
            fingerprint: fingerprint.to_owned(),
            armor: armor.to_owned(),
            secret_armor: None,
            armor_json: serde_json::value::to_raw_value(armor).ok(),
        }
    }

    /// The same key, with another fingerprint said of it.
    pub(crate) fn saying(&self, fingerprint: &str) -> Self {
        Self { secret_armor: self.secret_armor.clone(), ..Self::new(fingerprint, &self.armor) }
    }

    /// The same, with the key's secret half.
    pub fn with_secret(fingerprint: &str, armor: &str, secret_armor: impl Into<Cow<'static, str>>) -> Self {
        Self { secret_armor: Some(secret_armor.into()), ..Self::new(fingerprint, armor) }
    }
}

/// Somebody who sends things.
#[derive(Debug, Clone)]
pub struct Source {
    /// The source's id.
    pub id: RecordId,
    /// Two words.
    pub designation: String,
    /// Whether it is listed.
    pub state: SourceState,
    /// Whether it is starred.
    pub is_starred: bool,
    /// When it was last heard of; the server answers "now" when it does not know.
    pub last_updated: Option<Timestamp>,
    /// How many items the conversation has had, deleted ones included: the last number that was given out.
    pub interaction_count: u64,
    /// Its key; null until there is one.
    pub key: Option<Arc<SourceKey>>,
    /// The keys that it had before.
    pub past_keys: Vec<Arc<SourceKey>>,
    /// Files of replies that were refused after they had been written: no record names them.
    pub orphans: BTreeSet<String>,
    /// When the server last touched this source's files: it does with all of them whenever the source sends something, so
    /// that they do not tell when each came.
    pub(super) files_touched: Timestamp,
    pub(super) submission_rows: Vec<u64>,
    pub(super) reply_rows: Vec<u64>,
}

impl Source {
    pub(super) fn new(id: RecordId, designation: String, key: Option<Arc<SourceKey>>, now: Timestamp) -> Self {
        Self {
            id,
            designation,
            state: SourceState::Listed,
            is_starred: false,
            last_updated: Some(now),
            interaction_count: 0,
            key,
            past_keys: Vec::new(),
            orphans: BTreeSet::new(),
            files_touched: now,
            submission_rows: Vec::new(),
            reply_rows: Vec::new(),
        }
    }

    /// Takes the conversation's next number and makes a file name of it.
    pub(super) fn next_filename(&mut self, suffix: &str) -> String {
        let filename = self.filename_to_come(suffix);
        self.interaction_count = self.interaction_count.saturating_add(1);
        self.orphans.remove(&filename);
        filename
    }

    /// The file name that the next item would have.
    pub(super) fn filename_to_come(&self, suffix: &str) -> String {
        let designation = self.designation.replace(' ', "_");
        format!("{}-{designation}-{suffix}", self.interaction_count.saturating_add(1))
    }
}

/// What a source can send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubmissionKind {
    /// Text.
    Message,
    /// A file, as servers store them today.
    File,
    /// A file, as servers stored them long ago.
    ZippedFile,
}

impl SubmissionKind {
    /// Whether the API calls it a file.
    pub fn is_file(self) -> bool {
        match self {
            Self::Message => false,
            Self::File | Self::ZippedFile => true,
        }
    }

    /// The least bytes of ciphertext that one can have here.
    pub fn smallest_size(self) -> u64 {
        match self {
            Self::Message => SMALLEST_MESSAGE,
            Self::File => SMALLEST_FILE,
            Self::ZippedFile => SMALLEST_ZIPPED_FILE,
        }
    }

    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Message => "msg.gpg",
            Self::File => "doc.gz.gpg",
            Self::ZippedFile => "doc.zip.gpg",
        }
    }
}

/// What is on the server's disk of an item's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileState {
    /// All of it.
    Whole,
    /// Only so many bytes from its start. What the server says of it, but for its length, is what it said of the whole.
    Shortened(u64),
    /// Nothing.
    Missing,
}

/// An item's file on the server's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemFile {
    /// What is there.
    pub state: FileState,
    /// How often it was replaced by another one of the same size.
    pub edition: u64,
    /// When something last happened to it after it came.
    pub changed: Option<Timestamp>,
}

impl ItemFile {
    pub(super) const fn new() -> Self {
        Self { state: FileState::Whole, edition: 0, changed: None }
    }

    /// Whether there is nothing to download and nothing to delete.
    pub fn is_missing(self) -> bool {
        match self.state {
            FileState::Missing => true,
            FileState::Whole | FileState::Shortened(_) => false,
        }
    }

    /// When it was last touched, as a file of `owner`'s.
    pub(crate) fn touched(self, owner: &Source) -> Timestamp {
        self.changed.map_or(owner.files_touched, |changed| changed.max(owner.files_touched))
    }
}

/// A message or file from a source.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The submission's id.
    pub id: RecordId,
    /// Who sent it.
    pub source: RecordId,
    /// `<number>-<designation>-<suffix>`.
    pub filename: String,
    /// What it is.
    pub kind: SubmissionKind,
    /// Bytes of ciphertext.
    pub size: u64,
    /// The ciphertext, where it came as it is and is not made here.
    pub(crate) sealed: Option<Arc<Sealed>>,
    /// Whether somebody downloaded it the old way, which leaves no mark of who.
    pub is_downloaded: bool,
    /// Its file on the disk.
    pub file: ItemFile,
    /// Who has seen it, in the order of seeing.
    pub seen_by: Vec<RecordId>,
}

/// A journalist's answer to a source.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The reply's id.
    pub id: RecordId,
    /// To whom it goes.
    pub source: RecordId,
    /// Who wrote it.
    pub author: RecordId,
    /// `<number>-<designation>-reply.gpg`.
    pub filename: String,
    /// Bytes of ciphertext.
    pub size: u64,
    /// The ciphertext, where it came as it is and is not made here.
    pub(crate) sealed: Option<Arc<Sealed>>,
    /// The source's key when the reply was written, to which it is encrypted besides the newsroom's.
    pub key: Option<Arc<SourceKey>>,
    /// Whether the source has thrown its copy away.
    pub is_deleted_by_source: bool,
    /// Its file on the disk.
    pub file: ItemFile,
    /// Who has seen it, in the order of seeing.
    pub seen_by: Vec<RecordId>,
}

/// Gives one journalist's mark to another, who gets no second one.
pub(super) fn bequeath(seen_by: &mut Vec<RecordId>, gone: &RecordId, heir: &RecordId) {
    if seen_by.contains(gone) {
        seen_by.retain(|id| id != gone && id != heir);
        seen_by.push(heir.clone());
    }
}
