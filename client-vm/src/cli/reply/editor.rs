//! The user's editor.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use super::super::exit::CliError;
use super::page::Page;

/// The variables that name it, the first that is set.
const VARIABLES: [&str; 2] = ["VISUAL", "EDITOR"];
/// Editors that are looked for otherwise.
const USUAL: [&str; 2] = ["nano", "vi"];
const SHELL: &str = "/bin/sh";
/// What the shell puts the file's path in the place of.
const ARGUMENTS: &str = " \"$@\"";
/// What makes a program take the shell's place, so that signals to the one are signals to the other.
const IN_PLACE: &str = "exec ";
const TERMINAL: &str = "/dev/tty";

/// A program with arguments, in a shell's words, to which a file's path is added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Editor(OsString);

/// How an editor ended.
#[derive(Debug)]
pub(super) struct Closed {
    status: ExitStatus,
    /// Whether this program was told to end meanwhile.
    told_to_end: bool,
}

impl Closed {
    /// Whether what it left is meant to be taken.
    pub(super) fn check(&self) -> Result<(), CliError> {
        if self.told_to_end {
            Err(CliError::ToldToEnd)
        } else if self.status.success() {
            Ok(())
        } else {
            Err(CliError::EditorFailed { status: self.status })
        }
    }
}

impl Editor {
    /// The one that the environment names, else a usual one. `variable` gives an environment variable.
    pub(super) fn find(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let is_blank = |value: &OsString| value.to_string_lossy().trim().is_empty();
        if let Some(named) = VARIABLES.iter().filter_map(|name| variable(name)).find(|value| !is_blank(value)) {
            return Some(Self(named));
        }
        let path = variable("PATH")?;
        let is_there = |name: &&&str| std::env::split_paths(&path).any(|place| is_program(&place.join(name)));
        USUAL.iter().find(is_there).map(|name| Self(OsString::from(name)))
    }

    /// Whether the words are a program and its arguments: no variables are set before it, and nothing comes after it.
    fn is_one_program(&self) -> bool {
        let words = self.0.to_string_lossy();
        let first = words.split_whitespace().next().unwrap_or_default();
        !first.contains(['=', '!', '{']) && !words.contains([';', '|', '&', '(', '\n'])
    }

    /// Opens the page in it, and waits until it is closed; once `told_to_end` is done, the editor is told to end too. Not
    /// cancel-safe: called off, the editor stays.
    pub(super) async fn open(&self, page: &Page, told_to_end: impl Future<Output = ()>) -> Result<Closed, CliError> {
        let mut editor = self.start(page).map_err(CliError::EditorNotStarted)?;
        tokio::select! {
            status = editor.wait() => return Ok(Closed { status: status?, told_to_end: false }),
            () = told_to_end => {}
        }
        end(&editor);
        Ok(Closed { status: editor.wait().await?, told_to_end: true })
    }

    /// The variables are a shell's words by custom, and theirs who set them; the path is an argument and no part of them.
    fn start(&self, page: &Page) -> io::Result<Child> {
        let mut words = OsString::from(if self.is_one_program() { IN_PLACE } else { "" });
        words.push(&self.0);
        words.push(ARGUMENTS);
        let mut command = Command::new(SHELL);
        command.arg("-c").arg(words).arg(&self.0).arg(page.path());
        // With output that is for another program, as with `--json`, it draws on the terminal all the same.
        if !io::stdout().is_terminal()
            && let Ok(terminal) = OpenOptions::new().write(true).open(TERMINAL)
        {
            command.stdout(Stdio::from(terminal));
        }
        command.spawn()
    }
}

/// Tells an editor to end, which lets it leave what it has beside the page: none saves it into the page itself.
fn end(editor: &Child) {
    if let Some(id) = editor.id().and_then(|id| i32::try_from(id).ok()) {
        // One that has just ended needs nothing.
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
