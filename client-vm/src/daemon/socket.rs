//! The control socket's place in the file system.
//!
//! **Invariant:** nothing is ever removed but a socket of this user's that nobody listens on, and the one that was bound
//! here.

use std::fs::{Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use super::DaemonError;
use crate::private;

/// The bound socket's name. Dropped, it removes the name, unless that has become somebody else's.
#[derive(Debug)]
pub(super) struct SocketName {
    path: PathBuf,
    bound: Identity,
}

/// What a file is, whatever its name: device and inode.
type Identity = (u64, u64);

/// Binds the control socket. One that nobody listens on was left by a crash and is replaced.
///
/// # Errors
/// [`DaemonError::SocketTaken`], [`DaemonError::NoSocket`], [`DaemonError::SetUp`].
pub(super) async fn listen(path: &Path) -> Result<(UnixListener, SocketName), DaemonError> {
    let set_up = |source| DaemonError::SetUp { path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        private::new_directory(parent).map_err(set_up)?;
    }
    match UnixStream::connect(path).await {
        Ok(_) => return Err(DaemonError::SocketTaken(path.to_owned())),
        // Somebody listens, and many wait already.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(DaemonError::SocketTaken(path.to_owned()));
        }
        // So says the system of a regular file too.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            if !is_own_socket(&std::fs::symlink_metadata(path).map_err(set_up)?) {
                return Err(DaemonError::NoSocket(path.to_owned()));
            }
            std::fs::remove_file(path).map_err(set_up)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(set_up(error)),
    }
    // The umask makes it 0700, which is for this user alone; the file's proper mode follows.
    let listener = UnixListener::bind(path).map_err(set_up)?;
    let bound = identity(&std::fs::symlink_metadata(path).map_err(set_up)?);
    let name = SocketName { path: path.to_owned(), bound };
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(set_up)?;
    Ok((listener, name))
}

fn is_own_socket(metadata: &Metadata) -> bool {
    metadata.file_type().is_socket() && metadata.uid() == nix::unistd::geteuid().as_raw()
}

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

impl Drop for SocketName {
    fn drop(&mut self) {
        let now = std::fs::symlink_metadata(&self.path);
        if !now.is_ok_and(|now| identity(&now) == self.bound) {
            tracing::warn!("the control socket was taken away or replaced: left as it is");
        } else if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, "could not remove the control socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_socket_that_nobody_listens_on_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("file"), "kept").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        for name in ["file", "link"] {
            let refused = listen(&path(name)).await;
            assert!(matches!(refused, Err(DaemonError::NoSocket(_))), "{name}: {refused:?}");
        }
        assert_eq!(std::fs::read_to_string(path("link")).unwrap(), "kept");

        drop(UnixListener::bind(path("stale")).unwrap());
        std::os::unix::fs::symlink(path("stale"), path("link to stale")).unwrap();
        assert!(matches!(listen(&path("link to stale")).await, Err(DaemonError::NoSocket(_))));
        let (listener, name) = listen(&path("stale")).await.unwrap();
        assert!(matches!(listen(&path("stale")).await, Err(DaemonError::SocketTaken(_))));
        drop((listener, name));
        assert!(!path("stale").exists());
    }

    #[tokio::test]
    async fn only_what_was_bound_here_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let (_listener, name) = listen(&path).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let (_other, others) = listen(&path).await.unwrap();
        drop(name);
        assert!(path.exists(), "it is the other one's");
        std::fs::rename(&path, directory.path().join("elsewhere")).unwrap();
        std::fs::write(&path, "kept").unwrap();
        drop(others);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    }
}
