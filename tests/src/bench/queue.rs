//! What the queue costs: how soon an act shows, how soon a sync brings what is new, what rests cost, and how fast messages
//! come by themselves.

use std::io::{self, Write as _};
use std::time::Duration;

use control::client::Client;
use control::{Act, Deletion, DownloadStep, Event, Reply, Request, SourceRow, SyncOutcome};
use protocol::Scope;
use protocol::value::SourceId;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::process::Usage;
use super::{
    BenchError, Stage, add_item, ask, daemon, front_end, listed, micros, millis, print_table, proxies, sources, start,
    status, usage, watching, within,
};
use crate::environment::{Environment, QUIET};
use crate::generator::MARLOW;
use crate::programs::Programs;
use crate::server::{Command, Fault, FaultAct, Matching, RecordId};
use crate::socks::Shape;

/// How many items each source has in the inbox of all but the downloads.
const ITEMS: u32 = 4;
/// How many sources are deleted, once with nothing else in the queue and once behind so many acts, as far as there are sources
/// for them.
const DELETIONS: usize = 20;
const WAITING: usize = 200;
/// The least inbox in which there is an act for each of these.
pub const LEAST_SOURCES: u32 = 50;
/// How many syncs bring one new message each.
const REFRESHES: usize = 10;
/// The messages that are downloaded: how many of them each source has sent, and their size in bytes.
pub const MESSAGES_EACH: u32 = 4;
const MESSAGE_SIZE: u64 = 2_000;
/// What an exchange takes longer while they are downloaded.
const DELAYS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(300)];
/// The shipped configuration, but that nothing is downloaded: only the syncs of an inbox in which nothing happens are left.
const IDLE: &str = "fetch_messages = false\n";
/// How long each part may take, besides the time in which nothing is done.
const BOUND: Duration = Duration::from_secs(300);

/// Times of the same thing.
#[derive(Debug, Default)]
struct Times(Vec<Duration>);

impl Times {
    fn sorted(&self) -> Vec<Duration> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted
    }

    fn median(&self) -> Duration {
        self.sorted().get(self.0.len() / 2).copied().unwrap_or_default()
    }

    fn worst(&self) -> Duration {
        self.0.iter().max().copied().unwrap_or_default()
    }

    fn json(&self) -> Value {
        json!({ "count": self.0.len(), "median_us": micros(self.median()), "worst_us": micros(self.worst()) })
    }
}

/// How soon deletions are answered, and show.
#[derive(Debug, Default)]
struct Deletions {
    /// How many acts wait meanwhile.
    behind: u64,
    answered: Times,
    shown: Times,
}

/// What it costs that nothing happens.
#[derive(Debug)]
struct Idle {
    wall: Duration,
    syncs: u64,
    daemon_cpu_ms: u64,
    proxy_cpu_ms: u64,
}

impl Idle {
    /// Percent of one core.
    fn percent(&self, cpu_ms: u64) -> f64 {
        Duration::from_millis(cpu_ms).as_secs_f64() / self.wall.as_secs_f64().max(f64::MIN_POSITIVE) * 100.0
    }
}

/// Messages that came by themselves.
#[derive(Debug)]
struct Downloads {
    delay: Duration,
    messages: usize,
    took: Duration,
    daemon: Usage,
    proxy_peak_kib: u64,
}

impl Downloads {
    fn per_second(&self) -> f64 {
        f64::from(u32::try_from(self.messages).unwrap_or(u32::MAX)) / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

#[derive(Debug)]
struct Report {
    isolated: bool,
    sources: u32,
    empty: Deletions,
    waiting: Deletions,
    refreshes: Times,
    idle: Idle,
    downloads: Vec<Downloads>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct QueueOptions {
    /// How many sources the inbox has in which is deleted and synced, and in which nothing is done; at least
    /// [`LEAST_SOURCES`].
    pub sources: u32,
    /// How many messages are downloaded; [`MESSAGES_EACH`] at least, and rounded down to a multiple of that.
    pub messages: u32,
    /// For how long nothing is done but what the daemon does by itself.
    pub idle: Duration,
    /// Whether one JSON object is printed in the place of the tables.
    pub json: bool,
}

/// Runs the benchmark. Progress goes to standard error, the tables or one JSON object to standard output.
///
/// # Errors
/// [`BenchError`].
pub async fn run(options: QueueOptions) -> Result<(), BenchError> {
    let QueueOptions { sources, messages, idle, json } = options;
    let Stage { programs, isolated } = Stage::build().await?;
    writeln!(io::stderr(), "deletions and syncs, {sources} sources ...")?;
    let (empty, waiting, refreshes) = within(BOUND, "deleting and syncing", acts(programs.clone(), sources)).await?;
    writeln!(io::stderr(), "nothing, for {} s ...", idle.as_secs())?;
    let idle = within(BOUND + idle, "doing nothing", rest(programs.clone(), sources, idle)).await?;
    let mut downloads = Vec::new();
    for delay in DELAYS {
        writeln!(io::stderr(), "messages, {} ms a request and answer ...", millis(delay))?;
        downloads.push(within(BOUND, "downloading messages", fetch(programs.clone(), messages, delay)).await?);
    }
    let report = Report { isolated, sources, empty, waiting, refreshes, idle, downloads };
    if json { print_json(&report) } else { print_text(&report) }
}

/// Syncs that bring something, deletions, and deletions behind acts of which none comes through.
async fn acts(programs: Programs, sources: u32) -> Result<(Deletions, Deletions, Times), BenchError> {
    let environment = start(programs, sources, ITEMS, QUIET).await?;
    environment.login(&MARLOW).await?;
    let mut client = front_end(&environment).await?;
    let mut events = watching(&environment).await?;
    ask(&mut client, Request::Refresh).await?;
    let rows = super::sources(&mut client).await?;
    let writer = rows.last().ok_or_else(|| BenchError::Missing("a source".to_owned()))?;
    let refreshes = refresh(&environment, &mut client, writer.id).await?;

    let mut rows = rows.iter();
    let mut empty = Deletions::default();
    for row in rows.by_ref().take(DELETIONS) {
        delete(&mut client, row.id, &mut empty).await?;
        until_nothing_waits(&mut client, &mut events).await?;
    }
    let control = environment.server().control();
    for matching in [Matching::method("POST", "/api/v1/sources/**"), Matching::method("DELETE", "/api/v1/sources/**")] {
        control.add_fault(Fault::new(matching, FaultAct::Hang))?;
    }
    let waiting = rows.len().saturating_sub(DELETIONS).min(WAITING);
    for row in rows.by_ref().take(waiting) {
        ask(&mut client, Request::Act(other_star(row))).await?;
    }
    control.wait_for_log(|log| log.in_flight() > 0).await;
    let mut waiting = Deletions { behind: status(&mut client).await?.queue.acts.waiting, ..Deletions::default() };
    for row in rows.take(DELETIONS) {
        delete(&mut client, row.id, &mut waiting).await?;
    }
    environment.stop().await?;
    Ok((empty, waiting, refreshes))
}

/// How long a sync takes from the request on that brings one new message.
async fn refresh(environment: &Environment, client: &mut Client, writer: SourceId) -> Result<Times, BenchError> {
    let source = RecordId::from(writer.as_str());
    let mut times = Times::default();
    for _ in 0..REFRESHES {
        let new = Command::NewMessage { source: source.clone(), size: MESSAGE_SIZE };
        add_item(environment.server().control(), new)?;
        let started = Instant::now();
        let replies = ask(client, Request::Refresh).await?;
        times.0.push(started.elapsed());
        match replies.as_slice() {
            [Reply::Synced(report)] if report.outcome == SyncOutcome::Ok => {}
            other => return Err(BenchError::Otherwise(format!("a sync that brings a message gave {other:?}"))),
        }
    }
    Ok(times)
}

/// Deletes a source, and looks whether that shows.
async fn delete(client: &mut Client, source: SourceId, times: &mut Deletions) -> Result<(), BenchError> {
    let act = Act::DeleteSources { sources: vec![source] };
    let started = Instant::now();
    ask(client, Request::Act(act)).await?;
    times.answered.0.push(started.elapsed());
    let rows = sources(client).await?;
    times.shown.0.push(started.elapsed());
    match rows.iter().find(|row| row.id == source).map(|row| row.deletion) {
        // It is confirmed already.
        None | Some(Deletion::Pending) => Ok(()),
        Some(Deletion::None) => Err(BenchError::Otherwise("a source was deleted, and that does not show".to_owned())),
    }
}

fn other_star(row: &SourceRow) -> Act {
    let sources = vec![row.id];
    if row.starred { Act::Unstar { sources } } else { Act::Star { sources } }
}

async fn until_nothing_waits(client: &mut Client, events: &mut Client) -> Result<(), BenchError> {
    while status(client).await?.queue.acts.waiting > 0 {
        events.next_event().await?;
    }
    Ok(())
}

/// What daemon and proxy use while nothing happens but the syncs of the shipped configuration.
async fn rest(programs: Programs, sources: u32, length: Duration) -> Result<Idle, BenchError> {
    let environment = start(programs, sources, ITEMS, IDLE).await?;
    let mut events = watching(&environment).await?;
    environment.login(&MARLOW).await?;
    until_synced(&mut events).await?;
    // Each key that came with that is looked at, once in its life. That is work, and is told when it is done.
    while !matches!(events.next_event().await?, Event::SourcesChanged(_)) {}
    let processes = proxies(&environment, Scope::Metadata);
    let cpu_ms = || -> Result<(u64, u64), BenchError> {
        let mut of_proxies = 0;
        for process in &processes {
            of_proxies += usage(*process)?.cpu_ms;
        }
        Ok((usage(daemon(&environment)?)?.cpu_ms, of_proxies))
    };
    let (started, before, mut syncs) = (Instant::now(), cpu_ms()?, 0);
    while let Ok(synced) = tokio::time::timeout_at(started + length, until_synced(&mut events)).await {
        synced?;
        syncs += 1;
    }
    let (wall, after) = (started.elapsed(), cpu_ms()?);
    if proxies(&environment, Scope::Metadata) != processes {
        return Err(BenchError::Otherwise("the proxy was started anew".to_owned()));
    }
    environment.stop().await?;
    let (daemon_cpu_ms, proxy_cpu_ms) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    Ok(Idle { wall, syncs, daemon_cpu_ms, proxy_cpu_ms })
}

/// Waits for the end of a sync that succeeds. Cancel-safe.
async fn until_synced(events: &mut Client) -> Result<(), BenchError> {
    loop {
        let Event::SyncEnded(report) = events.next_event().await? else { continue };
        return match report.outcome {
            SyncOutcome::Ok | SyncOutcome::Unchanged => Ok(()),
            SyncOutcome::Failed(failure) => Err(BenchError::Otherwise(format!("a sync failed: {failure}"))),
            SyncOutcome::Cancelled => Err(BenchError::Otherwise("a sync was given up".to_owned())),
        };
    }
}

/// How fast messages come by themselves, from the end of the sync on that lists them.
async fn fetch(programs: Programs, messages: u32, delay: Duration) -> Result<Downloads, BenchError> {
    let config = QUIET.replace("fetch_messages = false", "fetch_messages = true");
    let environment = start(programs, messages / MESSAGES_EACH, 0, &config).await?;
    let messages = write_messages(&environment).await?;
    environment.socks().set_shape(Shape::round_trip(delay));
    let mut client = front_end(&environment).await?;
    let mut events = watching(&environment).await?;
    environment.login(&MARLOW).await?;
    until_synced(&mut events).await?;
    let started = Instant::now();
    let (mut stored, mut lost) = (0, false);
    while stored < messages {
        match events.next_event().await? {
            Event::Download(change) => match change.step {
                DownloadStep::Stored { .. } => stored += 1,
                DownloadStep::Failed(failure) | DownloadStep::Postponed { failure, .. } => {
                    return Err(BenchError::Otherwise(format!("a message did not come: {failure}")));
                }
                DownloadStep::Started | DownloadStep::Progress { .. } | DownloadStep::Stopped => {}
            },
            Event::Missed(_) => lost = true,
            _other => {}
        }
        if lost && status(&mut client).await?.queue.messages.waiting == 0 {
            break;
        }
    }
    let took = started.elapsed();
    let mut proxy_peak_kib = 0;
    for process in proxies(&environment, Scope::Download) {
        proxy_peak_kib = proxy_peak_kib.max(usage(process)?.peak_kib);
    }
    let daemon = usage(daemon(&environment)?)?;
    environment.stop().await?;
    Ok(Downloads { delay, messages, took, daemon, proxy_peak_kib })
}

/// Sources write, and the server makes the ciphertexts, which takes it longer than to serve them. Gives how many there are.
async fn write_messages(environment: &Environment) -> Result<usize, BenchError> {
    let control = environment.server().control();
    let mut written = 0;
    for source in listed(control) {
        for _ in 0..MESSAGES_EACH {
            let new = Command::NewMessage { source: source.clone(), size: MESSAGE_SIZE };
            control.etag(&add_item(control, new)?).await?;
            written += 1;
        }
    }
    Ok(written)
}

fn print_json(report: &Report) -> Result<(), BenchError> {
    let Report { isolated, sources, empty, waiting, refreshes, idle, downloads } = report;
    let deletions =
        |of: &Deletions| json!({ "behind": of.behind, "answered": of.answered.json(), "shown": of.shown.json() });
    let downloads: Vec<_> = downloads
        .iter()
        .map(|row| {
            json!({
                "delay_ms": millis(row.delay),
                "messages": row.messages,
                "message_bytes": MESSAGE_SIZE,
                "wall_ms": millis(row.took),
                "messages_per_second": row.per_second(),
                "client_peak_kib": row.daemon.peak_kib,
                "proxy_peak_kib": row.proxy_peak_kib,
            })
        })
        .collect();
    let report = json!({
        "format": 1,
        "isolated": isolated,
        "sources": sources,
        "items_per_source": ITEMS,
        "deletions": [deletions(empty), deletions(waiting)],
        "refresh": refreshes.json(),
        "idle": {
            "wall_ms": millis(idle.wall),
            "syncs": idle.syncs,
            "client_cpu_ms": idle.daemon_cpu_ms,
            "proxy_cpu_ms": idle.proxy_cpu_ms,
        },
        "downloads": downloads,
    });
    Ok(writeln!(io::stdout(), "{report}")?)
}

fn ms(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1_000.0)
}

fn print_text(report: &Report) -> Result<(), BenchError> {
    let Report { isolated: _, sources: _, empty, waiting, refreshes, idle, downloads } = report;
    let mut table = vec![["", "median", "worst"].map(str::to_owned).to_vec()];
    let mut row = |what: String, times: &Times| table.push(vec![what, ms(times.median()), ms(times.worst())]);
    for of in [empty, waiting] {
        row(format!("a deletion behind {} acts, until it is answered", of.behind), &of.answered);
        row(format!("a deletion behind {} acts, until it shows", of.behind), &of.shown);
    }
    row("a sync with a new message".to_owned(), refreshes);
    print_table(&table)?;
    writeln!(
        io::stdout(),
        "\nIn {:.0} s with {} syncs: daemon {:.2} %, proxy {:.2} % of a core\n",
        idle.wall.as_secs_f64(),
        idle.syncs,
        idle.percent(idle.daemon_cpu_ms),
        idle.percent(idle.proxy_cpu_ms),
    )?;
    let head = ["messages", "delay", "time", "a second", "proxy MiB", "client MiB"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in downloads {
        table.push(vec![
            row.messages.to_string(),
            format!("{} ms", millis(row.delay)),
            format!("{} ms", millis(row.took)),
            format!("{:.1}", row.per_second()),
            (row.proxy_peak_kib / 1024).to_string(),
            (row.daemon.peak_kib / 1024).to_string(),
        ]);
    }
    Ok(print_table(&table)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let times = Times([5, 1, 9].map(Duration::from_millis).to_vec());
        assert_eq!((times.median(), times.worst()), (Duration::from_millis(5), Duration::from_millis(9)));
        assert_eq!(Times::default().median(), Duration::ZERO);
    }
}
