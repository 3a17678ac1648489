//! The way to the proxy VM: opens qrexec calls and makes the calls of one decision.
//!
//! **Invariant:** at most [`MAX_CALLS`] qrexec calls are there at the same time, with those that are opened and closed, and
//! with the uses of the private key that take their [`Places`] here.

use std::time::Duration;

use protocol::value::{OneTimeCode, Passphrase, SoftwareVersion, Token, Username};
use protocol::{ApiLevel, Call, Hello, Items, Limits, Scope, SignedIn};
use qubes_rpc::PROXY_SERVICE;
use qubes_rpc::connection::{Break, CallFailure, HelloError};
use qubes_rpc::name::{NameError, ServiceName, VmName};
use qubes_rpc::places::{Place, Places};
use qubes_rpc::qrexec::{OpenError, Qrexec, QrexecCall};
use tokio_util::sync::CancellationToken;

use crate::settings::Asks;

/// How many qrexec calls there may be at the same time: qrexec breaks at some more than ten. One for lists, one for
/// messages, two for files, two for acts, two for the private key. A login and a logout come before and after all of the
/// others.
pub const MAX_CALLS: usize = 8;
/// How long opening a call may take: a VM needs 10 to 40 s to start.
const OPEN_DEADLINE: Duration = Duration::from_secs(120);
/// After how long an opening call is worth a word.
const WORTH_A_WORD: Duration = Duration::from_secs(2);
/// How long the server may take for a login.
const LOGIN_DEADLINE: Duration = Duration::from_secs(120);
/// How long a login goes on that was given up after it was sent: what the server says by then is undone.
const GIVEN_UP_DEADLINE: Duration = Duration::from_secs(10);

/// How long opening a call may take where somebody in dom0 is asked.
const ASKING_DEADLINE: Duration = Duration::from_secs(600);

/// How patiently a call is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// As long as a VM may take to start. A handshake that gets no answer is tried once more: now and then qrexec leaves a
    /// caller waiting for ever, and nothing was asked of the proxy yet.
    Usual,
    /// As long, and once: dom0 might ask again.
    Once,
    /// As long as a person may take to answer dom0's question, and once.
    Asking,
}

/// How to reach the proxy.
#[derive(Debug, Clone)]
pub struct Proxy {
    qrexec: Qrexec,
    vm: VmName,
    software: SoftwareVersion,
    places: Places,
    asks: Asks,
}

/// Work with the proxy failed.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The call could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallFailure),
    /// The scope's service name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Nobody waits for it any more, and nothing was sent.
    #[error("given up before anything was sent")]
    GivenUp,
}

impl ProxyError {
    /// Whether the call was there and nobody answered: the proxy in its handshake, or somebody in dom0.
    #[must_use]
    pub fn nobody_answered(&self) -> bool {
        matches!(self, Self::Open(OpenError::Hello { source: HelloError::TimedOut, .. }))
    }
}

impl Proxy {
    /// Reaches the proxy in `vm` by `qrexec`; `software` is this program's version.
    #[must_use]
    pub fn new(qrexec: Qrexec, vm: VmName, software: SoftwareVersion) -> Self {
        Self { qrexec, vm, software, places: Places::new(MAX_CALLS), asks: Asks::default() }
    }

    /// The same, where dom0 asks somebody about calls of these scopes: each is opened once, and waits for minutes.
    #[must_use]
    pub fn asked_about(self, asks: Asks) -> Self {
        Self { asks, ..self }
    }

    /// Whether dom0 asks somebody about calls of the scope.
    #[must_use]
    pub fn asks(&self, scope: Scope) -> bool {
        self.asks.about(scope)
    }

    /// The places that all calls take.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Opens a call of `scope`, once there is a place for it. `waiting` is called once when that takes long from then on.
    /// Cancel-safe: cancelled, there is no call.
    ///
    /// # Errors
    /// [`ProxyError`].
    pub async fn open(
        &self,
        scope: Scope,
        api_level: Option<ApiLevel>,
        patience: Patience,
        waiting: impl FnOnce(),
    ) -> Result<QrexecCall, ProxyError> {
        let place = self.places.take().await;
        self.open_in(place, scope, api_level, patience, waiting).await
    }

    async fn open_in(
        &self,
        place: Place,
        scope: Scope,
        api_level: Option<ApiLevel>,
        patience: Patience,
        waiting: impl FnOnce(),
    ) -> Result<QrexecCall, ProxyError> {
        let patience = if self.asks(scope) { Patience::Asking } else { patience };
        let service = ServiceName::try_new(PROXY_SERVICE, scope.name())?;
        let hello = Hello { scope, limits: Limits::OURS, api_level, software: self.software.clone() };
        let opening = async {
            let deadline = match patience {
                Patience::Usual | Patience::Once => OPEN_DEADLINE,
                Patience::Asking => ASKING_DEADLINE,
            };
            match self.qrexec.open(&self.vm, &service, &hello, deadline, place).await {
                Err(OpenError::Hello { source: HelloError::TimedOut, .. }) if patience == Patience::Usual => {
                    tracing::warn!(%service, "a qrexec call got no answer to its handshake: trying once more");
                    let place = self.places.take().await;
                    self.qrexec.open(&self.vm, &service, &hello, OPEN_DEADLINE, place).await
                }
                opened => opened,
            }
        };
        tokio::pin!(opening);
        tokio::select! {
            opened = &mut opening => return Ok(opened?),
            () = tokio::time::sleep(WORTH_A_WORD) => waiting(),
        }
        Ok(opening.await?)
    }

    /// Signs in, in a call of its own. Never repeated: the server takes a one-time code once. Once it is `given_up` it goes
    /// on only for a little, and only if it was sent: should the server accept it by then, the session can be ended there.
    ///
    /// # Errors
    /// [`ProxyError`].
    pub async fn login(
        &self,
        username: Username,
        passphrase: Passphrase,
        one_time_code: OneTimeCode,
        given_up: &CancellationToken,
        waiting: impl FnOnce(),
    ) -> Result<SignedIn, ProxyError> {
        let session = tokio::select! {
            biased;
            () = given_up.cancelled() => return Err(ProxyError::GivenUp),
            opened = self.open(Scope::Session, None, Patience::Usual, waiting) => opened?,
        };
        let call = Call::Login { username, passphrase, one_time_code };
        let asking = async { session.connection().call(call, LOGIN_DEADLINE).await?.one().await };
        let answer = tokio::select! {
            answer = asking => answer,
            () = async {
                given_up.cancelled().await;
                tokio::time::sleep(GIVEN_UP_DEADLINE).await;
            } => Err(CallFailure::Silent),
        };
        session.close().await;
        match answer? {
            Some(Items::SignedIn(signed_in)) => Ok(signed_in),
            // The connection has checked the answer's kind and count.
            _other => Err(CallFailure::Incomplete(Break::Closed).into()),
        }
    }

    /// Signs out, in a call of its own. It does not wait for calls that are being closed.
    ///
    /// # Errors
    /// [`ProxyError`].
    pub async fn logout(&self, token: Token, api_level: ApiLevel, deadline: Duration) -> Result<(), ProxyError> {
        let place = self.places.take_urgently().await;
        let session = self.open_in(place, Scope::Session, Some(api_level), Patience::Usual, || {}).await?;
        let answer = match session.connection().call(Call::Logout { token }, deadline).await {
            Ok(answer) => answer.one().await,
            Err(failure) => Err(failure),
        };
        session.close().await;
        answer?;
        Ok(())
    }

    /// How long somebody in dom0 may take to agree to a call of the scope, on top of what else it may take.
    #[must_use]
    pub fn patience_of_dom0(&self, scope: Scope) -> Duration {
        if self.asks(scope) { ASKING_DEADLINE } else { Duration::ZERO }
    }
}
