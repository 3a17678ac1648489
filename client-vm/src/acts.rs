//! Performs acts of the outbox over a session with the proxy: one batch of rows, one call, and what became of each row.
//!
//! **Invariant:** a row is done only when the proxy says so of it, and refused only when the proxy or the server say so;
//! whatever else may have happened leaves it open.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use protocol::value::{ArmoredMessage, Bounded, ItemId, OrderNumber, Token, ValueError};
use protocol::{Call, Deletion, ErrorKind, Items, Retry, SeenItems};
use qubes_rpc::connection::{AnswerStream, CallFailure, Connection};

use crate::failure::chain;
use crate::store::outbox::{Item, ItemName, Outcome, Row, Work};

/// What each item of a conversation adds to the time that a call may take.
const PER_ITEM: Duration = Duration::from_secs(2);

/// The steps of an act, in their order. Only a reply is prepared; a batch that takes several calls is sent and answered more
/// than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// It is in the outbox.
    Taken,
    /// It is encrypted.
    Prepared,
    /// It is noted as being sent.
    Begun,
    /// Its call is handed over to be written to the proxy.
    Sent,
    /// The proxy has answered, or there will be no answer.
    Answered,
    /// What became of it is noted.
    Settled,
}

impl Step {
    /// Every step.
    pub const ALL: [Self; 6] = [Self::Taken, Self::Prepared, Self::Begun, Self::Sent, Self::Answered, Self::Settled];
}

/// Who is told which steps were taken.
pub trait Watcher: fmt::Debug + Send + Sync {
    /// A step was taken.
    fn step(&self, _step: Step) {}
}

/// Nobody.
impl Watcher for () {}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Performed {
    /// Of each row.
    pub rows: Vec<(Row, Outcome)>,
    /// Of the way to the server.
    pub way: Way,
}

/// What an attempt says of the way to the server. The worst that was met counts; they are in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// It is there.
    Open,
    /// The session with the proxy takes no more calls of this kind; another one does.
    UsedUp,
    /// There is no way to the server at present.
    Barred,
    /// The session with the proxy is broken.
    Lost,
    /// The server no longer accepts the journalist's session.
    SessionOver,
}

/// Performs the rows of one batch, which are noted as being sent; `message` is the reply that a batch of one sends,
/// encrypted. Cancelled, what became of them is unknown. `watcher` is told of each call.
pub async fn perform(
    connection: &Connection,
    token: &Token,
    rows: Vec<Row>,
    message: Option<ArmoredMessage>,
    deadline: Duration,
    watcher: &dyn Watcher,
) -> Performed {
    let performed = Performed { rows: Vec::new(), way: Way::Open };
    let mut performing = Performing { connection, token, deadline, message, watcher, performed };
    match rows.as_slice() {
        [Row { work: Work::Seen(_), .. }, ..] => performing.mark_seen(rows).await,
        [Row { work: Work::DeleteItem(_), .. }, _, ..] => performing.delete_items(rows).await,
        _ => performing.one_by_one(rows).await,
    }
    performing.performed
}

struct Performing<'a> {
    connection: &'a Connection,
    token: &'a Token,
    deadline: Duration,
    message: Option<ArmoredMessage>,
    watcher: &'a dyn Watcher,
    performed: Performed,
}

impl Performing<'_> {
    async fn one_by_one(&mut self, rows: Vec<Row>) {
        for row in rows {
            let (token, source) = (self.token.clone(), row.source);
            let call = match row.work {
                Work::Star => Call::Star { token, source },
                Work::Unstar => Call::Unstar { token, source },
                Work::Seen(item) => match seen_items(&[item]) {
                    Ok(items) => Call::MarkSeen { token, items },
                    Err(error) => {
                        self.end(vec![row], &Err(error.into()));
                        continue;
                    }
                },
                Work::DeleteSource => Call::DeleteSource { token, source },
                Work::DeleteItem(item) => match item.name.id() {
                    ItemId::Submission(submission) => Call::DeleteSubmission { token, source, submission },
                    ItemId::Reply(reply) => Call::DeleteReply { token, source, reply },
                },
                Work::Reply(reply) => match self.message.take() {
                    Some(message) => Call::SendReply { token, source, reply, message },
                    None => {
                        let reason = "the reply was not encrypted".to_owned();
                        self.performed.rows.push((row, Outcome::NoEffect { reason }));
                        continue;
                    }
                },
            };
            let result = self.call(call).await;
            self.end(vec![row], &result);
        }
    }

    /// Marks all at once. The server marks none where one is gone, so whoever is left is found by halves.
    async fn mark_seen(&mut self, rows: Vec<Row>) {
        let mut groups = vec![rows];
        while let Some(mut rows) = groups.pop() {
            let items: Vec<_> = rows.iter().filter_map(item).collect();
            let result = match seen_items(&items) {
                Ok(items) => self.call(Call::MarkSeen { token: self.token.clone(), items }).await,
                Err(error) => Err(error.into()),
            };
            let one_is_gone = matches!(&result, Err(failure) if failure.kind() == ErrorKind::NotFound);
            if one_is_gone && rows.len() > 1 {
                let rest = rows.split_off(rows.len() / 2);
                groups.extend([rest, rows]);
                continue;
            }
            self.end(rows, &result);
        }
    }

    /// Deletes items of one conversation. What was said of an item holds, however the answer ends.
    async fn delete_items(&mut self, rows: Vec<Row>) {
        let Some(source) = rows.first().map(|row| row.source) else { return };
        let items: Vec<_> = rows.iter().filter_map(item).collect();
        let upper_bound = items.iter().map(|item| item.order).max().unwrap_or(OrderNumber::MAX);
        let deadline =
            self.deadline.saturating_add(PER_ITEM.saturating_mul(u32::try_from(items.len()).unwrap_or(u32::MAX)));
        let mut said = HashMap::new();
        let result = match Bounded::try_new(items.iter().map(|item| item.name.id()).collect()) {
            Ok(items) => {
                let call = Call::DeleteConversation { token: self.token.clone(), source, items, upper_bound };
                self.listen(call, deadline, &mut said).await
            }
            Err(error) => Err(error.into()),
        };
        for row in rows {
            let own = item(&row).and_then(|item| said.remove(&item.name.id()));
            match own {
                Some(result) => self.end(vec![row], &result),
                None => self.end(vec![row], &result),
            }
        }
    }

    async fn call(&self, call: Call) -> Result<(), CallFailure> {
        self.listen(call, self.deadline, &mut HashMap::new()).await
    }

    /// Makes a call, reads its answer to the end, and gathers what is said of single items.
    async fn listen(
        &self,
        call: Call,
        deadline: Duration,
        said: &mut HashMap<ItemId, Result<(), CallFailure>>,
    ) -> Result<(), CallFailure> {
        let answer = self.connection.call(call, deadline).await?;
        self.watcher.step(Step::Sent);
        let heard = hear(answer, said).await;
        self.watcher.step(Step::Answered);
        heard
    }

    fn end(&mut self, rows: Vec<Row>, result: &Result<(), CallFailure>) {
        for row in rows {
            let (outcome, way) = outcome(row.work, result);
            self.performed.way = self.performed.way.max(way);
            self.performed.rows.push((row, outcome));
        }
    }
}

/// Reads an answer to its end, and gathers what is said of single items.
async fn hear(
    mut answer: AnswerStream,
    said: &mut HashMap<ItemId, Result<(), CallFailure>>,
) -> Result<(), CallFailure> {
    while let Some(items) = answer.next().await? {
        if let Items::Deletions(deletions) = items {
            for Deletion { item, result } in deletions.into_vec() {
                said.insert(item, result.map_err(CallFailure::from));
            }
        }
    }
    Ok(())
}

fn item(row: &Row) -> Option<Item> {
    match row.work {
        Work::Seen(item) | Work::DeleteItem(item) => Some(item),
        Work::Star | Work::Unstar | Work::DeleteSource | Work::Reply(_) => None,
    }
}

fn seen_items(items: &[Item]) -> Result<SeenItems, ValueError> {
    let (mut files, mut messages, mut replies) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        match item.name {
            ItemName::Message(id) => messages.push(id),
            ItemName::File(id) => files.push(id),
            ItemName::Reply(id) => replies.push(id),
        }
    }
    Ok(SeenItems {
        files: Bounded::try_new(files)?,
        messages: Bounded::try_new(messages)?,
        replies: Bounded::try_new(replies)?,
    })
}

/// What a call's result means for a row, and for the way to the server.
fn outcome(work: Work, result: &Result<(), CallFailure>) -> (Outcome, Way) {
    let failure = match result {
        Ok(()) => return (Outcome::Done, Way::Open),
        Err(failure) => failure,
    };
    let reason = chain(failure);
    let no_effect = |way| (Outcome::NoEffect { reason: reason.clone() }, way);
    match failure {
        CallFailure::NotSent(_) => return no_effect(Way::Lost),
        CallFailure::Incomplete(_) | CallFailure::Silent => {
            return (Outcome::Unknown { reason, retry_after: None }, Way::Lost);
        }
        CallFailure::Failed(_) | CallFailure::Deadline(_) => {}
    }
    let retry_after = match failure.retry() {
        Retry::Later { wait_ms } => wait_ms.map(|ms| Duration::from_millis(ms.into())),
        Retry::Now | Retry::WhenUserActs | Retry::Never => None,
    };
    match failure.kind() {
        ErrorKind::Unauthorized => no_effect(Way::SessionOver),
        // The proxy takes no more deletions in one session, or no more calls at the same time.
        ErrorKind::RateLimited if failure.before_the_server() => no_effect(Way::UsedUp),
        ErrorKind::Unreachable | ErrorKind::Timeout if failure.before_the_server() => no_effect(Way::Barred),
        ErrorKind::NotFound => match work {
            // What is gone is deleted, and need not be seen.
            Work::DeleteSource | Work::DeleteItem(_) | Work::Seen(_) => (Outcome::Done, Way::Open),
            Work::Star | Work::Unstar | Work::Reply(_) => (Outcome::Refused { reason }, Way::Open),
        },
        // The server has stored it under another id than ours, or says so: sent again, it would be there twice.
        ErrorKind::BadResponse if matches!(work, Work::Reply(_)) && failure.retry() == Retry::Never => {
            (Outcome::Refused { reason }, Way::Open)
        }
        // The server has a reply with this id, which is random and ours: an earlier attempt came through.
        ErrorKind::Conflict if matches!(work, Work::Reply(_)) => (Outcome::Done, Way::Open),
        ErrorKind::Refused | ErrorKind::Conflict | ErrorKind::TooLarge | ErrorKind::OutOfScope => {
            (Outcome::Refused { reason }, Way::Open)
        }
        ErrorKind::Internal if failure.before_the_server() => (Outcome::Refused { reason }, Way::Open),
        ErrorKind::RateLimited
        | ErrorKind::Server
        | ErrorKind::Unreachable
        | ErrorKind::Timeout
        | ErrorKind::BadResponse
        | ErrorKind::Cancelled
        | ErrorKind::Internal => (Outcome::Unknown { reason, retry_after }, Way::Open),
    }
}
