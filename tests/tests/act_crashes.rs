//! Acts whose client is killed at a step: this program itself, started once more, is the client and kills itself there.
//! Then the real daemon goes on with what it left.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use client_vm::acts::{Step, Watcher};
use client_vm::clock::Clock;
use client_vm::download::Desk;
use client_vm::engine::{Engine, EngineParts};
use client_vm::erasure::Leftover;
use client_vm::files::Files;
use client_vm::openpgp;
use client_vm::proxy::Proxy;
use client_vm::settings::Settings;
use client_vm::store::Store;
use control::{Act, Event, ReplyText};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::value::{ItemId, OneTimeCode, Passphrase, SoftwareVersion, SourceId, Username};
use qubes_rpc::qrexec::Qrexec;
use serde_json::{Value, json};
use staging::environment::{Environment, EnvironmentOptions, QUIET, Watch};
use staging::generator::{MARLOW, NewsroomKey};
use staging::server::{Change, Command, KeyChoice, LoggedRequest, Outcome, RecordId, RequestLog, SourceState};
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Names the step, in the program that is to be killed.
const STEP: &str = "SPLITDROP_TEST_KILL_AT";
/// Set where it waits for a line before that.
const WAITS: &str = "SPLITDROP_TEST_WAITS";
/// What it does, as JSON.
const ACT: &str = "SPLITDROP_TEST_ACT";
/// The three lines with which it signs in.
const CREDENTIALS: &str = "SPLITDROP_TEST_CREDENTIALS";
/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(120);

/// When the client is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    /// As soon as the step was taken.
    At(Step),
    /// When it has handed over the call, and the server has done what that says.
    OnceDone,
}

impl Blow {
    /// Every blow that an act can meet; what is no reply is not prepared.
    fn all(replies: bool) -> impl Iterator<Item = Self> {
        let met = move |step: &Step| replies || *step != Step::Prepared;
        Step::ALL.into_iter().filter(met).map(Self::At).chain([Self::OnceDone])
    }

    fn step(self) -> Step {
        match self {
            Self::At(step) => step,
            Self::OnceDone => Step::Sent,
        }
    }

    /// How the queue shows the act afterwards, before a snapshot says more; none where it is done.
    fn leaves(self) -> Option<&'static str> {
        match self.step() {
            Step::Taken | Step::Prepared => Some("waiting"),
            Step::Begun | Step::Sent | Step::Answered => Some("unconfirmed"),
            Step::Settled => None,
        }
    }

    /// How many requests the killed client has made, at least and at most. Killed when the call is handed over, it may have
    /// written it or not.
    fn requests(self) -> (usize, usize) {
        match self {
            Self::At(Step::Taken | Step::Prepared | Step::Begun) => (0, 0),
            Self::At(Step::Sent) => (0, 1),
            Self::At(Step::Answered | Step::Settled) | Self::OnceDone => (1, 1),
        }
    }
}

#[derive(Debug)]
struct KillAt {
    step: Step,
    waits: bool,
}

impl Watcher for KillAt {
    fn step(&self, step: Step) {
        if step != self.step {
            return;
        }
        if self.waits {
            // The rest of the program goes on meanwhile, and writes what was handed over.
            tokio::task::block_in_place(|| std::io::stdin().read_line(&mut String::new()).unwrap());
        }
        kill(Pid::this(), Signal::SIGKILL).unwrap();
    }
}

/// What the started program does; without its variables, nothing.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_a_step() {
    let (Ok(step), Ok(act), Ok(credentials)) = (std::env::var(STEP), std::env::var(ACT), std::env::var(CREDENTIALS))
    else {
        return;
    };
    let step = Step::ALL.into_iter().find(|known| format!("{known:?}") == step).unwrap();
    let act: Act = serde_json::from_str(&act).unwrap();
    let [username, passphrase, code] = credentials.lines().collect::<Vec<_>>().try_into().unwrap();
    let settings = Settings::load(|name| std::env::var_os(name), None).unwrap();
    let software = SoftwareVersion::try_new("0.0.0-test").unwrap();
    let (store, files) = (Store::open(&settings.home).unwrap(), Files::open(&settings.home).unwrap());
    let (decryptor, newsroom) = openpgp::open(&settings.openpgp).unwrap();
    let parts = EngineParts {
        proxy: Proxy::new(Qrexec { program: settings.qrexec_client }, settings.proxy_vm, software.clone()),
        desk: Desk { store, files, files_without_etag: settings.files_without_etag },
        clock: Clock::System,
        software,
        sync: settings.sync,
        acts: settings.acts,
        decryptor,
        newsroom,
        leftover: Leftover::default(),
        handover: settings.handover,
        watcher: Arc::new(KillAt { step, waits: std::env::var_os(WAITS).is_some() }),
    };
    let (engine, handle) = Engine::new(parts).await.unwrap();
    let mut running = JoinSet::new();
    running.spawn(engine.run(CancellationToken::new()));
    let mut events = handle.subscribe().unwrap();
    handle
        .login(
            Username::try_new(username).unwrap(),
            Passphrase::try_new(passphrase).unwrap(),
            OneTimeCode::try_new(code).unwrap(),
        )
        .await
        .unwrap();
    while !matches!(events.recv().await.unwrap(), Event::SyncEnded(_)) {}
    handle.act(act).await.unwrap();
    // It is killed before.
    tokio::time::timeout(PATIENCE, running.join_next()).await.unwrap();
}

/// Something happens at the server.
fn happens(environment: &Environment, command: Command) -> Outcome {
    environment.server().control().apply(command).unwrap()
}

/// Where MARLOW was signed in once, so that the client has the source and its key; and the source.
async fn set_up() -> (Environment, SourceId) {
    let mut options = EnvironmentOptions::with_sources(1, 1).unwrap();
    options.client_config = format!("{QUIET}[acts]\nfirst_wait_ms = 50\nmost_wait_ms = 200\n");
    options.server.newsroom = NewsroomKey::Curve25519;
    let environment = Environment::with_daemon(options).await.unwrap();
    let control = environment.server().control();
    let source = control.with_world(|world| {
        let mut sources = world.sources().filter(|source| source.state == SourceState::Listed);
        sources.next().unwrap().id.clone()
    });
    // One on Curve25519, which is quick.
    happens(&environment, Command::SetKey { source: source.clone(), key: KeyChoice::Pool(1) });
    environment.first_login(&MARLOW).await.unwrap();
    (environment, source.as_str().parse().unwrap())
}

/// Ends the daemon, and has a client do this act that is killed; `is_its` are the requests that the act makes. Then starts
/// the daemon. Gives how many requests the killed client made.
async fn kill_at(
    environment: &mut Environment,
    blow: Blow,
    act: &Act,
    is_its: impl Fn(&LoggedRequest) -> bool,
) -> usize {
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    // A one-time code is taken once.
    happens(environment, Command::AdvanceClock { seconds: 90 });
    let control = environment.server().control().clone();
    let before = control.with_log(|log| log.requests().filter(|one| is_its(one)).count());
    let mut program = tokio::process::Command::new(std::env::current_exe().unwrap());
    program
        .args(["--exact", "killed_at_a_step", "--nocapture"])
        .env_clear()
        .envs(environment.variables())
        .env(STEP, format!("{:?}", blow.step()))
        .env(ACT, serde_json::to_string(act).unwrap())
        .env(CREDENTIALS, environment.credentials(&MARLOW))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    if blow == Blow::OnceDone {
        program.env(WAITS, "");
    }
    let mut client = program.spawn().unwrap();
    if blow == Blow::OnceDone {
        let is_done =
            |log: &RequestLog| log.requests().filter(|one| is_its(one) && one.ended.is_some()).count() > before;
        tokio::time::timeout(PATIENCE, control.wait_for_log(is_done)).await.unwrap();
        client.stdin.as_mut().unwrap().write_all(b"\n").await.unwrap();
    }
    let ended = tokio::time::timeout(PATIENCE, client.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(ended.status.signal(), Some(9), "{blow:?}: {}", String::from_utf8_lossy(&ended.stderr));
    // Its proxies go on to the end of what they were told.
    tokio::time::timeout(PATIENCE, environment.broker().until(|counts| counts.open == 0)).await.unwrap();
    tokio::time::timeout(PATIENCE, control.wait_for_log(|log| log.in_flight() == 0)).await.unwrap();
    environment.start_daemon().await.unwrap();
    control.with_log(|log| log.requests().filter(|one| is_its(one)).count()) - before
}

/// Signs MARLOW in once more.
async fn sign_in_again(environment: &Environment) {
    happens(environment, Command::AdvanceClock { seconds: 90 });
    environment.login(&MARLOW).await.unwrap();
}

async fn queue(environment: &Environment) -> Vec<Value> {
    environment.json(&["queue"], "").await.unwrap()["queue"].as_array().unwrap().clone()
}

/// The queue shows the one act as this blow leaves it.
async fn assert_left(environment: &Environment, blow: Blow) {
    let queue = queue(environment).await;
    let states: Vec<_> = queue.iter().map(|entry| entry["state"].as_str().unwrap()).collect();
    assert_eq!(states, blow.leaves().into_iter().collect::<Vec<_>>(), "{blow:?}");
}

/// Waits until nothing waits any more, and syncs once more.
async fn until_settled(environment: &Environment, watch: &mut Watch) {
    while !queue(environment).await.is_empty() {
        watch.next().await.unwrap();
    }
    environment.json(&["refresh"], "").await.unwrap();
}

async fn show(environment: &Environment, source: SourceId) -> Value {
    environment.json(&["show", source.as_str()], "").await.unwrap()
}

/// How often this was changed at the server.
fn changed(environment: &Environment, change: &Change) -> u64 {
    environment.server().control().with_world(|world| world.changes()).of(change)
}

/// Cases R1 and R2.
#[tokio::test(flavor = "multi_thread")]
async fn r1_r2_killed_at_any_step_a_reply_is_read_once() {
    let (mut environment, source) = set_up().await;
    for (number, blow) in Blow::all(true).enumerate() {
        let words = format!("reply {number}, on paper");
        let reply = uuid::Uuid::new_v4().to_string();
        let text = ReplyText::try_new(words.clone()).unwrap();
        let act = Act::Reply { source, reply: reply.parse().unwrap(), text };
        let is_sending = |one: &LoggedRequest| one.method == "POST" && one.path.ends_with("/replies");
        let made = kill_at(&mut environment, blow, &act, is_sending).await;
        let (least, most) = blow.requests();
        assert!((least..=most).contains(&made), "{blow:?}: {made}");

        assert_left(&environment, blow).await;
        let shown = show(&environment, source).await;
        let [outgoing] = shown["outgoing"].as_array().unwrap().as_slice() else { unreachable!("{blow:?}: {shown}") };
        assert_eq!((&outgoing["uuid"], &outgoing["text"]), (&json!(reply), &json!(words)), "{blow:?}");
        assert_eq!(outgoing["state"], blow.leaves().unwrap_or("confirmed"), "{blow:?}");

        let mut watch = environment.watch().await.unwrap();
        sign_in_again(&environment).await;
        while show(&environment, source).await["outgoing"] != json!([]) {
            watch.until("sync_ended").await.unwrap();
        }
        until_settled(&environment, &mut watch).await;
        let shown = show(&environment, source).await;
        let items = shown["items"].as_array().unwrap();
        let own: Vec<_> = items.iter().filter(|item| item["uuid"] == reply.as_str()).collect();
        let [item] = own.as_slice() else { unreachable!("{blow:?}: {shown}") };
        assert_eq!((&item["text"], &item["author"], &item["own"]), (&json!(words), &json!("marlow"), &json!(true)));
        let control = environment.server().control();
        let stored = control.with_world(|world| {
            let sent = |one: &&RecordId| one.as_str() == reply;
            let ids: Vec<_> = world.replies().map(|one| &one.id).filter(sent).cloned().collect();
            ids
        });
        let [stored] = stored.as_slice() else { unreachable!("{blow:?}: {stored:?}") };
        assert_eq!(control.source_reads(stored).await.unwrap().text, words, "{blow:?}");
        let sent = |change: &Change| matches!(change, Change::ReplySent { .. });
        let so_far = u64::try_from(number).unwrap() + 1;
        assert_eq!(control.with_world(|world| world.changes()).sum(sent), so_far, "{blow:?}");
        let sendings = control.requests().iter().filter(|one| is_sending(one)).count();
        assert_eq!(sendings, number + 1, "{blow:?}: a snapshot told which was there");
    }
    environment.stop().await.unwrap();
}

/// Case D8.
#[tokio::test(flavor = "multi_thread")]
async fn d8_killed_at_any_step_a_star_is_set_once() {
    let (mut environment, source) = set_up().await;
    let record = RecordId::from(source.as_str());
    let set = Change::StarSet { source: record.clone() };
    for (number, blow) in Blow::all(false).enumerate() {
        happens(&environment, Command::Unstar { source: record.clone() });
        let is_star = |one: &LoggedRequest| one.method == "POST" && one.path.ends_with("/add_star");
        let made = kill_at(&mut environment, blow, &Act::Star { sources: vec![source] }, is_star).await;
        let (least, most) = blow.requests();
        assert!((least..=most).contains(&made), "{blow:?}: {made}");

        assert_left(&environment, blow).await;
        assert_eq!(show(&environment, source).await["source"]["starred"], true, "{blow:?}");

        let mut watch = environment.watch().await.unwrap();
        sign_in_again(&environment).await;
        until_settled(&environment, &mut watch).await;
        assert_eq!(show(&environment, source).await["source"]["starred"], true, "{blow:?}");
        assert_eq!(changed(&environment, &set), u64::try_from(number).unwrap() + 1, "{blow:?}");
    }
    environment.stop().await.unwrap();
}

/// Cases D1 and D3.
#[tokio::test(flavor = "multi_thread")]
async fn d1_d3_killed_at_any_step_a_deletion_is_made_once() {
    let (mut environment, source) = set_up().await;
    for blow in Blow::all(false) {
        let message = Command::NewMessage { source: source.as_str().into(), size: 700 };
        let Outcome::Item { uuid: message, .. } = happens(&environment, message) else { unreachable!() };
        let act = Act::DeleteItems { source, items: vec![ItemId::Submission(message.as_str().parse().unwrap())] };
        let is_deletion = |one: &LoggedRequest| one.method == "DELETE" && one.path.ends_with(message.as_str());
        let made = kill_at(&mut environment, blow, &act, is_deletion).await;
        let (least, most) = blow.requests();
        assert!((least..=most).contains(&made), "{blow:?}: {made}");

        assert_left(&environment, blow).await;
        let shown = show(&environment, source).await;
        let its = |shown: &Value| {
            let items = shown["items"].as_array().unwrap().iter();
            items.filter(|item| item["uuid"] == message.as_str()).cloned().collect::<Vec<_>>()
        };
        let being_deleted: Vec<_> = its(&shown).iter().map(|item| item["being_deleted"].as_bool().unwrap()).collect();
        assert_eq!(being_deleted, blow.leaves().map(|_| true).into_iter().collect::<Vec<_>>(), "{blow:?}");

        let mut watch = environment.watch().await.unwrap();
        sign_in_again(&environment).await;
        until_settled(&environment, &mut watch).await;
        assert_eq!(its(&show(&environment, source).await), [] as [Value; 0], "{blow:?}");
        let control = environment.server().control();
        assert!(control.with_world(|world| world.submission(message.as_str()).is_none()), "{blow:?}");
        let deleted = Change::SubmissionDeleted { submission: message.clone() };
        assert_eq!(changed(&environment, &deleted), 1, "{blow:?}");
    }
    environment.stop().await.unwrap();
}
