//! Services that are Unix sockets.

use std::path::PathBuf;

use staging::qrexec::broker::EventKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::support::{ALLOW_ALL, Caller, Stage, bounded, vm};

/// A broker whose service `s` is a socket, or a link to one, and what listens there.
fn stage(config: &str) -> (Stage, UnixListener) {
    let mut listener = None;
    let stage = Stage::with(&[], ALLOW_ALL, |options| {
        let path = options.folder.join("listener");
        listener = Some(UnixListener::bind(&path).unwrap());
        let folder = options.folder.join("qubes-rpc");
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&path, folder.join("s")).unwrap();
        let installation = options.installed.get_mut(&vm("sd-proxy")).unwrap();
        installation.folders = vec![PathBuf::from("/no/such/folder"), folder];
        installation.rpc_config.insert("s".to_owned(), config.to_owned());
    });
    (stage, listener.unwrap())
}

async fn accept(listener: &UnixListener) -> UnixStream {
    bounded(listener.accept()).await.unwrap().0
}

async fn text(service: &mut UnixStream, length: usize) -> String {
    let mut bytes = vec![0; length];
    bounded(service.read_exact(&mut bytes)).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

async fn end(service: &mut UnixStream) {
    assert_eq!(bounded(service.read(&mut [0])).await.unwrap(), 0);
}

async fn call(stage: &Stage, listener: &UnixListener, service: &str) -> (Caller, UnixStream) {
    let caller = stage.call(service);
    (caller, accept(listener).await)
}

#[tokio::test]
async fn a_socket_is_told_service_and_caller_and_there_is_no_exit_code() {
    let (stage, listener) = stage("");
    for (service, descriptor) in [("s+x", "s+x sd-app\0"), ("s", "s+ sd-app\0")] {
        let (mut caller, mut connection) = call(&stage, &listener, service).await;
        assert_eq!(text(&mut connection, descriptor.len()).await, descriptor);
        caller.write("in").await;
        assert_eq!(text(&mut connection, 2).await, "in");
        caller.stdin = None;
        end(&mut connection).await;
        connection.write_all(b"late").await.unwrap();
        drop(connection);
        assert_eq!((caller.rest().await, caller.code().await), ("late".to_owned(), Some(0)));
    }
    assert!(stage.kinds().iter().any(|kind| matches!(kind, EventKind::Started { pid: None, .. })));
    assert!(stage.broker().service_log("sd-proxy").is_empty());
}

#[tokio::test]
async fn the_descriptor_can_be_left_out() {
    let (stage, listener) = stage("skip-service-descriptor=true\n");
    let (mut caller, mut connection) = call(&stage, &listener, "s").await;
    caller.write("first").await;
    assert_eq!(text(&mut connection, 5).await, "first");
    // Closed altogether, it ends the call while the caller's input is open.
    drop(connection);
    assert_eq!(caller.code().await, Some(0));
}

#[tokio::test]
async fn a_service_that_ends_its_output_still_gets_input() {
    let (stage, listener) = stage("skip-service-descriptor=true\n");
    let (mut caller, mut connection) = call(&stage, &listener, "s").await;
    connection.write_all(b"all").await.unwrap();
    connection.shutdown().await.unwrap();
    assert_eq!(caller.rest().await, "all");
    caller.write("more").await;
    assert_eq!(text(&mut connection, 4).await, "more");
    assert_eq!(stage.broker().counts().open, 1);
    caller.stdin = None;
    end(&mut connection).await;
    assert_eq!(caller.code().await, Some(0));
}

#[tokio::test]
async fn a_call_may_end_with_the_services_output() {
    let (stage, listener) = stage("exit-on-service-eof=true\nskip-service-descriptor=true\n");
    let (mut caller, mut connection) = call(&stage, &listener, "s").await;
    connection.write_all(b"all").await.unwrap();
    connection.shutdown().await.unwrap();
    assert_eq!((caller.rest().await, caller.code().await), ("all".to_owned(), Some(0)));
    end(&mut connection).await;
}

#[tokio::test]
async fn a_call_may_end_with_the_callers_input_and_then_a_late_answer_is_lost() {
    let (stage, listener) = stage("exit-on-client-eof=true\nskip-service-descriptor=true\n");
    let (mut caller, mut connection) = call(&stage, &listener, "s").await;
    caller.stdin = None;
    end(&mut connection).await;
    let _ = connection.write_all(b"late").await;
    assert_eq!((caller.rest().await, caller.code().await), (String::new(), Some(0)));
}

#[tokio::test]
async fn a_killed_caller_is_an_end_of_file() {
    let (stage, listener) = stage("skip-service-descriptor=true\n");
    let (mut caller, mut connection) = call(&stage, &listener, "s").await;
    caller.write("x").await;
    assert_eq!(text(&mut connection, 1).await, "x");
    bounded(caller.process.kill()).await.unwrap();
    end(&mut connection).await;
    drop(connection);
    bounded(stage.broker().until(|counts| counts.open == 0)).await;
}

#[tokio::test]
async fn a_socket_that_nobody_listens_on_fails_the_call() {
    let (stage, listener) = stage("");
    drop(listener);
    assert_eq!(stage.output("s").await.status.code(), Some(125));
}
