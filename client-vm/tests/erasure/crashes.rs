//! What is left when the program is killed at a step: this program itself, started once more, kills itself there.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use client_vm::erasure::{Step, Watcher};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stage::*;

/// Names the step, in the program that is to be killed.
const STEP: &str = "SPLITDROP_TEST_KILL_AT";
/// How often it is to take the step.
const TIMES: &str = "SPLITDROP_TEST_TIMES";
/// Its data directory.
const HOME: &str = "SPLITDROP_TEST_HOME";

struct KillAt {
    step: Step,
    times: AtomicU32,
}

impl Watcher for KillAt {
    fn step(&self, step: Step) {
        if step == self.step && self.times.fetch_sub(1, Ordering::Relaxed) == 1 {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
    }
}

/// What the started program does; without its variables, nothing.
#[tokio::test]
async fn killed_at_a_step() {
    let (Ok(step), Some(home), Ok(times)) = (std::env::var(STEP), std::env::var_os(HOME), std::env::var(TIMES)) else {
        return;
    };
    let step = Step::ALL.into_iter().find(|known| format!("{known:?}") == step).unwrap();
    let house = House::open(Path::new(&home));
    house.delete().await;
    house.erase_watched(Arc::new(KillAt { step, times: AtomicU32::new(times.parse().unwrap()) })).await;
}

fn run_and_kill(home: &Path, step: Step, times: u32) {
    let program: PathBuf = std::env::current_exe().unwrap();
    let killed = std::process::Command::new(program)
        .args(["--exact", "crashes::killed_at_a_step", "--nocapture"])
        .env(STEP, format!("{step:?}"))
        .env(TIMES, times.to_string())
        .env(HOME, home)
        .output()
        .unwrap();
    assert_eq!(killed.status.signal(), Some(9), "{step:?}: {}", String::from_utf8_lossy(&killed.stderr));
}

/// Case D4: after a kill at any step the next start leaves nothing.
#[tokio::test]
async fn d4_killed_at_any_step_nothing_is_left_after_the_next_start() {
    let moments = Step::ALL.map(|step| (step, 1)).into_iter().chain([(Step::Unlinked, 75), (Step::Unlinked, 151)]);
    for (step, times) in moments {
        let home = tempfile::tempdir().unwrap();
        House::full(home.path(), 9).await.assert_all_is_found(&[DOOMED, 2, 3, 4]);
        run_and_kill(home.path(), step, times);
        let house = House::open(home.path());
        // It was killed where it was meant to be: the files are there or not.
        let there = house.files.list().unwrap();
        let there = there.plaintext.len() + there.ciphertext.len() + there.partial.len();
        match (step, times) {
            (Step::Read | Step::Blanked, _) => assert_eq!(there, 63, "{step:?}"),
            (Step::Unlinked, 1) => assert!((62..=63).contains(&there), "{there}"),
            (Step::Unlinked, 75) => assert!((19..62).contains(&there), "{there}"),
            (Step::Unlinked | Step::Forgotten | Step::Rewritten | Step::Truncated, _) => {
                assert_eq!(there, 18, "{step:?}")
            }
        }
        let leftover = house.sweep().await;
        let pages = !matches!(step, Step::Rewritten | Step::Truncated);
        assert_eq!((leftover.orphans.len(), leftover.log, leftover.pages), (0, false, pages), "{step:?}");
        assert_eq!(house.erase().await.removed, 0, "{step:?}: the start has done it");
        house.assert_nothing_left(&format!("{step:?}")).await;
    }
}
