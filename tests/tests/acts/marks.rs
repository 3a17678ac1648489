//! What a journalist has seen: marked in one call, each for whoever saw it.

use std::collections::BTreeSet;

use staging::environment::Environment;
use staging::generator::TERNBERG;
use staging::server::{Change, Changes, Command, KeyChoice, LoggedRequest, Outcome, RecordId, SourceState};

use crate::support::*;

const SEEN: &str = "/api/v1/seen";

/// A source with nothing from it yet.
fn new_source(environment: &Environment) -> RecordId {
    let command = Command::NewSource { designation: None, key: KeyChoice::Any, state: SourceState::Listed };
    match happens(environment, command) {
        Outcome::Source { uuid, .. } => uuid,
        other => unreachable!("{other:?}"),
    }
}

/// Files, messages and replies of a colleague's in turn; gives what marks of MARLOW's on them would be.
fn write(environment: &Environment, source: &RecordId, items: usize) -> Vec<(RecordId, Change)> {
    let journalist = journalist(environment, "marlow");
    let one = |at: usize| {
        let (source, journalist) = (source.clone(), journalist.clone());
        let command = match at % 3 {
            0 => Command::NewMessage { source, size: 1_536 },
            1 => Command::NewFile { source, size: 1_536 },
            _ => Command::NewReply { source, journalist: "ternberg".to_owned(), size: 1_536 },
        };
        let Outcome::Item { uuid, .. } = happens(environment, command) else { unreachable!() };
        let change = match at % 3 {
            0 | 1 => Change::SubmissionSeen { submission: uuid.clone(), journalist },
            _ => Change::ReplySeen { reply: uuid.clone(), journalist },
        };
        (uuid, change)
    };
    (0..items).map(one).collect()
}

fn journalist(environment: &Environment, name: &str) -> RecordId {
    environment.server().control().with_world(|world| world.journalist_named(name).unwrap().id.clone())
}

async fn unread(environment: &Environment, source: &RecordId) -> BTreeSet<String> {
    let items = items(environment, source.as_str()).await;
    let unread = items.iter().filter(|item| item["unread"] == true);
    unread.map(|item| item["uuid"].as_str().unwrap().to_owned()).collect()
}

/// How many ids the one request to mark items named: each is 36 characters in quotes with a comma, and what is around
/// them in the body is shorter than one.
fn named_in_the_only_request(environment: &Environment) -> usize {
    environment.server().control().with_log(|log| {
        let requests: Vec<&LoggedRequest> = log.requests().filter(|one| one.path == SEEN).collect();
        let [request] = requests.as_slice() else { unreachable!("{} requests", requests.len()) };
        request.header("content-length").unwrap().parse::<usize>().unwrap() / 39
    })
}

/// Case D9.
#[tokio::test(flavor = "multi_thread")]
async fn d9_one_call_marks_exactly_what_was_unread() {
    let environment = signed_in(1, 1).await;
    let source = new_source(&environment);
    let mut all = write(&environment, &source, 160);
    // Nine were seen already, elsewhere; a colleague has seen some of the others.
    for (item, _) in all.drain(..9) {
        happens(&environment, Command::MarkSeen { item, journalist: "marlow".to_owned() });
    }
    for (item, _) in all.iter().step_by(2) {
        happens(&environment, Command::MarkSeen { item: item.clone(), journalist: "ternberg".to_owned() });
    }
    refresh(&environment).await;
    assert_eq!(unread(&environment, &source).await.len(), 151);
    // What comes after the list was shown stays unread.
    let (later, _) = write(&environment, &source, 1).remove(0);
    let mut watch = environment.watch().await.unwrap();
    let act = act(&environment, &["seen", source.as_str()]).await;
    assert_eq!(unread(&environment, &source).await, BTreeSet::new());
    assert_eq!(until_act(&mut watch, act, "confirmed").await["objects"], 151);
    assert_eq!(named_in_the_only_request(&environment), 151);
    let marks: Changes = all.into_iter().map(|(_, change)| change).collect();
    assert_eq!(changes(&environment), marks);
    refresh(&environment).await;
    assert_eq!(unread(&environment, &source).await, BTreeSet::from([later.as_str().to_owned()]));
    environment.stop().await.unwrap();
}

/// Case D9. The server marks nothing where one is gone.
#[tokio::test(flavor = "multi_thread")]
async fn d9_what_a_colleague_has_deleted_does_not_block_the_rest() {
    let environment = signed_in(1, 1).await;
    let source = new_source(&environment);
    let mut all = write(&environment, &source, 10);
    refresh(&environment).await;
    for at in [7, 2] {
        happens(&environment, Command::DeleteItem { item: all.remove(at).0 });
    }
    let mut watch = environment.watch().await.unwrap();
    let act = act(&environment, &["seen", source.as_str()]).await;
    assert_eq!(until_act(&mut watch, act, "confirmed").await["objects"], 10);
    let marks: Changes = all.into_iter().map(|(_, change)| change).collect();
    assert_eq!(changes(&environment), marks);
    assert_eq!(unread(&environment, &source).await, BTreeSet::new());
    refresh(&environment).await;
    assert_eq!((items(&environment, source.as_str()).await.len(), queue(&environment).await.len()), (8, 0));
    environment.stop().await.unwrap();
}

/// Case D9.
#[tokio::test(flavor = "multi_thread")]
async fn d9_each_journalist_has_marks_of_their_own() {
    let environment = signed_in(1, 1).await;
    let source = new_source(&environment);
    let items: Vec<_> = write(&environment, &source, 2).into_iter().map(|(item, _)| item).collect();
    happens(&environment, Command::MarkSeen { item: items[0].clone(), journalist: "ternberg".to_owned() });
    refresh(&environment).await;
    let both: BTreeSet<_> = items.iter().map(|item| item.as_str().to_owned()).collect();
    assert_eq!(unread(&environment, &source).await, both, "a colleague's marks are not mine");
    let mut watch = environment.watch().await.unwrap();
    let act = act(&environment, &["seen", source.as_str()]).await;
    until_act(&mut watch, act, "confirmed").await;
    environment.json(&["logout"], "").await.unwrap();
    assert_eq!(unread(&environment, &source).await, BTreeSet::new(), "nobody is signed in: the last one's marks");
    environment.login(&TERNBERG).await.unwrap();
    assert_eq!(unread(&environment, &source).await, BTreeSet::from([items[1].as_str().to_owned()]));
    refresh(&environment).await;
    assert_eq!(unread(&environment, &source).await, BTreeSet::from([items[1].as_str().to_owned()]));
    environment.stop().await.unwrap();
}

/// Case D9.
#[tokio::test(flavor = "multi_thread")]
async fn d9_where_nothing_is_unread_nothing_is_sent() {
    let environment = signed_in(1, 1).await;
    let source = new_source(&environment);
    let (item, _) = write(&environment, &source, 1).remove(0);
    happens(&environment, Command::MarkSeen { item: item.clone(), journalist: "marlow".to_owned() });
    refresh(&environment).await;
    let calls = environment.broker().counts().started;
    let all = environment.json(&["seen", source.as_str()], "").await.unwrap();
    assert_eq!(all["acts"].as_array().unwrap().len(), 0, "{all}");
    // Named, it was seen already.
    let named = environment.json(&["seen", source.as_str(), item.as_str()], "").await.unwrap();
    assert_eq!((&named["acts"][0]["act"], &named["acts"][0]["already"]), (&serde_json::Value::Null, &1.into()));
    refresh(&environment).await;
    assert_eq!((asked(&environment, "POST", SEEN), environment.broker().counts().started), (0, calls));
    assert_eq!(queue(&environment).await.len(), 0);
    environment.stop().await.unwrap();
}
