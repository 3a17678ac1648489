//! The VMs while the broker runs: which of them run, how they start, and what ends with them.
//!
//! A start is gone about by nobody: it is a moment from which on the VM runs, or a gate that a test opens. So no start
//! is lost with the call that caused it, as in Qubes, where dom0 goes on starting the VM of a caller that is gone.
//!
//! **Invariant:** calls that come while a VM starts wait for that start, and cause none of their own.
//! **Invariant:** when a VM, or its agent, ends, all calls from it and to it end.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::qrexec::policy::ServiceTarget;
use crate::qrexec::system::{Power, QubeName, System};

/// How halted VMs start. In life it takes 10 to 40 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It takes so long, and succeeds unless [`Vms::finish_start`] says otherwise before. A new disposable takes as
    /// long, for each call.
    After(Duration),
    /// It takes until [`Vms::finish_start`]. New disposables are there at once.
    Gated,
}

/// How a start ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOutcome {
    /// The VM runs.
    Running,
    /// There is not enough memory, say. The VM is halted still, and the next call tries again.
    Failed,
}

/// No VM of this name is as it would have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmError {
    /// There is none.
    #[error("there is no such VM")]
    Unknown,
    /// Nobody waits for its start.
    #[error("the VM does not start just now")]
    NotStarting,
}

/// The VMs of a broker.
#[derive(Debug)]
pub struct Vms {
    rooms: Mutex<Rooms>,
    changes: watch::Sender<()>,
    start: Start,
}

#[derive(Debug)]
struct Rooms {
    /// The power in it is the present one; a VM that starts is halted.
    system: System,
    states: BTreeMap<QubeName, State>,
}

#[derive(Debug, Default)]
struct State {
    /// Since when it starts, if it does.
    starting: Option<Instant>,
    /// How many starts were begun.
    starts: u64,
    /// The latest start that failed; 0 for none.
    failed: u64,
    /// Whether its graphical session is held back.
    session_held: bool,
    /// Calls from it and to it.
    calls: usize,
    /// Cancelled when the VM or its agent ends, and then replaced.
    life: CancellationToken,
}

/// A VM did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotStarted;

/// Takes a call off the books of its two VMs when dropped.
#[derive(Debug)]
pub(super) struct Entered<'v> {
    vms: &'v Vms,
    names: Vec<QubeName>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut rooms = self.vms.rooms();
        for name in &self.names {
            if let Some(state) = rooms.states.get_mut(name) {
                state.calls = state.calls.saturating_sub(1);
            }
        }
    }
}

impl Vms {
    pub(super) fn new(system: System, start: Start) -> Self {
        let states = system.qubes.keys().map(|name| (name.clone(), State::default())).collect();
        Self { rooms: Mutex::new(Rooms { system, states }), changes: watch::Sender::new(()), start }
    }

    /// Whether a VM runs; one that starts does not run yet. `None` for no such VM.
    #[must_use]
    pub fn power(&self, vm: &str) -> Option<Power> {
        self.rooms().system.qube(vm).map(|qube| qube.power)
    }

    /// Whether a VM starts just now.
    #[must_use]
    pub fn is_starting(&self, vm: &str) -> bool {
        self.rooms().states.get(vm).is_some_and(|state| state.starting.is_some())
    }

    /// How often a start of this VM was begun.
    #[must_use]
    pub fn starts(&self, vm: &str) -> u64 {
        self.rooms().states.get(vm).map_or(0, |state| state.starts)
    }

    /// Waits until a call makes this VM start. Cancel-safe.
    pub async fn until_starting(&self, vm: &str) {
        self.until(|| self.is_starting(vm)).await;
    }

    /// Ends a start.
    ///
    /// # Errors
    ///
    /// When there is no such VM, or it does not start just now.
    pub fn finish_start(&self, vm: &str, outcome: StartOutcome) -> Result<(), VmError> {
        let mut rooms = self.rooms();
        let Rooms { system, states } = &mut *rooms;
        let (Some(qube), Some(state)) = (system.qubes.get_mut(vm), states.get_mut(vm)) else {
            return Err(VmError::Unknown);
        };
        state.starting.take().ok_or(VmError::NotStarting)?;
        match outcome {
            StartOutcome::Running => qube.power = Power::Running,
            StartOutcome::Failed => state.failed = state.starts,
        }
        drop(rooms);
        self.changes.send_replace(());
        Ok(())
    }

    /// Shuts a VM down. Its calls end, those to it as well; the next call starts it.
    ///
    /// # Errors
    ///
    /// When there is no such VM.
    pub fn halt(&self, vm: &str) -> Result<(), VmError> {
        let mut rooms = self.rooms();
        rooms.system.qubes.get_mut(vm).ok_or(VmError::Unknown)?.power = Power::Halted;
        drop(rooms);
        self.kill_agent(vm)
    }

    /// Ends the VM's qrexec agent, and with it all calls from the VM and to it. There is a new one at once.
    ///
    /// # Errors
    ///
    /// When there is no such VM.
    pub fn kill_agent(&self, vm: &str) -> Result<(), VmError> {
        let life = std::mem::take(&mut self.rooms().states.get_mut(vm).ok_or(VmError::Unknown)?.life);
        life.cancel();
        Ok(())
    }

    /// Holds the VM's graphical session back, or lets it begin. Services with `wait-for-session` wait for it. No VM's
    /// session is held back at first.
    ///
    /// # Errors
    ///
    /// When there is no such VM.
    pub fn hold_session(&self, vm: &str, held: bool) -> Result<(), VmError> {
        self.rooms().states.get_mut(vm).ok_or(VmError::Unknown)?.session_held = held;
        self.changes.send_replace(());
        Ok(())
    }

    /// Looks at the VMs as they are now.
    pub(super) fn with_system<R>(&self, look: impl FnOnce(&System) -> R) -> R {
        look(&self.rooms().system)
    }

    /// Is cancelled when the VM or its agent ends.
    pub(super) fn life(&self, vm: &str) -> CancellationToken {
        self.rooms().states.get(vm).map(|state| state.life.clone()).unwrap_or_default()
    }

    /// Notes a call between two VMs, unless one of them has `most` already.
    pub(super) fn enter(&self, source: &QubeName, target: &ServiceTarget, most: Option<usize>) -> Option<Entered<'_>> {
        let mut names = vec![source.clone()];
        if let ServiceTarget::Qube(target) = target {
            names.push(target.clone());
        }
        let mut rooms = self.rooms();
        let calls = |name| rooms.states.get(name).map_or(0, |state| state.calls);
        if most.is_some_and(|most| names.iter().any(|name| calls(name) >= most)) {
            return None;
        }
        for name in &names {
            if let Some(state) = rooms.states.get_mut(name) {
                state.calls = state.calls.saturating_add(1);
            }
        }
        drop(rooms);
        Some(Entered { vms: self, names })
    }

    /// Waits until the target runs, and starts it if it does not. Tells `waiting` when there is something to wait for.
    /// Cancel-safe: the start goes on.
    pub(super) async fn ensure(&self, target: &ServiceTarget, waiting: impl FnOnce()) -> Result<(), NotStarted> {
        let name = match target {
            ServiceTarget::AdminVm => return Ok(()),
            ServiceTarget::NewDisposable(_) => {
                if let Start::After(duration) = self.start {
                    tokio::time::sleep(duration).await;
                }
                return Ok(());
            }
            ServiceTarget::Qube(name) => name.as_str(),
        };
        let mut changes = self.changes.subscribe();
        let Some((attempt, since)) = self.begin(name) else { return Ok(()) };
        waiting();
        let ready = async {
            match self.start {
                Start::After(duration) => tokio::time::sleep_until(since + duration).await,
                Start::Gated => std::future::pending().await,
            }
        };
        let ended = async {
            // The sender is in `self`, so only the end of this start ends this.
            let _ = changes.wait_for(|()| !self.runs_start(name, attempt)).await;
        };
        tokio::select! {
            () = ready => {
                // Only the first of those who wait finds it starting.
                if self.runs_start(name, attempt) {
                    let _ = self.finish_start(name, StartOutcome::Running);
                }
            }
            () = ended => {}
        }
        if self.rooms().states.get(name).is_some_and(|state| state.failed >= attempt) {
            Err(NotStarted)
        } else {
            Ok(())
        }
    }

    /// Waits for the VM's session. Cancel-safe.
    pub(super) async fn session(&self, target: &ServiceTarget) {
        let held = |name: &QubeName| self.rooms().states.get(name).is_some_and(|state| state.session_held);
        if let ServiceTarget::Qube(name) = target {
            self.until(|| !held(name)).await;
        }
    }

    /// The number of the VM's start and when it began; `None` when the VM runs already.
    fn begin(&self, name: &str) -> Option<(u64, Instant)> {
        let mut rooms = self.rooms();
        let halted = rooms.system.qube(name).is_some_and(|qube| qube.power == Power::Halted);
        let state = rooms.states.get_mut(name).filter(|_| halted)?;
        let since = match state.starting {
            Some(since) => since,
            None => {
                state.starts = state.starts.saturating_add(1);
                *state.starting.insert(Instant::now())
            }
        };
        let attempt = state.starts;
        drop(rooms);
        self.changes.send_replace(());
        Some((attempt, since))
    }

    fn runs_start(&self, name: &str, attempt: u64) -> bool {
        let starting = |state: &State| state.starting.is_some() && state.starts == attempt;
        self.rooms().states.get(name).is_some_and(starting)
    }

    async fn until(&self, wanted: impl Fn() -> bool) {
        // The sender is in `self`, so only what is wanted ends this.
        let _ = self.changes.subscribe().wait_for(|()| wanted()).await;
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        // Nothing is left half done by a panic: there is none between the steps.
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vms(start: Start) -> (Vms, ServiceTarget) {
        let proxy = ServiceTarget::Qube(QubeName::try_new("sd-proxy").expect("a name"));
        (Vms::new(System::workstation().with_halted("sd-proxy"), start), proxy)
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_takes_its_time_once() {
        let (vms, proxy) = vms(Start::After(Duration::from_secs(40)));
        let begun = Instant::now();
        let both = tokio::join!(vms.ensure(&proxy, || {}), vms.ensure(&proxy, || {}));
        assert_eq!(both, (Ok(()), Ok(())));
        assert_eq!(begun.elapsed().as_secs(), 40);
        assert_eq!((vms.power("sd-proxy"), vms.starts("sd-proxy")), (Some(Power::Running), 1));
        vms.ensure(&proxy, || panic!("it runs")).await.expect("running");
        assert_eq!(begun.elapsed().as_secs(), 40);

        let viewer = ServiceTarget::NewDisposable(QubeName::try_new("sd-viewer").expect("a name"));
        vms.ensure(&viewer, || {}).await.expect("a disposable");
        assert_eq!(begun.elapsed().as_secs(), 80);
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_goes_on_without_the_call_that_caused_it() {
        let (vms, proxy) = vms(Start::After(Duration::from_secs(40)));
        let begun = Instant::now();
        assert!(tokio::time::timeout(Duration::from_secs(30), vms.ensure(&proxy, || {})).await.is_err());
        assert_eq!(vms.ensure(&proxy, || {}).await, Ok(()));
        assert_eq!((begun.elapsed().as_secs(), vms.starts("sd-proxy")), (40, 1));
    }

    #[tokio::test]
    async fn all_who_wait_learn_of_a_failure_and_the_next_one_tries_again() {
        let (vms, proxy) = vms(Start::Gated);
        let fails = async {
            vms.until_starting("sd-proxy").await;
            vms.finish_start("sd-proxy", StartOutcome::Failed)
        };
        let all = tokio::join!(vms.ensure(&proxy, || {}), vms.ensure(&proxy, || {}), fails);
        assert_eq!(all, (Err(NotStarted), Err(NotStarted), Ok(())));
        assert_eq!(vms.finish_start("sd-proxy", StartOutcome::Running), Err(VmError::NotStarting));
        assert_eq!(vms.finish_start("nowhere", StartOutcome::Running), Err(VmError::Unknown));
        let succeeds = async {
            vms.until_starting("sd-proxy").await;
            vms.finish_start("sd-proxy", StartOutcome::Running)
        };
        assert_eq!(tokio::join!(vms.ensure(&proxy, || {}), succeeds), (Ok(()), Ok(())));
        assert_eq!(vms.starts("sd-proxy"), 2);
    }
}
