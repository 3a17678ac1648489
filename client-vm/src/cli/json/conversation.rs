//! A source, its key, and its conversation as JSON.

use control::{
    Content, ConversationItem, Deletion, Inner, ItemKind, KeyProblem, KeyState, OutgoingReply, Presence, Seal, Seen,
    SourceRow,
};
use protocol::SubmissionKind;
use protocol::value::{Fingerprint, SourceId};
use serde_json::{Value, json};

use super::super::conversation::Conversation;
use super::{act, object, time};

/// A whole conversation: `text` is null where nothing can be read.
pub(in crate::cli) fn conversation(conversation: &Conversation) -> String {
    object(json!({
        "source": source(&conversation.source),
        "items": conversation.items.iter().map(|item| self::item(conversation, item)).collect::<Vec<_>>(),
        "outgoing": conversation.outgoing.iter().map(outgoing).collect::<Vec<_>>(),
        "draft": conversation.draft.as_ref().map(|draft| draft.as_str()),
    }))
}

/// Whether something is kept as the draft now.
pub(in crate::cli) fn draft(kept: bool) -> String {
    object(json!({ "draft": if kept { "kept" } else { "forgotten" } }))
}

/// Which key of a source is trusted, and which one was before.
pub(in crate::cli) fn trusted(source: SourceId, before: Option<&Fingerprint>, now: &Fingerprint) -> String {
    object(json!({
        "source": source.as_str(),
        "fingerprint": now.as_str(),
        "before": before.map(Fingerprint::as_str),
    }))
}

pub(super) fn source(row: &SourceRow) -> Value {
    json!({
        "uuid": row.id.as_str(),
        "designation": row.designation.as_str(),
        "starred": row.starred,
        "last_updated": time(row.last_updated),
        "key": key(&row.key),
        "counts": {
            "messages": row.counts.messages,
            "files": row.counts.files,
            "replies": row.counts.replies,
            "unread": row.counts.unread,
        },
        "being_deleted": being_deleted(row.deletion),
        "on_server": on_server(row.presence),
    })
}

/// How a key stands, with all fields whatever its state. `fingerprint` is that of the pinned key.
fn key(key: &KeyState) -> Value {
    let (state, pinned, offered, problem, detail) = match key {
        KeyState::None => ("none", None, None, None, None),
        KeyState::New { offered } => ("new", None, Some(offered), None, None),
        KeyState::Pinned { fingerprint } => ("pinned", Some(fingerprint), None, None, None),
        KeyState::Held { problem, pinned, offered, detail } => {
            ("held", pinned.as_ref(), Some(offered), Some(key_problem(*problem)), Some(detail.as_str()))
        }
    };
    json!({
        "state": state,
        "fingerprint": pinned.map(Fingerprint::as_str),
        "offered": offered.map(Fingerprint::as_str),
        "problem": problem,
        "detail": detail,
    })
}

pub(super) fn key_problem(problem: KeyProblem) -> &'static str {
    match problem {
        KeyProblem::Changed => "changed",
        KeyProblem::Mismatch => "mismatch",
        KeyProblem::Unusable => "unusable",
    }
}

fn item(conversation: &Conversation, item: &ConversationItem) -> Value {
    let (id, kind, author) = match &item.kind {
        ItemKind::Submission { id, kind: SubmissionKind::Message } => (id.as_str(), "message", None),
        ItemKind::Submission { id, kind: SubmissionKind::File } => (id.as_str(), "file", None),
        ItemKind::Reply { id, author, own: _ } => (id.as_str(), "reply", author.as_ref()),
    };
    json!({
        "uuid": id,
        "kind": kind,
        "order": item.order.get(),
        "filename": item.filename.as_ref().map(|name| name.as_str()),
        "size": item.size.get(),
        "author": author.map(|name| name.as_str()),
        "own": conversation.is_own(item),
        "unread": item.seen == Seen::Unread,
        "being_deleted": being_deleted(item.deletion),
        "on_server": on_server(item.presence),
        "content": content(&item.content),
        "received": conversation.received(item),
        "text": conversation.text(item),
    })
}

fn outgoing(reply: &OutgoingReply) -> Value {
    json!({
        "uuid": reply.reply.as_str(),
        "act": reply.act.0,
        "journalist": reply.journalist.as_str(),
        "author": reply.username.as_ref().map(|name| name.as_str()),
        "own": reply.own,
        "written": time(reply.written),
        "state": reply.state.as_ref().map_or("confirmed", act::state),
        "reason": reply.reason,
        "text": reply.text.as_str(),
    })
}

/// What is held of an item, with all fields whatever that is.
pub(super) fn content(content: &Content) -> Value {
    let mut fields = json!({ "reason": null, "seal": null, "inner": null, "name": null, "bytes": null });
    let more = match content {
        Content::Absent => json!({ "state": "absent" }),
        Content::Wanted { reason } => json!({ "state": "wanted", "reason": reason }),
        Content::Downloaded { reason } => json!({ "state": "downloaded", "reason": reason }),
        Content::Decrypted { bytes, inner, name } => {
            json!({ "state": "decrypted", "inner": inner_name(*inner), "name": name, "bytes": bytes })
        }
        Content::Sealed { seal, reason } => json!({ "state": "sealed", "seal": seal_name(*seal), "reason": reason }),
        Content::Failed { reason } => json!({ "state": "failed", "reason": reason }),
    };
    if let (Some(fields), Value::Object(more)) = (fields.as_object_mut(), more) {
        fields.extend(more);
    }
    fields
}

fn inner_name(inner: Inner) -> &'static str {
    match inner {
        Inner::None => "none",
        Inner::Opened => "opened",
        Inner::Closed => "closed",
    }
}

fn seal_name(seal: Seal) -> &'static str {
    match seal {
        Seal::NoKey => "no_key",
        Seal::Denied => "denied",
        Seal::Cut => "cut",
        Seal::Corrupt => "corrupt",
        Seal::TooLarge => "too_large",
        Seal::Other => "other",
    }
}

fn on_server(presence: Presence) -> bool {
    match presence {
        Presence::Listed => true,
        Presence::Gone => false,
    }
}

fn being_deleted(deletion: Deletion) -> bool {
    match deletion {
        Deletion::None => false,
        Deletion::Pending => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use control::{ActState, ReplyText};

    use super::super::super::act::item_id;
    use super::super::super::samples::{self, decrypted, file, fingerprint, held_key, message, reply, source_id};
    use super::*;

    #[test]
    fn a_conversation_is_one_object_with_all_of_it() {
        let items =
            vec![message(1), reply(2, Some("marlow")), ConversationItem { content: Content::Absent, ..file(3) }];
        let hostile = "a\u{1b}[2J\u{202e}\r\n\u{0}";
        let shown = Conversation {
            source: samples::source(1, "candid marmot"),
            texts: HashMap::from([(item_id(&message(1)), hostile.to_owned())]),
            items,
            outgoing: vec![samples::outgoing(12, None), samples::outgoing(13, Some(ActState::Refused))],
            draft: Some(ReplyText::try_new("begun").unwrap()),
            running: HashMap::from([(item_id(&file(3)), 5)]),
        };
        let printed = conversation(&shown);
        assert!(!printed.chars().any(|character| matches!(character, '\u{1b}' | '\u{202e}' | '\n')), "{printed}");
        let parsed: Value = serde_json::from_str(&printed).unwrap();
        let content = json!({
            "state": "decrypted", "reason": null, "seal": null, "inner": "none", "name": null, "bytes": 1_200,
        });
        assert_eq!(
            parsed.pointer("/items/0").unwrap(),
            &json!({
                "uuid": "9b040001-0000-4000-8000-000000000000",
                "kind": "message",
                "order": 1,
                "filename": "1-leak.gz.gpg",
                "size": 612,
                "author": null,
                "own": false,
                "unread": false,
                "being_deleted": false,
                "on_server": true,
                "content": content,
                "received": null,
                "text": hostile,
            })
        );
        let at = |pointer: &str| parsed.pointer(pointer).unwrap().clone();
        assert_eq!((at("/items/1/own"), at("/items/1/text")), (json!(true), Value::Null));
        assert_eq!((at("/items/2/received"), at("/items/2/own")), (json!(5), json!(false)));
        assert_eq!((at("/outgoing/0/state"), at("/outgoing/1/state")), (json!("confirmed"), json!("refused")));
        assert_eq!(
            at("/outgoing/0"),
            json!({
                "uuid": "4e110000-0000-4000-8000-000000000012",
                "act": 12,
                "journalist": "7d1c0000-0000-4000-8000-000000000001",
                "author": null,
                "own": true,
                "written": "1970-01-01T00:00:00Z",
                "state": "confirmed",
                "reason": null,
                "text": "Thank you.",
            })
        );
        assert_eq!((at("/draft"), at("/format"), at("/source/key/state")), (json!("begun"), json!(1), json!("none")));
    }

    #[test]
    fn a_key_has_all_fields_whatever_its_state() {
        let (a, b) = (fingerprint('A'), fingerprint('B'));
        for (state, expected) in [
            (KeyState::None, json!(["none", null, null, null, null])),
            (KeyState::New { offered: b.clone() }, json!(["new", null, b.as_str(), null, null])),
            (KeyState::Pinned { fingerprint: a.clone() }, json!(["pinned", a.as_str(), null, null, null])),
            (held_key(), json!(["held", a.as_str(), b.as_str(), "changed", "compare"])),
        ] {
            let shown = key(&state);
            let fields = ["state", "fingerprint", "offered", "problem", "detail"];
            assert_eq!(json!(fields.map(|name| shown.get(name).unwrap())), expected);
        }
    }

    #[test]
    fn content_has_all_fields_whatever_its_state() {
        let reason = || "gone".to_owned();
        for (held, state, seal, inner) in [
            (Content::Absent, "absent", None, None),
            (Content::Wanted { reason: Some(reason()) }, "wanted", None, None),
            (Content::Downloaded { reason: None }, "downloaded", None, None),
            (decrypted(Some("a.pdf")), "decrypted", None, Some("none")),
            (Content::Sealed { seal: Seal::TooLarge, reason: reason() }, "sealed", Some("too_large"), None),
            (Content::Failed { reason: reason() }, "failed", None, None),
        ] {
            let shown = content(&held);
            let names: Vec<_> = shown.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(names, ["bytes", "inner", "name", "reason", "seal", "state"]);
            assert_eq!(
                (shown.get("state"), shown.get("seal"), shown.get("inner")),
                (Some(&json!(state)), Some(&json!(seal)), Some(&json!(inner)))
            );
        }
        assert_eq!(content(&Content::Failed { reason: reason() }).get("reason"), Some(&json!("gone")));
        assert_eq!(content(&decrypted(Some("a.pdf"))).get("name"), Some(&json!("a.pdf")));
    }

    #[test]
    fn a_draft_and_a_trusted_key_are_objects() {
        assert_eq!(
            (draft(true), draft(false)),
            (r#"{"draft":"kept","format":1}"#.to_owned(), r#"{"draft":"forgotten","format":1}"#.to_owned())
        );
        let parsed: Value = serde_json::from_str(&trusted(source_id(1), None, &fingerprint('B'))).unwrap();
        let expected =
            json!({ "source": source_id(1).as_str(), "fingerprint": "B".repeat(40), "before": null, "format": 1 });
        assert_eq!(parsed, expected);
    }
}
