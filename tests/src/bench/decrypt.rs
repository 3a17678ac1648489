//! What decrypting costs, by each way to the private key: many messages, and one large file. All of it is downloaded
//! before, while no key can be reached, so that only decrypting is measured.

mod gnupg;

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use control::client::Client;
use control::{Event, ReadStep, Reply, Request};
use nix::sys::signal::Signal;
use protocol::value::ItemId;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::gnupg::Gnupg;
use super::{
    BenchError, Stage, add_item, ask, daemon, front_end, listed, millis, print_table, start_with, status, usage,
    watching, within,
};
use crate::environment::{Environment, KeyAccess, QUIET};
use crate::generator::{MARLOW, NewsroomKey};
use crate::programs::Programs;
use crate::server::Command;

/// How many sources have written.
const SOURCES: u32 = 50;
/// The size of a message, in bytes.
const MESSAGE_SIZE: u64 = 2_000;
/// A million bytes.
const MB: u64 = 1_000_000;
/// How long one measurement may take, and how much longer for each message and each megabyte.
const BOUND: Duration = Duration::from_secs(120);
const BOUND_PER_MESSAGE: Duration = Duration::from_millis(500);
const BOUND_PER_MB: Duration = Duration::from_secs(2);

/// A way to the private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    KeyFile,
    SplitGpg,
    GpgAgent,
}

impl Backend {
    const ALL: [Self; 3] = [Self::KeyFile, Self::SplitGpg, Self::GpgAgent];

    fn name(self) -> &'static str {
        match self {
            Self::KeyFile => "key-file",
            Self::SplitGpg => "split-gpg",
            Self::GpgAgent => "gpg-agent",
        }
    }

    /// Why it cannot be measured here.
    async fn obstacle(self) -> Option<&'static str> {
        match self {
            Self::KeyFile => None,
            Self::GpgAgent if !cfg!(feature = "gpg-agent") => {
                Some("not built: run the benchmark with `cargo run -p staging --features gpg-agent`")
            }
            Self::SplitGpg | Self::GpgAgent => match Gnupg::is_here().await {
                true => None,
                false => Some("there is no gpg here: apt-get install gnupg"),
            },
        }
    }
}

/// What is decrypted.
#[derive(Debug, Clone, Copy)]
enum Load {
    Messages(u32),
    File { mb: u32 },
}

impl Load {
    fn bound(self) -> Duration {
        BOUND
            + match self {
                Self::Messages(count) => BOUND_PER_MESSAGE.saturating_mul(count),
                Self::File { mb } => BOUND_PER_MB.saturating_mul(mb),
            }
    }
}

/// How it went.
#[derive(Debug)]
struct Run {
    items: u32,
    /// Bytes of ciphertext.
    bytes: u64,
    took: Duration,
    peak_kib: u64,
    /// How often gpg was called, or gpg-agent was told to decrypt; none where there is neither.
    calls: Option<usize>,
}

impl Run {
    fn items_per_second(&self) -> f64 {
        f64::from(self.items) / self.seconds()
    }

    #[expect(clippy::cast_precision_loss, reason = "a figure to be read")]
    fn mb_per_second(&self) -> f64 {
        self.bytes as f64 / MB as f64 / self.seconds()
    }

    fn seconds(&self) -> f64 {
        self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// What became of one way.
#[derive(Debug)]
struct Row {
    backend: Backend,
    measured: Result<Measured, &'static str>,
}

#[derive(Debug)]
struct Measured {
    messages: Run,
    file: Run,
}

/// Runs the benchmark with so many messages of 2,000 bytes, and a file of `mb` million bytes. Progress goes to standard
/// error, the table or one JSON object to standard output.
///
/// # Errors
/// [`BenchError`].
pub async fn run(messages: u32, mb: u32, json: bool) -> Result<(), BenchError> {
    let Stage { programs, isolated } = Stage::build().await?;
    let mut rows = Vec::new();
    for backend in Backend::ALL {
        let name = backend.name();
        if let Some(obstacle) = backend.obstacle().await {
            writeln!(io::stderr(), "{name}: {obstacle}")?;
            rows.push(Row { backend, measured: Err(obstacle) });
            continue;
        }
        writeln!(io::stderr(), "{name}: {messages} messages ...")?;
        let messages = measure(&programs, backend, Load::Messages(messages)).await?;
        writeln!(io::stderr(), "{name}: a file of {mb} MB ...")?;
        let file = measure(&programs, backend, Load::File { mb }).await?;
        rows.push(Row { backend, measured: Ok(Measured { messages, file }) });
    }
    if json { print_json(isolated, &rows) } else { print_text(&rows) }
}

async fn measure(programs: &Programs, backend: Backend, load: Load) -> Result<Run, BenchError> {
    within(load.bound(), "decrypting", decrypt(programs.clone(), backend, load)).await
}

/// Downloads everything, makes the key reachable, and waits until everything is decrypted.
async fn decrypt(programs: Programs, backend: Backend, load: Load) -> Result<Run, BenchError> {
    let gnupg = match backend {
        Backend::KeyFile => None,
        Backend::SplitGpg | Backend::GpgAgent => Some(Gnupg::new()?),
    };
    let access = match (backend, &gnupg) {
        (Backend::SplitGpg, Some(gnupg)) => KeyAccess::Table(gnupg.split_gpg_table()),
        (Backend::GpgAgent, Some(gnupg)) => KeyAccess::Table(gnupg.agent_table()),
        (Backend::KeyFile, _) | (_, None) => KeyAccess::Unreachable,
    };
    let config = QUIET.replace("fetch_messages = false", "fetch_messages = true");
    let mut environment = start_with(programs, SOURCES, 0, &config, access).await?;
    let (items, bytes) = fetch(&environment, load).await?;
    environment.stop_daemon(Signal::SIGTERM).await?;

    let key = NewsroomKey::default().secret_armor();
    match (backend, &gnupg) {
        (Backend::SplitGpg, Some(gnupg)) => {
            gnupg.import(key).await?;
            gnupg.write_client().await?;
        }
        (Backend::GpgAgent, Some(gnupg)) => gnupg.import(key).await?,
        (Backend::KeyFile, _) | (_, None) => {
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.create_new(true).write(true).mode(0o600).open(environment.key_file())?;
            file.write_all(key.as_bytes())?;
        }
    }
    let started = Instant::now();
    environment.start_daemon().await?;
    let mut client = front_end(&environment).await?;
    let mut events = watching(&environment).await?;
    let ended = until_decrypted(&mut client, &mut events).await?;
    let peak_kib = usage(daemon(&environment)?)?.peak_kib;
    environment.stop().await?;
    let calls = match (backend, &gnupg) {
        (Backend::SplitGpg, Some(gnupg)) => Some(gnupg.calls()?),
        (Backend::GpgAgent, Some(gnupg)) => Some(gnupg.agent_calls()?),
        (Backend::KeyFile, _) | (_, None) => None,
    };
    Ok(Run { items, bytes, took: ended - started, peak_kib, calls })
}

/// Sources send, and the client downloads all of it, and can decrypt none. Gives how many items there are, and the bytes of
/// their ciphertexts.
async fn fetch(environment: &Environment, load: Load) -> Result<(u32, u64), BenchError> {
    let control = environment.server().control();
    let sources = listed(control);
    let mut files = Vec::new();
    let (count, size) = match load {
        Load::Messages(count) => (count, MESSAGE_SIZE),
        Load::File { mb } => (1, u64::from(mb) * MB),
    };
    let writers = usize::try_from(count).unwrap_or(usize::MAX);
    for source in sources.iter().cycle().take(writers).cloned() {
        let command = match load {
            Load::Messages(_) => Command::NewMessage { source, size },
            Load::File { .. } => Command::NewFile { source, size },
        };
        let id = add_item(control, command)?;
        // It is encrypted now, which takes longer than to serve it.
        control.etag(&id).await?;
        if let Load::File { .. } = load {
            files.push(ItemId::Submission(id.as_str().parse()?));
        }
    }
    let mut client = front_end(environment).await?;
    let mut events = watching(environment).await?;
    environment.login(&MARLOW).await?;
    ask(&mut client, Request::Refresh).await?;
    if !files.is_empty() {
        match ask(&mut client, Request::Download { items: files }).await?.as_slice() {
            [Reply::Wanted(wanted)] if wanted.asked == 1 => {}
            other => return Err(BenchError::Otherwise(format!("a download was answered by {other:?}"))),
        }
    }
    loop {
        let queue = status(&mut client).await?.queue;
        if queue.messages.failed + queue.files.failed > 0 {
            return Err(BenchError::Otherwise("something could not be downloaded".to_owned()));
        }
        if queue.messages.waiting + queue.files.waiting == 0 {
            return match queue.decrypt.waiting {
                waiting if waiting == u64::from(count) => Ok((count, u64::from(count) * size)),
                waiting => Err(BenchError::Otherwise(format!("{waiting} of {count} items wait to be decrypted"))),
            };
        }
        while !matches!(events.next_event().await?, Event::Download(_) | Event::Missed(_)) {}
    }
}

/// Waits until nothing waits to be decrypted; gives when the last item's event came. The daemon may have begun before it was
/// asked, so events are counted down from what it says, and it is asked again at the end.
async fn until_decrypted(client: &mut Client, events: &mut Client) -> Result<Instant, BenchError> {
    let mut left = waiting(client).await?;
    let mut last = Instant::now();
    while left > 0 {
        match events.next_event().await? {
            Event::Read(change) => match change.step {
                ReadStep::Decrypted => {
                    last = Instant::now();
                    left -= 1;
                }
                ReadStep::Postponed(failure) | ReadStep::Sealed(failure) => {
                    return Err(BenchError::Otherwise(format!("an item was not decrypted: {failure}")));
                }
                ReadStep::Started | ReadStep::Stopped => continue,
            },
            Event::Missed(_) => {
                last = Instant::now();
                left = 0;
            }
            _other => continue,
        }
        if left == 0 {
            left = waiting(client).await?;
        }
    }
    Ok(last)
}

/// How much is to be decrypted.
async fn waiting(client: &mut Client) -> Result<u64, BenchError> {
    let decrypt = status(client).await?.queue.decrypt;
    match decrypt.failed {
        0 => Ok(decrypt.waiting),
        failed => Err(BenchError::Otherwise(format!("{failed} items could not be decrypted"))),
    }
}

fn print_json(isolated: bool, rows: &[Row]) -> Result<(), BenchError> {
    let run = |run: &Run| {
        json!({
            "items": run.items,
            "bytes": run.bytes,
            "wall_ms": millis(run.took),
            "items_per_second": run.items_per_second(),
            "mb_per_second": run.mb_per_second(),
            "gpg_calls": run.calls,
            "client_peak_kib": run.peak_kib,
        })
    };
    let backends: Vec<Value> = rows
        .iter()
        .map(|row| match &row.measured {
            Ok(Measured { messages, file }) => json!({
                "backend": row.backend.name(), "skipped": null, "messages": run(messages), "file": run(file),
            }),
            Err(why) => json!({ "backend": row.backend.name(), "skipped": why, "messages": null, "file": null }),
        })
        .collect();
    Ok(writeln!(io::stdout(), "{}", json!({ "format": 1, "isolated": isolated, "backends": backends }))?)
}

fn print_text(rows: &[Row]) -> Result<(), BenchError> {
    let head = ["", "items", "MB", "time", "items/s", "MB/s", "gpg calls", "client MiB"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let mut skipped = Vec::new();
    for row in rows {
        match &row.measured {
            Ok(Measured { messages, file }) => table.extend([messages, file].map(|run| cells(row.backend, run))),
            Err(why) => skipped.push(format!("{}: {why}", row.backend.name())),
        }
    }
    print_table(&table)?;
    for line in skipped {
        writeln!(io::stdout(), "{line}")?;
    }
    Ok(())
}

fn cells(backend: Backend, run: &Run) -> Vec<String> {
    let calls = run.calls.map(|calls| calls.to_string()).unwrap_or_default();
    vec![
        backend.name().to_owned(),
        run.items.to_string(),
        (run.bytes / MB).to_string(),
        format!("{} ms", millis(run.took)),
        format!("{:.1}", run.items_per_second()),
        format!("{:.1}", run.mb_per_second()),
        calls,
        (run.peak_kib / 1024).to_string(),
    ]
}
