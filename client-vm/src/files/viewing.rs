//! What other VMs are given: files that are shown, and archives for the device VM.
//!
//! **Invariant:** a file that is shown is called by its number. Of the name that its source gave it, at most the extension
//! is there, which another VM needs to tell the type: 1 to 10 letters and digits.
//!
//! **Invariant:** nobody who is shown a file can write to it: it has mode 0400, in a directory of its own with mode 0700.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::{FileNumber, Files, file_number, sync_directory};
use crate::private;

const READ_ONLY: u32 = 0o400;
/// The longest extension, in characters.
const MAX_EXTENSION: usize = 10;
/// The directory of the archive for the device VM, and the archive's name, by whose end that VM knows it.
const DEVICE: &str = "device";
const ARCHIVE: &str = "archive.sd-export";

/// The extension of a file that is shown: 1 to 10 small letters and digits of ASCII.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension(String);

impl Extension {
    /// The extension of a name, if it has one of this form in any case of letters.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        let (_, extension) = name.rsplit_once('.')?;
        let fits = (1..=MAX_EXTENSION).contains(&extension.len());
        let plain = extension.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (fits && plain).then(|| Self(extension.to_ascii_lowercase()))
    }

    /// That of texts.
    #[must_use]
    pub fn text() -> Self {
        Self("txt".to_owned())
    }
}

impl Files {
    /// Shows the plaintext of a file: the same file under another name, or a copy where the file system has no such thing.
    ///
    /// # Errors
    /// The operating system's; [`io::ErrorKind::NotFound`] when there is no plaintext.
    pub fn show(&self, number: FileNumber, extension: Option<&Extension>) -> io::Result<PathBuf> {
        let (plaintext, shown) = (self.plaintext(number), self.begin_showing(number, extension)?);
        match std::fs::hard_link(&plaintext, &shown) {
            Ok(()) => std::fs::set_permissions(&shown, Permissions::from_mode(READ_ONLY))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
            Err(_no_links_here) => {
                let mut file = self.open_plaintext(number)?.ok_or(io::ErrorKind::NotFound)?;
                io::copy(&mut file, &mut create(&shown, READ_ONLY)?)?;
            }
        }
        Ok(shown)
    }

    /// Shows a text.
    ///
    /// # Errors
    /// The operating system's.
    pub fn show_text(&self, number: FileNumber, text: &str) -> io::Result<PathBuf> {
        let shown = self.begin_showing(number, Some(&Extension::text()))?;
        create(&shown, READ_ONLY)?.write_all(text.as_bytes())?;
        Ok(shown)
    }

    /// An empty directory for what is shown, and the path of that. It is absolute: whoever is given it may take what begins
    /// otherwise for something else.
    fn begin_showing(&self, number: FileNumber, extension: Option<&Extension>) -> io::Result<PathBuf> {
        let folder = self.showing(number);
        remove_folder(&folder)?;
        private::directory(&folder)?;
        let name = match extension {
            Some(Extension(extension)) => format!("{}.{extension}", number.0),
            None => number.0.to_string(),
        };
        std::path::absolute(folder.join(name))
    }

    fn showing(&self, number: FileNumber) -> PathBuf {
        self.viewing.join(number.0.to_string())
    }

    /// Shows an item no more, durably.
    ///
    /// # Errors
    /// The operating system's.
    pub fn hide(&self, number: FileNumber) -> io::Result<()> {
        if remove_folder(&self.showing(number))? { sync_directory(&self.viewing) } else { Ok(()) }
    }

    /// Begins an archive for the device VM, whatever there was. Its path is absolute.
    ///
    /// # Errors
    /// The operating system's.
    pub fn begin_archive(&self) -> io::Result<(File, PathBuf)> {
        let folder = self.viewing.join(DEVICE);
        remove_folder(&folder)?;
        private::directory(&folder)?;
        let path = std::path::absolute(folder.join(ARCHIVE))?;
        Ok((create(&path, 0o600)?, path))
    }

    /// Removes the archive for the device VM, durably.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove_archive(&self) -> io::Result<()> {
        if remove_folder(&self.viewing.join(DEVICE))? { sync_directory(&self.viewing) } else { Ok(()) }
    }

    /// Removes all that calls which ended with the last start were given. Gives what could not be removed, with the item's
    /// number where it is an item's.
    ///
    /// # Errors
    /// The operating system's, where the directory cannot be read or written.
    pub fn clear_viewing(&self) -> io::Result<Vec<(Option<FileNumber>, io::Error)>> {
        let mut failed = Vec::new();
        for entry in std::fs::read_dir(&self.viewing)? {
            let path = entry?.path();
            if let Err(error) = remove_folder(&path) {
                failed.push((path.file_name().and_then(|name| name.to_str()).and_then(file_number), error));
            }
        }
        sync_directory(&self.viewing)?;
        Ok(failed)
    }

    /// Opens a file's plaintext; `None` when it is not there.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open_plaintext(&self, number: FileNumber) -> io::Result<Option<File>> {
        let path = self.plaintext(number);
        match OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads up to `most` bytes of a file's plaintext from `offset` on; `None` when it is not there.
    ///
    /// # Errors
    /// The operating system's.
    pub fn read_plaintext(&self, number: FileNumber, offset: u64, most: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(mut file) = self.open_plaintext(number)? else { return Ok(None) };
        io::Seek::seek(&mut file, io::SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().create_new(true).write(true).mode(mode).custom_flags(nix::libc::O_NOFOLLOW).open(path)
}

/// Removes a directory and what is in it, or whatever stands in its place; gives whether there was anything.
fn remove_folder(path: &Path) -> io::Result<bool> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const NUMBER: FileNumber = FileNumber(7);

    fn files() -> (tempfile::TempDir, Files) {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        std::fs::write(files.plaintext(NUMBER), "the fourth box").unwrap();
        (home, files)
    }

    /// Case F8.
    #[test]
    fn f8_of_a_name_only_a_plain_extension_is_taken() {
        let extension = |name: &str| Extension::of(name).map(|extension| extension.0);
        for (name, expected) in [
            ("a.PDF", Some("pdf")),
            ("a.tar.gz", Some("gz")),
            ("x.desktop", Some("desktop")),
            ("a.0123456789", Some("0123456789")),
            ("запись.ogg", Some("ogg")),
            ("a.01234567890", None),
            ("a", None),
            ("a.", None),
            ("a.p/f", None),
            ("a.sd-export", None),
            ("a.p f", None),
            ("a.\u{ff50}df", None),
            ("..", None),
        ] {
            assert_eq!(extension(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn what_is_shown_is_the_file_itself_which_nobody_may_write_and_goes_again() {
        let (home, files) = files();
        let shown = files.show(NUMBER, Extension::of("a.Pdf").as_ref()).unwrap();
        assert_eq!(shown, home.path().join("viewing/7/7.pdf"));
        let (one, other) = (std::fs::metadata(&shown).unwrap(), std::fs::metadata(files.plaintext(NUMBER)).unwrap());
        assert_eq!((one.ino(), one.nlink(), one.mode() & 0o777), (other.ino(), 2, 0o400));
        let folder = std::fs::metadata(shown.parent().unwrap()).unwrap();
        assert_eq!(folder.mode() & 0o777, 0o700);
        files.hide(NUMBER).unwrap();
        files.hide(NUMBER).unwrap();
        assert!(!shown.parent().unwrap().exists());
        assert_eq!(std::fs::read_to_string(files.plaintext(NUMBER)).unwrap(), "the fourth box");
        // Its plaintext can still be shown again, read and removed.
        assert_eq!(files.show(NUMBER, None).unwrap(), home.path().join("viewing/7/7"));
        assert_eq!(files.read_plaintext(NUMBER, 4, 6).unwrap().unwrap(), b"fourth");
        files.remove(NUMBER).unwrap();
        assert_eq!(std::fs::read_dir(home.path().join("viewing")).unwrap().count(), 0);
        assert!(files.read_plaintext(NUMBER, 0, 1).unwrap().is_none());
        assert_eq!(files.show(NUMBER, None).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_start_finds_nothing_that_was_shown_before() {
        let (home, files) = files();
        files.show(NUMBER, None).unwrap();
        files.show_text(FileNumber(8), "text").unwrap();
        files.begin_archive().unwrap().0.write_all(b"secret").unwrap();
        std::os::unix::fs::symlink("/etc", home.path().join("viewing/9")).unwrap();
        files.clear_viewing().unwrap();
        assert_eq!(std::fs::read_dir(home.path().join("viewing")).unwrap().count(), 0);
        assert!(Path::new("/etc/passwd").exists() && files.plaintext(NUMBER).exists());
    }

    #[test]
    fn an_archive_is_for_this_user_alone() {
        let (home, files) = files();
        let (file, path) = files.begin_archive().unwrap();
        assert_eq!(path, home.path().join("viewing/device/archive.sd-export"));
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        files.remove_archive().unwrap();
        files.remove_archive().unwrap();
        assert!(!path.parent().unwrap().exists());
    }
}
