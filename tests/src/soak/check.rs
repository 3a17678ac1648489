//! Whether what was done is what should have been, and whether what is shown is what the server has.

use std::collections::{BTreeMap, BTreeSet};

use control::client::{Arrival, Client, ClientError};
use control::{Deletion, ItemKind, Reply, Request, Seen, SourceRow};
use protocol::value::SourceId;

use super::deeds::{self, Changed, Deed};
use super::{SoakError, wrong};
use crate::environment::Environment;
use crate::server::{Changes, RecordId, SourceState, World};

/// How many differences are told; more are counted.
const TOLD: usize = 20;

pub(super) struct Check<'a> {
    pub(super) environment: &'a Environment,
    pub(super) journalist: &'a RecordId,
}

/// A source as far as it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    starred: bool,
    being_deleted: bool,
    /// By whether it is a reply, and its id: whether it is unread, and being deleted.
    items: BTreeMap<(bool, String), (bool, bool)>,
}

type Sources = BTreeMap<String, Shown>;

impl Check<'_> {
    /// Compares what the server was changed by with `done`, and what is shown, before and after a refresh, with what the
    /// server has.
    pub(super) async fn all(&self, done: &Changed) -> Result<(), SoakError> {
        let control = self.environment.server().control();
        let changes = control.with_world(World::changes);
        let mut differences = of_changes(&changes, done);
        let at_the_server = control.with_world(|world| self.at_the_server(world));
        let mut client = Client::connect(&self.environment.control_socket()).await?;
        // What is confirmed shows as confirmed without a snapshot.
        differences.extend(of_sources("before a refresh", &shown(&mut client).await?, &at_the_server));
        ask(&mut client, Request::Refresh).await?;
        differences.extend(of_sources("after a refresh", &shown(&mut client).await?, &at_the_server));
        if differences.is_empty() {
            return Ok(());
        }
        let more = differences.len().saturating_sub(TOLD);
        differences.truncate(TOLD);
        if more > 0 {
            differences.push(format!("and {more} more"));
        }
        Err(wrong(differences.join("\n")))
    }

    /// Compares what was told to sources with what they read, in the order of it, and with what is shown.
    pub(super) async fn replies(&self, deeds: &[Deed]) -> Result<(), SoakError> {
        let control = self.environment.server().control();
        let mut client = Client::connect(&self.environment.control_socket()).await?;
        let mut in_order: BTreeMap<SourceId, Vec<String>> = BTreeMap::new();
        for (source, id, text) in deeds.iter().filter_map(Deed::told) {
            in_order.entry(source).or_default().push(id.to_string());
            let read = control.source_reads(&RecordId::from(id.as_str())).await;
            if !read.as_ref().is_ok_and(|reading| reading.text == text) {
                return Err(wrong(format!("{source} was told {text:?} and reads {read:?}")));
            }
            let shown = ask(&mut client, Request::Show { source: source.to_string() }).await?;
            if deeds::said(&shown, id) != Some(text) {
                return Err(wrong(format!("{source} was told {text:?}, and that is not shown")));
            }
        }
        for (source, told) in in_order {
            let stored: Vec<String> = control.with_world(|world| {
                let source = world.source(source.as_str());
                source
                    .map(|source| world.replies_of(source).map(|reply| reply.id.to_string()).collect())
                    .unwrap_or_default()
            });
            if stored != told {
                return Err(wrong(format!("{source} was told {told:?}, and the server has {stored:?}")));
            }
        }
        Ok(())
    }

    fn at_the_server(&self, world: &World) -> Sources {
        let listed = world.sources().filter(|source| source.state == SourceState::Listed);
        listed
            .map(|source| {
                let unread = |seen_by: &[RecordId]| (!seen_by.contains(self.journalist), false);
                let submissions =
                    world.submissions_of(source).map(|row| ((false, row.id.to_string()), unread(&row.seen_by)));
                let replies = world.replies_of(source).map(|row| ((true, row.id.to_string()), unread(&row.seen_by)));
                let shown = Shown {
                    starred: source.is_starred,
                    being_deleted: false,
                    items: submissions.chain(replies).collect(),
                };
                (source.id.to_string(), shown)
            })
            .collect()
    }
}

async fn ask(client: &mut Client, request: Request) -> Result<Vec<Reply>, ClientError> {
    let mut replies = Vec::new();
    let take = |arrival| match arrival {
        Arrival::Reply(reply) => replies.push(reply),
        Arrival::Event(_) => {}
    };
    client.request(request, take).await?;
    Ok(replies)
}

/// All that front ends are shown.
async fn shown(client: &mut Client) -> Result<Sources, ClientError> {
    let mut rows: Vec<SourceRow> = Vec::new();
    for reply in ask(client, Request::Sources).await? {
        let Reply::Sources(some) = reply else { continue };
        rows.extend(some);
    }
    let mut sources = Sources::new();
    for row in rows {
        let mut shown =
            Shown { starred: row.starred, being_deleted: row.deletion == Deletion::Pending, items: BTreeMap::new() };
        for reply in ask(client, Request::Show { source: row.id.to_string() }).await? {
            let items = match reply {
                Reply::Conversation(items) => items,
                // Confirmed, and no snapshot has listed it yet.
                Reply::Outgoing(outgoing) if outgoing.state.is_none() => {
                    shown.items.insert((true, outgoing.reply.to_string()), (false, false));
                    continue;
                }
                _other => continue,
            };
            shown.items.extend(items.into_iter().map(|item| {
                let key = match &item.kind {
                    ItemKind::Submission { id, .. } => (false, id.to_string()),
                    ItemKind::Reply { id, .. } => (true, id.to_string()),
                };
                (key, (item.seen == Seen::Unread, item.deletion == Deletion::Pending))
            }));
        }
        sources.insert(row.id.to_string(), shown);
    }
    Ok(sources)
}

fn of_changes(made: &Changes, wanted: &Changed) -> Vec<String> {
    let missing = wanted.once.iter().filter(|change| made.of(change) == 0);
    let missing = missing.map(|change| format!("not done: {change:?}"));
    let allowed: BTreeSet<_> = wanted.once.iter().chain(&wanted.at_most_once).collect();
    let too_many = made.iter().filter_map(|(change, times)| match (allowed.contains(change), times) {
        (true, 0..=1) => None,
        (true, times) => Some(format!("done {times} times: {change:?}")),
        (false, _) => Some(format!("done by nobody: {change:?}")),
    });
    missing.chain(too_many).collect()
}

fn of_sources(when: &str, shown: &Sources, at_the_server: &Sources) -> Vec<String> {
    let mut differences = Vec::new();
    for (id, source) in at_the_server {
        match shown.get(id) {
            Some(same) if same == source => {}
            other => differences.push(format!("{when}, source {id}: the server has {source:?}, shown is {other:?}")),
        }
    }
    let gone = shown.keys().filter(|id| !at_the_server.contains_key(*id));
    differences.extend(gone.map(|id| format!("{when}, source {id}: shown, and the server does not list it")));
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Change;

    #[test]
    fn what_was_done_twice_or_not_or_by_nobody_is_told() {
        let stars = |sources: &[&str]| -> Vec<Change> {
            sources.iter().map(|source| Change::StarSet { source: (*source).into() }).collect()
        };
        let made = |sources: &[&str]| -> Changes { stars(sources).into_iter().collect() };
        let wanted = Changed { once: stars(&["a", "b"]), at_most_once: stars(&["c", "d"]) };
        assert_eq!(of_changes(&made(&["a", "b", "d"]), &wanted), [] as [String; 0]);
        let told = of_changes(&made(&["a", "c", "c", "e"]), &wanted);
        assert_eq!(told.len(), 3, "{told:?}");
        for (told, words) in told.iter().zip(["not done", "done 2 times", "done by nobody"]) {
            assert!(told.starts_with(words), "{told}");
        }
    }

    #[test]
    fn what_shows_otherwise_is_told() {
        let source = |starred, unread| Shown {
            starred,
            being_deleted: false,
            items: BTreeMap::from([((false, "item".to_owned()), (unread, false))]),
        };
        let sources = |all: &[(&str, Shown)]| -> Sources {
            all.iter().map(|(id, shown)| ((*id).to_owned(), shown.clone())).collect()
        };
        let server = sources(&[("a", source(true, true)), ("b", source(false, false))]);
        assert_eq!(of_sources("now", &server, &server), [] as [String; 0]);
        let client = sources(&[("a", source(true, false)), ("c", source(false, false))]);
        let told = of_sources("now", &client, &server);
        assert_eq!(told.len(), 3, "{told:?}");
    }
}
