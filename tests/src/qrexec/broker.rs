//! The broker: dom0's decision and the target VM's agent in one.
//!
//! Each VM has a socket of its own, `NAME.sock`. A caller connects to the one of its VM and sends its request; the
//! broker asks the policy and, if allowed, starts the target's service with socket pairs for stdin and stdout and a
//! pipe for stderr. The caller is given the other ends and moves its bytes itself (see [`client`](super::client)); the
//! broker only copies stderr on its way, which also goes to the target's log, and reports how the service ended.
//!
//! **Invariant:** with a policy that cannot be read every call is refused, as in Qubes.
//! **Invariant:** every service is alone in its process group, and the group dies with the call, so a stopped or
//! dropped broker leaves no process behind.
//! **Invariant:** the event log and the service logs are bounded; the oldest entries go first.

mod call;
mod record;
mod service;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::record::Record;
pub use self::record::{CallId, Counts, Event, EventKind, RefusedBy};
use super::policy::{Policy, PolicyError};
use super::system::{QubeName, System};

/// How long a socket rests after a connection could not be accepted (no descriptors left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a broker is made of.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// The folder of the sockets. It must exist; only the owner should get into it.
    pub folder: PathBuf,
    /// dom0's policy files, as names and texts.
    pub policy: Vec<(String, String)>,
    /// The VMs. Each gets a socket.
    pub system: System,
    /// What is installed in each VM. A new disposable has what its template has; dom0 is called `dom0` here.
    pub installed: BTreeMap<QubeName, Installation>,
    /// How long services get to end after SIGTERM before they are killed, when the broker stops.
    pub grace: Duration,
}

/// What is installed in a VM.
#[derive(Clone, Debug, Default)]
pub struct Installation {
    /// The programs, by `NAME+ARGUMENT` or by `NAME`. The former is looked for first.
    pub services: BTreeMap<String, PathBuf>,
    /// The environment of the services, beside what qrexec itself sets.
    pub environment: BTreeMap<String, String>,
}

/// The broker could not be started or stopped as it should.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// There is no tokio runtime here.
    #[error("the broker needs a tokio runtime")]
    NoRuntime(#[from] tokio::runtime::TryCurrentError),
    /// A socket could not be made.
    #[error("cannot listen on {path}: {source}")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A task panicked: a bug of the broker.
    #[error("internal: a task of the broker failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// A running broker. Dropping it kills the services that still run; [`stop`](Self::stop) also waits for their end.
#[derive(Debug)]
pub struct Broker {
    sockets: BTreeMap<QubeName, PathBuf>,
    record: Arc<Record>,
    counts: watch::Receiver<Counts>,
    policy_error: Option<PolicyError>,
    stop: CancellationToken,
    listeners: JoinSet<Result<(), BrokerError>>,
}

/// What all calls of a broker share.
#[derive(Debug)]
struct House {
    policy: Result<Policy, PolicyError>,
    system: System,
    installed: BTreeMap<QubeName, Installation>,
    grace: Duration,
    record: Arc<Record>,
}

impl Broker {
    /// Listens for calls of every VM. A policy with an error starts too, and refuses every call.
    ///
    /// # Errors
    ///
    /// Without a tokio runtime, or when a socket cannot be made (the path may be too long, or taken).
    pub fn start(options: BrokerOptions) -> Result<Self, BrokerError> {
        let runtime = Handle::try_current()?;
        let _entered = runtime.enter();
        let BrokerOptions { folder, policy, system, installed, grace } = options;
        let policy = Policy::parse(&policy);
        let (record, counts) = Record::new();
        let record = Arc::new(record);
        let mut broker = Self {
            sockets: BTreeMap::new(),
            record: Arc::clone(&record),
            counts,
            policy_error: policy.as_ref().err().cloned(),
            stop: CancellationToken::new(),
            listeners: JoinSet::new(),
        };
        let house = Arc::new(House { policy, system, installed, grace, record });
        for name in house.system.qubes.keys() {
            let path = folder.join(format!("{name}.sock"));
            let listener = listen(&path).map_err(|source| BrokerError::Listen { path: path.clone(), source })?;
            // Known from here on, so that it is removed again if a later one fails.
            broker.sockets.insert(name.clone(), path);
            broker.listeners.spawn(serve(listener, name.clone(), Arc::clone(&house), broker.stop.clone()));
        }
        Ok(broker)
    }

    /// The socket on which this VM calls, for [`SOCKET_VARIABLE`](super::SOCKET_VARIABLE).
    #[must_use]
    pub fn socket(&self, source: &str) -> Option<&Path> {
        self.sockets.get(source).map(PathBuf::as_path)
    }

    /// Why every call is refused, if that is so.
    #[must_use]
    pub const fn policy_error(&self) -> Option<&PolicyError> {
        self.policy_error.as_ref()
    }

    /// How many calls there were and are. A call that a caller saw end is not open any more.
    #[must_use]
    pub fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    /// Waits until the counts are as wanted. Cancel-safe.
    pub async fn until(&self, wanted: impl FnMut(&Counts) -> bool) {
        // The sender lives as long as `self`, so this only ends with what is wanted.
        let _ = self.counts.clone().wait_for(wanted).await;
    }

    /// The latest events, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.record.events()
    }

    /// The end of what the services of a VM wrote to their stderr.
    #[must_use]
    pub fn service_log(&self, target: &str) -> Vec<u8> {
        self.record.service_log(target)
    }

    /// Takes no more calls, ends the services (SIGTERM, and SIGKILL after the grace time), and waits for their end.
    ///
    /// Not cancel-safe: dropped halfway, the rest is killed, as when the broker is dropped.
    ///
    /// # Errors
    ///
    /// When a task of the broker panicked, now or before.
    pub async fn stop(mut self) -> Result<(), BrokerError> {
        self.stop.cancel();
        let mut outcome = Ok(());
        while let Some(ended) = self.listeners.join_next().await {
            outcome = outcome.and(ended.map_err(BrokerError::from).flatten());
        }
        outcome
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.cancel();
        for path in self.sockets.values() {
            // Gone with its folder already, or it goes with it.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Accepts the calls of one VM and owns their tasks.
async fn serve(
    listener: UnixListener,
    source: QubeName,
    house: Arc<House>,
    stop: CancellationToken,
) -> Result<(), BrokerError> {
    let mut calls = JoinSet::new();
    let mut outcome = Ok(());
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((connection, _)) => {
                    calls.spawn(call::answer(connection, source.clone(), Arc::clone(&house), stop.clone()));
                }
                Err(error) => {
                    tracing::warn!(%source, %error, "a call could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = calls.join_next() => outcome = outcome.and(ended),
        }
    }
    drop(listener);
    while let Some(ended) = calls.join_next().await {
        outcome = outcome.and(ended);
    }
    outcome.map_err(BrokerError::from)
}
