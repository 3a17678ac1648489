//! The commands that act: on sources, and on what is in their conversations.
//!
//! Words become ids first, by a request of their own; the acts name ids only. So an act is about what the words meant when
//! a person was asked, whatever has arrived since.

use std::collections::BTreeSet;

use control::act::MAX_OBJECTS;
use control::client::{Client, ClientError};
use control::message::MAX_ROWS;
use control::{Act, ActKind, ConversationItem, Deletion, ItemKind, Reply, Request, Seen, Session, SourceRow, Taken};
use protocol::value::{ItemId, JournalistId, SourceId};

use super::args::{Args, Delete};
use super::consent::{Consent, check_count};
use super::conversation::{self, Conversation};
use super::exit::CliError;
use super::terminal::Terminal;
use super::{ask, json, print, text};

/// What somebody does about stars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Star {
    Set,
    Remove,
}

/// Items of one conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) source: SourceId,
    pub(super) items: Vec<ConversationItem>,
}

pub(super) async fn star(args: &Args, client: &mut Client, words: &[String], star: Star) -> Result<(), CliError> {
    let sources = find_sources(client, words).await?;
    let acts = in_parts(&ids(&sources), |sources| match star {
        Star::Set => Act::Star { sources },
        Star::Remove => Act::Unstar { sources },
    });
    let kind = match star {
        Star::Set => ActKind::Star,
        Star::Remove => ActKind::Unstar,
    };
    let taken = send(client, acts).await?;
    print(args, || json::acted(&taken), || text::acted_on_sources(kind, &sources, &taken)).await
}

pub(super) async fn seen(args: &Args, client: &mut Client, source: &str, words: &[String]) -> Result<(), CliError> {
    let (source, items) = if words.is_empty() {
        let Conversation { source, items, .. } = conversation::load(client, source).await?;
        (source, items.into_iter().filter(is_unread).collect())
    } else {
        let source = one(find_sources(client, &[source.to_owned()]).await?)?;
        let found = find_items(client, words).await?;
        (source.clone(), of_conversation(&source, found)?)
    };
    if items.is_empty() {
        return print(args, || json::acted(&[]), || text::nothing_unread(&source)).await;
    }
    let acts = in_parts(&item_ids(&items), |items| Act::Seen { source: source.id, items });
    let taken = send(client, acts).await?;
    print(args, || json::acted(&taken), || text::acted_on_items(ActKind::Seen, &source, &taken)).await
}

pub(super) async fn delete(args: &Args, client: &mut Client, delete: &Delete) -> Result<(), CliError> {
    let yes = match delete {
        Delete::Source { consent, .. } | Delete::Conversation { consent, .. } | Delete::Item { consent, .. } => {
            consent.yes
        }
    };
    let consent = Consent::try_new(yes, args.batch, Terminal::of_a_person)?;
    if matches!(consent, Consent::Ask(_)) {
        refuse_if_signed_out(client).await?;
    }
    match delete {
        Delete::Source { sources, count, .. } => delete_sources(args, client, sources, *count, consent).await,
        Delete::Conversation { source, .. } => delete_conversation(args, client, source, consent).await,
        Delete::Item { items, .. } => delete_items(args, client, items, consent).await,
    }
}

async fn delete_sources(
    args: &Args,
    client: &mut Client,
    words: &[String],
    count: Option<usize>,
    consent: Consent,
) -> Result<(), CliError> {
    let sources = find_sources(client, words).await?;
    check_count(sources.len(), count)?;
    consent.obtain(|| text::ask_about_sources(&sources)).await?;
    let acts = in_parts(&ids(&sources), |sources| Act::DeleteSources { sources });
    let taken = send(client, acts).await?;
    let said = || text::acted_on_sources(ActKind::DeleteSource, &sources, &taken) + &text::can_be_undone(&taken);
    print(args, || json::acted(&taken), said).await
}

async fn delete_conversation(args: &Args, client: &mut Client, source: &str, consent: Consent) -> Result<(), CliError> {
    let Conversation { source, items, .. } = conversation::load(client, source).await?;
    // What arrives while a person thinks is not among these.
    let items: Vec<_> = items.into_iter().filter(|item| item.deletion == Deletion::None).collect();
    if items.is_empty() {
        return print(args, || json::acted(&[]), || text::nothing_to_delete(&source)).await;
    }
    consent.obtain(|| text::ask_about_conversation(&source, &items)).await?;
    let acts = in_parts(&item_ids(&items), |items| Act::DeleteItems { source: source.id, items });
    let taken = send(client, acts).await?;
    let said = || text::acted_on_items(ActKind::DeleteItem, &source, &taken) + &text::can_be_undone(&taken);
    print(args, || json::acted(&taken), said).await
}

async fn delete_items(args: &Args, client: &mut Client, words: &[String], consent: Consent) -> Result<(), CliError> {
    let groups = by_conversation(find_items(client, words).await?);
    let ids: Vec<_> = groups.iter().map(|group| group.source.to_string()).collect();
    let sources = find_sources(client, &ids).await?;
    let shown: Vec<_> = sources.iter().zip(&groups).collect();
    consent.obtain(|| text::ask_about_items(&shown)).await?;
    let (mut taken, mut said) = (Vec::new(), String::new());
    for (source, group) in &shown {
        let acts = in_parts(&item_ids(&group.items), |items| Act::DeleteItems { source: group.source, items });
        let more = send(client, acts).await.map_err(|error| after(&taken, error))?;
        said.push_str(&text::acted_on_items(ActKind::DeleteItem, source, &more));
        taken.extend(more);
    }
    said.push_str(&text::can_be_undone(&taken));
    print(args, || json::acted(&taken), || said).await
}

/// Who is signed in: a question is worth nothing to somebody who is not.
pub(super) async fn refuse_if_signed_out(client: &mut Client) -> Result<JournalistId, CliError> {
    for reply in ask(client, Request::Status).await? {
        let Reply::Status(status) = reply else { continue };
        match status.session {
            Session::SignedIn { journalist, .. } => return Ok(journalist),
            Session::SigningIn => return Err(CliError::StillSigningIn),
            Session::SignedOut => return Err(CliError::NotSignedIn),
        }
    }
    Err(CliError::Client(ClientError::Unexpected))
}

/// The sources that words mean, each once, in the order of the words.
pub(super) async fn find_sources(client: &mut Client, words: &[String]) -> Result<Vec<SourceRow>, CliError> {
    let mut found = Vec::new();
    for words in words.chunks(MAX_ROWS) {
        for reply in ask(client, Request::FindSources { words: words.to_vec() }).await? {
            let Reply::Sources(some) = reply else { continue };
            found.extend(some);
        }
    }
    Ok(each_once(found, |row| row.id))
}

/// The items that words mean, each once, in the order of the words.
pub(super) async fn find_items(
    client: &mut Client,
    words: &[String],
) -> Result<Vec<(SourceId, ConversationItem)>, CliError> {
    let mut found = Vec::new();
    for words in words.chunks(MAX_ROWS) {
        for reply in ask(client, Request::FindItems { words: words.to_vec() }).await? {
            let Reply::Found { source, item } = reply else { continue };
            found.push((source, *item));
        }
    }
    Ok(each_once(found, |(_, item)| item_id(item)))
}

/// Sends acts in their order. The first that fails ends it; what was taken before stays taken.
async fn send(client: &mut Client, acts: Vec<Act>) -> Result<Vec<Taken>, CliError> {
    let mut taken = Vec::new();
    for act in acts {
        let replies = ask(client, Request::Act(act)).await.map_err(|error| after(&taken, error))?;
        for reply in replies {
            let Reply::Taken(one) = reply else { continue };
            taken.push(one);
        }
    }
    Ok(taken)
}

/// The error, and that something was taken before it.
fn after(taken: &[Taken], error: CliError) -> CliError {
    error.after(taken.iter().map(|one| one.objects).sum())
}

/// Acts on all objects, as many of them as one act may name each.
fn in_parts<T: Clone>(objects: &[T], act: impl Fn(Vec<T>) -> Act) -> Vec<Act> {
    objects.chunks(MAX_OBJECTS).map(|some| act(some.to_vec())).collect()
}

fn each_once<T, K: Ord>(objects: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut seen = BTreeSet::new();
    objects.into_iter().filter(|object| seen.insert(key(object))).collect()
}

/// The only source that one word meant.
pub(super) fn one(sources: Vec<SourceRow>) -> Result<SourceRow, CliError> {
    sources.into_iter().next().ok_or(CliError::Client(ClientError::Unexpected))
}

/// The items, if all are in this source's conversation.
fn of_conversation(
    source: &SourceRow,
    found: Vec<(SourceId, ConversationItem)>,
) -> Result<Vec<ConversationItem>, CliError> {
    let mut items = Vec::new();
    for (owner, item) in found {
        if owner != source.id {
            return Err(CliError::OtherConversation {
                item: item_id(&item).to_string(),
                designation: source.designation.as_str().to_owned(),
                owner,
            });
        }
        items.push(item);
    }
    Ok(items)
}

/// The items by their conversations, both in the order in which they were named.
fn by_conversation(found: Vec<(SourceId, ConversationItem)>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (source, item) in found {
        match groups.iter_mut().find(|group| group.source == source) {
            Some(group) => group.items.push(item),
            None => groups.push(Group { source, items: vec![item] }),
        }
    }
    groups
}

fn is_unread(item: &ConversationItem) -> bool {
    item.seen == Seen::Unread && item.deletion == Deletion::None
}

fn ids(sources: &[SourceRow]) -> Vec<SourceId> {
    sources.iter().map(|row| row.id).collect()
}

fn item_ids(items: &[ConversationItem]) -> Vec<ItemId> {
    items.iter().map(item_id).collect()
}

pub(super) fn item_id(item: &ConversationItem) -> ItemId {
    match &item.kind {
        ItemKind::Submission { id, .. } => ItemId::Submission(*id),
        ItemKind::Reply { id, .. } => ItemId::Reply(*id),
    }
}

#[cfg(test)]
mod tests {
    use control::{Failure, FailureKind};

    use super::super::exit::Exit;
    use super::super::samples::{file, source, source_id, taken};
    use super::*;

    #[test]
    fn what_is_too_much_for_one_act_is_several() {
        let source = source_id(1);
        let items: Vec<_> = (1..=5).map(|number| item_id(&file(number))).collect();
        let many: Vec<_> = items.iter().copied().cycle().take(2 * MAX_OBJECTS + 1).collect();
        let sizes: Vec<_> = in_parts(&many, |items| Act::Seen { source, items })
            .into_iter()
            .map(|act| if let Act::Seen { items, .. } = act { items.len() } else { 0 })
            .collect();
        assert_eq!(sizes, [MAX_OBJECTS, MAX_OBJECTS, 1]);
        assert_eq!(in_parts(&items, |items| Act::DeleteItems { source, items }).len(), 1);
        assert!(in_parts(&[], |items| Act::DeleteItems { source, items }).is_empty());
    }

    #[test]
    fn items_are_grouped_by_conversation_in_their_order() {
        let found = [(2, 1), (1, 2), (2, 3)].map(|(source, item)| (source_id(source), file(item)));
        let groups = by_conversation(found.to_vec());
        assert_eq!(
            groups,
            [
                Group { source: source_id(2), items: vec![file(1), file(3)] },
                Group { source: source_id(1), items: vec![file(2)] },
            ]
        );
    }

    #[test]
    fn what_is_named_twice_counts_once() {
        let named = vec![source(2, "b"), source(1, "a"), source(2, "b")];
        assert_eq!(ids(&each_once(named, |row| row.id)), [source_id(2), source_id(1)]);
    }

    #[test]
    fn an_item_of_another_conversation_is_an_error() {
        let marmot = source(1, "candid marmot");
        let own = vec![(marmot.id, file(1)), (marmot.id, file(2))];
        assert_eq!(of_conversation(&marmot, own).unwrap(), [file(1), file(2)]);
        let error = of_conversation(&marmot, vec![(marmot.id, file(1)), (source_id(2), file(2))]).unwrap_err();
        assert_eq!(error.exit(), Exit::NotFound);
        let words = error.to_string();
        for part in ["9b040002-", "candid marmot", source_id(2).as_str()] {
            assert!(words.contains(part), "{words}");
        }
    }

    #[test]
    fn only_what_stays_and_was_not_seen_is_unread() {
        let unread = file(1);
        let seen = ConversationItem { seen: Seen::Seen, ..file(2) };
        let going = ConversationItem { deletion: Deletion::Pending, ..file(3) };
        assert_eq!([&unread, &seen, &going].map(is_unread), [true, false, false]);
    }

    #[test]
    fn an_error_says_what_was_taken_before_it() {
        let failure = || Failure { kind: FailureKind::Conflict, message: "it is being deleted".to_owned() };
        let error = || CliError::from(ClientError::from(failure()));
        assert_eq!(after(&[], error()).to_string(), "it is being deleted");
        assert_eq!(after(&[taken(0, 3)], error()).to_string(), "it is being deleted");
        let later = after(&[taken(2, 0)], after(&[taken(3, 1)], error()));
        assert_eq!((later.exit(), later.name()), (Exit::Conflict, "conflict"));
        assert!(later.to_string().starts_with("it is being deleted; 5 sources or items"), "{later}");
    }
}
