//! What items say, what is answered, and the keys of sources.

use std::fmt;

use protocol::value::{Fingerprint, ItemId, JournalistId, ReplyId, SourceId, Timestamp, Username};
use serde::{Deserialize, Serialize};

use crate::act::{ActId, ActState};
use crate::failure::Failure;
use crate::reply::ReplyText;

/// Whether a source can be answered, as its key says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyState {
    /// The server has no key of it yet.
    None,
    /// Its key came and has not been looked at yet.
    New {
        /// The key's fingerprint, as the server claims it.
        offered: Fingerprint,
    },
    /// Its key is pinned.
    Pinned {
        /// The key's fingerprint.
        fingerprint: Fingerprint,
    },
    /// Replies are held back until somebody trusts another key, or until the server offers a good one again.
    Held {
        /// What is wrong.
        problem: KeyProblem,
        /// The fingerprint of the key that was pinned at first sight and stays.
        pinned: Option<Fingerprint>,
        /// The fingerprint of the key that the server offers, as the key itself says or, where it cannot be read, as the
        /// server claims it.
        offered: Fingerprint,
        /// The problem in words.
        detail: String,
    },
}

/// What is wrong with a source's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeyProblem {
    /// It is another one than the one that is pinned.
    Changed,
    /// It does not have the fingerprint that the server claims of it.
    Mismatch,
    /// Nothing can be encrypted to it: expired, revoked, damaged, of an outdated kind.
    Unusable,
}

/// Why an item's ciphertext is there and its plaintext is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Seal {
    /// None of the keys that it was encrypted to is there.
    NoKey,
    /// The use of the key was denied.
    Denied,
    /// It ends too early.
    Cut,
    /// It is damaged, or is no message that can be trusted to be whole.
    Corrupt,
    /// What it unpacks to is too large.
    TooLarge,
    /// Something else.
    Other,
}

/// Whether an item's plaintext was an OpenPGP message itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Inner {
    /// No.
    None,
    /// Yes, and it was decrypted too: the source had encrypted it to a key of the newsroom.
    Opened,
    /// Yes, to a key that is not there: what is held is that message.
    Closed,
}

/// What a message or reply says.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemText {
    /// Which item.
    pub item: ItemId,
    /// The text, as it came.
    pub text: String,
}

impl fmt::Debug for ItemText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ItemText({}, {} bytes)", self.item, self.text.len())
    }
}

/// A reply that the server does not list yet, or refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutgoingReply {
    /// Its id, which the server will list it with.
    pub reply: ReplyId,
    /// Its act.
    pub act: ActId,
    /// Whose conversation it belongs to.
    pub source: SourceId,
    /// Who wrote it.
    pub journalist: JournalistId,
    /// That journalist's login name, if the server lists them.
    pub username: Option<Username>,
    /// Whether that is who is signed in, or who was last.
    pub own: bool,
    /// When it was written.
    pub written: Timestamp,
    /// How far it has come; none once the server has confirmed it.
    pub state: Option<ActState>,
    /// What went wrong the last time.
    pub reason: Option<String>,
    /// What it says.
    pub text: ReplyText,
}

/// An item has come a step further to being read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadChange {
    /// Whose conversation the item is in.
    pub source: SourceId,
    /// The item.
    pub item: ItemId,
    /// What happened.
    pub step: ReadStep,
}

/// A step of reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadStep {
    /// It is being decrypted.
    Started,
    /// It can be read.
    Decrypted,
    /// It could not be decrypted now and is tried again.
    Postponed(Failure),
    /// It could not be decrypted and is not tried again by itself.
    Sealed(Failure),
    /// It was stopped: its item is being deleted, or gone.
    Stopped,
}

/// How decrypting and encrypting stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenPgpStatus {
    /// Which way leads to the private key.
    pub backend: String,
    /// Why nothing is decrypted at present.
    pub problem: Option<String>,
    /// The fingerprint of the newsroom's key that replies are encrypted to besides the source's, or why there is none and
    /// nobody can be answered.
    pub newsroom_key: Result<Fingerprint, String>,
    /// How many sources' keys are held back.
    pub held_keys: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_shows_when_a_message_is_printed_for_developers() {
        let item = ItemId::Reply("0000000a-0000-4000-8000-000000000000".parse().unwrap());
        let text = ItemText { item, text: "the meeting is at nine".to_owned() };
        assert_eq!(format!("{text:?}"), "ItemText(0000000a-0000-4000-8000-000000000000, 22 bytes)");
    }
}
