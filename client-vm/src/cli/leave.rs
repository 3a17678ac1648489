//! The commands that leave: they name what is not sent yet, since nothing more is sent then.
//!
//! **Invariant:** a person who says no stays signed in, and the daemon goes on.

use std::io::{self, Write as _};
use std::time::Duration;

use control::client::Client;
use control::{QueueEntry, Reply, Request, Session};
use tokio::time::Instant;

use super::args::{Args, Leave};
use super::exit::CliError;
use super::terminal::{Terminal, Word};
use super::{ask, json, print, queue, text};
use crate::settings::Settings;

/// How long a daemon may take to end.
const END_DEADLINE: Duration = Duration::from_secs(20);
/// How often it is looked for meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub(super) async fn logout(args: &Args, client: &mut Client, leave: &Leave) -> Result<(), CliError> {
    // Nobody else is asked: a login that is given up has sent nothing.
    if is_signed_in(client).await? {
        may_leave(args, client, leave, "Log out now?").await?;
    }
    ask(client, Request::Logout).await?;
    print(args, json::done, || "Signed out.\n".to_owned()).await
}

/// Ends the daemon, and waits until its socket is gone.
pub(super) async fn quit(args: &Args, settings: &Settings, mut client: Client, leave: &Leave) -> Result<(), CliError> {
    may_leave(args, &mut client, leave, "End the daemon now?").await?;
    ask(&mut client, Request::Quit).await?;
    // It waits for those who are still connected.
    drop(client);
    let deadline = Instant::now() + END_DEADLINE;
    while settings.socket.exists() {
        if Instant::now() >= deadline {
            return Err(CliError::NotEnded);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    print(args, json::done, || "The daemon has ended.\n".to_owned()).await
}

async fn is_signed_in(client: &mut Client) -> Result<bool, CliError> {
    for reply in ask(client, Request::Status).await? {
        let Reply::Status(status) = reply else { continue };
        return Ok(matches!(status.session, Session::SignedIn { .. }));
    }
    Ok(false)
}

/// Names what is not sent yet, and asks where there is somebody to ask.
async fn may_leave(args: &Args, client: &mut Client, leave: &Leave, question: &str) -> Result<(), CliError> {
    let unsent: Vec<_> = queue::load(client).await?.into_iter().filter(QueueEntry::is_own_and_unsent).collect();
    let Some(words) = text::unsent(&unsent) else { return Ok(()) };
    let terminal = if leave.yes || args.batch { None } else { Terminal::of_a_person() };
    match terminal {
        None => {
            // Nobody is there who reads it, perhaps.
            drop(writeln!(io::stderr(), "{words} They go on when you sign in again."));
            Ok(())
        }
        Some(terminal) => {
            let question = format!("{words}\n{question} They go on when you sign in again.");
            match terminal.ask_yes_or_no(&question).await? {
                Word::Yes => Ok(()),
                Word::No => Err(CliError::Stayed),
            }
        }
    }
}
