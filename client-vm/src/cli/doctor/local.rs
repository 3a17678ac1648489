//! What can be seen in this VM.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use control::client::{Client, ClientError};
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, statfs};
use nix::sys::statvfs::statvfs;

use super::{Check, name};
use crate::cli::text::bytes;
use crate::confinement::{NetworkError, refuse_a_network};
use crate::failure::chain;
use crate::settings::SettingsError;

/// Where Qubes' agent notes at boot, by the name of an empty file, what of this VM outlives its shutdown.
const NOTES_OF_QUBES: &str = "/run/qubes";
/// Where the volume is mounted that outlives the shutdown of a VM with a template. What else of it does is on that volume:
/// its home, or, where dom0 has set `custom-persist`, the paths that dom0 names.
const KEPT_VOLUME: &str = "/rw";
/// There where only the paths that dom0 names outlive the shutdown.
const ONLY_WHAT_IS_NAMED: &str = "/run/qubes-service/custom-persist";
/// Below so many bytes of room somebody should look at it.
const LITTLE_ROOM: u64 = 1 << 30;
/// Below so many a file or two may not fit.
const NO_ROOM: u64 = 100 << 20;
/// How many entries of the data directory are looked at. The daemon makes about ten.
const MAX_ENTRIES: usize = 1000;

pub(super) fn configuration() -> Check {
    Check::ok(name::CONFIGURATION, "valid")
}

pub(super) fn bad_configuration(error: &SettingsError) -> Check {
    let next = match error {
        SettingsError::NoHome => "set HOME or SPLITDROP_HOME",
        SettingsError::SocketPath(_) => "choose a shorter path with --socket",
        SettingsError::Read { .. } => "make the file readable, or set SPLITDROP_CONFIG to another one",
        SettingsError::Invalid { .. }
        | SettingsError::ProxyVm(_)
        | SettingsError::HandoverVm { .. }
        | SettingsError::OtherBackend { .. }
        | SettingsError::NoKeyFile
        | SettingsError::Time(_)
        | SettingsError::Asks(_)
        | SettingsError::Grace => "mend the file; `docs/OPERATIONS.md` lists what may stand in it",
    };
    Check::failure(name::CONFIGURATION, chain(error), next)
}

pub(super) async fn daemon(socket: &Path) -> Check {
    match Client::connect(socket).await {
        Ok(_) => Check::ok(name::DAEMON, format!("runs, version {}", env!("CARGO_PKG_VERSION"))),
        Err(error) => no_daemon(&error),
    }
}

fn no_daemon(error: &ClientError) -> Check {
    let restart = "restart the daemon: end it, then run `splitdrop daemon`";
    match error {
        ClientError::NoDaemon { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => Check::warning(
            name::DAEMON,
            "none runs; one has left its socket behind when it ended",
            "start one with `splitdrop daemon`, which takes the socket away; its log says how the last one ended",
        ),
        ClientError::NoDaemon { .. } => {
            Check::warning(name::DAEMON, "none runs", "start one with `splitdrop daemon`, or add --start to a command")
        }
        // The data directory, where the socket would be, is none.
        ClientError::Connect { source, .. } if source.kind() == io::ErrorKind::NotADirectory => {
            Check::warning(name::DAEMON, "none runs", "see data_directory, then start one with `splitdrop daemon`")
        }
        ClientError::Connect { .. } | ClientError::Foreign { .. } => {
            Check::failure(name::DAEMON, chain(error), "give the socket to this user, or choose another with --socket")
        }
        ClientError::Silent { .. }
        | ClientError::Io(_)
        | ClientError::Ended
        | ClientError::Frame(_)
        | ClientError::Greeting(_)
        | ClientError::Unexpected
        | ClientError::Failed(_) => Check::failure(name::DAEMON, chain(error), restart),
    }
}

/// Whether this VM has no network: the daemon refuses to start where it has.
pub(super) fn offline() -> Check {
    judge_network(refuse_a_network())
}

fn judge_network(looked: Result<(), NetworkError>) -> Check {
    match looked {
        Ok(()) => Check::ok(name::OFFLINE, "this VM has no network"),
        Err(error @ NetworkError::Interface { .. }) => {
            let next = "in dom0 take its network away: `qvm-prefs VM netvm ''`";
            Check::failure(name::OFFLINE, chain(&error), next)
        }
        Err(error @ NetworkError::Unknown(_)) => {
            Check::warning(name::OFFLINE, chain(&error), "look in dom0 whether this VM has a netvm")
        }
    }
}

/// The data directory, in four checks.
pub(super) fn data(home: &Path) -> [Check; 4] {
    let own = nix::unistd::geteuid().as_raw();
    let directory = directory(std::fs::metadata(home), own, home);
    let modes = match directory.outcome {
        super::Outcome::Ok => modes(home),
        super::Outcome::Warning | super::Outcome::Failure | super::Outcome::NotChecked => {
            Check::not_checked(name::DATA_MODES, name::DATA_DIRECTORY)
        }
    };
    let there = nearest(home);
    let room = match statvfs(&there) {
        Ok(found) => judge_room(found.blocks_available().saturating_mul(found.fragment_size())),
        Err(error) => unseen(name::DISK_SPACE, home, error.into()),
    };
    [directory, modes, persists(home, &there), room]
}

fn unseen(name: &'static str, home: &Path, error: io::Error) -> Check {
    let next = "let this user read the data directory, or set SPLITDROP_HOME to another one";
    Check::failure(name, format!("could not look at {}: {error}", home.display()), next)
}

fn directory(found: io::Result<Metadata>, own: u32, home: &Path) -> Check {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Check::warning(
            name::DATA_DIRECTORY,
            format!("{} is not there yet", home.display()),
            "start a daemon, which makes it: `splitdrop daemon`",
        ),
        Err(error) => unseen(name::DATA_DIRECTORY, home, error),
        Ok(found) if !found.is_dir() => Check::failure(
            name::DATA_DIRECTORY,
            format!("{} is no directory", home.display()),
            "take it away, or set SPLITDROP_HOME to another one",
        ),
        Ok(found) if found.uid() != own => Check::failure(
            name::DATA_DIRECTORY,
            format!("{} belongs to another user", home.display()),
            format!("give it to the user who runs the daemon: `sudo chown -R USER {}`", home.display()),
        ),
        Ok(_) => Check::ok(name::DATA_DIRECTORY, format!("{} is there", home.display())),
    }
}

/// Whether the directory, and what is directly in it, are open to others.
fn modes(home: &Path) -> Check {
    let is_open = |found: &Metadata| found.permissions().mode() & 0o077 != 0;
    let look = || -> io::Result<(bool, usize)> {
        let directory = is_open(&std::fs::metadata(home)?);
        let mut entries = 0_usize;
        for entry in std::fs::read_dir(home)?.take(MAX_ENTRIES) {
            match entry?.metadata() {
                Ok(found) if (found.is_file() || found.is_dir()) && is_open(&found) => {
                    entries = entries.saturating_add(1);
                }
                Ok(_) => {}
                // A daemon that runs takes files away.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok((directory, entries))
    };
    let close = format!("close it to others: `chmod -R go= {}`; see who could read it", home.display());
    match look() {
        Err(error) => unseen(name::DATA_MODES, home, error),
        Ok((false, 0)) => Check::ok(name::DATA_MODES, "for this user alone"),
        Ok((true, _)) => Check::failure(name::DATA_MODES, "the data directory is open to other users", close),
        Ok((false, count)) => {
            Check::failure(name::DATA_MODES, format!("{count} file(s) in it are open to other users"), close)
        }
    }
}

/// The directory, or the nearest one above it that is there.
fn nearest(home: &Path) -> PathBuf {
    home.ancestors().find_map(|path| path.canonicalize().ok()).unwrap_or_else(|| PathBuf::from("/"))
}

/// What of this VM outlives its shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// All of it, or this is no VM of Qubes.
    All,
    /// What is on a volume of its own. Where `named` is set, of the home only what dom0 names is on it.
    Volume { named: bool },
    /// Nothing: it is a disposable.
    Nothing,
}

impl Kept {
    /// Of this VM. `notes` is [`NOTES_OF_QUBES`], `named` whether [`ONLY_WHAT_IS_NAMED`] is there.
    fn of(notes: &Path, named: bool) -> Self {
        if notes.join("persistent-rw-only").exists() {
            Self::Volume { named }
        } else if notes.join("persistent-none").exists() {
            Self::Nothing
        } else {
            Self::All
        }
    }
}

/// What the data directory is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Memory.
    Memory,
    /// The volume at [`KEPT_VOLUME`].
    KeptVolume,
    /// Another one.
    Elsewhere,
}

fn persists(home: &Path, there: &Path) -> Check {
    let look = || -> io::Result<Place> {
        let kind = statfs(there)?.filesystem_type();
        if kind == TMPFS_MAGIC || kind == OVERLAYFS_SUPER_MAGIC {
            return Ok(Place::Memory);
        }
        // Where there is no such volume, nothing is on it.
        let volume = std::fs::metadata(KEPT_VOLUME).ok().map(|found| found.dev());
        let same = volume == Some(std::fs::metadata(there)?.dev());
        Ok(if same { Place::KeptVolume } else { Place::Elsewhere })
    };
    match look() {
        Ok(place) => {
            judge_place(home, place, Kept::of(Path::new(NOTES_OF_QUBES), Path::new(ONLY_WHAT_IS_NAMED).exists()))
        }
        Err(error) => unseen(name::DATA_PERSISTS, home, error),
    }
}

fn judge_place(home: &Path, place: Place, kept: Kept) -> Check {
    let below_home = "put it below /home: set SPLITDROP_HOME";
    let lost = |detail: &str, next: String| Check::warning(name::DATA_PERSISTS, detail, next);
    match (kept, place) {
        (_, Place::Memory) => lost(
            "the data directory is on a file system in memory, and is lost when the VM ends",
            below_home.to_owned(),
        ),
        (Kept::Nothing, Place::KeptVolume | Place::Elsewhere) => lost(
            "this VM is a disposable: the data directory is lost when it ends",
            "run the daemon in an app VM".to_owned(),
        ),
        (Kept::Volume { named: true }, Place::Elsewhere) => lost(
            "of this VM only the folders that dom0 names are kept, and the data directory is none of them: it is lost when \
             the VM ends",
            format!(
                "in dom0: `qvm-features VM custom-persist.splitdrop_data dir:user:user:0700:{}`, then restart the VM",
                home.display()
            ),
        ),
        (Kept::Volume { named: false }, Place::Elsewhere) => lost(
            "the data directory is where Qubes keeps nothing, and is lost when the VM ends",
            format!("{below_home}, or make the directory one of the VM's bind-dirs"),
        ),
        (Kept::All, Place::KeptVolume | Place::Elsewhere) | (Kept::Volume { .. }, Place::KeptVolume) => {
            Check::ok(name::DATA_PERSISTS, "the data directory outlives the VM's shutdown")
        }
    }
}

fn judge_room(room: u64) -> Check {
    let detail = format!("{} free for the data directory", bytes(room));
    let next = "make room, or in dom0 make the VM's private volume larger: `qvm-volume resize VM:private SIZE`";
    if room < NO_ROOM {
        Check::failure(name::DISK_SPACE, detail, next)
    } else if room < LITTLE_ROOM {
        Check::warning(name::DISK_SPACE, detail, next)
    } else {
        Check::ok(name::DISK_SPACE, detail)
    }
}

/// Why a program cannot be run; none if it can.
fn unusable(program: &Path) -> Option<String> {
    match std::fs::metadata(program) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(format!("{} is not there", program.display())),
        Err(error) => Some(format!("could not look at {}: {error}", program.display())),
        Ok(found) if !found.is_file() => Some(format!("{} is no program", program.display())),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => {
            Some(format!("{} is not executable", program.display()))
        }
        Ok(_) => None,
    }
}

pub(super) fn qrexec_program(program: &Path) -> Check {
    match unusable(program) {
        None => Check::ok(name::QREXEC, format!("{} is there", program.display())),
        Some(why) => Check::failure(
            name::QREXEC,
            why,
            "install qubes-core-qrexec in this VM's template; outside of Qubes set `qrexec_client` or SPLITDROP_QREXEC",
        ),
    }
}

pub(super) fn viewer(program: &Path) -> Check {
    match unusable(program) {
        None => Check::ok(name::VIEWER, format!("{} is there", program.display())),
        Some(why) => Check::warning(
            name::VIEWER,
            format!("{why}: nothing can be opened"),
            "install qubes-core-agent in this VM's template, or set `open_in_vm` in [handover]",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::super::Outcome;
    use super::*;

    fn next(check: &Check) -> &str {
        check.next_step.as_deref().unwrap_or_default()
    }

    #[test]
    fn an_interface_besides_lo_is_a_failure() {
        assert_eq!(judge_network(Ok(())).outcome, Outcome::Ok);
        let check = judge_network(Err(NetworkError::Interface { interface: "eth0".to_owned() }));
        assert_eq!((check.name, check.outcome), ("offline", Outcome::Failure));
        assert!(check.detail.contains("eth0") && next(&check).contains("netvm"), "{check:?}");
        let unknown = judge_network(Err(NetworkError::Unknown(io::Error::other("no /proc"))));
        assert_eq!(unknown.outcome, Outcome::Warning);
    }

    #[test]
    fn room_is_judged_by_numbers() {
        for (room, outcome) in [
            (0, Outcome::Failure),
            (NO_ROOM - 1, Outcome::Failure),
            (NO_ROOM, Outcome::Warning),
            (LITTLE_ROOM - 1, Outcome::Warning),
            (LITTLE_ROOM, Outcome::Ok),
            (u64::MAX, Outcome::Ok),
        ] {
            let check = judge_room(room);
            assert_eq!(check.outcome, outcome, "{room}");
            assert_eq!(next(&check).contains("private volume"), outcome != Outcome::Ok, "{check:?}");
        }
    }

    #[test]
    fn what_is_lost_at_shutdown_is_a_warning() {
        let (named, unnamed) = (Kept::Volume { named: true }, Kept::Volume { named: false });
        for (kept, place, step) in [
            (Kept::All, Place::Elsewhere, None),
            (Kept::All, Place::KeptVolume, None),
            (named, Place::KeptVolume, None),
            (unnamed, Place::KeptVolume, None),
            (Kept::All, Place::Memory, Some("below /home")),
            (named, Place::Memory, Some("below /home")),
            (unnamed, Place::Elsewhere, Some("bind-dirs")),
            (named, Place::Elsewhere, Some("custom-persist.splitdrop_data dir:user:user:0700:/home/user/x`")),
            (Kept::Nothing, Place::KeptVolume, Some("an app VM")),
        ] {
            let check = judge_place(Path::new("/home/user/x"), place, kept);
            let outcome = if step.is_some() { Outcome::Warning } else { Outcome::Ok };
            assert_eq!(check.outcome, outcome, "{kept:?} {place:?}");
            assert!(next(&check).contains(step.unwrap_or_default()), "{check:?}");
            assert_eq!(check.detail.contains("lost when"), step.is_some(), "{check:?}");
        }
    }

    #[test]
    fn what_is_kept_is_read_from_the_notes_of_the_agent() {
        let notes = tempfile::tempdir().unwrap();
        assert_eq!(Kept::of(notes.path(), true), Kept::All);
        for (name, kept) in [
            ("persistent-full", Kept::All),
            ("persistent-none", Kept::Nothing),
            ("persistent-rw-only", Kept::Volume { named: true }),
        ] {
            let note = notes.path().join(name);
            std::fs::write(&note, "").unwrap();
            assert_eq!(Kept::of(notes.path(), true), kept, "{name}");
            std::fs::remove_file(note).unwrap();
        }
    }

    #[test]
    fn the_data_directory_must_be_one_of_this_users_own() {
        let root = tempfile::tempdir().unwrap();
        let own = nix::unistd::geteuid().as_raw();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let of = |path: &Path, own| directory(std::fs::metadata(path), own, path);
        assert_eq!(of(root.path(), own).outcome, Outcome::Ok);
        for (check, outcome, word) in [
            (of(root.path(), own + 1), Outcome::Failure, "another user"),
            (of(&file, own), Outcome::Failure, "no directory"),
            (of(&root.path().join("none"), own), Outcome::Warning, "not there yet"),
        ] {
            assert_eq!(check.outcome, outcome);
            assert!(check.detail.contains(word) && !next(&check).is_empty(), "{check:?}");
        }
        let [there, modes, _, _] = data(&root.path().join("none/yet"));
        assert_eq!((there.outcome, modes.outcome), (Outcome::Warning, Outcome::NotChecked));
        assert_eq!(modes.detail, "because of data_directory");
    }

    #[test]
    fn what_is_open_to_others_is_a_failure_and_left_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let home = root.path();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        mode(home, 0o700);
        let file = home.join("a secret name");
        std::fs::write(&file, "").unwrap();
        mode(&file, 0o600);
        assert_eq!(modes(home).outcome, Outcome::Ok);
        mode(&file, 0o640);
        let check = modes(home);
        assert_eq!(check.outcome, Outcome::Failure);
        assert!(check.detail.contains("1 file") && next(&check).contains("chmod"), "{check:?}");
        assert!(!check.detail.contains("secret"), "{check:?}");
        mode(home, 0o755);
        assert!(modes(home).detail.contains("directory is open"));
        let still = [std::fs::metadata(home).unwrap().mode(), std::fs::metadata(&file).unwrap().mode()];
        assert_eq!(still.map(|mode| mode & 0o777), [0o755, 0o640]);
    }

    #[test]
    fn a_program_has_to_be_there_and_executable() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("program");
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o600)).unwrap();
        for (path, word) in [
            (program.clone(), "not executable"),
            (root.path().join("none"), "not there"),
            (root.path().into(), "no program"),
        ] {
            let (qrexec, viewer) = (qrexec_program(&path), viewer(&path));
            assert_eq!((qrexec.outcome, viewer.outcome), (Outcome::Failure, Outcome::Warning));
            assert!(qrexec.detail.contains(word) && next(&qrexec).contains("SPLITDROP_QREXEC"), "{qrexec:?}");
            assert!(viewer.detail.contains(word) && next(&viewer).contains("open_in_vm"), "{viewer:?}");
        }
        std::fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
        assert_eq!((qrexec_program(&program).outcome, viewer(&program).outcome), (Outcome::Ok, Outcome::Ok));
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_a_failure_and_none_is_a_warning() {
        let socket = PathBuf::from("/x");
        let none =
            |kind: io::ErrorKind| no_daemon(&ClientError::NoDaemon { socket: socket.clone(), source: kind.into() });
        let (absent, stale) = (none(io::ErrorKind::NotFound), none(io::ErrorKind::ConnectionRefused));
        assert_eq!((absent.outcome, stale.outcome), (Outcome::Warning, Outcome::Warning));
        assert!(stale.detail.contains("left its socket") && next(&absent).contains("splitdrop daemon"));
        let other = control::greeting::check(b"SPLC0.0.1").unwrap_err();
        let foreign = no_daemon(&ClientError::Foreign { socket: socket.clone() });
        assert_eq!(foreign.outcome, Outcome::Failure);
        assert!(foreign.detail.contains("another user") && next(&foreign).contains("--socket"), "{foreign:?}");
        for error in [ClientError::Silent { socket: socket.clone() }, other.into()] {
            let check = no_daemon(&error);
            assert_eq!(check.outcome, Outcome::Failure);
            assert!(next(&check).contains("restart"), "{check:?}");
        }
    }
}
