//! Environments for acts, and what tests ask of them.

use serde_json::Value;
use staging::environment::{Environment, EnvironmentOptions, QUIET, Watch};
use staging::generator::MARLOW;
use staging::server::{Change, Changes, RecordId};

/// Short waits, so that what goes wrong is tried again soon.
pub(crate) const SHORT_WAITS: &str = "[acts]\nfirst_wait_ms = 50\nmost_wait_ms = 200\n";

/// An environment with short waits, where MARLOW is signed in and the first sync has ended.
pub(crate) async fn signed_in(sources: u32, items: u32) -> Environment {
    let mut options = EnvironmentOptions::with_sources(sources, items).unwrap();
    options.client_config = format!("{QUIET}{SHORT_WAITS}");
    let environment = Environment::with_daemon(options).await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    environment
}

/// The sources as the client lists them, by id.
pub(crate) async fn listed(environment: &Environment) -> Vec<Value> {
    environment.json(&["sources"], "").await.unwrap()["sources"].as_array().unwrap().clone()
}

/// A source as the client lists it.
pub(crate) async fn source(environment: &Environment, id: &str) -> Option<Value> {
    listed(environment).await.into_iter().find(|source| source["uuid"] == id)
}

/// The ids of the sources in the client's order.
pub(crate) async fn ids(environment: &Environment) -> Vec<String> {
    listed(environment).await.iter().map(|source| source["uuid"].as_str().unwrap().to_owned()).collect()
}

/// What waits, runs or was refused.
pub(crate) async fn queue(environment: &Environment) -> Vec<Value> {
    environment.json(&["queue"], "").await.unwrap()["queue"].as_array().unwrap().clone()
}

/// The next step of an act; other events are passed over.
pub(crate) async fn step(watch: &mut Watch) -> (u64, String) {
    let event = watch.until("act").await.unwrap();
    (event["act"].as_u64().unwrap(), event["step"].as_str().unwrap().to_owned())
}

/// Waits until an act takes this step.
pub(crate) async fn until_step(watch: &mut Watch, wanted: &str) -> Value {
    loop {
        let event = watch.until("act").await.unwrap();
        if event["step"] == wanted {
            return event;
        }
    }
}

/// What changed at the server.
pub(crate) fn changes(environment: &Environment) -> Changes {
    environment.server().control().with_world(|world| world.changes())
}

/// How often the source was starred, as the server counts changes.
pub(crate) fn stars(environment: &Environment, source: &str) -> u64 {
    changes(environment).of(&Change::StarSet { source: record(environment, source) })
}

/// The server's own id.
pub(crate) fn record(environment: &Environment, id: &str) -> RecordId {
    environment.server().control().with_world(|world| {
        let source = world.source(id).map(|source| source.id.clone());
        let submission = || world.submission(id).map(|item| item.id.clone());
        source.or_else(submission).or_else(|| world.reply(id).map(|item| item.id.clone())).unwrap()
    })
}
