//! Lines that fit where they are shown.
//!
//! A terminal breaks what is too long for it, and goes on in its first column: there a text could pretend to be a line of
//! ours. So lines are broken here.
//!
//! **Invariant:** a line that is broken goes on indented, as far as what others wrote is.

use std::io;
use std::os::fd::AsFd;

use terminal_size::{Width, terminal_size_of};
use unicode_width::UnicodeWidthChar as _;

/// How wide a line is that is for no terminal: in a file, or for another program.
pub(super) const PLAIN: usize = 80;
/// Lines are not made narrower than this: a character may be two columns wide.
const LEAST: usize = 8;
/// What stands before what others wrote, and before what goes on.
pub(super) const INDENT: &str = "    ";
/// Where terminals, and whoever prints a text, stop at tabs.
const TAB: usize = 8;
/// What begins an escape sequence of ours, and what ends it.
const ESCAPE: (char, char) = ('\u{1b}', 'm');

/// How wide the terminal is that standard output is; none where it is no terminal.
pub(super) fn of_terminal() -> Option<usize> {
    of(&io::stdout())
}

/// How wide what is printed may be. Where another program reads it, that shows it at the same terminal perhaps.
pub(super) fn of_output() -> usize {
    of_terminal().unwrap_or_else(|| of(&io::stderr()).map_or(PLAIN, |columns| columns.min(PLAIN)))
}

fn of(output: &impl AsFd) -> Option<usize> {
    terminal_size_of(output).map(|(Width(columns), _)| usize::from(columns))
}

/// The text with its lines broken where they are longer than so many columns, between words where that can be. It holds
/// nothing that moves a cursor but line feeds and tabs, and escape sequences of ours that only change how letters look.
pub(super) fn fitted(text: &str, columns: usize) -> String {
    let mut fitted = String::with_capacity(text.len());
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            fitted.push('\n');
        }
        Breaking::new(columns.max(LEAST)).all_of(line, &mut fitted);
    }
    fitted
}

/// A line that is being broken.
struct Breaking {
    columns: usize,
    /// What is on the line that is begun, and how wide that is.
    line: String,
    width: usize,
    /// Where the last word ends on it that has something before it: in bytes, and in columns.
    last_word: Option<(usize, usize)>,
    /// Whether there is anything but spaces on it.
    is_blank: bool,
    /// Whether an escape sequence is not at its end.
    in_escape: bool,
}

impl Breaking {
    fn new(columns: usize) -> Self {
        Self { columns, line: String::new(), width: 0, last_word: None, is_blank: true, in_escape: false }
    }

    fn all_of(mut self, line: &str, done: &mut String) {
        for character in line.chars() {
            self.add(character, done);
        }
        done.push_str(&self.line);
    }

    fn add(&mut self, character: char, done: &mut String) {
        let is_gap = matches!(character, ' ' | '\t');
        if self.in_escape || character == ESCAPE.0 {
            self.in_escape = character != ESCAPE.1;
        } else {
            if self.width_with(character) > self.columns {
                if is_gap && !self.is_blank {
                    // The break stands for it.
                    self.last_word = None;
                    self.go_on(done);
                    return;
                }
                self.go_on(done);
                // The word that went with it may have left no room for a wide character.
                if self.width_with(character) > self.columns {
                    self.go_on(done);
                }
            }
            self.width = self.width_with(character);
            self.is_blank &= is_gap;
        }
        self.line.push(character);
        if is_gap && !self.is_blank {
            self.last_word = Some((self.line.len(), self.width));
        }
    }

    fn width_with(&self, character: char) -> usize {
        match character {
            '\t' => (self.width / TAB).saturating_add(1).saturating_mul(TAB),
            character => self.width.saturating_add(character.width().unwrap_or_default()),
        }
    }

    /// Ends the line after its last whole word, or where it is, and begins the next one with what is left of it.
    fn go_on(&mut self, done: &mut String) {
        let (rest, width) = match self.last_word.take() {
            Some((at, columns)) => {
                let rest = self.line.split_off(at);
                (rest, self.width.saturating_sub(columns))
            }
            None => (String::new(), 0),
        };
        if !self.is_blank {
            self.line.truncate(self.line.trim_end_matches([' ', '\t']).len());
        }
        done.push_str(&self.line);
        done.push('\n');
        self.is_blank = rest.is_empty();
        self.width = INDENT.len().saturating_add(width);
        self.line = format!("{INDENT}{rest}");
    }
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    #[test]
    fn what_fits_stays_as_it_is() {
        for text in ["", "\n", "one\n\n  two\n", "a\tb", &"x".repeat(80), "    trailing   \n"] {
            assert_eq!(fitted(text, 80), text);
        }
    }

    #[test]
    fn a_long_line_is_broken_between_words_and_goes_on_indented() {
        assert_eq!(fitted("one two three\nfour five six\n", 10), "one two\n    three\nfour five\n    six\n");
        assert_eq!(fitted("  one two  three", 10), "  one two\n    three");
        // The space that does not fit is the break; a second one is not.
        assert_eq!(fitted("0123456789 x", 10), "0123456789\n    x");
        assert_eq!(fitted("0123456789  x", 10), "0123456789\n     x");
        // A word that is longer than a line is broken wherever that is.
        assert_eq!(fitted("0123456789abcdefg", 10), "0123456789\n    abcdef\n    g");
        assert_eq!(fitted("one 0123456789", 10), "one\n    012345\n    6789");
        assert_eq!(fitted("    0123456789", 10), "    012345\n    6789");
    }

    #[test]
    fn f8_no_line_is_longer_than_the_terminal_and_none_that_goes_on_begins_with_ours() {
        let forged = "7  reply  ab12cd34  you  sent";
        let marked = format!("e\u{301}{}", "e\u{301}\u{323}".repeat(90));
        let texts = [
            format!("{}{forged}", " ".repeat(76)),
            format!("{}{forged}", "x".repeat(76)),
            format!("{}{forged}", "海".repeat(38)),
            format!("x{}{forged}", "海".repeat(38)),
            format!("\t\t\t\t\t\t\t\t\t\t{forged}"),
            format!("{}\t{forged}", "x".repeat(75)),
            format!("{}\u{1b}[1m{forged}\u{1b}[22m", "x ".repeat(38)),
            marked,
            "x 海".repeat(100),
        ];
        for text in &texts {
            for columns in (0..100).chain([80]) {
                let shown = fitted(&format!("{INDENT}{text}"), columns);
                for line in shown.lines() {
                    assert!(line.starts_with(INDENT), "{columns}: {shown}");
                    let plain = line.replace("\u{1b}[1m", "").replace("\u{1b}[22m", "");
                    assert!(as_on_a_terminal(&plain) <= columns.max(LEAST), "{columns}: {shown}");
                }
                let without_gaps = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
                assert_eq!(without_gaps(&shown), without_gaps(text), "{columns}");
            }
        }
    }

    fn as_on_a_terminal(line: &str) -> usize {
        line.split('\t').enumerate().fold(0, |column, (at, part)| {
            let from = if at == 0 { 0 } else { (column / TAB + 1) * TAB };
            from + part.width()
        })
    }
}
