//! Removals that are held, in words.

use control::{HeldRemoval, RemovalVerdict};

use super::super::safe_text::sanitized_within;
use super::{NAME_COLUMNS, counted, short_id, short_time, table};

pub(in crate::cli) fn removals(held: &[HeldRemoval]) -> String {
    if held.is_empty() {
        return "No removals are held.\n".to_owned();
    }
    format!(
        "{}\nThe server lists these no more, and nobody here has deleted them. They are hidden, and nothing of them is erased.\n\
         `splitdrop removals accept SOURCE` erases them here too, `splitdrop removals reject SOURCE` keeps and shows them.\n\
         Ask your colleagues, or whoever runs the server, before you accept.\n",
        rows(held)
    )
}

pub(in crate::cli) fn ask_about_removals(held: &[HeldRemoval]) -> String {
    format!("{}Erase this here too?", rows(held))
}

pub(in crate::cli) fn settled(verdict: RemovalVerdict, held: &[HeldRemoval]) -> String {
    let count = u64::try_from(held.len()).unwrap_or(u64::MAX);
    match (verdict, count) {
        (_, 0) => "No removals are held.\n".to_owned(),
        (RemovalVerdict::Accept, _) => {
            format!("Accepted what was removed of {}: erasing it.\n", counted(count, "source"))
        }
        (RemovalVerdict::Reject, _) => {
            format!("Kept what was removed of {}: it is shown as no longer on the server.\n", counted(count, "source"))
        }
    }
}

fn rows(held: &[HeldRemoval]) -> String {
    let mut rows = vec![["SOURCE", "MISSING", "SINCE", "ID"].map(str::to_owned)];
    for held in held {
        rows.push([
            held.designation
                .as_ref()
                .map_or_else(|| "(unknown)".to_owned(), |name| sanitized_within(name.as_str(), NAME_COLUMNS)),
            if held.whole {
                format!("the source, with {}", counted(held.items, "item"))
            } else {
                counted(held.items, "item")
            },
            short_time(held.since),
            short_id(held.source.as_str()),
        ]);
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::held;
    use super::*;

    #[test]
    fn it_says_what_is_missing_and_what_can_be_done() {
        let mut some = held(2, "shy\u{202e}otter");
        some.whole = false;
        some.items = 1;
        let text = removals(&[held(1, "candid marmot"), some]);
        assert!(text.contains("the source, with 4 items"), "{text}");
        assert!(text.contains("shy\\u{202e}otter  1 item "), "{text}");
        assert!(text.contains("removals accept") && text.contains("removals reject"), "{text}");
        assert_eq!(removals(&[]), "No removals are held.\n");
        assert_eq!(settled(RemovalVerdict::Reject, &[]), "No removals are held.\n");
    }
}
