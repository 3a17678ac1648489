//! `splitdrop doctor`: all is well in staging, and each broken set-up has its own line, next step and exit code.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use sequoia_openpgp::Cert;
use sequoia_openpgp::parse::Parse as _;
use sequoia_openpgp::serialize::SerializeInto as _;
use serde_json::Value;
use staging::environment::{Environment, EnvironmentOptions, ONION, ONION_PORT, PROXY_VM};
use staging::programs::Programs;
use staging::qrexec::broker::{Start, StartOutcome};
use staging::qrexec::system::System;
use staging::server::{Fault, FaultAct, Matching};
use staging::socks::{Act, Direction, NameTable, Reply, SocksFault, Step};

/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(120);
/// The exit code when something does not work.
const UNHEALTHY: i32 = 15;
/// The checks, in their order.
const NAMES: [&str; 26] = [
    "configuration",
    "offline",
    "daemon",
    "data_directory",
    "data_modes",
    "data_persists",
    "disk_space",
    "qrexec_program",
    "policy_session",
    "policy_metadata",
    "policy_mark",
    "policy_delete",
    "policy_download",
    "policy_reply",
    "proxy",
    "proxy_settings",
    "proxy_version",
    "proxy_sandbox",
    "tor",
    "route",
    "server",
    "clock",
    "key_backend",
    "secret_key",
    "newsroom_key",
    "viewer",
];
/// What depends on the machine that runs the tests: how its temporary directories are kept, how full its disk is, and
/// whether it permits walls.
const OF_THE_MACHINE: [&str; 3] = ["data_persists", "disk_space", "offline"];

fn options() -> EnvironmentOptions {
    EnvironmentOptions::with_sources(1, 1).unwrap()
}

/// An environment without a daemon.
async fn without_daemon(options: EnvironmentOptions) -> Environment {
    let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await.unwrap().unwrap();
    Environment::start(programs, options).await.unwrap()
}

/// What the doctor found, and its exit code.
#[derive(Debug)]
struct Report {
    code: i32,
    checks: Vec<Value>,
}

/// Runs the doctor with these variables in the place of the environment's own; an empty value takes one away.
async fn examined(environment: &Environment, arguments: &[&str], variables: &[(&str, &OsStr)]) -> Report {
    let mut command = environment.splitdrop(["doctor", "--json"].iter().chain(arguments));
    for (name, value) in variables {
        match value.is_empty() {
            true => command.env_remove(name),
            false => command.env(name, value),
        };
    }
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output = tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains(".onion") && output.stderr.is_empty(), "{text} {:?}", output.stderr);
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told["format"], 1);
    let checks = told["checks"].as_array().unwrap().clone();
    let names: Vec<_> = checks.iter().map(|check| check["name"].as_str().unwrap()).collect();
    assert_eq!(names, NAMES);
    Report { code: output.status.code().unwrap(), checks }
}

async fn doctor(environment: &Environment) -> Report {
    examined(environment, &[], &[]).await
}

impl Report {
    fn check(&self, name: &str) -> &Value {
        self.checks.iter().find(|check| check["name"] == name).unwrap()
    }

    /// The names of the checks with this outcome, but for what depends on the machine.
    fn with(&self, outcome: &str) -> Vec<&str> {
        let named = self.checks.iter().filter(|check| check["outcome"] == outcome);
        let names = named.map(|check| check["name"].as_str().unwrap());
        names.filter(|name| !OF_THE_MACHINE.contains(name)).collect()
    }

    /// Exactly these checks have failed, and the first says this reason and this next step.
    #[track_caller]
    fn fails(&self, names: &[&str], reason: &str, next: &str) {
        assert_eq!((self.with("failure"), self.code), (names.to_vec(), UNHEALTHY), "{self:?}");
        self.says(names[0], reason, next);
    }

    /// Nothing has failed, exactly these checks warn, and the first says this reason and this next step.
    #[track_caller]
    fn warns(&self, names: &[&str], reason: &str, next: &str) {
        assert_eq!((self.with("failure"), self.with("warning")), (vec![], names.to_vec()), "{self:?}");
        self.says(names[0], reason, next);
        self.is_healthy();
    }

    #[track_caller]
    fn says(&self, name: &str, reason: &str, next: &str) {
        let check = self.check(name);
        assert!(check["detail"].as_str().unwrap().contains(reason), "{check} does not say {reason:?}");
        assert!(check["next_step"].as_str().unwrap().contains(next), "{check} does not say {next:?}");
    }

    /// Ends with 0, unless the machine's own part is broken.
    #[track_caller]
    fn is_healthy(&self) {
        let machine = OF_THE_MACHINE.iter().any(|name| self.check(name)["outcome"] == "failure");
        assert_eq!(self.code, if machine { UNHEALTHY } else { 0 }, "{self:?}");
    }

    /// These were not looked at because of that one.
    #[track_caller]
    fn skips(&self, names: &[&str], because_of: &str) {
        for name in names {
            let check = self.check(name);
            assert_eq!(check["outcome"], "not_checked", "{check}");
            assert_eq!(check["detail"], format!("because of {because_of}"), "{check}");
        }
    }

    /// All is well.
    #[track_caller]
    fn is_all_ok(&self) {
        assert_eq!((self.with("failure"), self.with("warning")), (vec![], vec![]), "{self:?}");
        self.is_healthy();
    }
}

/// A configuration file beside the environment's own.
fn configuration(environment: &Environment, text: &str) -> PathBuf {
    let path = environment.directory().join("other.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// The environment's own configuration, with a line replaced.
fn changed(environment: &Environment, line: &str, with: &str) -> PathBuf {
    let text = std::fs::read_to_string(environment.directory().join("config.toml")).unwrap();
    assert!(text.contains(line), "{text}");
    configuration(environment, &text.replace(line, with))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_is_well_in_staging_and_nothing_is_changed() {
    let environment = Environment::with_daemon(options()).await.unwrap();
    let report = doctor(&environment).await;
    report.is_all_ok();
    assert_eq!(report.with("not_checked"), ["policy_delete"]);
    report.says("policy_delete", "may ask", "--ask");
    if environment.isolation().missing().is_none() {
        assert_eq!(report.check("offline")["outcome"], "ok");
    }
    let asked = examined(&environment, &["--ask"], &[]).await;
    asked.is_all_ok();
    assert_eq!(asked.with("not_checked"), Vec::<&str>::new());

    // What a person reads has a line for each check. The server was asked twice for what everybody may see, and once more now.
    let output = environment.run(["doctor"], "").await.unwrap();
    for name in NAMES {
        assert!(output.stdout.lines().any(|line| line.contains(&format!(" {name} "))), "{name}: {}", output.stdout);
    }
    let requests = environment.server().control().requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| request.path == "/api/v1/" && request.header("authorization").is_none()));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_broken_in_the_clients_vm_has_its_line() {
    let mut environment = Environment::with_daemon(options()).await.unwrap();
    let directory = environment.directory().to_owned();
    let with = async |name: &str, value: &Path| examined(&environment, &[], &[(name, value.as_os_str())]).await;

    let bad = configuration(&environment, "# A comment.\nproxy_wm = \"x\"\n");
    let report = with("SPLITDROP_CONFIG", &bad).await;
    report.fails(&["configuration"], "line 2", "OPERATIONS.md");
    report.skips(&["daemon", "data_modes", "policy_mark", "clock", "viewer"], "configuration");
    with("SPLITDROP_CONFIG", &directory.join("none.toml")).await.fails(
        &["configuration"],
        "could not read",
        "readable",
    );

    let report = with("SPLITDROP_QREXEC", &directory.join("none")).await;
    report.fails(&["qrexec_program"], "is not there", "qubes-core-qrexec");
    report.skips(&["policy_session", "policy_reply", "proxy", "proxy_version"], "qrexec_program");

    std::fs::write(directory.join("file"), "").unwrap();
    let report = with("SPLITDROP_HOME", &directory.join("file")).await;
    report.fails(&["data_directory"], "no directory", "SPLITDROP_HOME");
    report.skips(&["data_modes"], "data_directory");

    std::fs::set_permissions(environment.home(), std::fs::Permissions::from_mode(0o755)).unwrap();
    doctor(&environment).await.fails(&["data_modes"], "open to other users", "chmod");
    std::fs::set_permissions(environment.home(), std::fs::Permissions::from_mode(0o700)).unwrap();

    let text = std::fs::read_to_string(directory.join("config.toml")).unwrap();
    let viewer = text.lines().find(|line| line.starts_with("open_in_vm")).unwrap();
    let without = changed(&environment, viewer, "open_in_vm = \"/nowhere/qvm-open-in-vm\"");
    with("SPLITDROP_CONFIG", &without).await.warns(&["viewer"], "not there", "open_in_vm");

    // Nobody listens any more, and the socket is left.
    environment.stop_daemon(Signal::SIGKILL).await.unwrap();
    doctor(&environment).await.warns(&["daemon"], "left its socket", "splitdrop daemon");
    std::fs::remove_file(environment.control_socket()).unwrap();
    doctor(&environment).await.warns(&["daemon"], "none runs", "splitdrop daemon");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_broken_on_the_way_to_the_key_has_its_line() {
    let options = options();
    let key = Cert::from_bytes(options.server.newsroom.secret_armor()).unwrap();
    let public = key.strip_secret_key_material().armored().to_vec().unwrap();
    let environment = Environment::with_daemon(options).await.unwrap();
    let fingerprint =
        async |value: &str| examined(&environment, &[], &[("SD_SUBMISSION_KEY_FPR", OsStr::new(value))]).await;
    fingerprint("").await.fails(&["newsroom_key"], "SD_SUBMISSION_KEY_FPR is not set", "qvm-features");
    fingerprint("0123").await.fails(&["newsroom_key"], "no fingerprint", "qvm-features");
    let other = "0123456789ABCDEF0123456789ABCDEF01234567";
    fingerprint(other).await.fails(&["newsroom_key"], "no public key", "import");

    // In a file there is a key, and it is another one.
    std::fs::write(environment.directory().join("public.asc"), public).unwrap();
    let public = environment.directory().join("public.asc");
    let file = format!("[openpgp]\nsubmission_key = \"{}\"", public.display());
    let config = changed(&environment, "[openpgp]", &file);
    let variables = [("SPLITDROP_CONFIG", config.as_os_str()), ("SD_SUBMISSION_KEY_FPR", OsStr::new(other))];
    examined(&environment, &[], &variables).await.fails(&["newsroom_key"], "another key", "compare");
    std::fs::remove_file(&public).unwrap();
    let only_config = [("SPLITDROP_CONFIG", config.as_os_str())];
    examined(&environment, &[], &only_config).await.fails(&["newsroom_key"], "could not read", "submission_key");

    let split_gpg = "[openpgp]\nbackend = \"split-gpg\"\ngpg_client = \"/nowhere/qubes-gpg-client\"\n";
    let config = configuration(&environment, split_gpg);
    let variables = [("SPLITDROP_CONFIG", config.as_os_str()), ("QUBES_GPG_DOMAIN", OsStr::new("sd-gpg"))];
    let report = examined(&environment, &[], &variables).await;
    assert_eq!((report.with("failure"), report.code), (vec!["key_backend"], UNHEALTHY), "{report:?}");
    report.says("key_backend", "could not run", "qubes-gpg-split");
    report.skips(&["secret_key", "newsroom_key"], "key_backend");

    std::fs::write(environment.key_file(), "").unwrap();
    doctor(&environment).await.says("secret_key", "no secret key", "import");
    std::fs::remove_file(environment.key_file()).unwrap();
    doctor(&environment).await.fails(&["key_backend"], "could not read the key file", "key_file");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn n6_what_is_broken_between_the_proxy_and_the_server_has_its_line() {
    let environment = without_daemon(options()).await;
    let (socks, server) = (environment.socks(), environment.server().control());
    let failing = async |names: &[&str], reason: &str, next: &str| {
        let report = doctor(&environment).await;
        assert_eq!((report.with("failure"), report.code), (names.to_vec(), UNHEALTHY), "{report:?}");
        report.says(names[0], reason, next);
        report
    };
    socks.close_port().unwrap();
    let report = failing(&["tor"], "nobody listens at the SOCKS server's address", "start Tor").await;
    report.skips(&["route", "server", "clock"], "tor");
    socks.open_port().unwrap();

    socks.set_names(NameTable::new());
    let report = failing(&["route"], "no way to the server", "SD_PROXY_ORIGIN").await;
    assert_eq!(report.check("tor")["outcome"], "ok");
    report.skips(&["server", "clock"], "route");
    socks.set_names(NameTable::new().with(ONION, ONION_PORT, environment.server().address()).unwrap());

    for (act, name, reason, next) in [
        (Act::CloseAt(Step::Accepted), "tor", "hung up", "start Tor"),
        (Act::Reply(Reply::ONION_NOT_FOUND), "route", "Tor finds no such onion service", "client authorization"),
        (Act::Reply(Reply::HOST_UNREACHABLE), "route", "no way to the server", "whether the server is up"),
        (
            Act::DropAfter { direction: Direction::ToClient, bytes: 0 },
            "server",
            "the connection ended before the answer",
            "administrator",
        ),
    ] {
        socks.add_fault(SocksFault::new(act)).unwrap();
        failing(&[name], reason, next).await;
        socks.clear_faults();
    }
    let root = || Matching::path("/api/v1/");
    for (act, reason, next) in [
        (FaultAct::html(200, "<html>Welcome</html>"), "not SecureDrop's", "journalist interface"),
        (FaultAct::html(404, "<html>No such page</html>"), "HTTP 404", "SD_PROXY_ORIGIN"),
        (FaultAct::html(500, "<html>Oops</html>"), "HTTP 500", "administrator"),
    ] {
        server.add_fault(Fault::new(root(), act).times(1)).unwrap();
        let report = failing(&["server"], reason, next).await;
        report.skips(&["clock"], "server");
    }
    // Its clock stands at another time.
    let date = FaultAct::edit_headers(&[("Date", Some("Thu, 24 Oct 2024 15:51:17 GMT"))]);
    server.add_fault(Fault::new(root(), date).times(1)).unwrap();
    failing(&["clock"], "ahead of the server's", "qvm-sync-clock").await;
    let report = doctor(&environment).await;
    report.warns(&["daemon", "data_directory"], "none runs", "splitdrop daemon");
    environment.stop().await.unwrap();
}

/// This one waits as long as the proxy does for a connection: half a minute.
#[tokio::test(flavor = "multi_thread")]
async fn n6_a_way_that_hangs_has_its_line_after_the_proxys_bound() {
    let environment = without_daemon(options()).await;
    environment.socks().add_fault(SocksFault::new(Act::HangAt(Step::Requested))).unwrap();
    let report = doctor(&environment).await;
    report.fails(&["route"], "no connection to the server", "Tor's log");
    report.skips(&["server", "clock"], "route");
    environment.stop().await.unwrap();
}

/// With these rules before the shipped ones.
async fn ruled_by(text: &str) -> Environment {
    let mut options = options();
    options.policy.push(("30-newsroom.policy".to_owned(), text.to_owned()));
    without_daemon(options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_dom0_refuses_has_its_line_for_each_scope() {
    let environment = ruled_by("splitdrop.Proxy +mark sd-app sd-proxy deny\n").await;
    let report = doctor(&environment).await;
    report.fails(&["policy_mark"], "dom0 refused", "splitdrop.Proxy +mark");
    assert_eq!(report.check("server")["outcome"], "ok");
    environment.stop().await.unwrap();

    let environment = ruled_by("splitdrop.Proxy +metadata sd-app sd-proxy deny\n").await;
    let report = doctor(&environment).await;
    report.fails(&["policy_metadata"], "dom0 refused", "splitdrop.Proxy +metadata");
    assert_eq!(report.check("proxy")["outcome"], "ok");
    report.skips(&["proxy_version", "proxy_sandbox", "tor", "route", "server", "clock"], "policy_metadata");
    environment.stop().await.unwrap();

    // dom0 asks about deletions, and there is nobody to answer.
    let environment = ruled_by("splitdrop.Proxy +delete sd-app sd-proxy ask\n").await;
    doctor(&environment).await.warns(&["daemon", "data_directory"], "none runs", "splitdrop daemon");
    assert_eq!(environment.broker().counts().refused, 0);
    let asked = examined(&environment, &["--ask"], &[]).await;
    asked.fails(&["policy_delete"], "dom0 refused", "splitdrop.Proxy +delete");
    environment.stop().await.unwrap();

    let all = ["policy_session", "policy_metadata", "policy_mark", "policy_download", "policy_reply"];
    for rules in ["splitdrop.Proxy * @anyvm @anyvm deny\n", "# No action.\nsplitdrop.Elsewhere * @anyvm @anyvm\n"] {
        let environment = ruled_by(rules).await;
        let report = doctor(&environment).await;
        report.fails(&all, "dom0 refused", "syntax error");
        report.skips(&["proxy", "proxy_settings"], "policy_session");
        environment.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_cannot_be_used_has_its_line() {
    let mut without_origin = options();
    without_origin.proxy_settings.insert("SD_PROXY_ORIGIN".to_owned(), String::new());
    let environment = without_daemon(without_origin).await;
    let report = doctor(&environment).await;
    report.fails(&["proxy_settings"], "SD_PROXY_ORIGIN is missing", "qvm-features sd-proxy");
    assert_eq!(report.check("policy_session")["outcome"], "ok");

    // What is started in the proxy's place ends, or says something else, or is not there.
    let service = environment.directory().join("splitdrop.Proxy");
    for (script, name, reason, next) in [
        ("exit 3", "proxy", "ended before the handshake", "log of sd-proxy"),
        ("head -c 64 /dev/zero; cat > /dev/null", "proxy_version", "handshake", "same version"),
    ] {
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 700 "$1""#;
        let shell = std::process::Command::new("/bin/sh").args(["-c", write, "sh"]).arg(&service).arg(script).status();
        assert!(shell.unwrap().success());
        doctor(&environment).await.fails(&[name], reason, next);
    }
    std::fs::remove_file(&service).unwrap();
    let report = doctor(&environment).await;
    report.fails(&["proxy"], "has no service", "install");
    report.skips(&["tor", "server"], "proxy");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_vm_that_does_not_start_has_its_line() {
    let mut options = options();
    options.system = System::workstation().with_halted(PROXY_VM);
    options.qrexec.start = Start::Gated;
    let environment = without_daemon(options).await;
    let vms = environment.broker().vms();
    let failing = async {
        loop {
            vms.until_starting(PROXY_VM).await;
            vms.finish_start(PROXY_VM, StartOutcome::Failed).unwrap();
        }
    };
    let report = tokio::select! {
        report = doctor(&environment) => report,
        () = failing => unreachable!(),
    };
    let all = ["policy_session", "policy_metadata", "policy_mark", "policy_download", "policy_reply"];
    report.fails(&all, "could not start sd-proxy", "whether the VM starts");
    environment.stop().await.unwrap();
}
