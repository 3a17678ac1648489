//! Environments in which things happen by themselves, soon, and what tests ask of them.

use serde_json::Value;
pub(crate) use staging::environment::ASKED;
use staging::environment::{Environment, EnvironmentOptions, KeyAccess, Watch};
use staging::generator::MARLOW;
use staging::impatient::Patience;
use staging::server::{Command, Fault, FaultAct, KeyChoice, LoggedRequest, Matching, Outcome, RecordId, SourceState};

/// Everything by itself, and soon.
pub(crate) const SOON: &str = "\
[sync]
interval_ms = 50
first_wait_ms = 50
most_wait_ms = 200
[acts]
first_wait_ms = 50
most_wait_ms = 200
";

/// Syncs by themselves, and soon. Whatever else fails waits for longer than a test, unless a sync lifts what it waits for.
pub(crate) const ONLY_SYNCS: &str = "\
[sync]
interval_ms = 50
first_wait_ms = 50
most_wait_ms = 200
[acts]
first_wait_ms = 86400000
most_wait_ms = 86400000
";

/// An environment of that configuration, with its daemon. The key is out of reach: what is fetched stays as it came.
pub(crate) async fn environment(sources: u32, items: u32, config: &str) -> Environment {
    start(sources, items, config, None).await
}

/// The same, behind a proxy that waits so long, and no longer.
pub(crate) async fn impatient(sources: u32, items: u32, config: &str, patience: Patience) -> Environment {
    start(sources, items, config, Some(patience)).await
}

async fn start(sources: u32, items: u32, config: &str, patience: Option<Patience>) -> Environment {
    let mut options = EnvironmentOptions::with_sources(sources, items).unwrap();
    options.client_config = config.to_owned();
    options.key = KeyAccess::Unreachable;
    options.patience = patience;
    Environment::with_daemon(options).await.unwrap()
}

pub(crate) async fn sign_in_again(environment: &Environment) {
    environment.server().control().apply(Command::AdvanceClock { seconds: 90 }).unwrap();
    environment.login(&MARLOW).await.unwrap();
}

/// A new source with a message and a file of these sizes; gives the three ids.
pub(crate) fn newcomer(environment: &Environment, message: u64, file: u64) -> (RecordId, RecordId, RecordId) {
    let control = environment.server().control();
    let created = Command::NewSource { designation: None, key: KeyChoice::Any, state: SourceState::Listed };
    let Outcome::Source { uuid: source, .. } = control.apply(created).unwrap() else { unreachable!() };
    let item = |command| match control.apply(command).unwrap() {
        Outcome::Item { uuid, .. } => uuid,
        other => unreachable!("{other:?}"),
    };
    let message = item(Command::NewMessage { source: source.clone(), size: message });
    let file = item(Command::NewFile { source: source.clone(), size: file });
    (source, message, file)
}

/// One more message of a source.
pub(crate) fn message(environment: &Environment, source: &RecordId) -> RecordId {
    let command = Command::NewMessage { source: source.clone(), size: 700 };
    match environment.server().control().apply(command).unwrap() {
        Outcome::Item { uuid, .. } => uuid,
        other => unreachable!("{other:?}"),
    }
}

/// The requests that downloaded an item.
pub(crate) fn downloads(environment: &Environment, item: &RecordId) -> Vec<LoggedRequest> {
    let end = format!("/{item}/download");
    environment.server().control().requests().into_iter().filter(|request| request.path.ends_with(&end)).collect()
}

/// From now on something goes wrong with requests of this path.
pub(crate) fn fault(environment: &Environment, path: &str, act: FaultAct) -> u64 {
    environment.server().control().add_fault(Fault::new(Matching::path(path), act)).unwrap()
}

/// The pattern of every download.
pub(crate) const DOWNLOADS: &str = "/api/v1/sources/*/*/*/download";

/// Waits until the item's download takes this step.
pub(crate) async fn until_download(watch: &mut Watch, item: &RecordId, step: &str) -> Value {
    loop {
        let event = watch.until("download").await.unwrap();
        if event["item"] == item.as_str() && event["step"] == step {
            return event;
        }
    }
}

/// What is held of an item, as `show` says.
pub(crate) async fn content(environment: &Environment, source: &RecordId, item: &RecordId) -> String {
    let shown = environment.json(&["show", source.as_str()], "").await.unwrap();
    let items = shown["items"].as_array().unwrap();
    let found = items.iter().find(|shown| shown["uuid"] == item.as_str()).unwrap();
    found["content"]["state"].as_str().unwrap().to_owned()
}

/// The ciphertexts that the client holds, and the parts. What is being erased may go while this looks.
pub(crate) fn held(environment: &Environment) -> (Vec<Vec<u8>>, usize) {
    let files = |name: &str| -> Vec<_> {
        std::fs::read_dir(environment.home().join(name)).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let read = |path| match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        read => Some(read.unwrap()),
    };
    (files("ciphertext").into_iter().filter_map(read).collect(), files("partial").len())
}

/// A SHA-256, as the server spells it.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Waits until so many bytes of a file are written.
pub(crate) async fn until_part(environment: &Environment, bytes: u64) {
    let part = || {
        let parts = std::fs::read_dir(environment.home().join("partial")).unwrap();
        parts.map(|part| part.unwrap().metadata().map_or(0, |part| part.len())).max().unwrap_or(0)
    };
    while part() < bytes {
        // Meanwhile the daemon has to answer.
        environment.json(&["status"], "").await.unwrap();
    }
}

/// There is no way to the server any more.
pub(crate) async fn cut_off(environment: &Environment) {
    environment.socks().close_port().unwrap();
    environment.socks().cut_all().await;
}

/// There is one again.
pub(crate) fn reconnect(environment: &Environment) {
    environment.socks().open_port().unwrap();
}
