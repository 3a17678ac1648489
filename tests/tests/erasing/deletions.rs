//! Deletions, by somebody here and by colleagues.

use nix::sys::signal::Signal;
use staging::server::{Command, FaultAct, Outcome};

use crate::support::*;

/// Case D4: everything that the client held of a source is found before its deletion, and nothing of it after.
#[tokio::test(flavor = "multi_thread")]
async fn d4_after_our_own_deletion_nothing_is_found() {
    let mut environment = reading_client().await;
    let doomed = read_source(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    let deletion = act(&environment, &["delete", "source", doomed.as_str(), "--yes"]).await;
    until_act(&mut watch, deletion, "confirmed").await;
    until_gone(&environment, &[SAID, ANSWERED]).await;
    assert_eq!(counts(&environment), [0, 0, 0]);
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    assert_eq!((places(&environment, &[SAID, ANSWERED]).len(), noted(&environment)), (0, 0));
    environment.stop().await.unwrap();
}

/// Cases D4 and D5: a colleague deletes a source while a file of it comes: the download ends, and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn d4_a_colleagues_deletion_stops_the_download_and_leaves_nothing() {
    let mut environment = reading_client().await;
    let doomed = read_source(&environment).await;
    let large = Command::NewFile { source: doomed.clone(), size: 40_000_000 };
    let large = match environment.server().control().apply(large).unwrap() {
        Outcome::Item { uuid, .. } => uuid,
        other => unreachable!("{other:?}"),
    };
    refresh(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    let path = format!("/api/v1/sources/*/submissions/{large}/download");
    fault(&environment, &path, FaultAct::Drip { bytes: 20_000, every_ms: 50 });
    download(&environment, &large).await;
    let mut step = String::new();
    while step != "progress" {
        let event = watch.until("download").await.unwrap();
        step = event["step"].as_str().unwrap().to_owned();
        assert_eq!(event["item"], large.as_str());
    }
    assert_eq!(files(&environment, "partial").len(), 1);
    happens(&environment, Command::DeleteSource { source: doomed.clone() });
    refresh(&environment).await;
    while step != "stopped" {
        step = watch.until("download").await.unwrap()["step"].as_str().unwrap().to_owned();
        assert!(["progress", "stopped"].contains(&step.as_str()), "{step}");
    }
    until_gone(&environment, &[SAID, ANSWERED]).await;
    while !files(&environment, "partial").is_empty() {
        status(&environment).await;
    }
    assert_eq!(counts(&environment), [0, 0, 0]);
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    assert_eq!((places(&environment, &[SAID, ANSWERED]).len(), noted(&environment)), (0, 0));
    environment.stop().await.unwrap();
}
