//! Asks a person at the terminal.
//!
//! It waits as the rest of the program does, so that Ctrl-C ends a question like anything else. A crate that asks would
//! block, and would leave the terminal without echo if a signal ended the program.
//!
//! **Invariant:** however a question ends, answered or called off, the terminal is as it was before.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use nix::sys::termios::{
    FlushArg, LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcflush, tcgetattr, tcsetattr,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use zeroize::Zeroizing;

use super::exit::CliError;

const TERMINAL: &str = "/dev/tty";
/// The longest line that a terminal gives, in bytes.
const MAX_LINE: usize = 4096;
/// The character that switches a special character off (`_POSIX_VDISABLE`).
const NO_CHARACTER: u8 = 0;

/// The terminal that this program was started from.
#[derive(Debug)]
pub(super) struct Terminal(AsyncFd<File>);

/// What a person said to a question of yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Yes,
    No,
}

impl Word {
    /// Only a clear yes is one.
    fn parse(answer: &str) -> Self {
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Self::Yes,
            _other => Self::No,
        }
    }
}

impl Terminal {
    /// The terminal of the person who started this program; none where standard input is something else, since then
    /// nobody sits there who would expect a question.
    pub(super) fn of_a_person() -> Option<Self> {
        if io::stdin().is_terminal() { Self::open().ok() } else { None }
    }

    // Not tokio's types for pipes: they take a short read for the last one, and a terminal gives a line at a time.
    #[expect(deprecated, reason = "what is to be used instead is unsafe; a file keeps its descriptor while it is open")]
    fn open() -> io::Result<Self> {
        let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(TERMINAL)?;
        Ok(Self(AsyncFd::new(file)?))
    }

    /// Asks, and gives the answer without its line end. Called off (dropped), it loses what was typed so far.
    pub(super) async fn ask(&self, question: &str) -> Result<Zeroizing<String>, CliError> {
        self.write(question.as_bytes()).await?;
        let open = OpenQuestion { terminal: self };
        let mut line = Zeroizing::new([0; MAX_LINE]);
        let mut length = 0_usize;
        loop {
            let room = line.get_mut(length..).unwrap_or_default();
            let count = self.0.async_io(Interest::READABLE, |mut file| file.read(room)).await?;
            if count == 0 {
                // Ctrl-D, or the terminal is gone, or the line does not end.
                return Err(CliError::NoAnswer);
            }
            length = length.saturating_add(count);
            let Some(answer) = line.get(..length).and_then(|typed| typed.strip_suffix(b"\n")) else { continue };
            std::mem::forget(open);
            return match std::str::from_utf8(answer) {
                Ok(answer) => Ok(Zeroizing::new(answer.to_owned())),
                Err(_) => Err(CliError::NotText),
            };
        }
    }

    /// Asks a question of yes or no. What was typed before it was there to be read is no answer to it. Called off
    /// (dropped), it forgets what was typed so far.
    pub(super) async fn ask_yes_or_no(&self, question: &str) -> Result<Word, CliError> {
        tcflush(self.0.get_ref(), FlushArg::TCIFLUSH).map_err(io::Error::from)?;
        let answer = self.ask(&format!("{question} [y/N] ")).await?;
        Ok(Word::parse(&answer))
    }

    async fn write(&self, mut text: &[u8]) -> io::Result<()> {
        while !text.is_empty() {
            let count = self.0.async_io(Interest::WRITABLE, |mut file| file.write(text)).await?;
            text = text.get(count..).unwrap_or_default();
        }
        Ok(())
    }

    /// From now on what is typed is not shown, until the result is dropped.
    pub(super) fn quiet(&self) -> io::Result<Quiet<'_>> {
        let before = tcgetattr(self.0.get_ref())?;
        let mut quiet = before.clone();
        quiet.local_flags.remove(LocalFlags::ECHO);
        // The line end is shown: it says that the answer was taken.
        quiet.local_flags.insert(LocalFlags::ECHONL);
        // Stopped, the program would leave the shell without echo, or come back with it; and ended so, it could leave
        // its memory in a file.
        for special in [SpecialCharacterIndices::VSUSP, SpecialCharacterIndices::VQUIT] {
            if let Some(character) = quiet.control_chars.get_mut(special as usize) {
                *character = NO_CHARACTER;
            }
        }
        let quieted = Quiet { terminal: self, before };
        tcsetattr(self.0.get_ref(), SetArg::TCSANOW, &quiet)?;
        Ok(quieted)
    }
}

/// A terminal without echo. Dropped, it is as it was before, and what was typed and not read is forgotten: the shell
/// must not show half a passphrase.
#[derive(Debug)]
pub(super) struct Quiet<'a> {
    terminal: &'a Terminal,
    before: Termios,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcflush(self.terminal.0.get_ref(), FlushArg::TCIFLUSH);
        let _ = tcsetattr(self.terminal.0.get_ref(), SetArg::TCSANOW, &self.before);
    }
}

/// A question without an answer yet. Dropped, it leaves the line to whatever comes next, and what was typed and not
/// read is forgotten: half an answer must not become a word to the shell.
#[derive(Debug)]
struct OpenQuestion<'a> {
    terminal: &'a Terminal,
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcflush(self.terminal.0.get_ref(), FlushArg::TCIFLUSH);
        let _ = self.terminal.0.get_ref().write(b"\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        for yes in ["y", "Y", "yes", " YES\t"] {
            assert_eq!(Word::parse(yes), Word::Yes, "{yes:?}");
        }
        for no in ["", " ", "n", "no", "ye", "yes please", "j", "1", "\u{fb}y"] {
            assert_eq!(Word::parse(no), Word::No, "{no:?}");
        }
    }
}
