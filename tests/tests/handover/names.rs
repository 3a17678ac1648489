//! Case F8: hostile names lead nowhere, whatever a document is handed to.

use std::collections::BTreeSet;
use std::path::Path;

use staging::environment::Environment;
use staging::handover::{DOCUMENT, End};
use staging::server::{Edit, Fault, FaultAct, Matching, RecordId, Which};

use crate::support::*;

/// A file with each of the hostile names, all of which can be read, of a source with a hostile designation.
async fn hostile_files(environment: &Environment) -> (RecordId, Vec<RecordId>) {
    let source = new_source(environment, None);
    let mut files = Vec::new();
    for (at, (name, _)) in hostile().into_iter().enumerate() {
        files.push(hands_over(environment, &source, &name, format!("{SAID} {at}").as_bytes()));
    }
    let edits = vec![Edit::set("/journalist_designation", "../../\u{202e}x/..")];
    let act = FaultAct::BadRecord { which: Which::Uuid(source.clone()), edits };
    environment.server().control().add_fault(Fault::new(Matching::path("/api/v1/sources"), act)).unwrap();
    fetch(environment, &files).await;
    (source, files)
}

/// Of a name nothing is in a document's path but a plain extension; it is for looking only, and nothing comes back.
#[tokio::test(flavor = "multi_thread")]
async fn f8_a_document_is_opened_under_a_number_for_looking_only_and_nothing_comes_back() {
    let environment = signed_in().await;
    let (_, files) = hostile_files(&environment).await;
    let before = walk(environment.directory());
    let vms = environment.other_vms();
    vms.end(DOCUMENT, End { printed: 300_000, said: "x\n".repeat(100_000), ..End::code(0) });
    for (at, (file, (name, extension))) in files.iter().zip(hostile()).enumerate() {
        assert_eq!(succeeds(&environment, &["open", file.as_str()]).await, "Closed.\n", "{name:?}");
        let call = vms.calls().pop().unwrap();
        let [view_only, vm, path] = call.arguments.as_slice() else { unreachable!("{call:?}") };
        assert_eq!((view_only.as_str(), vm.as_str()), ("--view-only", "@dispvm:sd-viewer"));
        let path = Path::new(path);
        let shown = path.file_name().unwrap().to_str().unwrap();
        let (number, ending) = shown.split_once('.').map_or((shown, None), |(number, end)| (number, Some(end)));
        assert!(number.parse::<u64>().is_ok(), "{shown}");
        assert_eq!(ending, extension, "{name:?}");
        assert_eq!(path.parent().unwrap(), environment.home().join("viewing").join(number));
        let given = call.file.unwrap();
        assert_eq!((given.mode, given.folder_mode, given.folder), (0o400, 0o700, vec![shown.to_owned()]));
        assert_eq!(given.sha256, digest(format!("{SAID} {at}").as_bytes()));
    }
    assert_eq!(vms.calls().len(), files.len());
    assert_eq!(walk(environment.directory()), before, "nothing is there that was not there before");
    for (at, file) in files.iter().enumerate() {
        let folder = folder(&environment, &format!("copy-{at}"));
        succeeds(&environment, &["export", file.as_str(), "--to", folder.to_str().unwrap()]).await;
        let copy = walk(&folder).pop_first().unwrap();
        assert_eq!(std::fs::read_to_string(copy).unwrap(), format!("{SAID} {at}"), "nobody has changed it");
    }
    environment.stop().await.unwrap();
}

/// Copies in a folder and in an archive have clean names, each once, and stay there.
#[tokio::test(flavor = "multi_thread")]
async fn f8_copies_have_clean_names_and_stay_in_their_folder() {
    let environment = signed_in().await;
    let (source, mut files) = hostile_files(&environment).await;
    let message = says(&environment, &source, "hello");
    fetch(&environment, std::slice::from_ref(&message)).await;
    files.push(message);
    let folder = folder(&environment, "copies");
    let before = walk(environment.directory());
    let words: Vec<_> = files.iter().map(RecordId::as_str).collect();
    let to = [["export"].as_slice(), &words, &["--to", folder.to_str().unwrap()]].concat();
    let printed = succeeds(&environment, &to).await;
    assert_inert(&printed);
    let new: BTreeSet<_> = walk(environment.directory()).difference(&before).cloned().collect();
    assert_eq!(new.len(), files.len(), "{new:?}");
    let mut names = BTreeSet::new();
    for path in &new {
        assert_eq!(path.parent().unwrap(), folder);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.len() <= 255 && !name.starts_with(['.', '-']), "{name:?}");
        assert_inert(name);
        names.insert(name.to_owned());
    }
    // Those of which no name could be shown are called by their place.
    for expected in ["x.desktop", "x", "a", "a b.TXT", "gpj.exe", "_rf", "запись.ogg", "x-13.txt"] {
        assert!(names.contains(expected), "no {expected} in {names:?}");
    }
    let usb = [["export"].as_slice(), &words, &["--usb"]].concat();
    succeeds(&environment, &usb).await;
    let archive = environment.other_vms().calls().pop().unwrap().file.unwrap().archive.unwrap();
    let in_archive: BTreeSet<_> = archive.entries.iter().map(|entry| entry.name.clone()).collect();
    let expected = names.iter().map(|name| format!("export_data/{name}")).chain(["export_data/".to_owned()]);
    assert_eq!(in_archive, expected.collect());
    environment.stop().await.unwrap();
}

/// A transcript's name is made from the designation, and its text moves no cursor.
#[tokio::test(flavor = "multi_thread")]
async fn f8_a_transcript_stays_in_its_folder_and_is_inert() {
    let environment = signed_in().await;
    let (source, files) = hostile_files(&environment).await;
    let message = says(&environment, &source, "one\r\n\u{1b}[2Jtwo\u{202e}\u{200b}\n../../x");
    fetch(&environment, &[message]).await;
    let folder = folder(&environment, "transcripts");
    let before = walk(environment.directory());
    for _ in 0..2 {
        let printed = succeeds(&environment, &["transcript", source.as_str(), "--to", folder.to_str().unwrap()]).await;
        assert_inert(&printed);
    }
    let new: BTreeSet<_> = walk(environment.directory()).difference(&before).cloned().collect();
    assert_eq!(new, ["x.txt", "x (2).txt"].map(|name| folder.join(name)).into());
    let text = std::fs::read_to_string(folder.join("x.txt")).unwrap();
    assert_inert(&text);
    assert_eq!(text, succeeds(&environment, &["transcript", source.as_str()]).await);
    assert!(text.contains("    \\u{1b}[2Jtwo\\u{202e}\\u{200b}\n"), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("  file  ")).count(), files.len());
    environment.stop().await.unwrap();
}
