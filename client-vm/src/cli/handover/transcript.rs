//! The command that writes a conversation as a plain text. It marks nothing as seen.

use std::path::Path;

use control::client::Client;

use super::super::args::Args;
use super::super::exit::CliError;
use super::super::{conversation, json, print, text};
use super::folder::Folder;
use crate::handover::naming;

pub(in crate::cli) async fn transcript(
    args: &Args,
    client: &mut Client,
    source: &str,
    to: Option<&Path>,
) -> Result<(), CliError> {
    let shown = conversation::load(client, source).await?;
    let written = text::transcript(&shown);
    let Some(to) = to else {
        return print(args, || json::transcript(&written), || written.clone()).await;
    };
    let folder = Folder::open(to).await?;
    folder.check_room(u64::try_from(written.len()).unwrap_or(u64::MAX)).await?;
    let mut copy = folder.create(naming::of_conversation(shown.source.designation.as_str())).await?;
    copy.write(written.into_bytes()).await?;
    let name = copy.finish().await?;
    folder.sync(1).await?;
    print(args, || json::written(&name), || text::written(&name)).await
}
