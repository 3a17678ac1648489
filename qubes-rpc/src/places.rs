//! How many qrexec calls of one program there may be at the same time: qrexec breaks at some more than ten.
//!
//! **Invariant:** there are never more [`Place`]s than there were to give. A call cannot be made without one, and gives its
//! own back only when its process is reaped.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The places that calls take. Clones give the same ones.
#[derive(Debug, Clone)]
pub struct Places {
    free: Arc<Semaphore>,
    waiting: Waiting,
    /// Those who wait and cannot wait long.
    urgent: Waiting,
}

/// The place of one call.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
    places: Places,
}

impl Places {
    /// As many as `count` at the same time.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), waiting: Waiting::new(), urgent: Waiting::new() }
    }

    /// Takes a place; where there is none, first come first served. Cancel-safe.
    pub async fn take(&self) -> Place {
        let _waiting = self.waiting.join();
        match Arc::clone(&self.free).acquire_owned().await {
            Ok(permit) => Place { _permit: permit, places: self.clone() },
            // Nobody closes the semaphore.
            Err(_) => std::future::pending().await,
        }
    }

    /// Takes a place for what cannot wait long: calls that are being closed end at once where there is none. Cancel-safe.
    pub async fn take_urgently(&self) -> Place {
        let _urgent = self.urgent.join();
        self.take().await
    }

    /// Waits until somebody cannot wait long for a place. Cancel-safe.
    pub(crate) async fn urgently_wanted(&self) {
        self.urgent.until_some(&self.free).await;
    }

    /// How many calls wait for a place.
    #[must_use]
    pub fn waiting(&self) -> usize {
        if self.free.available_permits() > 0 { 0 } else { self.waiting.count() }
    }
}

impl Place {
    /// Where it belongs to.
    pub(crate) fn places(&self) -> &Places {
        &self.places
    }
}

/// How many wait for something.
#[derive(Debug, Clone)]
struct Waiting(Arc<watch::Sender<usize>>);

impl Waiting {
    fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// One more, until what is returned is dropped.
    fn join(&self) -> Waiter<'_> {
        self.0.send_modify(|count| *count = count.saturating_add(1));
        Waiter(&self.0)
    }

    fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until somebody waits while nothing is free.
    async fn until_some(&self, free: &Semaphore) {
        let mut count = self.0.subscribe();
        if count.wait_for(|count| *count > 0 && free.available_permits() == 0).await.is_err() {
            std::future::pending().await
        }
    }
}

/// One who waits.
#[derive(Debug)]
struct Waiter<'a>(&'a watch::Sender<usize>);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    /// Whether the future is ready when it is looked at once.
    async fn is_ready<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        std::future::poll_fn(|context| match std::pin::Pin::new(&mut *future).poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test]
    async fn who_finds_no_place_waits_for_one_in_turn() {
        let places = Places::new(2);
        let (first, _second) = (places.take().await, places.take().await);
        assert_eq!(places.waiting(), 0);
        let (mut third, mut fourth) = (Box::pin(places.take()), Box::pin(places.take()));
        assert!(is_ready(&mut third).await.is_none() && is_ready(&mut fourth).await.is_none());
        assert_eq!(places.waiting(), 2);
        drop(first);
        assert!(is_ready(&mut fourth).await.is_none(), "it is not its turn");
        let third = is_ready(&mut third).await.unwrap();
        assert_eq!(places.waiting(), 1);
        drop(fourth);
        assert_eq!(places.waiting(), 0, "who has given up waits no more");
        drop(third);
        assert!(is_ready(&mut Box::pin(places.take())).await.is_some());
    }

    #[tokio::test]
    async fn what_is_urgent_is_noticed_while_there_is_no_place() {
        let places = Places::new(1);
        let place = places.take().await;
        let mut noticed = Box::pin(places.urgently_wanted());
        let mut usual = Box::pin(places.take());
        assert!(is_ready(&mut usual).await.is_none() && is_ready(&mut noticed).await.is_none());
        let mut urgent = Box::pin(places.take_urgently());
        assert!(is_ready(&mut urgent).await.is_none());
        is_ready(&mut noticed).await.unwrap();
        drop(urgent);
        assert!(is_ready(&mut Box::pin(places.urgently_wanted())).await.is_none(), "it is over");
        drop((place, usual));
        let _place = is_ready(&mut Box::pin(places.take_urgently())).await.unwrap();
    }
}
