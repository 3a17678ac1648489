//! Where a login's credentials come from.

use std::io::{self, Read};

use control::Request;
use protocol::value::{OneTimeCode, Passphrase, Username};
use zeroize::Zeroizing;

use super::exit::CliError;
use super::terminal::Terminal;

/// What is read from standard input is never longer than this, in bytes.
const MAX_INPUT: u16 = 4096;

pub(super) struct Credentials {
    username: Username,
    passphrase: Passphrase,
    one_time_code: OneTimeCode,
}

impl Credentials {
    pub(super) fn request(self) -> Request {
        let Self { username, passphrase, one_time_code } = self;
        Request::Login { username, passphrase, one_time_code }
    }

    fn try_new(username: &str, passphrase: &str, code: &str) -> Result<Self, CliError> {
        // Authenticators show "123 456".
        let mut digits = Zeroizing::new(String::with_capacity(code.len()));
        digits.extend(code.split_whitespace());
        Ok(Self {
            username: Username::try_new(username.trim())?,
            passphrase: Passphrase::try_new(passphrase)?,
            one_time_code: OneTimeCode::try_new(digits.as_str())?,
        })
    }
}

/// Asks on the terminal, without echo for the passphrase and the code. Called off, it leaves the terminal as it was.
pub(super) async fn ask(username: Option<&str>, batch: bool) -> Result<Credentials, CliError> {
    let terminal = if batch { None } else { Terminal::of_a_person() };
    let terminal = terminal.ok_or(CliError::NoTerminal)?;
    let username = match username {
        Some(username) => username.to_owned(),
        None => terminal.ask("User name: ").await?.to_string(),
    };
    let quiet = terminal.quiet()?;
    let passphrase = terminal.ask("Passphrase: ").await?;
    let code = terminal.ask("One-time code: ").await?;
    drop(quiet);
    Credentials::try_new(&username, &passphrase, &code)
}

/// Reads three lines from standard input. It blocks: no signal ends it.
pub(super) fn from_stdin() -> Result<Credentials, CliError> {
    let input = read_secret(io::stdin().lock())?;
    let mut lines = input.lines();
    match (lines.next(), lines.next(), lines.next(), lines.next()) {
        (Some(username), Some(passphrase), Some(code), None) => Credentials::try_new(username, passphrase, code),
        _ => Err(CliError::CredentialLines),
    }
}

/// Reads text that holds a secret, of which at most 4,096 bytes are looked at, into memory that is wiped: it has room for all
/// of it from the beginning, since text that grows leaves its old place behind as it is.
pub(super) fn read_secret(input: impl Read) -> Result<Zeroizing<String>, CliError> {
    let mut text = Zeroizing::new(String::with_capacity(usize::from(MAX_INPUT)));
    input.take(u64::from(MAX_INPUT)).read_to_string(&mut text).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => CliError::NotText,
        _ => error.into(),
    })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let one = room.len().min(1);
            self.0.read(&mut room[..one])
        }
    }

    #[test]
    fn a_secret_is_read_into_memory_that_never_grows() {
        for length in [0, 1, 31, 100, 4_095, 4_096, 4_097, 100_000] {
            let input = "x".repeat(length);
            let texts = [read_secret(input.as_bytes()), read_secret(Slow(input.as_bytes()))];
            for text in texts.map(Result::unwrap) {
                assert_eq!(text.len(), length.min(4_096));
                assert_eq!(text.capacity(), 4_096, "{length} bytes");
            }
        }
        assert!(matches!(read_secret(&b"pass\xff"[..]), Err(CliError::NotText)));
    }

    #[test]
    fn a_code_may_have_spaces_in_it() {
        let credentials = Credentials::try_new(" mara ", "of many words", " 123 456 ").unwrap();
        assert_eq!(credentials.one_time_code, OneTimeCode::try_new("123456").unwrap());
    }
}
