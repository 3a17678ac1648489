//! `splitdrop-staging` as people run it: the demo, an environment to play with, and the benchmarks in small.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use staging::isolation::OPT_OUT;
use staging::processes;
use staging::programs::Programs;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(300);
/// The steps of the demo.
const STEPS: [&str; 21] = [
    "build",
    "VMs",
    "isolation",
    "login",
    "first sync",
    "sources",
    "a source writes",
    "refresh",
    "the message",
    "downloads",
    "decryption",
    "the text",
    "a file",
    "a reply",
    "the source reads",
    "a star",
    "nothing new",
    "a deletion",
    "logout",
    "the path",
    "end",
];

/// This package's program.
fn staging(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_splitdrop-staging"));
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn run(command: &mut Command) -> Output {
    tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The steps that a demo told of as JSON.
fn steps(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether it was said that this machine's walls are to be left out.
fn no_walls_wanted() -> bool {
    std::env::var_os(OPT_OUT).is_some_and(|value| value == "1")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_passes_and_says_each_step_on_a_line() {
    let demo = run(&mut staging(&["demo", "--json", "--sources", "12"])).await;
    let steps = steps(&demo);
    let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(names, STEPS, "{}", text(&demo.stderr));
    for step in &steps {
        // The walls are there, unless it was said that they need not be.
        let left_out = step["step"] == "isolation" && no_walls_wanted();
        let wanted = if left_out { "not_checked" } else { "ok" };
        assert_eq!((&step["result"], &step["format"]), (&wanted.into(), &1.into()), "{step}");
    }
    assert_eq!(demo.status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_passes_without_walls_and_says_that_they_were_not_checked() {
    let demo = run(staging(&["demo", "--sources", "3"]).env(OPT_OUT, "1")).await;
    let said = text(&demo.stdout);
    assert_eq!(demo.status.code(), Some(0), "{said}");
    let (told, table) = said.split_once("\n\n").unwrap();
    assert_eq!(told.lines().count(), STEPS.len(), "{said}");
    let isolation = told.lines().find(|line| line.contains("isolation")).unwrap();
    assert!(isolation.starts_with("NOT CHECKED isolation") && isolation.contains(OPT_OUT), "{isolation}");
    let rows: Vec<_> = table.lines().skip(1).take(STEPS.len()).collect();
    for (step, row) in STEPS.into_iter().zip(rows) {
        let result = if step == "isolation" { "NOT CHECKED" } else { "ok" };
        assert!(row.starts_with(&format!("{step:<18}{result:<12}")), "{row}");
    }
    assert!(table.ends_with("\nThe main job works. Not checked: isolation.\n"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_whose_programs_cannot_be_built_says_so_and_ends_with_1() {
    let failing = |arguments: &[&str]| {
        let mut command = staging(arguments);
        command.env("CARGO", "/nonexistent/cargo");
        command
    };
    let demo = run(&mut failing(&["demo", "--json"])).await;
    assert_eq!(demo.status.code(), Some(1));
    let steps = steps(&demo);
    let [step] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!((&step["step"], &step["result"]), (&"failed".into(), &"failed".into()));
    assert!(step["detail"].as_str().unwrap().contains("could not run /nonexistent/cargo"), "{step}");

    let demo = run(&mut failing(&["demo"])).await;
    assert_eq!(demo.status.code(), Some(1));
    let said = text(&demo.stdout);
    assert!(said.starts_with("FAILED      failed"), "{said}");
    assert!(said.lines().next().unwrap().contains("could not run /nonexistent/cargo"), "{said}");
    assert!(said.contains(&format!("\n{:<18}{:<12}", "failed", "FAILED")), "{said}");
    assert!(said.ends_with("\nThe demo failed; the last step above says why.\n"), "{said}");
}

/// Writes an executable, by another process: a fork of this one could hold it open for writing when it is to be run.
fn install(path: &Path, script: &str) {
    let write = r#"printf %s "$2" > "$1" && chmod 700 "$1""#;
    let mut shell = std::process::Command::new("/bin/sh");
    assert!(shell.args(["-c", write, "sh"]).arg(path).arg(script).status().unwrap().success());
}

/// A step in the middle fails: the daemon runs, and somebody is signed in.
#[tokio::test(flavor = "multi_thread")]
async fn a_demo_with_a_step_that_fails_says_why_ends_with_1_and_leaves_nothing() {
    let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await.unwrap().unwrap();
    let folder = tempfile::tempdir().unwrap();
    // A client whose command `refresh` fails, and a cargo that says that it has built it.
    let client = folder.path().join("splitdrop");
    let real = programs.splitdrop.display();
    let refuses = "for word; do if [ \"$word\" = refresh ]; then echo 'made to fail' >&2; exit 8; fi; done";
    install(&client, &format!("#!/bin/sh\n{refuses}\nexec '{real}' \"$@\"\n"));
    let built = [
        ("splitdrop", &client),
        ("splitdrop-proxy", &programs.proxy),
        ("qrexec-client-vm", &programs.qrexec_client),
        ("qvm-open-in-vm", &programs.open_in_vm),
        ("splitdrop-staging", &programs.staging),
    ]
    .map(|(name, path)| serde_json::json!({ "target": { "name": name }, "executable": path }).to_string());
    let cargo = folder.path().join("cargo");
    install(&cargo, &format!("#!/bin/sh\ncat <<'END'\n{}\nEND\n", built.join("\n")));
    let scratch = folder.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();

    let mut command = staging(&["demo", "--sources", "3", "--json"]);
    let demo = run(command.env("CARGO", &cargo).env("TMPDIR", &scratch)).await;
    assert_eq!(demo.status.code(), Some(1));
    let steps = steps(&demo);
    let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    let before: Vec<_> = STEPS.into_iter().take_while(|step| *step != "refresh").chain(["failed"]).collect();
    assert_eq!(names, before);
    let last = steps.last().unwrap();
    assert_eq!(last["result"], "failed");
    let why = last["detail"].as_str().unwrap();
    assert!(why.contains("refresh") && why.contains("made to fail"), "{why}");
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "a directory stays");
    assert_eq!(processes::with_directory(&scratch).unwrap(), [] as [u32; 0]);
}

/// An environment to play with. It is told to end also when a test fails: killed, it would leave its daemon.
struct Up {
    child: Child,
    /// What it has printed.
    printed: String,
}

impl Up {
    async fn start(mut command: Command) -> Self {
        command.kill_on_drop(false).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut up = Self { child: command.spawn().unwrap(), printed: String::new() };
        let mut lines = BufReader::new(up.child.stdout.take().unwrap()).lines();
        while !up.printed.contains("\nCtrl-C ends it") {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
            up.printed += &(line.unwrap_or_else(|| panic!("it ended: {}", up.printed)) + "\n");
        }
        up
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = self.child.id() {
            kill(Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap();
        }
    }

    /// Has it end by a signal, which it must in order; gives what it said on standard error.
    async fn end(mut self, signal: Signal) -> String {
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        self.signal(signal);
        let ended = async {
            stderr.read_to_string(&mut said).await.unwrap();
            self.child.wait().await.unwrap()
        };
        let status = tokio::time::timeout(PATIENCE, ended).await.unwrap();
        assert_eq!(status.code(), Some(0), "{said}");
        said
    }

    /// The variables that it says to export, as a shell reads them.
    fn exports(&self) -> String {
        let exports = self.printed.lines().filter(|line| line.trim_start().starts_with("export "));
        exports.fold(String::new(), |all, line| all + line + "\n")
    }

    /// The commands that it says to type.
    fn commands(&self) -> Vec<&str> {
        self.printed.lines().map(str::trim).filter(|line| line.starts_with('\'')).collect()
    }

    fn directory(&self) -> PathBuf {
        self.printed.lines().find_map(|line| line.strip_prefix("Logs and data: ")).unwrap().into()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.signal(Signal::SIGTERM);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn up_prints_commands_that_work_and_ends_at_ctrl_c_with_nothing_left() {
    let up = Up::start(staging(&["up", "--sources", "3"])).await;
    let exports = up.exports();
    let shell = |line: &str| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("{exports}{line}")]).stdin(Stdio::null()).kill_on_drop(true);
        command
    };
    let works = async |line: &str| {
        let output = run(&mut shell(line)).await;
        assert!(output.status.success(), "{line}: {output:?}");
        text(&output.stdout).to_owned()
    };
    let mut source = String::new();
    let commands = up.commands();
    for line in &commands {
        if line.ends_with(" watch") {
            let mut child = shell(&format!("exec {line}")).stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
            assert!(line.is_some_and(|line| !line.is_empty()), "`watch` prints nothing");
            child.kill().await.unwrap();
            continue;
        }
        let said = works(&line.replace("\"ID\"", &format!("\"{source}\""))).await;
        if line.contains("new_source") {
            let made: Value = serde_json::from_str(&said).unwrap();
            source = made["source"]["uuid"].as_str().unwrap_or_else(|| panic!("{said}")).to_owned();
        }
    }
    let run: BTreeSet<_> = commands.iter().flat_map(|line| line.split('"').nth(3)).collect();
    for played in ["new_source", "new_message", "new_file", "end_sessions", "purge", "freeze_lists", "thaw_lists"] {
        assert!(run.contains(played), "{run:?}");
    }
    assert!(commands.len() >= 13, "{}", up.printed);

    let directory = up.directory();
    assert!(directory.is_dir());
    let said = up.end(Signal::SIGINT).await;
    assert!(!directory.exists(), "its directory stays");
    assert_eq!(processes::with_directory(&directory).unwrap(), [] as [u32; 0]);
    assert_eq!(said.contains("NOT ISOLATED"), no_walls_wanted());
}

#[tokio::test(flavor = "multi_thread")]
async fn up_says_that_it_has_no_walls() {
    let mut command = staging(&["up", "--sources", "0"]);
    command.env(OPT_OUT, "1");
    let said = Up::start(command).await.end(Signal::SIGTERM).await;
    let told = said.lines().filter(|line| line.starts_with("NOT ISOLATED: ") && line.contains(OPT_OUT));
    assert_eq!(told.count(), 1, "{said}");
}

/// What a benchmark prints as JSON.
async fn bench(arguments: &[&str], walls: bool) -> Value {
    let mut command = staging(arguments);
    if !walls {
        command.env(OPT_OUT, "1");
    }
    let output = run(&mut command).await;
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["format"], 1);
    let isolated = walls && !no_walls_wanted();
    assert_eq!(report["isolated"], isolated);
    assert_eq!(text(&output.stderr).contains("NOT ISOLATED: "), !isolated, "{output:?}");
    report
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} is no number: {value}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn bench_sync_measures_what_its_columns_say() {
    const DELAY_MS: u64 = 50;
    let delays = format!("0,{DELAY_MS}");
    let report = bench(&["bench", "sync", "--sources", "10", "--delay-ms", &delays, "--json"], true).await;
    let rows = report["sync"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{report}");
    for (row, delay_ms) in rows.iter().zip([0, DELAY_MS]) {
        assert_eq!(
            (number(row, "sources"), number(row, "items_per_source"), number(row, "delay_ms")),
            (10, 4, delay_ms)
        );
        number(row, "server_ms");
        for process in ["proxy", "client"] {
            number(&row[process], "cpu_ms");
            assert!(number(&row[process], "peak_kib") > 1_000, "{row}");
        }
        let (first, unchanged) = (&row["first"], &row["unchanged"]);
        assert!(number(first, "rows_written") >= 10, "{row}");
        assert_eq!(number(unchanged, "rows_written"), 0, "{row}");
        for sync in [first, unchanged] {
            // One exchange at least, and each takes so much longer.
            assert!(number(sync, "wall_ms") >= delay_ms, "{row}");
            // Ten records of sources have more than 10 kB over HTTP, four requests are a few hundred bytes each.
            assert!(number(sync, "http_bytes_from_server") > 10_000, "{row}");
            assert!((400..8_000).contains(&number(sync, "http_bytes_to_server")), "{row}");
        }
        // The same lists come again, and the call moves the same: no more than the records, and no program's loading.
        let (once, again) = (number(first, "qrexec_bytes"), number(unchanged, "qrexec_bytes"));
        assert!(again > 1_000 && once.abs_diff(again) < 2_000, "{row}");
    }
    let stand_ins = report["health"].as_array().unwrap();
    assert_eq!(stand_ins.len(), 2, "{report}");
    for stand_in in stand_ins {
        assert!(stand_in["stand_in"].is_string());
        assert!(number(stand_in, "warm_us") < number(stand_in, "fresh_us"), "{stand_in}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bench_files_measures_a_file_and_says_that_it_had_no_walls() {
    let report = bench(&["bench", "files", "--mb", "2", "--json"], false).await;
    assert!(number(&report, "bytes") >= 2_000_000, "{report}");
    let splitdrop = &report["splitdrop"];
    assert!(splitdrop["mb_per_second"].as_f64().unwrap() > 0.0, "{report}");
    number(splitdrop, "wall_ms");
    for process in ["client_peak_kib", "proxy_peak_kib"] {
        number(splitdrop, process);
    }
    assert!(report["curl"].is_null() || report["curl"]["mb_per_second"].as_f64().unwrap() > 0.0, "{report}");
}

/// A time that was taken so often, which is not over before it began.
fn times(value: &Value, count: u64) {
    let [median, worst] = ["median_us", "worst_us"].map(|name| number(value, name));
    assert_eq!(number(value, "count"), count, "{value}");
    assert!(median > 0 && worst >= median, "{value}");
}

/// All that the tables of the manual are made of.
#[tokio::test(flavor = "multi_thread")]
async fn bench_queue_measures_what_its_tables_say() {
    let arguments = ["bench", "queue", "--sources", "60", "--messages", "24", "--idle-s", "1", "--json"];
    let report = bench(&arguments, true).await;
    assert_eq!((number(&report, "sources"), number(&report, "items_per_source")), (60, 4), "{report}");
    let deletions = report["deletions"].as_array().unwrap();
    assert_eq!(deletions.len(), 2, "{report}");
    for (row, behind) in deletions.iter().zip([0, 20]) {
        // Twenty sources are deleted, as many again behind the stars of the rest.
        assert_eq!(number(row, "behind"), behind, "{row}");
        times(&row["answered"], 20);
        times(&row["shown"], 20);
        assert!(number(&row["shown"], "worst_us") > number(&row["answered"], "median_us"), "{row}");
    }
    times(&report["refresh"], 10);
    let idle = &report["idle"];
    assert!(number(idle, "wall_ms") >= 1_000, "{idle}");
    for figure in ["syncs", "client_cpu_ms", "proxy_cpu_ms"] {
        number(idle, figure);
    }
    let downloads = report["downloads"].as_array().unwrap();
    assert_eq!(downloads.len(), 2, "{report}");
    for (row, delay_ms) in downloads.iter().zip([0, 300]) {
        assert_eq!(
            (number(row, "delay_ms"), number(row, "messages"), number(row, "message_bytes")),
            (delay_ms, 24, 2_000)
        );
        // Eight at a time, each of which takes so much longer.
        assert!(number(row, "wall_ms") >= 24 / 8 * delay_ms, "{row}");
        assert!(row["messages_per_second"].as_f64().unwrap() > 0.0, "{row}");
        for process in ["client_peak_kib", "proxy_peak_kib"] {
            assert!(number(row, process) > 1_000, "{row}");
        }
    }
}
