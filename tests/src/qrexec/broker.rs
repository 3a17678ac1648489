//! The broker: dom0's decision and the target VM's agent in one.
//!
//! Each VM has a socket of its own, `NAME.sock`. A caller connects to the one of its VM and sends its request; the
//! broker asks the policy and, if allowed, starts the target's service with socket pairs for stdin and stdout and a
//! pipe for stderr. The caller is given the other ends and moves its bytes itself (see [`client`](super::client)); the
//! broker only copies stderr on its way, which also goes to the target's log, and reports how the service ended.
//!
//! Around the rules there are conditions, which tests set and change: what calls cost, how VMs start ([`Vms`]), who
//! answers when the policy asks ([`Questions`]), how many calls there may be.
//!
//! **Invariant:** with a policy that cannot be read every call is refused, as in Qubes.
//! **Invariant:** every service is alone in its process group, and the group dies with the call, so a stopped or
//! dropped broker leaves no process behind.
//! **Invariant:** the event log and the service logs are bounded; the oldest entries go first.

mod admission;
mod call;
mod installation;
mod options;
mod questions;
mod record;
mod service;
mod socket_service;
mod vms;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use self::installation::Installation;
pub use self::options::{BrokerOptions, Conditions, Costs};
pub use self::questions::{Dom0User, Question, Questions, Reply, ReplyError};
use self::record::Record;
pub use self::record::{CallId, Counts, Event, EventKind, RefusedBy};
pub use self::vms::{Start, StartOutcome, VmError, Vms};
use super::policy::{Policy, PolicyError, ServiceTarget};
use super::system::QubeName;

/// How long a socket rests after a connection could not be accepted (no descriptors left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    house: Arc<House>,
    counts: watch::Receiver<Counts>,
    stop: CancellationToken,
    listeners: JoinSet<Result<(), BrokerError>>,
}

/// What all calls of a broker share.
#[derive(Debug)]
struct House {
    policy: Result<Policy, PolicyError>,
    vms: Vms,
    questions: Questions,
    installed: BTreeMap<QubeName, Installation>,
    /// What VMs have that are not in `installed`.
    nothing: Installation,
    grace: Duration,
    most_calls: Option<usize>,
    costs: Mutex<Costs>,
    /// How many of the next calls get no answer.
    hangs: AtomicU64,
    record: Record,
}

impl House {
    fn costs(&self) -> Costs {
        *self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn installation(&self, target: &ServiceTarget) -> &Installation {
        self.installed.get(call::vm_of(target)).unwrap_or(&self.nothing)
    }

    /// Whether this is a call that gets no answer.
    fn take_hang(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        self.hangs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
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
        let BrokerOptions { folder, policy, system, installed, grace, conditions } = options;
        let Conditions { costs, start, dom0_user, most_calls } = conditions;
        let names: Vec<QubeName> = system.qubes.keys().cloned().collect();
        let (record, counts) = Record::new();
        let house = Arc::new(House {
            policy: Policy::parse(&policy),
            vms: Vms::new(system, start),
            questions: Questions::new(dom0_user),
            installed,
            nothing: Installation::default(),
            grace,
            most_calls,
            costs: Mutex::new(costs),
            hangs: AtomicU64::new(0),
            record,
        });
        let mut broker = Self {
            sockets: BTreeMap::new(),
            house: Arc::clone(&house),
            counts,
            stop: CancellationToken::new(),
            listeners: JoinSet::new(),
        };
        for name in names {
            let path = folder.join(format!("{name}.sock"));
            let listener = listen(&path).map_err(|source| BrokerError::Listen { path: path.clone(), source })?;
            // Known from here on, so that it is removed again if a later one fails.
            broker.sockets.insert(name.clone(), path);
            broker.listeners.spawn(serve(listener, name, Arc::clone(&house), broker.stop.clone()));
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
    pub fn policy_error(&self) -> Option<&PolicyError> {
        self.house.policy.as_ref().err()
    }

    /// The VMs: which run, and what starts and ends them.
    #[must_use]
    pub fn vms(&self) -> &Vms {
        &self.house.vms
    }

    /// What dom0's user is asked, and the way to answer.
    #[must_use]
    pub fn questions(&self) -> &Questions {
        &self.house.questions
    }

    /// Changes what calls cost from now on. The rate of a call that runs stays.
    pub fn set_costs(&self, costs: Costs) {
        *self.house.costs.lock().unwrap_or_else(PoisonError::into_inner) = costs;
    }

    /// The next call that is allowed gets no answer, as happens now and then to callers in Qubes; called twice, the next
    /// two.
    pub fn hang_next_call(&self) {
        self.house.hangs.fetch_add(1, Ordering::Relaxed);
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

    /// Waits until the latest events are as wanted. Cancel-safe.
    pub async fn until_events(&self, wanted: impl Fn(&[Event]) -> bool) {
        // Every event publishes the counts, changed or not.
        let _ = self.counts.clone().wait_for(|_| wanted(&self.events())).await;
    }

    /// The latest events, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.house.record.events()
    }

    /// The end of what the services of a VM wrote to their stderr.
    #[must_use]
    pub fn service_log(&self, target: &str) -> Vec<u8> {
        self.house.record.service_log(target)
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
