//! Makes hostile text harmless on a terminal.

use unicode_width::UnicodeWidthChar as _;

use crate::characters::is_harmless;

/// How many marks may stand upon one character; the names of no language need more. Any number of them would paint over
/// the lines above and below.
const MAX_MARKS: usize = 4;
/// What stands for what was left out.
const LEFT_OUT: char = '\u{2026}';

/// The text with every character escaped that could move the cursor, change the reading direction or hide: control
/// characters, bidirectional controls, zero-width and other invisible ones, and marks in excess or upon nothing. Letters
/// of every script stay.
#[must_use]
pub fn sanitized(text: &str) -> String {
    pieces(text).map(|piece| piece.text).collect()
}

/// The lines of a text, each made harmless: a line feed ends one, with or without a carriage return before it. Tabs stay.
pub(super) fn sanitized_lines(text: &str) -> impl Iterator<Item = String> {
    text.lines().map(|line| line.split('\t').map(sanitized).collect::<Vec<_>>().join("\t"))
}

/// The same as [`sanitized`], in at most so many columns: what is longer ends in an ellipsis. No character is parted from its marks, and
/// no escape is cut in two.
pub(super) fn sanitized_within(text: &str, columns: usize) -> String {
    let mut safe = String::new();
    // How much of `safe` leaves room for the ellipsis.
    let (mut kept, mut width) = (0, 0_usize);
    for piece in pieces(text) {
        if piece.width > 0 && width < columns {
            kept = safe.len();
        }
        width = width.saturating_add(piece.width);
        if width > columns {
            safe.truncate(kept);
            safe.push(LEFT_OUT);
            break;
        }
        safe.push_str(&piece.text);
    }
    safe
}

/// A character as it is shown.
struct Piece {
    text: String,
    /// In columns. A mark upon the character before has none.
    width: usize,
}

fn pieces(text: &str) -> impl Iterator<Item = Piece> {
    // Before the first character there is nothing that a mark could stand upon.
    let mut marks = MAX_MARKS;
    text.chars().map(move |character| {
        let width = character.width().filter(|_| is_harmless(character));
        match width {
            Some(0) if marks < MAX_MARKS => marks = marks.saturating_add(1),
            Some(0) | None => {
                marks = 0;
                let text: String = character.escape_unicode().collect();
                return Piece { width: text.len(), text };
            }
            Some(_) => marks = 0,
        }
        Piece { text: character.to_string(), width: width.unwrap_or_default() }
    })
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    #[test]
    fn letters_stay_and_tricks_are_shown() {
        for name in ["Möwe 海鸥 نورس", "Mo\u{308}we", "ภูมิใจ", "मित्र", "རྒྱུ", "מֹשֶׁה", "မြို့", "\u{1112}\u{1161}\u{11ab}"]
        {
            assert_eq!(sanitized(name), name);
        }
        assert_eq!(sanitized("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(sanitized("exe\u{202e}gpj.pdf"), "exe\\u{202e}gpj.pdf");
        assert_eq!(sanitized("a\u{200b}b\u{9b}c\r\nd"), "a\\u{200b}b\\u{9b}c\\u{d}\\u{a}d");
    }

    #[test]
    fn no_more_marks_than_a_name_needs_stand_upon_a_character() {
        let shown = sanitized(&format!("a{}b", "\u{300}".repeat(200)));
        assert!(shown.starts_with("a\u{300}\u{300}\u{300}\u{300}\\u{300}"), "{shown}");
        let mut run = 0;
        for character in shown.chars() {
            run = if character == '\u{300}' { run + 1 } else { 0 };
            assert!(run <= MAX_MARKS, "{shown}");
        }
        assert!(shown.ends_with('b'));
    }

    #[test]
    fn a_mark_upon_nothing_is_shown_as_what_it_is() {
        assert_eq!(sanitized("\u{301}e\u{301}"), "\\u{301}e\u{301}");
    }

    #[test]
    fn what_is_too_long_is_cut_between_characters_and_fits() {
        assert_eq!(sanitized_within("candid marmot", 13), "candid marmot");
        assert_eq!(sanitized_within("candid marmot", 12), "candid marm…");
        assert_eq!(sanitized_within("海鸥海鸥", 8), "海鸥海鸥");
        assert_eq!(sanitized_within("海鸥海鸥", 7), "海鸥海…");
        assert_eq!(sanitized_within("海鸥海鸥", 6), "海鸥…");
        // A letter keeps its marks, or goes with them.
        assert_eq!(sanitized_within("abe\u{301}\u{323}", 3), "abe\u{301}\u{323}");
        assert_eq!(sanitized_within("abe\u{301}\u{323}d", 3), "ab…");
        assert_eq!(sanitized_within("ae\u{301}\u{323}cd", 3), "ae\u{301}\u{323}…");
        // An escape is whole or not there.
        assert_eq!(sanitized_within("ab\u{202e}cd", 9), "ab…");
        assert_eq!(sanitized_within("ab\u{202e}cd", 11), "ab\\u{202e}…");
        assert_eq!(sanitized_within("\u{202e}", 1), "…");
        for text in ["x".repeat(255), "海".repeat(255), "\u{300}".repeat(255), "e\u{301}".repeat(120)] {
            for columns in 1..60 {
                let shown = sanitized_within(&text, columns);
                assert!(shown.width() <= columns, "{columns}: {shown}");
            }
        }
    }

    #[test]
    fn a_text_keeps_its_lines_and_tabs_and_nothing_else_that_moves_a_cursor() {
        let lines: Vec<_> = sanitized_lines("one\r\n\n\ttwo\rthree\u{2028}\u{b}\u{85}\n\u{301}x\t\u{301}\n").collect();
        assert_eq!(lines, ["one", "", "\ttwo\\u{d}three\\u{2028}\\u{b}\\u{85}", "\\u{301}x\t\\u{301}"]);
        assert_eq!(sanitized_lines("").count(), 0);
    }
}
