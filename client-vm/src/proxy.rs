//! The way to the proxy VM: opens qrexec calls and makes the calls of one decision.

use std::time::Duration;

use protocol::value::{OneTimeCode, Passphrase, SoftwareVersion, Token, Username};
use protocol::{ApiLevel, Call, Hello, Items, Limits, Scope, SignedIn};
use qubes_rpc::PROXY_SERVICE;
use qubes_rpc::connection::{Break, CallFailure, HelloError};
use qubes_rpc::name::{NameError, ServiceName, VmName};
use qubes_rpc::qrexec::{OpenError, Qrexec, QrexecCall};

/// How long opening a call may take: a VM needs 10 to 40 s to start.
const OPEN_DEADLINE: Duration = Duration::from_secs(120);
/// After how long an opening call is worth a word.
const WORTH_A_WORD: Duration = Duration::from_secs(2);
/// How long the server may take for a login.
const LOGIN_DEADLINE: Duration = Duration::from_secs(120);

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
}

impl Proxy {
    /// Reaches the proxy in `vm` by `qrexec`; `software` is this program's version.
    #[must_use]
    pub fn new(qrexec: Qrexec, vm: VmName, software: SoftwareVersion) -> Self {
        Self { qrexec, vm, software }
    }

    /// Opens a call of `scope`. `waiting` is called once when that takes long.
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
        let service = ServiceName::try_new(PROXY_SERVICE, scope.name())?;
        let hello = Hello { scope, limits: Limits::OURS, api_level, software: self.software.clone() };
        let opening = async {
            let deadline = match patience {
                Patience::Usual | Patience::Once => OPEN_DEADLINE,
                Patience::Asking => ASKING_DEADLINE,
            };
            match self.qrexec.open(&self.vm, &service, &hello, deadline).await {
                Err(OpenError::Hello { source: HelloError::TimedOut, .. }) if patience == Patience::Usual => {
                    tracing::warn!(%service, "a qrexec call got no answer to its handshake: trying once more");
                    self.qrexec.open(&self.vm, &service, &hello, OPEN_DEADLINE).await
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

    /// Signs in, in a call of its own. Never repeated: the server takes a one-time code once.
    ///
    /// # Errors
    /// [`ProxyError`].
    pub async fn login(
        &self,
        username: Username,
        passphrase: Passphrase,
        one_time_code: OneTimeCode,
        waiting: impl FnOnce(),
    ) -> Result<SignedIn, ProxyError> {
        let session = self.open(Scope::Session, None, Patience::Usual, waiting).await?;
        let call = Call::Login { username, passphrase, one_time_code };
        let answer = match session.connection().call(call, LOGIN_DEADLINE).await {
            Ok(answer) => answer.one().await,
            Err(failure) => Err(failure),
        };
        session.close().await;
        match answer? {
            Some(Items::SignedIn(signed_in)) => Ok(signed_in),
            // The connection has checked the answer's kind and count.
            _other => Err(CallFailure::Incomplete(Break::Closed).into()),
        }
    }

    /// Signs out, in a call of its own.
    ///
    /// # Errors
    /// [`ProxyError`].
    pub async fn logout(&self, token: Token, api_level: ApiLevel, deadline: Duration) -> Result<(), ProxyError> {
        let session = self.open(Scope::Session, Some(api_level), Patience::Usual, || {}).await?;
        let answer = match session.connection().call(Call::Logout { token }, deadline).await {
            Ok(answer) => answer.one().await,
            Err(failure) => Err(failure),
        };
        session.close().await;
        answer?;
        Ok(())
    }
}
