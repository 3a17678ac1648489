//! dom0 and deletions: where it asks, it asks once for each word of the user's; what it refuses is refused.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use staging::environment::{Environment, EnvironmentOptions};
use staging::qrexec::broker::{CallId, Dom0User, Event, EventKind, Question, Reply};
use staging::server::{Change, Command, Fault, FaultAct, Matching};

use crate::support::*;

/// The policy of a newsroom that wants to be asked.
const STRICT: &str = include_str!("../../../qubes-rpc/dom0/strict/31-splitdrop.policy");
const DELETIONS: &str = "/api/v1/sources/*";

/// A newsroom where dom0 asks about calls that delete, and the client knows that.
pub(crate) fn asking(sources: u32) -> EnvironmentOptions {
    let mut options = options(sources, 2, "");
    options.client_config.insert_str(0, "dom0_asks = [\"delete\"]\n");
    options.policy.push(("31-splitdrop.policy".to_owned(), STRICT.to_owned()));
    options.qrexec.dom0_user = Dom0User::Present;
    options
}

/// How often dom0 has asked.
pub(crate) fn questions(environment: &Environment) -> usize {
    environment.broker().events().iter().filter(|event| matches!(event.kind, EventKind::Asked(_))).count()
}

/// How many calls that delete there were.
pub(crate) fn delete_calls(environment: &Environment) -> usize {
    let deletes = |kind: &EventKind| matches!(kind, EventKind::Requested { argument, .. } if argument == "delete");
    environment.broker().events().iter().filter(|event| deletes(&event.kind)).count()
}

async fn question(environment: &Environment) -> Question {
    let question = environment.broker().questions().next().await;
    assert_eq!((question.service.as_str(), question.argument.as_str()), ("splitdrop.Proxy", "delete"));
    question
}

pub(crate) async fn answer(environment: &Environment, reply: Reply) -> CallId {
    let question = question(environment).await;
    environment.broker().questions().answer(question.call, reply).unwrap();
    question.call
}

/// Stars or unstars a source and waits until that is done: whatever else could happen by itself has had its time.
pub(crate) async fn mark(environment: &Environment, id: &str) {
    let mut watch = environment.watch().await.unwrap();
    let starred = source(environment, id).await.unwrap()["starred"].as_bool().unwrap();
    let act = act(environment, &[if starred { "unstar" } else { "star" }, id]).await;
    until_act(&mut watch, act, "confirmed").await;
}

/// Kills the proxy's process of this call.
fn kill_service(environment: &Environment, call: CallId) {
    let started = |kind: &EventKind| match kind {
        EventKind::Started { pid, .. } => *pid,
        _other => None,
    };
    let events = environment.broker().events();
    let pid = events.iter().filter(|event| event.call == call).find_map(|event| started(&event.kind)).unwrap();
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
}

pub(crate) fn deletions(environment: &Environment, id: &str) -> u64 {
    changes(environment).of(&Change::SourceDeleted { source: record(environment, id) })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_question_holds_up_nothing_else_and_a_no_is_a_refusal() {
    let environment = signed_in_to(asking(4)).await;
    let ids = ids(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    let act = act(&environment, &["delete", "source", &ids[0], "--yes"]).await;
    let asked = question(&environment).await;
    let queued = queued(&environment, act).await.unwrap();
    assert_eq!((&queued["state"], &queued["attempts"]), (&json!("opening"), &json!(0)), "{queued}");
    let told = environment.run(["queue"], "").await.unwrap();
    assert!(told.stdout.contains("waiting for the proxy VM or dom0"), "{told:?}");
    assert_eq!(source_shows(&environment, &ids[0]).await, Shown::BeingDeleted);
    // Marks go on meanwhile, and syncs.
    mark(&environment, &ids[1]).await;
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(environment.broker().questions().pending(), std::slice::from_ref(&asked));

    environment.broker().questions().answer(asked.call, Reply::No).unwrap();
    let refused = until_act(&mut watch, act, "refused").await;
    assert!(refused["reason"].as_str().unwrap().contains("dom0"), "{refused}");
    assert_eq!(source_shows(&environment, &ids[0]).await, Shown::Ordinary);
    let entry = self::queued(&environment, act).await.unwrap();
    assert_eq!((&entry["state"], &entry["reason"]), (&json!("refused"), &refused["reason"]));
    mark(&environment, &ids[1]).await;
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!((questions(&environment), delete_calls(&environment)), (1, 1), "dom0 is not asked again");

    environment.json(&["retry", &act.to_string()], "").await.unwrap();
    assert_eq!(source_shows(&environment, &ids[0]).await, Shown::BeingDeleted);
    answer(&environment, Reply::Yes(None)).await;
    until_act(&mut watch, act, "confirmed").await;
    assert_eq!(source_shows(&environment, &ids[0]).await, Shown::Gone);
    assert_eq!((questions(&environment), deletions(&environment, &ids[0])), (2, 1));
    environment.stop().await.unwrap();
}

/// Case D3.
#[tokio::test(flavor = "multi_thread")]
async fn d3_a_lost_call_is_not_asked_for_again_without_the_user() {
    let environment = signed_in_to(asking(4)).await;
    let ids = ids(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    for effect in [true, false] {
        let id = &ids[usize::from(effect)];
        let (asked, made) = (questions(&environment), deletions(&environment, id));
        let hanging = if effect { FaultAct::HangAnswer } else { FaultAct::Hang };
        fails(&environment, Fault::new(Matching::method("DELETE", DELETIONS), hanging).times(1));
        let act = act(&environment, &["delete", "source", id, "--yes"]).await;
        let call = answer(&environment, Reply::Yes(None)).await;
        let path = format!("/api/v1/sources/{id}");
        until_log(&environment, |log| {
            log.requests().any(|one| one.method == "DELETE" && one.path == path && one.fault.is_some())
        })
        .await;
        kill_service(&environment, call);
        until_act(&mut watch, act, "postponed").await;
        let held = queued(&environment, act).await.unwrap();
        assert_eq!((&held["state"], &held["attempts"]), (&json!("held"), &json!(1)), "{held}");
        assert_eq!(source_shows(&environment, id).await, Shown::BeingDeleted);
        mark(&environment, &ids[2]).await;
        assert_eq!(questions(&environment), asked + 1, "dom0 is not asked again");

        environment.json(&["retry", &act.to_string()], "").await.unwrap();
        answer(&environment, Reply::Yes(None)).await;
        until_act(&mut watch, act, "confirmed").await;
        assert_eq!((questions(&environment), deletions(&environment, id)), (asked + 2, made + 1));
    }
    environment.stop().await.unwrap();
}

/// Case D3.
#[tokio::test(flavor = "multi_thread")]
async fn d3_a_daemon_that_was_killed_does_not_ask_dom0_again_by_itself() {
    let mut environment = signed_in_to(asking(4)).await;
    let ids = ids(&environment).await;
    // No snapshot tells what became of a deletion.
    happens(&environment, Command::FreezeLists);
    // Once while dom0 asks, and once while the server works.
    for agreed in [false, true] {
        let id = &ids[usize::from(agreed)];
        let asked = questions(&environment);
        fails(&environment, Fault::new(Matching::method("DELETE", DELETIONS), FaultAct::HoldAnswer));
        let act = act(&environment, &["delete", "source", id, "--yes"]).await;
        let call = question(&environment).await.call;
        if agreed {
            answer(&environment, Reply::Yes(None)).await;
            until_log(&environment, |log| log.held() == 1).await;
        }
        environment.stop_daemon(Signal::SIGKILL).await.unwrap();
        environment.start_daemon().await.unwrap();
        assert_eq!(source_shows(&environment, id).await, Shown::BeingDeleted);
        sign_in_again(&environment).await;
        mark(&environment, &ids[2 + usize::from(agreed)]).await;
        let held = queued(&environment, act).await.unwrap();
        assert_eq!((&held["state"], questions(&environment)), (&json!("held"), asked + 1), "{held}");
        assert_eq!(source_shows(&environment, id).await, Shown::BeingDeleted);
        happens(&environment, Command::ClearFaults);
        if !agreed {
            // The question outlives who asked: a yes to it is one to nobody.
            answer(&environment, Reply::Yes(None)).await;
        }
        let over = |event: &Event| event.call == call && matches!(event.kind, EventKind::Ended(_));
        environment.broker().until_events(|events| events.iter().any(over)).await;
        assert_eq!(deletions(&environment, id), u64::from(agreed));

        let mut watch = environment.watch().await.unwrap();
        environment.json(&["retry", &act.to_string()], "").await.unwrap();
        answer(&environment, Reply::Yes(None)).await;
        until_act(&mut watch, act, "confirmed").await;
        assert_eq!((questions(&environment), deletions(&environment, id)), (asked + 2, 1));
    }
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_one_call_may_delete_takes_several_calls() {
    for asks in [false, true] {
        let mut options = if asks { asking(6) } else { options(6, 2, "") };
        options.proxy_settings.insert("SD_PROXY_DELETE_LIMIT".to_owned(), "3".to_owned());
        let environment = signed_in_to(options).await;
        let five: Vec<_> = ids(&environment).await.into_iter().take(5).collect();
        let mut watch = environment.watch().await.unwrap();
        let mut words = vec!["delete", "source", "--yes"];
        words.extend(five.iter().map(String::as_str));
        let act = act(&environment, &words).await;
        if asks {
            // The user's word covers the act, and dom0 is asked about each call.
            for _ in 0..2 {
                answer(&environment, Reply::Yes(None)).await;
            }
        }
        for _ in 0..5 {
            until_act(&mut watch, act, "confirmed").await;
        }
        assert!(five.iter().all(|id| deletions(&environment, id) == 1), "{:?}", changes(&environment));
        assert_eq!((delete_calls(&environment), questions(&environment)), (2, if asks { 2 } else { 0 }));
        assert_eq!((listed(&environment).await.len(), queue(&environment).await.len()), (1, 0));
        environment.stop().await.unwrap();
    }
}
