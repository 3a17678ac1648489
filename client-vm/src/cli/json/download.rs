//! Downloads and pauses as JSON.

use control::{
    DownloadChange, DownloadEntry, DownloadLane, DownloadState, DownloadStep, LaneCounts, PauseReason, QueueStatus,
    Wanted,
};
use protocol::value::ItemId;
use serde_json::{Value, json};

use super::{object, time};

/// What was asked for.
pub(in crate::cli) fn wanted(wanted: &Wanted) -> String {
    object(json!({ "asked": wanted.asked, "already": wanted.already }))
}

/// The end of a wait: the same, and what is there, each with its length in bytes and its name.
pub(in crate::cli) fn fetched(wanted: &Wanted, there: &[(ItemId, u64, Option<&str>)]) -> String {
    let there: Vec<_> = there
        .iter()
        .map(|(item, bytes, name)| json!({ "item": item.as_str(), "kind": kind(*item), "bytes": bytes, "name": name }))
        .collect();
    object(json!({ "asked": wanted.asked, "already": wanted.already, "there": there }))
}

/// What is not fetched after all.
pub(in crate::cli) fn stopped(stopped: &Wanted) -> String {
    object(json!({ "stopped": stopped.asked, "already": stopped.already }))
}

/// Why the queue waits; empty when it goes on.
pub(in crate::cli) fn paused(reasons: &[PauseReason]) -> String {
    object(json!({ "paused": pauses(reasons) }))
}

pub(super) fn pauses(reasons: &[PauseReason]) -> Vec<Value> {
    reasons.iter().map(pause).collect()
}

/// A reason, with `since` and `message`, or `free` and `kept`, where there are such.
fn pause(reason: &PauseReason) -> Value {
    match reason {
        PauseReason::NoSession => json!({ "reason": "no_session" }),
        PauseReason::Network { since, message } => {
            json!({ "reason": "network", "since": time(*since), "message": message })
        }
        PauseReason::User => json!({ "reason": "user" }),
        PauseReason::Dom0 => json!({ "reason": "dom0" }),
        PauseReason::NoRoom { free, kept } => json!({ "reason": "no_room", "free": free, "kept": kept }),
    }
}

/// The same as an event.
pub(super) fn paused_event(reason: &PauseReason) -> Value {
    let mut event = pause(reason);
    if let Some(fields) = event.as_object_mut() {
        fields.insert("event".to_owned(), "queue_paused".into());
    }
    event
}

pub(super) fn lanes(queue: &QueueStatus) -> Value {
    let QueueStatus { paused: _, acts, messages, files, decrypt, waiting_for_call: _ } = queue;
    json!({
        "acts": lane(*acts),
        "messages": lane(*messages),
        "files": lane(*files),
        "decrypt": lane(*decrypt),
    })
}

pub(super) fn lane(counts: LaneCounts) -> Value {
    json!({ "waiting": counts.waiting, "running": counts.running, "failed": counts.failed })
}

/// What waits, runs or has failed, with all fields whatever its state.
pub(super) fn entry(entry: &DownloadEntry) -> Value {
    let (state, received, next_try, reason) = match &entry.state {
        DownloadState::Running { received } => ("running", Some(*received), None, None),
        DownloadState::Waiting { next_try, reason } => ("waiting", None, *next_try, reason.as_deref()),
        DownloadState::Failed { reason } => ("failed", None, None, Some(reason.as_str())),
    };
    json!({
        "lane": match entry.lane {
            DownloadLane::Messages => "messages",
            DownloadLane::Files => "files",
        },
        "source": entry.source.as_str(),
        "designation": entry.designation.as_str(),
        "item": entry.item.as_str(),
        "kind": kind(entry.item),
        "size": entry.size.get(),
        "attempts": entry.attempts,
        "state": state,
        "received": received,
        "next_try": next_try.map(time),
        "reason": reason,
    })
}

/// A step of a download, with what there is to say of it: `received` and `total`, `size`, `reason`, `next_try`.
pub(super) fn change(change: &DownloadChange) -> Value {
    let (step, more) = match &change.step {
        DownloadStep::Started => ("started", Vec::new()),
        DownloadStep::Progress { received, total } => {
            ("progress", vec![("received", json!(received)), ("total", json!(total))])
        }
        DownloadStep::Stored { size } => ("stored", vec![("size", json!(size))]),
        DownloadStep::Postponed { failure, next_try } => {
            let next_try = next_try.map(|at| ("next_try", json!(time(at))));
            ("postponed", [("reason", json!(failure.message))].into_iter().chain(next_try).collect())
        }
        DownloadStep::Failed(failure) => ("failed", vec![("reason", json!(failure.message))]),
        DownloadStep::Stopped => ("stopped", Vec::new()),
    };
    let mut event = json!({
        "event": "download",
        "source": change.source.as_str(),
        "item": change.item.as_str(),
        "kind": kind(change.item),
        "step": step,
    });
    if let Some(fields) = event.as_object_mut() {
        fields.extend(more.into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
    event
}

pub(super) fn kind(item: ItemId) -> &'static str {
    match item {
        ItemId::Submission(_) => "submission",
        ItemId::Reply(_) => "reply",
    }
}

#[cfg(test)]
mod tests {
    use control::{Event, Failure, FailureKind};

    use super::super::super::samples::{at, download, item, source_id};
    use super::super::event;
    use super::*;

    #[test]
    fn what_was_asked_for_is_two_numbers() {
        let counts = Wanted { asked: 2, already: 1 };
        assert_eq!(wanted(&counts), r#"{"already":1,"asked":2,"format":1}"#);
        assert_eq!(stopped(&counts), r#"{"already":1,"format":1,"stopped":2}"#);
    }

    #[test]
    fn an_entry_has_all_fields_whatever_is_known() {
        let running = download(1, DownloadState::Running { received: 5 });
        let expected = json!({
            "lane": "files",
            "source": "3f2a6f8e-0000-4000-8000-000000000001",
            "designation": "candid marmot",
            "item": "9b040001-0000-4000-8000-000000000000",
            "kind": "submission",
            "size": 25_000_000,
            "attempts": 0,
            "state": "running",
            "received": 5,
            "next_try": null,
            "reason": null,
        });
        assert_eq!(entry(&running), expected);
        let waiting = DownloadState::Waiting { next_try: Some(at(0)), reason: Some("no way".to_owned()) };
        let waiting = entry(&download(1, waiting));
        assert_eq!(waiting.get("next_try"), Some(&json!("1970-01-01T00:00:00Z")));
        assert_eq!((waiting.get("received"), waiting.get("reason")), (Some(&Value::Null), Some(&json!("no way"))));
    }

    #[test]
    fn a_step_has_what_there_is_to_say_of_it() {
        let event = |step| change(&DownloadChange { source: source_id(1), item: item(1), step });
        let failure = || Failure { kind: FailureKind::Unreachable, message: "no way".to_owned() };
        for (step, more) in [
            (DownloadStep::Started, json!({ "step": "started" })),
            (
                DownloadStep::Progress { received: 5, total: None },
                json!({ "step": "progress", "received": 5, "total": null }),
            ),
            (DownloadStep::Stored { size: 612 }, json!({ "step": "stored", "size": 612 })),
            (
                DownloadStep::Postponed { failure: failure(), next_try: Some(at(0)) },
                json!({ "step": "postponed", "reason": "no way", "next_try": "1970-01-01T00:00:00Z" }),
            ),
            (
                DownloadStep::Postponed { failure: failure(), next_try: None },
                json!({ "step": "postponed", "reason": "no way" }),
            ),
            (DownloadStep::Failed(failure()), json!({ "step": "failed", "reason": "no way" })),
            (DownloadStep::Stopped, json!({ "step": "stopped" })),
        ] {
            let mut expected = json!({
                "event": "download",
                "source": "3f2a6f8e-0000-4000-8000-000000000001",
                "item": "9b040001-0000-4000-8000-000000000000",
                "kind": "submission",
            });
            expected.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            assert_eq!(event(step), expected);
        }
    }

    #[test]
    fn a_pause_says_since_when_where_it_is_known() {
        let network = PauseReason::Network { since: at(0), message: "no way".to_owned() };
        assert_eq!(
            paused(&[PauseReason::NoSession, network.clone(), PauseReason::User]),
            "{\"format\":1,\"paused\":[{\"reason\":\"no_session\"},\
             {\"message\":\"no way\",\"reason\":\"network\",\"since\":\"1970-01-01T00:00:00Z\"},{\"reason\":\"user\"}]}"
        );
        assert_eq!(
            event(&Event::Paused(network)),
            r#"{"event":"queue_paused","format":1,"message":"no way","reason":"network","since":"1970-01-01T00:00:00Z"}"#
        );
        let no_room = PauseReason::NoRoom { free: 5, kept: 100 };
        assert_eq!(
            event(&Event::Paused(no_room)),
            r#"{"event":"queue_paused","format":1,"free":5,"kept":100,"reason":"no_room"}"#
        );
        assert_eq!(paused(&[PauseReason::Dom0]), r#"{"format":1,"paused":[{"reason":"dom0"}]}"#);
        assert_eq!(event(&Event::Resumed), r#"{"event":"queue_resumed","format":1}"#);
        assert_eq!(
            event(&Event::SyncStale { last_success: None }),
            r#"{"event":"sync_stale","format":1,"last_success":null}"#
        );
    }
}
