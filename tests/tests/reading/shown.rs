//! What a conversation shows of what was decrypted.

use serde_json::json;
use staging::environment::KeyAccess;
use staging::server::{Body, Reader, SubmissionKind};

use crate::support::*;

/// What a source encrypted once more is opened where that can be done, and said where not.
#[tokio::test(flavor = "multi_thread")]
async fn messages_inside_are_opened_or_said_to_be_closed() {
    let environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let inside = |reader, body| Body::Armored { reader, body: Box::new(body) };
    let file = || packed(b"box.txt", SAID.as_bytes(), staging::server::GzipFlaw::None);
    let items = [
        sends(&environment, &source, SubmissionKind::Message, text(SAID)),
        sends(&environment, &source, SubmissionKind::Message, inside(Reader::Newsroom, text(SAID))),
        sends(&environment, &source, SubmissionKind::Message, inside(Reader::Stranger, text(SAID))),
        sends(&environment, &source, SubmissionKind::File, file()),
        sends(&environment, &source, SubmissionKind::File, inside(Reader::Newsroom, text(SAID))),
        sends(&environment, &source, SubmissionKind::File, inside(Reader::Stranger, file())),
    ];
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    environment.json(&["download", "--all", "--no-wait"], "").await.unwrap();
    until_all(&mut watch, &items, "decrypted").await;
    let shown = environment.json(&["show", source.as_str()], "").await.unwrap();
    for (at, (inner, readable)) in
        [("none", true), ("opened", true), ("closed", false), ("none", true), ("opened", true), ("closed", false)]
            .into_iter()
            .enumerate()
    {
        let shown = shown["items"].as_array().unwrap().iter().find(|item| item["uuid"] == items[at].as_str()).unwrap();
        assert_eq!(shown["content"]["inner"], inner, "{shown}");
        match (at, readable) {
            (0..=2, true) => assert_eq!(shown["text"], SAID),
            (0..=2, false) => assert!(shown["text"].as_str().unwrap().starts_with("-----BEGIN PGP MESSAGE-----")),
            (_, true) => assert_eq!(shown["content"]["bytes"], SAID.len()),
            (_, false) => assert_ne!(shown["content"]["bytes"], SAID.len()),
        }
    }
    let printed = environment.run(["show", source.as_str()], "").await.unwrap().stdout;
    // As one line: long ones are broken.
    let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(printed.matches("encrypted inside too, and opened").count(), 2, "{printed}");
    assert_eq!(printed.matches("encrypted inside too, and cannot be decrypted here").count(), 2, "{printed}");
    assert_eq!(counts(&environment), [0, 0, 3]);
    environment.stop().await.unwrap();
}

/// Whatever a text holds, it moves no cursor and turns no line round.
#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_text_is_shown_inert() {
    let environment = signed_in(ASKED, KeyAccess::File).await;
    let source = new_source(&environment);
    let hostile = "a\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}31m\u{202e}txt.exe\u{2066}\u{200b}\u{0}\r\nsecond\tline\u{85}\u{2028}ß 海鸥";
    let bytes = [b"caf\xe9 \xff\xfe\x1b[1m".as_slice(), "\u{202e}".as_bytes()].concat();
    let items = [
        sends(&environment, &source, SubmissionKind::Message, text(hostile)),
        sends(&environment, &source, SubmissionKind::Message, Body::Bytes { bytes }),
        sends(&environment, &source, SubmissionKind::Message, text("")),
    ];
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    until_all(&mut watch, &items, "decrypted").await;
    assert_eq!(said(&environment, &source, &items[0]).await.as_deref(), Some(hostile), "JSON holds it as it came");
    for arguments in [&["show", source.as_str()][..], &["show", source.as_str(), "--json"]] {
        let printed = environment.run(arguments, "").await.unwrap().stdout;
        assert_inert(&printed);
        assert!(printed.contains("ß 海鸥") && printed.contains("second"), "{printed}");
    }
    assert_eq!(said(&environment, &source, &items[2]).await, Some(String::new()));
    assert_eq!(status(&environment).await["lanes"]["decrypt"], json!({ "waiting": 0, "running": 0, "failed": 0 }));
    environment.stop().await.unwrap();
}
