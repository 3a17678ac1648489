//! Deleting items of one conversation.
//!
//! The server's own way to delete a conversation would take along what came after the user looked. So the lists of the
//! source are read first, and then the items that the call names are deleted one by one.
//!
//! **Invariant:** nothing is deleted but what the call names and the server lists for the call's source, with an order
//! number up to the call's bound.
//!
//! **Invariant:** no item is asked for twice. What became of an item is on its way to the client before anything else is
//! waited for.

use std::collections::HashMap;

use protocol::value::{Bounded, ItemId, OrderNumber, ReplyId, SourceId, SubmissionId, Token};
use protocol::{CallError, Deletion, ErrorKind, Items, Reply, Submission};
use serde::de::DeserializeOwned;

use super::{Answer, HttpApi};
use crate::journalist_api::endpoint::Endpoint;
use crate::journalist_api::list::ListSplitter;
use crate::journalist_api::sanitize::{ListedItem, ServerRecord, listed_item};
use crate::journalist_api::{Conversation, failure};
use crate::outlet::Outlet;

/// The most outcomes in one message, so that the first are not held back by what is many.
const BATCH: usize = 32;

/// What became of one item: gone, or why not.
type Outcome = Result<(), CallError>;

impl HttpApi {
    /// As [`delete_conversation`](crate::journalist_api::JournalistApi::delete_conversation).
    ///
    /// # Errors
    /// What stops the next item too: no session, no connection, no time. The outcomes that were sent before hold.
    pub(super) async fn delete_items(
        &self,
        token: &Token,
        conversation: &Conversation,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), CallError> {
        let source = conversation.source;
        let mut listed = Listed::new(conversation);
        let endpoint = Endpoint::SourceSubmissions(source);
        self.entries(endpoint, Submission::KEY, token, outlet, |json| listed.submission(json)).await?;
        self.entries(Endpoint::SourceReplies(source), Reply::KEY, token, outlet, |json| listed.reply(json)).await?;
        outlet.begin().await?;

        let mut known: HashMap<ItemId, Outcome> = HashMap::new();
        let mut report = Report::default();
        for &item in conversation.items.as_slice() {
            let (outcome, rest) = match known.get(&item) {
                // Named before: the same item has the same outcome.
                Some(outcome) => (outcome.clone(), None),
                None => match listed.verdict(item, conversation.upper_bound) {
                    Verdict::Settled(outcome) => (outcome, None),
                    Verdict::Delete => {
                        report.flush(outlet).await?;
                        self.delete_item(source, item, token, outlet).await?
                    }
                },
            };
            known.insert(item, outcome.clone());
            report.add(item, outcome);
            if rest.is_some() || report.is_full() {
                report.flush(outlet).await?;
            }
            if let Some(rest) = rest {
                rest.capped(self.limits.small_bytes).drain(outlet.left()).await;
            }
        }
        report.flush(outlet).await
    }

    /// Fetches a list and gives each of its entries to `take`: its JSON, or `None` for one that is too large or no text.
    /// `take` says whether it has an id.
    async fn entries(
        &self,
        endpoint: Endpoint,
        key: &'static str,
        token: &Token,
        outlet: &mut Outlet<'_>,
        mut take: impl FnMut(Option<&str>) -> bool + Send,
    ) -> Result<(), CallError> {
        let mut answer = self.send(endpoint, Some(token), None, outlet).await?.capped(self.limits.list_bytes);
        let mut splitter = ListSplitter::new(key, self.limits.record_bytes);
        let (mut entries, mut unreadable): (u32, u32) = (0, 0);
        while let Some(chunk) = answer.chunk().await? {
            splitter
                .feed(&chunk, |json| {
                    entries = entries.saturating_add(1);
                    unreadable = unreadable.saturating_add(u32::from(!take(json)));
                })
                .map_err(failure::list)?;
        }
        splitter.finish().map_err(failure::list)?;
        answer.log_end(entries, unreadable);
        Ok(())
    }

    /// Deletes one item that the server listed. Gives what became of it, and the rest of the answer if that is success.
    ///
    /// # Errors
    /// What the next item would meet too.
    async fn delete_item(
        &self,
        source: SourceId,
        item: ItemId,
        token: &Token,
        outlet: &mut Outlet<'_>,
    ) -> Result<(Outcome, Option<Answer>), CallError> {
        let endpoint = match item {
            ItemId::Submission(submission) => Endpoint::DeleteSubmission(source, submission),
            ItemId::Reply(reply) => Endpoint::DeleteReply(source, reply),
        };
        let error = match self.send(endpoint, Some(token), None, outlet).await {
            Ok(answer) => return Ok((Ok(()), Some(answer))),
            Err(error) => error,
        };
        match error.kind {
            // Somebody else was faster.
            ErrorKind::NotFound => Ok((Ok(()), None)),
            // Of this item alone: the server answers with a fault where a file is missing, and deletes its record.
            ErrorKind::Conflict
            | ErrorKind::Refused
            | ErrorKind::Server
            | ErrorKind::BadResponse
            | ErrorKind::TooLarge => Ok((Err(error), None)),
            ErrorKind::Unauthorized
            | ErrorKind::RateLimited
            | ErrorKind::Unreachable
            | ErrorKind::Timeout
            | ErrorKind::OutOfScope
            | ErrorKind::Cancelled
            | ErrorKind::Internal => Err(error),
        }
    }
}

/// Where an item that the call names was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// In no list so far.
    Nowhere,
    /// In the source's conversation.
    At(OrderNumber),
    /// In a list, but whose it is or where it stands is not clear.
    Unclear,
}

/// What is to be done about an item.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Delete it.
    Delete,
    /// Nothing: this is what became of it.
    Settled(Outcome),
}

/// What the lists say of the items that the call names. Of all others nothing is kept, so a list may be of any length.
#[derive(Debug)]
struct Listed {
    source: SourceId,
    found: HashMap<ItemId, Found>,
    /// Whether there is a submission of which not even the id can be read.
    nameless_submissions: bool,
    /// The same of replies.
    nameless_replies: bool,
}

impl Listed {
    fn new(conversation: &Conversation) -> Self {
        let found = conversation.items.as_slice().iter().map(|item| (*item, Found::Nowhere)).collect();
        Self { source: conversation.source, found, nameless_submissions: false, nameless_replies: false }
    }

    /// Takes an entry of the list of submissions; whether it has an id.
    fn submission(&mut self, json: Option<&str>) -> bool {
        let named = self.entry::<SubmissionId>(json, ItemId::Submission);
        self.nameless_submissions |= !named;
        named
    }

    /// Takes an entry of the list of replies; whether it has an id.
    fn reply(&mut self, json: Option<&str>) -> bool {
        let named = self.entry::<ReplyId>(json, ItemId::Reply);
        self.nameless_replies |= !named;
        named
    }

    fn entry<I: Copy + DeserializeOwned>(&mut self, json: Option<&str>, kind: impl Fn(I) -> ItemId) -> bool {
        let Some(ListedItem { id, place }) = json.and_then(listed_item::<I>) else { return false };
        let here = match place {
            Some((source, order)) if source == self.source => Found::At(order),
            // An item of another source has no business in this list.
            Some(_) | None => Found::Unclear,
        };
        if let Some(found) = self.found.get_mut(&kind(id)) {
            // Listed twice is not clear, unless both say the same.
            *found = if *found == Found::Nowhere || *found == here { here } else { Found::Unclear };
        }
        true
    }

    /// What is to be done about `item`, of which nothing beyond `upper_bound` is deleted.
    fn verdict(&self, item: ItemId, upper_bound: OrderNumber) -> Verdict {
        let nameless = match item {
            ItemId::Submission(_) => self.nameless_submissions,
            ItemId::Reply(_) => self.nameless_replies,
        };
        match self.found.get(&item).copied().unwrap_or(Found::Nowhere) {
            Found::At(order) if order <= upper_bound => Verdict::Delete,
            Found::At(_) => Verdict::Settled(Err(failure::beyond_the_bound())),
            Found::Unclear => Verdict::Settled(Err(failure::unclear_item())),
            Found::Nowhere if nameless => Verdict::Settled(Err(failure::nameless_items())),
            Found::Nowhere => Verdict::Settled(Ok(())),
        }
    }
}

/// The outcomes that are still to be sent.
#[derive(Debug, Default)]
struct Report(Vec<Deletion>);

impl Report {
    fn add(&mut self, item: ItemId, result: Outcome) {
        self.0.push(Deletion { item, result });
    }

    fn is_full(&self) -> bool {
        self.0.len() >= BATCH
    }

    /// Sends what there is.
    async fn flush(&mut self, outlet: &mut Outlet<'_>) -> Result<(), CallError> {
        if self.0.is_empty() {
            return Ok(());
        }
        // Never more than `BATCH`, which is far below the protocol's bound.
        let batch = Bounded::try_new(std::mem::take(&mut self.0)).map_err(|_| failure::request("too many outcomes"))?;
        outlet.items(Items::Deletions(batch)).await
    }
}
