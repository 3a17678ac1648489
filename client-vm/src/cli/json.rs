//! What `--json` prints: one object with `format` 1. Times are RFC 3339 in UTC.

mod act;
mod download;

use control::{
    ConversationItem, Deletion, DownloadEntry, Event, Failure, ItemKind, OverTime, PauseReason, ProxyStatus,
    QueueEntry, Seen, Session, SessionEnd, SourceRow, Status, SyncOutcome, SyncReport, SyncStart,
};
use protocol::value::Timestamp;
use protocol::{ApiLevel, ServerContact, SubmissionKind};
use serde_json::{Value, json};

pub(super) use act::{acted, dealt};
pub(super) use download::{paused, stopped, wanted};

use super::exit::CliError;

/// The version of these objects. It changes when a field goes or changes its meaning.
const FORMAT: u32 = 1;

/// Puts the version into an object and prints it on one line.
fn object(mut fields: Value) -> String {
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("format".to_owned(), FORMAT.into());
    }
    fields.to_string()
}

pub(super) fn error(error: &CliError) -> String {
    object(json!({ "error": { "kind": error.name(), "message": error.to_string() } }))
}

pub(super) fn done() -> String {
    object(json!({}))
}

pub(super) fn sources(sources: &[SourceRow]) -> String {
    object(json!({ "sources": sources.iter().map(source).collect::<Vec<_>>() }))
}

pub(super) fn conversation(row: &SourceRow, items: &[ConversationItem]) -> String {
    object(json!({ "source": source(row), "items": items.iter().map(item).collect::<Vec<_>>() }))
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
        "sync": {
            "running": status.running_sync.as_ref().map(start),
            "last": status.last_sync.as_ref().map(report),
            "last_success": status.last_success.map(time),
            "next": status.next_sync.map(time),
            "stale": status.stale,
        },
        "proxy": proxy(&status.proxy),
        "held": {
            "sources": status.totals.sources,
            "items": status.totals.items,
            "unread": status.totals.unread,
            "unreadable": over_time(status.totals.unreadable),
        },
        "queue": act::counts(status.totals.queue),
        "lanes": download::lanes(&status.queue),
        "paused": download::pauses(&status.queue.paused),
    }))
}

/// Why nothing goes on, and what waits, is under way, or was refused or has failed.
pub(super) fn queue(reasons: &[PauseReason], acts: &[QueueEntry], downloads: &[DownloadEntry]) -> String {
    object(json!({
        "paused": download::pauses(reasons),
        "queue": acts.iter().map(act::entry).collect::<Vec<_>>(),
        "downloads": downloads.iter().map(download::entry).collect::<Vec<_>>(),
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
        Event::Paused(reason) => download::paused_event(reason),
        Event::Resumed => json!({ "event": "queue_resumed" }),
        Event::SyncStale { last_success } => {
            json!({ "event": "sync_stale", "last_success": last_success.map(time) })
        }
        Event::SyncFresh => json!({ "event": "sync_fresh" }),
        Event::Act(change) => act::change(change),
        Event::Missed(count) => json!({ "event": "missed", "count": count }),
    })
}

pub(super) fn time(at: Timestamp) -> String {
    // Every `Timestamp` is one of jiff's.
    jiff::Timestamp::from_microsecond(at.as_i64()).map(|at| at.to_string()).unwrap_or_default()
}

fn source(row: &SourceRow) -> Value {
    json!({
        "uuid": row.id.as_str(),
        "designation": row.designation.as_str(),
        "starred": row.starred,
        "last_updated": time(row.last_updated),
        "key": row.key.as_ref().map(|key| key.as_str()),
        "counts": {
            "messages": row.counts.messages,
            "files": row.counts.files,
            "replies": row.counts.replies,
            "unread": row.counts.unread,
        },
        "being_deleted": being_deleted(row.deletion),
    })
}

fn item(item: &ConversationItem) -> Value {
    let (id, kind, author) = match &item.kind {
        ItemKind::Submission { id, kind: SubmissionKind::Message } => (id.as_str(), "message", None),
        ItemKind::Submission { id, kind: SubmissionKind::File } => (id.as_str(), "file", None),
        ItemKind::Reply { id, author } => (id.as_str(), "reply", author.as_ref()),
    };
    json!({
        "uuid": id,
        "kind": kind,
        "order": item.order.get(),
        "filename": item.filename.as_ref().map(|name| name.as_str()),
        "size": item.size.get(),
        "author": author.map(|name| name.as_str()),
        "unread": item.seen == Seen::Unread,
        "being_deleted": being_deleted(item.deletion),
        "content": download::content(&item.content),
    })
}

fn being_deleted(deletion: Deletion) -> bool {
    match deletion {
        Deletion::None => false,
        Deletion::Pending => true,
    }
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
    use control::{Content, LaneCounts, PauseReason, QueueStatus};

    use super::super::samples::{self, at, file, source};
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
        assert_eq!(parsed.get("lanes"), Some(&json!({ "acts": none, "messages": none, "files": files })));
    }

    #[test]
    fn an_item_says_what_is_held_of_it() {
        let here = ConversationItem { content: Content::Downloaded, ..file(1) };
        let parsed: Value = serde_json::from_str(&conversation(&source(1, "candid marmot"), &[here])).unwrap();
        let expected = json!({ "state": "downloaded", "reason": null });
        assert_eq!(parsed.pointer("/items/0/content"), Some(&expected));
    }
}
