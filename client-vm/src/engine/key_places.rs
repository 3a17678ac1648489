//! What every use of the private key's backend takes: it may be a qrexec call.

use std::sync::Arc;

use qubes_rpc::places::{Place, Places};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

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

/// Does work off the async threads, in a place if it needs one. The work has the place until it ends: also where nobody
/// waits for it any more.
///
/// # Errors
/// The work panicked.
pub(super) async fn work_in<T: Send + 'static>(
    place: Option<KeyPlace>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let work = move || {
        let _place = place;
        work()
    };
    tokio::task::spawn_blocking(work).await
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

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

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_given_up_keeps_its_place_until_it_has_ended() {
        let calls = Places::new(1);
        let keys = KeyPlaces::new(1, calls.clone());
        let (begin, begun) = tokio::sync::oneshot::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let work = move || {
            begin.send(()).unwrap();
            ended.recv().unwrap();
        };
        tokio::select! {
            biased;
            worked = work_in(Some(keys.take().await), work) => unreachable!("{worked:?}"),
            begun = begun => begun.unwrap(),
        }
        let mut waiting = Box::pin(keys.take());
        let at_once = std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_ready()));
        assert!(!at_once.await, "it still works");
        end.send(()).unwrap();
        let _place = waiting.await;
    }
}
