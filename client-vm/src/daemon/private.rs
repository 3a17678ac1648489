//! Directories and files that are for this user alone.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Makes the directory if need be, and its mode 0700 if it is another.
pub(super) fn directory(path: &Path) -> io::Result<()> {
    new_directory(path)?;
    mend(path, DIRECTORY_MODE)
}

/// Makes the directory if need be, with mode 0700. One that is there may be shared with others and stays as it is.
pub(super) fn new_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Makes the mode of the regular files directly in `directory` 0600.
pub(super) fn files_in(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            mend(&entry.path(), FILE_MODE)?;
        }
    }
    Ok(())
}

/// Opens a file for writing, with mode 0600; makes it if need be.
pub(super) fn file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(FILE_MODE)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(path)
}

/// Opens a file to append to, with mode 0600; makes it if need be.
pub(super) fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(FILE_MODE).custom_flags(nix::libc::O_NOFOLLOW).open(path)
}

/// Takes away what group and others may do. Somebody else's directory is refused.
fn mend(path: &Path, mode: u32) -> io::Result<()> {
    let metadata = std::fs::symlink_metadata(path)?;
    if metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        tracing::warn!("a directory or file of ours was open to others: mended");
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// Case T3.
    #[test]
    fn t3_wrong_modes_are_mended() {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("a/b");
        directory(&home).unwrap();
        assert_eq!((mode(&home), mode(home.parent().unwrap())), (0o700, 0o700));
        std::fs::set_permissions(&home, Permissions::from_mode(0o755)).unwrap();
        let store = home.join("store");
        std::fs::write(&store, "").unwrap();
        std::fs::set_permissions(&store, Permissions::from_mode(0o666)).unwrap();
        directory(&home).unwrap();
        files_in(&home).unwrap();
        assert_eq!((mode(&home), mode(&store)), (0o700, 0o600));
    }

    #[test]
    fn a_directory_that_others_share_stays_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let shared = root.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        std::fs::set_permissions(&shared, Permissions::from_mode(0o755)).unwrap();
        new_directory(&shared).unwrap();
        new_directory(&shared.join("ours")).unwrap();
        assert_eq!((mode(&shared), mode(&shared.join("ours"))), (0o755, 0o700));
    }

    #[test]
    fn a_link_in_place_of_a_file_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let link = root.path().join("lock");
        std::os::unix::fs::symlink(root.path().join("elsewhere"), &link).unwrap();
        assert!(file(&link).is_err() && append(&link).is_err());
        assert!(!root.path().join("elsewhere").exists());
    }
}
