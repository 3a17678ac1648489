//! Signing in and out.

use std::collections::HashSet;
use std::time::Duration;

use control::{Event, FailureKind, Session, SessionEnd};
use protocol::value::{JournalistId, OneTimeCode, Passphrase, Timestamp, Token, Username};
use protocol::{ApiLevel, Scope, SignedIn};
use tokio::task::Id;
use tokio_util::sync::CancellationToken;

use super::awake::Awake;
use super::handle::Answer;
use super::{Ended, Engine, given_up};
use crate::failure::{self, failure};
use crate::proxy::ProxyError;
use crate::store::{mirror, outbox};

/// How long the logout call may go on after the session has ended here.
const LOGOUT_DEADLINE: Duration = Duration::from_secs(10);
/// How long it may go on once the daemon ends: a new connection through Tor takes a second or two.
const LAST_LOGOUT_DEADLINE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) enum SessionState {
    Out,
    SigningIn(Login),
    In(Box<OpenSession>),
}

impl SessionState {
    /// Who is signed in.
    pub(super) fn journalist(&self) -> Option<JournalistId> {
        match self {
            Self::Out | Self::SigningIn(_) => None,
            Self::In(session) => Some(session.journalist),
        }
    }

    /// Waits until nobody waits any more for the login that is under way; for ever where there is none. Cancel-safe.
    pub(super) async fn login_abandoned(&mut self) {
        match self {
            Self::SigningIn(login) => login.answer.closed().await,
            Self::Out | Self::In(_) => std::future::pending().await,
        }
    }

    pub(super) fn shown(&self) -> Session {
        match self {
            Self::Out => Session::SignedOut,
            Self::SigningIn(_) => Session::SigningIn,
            Self::In(session) => session.shown(),
        }
    }
}

/// A login that is under way, and who waits for it.
#[derive(Debug)]
pub(super) struct Login {
    task: Id,
    username: Username,
    pub(super) answer: Answer<Session>,
    /// It is given up.
    given_up: CancellationToken,
}

impl Login {
    /// Nobody waits for it any more. What was sent already goes on for a little: should the server accept it, the session
    /// has to be ended there.
    pub(super) fn give_up(self) {
        self.given_up.cancel();
        self.answer.give(Err(given_up()));
    }
}

#[derive(Debug)]
pub(super) struct OpenSession {
    pub(super) token: Token,
    pub(super) api_level: ApiLevel,
    journalist: JournalistId,
    username: Username,
    since: Timestamp,
    expires: Timestamp,
}

impl OpenSession {
    #[cfg(test)]
    pub(super) fn of_nobody() -> Self {
        Self {
            token: Token::try_new("token").unwrap(),
            api_level: ApiLevel::V1,
            journalist: "00000001-0000-4000-8000-000000000000".parse().unwrap(),
            username: Username::try_new("nobody").unwrap(),
            since: Timestamp::MAX,
            expires: Timestamp::MAX,
        }
    }

    fn shown(&self) -> Session {
        Session::SignedIn {
            journalist: self.journalist,
            username: self.username.clone(),
            since: self.since,
            expires: self.expires,
        }
    }
}

impl Engine {
    pub(super) fn log_in(
        &mut self,
        username: Username,
        passphrase: Passphrase,
        one_time_code: OneTimeCode,
        answer: Answer<Session>,
    ) {
        let taken = match &self.session {
            SessionState::Out => None,
            SessionState::SigningIn(_) => Some("a login is under way already: wait for it, or run `splitdrop logout`"),
            SessionState::In(_) => Some("somebody is signed in already: run `splitdrop logout` first"),
        };
        if let Some(text) = taken {
            answer.give(Err(failure(FailureKind::AlreadySignedIn, text)));
            return;
        }
        let (proxy, name, waiting) = (self.proxy.clone(), username.clone(), self.waiting_event());
        let given_up = CancellationToken::new();
        let told = given_up.clone();
        let task = self
            .tasks
            .spawn(async move { Ended::Login(proxy.login(name, passphrase, one_time_code, &told, waiting).await) });
        self.session = SessionState::SigningIn(Login { task: task.id(), username, answer, given_up });
    }

    /// Nobody waits for the login that is under way: it is given up.
    pub(super) fn give_up_login(&mut self) {
        match std::mem::replace(&mut self.session, SessionState::Out) {
            SessionState::SigningIn(login) => login.give_up(),
            other => self.session = other,
        }
    }

    pub(super) fn log_out(&mut self, answer: Answer<()>) {
        match std::mem::replace(&mut self.session, SessionState::Out) {
            SessionState::Out => answer.give(Err(failure::not_signed_in())),
            SessionState::SigningIn(login) => {
                login.give_up();
                answer.give(Ok(()));
            }
            SessionState::In(session) => {
                self.leave(SessionEnd::Logout);
                self.tell_server(session.token, session.api_level);
                answer.give(Ok(()));
            }
        }
    }

    /// The login that the task belongs to, if somebody may still wait for it. The session's state is `Out` then.
    pub(super) fn take_login(&mut self, task: Id) -> Option<Login> {
        match std::mem::replace(&mut self.session, SessionState::Out) {
            SessionState::SigningIn(login) if login.task == task => Some(login),
            other => {
                self.session = other;
                None
            }
        }
    }

    pub(super) async fn login_ended(&mut self, task: Id, result: Result<SignedIn, ProxyError>) {
        // Nobody waits for a login that was given up, by a logout or by whoever asked for it.
        let login = self.take_login(task).filter(|login| !login.answer.is_closed());
        match (login, result) {
            (Some(login), Ok(signed_in)) => self.begin_session(login, signed_in).await,
            (Some(login), Err(error)) => {
                let told = failure::of_login(&error);
                tracing::warn!(kind = ?told.kind, "login failed");
                login.answer.give(Err(told));
            }
            (None, Ok(SignedIn { token, api_level, .. })) => self.tell_server(token, api_level),
            (None, Err(_)) => {}
        }
    }

    async fn begin_session(&mut self, login: Login, signed_in: SignedIn) {
        let Login { username, answer, .. } = login;
        let SignedIn { token, api_level, journalist, expires, .. } = signed_in;
        let name = username.clone();
        let snapshot = self.acting.last_snapshot();
        let (now, grace) = (self.clock.now(), self.acting.delete_grace());
        let noted = self.store.write(move |transaction| {
            // Whatever was being sent when the last session ended is decided by the snapshots of this one.
            outbox::land(transaction, snapshot, &HashSet::new())?;
            outbox::give_grace_anew(transaction, journalist, now, grace)?;
            mirror::store_journalist(transaction, journalist, &name)
        });
        let noted = noted.await;
        if let Err(error) = noted {
            // What is unread would be somebody else's.
            tracing::error!(error = failure::chain(&error), "could not note who signed in");
            answer.give(Err(failure::of_store(&error)));
            self.tell_server(token, api_level);
            return;
        }
        tracing::info!(%journalist, "signed in");
        let session = OpenSession { token, api_level, journalist, username, since: self.clock.now(), expires };
        let shown = session.shown();
        self.session = SessionState::In(Box::new(session));
        self.emit(Event::SessionStarted(shown.clone()));
        answer.give(Ok(shown));
        self.look_at_keys_again().await;
        self.schedule.begin();
        self.awake = Awake::new(self.clock.now());
        self.lists_wanted = true;
        self.ask_sync(None);
        self.work().await;
    }

    /// Ends the session here: sync and acts stop, the calls close, front ends are told. The token is the caller's to drop.
    pub(super) fn leave(&mut self, why: SessionEnd) {
        tracing::info!(?why, "session ended");
        let told = match why {
            SessionEnd::Expired => failure::not_signed_in(),
            SessionEnd::Logout | SessionEnd::Shutdown => given_up(),
        };
        self.stop_syncing(told);
        self.stop_acting();
        self.end_downloads();
        self.forget_network_pause();
        self.emit(Event::SessionEnded(why));
    }

    /// Tells the server that the session has ended, for so long as that may take. The token is gone afterwards.
    pub(super) fn tell_server(&mut self, token: Token, api_level: ApiLevel) {
        let (proxy, quit) = (self.proxy.clone(), self.quit.clone());
        self.tasks.spawn(async move {
            let allowed = LOGOUT_DEADLINE + proxy.patience_of_dom0(Scope::Session);
            tokio::select! {
                told = proxy.logout(token, api_level, LOGOUT_DEADLINE) => match told {
                    Ok(()) => tracing::info!("the server has ended the session"),
                    Err(error) => tracing::warn!(kind = ?failure::of_proxy(&error).kind, "the logout call failed"),
                },
                () = too_long(allowed, &quit) => tracing::warn!("the logout call took too long"),
            }
            Ended::Done
        });
    }
}

/// Waits for longer than the logout call may take: `allowed`, and a moment once the daemon ends.
async fn too_long(allowed: Duration, quit: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(allowed) => {}
        () = quit.cancelled() => tokio::time::sleep(LAST_LOGOUT_DEADLINE).await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// Case Q4.
    #[tokio::test(start_paused = true)]
    async fn q4_the_logout_call_holds_up_a_daemon_that_ends_for_a_moment_only() {
        let quit = CancellationToken::new();
        let began = Instant::now();
        too_long(LOGOUT_DEADLINE, &quit).await;
        assert_eq!(began.elapsed(), LOGOUT_DEADLINE);
        let began = Instant::now();
        let ending = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            quit.cancel();
        };
        tokio::join!(too_long(LOGOUT_DEADLINE, &quit), ending);
        assert_eq!(began.elapsed(), Duration::from_secs(3) + LAST_LOGOUT_DEADLINE);
    }
}
