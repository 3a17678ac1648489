//! What is stored, and what is not.

use std::sync::Mutex;

use client_vm::download::{FetchError, Fetched, Step, Verdict, Watcher};
use client_vm::files::Listing;
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
        assert_eq!((client.stored().await, client.desk.files.list().unwrap().ciphertext.len()), (None, 0));
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
async fn more_than_was_listed_is_not_taken() {
    let home = tempfile::tempdir().unwrap();
    let client = Client::new(home.path(), 50_000).await;
    let proxy = Proxy::new(Served::honest(content(5_000_000, 4)));
    let error = client.fetch(&proxy, &Nobody).await.unwrap_err();
    assert!(matches!(error, FetchError::TooLong), "{error}");
    assert_eq!(client.stored().await, None);
    let (_, sent) = proxy.asked()[0];
    assert!(sent < 2_000_000, "it was not read to its end: {sent}");
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
