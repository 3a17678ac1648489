//! Directories and files that are for this user alone.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Makes the directory if need be, and its mode 0700 if it is another.
pub(crate) fn directory(path: &Path) -> io::Result<()> {
    new_directory(path)?;
    mend(path, DIRECTORY_MODE)
}

/// Makes the directory if need be, with mode 0700. One that is there may be shared with others and stays as it is.
pub(crate) fn new_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Makes the mode of the regular files directly in `directory` 0600.
pub(crate) fn files_in(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            mend(&entry.path(), FILE_MODE)?;
        }
    }
    Ok(())
}

/// Opens a file for writing, with mode 0600; makes it if need be.
pub(crate) fn file(path: &Path) -> io::Result<File> {
    open(OpenOptions::new().create(true).truncate(false).write(true), path)
}

/// Opens a file to append to, with mode 0600; makes it if need be.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    open(OpenOptions::new().create(true).append(true), path)
}

/// Opens a regular file and mends its mode. A pipe or a device in its place is refused and does not hold anything up.
fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
    let file = options.mode(FILE_MODE).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    if is_open_to_others(&metadata)? {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// Takes away what group and others may do. Somebody else's directory or file is refused.
fn mend(path: &Path, mode: u32) -> io::Result<()> {
    if is_open_to_others(&std::fs::symlink_metadata(path)?)? {
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn is_open_to_others(metadata: &Metadata) -> io::Result<bool> {
    if metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    let is_open = metadata.permissions().mode() & 0o077 != 0;
    if is_open {
        tracing::warn!("a directory or file of ours was open to others: mended");
    }
    Ok(is_open)
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

    /// Case T3.
    #[test]
    fn t3_a_file_that_is_there_already_is_mended_when_it_is_opened() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("log");
        std::fs::write(&log, "before\n").unwrap();
        for open in [append, file] {
            std::fs::set_permissions(&log, Permissions::from_mode(0o644)).unwrap();
            open(&log).unwrap();
            assert_eq!(mode(&log), 0o600);
        }
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "before\n");
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once_and_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").args(["-m", "644"]).arg(&pipe).status().unwrap().success());
        let device = Path::new("/dev/null");
        let of_device = mode(device);
        assert!(append(&pipe).is_err() && file(&pipe).is_err() && append(device).is_err());
        assert_eq!((mode(&pipe), mode(device)), (0o644, of_device));
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
