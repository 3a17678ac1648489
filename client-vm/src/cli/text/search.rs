//! What was found, in words.
//!
//! **Invariant:** no line of what came from elsewhere begins where a line of ours does: excerpts are indented, and have no
//! line ends; lines are broken here, and go on indented.

use control::{Excerpt, Hit, HitCount, HitPlace};
use protocol::SubmissionKind;

use super::super::columns::{INDENT, fitted};
use super::super::safe_text::{sanitized, sanitized_within};
use super::super::search::Found;
use super::{NAME_COLUMNS, counted, short_id};

/// Between the parts of a line.
const GAP: &str = "  ";
/// What stands for what is left out.
const LEFT_OUT: char = '\u{2026}';
const BOLD: &str = "\x1b[1m";
const NOT_BOLD: &str = "\x1b[22m";

/// How what was searched for stands out in what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Emphasis {
    /// Not at all.
    None,
    /// In bold letters.
    Bold,
}

/// The hits, and how many there are where these are not all, in lines of at most so many columns.
pub(in crate::cli) fn found(found: &Found, emphasis: Emphasis, columns: usize) -> String {
    if found.hits.is_empty() {
        return "Nothing found. What is not decrypted yet is not searched: `splitdrop queue` says what is not.\n"
            .to_owned();
    }
    let mut text = String::new();
    for hit in &found.hits {
        text.push_str(&self::hit(hit, emphasis));
    }
    let shown = u64::try_from(found.hits.len()).unwrap_or(u64::MAX);
    match found.count {
        HitCount::Exactly(count) if count > shown => {
            text.push_str(&format!("\n{shown} of {}; --limit shows more.\n", counted(count, "hit")));
        }
        HitCount::Exactly(_) => {}
        HitCount::AtLeast(count) => {
            text.push_str(&format!("\n{shown} of at least {}; --limit shows more.\n", counted(count, "hit")));
        }
    }
    fitted(&text, columns)
}

fn hit(hit: &Hit, emphasis: Emphasis) -> String {
    let (id, kind, excerpt) = match &hit.place {
        HitPlace::Designation => (hit.source.as_str(), "source", None),
        HitPlace::Submission { id, kind, excerpt, order: _ } => {
            let kind = match kind {
                SubmissionKind::Message => "message",
                SubmissionKind::File => "file",
            };
            (id.as_str(), kind, Some(excerpt))
        }
        HitPlace::Reply { id, excerpt, order: _ } => (id.as_str(), "reply", Some(excerpt)),
    };
    let name = sanitized_within(hit.designation.as_str(), NAME_COLUMNS);
    let head = [name.as_str(), kind, &short_id(id)].join(GAP);
    let said = excerpt.map(|excerpt| format!("{INDENT}{}\n", line(excerpt, emphasis))).unwrap_or_default();
    format!("{head}\n{said}")
}

/// An excerpt on one line.
fn line(excerpt: &Excerpt, emphasis: Emphasis) -> String {
    let mut line = String::new();
    let mut done = 0;
    if excerpt.cut_before {
        line.push(LEFT_OUT);
    }
    for (start, end) in &excerpt.matches {
        let (start, end) = (byte(*start), byte(*end));
        line.push_str(&part(excerpt, done, start));
        let matched = part(excerpt, start, end);
        match emphasis {
            Emphasis::Bold => line.extend([BOLD, &matched, NOT_BOLD]),
            Emphasis::None => line.push_str(&matched),
        }
        done = end;
    }
    line.push_str(&part(excerpt, done, excerpt.text.len()));
    if excerpt.cut_after {
        line.push(LEFT_OUT);
    }
    line
}

/// A part of an excerpt, harmless, with spaces for line ends and tabs.
fn part(excerpt: &Excerpt, start: usize, end: usize) -> String {
    let part = excerpt.text.get(start..end).unwrap_or_default();
    sanitized(&part.replace("\r\n", " ").replace(['\n', '\r', '\t'], " "))
}

fn byte(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::{excerpt, hit_in_message};
    use super::*;

    fn shown(hits: Vec<Hit>, count: HitCount, emphasis: Emphasis) -> String {
        found(&Found { hits, count }, emphasis, 80)
    }

    #[test]
    fn a_hit_is_a_head_and_an_excerpt() {
        let named = Hit { place: HitPlace::Designation, ..hit_in_message(1, excerpt("", &[])) };
        let hits = vec![named, hit_in_message(2, excerpt("by the harbour\r\n\tat nine", &[(7, 14)]))];
        assert_eq!(
            shown(hits, HitCount::Exactly(2), Emphasis::None),
            "candid marmot  source  3f2a6f8e\ncandid marmot  message  9b040002\n    by the harbour  at nine\n"
        );
    }

    #[test]
    fn what_was_searched_for_is_emphasised_and_what_is_cut_is_marked() {
        let cut = Excerpt { cut_before: true, cut_after: true, ..excerpt("a crane, a crane", &[(2, 7), (11, 16)]) };
        let line = line(&cut, Emphasis::Bold);
        assert_eq!(line, "…a \x1b[1mcrane\x1b[22m, a \x1b[1mcrane\x1b[22m…");
    }

    #[test]
    fn nothing_in_an_excerpt_moves_a_cursor_or_looks_like_a_head() {
        let text = "x\ncandid marmot  source  \x1b[2J\u{202e}y";
        let printed = shown(vec![hit_in_message(1, excerpt(text, &[(0, 1)]))], HitCount::Exactly(1), Emphasis::None);
        assert_eq!(printed.lines().count(), 2);
        assert!(!printed.contains(['\x1b', '\u{202e}']), "{printed:?}");
        // Nor does what goes on where a terminal would break it.
        let text = format!("{}candid marmot  reply  4e110000", " ".repeat(76));
        let printed = shown(vec![hit_in_message(1, excerpt(&text, &[(0, 1)]))], HitCount::Exactly(1), Emphasis::Bold);
        assert!(printed.lines().count() > 2, "{printed:?}");
        assert!(printed.lines().skip(1).all(|line| line.starts_with(INDENT)), "{printed:?}");
        // Places that are none of its text's change nothing.
        assert_eq!(line(&excerpt("é", &[(1, 9), (5, 3)]), Emphasis::None), "");
    }

    #[test]
    fn how_many_there_are_is_said_where_not_all_are_shown() {
        let one = || vec![hit_in_message(1, excerpt("x", &[(0, 1)]))];
        let text = |count| shown(one(), count, Emphasis::None);
        assert!(!text(HitCount::Exactly(1)).contains("--limit"));
        assert!(text(HitCount::Exactly(1_234)).ends_with("\n\n1 of 1234 hits; --limit shows more.\n"));
        assert!(text(HitCount::AtLeast(52)).ends_with("\n\n1 of at least 52 hits; --limit shows more.\n"));
        assert!(shown(Vec::new(), HitCount::Exactly(0), Emphasis::None).starts_with("Nothing found."));
    }
}
