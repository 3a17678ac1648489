//! The main job in front of somebody's eyes: the real programs, step by step.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::num::NonZeroU64;
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use crate::environment::{
    CLIENT_VM, Environment, EnvironmentError, EnvironmentOptions, ONION, ONION_PORT, PROXY_VM, Watch,
};
use crate::generator::MARLOW;

use crate::processes;
use crate::programs::{BuildError, Programs};
use crate::residue;
use crate::server::{
    CiphertextError, Command, Control, ControlError, KeyChoice, Outcome, Reading, ReadingError, RecordId, RequestLog,
    SourceState, Whose, WorldError,
};
use crate::trace;

/// What the new source calls itself.
const NEW_SOURCE: &str = "unforeseen lighthouse";
/// How many items the generated sources have.
const ITEMS: u32 = 4;
/// The size of the file that the new source sends, in bytes, and how many of them come in a second: so there is something to
/// look at while it is downloaded.
const FILE_SIZE: u64 = 3_000_000;
const FILE_RATE: Option<NonZeroU64> = NonZeroU64::new(2_000_000);
/// What the new source is answered.
const ANSWER: &str = "Thank you. We have your file, and would like to hear more of it.";
/// How much of a text is printed, in characters.
const EXCERPT: usize = 48;
/// How long the download of that file may take: a bound for what hangs, not a measure.
const FILE_BOUND: Duration = Duration::from_secs(300);
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
    /// The staging server cannot say what is in an item.
    #[error(transparent)]
    Ciphertext(#[from] CiphertextError),
    /// The source or the newsroom cannot read a reply.
    #[error("who should read the reply cannot")]
    Reading(#[from] ReadingError),
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
    let mut options =
        EnvironmentOptions { client_config: String::new(), ..EnvironmentOptions::with_sources(sources, ITEMS)? };
    options.server.throttle_logins = true;
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
    // Whatever happened, nothing may stay behind. What happened first is told.
    let code = environment.stop_daemon(Signal::SIGTERM).await;
    let left = Left::of(environment).await;
    played?;
    let (code, left) = (code?, left?);
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
    let message = new_item(control, Command::NewMessage { source: uuid.clone(), size: 612 })?;
    show.step("a source writes", Mark::Ok, &format!("{NEW_SOURCE} sends a message to the server"))?;

    let refreshed = environment.json(&["refresh"], "").await?;
    let counts = news_counts(&refreshed)?;
    show.step("refresh", Mark::Ok, &format!("`splitdrop refresh`: {counts}"))?;

    let shown = environment.json(&["show", NEW_SOURCE], "").await?;
    let (kind, size) = (text(&shown, "/items/0/kind")?, number(&shown, "/items/0/size")?);
    if (kind, size) != ("message", 612) || number(&shown, "/source/counts/unread")? != 1 {
        return Err(wrong(format!("`splitdrop show` shows something else: {shown}")));
    }
    show.step("the message", Mark::Ok, &format!("`splitdrop show`: 1 unread {kind} of {size} bytes"))?;

    until_all_is_here(environment, &mut watch).await?;
    let held = messages_and_replies(environment).await?;
    let detail =
        format!("{held} messages and replies came by themselves, each with the SHA-256 that the server claims");
    show.step("downloads", Mark::Ok, &detail)?;

    until_all_is_decrypted(environment, &mut watch).await?;
    show.step("decryption", Mark::Ok, "all of them were decrypted by themselves, and no ciphertext stays")?;

    let said = read_message(environment, &message).await?;
    show.step("the text", Mark::Ok, &format!("`splitdrop show` says what the source wrote: \"{}\"", excerpt(&said)))?;

    let detail = download_file(environment, &uuid).await?;
    show.step("a file", Mark::Ok, &detail)?;

    let reply = answer(environment, &mut watch, &uuid).await?;
    show.step("a reply", Mark::Ok, "`splitdrop reply`: encrypted here, and the server has taken it")?;

    let read = control.source_reads(&reply).await?;
    check_reading(&read, "the source")?;
    check_reading(&control.newsroom_reads(&reply).await?, "the newsroom")?;
    let detail = format!("with its own key: \"{}\"; the newsroom can read it too, and nobody else", read.text);
    show.step("the source reads", Mark::Ok, &detail)?;

    environment.json(&["star", NEW_SOURCE], "").await?;
    let starred = environment.json(&["show", NEW_SOURCE], "").await?;
    if starred.pointer("/source/starred").and_then(Value::as_bool) != Some(true) {
        return Err(wrong("a star does not show at once"));
    }
    until_done(&mut watch, "star").await?;
    show.step("a star", Mark::Ok, "shown at once, and the server has confirmed it")?;

    // The server has marked as read what was downloaded.
    environment.json(&["refresh"], "").await?;
    let unchanged = environment.json(&["refresh"], "").await?;
    ok_counts(&unchanged, "unchanged")?;
    if number(&unchanged, "/sync/rows_written")? != 0 {
        return Err(wrong("a sync without news wrote rows"));
    }
    show.step("nothing new", Mark::Ok, "another sync writes no row")?;

    let file = file_of(environment)?;
    let texts = [("the message", said.as_bytes()), ("the answer", ANSWER.as_bytes()), ("the file", file.as_slice())];
    let detail = delete_conversation(environment, &mut watch, &texts).await?;
    show.step("a deletion", Mark::Ok, &detail)?;

    environment.json(&["logout"], "").await?;
    watch.until("session_ended").await?;
    show.step("logout", Mark::Ok, "the token is gone")?;

    show.step("the path", Mark::Ok, &path(environment)?)
}

/// Plays somebody who sends something, and gives its id.
fn new_item(control: &Control, command: Command) -> Result<RecordId, DemoError> {
    match control.apply(command)? {
        Outcome::Item { uuid, .. } => Ok(uuid),
        _other => Err(wrong("the server made no item")),
    }
}

/// Waits until every message and reply is downloaded.
async fn until_all_is_here(environment: &Environment, watch: &mut Watch) -> Result<(), DemoError> {
    loop {
        let status = environment.json(&["status"], "").await?;
        if number(&status, "/lanes/messages/failed")? > 0 {
            return Err(wrong(format!("a message did not come: {status}")));
        }
        if number(&status, "/lanes/messages/waiting")? == 0 {
            return Ok(());
        }
        watch.until("download").await?;
    }
}

/// How many messages and replies are shown, of all sources together.
async fn messages_and_replies(environment: &Environment) -> Result<u64, DemoError> {
    let listed = environment.json(&["sources"], "").await?;
    let rows = listed.pointer("/sources").and_then(Value::as_array).ok_or_else(|| wrong("/sources is missing"))?;
    let mut held = 0;
    for row in rows {
        held += number(row, "/counts/messages")? + number(row, "/counts/replies")?;
    }
    Ok(held)
}

/// Waits until everything that is here is decrypted, and looks that no ciphertext stayed.
async fn until_all_is_decrypted(environment: &Environment, watch: &mut Watch) -> Result<(), DemoError> {
    loop {
        let status = environment.json(&["status"], "").await?;
        if number(&status, "/lanes/decrypt/failed")? > 0 {
            return Err(wrong(format!("something could not be decrypted: {status}")));
        }
        if number(&status, "/lanes/decrypt/waiting")? == 0 && number(&status, "/lanes/decrypt/running")? == 0 {
            break;
        }
        watch.until("read").await?;
    }
    match std::fs::read_dir(environment.home().join("ciphertext"))?.count() {
        0 => Ok(()),
        left => Err(wrong(format!("{left} ciphertexts stay though all is decrypted"))),
    }
}

/// What is said to be in the conversation of the new source about an item.
async fn shown_item(environment: &Environment, item: &RecordId) -> Result<Value, DemoError> {
    let shown = environment.json(&["show", NEW_SOURCE], "").await?;
    let items = shown.pointer("/items").and_then(Value::as_array);
    let found = items.and_then(|items| items.iter().find(|shown| text(shown, "/uuid").ok() == Some(item.as_str())));
    found.cloned().ok_or_else(|| wrong("`splitdrop show` does not list what the source sent"))
}

/// Reads the new message; it must be what the source wrote.
async fn read_message(environment: &Environment, message: &RecordId) -> Result<String, DemoError> {
    let shown = shown_item(environment, message).await?;
    let mut wrote = String::new();
    environment.server().control().plaintext(message)?.contents().read_to_string(&mut wrote)?;
    if text(&shown, "/text")? != wrote || text(&shown, "/content/state")? != "decrypted" {
        return Err(wrong("`splitdrop show` says something else than the source wrote"));
    }
    Ok(wrote)
}

/// The new source sends a file, and it is downloaded, decrypted and unpacked: the same bytes, under the same name.
async fn download_file(environment: &Environment, source: &RecordId) -> Result<String, DemoError> {
    let control = environment.server().control();
    let file = new_item(control, Command::NewFile { source: source.clone(), size: FILE_SIZE })?;
    // The server makes the ciphertext: that is not the download's time.
    control.etag(&file).await?;
    news_counts(&environment.json(&["refresh"], "").await?)?;

    let before = environment.socks().shape();
    environment.socks().set_shape(FILE_RATE.map_or(before, |rate| before.at_rate(rate)));
    let downloaded = download(environment, &file).await;
    environment.socks().set_shape(before);
    let downloaded = downloaded?;

    let sent = control.plaintext(&file)?;
    let (bytes, name) = (number(&downloaded, "/there/0/bytes")?, text(&downloaded, "/there/0/name")?);
    if (bytes, Some(name)) != (sent.length(), sent.name()) {
        return Err(wrong(format!("the file has another name or length than the source's: {downloaded}")));
    }
    let mut files = std::fs::read_dir(environment.plaintext_folder())?;
    let (Some(plaintext), None) = (files.next(), files.next()) else {
        return Err(wrong("there is not exactly one file in the folder of plaintexts"));
    };
    let mut wanted = Vec::new();
    sent.contents().read_to_end(&mut wanted)?;
    if std::fs::read(plaintext?.path())? != wanted {
        return Err(wrong("the file is not what the source sent"));
    }
    let shown = shown_item(environment, &file).await?;
    if text(&shown, "/content/name")? != name {
        return Err(wrong("`splitdrop show` gives the file another name than `splitdrop download`"));
    }
    Ok(format!(
        "`splitdrop download`: {FILE_SIZE} bytes verified, decrypted, unpacked: \"{name}\", {bytes} bytes as sent"
    ))
}

/// Has a file downloaded by the command, which draws how far it is where standard error is a terminal.
async fn download(environment: &Environment, file: &RecordId) -> Result<Value, DemoError> {
    let command = environment.splitdrop(["download", file.as_str(), "--wait", "--json"]);
    let ended = { command }.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?.wait_with_output();
    let output = tokio::time::timeout(FILE_BOUND, ended).await;
    let output = output.map_err(|_| wrong(format!("the file did not come within {} s", FILE_BOUND.as_secs())))??;
    if !output.status.success() {
        return Err(wrong(format!("`splitdrop download` ended with {:?}", output.status.code())));
    }
    serde_json::from_slice(&output.stdout).map_err(|_| wrong("`splitdrop download` printed no JSON object"))
}

/// Answers the new source; gives the reply's id at the server, which the client has made.
async fn answer(environment: &Environment, watch: &mut Watch, source: &RecordId) -> Result<RecordId, DemoError> {
    // The key that came with the source is looked at before anything is encrypted to it.
    loop {
        let shown = environment.json(&["show", NEW_SOURCE], "").await?;
        match text(&shown, "/source/key/state")? {
            "pinned" => break,
            "new" => drop(watch.until("sources_changed").await?),
            other => return Err(wrong(format!("the source's key is `{other}`"))),
        }
    }
    environment.json(&["reply", NEW_SOURCE, "--message", ANSWER], "").await?;
    until_done(watch, "reply").await?;
    let there: Vec<RecordId> = environment.server().control().with_world(|world| {
        let source = world.source(source.as_str());
        source.map(|source| world.replies_of(source).map(|reply| reply.id.clone()).collect()).unwrap_or_default()
    });
    match there.as_slice() {
        [reply] => Ok(reply.clone()),
        several => Err(wrong(format!("one reply was sent, and the server has {}", several.len()))),
    }
}

/// Waits until the server has confirmed an act of this kind. A sync may show it before the server's answer is here.
async fn until_done(watch: &mut Watch, kind: &str) -> Result<(), DemoError> {
    loop {
        let event = watch.until("act").await?;
        if text(&event, "/kind")? != kind {
            continue;
        }
        match text(&event, "/step")? {
            "confirmed" | "settled" => return Ok(()),
            "refused" => return Err(wrong(format!("the server refused: {event}"))),
            _other => {}
        }
    }
}

/// What somebody reads of the answer: all of it, and that it is for the source and the newsroom alone.
fn check_reading(read: &Reading, who: &str) -> Result<(), DemoError> {
    if read.text != ANSWER {
        return Err(wrong(format!("{who} reads something else than was written")));
    }
    let is_for = |whose| read.recipients.iter().any(|recipient| recipient.whose == whose);
    if is_for(Whose::Unknown) || !is_for(Whose::Source) || !is_for(Whose::Newsroom) {
        return Err(wrong(format!("the reply is encrypted to {:?}", read.recipients)));
    }
    Ok(())
}

/// How much of a file's plaintext is looked for, from its middle, in bytes.
const SAMPLE: usize = 64;

/// A piece of the one file that is here.
fn file_of(environment: &Environment) -> Result<Vec<u8>, DemoError> {
    let mut files = std::fs::read_dir(environment.plaintext_folder())?;
    let file = files.next().ok_or_else(|| wrong("the file is not there any more"))??;
    let bytes = std::fs::read(file.path())?;
    let middle = bytes.len() / 2;
    bytes
        .get(middle..middle + SAMPLE)
        .map(<[u8]>::to_vec)
        .ok_or_else(|| wrong("the file is too short to be looked for"))
}

/// Deletes the conversation of the new source; what was said in it must have been in the data directory, and be nowhere in
/// it afterwards.
async fn delete_conversation(
    environment: &Environment,
    watch: &mut Watch,
    texts: &[(&str, &[u8])],
) -> Result<String, DemoError> {
    for (what, text) in texts {
        if residue::files_with(&environment.home(), text)?.is_empty() {
            return Err(wrong(format!("{what} is not found where it must be: the search finds nothing")));
        }
    }
    environment.json(&["delete", "conversation", NEW_SOURCE, "--yes"], "").await?;
    let erased = watch.until("erased").await?;
    for (what, text) in texts {
        let left = residue::files_with(&environment.home(), text)?;
        if !left.is_empty() {
            return Err(wrong(format!("{what} is still in {left:?}")));
        }
    }
    let items = number(&erased, "/items")?;
    Ok(format!("`splitdrop delete conversation`: {items} items erased, and nothing of their texts is in any file here"))
}

/// The beginning of a text.
fn excerpt(text: &str) -> String {
    let beginning: String = text.chars().take(EXCERPT).collect();
    if beginning.len() == text.len() { beginning } else { format!("{} ...", beginning.trim_end()) }
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

/// The counts of a refresh that shows news; where the timer's turn came before it, that has brought them already.
fn news_counts(report: &Value) -> Result<String, DemoError> {
    ok_counts(report, "ok").or_else(|_| ok_counts(report, "unchanged"))
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
        let is_unchecked = |(_, mark, _): &&(String, Mark, Duration)| *mark == Mark::NotChecked;
        let unchecked: Vec<&str> = self.rows.iter().filter(is_unchecked).map(|(name, ..)| name.as_str()).collect();
        match unchecked.as_slice() {
            [] => Ok(writeln!(out, "\n{verdict}")?),
            some => Ok(writeln!(out, "\n{verdict} Not checked: {}.", some.join(", "))?),
        }
    }
}
