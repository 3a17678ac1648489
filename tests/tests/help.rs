//! The examples in the help of `splitdrop`, run as they stand there, by a shell in the client's VM.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::process::Stdio;
use std::time::Duration;

use staging::environment::{Environment, EnvironmentOptions};
use staging::generator::MARLOW;
use staging::server::{RecordId, SubmissionKind};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(120);
/// What the examples of `show` speak of.
const DESIGNATION: &str = "candid marmot";
const ID: &str = "3f2a0000-0000-4000-8000-000000000001";
/// What the examples with an item speak of.
const ITEM: &str = "9b040000-0000-4000-8000-000000000001";

/// How an example is run, and how it must end.
#[derive(Debug, PartialEq, Eq)]
enum Run {
    /// To its end, with code 0.
    ToItsEnd,
    /// It asks at a terminal, of which there is none here: it says so and ends with 2, which the help calls an invalid
    /// command line.
    WithoutTerminal,
    /// It speaks of an act that is not there: it says so and ends with 6.
    AboutNoAct,
    /// It speaks of a removal, of which none is held: it says so and ends with 6.
    AboutNoRemoval,
    /// It takes back a deletion, of which none waits: it says so and ends with 10.
    NothingToUndo,
    /// It answers a source who has no key: it says so, keeps what was said as the draft, and ends with 10.
    WithoutKey,
    /// It trusts a key of which the server has none: it says so and ends with 6.
    AboutNoKey,
    /// Until its first line; then the test ends it.
    UntilItsFirstLine,
    /// Not here, for this reason.
    Not(&'static str),
}

fn how(example: &str) -> Run {
    let mut words = example.split_whitespace().skip(1);
    match words.next() {
        Some("daemon") => Run::Not("one runs already, and each test of this package starts it as the example does"),
        Some("watch") => Run::UntilItsFirstLine,
        Some("delete") if !words.any(|word| word == "--yes") => Run::WithoutTerminal,
        Some("removals") if example.contains("accept") => Run::WithoutTerminal,
        Some("removals") if example.contains("reject") => Run::AboutNoRemoval,
        Some("undo") if words.next().is_none() => Run::NothingToUndo,
        Some("undo") => Run::AboutNoAct,
        Some("retry" | "cancel" | "dismiss" | "restore") if !words.any(|word| word == "--all") => Run::AboutNoAct,
        Some("reply") if example.contains("--message") => Run::WithoutKey,
        Some("reply") if !example.contains(" < ") => Run::WithoutTerminal,
        Some("trust-key") => Run::AboutNoKey,
        Some("login") if !words.any(|word| word == "--credentials-stdin") => Run::WithoutTerminal,
        _other => Run::ToItsEnd,
    }
}

/// A shell in the client's VM, in the environment's directory, that finds the programs.
fn shell(environment: &Environment, line: &str) -> Command {
    let mut command = environment.isolation().in_client("/bin/sh".as_ref());
    command
        .args(["-c", line])
        .current_dir(environment.directory())
        .env_clear()
        .envs(environment.variables())
        .env("PATH", environment.splitdrop_program().parent().unwrap())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn help(environment: &Environment, arguments: &[&str]) -> String {
    let output = environment.run(arguments.iter().chain(&["--help"]), "").await.unwrap();
    assert_eq!(output.code, Some(0), "{arguments:?}");
    output.stdout
}

/// The lines that stand below a heading, up to an empty one.
fn below(help: &str, is_heading: impl Fn(&str) -> bool) -> Vec<&str> {
    help.lines().skip_while(|line| !is_heading(line)).skip(1).take_while(|line| !line.is_empty()).collect()
}

/// The examples of all commands, in the order of the help, but that a session is begun first and ended last.
async fn examples(environment: &Environment) -> Vec<String> {
    let general = help(environment, &[]).await;
    let commands = below(&general, |line| line == "Commands:");
    let commands: Vec<_> = commands.iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    let mut examples = Vec::new();
    for command in commands.into_iter().filter(|command| *command != "help") {
        let text = help(environment, &[command]).await;
        let found = below(&text, |line| line == "Example:" || line == "Examples:");
        assert!(!found.is_empty(), "`splitdrop {command} --help` has no example");
        let whole = |line: &str| line.trim_start().starts_with(&format!("splitdrop {command}"));
        assert!(found.iter().all(|line| whole(line)), "{found:?}");
        examples.extend(found.into_iter().map(|line| line.trim().to_owned()));
    }
    examples.sort_by_key(|example| match example.split_whitespace().nth(1) {
        Some("login") => 0,
        // Others speak of what these take away.
        Some("delete") => 2,
        Some("logout") => 3,
        // Nothing can be asked after it.
        Some("quit") => 4,
        _other => 1,
    });
    examples
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_in_the_help_does_what_it_says() {
    let mut options = EnvironmentOptions::with_sources(3, 2).unwrap();
    let now = options.server.clock.now();
    let (source, world) = (RecordId::from(ID), &mut options.server.world);
    world.add_source(source.clone(), DESIGNATION.to_owned(), None, now).unwrap();
    world.add_submission(RecordId::from(ITEM), &source, SubmissionKind::Message, 612, now).unwrap();
    let environment = Environment::with_daemon(options).await.unwrap();
    std::fs::write(environment.directory().join("credentials"), environment.credentials(&MARLOW)).unwrap();
    std::fs::create_dir(environment.directory().join("Splitdrop")).unwrap();
    std::fs::write(environment.directory().join("answer.txt"), "Thank you.\n").unwrap();
    let examples = examples(&environment).await;
    let (mut run, mut signed_in) = (0, false);
    for example in &examples {
        let mut command = shell(&environment, &format!("exec {example}"));
        match how(example) {
            Run::Not(_why) => continue,
            Run::ToItsEnd => {
                let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
                assert_eq!(output.status.code(), Some(0), "{example}: {output:?}");
                if !signed_in {
                    // What the others are about: the first sync has brought the sources.
                    environment.json(&["refresh"], "").await.unwrap();
                    signed_in = true;
                }
            }
            Run::WithoutTerminal => {
                let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
                assert_eq!(output.status.code(), Some(2), "{example}: {output:?}");
                let said = String::from_utf8(output.stderr).unwrap();
                assert!(said.contains("terminal"), "{example}: {said}");
            }
            Run::AboutNoAct => {
                let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
                assert_eq!(output.status.code(), Some(6), "{example}: {output:?}");
                let said = String::from_utf8(output.stderr).unwrap();
                assert!(said.contains("splitdrop queue"), "{example}: {said}");
            }
            Run::AboutNoRemoval => {
                let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
                assert_eq!(output.status.code(), Some(6), "{example}: {output:?}");
                let said = String::from_utf8(output.stderr).unwrap();
                assert!(said.contains("removals show"), "{example}: {said}");
            }
            Run::NothingToUndo => {
                let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
                assert_eq!(output.status.code(), Some(10), "{example}: {output:?}");
                let said = String::from_utf8(output.stderr).unwrap();
                assert!(said.contains("nothing to undo"), "{example}: {said}");
            }
            Run::WithoutKey => {
                let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
                assert_eq!(output.status.code(), Some(10), "{example}: {output:?}");
                let said = String::from_utf8(output.stderr).unwrap();
                assert!(said.contains("kept as the draft"), "{example}: {said}");
            }
            Run::AboutNoKey => {
                let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
                assert_eq!(output.status.code(), Some(6), "{example}: {output:?}");
                let said = String::from_utf8(output.stderr).unwrap();
                assert!(said.contains("no key"), "{example}: {said}");
            }
            Run::UntilItsFirstLine => {
                let mut child = command.spawn().unwrap();
                let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
                let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
                assert!(line.is_some_and(|line| !line.is_empty()), "{example}");
                child.kill().await.unwrap();
            }
        }
        run += 1;
    }
    assert!(run >= 12, "{examples:?}");
    environment.stop().await.unwrap();
}
