//! What a sync costs: at several sizes, first and unchanged, without and with a delay on the way; and what a call costs in
//! a warm session against a session of its own.

use std::io::{self, Write as _};
use std::time::Duration;

use protocol::value::SoftwareVersion;
use protocol::{Call, Hello, Limits, Scope};
use qubes_rpc::PROXY_SERVICE;
use qubes_rpc::name::{ServiceName, VmName};
use qubes_rpc::places::Places;
use qubes_rpc::qrexec::Qrexec;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::process::{self, Usage};
use super::{BenchError, IDLE_TIMEOUT, Stage, daemon, micros, millis, print_table, proxies, sign_in_directly, usage};
use crate::environment::{Environment, EnvironmentOptions, PROXY_VM};
use crate::generator::{MARLOW, TERNBERG};
use crate::processes;
use crate::programs::Programs;
use crate::qrexec::broker::Costs;
use crate::socks::{Counts, Shape};

/// How many items each source has.
const ITEMS: u32 = 4;
/// The lists of a sync.
const LISTS: [&str; 4] = ["users", "sources", "submissions", "replies"];
/// How many health calls are timed in a warm session, and in sessions of their own.
const WARM_CALLS: u32 = 200;
const FRESH_CALLS: u32 = 20;
/// How long a call of the benchmark may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// One size at one delay.
#[derive(Debug)]
struct Row {
    sources: u32,
    delay: Duration,
    server_ms: u64,
    first: Sync,
    unchanged: Sync,
    proxy: Usage,
    client: Usage,
}

/// One sync.
#[derive(Debug)]
struct Sync {
    wall_ms: u64,
    /// What went through the SOCKS server. The login's request and answer are with those of the first sync, which begins
    /// with it.
    http_bytes_to_server: u64,
    http_bytes_from_server: u64,
    /// What went through the metadata call, both ways.
    qrexec_bytes: u64,
    rows_written: u64,
}

impl Sync {
    /// The sync that the daemon tells of; what was counted before it and after it.
    fn of(report: &Value, [before, after]: [&Counts; 2], [called, calls]: [u64; 2]) -> Result<Self, BenchError> {
        Ok(Self {
            wall_ms: wall_ms(report)?,
            http_bytes_to_server: after.bytes_to_server.saturating_sub(before.bytes_to_server),
            http_bytes_from_server: after.bytes_to_client.saturating_sub(before.bytes_to_client),
            qrexec_bytes: calls.saturating_sub(called),
            rows_written: number(report, "/sync/rows_written")?,
        })
    }

    fn http_bytes(&self) -> u64 {
        self.http_bytes_to_server.saturating_add(self.http_bytes_from_server)
    }
}

/// Runs the benchmark. Progress goes to standard error, the table or one JSON object to standard output.
///
/// # Errors
/// [`BenchError`].
pub async fn run(sizes: &[u32], delays_ms: &[u64], json: bool) -> Result<(), BenchError> {
    let Stage { programs, isolated } = Stage::build().await?;
    let mut rows = Vec::new();
    for sources in sizes {
        for delay_ms in delays_ms {
            writeln!(io::stderr(), "{sources} sources, {delay_ms} ms a request and answer ...")?;
            rows.push(measure(programs.clone(), *sources, Duration::from_millis(*delay_ms)).await?);
        }
    }
    writeln!(io::stderr(), "health calls ...")?;
    let (warm, fresh) = health(programs.clone(), Costs::default()).await?;
    let (warm_real, fresh_real) = health(programs, Costs::measured()).await?;
    let calls = [("stand-in as it is", warm, fresh), ("with the cost of a real call", warm_real, fresh_real)];
    if json { print_json(isolated, &rows, &calls) } else { print_text(&rows, &calls) }
}

async fn measure(programs: Programs, sources: u32, delay: Duration) -> Result<Row, BenchError> {
    let mut options = EnvironmentOptions::with_sources(sources, ITEMS)?;
    options.server.idle_timeout = Some(IDLE_TIMEOUT);
    let mut environment = Environment::start(programs, options).await?;
    environment.start_daemon().await?;
    let server_ms = ask_directly(&environment).await?;
    environment.socks().set_shape(Shape::round_trip(delay));
    let mut watch = environment.watch().await?;

    let before = environment.socks().counts();
    environment.login(&MARLOW).await?;
    let first = watch.until("sync_ended").await?;
    let between = environment.socks().counts();
    let (caller, proxy) = (caller(&environment)?, proxy(&environment)?);
    // What it writes goes to the daemon or to the proxy, but for the name of the call.
    let called = usage(caller)?.bytes_written;
    let first = Sync::of(&first, [&before, &between], [0, called])?;
    let refreshed = environment.json(&["refresh"], "").await?;
    let after = environment.socks().counts();
    let unchanged = Sync::of(&refreshed, [&between, &after], [called, usage(caller)?.bytes_written])?;
    let client = usage(daemon(&environment)?)?;
    let row = Row { sources, delay, server_ms, first, unchanged, proxy: usage(proxy)?, client };
    environment.stop().await?;
    Ok(row)
}

/// How long the server itself takes for the four lists at once, once it has made them: what a sync at no other cost would
/// take.
async fn ask_directly(environment: &Environment) -> Result<u64, BenchError> {
    let origin = environment.server().origin();
    let (client, token) = sign_in_directly(environment, &TERNBERG).await?;
    let ask = async |list: &str| {
        let request = client.get(format!("{origin}/api/v1/{list}")).header("authorization", format!("Token {token}"));
        request.send().await?.bytes().await
    };
    let [users, sources, submissions, replies] = LISTS;
    let mut took = Duration::ZERO;
    // The first time the server makes the lists, the second time it has them.
    for _ in 0..2 {
        let started = Instant::now();
        tokio::try_join!(ask(users), ask(sources), ask(submissions), ask(replies))?;
        took = started.elapsed();
    }
    Ok(millis(took))
}

/// The process that makes the daemon's metadata call.
fn caller(environment: &Environment) -> Result<u32, BenchError> {
    let call = format!("{PROXY_SERVICE}+{}", Scope::Metadata.name());
    let makes_it = |child: &u32| process::arguments(*child).is_ok_and(|arguments| arguments.contains(&call));
    let children = processes::children(daemon(environment)?).map_err(BenchError::Process)?;
    children.into_iter().find(makes_it).ok_or_else(|| BenchError::Missing("the daemon's call".to_owned()))
}

/// The process of the proxy's metadata session.
fn proxy(environment: &Environment) -> Result<u32, BenchError> {
    let sessions = proxies(environment, Scope::Metadata);
    sessions.last().copied().ok_or_else(|| BenchError::Missing("the proxy".to_owned()))
}

/// What a health call costs in a warm session, and in a session of its own.
async fn health(programs: Programs, costs: Costs) -> Result<(Duration, Duration), BenchError> {
    let mut options = EnvironmentOptions::with_sources(1, 1)?;
    options.qrexec.costs = costs;
    let environment = Environment::start(programs, options).await?;
    let qrexec = Qrexec { program: environment.caller()? };
    let failed = |error: &dyn std::error::Error| BenchError::Call(error.to_string());
    let vm: VmName = PROXY_VM.parse().map_err(|error| failed(&error))?;
    let service = ServiceName::try_new(PROXY_SERVICE, Scope::Metadata.name()).map_err(|error| failed(&error))?;
    let software = SoftwareVersion::try_new(env!("CARGO_PKG_VERSION")).map_err(|error| failed(&error))?;
    let hello = Hello { scope: Scope::Metadata, limits: Limits::OURS, api_level: None, software };
    let places = Places::new(1);
    let open = async || {
        qrexec.open(&vm, &service, &hello, DEADLINE, places.take().await).await.map_err(|error| failed(&error))
    };
    let ask = async |session: &qubes_rpc::qrexec::QrexecCall| {
        let answer = session.connection().call(Call::Health, DEADLINE).await.map_err(|error| failed(&error))?;
        answer.one().await.map_err(|error| failed(&error))
    };
    let session = open().await?;
    ask(&session).await?;
    let started = Instant::now();
    for _ in 0..WARM_CALLS {
        ask(&session).await?;
    }
    let warm = started.elapsed() / WARM_CALLS;
    session.close().await;
    let started = Instant::now();
    for _ in 0..FRESH_CALLS {
        let session = open().await?;
        ask(&session).await?;
        session.close().await;
    }
    let fresh = started.elapsed() / FRESH_CALLS;
    environment.stop().await?;
    Ok((warm, fresh))
}

fn wall_ms(report: &Value) -> Result<u64, BenchError> {
    let at = |name: &str| {
        report
            .pointer(&format!("/sync/{name}"))
            .and_then(Value::as_str)
            .and_then(|text| text.parse::<jiff::Timestamp>().ok())
            .ok_or_else(|| BenchError::Missing(format!("/sync/{name}")))
    };
    let took = at("ended")?.as_millisecond().saturating_sub(at("started")?.as_millisecond());
    Ok(u64::try_from(took).unwrap_or_default())
}

fn number(report: &Value, pointer: &str) -> Result<u64, BenchError> {
    report.pointer(pointer).and_then(Value::as_u64).ok_or_else(|| BenchError::Missing(pointer.to_owned()))
}

fn print_json(isolated: bool, rows: &[Row], calls: &[(&str, Duration, Duration)]) -> Result<(), BenchError> {
    let sync = |sync: &Sync| {
        json!({
            "wall_ms": sync.wall_ms,
            "http_bytes_to_server": sync.http_bytes_to_server,
            "http_bytes_from_server": sync.http_bytes_from_server,
            "qrexec_bytes": sync.qrexec_bytes,
            "rows_written": sync.rows_written,
        })
    };
    let used = |usage: &Usage| json!({ "cpu_ms": usage.cpu_ms, "peak_kib": usage.peak_kib });
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "sources": row.sources,
                "items_per_source": ITEMS,
                "delay_ms": millis(row.delay),
                "server_ms": row.server_ms,
                "first": sync(&row.first),
                "unchanged": sync(&row.unchanged),
                "proxy": used(&row.proxy),
                "client": used(&row.client),
            })
        })
        .collect();
    let calls: Vec<_> = calls
        .iter()
        .map(|(name, warm, fresh)| json!({ "stand_in": name, "warm_us": micros(*warm), "fresh_us": micros(*fresh) }))
        .collect();
    Ok(writeln!(io::stdout(), "{}", json!({ "format": 1, "isolated": isolated, "sync": rows, "health": calls }))?)
}

fn print_text(rows: &[Row], calls: &[(&str, Duration, Duration)]) -> Result<(), BenchError> {
    let head = [
        "sources",
        "delay",
        "server",
        "first",
        "unchanged",
        "HTTP kB",
        "HTTP again",
        "qrexec kB",
        "qrexec again",
        "rows",
        "rows again",
        "proxy CPU",
        "proxy MiB",
        "client CPU",
        "client MiB",
    ];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        table.push(vec![
            row.sources.to_string(),
            format!("{} ms", millis(row.delay)),
            format!("{} ms", row.server_ms),
            format!("{} ms", row.first.wall_ms),
            format!("{} ms", row.unchanged.wall_ms),
            (row.first.http_bytes() / 1000).to_string(),
            (row.unchanged.http_bytes() / 1000).to_string(),
            (row.first.qrexec_bytes / 1000).to_string(),
            (row.unchanged.qrexec_bytes / 1000).to_string(),
            row.first.rows_written.to_string(),
            row.unchanged.rows_written.to_string(),
            format!("{} ms", row.proxy.cpu_ms),
            (row.proxy.peak_kib / 1024).to_string(),
            format!("{} ms", row.client.cpu_ms),
            (row.client.peak_kib / 1024).to_string(),
        ]);
    }
    print_table(&table)?;
    let mut out = io::stdout().lock();
    writeln!(out, "\nA health call:")?;
    for (name, warm, fresh) in calls {
        let ratio = fresh.as_secs_f64() / warm.as_secs_f64().max(f64::MIN_POSITIVE);
        let (warm, fresh) = (micros(*warm), micros(*fresh));
        writeln!(out, "  {name}: {warm} us in a warm session, {fresh} us in one of its own ({ratio:.0} times)")?;
    }
    Ok(())
}
