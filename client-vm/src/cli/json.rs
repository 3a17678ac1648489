//! What `--json` prints: one object with `format` 1. Times are RFC 3339 in UTC.

mod act;
mod conversation;
mod doctor;
mod download;
mod handover;
mod reading;
mod removal;
mod search;

use control::{
    DownloadEntry, Event, Failure, OverTime, ProxyStatus, QueueEntry, Session, SessionEnd, SourceRow, Status,
    SyncOutcome, SyncReport, SyncStart,
};
use protocol::value::Timestamp;
use protocol::{ApiLevel, ServerContact};
use serde_json::{Value, json};

pub(super) use act::{acted, dealt, undone};
pub(super) use conversation::{conversation, draft, trusted};
pub(super) use doctor::checks;
pub(super) use download::{fetched, paused, stopped, wanted};
pub(super) use handover::{device, exported, transcript, viewed, written};
pub(super) use removal::{removals, settled};
pub(super) use search::found;

use super::exit::CliError;
use crate::characters::is_harmless;

/// The version of these objects. It changes when a field goes or changes its meaning.
const FORMAT: u32 = 1;

/// Puts the version into an object and prints it on one line.
fn object(mut fields: Value) -> String {
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("format".to_owned(), FORMAT.into());
    }
    escaped(&fields.to_string())
}

/// JSON that says the same and moves no cursor: what would stands in strings only, and is written by its number there.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if is_harmless(character) {
            text.push(character);
        } else {
            let units =
                character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
            text.push_str(&units);
        }
    }
    text
}

pub(super) fn error(error: &CliError) -> String {
    object(json!({ "error": { "kind": error.name(), "message": error.to_string() } }))
}

pub(super) fn done() -> String {
    object(json!({}))
}

pub(super) fn sources(sources: &[SourceRow]) -> String {
    object(json!({ "sources": sources.iter().map(conversation::source).collect::<Vec<_>>() }))
}

pub(super) fn signed_in(session: &Session) -> String {
    object(json!({ "session": self::session(session) }))
}

pub(super) fn refreshed(report: &SyncReport) -> String {
    object(json!({ "sync": self::report(report) }))
}

pub(super) fn status(status: &Status) -> String {
    object(json!({
        "version": status.version.as_str(),
        "started": time(status.started),
        "session": session(&status.session),
        "sync": sync(status),
        "proxy": proxy(&status.proxy),
        "held": {
            "sources": status.totals.sources,
            "items": status.totals.items,
            "unread": status.totals.unread,
            "unreadable": over_time(status.totals.unreadable),
            "held_removals": status.totals.held_removals,
        },
        "queue": act::counts(status.totals.queue),
        "lanes": download::lanes(&status.queue),
        "openpgp": reading::status(&status.openpgp),
        "erasure": status.erasure.as_ref().map(removal::fault),
        "paused": download::pauses(&status.queue.paused),
        "waiting_for_call": status.queue.waiting_for_call,
    }))
}

/// The syncs that were, is and will be.
fn sync(status: &Status) -> Value {
    json!({
        "running": status.running_sync.as_ref().map(start),
        "last": status.last_sync.as_ref().map(report),
        "last_success": status.last_success.map(time),
        "next": status.next_sync.map(time),
        "stale": status.stale,
    })
}

/// Why nothing goes on, what waits, is under way, or was refused or has failed, how much of each lane there is, and when the
/// last and the next sync are.
pub(super) fn queue(status: &Status, acts: &[QueueEntry], downloads: &[DownloadEntry]) -> String {
    let queue = &status.queue;
    object(json!({
        "paused": download::pauses(&queue.paused),
        "waiting_for_call": queue.waiting_for_call,
        "lanes": download::lanes(queue),
        "sync": sync(status),
        "queue": acts.iter().map(act::entry).collect::<Vec<_>>(),
        "downloads": downloads.iter().map(download::entry).collect::<Vec<_>>(),
        "decrypt": download::lane(queue.decrypt),
    }))
}

pub(super) fn event(event: &Event) -> String {
    object(match event {
        Event::ProxyWaiting => json!({ "event": "proxy_waiting" }),
        Event::SessionStarted(started) => json!({ "event": "session_started", "session": session(started) }),
        Event::SessionEnded(why) => json!({ "event": "session_ended", "reason": session_end(*why) }),
        Event::SyncStarted(started) => json!({ "event": "sync_started", "sync": start(started) }),
        Event::SyncEnded(ended) => json!({ "event": "sync_ended", "sync": report(ended) }),
        Event::SourcesChanged(ids) => {
            let ids: Vec<_> = ids.iter().map(|id| id.as_str()).collect();
            json!({ "event": "sources_changed", "sources": ids })
        }
        Event::Download(change) => download::change(change),
        Event::Read(change) => reading::change(change),
        Event::KeyHeld { source, problem } => reading::key_held(*source, *problem),
        Event::RemovalsHeld(sources) => removal::held_event(sources),
        Event::Erased(items) => json!({ "event": "erased", "items": items }),
        Event::ErasureFailed(fault) => json!({ "event": "erasure_failed", "fault": removal::fault(fault) }),
        Event::Paused(reason) => download::paused_event(reason),
        Event::Resumed => json!({ "event": "queue_resumed" }),
        Event::SyncStale { last_success } => {
            json!({ "event": "sync_stale", "last_success": last_success.map(time) })
        }
        Event::SyncFresh => json!({ "event": "sync_fresh" }),
        Event::Act(change) => act::change(change),
        Event::Viewer { item, step } => handover::viewer(*item, step),
        Event::Missed(count) => json!({ "event": "missed", "count": count }),
    })
}

pub(super) fn time(at: Timestamp) -> String {
    // Every `Timestamp` is one of jiff's.
    jiff::Timestamp::from_microsecond(at.as_i64()).map(|at| at.to_string()).unwrap_or_default()
}

fn session(session: &Session) -> Value {
    match session {
        Session::SignedOut => json!({ "state": "signed_out" }),
        Session::SigningIn => json!({ "state": "signing_in" }),
        Session::SignedIn { journalist, username, since, expires } => json!({
            "state": "signed_in",
            "journalist": journalist.as_str(),
            "username": username.as_str(),
            "since": time(*since),
            "expires": time(*expires),
        }),
    }
}

pub(super) fn session_end(why: SessionEnd) -> &'static str {
    match why {
        SessionEnd::Logout => "logout",
        SessionEnd::Expired => "expired",
        SessionEnd::Shutdown => "shutdown",
    }
}

fn start(start: &SyncStart) -> Value {
    json!({ "asked": time(start.asked), "started": time(start.started) })
}

fn report(report: &SyncReport) -> Value {
    let (outcome, error) = match &report.outcome {
        SyncOutcome::Ok => ("ok", None),
        SyncOutcome::Unchanged => ("unchanged", None),
        SyncOutcome::Failed(Failure { message, .. }) => ("failed", Some(message.as_str())),
        SyncOutcome::Cancelled => ("cancelled", None),
    };
    let calls: Vec<_> = report.calls.iter().map(|call| json!({ "call": call.call, "took_ms": call.took_ms })).collect();
    json!({
        "asked": time(report.start.asked),
        "started": time(report.start.started),
        "ended": time(report.ended),
        "outcome": outcome,
        "error": error,
        "counts": {
            "journalists": report.counts.journalists,
            "sources": report.counts.sources,
            "messages": report.counts.messages,
            "files": report.counts.files,
            "replies": report.counts.replies,
        },
        "unreadable": report.counts.unreadable,
        "not_shown": report.counts.not_shown,
        "rows_written": report.rows_written,
        "calls": calls,
    })
}

fn proxy(proxy: &ProxyStatus) -> Value {
    match proxy {
        ProxyStatus::NotConnected => json!({ "state": "not_connected" }),
        ProxyStatus::Failed { message } => json!({ "state": "failed", "error": message }),
        ProxyStatus::Connected { software, health } => json!({
            "state": "connected",
            "version": software.as_str(),
            "tor": health.tor,
            "seccomp": health.confinement.seccomp.name(),
            "landlock": health.confinement.landlock.name(),
            "speaks": match health.speaks {
                ApiLevel::V1 => "v1",
                ApiLevel::V2 => "v2",
            },
            "server": match health.contact {
                ServerContact::NoneYet => json!({ "contact": "none_yet" }),
                ServerContact::Answered { ago_ms } => json!({ "contact": "answered", "ago_ms": ago_ms }),
                ServerContact::Failed { kind, stage, ago_ms } => json!({
                    "contact": "failed",
                    "error": kind.name(),
                    "stage": stage.name(),
                    "ago_ms": ago_ms,
                }),
            },
        }),
    }
}

fn over_time(fault: OverTime) -> Value {
    json!({ "count": fault.count, "since": fault.since.map(time) })
}

#[cfg(test)]
mod tests {
    use control::{LaneCounts, PauseReason, QueueStatus};

    use super::super::samples::{self, at};
    use super::*;

    #[test]
    fn the_status_says_what_comes_next_and_what_holds_it_up() {
        let shown = Status {
            next_sync: Some(at(0)),
            stale: true,
            queue: QueueStatus {
                paused: vec![PauseReason::User],
                files: LaneCounts { waiting: 3, running: 2, failed: 1 },
                ..QueueStatus::default()
            },
            ..samples::status()
        };
        let parsed: Value = serde_json::from_str(&status(&shown)).unwrap();
        let sync = json!({
            "running": null,
            "last": null,
            "last_success": null,
            "next": "1970-01-01T00:00:00Z",
            "stale": true,
        });
        assert_eq!(parsed.get("sync"), Some(&sync));
        assert_eq!(parsed.get("paused"), Some(&json!([{ "reason": "user" }])));
        let none = json!({ "waiting": 0, "running": 0, "failed": 0 });
        let files = json!({ "waiting": 3, "running": 2, "failed": 1 });
        assert_eq!(
            parsed.get("lanes"),
            Some(&json!({ "acts": none, "messages": none, "files": files, "decrypt": none }))
        );
        let openpgp = json!({
            "backend": "split-gpg",
            "problem": null,
            "newsroom_key": { "fingerprint": "A".repeat(40), "problem": null },
            "held_keys": 0,
        });
        assert_eq!(parsed.get("openpgp"), Some(&openpgp));
    }

    #[test]
    fn what_would_move_a_cursor_is_written_by_its_number() {
        let hostile = "a\u{1b}[2J\u{9b}2J\u{202e}\u{200b}\u{e0041}\n\u{0} ß 海鸥 \"\\u";
        let printed = object(json!({ "text": hostile }));
        assert!(printed.chars().all(is_harmless), "{printed}");
        assert!(printed.contains("\\u009b2J\\u202e\\u200b\\udb40\\udc41") && printed.contains("ß 海鸥"), "{printed}");
        let parsed: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(parsed.get("text"), Some(&json!(hostile)));
    }
}
