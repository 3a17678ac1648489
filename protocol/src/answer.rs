//! Answers: `Begin`, then items, then `End`; or a failure at any point.
//!
//! **Invariant:** without `End` an answer is incomplete, whatever was read of it. [`Answer`] checks the order, the kind
//! of the items and their count.

use serde::{Deserialize, Serialize};

use crate::call::{Call, CallId, MAX_DELETED};
use crate::confinement::Confinement;
use crate::error::{CallError, ErrorKind, Stage};
use crate::handshake::ApiLevel;
use crate::record::{Journalist, Listed, Reply, Source, Submission};
use crate::value::{
    Bounded, Chunk, Filename, ItemId, JournalistId, OrderNumber, PersonName, ReplyId, Sha256, Size, Timestamp, Token,
};

/// The most records in one message.
pub const MAX_BATCH: usize = 512;

/// A batch of records of one list.
pub type Batch<T> = Bounded<Listed<T>, MAX_BATCH>;

/// What the proxy sends after the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FromProxy {
    /// Which call it answers.
    pub id: CallId,
    /// A part of the answer.
    pub part: Part,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// The answer begins: the server has accepted the call.
    Begin,
    /// Some of its items.
    Items(Items),
    /// The answer is complete.
    End {
        /// How many items it had.
        count: u32,
    },
    /// The call failed; nothing more comes.
    Failed(CallError),
}

/// Items of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Items {
    /// The answer to a health call: one item.
    Health(Health),
    /// The answer to a login: one item.
    SignedIn(SignedIn),
    /// Some journalists.
    Users(Batch<Journalist>),
    /// Some sources.
    Sources(Batch<Source>),
    /// Some submissions.
    Submissions(Batch<Submission>),
    /// Some replies.
    Replies(Batch<Reply>),
    /// What became of some items of a conversation that is being deleted. Each entry is a fact of its own, which holds
    /// though the answer may never end.
    Deletions(Bounded<Deletion, MAX_DELETED>),
    /// What a download is of: its first item.
    Download(Download),
    /// A piece of it.
    Chunk(Chunk),
    /// How much was sent: a download's last item.
    Sum(Sum),
    /// The answer to a reply that was sent: one item.
    Stored(StoredReply),
    /// The answer to a probe: one item.
    Probe(Probe),
}

/// The server answered as SecureDrop's Journalist API does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// What time it was when the server answered, as it says, to the second. Only to be shown: whoever answers in its place
    /// can say anything. None where it does not say it in a form that is known.
    pub server_date: Option<Timestamp>,
    /// How long it took from the request to the head of the answer, in milliseconds, a new connection included.
    pub took_ms: u64,
}

/// A reply that the server has stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredReply {
    /// Its id: the one that the client chose.
    pub reply: ReplyId,
    /// Its place in the conversation; none where the server does not say it in a form that can be read.
    pub order: Option<OrderNumber>,
    /// Its file name, as the lists will have it; none in the same case.
    pub filename: Option<Filename>,
}

/// What a download is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Download {
    /// How many bytes the whole has, if the server says so.
    pub length: Option<Size>,
    /// Where in it the pieces begin: where the client asked for, or 0.
    pub from: Size,
    /// The SHA-256 of the whole as the server claims it. None where it claims none, or in a form that is not known.
    pub etag: Option<Sha256>,
}

/// What the pieces of a download are together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// How many bytes they have.
    pub length: Size,
    /// Their SHA-256.
    pub sha256: Sha256,
}

/// What became of one item that was to be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// The item.
    pub item: ItemId,
    /// Gone (now, or already before), or why not.
    pub result: Result<(), CallError>,
}

impl Items {
    /// How many they are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Health(_)
            | Self::SignedIn(_)
            | Self::Download(_)
            | Self::Chunk(_)
            | Self::Sum(_)
            | Self::Stored(_)
            | Self::Probe(_) => 1,
            Self::Users(batch) => batch.as_slice().len(),
            Self::Sources(batch) => batch.as_slice().len(),
            Self::Submissions(batch) => batch.as_slice().len(),
            Self::Replies(batch) => batch.as_slice().len(),
            Self::Deletions(batch) => batch.as_slice().len(),
        }
    }

    fn kind(&self) -> ItemKind {
        match self {
            Self::Health(_) => ItemKind::Health,
            Self::SignedIn(_) => ItemKind::SignedIn,
            Self::Users(_) => ItemKind::Users,
            Self::Sources(_) => ItemKind::Sources,
            Self::Submissions(_) => ItemKind::Submissions,
            Self::Replies(_) => ItemKind::Replies,
            Self::Deletions(_) => ItemKind::Deletions,
            Self::Download(_) => ItemKind::Download,
            Self::Chunk(_) => ItemKind::Chunk,
            Self::Sum(_) => ItemKind::Sum,
            Self::Stored(_) => ItemKind::Stored,
            Self::Probe(_) => ItemKind::Probe,
        }
    }
}

/// How the proxy is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Whether the proxy reaches the server through Tor.
    pub tor: bool,
    /// The newest version of the Journalist API that this proxy speaks.
    pub speaks: ApiLevel,
    /// The last contact with the server within this qrexec call.
    pub contact: ServerContact,
    /// How the kernel confines the proxy.
    pub confinement: Confinement,
}

/// The proxy's last contact with the server, within one qrexec call: the proxy keeps nothing beyond it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerContact {
    /// Nothing was asked yet.
    NoneYet,
    /// The server answered, whatever it said.
    Answered {
        /// How long ago, in milliseconds.
        ago_ms: u64,
    },
    /// The server did not answer.
    Failed {
        /// How.
        kind: ErrorKind,
        /// Where.
        stage: Stage,
        /// How long ago, in milliseconds.
        ago_ms: u64,
    },
}

/// A login succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedIn {
    /// The session's token.
    pub token: Token,
    /// Who signed in.
    pub journalist: JournalistId,
    /// The first name, if the account has one.
    pub first_name: Option<PersonName>,
    /// The last name, if the account has one.
    pub last_name: Option<PersonName>,
    /// When the session was said to expire. Only a hint: the server prolongs sessions that are used.
    pub expires: Timestamp,
    /// What the server speaks; to be repeated in every later handshake.
    pub api_level: ApiLevel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemKind {
    Health,
    SignedIn,
    Users,
    Sources,
    Submissions,
    Replies,
    Deletions,
    Download,
    Chunk,
    Sum,
    Stored,
    Probe,
}

/// How an answer's form allows its number of items to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// No items.
    Empty,
    /// Exactly one.
    One(ItemKind),
    /// Any number.
    List(ItemKind),
    /// Exactly so many.
    Each(ItemKind, u32),
    /// What it is, its pieces, their sum.
    File(FileItem),
}

/// How far a download has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileItem {
    /// Nothing yet.
    None,
    /// What it is, and so many bytes.
    Some(u64),
    /// All.
    All,
}

/// Checks the parts of one answer as they come.
#[derive(Debug)]
pub struct Answer {
    form: Form,
    begun: bool,
    ended: bool,
    seen: u32,
}

/// An answer is not built as answers are. The proxy is at fault, and nothing of the answer may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// A second `Begin`, items or `End` before `Begin`, or anything after the end.
    #[error("a part of the answer came out of order")]
    OutOfOrder,
    /// Items of another kind than the call asks for.
    #[error("the answer holds items of another kind than the call asks for")]
    WrongKind,
    /// A download's sum counts other bytes than came.
    #[error("a download ended with {announced} bytes announced and {seen} received")]
    WrongLength {
        /// What the sum says.
        announced: u64,
        /// What came.
        seen: u64,
    },
    /// `End` counts other than what came.
    #[error("the answer ended with {announced} items announced and {seen} received")]
    WrongCount {
        /// What `End` says.
        announced: u32,
        /// What came.
        seen: u32,
    },
}

impl Answer {
    /// Expects the answer to `call`.
    #[must_use]
    pub fn to(call: &Call) -> Self {
        let form = match call {
            Call::Health => Form::One(ItemKind::Health),
            Call::Login { .. } => Form::One(ItemKind::SignedIn),
            Call::Logout { .. }
            | Call::Star { .. }
            | Call::Unstar { .. }
            | Call::MarkSeen { .. }
            | Call::DeleteSource { .. }
            | Call::DeleteSubmission { .. }
            | Call::DeleteReply { .. } => Form::Empty,
            Call::DownloadSubmission { .. } | Call::DownloadReply { .. } => Form::File(FileItem::None),
            Call::DeleteConversation { items, .. } => {
                Form::Each(ItemKind::Deletions, u32::try_from(items.as_slice().len()).unwrap_or(u32::MAX))
            }
            Call::SendReply { .. } => Form::One(ItemKind::Stored),
            Call::Probe => Form::One(ItemKind::Probe),
            Call::GetUsers { .. } => Form::List(ItemKind::Users),
            Call::GetSources { .. } => Form::List(ItemKind::Sources),
            Call::GetSubmissions { .. } => Form::List(ItemKind::Submissions),
            Call::GetAllReplies { .. } => Form::List(ItemKind::Replies),
        };
        Self { form, begun: false, ended: false, seen: 0 }
    }

    /// Checks the next part.
    ///
    /// # Errors
    /// [`AnswerError`] when the part may not come here.
    pub fn accept(&mut self, part: &Part) -> Result<(), AnswerError> {
        if self.ended {
            return Err(AnswerError::OutOfOrder);
        }
        match part {
            Part::Begin if !self.begun => self.begun = true,
            Part::Items(items) if self.begun => {
                self.form = self.form.with(items)?;
                self.seen = self.seen.saturating_add(u32::try_from(items.count()).unwrap_or(u32::MAX));
            }
            Part::End { count } if self.begun => {
                let complete = match self.form {
                    Form::Empty => self.seen == 0,
                    Form::One(_) => self.seen == 1,
                    Form::List(_) => true,
                    Form::Each(_, count) => self.seen == count,
                    Form::File(item) => item == FileItem::All,
                };
                if *count != self.seen || !complete {
                    return Err(AnswerError::WrongCount { announced: *count, seen: self.seen });
                }
                self.ended = true;
            }
            Part::Failed(_) => self.ended = true,
            Part::Begin | Part::Items(_) | Part::End { .. } => return Err(AnswerError::OutOfOrder),
        }
        Ok(())
    }
}

impl Form {
    /// What is expected after some items.
    fn with(self, items: &Items) -> Result<Self, AnswerError> {
        match (self, items) {
            (Self::Empty, _) => Err(AnswerError::WrongKind),
            (Self::One(kind) | Self::List(kind) | Self::Each(kind, _), items) if items.kind() == kind => Ok(self),
            (Self::File(FileItem::None), Items::Download(_)) => Ok(Self::File(FileItem::Some(0))),
            (Self::File(FileItem::Some(seen)), Items::Chunk(chunk)) => {
                let length = u64::try_from(chunk.as_slice().len()).unwrap_or(u64::MAX);
                Ok(Self::File(FileItem::Some(seen.saturating_add(length))))
            }
            (Self::File(FileItem::Some(seen)), Items::Sum(sum)) => match sum.length.get() {
                announced if announced == seen => Ok(Self::File(FileItem::All)),
                announced => Err(AnswerError::WrongLength { announced, seen }),
            },
            (Self::One(_) | Self::List(_) | Self::Each(..) | Self::File(_), _) => Err(AnswerError::WrongKind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources_answer() -> Answer {
        Answer::to(&Call::GetSources { token: Token::try_new("t").unwrap() })
    }

    fn no_sources() -> Part {
        Part::Items(Items::Sources(Batch::default()))
    }

    #[test]
    fn an_empty_list_is_begin_and_end() {
        let mut answer = sources_answer();
        answer.accept(&Part::Begin).unwrap();
        answer.accept(&Part::End { count: 0 }).unwrap();
        assert_eq!(answer.accept(&Part::Begin), Err(AnswerError::OutOfOrder));
    }

    #[test]
    fn parts_out_of_order_are_refused() {
        for first in [no_sources(), Part::End { count: 0 }] {
            assert_eq!(sources_answer().accept(&first), Err(AnswerError::OutOfOrder));
        }
        let mut answer = sources_answer();
        answer.accept(&Part::Begin).unwrap();
        assert_eq!(answer.accept(&Part::Begin), Err(AnswerError::OutOfOrder));
    }

    #[test]
    fn another_kind_or_count_is_refused() {
        let mut answer = sources_answer();
        answer.accept(&Part::Begin).unwrap();
        assert_eq!(answer.accept(&Part::Items(Items::Replies(Batch::default()))), Err(AnswerError::WrongKind));
        assert_eq!(answer.accept(&Part::End { count: 1 }), Err(AnswerError::WrongCount { announced: 1, seen: 0 }));

        let mut health = Answer::to(&Call::Health);
        health.accept(&Part::Begin).unwrap();
        assert_eq!(health.accept(&Part::End { count: 0 }), Err(AnswerError::WrongCount { announced: 0, seen: 0 }));

        let mut logout = Answer::to(&Call::Logout { token: Token::try_new("t").unwrap() });
        logout.accept(&Part::Begin).unwrap();
        assert_eq!(logout.accept(&no_sources()), Err(AnswerError::WrongKind));
        logout.accept(&Part::End { count: 0 }).unwrap();
    }

    #[test]
    fn a_download_is_what_it_is_its_pieces_and_their_sum() {
        let size = |bytes| Size::try_new(bytes).unwrap();
        let head = Part::Items(Items::Download(Download { length: None, from: size(0), etag: None }));
        let chunk = Part::Items(Items::Chunk(Chunk::try_new(vec![1, 2]).unwrap()));
        let sum = |bytes| Part::Items(Items::Sum(Sum { length: size(bytes), sha256: Sha256::new([0; 32]) }));
        let after = |parts: &[&Part], last: &Part| {
            let id = "00000000-0000-4000-8000-000000000001";
            let (token, source) = (Token::try_new("t").unwrap(), id.parse().unwrap());
            let call = Call::DownloadSubmission { token, source, submission: id.parse().unwrap(), from: size(0) };
            let mut answer = Answer::to(&call);
            for part in [&[&Part::Begin], parts].concat() {
                answer.accept(part).unwrap();
            }
            answer.accept(last)
        };
        after(&[&head, &chunk, &chunk, &sum(4)], &Part::End { count: 4 }).unwrap();
        after(&[&head, &sum(0)], &Part::End { count: 2 }).unwrap();
        for (parts, last) in [
            (&[][..], &chunk),
            (&[], &sum(0)),
            (&[&head], &head),
            (&[&head, &sum(0)], &chunk),
            (&[&head, &sum(0)], &sum(0)),
            (&[&head], &no_sources()),
        ] {
            assert_eq!(after(parts, last), Err(AnswerError::WrongKind));
        }
        let wrong = Err(AnswerError::WrongLength { announced: 3, seen: 2 });
        assert_eq!(after(&[&head, &chunk], &sum(3)), wrong);
        let early = Err(AnswerError::WrongCount { announced: 2, seen: 2 });
        assert_eq!(after(&[&head, &chunk], &Part::End { count: 2 }), early);
    }

    #[test]
    fn a_failure_may_come_at_any_point_and_is_the_last() {
        let failed = Part::Failed(CallError::new(ErrorKind::Server, Stage::Body, crate::error::Retry::Now));
        let mut answer = sources_answer();
        answer.accept(&failed).unwrap();
        assert_eq!(answer.accept(&failed), Err(AnswerError::OutOfOrder));
    }
}
