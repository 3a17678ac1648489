//! The daemon's life, and what commands say without one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use staging::environment::{Environment, EnvironmentOptions};
use staging::generator::MARLOW;
use staging::programs::Programs;
use staging::residue::walk;
use staging::server::{Command, Fault, FaultAct, KeyChoice, Matching, Outcome, SourceState};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// A bound for what hangs, not a measure.
const DEADLINE: Duration = Duration::from_secs(60);

fn options() -> EnvironmentOptions {
    EnvironmentOptions::with_sources(2, 2).unwrap()
}

/// Everything but a daemon.
async fn without_daemon() -> Environment {
    let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await.unwrap().unwrap();
    Environment::start(programs, options()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_daemon_commands_say_so_and_how_to_start_one() {
    let environment = without_daemon().await;
    for command in ["status", "sources", "refresh", "logout", "watch"] {
        let output = environment.run([command], "").await.unwrap();
        assert_eq!(output.code, Some(3), "{command}: {output:?}");
        assert!(output.stderr.contains("splitdrop daemon") && output.stderr.contains("--start"), "{output:?}");
    }
    let output = environment.run(["status", "--json"], "").await.unwrap();
    let told: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((&told["format"], &told["error"]["kind"]), (&1.into(), &"no_daemon".into()));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn start_brings_up_a_daemon_that_outlives_the_command() {
    let environment = without_daemon().await;
    let started = environment.json(&["status", "--start"], "").await.unwrap();
    assert_eq!(started["session"]["state"], "signed_out");
    let again = environment.json(&["status", "--start"], "").await.unwrap();
    assert_eq!(again["started"], started["started"], "it is the same daemon");
    // It is nobody's child here: found by the lock that it holds, ended by its id.
    let daemon = holder_of(&environment.home().join("lock"));
    // It takes as little memory as one that systemd has started.
    let unit = include_str!("../../qubes-rpc/sd-app/splitdrop.service");
    let variables = std::fs::read(format!("/proc/{daemon}/environ")).unwrap();
    for variable in unit.lines().filter_map(|line| line.strip_prefix("Environment=")) {
        assert!(variables.split(|byte| *byte == 0).any(|known| known == variable.as_bytes()), "{variable}");
    }
    kill(Pid::from_raw(daemon), Signal::SIGTERM).unwrap();
    until_gone(daemon).await;
    assert_eq!(environment.run(["status"], "").await.unwrap().code, Some(3));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_start_a_daemon_at_the_same_time_all_reach_the_one() {
    let environment = without_daemon().await;
    let status = || environment.json(&["status", "--start"], "");
    let (first, second, third, fourth) = tokio::join!(status(), status(), status(), status());
    let first = first.unwrap();
    for other in [second, third, fourth] {
        assert_eq!(other.unwrap()["started"], first["started"], "it is the same daemon");
    }
    let daemon = holder_of(&environment.home().join("lock"));
    kill(Pid::from_raw(daemon), Signal::SIGTERM).unwrap();
    until_gone(daemon).await;
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_does_not_start_says_why() {
    let environment = without_daemon().await;
    std::fs::create_dir_all(environment.home()).unwrap();
    std::fs::write(environment.home().join("store.sqlite3"), "this is no database, but long enough to be looked at\n")
        .unwrap();
    let output = environment.run(["status", "--start"], "").await.unwrap();
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stderr.contains("could not open the store"), "{output:?}");
    environment.stop().await.unwrap();
}

/// Case T3.
#[tokio::test(flavor = "multi_thread")]
async fn t3_a_second_daemon_says_so_and_a_crash_stops_nobody() {
    let mut environment = Environment::with_daemon(options()).await.unwrap();
    let second = environment.run(["daemon"], "").await.unwrap();
    assert_eq!(second.code, Some(9), "{second:?}");
    assert!(second.stderr.contains("another daemon"), "{second:?}");
    // Another data directory, the same socket.
    let socket = environment.control_socket();
    let elsewhere = environment.directory().join("elsewhere");
    let third = environment
        .splitdrop(["daemon", "--socket", socket.to_str().unwrap()])
        .env("SPLITDROP_HOME", &elsewhere)
        .output()
        .await
        .unwrap();
    assert_eq!(third.status.code(), Some(9));
    // The first is unharmed.
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();

    environment.stop_daemon(Signal::SIGKILL).await.unwrap();
    assert!(socket.exists(), "a crash leaves the socket");
    environment.start_daemon().await.unwrap();
    let listed = environment.json(&["sources"], "").await.unwrap();
    assert_eq!(listed["sources"].as_array().unwrap().len(), 2);
    environment.stop().await.unwrap();
}

/// A source with files, and a client that holds something of every kind: what is read, a ciphertext without a key, a part,
/// and a draft.
async fn holds_everything(environment: &Environment) {
    let control = environment.server().control();
    let created = Command::NewSource { designation: None, key: KeyChoice::Pool(1), state: SourceState::Listed };
    let Outcome::Source { uuid: source, .. } = control.apply(created).unwrap() else { unreachable!() };
    let file = |size| match control.apply(Command::NewFile { source: source.clone(), size }).unwrap() {
        Outcome::Item { uuid, .. } => uuid,
        other => unreachable!("{other:?}"),
    };
    let (read, sealed, part) = (file(3_000), file(4_000), file(2_000_000));
    let path = format!("/api/v1/sources/*/submissions/{part}/download");
    control.add_fault(Fault::new(Matching::path(&path), FaultAct::HangAfter { bytes: 1_000_000 })).unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    environment.json(&["download", read.as_str(), "--wait"], "").await.unwrap();
    std::fs::rename(environment.key_file(), environment.directory().join("hidden")).unwrap();
    let mut watch = environment.watch().await.unwrap();
    environment.json(&["download", sealed.as_str(), part.as_str(), "--no-wait"], "").await.unwrap();
    // Its ciphertext is there before it is noted: until then it would be a part at the next start.
    loop {
        let event = watch.until("download").await.unwrap();
        if event["item"] == sealed.as_str() && event["step"] == "stored" {
            break;
        }
    }
    environment.json(&["reply", source.as_str(), "--draft", "--message", "not yet"], "").await.unwrap();
    let all_there = async {
        while KINDS.iter().any(|kind| files_in(environment, kind) == 0) {
            environment.json(&["status"], "").await.unwrap();
        }
    };
    tokio::time::timeout(DEADLINE, all_there).await.expect("something of every kind");
}

/// The folders of what [`holds_everything`] makes a client hold.
const KINDS: [&str; 3] = ["ciphertext", "partial", "plaintext"];

fn files_in(environment: &Environment, folder: &str) -> usize {
    std::fs::read_dir(environment.home().join(folder)).unwrap().count()
}

/// Opens a directory and all in it to everybody.
fn open_to_all(path: &Path) {
    let change = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    change(path, 0o755);
    for path in walk(path).unwrap() {
        change(&path, if path.is_dir() { 0o755 } else { 0o644 });
    }
}

/// Case T3.
#[tokio::test(flavor = "multi_thread")]
async fn t3_what_was_opened_to_others_is_closed_at_the_next_start() {
    let mut environment = Environment::with_daemon(options()).await.unwrap();
    holds_everything(&environment).await;
    // A crash leaves more than an end does.
    environment.stop_daemon(Signal::SIGKILL).await.unwrap();
    let before = walk(&environment.home()).unwrap();
    open_to_all(&environment.home());
    environment.start_daemon().await.unwrap();
    let checked = check_modes(&environment.home());
    assert!(checked >= before.iter().filter(|path| path.is_file()).count(), "{before:?}");
    for kind in KINDS {
        assert!(files_in(&environment, kind) > 0, "{kind} is empty");
    }
    environment.stop().await.unwrap();
}

/// Case T3. Only root can give files away; others have none of somebody else's to try it with.
#[tokio::test(flavor = "multi_thread")]
async fn t3_what_belongs_to_somebody_else_is_refused() {
    const SOMEBODY: u32 = 65_534;
    if !nix::unistd::geteuid().is_root() {
        // Past the harness, which keeps to itself what a test prints that passes.
        let _ = writeln!(io::stderr(), "NOT CHECKED: what belongs to somebody else: only root can give it away");
        return;
    }
    let mut environment = Environment::with_daemon(options()).await.unwrap();
    holds_everything(&environment).await;
    environment.stop_daemon(Signal::SIGKILL).await.unwrap();
    let home = environment.home();
    let ciphertext = std::fs::read_dir(home.join("ciphertext")).unwrap().next().unwrap().unwrap().path();
    for path in [home.clone(), home.join("store.sqlite3"), home.join("lock"), home.join("plaintext"), ciphertext] {
        std::os::unix::fs::chown(&path, Some(SOMEBODY), None).unwrap();
        let refused =
            tokio::time::timeout(DEADLINE, environment.run(["daemon"], "")).await.expect("it listens").unwrap();
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{}: {refused:?}", path.display());
        assert!(refused.stderr.contains("it belongs to another user"), "{}: {refused:?}", path.display());
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    }
    environment.start_daemon().await.unwrap();
    environment.stop().await.unwrap();
}

/// Case T3.
#[tokio::test(flavor = "multi_thread")]
async fn t3_everything_is_for_its_user_alone_whatever_the_umask() {
    let environment = without_daemon().await;
    let log = environment.home().join("daemon.log");
    let mut daemon = environment
        .isolation()
        .in_client(Path::new("/bin/sh"))
        .args(["-c", "umask 000; exec \"$@\"", "sh"])
        .arg(environment.splitdrop_program())
        .args(["daemon", "--log-file"])
        .arg(&log)
        .env_clear()
        .envs(environment.variables())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().starts_with("listening on"));
    holds_everything(&environment).await;
    let least = 4 + KINDS.len();
    assert!(check_modes(&environment.home()) >= least, "the store, the lock, the log, the socket and what is held");
    kill(Pid::from_raw(i32::try_from(daemon.id().unwrap()).unwrap()), Signal::SIGTERM).unwrap();
    assert!(daemon.wait().await.unwrap().success());
    environment.stop().await.unwrap();
}

/// Checks a directory and all in it; gives the number of files. What a daemon opens for a moment may be gone meanwhile.
fn check_modes(path: &Path) -> usize {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return 0 };
    let mode = metadata.permissions().mode() & 0o777;
    if !metadata.is_dir() {
        assert_eq!(mode, 0o600, "{}", path.display());
        return 1;
    }
    assert_eq!(mode, 0o700, "{}", path.display());
    std::fs::read_dir(path).into_iter().flatten().map(|entry| check_modes(&entry.unwrap().path())).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_the_session_the_calls_and_the_socket() {
    let mut environment = Environment::with_daemon(options()).await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    assert_eq!(environment.stop_daemon(Signal::SIGTERM).await.unwrap(), Some(0));
    assert_eq!(watch.until("session_ended").await.unwrap()["reason"], "shutdown");
    assert_eq!(environment.server().control().count("POST", "/api/v1/logout"), 1);
    environment.broker().until(|counts| counts.open == 0).await;
    assert!(!environment.control_socket().exists());
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_socket_is_never_removed() {
    let environment = without_daemon().await;
    let precious = environment.directory().join("precious");
    std::fs::write(&precious, "kept").unwrap();
    let arguments = ["daemon", "--socket", precious.to_str().unwrap()];
    let output = tokio::time::timeout(DEADLINE, environment.run(arguments, "")).await;
    let output = output.expect("it listens").unwrap();
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stderr.contains("no socket"), "{output:?}");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_ends_leaves_anothers_socket_in_its_place() {
    let mut environment = Environment::with_daemon(options()).await.unwrap();
    let socket = environment.control_socket();
    std::fs::remove_file(&socket).unwrap();
    let _others = tokio::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(environment.stop_daemon(Signal::SIGTERM).await.unwrap(), Some(0));
    assert!(socket.exists());
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_was_started_to_outlive_its_terminal_does() {
    let environment = without_daemon().await;
    let mut daemon = environment
        .isolation()
        .in_client(Path::new("/bin/sh"))
        .args(["-c", "trap '' HUP; exec \"$@\"", "nohup"])
        .arg(environment.splitdrop_program())
        .arg("daemon")
        .env_clear()
        .envs(environment.variables())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().starts_with("listening on"));
    let pid = Pid::from_raw(i32::try_from(daemon.id().unwrap()).unwrap());
    kill(pid, Signal::SIGHUP).unwrap();
    // Were it not ignored, a daemon that hears of it first would take no more commands.
    for _ in 0..3 {
        environment.json(&["status"], "").await.unwrap();
    }
    kill(pid, Signal::SIGTERM).unwrap();
    assert!(daemon.wait().await.unwrap().success());
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_during_a_login_hears_what_goes_on() {
    let environment = Environment::with_daemon(options()).await.unwrap();
    let control = environment.server().control();
    control.add_fault(Fault::new(Matching::path("/api/v1/token"), FaultAct::Hang)).unwrap();
    let credentials = environment.credentials(&MARLOW);
    let first = environment.run(["login", "--credentials-stdin"], &credentials);
    let second = async {
        control.wait_for_log(|log| log.count("POST", "/api/v1/token") == 1).await;
        let second = environment.run(["login", "--credentials-stdin"], &credentials).await.unwrap();
        environment.json(&["logout"], "").await.unwrap();
        second
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!((first.unwrap().code, second.code), (Some(1), Some(5)), "{second:?}");
    assert!(second.stderr.contains("a login is under way"), "{second:?}");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_configuration_is_told_in_one_line() {
    let environment = without_daemon().await;
    let config = environment.directory().join("config.toml");
    std::fs::write(&config, "# Ours.\nproxy_wm = \"sd-proxy\"\n").unwrap();
    let output = environment.splitdrop(["status"]).env("SPLITDROP_CONFIG", &config).output().await.unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
    assert!(told.contains("line 2: ") && told.contains("proxy_wm") && !told.contains("\\u{"), "{told}");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_command_line_is_an_object_with_json() {
    let environment = without_daemon().await;
    for words in [&["--json", "show"][..], &["shwo", "--json"], &["--json"], &["queue", "--json", "--al"]] {
        let output = environment.run(words, "").await.unwrap();
        assert_eq!(output.code, Some(2), "{output:?}");
        let told: Value = serde_json::from_str(&output.stdout).unwrap();
        assert_eq!((&told["format"], &told["error"]["kind"]), (&1.into(), &"usage".into()), "{told}");
        assert!(!output.stderr.is_empty(), "people are told too");
    }
    let output = environment.run(["show"], "").await.unwrap();
    assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""));
    // Help is what was asked for.
    let output = environment.run(["show", "--help", "--json"], "").await.unwrap();
    assert!(output.code == Some(0) && output.stdout.contains("Usage: splitdrop show"), "{output:?}");
    environment.stop().await.unwrap();
}

/// The process that holds a lock on the file, by /proc/locks.
fn holder_of(path: &Path) -> i32 {
    use std::os::unix::fs::MetadataExt as _;
    let inode = std::fs::metadata(path).unwrap().ino();
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let line = locks.lines().find(|line| line.contains(&format!(":{inode} "))).unwrap();
    line.split_whitespace().nth(4).unwrap().parse().unwrap()
}

/// Waits until the process is gone. It is no child of this one, so there is nothing to wait on but its entry.
async fn until_gone(pid: i32) {
    while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        tokio::task::yield_now().await;
    }
}
