//! dom0's user: the questions that the policy's `ask` puts, and their answers.
//!
//! In Qubes a window in dom0 lists the targets and waits, for minutes if need be. Here whoever holds the [`Questions`]
//! looks at what is asked and answers, or does not.
//!
//! **Invariant:** at most 64 questions wait; a call that would ask one more is refused.
//! **Invariant:** a yes names a target that the question offers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};

use super::record::CallId;
use crate::qrexec::policy::ServiceTarget;
use crate::qrexec::system::QubeName;

/// The most questions that wait.
const QUESTION_CAP: usize = 64;

/// Whether somebody sits in front of dom0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dom0User {
    /// Nobody: what would be asked is refused.
    #[default]
    Absent,
    /// Somebody, who answers through [`Questions`].
    Present,
}

/// What dom0's user is asked about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Which call.
    pub call: CallId,
    /// Who calls.
    pub source: QubeName,
    /// The service without its argument.
    pub service: String,
    /// The argument without its `+`.
    pub argument: String,
    /// The target as asked for; empty for none.
    pub target: String,
    /// What may be chosen from; never empty.
    pub targets: BTreeSet<ServiceTarget>,
    /// What is chosen already, by `default_target=`; one of `targets`.
    pub default_target: Option<ServiceTarget>,
}

/// What dom0's user says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Yes, to this target; without one, to the one that is chosen already, or the only one.
    Yes(Option<ServiceTarget>),
    /// No.
    No,
}

/// A reply is none to any question that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// No question about this call waits: it was answered, or its caller is gone.
    #[error("no question about this call waits")]
    NotAsked,
    /// The question does not offer this target.
    #[error("the question does not offer this target")]
    NotOffered,
    /// There are several targets and none is chosen already.
    #[error("the question leaves several targets open: choose one")]
    Choose,
}

/// The questions that wait for an answer.
#[derive(Debug)]
pub struct Questions {
    user: Dom0User,
    waiting: Mutex<BTreeMap<CallId, Waiting>>,
    changes: watch::Sender<()>,
}

#[derive(Debug)]
struct Waiting {
    question: Question,
    answer: oneshot::Sender<Option<ServiceTarget>>,
}

/// Why a question was not put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotPut {
    Nobody,
    TooMany,
}

/// A question that waits. Dropping it withdraws the question.
#[derive(Debug)]
pub(super) struct Asked<'q> {
    questions: &'q Questions,
    call: CallId,
    answer: oneshot::Receiver<Option<ServiceTarget>>,
}

impl Asked<'_> {
    /// The target that the user chose, or `None` for a no. Cancel-safe.
    pub(super) async fn answer(&mut self) -> Option<ServiceTarget> {
        // The sender goes only with its answer.
        (&mut self.answer).await.ok().flatten()
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.questions.waiting().remove(&self.call).is_some() {
            self.questions.changes.send_replace(());
        }
    }
}

impl Questions {
    pub(super) fn new(user: Dom0User) -> Self {
        Self { user, waiting: Mutex::default(), changes: watch::Sender::new(()) }
    }

    /// The questions that wait, oldest first.
    #[must_use]
    pub fn pending(&self) -> Vec<Question> {
        self.waiting().values().map(|waiting| waiting.question.clone()).collect()
    }

    /// Waits for a question and gives the oldest; it goes on waiting. Cancel-safe.
    pub async fn next(&self) -> Question {
        let mut changes = self.changes.subscribe();
        loop {
            if let Some(question) = self.pending().into_iter().next() {
                return question;
            }
            // The sender is in `self`, so this only ends with a change.
            let _ = changes.changed().await;
        }
    }

    /// Waits until as many questions wait as wanted. Cancel-safe.
    pub async fn until(&self, wanted: impl Fn(usize) -> bool) {
        let _ = self.changes.subscribe().wait_for(|()| wanted(self.waiting().len())).await;
    }

    /// Answers the question about a call.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]; the question, if there is one, goes on waiting.
    pub fn answer(&self, call: CallId, reply: Reply) -> Result<(), ReplyError> {
        let mut waiting = self.waiting();
        let Question { targets, default_target, .. } = &waiting.get(&call).ok_or(ReplyError::NotAsked)?.question;
        let chosen = match reply {
            Reply::No => None,
            Reply::Yes(Some(target)) if targets.contains(&target) => Some(target),
            Reply::Yes(Some(_)) => return Err(ReplyError::NotOffered),
            Reply::Yes(None) => match (default_target, targets.first()) {
                (Some(target), _) => Some(target.clone()),
                (None, Some(only)) if targets.len() == 1 => Some(only.clone()),
                (None, _) => return Err(ReplyError::Choose),
            },
        };
        let answered = waiting.remove(&call).ok_or(ReplyError::NotAsked)?;
        drop(waiting);
        self.changes.send_replace(());
        answered.answer.send(chosen).map_err(|_| ReplyError::NotAsked)
    }

    pub(super) fn put(&self, question: Question) -> Result<Asked<'_>, NotPut> {
        if self.user == Dom0User::Absent {
            return Err(NotPut::Nobody);
        }
        let mut waiting = self.waiting();
        if waiting.len() >= QUESTION_CAP {
            return Err(NotPut::TooMany);
        }
        let (sender, answer) = oneshot::channel();
        let call = question.call;
        waiting.insert(call, Waiting { question, answer: sender });
        drop(waiting);
        self.changes.send_replace(());
        Ok(Asked { questions: self, call, answer })
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<CallId, Waiting>> {
        // Nothing is left half done by a panic: there is none between the steps.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qube(name: &str) -> ServiceTarget {
        ServiceTarget::Qube(QubeName::try_new(name).expect("a name"))
    }

    fn question(call: u64, targets: &[&str], default_target: Option<&str>) -> Question {
        Question {
            call: CallId(call),
            source: QubeName::try_new("a").expect("a name"),
            service: "s".to_owned(),
            argument: String::new(),
            target: String::new(),
            targets: targets.iter().map(|name| qube(name)).collect(),
            default_target: default_target.map(qube),
        }
    }

    #[tokio::test]
    async fn a_yes_needs_a_target_that_is_offered() {
        let questions = Questions::new(Dom0User::Present);
        for (targets, default, reply, expected) in [
            (&["b"][..], None, Reply::Yes(None), Ok(Some("b"))),
            (&["b", "c"], Some("c"), Reply::Yes(None), Ok(Some("c"))),
            (&["b", "c"], Some("c"), Reply::Yes(Some(qube("b"))), Ok(Some("b"))),
            (&["b", "c"], None, Reply::Yes(None), Err(ReplyError::Choose)),
            (&["b", "c"], None, Reply::Yes(Some(qube("d"))), Err(ReplyError::NotOffered)),
            (&["b", "c"], Some("c"), Reply::No, Ok(None)),
        ] {
            let mut asked = questions.put(question(1, targets, default)).expect("asked");
            let said = questions.answer(CallId(1), reply);
            assert_eq!(said, expected.map(|_| ()));
            if let Ok(target) = expected {
                assert_eq!(asked.answer().await, target.map(qube));
            } else {
                assert_eq!(questions.pending().len(), 1, "it goes on waiting");
            }
        }
        assert_eq!(questions.answer(CallId(1), Reply::No), Err(ReplyError::NotAsked));
    }

    #[test]
    fn the_list_is_bounded_and_a_dropped_question_is_withdrawn() {
        assert_eq!(Questions::new(Dom0User::Absent).put(question(1, &["b"], None)).err(), Some(NotPut::Nobody));
        let questions = Questions::new(Dom0User::Present);
        let asked: Vec<_> = (1..=64).map(|call| questions.put(question(call, &["b"], None)).expect("asked")).collect();
        assert_eq!(questions.put(question(65, &["b"], None)).err(), Some(NotPut::TooMany));
        drop(asked);
        assert!(questions.pending().is_empty());
    }
}
