//! Copies in a folder of the client's VM.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Stdio;

use staging::server::RecordId;
use tokio::process::Command;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_whole_new_files_and_what_is_there_stays_as_it_is() {
    let environment = signed_in().await;
    let source = new_source(&environment, Some("candid marmot"));
    let large: Vec<u8> = (0..300_000_u32).flat_map(|word| (word.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    let items = [
        hands_over(&environment, &source, b"ledger.pdf", SAID.as_bytes()),
        hands_over(&environment, &source, b"ledger.pdf", &large),
        hands_over(&environment, &source, b"empty.txt", b""),
        says(&environment, &source, "What I saw.\nße"),
    ];
    fetch(&environment, &items).await;
    let folder = folder(&environment, "copies");
    let elsewhere = environment.directory().join("elsewhere");
    std::fs::write(folder.join("ledger.pdf"), "before").unwrap();
    symlink(&elsewhere, folder.join("ledger (2).pdf")).unwrap();
    let words: Vec<_> =
        ["export", "--to", folder.to_str().unwrap()].into_iter().chain(items.iter().map(RecordId::as_str)).collect();
    let answer = environment.json(&words, "").await.unwrap();
    let exported = answer["exported"].as_array().unwrap();
    let names: Vec<_> = exported.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ledger (3).pdf", "ledger (4).pdf", "empty.txt", "candid marmot-4.txt"]);
    for (one, item) in exported.iter().zip(&items) {
        assert_eq!(one["item"], item.as_str());
    }
    let content = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(content("ledger (3).pdf"), SAID.as_bytes());
    assert!(content("ledger (4).pdf") == large, "it is whole");
    assert_eq!((content("empty.txt"), content("candid marmot-4.txt")), (Vec::new(), "What I saw.\nße".into()));
    assert_eq!(content("ledger.pdf"), b"before");
    assert!(!elsewhere.exists());
    let mode = std::fs::metadata(folder.join("empty.txt")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // What was copied out is marked as seen by nobody.
    let shown = environment.json(&["show", source.as_str()], "").await.unwrap();
    assert!(shown["items"].as_array().unwrap().iter().all(|item| item["unread"] == true));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_unless_all_of_it_can_be_read() {
    let environment = signed_in().await;
    let there = one_file(&environment, "ledger.pdf").await;
    let source = new_source(&environment, None);
    let absent = hands_over(&environment, &source, b"a.pdf", b"x");
    let doomed = hands_over(&environment, &source, b"b.pdf", b"x");
    fetch(&environment, std::slice::from_ref(&doomed)).await;
    succeeds(&environment, &["pause"]).await;
    succeeds(&environment, &["delete", "item", doomed.as_str(), "--yes"]).await;
    let folder = folder(&environment, "copies");
    let to = folder.to_str().unwrap();
    let told = fails(&environment, &["export", there.as_str(), absent.as_str(), "--to", to], 10).await;
    assert!(told.contains(&format!("`splitdrop download {absent}`")), "{told}");
    let told = fails(&environment, &["export", there.as_str(), doomed.as_str(), "--to", to], 10).await;
    assert!(told.contains("being deleted"), "{told}");
    fails(&environment, &["export", there.as_str(), absent.as_str(), "--usb"], 10).await;
    assert!(walk(&folder).is_empty() && environment.other_vms().calls().is_empty());
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_none_is_refused() {
    let environment = signed_in().await;
    let file = one_file(&environment, "ledger.pdf").await;
    let link = environment.directory().join("link");
    symlink(folder(&environment, "real"), &link).unwrap();
    let before = walk(environment.directory());
    let program = environment.splitdrop_program().to_owned();
    for wrong in [link, environment.directory().join("none"), program] {
        let told = fails(&environment, &["export", file.as_str(), "--to", wrong.to_str().unwrap()], 2).await;
        assert!(told.contains("no folder that can be written into"), "{told}");
    }
    assert_eq!(walk(environment.directory()), before);
    environment.stop().await.unwrap();
}

/// A write that fails leaves nothing of that copy, and the copies before it. The limit of a file's size plays a full disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_fails_is_removed_and_those_before_it_stay() {
    let environment = signed_in().await;
    let source = new_source(&environment, None);
    let files = [
        hands_over(&environment, &source, b"small.pdf", b"small"),
        hands_over(&environment, &source, b"large.pdf", &vec![b'x'; 400_000]),
        hands_over(&environment, &source, b"never.pdf", b"never"),
    ];
    fetch(&environment, &files).await;
    let folder = folder(&environment, "copies");
    // 200 blocks of 512 bytes; without the signal the write itself fails.
    let script = "trap '' XFSZ; ulimit -f 200; exec \"$0\" \"$@\"";
    let mut command: Command = environment.isolation().in_client("/bin/sh".as_ref());
    let output = command
        .args(["-c", script])
        .arg(environment.splitdrop_program())
        .args(["export", "--to"])
        .arg(&folder)
        .args(files.iter().map(RecordId::as_str))
        .env_clear()
        .envs(environment.variables())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("could not write into") && told.contains("finished before stays"), "{told}");
    assert_eq!(walk(&folder), [folder.join("small.pdf")].into());
    environment.stop().await.unwrap();
}
