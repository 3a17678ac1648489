//! What is left when the program is killed at a step: this program itself, started once more, kills itself there.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use client_vm::download::{Fetched, Step, Watcher, sweep};
use client_vm::files::Listing;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stage::*;

/// Names the step, in the program that is to be killed.
const STEP: &str = "SPLITDROP_TEST_KILL_AT";
/// Its data directory.
const HOME: &str = "SPLITDROP_TEST_HOME";
/// What there is of the item before.
const BEFORE: &str = "SPLITDROP_TEST_BEFORE";
const SIZE: usize = 3_000_000;

struct KillAt(Step);

impl Watcher for KillAt {
    fn step(&self, step: Step) {
        if step == self.0 {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
    }
}

/// What there is of the item before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A part of it.
    Part,
    /// A part of what the server had in its place.
    PartOfAnother,
}

impl Before {
    const ALL: [Self; 3] = [Self::Nothing, Self::Part, Self::PartOfAnother];

    /// From what the part's content is made.
    fn seed(self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Part => Some(21),
            Self::PartOfAnother => Some(31),
        }
    }
}

/// What the started program does; without its variables, nothing.
#[tokio::test]
async fn killed_at_a_step() {
    let (Ok(step), Some(home)) = (std::env::var(STEP), std::env::var_os(HOME)) else { return };
    let step = Step::ALL.into_iter().find(|known| format!("{known:?}") == step).unwrap();
    let before = std::env::var(BEFORE).unwrap();
    let before = Before::ALL.into_iter().find(|known| format!("{known:?}") == before).unwrap();
    let client = Client::new(Path::new(&home), SIZE).await;
    if let Some(seed) = before.seed() {
        let breaks = Served { breaks_after: Some(SIZE / 2), ..Served::honest(content(SIZE, seed)) };
        client.fetch(&Proxy::new(breaks), &Nobody).await.unwrap_err();
    }
    let proxy = Proxy::new(Served::honest(content(SIZE, 21)));
    client.fetch(&proxy, &KillAt(step)).await.unwrap();
}

fn run_and_kill(home: &Path, step: Step, before: Before) {
    let program: PathBuf = std::env::current_exe().unwrap();
    let killed = std::process::Command::new(program)
        .args(["--exact", "crashes::killed_at_a_step", "--nocapture"])
        .env(STEP, format!("{step:?}"))
        .env(HOME, home)
        .env(BEFORE, format!("{before:?}"))
        .output()
        .unwrap();
    assert_eq!(killed.status.signal(), Some(9), "{step:?}: {}", String::from_utf8_lossy(&killed.stderr));
}

#[tokio::test]
async fn killed_at_any_step_it_is_whole_after_the_next_start_or_not_there() {
    let bytes = content(SIZE, 21);
    for step in Step::ALL {
        let home = tempfile::tempdir().unwrap();
        run_and_kill(home.path(), step, Before::Nothing);
        let client = Client::open(home.path());
        sweep(&client.desk).await.unwrap();
        let noted = client.stored().await;
        assert_eq!(noted.is_some(), step == Step::Noted, "{step:?}: noted is the last step");
        assert!(noted.is_none_or(|noted| noted == bytes));
        let left: Listing = client.desk.files.list().unwrap();
        assert_eq!(left.ciphertext.len(), usize::from(step == Step::Noted), "{step:?}: {left:?}");
        let proxy = Proxy::new(Served::honest(bytes.clone()));
        let fetched = client.fetch(&proxy, &Nobody).await.unwrap();
        let asked = proxy.asked();
        match step {
            Step::Noted => assert_eq!((fetched, asked.len()), (Fetched::Gone, 0)),
            // All of it was on the disk: nobody is asked.
            Step::Written | Step::Verified | Step::Synced | Step::Renamed => {
                assert_eq!((fetched, asked.len()), (Fetched::Stored(bytes.len() as u64), 0), "{step:?}");
            }
            Step::Prepared | Step::Begun | Step::Claimed | Step::Writing => {
                assert_eq!((fetched, asked.len()), (Fetched::Stored(bytes.len() as u64), 1), "{step:?}");
            }
        }
        assert_eq!(client.stored().await.unwrap(), bytes, "{step:?}");
        assert!(client.desk.files.list().unwrap().partial.is_empty(), "{step:?}");
    }
}

/// Case F1, over a crash: what there is of it is gone on with, and what there is of another is not.
#[tokio::test]
async fn f1_killed_at_any_step_a_part_is_gone_on_with_only_under_its_own_claim() {
    let bytes = content(SIZE, 21);
    for before in [Before::Part, Before::PartOfAnother] {
        for step in Step::ALL {
            let home = tempfile::tempdir().unwrap();
            run_and_kill(home.path(), step, before);
            let client = Client::open(home.path());
            sweep(&client.desk).await.unwrap();
            let proxy = Proxy::new(Served::honest(bytes.clone()));
            client.fetch(&proxy, &Nobody).await.unwrap();
            assert!(client.stored().await.unwrap() == bytes, "{before:?}, {step:?}");
            assert_eq!(client.mismatches().await, 0, "{before:?}, {step:?}: nothing of another was gone on with");
            assert!(client.desk.files.list().unwrap().partial.is_empty(), "{before:?}, {step:?}");
            let asked: Vec<_> = proxy.asked().into_iter().map(|(from, _)| from).collect();
            match (before, step) {
                (_, Step::Written | Step::Verified | Step::Synced | Step::Renamed | Step::Noted) => {
                    assert!(asked.is_empty(), "{before:?}, {step:?}: {asked:?}");
                }
                (Before::PartOfAnother, Step::Claimed | Step::Writing) => {
                    assert_eq!(asked, [0], "{step:?}: the claim is noted, and the part of another gone");
                }
                (Before::PartOfAnother, _) => assert!(asked.len() == 2 && asked[0] > 0 && asked[1] == 0, "{asked:?}"),
                (_, _) => assert!(asked.len() == 1 && asked[0] > 1_000_000, "{before:?}, {step:?}: {asked:?}"),
            }
        }
    }
}

/// Case F3: a ciphertext that has vanished is absent, and one that nobody noted goes.
#[tokio::test]
async fn f3_files_and_notes_agree_after_the_start() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(10_000, 22);
    let client = Client::new(home.path(), bytes.len()).await;
    let proxy = Proxy::new(Served::honest(bytes.clone()));
    client.fetch(&proxy, &Nobody).await.unwrap();
    let left = client.desk.files.list().unwrap();
    std::fs::remove_file(client.desk.files.ciphertext(left.ciphertext[0])).unwrap();
    std::fs::write(home.path().join("ciphertext/4711"), "nobody's").unwrap();
    std::fs::write(home.path().join("partial/4712"), "nobody's").unwrap();
    sweep(&client.desk).await.unwrap();
    assert_eq!(client.desk.files.list().unwrap(), Listing::default());
    assert_eq!(client.stored().await, None);
    client.fetch(&proxy, &Nobody).await.unwrap();
    assert_eq!(client.stored().await.unwrap(), bytes);
}
