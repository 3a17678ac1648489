//! What becomes of an item when its fetch has ended.

use std::time::Duration;

use control::{DownloadLane, DownloadStep, Failure, FailureKind, SessionEnd};
use protocol::Scope;
use protocol::value::Timestamp;
use qubes_rpc::qrexec::OpenError;
use tokio::task::Id;
use tokio::time::Instant;

use super::call::MessagesCall;
use super::{FetchEnded, Fetching, LOOK_FOR_ROOM, change};
use crate::download::{FetchError, Fetched, Verdict};
use crate::engine::Engine;
use crate::engine::session::SessionState;
use crate::failure::{self, failure};
use crate::proxy::ProxyError;
use crate::store::downloads::{self, Wait};

/// How an item waits for its next attempt; [`Wait`] says what each means.
#[derive(Debug, Clone, Copy)]
enum Delay {
    None,
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
                self.postpone(&fetching, told, Delay::None).await;
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
    /// only downloads wait; where dom0 asks about them, messages wait for the user, whatever was wrong.
    pub(in crate::engine) fn downloads_not_opened(&mut self, error: &ProxyError, told: &Failure) {
        let asks = self.proxy.asks(Scope::Download);
        if asks {
            self.hold_messages();
        }
        let refused = matches!(error, ProxyError::Open(OpenError::Refused { .. } | OpenError::NoSuchService { .. }));
        if !refused && !error.nobody_answered() {
            self.pause_network(told);
        } else if !asks {
            tracing::warn!("downloads wait: their calls are refused, or nobody answers");
            self.downloading.refusals = self.downloading.refusals.saturating_add(1);
            let wait = self.acting.waits().after(self.downloading.refusals, fastrand::f64());
            self.downloading.rest = self.downloading.rest.max(Some(Instant::now() + wait));
        }
    }

    /// Whether dom0 asks about each call of the lane's: then what is not fetched in one is fetched only when the user says
    /// so again.
    fn goes_on_by_the_user(&self, lane: DownloadLane) -> bool {
        lane == DownloadLane::Files && self.proxy.asks(Scope::Download)
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
        let told = failure(FailureKind::Internal, "fetching it met a fault: see the daemon's log");
        self.postpone(&fetching, told, Delay::Growing(Duration::ZERO)).await;
        self.fetch_over().await;
        true
    }

    async fn fetch_failed(&mut self, fetching: &Fetching, error: &FetchError) {
        let (told, item) = (failure::of_fetch(error), fetching.candidate.item);
        let verdict = error.verdict();
        tracing::warn!(item = %item.id(), ?verdict, "a download failed");
        match verdict {
            Verdict::Cancelled => {}
            Verdict::SessionOver => {
                self.put_back(fetching, told, Delay::None).await;
                self.session = SessionState::Out;
                self.leave(SessionEnd::Expired);
            }
            Verdict::Barred => {
                self.pause_network(&told);
                self.postpone(fetching, told, Delay::None).await;
            }
            Verdict::Lost => {
                self.close_messages_call_if_broken();
                let needs_another =
                    fetching.lane == DownloadLane::Messages && matches!(self.downloading.call, MessagesCall::None);
                if needs_another && self.proxy.asks(Scope::Download) {
                    self.hold_messages();
                }
                // A proxy that ends as soon as it is asked would be started again and again.
                self.pause_network(&told);
                self.postpone(fetching, told, Delay::Suspected).await;
            }
            Verdict::Later { retry_after } => {
                self.postpone(fetching, told, Delay::Growing(retry_after.unwrap_or_default())).await;
            }
            Verdict::GoOn => self.postpone(fetching, told, Delay::None).await,
            Verdict::NoRoom => {
                // Where the disk says that there is room all the same, it would be begun again at once.
                let delay = match self.downloading.files().has_room_for(0) {
                    true => Delay::Growing(LOOK_FOR_ROOM),
                    false => Delay::None,
                };
                self.postpone(fetching, told, delay).await;
            }
            Verdict::Denied if fetching.lane == DownloadLane::Messages => {
                self.postpone(fetching, told, Delay::Seldom).await;
            }
            Verdict::Denied | Verdict::Failed => self.fail(fetching, told).await,
        }
    }

    /// The item is fetched only when the user says so.
    async fn fail(&mut self, fetching: &Fetching, told: Failure) {
        let (item, stored) = (fetching.candidate.item, told.message.clone());
        let failed = self.store.write(move |transaction| downloads::fail(transaction, item, &stored)).await;
        if let Err(error) = failed {
            tracing::error!(error = failure::chain(&error), "could not note that a download failed");
            // It would be due again at once.
            self.downloading.rest_a_little();
        }
        self.downloading.lane(fetching.lane).fresh = false;
        self.emit(change(fetching.candidate, DownloadStep::Failed(told)));
        self.sources_changed([fetching.candidate.source]);
    }

    /// The item goes back to its place, and waits there.
    async fn postpone(&mut self, fetching: &Fetching, told: Failure, delay: Delay) {
        if self.goes_on_by_the_user(fetching.lane) {
            return self.fail(fetching, told).await;
        }
        self.put_back(fetching, told, delay).await;
    }

    /// The same, whatever dom0 asks about.
    async fn put_back(&mut self, fetching: &Fetching, told: Failure, delay: Delay) {
        let (item, stored, now) = (fetching.candidate.item, told.message.clone(), self.clock.now());
        let (waits, jitter) = (self.acting.waits(), fastrand::f64());
        let postponed = self.store.write(move |transaction| {
            let waits = &waits;
            let wait = match delay {
                Delay::None => Wait::None,
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
        self.emit(change(fetching.candidate, DownloadStep::Postponed { failure: told, next_try }));
    }
}
