//! An item's way from the server to the one who reads it, and whatever cuts it short.

use nix::sys::signal::Signal;
use serde_json::json;
use staging::environment::{Environment, KeyAccess};
use staging::server::RecordId;

use crate::stand_in::StandIn;
use crate::support::*;

/// What is held of an item, and why it waits.
async fn content(environment: &Environment, source: &RecordId, id: &RecordId) -> (String, Option<String>) {
    let content = item(environment, source, id).await["content"].clone();
    (content["state"].as_str().unwrap().to_owned(), content["reason"].as_str().map(str::to_owned))
}

/// Case F3.
#[tokio::test(flavor = "multi_thread")]
async fn f3_a_file_is_absent_then_downloaded_then_decrypted() {
    let environment = signed_in(ASKED, KeyAccess::Unreachable).await;
    let source = new_source(&environment);
    let file = hands_over(&environment, &source, SAID);
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    assert_eq!(content(&environment, &source, &file).await, ("absent".to_owned(), None));
    assert_eq!((counts(&environment), downloads(&environment, &file)), ([0, 0, 0], 0));
    download(&environment, &file).await;
    until(&mut watch, "download", &file, "stored").await;
    until(&mut watch, "read", &file, "postponed").await;
    let (state, reason) = content(&environment, &source, &file).await;
    assert!(state == "downloaded" && reason.as_deref().unwrap().contains("key file"), "{state}: {reason:?}");
    assert!(status(&environment).await["openpgp"]["problem"].as_str().unwrap().contains("key file"));
    assert_eq!(files(&environment, "ciphertext").len(), 1);
    put_key(&environment, NEWSROOM.secret_armor());
    until(&mut watch, "read", &file, "decrypted").await;
    let shown = item(&environment, &source, &file).await["content"].clone();
    let decrypted = json!({
        "state": "decrypted", "reason": null, "seal": null, "inner": "none", "name": "box.txt", "bytes": SAID.len(),
    });
    assert_eq!(shown, decrypted);
    assert_eq!(status(&environment).await["openpgp"]["problem"], json!(null));
    assert_eq!((counts(&environment), downloads(&environment, &file)), ([0, 0, 1], 1));
    let plaintexts = files(&environment, "plaintext");
    assert_eq!(std::fs::read(&plaintexts[0]).unwrap(), plaintext(&environment, &file));
    environment.stop().await.unwrap();
}

/// Case F3.
#[tokio::test(flavor = "multi_thread")]
async fn f3_a_message_comes_and_is_read_by_itself() {
    let environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let mut watch = environment.watch().await.unwrap();
    let message = says(&environment, &source, SAID);
    refresh(&environment).await;
    until(&mut watch, "read", &message, "decrypted").await;
    assert_eq!(said(&environment, &source, &message).await.as_deref(), Some(SAID));
    assert_eq!((counts(&environment), downloads(&environment, &message)), ([0, 0, 0], 1));
    // What is there is not opened again, whoever asks.
    download(&environment, &message).await;
    refresh(&environment).await;
    let next = says(&environment, &source, "and one more");
    refresh(&environment).await;
    loop {
        let event = watch.until("read").await.unwrap();
        assert_eq!(event["item"], next.as_str(), "{event}");
        if event["step"] == "decrypted" {
            break;
        }
    }
    assert_eq!(downloads(&environment, &message), 1);
    environment.stop().await.unwrap();
}

/// Case F3: nothing is fetched that is there.
#[tokio::test(flavor = "multi_thread")]
async fn f3_what_is_sealed_is_tried_again_without_another_download() {
    let environment = signed_in_with_key(ASKED, OTHER.secret_armor()).await;
    let source = new_source(&environment);
    let items = [says(&environment, &source, SAID), hands_over(&environment, &source, SAID)];
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    download(&environment, &items[1]).await;
    until_all(&mut watch, &items, "sealed").await;
    // The same key, at the user's wish: it is tried, and comes out the same.
    download(&environment, &items[0]).await;
    until(&mut watch, "read", &items[0], "sealed").await;
    assert_eq!(counts(&environment), [2, 0, 0]);
    put_key(&environment, NEWSROOM.secret_armor());
    for item in &items {
        assert_eq!(state(&environment, &source, item).await, "sealed");
        download(&environment, item).await;
    }
    until_all(&mut watch, &items, "decrypted").await;
    assert_eq!(said(&environment, &source, &items[0]).await.as_deref(), Some(SAID));
    for item in &items {
        assert_eq!(downloads(&environment, item), 1);
    }
    assert_eq!(counts(&environment), [0, 0, 1]);
    environment.stop().await.unwrap();
}

/// Case F3: what has vanished is absent, and so is fetched.
#[tokio::test(flavor = "multi_thread")]
async fn f3_a_ciphertext_that_has_vanished_is_fetched_anew() {
    let environment = signed_in_with_key(ASKED, OTHER.secret_armor()).await;
    let source = new_source(&environment);
    let items = [says(&environment, &source, SAID), hands_over(&environment, &source, SAID)];
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    download(&environment, &items[1]).await;
    until_all(&mut watch, &items, "sealed").await;
    for path in files(&environment, "ciphertext") {
        std::fs::remove_file(path).unwrap();
    }
    put_key(&environment, NEWSROOM.secret_armor());
    for item in &items {
        download(&environment, item).await;
    }
    until_all(&mut watch, &items, "decrypted").await;
    for item in &items {
        assert_eq!(downloads(&environment, item), 2);
    }
    assert_eq!(said(&environment, &source, &items[0]).await.as_deref(), Some(SAID));
    assert_eq!(counts(&environment), [0, 0, 1]);
    environment.stop().await.unwrap();
}

/// Case F3: killed in the middle, everything is done once, and nothing is left of the work.
#[tokio::test(flavor = "multi_thread")]
async fn f3_a_daemon_that_was_killed_while_it_decrypts_goes_on_with_it() {
    let mut gpg = StandIn::fake();
    gpg.close_gate();
    let mut environment = signed_in(ASKED, gpg.key()).await;
    let source = new_source(&environment);
    let items = [says(&environment, &source, SAID), hands_over(&environment, &source, SAID)];
    refresh(&environment).await;
    download(&environment, &items[1]).await;
    gpg.until_begun(2).await;
    assert_eq!(counts(&environment), [2, 1, 0], "a file is decrypted under a name of its stage");
    environment.stop_daemon(Signal::SIGKILL).await.unwrap();
    assert_eq!(counts(&environment), [2, 1, 0]);
    gpg.open_gate();
    assert_eq!(gpg.left().await, [] as [u32; 0], "whoever served the killed daemon notices");
    gpg.begun().await;
    gpg.close_gate();
    environment.start_daemon().await.unwrap();
    // Nobody is signed in.
    gpg.until_begun(2).await;
    let mut watch = environment.watch().await.unwrap();
    assert_eq!(status(&environment).await["session"]["state"], "signed_out");
    gpg.open_gate();
    until_all(&mut watch, &items, "decrypted").await;
    assert_eq!(gpg.begun().await, 0, "each is decrypted once");
    assert_eq!(counts(&environment), [0, 0, 1]);
    assert_eq!(said(&environment, &source, &items[0]).await.as_deref(), Some(SAID));
    assert_eq!(std::fs::read_to_string(&files(&environment, "plaintext")[0]).unwrap(), SAID);
    for item in &items {
        assert_eq!(downloads(&environment, item), 1);
    }
    environment.stop().await.unwrap();
}
