//! When syncs start by themselves, and whether what is shown is old.
//!
//! **Invariant:** where each sync succeeds nothing shown counts as old, however long one takes.
//!
//! **Invariant:** that what is shown is old is told once, and withdrawn once: by the next success, or by the session's end.

use std::time::Duration;

use tokio::time::Instant;

use crate::settings::SyncSettings;

/// After how many failures in a row what is shown counts as old.
const STALE_FAILURES: u32 = 3;
/// How many times as long as it took nothing is asked after a sync: the link and the server are shared.
const REST: u32 = 4;
/// How many syncs, with the waits before them, may go by until what is shown counts as old, where they take long.
const STALE_ROUNDS: u32 = 2;

/// Whether there is something to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Told {
    /// What is shown is old from now on.
    Stale,
    /// What is shown is not old any more, or nobody shows anything.
    Fresh,
    /// Nothing that was not told before.
    Nothing,
}

/// The schedule of one engine.
#[derive(Debug)]
pub(in crate::engine) struct Schedule {
    settings: SyncSettings,
    /// When the next one starts.
    next: Option<Instant>,
    /// How many have failed in a row.
    failures: u32,
    /// How long the last one that succeeded took.
    took: Duration,
    /// Whether it was told that what is shown is old.
    stale: bool,
    /// When that is so, if no sync succeeds until then.
    stale_at: Option<Instant>,
}

impl Schedule {
    pub(in crate::engine) fn new(settings: SyncSettings) -> Self {
        Self { settings, next: None, failures: 0, took: Duration::ZERO, stale: false, stale_at: None }
    }

    /// When the next sync starts by itself.
    pub(in crate::engine) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// When what is shown is old, if no sync succeeds until then.
    pub(in crate::engine) fn stale_at(&self) -> Option<Instant> {
        self.stale_at
    }

    /// Whether what is shown is old.
    pub(in crate::engine) fn is_stale(&self) -> bool {
        self.stale
    }

    /// A session begins.
    pub(in crate::engine) fn begin(&mut self) {
        self.failures = 0;
        self.stale_at = Some(Instant::now() + self.patience());
    }

    /// The session is over: nothing is shown of it any more.
    pub(in crate::engine) fn end(&mut self) -> Told {
        self.next = None;
        self.stale_at = None;
        self.withdraw()
    }

    /// A sync starts.
    pub(in crate::engine) fn started(&mut self) {
        self.next = None;
    }

    /// A sync has succeeded.
    pub(in crate::engine) fn succeeded(&mut self, took: Duration) -> Told {
        let now = Instant::now();
        self.failures = 0;
        self.took = took;
        self.next = Some(now + self.wait());
        self.stale_at = Some(now + self.patience());
        self.withdraw()
    }

    /// A sync has failed.
    pub(in crate::engine) fn failed(&mut self, jitter: f64) -> Told {
        self.failures = self.failures.saturating_add(1);
        self.next = Some(Instant::now() + self.settings.waits.after(self.failures, jitter));
        if self.failures >= STALE_FAILURES { self.grow_stale() } else { Told::Nothing }
    }

    /// There has been no success for too long.
    pub(in crate::engine) fn grow_stale(&mut self) -> Told {
        self.stale_at = None;
        if std::mem::replace(&mut self.stale, true) { Told::Nothing } else { Told::Stale }
    }

    fn withdraw(&mut self) -> Told {
        if std::mem::take(&mut self.stale) { Told::Fresh } else { Told::Nothing }
    }

    /// How long to wait after a success.
    fn wait(&self) -> Duration {
        self.settings.interval.max(self.took.saturating_mul(REST))
    }

    /// How long no success may come until what is shown is old.
    fn patience(&self) -> Duration {
        self.settings.stale.max(self.wait().saturating_add(self.took).saturating_mul(STALE_ROUNDS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn begun() -> Schedule {
        let mut schedule = Schedule::new(SyncSettings::default());
        schedule.begin();
        schedule
    }

    /// How long until the next sync starts.
    fn wait(schedule: &Schedule) -> Duration {
        schedule.next().unwrap().saturating_duration_since(Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_sync_waits_15_s_after_the_end_of_the_last_or_four_times_as_long_as_that_took() {
        let mut schedule = begun();
        for (took, waits) in [(0, 15), (1, 15), (3, 15), (4, 16), (30, 120), (90, 360)] {
            schedule.started();
            assert_eq!(schedule.next(), None, "none starts while one runs");
            tokio::time::advance(secs(took)).await;
            assert_eq!(schedule.succeeded(secs(took)), Told::Nothing);
            assert_eq!(wait(&schedule), secs(waits), "after {took} s");
            tokio::time::advance(secs(waits)).await;
            assert_eq!(wait(&schedule), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn syncs_that_fail_wait_5_to_60_s_with_jitter_and_start_anew_after_a_success() {
        for (jitter, waits) in [
            (0.0, [5_000, 10_000, 20_000, 40_000, 48_000, 48_000]),
            (1.0, [6_250, 12_500, 25_000, 50_000, 60_000, 60_000]),
        ] {
            let mut schedule = begun();
            for _ in 0..2 {
                for waits in waits {
                    schedule.failed(jitter);
                    assert_eq!(wait(&schedule), Duration::from_millis(waits));
                }
                for _ in 0..100 {
                    schedule.failed(jitter);
                    assert!(wait(&schedule) <= secs(60), "it never stops");
                }
                schedule.succeeded(secs(1));
                assert_eq!(wait(&schedule), secs(15));
            }
        }
    }

    /// Case S7.
    #[tokio::test(start_paused = true)]
    async fn s7_syncs_that_take_long_and_succeed_make_nothing_old() {
        for took in [61, 90, 600] {
            let mut schedule = begun();
            tokio::time::advance(secs(1)).await;
            schedule.started();
            schedule.succeeded(secs(took));
            for _ in 0..5 {
                tokio::time::advance(wait(&schedule)).await;
                schedule.started();
                tokio::time::advance(secs(took)).await;
                assert!(schedule.stale_at().unwrap() > Instant::now(), "{took} s");
                assert_eq!(schedule.succeeded(secs(took)), Told::Nothing);
            }
            // Nor has a session that comes after them less time for its first.
            assert_eq!(schedule.end(), Told::Nothing);
            schedule.begin();
            assert!(schedule.stale_at().unwrap() > Instant::now() + secs(took));
        }
    }

    /// Case S7.
    #[tokio::test(start_paused = true)]
    async fn s7_what_is_old_by_its_age_is_told_once_and_withdrawn_once() {
        for (took, patience) in [(2, 300), (90, 900)] {
            let mut schedule = begun();
            schedule.succeeded(secs(took));
            let at = schedule.stale_at().unwrap();
            assert_eq!(at - Instant::now(), secs(patience), "{took} s");
            // A failure puts it off in no way.
            schedule.failed(0.0);
            assert_eq!(schedule.stale_at(), Some(at));
            assert_eq!(schedule.grow_stale(), Told::Stale);
            assert_eq!((schedule.stale_at(), schedule.is_stale()), (None, true));
            assert_eq!(
                (schedule.failed(0.0), schedule.failed(0.0), schedule.failed(0.0)),
                (Told::Nothing, Told::Nothing, Told::Nothing)
            );
            assert_eq!((schedule.succeeded(secs(took)), schedule.succeeded(secs(took))), (Told::Fresh, Told::Nothing));
            assert!(schedule.stale_at().is_some() && !schedule.is_stale());
        }
    }

    /// Case S7.
    #[tokio::test(start_paused = true)]
    async fn s7_three_failures_in_a_row_are_told_once_and_withdrawn_once_by_a_success_or_by_the_sessions_end() {
        let mut schedule = begun();
        assert_eq!((schedule.failed(0.0), schedule.failed(0.0)), (Told::Nothing, Told::Nothing));
        assert_eq!(schedule.succeeded(secs(1)), Told::Nothing, "two are not enough, and count no more");
        let told: Vec<_> = (0..6).map(|_| schedule.failed(0.0)).collect();
        assert_eq!(told, [Told::Nothing, Told::Nothing, Told::Stale, Told::Nothing, Told::Nothing, Told::Nothing]);
        assert_eq!((schedule.end(), schedule.end()), (Told::Fresh, Told::Nothing));
        assert_eq!((schedule.next(), schedule.stale_at()), (None, None));
    }
}
