//! What is installed in a VM, and how its agent finds it.
//!
//! **Invariant:** a program for `NAME+ARGUMENT`, wherever it is, comes before one for `NAME`.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use crate::qrexec::rpc_config::{RpcConfig, RpcConfigError};

/// What is installed in a VM.
#[derive(Clone, Debug, Default)]
pub struct Installation {
    /// Programs, or Unix sockets, by `NAME+ARGUMENT` or by `NAME`. They come before those of the folders.
    pub services: BTreeMap<String, PathBuf>,
    /// Folders of such, in the order in which they are looked through; in a VM they are `/run/qubes-rpc`,
    /// `/usr/local/etc/qubes-rpc` and `/etc/qubes-rpc`.
    pub folders: Vec<PathBuf>,
    /// The texts of `/etc/qubes/rpc-config`, by `NAME+ARGUMENT` or by `NAME`.
    pub rpc_config: BTreeMap<String, String>,
    /// The environment of the services, beside what qrexec itself sets. It wins over the VM's settings in the system.
    pub environment: BTreeMap<String, String>,
}

/// A service as it was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Program(PathBuf),
    Socket(PathBuf),
}

/// A service was not found.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookUpError {
    #[error("there is no such service")]
    Missing,
    #[error("it cannot be looked at: {0}")]
    Unreadable(#[source] io::Error),
}

impl Installation {
    /// Finds a service. `full_name` is `NAME+ARGUMENT`.
    pub(super) fn find(&self, full_name: &str, name: &str) -> Result<Found, LookUpError> {
        for wanted in [full_name, name] {
            let listed = self.services.get(wanted).cloned();
            let in_folders = self.folders.iter().map(|folder| folder.join(wanted));
            for path in listed.into_iter().chain(in_folders) {
                // A link counts as what it leads to, and one that leads nowhere as nothing.
                match path.metadata() {
                    Ok(metadata) if metadata.file_type().is_socket() => return Ok(Found::Socket(path)),
                    Ok(_) => return Ok(Found::Program(path)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(LookUpError::Unreadable(error)),
                }
            }
        }
        Err(LookUpError::Missing)
    }

    /// The service's configuration; the default one where there is none.
    pub(super) fn config(&self, full_name: &str, name: &str) -> Result<RpcConfig, RpcConfigError> {
        let text = self.rpc_config.get(full_name).or_else(|| self.rpc_config.get(name));
        text.map_or_else(|| Ok(RpcConfig::default()), |text| RpcConfig::parse(text))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn touch(path: &Path) {
        std::fs::write(path, "").expect("written");
    }

    #[test]
    fn the_argument_comes_before_the_folder_and_a_folder_before_the_next() {
        let place = tempfile::tempdir().expect("a folder");
        let folders = ["run", "local", "etc"].map(|name| place.path().join(name));
        for folder in &folders {
            std::fs::create_dir(folder).expect("made");
        }
        let [run, local, etc] = &folders;
        touch(&run.join("s"));
        touch(&local.join("s"));
        touch(&etc.join("s+x"));
        touch(&local.join("t"));
        std::os::unix::fs::symlink("nowhere", run.join("t")).expect("linked");
        std::os::unix::fs::symlink(local.join("t"), etc.join("u")).expect("linked");
        let installation = Installation { folders: folders.to_vec(), ..Installation::default() };
        let found = |full: &str, name: &str| match installation.find(full, name) {
            Ok(Found::Program(path)) => Some(path),
            Ok(Found::Socket(_)) | Err(LookUpError::Unreadable(_)) => panic!("{full}"),
            Err(LookUpError::Missing) => None,
        };
        assert_eq!(found("s+x", "s"), Some(etc.join("s+x")));
        assert_eq!(found("s+y", "s"), Some(run.join("s")));
        assert_eq!(found("t+", "t"), Some(local.join("t")));
        assert_eq!(found("u+", "u"), Some(etc.join("u")));
        assert_eq!(found("v+", "v"), None);
    }
}
