//! A text that is too long makes nothing else unusable.

use nix::sys::signal::Signal;
use staging::environment::KeyAccess;
use staging::server::{Body, SubmissionKind};

use crate::support::*;

/// One message of an anonymous source grows past every bound once it is made a text: it is sealed, and the rest of its
/// conversation is shown, answered and deleted as ever. One that an older version has stored is missed, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_grows_makes_no_conversation_unusable() {
    let mut environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let growing = Body::Bytes { bytes: vec![0xff; 400 << 10] };
    let growing = sends(&environment, &source, SubmissionKind::Message, growing);
    let first = says(&environment, &source, SAID);
    let second = says(&environment, &source, "the second");
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    let mut ended = 0;
    while ended < 3 {
        let step = watch.until("read").await.unwrap()["step"].clone();
        ended += u32::from(step == "decrypted" || step == "sealed");
    }
    let content = item(&environment, &source, &growing).await["content"].clone();
    assert_eq!((&content["state"], &content["seal"]), (&"sealed".into(), &"too_large".into()), "{content}");
    assert_eq!(said(&environment, &source, &first).await.as_deref(), Some(SAID));

    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    let database = rusqlite::Connection::open(environment.home().join("store.sqlite3")).unwrap();
    let index = "SELECT sql FROM sqlite_schema WHERE name = 'search_update'";
    let index: String = database.query_row(index, [], |row| row.get(0)).unwrap();
    database.execute_batch("DROP TRIGGER search_update").unwrap();
    let long = "\u{fffd}".repeat(512 << 10);
    let replaced = "UPDATE local_item SET text = ?1, plain_bytes = ?2 WHERE item_id = ?3";
    assert_eq!(database.execute(replaced, (&long, long.len(), first.as_str())).unwrap(), 1);
    database.execute_batch(&index).unwrap();
    drop(database);
    environment.start_daemon().await.unwrap();

    assert_eq!(said(&environment, &source, &first).await, None);
    assert_eq!(said(&environment, &source, &second).await.as_deref(), Some("the second"));
    let shown = environment.run(["show", source.as_str()], "").await.unwrap().stdout;
    assert!(shown.contains("too long to be shown") && shown.contains("the second"), "{shown}");
    let transcript = environment.run(["transcript", source.as_str()], "").await.unwrap().stdout;
    assert!(transcript.contains("the second"), "{transcript}");
    let copies = tempfile::tempdir().unwrap();
    let folder = copies.path().to_str().unwrap();
    environment.json(&["export", first.as_str(), "--to", folder], "").await.unwrap();
    let copy = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    assert!(std::fs::read_to_string(copy).unwrap() == long, "the copy has all of it");
    environment.stop().await.unwrap();
}
