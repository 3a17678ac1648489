//! What leaves this VM: documents that a disposable VM shows, archives for the device VM, and content that a front end
//! copies out.
//!
//! **Invariant:** what another VM is given it cannot change here, and nothing that it says is ever run, written or taken for
//! a name. Of the device VM one word is read, which is one of a closed list or an error.

mod archive;
pub(crate) mod naming;
mod opener;
mod status;

use std::io;
use std::path::PathBuf;

use control::{ContentPart, DeviceTask};
use protocol::value::{Chunk, ItemId};
use qubes_rpc::name::TargetName;
use tokio_util::sync::CancellationToken;

pub(crate) use self::opener::{Opener, Running};
pub(crate) use self::status::read_status;

use crate::files::{Extension, FileNumber, Files};
use crate::store::handover::{Readable, Standing, standing};
use crate::store::{Store, StoreError};

/// Something could not be handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// There is no such item.
    #[error("no such item: `splitdrop show` lists a conversation's")]
    NoItem,
    /// The item is being deleted.
    #[error("the item {0} is being deleted, and is handed over to nobody any more")]
    BeingDeleted(ItemId),
    /// The item cannot be read yet.
    #[error("the item {0} is not decrypted: `splitdrop download {0}` fetches and decrypts it")]
    NotDecrypted(ItemId),
    /// Its file has vanished.
    #[error("the file of item {0} has vanished: restart the daemon, and fetch it again with `splitdrop download {0}`")]
    Vanished(ItemId),
    /// A file could not be read or written.
    #[error("the files could not be read or written; is the disk full?")]
    Io(#[from] io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The program that opens files in other VMs could not be run.
    #[error(
        "could not run {}: it belongs to Qubes; outside of Qubes set `open_in_vm` in `[handover]` of the configuration",
        .program.display()
    )]
    NotStarted {
        /// Which.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// dom0 refused the call.
    #[error(
        "refused by dom0's policy: no rule allows qubes.OpenInVM to {vm}, somebody said no, or the VM cannot start"
    )]
    Refused {
        /// To which VM.
        vm: TargetName,
    },
    /// The call ended with a failure.
    #[error("the call of {vm} failed ({how}): see whether that VM starts, and the log of it")]
    Failed {
        /// To which VM.
        vm: TargetName,
        /// How it ended: an exit code, or a signal.
        how: String,
    },
    /// The device VM said nothing.
    #[error("{vm} ended without saying how it went: see the log of it; what was copied or printed is not known")]
    NoStatus {
        /// Which VM.
        vm: TargetName,
    },
    /// The device VM said what nobody understands.
    #[error("{vm} said what is not understood, \"{said}\": are its programs of another version? See the log of it")]
    UnknownStatus {
        /// Which VM.
        vm: TargetName,
        /// What it said, made harmless, and cut.
        said: String,
    },
    /// It was given up: the daemon ends, or whoever asked is gone.
    #[error("given up: the daemon ends, or nobody waits for it any more")]
    GivenUp,
}

/// What handing over needs.
#[derive(Debug, Clone)]
pub struct HandoverDesk {
    /// The store.
    pub store: Store,
    /// The files.
    pub files: Files,
}

/// A file or text that another VM is shown.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) number: FileNumber,
    pub(crate) path: PathBuf,
}

impl HandoverDesk {
    /// A piece of what can be read of an item, as it came.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub async fn content(&self, item: ItemId, offset: u64) -> Result<ContentPart, HandoverError> {
        let Readable { number, bytes: total, text, .. } = self.readable(item).await?;
        let most = u64::try_from(Chunk::MAX).unwrap_or(u64::MAX);
        let bytes = match text {
            Some(text) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                text.as_bytes().get(from..).unwrap_or_default().iter().copied().take(Chunk::MAX).collect()
            }
            None => {
                let files = self.files.clone();
                let read = blocking(move || Ok(files.read_plaintext(number, offset, most)?)).await?;
                read.ok_or(HandoverError::Vanished(item))?
            }
        };
        let read = offset.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        // None is as long as noted and has no bytes but the empty one.
        let chunk = Chunk::try_new(bytes).ok();
        if chunk.is_none() && offset < total {
            return Err(HandoverError::Vanished(item));
        }
        Ok(ContentPart { chunk, end: read >= total, total })
    }

    /// Puts a file or text where another VM can be shown it.
    pub(crate) async fn show(&self, item: ItemId) -> Result<Shown, HandoverError> {
        let Readable { number, name, text, .. } = self.readable(item).await?;
        let files = self.files.clone();
        let shown = blocking(move || {
            let shown = match text {
                Some(text) => files.show_text(number, &text),
                None => files.show(number, name.as_deref().and_then(Extension::of).as_ref()),
            };
            if shown.is_err() {
                files.hide(number)?;
            }
            match shown {
                Ok(path) => Ok(Shown { number, path }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(HandoverError::Vanished(item)),
                Err(error) => Err(error.into()),
            }
        });
        let shown = shown.await?;
        // Its deletion may have been confirmed meanwhile, and erased what was there before this.
        if let Err(error) = self.readable(item).await {
            self.hide(number).await?;
            return Err(error);
        }
        Ok(shown)
    }

    /// Takes away what another VM was shown.
    pub(crate) async fn hide(&self, number: FileNumber) -> Result<(), HandoverError> {
        let files = self.files.clone();
        blocking(move || Ok(files.hide(number)?)).await
    }

    /// Writes the archive that tells the device VM its task. Where that fails something of it may be there all the same: it
    /// is the caller's to remove, as after the call.
    pub(crate) async fn archive(&self, task: DeviceTask, stop: &CancellationToken) -> Result<PathBuf, HandoverError> {
        let items = match &task {
            DeviceTask::CheckDrive | DeviceTask::CheckPrinter => Vec::new(),
            DeviceTask::Copy { items, .. } => items.clone(),
            DeviceTask::Print { item } => vec![*item],
        };
        let mut readable = Vec::with_capacity(items.len());
        for item in &items {
            readable.push(self.readable(*item).await?);
        }
        let (files, stop) = (self.files.clone(), stop.clone());
        let written = blocking(move || archive::write(&files, &task, &readable, &stop)).await?;
        for item in items {
            self.readable(item).await?;
        }
        Ok(written)
    }

    /// Removes that archive, or what there is of one.
    pub(crate) async fn remove_archive(&self) -> Result<(), HandoverError> {
        let files = self.files.clone();
        blocking(move || Ok(files.remove_archive()?)).await
    }

    async fn readable(&self, item: ItemId) -> Result<Readable, HandoverError> {
        match self.store.read(move |transaction| standing(transaction, item)).await? {
            Standing::NotThere => Err(HandoverError::NoItem),
            Standing::BeingDeleted => Err(HandoverError::BeingDeleted(item)),
            Standing::NotDecrypted => Err(HandoverError::NotDecrypted(item)),
            Standing::Readable(readable) => Ok(*readable),
        }
    }
}

/// Work with files, off the async threads. It is never cut in two.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HandoverError> + Send + 'static,
) -> Result<T, HandoverError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            // The engine notices.
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(HandoverError::Io(io::Error::other(error))),
        },
    }
}
