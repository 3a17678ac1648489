//! Notices that the machine was suspended: then what was under way hangs on connections that are dead, and what waits has
//! waited for long enough.
//!
//! The monotonic clock stands while a machine sleeps, and the wall clock does not. A wall clock that is set forward looks the
//! same; one that is set back is no sign of anything.

use std::time::Duration;

use protocol::value::Timestamp;
use tokio::time::Instant;

use super::Engine;
use super::session::SessionState;

/// How often the clocks are compared while somebody is signed in.
const LOOK: Duration = Duration::from_secs(10);
/// How much further the wall clock must have moved than the other one.
const SLEPT: Duration = Duration::from_secs(30);

/// What both clocks said when they were last compared.
#[derive(Debug)]
pub(super) struct Awake {
    wall: Timestamp,
    monotonic: Instant,
}

impl Awake {
    pub(super) fn new(wall: Timestamp) -> Self {
        Self { wall, monotonic: Instant::now() }
    }

    /// Whether the machine has slept since the last look.
    fn has_slept(&mut self, wall: Timestamp) -> bool {
        let last = std::mem::replace(self, Self::new(wall));
        let went_by = Duration::from_micros(wall.get().saturating_sub(last.wall.get()));
        went_by.saturating_sub(self.monotonic.saturating_duration_since(last.monotonic)) > SLEPT
    }
}

impl Engine {
    /// When the clocks are to be compared next.
    pub(super) fn next_look(&self) -> Option<Instant> {
        matches!(self.session, SessionState::In(_)).then(|| self.awake.monotonic + LOOK)
    }

    /// Compares the clocks. After a sleep the running sync is given up for one that starts at once, and whatever rests goes
    /// on, except for what only the user can say.
    pub(super) async fn look_at_clocks(&mut self) {
        if !self.awake.has_slept(self.clock.now()) || !matches!(self.session, SessionState::In(_)) {
            return;
        }
        tracing::info!("the machine has slept, or its clock was set forward");
        self.sync_anew();
        self.end_network_wait();
        self.acting.end_rests();
        self.downloading.end_rest();
        self.reading.forget_failures();
        self.work().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use control::{Event, SyncOutcome};
    use tokio::sync::broadcast::Receiver;

    use super::*;
    use crate::clock::Clock;
    use crate::engine::EngineParts;
    use crate::engine::session::OpenSession;
    use crate::failure;
    use crate::store::Store;

    const HOUR: u64 = 3_600;
    const YEAR: u64 = 365 * 24 * HOUR;
    /// Seconds since 1970.
    const NOW: u64 = 1_750_000_000;

    fn at(secs: u64) -> Timestamp {
        Timestamp::try_new(secs * 1_000_000).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_wall_clock_that_runs_ahead_of_the_other_one_says_that_the_machine_has_slept() {
        let mut awake = Awake::new(at(NOW));
        for (monotonic, wall, slept) in [
            (10, NOW + 10, false),
            // The wall clock is put right by a little.
            (10, NOW + 49, false),
            (10, NOW + 59 + 3 * HOUR, true),
            (10, NOW + 69 + 3 * HOUR, false),
            (10, NOW - YEAR, false),
            (10, NOW - YEAR + 10, false),
            (10, NOW + YEAR, true),
            // A daemon that got no time for long was awake all the same.
            (HOUR, NOW + YEAR + HOUR, false),
        ] {
            tokio::time::advance(Duration::from_secs(monotonic)).await;
            assert_eq!(awake.has_slept(at(wall)), slept, "{monotonic} {wall}");
        }
    }

    /// An engine that somebody is signed in to, with a wall clock that a test moves.
    async fn engine(directory: &std::path::Path) -> (Engine, Arc<AtomicU64>, Receiver<Event>) {
        let store = Store::open(directory).unwrap();
        let wall = Arc::new(AtomicU64::new(at(NOW).get()));
        let parts =
            EngineParts { clock: Clock::Manual(Arc::clone(&wall)), ..EngineParts::without_qrexec(directory, store) };
        let (mut engine, handle) = Engine::new(parts).await.unwrap();
        engine.session = SessionState::In(Box::new(OpenSession::of_nobody()));
        let events = handle.subscribe().unwrap();
        (engine, wall, events)
    }

    /// The syncs that have started and ended since this was last asked.
    fn syncs(events: &mut Receiver<Event>) -> Vec<&'static str> {
        let mut syncs = Vec::new();
        while let Ok(event) = events.try_recv() {
            match event {
                Event::SyncStarted(_) => syncs.push("started"),
                Event::SyncEnded(report) if report.outcome == SyncOutcome::Cancelled => syncs.push("cancelled"),
                Event::SyncEnded(_) => syncs.push("ended"),
                _other => {}
            }
        }
        syncs
    }

    #[tokio::test]
    async fn after_a_sleep_a_sync_that_hangs_is_given_up_for_one_that_starts_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let (mut engine, wall, mut events) = engine(directory.path()).await;
        for (moved_to, slept) in [(NOW + 5, false), (NOW + 5 * HOUR, true), (NOW - YEAR, false), (NOW + YEAR, true)] {
            let waiting = engine.hanging_sync();
            wall.store(at(moved_to).get(), Ordering::SeqCst);
            engine.pause_network(&failure::not_signed_in());
            engine.look_at_clocks().await;
            assert_eq!(engine.may_go_on().is_ok(), slept, "what waits has waited for long enough");
            if slept {
                assert_eq!(engine.running_is_cancelled(), Some(true));
                engine.end_hanging_sync().await;
                assert_eq!(syncs(&mut events), ["cancelled", "started"], "{moved_to}");
                drop(waiting);
            } else {
                assert_eq!((engine.running_is_cancelled(), syncs(&mut events)), (Some(false), vec![]), "{moved_to}");
            }
            // Whoever waits, waits for the one that comes.
            engine.stop_syncing(failure::not_signed_in());
            engine.running = None;
            engine.lift_network_pause();
        }
    }

    #[tokio::test]
    async fn after_a_sleep_a_sync_starts_at_once_where_none_runs() {
        let directory = tempfile::tempdir().unwrap();
        let (mut engine, wall, mut events) = engine(directory.path()).await;
        wall.store(at(NOW + HOUR).get(), Ordering::SeqCst);
        engine.look_at_clocks().await;
        assert_eq!(syncs(&mut events), ["started"]);
        engine.running = None;
        engine.look_at_clocks().await;
        assert_eq!(syncs(&mut events), [""; 0], "once");
        engine.session = SessionState::Out;
        wall.store(at(NOW + 3 * HOUR).get(), Ordering::SeqCst);
        engine.look_at_clocks().await;
        assert_eq!((syncs(&mut events).len(), engine.next_look()), (0, None), "nobody is signed in");
    }
}
