//! Deletions stop what is being opened, and leave nothing of what was read.

use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use staging::environment::{Environment, EnvironmentOptions, KeyAccess, Watch};
use staging::generator::MARLOW;
use staging::server::{Command, Reader, RecordId, Seal, SubmissionKind};

use crate::stand_in::StandIn;
use crate::support::*;

const NO_FILE: [PathBuf; 0] = [];

/// A source with a message and a file that are being decrypted, and wait at the gate.
async fn being_opened(environment: &Environment, gpg: &mut StandIn) -> (RecordId, [RecordId; 2]) {
    let source = new_source(environment);
    let items = [says(environment, &source, SAID), hands_over(environment, &source, SAID)];
    refresh(environment).await;
    download(environment, &items[1]).await;
    gpg.until_begun(2).await;
    (source, items)
}

/// Case D5: a deletion that waits stops what is being opened, and its end starts it again. Nothing can be sent meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn d5_a_pending_deletion_stops_decryptions_and_its_cancellation_starts_them_again() {
    let mut gpg = StandIn::fake();
    gpg.close_gate();
    let environment = signed_in(ASKED, gpg.key()).await;
    let (source, items) = being_opened(&environment, &mut gpg).await;
    let mut watch = environment.watch().await.unwrap();
    environment.json(&["pause"], "").await.unwrap();
    let deletion = act(&environment, &["delete", "source", source.as_str(), "--yes"]).await;
    until_all(&mut watch, &items, "stopped").await;
    // Their calls were ended, though the gate is closed.
    assert_eq!(gpg.left().await, [] as [u32; 0]);
    assert_eq!(counts(&environment), [2, 0, 0]);
    assert_eq!(status(&environment).await["lanes"]["decrypt"]["waiting"], 0);
    // Nothing of it is begun again.
    let other = new_source(&environment);
    refresh(&environment).await;
    assert_eq!(gpg.begun().await, 0);
    environment.json(&["cancel", &deletion.to_string()], "").await.unwrap();
    gpg.until_begun(2).await;
    gpg.open_gate();
    until_all(&mut watch, &items, "decrypted").await;
    assert_eq!(said(&environment, &source, &items[0]).await.as_deref(), Some(SAID));
    assert_eq!(counts(&environment), [0, 0, 1]);
    for item in &items {
        assert_eq!(downloads(&environment, item), 1);
    }
    assert!(environment.json(&["show", other.as_str()], "").await.is_ok());
    environment.stop().await.unwrap();
}

/// Case D5: the same for a deletion that waits before it is sent, and is taken back.
#[tokio::test(flavor = "multi_thread")]
async fn d5_undo_starts_again_what_a_deletion_has_stopped() {
    let mut gpg = StandIn::fake();
    gpg.close_gate();
    let delete_grace = Duration::from_secs(600);
    let options = EnvironmentOptions { delete_grace, ..options(ASKED, gpg.key()) };
    let environment = Environment::with_daemon(options).await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    let (source, items) = being_opened(&environment, &mut gpg).await;
    let mut watch = environment.watch().await.unwrap();
    act(&environment, &["delete", "source", source.as_str(), "--yes"]).await;
    until_all(&mut watch, &items, "stopped").await;
    assert_eq!(counts(&environment), [2, 0, 0]);
    assert_eq!(status(&environment).await["lanes"]["decrypt"]["waiting"], 0);
    // What comes meanwhile is not fetched.
    let later = says(&environment, &source, SAID);
    refresh(&environment).await;
    assert_eq!((gpg.begun().await, downloads(&environment, &later)), (0, 0));
    environment.json(&["undo"], "").await.unwrap();
    gpg.until_begun(2).await;
    gpg.open_gate();
    until_all(&mut watch, &[items[0].clone(), items[1].clone(), later.clone()], "decrypted").await;
    assert_eq!(said(&environment, &source, &later).await.as_deref(), Some(SAID));
    environment.stop().await.unwrap();
}

/// Case D5: a deletion and its cancellation at once, over and over: what was being opened when they came is opened.
#[tokio::test(flavor = "multi_thread")]
async fn d5_what_is_deleted_and_brought_back_at_once_is_opened_all_the_same() {
    let mut gpg = StandIn::fake();
    gpg.close_gate();
    let environment = signed_in(ASKED, gpg.key()).await;
    let (source, items) = being_opened(&environment, &mut gpg).await;
    let mut watch = environment.watch().await.unwrap();
    environment.json(&["pause"], "").await.unwrap();
    for _ in 0..10 {
        let deletion = act(&environment, &["delete", "source", source.as_str(), "--yes"]).await;
        environment.json(&["cancel", &deletion.to_string()], "").await.unwrap();
    }
    gpg.open_gate();
    until_all(&mut watch, &items, "decrypted").await;
    assert_eq!(counts(&environment), [0, 0, 1]);
    environment.stop().await.unwrap();
}

/// Waits until nothing that belongs to items is held: it goes behind the confirmation.
async fn until_swept(environment: &Environment, watch: &mut Watch) {
    while counts(environment) != [0, 0, 0] {
        refresh(environment).await;
        watch.until("sync_ended").await.unwrap();
    }
}

/// Nothing of what was said is in any file, also once the daemon has ended and the database is whole.
async fn assert_nothing_left(environment: &mut Environment, items: &[RecordId]) {
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    assert_eq!(files_with(environment.directory(), SAID.as_bytes()), NO_FILE);
    assert_eq!(counts(environment), [0, 0, 0]);
    let database = rusqlite::Connection::open(environment.home().join("store.sqlite3")).unwrap();
    let held: u64 = database.query_row("SELECT count(*) FROM local_item", [], |row| row.get(0)).unwrap();
    assert_eq!(held, 0, "{} items", items.len());
}

/// Case D5, and what case D4 says of plaintext: found before, and nowhere after.
#[tokio::test(flavor = "multi_thread")]
async fn d5_after_a_confirmed_deletion_no_plaintext_is_left_anywhere() {
    let mut environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let mut items = Vec::new();
    for _ in 0..20 {
        items.push(says(&environment, &source, &SAID.repeat(40)));
        items.push(hands_over(&environment, &source, &SAID.repeat(40)));
    }
    let inside = staging::server::Body::Armored { reader: Reader::Newsroom, body: Box::new(text(SAID)) };
    items.push(sends(&environment, &source, SubmissionKind::Message, inside));
    let seal = Seal { reader: Reader::Stranger, ..Seal::default() };
    let sealed = sends_sealed(&environment, &source, SubmissionKind::Message, text(SAID), seal);
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    environment.json(&["download", "--all", "--no-wait"], "").await.unwrap();
    let (mut decrypted, mut closed) = (0, 0);
    while decrypted < items.len() || closed < 1 {
        match watch.until("read").await.unwrap()["step"].as_str().unwrap() {
            "decrypted" => decrypted += 1,
            "sealed" => closed += 1,
            _other => {}
        }
    }
    assert_eq!(counts(&environment), [1, 0, 20]);
    let found = files_with(environment.directory(), SAID.as_bytes());
    assert!(found.iter().filter(|path| path.starts_with(environment.plaintext_folder())).count() == 20, "{found:?}");
    assert!(
        found.iter().any(|path| path.parent() == Some(&environment.home())),
        "messages are in the database: {found:?}"
    );
    items.push(sealed);
    let deletion = act(&environment, &["delete", "source", source.as_str(), "--yes"]).await;
    until_act(&mut watch, deletion, "confirmed").await;
    until_swept(&environment, &mut watch).await;
    assert_nothing_left(&mut environment, &items).await;
    environment.stop().await.unwrap();
}

/// Case D5: the same for single items; what is not deleted stays.
#[tokio::test(flavor = "multi_thread")]
async fn d5_deleted_items_leave_no_plaintext_and_the_others_stay() {
    let mut environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let kept = "what is kept";
    let doomed = [says(&environment, &source, SAID), hands_over(&environment, &source, SAID)];
    let staying = [says(&environment, &source, kept), hands_over(&environment, &source, kept)];
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    environment.json(&["download", "--all", "--no-wait"], "").await.unwrap();
    until_all(&mut watch, &[doomed.to_vec(), staying.to_vec()].concat(), "decrypted").await;
    assert!(!files_with(environment.directory(), SAID.as_bytes()).is_empty());
    for item in &doomed {
        let deletion = act(&environment, &["delete", "item", item.as_str(), "--yes"]).await;
        until_act(&mut watch, deletion, "confirmed").await;
    }
    while counts(&environment) != [0, 0, 1] {
        refresh(&environment).await;
    }
    assert_eq!(said(&environment, &source, &staying[0]).await.as_deref(), Some(kept));
    assert_eq!(std::fs::read_to_string(&files(&environment, "plaintext")[0]).unwrap(), kept);
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    assert_eq!(files_with(environment.directory(), SAID.as_bytes()), NO_FILE);
    assert_eq!(files_with(environment.directory(), kept.as_bytes()).len(), 2);
    environment.stop().await.unwrap();
}

/// Case D5: what was being opened when its deletion was confirmed leaves nothing either, whoever deleted it.
#[tokio::test(flavor = "multi_thread")]
async fn d5_what_is_being_opened_when_it_is_deleted_leaves_nothing() {
    for elsewhere in [false, true] {
        let mut gpg = StandIn::fake();
        gpg.close_gate();
        let mut environment = signed_in(ASKED, gpg.key()).await;
        let (source, items) = being_opened(&environment, &mut gpg).await;
        let mut watch = environment.watch().await.unwrap();
        if elsewhere {
            environment.server().control().apply(Command::DeleteSource { source: source.clone() }).unwrap();
            refresh(&environment).await;
        } else {
            let deletion = act(&environment, &["delete", "source", source.as_str(), "--yes"]).await;
            until_act(&mut watch, deletion, "confirmed").await;
        }
        assert_eq!(gpg.left().await, [] as [u32; 0], "the gate is closed");
        until_swept(&environment, &mut watch).await;
        gpg.open_gate();
        assert_eq!(gpg.begun().await, 0, "nothing of it is opened any more");
        assert_nothing_left(&mut environment, &items).await;
        environment.stop().await.unwrap();
    }
}
