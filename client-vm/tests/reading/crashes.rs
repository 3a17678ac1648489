//! What is left when the program is killed at a step: this program itself, started once more, kills itself there.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client_vm::download::{Desk, sweep};
use client_vm::reading::{Read, Step, Watcher};
use client_vm::store::downloads::Candidate;
use control::Content;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stage::*;

/// Names the step, in the program that is to be killed.
const STEP: &str = "SPLITDROP_TEST_KILL_AT";
/// Its data directory.
const HOME: &str = "SPLITDROP_TEST_HOME";
/// The item that it opens.
const ITEM: &str = "SPLITDROP_TEST_ITEM";
const SAID: &[u8] = b"the fourth box from the left";

struct KillAt(Step);

impl Watcher for KillAt {
    fn step(&self, step: Step) {
        if step == self.0 {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
    }
}

fn candidate(name: &str) -> Candidate {
    if name == "message" { message(1) } else { file(2) }
}

/// What the started program does; without its variables, nothing.
#[tokio::test]
async fn killed_at_a_step() {
    let (Ok(step), Some(home), Ok(item)) = (std::env::var(STEP), std::env::var_os(HOME), std::env::var(ITEM)) else {
        return;
    };
    let step = Step::ALL.into_iter().find(|known| format!("{known:?}") == step).unwrap();
    let room = Room::open(Path::new(&home));
    room.read_watched(candidate(&item), Arc::new(KillAt(step))).await.unwrap();
}

fn run_and_kill(home: &Path, step: Step, item: &str) {
    let program: PathBuf = std::env::current_exe().unwrap();
    let killed = std::process::Command::new(program)
        .args(["--exact", "crashes::killed_at_a_step", "--nocapture"])
        .env(STEP, format!("{step:?}"))
        .env(HOME, home)
        .env(ITEM, item)
        .output()
        .unwrap();
    assert_eq!(killed.status.signal(), Some(9), "{step:?}: {}", String::from_utf8_lossy(&killed.stderr));
}

/// Cases F3 and F4: after a kill at any step an item can be read, or its ciphertext is there and it can be opened; nothing of
/// the plaintext is anywhere but where it belongs.
#[tokio::test]
async fn f3_killed_at_any_step_an_item_can_be_read_or_opened_after_the_next_start() {
    for item in ["message", "file"] {
        for step in Step::ALL {
            if item == "message" && matches!(step, Step::Synced | Step::Renamed) {
                continue;
            }
            let home = tempfile::tempdir().unwrap();
            let room = Room::open(home.path());
            let key = &room.key;
            // A message in a message and a packed file: every stage leaves something.
            let within = armored(key, SAID);
            let held =
                [(message(1), encrypted(key, &within)), (file(2), encrypted(key, &gzipped(b"box.txt", &within)))];
            room.hold(&held).await;
            drop(room);
            run_and_kill(home.path(), step, item);

            let room = Room::open(home.path());
            let desk =
                Desk { store: room.desk.store.clone(), files: room.desk.files.clone(), files_without_etag: false };
            sweep(&desk).await.unwrap();
            room.assert_tidy();
            let noted = matches!(room.content(candidate(item)).await, Content::Decrypted { .. });
            assert_eq!(noted, step >= Step::Noted, "{item}, {step:?}");
            assert_eq!(room.ciphertexts().len(), if noted { 1 } else { 2 }, "{item}, {step:?}");
            if !noted {
                assert_eq!(room.files_with(SAID), Vec::<PathBuf>::new(), "{item}, {step:?}");
            }
            let again = room.read(candidate(item)).await.unwrap();
            assert_eq!(again, if noted { Read::Gone } else { Read::Decrypted }, "{item}, {step:?}");
            match item {
                "message" => assert_eq!(room.text(message(1)).await.unwrap().as_bytes(), SAID),
                _ => assert_eq!(room.plaintexts(), [SAID]),
            }
            assert_eq!(room.ciphertexts().len(), 1, "{item}, {step:?}");
            room.assert_tidy();
        }
    }
}

/// Case F3: files and notes agree after the start, whatever vanished.
#[tokio::test]
async fn f3_what_has_vanished_is_absent_and_what_nobody_noted_goes() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    let key = &room.key;
    room.hold(&[(message(1), encrypted(key, SAID)), (file(2), encrypted(key, SAID)), (file(3), encrypted(key, SAID))])
        .await;
    room.read(file(2)).await.unwrap();
    std::fs::remove_dir_all(home.path().join("plaintext")).unwrap();
    std::fs::create_dir(home.path().join("plaintext")).unwrap();
    std::fs::write(home.path().join("plaintext/4711"), "nobody's").unwrap();
    std::fs::write(home.path().join("opening/4712d"), "left behind").unwrap();
    // Its ciphertext is not there any more when it is to be opened.
    for number in room.ciphertexts() {
        std::fs::remove_file(room.desk.files.ciphertext(number)).unwrap();
    }
    assert!(room.read(message(1)).await.is_err());
    assert!(matches!(room.content(message(1)).await, Content::Wanted { .. }), "it is fetched again");
    let desk = Desk { store: room.desk.store.clone(), files: room.desk.files.clone(), files_without_etag: false };
    sweep(&desk).await.unwrap();
    for candidate in [file(2), file(3)] {
        assert_eq!(room.content(candidate).await, Content::Absent);
    }
    assert_eq!((room.plaintexts().len(), room.ciphertexts().len()), (0, 0));
    room.assert_tidy();
}

/// Case F3: a ciphertext that is there is opened again, and not thrown away, where the plaintext has vanished.
#[tokio::test]
async fn f3_a_plaintext_that_has_vanished_is_made_again_from_the_ciphertext() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    room.hold(&[(file(2), encrypted(&room.key, SAID))]).await;
    let number = room.ciphertexts()[0];
    let ciphertext = std::fs::read(room.desk.files.ciphertext(number)).unwrap();
    room.read(file(2)).await.unwrap();
    // As if the ciphertext had not been removed yet, and the plaintext was lost with the power.
    std::fs::write(room.desk.files.ciphertext(number), ciphertext).unwrap();
    std::fs::remove_file(room.desk.files.plaintext(number)).unwrap();
    let desk = Desk { store: room.desk.store.clone(), files: room.desk.files.clone(), files_without_etag: false };
    sweep(&desk).await.unwrap();
    assert_eq!(room.content(file(2)).await, Content::Downloaded { reason: None });
    assert_eq!(room.read(file(2)).await.unwrap(), Read::Decrypted);
    assert_eq!(room.plaintexts(), [SAID]);
    room.assert_tidy();
}
