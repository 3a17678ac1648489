//! Conversations in words: what was said, and how far each part of it is.
//!
//! **Invariant:** what came from elsewhere moves no cursor, and no line of it begins where a line of ours does: texts are
//! indented by four columns, our notes by two, and heads by none. Lines are broken here, at the width of the terminal or of a
//! plain text, since what a terminal breaks goes on in its first column. (One that is made narrower later, or that gives
//! letters more columns than Unicode does, breaks them once more.)

use control::{ActState, Content, ConversationItem, Deletion, Inner, ItemKind, OutgoingReply, Presence, Seen};
use protocol::SubmissionKind;

use super::super::columns::{INDENT, PLAIN, fitted};
use super::super::conversation::Conversation;
use super::super::safe_text::{sanitized, sanitized_lines, sanitized_within};
use super::amount::{bytes, percent};
use super::{NAME_COLUMNS, item_short_id, key, kind_word, reading, short_id, short_time};

/// Between the parts of a line.
const GAP: &str = "  ";
const NOTE: &str = "  ";
/// How the lines about the source begin; as wide as each other.
const KEY: &str = "key  ";
const MORE: &str = "     ";

/// All of a conversation, in its order, in lines of at most so many columns.
pub(in crate::cli) fn conversation(shown: &Conversation, columns: usize) -> String {
    let source = &shown.source;
    let mut text = format!(
        "{}{}{}\nid   {}\n",
        sanitized(source.designation.as_str()),
        if source.starred { " *" } else { "" },
        match (source.deletion, source.presence) {
            (Deletion::Pending, _) => " (being deleted)",
            (Deletion::None, Presence::Gone) => " (no longer on the server)",
            (Deletion::None, Presence::Listed) => "",
        },
        source.id,
    );
    for (at, line) in key::lines(source).into_iter().enumerate() {
        push(&mut text, if at == 0 { KEY } else { MORE }, &line);
    }
    push_entries(&mut text, shown, Notes::ToWhoeverReads);
    if let Some(draft) = &shown.draft {
        let parts = ["draft".to_owned(), "not sent".to_owned()];
        let note = format!("`splitdrop reply {}` goes on with it", short_id(source.id.as_str()));
        entry(&mut text, &parts, Some(note), Some(draft.as_str()));
    }
    fitted(&text, columns)
}

/// What was said in a conversation, in its order, for whoever has no Splitdrop: without the draft, which nobody has sent, and
/// without commands.
pub(in crate::cli) fn transcript(shown: &Conversation) -> String {
    let mut text = format!("Conversation with {}\n", sanitized(shown.source.designation.as_str()));
    push_entries(&mut text, shown, Notes::None);
    fitted(&text, PLAIN)
}

/// Whether it is said what can be done about an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notes {
    ToWhoeverReads,
    None,
}

fn push_entries(text: &mut String, shown: &Conversation, noted: Notes) {
    if shown.items.is_empty() && shown.outgoing.is_empty() {
        text.push_str("\nNothing in this conversation.\n");
    }
    for item in &shown.items {
        let size = shown.received(item).map(|received| percent(received, item.size.get()));
        let parts = [
            item.order.get().to_string(),
            kind_word(&item.kind).to_owned(),
            item_short_id(item),
            who(shown, item),
            marks(shown, item, size).join(", "),
            length_and_name(item),
        ];
        let export = || format!("`splitdrop export {} --to DIR` copies it", item_short_id(item));
        let note = notes(item).or_else(|| is_unsaid(shown, item).then(export));
        entry(text, &parts, note.filter(|_| noted == Notes::ToWhoeverReads), shown.text(item));
    }
    for reply in &shown.outgoing {
        let parts = [
            "-".to_owned(),
            "reply".to_owned(),
            format!("act {}", reply.act.0),
            if reply.own { "you".to_owned() } else { String::new() },
            state(reply),
            short_time(reply.written),
        ];
        let note = outgoing_note(reply).filter(|_| noted == Notes::ToWhoeverReads);
        entry(text, &parts, note, Some(reply.text.as_str()));
    }
}

/// An empty line, a head, a note, and what was said.
fn entry(text: &mut String, parts: &[String], note: Option<String>, said: Option<&str>) {
    let parts: Vec<_> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    text.push('\n');
    push(text, "", &parts.join(GAP));
    if let Some(note) = note {
        push(text, NOTE, &note);
    }
    match said {
        Some("") => push(text, NOTE, "(empty)"),
        Some(said) => sanitized_lines(said).for_each(|line| push(text, INDENT, &line)),
        None => {}
    }
}

fn push(text: &mut String, before: &str, line: &str) {
    if !line.is_empty() {
        text.push_str(before);
    }
    text.push_str(line);
    text.push('\n');
}

fn who(shown: &Conversation, item: &ConversationItem) -> String {
    match &item.kind {
        ItemKind::Submission { .. } => "source".to_owned(),
        ItemKind::Reply { .. } if shown.is_own(item) => "you".to_owned(),
        ItemKind::Reply { author: None, .. } => "unknown".to_owned(),
        ItemKind::Reply { author: Some(name), .. } => sanitized_within(name.as_str(), NAME_COLUMNS),
    }
}

/// What is special about it. `downloading`: how much of it is there, in percent, while it is being downloaded.
fn marks(shown: &Conversation, item: &ConversationItem, downloading: Option<u64>) -> Vec<String> {
    let mut marks = Vec::new();
    match item.kind {
        ItemKind::Reply { .. } => marks.push("sent".to_owned()),
        ItemKind::Submission { .. } => {}
    }
    if (shown.source.presence, item.presence) == (Presence::Listed, Presence::Gone) {
        marks.push("no longer on the server".to_owned());
    }
    match (item.deletion, item.seen) {
        (Deletion::Pending, Seen::Seen | Seen::Unread) => marks.push("being deleted".to_owned()),
        (Deletion::None, Seen::Seen) => {}
        (Deletion::None, Seen::Unread) => marks.push("unread".to_owned()),
    }
    if is_unsaid(shown, item) {
        marks.push("too long to be shown".to_owned());
    }
    let held = match &item.content {
        Content::Absent => "not here",
        Content::Wanted { .. } => match downloading {
            Some(percent) => {
                marks.push(format!("downloading, {percent}% are there"));
                return marks;
            }
            None => "waiting to be downloaded",
        },
        Content::Downloaded { .. } => "waiting to be decrypted",
        Content::Decrypted { inner: Inner::None, .. } => return marks,
        Content::Decrypted { inner: Inner::Opened, .. } => "encrypted inside too, and opened",
        Content::Decrypted { inner: Inner::Closed, .. } => "encrypted inside too, and cannot be decrypted here",
        Content::Sealed { .. } => "cannot be decrypted",
        Content::Failed { .. } => "could not be downloaded",
    };
    marks.push(held.to_owned());
    marks
}

/// The length of a file, of what is held of it, and its name: last, since it may be long and may look like anything.
fn length_and_name(item: &ConversationItem) -> String {
    match item.kind {
        ItemKind::Submission { kind: SubmissionKind::File, .. } => {}
        ItemKind::Submission { kind: SubmissionKind::Message, .. } | ItemKind::Reply { .. } => return String::new(),
    }
    let listed = item.filename.as_ref().map(|name| name.as_str());
    let (length, name) = match &item.content {
        Content::Decrypted { bytes: length, name, .. } => (bytes(*length), name.as_deref().or(listed)),
        Content::Absent
        | Content::Wanted { .. }
        | Content::Downloaded { .. }
        | Content::Sealed { .. }
        | Content::Failed { .. } => (format!("{} encrypted", bytes(item.size.get())), listed),
    };
    match name {
        Some(name) => format!("{length}{GAP}{}", sanitized(name)),
        None => length,
    }
}

/// Why it is not there, and what to do.
fn notes(item: &ConversationItem) -> Option<String> {
    let again = format!("`splitdrop download {}`", item_short_id(item));
    match &item.content {
        Content::Absent => Some(format!("{again} fetches it")),
        Content::Wanted { reason } => reason.as_ref().map(|reason| format!("the last try: {}", sanitized(reason))),
        Content::Downloaded { reason } => reason.as_ref().map(|reason| format!("the last try: {}", sanitized(reason))),
        Content::Decrypted { .. } => None,
        Content::Sealed { seal, reason } => {
            let why = reading::seal_words(*seal);
            let reason = if reason.is_empty() { String::new() } else { format!(" ({})", sanitized(reason)) };
            Some(format!("{why}{reason}: {again} tries again"))
        }
        Content::Failed { reason } => Some(format!("{}: {again} tries again", sanitized(reason))),
    }
}

/// Whether a text was decrypted and the daemon does not give it: it is too long.
fn is_unsaid(shown: &Conversation, item: &ConversationItem) -> bool {
    let is_text = match item.kind {
        ItemKind::Submission { kind: SubmissionKind::File, .. } => false,
        ItemKind::Submission { kind: SubmissionKind::Message, .. } | ItemKind::Reply { .. } => true,
    };
    is_text && matches!(item.content, Content::Decrypted { .. }) && shown.text(item).is_none()
}

/// How far a reply has come that the server does not list.
fn state(reply: &OutgoingReply) -> String {
    if reply.own {
        return match &reply.state {
            None => "sent, not listed yet",
            Some(ActState::Waiting | ActState::Grace) => "not sent yet",
            Some(ActState::Opening) => "being sent: waiting for the proxy VM or dom0",
            Some(ActState::Running) => "being sent",
            Some(ActState::Unconfirmed | ActState::NotDeleted) => "unconfirmed: it may have reached the server",
            Some(ActState::Held) => "not sent: it needs you",
            Some(ActState::Refused) => "not sent: refused",
        }
        .to_owned();
    }
    let name = match &reply.username {
        Some(username) => sanitized_within(username.as_str(), NAME_COLUMNS),
        None => reply.journalist.to_string(),
    };
    match &reply.state {
        None => format!("sent, not listed yet, by {name}"),
        Some(ActState::Waiting | ActState::Grace | ActState::Held) => format!("not sent, by {name}"),
        Some(ActState::Opening | ActState::Running) => format!("being sent, by {name}"),
        Some(ActState::Unconfirmed | ActState::NotDeleted) => format!("unconfirmed, by {name}"),
        Some(ActState::Refused) => format!("not sent, by {name}: refused"),
    }
}

fn outgoing_note(reply: &OutgoingReply) -> Option<String> {
    let reason = reply.reason.as_deref().map(sanitized);
    let again = match reply.state {
        Some(ActState::Held | ActState::Refused) if reply.own => {
            Some(format!("`splitdrop retry {}` tries it again", reply.act.0))
        }
        _ => None,
    };
    match (reason, again) {
        (Some(reason), Some(again)) => Some(format!("{reason}: {again}")),
        (reason, again) => reason.or(again),
    }
}

#[cfg(test)]
mod tests;
