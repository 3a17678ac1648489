//! Fetches one item's ciphertext over a session with the proxy: a part, verified, on the disk, under its final name, noted.
//!
//! **Invariant:** what is noted as downloaded has the SHA-256 that the server claimed of it (a message may come without a
//! claim), was on the disk before it was renamed, and was renamed before it was noted.
//!
//! **Invariant:** a part is gone on with only under the same claim; anything else begins at its first byte, and is empty
//! before another claim is noted.
//!
//! **Invariant:** no more is taken of an item than the server lists, and no more than leaves the database room.

mod partial;
mod sweep;
mod verdict;

use std::io;
use std::time::Duration;

use protocol::value::{ItemId, Sha256, Size, SourceId, Token};
use protocol::{Call, Download, ErrorKind, Items};
use qubes_rpc::connection::{AnswerStream, Connection};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::partial::Partial;
pub use self::sweep::sweep;
pub use self::verdict::{FetchError, Verdict};
use crate::files::{FileNumber, Files, LOOK_AFTER};
use crate::store::downloads::{self, Candidate, Job};
use crate::store::outbox::ItemName;
use crate::store::{Store, StoreError};

/// How long the first byte may take here: the proxy gives the server 180 s, and the way to it 30 s.
const FIRST_ITEM: Duration = Duration::from_secs(240);
/// How long a download may say nothing: the proxy gives the server 60 s.
const SILENCE: Duration = Duration::from_secs(90);
/// What a download may take, whatever its size.
const BASE: Duration = Duration::from_secs(600);
/// The slowest rate that a download's time allows for, in bytes a second.
const SLOWEST: u64 = 1024;
/// The most that it may take: the longest deadline there is. What is not there by then is gone on with.
const MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// How often what was claimed and what came may differ.
const MAX_MISMATCHES: u32 = 3;
/// The shortest time between two reports of progress.
const REPORT: Duration = Duration::from_millis(250);

/// How long the download of so many bytes may take: at least ten minutes, at most a day, and never less for more bytes.
#[must_use]
pub fn deadline(size: u64) -> Duration {
    BASE.saturating_add(Duration::from_secs(size / SLOWEST)).min(MOST)
}

/// What a fetch needs besides the session.
#[derive(Debug, Clone)]
pub struct Desk {
    /// The store.
    pub store: Store,
    /// The files.
    pub files: Files,
    /// Whether files are taken of which the server claims no SHA-256.
    pub files_without_etag: bool,
}

/// The steps of a fetch, in their order; some may come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// What there was of it was read.
    Prepared,
    /// The answer has begun.
    Begun,
    /// The server's claim is noted.
    Claimed,
    /// Some of it is written.
    Writing,
    /// All of it is written.
    Written,
    /// It is what was claimed.
    Verified,
    /// It is on the disk.
    Synced,
    /// It has its final name.
    Renamed,
    /// It is noted.
    Noted,
}

impl Step {
    /// Every step.
    pub const ALL: [Self; 9] = [
        Self::Prepared,
        Self::Begun,
        Self::Claimed,
        Self::Writing,
        Self::Written,
        Self::Verified,
        Self::Synced,
        Self::Renamed,
        Self::Noted,
    ];
}

/// Who is told how a fetch goes on.
pub trait Watcher: Send + Sync {
    /// A step was taken.
    fn step(&self, _step: Step) {}

    /// So many bytes are there, of `total` if that is known. At most four times a second for each fetch.
    fn progress(&self, _received: u64, _total: Option<u64>) {}
}

/// How a fetch ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched {
    /// The ciphertext is there: so many bytes.
    Stored(u64),
    /// The item is not to be fetched any more, and nothing of it was noted.
    Gone,
}

/// Fetches one item.
///
/// `cancel` stops it between two steps; what is there of it stays and is gone on with. Nobody else may fetch the same item
/// meanwhile.
///
/// # Errors
/// [`FetchError`].
pub async fn fetch(
    connection: &Connection,
    token: &Token,
    candidate: Candidate,
    desk: &Desk,
    watcher: &dyn Watcher,
    cancel: &CancellationToken,
) -> Result<Fetched, FetchError> {
    let Some(job) = desk.store.read(move |transaction| downloads::job(transaction, candidate)).await? else {
        return Ok(Fetched::Gone);
    };
    Fetch { connection, token, job, desk, watcher, cancel }.run().await
}

struct Fetch<'a> {
    connection: &'a Connection,
    token: &'a Token,
    job: Job,
    desk: &'a Desk,
    watcher: &'a dyn Watcher,
    cancel: &'a CancellationToken,
}

impl Fetch<'_> {
    async fn run(&self) -> Result<Fetched, FetchError> {
        let mut partial = self.prepare().await?;
        self.watcher.step(Step::Prepared);
        if let (Some(partial), Some(claim)) =
            (partial.take_if(|partial| partial.digest_is(self.job.sha256)), self.job.sha256)
        {
            // All of it was there when the last attempt was cut off.
            return self.keep(partial, Some(claim)).await;
        }
        let there = partial.as_ref().map_or(0, Partial::len);
        if !self.desk.files.has_room_for(self.job.listed.get().saturating_sub(there)) {
            return Err(FetchError::NoRoom);
        }
        let (mut answer, head, resumed) = self.begin(partial.as_ref()).await?;
        self.watcher.step(Step::Begun);
        let claim = match self.claim(&head) {
            Ok(claim) => claim,
            Err(error) => return self.refused(error).await,
        };
        let begun = match (partial, self.job.number) {
            (Some(partial), _) if resumed => Some(partial),
            // What there is belongs to another claim, or to none. Killed after the next step, nobody must go on with it.
            (Some(_) | None, Some(number)) => Some(Partial::begin(&self.desk.files, number).await?),
            (Some(_) | None, None) => None,
        };
        let item = self.job.candidate.item;
        let number = self.stored(move |transaction| downloads::note_claim(transaction, item, claim)).await?;
        self.watcher.step(Step::Claimed);
        let mut partial = match begun {
            Some(partial) if partial.number() == number => partial,
            // It was erased meanwhile, and what there was with it.
            Some(_) if resumed => return Ok(Fetched::Gone),
            Some(_) | None => Partial::begin(&self.desk.files, number).await?,
        };
        let before = partial.len();
        if let Err(error) = self.receive(&mut answer, &mut partial, head.length.map(Size::get)).await {
            // It is a step further if what has come is gone on with the next time.
            let goes_on = claim.is_some() && (resumed || there == 0);
            return self.broken_off(error, partial, before, goes_on).await;
        }
        self.watcher.step(Step::Written);
        self.keep(partial, claim).await
    }

    /// It broke off: what has come is kept to be gone on with, and is a step forward; what is no good is not kept.
    async fn broken_off(
        &self,
        error: FetchError,
        mut partial: Partial,
        before: u64,
        goes_on: bool,
    ) -> Result<Fetched, FetchError> {
        if matches!(error, FetchError::TooLong | FetchError::Mismatch) {
            return self.refused(error).await;
        }
        if !goes_on || partial.len() <= before || partial.flush().await.is_err() {
            return Err(error);
        }
        let item = self.job.candidate.item;
        self.stored(move |transaction| downloads::note_progress(transaction, item)).await?;
        Err(error.after_progress())
    }

    /// The item is not taken as it comes: nothing of it stays.
    async fn refused(&self, error: FetchError) -> Result<Fetched, FetchError> {
        let item = self.job.candidate.item;
        if let Some(number) = self.stored(move |transaction| downloads::number(transaction, item)).await? {
            let files = self.desk.files.clone();
            blocking(move || files.remove_ciphertext_part(number)).await?;
        }
        Err(error)
    }

    /// What there is of it already, if it can be gone on with.
    async fn prepare(&self) -> Result<Option<Partial>, FetchError> {
        match (self.job.number, self.job.sha256) {
            (Some(number), Some(_)) => {
                Ok(Some(Partial::resume(&self.desk.files, number).await?).filter(|part| part.len() > 0))
            }
            (Some(_) | None, _) => Ok(None),
        }
    }

    /// Asks for the rest, or for the whole; says whether what comes goes on where the part ends.
    async fn begin(&self, partial: Option<&Partial>) -> Result<(AnswerStream, Download, bool), FetchError> {
        if let Some(partial) = partial {
            match self.ask(partial.len()).await {
                Ok((answer, head)) => {
                    let same = head.etag == self.job.sha256;
                    if head.from.get() == partial.len() && same {
                        return Ok((answer, head, true));
                    }
                    if head.from.get() == 0 {
                        return Ok((answer, head, false));
                    }
                    // It goes on, and is another one than was begun.
                    drop(answer);
                }
                // The server has no such range: it is another one, or shorter.
                Err(FetchError::Call(failure)) if failure.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
        }
        let (answer, head) = self.ask(0).await?;
        Ok((answer, head, false))
    }

    async fn ask(&self, from: u64) -> Result<(AnswerStream, Download), FetchError> {
        let (token, source, item) = (self.token.clone(), self.job.candidate.source, self.job.candidate.item);
        let from = Size::try_new(from).unwrap_or(Size::MAX);
        let rest = self.job.listed.get().saturating_sub(from.get());
        let mut answer = self.connection.call(call(token, source, item, from), deadline(rest)).await?;
        match self.next(&mut answer, FIRST_ITEM).await? {
            // A part without its beginning is of no use.
            Some(Items::Download(head)) if from.get() == 0 && head.from.get() > 0 => Err(FetchError::Misplaced),
            Some(Items::Download(head)) => Ok((answer, head)),
            // The connection has checked the answer's form.
            _other => Err(FetchError::Silent),
        }
    }

    /// What the server claims, unless it claims nothing where it must.
    fn claim(&self, head: &Download) -> Result<Option<Sha256>, FetchError> {
        if head.etag.is_none() {
            let item = self.job.candidate.item;
            tracing::warn!(item = %item.id(), "the server claims no SHA-256 of an item");
            if matches!(item, ItemName::File(_)) && !self.desk.files_without_etag {
                return Err(FetchError::NoClaim);
            }
        }
        Ok(head.etag)
    }

    async fn receive(
        &self,
        answer: &mut AnswerStream,
        partial: &mut Partial,
        total: Option<u64>,
    ) -> Result<(), FetchError> {
        let listed = self.job.listed.get();
        let mut look_at = partial.len().saturating_add(LOOK_AFTER);
        let mut reported = Instant::now();
        let mut first = true;
        while let Some(items) = self.next(answer, SILENCE).await? {
            match items {
                Items::Chunk(chunk) => {
                    partial.write(chunk.as_slice()).await?;
                    if partial.len() > listed {
                        return Err(FetchError::TooLong);
                    }
                    if partial.len() >= look_at {
                        look_at = partial.len().saturating_add(LOOK_AFTER);
                        if !self.desk.files.has_room_for(0) {
                            return Err(FetchError::NoRoom);
                        }
                    }
                    if std::mem::take(&mut first) {
                        self.watcher.step(Step::Writing);
                    }
                    if reported.elapsed() >= REPORT {
                        reported = Instant::now();
                        self.watcher.progress(partial.len(), total);
                    }
                }
                Items::Sum(sum) => {
                    partial.flush().await?;
                    if partial.sum_of_answer() != sum.sha256 {
                        return Err(FetchError::Mismatch);
                    }
                }
                // The connection has checked the answer's form.
                _other => {}
            }
        }
        Ok(())
    }

    /// The next part of the answer, unless it takes too long.
    async fn next(&self, answer: &mut AnswerStream, bound: Duration) -> Result<Option<Items>, FetchError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(FetchError::Cancelled),
            next = tokio::time::timeout(bound, answer.next()) => match next {
                Ok(next) => Ok(next?),
                Err(_) => Err(FetchError::Silent),
            },
        }
    }

    /// Verifies what is there, and gives it its final name.
    async fn keep(&self, partial: Partial, claim: Option<Sha256>) -> Result<Fetched, FetchError> {
        let (number, size) = (partial.number(), partial.len());
        if claim.is_some_and(|claim| claim != partial.digest()) {
            drop(partial);
            let error = self.mismatch().await?;
            return self.refused(error).await;
        }
        self.watcher.step(Step::Verified);
        partial.sync().await?;
        self.watcher.step(Step::Synced);
        let files = self.desk.files.clone();
        blocking(move || files.finish(number)).await?;
        self.watcher.step(Step::Renamed);
        let candidate = self.job.candidate;
        let noted = self.stored(move |transaction| downloads::note_downloaded(transaction, candidate, size)).await;
        let noted = match noted {
            Ok(noted) => noted,
            Err(error) => {
                // It is a part again, which the next attempt finds whole.
                let files = self.desk.files.clone();
                blocking(move || files.unfinish(number)).await?;
                return Err(error);
            }
        };
        if !noted {
            // It was deleted meanwhile.
            self.remove(number).await?;
            return Ok(Fetched::Gone);
        }
        self.watcher.step(Step::Noted);
        Ok(Fetched::Stored(size))
    }

    async fn mismatch(&self) -> Result<FetchError, FetchError> {
        let item = self.job.candidate.item;
        let times = self.stored(move |transaction| downloads::note_mismatch(transaction, item)).await?;
        tracing::warn!(item = %item.id(), times, "what came is not what the server had claimed");
        Ok(if times >= MAX_MISMATCHES { FetchError::Mismatches } else { FetchError::Mismatch })
    }

    async fn remove(&self, number: FileNumber) -> Result<(), FetchError> {
        let files = self.desk.files.clone();
        Ok(blocking(move || files.remove(number)).await?)
    }

    async fn stored<T: Send + 'static>(
        &self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, FetchError> {
        Ok(self.desk.store.write(work).await?)
    }
}

fn call(token: Token, source: SourceId, item: ItemName, from: Size) -> Call {
    match item.id() {
        ItemId::Submission(submission) => Call::DownloadSubmission { token, source, submission, from },
        ItemId::Reply(reply) => Call::DownloadReply { token, source, reply, from },
    }
}

/// Work with files, off the async threads. It is never cut in two.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case F2.
    #[test]
    fn f2_the_time_for_a_download_is_finite_grows_and_is_bounded() {
        let sizes = [0, 1, 50_000, 500_000_000, u64::MAX];
        let times = sizes.map(deadline);
        assert!(times.is_sorted());
        assert_eq!((times[0], times[4]), (BASE, MOST));
        assert!(times.iter().all(|time| protocol::Deadline::try_new(*time).is_ok()));
    }
}
