//! What becomes of an item that is opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use client_vm::files::{self, KEPT};
use client_vm::openpgp::decrypt::{DecryptError, Limits};
use client_vm::reading::{MAX_TEXT, Meaning, Read, ReadError, Step, Watcher};
use control::{Content, Inner, Seal};

use crate::stage::*;

#[tokio::test]
async fn a_message_is_read_and_its_ciphertext_goes() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    let said = "Grüße, und\r\nmehr \u{202e}";
    room.hold(&[(message(1), encrypted(&room.key, said.as_bytes()))]).await;
    assert_eq!(room.text(message(1)).await, None);
    assert_eq!(room.read(message(1)).await.unwrap(), Read::Decrypted);
    assert_eq!(room.text(message(1)).await.as_deref(), Some(said));
    let bytes = said.len().try_into().unwrap();
    assert_eq!(room.content(message(1)).await, Content::Decrypted { bytes, inner: Inner::None, name: None });
    assert!(room.ciphertexts().is_empty());
    assert_eq!(room.read(message(1)).await.unwrap(), Read::Gone, "once is enough");
}

#[tokio::test]
async fn f4_an_empty_message_is_one_and_a_broken_one_is_none() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    let whole = encrypted(&room.key, &[b'x'; 3000]);
    let cut = whole[..whole.len() - 40].to_vec();
    let mut changed = whole.clone();
    let last = changed.len() - 5;
    changed[last] ^= 1;
    room.hold(&[
        (message(1), encrypted(&room.key, b"")),
        (message(2), cut),
        (message(3), changed),
        (message(4), b"no message at all".to_vec()),
        (message(5), Vec::new()),
    ])
    .await;
    room.read(message(1)).await.unwrap();
    assert_eq!(room.text(message(1)).await.as_deref(), Some(""));
    let meaning = |error: ReadError| error.meaning();
    assert_eq!(room.read(message(2)).await.map_err(meaning), Err(Meaning::Sealed(Seal::Cut)));
    assert_eq!(room.read(message(3)).await.map_err(meaning), Err(Meaning::Sealed(Seal::Corrupt)));
    assert_eq!(room.read(message(4)).await.map_err(meaning), Err(Meaning::Sealed(Seal::Corrupt)));
    assert!(matches!(room.read(message(5)).await.map_err(meaning), Err(Meaning::Sealed(_))));
    for number in 2..=5 {
        assert_eq!(room.text(message(number)).await, None);
    }
    assert_eq!(room.ciphertexts().len(), 4, "a retry needs no other download");
}

/// Where the disk has no room nothing is decrypted, and nothing is lost.
#[tokio::test]
async fn without_room_everything_waits() {
    let home = tempfile::tempdir().unwrap();
    let mut room = Room::open(home.path());
    let left = Arc::new(AtomicU64::new(KEPT));
    room.desk.files = room.desk.files.clone().with_room(files::Room::Told(Arc::clone(&left)));
    let packed = gzipped(b"a.txt", b"content");
    room.hold(&[(message(1), encrypted(&room.key, b"said")), (file(2), encrypted(&room.key, &packed))]).await;
    for item in [message(1), file(2)] {
        let error = room.read(item).await.unwrap_err();
        assert_eq!(error.meaning(), Meaning::Barred, "{error}");
    }
    assert_eq!(room.ciphertexts().len(), 2);
    room.assert_tidy();
    left.store(KEPT + MAX_TEXT, Ordering::Relaxed);
    for item in [message(1), file(2)] {
        assert_eq!(room.read(item).await.unwrap(), Read::Decrypted);
    }
    assert_eq!(room.text(message(1)).await.as_deref(), Some("said"));
}

/// A ciphertext that cannot be removed holds up nothing: what it says can be read.
#[tokio::test]
async fn a_ciphertext_that_stays_makes_nothing_unread() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    room.hold(&[(message(1), encrypted(&room.key, b"said"))]).await;
    let number = room.ciphertexts()[0];
    // Once it was read, something that no unlink removes stands in its place.
    struct InItsPlace(std::path::PathBuf);
    impl Watcher for InItsPlace {
        fn step(&self, step: Step) {
            if step == Step::Noted {
                std::fs::remove_file(&self.0).unwrap();
                std::fs::create_dir(&self.0).unwrap();
            }
        }
    }
    let path = room.desk.files.ciphertext(number);
    let read = room.read_watched(message(1), Arc::new(InItsPlace(path.clone()))).await.unwrap();
    assert_eq!((read, room.text(message(1)).await.as_deref()), (Read::Decrypted, Some("said")));
    assert!(path.exists());
}

/// Each byte that is no UTF-8 is shown as three: what counts is what is stored and shown.
#[tokio::test]
async fn a_text_that_grows_past_the_bound_is_refused_also_inside() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    let most = usize::try_from(MAX_TEXT).unwrap();
    let growing = vec![0xff; most];
    room.hold(&[
        (message(1), encrypted(&room.key, &growing)),
        (message(2), encrypted(&room.key, &armored(&room.key, &growing))),
        (message(3), encrypted(&room.key, &growing[..most / 3])),
    ])
    .await;
    for number in [1, 2] {
        let error = room.read(message(number)).await.unwrap_err();
        assert_eq!(error.meaning(), Meaning::Sealed(Seal::TooLarge), "{error}");
        assert_eq!(room.text(message(number)).await, None);
    }
    room.read(message(3)).await.unwrap();
    assert_eq!(room.text(message(3)).await.unwrap().len(), most / 3 * 3);
    assert_eq!(room.ciphertexts().len(), 2, "a retry needs no other download");
    room.assert_tidy();
}

#[tokio::test]
async fn a_text_that_is_no_utf8_is_shown_as_well_as_can_be_and_a_huge_one_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    let huge = vec![b'x'; usize::try_from(MAX_TEXT).unwrap() + 1];
    room.hold(&[(message(1), encrypted(&room.key, b"caf\xe9")), (message(2), encrypted(&room.key, &huge))]).await;
    room.read(message(1)).await.unwrap();
    assert_eq!(room.text(message(1)).await.as_deref(), Some("caf\u{fffd}"));
    let error = room.read(message(2)).await.unwrap_err();
    assert_eq!(error.meaning(), Meaning::Sealed(Seal::TooLarge));
}

#[tokio::test]
async fn a_packed_file_is_unpacked_and_keeps_its_name_to_be_shown() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    let zip = [b"PK\x03\x04".as_slice(), &[7; 500]].concat();
    room.hold(&[
        (file(1), encrypted(&room.key, &gzipped("запись.ogg".as_bytes(), b"la la la"))),
        (file(2), encrypted(&room.key, &zip)),
        (file(3), encrypted(&room.key, b"plain")),
    ])
    .await;
    for number in 1..=3 {
        room.read(file(number)).await.unwrap();
    }
    let shown =
        |bytes, name: Option<&str>| Content::Decrypted { bytes, inner: Inner::None, name: name.map(str::to_owned) };
    assert_eq!(room.content(file(1)).await, shown(8, Some("запись.ogg")));
    assert_eq!(room.content(file(2)).await, shown(504, None));
    assert_eq!(room.content(file(3)).await, shown(5, None));
    let mut plaintexts = room.plaintexts();
    plaintexts.sort();
    assert_eq!(plaintexts, [zip, b"la la la".to_vec(), b"plain".to_vec()]);
    room.assert_tidy();
}

#[tokio::test]
async fn f4_a_broken_pack_leaves_nothing_under_the_final_name() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    let whole = gzipped(b"x.txt", b"the fourth box from the left");
    let cut = whole[..whole.len() - 9].to_vec();
    let mut wrong_sum = whole.clone();
    let at = wrong_sum.len() - 6;
    wrong_sum[at] ^= 1;
    room.hold(&[(file(1), encrypted(&room.key, &cut)), (file(2), encrypted(&room.key, &wrong_sum))]).await;
    for (number, seal) in [(1, Seal::Cut), (2, Seal::Corrupt)] {
        let error = room.read(file(number)).await.unwrap_err();
        assert_eq!(error.meaning(), Meaning::Sealed(seal), "{error}");
    }
    assert!(room.plaintexts().is_empty());
    assert_eq!(room.ciphertexts().len(), 2);
    assert!(room.files_with(b"the fourth box").is_empty());
    room.assert_tidy();
}

/// Case F5.
#[tokio::test]
async fn f5_a_bomb_is_stopped_and_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let mut room = Room::open(home.path());
    room.desk.limits = Limits { bytes: 20_000_000, ..Limits::default() };
    let bomb = gzipped(b"b", &vec![0; 40_000_000]);
    room.hold(&[(file(1), encrypted(&room.key, &bomb)), (file(2), encrypted(&room.key, &gzipped(b"g", &bomb)))]).await;
    let error = room.read(file(1)).await.unwrap_err();
    assert_eq!(error.meaning(), Meaning::Sealed(Seal::TooLarge), "{error}");
    // A pack in a pack is unpacked once: what is held is the inner one.
    room.read(file(2)).await.unwrap();
    assert_eq!(room.plaintexts(), [bomb]);
    room.assert_tidy();
}

#[tokio::test]
async fn a_message_inside_is_opened_if_its_key_is_here_and_told_if_not() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    let (own, stranger) = (&room.key, new_key());
    let (inside, closed) = (armored(own, b"whispered"), armored(&stranger, b"not for us"));
    let twice = armored(own, &inside);
    room.hold(&[
        (message(1), encrypted(own, &inside)),
        (message(2), encrypted(own, &closed)),
        (message(3), encrypted(own, &twice)),
        (message(4), encrypted(own, &inside[..inside.len() / 2])),
        (file(5), encrypted(own, &gzipped(b"a.pgp", &encrypted(own, b"whispered")))),
        (file(6), encrypted(own, &encrypted(&stranger, b"not for us"))),
        (file(7), encrypted(own, &armored(own, b"whispered"))),
    ])
    .await;
    for number in 1..=4 {
        room.read(message(number)).await.unwrap();
    }
    for number in 5..=7 {
        room.read(file(number)).await.unwrap();
    }
    let inner = async |candidate| match room.content(candidate).await {
        Content::Decrypted { inner, .. } => inner,
        other => panic!("{other:?}"),
    };
    assert_eq!(inner(message(1)).await, Inner::Opened);
    assert_eq!(room.text(message(1)).await.as_deref(), Some("whispered"));
    assert_eq!(inner(message(2)).await, Inner::Closed);
    assert_eq!(room.text(message(2)).await.unwrap().as_bytes(), closed);
    // Two layers are opened, and what is in them is shown as it is.
    assert_eq!(inner(message(3)).await, Inner::Opened);
    assert_eq!(room.text(message(3)).await.unwrap().as_bytes(), inside);
    assert_eq!(inner(message(4)).await, Inner::Closed);
    assert_eq!(inner(file(5)).await, Inner::Opened);
    assert_eq!(inner(file(6)).await, Inner::Closed);
    assert_eq!(inner(file(7)).await, Inner::Opened);
    assert_eq!(room.plaintexts().iter().filter(|text| *text == b"whispered").count(), 2);
    room.assert_tidy();
}

/// What begins like a message, and is none, is a file like others.
#[tokio::test]
async fn what_only_looks_like_a_message_inside_is_not_said_to_be_one() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    let binary = [&[0x84, 0x20, 0x03][..], b"a picture of some kind"].concat();
    // Armor around a packet that is no encrypted one.
    let armored = b"-----BEGIN PGP MESSAGE-----\n\nyw1iAAAAAABoZWxsbywgCg==\n-----END PGP MESSAGE-----\n".to_vec();
    for (number, looks) in (1..).zip([binary, armored]) {
        room.hold(&[(file(number), encrypted(&room.key, &looks))]).await;
        room.read(file(number)).await.unwrap();
        let bytes = looks.len().try_into().unwrap();
        assert_eq!(room.content(file(number)).await, Content::Decrypted { bytes, inner: Inner::None, name: None });
        assert!(room.plaintexts().contains(&looks));
    }
}

#[tokio::test]
async fn a_file_that_was_opened_twice_loses_the_name_of_its_envelope() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    let (own, stranger) = (&room.key, new_key());
    let (inside, closed) = (armored(own, b"%PDF"), armored(&stranger, b"%PDF"));
    let cases = [
        ("ledger.pdf.gpg", &inside, "ledger.pdf"),
        ("ledger.pdf.ASC", &inside, "ledger.pdf"),
        ("ledger.pgp", &inside, "ledger"),
        ("ledger.pdf", &inside, "ledger.pdf"),
        (".gpg", &inside, "_gpg"),
        ("gpg", &inside, "gpg"),
        ("ledger.pdf.gpg", &closed, "ledger.pdf.gpg"),
    ];
    let items: Vec<_> = (1..)
        .zip(&cases)
        .map(|(number, (name, content, _))| (file(number), encrypted(own, &gzipped(name.as_bytes(), content))))
        .collect();
    room.hold(&items).await;
    for ((candidate, _), (_, _, shown)) in items.iter().zip(cases) {
        room.read(*candidate).await.unwrap();
        let Content::Decrypted { name, .. } = room.content(*candidate).await else { panic!("not decrypted") };
        assert_eq!(name.as_deref(), Some(shown));
    }
}

/// Case F6.
#[tokio::test]
async fn f6_a_message_for_another_key_says_which() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    let stranger = new_key();
    room.hold(&[(message(1), encrypted(&stranger, b"not for us"))]).await;
    let error = room.read(message(1)).await.unwrap_err();
    assert_eq!(error.meaning(), Meaning::Sealed(Seal::NoKey));
    let subkey = stranger.keys().subkeys().next().unwrap();
    let (long, short) = (subkey.key().fingerprint().to_hex(), subkey.key().keyid().to_hex());
    assert!(error.reason().contains(&long) || error.reason().contains(&short), "{}", error.reason());
}

#[tokio::test]
async fn without_the_key_file_everything_waits() {
    let home = tempfile::tempdir().unwrap();
    let room = Room::open(home.path());
    room.hold(&[(message(1), encrypted(&room.key, b"later"))]).await;
    let away = home.path().join("away.asc");
    std::fs::rename(home.path().join("key.asc"), &away).unwrap();
    let error = room.read(message(1)).await.unwrap_err();
    assert!(matches!(error, ReadError::Decrypt(DecryptError::Unavailable(_))), "{error:?}");
    assert_eq!(error.meaning(), Meaning::Barred);
    std::fs::rename(&away, home.path().join("key.asc")).unwrap();
    room.read(message(1)).await.unwrap();
    assert_eq!(room.text(message(1)).await.as_deref(), Some("later"));
}

/// Case D5: a worker that loses the race stores nothing.
#[tokio::test]
async fn d5_what_is_deleted_while_it_is_opened_is_not_kept() {
    use std::sync::{Arc, Mutex};

    use client_vm::reading::{Step, Watcher};
    use client_vm::store::outbox;
    use control::Act;

    struct DeleteAt {
        step: Step,
        delete: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    impl Watcher for DeleteAt {
        fn step(&self, step: Step) {
            if step == self.step
                && let Some(delete) = self.delete.lock().unwrap().take()
            {
                delete();
            }
        }
    }

    for step in [Step::Prepared, Step::Decrypted, Step::Unpacked, Step::Synced, Step::Renamed] {
        for candidate in [message(1), file(2)] {
            if candidate == message(1) && matches!(step, Step::Synced | Step::Renamed) {
                continue;
            }
            let home = tempfile::tempdir().unwrap();
            let room = Room::open(home.path());
            let (said, packed) = (b"the fourth box".as_slice(), gzipped(b"b", b"the fourth box"));
            room.hold(&[(message(1), encrypted(&room.key, said)), (file(2), encrypted(&room.key, &packed))]).await;
            // From a thread of its own, as other work of the engine would.
            let (store, runtime) = (room.desk.store.clone(), tokio::runtime::Handle::current());
            let delete = move || {
                let anna = "00000001-0000-4000-8000-000000000000".parse().unwrap();
                let act = Act::DeleteSources { sources: vec![SOURCE.parse().unwrap()] };
                let now = protocol::value::Timestamp::try_new(9).unwrap();
                let deleting = store.write_or(move |transaction| outbox::enqueue(transaction, anna, &act, now));
                std::thread::scope(|scope| {
                    scope.spawn(|| runtime.block_on(deleting).unwrap());
                });
            };
            let watcher = Arc::new(DeleteAt { step, delete: Mutex::new(Some(Box::new(delete))) });
            assert_eq!(room.read_watched(candidate, watcher).await.unwrap(), Read::Gone, "{step:?}");
            assert_eq!(room.text(message(1)).await, None);
            assert!(room.plaintexts().is_empty(), "{step:?}");
            assert!(room.files_with(said).is_empty(), "{step:?}");
            assert_eq!(room.ciphertexts().len(), 2, "an undo still has the ciphertext");
            room.assert_tidy();
        }
    }
}
