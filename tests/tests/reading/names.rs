//! Hostile names: none of them becomes a file's name, and none is printed as it is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use staging::environment::KeyAccess;
use staging::server::{Edit, FaultAct, GzipFlaw, SubmissionKind, Which};

use crate::support::*;

/// Names, and whether something of them is left to be shown.
fn hostile() -> Vec<(Vec<u8>, Option<&'static str>)> {
    let long = [vec![b'n'; 4_990], b".docx".to_vec()].concat();
    vec![
        (b"../../.config/autostart/x.desktop".to_vec(), Some("x.desktop")),
        (b"/home/user/x".to_vec(), Some("x")),
        (b"..".to_vec(), None),
        (Vec::new(), None),
        (b"a\0b.txt".to_vec(), Some("a")),
        (b"a\nb.txt".to_vec(), Some("a b.txt")),
        (long, Some(".docx")),
        ("\u{202e}gpj.exe".as_bytes().to_vec(), Some("gpj.exe")),
        (b"caf\xe9\x1b[2J.pdf".to_vec(), Some(".pdf")),
        (b"-rf".to_vec(), Some("_rf")),
        ("..\\..\\запись.ogg".as_bytes().to_vec(), Some("запись.ogg")),
    ]
}

/// Where files would be that a name has led astray.
fn astray(directory: &Path) -> Vec<PathBuf> {
    let places = ["/home/user/x", "/x", "/tmp/x.desktop", "/.config/autostart/x.desktop"].map(PathBuf::from);
    let near = ["../.config/autostart/x.desktop", "../../.config/autostart/x.desktop"].map(|path| directory.join(path));
    places.into_iter().chain(near).filter(|path| path.exists()).collect()
}

/// Case F8: the server's file name, the designation, the header of the download and the name in gzip, each as bad as can be.
#[tokio::test(flavor = "multi_thread")]
async fn f8_no_name_leads_outside_the_data_directory_and_none_is_printed_raw() {
    let environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let message = says(&environment, &source, "hello");
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    until(&mut watch, "read", &message, "decrypted").await;
    let (before, strayed) = (walk(environment.directory()), astray(environment.directory()));
    let control = environment.server().control();
    let mut shown_names = BTreeSet::new();
    for (at, (name, expected)) in hostile().into_iter().enumerate() {
        let file = sends(&environment, &source, SubmissionKind::File, packed(&name, SAID.as_bytes(), GzipFlaw::None));
        // It is listed as it should be first: a record that cannot be read is not fetched at all.
        refresh(&environment).await;
        let as_text = String::from_utf8_lossy(&name).into_owned();
        let edited = |id: &staging::server::RecordId, field| FaultAct::BadRecord {
            which: Which::Uuid(id.clone()),
            edits: vec![Edit::set(field, as_text.clone())],
        };
        fault(&environment, "/api/v1/submissions", edited(&file, "/filename"));
        fault(&environment, "/api/v1/sources", edited(&source, "/journalist_designation"));
        // What a header cannot hold is left out of it.
        let header: String = as_text.chars().filter(|character| !character.is_control()).collect();
        let disposition = format!("attachment; filename=\"{header}\"; filename*=UTF-8''{header}");
        let headers = FaultAct::edit_headers(&[("content-disposition", Some(&disposition))]);
        fault(&environment, &format!("/api/v1/sources/*/submissions/{file}/download"), headers);
        refresh(&environment).await;
        download(&environment, &file).await;
        until(&mut watch, "read", &file, "decrypted").await;
        let acted = control.faults().iter().filter(|fault| fault.acted > 0).count();
        assert_eq!(acted, 3, "each of the three names was served");
        let shown = item(&environment, &source, &file).await;
        let name = shown["content"]["name"].as_str().map(str::to_owned);
        match (&name, expected) {
            (None, None) => {}
            (Some(name), Some(expected)) => {
                assert!(name.ends_with(expected), "{name}");
                assert!(!name.contains(['/', '\\']) && name.len() <= 255, "{name}");
                assert_inert(name);
                shown_names.insert(name.clone());
            }
            other => unreachable!("{at}: {other:?}"),
        }
        for command in ["show", "sources", "status", "queue"] {
            for arguments in [vec![], vec!["--json"]] {
                let command = std::iter::once(command).chain((command == "show").then_some(source.as_str()));
                let output = environment.run(command.chain(arguments), "").await.unwrap();
                assert_eq!(output.code, Some(0), "{}", output.stderr);
                assert_inert(&output.stdout);
                assert_inert(&output.stderr);
            }
        }
        control.apply(staging::server::Command::ClearFaults).unwrap();
    }
    assert_eq!(shown_names.len(), 9);
    let new: Vec<_> = walk(environment.directory()).difference(&before).cloned().collect();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        path.parent() == Some(&environment.plaintext_folder()) && name.bytes().all(|byte| byte.is_ascii_digit())
    };
    assert_eq!(new.iter().filter(|path| !is_ours(path)).collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    assert_eq!((new.len(), astray(environment.directory())), (hostile().len(), strayed));
    environment.stop().await.unwrap();
}
