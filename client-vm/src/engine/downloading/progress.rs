//! Tells the front ends how fetches go on, and not too often.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::{DownloadStep, Event};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::change;
use crate::download::{Step, Watcher};
use crate::store::downloads::Candidate;

/// The shortest time between two reports of progress, of whatever is being fetched: they are at most five a second.
const EVERY: Duration = Duration::from_millis(250);

/// Keeps the reports of all fetches apart.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// Whether a report may be made now; if so it counts as made.
    fn lets_pass(&self) -> bool {
        let now = Instant::now();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passes = last.is_none_or(|last| now.duration_since(last) >= EVERY);
        if passes {
            *last = Some(now);
        }
        passes
    }
}

/// Tells the front ends how a fetch goes on.
pub(super) struct Reporter {
    pub(super) candidate: Candidate,
    pub(super) received: Arc<AtomicU64>,
    pub(super) events: broadcast::Sender<Event>,
    pub(super) pace: Arc<Pace>,
}

impl Watcher for Reporter {
    fn step(&self, step: Step) {
        tracing::debug!(item = %self.candidate.item.id(), ?step, "download");
    }

    fn progress(&self, received: u64, total: Option<u64>) {
        // Whoever asks is told, however often somebody else was.
        self.received.store(received, Ordering::Relaxed);
        if self.pace.lets_pass() {
            drop(self.events.send(change(self.candidate, DownloadStep::Progress { received, total })));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::outbox::ItemName;

    /// Ten fetches that each report as often as they can, for ten seconds.
    #[tokio::test(start_paused = true)]
    async fn progress_is_told_at_most_five_times_a_second_in_all() {
        let (events, mut told) = broadcast::channel(4096);
        let pace = Arc::new(Pace::default());
        let reporters: Vec<_> = (0..10)
            .map(|number| {
                let item = ItemName::File(format!("0000002{number}-0000-4000-8000-000000000000").parse().unwrap());
                let candidate = Candidate { source: "00000010-0000-4000-8000-000000000000".parse().unwrap(), item };
                Reporter { candidate, received: Arc::default(), events: events.clone(), pace: Arc::clone(&pace) }
            })
            .collect();
        let mut at = Vec::new();
        let begun = Instant::now();
        for moment in 0..1000_u64 {
            for reporter in &reporters {
                reporter.progress(moment, None);
            }
            while told.try_recv().is_ok() {
                at.push(begun.elapsed());
            }
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert!((30..=50).contains(&at.len()), "it is told, and not too often: {}", at.len());
        assert!(at.windows(6).all(|six| six[5] - six[0] >= Duration::from_secs(1)), "{at:?}");
        assert!(reporters.iter().all(|reporter| reporter.received.load(Ordering::Relaxed) == 999));
    }
}
