//! What every use of the private key's backend takes: it may be a qrexec call.

use std::sync::Arc;

use qubes_rpc::places::{Place, Places};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The backend's own places, and those of all calls. Clones give the same ones.
#[derive(Debug, Clone)]
pub(super) struct KeyPlaces {
    own: Arc<Semaphore>,
    calls: Places,
}

/// The places of one use.
#[derive(Debug)]
pub(super) struct KeyPlace {
    _own: Option<OwnedSemaphorePermit>,
    _call: Place,
}

impl KeyPlaces {
    /// As many as `own` at the same time, each in one of the places of `calls`.
    pub(super) fn new(own: usize, calls: Places) -> Self {
        Self { own: Arc::new(Semaphore::new(own)), calls }
    }

    /// Takes one of each; where there is none, first come first served. Cancel-safe.
    pub(super) async fn take(&self) -> KeyPlace {
        // Never closed. Its own comes first, so that at most as many wait for a call's.
        let own = Arc::clone(&self.own).acquire_owned().await.ok();
        KeyPlace { _own: own, _call: self.calls.take().await }
    }
}
