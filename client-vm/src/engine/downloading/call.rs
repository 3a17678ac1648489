//! The one call in which messages and replies are fetched.

use std::sync::Arc;

use control::{Event, PauseReason};
use protocol::Scope;
use qubes_rpc::qrexec::QrexecCall;
use tokio::task::{AbortHandle, Id};

use crate::engine::session::SessionState;
use crate::engine::{Ended, Engine};
use crate::failure;
use crate::proxy::{Patience, ProxyError};

/// The call, opened when first needed and kept for the session.
#[derive(Debug)]
pub(in crate::engine) enum MessagesCall {
    /// There is none.
    None,
    /// It is being opened.
    Opening(AbortHandle),
    /// It is open.
    Open(Arc<QrexecCall>),
}

impl Engine {
    /// The call; where there is none it is opened, and work goes on once it is.
    pub(super) fn messages_call(&mut self) -> Option<Arc<QrexecCall>> {
        self.close_messages_call_if_broken();
        match &self.downloading.call {
            MessagesCall::Open(call) => Some(Arc::clone(call)),
            MessagesCall::Opening(_) => None,
            MessagesCall::None if self.downloading.held => None,
            MessagesCall::None => {
                let SessionState::In(session) = &self.session else { return None };
                let (proxy, level, waiting) = (self.proxy.clone(), session.api_level, self.waiting_event());
                let opening = self.tasks.spawn(async move {
                    let opened = proxy.open(Scope::Download, Some(level), Patience::Usual, waiting).await;
                    Ended::MessagesCall(opened.map(Box::new))
                });
                self.downloading.call = MessagesCall::Opening(opening);
                None
            }
        }
    }

    /// The call was opened, or could not be.
    pub(in crate::engine) async fn messages_call_opened(
        &mut self,
        task: Id,
        opened: Result<Box<QrexecCall>, ProxyError>,
    ) {
        // One that belongs to an older session is closed by being dropped.
        if !self.is_opening_messages_call(task) {
            return;
        }
        self.downloading.call = match opened {
            Ok(call) => {
                self.downloading.end_rest();
                MessagesCall::Open(Arc::new(*call))
            }
            Err(error) => {
                self.downloads_not_opened(&error, &failure::of_proxy(&error));
                MessagesCall::None
            }
        };
        self.start_downloads().await;
    }

    /// The task that opens the call panicked.
    pub(in crate::engine) fn messages_call_panicked(&mut self, task: Id) -> bool {
        let is_it = self.is_opening_messages_call(task);
        if is_it {
            self.downloading.call = MessagesCall::None;
            self.downloading.rest_a_little();
            if self.proxy.asks(Scope::Download) {
                self.hold_messages();
            }
        }
        is_it
    }

    fn is_opening_messages_call(&self, task: Id) -> bool {
        matches!(&self.downloading.call, MessagesCall::Opening(opening) if opening.id() == task)
    }

    pub(super) fn close_messages_call_if_broken(&mut self) {
        let broken = match &self.downloading.call {
            MessagesCall::Open(call) => call.connection().broken_by().is_some(),
            MessagesCall::None | MessagesCall::Opening(_) => false,
        };
        if broken {
            self.close_messages_call();
            if self.proxy.asks(Scope::Download) {
                self.hold_messages();
            }
        }
    }

    /// No call for messages is made until the user says so: dom0 would ask about another one.
    pub(super) fn hold_messages(&mut self) {
        if !std::mem::replace(&mut self.downloading.held, true) {
            tracing::warn!("messages and replies wait for the user: dom0 would ask about another call");
            self.emit(Event::Paused(PauseReason::Dom0));
        }
    }

    /// The user has said that dom0 may be asked about downloads.
    pub(in crate::engine) fn let_downloads_ask(&mut self) {
        if self.downloading.forget_refusals() {
            self.tell_resumed();
        }
    }

    pub(super) fn close_messages_call(&mut self) {
        match std::mem::replace(&mut self.downloading.call, MessagesCall::None) {
            MessagesCall::None => {}
            MessagesCall::Opening(opening) => opening.abort(),
            MessagesCall::Open(call) => self.close_call(call),
        }
    }
}
