//! Environments for replies, and what tests ask of them.

use std::time::Duration;

use serde_json::{Value, json};
use staging::environment::{Environment, EnvironmentOptions, QUIET, Watch};
use staging::generator::{Account, KeyPair, MARLOW, NewsroomKey};
use staging::server::{
    Change, Command, Fault, FaultAct, KeyChoice, LoggedRequest, Matching, Outcome, RecordId, RequestLog, SourceState,
    Whose,
};
use staging::socks::{Act, Reply, SocksFault};

/// Where replies are sent to.
pub(crate) const REPLIES: &str = "/api/v1/sources/*/replies";
/// Short waits, so that what goes wrong is tried again soon.
const SHORT_WAITS: &str = "[acts]\nfirst_wait_ms = 50\nmost_wait_ms = 200\n";
/// A bound for what hangs, not a measure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// What is refused since it contradicts what is there: the exit code.
pub(crate) const CONFLICT: i32 = 10;

/// A world of so many sources with an item each, and short waits with these lines besides in the table of acts.
pub(crate) fn options(sources: u32, settings: &str) -> EnvironmentOptions {
    let mut options = EnvironmentOptions::with_sources(sources, 1).unwrap();
    options.client_config = format!("{QUIET}{SHORT_WAITS}{settings}");
    options.server.newsroom = NewsroomKey::Curve25519;
    options
}

/// Two sources, and nothing is tried twice while a test runs, but for a sync that reaches the server.
pub(crate) fn no_second_try() -> EnvironmentOptions {
    let mut options = options(2, "");
    options.client_config = format!("{QUIET}[acts]\nfirst_wait_ms = 600000\nmost_wait_ms = 600000\n");
    options
}

/// An environment of such a world, where MARLOW is signed in and the first sync has ended, and the sources' ids.
pub(crate) async fn signed_in(sources: u32) -> (Environment, Vec<String>) {
    signed_in_to(options(sources, "")).await
}

/// The same in an environment of other options.
pub(crate) async fn signed_in_to(options: EnvironmentOptions) -> (Environment, Vec<String>) {
    let environment = Environment::with_daemon(options).await.unwrap();
    set_quick_keys(&environment);
    login(&environment, &MARLOW).await;
    let ids = ids(&environment).await;
    (environment, ids)
}

/// Every source has a key on Curve25519: those are quick. In the pool they take turns with others.
pub(crate) fn set_quick_keys(environment: &Environment) {
    let sources: Vec<_> =
        environment.server().control().with_world(|world| world.sources().map(|source| source.id.clone()).collect());
    for (number, source) in sources.into_iter().enumerate() {
        happens(environment, Command::SetKey { source, key: KeyChoice::Pool(number % 4 * 2 + 1) });
    }
}

/// Signs somebody in, where nobody else is, and syncs: a one-time code is taken once.
pub(crate) async fn login(environment: &Environment, account: &Account) {
    happens(environment, Command::AdvanceClock { seconds: 90 });
    environment.login(account).await.unwrap();
    sync(environment).await;
}

/// Syncs, and waits until keys that came are looked at.
pub(crate) async fn sync(environment: &Environment) {
    refresh(environment).await;
    environment.listed_with_keys().await.unwrap();
}

/// Syncs, and waits for the end.
pub(crate) async fn refresh(environment: &Environment) {
    environment.json(&["refresh"], "").await.unwrap();
}

/// The sources as the client lists them.
pub(crate) async fn listed(environment: &Environment) -> Vec<Value> {
    environment.json(&["sources"], "").await.unwrap()["sources"].as_array().unwrap().clone()
}

/// The ids of the sources in the client's order.
async fn ids(environment: &Environment) -> Vec<String> {
    listed(environment).await.iter().map(|source| source["uuid"].as_str().unwrap().to_owned()).collect()
}

/// What is shown of a source's conversation.
pub(crate) async fn show(environment: &Environment, source: &str) -> Value {
    environment.json(&["show", source], "").await.unwrap()
}

/// How the program stands.
pub(crate) async fn status(environment: &Environment) -> Value {
    environment.json(&["status"], "").await.unwrap()
}

/// What waits, runs or was refused.
pub(crate) async fn queue(environment: &Environment) -> Vec<Value> {
    environment.json(&["queue"], "").await.unwrap()["queue"].as_array().unwrap().clone()
}

/// What the queue says of an act.
pub(crate) async fn queued(environment: &Environment, act: u64) -> Option<Value> {
    queue(environment).await.into_iter().find(|entry| entry["act"] == act)
}

/// Answers a source; gives the act's number.
pub(crate) async fn reply(environment: &Environment, source: &str, text: &str) -> u64 {
    let answer = environment.json(&["reply", source, "--message", text], "").await.unwrap();
    let [act] = answer["acts"].as_array().unwrap().as_slice() else { unreachable!("{answer}") };
    assert_eq!((&act["objects"], &act["already"]), (&json!(1), &json!(0)));
    act["act"].as_u64().unwrap()
}

/// What is shown of a reply that the server does not list.
pub(crate) async fn outgoing(environment: &Environment, source: &str, act: u64) -> Option<Value> {
    let shown = show(environment, source).await;
    shown["outgoing"].as_array().unwrap().iter().find(|reply| reply["act"] == act).cloned()
}

/// The state of a reply that the server does not list, and its text.
pub(crate) async fn state(environment: &Environment, source: &str, act: u64) -> (String, String) {
    let reply = outgoing(environment, source, act).await.unwrap();
    let word = |name: &str| reply[name].as_str().unwrap().to_owned();
    (word("state"), word("text"))
}

/// The id of a reply that the server does not list.
pub(crate) async fn id_of(environment: &Environment, source: &str, act: u64) -> RecordId {
    outgoing(environment, source, act).await.unwrap()["uuid"].as_str().unwrap().into()
}

/// The draft to a source.
pub(crate) async fn draft(environment: &Environment, source: &str) -> Value {
    show(environment, source).await["draft"].clone()
}

/// Waits until this act takes this step.
pub(crate) async fn until_act(watch: &mut Watch, act: u64, wanted: &str) -> Value {
    loop {
        let event = watch.until("act").await.unwrap();
        if event["act"] == act && event["step"] == wanted {
            return event;
        }
    }
}

/// Waits until the server lists a reply, and no row of it is left.
pub(crate) async fn until_listed(environment: &Environment, watch: &mut Watch, source: &str, act: u64) {
    while outgoing(environment, source, act).await.is_some() {
        watch.until("sync_ended").await.unwrap();
    }
}

/// Something happens at the server.
pub(crate) fn happens(environment: &Environment, command: Command) -> Outcome {
    environment.server().control().apply(command).unwrap()
}

/// Somebody becomes a source; gives the id.
pub(crate) fn newcomer(environment: &Environment, key: KeyChoice) -> String {
    match happens(environment, Command::NewSource { designation: None, key, state: SourceState::Listed }) {
        Outcome::Source { uuid, .. } => uuid.as_str().to_owned(),
        other => unreachable!("{other:?}"),
    }
}

/// The server offers this key of a source.
pub(crate) fn set_key(environment: &Environment, source: &str, key: &KeyPair) {
    let key = Some(key.secret_armor().unwrap());
    happens(environment, Command::SetSourceKey { source: source.into(), key, fingerprint: None });
}

/// How the key of a source stands, as the client says.
pub(crate) async fn key(environment: &Environment, source: &str) -> Value {
    show(environment, source).await["source"]["key"].clone()
}

/// From now on something goes wrong with replies, as often as said; gives the rule.
pub(crate) fn fails(environment: &Environment, act: FaultAct, times: u32) -> u64 {
    let fault = Fault::new(Matching::method("POST", REPLIES), act).times(times);
    environment.server().control().add_fault(fault).unwrap()
}

/// The rule goes, and the answers that wait by it go out.
pub(crate) fn release(environment: &Environment, rule: u64) {
    happens(environment, Command::RemoveFault { id: rule });
}

/// Waits until this is true of the server's log.
pub(crate) async fn until_log(environment: &Environment, wanted: impl FnMut(&RequestLog) -> bool) {
    tokio::time::timeout(PATIENCE, environment.server().control().wait_for_log(wanted)).await.unwrap();
}

/// Waits until a rule acts on a request, which then has no answer.
pub(crate) async fn until_acted(environment: &Environment, rule: u64) {
    until_log(environment, |log| log.requests().any(|one| one.fault == Some(rule))).await;
}

/// Waits until the server has done what this rule then holds the answer to.
pub(crate) async fn until_held(environment: &Environment, rule: u64) {
    until_log(environment, |log| log.requests().any(|one| one.fault == Some(rule) && one.held)).await;
}

/// There is no way to the server any more; gives the rule.
pub(crate) async fn cut(environment: &Environment) -> u64 {
    let cut = environment.socks().add_fault(SocksFault::new(Act::Reply(Reply::HOST_UNREACHABLE))).unwrap();
    environment.socks().cut_all().await;
    cut
}

/// There is one again.
pub(crate) fn mend(environment: &Environment, cut: u64) {
    assert!(environment.socks().remove_fault(cut));
}

/// The requests that send replies.
pub(crate) fn sendings(environment: &Environment) -> Vec<LoggedRequest> {
    let sends = |one: &LoggedRequest| one.method == "POST" && one.path.ends_with("/replies");
    environment.server().control().requests().into_iter().filter(sends).collect()
}

/// The replies that journalists sent, in the order in which the server stored them; each was stored once.
pub(crate) fn stored(environment: &Environment) -> Vec<RecordId> {
    environment.server().control().with_world(|world| {
        let changes = world.changes();
        let sent = |reply: &RecordId| {
            changes.iter().any(|(change, _)| matches!(change, Change::ReplySent { reply: sent, .. } if sent == reply))
        };
        assert!(changes.most() <= 1, "{changes:?}");
        world.replies().map(|reply| reply.id.clone()).filter(sent).collect()
    })
}

/// What a source reads in the replies that journalists sent, in the order in which the server stored them.
pub(crate) async fn read_by_sources(environment: &Environment) -> Vec<String> {
    let mut texts = Vec::new();
    for reply in stored(environment) {
        texts.push(environment.server().control().source_reads(&reply).await.unwrap().text);
    }
    texts
}

/// Nothing waits any more: the source reads these replies and no others, the newsroom too, nobody else can, and what is
/// shown of the conversation is what the server has.
pub(crate) async fn assert_told(environment: &Environment, source: &str, texts: &[&str]) {
    assert_eq!(queue(environment).await, [] as [Value; 0]);
    let shown = show(environment, source).await;
    assert_eq!((&shown["outgoing"], &shown["draft"]), (&json!([]), &Value::Null), "{shown}");
    let stored = stored(environment);
    assert_eq!(stored.len(), texts.len(), "each is stored once");
    let control = environment.server().control();
    for (reply, text) in stored.iter().zip(texts) {
        let reading = control.source_reads(reply).await.unwrap();
        assert_eq!((reading.text.as_str(), control.newsroom_reads(reply).await.unwrap().text.as_str()), (*text, *text));
        let whose: Vec<_> = reading.recipients.iter().map(|recipient| recipient.whose).collect();
        assert_eq!(whose, [Whose::Source, Whose::Newsroom]);
        let item = shown["items"].as_array().unwrap().iter().find(|item| item["uuid"] == reply.as_str()).unwrap();
        assert_eq!((&item["text"], &item["author"], &item["own"]), (&json!(text), &json!("marlow"), &json!(true)));
        assert_eq!((&item["unread"], &item["content"]["state"]), (&json!(false), &json!("decrypted")));
    }
    let mut here: Vec<_> = shown["items"].as_array().unwrap().iter().map(|item| item["uuid"].clone()).collect();
    let mut there: Vec<_> = control.with_world(|world| {
        let row = world.source(source).unwrap();
        let submissions = world.submissions_of(row).map(|item| json!(item.id.as_str()));
        submissions.chain(world.replies_of(row).map(|item| json!(item.id.as_str()))).collect()
    });
    here.sort_by_key(Value::to_string);
    there.sort_by_key(Value::to_string);
    assert_eq!(here, there);
    assert_eq!(downloads(environment, &stored), 0, "what was sent is shown without being fetched");
}

/// How often replies were downloaded.
fn downloads(environment: &Environment, replies: &[RecordId]) -> usize {
    let of_them = |one: &LoggedRequest| replies.iter().any(|reply| one.path.contains(reply.as_str()));
    let downloads = |one: &&LoggedRequest| one.method == "GET" && of_them(one) && one.path.ends_with("/download");
    environment.server().control().requests().iter().filter(downloads).count()
}

/// From now on lists are made and their answers wait; gives the rule.
pub(crate) fn hold_lists(environment: &Environment) -> u64 {
    let fault = Fault::new(Matching::method("GET", "/api/v1/*"), FaultAct::HoldAnswer);
    environment.server().control().add_fault(fault).unwrap()
}
