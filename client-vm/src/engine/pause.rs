//! Why nothing is sent or fetched: states, not events. A lane asks before it starts something, and nothing has to be told
//! twice.
//!
//! **Invariant:** only "nobody is signed in", the user's own pause and what dom0 would be asked about need a person to end
//! them.
//!
//! **Invariant:** what was told is withdrawn as soon as nothing holds up the queue any more but that nobody is signed in,
//! which the session's own events say.

use control::{Event, Failure, PauseReason};
use protocol::value::Timestamp;
use tokio::time::Instant;

use super::Engine;
use super::handle::Answer;
use super::session::SessionState;
use crate::failure;
use crate::store::downloads;

#[derive(Debug, Default)]
pub(super) struct Pauses {
    network: Option<NetworkPause>,
    user: bool,
}

/// There is no way to the server.
#[derive(Debug)]
struct NetworkPause {
    since: Timestamp,
    message: String,
    /// When it is tried again. A sync that reaches the server ends it earlier.
    until: Instant,
    failures: u32,
}

impl Pauses {
    pub(super) fn new(user: bool) -> Self {
        Self { network: None, user }
    }

    fn network_reason(&self) -> Option<PauseReason> {
        self.network.as_ref().map(|pause| PauseReason::Network { since: pause.since, message: pause.message.clone() })
    }
}

impl Engine {
    /// Whether something may be sent or fetched now; where that is only a matter of time, when.
    pub(super) fn may_go_on(&self) -> Result<(), Option<Instant>> {
        if self.pauses.user || !matches!(self.session, SessionState::In(_)) {
            return Err(None);
        }
        match &self.pauses.network {
            Some(pause) if pause.until > Instant::now() => Err(Some(pause.until)),
            Some(_) | None => Ok(()),
        }
    }

    /// Why nothing is done at present.
    pub(super) fn pause_reasons(&self) -> Vec<PauseReason> {
        let mut reasons = Vec::new();
        if !matches!(self.session, SessionState::In(_)) {
            reasons.push(PauseReason::NoSession);
        }
        reasons.extend(self.pauses.network_reason());
        reasons.extend(self.downloading.room_reason());
        reasons.extend(self.downloading.held_reason());
        if self.pauses.user {
            reasons.push(PauseReason::User);
        }
        reasons
    }

    /// There is no way to the server: whatever goes there waits.
    pub(super) fn pause_network(&mut self, told: &Failure) {
        // What runs at the same time finds the same.
        if self.pauses.network.as_ref().is_some_and(|pause| pause.until > Instant::now()) {
            return;
        }
        let failures = self.pauses.network.as_ref().map_or(0, |pause| pause.failures).saturating_add(1);
        let until = Instant::now() + self.acting.waits().after(failures, fastrand::f64());
        let since = self.pauses.network.as_ref().map_or_else(|| self.clock.now(), |pause| pause.since);
        let is_new = self.pauses.network.is_none();
        self.pauses.network = Some(NetworkPause { since, message: told.message.clone(), until, failures });
        if is_new && let Some(reason) = self.pauses.network_reason() {
            tracing::warn!("the queue waits: there is no way to the server");
            self.emit(Event::Paused(reason));
        }
    }

    /// Whether there is a way to the server is to be found out now.
    pub(super) fn end_network_wait(&mut self) {
        if let Some(pause) = &mut self.pauses.network {
            pause.until = Instant::now();
        }
    }

    /// There is a way to the server.
    pub(super) fn lift_network_pause(&mut self) {
        if self.pauses.network.take().is_some() {
            tracing::info!("there is a way to the server again");
            self.tell_resumed();
        }
    }

    /// Withdraws what was told, unless there is another reason that was.
    pub(super) fn tell_resumed(&self) {
        if self.pause_reasons().iter().all(|reason| *reason == PauseReason::NoSession) {
            self.emit(Event::Resumed);
        }
    }

    /// The session is over: whether there is a way is to be found out by the next one. What was told of it is withdrawn.
    pub(super) fn forget_network_pause(&mut self) {
        if self.pauses.network.take().is_some() {
            self.tell_resumed();
        }
    }

    pub(super) async fn pause(&mut self, answer: Answer<()>) {
        let was_paused = self.pauses.user;
        if let Err(error) = self.store.write(|transaction| downloads::set_paused(transaction, true)).await {
            answer.give(Err(failure::of_store(&error)));
            return;
        }
        self.pauses.user = true;
        self.stop_downloads();
        if !was_paused {
            self.emit(Event::Paused(PauseReason::User));
        }
        answer.give(Ok(()));
    }

    pub(super) async fn resume(&mut self, answer: Answer<()>) {
        let resumed = self.store.write(|transaction| {
            downloads::end_waits(transaction)?;
            downloads::set_paused(transaction, false)
        });
        if let Err(error) = resumed.await {
            answer.give(Err(failure::of_store(&error)));
            return;
        }
        let paused = std::mem::take(&mut self.pauses.user);
        if paused | self.pauses.network.take().is_some() | self.downloading.forget_refusals() {
            self.tell_resumed();
        }
        answer.give(Ok(()));
        self.reading.forget_failures();
        self.acting.let_dom0_ask();
        self.work().await;
    }
}
