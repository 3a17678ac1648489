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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn uses_of_the_key_take_places_among_all_calls_and_at_most_so_many() {
        let calls = Places::new(3);
        let keys = KeyPlaces::new(2, calls.clone());
        let now = async |keys: &KeyPlaces| {
            tokio::select! {
                biased;
                place = keys.take() => Some(place),
                () = std::future::ready(()) => None,
            }
        };
        let (first, second) = (now(&keys).await.unwrap(), now(&keys).await.unwrap());
        assert!(now(&keys).await.is_none(), "there are two of its own");
        drop(second);
        let (one, _other) = (calls.take().await, calls.take().await);
        assert!(now(&keys).await.is_none(), "all places are taken");
        drop(one);
        let _second = now(&keys).await.unwrap();
        drop(first);
    }
}
