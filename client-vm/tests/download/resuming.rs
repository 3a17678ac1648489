//! Case F1: going on where it broke off.

use client_vm::download::{FetchError, Fetched, Verdict};
use qubes_rpc::connection::CallFailure;
use tokio_util::sync::CancellationToken;

use crate::stage::*;

/// The largest overlap of what is fetched twice: what was gathered and not written yet, and what was on its way.
const OVERLAP: usize = 1024 * 1024;

/// Fetches until it is there; gives how often that took.
async fn until_stored(client: &Client, proxy: &std::sync::Arc<Proxy>, mut drops: impl Iterator<Item = usize>) -> usize {
    for attempt in 1.. {
        proxy.served.lock().unwrap().breaks_after = drops.next();
        match client.fetch(proxy, &Nobody).await {
            Ok(fetched) => {
                assert!(matches!(fetched, Fetched::Stored(_)));
                return attempt;
            }
            Err(FetchError::Call(CallFailure::Incomplete(_))) => {}
            Err(error) => panic!("{error}"),
        }
    }
    0
}

#[tokio::test]
async fn f1_a_download_that_drops_at_random_goes_on_and_fetches_little_twice() {
    const SIZE: usize = 50_000_000;
    let bytes = content(SIZE, 11);
    let mut random = 99_u64;
    for run in 0..20 {
        let home = tempfile::tempdir().unwrap();
        let client = Client::new(home.path(), SIZE).await;
        let proxy = Proxy::new(Served::honest(bytes.clone()));
        let drops: Vec<usize> = (0..6)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                usize::try_from(random >> 33).unwrap() % (SIZE / 4)
            })
            .collect();
        until_stored(&client, &proxy, drops.into_iter()).await;
        assert!(client.stored().await.unwrap() == bytes, "run {run}");
        let asked = proxy.asked();
        let fetched: usize = asked.iter().map(|(_, sent)| sent).sum();
        assert!(fetched <= SIZE + asked.len() * OVERLAP, "run {run}: {fetched} bytes in {} calls", asked.len());
        assert!(asked.windows(2).all(|two| two[0].0 <= two[1].0), "run {run}: it goes on: {asked:?}");
    }
}

#[tokio::test]
async fn f1_where_the_server_does_not_resume_it_begins_anew() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(2_000_000, 12);
    let client = Client::new(home.path(), bytes.len()).await;
    let proxy = Proxy::new(Served { ranges: false, ..Served::honest(bytes.clone()) });
    until_stored(&client, &proxy, [1_000_000].into_iter()).await;
    assert_eq!(client.stored().await.unwrap(), bytes);
    let asked = proxy.asked();
    assert!(asked[1].0 > 0 && asked[1].1 == bytes.len(), "asked to go on, answered with all: {asked:?}");
}

#[tokio::test]
async fn f1_another_claim_begins_anew() {
    let home = tempfile::tempdir().unwrap();
    let (old, new) = (content(2_000_000, 13), content(2_000_000, 14));
    let client = Client::new(home.path(), old.len()).await;
    let proxy = Proxy::new(Served { breaks_after: Some(1_500_000), ..Served::honest(old) });
    client.fetch(&proxy, &Nobody).await.unwrap_err();
    *proxy.served.lock().unwrap() = Served::honest(new.clone());
    client.fetch(&proxy, &Nobody).await.unwrap();
    assert_eq!(client.stored().await.unwrap(), new);
    let asked = proxy.asked();
    assert!(asked[1].0 > 0 && asked.last().unwrap().0 == 0, "{asked:?}");
}

#[tokio::test]
async fn f1_a_file_that_has_become_shorter_begins_anew() {
    let home = tempfile::tempdir().unwrap();
    let (long, short) = (content(2_000_000, 15), content(500_000, 16));
    let client = Client::new(home.path(), long.len()).await;
    let proxy = Proxy::new(Served { breaks_after: Some(1_500_000), ..Served::honest(long) });
    client.fetch(&proxy, &Nobody).await.unwrap_err();
    *proxy.served.lock().unwrap() = Served::honest(short.clone());
    client.fetch(&proxy, &Nobody).await.unwrap();
    assert_eq!(client.stored().await.unwrap(), short);
}

/// A part of which nothing was claimed cannot be verified as a part of anything.
#[tokio::test]
async fn a_part_without_a_claim_is_not_gone_on_with() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(2_000_000, 17);
    let mut client = Client::new(home.path(), bytes.len()).await;
    client.desk.files_without_etag = true;
    let proxy = Proxy::new(Served { etag: None, breaks_after: Some(1_000_000), ..Served::honest(bytes.clone()) });
    client.fetch(&proxy, &Nobody).await.unwrap_err();
    *proxy.served.lock().unwrap() = Served::honest(bytes.clone());
    client.fetch(&proxy, &Nobody).await.unwrap();
    assert_eq!(client.stored().await.unwrap(), bytes);
    assert_eq!(proxy.asked()[1].0, 0);
}

#[tokio::test]
async fn one_that_is_told_to_stop_keeps_what_it_has() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(3_000_000, 18);
    let client = Client::new(home.path(), bytes.len()).await;
    let proxy = Proxy::new(Served { breaks_after: Some(2_000_000), ..Served::honest(bytes.clone()) });
    client.fetch(&proxy, &Nobody).await.unwrap_err();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let stopped = client.fetch_until(&proxy, &Nobody, &cancel).await.unwrap_err();
    assert!(matches!(stopped, FetchError::Cancelled), "{stopped}");
    proxy.served.lock().unwrap().breaks_after = None;
    client.fetch(&proxy, &Nobody).await.unwrap();
    assert_eq!(client.stored().await.unwrap(), bytes);
    assert!(proxy.asked().last().unwrap().0 > 1_000_000);
}

/// Case F2: time is paused, so each wait is as long as it says and takes none.
#[tokio::test(start_paused = true)]
async fn f2_a_download_that_moves_is_never_too_slow_and_one_that_is_silent_ends_after_90_seconds() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(160_000, 16);
    let client = Client::new(home.path(), bytes.len()).await;
    let proxy = Proxy::new(Served { silent_after: Some(10_000), ..Served::honest(bytes.clone()) });
    let begun = tokio::time::Instant::now();
    let error = client.fetch(&proxy, &Nobody).await.unwrap_err();
    assert!(matches!(error, FetchError::Silent), "{error}");
    assert_eq!(begun.elapsed().as_secs(), 90);
    // A part comes every 85 seconds, longer than all of it may take: it goes on, and each time where it was.
    proxy.served.lock().unwrap().silent_after = None;
    proxy.served.lock().unwrap().pace = std::time::Duration::from_secs(85);
    let (begun, mut unfinished) = (tokio::time::Instant::now(), 0);
    loop {
        match client.fetch(&proxy, &Nobody).await {
            Ok(fetched) => break assert_eq!(fetched, Fetched::Stored(160_000)),
            Err(error) => {
                assert!(matches!(error, FetchError::Unfinished), "{error}");
                assert_eq!(error.verdict(), Verdict::GoOn);
                unfinished += 1;
            }
        }
    }
    assert!(begun.elapsed() > client_vm::download::deadline(160_000), "{:?}", begun.elapsed());
    assert_eq!((unfinished, client.mismatches().await), (1, 0));
    assert_eq!(client.stored().await.unwrap(), bytes);
    let asked: Vec<_> = proxy.asked().into_iter().map(|(from, _)| from).collect();
    assert!(asked.len() == 3 && asked[1] > 0 && asked[2] > asked[1], "{asked:?}");
}
