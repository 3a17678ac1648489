//! Acts in words: what will be done, and what was.

use control::{ActKind, ConversationItem, ItemKind, SourceRow, Taken};
use protocol::SubmissionKind;

use super::super::act::Group;
use super::super::safe_text::{sanitized, sanitized_within};
use super::{NAME_COLUMNS, counted, item_short_id, kind_word, mark, short_id, table};

/// What became of an act on sources.
pub(in crate::cli) fn acted_on_sources(kind: ActKind, sources: &[SourceRow], taken: &[Taken]) -> String {
    let (objects, before) = totals(taken);
    let verb = match kind {
        ActKind::Star => "Starred",
        ActKind::Unstar => "Unstarred",
        ActKind::Seen => "Marked as seen",
        ActKind::DeleteSource | ActKind::DeleteItem => "Deleting",
        ActKind::Reply => "Answering",
    };
    match (sources, objects) {
        ([source], 0) => format!("{} {}.\n", sanitized(source.designation.as_str()), already(kind, 1)),
        (_, 0) => format!("All {before} {}.\n", already(kind, before)),
        ([source], _) => format!("{verb} {}.\n", sanitized(source.designation.as_str())),
        (_, _) => format!("{verb} {}.{}\n", counted(objects, "source"), besides(kind, before)),
    }
}

/// What became of an act on items of one conversation.
pub(in crate::cli) fn acted_on_items(kind: ActKind, source: &SourceRow, taken: &[Taken]) -> String {
    let (objects, before) = totals(taken);
    let whose = sanitized(source.designation.as_str());
    if objects == 0 {
        return format!("{} of {whose} {}.\n", counted(before, "item"), already(kind, before));
    }
    let items = counted(objects, "item");
    let what = match kind {
        ActKind::Seen => format!("Marked {items} of {whose} as seen."),
        ActKind::Star => format!("Starred {items} of {whose}."),
        ActKind::Unstar => format!("Unstarred {items} of {whose}."),
        ActKind::Reply => format!("Answering {items} of {whose}."),
        ActKind::DeleteSource | ActKind::DeleteItem => format!("Deleting {items} of {whose}."),
    };
    format!("{what}{}\n", besides(kind, before))
}

pub(in crate::cli) fn nothing_unread(source: &SourceRow) -> String {
    format!("Nothing is unread in the conversation of {}.\n", sanitized(source.designation.as_str()))
}

pub(in crate::cli) fn nothing_to_delete(source: &SourceRow) -> String {
    format!("There is nothing to delete in the conversation of {}.\n", sanitized(source.designation.as_str()))
}

/// Shows sources and asks whether to delete them.
pub(in crate::cli) fn ask_about_sources(sources: &[SourceRow]) -> String {
    let mut rows = vec![["SOURCE", "UNREAD", "MESSAGES", "FILES", "REPLIES", "ID", ""].map(str::to_owned)];
    for row in sources {
        rows.push([
            sanitized_within(row.designation.as_str(), NAME_COLUMNS),
            row.counts.unread.to_string(),
            row.counts.messages.to_string(),
            row.counts.files.to_string(),
            row.counts.replies.to_string(),
            short_id(row.id.as_str()),
            mark(row.deletion).to_owned(),
        ]);
    }
    let these = match sources {
        [_] => "this source with all that belongs to it".to_owned(),
        more => format!("these {} sources with all that belongs to them", more.len()),
    };
    format!("{}Delete {these}, for all journalists?", table(&rows))
}

/// Shows what is in a conversation and asks whether to delete it.
pub(in crate::cli) fn ask_about_conversation(source: &SourceRow, items: &[ConversationItem]) -> String {
    format!(
        "{}: {}\nDelete {}, for all journalists? The source stays.",
        sanitized(source.designation.as_str()),
        kinds(items),
        these(items.len()),
    )
}

/// Shows items and asks whether to delete them.
pub(in crate::cli) fn ask_about_items(groups: &[(&SourceRow, &Group)]) -> String {
    let mut rows = vec![["SOURCE", "NUMBER", "KIND", "BYTES", "ID", "", "NAME"].map(str::to_owned)];
    let mut count = 0_usize;
    for (source, group) in groups {
        for item in &group.items {
            count = count.saturating_add(1);
            rows.push([
                sanitized_within(source.designation.as_str(), NAME_COLUMNS),
                item.order.get().to_string(),
                kind_word(&item.kind).to_owned(),
                item.size.get().to_string(),
                item_short_id(item),
                mark(item.deletion).to_owned(),
                item.filename.as_ref().map(|name| sanitized(name.as_str())).unwrap_or_default(),
            ]);
        }
    }
    format!("{}Delete {}, for all journalists?", table(&rows), these(count))
}

fn these(items: usize) -> String {
    if items == 1 { "this item".to_owned() } else { format!("these {items} items") }
}

/// How many of each kind.
fn kinds(items: &[ConversationItem]) -> String {
    let (mut messages, mut files, mut replies) = (0, 0, 0);
    for item in items {
        let count = match &item.kind {
            ItemKind::Submission { kind: SubmissionKind::Message, .. } => &mut messages,
            ItemKind::Submission { kind: SubmissionKind::File, .. } => &mut files,
            ItemKind::Reply { .. } => &mut replies,
        };
        *count += 1_u64;
    }
    format!("{messages} messages, {files} files, {replies} replies")
}

fn totals(taken: &[Taken]) -> (u64, u64) {
    (taken.iter().map(|one| one.objects).sum(), taken.iter().map(|one| one.already).sum())
}

/// A sentence about those that were so already, if there are any.
fn besides(kind: ActKind, count: u64) -> String {
    if count == 0 { String::new() } else { format!(" {count} {}.", already(kind, count)) }
}

fn already(kind: ActKind, count: u64) -> String {
    let were = if count == 1 { "was" } else { "were" };
    match kind {
        ActKind::Star => format!("{were} starred already"),
        ActKind::Unstar => "had no star".to_owned(),
        ActKind::Seen => format!("{were} seen already"),
        ActKind::Reply => format!("{were} taken already"),
        ActKind::DeleteSource | ActKind::DeleteItem => format!("{were} being deleted already"),
    }
}

#[cfg(test)]
mod tests {
    use control::Deletion;

    use super::super::super::samples::{file, source, taken};
    use super::*;

    #[test]
    fn one_source_is_named_and_more_are_counted() {
        let one = [source(1, "candid marmot")];
        let say = |kind, objects, already| acted_on_sources(kind, &one, &[taken(objects, already)]);
        assert_eq!(say(ActKind::Star, 1, 0), "Starred candid marmot.\n");
        assert_eq!(say(ActKind::Star, 0, 1), "candid marmot was starred already.\n");
        assert_eq!(say(ActKind::Unstar, 0, 1), "candid marmot had no star.\n");
        assert_eq!(say(ActKind::DeleteSource, 1, 0), "Deleting candid marmot.\n");
        let three = [1, 2, 3].map(|number| source(number, "x"));
        let say = |kind, objects, already| acted_on_sources(kind, &three, &[taken(objects, already)]);
        assert_eq!(say(ActKind::Star, 3, 0), "Starred 3 sources.\n");
        assert_eq!(say(ActKind::Star, 1, 2), "Starred 1 source. 2 were starred already.\n");
        assert_eq!(say(ActKind::DeleteSource, 2, 1), "Deleting 2 sources. 1 was being deleted already.\n");
        assert_eq!(say(ActKind::DeleteSource, 0, 3), "All 3 were being deleted already.\n");
    }

    #[test]
    fn what_several_acts_took_is_told_together() {
        let marmot = source(1, "candid marmot");
        let say = |kind, taken: &[Taken]| acted_on_items(kind, &marmot, taken);
        let both = [taken(2048, 0), taken(3, 1)];
        assert_eq!(say(ActKind::Seen, &both), "Marked 2051 items of candid marmot as seen. 1 was seen already.\n");
        assert_eq!(say(ActKind::DeleteItem, &[taken(1, 0)]), "Deleting 1 item of candid marmot.\n");
        assert_eq!(say(ActKind::DeleteItem, &[taken(0, 2)]), "2 items of candid marmot were being deleted already.\n");
    }

    #[test]
    fn a_question_shows_all_that_will_go() {
        let mut marmot = source(1, "candid marmot");
        marmot.counts.messages = 20;
        let question = ask_about_sources(std::slice::from_ref(&marmot));
        assert!(question.contains("candid marmot       0        20      0        0  3f2a6f8e\n"), "{question}");
        assert!(question.ends_with("Delete this source with all that belongs to it, for all journalists?"));
        let question = ask_about_sources(&[marmot.clone(), source(2, "fluent barn")]);
        assert!(question.contains("fluent barn") && question.contains("Delete these 2 sources"), "{question}");
        assert_eq!(
            ask_about_conversation(&marmot, &[file(1), file(2)]),
            "candid marmot: 0 messages, 2 files, 0 replies\nDelete these 2 items, for all journalists? The source stays."
        );
        let mut group = Group { source: marmot.id, items: vec![file(1), file(2)] };
        if let Some(item) = group.items.last_mut() {
            item.deletion = Deletion::Pending;
        }
        let question = ask_about_items(&[(&marmot, &group)]);
        assert!(question.contains("9b040001                 1-leak.gz.gpg\n"), "{question}");
        assert!(question.contains("9b040002  being deleted  2-leak.gz.gpg\n"), "{question}");
        assert!(question.ends_with("Delete these 2 items, for all journalists?"), "{question}");
    }

    #[test]
    fn a_name_cannot_forge_a_question() {
        // A designation holds no control characters; what turns the direction of reading is enough.
        let hostile = source(1, "x\u{202e}?gnihton eteleD");
        let group = Group { source: hostile.id, items: vec![file(1)] };
        let shown = [
            ask_about_sources(std::slice::from_ref(&hostile)),
            ask_about_conversation(&hostile, &[file(1)]),
            ask_about_items(&[(&hostile, &group)]),
            nothing_to_delete(&hostile),
            nothing_unread(&hostile),
            acted_on_sources(ActKind::Star, std::slice::from_ref(&hostile), &[taken(1, 0)]),
            acted_on_items(ActKind::Seen, &hostile, &[taken(1, 0)]),
        ];
        for text in shown {
            assert!(text.contains("x\\u{202e}?gnihton"), "{text}");
        }
    }
}
