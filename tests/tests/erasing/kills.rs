//! Kills of the daemon while something is erased.

use nix::sys::signal::Signal;
use staging::server::Command;

use crate::support::*;

/// Case D4: killed right after a deletion was confirmed, at some moment of the erasure, the next start leaves nothing. It
/// needs nobody to sign in.
#[tokio::test(flavor = "multi_thread")]
async fn d4_killed_after_the_confirmation_nothing_is_left_after_the_next_start() {
    let mut environment = reading_client().await;
    for moment in 0..4 {
        let doomed = read_source(&environment).await;
        let mut watch = environment.watch().await.unwrap();
        let deletion = act(&environment, &["delete", "source", doomed.as_str(), "--yes"]).await;
        until_act(&mut watch, deletion, "confirmed").await;
        for _ in 0..moment {
            status(&environment).await;
        }
        drop(watch);
        environment.stop_daemon(Signal::SIGKILL).await.unwrap();
        environment.start_daemon().await.unwrap();
        until_gone(&environment, &[SAID, ANSWERED]).await;
        assert_eq!((counts(&environment), noted(&environment)), ([0, 0, 0], 0), "moment {moment}");
        sign_in_again(&environment).await;
        assert_eq!(places(&environment, &[SAID, ANSWERED]).len(), 0, "moment {moment}");
    }
    environment.stop().await.unwrap();
}

/// Case D4: killed before it has heard of the confirmation, or of a colleague's deletion, the client hears of it later.
#[tokio::test(flavor = "multi_thread")]
async fn d4_killed_before_the_confirmation_nothing_is_left_once_it_is_heard_of() {
    let mut environment = reading_client().await;
    for own in [true, false] {
        let doomed = read_source(&environment).await;
        if own {
            let path = format!("/api/v1/sources/{doomed}");
            let lost = fault(&environment, &path, staging::server::FaultAct::HangAnswer);
            act(&environment, &["delete", "source", doomed.as_str(), "--yes"]).await;
            let control = environment.server().control();
            let asked = |log: &staging::server::RequestLog| log.requests().any(|one| one.fault == Some(lost));
            tokio::time::timeout(PATIENCE, control.wait_for_log(asked)).await.unwrap();
            environment.stop_daemon(Signal::SIGKILL).await.unwrap();
            happens(&environment, Command::RemoveFault { id: lost });
        } else {
            environment.stop_daemon(Signal::SIGKILL).await.unwrap();
            happens(&environment, Command::DeleteSource { source: doomed.clone() });
        }
        assert!(!places(&environment, &[SAID]).is_empty());
        environment.start_daemon().await.unwrap();
        sign_in_again(&environment).await;
        until_gone(&environment, &[SAID, ANSWERED]).await;
        assert_eq!(counts(&environment), [0, 0, 0]);
    }
    environment.stop().await.unwrap();
}
