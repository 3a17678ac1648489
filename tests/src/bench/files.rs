//! What a large file costs: through server, SOCKS server, proxy, stand-in for qrexec, client and onto the disk; against
//! curl, which goes the same way from the SOCKS server on and writes what comes to the same disk.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use control::{DownloadStep, Event, Reply, Request};
use protocol::Scope;
use protocol::value::ItemId;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, MissedTickBehavior};

use super::{
    BenchError, Stage, add_item, ask, daemon, front_end, listed, millis, print_table, process, proxies,
    sign_in_directly, start, usage, watching, within,
};
use crate::environment::{Environment, ONION, QUIET};
use crate::generator::{MARLOW, TERNBERG};
use crate::server::{Command, RecordId};

/// How long everything may take, and how much longer for each megabyte.
const BOUND: Duration = Duration::from_secs(120);
const BOUND_PER_MB: Duration = Duration::from_secs(1);
/// How often the proxy's memory is looked at: its process ends with the download.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// A million bytes.
const MB: u64 = 1_000_000;

/// The file.
#[derive(Debug)]
struct File {
    source: RecordId,
    id: RecordId,
    bytes: u64,
}

#[derive(Debug)]
struct Report {
    isolated: bool,
    bytes: u64,
    /// None without curl.
    curl: Option<Duration>,
    client: Client,
}

/// How the client did it.
#[derive(Debug)]
struct Client {
    took: Duration,
    daemon_peak_kib: u64,
    proxy_peak_kib: u64,
}

/// Runs the benchmark with a file of `mb` million bytes. Progress goes to standard error, the table or one JSON object to
/// standard output.
///
/// # Errors
/// [`BenchError`].
pub async fn run(mb: u32, json: bool) -> Result<(), BenchError> {
    let Stage { programs, isolated } = Stage::build().await?;
    let bound = BOUND + BOUND_PER_MB.saturating_mul(mb);
    let report = within(bound, "downloading a file", async {
        let environment = start(programs, 1, 0, QUIET).await?;
        writeln!(io::stderr(), "making a file of {mb} MB ...")?;
        let file = make(&environment, u64::from(mb) * MB).await?;
        let curl = match has_curl().await {
            true => Some(with_curl(&environment, &file).await?),
            false => {
                writeln!(io::stderr(), "there is no curl here to compare with")?;
                None
            }
        };
        let client = with_the_client(&environment, &file).await?;
        environment.stop().await?;
        Ok(Report { isolated, bytes: file.bytes, curl, client })
    })
    .await?;
    if json { print_json(&report) } else { print_text(&report) }
}

/// A source sends a file, and the server makes its ciphertext, which takes it longer than to serve it.
async fn make(environment: &Environment, bytes: u64) -> Result<File, BenchError> {
    let control = environment.server().control();
    let source = listed(control).into_iter().next().ok_or_else(|| BenchError::Missing("a source".to_owned()))?;
    let id = add_item(control, Command::NewFile { source: source.clone(), size: bytes })?;
    control.etag(&id).await?;
    Ok(File { source, id, bytes })
}

async fn has_curl() -> bool {
    let found = tokio::process::Command::new("curl").arg("--version").stdout(Stdio::null()).status().await;
    found.is_ok_and(|status| status.success())
}

/// curl runs where the proxy does, and asks the SOCKS server for the same name.
async fn with_curl(environment: &Environment, file: &File) -> Result<Duration, BenchError> {
    writeln!(io::stderr(), "downloading it with curl ...")?;
    let (_, token) = sign_in_directly(environment, &TERNBERG).await?;
    let path = environment.directory().join("curl");
    let url = format!("http://{ONION}/api/v1/sources/{}/submissions/{}/download", file.source, file.id);
    let started = Instant::now();
    let mut curl = environment
        .isolation()
        .in_proxy(Path::new("curl"))
        .args(["--disable", "--silent", "--show-error", "--fail", "--noproxy", "", "--header", "@-"])
        .args(["--socks5-hostname", &environment.socks_address().to_string(), "--output"])
        .arg(&path)
        .arg(url)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = curl.stdin.take() {
        stdin.write_all(format!("Authorization: Token {token}\n").as_bytes()).await?;
    }
    let ended = curl.wait_with_output().await?;
    let took = started.elapsed();
    let written = std::fs::metadata(&path).map(|metadata| metadata.len()).unwrap_or_default();
    if !ended.status.success() || written != file.bytes {
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        return Err(BenchError::Otherwise(format!("curl wrote {written} of {} bytes: {said}", file.bytes)));
    }
    std::fs::remove_file(&path)?;
    Ok(took)
}

/// From the request of a front end until the client has the file, verified.
async fn with_the_client(environment: &Environment, file: &File) -> Result<Client, BenchError> {
    writeln!(io::stderr(), "downloading it with splitdrop ...")?;
    environment.login(&MARLOW).await?;
    let mut front_end = front_end(environment).await?;
    ask(&mut front_end, Request::Refresh).await?;
    let mut events = watching(environment).await?;
    let item = ItemId::Submission(file.id.as_str().parse()?);
    let mut looks = tokio::time::interval(LOOK_AGAIN);
    looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut proxy_peak_kib = 0;
    let started = Instant::now();
    match ask(&mut front_end, Request::Download { items: vec![item] }).await?.as_slice() {
        [Reply::Wanted(wanted)] if wanted.asked == 1 => {}
        other => return Err(BenchError::Otherwise(format!("a download was answered by {other:?}"))),
    }
    let took = loop {
        tokio::select! {
            event = events.next_event() => {
                let Event::Download(change) = event? else { continue };
                match change.step {
                    DownloadStep::Stored { .. } => break started.elapsed(),
                    DownloadStep::Failed(failure) | DownloadStep::Postponed { failure, .. } => {
                        return Err(BenchError::Otherwise(format!("the file did not come: {failure}")));
                    }
                    DownloadStep::Started | DownloadStep::Progress { .. } | DownloadStep::Stopped => {}
                }
            }
            _ = looks.tick() => for process in proxies(environment, Scope::Download) {
                // It may have ended in between.
                let peak_kib = process::usage(process).map(|usage| usage.peak_kib).unwrap_or_default();
                proxy_peak_kib = proxy_peak_kib.max(peak_kib);
            },
        }
    };
    Ok(Client { took, daemon_peak_kib: usage(daemon(environment)?)?.peak_kib, proxy_peak_kib })
}

/// Megabytes a second.
#[expect(clippy::cast_precision_loss, reason = "a figure to be read")]
fn mb_per_second(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / MB as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn print_json(report: &Report) -> Result<(), BenchError> {
    let Report { isolated, bytes, curl, client } = report;
    let curl = curl.map(|took| json!({ "wall_ms": millis(took), "mb_per_second": mb_per_second(*bytes, took) }));
    let report = json!({
        "format": 1,
        "isolated": isolated,
        "bytes": bytes,
        "curl": curl,
        "splitdrop": {
            "wall_ms": millis(client.took),
            "mb_per_second": mb_per_second(*bytes, client.took),
            "client_peak_kib": client.daemon_peak_kib,
            "proxy_peak_kib": client.proxy_peak_kib,
        },
    });
    Ok(writeln!(io::stdout(), "{report}")?)
}

fn print_text(report: &Report) -> Result<(), BenchError> {
    let Report { isolated: _, bytes, curl, client } = report;
    let head = ["", "MB", "time", "MB/s", "proxy MiB", "client MiB"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let mut row = |name: &str, took: Duration, memory: [String; 2]| {
        let size = (bytes / MB).to_string();
        let [proxy, client] = memory;
        let rate = format!("{:.0}", mb_per_second(*bytes, took));
        table.push(vec![name.to_owned(), size, format!("{} ms", millis(took)), rate, proxy, client]);
    };
    if let Some(took) = curl {
        row("curl", *took, [String::new(), String::new()]);
    }
    let memory = [client.proxy_peak_kib, client.daemon_peak_kib].map(|kib| (kib / 1024).to_string());
    row("splitdrop", client.took, memory);
    Ok(print_table(&table)?)
}
