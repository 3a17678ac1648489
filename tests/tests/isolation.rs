//! The walls between the "VMs", tried from inside.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::path::Path;

use staging::environment::{Environment, EnvironmentOptions};
use staging::generator::MARLOW;
use staging::isolation::OPT_OUT;
use staging::server::ServerOptions;
use tokio::net::TcpListener;
use tokio::process::Command;

/// An address that belongs to no machine (RFC 5737). Tried only from inside a namespace, from which nothing gets out.
const NOBODY: &str = "192.0.2.1:80";

/// An environment with its walls; `None` where this machine has none and that was said to be all right.
async fn walled() -> Option<Environment> {
    let mut options = EnvironmentOptions::with_sources(3, 2).unwrap();
    options.server.control_listener = Some(ServerOptions::LOOPBACK);
    let environment = Environment::with_daemon(options).await.unwrap();
    if let Some(reason) = environment.isolation().missing() {
        let skipped = std::env::var_os(OPT_OUT).is_some_and(|value| value == "1");
        assert!(skipped, "{reason}: run the tests as root or permit user namespaces, or set {OPT_OUT}=1");
        environment.stop().await.unwrap();
        return None;
    }
    Some(environment)
}

/// What `probe` says of each address, run by `command`.
async fn probe(mut command: Command, addresses: &[String]) -> Vec<String> {
    let output = command.arg("probe").args(addresses).env_clear().output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let verdicts: Vec<_> = text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect();
    assert_eq!(verdicts.len(), addresses.len());
    verdicts
}

fn addresses(environment: &Environment, elsewhere: SocketAddr) -> Vec<String> {
    let control = environment.server().control_origin().unwrap();
    vec![
        environment.server().address().to_string(),
        control.trim_start_matches("http://").to_owned(),
        elsewhere.to_string(),
        format!("[::1]:{}", elsewhere.port()),
        NOBODY.to_owned(),
        "[2001:db8::1]:80".to_owned(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn from_the_clients_vm_no_address_can_be_reached() {
    let Some(environment) = walled().await else { return };
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut tried = addresses(&environment, elsewhere.local_addr().unwrap());
    // From outside the first three are reached: the probe would see it.
    let outside = probe(Command::new(environment.staging_program()), &tried[..3]).await;
    assert_eq!(outside, ["reached", "reached", "reached"]);
    tried.push(environment.socks_address().to_string());
    let inside = probe(environment.isolation().in_client(environment.staging_program()), &tried).await;
    assert!(inside.iter().all(|verdict| verdict.starts_with("no way")), "{inside:?}");
    // And the daemon in there does its work.
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    assert_eq!(watch.until("sync_ended").await.unwrap().pointer("/sync/outcome").unwrap(), "ok");
    assert_eq!(namespace_of(environment.daemon_pid().unwrap()), client_namespace(&environment).await);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn from_the_proxys_vm_only_the_socks_port_can_be_reached() {
    let Some(environment) = walled().await else { return };
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tried = addresses(&environment, elsewhere.local_addr().unwrap());
    let inside = probe(environment.isolation().in_proxy(environment.staging_program()), &tried).await;
    // On its own loopback nobody listens there; beyond it there is no way.
    assert!(inside.iter().all(|verdict| verdict.starts_with("no way") || verdict == "refused"), "{inside:?}");
    let socks = [environment.socks_address().to_string()];
    assert_eq!(socks, ["127.0.0.1:9150"], "where Tor listens in the proxy's VM");
    let inside = probe(environment.isolation().in_proxy(environment.staging_program()), &socks).await;
    assert_eq!(inside, ["reached"]);
    environment.stop().await.unwrap();
}

/// The network namespace of a process.
fn namespace_of(pid: u32) -> String {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap().to_string_lossy().into_owned()
}

async fn client_namespace(environment: &Environment) -> String {
    let mut command = environment.isolation().in_client(Path::new("/bin/readlink"));
    let output = command.arg("/proc/self/ns/net").output().await.unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
