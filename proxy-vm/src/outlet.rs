//! One call's answer on its way to the client, and what the session learns from it about the server.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use protocol::value::RequestId;
use protocol::{CallError, ErrorKind, Items, ServerContact, Stage};
use qubes_rpc::serve::Responder;
use tokio::time::Instant;

/// The last contact with the server, shared by a session's calls.
#[derive(Debug, Default)]
pub struct Contacts(Mutex<Option<Contact>>);

#[derive(Debug, Clone, Copy)]
struct Contact {
    at: Instant,
    failed: Option<(ErrorKind, Stage)>,
}

impl Contacts {
    /// The last contact, as of now.
    #[must_use]
    pub fn last(&self) -> ServerContact {
        let Some(contact) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) else {
            return ServerContact::NoneYet;
        };
        let ago_ms = u64::try_from(contact.at.elapsed().as_millis()).unwrap_or(u64::MAX);
        match contact.failed {
            None => ServerContact::Answered { ago_ms },
            Some((kind, stage)) => ServerContact::Failed { kind, stage, ago_ms },
        }
    }

    fn note(&self, failed: Option<(ErrorKind, Stage)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Contact { at: Instant::now(), failed });
    }

    fn note_result(&self, result: &Result<(), CallError>) {
        let Err(error) = result else { return self.note(None) };
        // Nothing was sent anywhere.
        if error.stage == Stage::Admission {
            return;
        }
        match error.kind {
            ErrorKind::Unauthorized
            | ErrorKind::NotFound
            | ErrorKind::Conflict
            | ErrorKind::Refused
            | ErrorKind::RateLimited
            | ErrorKind::Server
            | ErrorKind::BadResponse
            | ErrorKind::TooLarge => self.note(None),
            ErrorKind::Unreachable | ErrorKind::Timeout => self.note(Some((error.kind, error.stage))),
            // These say nothing about the server.
            ErrorKind::OutOfScope | ErrorKind::Cancelled | ErrorKind::Internal => {}
        }
    }
}

/// Sends one call's answer, and knows how far the call has come.
///
/// A call that runs out of time is dropped and cannot say so itself; this notices it when it is dropped in its turn.
#[derive(Debug)]
pub struct Outlet<'a> {
    responder: &'a mut Responder,
    contacts: &'a Contacts,
    ends: Option<Instant>,
    stage: Stage,
    /// How many requests the call has made of the server.
    requests: u16,
}

impl<'a> Outlet<'a> {
    /// The outlet of a call that was `started` with `deadline`.
    #[must_use]
    pub fn new(responder: &'a mut Responder, contacts: &'a Contacts, started: Instant, deadline: Duration) -> Self {
        Self { responder, contacts, ends: started.checked_add(deadline), stage: Stage::Admission, requests: 0 }
    }

    /// The call's id in the logs of both VMs.
    #[must_use]
    pub fn request(&self) -> RequestId {
        self.responder.request()
    }

    /// The id of the call's next request of the server: the call's own for the first.
    pub fn next_request(&mut self) -> RequestId {
        let id = self.request().numbered(self.requests);
        self.requests = self.requests.wrapping_add(1);
        id
    }

    /// Says how far the call has come.
    pub fn reached(&mut self, stage: Stage) {
        self.stage = stage;
        self.responder.reached(stage);
    }

    /// How much of the call's deadline is left.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.ends.map_or(Duration::MAX, |ends| ends.saturating_duration_since(Instant::now()))
    }

    /// Begins the answer: the server has accepted the call.
    ///
    /// # Errors
    /// As [`Responder::begin`].
    pub async fn begin(&mut self) -> Result<(), CallError> {
        self.responder.begin().await
    }

    /// Sends some items.
    ///
    /// # Errors
    /// As [`Responder::items`].
    pub async fn items(&mut self, items: Items) -> Result<(), CallError> {
        self.responder.items(items).await
    }

    /// The call has ended by itself.
    pub fn settle(mut self, result: &Result<(), CallError>) {
        self.ends = None;
        self.contacts.note_result(result);
    }
}

impl Drop for Outlet<'_> {
    fn drop(&mut self) {
        if self.stage != Stage::Admission && self.ends.is_some_and(|ends| Instant::now() >= ends) {
            self.contacts.note(Some((ErrorKind::Timeout, self.stage)));
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::Retry;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_contact_is_an_answer_of_any_kind_or_a_failure_to_get_one() {
        let contacts = Contacts::default();
        assert_eq!(contacts.last(), ServerContact::NoneYet);
        contacts.note_result(&Err(CallError::new(ErrorKind::Cancelled, Stage::Body, Retry::Now)));
        contacts.note_result(&Err(CallError::new(ErrorKind::Refused, Stage::Admission, Retry::Never)));
        assert_eq!(contacts.last(), ServerContact::NoneYet);

        contacts.note_result(&Err(CallError::new(ErrorKind::Unauthorized, Stage::FirstByte, Retry::WhenUserActs)));
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(contacts.last(), ServerContact::Answered { ago_ms: 1500 });

        contacts.note_result(&Err(CallError::new(ErrorKind::Unreachable, Stage::Route, Retry::Never)));
        assert_eq!(
            contacts.last(),
            ServerContact::Failed { kind: ErrorKind::Unreachable, stage: Stage::Route, ago_ms: 0 }
        );
    }
}
