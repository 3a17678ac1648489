//! Deletions that the server has confirmed and does not make: told after a while, and then the journalist's to decide.

use serde_json::{Value, json};
use staging::environment::{Environment, Watch};
use staging::server::{Command, Fault, FaultAct, Matching};

use crate::support::*;

const CONFLICT: i32 = 10;

/// What was deleted and goes on being listed.
struct Overdue {
    environment: Environment,
    watch: Watch,
    act: u64,
    source: String,
    /// The conversation before it was deleted.
    before: Value,
}

impl Overdue {
    async fn refresh(&self) {
        self.environment.json(&["refresh"], "").await.unwrap();
    }

    async fn not_deleted(&self) -> u64 {
        self.environment.json(&["status"], "").await.unwrap()["queue"]["not_deleted"].as_u64().unwrap()
    }

    async fn deal(&self, deal: &str) {
        self.environment.json(&[deal, &self.act.to_string()], "").await.unwrap();
    }

    fn deletions(&self) -> u64 {
        asked(&self.environment, "DELETE", &format!("/api/v1/sources/{}", self.source))
    }

    /// Syncs three times, after which it is told.
    async fn become_overdue(&mut self) {
        for _ in 0..2 {
            self.refresh().await;
            assert_eq!((self.not_deleted().await, queued(&self.environment, self.act).await), (0, None));
        }
        self.refresh().await;
        until_act(&mut self.watch, self.act, "not_deleted").await;
        assert_eq!(self.not_deleted().await, 1);
        assert_eq!(queued(&self.environment, self.act).await.unwrap()["state"], "not_deleted");
        assert_eq!(source_shows(&self.environment, &self.source).await, Shown::Gone, "never silently either way");
    }
}

/// A deletion that was confirmed, and lists that go on naming the source.
async fn overdue() -> Overdue {
    let environment = signed_in_to(options(3, 4, "overdue_ms = 1\n")).await;
    let source = ids(&environment).await.swap_remove(0);
    let before = environment.json(&["show", &source], "").await.unwrap();
    happens(&environment, Command::FreezeLists);
    let mut watch = environment.watch().await.unwrap();
    let act = act(&environment, &["delete", "source", &source, "--yes"]).await;
    until_act(&mut watch, act, "confirmed").await;
    let mut overdue = Overdue { environment, watch, act, source, before };
    overdue.become_overdue().await;
    overdue
}

/// Case D1.
#[tokio::test(flavor = "multi_thread")]
async fn d1_what_was_not_deleted_is_deleted_again_or_restored_with_all_its_items() {
    let mut overdue = overdue().await;
    assert_eq!(overdue.deletions(), 1);
    overdue.deal("retry").await;
    let act = overdue.act;
    until_act(&mut overdue.watch, act, "confirmed").await;
    assert_eq!((overdue.deletions(), overdue.not_deleted().await), (2, 0));
    overdue.become_overdue().await;
    overdue.deal("restore").await;
    assert_eq!((overdue.not_deleted().await, queued(&overdue.environment, act).await), (0, None));
    overdue.watch.until("sync_ended").await.unwrap();
    overdue.refresh().await;
    assert_eq!(shown_with_key(&overdue.environment, &overdue.source).await, overdue.before);
    assert_eq!(overdue.deletions(), 2);
    overdue.environment.stop().await.unwrap();
}

/// Case D1. Tried again, it is a deletion like any other: refused, it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn d1_what_was_not_deleted_and_is_refused_the_next_time_comes_back() {
    let mut overdue = overdue().await;
    let refusal = FaultAct::json(400, &json!({ "error": "Bad Request", "message": "not today" }));
    let path = format!("/api/v1/sources/{}", overdue.source);
    fails(&overdue.environment, Fault::new(Matching::method("DELETE", &path), refusal));
    overdue.deal("retry").await;
    let act = overdue.act;
    until_act(&mut overdue.watch, act, "refused").await;
    overdue.refresh().await;
    assert_eq!(queued(&overdue.environment, act).await.unwrap()["state"], "refused");
    assert_eq!(shown_with_key(&overdue.environment, &overdue.source).await, overdue.before);
    overdue.environment.stop().await.unwrap();
}

/// Case D1. Tried again and not sent yet, it is being deleted: neither ordinary nor forgotten, and not to be taken back.
#[tokio::test(flavor = "multi_thread")]
async fn d1_what_was_not_deleted_and_waits_once_more_is_being_deleted() {
    let mut overdue = overdue().await;
    let mut occupants = Vec::new();
    for source in ids(&overdue.environment).await {
        let items = items(&overdue.environment, &source).await;
        let message = items.iter().find(|item| item["kind"] == "message").unwrap();
        occupants.push((source, message["uuid"].as_str().unwrap().to_owned()));
    }
    let occupied = occupy(&overdue.environment, &occupants).await;
    overdue.deal("retry").await;
    overdue.refresh().await;
    assert_eq!(source_shows(&overdue.environment, &overdue.source).await, Shown::BeingDeleted);
    // It was sent before, and may have had an effect.
    let output = overdue.environment.run(["cancel", &overdue.act.to_string()], "").await.unwrap();
    assert_eq!(output.code, Some(CONFLICT), "{output:?}");
    assert_eq!(source_shows(&overdue.environment, &overdue.source).await, Shown::BeingDeleted);
    occupied.into_iter().for_each(|rule| release(&overdue.environment, rule));
    let act = overdue.act;
    until_act(&mut overdue.watch, act, "confirmed").await;
    overdue.refresh().await;
    assert_eq!(source_shows(&overdue.environment, &overdue.source).await, Shown::Gone);
    assert_eq!(overdue.deletions(), 2);
    overdue.environment.stop().await.unwrap();
}
