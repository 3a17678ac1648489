//! The walls between the "VMs", tried from inside.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use staging::environment::{Environment, EnvironmentOptions};
use staging::generator::MARLOW;
use staging::isolation::OPT_OUT;
use staging::netns::{Namespace, NetnsError};
use staging::processes::children;
use staging::qrexec::broker::EventKind;
use staging::server::ServerOptions;
use tokio::net::TcpListener;
use tokio::process::Command;

/// An address that belongs to no machine (RFC 5737). Tried only from inside a namespace, from which nothing gets out.
const NOBODY: &str = "192.0.2.1:80";
/// Says where it runs.
const READLINK: &str = "/bin/readlink";

/// An environment with its walls; `None` where this machine has none and that was said to be all right.
async fn walled() -> Option<Environment> {
    let mut options = EnvironmentOptions::with_sources(3, 2).unwrap();
    options.server.control_listener = Some(ServerOptions::LOOPBACK);
    let environment = Environment::with_daemon(options).await.unwrap();
    if let Some(reason) = environment.isolation().missing() {
        let skipped = std::env::var_os(OPT_OUT).is_some_and(|value| value == "1");
        assert!(skipped, "{reason}: run the tests as root or permit user namespaces, or set {OPT_OUT}=1");
        // Past the harness, which keeps to itself what a test prints that passes.
        let _ = writeln!(io::stderr(), "NOT CHECKED: the walls between the VMs: {reason}");
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
    // So do the programs that make its calls, of which the one for the lists stays open.
    let client = inside_of(environment.isolation().in_client(Path::new(READLINK))).await;
    let daemon = environment.daemon_pid().unwrap();
    assert_eq!(namespace_of(daemon).unwrap(), client);
    assert_all_in(children(daemon).unwrap(), &client);
    assert_ne!(client, namespace_of(std::process::id()).unwrap());
    environment.stop().await.unwrap();
}

/// Where Tor runs on this machine too, a proxy outside of its walls would find a SOCKS server.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_itself_runs_inside_of_its_walls() {
    let Some(environment) = walled().await else { return };
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    watch.until("sync_ended").await.unwrap();
    // The session for the lists stays open.
    let started = environment.broker().events().into_iter().filter_map(|event| match event.kind {
        EventKind::Started { pid, .. } => pid,
        _other => None,
    });
    let proxy = inside_of(environment.isolation().in_proxy(Path::new(READLINK))).await;
    assert_all_in(started, &proxy);
    let client = inside_of(environment.isolation().in_client(Path::new(READLINK))).await;
    for other in [namespace_of(std::process::id()).unwrap(), client] {
        assert_ne!(proxy, other);
    }
    environment.stop().await.unwrap();
}

/// Set for the second run of a test, by somebody who is not root: the program of this package.
const STAGING: &str = "SPLITDROP_TEST_STAGING";
/// Who has nothing.
const NOBODY_ID: &str = "65534";

/// Root runs this test once more as somebody else, whose namespaces are made in another way.
#[test]
fn a_user_who_is_not_root_has_walls_too() {
    let staging = std::env::var_os(STAGING).unwrap_or_else(|| env!("CARGO_BIN_EXE_splitdrop-staging").into());
    if !nix::unistd::geteuid().is_root() {
        return walls_of_a_user(staging.as_ref());
    }
    let folder = tempfile::tempdir().unwrap();
    let open_to_all = || std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open_to_all()).unwrap();
    let copy = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        // By another process: a fork of this one could hold the copy open for writing when it is to be run.
        assert!(std::process::Command::new("/bin/cp").args([from, &to]).status().unwrap().success());
        std::fs::set_permissions(&to, open_to_all()).unwrap();
        to
    };
    let (staging, test) = (copy(staging.as_ref(), "staging"), copy(&std::env::current_exe().unwrap(), "test"));
    let output = std::process::Command::new("/usr/bin/setpriv")
        .args(["--reuid", NOBODY_ID, "--regid", NOBODY_ID, "--clear-groups", "--"])
        .arg(test)
        .args(["--exact", "a_user_who_is_not_root_has_walls_too", "--nocapture"])
        .env(STAGING, staging)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    let _ = io::stderr().write_all(&output.stderr);
}

fn walls_of_a_user(staging: &Path) {
    let listens = SocketAddr::from((Ipv4Addr::LOCALHOST, 9150));
    let made = Namespace::empty(staging).and_then(|empty| Ok((empty, Namespace::with_listener(staging, listens)?)));
    let (empty, (proxy, listener)) = match made {
        Ok(made) => made,
        Err(NetnsError::NotPermitted(reason)) => {
            let _ = writeln!(io::stderr(), "NOT CHECKED: the walls of a user who is not root: {reason}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let probed = |namespace: &Namespace| {
        let (enter, arguments) = namespace.enter(staging.as_os_str());
        let mut probe = std::process::Command::new(enter);
        let Output { status, stdout, stderr } =
            probe.args(arguments).args(["probe", &listens.to_string()]).env_clear().output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap().trim().strip_prefix("127.0.0.1:9150 ").unwrap().to_owned()
    };
    assert!(probed(&empty).starts_with("no way"));
    assert_eq!(probed(&proxy), "reached");
    drop(listener);
    assert_eq!(probed(&proxy), "refused");
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

/// The network namespace of a process; none of one that has ended.
fn namespace_of(pid: u32) -> Option<String> {
    let namespace = std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
    Some(namespace.to_string_lossy().into_owned())
}

/// Checks that those of the processes that still run, of which there is one at least, are in this namespace.
fn assert_all_in(processes: impl IntoIterator<Item = u32>, namespace: &str) {
    let found: Vec<_> = processes.into_iter().filter_map(namespace_of).collect();
    assert!(!found.is_empty(), "none of them runs");
    assert!(found.iter().all(|one| one == namespace), "{found:?} and not {namespace}");
}

/// The network namespace in which `readlink` runs, which is such a command.
async fn inside_of(mut readlink: Command) -> String {
    let output = readlink.arg("/proc/self/ns/net").output().await.unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
