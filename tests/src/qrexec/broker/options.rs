//! What a broker is made of.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::installation::Installation;
use super::questions::Dom0User;
use super::vms::Start;
use crate::qrexec::system::{QubeName, System};

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
    /// What is not the same on every machine and every day.
    pub conditions: Conditions,
}

impl BrokerOptions {
    /// Nothing installed, no grace, and the default conditions.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, policy: Vec<(String, String)>, system: System) -> Self {
        Self {
            folder: folder.into(),
            policy,
            system,
            installed: BTreeMap::new(),
            grace: Duration::ZERO,
            conditions: Conditions::default(),
        }
    }
}

/// How a broker behaves beyond the rules. By default calls cost nothing, halted VMs start at once, there is nobody in
/// front of dom0, and there may be any number of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// What calls cost at first; see [`Broker::set_costs`](super::Broker::set_costs).
    pub costs: Costs,
    /// How halted VMs start.
    pub start: Start,
    /// Who answers questions.
    pub dom0_user: Dom0User,
    /// The most calls from and to one VM; more end as failed. On real machines 10 to 25 are safe.
    pub most_calls: Option<usize>,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            costs: Costs::default(),
            start: Start::After(Duration::ZERO),
            dom0_user: Dom0User::default(),
            most_calls: None,
        }
    }
}

/// What calls cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// From the request to the service's start; about 14 ms in life. The start of a VM comes on top.
    pub call: Duration,
    /// From the request to the refusal; 5 to 8 ms in life.
    pub refused: Duration,
    /// The most bytes a second that a call moves each way; 0 and `None` set no bound. In life some 250 MiB.
    pub bytes_per_second: Option<u64>,
}

impl Costs {
    /// As measured on a real system.
    #[must_use]
    pub const fn measured() -> Self {
        Self { call: Duration::from_millis(14), refused: Duration::from_millis(6), bytes_per_second: Some(250 << 20) }
    }
}
