//! What is not sent yet, in words: what leaving leaves behind, and what can be or was taken back.

use std::collections::BTreeMap;

use control::{ActKind, ActState, QueueEntry, Taken, Undone};

use super::super::safe_text::sanitized;
use super::{counted, short_id};

/// What is not sent, by kind; `None` when there is nothing.
pub(in crate::cli) fn unsent(entries: &[QueueEntry]) -> Option<String> {
    let (mut kinds, mut in_grace) = (BTreeMap::<ActKind, u64>::new(), 0_u64);
    for entry in entries {
        let count = kinds.entry(entry.kind).or_default();
        *count = count.saturating_add(entry.objects);
        if entry.state == ActState::Grace {
            in_grace = in_grace.saturating_add(entry.objects);
        }
    }
    if kinds.is_empty() {
        return None;
    }
    let kinds: Vec<_> = kinds.into_iter().map(|(kind, count)| how_many(kind, count)).collect();
    let undo = match in_grace {
        0 => String::new(),
        1 => " `splitdrop undo` can still take one of them back.".to_owned(),
        more => format!(" `splitdrop undo` can still take {more} of them back."),
    };
    Some(format!("Not sent yet: {}.{undo}", kinds.join(", ")))
}

fn how_many(kind: ActKind, count: u64) -> String {
    let (one, more) = match kind {
        ActKind::Star => ("star", "stars"),
        ActKind::Unstar => ("star to be taken away", "stars to be taken away"),
        ActKind::Seen => ("item to be marked as seen", "items to be marked as seen"),
        ActKind::DeleteSource => ("deletion of a source", "deletions of sources"),
        ActKind::DeleteItem => ("deletion of an item", "deletions of items"),
        ActKind::Reply => ("reply", "replies"),
    };
    format!("{count} {}", if count == 1 { one } else { more })
}

/// How long what was deleted can be taken back, and with what; empty where it is sent at once.
pub(in crate::cli) fn can_be_undone(taken: &[Taken]) -> String {
    let acts: Vec<_> = taken.iter().filter(|one| one.grace_ms > 0).filter_map(|one| one.act).collect();
    let Some(ms) = taken.iter().map(|one| one.grace_ms).filter(|ms| *ms > 0).min() else { return String::new() };
    let seconds = ms.div_ceil(1000);
    match acts.as_slice() {
        [] => String::new(),
        [_] => format!("It is sent in {seconds} s; `splitdrop undo` takes it back.\n"),
        // Without their numbers the last one would be meant.
        more => {
            let numbers: Vec<_> = more.iter().map(|act| act.0.to_string()).collect();
            format!("They are sent in {seconds} s; `splitdrop undo {}` takes them back.\n", numbers.join(" "))
        }
    }
}

/// What was taken back.
pub(in crate::cli) fn undone(undone: &[Undone]) -> String {
    undone.iter().map(line).collect()
}

fn line(undone: &Undone) -> String {
    let Undone { act, kind, source, designation, objects } = undone;
    let source = match designation {
        Some(designation) => sanitized(designation.as_str()),
        None => short_id(source.as_str()),
    };
    let what = match kind {
        ActKind::DeleteItem => format!("{} of {source}", counted(*objects, "item")),
        ActKind::DeleteSource | ActKind::Star | ActKind::Unstar | ActKind::Seen | ActKind::Reply => source,
    };
    let verb = if *kind == ActKind::DeleteItem && *objects > 1 { "are" } else { "is" };
    format!("Took act {} back: {what} {verb} not deleted.\n", act.0)
}

#[cfg(test)]
mod tests {
    use control::ActId;
    use protocol::value::Designation;

    use super::super::super::samples::{self, entry, taken};
    use super::*;

    #[test]
    fn what_is_not_sent_is_counted_by_kind() {
        assert_eq!(unsent(&[]), None);
        let one = unsent(&[entry(3)]).unwrap();
        assert_eq!(one, "Not sent yet: 1 star.");
        let deletion = |kind, objects, state| QueueEntry { kind, objects, state, ..entry(4) };
        let several = unsent(&[
            deletion(ActKind::Reply, 1, ActState::Waiting),
            deletion(ActKind::DeleteItem, 3, ActState::Grace),
            deletion(ActKind::DeleteItem, 2, ActState::Waiting),
            deletion(ActKind::DeleteSource, 1, ActState::Grace),
            deletion(ActKind::Reply, 1, ActState::Opening),
        ]);
        assert_eq!(
            several.unwrap(),
            "Not sent yet: 1 deletion of a source, 5 deletions of items, 2 replies. \
             `splitdrop undo` can still take 4 of them back."
        );
    }

    #[test]
    fn what_can_be_taken_back_says_for_how_long_and_how() {
        let waits = |act, grace_ms| Taken { act: Some(ActId(act)), grace_ms, ..taken(1, 0) };
        assert_eq!(can_be_undone(&[taken(1, 0)]), "");
        assert_eq!(can_be_undone(&[waits(12, 10_000)]), "It is sent in 10 s; `splitdrop undo` takes it back.\n");
        assert_eq!(
            can_be_undone(&[waits(12, 1), taken(0, 2), waits(13, 1)]),
            "They are sent in 1 s; `splitdrop undo 12 13` takes them back.\n"
        );
    }

    #[test]
    fn what_was_taken_back_is_named_and_stays_harmless() {
        let of = |kind, objects| samples::undone(kind, objects);
        assert_eq!(
            undone(&[of(ActKind::DeleteSource, 1), of(ActKind::DeleteItem, 1), of(ActKind::DeleteItem, 2)]),
            "Took act 12 back: candid marmot is not deleted.\n\
             Took act 12 back: 1 item of candid marmot is not deleted.\n\
             Took act 12 back: 2 items of candid marmot are not deleted.\n"
        );
        let hostile = Designation::try_new("x\u{202e}?gnihton").unwrap();
        let text = undone(&[Undone { designation: Some(hostile), ..of(ActKind::DeleteSource, 1) }]);
        assert!(text.contains("x\\u{202e}?gnihton"), "{text}");
        let nameless = undone(&[Undone { designation: None, ..of(ActKind::DeleteSource, 1) }]);
        assert_eq!(nameless, "Took act 12 back: 3f2a6f8e is not deleted.\n");
    }
}
