//! The broker's own beginning and end.

use std::os::unix::fs::PermissionsExt;

use staging::qrexec::broker::{Broker, BrokerError, BrokerOptions, EventKind};
use staging::qrexec::policy::ServiceTarget;
use staging::qrexec::system::System;

use crate::support::{ALLOW_ALL, FAILURE_BOUND, Gate, LifeLine, Stage};

#[tokio::test]
async fn sockets_are_for_their_owner_only_and_go_with_the_broker() {
    let mut stage = Stage::new(&[]);
    let socket = stage.broker().socket("sd-app").unwrap().to_owned();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(stage.broker().socket("no-such-vm"), None);
    stage.stop().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_taken_socket_path_is_an_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sd-log.sock"), "").unwrap();
    let options = BrokerOptions::new(folder.path(), Vec::new(), System::workstation());
    assert!(matches!(Broker::start(options), Err(BrokerError::Listen { path, .. }) if path.ends_with("sd-log.sock")));
    let left: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["sd-log.sock"]);
}

#[tokio::test]
async fn stopping_the_broker_ends_services_and_the_callers_see_a_dead_agent() {
    let mut stage = Stage::with(
        &[("s", "trap 'echo told to end >&2; exit 0' TERM; echo ready; read line")],
        ALLOW_ALL,
        |options| {
            options.grace = FAILURE_BOUND;
        },
    );
    let mut caller = stage.call("s");
    assert_eq!(caller.line().await, "ready\n");
    let pid = stage
        .kinds()
        .into_iter()
        .find_map(|kind| match kind {
            EventKind::Started { target: ServiceTarget::Qube(_), pid: Some(pid), .. } => i32::try_from(pid).ok(),
            _ => None,
        })
        .expect("the service's process");
    assert!(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok());
    stage.stop().await;
    // Dead and reaped.
    assert_eq!(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None), Err(nix::errno::Errno::ESRCH));
    assert_eq!(caller.code().await, Some(255));
}

/// Deaf to SIGTERM and to the end of its input, with a child that is too.
const DEAF: &str = "trap '' TERM; ( exec 9> FOLDER/life; echo x >&9; read line < FOLDER/never ) & \
                    exec 8> FOLDER/life; echo ready; read line < FOLDER/never";

#[tokio::test]
async fn stopping_the_broker_kills_what_does_not_end() {
    let mut stage = Stage::new(&[("s", DEAF)]);
    let _shut = Gate::new(&stage.path("never"));
    let mut life = LifeLine::new(&stage.path("life"));
    let mut caller = stage.call("s");
    assert_eq!(caller.line().await, "ready\n");
    life.taken().await;
    stage.stop().await;
    life.cut().await;
    assert_eq!(caller.code().await, Some(255));
}

#[tokio::test]
async fn dropping_the_broker_kills_the_services() {
    let mut stage = Stage::new(&[("s", DEAF)]);
    let _shut = Gate::new(&stage.path("never"));
    let mut life = LifeLine::new(&stage.path("life"));
    let mut caller = stage.call("s");
    assert_eq!(caller.line().await, "ready\n");
    life.taken().await;
    drop(stage.broker.take());
    life.cut().await;
    assert_eq!(caller.code().await, Some(255));
}

#[tokio::test]
async fn a_caller_that_asks_for_nothing_does_not_hold_up_the_end() {
    let mut stage = Stage::new(&[]);
    let silent = std::os::unix::net::UnixStream::connect(stage.broker().socket("sd-app").unwrap()).unwrap();
    stage.stop().await;
    drop(silent);
}
