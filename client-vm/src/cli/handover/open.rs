//! The command that opens an item in a disposable VM.
//!
//! **Invariant:** who is interrupted while waiting has ended the waiting and nothing else.

use std::io::{self, Write as _};

use control::client::Client;
use control::{Event, Reply, Request, ViewerStep};
use protocol::value::ItemId;

use super::super::act::item_id;
use super::super::args::{Args, Open};
use super::super::exit::CliError;
use super::super::{ask, ask_and_hear, json, next_event, print, text};
use super::find_readable;

pub(in crate::cli) async fn open(args: &Args, client: &mut Client, wanted: &Open) -> Result<(), CliError> {
    for readable in find_readable(client, std::slice::from_ref(&wanted.item)).await? {
        let item = item_id(&readable.item);
        if wanted.no_wait {
            ask(client, Request::Open { item }).await?;
            print(args, || json::viewed(item, &ViewerStep::Opened), text::handed_over).await?;
        } else {
            open_and_wait(client, item).await?;
            print(args, || json::viewed(item, &ViewerStep::Closed), text::closed).await?;
        }
    }
    Ok(())
}

/// Waits for the end of it. Not cancel-safe: called off, it leaves the connection in the midst of an answer, and the
/// document open.
async fn open_and_wait(client: &mut Client, item: ItemId) -> Result<(), CliError> {
    // Before it is opened, so that nothing of it is missed.
    ask(client, Request::Watch).await?;
    let mut ended = None;
    ask_and_hear(client, Request::Open { item }, |event| hear(&event, item, &mut ended)).await?;
    drop(writeln!(io::stderr(), "{}", text::is_open()));
    loop {
        if let Some(ended) = ended {
            return ended;
        }
        let event = next_event(client).await?;
        hear(&event, item, &mut ended);
        if matches!(event, Event::Missed(_)) && ended.is_none() && !is_open(client, item, &mut ended).await? {
            // Its end was among what was missed.
            return ended.unwrap_or(Ok(()));
        }
    }
}

async fn is_open(
    client: &mut Client,
    item: ItemId,
    ended: &mut Option<Result<(), CliError>>,
) -> Result<bool, CliError> {
    let replies = ask_and_hear(client, Request::Viewers, |event| hear(&event, item, ended)).await?;
    Ok(replies.iter().any(|reply| matches!(reply, Reply::Viewers(items) if items.contains(&item))))
}

fn hear(event: &Event, about: ItemId, ended: &mut Option<Result<(), CliError>>) {
    let Event::Viewer { item, step } = event else { return };
    if *item != about {
        return;
    }
    match step {
        // What came before it was about an earlier one.
        ViewerStep::Opened => *ended = None,
        ViewerStep::Closed => *ended = Some(Ok(())),
        ViewerStep::Failed(failure) => *ended = Some(Err(CliError::Client(failure.clone().into()))),
    }
}
