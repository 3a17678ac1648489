//! Everything at once, and calls that do not start: at the end the client holds what the server has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use control::client::{Arrival, Client};
use control::{Deletion, ItemKind, Reply, Request, SourceRow};
use sha2::Digest as _;
use staging::environment::{Environment, EnvironmentOptions, KeyAccess, PROXY_VM, Watch};
use staging::generator::MARLOW;
use staging::qrexec::broker::{Event, EventKind, RefusedBy, Start, StartOutcome};
use staging::server::{Command, FaultAct, RecordId, SourceState};
use tokio::task::JoinSet;

use crate::support::*;

/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(300);

/// What each source has, by whether it is a reply, and its id.
type Inbox = BTreeMap<String, BTreeSet<(bool, String)>>;

fn at_the_server(environment: &Environment) -> Inbox {
    environment.server().control().with_world(|world| {
        let listed = world.sources().filter(|source| source.state == SourceState::Listed);
        let items = |source| {
            let submissions = world.submissions_of(source).map(|item| (false, item.id.to_string()));
            submissions.chain(world.replies_of(source).map(|reply| (true, reply.id.to_string()))).collect()
        };
        listed.map(|source| (source.id.to_string(), items(source))).collect()
    })
}

/// What the server claims of each message and reply of listed sources.
async fn digests_at_the_server(environment: &Environment) -> BTreeSet<String> {
    let control = environment.server().control();
    let wanted: Vec<RecordId> = control.with_world(|world| {
        let listed = world.sources().filter(|source| source.state == SourceState::Listed);
        let items = |source| {
            let messages = world.submissions_of(source).filter(|item| item.filename.ends_with("msg.gpg"));
            let replies = world.replies_of(source).map(|reply| reply.id.clone());
            messages.map(|item| item.id.clone()).chain(replies).collect::<Vec<_>>()
        };
        listed.flat_map(items).collect()
    });
    let mut digests = BTreeSet::new();
    for item in wanted {
        digests.insert(control.etag(&item).await.unwrap());
    }
    digests
}

/// What the client holds, by what the server would claim of it; and how many parts.
fn digests_held(environment: &Environment) -> (BTreeSet<String>, usize) {
    let digest = |bytes: Vec<u8>| {
        let hex: String = sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{hex}")
    };
    let (whole, parts) = held(environment);
    (whole.into_iter().map(digest).collect(), parts)
}

async fn ask(client: &mut Client, request: Request) -> Vec<Reply> {
    let mut replies = Vec::new();
    let take = |arrival| match arrival {
        Arrival::Reply(reply) => replies.push(reply),
        Arrival::Event(event) => unreachable!("{event:?}"),
    };
    client.request(request, take).await.unwrap();
    replies
}

async fn sources(client: &mut Client) -> Vec<SourceRow> {
    let rows = ask(client, Request::Sources).await.into_iter().map(|reply| match reply {
        Reply::Sources(rows) => rows,
        other => unreachable!("{other:?}"),
    });
    rows.flatten().collect()
}

/// All that a front end is shown.
async fn shown(client: &mut Client) -> Inbox {
    let mut inbox = Inbox::new();
    for row in sources(client).await {
        assert_eq!(row.deletion, Deletion::None);
        let replies = ask(client, Request::Show { source: row.id.to_string() }).await;
        let items = replies.into_iter().filter_map(|reply| match reply {
            Reply::Conversation(items) => Some(items),
            _other => None,
        });
        let key = |kind| match kind {
            ItemKind::Submission { id, .. } => (false, id.to_string()),
            ItemKind::Reply { id, .. } => (true, id.to_string()),
        };
        inbox.insert(row.id.to_string(), items.flatten().map(|item| key(item.kind)).collect());
    }
    inbox
}

/// A front end that reads all the time; `rounds` counts how often it has read everything.
async fn read(mut client: Client, conversations: Vec<String>, rounds: &AtomicU64) {
    loop {
        assert!(!sources(&mut client).await.is_empty());
        for source in &conversations {
            ask(&mut client, Request::Show { source: source.clone() }).await;
        }
        ask(&mut client, Request::Status).await;
        ask(&mut client, Request::Queue).await;
        ask(&mut client, Request::Downloads).await;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

async fn waiting(environment: &Environment) -> u64 {
    let status = environment.json(&["status"], "").await.unwrap();
    ["acts", "messages"].map(|lane| status["lanes"][lane]["waiting"].as_u64().unwrap()).iter().sum()
}

/// Waits until so many downloads are stored, and so many deletions confirmed.
async fn until_done(watch: &mut Watch, stored: usize, confirmed: usize) {
    let mut done = (0, 0);
    while done.0 < stored || done.1 < confirmed {
        let event = watch.next().await.unwrap();
        match (event["event"].as_str().unwrap(), event["step"].as_str()) {
            ("download", Some("stored")) => done.0 += 1,
            ("act", Some("confirmed")) => done.1 += 1,
            ("download", Some("failed" | "postponed")) | ("act", Some("refused" | "postponed")) => {
                unreachable!("{event}")
            }
            ("missed", _) => unreachable!("the test reads too slowly"),
            _other => {}
        }
    }
}

/// Case T1: a sync, messages, deletions and front ends that read, all at once. The sync's lists are of before the
/// deletions, and come after them.
#[tokio::test(flavor = "multi_thread")]
async fn t1_a_sync_and_downloads_and_deletions_and_readers_do_not_get_in_each_others_way() {
    const DELETED: usize = 20;
    const STORED: usize = 50;
    let environment = environment(1_000, 1, ASKED).await;
    let control = environment.server().control();
    // Nothing is fetched or sent before the sync is on its way.
    environment.json(&["pause"], "").await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let mut client = Client::connect(&environment.control_socket()).await.unwrap();
    let ids: Vec<_> = sources(&mut client).await.iter().map(|row| row.id.to_string()).collect();
    let (doomed, kept) = ids.split_at(DELETED);
    let mut watch = environment.watch().await.unwrap();

    let held_back: Vec<_> = ["/api/v1/sources", "/api/v1/submissions", "/api/v1/replies"]
        .map(|path| fault(&environment, path, FaultAct::HoldAnswer))
        .to_vec();
    let mut refreshing = JoinSet::new();
    refreshing.spawn(environment.splitdrop(["refresh"]).output());
    control.wait_for_log(|log| log.held() == held_back.len()).await;
    let rounds = [AtomicU64::new(0), AtomicU64::new(0)];
    let reader = async |rounds| {
        let client = Client::connect(&environment.control_socket()).await.unwrap();
        read(client, kept.iter().take(10).cloned().collect(), rounds).await;
    };
    let work = async {
        environment.json(&["resume"], "").await.unwrap();
        let deletions = async {
            for source in doomed {
                environment.json(&["delete", "source", source, "--yes"], "").await.unwrap();
            }
        };
        // What is doomed may be among what is stored.
        tokio::join!(deletions, until_done(&mut watch, STORED + DELETED, DELETED));
        let before = rounds.each_ref().map(|rounds| rounds.load(Ordering::Relaxed));
        assert!(before.iter().all(|rounds| *rounds > 0), "{before:?}");
        for id in held_back {
            control.apply(Command::RemoveFault { id }).unwrap();
        }
        while let Some(refreshed) = refreshing.join_next().await {
            let refreshed = refreshed.unwrap().unwrap();
            assert!(refreshed.status.success(), "{refreshed:?}");
        }
        // What the sync brought of deleted sources is not shown again.
        let rows = sources(&mut client).await;
        assert!(rows.iter().all(|row| !doomed.contains(&row.id.to_string())));
    };
    // The readers fail with the first request that does.
    let all = async {
        tokio::select! {
            () = work => {}
            () = reader(&rounds[0]) => {}
            () = reader(&rounds[1]) => {}
        }
    };
    tokio::time::timeout(PATIENCE, all).await.unwrap();

    // What is fetched by now is enough.
    environment.json(&["pause"], "").await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let server = at_the_server(&environment);
    assert_eq!(server.len(), kept.len());
    assert_eq!(shown(&mut client).await, server);
    let wanted = digests_at_the_server(&environment).await;
    let agree = async {
        // Files go behind the confirmation, with the next sync at the latest.
        while !digests_held(&environment).0.is_subset(&wanted) {
            environment.json(&["refresh"], "").await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, agree).await.unwrap();
    assert!(digests_held(&environment).0.len() >= STORED);
    environment.stop().await.unwrap();
}

/// The calls of the lane, as dom0 saw them: how often one was asked for, and how often its VM did not start.
fn download_calls(events: &[Event]) -> (usize, usize) {
    let calls: BTreeSet<_> = events
        .iter()
        .filter(|event| matches!(&event.kind, EventKind::Requested { argument, .. } if argument == "download"))
        .map(|event| event.call)
        .collect();
    let refused = EventKind::Refused(RefusedBy::NotStarted);
    let refused = events.iter().filter(|event| calls.contains(&event.call) && event.kind == refused);
    (calls.len(), refused.count())
}

/// Case Q6: the VM is gone, and does not start for the lane's first calls. Nobody does anything about it, and everything
/// comes.
#[tokio::test(flavor = "multi_thread")]
async fn q6_calls_that_do_not_start_are_made_again_until_everything_is_there() {
    const FAILURES: usize = 3;
    let mut options = EnvironmentOptions::with_sources(5, 4).unwrap();
    options.key = KeyAccess::Unreachable;
    options.client_config = ASKED.to_owned();
    options.qrexec.start = Start::Gated;
    let environment = Environment::with_daemon(options).await.unwrap();
    let vms = environment.broker().vms();
    // The lists are there, and nothing is fetched yet.
    environment.json(&["pause"], "").await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    vms.halt(PROXY_VM).unwrap();
    environment.broker().until(|counts| counts.open == 0).await;
    let mut watch = environment.watch().await.unwrap();
    environment.json(&["resume"], "").await.unwrap();
    let work = async {
        for _ in 0..FAILURES {
            vms.until_starting(PROXY_VM).await;
            vms.finish_start(PROXY_VM, StartOutcome::Failed).unwrap();
        }
        vms.until_starting(PROXY_VM).await;
        assert_eq!(download_calls(&environment.broker().events()), (FAILURES + 1, FAILURES));
        vms.finish_start(PROXY_VM, StartOutcome::Running).unwrap();
        while waiting(&environment).await > 0 {
            watch.until("download").await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, work).await.unwrap();
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["paused"], serde_json::json!([]));
    assert_eq!(status["lanes"]["messages"]["failed"], 0);
    assert_eq!(digests_held(&environment), (digests_at_the_server(&environment).await, 0));
    assert_eq!(download_calls(&environment.broker().events()), (FAILURES + 1, FAILURES));
    environment.stop().await.unwrap();
}
