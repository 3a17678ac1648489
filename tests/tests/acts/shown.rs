//! An act shows at once, and completes without a sync.

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_star_shows_before_it_is_sent_and_completes_without_a_sync() {
    let environment = signed_in(3, 2).await;
    let id = ids(&environment).await.into_iter().next().unwrap();
    let starred = source(&environment, &id).await.unwrap()["starred"].as_bool().unwrap();
    let command = if starred { "unstar" } else { "star" };
    let mut watch = environment.watch().await.unwrap();
    environment.json(&[command, &id], "").await.unwrap();
    // In the order in which front ends hear of it.
    assert_eq!(step(&mut watch).await.1, "taken");
    assert_eq!(watch.next().await.unwrap()["event"], "sources_changed");
    assert_eq!(step(&mut watch).await.1, "started");
    until_step(&mut watch, "confirmed").await;
    assert_eq!(source(&environment, &id).await.unwrap()["starred"], !starred);
    assert_eq!(queue(&environment).await, [] as [serde_json::Value; 0]);
    assert_eq!(changes(&environment).total(), 1);
    environment.stop().await.unwrap();
}
