//! Files that cannot be removed.

use std::path::{Path, PathBuf};

use client_vm::erasure::{Leftover, Log};
use client_vm::files::FileNumber;

use crate::stage::*;

/// Puts something where a file of ours stood or would stand that cannot be removed like one.
fn obstruct(path: &Path) {
    if path.exists() {
        std::fs::remove_file(path).unwrap();
    }
    std::fs::create_dir(path).unwrap();
    std::fs::write(path.join("in-the-way"), "").unwrap();
    assert!(std::fs::remove_file(path).is_err(), "it can be removed");
}

fn clear(path: &Path) {
    std::fs::remove_dir_all(path).unwrap();
}

fn reopened(house: House) -> House {
    let home = house.home.clone();
    drop(house);
    House::open(&home)
}

/// Case D4: a file that cannot be removed is told, and holds up nothing else; what the database says of it goes at once.
#[tokio::test]
async fn d4_a_file_that_cannot_be_removed_is_told_and_tried_again() {
    let home = tempfile::tempdir().unwrap();
    let house = House::full(home.path(), 11).await;
    house.assert_all_is_found(&[DOOMED, 2, 3, 4]);
    let [plaintext, ciphertext, part, opening] =
        [Kind::File, Kind::Ciphertext, Kind::Part, Kind::Message].map(|kind| house.numbers(DOOMED, kind));
    let place = |folder: &str, number: FileNumber| home.path().join(folder).join(number.0.to_string());
    let obstacles: [PathBuf; 4] = [
        place("plaintext", plaintext.await[1]),
        place("ciphertext", ciphertext.await[2]),
        place("partial", part.await[3]),
        home.path().join("opening").join(format!("{}d", opening.await[4].0)),
    ];
    obstacles.iter().for_each(|path| obstruct(path));
    house.delete().await;
    let erased = house.erase().await;
    let failed = erased.failed.unwrap();
    assert_eq!((erased.removed, failed.items, erased.log), (147, 4, Log::Empty));
    assert!(!failed.reason.is_empty() && !failed.reason.contains('/'), "{failed:?}");
    assert_eq!(house.words(GOES).len(), 0, "texts, names and all other files are gone");
    assert_eq!(house.noted().await, items(&STAYING).len() + 4);
    // It stays so, also over a start.
    let house = reopened(house);
    assert_eq!(house.sweep().await.orphans.len(), 0, "they are noted");
    assert_eq!(house.erase().await.failed.unwrap().items, 4);
    clear(&obstacles[0]);
    let erased = house.erase().await;
    assert_eq!((erased.removed, erased.failed.unwrap().items), (1, 3));
    // Nothing says any more that it is a whole ciphertext: the start has made a part of it.
    assert!(!obstacles[1].exists());
    let moved = home.path().join("partial").join(obstacles[1].file_name().unwrap());
    [&moved, &obstacles[2], &obstacles[3]].into_iter().for_each(|path| clear(path));
    let erased = house.erase().await;
    assert_eq!((erased.removed, erased.failed), (3, None));
    house.assert_nothing_left("after the obstacles had gone").await;
}

/// What is in the way in one folder does not keep the other files of the same item.
#[tokio::test]
async fn d4_the_other_files_of_an_item_go() {
    let home = tempfile::tempdir().unwrap();
    let house = House::full(home.path(), 12).await;
    let number = house.numbers(DOOMED, Kind::File).await[0];
    obstruct(&house.files.ciphertext(number));
    assert!(house.files.plaintext(number).exists());
    house.delete().await;
    assert_eq!(house.erase().await.failed.unwrap().items, 1);
    assert!(!house.files.plaintext(number).exists());
}

/// What was made for a device VM, and may hold a passphrase, is told of like an item until it is gone.
#[tokio::test]
async fn what_a_device_vm_was_given_is_tried_again() {
    let home = tempfile::tempdir().unwrap();
    let house = House::full(home.path(), 14).await;
    // The folder of what is shown is none: nothing can be removed from it.
    let viewing = home.path().join("viewing");
    clear(&viewing);
    std::fs::write(&viewing, "").unwrap();
    let archive = || Leftover { archive: true, ..Leftover::default() };
    let erased = house.erase_too(archive()).await;
    assert_eq!((erased.failed.unwrap().items, erased.archive), (1, true));
    std::fs::remove_file(&viewing).unwrap();
    std::fs::create_dir_all(viewing.join("device")).unwrap();
    std::fs::write(viewing.join("device/archive.sd-export"), "correct horse").unwrap();
    let erased = house.erase_too(archive()).await;
    assert_eq!((erased.failed, erased.archive), (None, false));
    assert!(!viewing.join("device").exists());
}

/// Case D4: what a start cannot remove does not keep it from starting, and is tried again later.
#[tokio::test]
async fn d4_what_a_start_cannot_remove_is_tried_again() {
    let home = tempfile::tempdir().unwrap();
    let house = House::full(home.path(), 13).await;
    let alive = house.numbers(2, Kind::Message).await[0];
    let orphans = [FileNumber(1_000_001), FileNumber(1_000_002), FileNumber(1_000_003), FileNumber(1_000_004)];
    let opening = |number: FileNumber| home.path().join("opening").join(format!("{}u", number.0));
    let obstacles = [
        house.files.plaintext(orphans[0]),
        house.files.ciphertext(orphans[1]),
        home.path().join("partial").join(orphans[2].0.to_string()),
        opening(orphans[3]),
        // What belongs to an item that is there goes with it.
        house.files.plaintext(alive),
        opening(alive),
    ];
    obstacles.iter().for_each(|path| obstruct(path));
    let house = reopened(house);
    let leftover = house.sweep().await;
    assert_eq!(leftover, Leftover { orphans: orphans.into(), log: false, pages: true, archive: false });
    clear(&obstacles[0]);
    let erased = house.erase_too(leftover).await;
    assert_eq!((erased.failed.unwrap().items, erased.orphans.clone()), (3, orphans[1..].iter().copied().collect()));
    obstacles[1..4].iter().for_each(|path| clear(path));
    let erased = house.erase_too(Leftover { orphans: erased.orphans, ..Leftover::default() }).await;
    assert_eq!((erased.removed, erased.failed, erased.orphans.len()), (0, None, 0));
    // Nothing that is there was touched.
    house.assert_all_is_found(&STAYING);
}
