//! What cannot be decrypted or unpacked: it leaves nothing, and says why.

use std::collections::BTreeMap;

use nix::sys::signal::Signal;
use serde_json::Value;
use staging::environment::{Environment, KeyAccess};
use staging::server::{Body, GzipFlaw, Protection, Reader, RecordId, Seal, SubmissionKind};

use crate::support::*;

const FILE: SubmissionKind = SubmissionKind::File;
const MESSAGE: SubmissionKind = SubmissionKind::Message;

/// Fetches everything, and waits until nothing of it is to be opened; gives how each is shown.
async fn contents(environment: &Environment, source: &RecordId, items: &[RecordId]) -> BTreeMap<String, Value> {
    let mut watch = environment.watch().await.unwrap();
    refresh(environment).await;
    environment.json(&["download", "--all", "--no-wait"], "").await.unwrap();
    let mut left = items.len();
    while left > 0 {
        let event = watch.until("read").await.unwrap();
        if event["step"] == "sealed" || event["step"] == "decrypted" {
            left -= 1;
        }
    }
    let shown = environment.json(&["show", source.as_str()], "").await.unwrap();
    let item = |item: &Value| (item["uuid"].as_str().unwrap().to_owned(), item.clone());
    shown["items"].as_array().unwrap().iter().map(item).collect()
}

/// Checks that the items are sealed like this, and that each has its ciphertext and nothing else.
async fn assert_sealed(environment: &Environment, source: &RecordId, expected: &[(RecordId, &str)]) {
    let items: Vec<_> = expected.iter().map(|(item, _)| item.clone()).collect();
    let shown = contents(environment, source, &items).await;
    for (item, seal) in expected {
        let shown = &shown[item.as_str()];
        let content = &shown["content"];
        assert_eq!((&content["state"], &content["seal"]), (&"sealed".into(), &(*seal).into()), "{shown}");
        assert!(!content["reason"].as_str().unwrap().is_empty(), "{shown}");
        assert_eq!((&shown["text"], &content["name"], &content["bytes"]), (&Value::Null, &Value::Null, &Value::Null));
        assert_eq!(downloads(environment, item), 1);
    }
    assert_eq!(counts(environment), [expected.len(), 0, 0]);
    let lane = status(environment).await["lanes"]["decrypt"].clone();
    assert_eq!((&lane["waiting"], &lane["failed"]), (&0.into(), &expected.len().into()));
    assert_eq!(files_with(environment.directory(), SAID.as_bytes()), Vec::<std::path::PathBuf>::new());
}

/// Case F4.
#[tokio::test(flavor = "multi_thread")]
async fn f4_a_broken_pack_leaves_nothing_and_says_what_is_wrong() {
    let environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let said = SAID.repeat(100);
    let packed = |flaw| sends(&environment, &source, FILE, packed(b"box.txt", said.as_bytes(), flaw));
    let expected = [
        (packed(GzipFlaw::Cut(1)), "cut"),
        (packed(GzipFlaw::Cut(9)), "cut"),
        (packed(GzipFlaw::Sum), "corrupt"),
        (packed(GzipFlaw::Length), "corrupt"),
        (packed(GzipFlaw::Data), "corrupt"),
        (packed(GzipFlaw::Trailing), "corrupt"),
    ];
    assert_sealed(&environment, &source, &expected).await;
    environment.stop().await.unwrap();
}

/// Case F4: of a message that is cut, changed, not protected or none at all, nothing is shown, though most of it could be.
#[tokio::test(flavor = "multi_thread")]
async fn f4_a_broken_message_leaves_nothing_and_says_what_is_wrong() {
    let environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let mut expected = Vec::new();
    for (protection, cut, seal) in [
        (Protection::Code, 1, "cut"),
        (Protection::Code, 30, "cut"),
        (Protection::WrongCode, 0, "corrupt"),
        (Protection::None, 0, "corrupt"),
    ] {
        let seals = Seal { protection, cut, ..Seal::default() };
        let file = packed(b"box.txt", SAID.as_bytes(), GzipFlaw::None);
        expected.push((sends_sealed(&environment, &source, MESSAGE, text(SAID), seals), seal));
        expected.push((sends_sealed(&environment, &source, FILE, file, seals), seal));
    }
    assert_sealed(&environment, &source, &expected).await;
    environment.stop().await.unwrap();
}

/// Case F5.
#[tokio::test(flavor = "multi_thread")]
async fn f5_a_bomb_is_told_and_leaves_nothing() {
    let environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let bomb = Body::Zeros { name: Some(b"zeros".to_vec()), length: 100 << 20 };
    let long = "x".repeat(1 << 20);
    let expected = [
        (sends(&environment, &source, FILE, bomb), "too_large"),
        (sends(&environment, &source, MESSAGE, text(&long)), "too_large"),
    ];
    assert_sealed(&environment, &source, &expected).await;
    environment.stop().await.unwrap();
}

/// Case F5: a pack in a pack is unpacked once, and of messages in messages two layers are opened.
#[tokio::test(flavor = "multi_thread")]
async fn f5_layers_are_bounded() {
    let environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let layers =
        |count| (0..count).fold(text(SAID), |body, _| Body::Armored { reader: Reader::Newsroom, body: body.into() });
    let items = [sends(&environment, &source, MESSAGE, layers(1)), sends(&environment, &source, MESSAGE, layers(5))];
    let shown = contents(&environment, &source, &items).await;
    assert_eq!(shown[items[0].as_str()]["text"], SAID);
    let deep = &shown[items[1].as_str()];
    assert_eq!((&deep["content"]["state"], &deep["content"]["inner"]), (&"decrypted".into(), &"opened".into()));
    assert!(deep["text"].as_str().unwrap().starts_with("-----BEGIN PGP MESSAGE-----"), "{deep}");
    assert_eq!(counts(&environment), [0, 0, 0]);
    environment.stop().await.unwrap();
}

/// Case F6: which keys would do is said wherever the item is shown, and what nobody can read does not hold up the rest.
#[tokio::test(flavor = "multi_thread")]
async fn f6_what_is_for_a_strangers_key_is_named_and_stays() {
    let environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let seal = Seal { reader: Reader::Stranger, ..Seal::default() };
    let item = sends_sealed(&environment, &source, MESSAGE, text(SAID), seal);
    assert_sealed(&environment, &source, &[(item.clone(), "no_key")]).await;
    let recipients = environment.server().control().recipients(&item).await.unwrap();
    let content = self::item(&environment, &source, &item).await["content"].clone();
    assert!(content["reason"].as_str().unwrap().contains(&recipients[0].key_id), "{content}");
    let shown = environment.run(["show", source.as_str()], "").await.unwrap().stdout;
    assert!(shown.contains("cannot be decrypted") && shown.contains(&recipients[0].key_id), "{shown}");
    let mut watch = environment.watch().await.unwrap();
    let next = says(&environment, &source, "readable");
    refresh(&environment).await;
    until(&mut watch, "read", &next, "decrypted").await;
    assert_eq!(state(&environment, &source, &item).await, "sealed");
    environment.stop().await.unwrap();
}

/// Case F6: it is tried again when the keys have changed, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn f6_what_misses_a_key_is_tried_again_when_a_refresh_or_a_start_finds_another_one() {
    let mut environment = signed_in_with_key(ASKED, OTHER.secret_armor()).await;
    let source = new_source(&environment);
    let mut watch = environment.watch().await.unwrap();
    let first = says(&environment, &source, SAID);
    refresh(&environment).await;
    until(&mut watch, "read", &first, "sealed").await;
    let content = item(&environment, &source, &first).await["content"].clone();
    assert_eq!(content["seal"], "no_key");
    assert_eq!(status(&environment).await["lanes"]["decrypt"]["failed"], 1);
    // The same keys: each refresh finds nothing new, and what comes meanwhile shows that nothing was tried again.
    for _ in 0..3 {
        refresh(&environment).await;
    }
    let second = says(&environment, &source, SAID);
    refresh(&environment).await;
    loop {
        let event = watch.until("read").await.unwrap();
        assert_eq!(event["item"], second.as_str(), "{event}");
        if event["step"] == "sealed" {
            break;
        }
    }
    // The key is there, and nobody has looked.
    put_key(&environment, &format!("{}\n{}", OTHER.secret_armor(), NEWSROOM.secret_armor()));
    status(&environment).await;
    for item in [&first, &second] {
        assert_eq!(state(&environment, &source, item).await, "sealed");
    }
    refresh(&environment).await;
    until_all(&mut watch, &[first.clone(), second.clone()], "decrypted").await;
    assert_eq!(said(&environment, &source, &first).await.as_deref(), Some(SAID));
    // The same with a start in the place of a refresh.
    put_key(&environment, OTHER.secret_armor());
    let third = says(&environment, &source, SAID);
    refresh(&environment).await;
    until(&mut watch, "read", &third, "sealed").await;
    for (key, expected) in [(OTHER.secret_armor(), "sealed"), (NEWSROOM.secret_armor(), "decrypted")] {
        environment.stop_daemon(Signal::SIGTERM).await.unwrap();
        put_key(&environment, key);
        environment.start_daemon().await.unwrap();
        let mut watch = environment.watch().await.unwrap();
        if expected == "decrypted" && state(&environment, &source, &third).await != expected {
            until(&mut watch, "read", &third, expected).await;
        }
        assert_eq!(state(&environment, &source, &third).await, expected);
    }
    for item in [&first, &second, &third] {
        assert_eq!(downloads(&environment, item), 1);
    }
    environment.stop().await.unwrap();
}
