//! What a person reads. Everything that came from the server or a source goes through [`sanitized`] or
//! [`sanitized_within`].

mod act;
mod amount;
mod conversation;
mod doctor;
mod download;
mod handover;
mod key;
mod leave;
mod queue;
mod reading;
mod removal;
mod reply;
mod search;
mod status;

use control::{
    ConversationItem, Deletion, Event, ItemKind, KeyState, Presence, Session, SessionEnd, SourceRow, Status,
    SyncOutcome, SyncReport,
};
use protocol::SubmissionKind;
use protocol::value::Timestamp;
use unicode_width::UnicodeWidthStr as _;

pub(super) use act::{
    acted_on_items, acted_on_sources, ask_about_conversation, ask_about_items, ask_about_sources, nothing_to_delete,
    nothing_unread,
};
pub(super) use amount::bytes;
pub(super) use conversation::{conversation, transcript};
pub(super) use doctor::{check, checked};
pub(super) use download::{Progress, all_are_there, decrypting, paused, postponed_download, progress, stopped, wanted};
pub(super) use handover::{closed, copying, device, device_said, exported, handed_over, is_open, written};
pub(super) use key::trusted;
pub(super) use leave::{can_be_undone, undone, unsent};
pub(super) use queue::{dealt, paused_by_user, queue, resumed};
pub(super) use removal::{ask_about_removals, removals, settled};
pub(super) use reply::{draft, replied};
pub(super) use search::{Emphasis, found};
pub(super) use status::status;

use super::json::time;
use super::safe_text::{sanitized, sanitized_within};

/// How much of an id identifies a source for most purposes.
const SHORT_ID: usize = 8;
/// How wide a name may make a column, so that one long name does not push all that follows off the screen. What is
/// alone on its line, or last in it, is shown in full.
const NAME_COLUMNS: usize = 40;

pub(super) fn signed_in(session: &Session) -> String {
    match session {
        Session::SignedIn { username, .. } => format!("Signed in as {}.\n", sanitized(username.as_str())),
        Session::SigningIn => "A login is under way.\n".to_owned(),
        Session::SignedOut => "Nobody is signed in.\n".to_owned(),
    }
}

pub(super) fn refreshed(report: &SyncReport) -> String {
    format!("{}.\n", capitalized(&outcome(report)))
}

pub(super) fn watching(status: &Status) -> String {
    format!("{}Watching; Ctrl-C ends it.\n", signed_in(&status.session))
}

pub(super) fn sources(sources: &[SourceRow]) -> String {
    if sources.is_empty() {
        return "No sources. `splitdrop status` says when the last sync was.\n".to_owned();
    }
    let mut rows =
        vec![["", "SOURCE", "LAST UPDATE", "UNREAD", "MESSAGES", "FILES", "REPLIES", "ID", ""].map(str::to_owned)];
    for row in sources {
        rows.push([
            if row.starred { "*" } else { "" }.to_owned(),
            sanitized_within(row.designation.as_str(), NAME_COLUMNS),
            short_time(row.last_updated),
            row.counts.unread.to_string(),
            row.counts.messages.to_string(),
            row.counts.files.to_string(),
            row.counts.replies.to_string(),
            short_id(row.id.as_str()),
            match (row.deletion, row.presence, &row.key) {
                (Deletion::None, Presence::Gone, _) => "no longer on the server",
                (Deletion::None, Presence::Listed, KeyState::Held { .. }) => "key held back",
                (deletion, _, _) => mark(deletion),
            }
            .to_owned(),
        ]);
    }
    table(&rows)
}

pub(super) fn event(event: &Event) -> String {
    match event {
        Event::ProxyWaiting => {
            "The call to the proxy VM takes a while: it may be starting, or dom0 may be asking.\n".to_owned()
        }
        Event::SessionStarted(session) => signed_in(session),
        Event::SessionEnded(SessionEnd::Logout) => "Signed out.\n".to_owned(),
        Event::SessionEnded(SessionEnd::Expired) => {
            "The server no longer accepts the session: run `splitdrop login`.\n".to_owned()
        }
        Event::SessionEnded(SessionEnd::Shutdown) => "The daemon is ending.\n".to_owned(),
        Event::SyncStarted(start) => format!("{}  sync started.\n", short_time(start.started)),
        Event::SyncEnded(report) => format!("{}  {}.\n", short_time(report.ended), outcome(report)),
        Event::SourcesChanged(ids) => format!("{} sources have changed.\n", ids.len()),
        Event::Download(change) => download::change(change),
        Event::Read(change) => reading::change(change),
        Event::KeyHeld { source, problem } => reading::key_held(*source, *problem),
        Event::RemovalsHeld(sources) => format!(
            "The server lists much less than before: what is missing of {} is held, and nothing of it is erased. \
             `splitdrop removals show` lists it.\n",
            counted(u64::try_from(sources.len()).unwrap_or(u64::MAX), "source")
        ),
        Event::Erased(items) => format!("Erased here what was deleted: {}.\n", counted(*items, "item")),
        Event::ErasureFailed(fault) => format!("{}.\n", capitalized(&status::not_erased(fault))),
        Event::Paused(reason) => format!("The queue waits: {}.\n", download::reason(reason)),
        Event::Resumed => "The queue is no longer paused.\n".to_owned(),
        Event::SyncStale { last_success: Some(at) } => {
            format!("What is shown is old: the last sync that succeeded ended {}.\n", short_time(*at))
        }
        Event::SyncStale { last_success: None } => "What is shown is old: no sync has succeeded yet.\n".to_owned(),
        Event::SyncFresh => "What is shown no longer counts as old.\n".to_owned(),
        Event::Act(change) => queue::change(change),
        Event::Viewer { item, step } => handover::viewer(*item, step),
        Event::Missed(count) => format!("{count} events were missed.\n"),
    }
}

fn outcome(report: &SyncReport) -> String {
    let counts = &report.counts;
    let lists = format!(
        "{} sources, {} messages, {} files, {} replies",
        counts.sources, counts.messages, counts.files, counts.replies
    );
    let mut text = match &report.outcome {
        SyncOutcome::Ok => format!("synced: {lists}"),
        SyncOutcome::Unchanged => format!("synced, nothing new: {lists}"),
        SyncOutcome::Failed(failure) => return format!("sync failed: {}", sanitized(&failure.message)),
        SyncOutcome::Cancelled => return "sync cancelled".to_owned(),
    };
    if counts.unreadable > 0 {
        text.push_str(&format!("; {} unreadable", counts.unreadable));
    }
    if counts.not_shown > 0 {
        text.push_str(&format!("; {} not shown, since their sources are not listed", counts.not_shown));
    }
    text
}

/// The beginning of an id.
fn short_id(id: &str) -> String {
    id.chars().take(SHORT_ID).collect()
}

fn item_short_id(item: &ConversationItem) -> String {
    match &item.kind {
        ItemKind::Submission { id, .. } => short_id(id.as_str()),
        ItemKind::Reply { id, .. } => short_id(id.as_str()),
    }
}

fn kind_word(kind: &ItemKind) -> &'static str {
    match kind {
        ItemKind::Submission { kind: SubmissionKind::Message, .. } => "message",
        ItemKind::Submission { kind: SubmissionKind::File, .. } => "file",
        ItemKind::Reply { .. } => "reply",
    }
}

fn mark(deletion: Deletion) -> &'static str {
    match deletion {
        Deletion::None => "",
        Deletion::Pending => "being deleted",
    }
}

/// So many of what takes an s.
fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// A time to the second.
fn short_time(at: Timestamp) -> String {
    let text = time(at);
    let seconds = text.split(['.', 'Z']).next().unwrap_or_default();
    format!("{}Z", seconds.replace('T', " "))
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_uppercase().collect::<String>() + characters.as_str()).unwrap_or_default()
}

/// Columns as wide as their widest cell; numbers to the right.
fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let mut widths = [0; COLUMNS];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let padding = " ".repeat(width.saturating_sub(cell.width()));
            let number = !cell.is_empty() && cell.bytes().all(|byte| byte.is_ascii_digit());
            let parts = if number { [padding.as_str(), cell] } else { [cell, padding.as_str()] };
            line.extend(parts);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::samples::{held_key, source};
    use super::*;

    #[test]
    fn a_table_lines_up_whatever_the_script() {
        let rows = [["a", "WORD"], ["12", "海鸥"], ["7", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "a   WORD\n12  海鸥\n 7  x\n");
    }

    #[test]
    fn one_long_name_does_not_widen_the_whole_list() {
        let long = "x".repeat(250);
        let list = sources(&[source(1, &long), source(2, "candid marmot")]);
        assert!(list.lines().all(|line| line.width() < 120), "{list}");
        assert!(list.contains(&format!("{}…", "x".repeat(39))), "{list}");
    }

    #[test]
    fn what_is_being_deleted_is_marked() {
        let mut gone = source(1, "candid marmot");
        gone.deletion = Deletion::Pending;
        let list = sources(&[gone, source(2, "fluent barn")]);
        let marked: Vec<_> = list.lines().filter(|line| line.ends_with("3f2a6f8e  being deleted")).collect();
        assert!(marked.len() == 1 && list.lines().nth(1) == marked.first().copied(), "{list}");
    }

    #[test]
    fn whoever_cannot_be_answered_for_their_key_is_marked() {
        let held = SourceRow { key: held_key(), ..source(1, "candid marmot") };
        let list = sources(&[held.clone(), source(2, "fluent barn")]);
        assert!(list.lines().nth(1).unwrap().ends_with("3f2a6f8e  key held back"), "{list}");
        assert!(list.lines().nth(2).unwrap().ends_with("3f2a6f8e"), "{list}");
        let gone = sources(&[SourceRow { deletion: Deletion::Pending, ..held }]);
        assert!(gone.contains("being deleted") && !gone.contains("key held back"), "{gone}");
    }

    #[test]
    fn times_are_short() {
        assert_eq!(short_time(Timestamp::try_new(1_729_785_077_123_456).unwrap()), "2024-10-24 15:51:17Z");
        assert_eq!(short_time(Timestamp::try_new(0).unwrap()), "1970-01-01 00:00:00Z");
    }
}
