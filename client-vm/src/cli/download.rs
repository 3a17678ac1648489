//! The command that has files fetched, and waits until they are there and decrypted.
//!
//! Events say when to look; what an item is in the end is said by the daemon when it is asked. So an event of an attempt
//! that came before, or one that was missed, deceives nobody.
//!
//! **Invariant:** who is interrupted while waiting has ended the waiting and nothing else.

pub(super) mod screen;
mod waiting;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use control::act::MAX_OBJECTS;
use control::client::{Client, ClientError};
use control::{ConversationItem, Deletion, DownloadEntry, Event, FailureKind, Reply, Request, Wanted};
use protocol::value::ItemId;
use tokio::time::{Instant, MissedTickBehavior};

use self::screen::Screen;
use self::waiting::Waiting;
use super::act::{find_items, item_id};
use super::args::{Args, Download};
use super::exit::CliError;
use super::{ask, ask_and_hear, json, next_event, print, text};

/// How often the progress is drawn anew, and what is unclear is asked for. Events of progress come no oftener.
const TICK: Duration = Duration::from_millis(250);
/// How often it is asked how all of it is. What was only waiting may go without an event.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// What is to be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Which {
    /// All files that are not there, and all that has failed.
    All,
    /// What was named, each once.
    Items(Vec<ConversationItem>),
}

impl Which {
    /// The requests that name them, each as many as one may name.
    fn requests(&self, request: impl Fn(Vec<ItemId>) -> Request) -> Vec<Request> {
        match self {
            Self::All => vec![request(Vec::new())],
            // A request that names none would mean all: there is no such part.
            Self::Items(items) => {
                items.chunks(MAX_OBJECTS).map(|some| request(some.iter().map(item_id).collect())).collect()
            }
        }
    }
}

pub(super) async fn download(args: &Args, client: &mut Client, download: &Download) -> Result<(), CliError> {
    let which = if download.all {
        Which::All
    } else {
        let found = find_items(client, &download.items).await?;
        Which::Items(found.into_iter().map(|(_, item)| item).collect())
    };
    if download.stop {
        let stopped = ask_for(client, which.requests(|items| Request::StopDownload { items }), |_| {}).await?;
        return print(args, || json::stopped(&stopped), || text::stopped(&stopped)).await;
    }
    if let Which::Items(items) = &which {
        refuse_if_being_deleted(items)?;
    }
    if waits(download, args.json, io::stderr().is_terminal()) {
        return fetch_and_wait(args, client, &which).await;
    }
    let wanted = ask_for(client, which.requests(|items| Request::Download { items }), |_| {}).await?;
    print(args, || json::wanted(&wanted), || text::wanted(&wanted)).await
}

/// Whether to wait: as it is said, else where a person sits and looks on.
fn waits(download: &Download, json: bool, terminal: bool) -> bool {
    download.wait || (terminal && !json && !download.no_wait)
}

/// What is being deleted is not fetched any more, and nobody should wait for it.
fn refuse_if_being_deleted(items: &[ConversationItem]) -> Result<(), CliError> {
    match items.iter().find(|item| item.deletion == Deletion::Pending) {
        Some(item) => Err(CliError::BeingDeleted { item: item_id(item) }),
        None => Ok(()),
    }
}

/// Makes the requests in their order; gives what became of all of them. The first that fails ends it; what was taken
/// before stays taken.
async fn ask_for(client: &mut Client, requests: Vec<Request>, mut hear: impl FnMut(Event)) -> Result<Wanted, CliError> {
    let mut wanted = Wanted::default();
    for request in requests {
        let replies = ask_and_hear(client, request, &mut hear).await.map_err(|error| error.after(wanted.asked))?;
        for reply in replies {
            let Reply::Wanted(one) = reply else { continue };
            wanted.asked = wanted.asked.saturating_add(one.asked);
            wanted.already = wanted.already.saturating_add(one.already);
        }
    }
    Ok(wanted)
}

async fn fetch_and_wait(args: &Args, client: &mut Client, which: &Which) -> Result<(), CliError> {
    let mut waiting = match which {
        // The messages and replies among it come as others do, by themselves.
        Which::All => Waiting::for_all_files(),
        Which::Items(items) => Waiting::for_items(items),
    };
    // Before anything is asked for, so that nothing of it is missed.
    for reply in ask(client, Request::Watch).await? {
        let Reply::Status(status) = reply else { continue };
        waiting.begin(&status);
    }
    let requests = which.requests(|items| Request::Download { items });
    let wanted = ask_for(client, requests, |event| waiting.note_why(&event)).await?;
    let mut screen = Screen::new();
    if !args.json {
        print(args, String::new, || text::wanted(&wanted)).await?;
    }
    let ended = until_settled(client, &mut waiting, &mut screen).await;
    screen.finish();
    ended?;
    waiting.outcome()?;
    let there = waiting.there();
    print(args, || json::fetched(&wanted, &there), || text::all_are_there(&there)).await
}

/// Waits until each item is there, has failed or is not to be fetched any more. Not cancel-safe: called off, it leaves the
/// connection in the midst of an answer, and the download goes on.
async fn until_settled(client: &mut Client, waiting: &mut Waiting, screen: &mut Screen) -> Result<(), CliError> {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut look_at = Instant::now();
    while !waiting.is_over() {
        tokio::select! {
            event = next_event(client) => waiting.hear(&event?, Instant::now()),
            _ = tick.tick() => {
                if waiting.take_missed() {
                    look_at = Instant::now();
                    ask_status(client, waiting).await?;
                }
                if look_at <= Instant::now() {
                    look(client, waiting).await?;
                    look_at = Instant::now() + LOOK_AGAIN;
                }
                check(client, waiting).await?;
                waiting.refuse_if_nothing_comes()?;
                screen.draw(waiting.lines(Instant::now()));
            }
        }
    }
    Ok(())
}

async fn ask_status(client: &mut Client, waiting: &mut Waiting) -> Result<(), CliError> {
    let replies = ask_and_hear(client, Request::Status, |event| waiting.hear(&event, Instant::now())).await?;
    for reply in replies {
        let Reply::Status(status) = reply else { continue };
        waiting.begin(&status);
    }
    Ok(())
}

/// Asks how all that is not settled is.
async fn look(client: &mut Client, waiting: &mut Waiting) -> Result<(), CliError> {
    let replies = ask_and_hear(client, Request::Downloads, |event| waiting.hear(&event, Instant::now())).await?;
    waiting.look(gathered(replies), Instant::now());
    Ok(())
}

/// Asks what became of the items of which it is not clear.
async fn check(client: &mut Client, waiting: &mut Waiting) -> Result<(), CliError> {
    for item in waiting.unclear() {
        let request = Request::FindItems { words: vec![item.to_string()] };
        let found = match ask_and_hear(client, request, |event| waiting.hear(&event, Instant::now())).await {
            Ok(replies) => replies.into_iter().find_map(|reply| match reply {
                Reply::Found { item, .. } => Some(*item),
                _other => None,
            }),
            Err(CliError::Client(ClientError::Failed(told))) if told.kind == FailureKind::NotFound => None,
            Err(error) => return Err(error),
        };
        waiting.check(item, found.as_ref());
    }
    Ok(())
}

/// The downloads of an answer.
pub(super) fn gathered(replies: Vec<Reply>) -> Vec<DownloadEntry> {
    let mut entries = Vec::new();
    for reply in replies {
        let Reply::Downloads(some) = reply else { continue };
        entries.extend(some);
    }
    entries
}

#[cfg(test)]
mod tests;
