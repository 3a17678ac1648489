//! The commands about what waits: to list it, to deal with it, to pause it.

use control::client::{Client, ClientError};
use control::{ActId, ActState, Deal, FailureKind, QueueEntry, Reply, Request, Status};

use super::args::{Acts, Args};
use super::download::gathered;
use super::exit::CliError;
use super::{ask, json, print, text};
use crate::clock::Clock;

/// How often `--all` looks at the queue anew when it has gone on in between.
const LOOKS: usize = 5;

pub(super) async fn list(args: &Args, client: &mut Client) -> Result<(), CliError> {
    let acts = load(client).await?;
    let downloads = gathered(ask(client, Request::Downloads).await?);
    let (status, now) = (status(client).await?, Clock::System.now());
    print(args, || json::queue(&status, &acts, &downloads), || text::queue(&status, &acts, &downloads, now)).await
}

pub(super) async fn pause(args: &Args, client: &mut Client) -> Result<(), CliError> {
    ask(client, Request::Pause).await?;
    print(args, json::done, text::paused_by_user).await
}

/// Lets the queue go on, and says what else holds it up.
pub(super) async fn resume(args: &Args, client: &mut Client) -> Result<(), CliError> {
    ask(client, Request::Resume).await?;
    let reasons = status(client).await?.queue.paused;
    print(args, || json::paused(&reasons), || text::resumed(&reasons)).await
}

async fn status(client: &mut Client) -> Result<Status, CliError> {
    for reply in ask(client, Request::Status).await? {
        let Reply::Status(status) = reply else { continue };
        return Ok(*status);
    }
    Err(ClientError::Unexpected.into())
}

/// Takes deletions back that were not sent: those that were named, or the newest.
pub(super) async fn undo(args: &Args, client: &mut Client, acts: &[ActId]) -> Result<(), CliError> {
    let acts = distinct(acts.iter().copied());
    let mut undone = Vec::new();
    for reply in ask(client, Request::Undo { acts }).await? {
        let Reply::Undone(some) = reply else { continue };
        undone.extend(some);
    }
    print(args, || json::undone(&undone), || text::undone(&undone)).await
}

/// Deals with the acts that were named, or with all that are in a state for it.
pub(super) async fn deal(args: &Args, client: &mut Client, deal: Deal, acts: &Acts) -> Result<(), CliError> {
    if acts.all { deal_with_all(args, client, deal).await } else { deal_with(args, client, deal, &acts.acts).await }
}

/// Deals with the acts that were named: with all of them or, if that cannot be, with none.
pub(super) async fn deal_with(args: &Args, client: &mut Client, deal: Deal, acts: &[ActId]) -> Result<(), CliError> {
    let acts = distinct(acts.iter().copied());
    ask(client, Request::Deal { deal, acts: acts.clone() }).await?;
    print(args, || json::dealt(deal, &acts), || text::dealt(deal, &acts)).await
}

async fn deal_with_all(args: &Args, client: &mut Client, deal: Deal) -> Result<(), CliError> {
    let mut looks = 0;
    loop {
        looks += 1;
        let acts = fitting(deal, &load(client).await?);
        if !acts.is_empty() {
            match ask(client, Request::Deal { deal, acts: acts.clone() }).await {
                Ok(_) => {}
                // One of them was sent, say, after it was listed, or is over.
                Err(error) if looks < LOOKS && has_gone_on(&error) => continue,
                Err(error) => return Err(error),
            }
        }
        return print(args, || json::dealt(deal, &acts), || text::dealt(deal, &acts)).await;
    }
}

pub(super) async fn load(client: &mut Client) -> Result<Vec<QueueEntry>, CliError> {
    let mut queue = Vec::new();
    for reply in ask(client, Request::Queue).await? {
        let Reply::Queue(some) = reply else { continue };
        queue.extend(some);
    }
    Ok(queue)
}

/// Whether an act is no longer there, or no longer in the state in which it was listed.
fn has_gone_on(error: &CliError) -> bool {
    matches!(
        error,
        CliError::Client(ClientError::Failed(failure))
            if matches!(failure.kind, FailureKind::Conflict | FailureKind::NotFound)
    )
}

/// One's own acts of which something is in a state for this.
fn fitting(deal: Deal, queue: &[QueueEntry]) -> Vec<ActId> {
    distinct(queue.iter().filter(|entry| entry.own && fits(deal, entry)).map(|entry| entry.act))
}

fn fits(deal: Deal, entry: &QueueEntry) -> bool {
    match (deal, &entry.state) {
        // What can still be undone is not hurried with all the rest.
        (Deal::Retry, ActState::Opening | ActState::Running | ActState::Grace) => false,
        (
            Deal::Retry,
            ActState::Waiting | ActState::Unconfirmed | ActState::Held | ActState::Refused | ActState::NotDeleted,
        ) => true,
        (Deal::Cancel, ActState::Waiting | ActState::Opening | ActState::Grace) => true,
        // An attempt that certainly had no effect does not count.
        (Deal::Cancel, ActState::Held) => entry.attempts == 0,
        (Deal::Cancel, ActState::Running | ActState::Unconfirmed | ActState::Refused | ActState::NotDeleted) => false,
        (Deal::Dismiss, state) => *state == ActState::Refused,
        (Deal::Restore, state) => *state == ActState::NotDeleted,
    }
}

fn distinct(acts: impl Iterator<Item = ActId>) -> Vec<ActId> {
    acts.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::samples::entry;
    use super::*;

    #[test]
    fn all_are_the_own_acts_in_a_state_for_it() {
        let states = [
            ActState::Waiting,
            ActState::Running,
            ActState::Unconfirmed,
            ActState::Held,
            ActState::Refused,
            ActState::NotDeleted,
        ];
        let mut queue: Vec<_> = (1..).zip(states).map(|(act, state)| QueueEntry { state, ..entry(act) }).collect();
        // Another journalist's, and one that was held after it was sent.
        queue.push(QueueEntry { own: false, ..entry(7) });
        queue.push(QueueEntry { state: ActState::Held, attempts: 1, ..entry(8) });
        // A deletion that can be taken back.
        queue.push(QueueEntry { state: ActState::Grace, ..entry(9) });
        // One act may be in several states.
        queue.push(QueueEntry { state: ActState::Refused, ..entry(1) });
        let all = |deal| fitting(deal, &queue).into_iter().map(|act| act.0).collect::<Vec<_>>();
        assert_eq!(all(Deal::Retry), [1, 3, 4, 5, 6, 8]);
        assert_eq!(all(Deal::Cancel), [1, 4, 9]);
        assert_eq!(all(Deal::Dismiss), [1, 5]);
        assert_eq!(all(Deal::Restore), [6]);
    }
}
