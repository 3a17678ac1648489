//! Looks for what must be nowhere: every byte of every file in a directory, and the files' names.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// All files and directories under `directory`. Links are not followed; a directory below that goes meanwhile is empty.
///
/// # Errors
/// The operating system's.
pub fn walk(directory: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        let entries = match std::fs::read_dir(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && next != directory => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    Ok(found)
}

/// The files under `directory` that hold `wanted` anywhere, or are named by it.
///
/// # Errors
/// The operating system's; a file that goes meanwhile holds nothing.
pub fn files_with(directory: &Path, wanted: &[u8]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    // A database's log before the database: what moves meanwhile moves into the database.
    for path in walk(directory)?.into_iter().rev() {
        let is_named = path.file_name().is_some_and(|name| holds(name.as_encoded_bytes(), wanted));
        if is_named || holds(&read(&path)?, wanted) {
            found.push(path);
        }
    }
    found.reverse();
    Ok(found)
}

/// What is in a file. There is nothing in one that is gone by now, nor in what is none.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let read = match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => std::fs::read(path),
        Ok(_) => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

fn holds(bytes: &[u8], wanted: &[u8]) -> bool {
    !wanted.is_empty() && bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_what_is_in_a_file_and_in_a_name_wherever_it_stands() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("deep")).unwrap();
        let (inside, named) = (home.path().join("deep/1"), home.path().join("deep/the-box"));
        std::fs::write(&inside, b"\0\0left of the-box\xff").unwrap();
        std::fs::write(&named, b"").unwrap();
        assert_eq!(files_with(home.path(), b"the-box").unwrap(), [inside.clone(), named]);
        assert_eq!(files_with(home.path(), b"x\xff").unwrap(), [inside]);
        assert!(files_with(home.path(), b"the-boy").unwrap().is_empty());
        assert!(files_with(home.path(), b"").unwrap().is_empty());
    }
}
