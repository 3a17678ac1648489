//! What is stored, and what is not.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use client_vm::download::{FetchError, Fetched, Step, Verdict, Watcher};
use client_vm::files::{KEPT, LOOK_AFTER, Listing, Room};
use protocol::value::Sha256;

use crate::stage::*;

/// Writes the steps down.
#[derive(Default)]
struct Steps(Mutex<Vec<Step>>);

impl Watcher for Steps {
    fn step(&self, step: Step) {
        self.0.lock().unwrap().push(step);
    }
}

#[tokio::test]
async fn a_file_is_stored_under_its_final_name_once_it_is_verified() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(300_000, 1);
    let client = Client::new(home.path(), bytes.len()).await;
    let (proxy, steps) = (Proxy::new(Served::honest(bytes.clone())), Steps::default());
    assert_eq!(client.fetch(&proxy, &steps).await.unwrap(), Fetched::Stored(300_000));
    assert_eq!(client.stored().await.unwrap(), bytes);
    assert_eq!(*steps.0.lock().unwrap(), Step::ALL, "each step once, in their order");
    assert!(client.desk.files.list().unwrap().partial.is_empty());
    // It is there: nobody is asked again.
    assert_eq!(client.fetch(&proxy, &Nobody).await.unwrap(), Fetched::Gone);
    assert_eq!(proxy.asked(), [(0, 300_000)]);
}

#[tokio::test]
async fn an_empty_file_is_a_file() {
    let home = tempfile::tempdir().unwrap();
    let client = Client::new(home.path(), 0).await;
    assert_eq!(client.fetch(&Proxy::new(Served::honest(Vec::new())), &Nobody).await.unwrap(), Fetched::Stored(0));
    assert_eq!(client.stored().await.unwrap(), b"");
}

/// Case F1: what is not what was claimed is begun anew, at most three times.
#[tokio::test]
async fn f1_a_wrong_hash_restarts_and_fails_at_the_third_time() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(100_000, 2);
    let client = Client::new(home.path(), bytes.len()).await;
    let proxy = Proxy::new(Served { flipped: Some(70_000), ..Served::honest(bytes.clone()) });
    for (time, last) in [(1, false), (2, false), (3, true)] {
        let error = client.fetch(&proxy, &Nobody).await.unwrap_err();
        assert_eq!(matches!(error, FetchError::Mismatches), last, "{error}");
        assert_eq!(error.verdict(), if last { Verdict::Failed } else { Verdict::Later { retry_after: None } });
        assert_eq!(proxy.asked().len(), time);
        assert_eq!((client.stored().await, client.desk.files.list().unwrap()), (None, Listing::default()));
    }
    assert!(proxy.asked().iter().all(|(from, _)| *from == 0), "nothing wrong is gone on with");
    proxy.served.lock().unwrap().flipped = None;
    client.fetch(&proxy, &Nobody).await.unwrap();
    assert_eq!(client.stored().await.unwrap(), bytes);
}

#[tokio::test]
async fn a_file_without_a_claim_is_refused_unless_that_is_allowed() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(1_000, 3);
    let mut client = Client::new(home.path(), bytes.len()).await;
    let proxy = Proxy::new(Served { etag: None, ..Served::honest(bytes.clone()) });
    let error = client.fetch(&proxy, &Nobody).await.unwrap_err();
    assert!(matches!(error, FetchError::NoClaim), "{error}");
    assert_eq!(error.verdict(), Verdict::Failed);
    assert_eq!(client.desk.files.list().unwrap(), Listing::default(), "nothing was written");
    client.desk.files_without_etag = true;
    client.fetch(&proxy, &Nobody).await.unwrap();
    assert_eq!(client.stored().await.unwrap(), bytes);
}

#[tokio::test]
async fn a_part_of_what_is_refused_goes() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(2_000_000, 7);
    let client = Client::new(home.path(), bytes.len()).await;
    let proxy = Proxy::new(Served { breaks_after: Some(1_500_000), ..Served::honest(bytes) });
    client.fetch(&proxy, &Nobody).await.unwrap_err();
    assert_eq!(client.desk.files.list().unwrap().partial.len(), 1);
    *proxy.served.lock().unwrap() = Served { etag: None, ..Served::honest(content(2_000_000, 8)) };
    assert!(matches!(client.fetch(&proxy, &Nobody).await.unwrap_err(), FetchError::NoClaim));
    assert_eq!(client.desk.files.list().unwrap(), Listing::default());
}

/// What the log says.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A message without a claim is taken, unlike a file; the log says of both that there is none.
#[tokio::test]
async fn a_message_without_a_claim_is_stored_and_the_log_says_so() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(1_000, 9);
    let client = Client::with_message(home.path(), bytes.len()).await;
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    let proxy = Proxy::new(Served { etag: None, ..Served::honest(bytes.clone()) });
    assert_eq!(client.fetch(&proxy, &Nobody).await.unwrap(), Fetched::Stored(1_000));
    assert_eq!(client.stored().await.unwrap(), bytes);
    let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let warning = said.lines().find(|line| line.contains("WARN")).unwrap();
    assert!(warning.contains("claims no SHA-256") && warning.contains(FILE), "{said}");
}

/// What is not the beginning is not taken for it, with or without a claim.
#[tokio::test]
async fn an_answer_that_begins_elsewhere_is_not_taken() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(1_000, 10);
    let client = Client::with_message(home.path(), bytes.len()).await;
    let proxy = Proxy::new(Served { etag: None, misplaced: true, ..Served::honest(bytes) });
    let error = client.fetch(&proxy, &Nobody).await.unwrap_err();
    assert!(matches!(error, FetchError::Misplaced), "{error}");
    assert_eq!(error.verdict(), Verdict::Later { retry_after: None });
    assert_eq!((client.stored().await, client.desk.files.list().unwrap()), (None, Listing::default()));
}

/// Sets how much room there is, once some of the item is written.
struct FillsUp<'a>(&'a AtomicU64);

impl Watcher for FillsUp<'_> {
    fn step(&self, step: Step) {
        if step == Step::Writing {
            self.0.store(KEPT - 1, Ordering::Relaxed);
        }
    }
}

/// What is fetched leaves the database room: nothing is asked for that does not fit, and what fits no more stops.
#[tokio::test]
async fn nothing_is_fetched_that_takes_the_last_room() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(30_000_000, 11);
    let size = u64::try_from(bytes.len()).unwrap();
    let room = Arc::new(AtomicU64::new(KEPT + size - 1));
    let mut client = Client::new(home.path(), bytes.len()).await;
    client.desk.files = client.desk.files.clone().with_room(Room::Told(Arc::clone(&room)));
    let proxy = Proxy::new(Served::honest(bytes.clone()));
    let error = client.fetch(&proxy, &Nobody).await.unwrap_err();
    assert!(matches!(error, FetchError::NoRoom), "{error}");
    assert_eq!(error.verdict(), Verdict::NoRoom);
    assert_eq!(proxy.asked().len(), 0);
    room.store(KEPT + size, Ordering::Relaxed);
    let error = client.fetch(&proxy, &FillsUp(&room)).await.unwrap_err();
    assert!(matches!(error, FetchError::NoRoom), "{error}");
    let (_, sent) = proxy.asked()[0];
    assert!(u64::try_from(sent).unwrap() <= 2 * LOOK_AFTER, "it stopped soon: {sent}");
    room.store(KEPT + size, Ordering::Relaxed);
    assert_eq!(client.fetch(&proxy, &Nobody).await.unwrap(), Fetched::Stored(size));
    assert!(client.stored().await.unwrap() == bytes);
    assert!(proxy.asked()[1].0 > 1_000_000, "and it went on: {:?}", proxy.asked());
}

#[tokio::test]
async fn more_than_was_listed_is_not_taken() {
    let home = tempfile::tempdir().unwrap();
    let client = Client::new(home.path(), 50_000).await;
    let proxy = Proxy::new(Served::honest(content(5_000_000, 4)));
    let error = client.fetch(&proxy, &Nobody).await.unwrap_err();
    assert!(matches!(error, FetchError::TooLong), "{error}");
    assert_eq!(client.stored().await, None);
    let (_, sent) = proxy.asked()[0];
    assert!(sent < 2_000_000, "it was not read to its end: {sent}");
    assert_eq!(client.desk.files.list().unwrap(), Listing::default(), "nothing of it stays");
}

#[tokio::test]
async fn a_wrong_claim_is_a_mismatch() {
    let home = tempfile::tempdir().unwrap();
    let client = Client::new(home.path(), 1_000).await;
    let etag = Some(Sha256::new([7; 32]));
    let proxy = Proxy::new(Served { etag, ..Served::honest(content(1_000, 5)) });
    assert!(matches!(client.fetch(&proxy, &Nobody).await.unwrap_err(), FetchError::Mismatch));
    assert_eq!(client.stored().await, None);
}

/// Deletes the item, as a snapshot does, at a step.
struct DeleteAt<'a> {
    step: Step,
    client: &'a Client,
}

impl Watcher for DeleteAt<'_> {
    fn step(&self, step: Step) {
        if step == self.step {
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(self.client.list(None));
            });
        }
    }
}

/// Case D5: whoever loses the race stores nothing.
#[tokio::test(flavor = "multi_thread")]
async fn d5_what_is_deleted_while_it_is_fetched_is_not_stored() {
    for step in Step::ALL.into_iter().filter(|step| *step != Step::Noted) {
        let home = tempfile::tempdir().unwrap();
        let bytes = content(40_000, 6);
        let client = Client::new(home.path(), bytes.len()).await;
        let watcher = DeleteAt { step, client: &client };
        let fetched = client.fetch(&Proxy::new(Served::honest(bytes)), &watcher).await.unwrap();
        assert_eq!(fetched, Fetched::Gone, "{step:?}");
        assert_eq!(client.stored().await, None);
        assert_eq!(client.desk.files.list().unwrap(), Listing::default(), "{step:?}");
    }
}
