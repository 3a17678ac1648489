//! The end of the daemon, or of the session, in the middle of a file.

use nix::sys::signal::Signal;
use staging::environment::Environment;
use staging::generator::MARLOW;
use staging::server::{Command, FaultAct, RecordId};

use crate::support::*;

const SIZE: u64 = 8_000_000;
/// What comes before it hangs.
const FIRST: u64 = 3_000_000;

/// A file whose download hangs after a part of it; some of that is written.
async fn in_the_middle_of_a_file() -> (Environment, RecordId) {
    let environment = environment(0, 0, ASKED).await;
    environment.login(&MARLOW).await.unwrap();
    let (_, _, file) = newcomer(&environment, 700, SIZE);
    environment.json(&["refresh"], "").await.unwrap();
    let path = format!("/api/v1/sources/*/submissions/{file}/download");
    fault(&environment, &path, FaultAct::HangAfter { bytes: FIRST });
    environment.json(&["download", file.as_str()], "").await.unwrap();
    until_part(&environment, FIRST - (1 << 20)).await;
    (environment, file)
}

/// Whoever signs in again gets the rest of it, and no more.
async fn assert_goes_on(environment: &Environment, file: &RecordId) {
    environment.server().control().apply(Command::ClearFaults).unwrap();
    let mut watch = environment.watch().await.unwrap();
    sign_in_again(environment).await;
    until_download(&mut watch, file, "stored").await;
    let requests = downloads(environment, file);
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests[0].range().is_none() && requests[1].range().is_some(), "{requests:?}");
    assert!(requests[1].body_bytes <= SIZE - FIRST + (1 << 20), "{requests:?}");
    let etag = environment.server().control().etag(file).await.unwrap();
    let (whole, parts) = held(environment);
    assert!(whole.iter().any(|bytes| format!("sha256:{}", hex(bytes)) == etag));
    assert_eq!(parts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_a_file_goes_on_after_the_daemon_was_told_to_end_in_the_middle_of_it() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (mut environment, file) = in_the_middle_of_a_file().await;
        let daemon = environment.daemon_pid().unwrap();
        assert_eq!(environment.stop_daemon(signal).await.unwrap(), Some(0), "{signal}");
        environment.broker().until(|counts| counts.open == 0).await;
        assert_eq!(staging::processes::children(daemon).unwrap(), [] as [u32; 0], "{signal}");
        assert_eq!(held(&environment).1, 1, "{signal}: what there is of it stays");
        environment.start_daemon().await.unwrap();
        assert_goes_on(&environment, &file).await;
        environment.stop().await.unwrap();
    }
}

/// Case Q4.
#[tokio::test(flavor = "multi_thread")]
async fn q4_a_logout_in_the_middle_of_a_file_leaves_no_process_and_the_file_goes_on_later() {
    let (environment, file) = in_the_middle_of_a_file().await;
    let daemon = environment.daemon_pid().unwrap();
    environment.json(&["logout"], "").await.unwrap();
    environment.broker().until(|counts| counts.open == 0).await;
    let bound = std::time::Duration::from_secs(60);
    let left = staging::processes::until_none(bound, || staging::processes::children(daemon)).await.unwrap();
    assert_eq!(left, [] as [u32; 0]);
    assert_goes_on(&environment, &file).await;
    environment.stop().await.unwrap();
}
