//! What somebody waits for: the items, and how far each is.
//!
//! **Invariant:** an item that is settled stays so: it is there, or could not be had, or is not to be fetched any more.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use control::{
    Content, ConversationItem, Deletion, DownloadChange, DownloadEntry, DownloadLane, DownloadState, DownloadStep,
    Event, FailureKind, PauseReason, ReadChange, ReadStep, Session, SessionEnd, Status,
};
use protocol::value::{Designation, ItemId, Timestamp};
use tokio::time::Instant;

use super::super::act::item_id;
use super::super::exit::CliError;
use super::super::text::{self, Progress};

/// The most lines of one kind that are shown.
const MAX_LINES: usize = 4;
/// Over how long a rate is taken.
const RATE_OVER: Duration = Duration::from_secs(8);
/// The shortest time of which a rate says something.
const RATE_FROM: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Waiting {
    items: BTreeMap<ItemId, Awaited>,
    /// Whether it is known which items these are.
    listed: bool,
    /// What kind of failure each met last.
    kinds: BTreeMap<ItemId, FailureKind>,
    /// Why nothing is fetched at present.
    paused: Vec<PauseReason>,
    signed_out: bool,
    /// Whether events were missed.
    missed: bool,
}

#[derive(Debug)]
struct Awaited {
    /// The source's, once it is known.
    designation: Option<Designation>,
    /// In bytes, as the server lists it.
    size: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It waits, if it was tried for this reason until then.
    Waiting {
        reason: Option<String>,
        next_try: Option<Timestamp>,
    },
    Running {
        received: u64,
        total: Option<u64>,
        rate: Rate,
    },
    /// It ended in some way, or is no longer listed: the daemon is to be asked.
    Unclear,
    /// It is there, and is being decrypted or waits to be; the last attempt failed for this reason.
    Opening {
        reason: Option<String>,
    },
    /// It can be read. Of a file: its name, if its source gave it one.
    There {
        bytes: u64,
        name: Option<String>,
    },
    Failed {
        reason: String,
    },
    /// It is not to be fetched any more.
    Stopped,
}

impl State {
    fn is_settled(&self) -> bool {
        match self {
            Self::Waiting { .. } | Self::Running { .. } | Self::Unclear | Self::Opening { .. } => false,
            Self::There { .. } | Self::Failed { .. } | Self::Stopped => true,
        }
    }

    fn waiting() -> Self {
        Self::Waiting { reason: None, next_try: None }
    }

    /// So much is there now.
    fn running(&mut self, now_there: u64, of: Option<u64>, now: Instant) {
        if !matches!(self, Self::Running { .. }) {
            *self = Self::Running { received: now_there, total: of, rate: Rate::default() };
        }
        if let Self::Running { received, total, rate } = self {
            (*received, *total) = (now_there, of.or(*total));
            rate.note(now, now_there);
        }
    }
}

impl Waiting {
    pub(super) fn for_items(items: &[ConversationItem]) -> Self {
        let awaited = |item: &ConversationItem| {
            let state = match &item.content {
                Content::Decrypted { bytes, name, .. } => State::There { bytes: *bytes, name: name.clone() },
                Content::Downloaded { reason } => State::Opening { reason: reason.clone() },
                Content::Absent | Content::Wanted { .. } | Content::Sealed { .. } | Content::Failed { .. } => {
                    State::waiting()
                }
            };
            (item_id(item), Awaited { designation: None, size: item.size.get(), state })
        };
        Self { listed: true, items: items.iter().map(awaited).collect(), ..Self::for_all_files() }
    }

    /// For all files that the daemon lists when it is looked at first.
    pub(super) fn for_all_files() -> Self {
        Self {
            items: BTreeMap::new(),
            listed: false,
            kinds: BTreeMap::new(),
            paused: Vec::new(),
            signed_out: false,
            missed: false,
        }
    }

    /// How things are when events begin to come, or after some were missed.
    pub(super) fn begin(&mut self, status: &Status) {
        self.paused.clone_from(&status.queue.paused);
        self.signed_out = status.session == Session::SignedOut;
    }

    pub(super) fn is_over(&self) -> bool {
        self.listed && self.items.values().all(|item| item.state.is_settled())
    }

    /// Whether events were missed since this was asked last.
    pub(super) fn take_missed(&mut self) -> bool {
        std::mem::take(&mut self.missed)
    }

    /// Only a person can go on: there is nothing to wait for.
    pub(super) fn refuse_if_nothing_comes(&self) -> Result<(), CliError> {
        let to_fetch = |item: &Awaited| matches!(item.state, State::Waiting { .. } | State::Running { .. });
        // To decrypt what is there nobody has to be signed in.
        let nothing_comes = self.signed_out && (!self.listed || self.items.values().any(to_fetch));
        if nothing_comes { Err(CliError::NobodyFetches) } else { Ok(()) }
    }

    /// Remembers of what kind a failure is; only an event says that.
    pub(super) fn note_why(&mut self, event: &Event) {
        if let Event::Download(DownloadChange { item, step: DownloadStep::Failed(failure), .. })
        | Event::Read(ReadChange { item, step: ReadStep::Sealed(failure), .. }) = event
        {
            self.kinds.insert(*item, failure.kind);
        }
    }

    pub(super) fn hear(&mut self, event: &Event, now: Instant) {
        self.note_why(event);
        match event {
            Event::Download(change) => self.change(change, now),
            Event::Read(change) => self.read(change),
            Event::Paused(reason) => self.paused.push(reason.clone()),
            // It says nothing of the session.
            Event::Resumed => self.paused.retain(|reason| *reason == PauseReason::NoSession),
            Event::SessionStarted(_) => {
                self.signed_out = false;
                self.paused.retain(|reason| *reason != PauseReason::NoSession);
            }
            Event::SessionEnded(SessionEnd::Logout | SessionEnd::Expired) => self.signed_out = true,
            // The connection ends next, and says more.
            Event::SessionEnded(SessionEnd::Shutdown) => {}
            Event::Missed(_) => self.missed = true,
            Event::ProxyWaiting
            | Event::SyncStarted(_)
            | Event::SyncEnded(_)
            | Event::SourcesChanged(_)
            | Event::SyncStale { .. }
            | Event::SyncFresh
            | Event::KeyHeld { .. }
            | Event::RemovalsHeld(_)
            | Event::Erased(_)
            | Event::ErasureFailed(_)
            | Event::Act(_)
            | Event::Viewer { .. } => {}
        }
    }

    fn change(&mut self, change: &DownloadChange, now: Instant) {
        let Some(item) = self.items.get_mut(&change.item).filter(|item| !item.state.is_settled()) else { return };
        match &change.step {
            DownloadStep::Started => {
                if !matches!(item.state, State::Running { .. }) {
                    item.state = State::Running { received: 0, total: None, rate: Rate::default() };
                }
            }
            DownloadStep::Progress { received, total } => item.state.running(*received, *total, now),
            DownloadStep::Stored { .. } => item.state = State::Opening { reason: None },
            DownloadStep::Postponed { failure, next_try } => {
                item.state = State::Waiting { reason: Some(failure.message.clone()), next_try: *next_try };
            }
            DownloadStep::Failed(_) | DownloadStep::Stopped => item.state = State::Unclear,
        }
    }

    fn read(&mut self, change: &ReadChange) {
        let Some(item) = self.items.get_mut(&change.item).filter(|item| !item.state.is_settled()) else { return };
        item.state = match &change.step {
            ReadStep::Started => State::Opening { reason: None },
            ReadStep::Postponed(failure) => State::Opening { reason: Some(failure.message.clone()) },
            ReadStep::Decrypted | ReadStep::Sealed(_) | ReadStep::Stopped => State::Unclear,
        };
    }

    /// Takes over what the daemon lists: all that waits, runs or has failed.
    pub(super) fn look(&mut self, entries: Vec<DownloadEntry>, now: Instant) {
        let mut entries: BTreeMap<_, _> = entries.into_iter().map(|entry| (entry.item, entry)).collect();
        if !self.listed {
            self.listed = true;
            let files = entries.values().filter(|entry| entry.lane == DownloadLane::Files);
            self.items = files
                .map(|entry| (entry.item, Awaited { designation: None, size: 0, state: State::waiting() }))
                .collect();
        }
        for (id, item) in &mut self.items {
            if item.state.is_settled() {
                continue;
            }
            let Some(entry) = entries.remove(id) else {
                item.state = State::Unclear;
                continue;
            };
            item.designation = Some(entry.designation);
            item.size = entry.size.get();
            match entry.state {
                DownloadState::Running { received } => item.state.running(received, None, now),
                DownloadState::Waiting { next_try, reason } => item.state = State::Waiting { reason, next_try },
                DownloadState::Failed { reason } => item.state = State::Failed { reason },
            }
        }
    }

    /// The items of which the daemon must be asked what became of them.
    pub(super) fn unclear(&self) -> Vec<ItemId> {
        let unclear = self.items.iter().filter(|(_, item)| matches!(item.state, State::Unclear));
        unclear.map(|(id, _)| *id).collect()
    }

    /// Takes over what the daemon says of one item; none where there is no such item any more.
    pub(super) fn check(&mut self, id: ItemId, found: Option<&ConversationItem>) {
        let Some(item) = self.items.get_mut(&id).filter(|item| !item.state.is_settled()) else { return };
        item.state = match found.map(|found| (found.deletion, &found.content)) {
            Some((Deletion::None, Content::Wanted { reason })) => {
                State::Waiting { reason: reason.clone(), next_try: None }
            }
            Some((Deletion::None, Content::Failed { reason })) => State::Failed { reason: reason.clone() },
            Some((Deletion::None, Content::Downloaded { reason })) => State::Opening { reason: reason.clone() },
            Some((Deletion::None | Deletion::Pending, Content::Decrypted { bytes, name, .. })) => {
                State::There { bytes: *bytes, name: name.clone() }
            }
            Some((Deletion::None, Content::Sealed { reason, .. })) => {
                self.kinds.insert(id, FailureKind::Sealed);
                State::Failed { reason: reason.clone() }
            }
            Some((Deletion::None, Content::Absent)) | Some((Deletion::Pending, _)) | None => State::Stopped,
        };
    }

    /// What a person sees meanwhile: what runs, what waits for a next try, and how much is there.
    pub(super) fn lines(&self, now: Instant) -> Vec<String> {
        let (mut running, mut opening, mut postponed, mut there) = (Vec::new(), Vec::new(), Vec::new(), 0_usize);
        for (id, item) in &self.items {
            match &item.state {
                State::Running { received, total, rate } => running.push(text::progress(&Progress {
                    item: *id,
                    designation: item.designation.as_ref(),
                    received: *received,
                    total: total.unwrap_or(item.size),
                    rate: rate.per_second(now),
                })),
                State::Waiting { reason: Some(reason), next_try } => {
                    postponed.push(text::postponed_download(*id, reason, *next_try));
                }
                State::Opening { reason } => opening.push(text::decrypting(*id, reason.as_deref())),
                State::There { .. } => there = there.saturating_add(1),
                State::Waiting { reason: None, .. } | State::Unclear | State::Failed { .. } | State::Stopped => {}
            }
        }
        let several = self.items.len() > 1;
        let nothing_runs = running.is_empty() && opening.is_empty() && postponed.is_empty();
        running.truncate(MAX_LINES);
        opening.truncate(MAX_LINES);
        postponed.truncate(MAX_LINES);
        let mut lines = running;
        lines.extend(opening);
        lines.extend(postponed);
        lines.extend(text::paused(&self.paused));
        if several || nothing_runs {
            lines.push(format!("{there} of {} there", self.items.len()));
        }
        lines
    }

    /// What can be read: of each its id, its length in bytes, and its name.
    pub(super) fn there(&self) -> Vec<(ItemId, u64, Option<&str>)> {
        let there = self.items.iter().filter_map(|(id, item)| match &item.state {
            State::There { bytes, name } => Some((*id, *bytes, name.as_deref())),
            State::Waiting { .. }
            | State::Running { .. }
            | State::Unclear
            | State::Opening { .. }
            | State::Failed { .. }
            | State::Stopped => None,
        });
        there.collect()
    }

    /// Whether all of it is there.
    ///
    /// # Errors
    /// [`CliError`] where not.
    pub(super) fn outcome(&self) -> Result<(), CliError> {
        let failed: Vec<_> = self
            .items
            .iter()
            .filter_map(|(id, item)| match &item.state {
                State::Failed { reason } => Some((id, reason)),
                State::Waiting { .. }
                | State::Running { .. }
                | State::Unclear
                | State::Opening { .. }
                | State::There { .. }
                | State::Stopped => None,
            })
            .collect();
        if let Some((id, reason)) = failed.first() {
            return Err(CliError::NotDownloaded {
                item: **id,
                reason: (*reason).clone(),
                kind: self.kinds.get(id).copied(),
                failed: failed.len(),
                of: self.items.len(),
            });
        }
        let stopped = self.items.values().filter(|item| matches!(item.state, State::Stopped)).count();
        if stopped > 0 { Err(CliError::DownloadStopped { stopped, of: self.items.len() }) } else { Ok(()) }
    }
}

/// How fast something comes.
#[derive(Debug, Default)]
struct Rate {
    /// When how many bytes were there, oldest first.
    samples: VecDeque<(Instant, u64)>,
}

impl Rate {
    fn note(&mut self, now: Instant, received: u64) {
        // It was begun anew.
        if self.samples.back().is_some_and(|(_, before)| *before > received) {
            self.samples.clear();
        }
        self.samples.push_back((now, received));
        while self.samples.len() > 2 && self.samples.front().is_some_and(|(at, _)| now.duration_since(*at) > RATE_OVER)
        {
            self.samples.pop_front();
        }
    }

    /// In bytes a second, if that can be said yet.
    fn per_second(&self, now: Instant) -> Option<u64> {
        let ((first, before), (_, received)) = (self.samples.front()?, self.samples.back()?);
        let took = now.duration_since(*first);
        if took < RATE_FROM || self.samples.len() < 2 {
            return None;
        }
        let came = u128::from(received.saturating_sub(*before)).saturating_mul(1000);
        u64::try_from(came.checked_div(took.as_millis())?).ok()
    }
}

#[cfg(test)]
mod tests;
