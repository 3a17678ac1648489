//! The command line: every command but `daemon` is a front end of the daemon.

mod act;
mod args;
mod columns;
mod connect;
mod consent;
mod conversation;
mod credentials;
mod doctor;
mod download;
mod exit;
mod handover;
mod json;
mod leave;
#[cfg(test)]
mod played;
mod queue;
mod removals;
mod reply;
mod safe_text;
#[cfg(test)]
mod samples;
mod search;
mod terminal;
mod text;
mod trust_key;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use control::client::{Arrival, Client, ClientError};
use control::{Act, Deal, Event, Reply, Request, Session};

use act::Star;
use args::{Args, Command};
use exit::{CliError, Exit};
use reply::Editing;

pub use safe_text::sanitized;

use crate::clock::Clock;
use crate::confinement;
use crate::settings::Settings;
use crate::signals::EndSignals;

/// After how long a person at a terminal is told that something is under way.
const WORTH_A_WORD: Duration = Duration::from_millis(250);

/// Runs the program: reads the command line, does what it says, and gives the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version go to standard output and are no error.
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Success };
            drop(error.print());
            if error.use_stderr() && wants_json(std::env::args_os()) {
                drop(print_text(&(json::error(&CliError::of_command_line(&error)) + "\n")));
            }
            return exit.into();
        }
    };
    match run(&args) {
        Ok(exit) => exit.into(),
        // Whoever read the output has seen enough, as in `splitdrop sources | head`.
        Err(CliError::ReaderGone) => Exit::Success.into(),
        Err(error) => {
            if args.json && !matches!(args.command, Command::Daemon { .. }) {
                drop(print_text(&(json::error(&error) + "\n")));
            }
            drop(writeln!(io::stderr(), "splitdrop: {}", sanitized(&error.to_string())));
            error.exit().into()
        }
    }
}

/// Whether words that make no command line ask for JSON.
fn wants_json(words: impl Iterator<Item = OsString>) -> bool {
    words.skip(1).take_while(|word| word != "--").any(|word| word == "--json")
}

fn run(args: &Args) -> Result<Exit, CliError> {
    // Before there is a second thread, and before anything is read that somebody else wrote.
    confinement::confine()?;
    let settings = Settings::load(|name| std::env::var_os(name), args.socket.clone());
    if let Command::Doctor { ask } = args.command {
        return until_told_to_end(&Editing::default(), doctor::doctor(args, ask, settings));
    }
    let mut settings = settings?;
    if let Command::Daemon { log_file } = &args.command {
        settings.log_file = log_file.clone().or(settings.log_file);
        crate::daemon::run(&settings)?;
        return Ok(Exit::Success);
    }
    let editing = Editing::default();
    until_told_to_end(&editing, front_end(args, &settings, &editing))
}

/// Does the work, unless a signal says to end.
fn until_told_to_end(editing: &Editing, work: impl Future<Output = Result<Exit, CliError>>) -> Result<Exit, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let mut signals = EndSignals::catch()?;
        let told_to_end = async {
            loop {
                signals.any().await;
                // What an editor is told on its terminal is not for this program.
                if !editing.is_on() {
                    return;
                }
            }
        };
        tokio::select! {
            // Whoever changes their mind in the last moment is heard first.
            biased;
            () = told_to_end => Ok(Exit::Interrupted),
            done = work => done,
        }
    });
    // A thread may still read from standard input, or write to somebody who does not read: nobody waits for it.
    runtime.shutdown_background();
    result
}

/// Does what may take as long as somebody else likes, on a thread of its own: signals end the program all the same.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, CliError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| CliError::Io(io::Error::other(error)))
}

/// Does what the command says. Called off (dropped), it leaves the terminal as it was, and nothing more is asked of the
/// daemon.
async fn front_end(args: &Args, settings: &Settings, editing: &Editing) -> Result<Exit, CliError> {
    let mut client = connect::connect(settings, args.start).await?;
    match &args.command {
        // Handled before.
        Command::Daemon { .. } | Command::Doctor { .. } => {}
        Command::Status => {
            let replies = ask(&mut client, Request::Status).await?;
            for reply in replies {
                if let Reply::Status(status) = reply {
                    let now = Clock::System.now();
                    print(args, || json::status(&status), || text::status(&status, now)).await?;
                }
            }
        }
        Command::Login { username, credentials_stdin } => {
            refuse_if_signed_in(&mut client).await?;
            let credentials = if *credentials_stdin {
                apart(credentials::from_stdin).await??
            } else {
                credentials::ask(username.as_deref(), args.batch).await?
            };
            for reply in ask(&mut client, credentials.request()).await? {
                if let Reply::SignedIn(session) = reply {
                    print(args, || json::signed_in(&session), || text::signed_in(&session)).await?;
                }
            }
        }
        Command::Logout(leave) => leave::logout(args, &mut client, leave).await?,
        Command::Quit(leave) => leave::quit(args, settings, client, leave).await?,
        Command::Refresh => {
            for reply in ask(&mut client, Request::Refresh).await? {
                if let Reply::Synced(report) = reply {
                    print(args, || json::refreshed(&report), || text::refreshed(&report)).await?;
                }
            }
        }
        Command::Sources => {
            let mut sources = Vec::new();
            for reply in ask(&mut client, Request::Sources).await? {
                if let Reply::Sources(some) = reply {
                    sources.extend(some);
                }
            }
            print(args, || json::sources(&sources), || text::sources(&sources)).await?;
        }
        Command::Show { source } => conversation::show(args, &mut client, source).await?,
        Command::Search(wanted) => search::search(args, &mut client, wanted).await?,
        Command::Download(download) => download::download(args, &mut client, download).await?,
        Command::Open(wanted) => handover::open(args, &mut client, wanted).await?,
        Command::Export(wanted) => match &wanted.to {
            Some(to) => handover::export_to_folder(args, &mut client, &wanted.items, to).await?,
            None => handover::export_to_drive(args, &mut client, wanted).await?,
        },
        Command::Print(wanted) => handover::print_item(args, &mut client, wanted).await?,
        Command::Transcript { source, to } => {
            handover::transcript(args, &mut client, source, to.as_deref()).await?;
        }
        Command::Star { sources } => act::star(args, &mut client, sources, Star::Set).await?,
        Command::Unstar { sources } => act::star(args, &mut client, sources, Star::Remove).await?,
        Command::Seen { source, items } => act::seen(args, &mut client, source, items).await?,
        Command::Delete(delete) => act::delete(args, &mut client, delete).await?,
        Command::Reply(wanted) => reply::reply(args, settings, editing, &mut client, wanted).await?,
        Command::TrustKey { source, fingerprint } => {
            trust_key::trust_key(args, &mut client, source, fingerprint).await?;
        }
        Command::Undo { acts } => queue::undo(args, &mut client, acts).await?,
        Command::Queue => queue::list(args, &mut client).await?,
        Command::Retry(acts) => queue::deal(args, &mut client, Deal::Retry, acts).await?,
        Command::Cancel(acts) => queue::deal(args, &mut client, Deal::Cancel, acts).await?,
        Command::Dismiss(acts) => queue::deal(args, &mut client, Deal::Dismiss, acts).await?,
        Command::Restore { acts } => queue::deal_with(args, &mut client, Deal::Restore, acts).await?,
        Command::Removals(removals) => removals::removals(args, &mut client, removals).await?,
        Command::Pause => queue::pause(args, &mut client).await?,
        Command::Resume => queue::resume(args, &mut client).await?,
        Command::Watch => watch(args, &mut client).await?,
    }
    Ok(Exit::Success)
}

/// A login prompt is worth nothing to somebody who is signed in already.
async fn refuse_if_signed_in(client: &mut Client) -> Result<(), CliError> {
    for reply in ask(client, Request::Status).await? {
        let Reply::Status(status) = reply else { continue };
        match status.session {
            Session::SignedOut => {}
            Session::SigningIn => return Err(CliError::SigningIn),
            Session::SignedIn { username, .. } => {
                return Err(CliError::AlreadySignedIn { username: username.as_str().to_owned() });
            }
        }
    }
    Ok(())
}

/// Makes a request and gathers its answer; tells a person at a terminal that it takes a while.
async fn ask(client: &mut Client, request: Request) -> Result<Vec<Reply>, CliError> {
    ask_and_hear(client, request, |_| {}).await
}

/// The same, and gives `hear` the events that come meanwhile.
async fn ask_and_hear(
    client: &mut Client,
    request: Request,
    mut hear: impl FnMut(Event),
) -> Result<Vec<Reply>, CliError> {
    let what = match &request {
        Request::Login { .. } => "signing in; the proxy VM may have to start first",
        Request::Refresh => "syncing",
        Request::Act(Act::Reply { .. }) => {
            "handing the reply over; the VM with the private key may have to start first"
        }
        Request::Open { .. } => "handing it over",
        Request::Device(_) => "waiting for the device VM, which may have to start first",
        Request::Status
        | Request::Logout
        | Request::Sources
        | Request::Show { .. }
        | Request::FindSources { .. }
        | Request::FindItems { .. }
        | Request::Search { .. }
        | Request::Act(_)
        | Request::Queue
        | Request::Deal { .. }
        | Request::Undo { .. }
        | Request::Quit
        | Request::Download { .. }
        | Request::StopDownload { .. }
        | Request::Downloads
        | Request::Draft { .. }
        | Request::TrustKey { .. }
        | Request::Removals
        | Request::SettleRemovals { .. }
        | Request::Pause
        | Request::Resume
        | Request::Watch
        | Request::Viewers
        | Request::Content { .. } => "waiting",
    };
    let mut replies = Vec::new();
    let answered = {
        let asking = client.request(request, |arrival| match arrival {
            Arrival::Reply(reply) => replies.push(reply),
            Arrival::Event(event) => hear(event),
        });
        tokio::pin!(asking);
        tokio::select! {
            answered = &mut asking => answered,
            () = tokio::time::sleep(WORTH_A_WORD) => {
                if io::IsTerminal::is_terminal(&io::stderr()) {
                    drop(writeln!(io::stderr(), "{what} ..."));
                }
                asking.await
            }
        }
    };
    answered?;
    Ok(replies)
}

async fn watch(args: &Args, client: &mut Client) -> Result<(), CliError> {
    for reply in ask(client, Request::Watch).await? {
        if let Reply::Status(status) = reply {
            print(args, || json::status(&status), || text::watching(&status)).await?;
        }
    }
    loop {
        let event = next_event(client).await?;
        print(args, || json::event(&event), || text::event(&event)).await?;
    }
}

/// The next event on a connection that watches. Cancel-safe.
async fn next_event(client: &mut Client) -> Result<Event, CliError> {
    client.next_event().await.map_err(|error| match error {
        ClientError::Ended => CliError::DaemonEnded,
        error => error.into(),
    })
}

/// Prints one object, or what a person reads.
async fn print(args: &Args, object: impl FnOnce() -> String, text: impl FnOnce() -> String) -> Result<(), CliError> {
    let text = match (args.json, columns::of_terminal()) {
        (true, _) => object() + "\n",
        (false, Some(columns)) => columns::fitted(&text(), columns),
        (false, None) => text(),
    };
    match apart(move || print_text(&text)).await? {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(CliError::ReaderGone),
        other => Ok(other?),
    }
}

fn print_text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_by_its_option_alone() {
        let wants = |line: &str| wants_json(line.split_whitespace().map(OsString::from));
        assert!(wants("splitdrop --json show") && wants("splitdrop show --json"));
        assert!(!wants("splitdrop show") && !wants("--json") && !wants("splitdrop show -- --json"));
    }
}
