//! The command that copies items into a folder of this VM.
//!
//! **Invariant:** nothing is written before it is known that all of it can be read and has room.

use std::collections::HashMap;
use std::path::Path;

use control::client::{Client, ClientError};
use control::{Content, ContentPart, ItemKind, Reply, Request};
use protocol::SubmissionKind;
use protocol::value::{Designation, ItemId, SourceId};

use super::super::act::{find_sources, item_id};
use super::super::args::Args;
use super::super::download::screen::Screen;
use super::super::exit::CliError;
use super::super::{ask, json, print, text};
use super::folder::Folder;
use super::{Readable, find_readable};
use crate::handover::naming;

/// What is said to whoever interrupts.
const INTERRUPTED: &str = "The copy that was begun is removed; those that were finished stay.\n";

/// A copy that is finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Exported {
    pub(in crate::cli) item: ItemId,
    pub(in crate::cli) name: String,
    pub(in crate::cli) bytes: u64,
}

pub(in crate::cli) async fn export_to_folder(
    args: &Args,
    client: &mut Client,
    words: &[String],
    to: &Path,
) -> Result<(), CliError> {
    let items = find_readable(client, words).await?;
    let designations = designations(client, &items).await?;
    let folder = Folder::open(to).await?;
    folder.check_room(items.iter().fold(0, |total, item| total.saturating_add(item.bytes))).await?;
    let mut screen = Screen::saying(INTERRUPTED);
    let mut exported = Vec::new();
    let mut copied = Ok(());
    for item in &items {
        let name = name(item, &designations);
        match copy(client, &folder, item, name, &mut screen).await {
            Ok(one) => exported.push(one),
            Err(error) => {
                copied = Err(error);
                break;
            }
        }
    }
    screen.finish();
    match copied {
        Ok(()) => folder.sync(exported.len()).await?,
        Err(error) if exported.is_empty() => return Err(error),
        Err(error) => return Err(CliError::PartlyExported { copies: exported.len(), error: Box::new(error) }),
    }
    print(args, || json::exported(&exported), || text::exported(&exported)).await
}

/// The designations of the items' sources.
async fn designations(client: &mut Client, items: &[Readable]) -> Result<HashMap<SourceId, Designation>, CliError> {
    let ids: Vec<_> = items.iter().map(|item| item.source.to_string()).collect();
    let sources = find_sources(client, &ids).await?;
    Ok(sources.into_iter().map(|source| (source.id, source.designation)).collect())
}

fn name(readable: &Readable, designations: &HashMap<SourceId, Designation>) -> String {
    let designation = designations.get(&readable.source).map(Designation::as_str).unwrap_or_default();
    let (item, order) = (&readable.item, readable.item.order);
    match (&item.kind, &item.content) {
        (ItemKind::Submission { kind: SubmissionKind::File, .. }, Content::Decrypted { name, .. }) => {
            naming::of_file(name.as_deref(), designation, order)
        }
        (ItemKind::Submission { kind: SubmissionKind::File, .. }, _) => naming::of_file(None, designation, order),
        (ItemKind::Submission { kind: SubmissionKind::Message, .. } | ItemKind::Reply { .. }, _) => {
            naming::of_text(designation, order)
        }
    }
}

/// Copies one item. Called off (dropped), it leaves nothing of it.
async fn copy(
    client: &mut Client,
    folder: &Folder,
    readable: &Readable,
    name: String,
    screen: &mut Screen,
) -> Result<Exported, CliError> {
    let item = item_id(&readable.item);
    let mut copy = folder.create(name).await?;
    let mut bytes = 0_u64;
    loop {
        let ContentPart { chunk, end, total } = content(client, item, bytes).await?;
        // There was room for so much, and it says what somebody decided on.
        if total != readable.bytes {
            return Err(CliError::Client(ClientError::Unexpected));
        }
        let some = chunk.map(|chunk| chunk.as_slice().to_vec()).unwrap_or_default();
        let nothing_came = some.is_empty();
        bytes = bytes.saturating_add(u64::try_from(some.len()).unwrap_or(u64::MAX));
        copy.write(some).await?;
        screen.draw(vec![text::copying(copy.name(), bytes, total)]);
        match (end, nothing_came) {
            (true, _) if bytes == total => break,
            (false, false) => {}
            (true, _) | (false, true) => return Err(CliError::Client(ClientError::Unexpected)),
        }
    }
    Ok(Exported { item, name: copy.finish().await?, bytes })
}

async fn content(client: &mut Client, item: ItemId, offset: u64) -> Result<ContentPart, CliError> {
    let replies = ask(client, Request::Content { item, offset }).await?;
    let part = replies.into_iter().find_map(|reply| if let Reply::Content(part) = reply { Some(part) } else { None });
    part.ok_or(CliError::Client(ClientError::Unexpected))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use control::{ConversationItem, SourceRow};
    use protocol::value::Chunk;
    use tokio::net::UnixListener;
    use tokio::sync::oneshot;

    use super::super::super::played::{Said, play, says};
    use super::super::super::samples::{decrypted, file, message, reply, source, source_id};
    use super::*;

    /// A daemon with one file of 1,200 bytes, of which it gives the first 600, and then what `rest` says.
    fn daemon(mut rest: impl FnMut() -> Option<Said>) -> impl FnMut(Request) -> Option<Said> {
        let found = ConversationItem { content: decrypted(Some("ledger.pdf")), ..file(1) };
        let row: SourceRow = source(1, "candid marmot");
        move |request| match request {
            Request::FindItems { .. } => {
                Some(says(vec![Reply::Found { source: source_id(1), item: Box::new(found.clone()) }]))
            }
            Request::FindSources { .. } => Some(says(vec![Reply::Sources(vec![row.clone()])])),
            Request::Content { offset: 0, .. } => {
                let chunk = Chunk::try_new(vec![b'x'; 600]).ok();
                Some(says(vec![Reply::Content(ContentPart { chunk, end: false, total: 1_200 })]))
            }
            _other => rest(),
        }
    }

    /// Exports with that daemon, until `called_off`.
    async fn export(
        to: &Path,
        script: impl FnMut(Request) -> Option<Said>,
        called_off: impl Future<Output = ()>,
    ) -> Option<Result<(), CliError>> {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let args = Args::try_parse_from(["splitdrop", "export", "9b04", "--to", "a", "--json"]).unwrap();
        let exporting = async {
            let mut client = Client::connect(&socket).await?;
            export_to_folder(&args, &mut client, &["9b04".to_owned()], to).await
        };
        tokio::select! {
            biased;
            () = called_off => None,
            ended = exporting => Some(ended),
            () = play(listener, script) => unreachable!("it plays on"),
        }
    }

    #[tokio::test]
    async fn who_interrupts_leaves_nothing_of_the_copy_that_was_begun() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.pdf");
        let (interrupt, interrupted) = oneshot::channel();
        let mut interrupt = Some(interrupt);
        let rest = || {
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 600, "it was begun");
            interrupt.take().unwrap().send(()).unwrap();
            Some(says(Vec::new()))
        };
        let called_off = async { interrupted.await.unwrap() };
        assert!(export(folder.path(), daemon(rest), called_off).await.is_none());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_daemon_that_ends_or_says_something_else_leaves_nothing_of_the_copy_that_was_begun() {
        let folder = tempfile::tempdir().unwrap();
        let part = |bytes: usize, end, total| {
            let chunk = Chunk::try_new(vec![b'x'; bytes]).ok();
            Some(says(vec![Reply::Content(ContentPart { chunk, end, total })]))
        };
        for said in
            [None, part(0, false, 1_200), part(599, true, 1_200), part(600, true, 1_201), part(700, true, 1_200)]
        {
            let ended = export(folder.path(), daemon(|| said.clone()), std::future::pending()).await;
            assert!(ended.unwrap().is_err(), "{said:?}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
        let ended = export(folder.path(), daemon(|| part(600, true, 1_200)), std::future::pending()).await;
        ended.unwrap().unwrap();
        assert_eq!(std::fs::metadata(folder.path().join("ledger.pdf")).unwrap().len(), 1_200);
    }

    #[test]
    fn a_file_keeps_its_name_and_a_text_is_called_by_its_place() {
        let designations = HashMap::from([(source_id(1), Designation::try_new("candid marmot").unwrap())]);
        let named = |item: ConversationItem| {
            let readable = Readable { source: source_id(1), item, bytes: 0 };
            super::name(&readable, &designations)
        };
        let of_file = |name| ConversationItem { content: decrypted(name), ..file(3) };
        assert_eq!(named(of_file(Some("ledger.pdf"))), "ledger.pdf");
        assert_eq!(named(of_file(None)), "candid marmot-3");
        assert_eq!(named(message(7)), "candid marmot-7.txt");
        assert_eq!(named(reply(8, None)), "candid marmot-8.txt");
    }
}
