//! The command that answers a source.
//!
//! What somebody has written is kept as their draft before it is sent: whatever happens then, it is there. A reply that is
//! taken takes the draft away.
//!
//! **Invariant:** what was written is taken, or kept as the draft, or in a file whose path is said: then, and again by the
//! next command that answers somebody.
//!
//! **Invariant:** a reply that may have been taken is asked for again with the same id, which is not taken twice.

mod editor;
mod page;

use std::cell::Cell;
use std::fmt;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use control::client::{Client, ClientError};
use control::reply::MAX_REPLY_CHARS;
use control::{Act, Deletion, KeyState, Reply, ReplyText, Request, SourceRow, Taken};
use protocol::value::{JournalistId, Problem, ReplyId, ValueError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use self::editor::{Closed, Editor};
use self::page::{Manuscript, Page, Places, say};
use super::act::refuse_if_signed_out;
use super::args::{self, Args};
use super::conversation::{self, Conversation};
use super::exit::CliError;
use super::{apart, ask, connect, json, print, text};
use crate::settings::Settings;

/// The longest text that can be a reply, in bytes: four for each character, and a line end after them.
const MAX_BYTES: u64 = 400_002;
/// How long a daemon that has ended is looked for again: a service is started again after 5 s.
const RETURN_DEADLINE: Duration = Duration::from_secs(10);
/// How often it is looked for meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// The variable that says where private files may be that last no longer than a session.
const DIRECTORY: &str = "XDG_RUNTIME_DIR";

/// Whether the terminal is an editor's, and signals from it are not for this program.
#[derive(Debug, Default)]
pub(super) struct Editing(Cell<bool>);

impl Editing {
    pub(super) fn is_on(&self) -> bool {
        self.0.get()
    }

    fn begin(&self) -> Lent<'_> {
        self.0.set(true);
        Lent(self)
    }
}

/// The terminal is lent to an editor. Dropped, it is this program's again.
struct Lent<'a>(&'a Editing);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.0.set(false);
    }
}

/// Where what was written is, when it was not taken.
#[derive(Debug)]
pub(super) enum Kept {
    /// It is the draft.
    Draft,
    /// In this file.
    File(PathBuf),
    /// What an editor left that did not end well is in this directory: a copy of its own, or what is not saved.
    Left(PathBuf),
    /// It could not be written to a file either.
    Nowhere(io::Error),
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Draft => write!(f, "the text is kept as the draft, and `splitdrop reply SOURCE` goes on with it"),
            Self::File(path) => write!(f, "the text is in {}", path.display()),
            Self::Left(directory) => write!(f, "what the editor left is in {}", directory.display()),
            Self::Nowhere(error) => write!(f, "the text could not be kept ({error})"),
        }
    }
}

/// Where the text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Given(String),
    Input,
    Editor(Editor),
}

impl Origin {
    /// What was said on the command line; else what comes on standard input; else an editor, where a person sits.
    fn try_new(
        message: Option<&str>,
        batch: bool,
        input_is_terminal: bool,
        editor: impl FnOnce() -> Option<Editor>,
    ) -> Result<Self, CliError> {
        match message {
            Some(message) => Ok(Self::Given(message.to_owned())),
            None if !input_is_terminal => Ok(Self::Input),
            None if batch => Err(CliError::BatchWithoutText),
            None => editor().map(Self::Editor).ok_or(CliError::NoEditor),
        }
    }
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    /// The reply was taken.
    Taken(Taken),
    /// It is the draft.
    Drafted,
    /// There is no draft any more.
    Forgotten,
}

/// What became of a reply that was sent when the connection was lost.
enum Loss {
    /// It was not taken, for this reason.
    NotTaken(CliError),
    /// Nobody can say.
    Unknown,
}

/// Answers a source, or keeps what is written as the draft. Called off (dropped), it says where the text is.
pub(super) async fn reply(
    args: &Args,
    settings: &Settings,
    editing: &Editing,
    client: &mut Client,
    wanted: &args::Reply,
) -> Result<(), CliError> {
    let variable = |name: &str| std::env::var_os(name);
    let find_editor = || Editor::find(variable);
    let origin = Origin::try_new(wanted.message.as_deref(), args.batch, io::stdin().is_terminal(), find_editor)?;
    let author = refuse_if_signed_out(client).await?;
    let Conversation { source, draft, .. } = conversation::load(client, &wanted.source).await?;
    if source.deletion == Deletion::Pending {
        return Err(CliError::SourceBeingDeleted { designation: source.designation.as_str().to_owned() });
    }
    let named = variable(DIRECTORY).filter(|value| !value.is_empty()).map(PathBuf::from);
    let places = Places::new(named, settings.home.clone());
    remind(&places);
    let mut desk = Desk { args, settings, client, source, only_draft: wanted.draft, leaves_draft: false };
    let done = match origin {
        Origin::Given(text) => {
            desk.leaves_draft = !wanted.draft && draft.is_some();
            desk.deliver(Manuscript::new(text, places)).await?
        }
        Origin::Input => {
            let text = without_line_end(apart(from_input).await??);
            desk.leaves_draft = !wanted.draft && draft.is_some();
            let written = Manuscript::new(text, places);
            match refuse_if_another(desk.client, author).await {
                Ok(()) => desk.deliver(written).await?,
                Err(error) if is_blank(written.text()) => return Err(error),
                Err(error) => return Err(not_taken(error, written.into_file())),
            }
        }
        Origin::Editor(editor) => {
            if !wanted.draft {
                refuse_if_unanswerable(&desk.source)?;
            }
            let mut page = Page::try_new(&places, draft.as_ref().map_or("", ReplyText::as_str))?;
            let mut terminate = signal(SignalKind::terminate())?;
            let told_to_end = async move {
                terminate.recv().await;
            };
            page.lend();
            let closed = {
                let _lent = editing.begin();
                editor.open(&page, told_to_end).await
            };
            match refuse_if_another(desk.client, author).await {
                Ok(()) => desk.take_over(page, closed).await?,
                Err(error) => return Err(left(page, &closed, error)),
            }
        }
    };
    let source = desk.source;
    match done {
        Done::Taken(taken) => print(args, || json::acted(&[taken]), || text::replied(&source, &taken)).await,
        Done::Drafted => print(args, || json::draft(true), || text::draft(&source, true)).await,
        Done::Forgotten => print(args, || json::draft(false), || text::draft(&source, false)).await,
    }
}

/// An editor, or standard input, may stay open for long: what one journalist wrote is nothing that another one sends.
async fn refuse_if_another(client: &mut Client, author: JournalistId) -> Result<(), CliError> {
    if refuse_if_signed_out(client).await? == author { Ok(()) } else { Err(CliError::AnotherSignedIn) }
}

/// Keeps what was saved of a page, and what an editor that did not end well has left of it.
fn left(page: Page, closed: &Result<Closed, CliError>, error: CliError) -> CliError {
    let ended_well = closed.as_ref().is_ok_and(|closed| closed.check().is_ok());
    match page.is_saved() {
        Ok(false) if ended_well || !page.has_leftovers() => {
            page.settle();
            error
        }
        Ok(false) => not_taken(error, page.keep_leftovers()),
        Ok(true) | Err(_) => not_taken(error, page.keep()),
    }
}

/// Says what is left of replies that were not sent: whoever wrote them may not have seen where they are.
fn remind(places: &Places) {
    let unsent = places.unsent();
    let Some(first) = unsent.first() else { return };
    let more = match unsent.len() {
        1 => String::new(),
        count => format!(", and {} more beside it", count.saturating_sub(1)),
    };
    say(&format!("a reply that was not sent is in {}{more}: remove it when it is not needed", first.display()));
}

/// What a reply is sent from.
struct Desk<'a> {
    args: &'a Args,
    settings: &'a Settings,
    client: &'a mut Client,
    source: SourceRow,
    only_draft: bool,
    /// There is a draft that this is not: it stays.
    leaves_draft: bool,
}

impl Desk<'_> {
    /// Goes on with what an editor left.
    async fn take_over(&mut self, page: Page, closed: Result<Closed, CliError>) -> Result<Done, CliError> {
        let fault = closed.and_then(|closed| closed.check()).err();
        match (page.is_saved(), fault) {
            (Ok(false), None) => {
                page.settle();
                Err(CliError::NotSaved)
            }
            // What an editor saves that is told to end, or fails, is beside the page.
            (Ok(false), Some(error)) if page.has_leftovers() => Err(not_taken(error, page.keep_leftovers())),
            (Ok(false), Some(error)) => {
                page.settle();
                Err(error)
            }
            (Err(error), _) => Err(not_taken(error.into(), page.keep())),
            (Ok(true), fault) => match page.read(MAX_BYTES) {
                Ok(text) => self.take(Manuscript::of_page(without_line_end(text), page), fault).await,
                Err(error) => Err(not_taken(error, page.keep())),
            },
        }
    }

    /// Goes on with what was saved, though the editor may not have ended well.
    async fn take(&mut self, mut written: Manuscript, fault: Option<CliError>) -> Result<Done, CliError> {
        let Some(error) = fault else { return self.deliver(written).await };
        let error = match written.keep_leftovers() {
            Some(kept) => not_taken(error, kept),
            None => error,
        };
        if is_blank(written.text()) {
            written.settle();
            return Err(error);
        }
        // Somebody saved it all the same.
        Err(not_taken(error, self.keep(written).await))
    }

    /// Sends it, or keeps it as the draft.
    async fn deliver(&mut self, mut written: Manuscript) -> Result<Done, CliError> {
        let source = self.source.id;
        if is_blank(written.text()) {
            written.settle();
            if !self.only_draft {
                return Err(CliError::BlankReply);
            }
            ask(self.client, Request::Draft { source, text: None }).await?;
            return Ok(Done::Forgotten);
        }
        let text = match ReplyText::try_new(written.text()) {
            Ok(text) => text,
            Err(error) => return Err(not_taken(error.into(), written.into_file())),
        };
        if !self.leaves_draft {
            if let Err(error) = ask(self.client, Request::Draft { source, text: Some(text.clone()) }).await {
                return Err(not_taken(error, written.into_file()));
            }
            if self.only_draft {
                written.settle();
                return Ok(Done::Drafted);
            }
            written.is_draft();
        }
        let reply: ReplyId = uuid::Uuid::new_v4().to_string().parse()?;
        let act = Act::Reply { source, reply, text };
        let taken = match send(self.client, &act).await {
            Ok(taken) => taken,
            Err(error) if is_lost(&error) => match self.find_out(reply, &act).await {
                Ok(taken) => taken,
                Err(Loss::NotTaken(error)) => return Err(not_taken(error, self.kept(written))),
                Err(Loss::Unknown) => {
                    return Err(CliError::Unconfirmed { error: Box::new(error), kept: written.into_file() });
                }
            },
            Err(error) => return Err(not_taken(error, self.kept(written))),
        };
        written.settle();
        Ok(Done::Taken(taken))
    }

    /// Where what was not taken is: it is the draft, unless that is another one.
    fn kept(&self, written: Manuscript) -> Kept {
        if self.leaves_draft {
            return written.into_file();
        }
        written.settle();
        Kept::Draft
    }

    /// Keeps it as the draft or, where that cannot be, in a file.
    async fn keep(&mut self, written: Manuscript) -> Kept {
        let Ok(text) = ReplyText::try_new(written.text()) else { return written.into_file() };
        match ask(self.client, Request::Draft { source: self.source.id, text: Some(text) }).await {
            Ok(_) => {
                written.settle();
                Kept::Draft
            }
            Err(_gone) => written.into_file(),
        }
    }

    /// Asks the daemon that comes next whether a reply was taken, and sends it again if not.
    async fn find_out(&self, reply: ReplyId, act: &Act) -> Result<Taken, Loss> {
        let mut client = self.connect_again().await.ok_or(Loss::Unknown)?;
        let found = conversation::load(&mut client, self.source.id.as_str()).await.map_err(|_| Loss::Unknown)?;
        if let Some(outgoing) = found.outgoing.iter().find(|outgoing| outgoing.reply == reply) {
            return Ok(Taken { act: Some(outgoing.act), objects: 1, already: 0, grace_ms: 0 });
        }
        if found.items.iter().any(|item| item.is_reply(reply)) {
            return Ok(Taken { act: None, objects: 0, already: 1, grace_ms: 0 });
        }
        send(&mut client, act)
            .await
            .map_err(|error| if is_lost(&error) { Loss::Unknown } else { Loss::NotTaken(error) })
    }

    async fn connect_again(&self) -> Option<Client> {
        let deadline = Instant::now() + RETURN_DEADLINE;
        loop {
            match connect::connect(self.settings, self.args.start).await {
                Ok(client) => return Some(client),
                Err(CliError::Client(ClientError::NoDaemon { .. })) if Instant::now() < deadline => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                Err(_) => return None,
            }
        }
    }
}

async fn send(client: &mut Client, act: &Act) -> Result<Taken, CliError> {
    let replies = ask(client, Request::Act(act.clone())).await?;
    let taken = replies.into_iter().find_map(|reply| match reply {
        Reply::Taken(taken) => Some(taken),
        _other => None,
    });
    taken.ok_or(CliError::Client(ClientError::Unexpected))
}

fn not_taken(error: CliError, kept: Kept) -> CliError {
    CliError::NotTaken { error: Box::new(error), kept }
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// Whether it is not known what became of a request.
fn is_lost(error: &CliError) -> bool {
    matches!(error, CliError::Client(ClientError::Ended | ClientError::Io(_) | ClientError::Frame(_)))
}

/// Nobody should write what cannot be sent.
fn refuse_if_unanswerable(source: &SourceRow) -> Result<(), CliError> {
    let why = match &source.key {
        // It will have been looked at by then.
        KeyState::New { .. } | KeyState::Pinned { .. } => return Ok(()),
        KeyState::None => "the server has no key of it yet, which comes when the source returns".to_owned(),
        KeyState::Held { detail, .. } => detail.clone(),
    };
    Err(CliError::Unanswerable { designation: source.designation.as_str().to_owned(), why })
}

/// Reads standard input to its end. It blocks: no signal ends it.
fn from_input() -> Result<String, CliError> {
    read(io::stdin().lock(), MAX_BYTES)
}

/// Reads a text to its end, if it is not longer than so many bytes.
fn read(from: impl io::Read, most: u64) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most {
        let problem = Problem::TooLong { max: MAX_REPLY_CHARS, unit: "characters" };
        return Err(ValueError { what: "a reply", problem }.into());
    }
    String::from_utf8(bytes).map_err(|_| CliError::NotText)
}

/// Without the line end that editors and `echo` put after a text.
fn without_line_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

#[cfg(test)]
mod tests;
