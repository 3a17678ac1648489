//! Conversations, as the daemon tells them.

use std::collections::HashMap;

use control::client::{Client, ClientError};
use control::{
    Content, ConversationItem, DownloadState, ItemKind, OutgoingReply, Reply, ReplyText, Request, SourceRow,
};
use protocol::value::ItemId;

use super::act::item_id;
use super::args::Args;
use super::download::gathered;
use super::exit::CliError;
use super::{ask, columns, json, print, text};

/// All that is known of a conversation.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) source: SourceRow,
    /// What the server lists, in its order.
    pub(super) items: Vec<ConversationItem>,
    /// What can be read of it.
    pub(super) texts: HashMap<ItemId, String>,
    /// Replies that the server does not list, in the order in which they were written.
    pub(super) outgoing: Vec<OutgoingReply>,
    pub(super) draft: Option<ReplyText>,
    /// What is being downloaded, and how many bytes of it are there.
    pub(super) running: HashMap<ItemId, u64>,
}

impl Conversation {
    /// Whether whoever is signed in wrote it.
    pub(super) fn is_own(&self, item: &ConversationItem) -> bool {
        match &item.kind {
            ItemKind::Submission { .. } => false,
            ItemKind::Reply { own, .. } => *own,
        }
    }

    /// What it says; none where it cannot be read, or is no text.
    pub(super) fn text(&self, item: &ConversationItem) -> Option<&str> {
        self.texts.get(&item_id(item)).map(String::as_str)
    }

    /// How many bytes of it are there, while it is being downloaded.
    pub(super) fn received(&self, item: &ConversationItem) -> Option<u64> {
        self.running.get(&item_id(item)).copied()
    }
}

/// Shows a conversation as it can be read now. It marks nothing as seen.
pub(super) async fn show(args: &Args, client: &mut Client, word: &str) -> Result<(), CliError> {
    let mut shown = load(client, word).await?;
    if shown.items.iter().any(|item| matches!(item.content, Content::Wanted { .. })) {
        let entries = gathered(ask(client, Request::Downloads).await?);
        let running = entries.into_iter().filter_map(|entry| match entry.state {
            DownloadState::Running { received } => Some((entry.item, received)),
            DownloadState::Waiting { .. } | DownloadState::Failed { .. } => None,
        });
        shown.running = running.collect();
    }
    print(args, || json::conversation(&shown), || text::conversation(&shown, columns::of_output())).await
}

/// The source that a word means, and its conversation. What is being downloaded is not asked for.
pub(super) async fn load(client: &mut Client, word: &str) -> Result<Conversation, CliError> {
    gather(ask(client, Request::Show { source: word.to_owned() }).await?)
}

fn gather(replies: Vec<Reply>) -> Result<Conversation, CliError> {
    let (mut source, mut draft) = (None, None);
    let (mut items, mut texts, mut outgoing) = (Vec::new(), HashMap::new(), Vec::new());
    for reply in replies {
        match reply {
            Reply::Source(row) => source = Some(*row),
            Reply::Conversation(some) => items.extend(some),
            Reply::Text(said) => drop(texts.insert(said.item, said.text)),
            Reply::Outgoing(reply) => outgoing.push(*reply),
            Reply::Draft(text) => draft = Some(text),
            Reply::Status(_)
            | Reply::SignedIn(_)
            | Reply::Synced(_)
            | Reply::Sources(_)
            | Reply::Found { .. }
            | Reply::HitCount(_)
            | Reply::Hits(_)
            | Reply::Taken(_)
            | Reply::Undone(_)
            | Reply::Queue(_)
            | Reply::Wanted(_)
            | Reply::Downloads(_)
            | Reply::Removals(_)
            | Reply::Viewers(_)
            | Reply::Content(_)
            | Reply::Device(_) => {}
        }
    }
    let source = source.ok_or(CliError::Client(ClientError::Unexpected))?;
    Ok(Conversation { source, items, texts, outgoing, draft, running: HashMap::new() })
}
