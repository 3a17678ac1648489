//! Whom a reply is encrypted to: the key that was pinned at first sight, or that somebody has compared, and no other.

use jiff::Timestamp;
use serde_json::{Value, json};
use staging::environment::Environment;
use staging::generator::KeyPair;
use staging::server::{Command, KeyChoice, Whose};

use crate::support::*;

/// Far away, and earlier.
const LATER: Timestamp = Timestamp::constant(4_000_000_000, 0);
const PAST: Timestamp = Timestamp::constant(1_500_000_000, 0);

async fn held_keys(environment: &Environment) -> u64 {
    status(environment).await["openpgp"]["held_keys"].as_u64().unwrap()
}

/// The source's key that the last of all replies is encrypted to.
async fn last_recipient(environment: &Environment) -> String {
    let last = stored(environment).pop().unwrap();
    let recipients = environment.server().control().recipients(&last).await.unwrap();
    recipients.into_iter().find(|one| one.whose == Whose::Source).unwrap().key_id
}

/// Answers a source that cannot be: nothing is stored or sent, and what was written is the draft.
async fn assert_refused(environment: &Environment, source: &str, text: &str, because: &str) {
    let before = (sendings(environment).len(), queue(environment).await.len());
    let output = environment.run(["reply", source, "--message", text], "").await.unwrap();
    assert_eq!(output.code, Some(CONFLICT), "{output:?}");
    assert!(output.stderr.contains(because), "{output:?}");
    assert_eq!(draft(environment, source).await, json!(text));
    assert_eq!((sendings(environment).len(), queue(environment).await.len()), before);
}

/// Answers a source, and waits until the server lists that.
async fn tell(environment: &Environment, source: &str, text: &str) {
    let mut watch = environment.watch().await.unwrap();
    let act = reply(environment, source, text).await;
    until_listed(environment, &mut watch, source, act).await;
}

async fn trust(environment: &Environment, source: &str, fingerprint: &str) -> Option<i32> {
    environment.run(["trust-key", source, "--fingerprint", fingerprint], "").await.unwrap().code
}

/// Case R4.
#[tokio::test(flavor = "multi_thread")]
async fn r4_a_source_can_be_answered_once_a_sync_brings_its_key() {
    let (environment, _) = signed_in(1).await;
    let source = newcomer(&environment, KeyChoice::None);
    sync(&environment).await;
    assert_eq!(key(&environment, &source).await["state"], "none");
    assert_refused(&environment, &source, "hello", "has no key yet").await;
    assert_eq!(held_keys(&environment).await, 0);
    happens(&environment, Command::SetKey { source: source.as_str().into(), key: KeyChoice::Pool(1) });
    sync(&environment).await;
    assert_eq!(key(&environment, &source).await["state"], "pinned");
    tell(&environment, &source, "hello").await;
    assert_told(&environment, &source, &["hello"]).await;
    environment.stop().await.unwrap();
}

/// Case R5.
#[tokio::test(flavor = "multi_thread")]
async fn r5_another_key_holds_replies_back_until_somebody_has_compared_it() {
    let (environment, ids) = signed_in(2).await;
    let (source, other) = (ids[0].as_str(), ids[1].as_str());
    tell(&environment, source, "before").await;
    let first_key = last_recipient(&environment).await;
    let pinned = key(&environment, source).await["fingerprint"].clone();
    let new = KeyPair::generate().unwrap();
    set_key(&environment, source, &new);
    happens(&environment, Command::NewMessage { source: source.into(), size: 700 });
    let items = show(&environment, source).await["items"].as_array().unwrap().len();
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    let told = watch.until("key_held").await.unwrap();
    assert_eq!((&told["source"], &told["problem"]), (&json!(source), &json!("changed")));
    let held = key(&environment, source).await;
    assert_eq!(
        (&held["state"], &held["fingerprint"], &held["offered"]),
        (&json!("held"), &pinned, &json!(new.fingerprint()))
    );
    assert_eq!(held_keys(&environment).await, 1);
    assert_refused(&environment, source, "after", "trust-key").await;
    // All else goes on: of this source as well.
    assert_eq!(show(&environment, source).await["items"].as_array().unwrap().len(), items + 1);
    tell(&environment, other, "to another").await;
    // It is told once.
    happens(&environment, Command::NewMessage { source: source.into(), size: 700 });
    refresh(&environment).await;
    assert_eq!((held_keys(&environment).await, key(&environment, source).await), (1, held));

    let wrong = KeyPair::generate().unwrap().fingerprint();
    for wrong in [wrong.as_str(), pinned.as_str().unwrap()] {
        assert_eq!(trust(&environment, source, wrong).await, Some(CONFLICT));
        assert_refused(&environment, source, "after", "trust-key").await;
    }
    assert_eq!(trust(&environment, source, &new.fingerprint()).await, Some(0));
    let trusted = key(&environment, source).await;
    assert_eq!((&trusted["state"], &trusted["fingerprint"]), (&json!("pinned"), &json!(new.fingerprint())));
    assert_eq!(held_keys(&environment).await, 0);
    tell(&environment, source, "after").await;
    assert_ne!(last_recipient(&environment).await, first_key);
    assert_eq!(read_by_sources(&environment).await, ["before", "to another", "after"]);
    assert_eq!(draft(&environment, source).await, Value::Null);
    // The key is the pinned one from now on, and the one before is another.
    refresh(&environment).await;
    assert_eq!(key(&environment, source).await["state"], "pinned");
    environment.stop().await.unwrap();
}

/// Case R5.
#[tokio::test(flavor = "multi_thread")]
async fn r5_a_key_that_is_not_what_the_server_says_is_held_back() {
    let (environment, ids) = signed_in(2).await;
    let source = ids[0].as_str();
    let own = key(&environment, source).await["fingerprint"].as_str().unwrap().to_owned();
    let claimed = KeyPair::generate().unwrap().fingerprint();
    let fingerprint = Some(claimed.clone());
    happens(&environment, Command::SetSourceKey { source: source.into(), key: None, fingerprint });
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    assert_eq!(watch.until("key_held").await.unwrap()["problem"], "mismatch");
    assert_eq!(held_keys(&environment).await, 1);
    assert_refused(&environment, source, "hello", "another fingerprint than it says").await;
    assert_eq!(trust(&environment, source, &claimed).await, Some(CONFLICT), "no key has that fingerprint");
    // The server tells the truth again.
    happens(&environment, Command::SetSourceKey { source: source.into(), key: None, fingerprint: Some(own) });
    sync(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    while held_keys(&environment).await > 0 {
        watch.until("sources_changed").await.unwrap();
    }
    tell(&environment, source, "hello").await;
    assert_told(&environment, source, &["hello"]).await;
    environment.stop().await.unwrap();
}

/// Waits until the client has looked at a key that came with the last sync.
async fn until_key_is(environment: &Environment, source: &str, state: &str) {
    let mut watch = environment.watch().await.unwrap();
    while key(environment, source).await["state"] != state {
        watch.until("sources_changed").await.unwrap();
    }
}

/// Case R5.
#[tokio::test(flavor = "multi_thread")]
async fn r5_the_same_key_with_another_expiry_is_an_update() {
    let (environment, _) = signed_in(1).await;
    let pair = KeyPair::generate().unwrap();
    let source = newcomer(&environment, KeyChoice::None);
    set_key(&environment, &source, &pair);
    sync(&environment).await;
    tell(&environment, &source, "one").await;
    set_key(&environment, &source, &pair.expiring(Some(LATER)).unwrap());
    sync(&environment).await;
    tell(&environment, &source, "two").await;
    assert_told(&environment, &source, &["one", "two"]).await;
    // It runs out, and is prolonged.
    set_key(&environment, &source, &pair.expiring(Some(PAST)).unwrap());
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    assert_eq!(watch.until("key_held").await.unwrap()["problem"], "unusable");
    assert_refused(&environment, &source, "three", "cannot be used").await;
    assert_eq!(trust(&environment, &source, &pair.fingerprint()).await, Some(CONFLICT));
    set_key(&environment, &source, &pair.expiring(Some(LATER)).unwrap());
    refresh(&environment).await;
    until_key_is(&environment, &source, "pinned").await;
    assert_eq!(held_keys(&environment).await, 0);
    tell(&environment, &source, "three").await;
    assert_told(&environment, &source, &["one", "two", "three"]).await;
    environment.stop().await.unwrap();
}

/// Case R5.
#[tokio::test(flavor = "multi_thread")]
async fn r5_a_reply_that_waits_when_the_key_changes_is_not_sent_to_the_new_one() {
    let (environment, ids) = signed_in_to(no_second_try()).await;
    let (source, other) = (ids[0].as_str(), ids[1].as_str());
    let mut watch = environment.watch().await.unwrap();
    let cut = cut(&environment).await;
    let act = reply(&environment, source, "waits").await;
    until_act(&mut watch, act, "postponed").await;
    let act_of_other = reply(&environment, other, "waits too").await;
    let new = KeyPair::generate().unwrap();
    set_key(&environment, source, &new);
    mend(&environment, cut);
    refresh(&environment).await;
    let refused = until_act(&mut watch, act, "refused").await;
    assert!(refused["reason"].as_str().unwrap().contains("trust-key"), "{refused}");
    assert_eq!(state(&environment, source, act).await, ("refused".to_owned(), "waits".to_owned()));
    until_listed(&environment, &mut watch, other, act_of_other).await;
    environment.json(&["retry", &act.to_string()], "").await.unwrap();
    until_act(&mut watch, act, "refused").await;
    assert_eq!(read_by_sources(&environment).await, ["waits too"], "nothing goes to a key that nobody has compared");

    assert_eq!(trust(&environment, source, &new.fingerprint()).await, Some(0));
    environment.json(&["retry", &act.to_string()], "").await.unwrap();
    until_listed(&environment, &mut watch, source, act).await;
    assert_eq!(read_by_sources(&environment).await, ["waits too", "waits"]);
    environment.stop().await.unwrap();
}

/// Case R5.
#[tokio::test(flavor = "multi_thread")]
async fn r5_a_reply_that_waits_when_its_key_is_prolonged_goes_by_itself() {
    let (environment, _) = signed_in_to(no_second_try()).await;
    let pair = KeyPair::generate().unwrap();
    let source = newcomer(&environment, KeyChoice::None);
    set_key(&environment, &source, &pair);
    sync(&environment).await;
    let mut watch = environment.watch().await.unwrap();
    let cut = cut(&environment).await;
    let act = reply(&environment, &source, "waits").await;
    until_act(&mut watch, act, "postponed").await;
    set_key(&environment, &source, &pair.expiring(Some(LATER)).unwrap());
    mend(&environment, cut);
    refresh(&environment).await;
    watch.until_done(act).await.unwrap();
    until_listed(&environment, &mut watch, &source, act).await;
    assert_told(&environment, &source, &["waits"]).await;
    environment.stop().await.unwrap();
}
