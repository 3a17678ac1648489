//! Files come when somebody asks for them.

use nix::sys::signal::Signal;
use staging::generator::MARLOW;
use staging::server::{Command, FaultAct};

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_file_comes_when_it_is_asked_for_and_is_what_the_server_has() {
    let environment = environment(0, 0, ASKED).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (source, first, file) = newcomer(&environment, 700, 2_000_000);
    environment.json(&["refresh"], "").await.unwrap();
    until_download(&mut watch, &first, "stored").await;
    assert_eq!(content(&environment, &source, &file).await, "absent");
    assert_eq!(downloads(&environment, &file).len(), 0);
    let asked = environment.json(&["download", file.as_str()], "").await.unwrap();
    assert_eq!((&asked["asked"], &asked["already"]), (&1.into(), &0.into()));
    let stored = until_download(&mut watch, &file, "stored").await;
    assert_eq!(stored["size"], 2_000_000);
    assert_eq!(content(&environment, &source, &file).await, "downloaded");
    let etag = environment.server().control().etag(&file).await.unwrap();
    let (whole, _) = held(&environment);
    let digests: Vec<_> = whole.iter().map(|bytes| format!("sha256:{}", hex(bytes))).collect();
    assert!(digests.contains(&etag), "{etag}: {digests:?}");
    environment.stop().await.unwrap();
}

/// Case Q1: five clicks on a file whose download takes long are one download.
#[tokio::test(flavor = "multi_thread")]
async fn q1_five_clicks_are_one_download() {
    let environment = environment(0, 0, SOON).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (_, _, file) = newcomer(&environment, 700, 200_000);
    environment.json(&["refresh"], "").await.unwrap();
    let path = format!("/api/v1/sources/*/submissions/{file}/download");
    let held_back = fault(&environment, &path, FaultAct::HoldAnswer);
    for _ in 0..5 {
        environment.json(&["download", file.as_str()], "").await.unwrap();
    }
    let control = environment.server().control();
    control.wait_for_log(|log| log.held() == 1).await;
    let before = control.count("GET", "/api/v1/sources");
    control.wait_for_log(|log| log.count("GET", "/api/v1/sources") >= before + 3).await;
    control.apply(Command::RemoveFault { id: held_back }).unwrap();
    until_download(&mut watch, &file, "stored").await;
    assert_eq!(downloads(&environment, &file).len(), 1);
    environment.stop().await.unwrap();
}

/// Case F1: what breaks off goes on where it was, also after the daemon was killed, and only then a range is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn f1_a_download_goes_on_after_a_cut_and_after_a_kill() {
    const SIZE: u64 = 8_000_000;
    let mut environment = environment(0, 0, ASKED).await;
    environment.login(&MARLOW).await.unwrap();
    let (_, _, file) = newcomer(&environment, 700, SIZE);
    environment.json(&["refresh"], "").await.unwrap();
    let path = format!("/api/v1/sources/*/submissions/{file}/download");
    let control = environment.server().control().clone();
    control
        .add_fault(staging::server::Fault {
            times: Some(1),
            ..staging::server::Fault::new(
                staging::server::Matching::path(&path),
                FaultAct::DropAfter { bytes: 3_000_000 },
            )
        })
        .unwrap();
    fault(&environment, &path, FaultAct::HangAfter { bytes: 2_000_000 });
    environment.json(&["download", file.as_str()], "").await.unwrap();
    // It was cut, has gone on, and hangs.
    control
        .wait_for_log(|log| log.requests().any(|request| request.range().is_some() && request.status.is_some()))
        .await;
    environment.stop_daemon(Signal::SIGKILL).await.unwrap();
    control.apply(Command::ClearFaults).unwrap();
    environment.start_daemon().await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    sign_in_again(&environment).await;
    until_download(&mut watch, &file, "stored").await;
    let requests = downloads(&environment, &file);
    assert_eq!(requests[0].range(), None);
    assert!(requests[1..].iter().all(|request| request.range().is_some()), "{requests:?}");
    let etag = control.etag(&file).await.unwrap();
    let (whole, parts) = held(&environment);
    assert!(whole.iter().any(|bytes| format!("sha256:{}", hex(bytes)) == etag));
    assert_eq!(parts, 0);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_can_be_stopped_and_gone_on_with() {
    let environment = environment(0, 0, ASKED).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (source, _, file) = newcomer(&environment, 700, 40_000_000);
    environment.json(&["refresh"], "").await.unwrap();
    let path = format!("/api/v1/sources/*/submissions/{file}/download");
    // Slow enough for progress to be told, and far from its end then.
    let slow = fault(&environment, &path, FaultAct::Drip { bytes: 20_000, every_ms: 50 });
    environment.json(&["download", file.as_str()], "").await.unwrap();
    until_download(&mut watch, &file, "progress").await;
    environment.json(&["download", "--stop", file.as_str()], "").await.unwrap();
    until_download(&mut watch, &file, "stopped").await;
    assert_eq!(content(&environment, &source, &file).await, "absent");
    environment.server().control().apply(Command::RemoveFault { id: slow }).unwrap();
    environment.json(&["download", file.as_str()], "").await.unwrap();
    until_download(&mut watch, &file, "stored").await;
    assert!(downloads(&environment, &file)[1].range().is_some());
    environment.stop().await.unwrap();
}

/// A file that the server makes no claim about is refused, and says why; what is not there is not tried again by itself.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_had_says_why_and_can_be_asked_for_again() {
    let environment = environment(0, 0, ASKED).await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let (source, _, file) = newcomer(&environment, 700, 3_000);
    environment.json(&["refresh"], "").await.unwrap();
    let path = format!("/api/v1/sources/*/submissions/{file}/download");
    let none = fault(&environment, &path, FaultAct::edit_headers(&[("etag", None)]));
    environment.json(&["download", file.as_str()], "").await.unwrap();
    let failed = until_download(&mut watch, &file, "failed").await;
    assert!(failed["reason"].as_str().unwrap().contains("SHA-256"), "{failed}");
    assert_eq!(content(&environment, &source, &file).await, "failed");
    let queue = environment.json(&["queue"], "").await.unwrap();
    assert!(queue["downloads"].as_array().unwrap().iter().any(|entry| entry["item"] == file.as_str()), "{queue}");
    environment.server().control().apply(Command::RemoveFault { id: none }).unwrap();
    // In another spelling it is the same claim.
    let digest = environment.server().control().etag(&file).await.unwrap().replace("sha256:", "").to_uppercase();
    fault(&environment, &path, FaultAct::edit_headers(&[("etag", Some(&format!("\"sha256:{digest}\"")))]));
    environment.json(&["download", file.as_str()], "").await.unwrap();
    until_download(&mut watch, &file, "stored").await;
    environment.stop().await.unwrap();
}
