//! Environments for acts, and what tests ask of them.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use staging::environment::{Environment, EnvironmentOptions, QUIET, Watch};
use staging::generator::MARLOW;
use staging::server::{Change, Changes, Command, Fault, FaultAct, Matching, Outcome, RecordId, RequestLog};
use tokio::process::Child;

/// Short waits, so that what goes wrong is tried again soon.
pub(crate) const SHORT_WAITS: &str = "[acts]\nfirst_wait_ms = 50\nmost_wait_ms = 200\n";

/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(120);

/// An environment with short waits, where MARLOW is signed in and the first sync has ended.
pub(crate) async fn signed_in(sources: u32, items: u32) -> Environment {
    signed_in_to(options(sources, items, "")).await
}

/// A world of so many sources with so many items each, and short waits with these lines besides in the table of acts.
pub(crate) fn options(sources: u32, items: u32, settings: &str) -> EnvironmentOptions {
    let mut options = EnvironmentOptions::with_sources(sources, items).unwrap();
    options.client_config = format!("{QUIET}{SHORT_WAITS}{settings}");
    options
}

/// The same in an environment of other options.
pub(crate) async fn signed_in_to(options: EnvironmentOptions) -> Environment {
    let environment = Environment::with_daemon(options).await.unwrap();
    environment.first_login(&MARLOW).await.unwrap();
    environment
}

/// What `show` says of a source once its key was looked at.
pub(crate) async fn shown_with_key(environment: &Environment, source: &str) -> Value {
    environment.listed_with_keys().await.unwrap();
    environment.json(&["show", source], "").await.unwrap()
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

/// Signs MARLOW in once more: a one-time code is taken once.
pub(crate) async fn sign_in_again(environment: &Environment) {
    environment.server().control().apply(Command::AdvanceClock { seconds: 90 }).unwrap();
    environment.login(&MARLOW).await.unwrap();
}

/// Does something, and gives the number of the one act that it was.
pub(crate) async fn act(environment: &Environment, arguments: &[&str]) -> u64 {
    let answer = environment.json(arguments, "").await.unwrap();
    let [act] = answer["acts"].as_array().unwrap().as_slice() else { unreachable!("{answer}") };
    act["act"].as_u64().unwrap()
}

/// Waits until this act takes this step.
pub(crate) async fn until_act(watch: &mut Watch, act: u64, wanted: &str) -> Value {
    loop {
        let event = until_step(watch, wanted).await;
        if event["act"] == act {
            return event;
        }
    }
}

/// What the queue says of an act.
pub(crate) async fn queued(environment: &Environment, act: u64) -> Option<Value> {
    queue(environment).await.into_iter().find(|entry| entry["act"] == act)
}

/// How something is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    Ordinary,
    BeingDeleted,
    Gone,
}

fn how(object: Option<&Value>) -> Shown {
    match object.map(|object| object["being_deleted"].as_bool().unwrap()) {
        Some(false) => Shown::Ordinary,
        Some(true) => Shown::BeingDeleted,
        None => Shown::Gone,
    }
}

/// How a source is shown.
pub(crate) async fn source_shows(environment: &Environment, id: &str) -> Shown {
    how(source(environment, id).await.as_ref())
}

/// How an item is shown in a conversation.
pub(crate) async fn item_shows(environment: &Environment, source: &str, id: &str) -> Shown {
    how(item(environment, source, id).await.as_ref())
}

/// What is in a conversation.
pub(crate) async fn items(environment: &Environment, source: &str) -> Vec<Value> {
    environment.json(&["show", source], "").await.unwrap()["items"].as_array().unwrap().clone()
}

/// An item as a conversation lists it.
pub(crate) async fn item(environment: &Environment, source: &str, id: &str) -> Option<Value> {
    items(environment, source).await.into_iter().find(|item| item["uuid"] == id)
}

/// How many sources are counted.
pub(crate) async fn counted_sources(environment: &Environment) -> u64 {
    environment.json(&["status"], "").await.unwrap()["held"]["sources"].as_u64().unwrap()
}

/// Something happens at the server.
pub(crate) fn happens(environment: &Environment, command: Command) -> Outcome {
    environment.server().control().apply(command).unwrap()
}

/// A source writes; gives the message's id.
pub(crate) fn message(environment: &Environment, source: &str) -> String {
    match happens(environment, Command::NewMessage { source: source.into(), size: 700 }) {
        Outcome::Item { uuid, .. } => uuid.as_str().to_owned(),
        other => unreachable!("{other:?}"),
    }
}

/// How often something was asked for.
pub(crate) fn asked(environment: &Environment, method: &str, path: &str) -> u64 {
    environment.server().control().count(method, path)
}

/// Waits until this is true of the server's log.
pub(crate) async fn until_log(environment: &Environment, wanted: impl FnMut(&RequestLog) -> bool) {
    tokio::time::timeout(PATIENCE, environment.server().control().wait_for_log(wanted)).await.unwrap();
}

/// From now on something goes wrong; gives the rule.
pub(crate) fn fails(environment: &Environment, fault: Fault) -> u64 {
    environment.server().control().add_fault(fault).unwrap()
}

/// From now on such requests take effect, and their answers wait; gives the rule.
pub(crate) fn hold(environment: &Environment, matching: Matching) -> u64 {
    fails(environment, Fault::new(matching, FaultAct::HoldAnswer))
}

/// Waits until at least so many answers wait by this rule.
pub(crate) async fn until_held(environment: &Environment, rule: u64, answers: usize) {
    let held = |log: &RequestLog| {
        log.requests().filter(|one| one.fault == Some(rule) && one.held && one.ended.is_none()).count()
    };
    until_log(environment, |log| held(log) >= answers).await;
}

/// The rule goes, and the answers that wait by it go out.
pub(crate) fn release(environment: &Environment, rule: u64) {
    happens(environment, Command::RemoveFault { id: rule });
}

/// A snapshot that was taken and that the client has not heard of: the answers to a refresh wait.
pub(crate) struct Snapshot {
    refresh: Child,
    rule: u64,
}

impl Snapshot {
    /// Takes it. No other sync may run.
    pub(crate) async fn take(environment: &Environment) -> Self {
        let rule = hold(environment, Matching::method("GET", "/api/v1/*"));
        let refresh = environment.splitdrop(["refresh"]).stdout(Stdio::null()).spawn().unwrap();
        until_held(environment, rule, 4).await;
        Self { refresh, rule }
    }

    /// Lets the client hear of it, and waits until it is applied.
    pub(crate) async fn apply(mut self, environment: &Environment) {
        release(environment, self.rule);
        assert!(self.refresh.wait().await.unwrap().success());
    }
}

/// The ids of the sources that are shown without a star.
pub(crate) async fn unstarred(environment: &Environment) -> Vec<String> {
    let listed = listed(environment).await;
    let unstarred = listed.iter().filter(|source| !source["starred"].as_bool().unwrap());
    unstarred.map(|source| source["uuid"].as_str().unwrap().to_owned()).collect()
}

/// Two deletions whose answers wait: there is no call for anything else, and what is done now is not sent.
pub(crate) async fn occupy(environment: &Environment, occupants: &[(String, String)]) -> [u64; 2] {
    let mut rules = Vec::new();
    for (source, message) in occupants {
        let path = format!("/api/v1/sources/{source}/submissions/{message}");
        rules.push(hold(environment, Matching::method("DELETE", &path)));
        act(environment, &["delete", "item", message, "--yes"]).await;
    }
    for rule in &rules {
        until_held(environment, *rule, 1).await;
    }
    rules.try_into().unwrap()
}

/// The requests that delete this source.
pub(crate) fn deletion(source: &str) -> Matching {
    Matching::method("DELETE", &format!("/api/v1/sources/{source}"))
}

/// The first source of the client's list.
pub(crate) async fn first(environment: &Environment) -> String {
    ids(environment).await.swap_remove(0)
}

/// Deletes a source; gives the act's number.
pub(crate) async fn delete(environment: &Environment, source: &str) -> u64 {
    act(environment, &["delete", "source", source, "--yes"]).await
}

/// Syncs, and waits for the end.
pub(crate) async fn refresh(environment: &Environment) {
    environment.json(&["refresh"], "").await.unwrap();
}
