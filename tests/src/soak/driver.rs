//! The journalist: signs in, acts, repeats what got no answer, and waits until nothing is left to be sent.

use std::time::Duration;

use control::client::{Arrival, Client, ClientError};
use control::{ActState, Event, Failure, KeyState, QueueEntry, Reply, Request, Session, SourceRow, Taken};
use protocol::value::{OneTimeCode, Passphrase, Username, ValueError};
use serde_json::json;
use tokio::sync::watch;

use super::deeds::{self, Deed};
use super::show::Show;
use super::{SoakError, wrong};
use crate::environment::Environment;
use crate::generator::{MARLOW, Prng};
use crate::server::{Command, ControlError, Fault, FaultAct, Matching};

/// In so many acts something goes wrong once.
const FAULT_EVERY: u64 = 8;
/// How long the journalist thinks at most between two acts, in milliseconds.
const THINKS_MS: u64 = 8;
/// How much the server's clock is moved before a login, in seconds: no code is taken twice.
const ANOTHER_CODE: u64 = 90;

/// Why the work stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// The daemon is gone.
    Gone(ClientError),
    /// Something is not as it must be.
    Failed(SoakError),
}

impl From<ClientError> for Stop {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::NoDaemon { .. } | ClientError::Io(_) | ClientError::Ended => Self::Gone(error),
            ClientError::Connect { .. }
            | ClientError::Foreign { .. }
            | ClientError::Silent { .. }
            | ClientError::Frame(_)
            | ClientError::Greeting(_)
            | ClientError::Unexpected
            | ClientError::Failed(_) => Self::Failed(error.into()),
        }
    }
}

impl From<SoakError> for Stop {
    fn from(error: SoakError) -> Self {
        Self::Failed(error)
    }
}

impl From<ControlError> for Stop {
    fn from(error: ControlError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<ValueError> for Stop {
    fn from(error: ValueError) -> Self {
        Self::Failed(error.into())
    }
}

/// Somebody at work, as long as the daemon lives.
pub(super) struct Driver<'a> {
    pub(super) environment: &'a Environment,
    /// How often the daemon has answered.
    pub(super) answers: &'a watch::Sender<u64>,
    pub(super) dice: &'a mut Prng,
    pub(super) deeds: &'a mut [Deed],
    /// Whether the client has what the acts are about.
    pub(super) synced: &'a mut bool,
    pub(super) show: &'a mut Show,
}

impl Driver<'_> {
    /// Does what is still to be done, until nothing waits to be sent.
    pub(super) async fn work(mut self) -> Result<(), Stop> {
        let mut client = Client::connect(&self.environment.control_socket()).await?;
        self.check_shown(&mut client).await?;
        let queue = self.queue(&mut client).await?;
        self.show.figures.found(&queue);
        self.sign_in(&mut client).await?;
        if !*self.synced {
            self.show.note("syncing");
            self.ask(&mut client, Request::Refresh).await?;
            *self.synced = true;
        }
        self.until_keys_are_looked_at(&mut client).await?;
        for at in 0..self.deeds.len() {
            self.act(&mut client, at).await?;
        }
        self.until_nothing_waits(&mut client).await
    }

    async fn ask(&self, client: &mut Client, request: Request) -> Result<Vec<Reply>, ClientError> {
        let mut replies = Vec::new();
        client
            .request(request, |arrival| match arrival {
                Arrival::Reply(reply) => replies.push(reply),
                Arrival::Event(_) => {}
            })
            .await?;
        self.answers.send_modify(|count| *count += 1);
        Ok(replies)
    }

    async fn sources(&self, client: &mut Client) -> Result<Vec<SourceRow>, ClientError> {
        let mut rows = Vec::new();
        for reply in self.ask(client, Request::Sources).await? {
            let Reply::Sources(some) = reply else { continue };
            rows.extend(some);
        }
        Ok(rows)
    }

    /// What was taken shows, whatever has happened since.
    async fn check_shown(&self, client: &mut Client) -> Result<(), Stop> {
        let rows = self.sources(client).await?;
        if let Some(text) = self.deeds.iter().find_map(|deed| deed.not_shown(&rows)) {
            return Err(wrong(text).into());
        }
        for (source, id, text) in self.deeds.iter().filter_map(Deed::told) {
            let shown = self.ask(client, Request::Show { source: source.to_string() }).await?;
            if deeds::said(&shown, id) != Some(text) {
                return Err(wrong(format!("the reply {id} to {source} was taken, and does not show")).into());
            }
        }
        Ok(())
    }

    /// A source can be answered once its key has been looked at, which follows a sync and a start.
    async fn until_keys_are_looked_at(&self, client: &mut Client) -> Result<(), Stop> {
        let mut watching = Client::connect(&self.environment.control_socket()).await?;
        watching.request(Request::Watch, |_| {}).await?;
        while self.sources(client).await?.iter().any(|row| matches!(row.key, KeyState::New { .. })) {
            watching.next_event().await?;
        }
        Ok(())
    }

    async fn sign_in(&mut self, client: &mut Client) -> Result<(), Stop> {
        let replies = self.ask(client, Request::Status).await?;
        let signed_in = |reply: &Reply| matches!(reply, Reply::Status(status) if matches!(status.session, Session::SignedIn { .. }));
        if replies.iter().any(signed_in) {
            return Ok(());
        }
        self.show.note("signing in");
        let control = self.environment.server().control();
        control.apply(Command::AdvanceClock { seconds: ANOTHER_CODE })?;
        let request = Request::Login {
            username: Username::try_new(MARLOW.username)?,
            passphrase: Passphrase::try_new(MARLOW.passphrase)?,
            one_time_code: OneTimeCode::try_new(MARLOW.code_at(control.clock().now()))?,
        };
        self.ask(client, request).await?;
        Ok(())
    }

    /// Does one thing, unless it has been taken.
    async fn act(&mut self, client: &mut Client, at: usize) -> Result<(), Stop> {
        let Some(deed) = self.deeds.get_mut(at).filter(|deed| !deed.taken) else { return Ok(()) };
        let undoes = deed.undoes;
        // From here on nobody knows whether it was taken, until there is an answer.
        let again = std::mem::replace(&mut deed.tried, true);
        let act = deed.act.clone();
        if undoes && let Some(before) = at.checked_sub(1).and_then(|before| self.deeds.get_mut(before)) {
            before.undone();
        }
        if !again {
            self.bad_luck()?;
            tokio::time::sleep(Duration::from_millis(self.dice.below(THINKS_MS))).await;
        }
        let answer: Result<Taken, Failure> = match self.ask(client, Request::Act(act)).await {
            Ok(replies) => match replies.as_slice() {
                [Reply::Taken(taken)] => Ok(*taken),
                other => return Err(wrong(format!("an act was answered by {other:?}")).into()),
            },
            Err(ClientError::Failed(failure)) => Err(failure),
            Err(error) => return Err(error.into()),
        };
        let Some(deed) = self.deeds.get_mut(at) else { return Ok(()) };
        if !deed.is_taken(again, &answer) {
            return Err(wrong(format!("{:?} was answered by {answer:?}, repeated: {again}", deed.act)).into());
        }
        deed.taken = true;
        self.show.figures.taken(again, &answer);
        self.show.note("acting");
        Ok(())
    }

    /// Now and then the next request for an act goes wrong.
    fn bad_luck(&mut self) -> Result<(), ControlError> {
        if !self.dice.chance(1, FAULT_EVERY) {
            return Ok(());
        }
        let matching = match self.dice.below(3) {
            0 => Matching::method("POST", "/api/v1/seen"),
            1 => Matching::method("POST", "/api/v1/sources/**"),
            _ => Matching::method("DELETE", "/api/v1/sources/**"),
        };
        let body = json!({ "error": "Service Unavailable", "message": "try again" });
        let act = match self.dice.below(4) {
            0 | 1 => FaultAct::LoseAnswer,
            2 => FaultAct::Drop,
            _ => FaultAct::json(503, &body),
        };
        self.environment.server().control().add_fault(Fault::new(matching, act).times(1))?;
        Ok(())
    }

    async fn until_nothing_waits(&mut self, client: &mut Client) -> Result<(), Stop> {
        let mut watching = Client::connect(&self.environment.control_socket()).await?;
        // From here on no event is missed.
        watching.request(Request::Watch, |_| {}).await?;
        loop {
            let queue = self.queue(client).await?;
            if let Some(refused) = queue.iter().find(|entry| entry.state == ActState::Refused) {
                return Err(wrong(format!("an act was refused: {refused:?}")).into());
            }
            if queue.is_empty() {
                return self.check_shown(client).await;
            }
            self.show.waits(&queue);
            if self.until_news(&mut watching).await? {
                self.check_shown(client).await?;
            }
        }
    }

    /// Waits until the queue may have changed; gives whether a snapshot was applied.
    async fn until_news(&self, watching: &mut Client) -> Result<bool, Stop> {
        loop {
            match watching.next_event().await? {
                Event::SyncEnded(_) | Event::Missed(_) => return Ok(true),
                Event::Act(_) => return Ok(false),
                Event::SessionEnded(why) => return Err(wrong(format!("the session ended: {why:?}")).into()),
                Event::RemovalsHeld(held) => return Err(wrong(format!("removals are held: {held:?}")).into()),
                Event::ErasureFailed(fault) => return Err(wrong(format!("something is not erased: {fault:?}")).into()),
                Event::ProxyWaiting
                | Event::SessionStarted(_)
                | Event::SyncStarted(_)
                | Event::SyncStale { .. }
                | Event::SyncFresh
                | Event::SourcesChanged(_)
                | Event::Download(_)
                | Event::Read(_)
                | Event::KeyHeld { .. }
                | Event::Erased(_)
                | Event::Paused(_)
                | Event::Resumed
                | Event::Viewer { .. } => {}
            }
        }
    }

    async fn queue(&self, client: &mut Client) -> Result<Vec<QueueEntry>, Stop> {
        let mut queue = Vec::new();
        for reply in self.ask(client, Request::Queue).await? {
            let Reply::Queue(some) = reply else { continue };
            queue.extend(some);
        }
        Ok(queue)
    }
}
