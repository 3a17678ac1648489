//! Measures what the path costs, with the real programs. Figures, never verdicts.

pub mod decrypt;
pub mod files;
mod process;
pub mod queue;
pub mod search;
pub mod sync;

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::time::Duration;

use client_vm::store::StoreError;
use client_vm::store::search::QueryError;
use control::client::{Arrival, Client, ClientError};
use control::{Reply, Request, SourceRow, Status};
use protocol::Scope;
use protocol::value::ValueError;
use serde_json::{Value, json};

use self::process::Usage;
use crate::environment::{Environment, EnvironmentError, EnvironmentOptions, KeyAccess};
use crate::generator::Account;
use crate::isolation::Isolation;
use crate::programs::Programs;
use crate::qrexec::broker::EventKind;
use crate::server::{CiphertextError, Command, Control, ControlError, Outcome, RecordId, SourceState, WorldError};

/// After how long the server closes a connection on which nothing is asked, as the real one's web server does.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// A benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The environment failed.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The world could not be made.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The staging server refused to be played with.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The staging server could not make what is to be downloaded.
    #[error(transparent)]
    Ciphertext(#[from] CiphertextError),
    /// The server has what the protocol does not.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// What was to be searched for is no query.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The daemon could not be asked, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server could not be asked directly.
    #[error("could not ask the server directly")]
    Direct(#[from] reqwest::Error),
    /// A call to the proxy failed.
    #[error("a call to the proxy failed: {0}")]
    Call(String),
    /// A process's figures could not be read.
    #[error("could not read a process's figures")]
    Process(#[source] io::Error),
    /// Writing failed.
    #[error("could not write")]
    Io(#[from] io::Error),
    /// A program printed something else than expected.
    #[error("{0} is missing")]
    Missing(String),
    /// What was to be measured went otherwise.
    #[error("what was to be measured went otherwise: {0}")]
    Otherwise(String),
    /// Something did not come to its end.
    #[error("{what} took longer than {} s", .bound.as_secs())]
    Late {
        /// What.
        what: &'static str,
        /// How long it was waited for.
        bound: Duration,
    },
}

/// What the environments of a benchmark are made of.
#[derive(Debug, Clone)]
struct Stage {
    programs: Programs,
    /// Whether each "VM" has a network namespace here: figures without are those of another machine.
    isolated: bool,
}

impl Stage {
    /// Builds the programs, looks whether "VMs" can be kept apart here, and says both on standard error.
    async fn build() -> Result<Self, BenchError> {
        writeln!(io::stderr(), "building the programs ...")?;
        let made = tokio::task::spawn_blocking(|| {
            let programs = Programs::build(|_| {})?;
            let (isolation, _listen) = Isolation::make(&programs.staging)?;
            Ok((programs, isolation))
        });
        let made: Result<_, EnvironmentError> =
            made.await.map_err(|_| BenchError::Call("the build was cut off".to_owned()))?;
        let (programs, isolation) = made?;
        isolation.tell_if_missing()?;
        Ok(Self { programs, isolated: isolation.missing().is_none() })
    }
}

/// An environment with its daemon: so many sources with so many items each, and a client of this configuration that cannot
/// reach the private key. What decrypting costs has a benchmark of its own.
async fn start(programs: Programs, sources: u32, items: u32, config: &str) -> Result<Environment, BenchError> {
    start_with(programs, sources, items, config, KeyAccess::Unreachable).await
}

/// The same with a way to the private key.
async fn start_with(
    programs: Programs,
    sources: u32,
    items: u32,
    config: &str,
    key: KeyAccess,
) -> Result<Environment, BenchError> {
    let mut options = EnvironmentOptions::with_sources(sources, items)?;
    options.server.idle_timeout = Some(IDLE_TIMEOUT);
    options.client_config = config.to_owned();
    options.key = key;
    let mut environment = Environment::start(programs, options).await?;
    environment.start_daemon().await?;
    Ok(environment)
}

/// A bound for what hangs, not a measure.
async fn within<T>(
    bound: Duration,
    what: &'static str,
    work: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    tokio::time::timeout(bound, work).await.unwrap_or(Err(BenchError::Late { what, bound }))
}

/// A front end.
async fn front_end(environment: &Environment) -> Result<Client, BenchError> {
    Ok(Client::connect(&environment.control_socket()).await?)
}

/// A front end that is sent all events from here on.
async fn watching(environment: &Environment) -> Result<Client, BenchError> {
    let mut client = front_end(environment).await?;
    client.request(Request::Watch, |_| {}).await?;
    Ok(client)
}

/// Asks one thing of the daemon.
async fn ask(client: &mut Client, request: Request) -> Result<Vec<Reply>, BenchError> {
    let mut replies = Vec::new();
    let take = |arrival| match arrival {
        Arrival::Reply(reply) => replies.push(reply),
        Arrival::Event(_) => {}
    };
    client.request(request, take).await?;
    Ok(replies)
}

/// All sources that the daemon lists.
async fn sources(client: &mut Client) -> Result<Vec<SourceRow>, BenchError> {
    let mut rows = Vec::new();
    for reply in ask(client, Request::Sources).await? {
        let Reply::Sources(some) = reply else { continue };
        rows.extend(some);
    }
    Ok(rows)
}

async fn status(client: &mut Client) -> Result<Status, BenchError> {
    let replies = ask(client, Request::Status).await?;
    replies
        .into_iter()
        .find_map(|reply| match reply {
            Reply::Status(status) => Some(*status),
            _other => None,
        })
        .ok_or_else(|| BenchError::Missing("the status".to_owned()))
}

/// The sources that the server lists. There are others, whose items nobody is shown.
fn listed(control: &Control) -> Vec<RecordId> {
    control.with_world(|world| {
        let listed = world.sources().filter(|source| source.state == SourceState::Listed);
        listed.map(|source| source.id.clone()).collect()
    })
}

/// Adds an item to the world, and gives its id.
fn add_item(control: &Control, command: Command) -> Result<RecordId, BenchError> {
    match control.apply(command)? {
        Outcome::Item { uuid, .. } => Ok(uuid),
        other => Err(BenchError::Otherwise(format!("a new item was answered by {other:?}"))),
    }
}

/// Signs in at the server itself, without the path between; gives what asked, and the token.
async fn sign_in_directly(
    environment: &Environment,
    account: &Account,
) -> Result<(reqwest::Client, String), BenchError> {
    // An error only says that there is a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build()?;
    let code = account.code_at(environment.server().control().clock().now());
    let credentials = json!({ "username": account.username, "passphrase": account.passphrase, "one_time_code": code });
    let path = format!("{}/api/v1/token", environment.server().origin());
    let signed_in: Value = client.post(path).json(&credentials).send().await?.json().await?;
    let token =
        signed_in.pointer("/token").and_then(Value::as_str).ok_or_else(|| BenchError::Missing("/token".to_owned()))?;
    Ok((client, token.to_owned()))
}

/// The proxy's processes that were started for calls of a scope, whether they have ended or not.
fn proxies(environment: &Environment, scope: Scope) -> Vec<u32> {
    let mut of_scope = HashSet::new();
    let mut started = Vec::new();
    for event in environment.broker().events() {
        match event.kind {
            EventKind::Requested { argument, .. } if argument == scope.name() => {
                of_scope.insert(event.call);
            }
            EventKind::Started { pid: Some(pid), .. } if of_scope.contains(&event.call) => started.push(pid),
            _other => {}
        }
    }
    started
}

fn daemon(environment: &Environment) -> Result<u32, BenchError> {
    environment.daemon_pid().ok_or_else(|| BenchError::Missing("the daemon".to_owned()))
}

fn usage(pid: u32) -> Result<Usage, BenchError> {
    process::usage(pid).map_err(BenchError::Process)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Prints columns as wide as their widest cell, numbers to the right.
fn print_table(rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or_default();
    let mut out = io::stdout().lock();
    for row in rows {
        let cells: Vec<_> =
            (0..columns).zip(row).map(|(column, cell)| format!("{cell:>width$}", width = width(column))).collect();
        writeln!(out, "{}", cells.join("  "))?;
    }
    out.flush()
}
