//! Whatever a source sends: no panic, no file outside of the store, nothing that is not whole under a final name.

use std::path::PathBuf;

use client_vm::reading::{Meaning, Read};
use control::Content;
use proptest::prelude::*;

use crate::stage::*;

/// Every file in a folder and below it.
fn files(folder: &std::path::Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

/// Case F8: the name that a source gave its file.
#[tokio::test]
async fn f8_no_name_of_a_source_leads_out_of_the_store() {
    let outside = tempfile::tempdir().unwrap();
    let home = outside.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let room = Room::open(&home);
    let long = vec![b'a'; 5000];
    let names: [&[u8]; 9] = [
        b"../../.config/autostart/x.desktop",
        b"/home/user/x",
        b"..",
        b"",
        b"a\nb.txt",
        &long,
        "e\u{202e}xe.pdf".as_bytes(),
        b"\xff\xfe.doc",
        b"-rf",
    ];
    let held: Vec<_> = (1..)
        .zip(names)
        .map(|(number, name)| (file(number), encrypted(&room.key, &gzipped(name, b"content"))))
        .collect();
    room.hold(&held).await;
    let mut shown = Vec::new();
    for (candidate, _) in &held {
        assert_eq!(room.read(*candidate).await.unwrap(), Read::Decrypted);
        let Content::Decrypted { name, .. } = room.content(*candidate).await else { panic!("it was decrypted") };
        if let Some(name) = &name {
            assert!(name.len() <= 255 && !name.contains('/') && !name.starts_with(['-', '.']), "{name:?}");
            assert!(!name.chars().any(|letter| letter.is_control() || letter == '\u{202e}'), "{name:?}");
        }
        shown.push(name);
    }
    assert!(shown[0].as_deref().unwrap().ends_with("x.desktop"), "{shown:?}");
    assert!(shown[6].as_deref().unwrap().ends_with(".pdf"), "{shown:?}");
    assert_eq!(room.plaintexts().len(), names.len());
    let numbered = |path: &PathBuf| {
        path.starts_with(home.join("plaintext"))
            && path.file_name().unwrap().to_str().unwrap().bytes().all(|letter| letter.is_ascii_digit())
    };
    let strange: Vec<_> =
        files(outside.path()).into_iter().filter(|path| !numbered(path) && path.parent() != Some(&home)).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Case F4: a message or packed file that was changed or cut anywhere is opened to what it was, or not at all.
    #[test]
    fn f4_what_was_changed_is_whole_or_not_there(
        at in any::<prop::sample::Index>(),
        bit in 0..8_u8,
        cut in any::<bool>(),
        inside in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let home = tempfile::tempdir().unwrap();
            let room = Room::open(home.path());
            let content = b"the fourth box from the left. ".repeat(40);
            let spoil = |mut bytes: Vec<u8>| {
                let at = at.index(bytes.len());
                if cut { bytes.truncate(at) } else { bytes[at] ^= 1 << bit }
                bytes
            };
            let packed = gzipped(b"box.txt", &content);
            let ciphertext = if inside {
                encrypted(&room.key, &spoil(packed))
            } else {
                spoil(encrypted(&room.key, &packed))
            };
            room.hold(&[(file(1), ciphertext)]).await;
            match room.read(file(1)).await {
                Ok(Read::Decrypted) => {
                    let whole = room.plaintexts();
                    // Spoilt inside, it may not be taken for a pack any more, or have another name or date.
                    let as_it_came = inside && whole[0] != content;
                    prop_assert!(as_it_came || whole == [content]);
                }
                Ok(Read::Gone) => prop_assert!(false, "it is listed and not deleted"),
                Err(error) => {
                    prop_assert!(matches!(error.meaning(), Meaning::Sealed(_)), "{error:?}");
                    prop_assert!(room.plaintexts().is_empty());
                    prop_assert_eq!(room.ciphertexts().len(), 1);
                }
            }
            room.assert_tidy();
            Ok(())
        })?;
    }

    /// Whatever an item's ciphertext is.
    #[test]
    fn any_bytes_are_opened_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000), packet in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let home = tempfile::tempdir().unwrap();
            let room = Room::open(home.path());
            let start: &[u8] = if packet { &[0x85, 1, 12, 3] } else { b"" };
            let bytes = [start, &bytes].concat();
            // As it is, and inside of a sound message.
            room.hold(&[(file(1), bytes.clone()), (file(2), encrypted(&room.key, &bytes))]).await;
            let refused = room.read(file(1)).await;
            prop_assert!(matches!(refused.map_err(|error| error.meaning()), Err(Meaning::Sealed(_))));
            let opened = room.read(file(2)).await.map_err(|error| error.meaning());
            prop_assert!(matches!(opened, Ok(Read::Decrypted) | Err(Meaning::Sealed(_))), "{opened:?}");
            room.assert_tidy();
            Ok(())
        })?;
    }
}
