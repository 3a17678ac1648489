//! One session: the calls of the protocol, mapped to the Journalist API.
//!
//! **Invariant:** whether the session may be used is decided before its first call. Without valid settings no call is
//! performed.
//!
//! **Invariant:** what a session may delete is counted before anything is sent.

use std::time::Duration;

use protocol::{Call, CallError, Confinement, ErrorKind, Health, Hello, Items, Refusal, Retry, Stage};
use qubes_rpc::serve::{Responder, Service};
use tokio::time::Instant;

use crate::delete_limit::{DeleteLimit, DeleteTargets};
use crate::journalist_api::{Conversation, Credentials, JournalistApi, OutgoingReply};
use crate::outlet::{Contacts, Outlet};

/// Performs a session's calls through `A`.
#[derive(Debug)]
pub struct Session<A> {
    api: Result<A, Refusal>,
    tor: bool,
    confinement: Confinement,
    contacts: Contacts,
    delete_targets: DeleteTargets,
}

impl<A: JournalistApi> Session<A> {
    /// A session that performs its calls through `api`; `tor` says whether that goes through Tor, `delete_limit` how much
    /// they may delete, and `confinement` what the kernel keeps this process from.
    #[must_use]
    pub fn new(api: A, tor: bool, delete_limit: DeleteLimit, confinement: Confinement) -> Self {
        let delete_targets = DeleteTargets::new(delete_limit);
        Self { api: Ok(api), tor, confinement, contacts: Contacts::default(), delete_targets }
    }

    /// A session that only tells the client why there is none.
    #[must_use]
    pub fn refused(refusal: Refusal) -> Self {
        let delete_targets = DeleteTargets::new(DeleteLimit::default());
        let confinement = Confinement::NONE;
        Self { api: Err(refusal), tor: false, confinement, contacts: Contacts::default(), delete_targets }
    }

    fn health(&self) -> Health {
        Health { tor: self.tor, speaks: A::SPEAKS, contact: self.contacts.last(), confinement: self.confinement }
    }
}

impl<A: JournalistApi> Service for Session<A> {
    fn admit(&self, _hello: &Hello) -> Result<(), Refusal> {
        self.api.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    fn perform(
        &self,
        call: Call,
        deadline: Duration,
        answer: &mut Responder,
    ) -> impl Future<Output = Result<(), CallError>> + Send {
        // Before the first poll, so that it is never later than the moment from which the deadline counts.
        let started = Instant::now();
        async move {
            let Ok(api) = &self.api else {
                return Err(CallError::new(ErrorKind::Internal, Stage::Admission, Retry::Never));
            };
            self.delete_targets.admit(&call)?;
            let mut outlet = Outlet::new(answer, &self.contacts, started, deadline);
            let result = match call {
                // Answered without the server, and so no contact with it.
                Call::Health => {
                    outlet.begin().await?;
                    return outlet.items(Items::Health(self.health())).await;
                }
                Call::Login { username, passphrase, one_time_code } => {
                    api.login(&Credentials { username, passphrase, one_time_code }, &mut outlet).await
                }
                Call::Logout { token } => api.logout(&token, &mut outlet).await,
                Call::Probe => api.probe(&mut outlet).await,
                Call::GetUsers { token } => api.get_users(&token, &mut outlet).await,
                Call::GetSources { token } => api.get_sources(&token, &mut outlet).await,
                Call::GetSubmissions { token, source } => api.get_submissions(&token, source, &mut outlet).await,
                Call::GetAllReplies { token } => api.get_all_replies(&token, &mut outlet).await,
                Call::SendReply { token, source, reply, message } => {
                    api.send_reply(&token, &OutgoingReply { source, id: reply, message }, &mut outlet).await
                }
                Call::Star { token, source } => api.star(&token, source, &mut outlet).await,
                Call::Unstar { token, source } => api.unstar(&token, source, &mut outlet).await,
                Call::MarkSeen { token, items } => api.mark_seen(&token, &items, &mut outlet).await,
                Call::DeleteSource { token, source } => api.delete_source(&token, source, &mut outlet).await,
                Call::DeleteConversation { token, source, items, upper_bound } => {
                    let conversation = Conversation { source, items, upper_bound };
                    api.delete_conversation(&token, &conversation, &mut outlet).await
                }
                Call::DeleteSubmission { token, source, submission } => {
                    api.delete_submission(&token, source, submission, &mut outlet).await
                }
                Call::DeleteReply { token, source, reply } => {
                    api.delete_reply(&token, source, reply, &mut outlet).await
                }
                Call::DownloadSubmission { token, source, submission, from } => {
                    api.download_submission(&token, source, submission, from, &mut outlet).await
                }
                Call::DownloadReply { token, source, reply, from } => {
                    api.download_reply(&token, source, reply, from, &mut outlet).await
                }
            };
            outlet.settle(&result);
            result
        }
    }
}
