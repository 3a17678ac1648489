//! Where a login's credentials come from.

use std::io::{self, Read as _};

use control::Request;
use protocol::value::{OneTimeCode, Passphrase, Username};
use zeroize::Zeroizing;

use super::exit::CliError;
use super::terminal::Terminal;

/// Three lines are never longer than this, in bytes.
const MAX_INPUT: u64 = 4096;

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
        let code: Zeroizing<String> = Zeroizing::new(code.split_whitespace().collect());
        Ok(Self {
            username: Username::try_new(username.trim())?,
            passphrase: Passphrase::try_new(passphrase)?,
            one_time_code: OneTimeCode::try_new(code.as_str())?,
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
    let mut input = Zeroizing::new(String::new());
    io::stdin().lock().take(MAX_INPUT).read_to_string(&mut input).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => CliError::NotText,
        _ => error.into(),
    })?;
    let mut lines = input.lines();
    match (lines.next(), lines.next(), lines.next(), lines.next()) {
        (Some(username), Some(passphrase), Some(code), None) => Credentials::try_new(username, passphrase, code),
        _ => Err(CliError::CredentialLines),
    }
}
