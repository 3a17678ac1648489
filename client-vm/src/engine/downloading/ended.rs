//! What becomes of an item when its fetch has ended.

use std::time::Duration;

use control::{DownloadLane, DownloadStep, Failure, FailureKind, SessionEnd};
use protocol::Scope;
use protocol::value::Timestamp;
use qubes_rpc::qrexec::OpenError;
use tokio::task::Id;
use tokio::time::Instant;

use super::{FetchEnded, Fetching, LOOK_FOR_ROOM, change};
use crate::download::{FetchError, Fetched, Verdict};
use crate::engine::Engine;
use crate::engine::session::SessionState;
use crate::failure::{self, failure};
use crate::proxy::ProxyError;
use crate::store::downloads::{self, Wait};

/// How long to rest where only the user can say that it goes on: as good as for ever.
const UNTIL_THE_USER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How an item waits for its next attempt; [`Wait`] says what each means.
#[derive(Debug, Clone, Copy)]
enum Delay {
    None,
    For(Duration),
    Growing(Duration),
    Seldom,
    Suspected,
}

impl Engine {
    /// A fetch has ended.
    pub(in crate::engine) async fn fetch_ended(&mut self, task: Id, ended: FetchEnded) {
        let Some(fetching) = self.downloading.running.remove(&task) else { return };
        // What an older session is told says nothing of the present one; what was stored stays.
        let over = fetching.cancel.is_cancelled();
        match ended {
            FetchEnded::Fetched(Ok(Fetched::Stored(size))) => {
                self.downloading.refusals = 0;
                if !over {
                    self.lift_network_pause();
                }
                self.emit(change(fetching.candidate, DownloadStep::Stored { size }));
                self.sources_changed([fetching.candidate.source]);
                self.reading.add(fetching.candidate);
                self.start_reading().await;
            }
            FetchEnded::Fetched(Ok(Fetched::Gone) | Err(FetchError::Cancelled)) => self.fetch_stopped(&fetching),
            FetchEnded::Fetched(Err(_)) | FetchEnded::NotOpened(_) if over => self.fetch_stopped(&fetching),
            FetchEnded::Fetched(Err(error)) => self.fetch_failed(&fetching, &error).await,
            FetchEnded::NotOpened(error) => {
                let told = failure::of_proxy(&error);
                // Where dom0 asks about each file, what it says of one says nothing of the others.
                if !self.goes_on_by_the_user(fetching.lane) {
                    self.downloads_not_opened(&error, &told);
                }
                self.postpone(&fetching, &told.message, Delay::None).await;
            }
        }
        self.fetch_over().await;
    }

    fn fetch_stopped(&mut self, fetching: &Fetching) {
        self.emit(change(fetching.candidate, DownloadStep::Stopped));
        self.downloading.lane(fetching.lane).fresh = false;
        self.erase();
    }

    /// A call for downloads could not be opened. Where dom0 lets none through, or cannot start the VM, which looks the same,
    /// only downloads wait.
    pub(in crate::engine) fn downloads_not_opened(&mut self, error: &ProxyError, told: &Failure) {
        let refused = matches!(error, ProxyError::Open(OpenError::Refused { .. } | OpenError::NoSuchService { .. }));
        if refused || error.nobody_answered() {
            tracing::warn!("downloads wait: their calls are refused, or nobody answers");
            self.downloading.refusals = self.downloading.refusals.saturating_add(1);
            let wait = match self.proxy.asks(Scope::Download) {
                true => UNTIL_THE_USER,
                false => self.acting.waits().after(self.downloading.refusals, fastrand::f64()),
            };
            self.downloading.rest = Some(Instant::now() + wait);
        } else {
            self.pause_network(told);
        }
    }

    /// Whether dom0 asks about each call of the lane's: then what is not fetched in one is fetched only when the user says
    /// so again.
    fn goes_on_by_the_user(&self, lane: DownloadLane) -> bool {
        lane == DownloadLane::Files && self.proxy.asks(Scope::Download)
    }

    /// What rests goes on, unless only the user can say so.
    pub(in crate::engine) fn end_downloads_rest(&mut self) {
        if !self.proxy.asks(Scope::Download) {
            self.downloading.forget_refusals();
        }
    }

    /// Goes on after a fetch: what it kept from being erased goes now.
    async fn fetch_over(&mut self) {
        self.erase_what_was_left();
        self.send_acts().await;
        self.start_downloads().await;
    }

    /// The task of a fetch panicked.
    pub(in crate::engine) async fn fetch_panicked(&mut self, task: Id) -> bool {
        let Some(fetching) = self.downloading.running.remove(&task) else { return false };
        let reason = "fetching it met a fault: see the daemon's log";
        self.postpone(&fetching, reason, Delay::Growing(Duration::ZERO)).await;
        self.fetch_over().await;
        true
    }

    async fn fetch_failed(&mut self, fetching: &Fetching, error: &FetchError) {
        let (reason, item) = (error.reason(), fetching.candidate.item);
        let verdict = error.verdict();
        tracing::warn!(item = %item.id(), ?verdict, "a download failed");
        match verdict {
            Verdict::Cancelled => {}
            Verdict::SessionOver => {
                self.put_back(fetching, &reason, Delay::None).await;
                self.session = SessionState::Out;
                self.leave(SessionEnd::Expired);
            }
            Verdict::Barred => {
                self.pause_network(&failure(FailureKind::Unreachable, reason.clone()));
                self.postpone(fetching, &reason, Delay::None).await;
            }
            Verdict::Lost => {
                self.close_messages_call_if_broken();
                if fetching.lane == DownloadLane::Messages && self.proxy.asks(Scope::Download) {
                    // dom0 would be asked about another call.
                    self.downloading.rest = Some(Instant::now() + UNTIL_THE_USER);
                }
                // A proxy that ends as soon as it is asked would be started again and again.
                self.pause_network(&failure(FailureKind::Unreachable, reason.clone()));
                self.postpone(fetching, &reason, Delay::Suspected).await;
            }
            Verdict::Later { retry_after } => {
                self.postpone(fetching, &reason, Delay::Growing(retry_after.unwrap_or_default())).await;
            }
            Verdict::GoOn => self.postpone(fetching, &reason, Delay::None).await,
            Verdict::NoRoom => self.postpone(fetching, &reason, Delay::For(LOOK_FOR_ROOM)).await,
            Verdict::Denied if fetching.lane == DownloadLane::Messages => {
                self.postpone(fetching, &reason, Delay::Seldom).await;
            }
            Verdict::Denied | Verdict::Failed => self.fail(fetching, reason).await,
        }
    }

    /// The item is fetched only when the user says so.
    async fn fail(&mut self, fetching: &Fetching, reason: String) {
        let (item, stored) = (fetching.candidate.item, reason.clone());
        let failed = self.store.write(move |transaction| downloads::fail(transaction, item, &stored)).await;
        if let Err(error) = failed {
            tracing::error!(error = failure::chain(&error), "could not note that a download failed");
            // It would be due again at once.
            self.downloading.rest_a_little();
        }
        self.downloading.lane(fetching.lane).fresh = false;
        let told = failure(FailureKind::ServerFault, reason);
        self.emit(change(fetching.candidate, DownloadStep::Failed(told)));
        self.sources_changed([fetching.candidate.source]);
    }

    /// The item goes back to its place, and waits there.
    async fn postpone(&mut self, fetching: &Fetching, reason: &str, delay: Delay) {
        if self.goes_on_by_the_user(fetching.lane) {
            return self.fail(fetching, reason.to_owned()).await;
        }
        self.put_back(fetching, reason, delay).await;
    }

    /// The same, whatever dom0 asks about.
    async fn put_back(&mut self, fetching: &Fetching, reason: &str, delay: Delay) {
        let (item, stored, now) = (fetching.candidate.item, reason.to_owned(), self.clock.now());
        let (waits, jitter) = (self.acting.waits(), fastrand::f64());
        let postponed = self.store.write(move |transaction| {
            let waits = &waits;
            let wait = match delay {
                Delay::None => Wait::None,
                Delay::For(wait) => Wait::For { now, wait },
                Delay::Growing(asked) => Wait::Growing { now, waits, jitter, asked },
                Delay::Seldom => Wait::Seldom { now, waits, jitter },
                Delay::Suspected => Wait::Suspected { now, waits, jitter },
            };
            downloads::postpone(transaction, item, &stored, wait)
        });
        let next_try: Option<Timestamp> = match postponed.await {
            Ok(next_try) => next_try,
            Err(error) => {
                tracing::error!(error = failure::chain(&error), "could not note why a download waits");
                self.downloading.rest_a_little();
                None
            }
        };
        self.downloading.lane(fetching.lane).fresh = false;
        let told = failure(FailureKind::Unreachable, reason);
        self.emit(change(fetching.candidate, DownloadStep::Postponed { failure: told, next_try }));
    }
}
