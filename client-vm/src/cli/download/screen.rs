//! A few lines on standard error that are drawn again and again in the same place.
//!
//! Not a crate for it: what is left to do is to go up so many lines. Lines are never broken, so that nobody has to know how
//! wide the terminal is; what does not fit is cut by it.
//!
//! **Invariant:** nothing is drawn but on a terminal, and not before a person would wonder.
//!
//! **Invariant:** whoever calls it off (drops it unfinished) is told what becomes of what was begun.

use std::io::{self, IsTerminal as _, Write as _};

use tokio::time::Instant;

use super::super::WORTH_A_WORD;

/// The variable that says what a terminal can do.
const TERM: &str = "TERM";
/// One that cannot move its cursor.
const DUMB: &str = "dumb";
/// What does not fit on a line is cut (DECAWM).
const CUT: &str = "\x1b[?7l";
/// What does not fit goes on in the next line, as always.
const WRAP: &str = "\x1b[?7h";
/// What is said to whoever interrupts.
const GOES_ON: &str =
    "The download goes on: `splitdrop queue` shows how far it is, `splitdrop download --stop ITEM` ends it.\n";

#[derive(Debug)]
pub(in crate::cli) struct Screen {
    /// Since when something is under way; none where nothing can be drawn.
    begun: Option<Instant>,
    /// The lines above the cursor.
    drawn: Vec<String>,
    finished: bool,
    /// What is said to whoever calls it off.
    goodbye: &'static str,
}

impl Screen {
    /// For downloads, which go on by themselves.
    pub(super) fn new() -> Self {
        Self::saying(GOES_ON)
    }

    /// One that says this to whoever calls it off.
    pub(in crate::cli) fn saying(goodbye: &'static str) -> Self {
        let draws = io::stderr().is_terminal() && std::env::var_os(TERM).is_none_or(|terminal| terminal != DUMB);
        Self { begun: draws.then(Instant::now), drawn: Vec::new(), finished: false, goodbye }
    }

    /// Draws these lines in the place of those that were drawn before. They must hold nothing that moves a cursor.
    pub(in crate::cli) fn draw(&mut self, lines: Vec<String>) {
        if self.begun.is_none_or(|begun| begun.elapsed() < WORTH_A_WORD) || lines == self.drawn {
            return;
        }
        write(&redrawn(self.drawn.len(), &lines));
        self.drawn = lines;
    }

    /// Takes the lines away: there is no more to come.
    pub(in crate::cli) fn finish(mut self) {
        self.finished = true;
        write(&taken_away(self.drawn.len()));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if !self.finished {
            write(&format!("{}{}", taken_away(self.drawn.len()), self.goodbye));
        }
    }
}

fn redrawn(before: usize, lines: &[String]) -> String {
    let mut text = taken_away(before);
    text.push_str(CUT);
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text.push_str(WRAP);
    text
}

/// So many lines up, and nothing from there on.
fn taken_away(lines: usize) -> String {
    match lines {
        0 => String::new(),
        lines => format!("\r\x1b[{lines}A\x1b[J"),
    }
}

fn write(text: &str) {
    // A terminal that is gone needs nothing.
    let mut terminal = io::stderr().lock();
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_over_those_before_and_never_broken() {
        let lines = ["one", "two"].map(str::to_owned);
        assert_eq!(redrawn(0, &lines), "\x1b[?7lone\ntwo\n\x1b[?7h");
        assert_eq!(redrawn(2, &lines[..1]), "\r\x1b[2A\x1b[J\x1b[?7lone\n\x1b[?7h");
        assert_eq!((taken_away(0), taken_away(1)), (String::new(), "\r\x1b[1A\x1b[J".to_owned()));
    }
}
