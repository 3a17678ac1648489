//! The main job in front of somebody's eyes: the real programs, step by step.

use std::fmt;
use std::io::{self, Write as _};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use crate::environment::{
    CLIENT_VM, Environment, EnvironmentError, EnvironmentOptions, ONION, ONION_PORT, PROXY_VM, Watch,
};
use crate::generator::MARLOW;
use crate::processes;
use crate::programs::{BuildError, Programs};
use crate::server::{Command, ControlError, KeyChoice, Outcome, RequestLog, SourceState, WorldError};
use crate::trace;

/// What the new source calls itself.
const NEW_SOURCE: &str = "unforeseen lighthouse";
/// How many items the generated sources have.
const ITEMS: u32 = 4;
/// How long calls and processes may take to go when the daemon has ended: a bound for what stays, not a measure.
const END_BOUND: Duration = Duration::from_secs(10);

/// A step of the demo failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The programs could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The world could not be made.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The environment failed.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The staging server refused to be played with.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Reading or writing failed.
    #[error("could not read or write")]
    Io(#[from] io::Error),
    /// What was shown is not what must be.
    #[error("{0}")]
    Wrong(String),
}

fn wrong(text: impl Into<String>) -> DemoError {
    DemoError::Wrong(text.into())
}

/// Runs the demo with `sources` sources. Prints each step as it happens; with `json` one object a line.
///
/// # Errors
/// [`DemoError`] of the first step that failed; it has been printed.
pub async fn run(sources: u32, json: bool) -> Result<(), DemoError> {
    let mut show = Show { json, rows: Vec::new(), started: Instant::now() };
    let result = play(&mut show, sources).await;
    if let Err(error) = &result {
        show.step("failed", Mark::Failed, &error.to_string())?;
    }
    show.summary(result.is_ok())?;
    result
}

async fn play(show: &mut Show, sources: u32) -> Result<(), DemoError> {
    let mut command = String::new();
    // The build takes its time on a fresh clone, so it is announced and runs off the async threads.
    show.say("building the programs with cargo; on a fresh clone this takes minutes")?;
    let built = tokio::task::spawn_blocking(move || {
        let programs = Programs::build(|line| line.clone_into(&mut command));
        (programs, command)
    });
    let (programs, command) = built.await.map_err(|_| wrong("the build was cut off"))?;
    let programs = programs?;
    show.step("build", Mark::Ok, &command)?;

    // As on a workstation: what happens by itself does.
    let options =
        EnvironmentOptions { client_config: String::new(), ..EnvironmentOptions::with_sources(sources, ITEMS)? };
    let mut environment = Environment::start(programs, options).await?;
    trace::start(environment.directory())?;
    environment.start_daemon().await?;
    let detail = format!(
        "{CLIENT_VM} and {PROXY_VM} under the shipped qrexec policy, a server with {sources} sources behind a SOCKS server"
    );
    show.step("VMs", Mark::Ok, &detail)?;
    match environment.isolation().missing() {
        None => {
            let detail = format!("{CLIENT_VM} has no network at all, {PROXY_VM} reaches the SOCKS port and no other");
            show.step("isolation", Mark::Ok, &detail)?;
        }
        Some(reason) => show.step("isolation", Mark::NotChecked, reason)?,
    }

    let played = with_environment(show, &environment, u64::from(sources)).await;
    // Whatever happened, nothing may stay behind.
    let code = environment.stop_daemon(Signal::SIGTERM).await?;
    let left = Left::of(environment).await?;
    played?;
    if code != Some(0) || !left.is_nothing() {
        return Err(wrong(format!("the daemon ended with {code:?} and left {left}")));
    }
    show.step("end", Mark::Ok, "daemon ended cleanly, no call and no process left")
}

/// What the work left behind, which must be nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// qrexec calls that are open, though the daemon has ended.
    calls: u64,
    /// Processes of either VM that still ran when their calls had ended.
    of_vms: Vec<u32>,
    /// Children of this process that are there when the environment is not any more.
    children: Vec<u32>,
}

impl Left {
    /// Looks at an environment whose daemon has ended, and ends it. What goes on its own has [`END_BOUND`] to go.
    pub(crate) async fn of(environment: Environment) -> Result<Self, DemoError> {
        let ended = environment.broker().until(|counts| counts.open == 0);
        // What is open after that is told below.
        let _in_time = tokio::time::timeout(END_BOUND, ended).await;
        let calls = environment.broker().counts().open;
        let directory = environment.directory().to_owned();
        let of_vms = processes::until_none(END_BOUND, || processes::with_directory(&directory)).await?;
        environment.stop().await?;
        let children = processes::until_none(END_BOUND, || processes::children(std::process::id())).await?;
        Ok(Self { calls, of_vms, children })
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.calls == 0 && self.of_vms.is_empty() && self.children.is_empty()
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, of_vms, children } = self;
        write!(f, "{calls} qrexec calls open, processes of the VMs: {of_vms:?}, children of the demo: {children:?}")
    }
}

async fn with_environment(show: &mut Show, environment: &Environment, sources: u64) -> Result<(), DemoError> {
    let mut watch = environment.watch().await?;

    let login = environment.login(&MARLOW).await?;
    let name = text(&login, "/session/username")?;
    show.step("login", Mark::Ok, &format!("{name}, through {PROXY_VM}: passphrase and one-time code accepted"))?;

    let first = watch.until("sync_ended").await?;
    let counts = ok_counts(&first, "ok")?;
    if number(&first, "/sync/counts/sources")? != sources {
        return Err(wrong(format!("the server has {sources} sources, and the sync found {counts}")));
    }
    show.step("first sync", Mark::Ok, &format!("get_users, get_sources, get_submissions, get_all_replies: {counts}"))?;

    let listed = environment.json(&["sources"], "").await?;
    let rows = listed.pointer("/sources").and_then(Value::as_array).map_or(0, Vec::len);
    if u64::try_from(rows) != Ok(sources) {
        return Err(wrong(format!("`splitdrop sources` lists {rows} of {sources} sources")));
    }
    let newest = text(&listed, "/sources/0/designation").unwrap_or("none");
    show.step("sources", Mark::Ok, &format!("`splitdrop sources` lists {rows}; the newest is {newest}"))?;

    let control = environment.server().control();
    let created = control.apply(Command::NewSource {
        designation: Some(NEW_SOURCE.to_owned()),
        key: KeyChoice::Any,
        state: SourceState::Listed,
    })?;
    let Outcome::Source { uuid, .. } = created else { return Err(wrong("the server made no source")) };
    control.apply(Command::NewMessage { source: uuid, size: 612 })?;
    show.step("a source writes", Mark::Ok, &format!("{NEW_SOURCE} sends a message to the server"))?;

    let refreshed = environment.json(&["refresh"], "").await?;
    let counts = ok_counts(&refreshed, "ok")?;
    show.step("refresh", Mark::Ok, &format!("`splitdrop refresh`: {counts}"))?;

    let shown = environment.json(&["show", NEW_SOURCE], "").await?;
    let (kind, size) = (text(&shown, "/items/0/kind")?, number(&shown, "/items/0/size")?);
    if (kind, size) != ("message", 612) || number(&shown, "/source/counts/unread")? != 1 {
        return Err(wrong(format!("`splitdrop show` shows something else: {shown}")));
    }
    show.step("the message", Mark::Ok, &format!("`splitdrop show`: 1 unread {kind} of {size} bytes"))?;

    let held = until_all_is_here(environment, &mut watch).await?;
    let detail =
        format!("{held} messages and replies came by themselves, each with the SHA-256 that the server claims");
    show.step("downloads", Mark::Ok, &detail)?;

    environment.json(&["star", NEW_SOURCE], "").await?;
    let starred = environment.json(&["show", NEW_SOURCE], "").await?;
    if starred.pointer("/source/starred").and_then(Value::as_bool) != Some(true) {
        return Err(wrong("a star does not show at once"));
    }
    // A sync may show it before the server's answer is here.
    while !matches!(text(&watch.until("act").await?, "/step")?, "confirmed" | "settled") {}
    show.step("a star", Mark::Ok, "shown at once, and the server has confirmed it")?;

    // The server has marked as read what was downloaded.
    environment.json(&["refresh"], "").await?;
    let unchanged = environment.json(&["refresh"], "").await?;
    ok_counts(&unchanged, "unchanged")?;
    if number(&unchanged, "/sync/rows_written")? != 0 {
        return Err(wrong("a sync without news wrote rows"));
    }
    show.step("nothing new", Mark::Ok, "another sync writes no row")?;

    environment.json(&["logout"], "").await?;
    watch.until("session_ended").await?;
    show.step("logout", Mark::Ok, "the token is gone")?;

    show.step("the path", Mark::Ok, &path(environment)?)
}

/// Waits until every message and reply is downloaded; gives how many.
async fn until_all_is_here(environment: &Environment, watch: &mut Watch) -> Result<usize, DemoError> {
    loop {
        let status = environment.json(&["status"], "").await?;
        if number(&status, "/lanes/messages/failed")? > 0 {
            return Err(wrong(format!("a message did not come: {status}")));
        }
        if number(&status, "/lanes/messages/waiting")? == 0 {
            let ciphertext = environment.home().join("ciphertext");
            return Ok(std::fs::read_dir(ciphertext)?.count());
        }
        watch.until("download").await?;
    }
}

/// How the proxy reached the server, which must have been by the onion service's name and through SOCKS alone.
fn path(environment: &Environment) -> Result<String, DemoError> {
    let arrived = environment.server().control().with_log(RequestLog::connections);
    let socks = environment.socks().counts();
    let by_name = socks.requests_for(ONION, ONION_PORT);
    if arrived == 0 || arrived > socks.established || socks.established > by_name || !socks.refused.is_empty() {
        return Err(wrong(format!(
            "the server took {arrived} connections, of which SOCKS made {}, asked for {by_name} by name and for others: {:?}",
            socks.established, socks.refused
        )));
    }
    Ok(format!("{arrived} connections to {ONION} by its name through SOCKS, none beside it"))
}

/// The counts of a sync that must have ended with `outcome`, in words.
fn ok_counts(report: &Value, outcome: &str) -> Result<String, DemoError> {
    let ended = text(report, "/sync/outcome")?;
    if ended != outcome {
        let error = text(report, "/sync/error").unwrap_or("no reason given");
        return Err(wrong(format!("the sync ended `{ended}`: {error}")));
    }
    let count = |name: &str| number(report, &format!("/sync/counts/{name}"));
    Ok(format!(
        "{} sources, {} messages, {} files, {} replies",
        count("sources")?,
        count("messages")?,
        count("files")?,
        count("replies")?
    ))
}

fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str, DemoError> {
    value.pointer(pointer).and_then(Value::as_str).ok_or_else(|| wrong(format!("{pointer} is missing")))
}

fn number(value: &Value, pointer: &str) -> Result<u64, DemoError> {
    value.pointer(pointer).and_then(Value::as_u64).ok_or_else(|| wrong(format!("{pointer} is missing")))
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Ok,
    Failed,
    /// This machine does not permit to check it.
    NotChecked,
}

impl Mark {
    fn shown(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "FAILED",
            Self::NotChecked => "NOT CHECKED",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::NotChecked => "not_checked",
        }
    }
}

/// Prints steps as they happen, and the table at the end.
struct Show {
    json: bool,
    rows: Vec<(String, Mark, Duration)>,
    started: Instant,
}

impl Show {
    fn say(&self, text: &str) -> Result<(), DemoError> {
        Ok(writeln!(io::stderr(), "{text} ...")?)
    }

    fn step(&mut self, name: &str, mark: Mark, detail: &str) -> Result<(), DemoError> {
        let took = self.started.elapsed();
        self.started = Instant::now();
        let mut out = io::stdout().lock();
        if self.json {
            let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            writeln!(
                out,
                "{}",
                json!({ "format": 1, "step": name, "result": mark.name(), "took_ms": ms, "detail": detail })
            )?;
        } else {
            writeln!(out, "{:<11} {name:<16} {:>9.3} s  {detail}", mark.shown(), took.as_secs_f64())?;
        }
        out.flush()?;
        self.rows.push((name.to_owned(), mark, took));
        Ok(())
    }

    fn summary(&self, ok: bool) -> Result<(), DemoError> {
        if self.json {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        writeln!(out, "\n{:<18}{:<12}{:>9}", "STEP", "RESULT", "SECONDS")?;
        for (name, mark, took) in &self.rows {
            writeln!(out, "{name:<18}{:<12}{:>9.3}", mark.shown(), took.as_secs_f64())?;
        }
        let verdict = if ok { "The main job works." } else { "The demo failed; the last step above says why." };
        Ok(writeln!(out, "\n{verdict}")?)
    }
}
