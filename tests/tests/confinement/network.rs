//! The real programs: a daemon does not start where there is a network, and what runs is confined.

use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;
use staging::environment::{Environment, EnvironmentOptions, Output};
use staging::generator::MARLOW;
use staging::processes::children;
use tokio::process::Command;

/// The exit code for a VM that is not one to run in.
const NOT_CONFINED: i32 = 14;

/// An environment whose daemon does not run yet.
async fn environment() -> Environment {
    let mut environment = Environment::with_daemon(EnvironmentOptions::with_sources(2, 2).unwrap()).await.unwrap();
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    environment
}

/// Runs a command of the client outside of the walls, where this test runs, with this configuration.
async fn outside(environment: &Environment, config: &Path, arguments: &[&str]) -> Output {
    let output = Command::new(environment.splitdrop_program())
        .args(arguments)
        .env_clear()
        .envs(environment.variables())
        .env("SPLITDROP_CONFIG", config)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The first interface where this test runs that is not the loopback, if this machine has a network.
fn interface() -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    let names = table.lines().skip(2).map(|line| line.split(':').next().unwrap().trim().to_owned());
    let tunnels = ["tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0"];
    names.filter(|name| name != "lo" && !tunnels.contains(&name.as_str())).last()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_starts_where_there_is_a_network_only_if_it_is_told_to() {
    let environment = environment().await;
    let shipped = std::fs::read_to_string(environment.directory().join("config.toml")).unwrap();
    let shipped = shipped.replace("allow_network = true\n", "");
    let config = environment.directory().join("outside.toml");
    std::fs::write(&config, &shipped).unwrap();
    if interface().is_some() {
        let refused = outside(&environment, &config, &["daemon"]).await;
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(NOT_CONFINED), ""), "{refused:?}");
        for part in ["network interface (", "qvm-prefs", "allow_network = true"] {
            assert!(refused.stderr.contains(part), "{refused:?}");
        }
        assert_eq!(refused.stderr.trim().lines().count(), 1, "{refused:?}");
        // Somebody who has it started is told too.
        let starting = outside(&environment, &config, &["status", "--start", "--json"]).await;
        assert_eq!(starting.code, Some(1), "{starting:?}");
        let told: Value = serde_json::from_str(&starting.stdout).unwrap();
        assert!(told["error"]["message"].as_str().unwrap().contains("allow_network"), "{told}");
    }
    // Where there is no network it starts without being allowed anything.
    let allowed = interface().is_some();
    std::fs::write(&config, format!("allow_network = {allowed}\n{shipped}")).unwrap();
    let mut daemon = Command::new(environment.splitdrop_program())
        .arg("daemon")
        .env_clear()
        .envs(environment.variables())
        .env("SPLITDROP_CONFIG", &config)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = tokio::io::BufReader::new(daemon.stdout.take().unwrap());
    tokio::io::AsyncBufReadExt::read_line(&mut output, &mut line).await.unwrap();
    assert!(line.starts_with("listening on"), "{line}");
    // A command asks for no network to be absent: it is the daemon that has the plaintext.
    assert_eq!(outside(&environment, &config, &["status"]).await.code, Some(0));
    daemon.start_kill().unwrap();
    daemon.wait().await.unwrap();
    environment.stop().await.unwrap();
}

/// What the kernel says of a process, by the name of the line.
fn says(pid: u32, file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_its_calls_and_commands_are_confined() {
    let environment = Environment::with_daemon(EnvironmentOptions::with_sources(2, 2).unwrap()).await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let daemon = environment.daemon_pid().unwrap();
    // The call for the lists stays open.
    let calls = children(daemon).unwrap();
    assert!(!calls.is_empty(), "it made no call");
    let mut watch = environment.splitdrop(["watch", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut output = tokio::io::BufReader::new(watch.stdout.take().unwrap());
    tokio::io::AsyncBufReadExt::read_line(&mut output, &mut line).await.unwrap();
    let command = watch.id().unwrap();
    for pid in calls.iter().copied().chain([daemon, command]) {
        assert_eq!(says(pid, "status", "Seccomp:"), "2", "a filter");
        assert_eq!(says(pid, "status", "NoNewPrivs:"), "1");
        let cores = says(pid, "limits", "Max core file size");
        assert_eq!(cores.split_whitespace().collect::<Vec<_>>(), ["0", "0", "bytes"]);
    }
    watch.start_kill().unwrap();
    watch.wait().await.unwrap();
    environment.stop().await.unwrap();
}
