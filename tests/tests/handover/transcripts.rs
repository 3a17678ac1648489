//! Conversations as plain texts.

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_transcript_is_the_whole_conversation_in_its_order_and_marks_nothing_seen() {
    let environment = signed_in().await;
    let source = new_source(&environment, Some("candid marmot"));
    let items = [says(&environment, &source, "First.\nSecond line."), says(&environment, &source, "Later.")];
    let file = hands_over(&environment, &source, b"ledger.pdf", SAID.as_bytes());
    fetch(&environment, &items).await;
    // It stays here: what waits is part of it, and what is only begun is not.
    succeeds(&environment, &["pause"]).await;
    environment.listed_with_keys().await.unwrap();
    succeeds(&environment, &["reply", source.as_str(), "--message", "Thank you."]).await;
    succeeds(&environment, &["reply", source.as_str(), "--draft", "--message", "not this"]).await;
    let text = succeeds(&environment, &["transcript", "candid marmot"]).await;
    let places = ["Conversation with candid marmot\n", "    First.\n    Second line.\n", "    Later.\n", "Thank you."]
        .map(|part| text.find(part).unwrap());
    assert!(places.is_sorted(), "{text}");
    for part in ["1  message  ", "  source  ", "3  file  ", "not here", "not sent yet", "  you  "] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!text.contains("not this") && !text.contains("`splitdrop"), "{text}");
    assert!(text.contains(file.as_str().get(..8).unwrap()), "{text}");
    let shown = environment.json(&["show", source.as_str()], "").await.unwrap();
    assert!(shown["items"].as_array().unwrap().iter().all(|item| item["unread"] == true));
    let answer = environment.json(&["transcript", source.as_str()], "").await.unwrap();
    assert_eq!(answer["transcript"], text.as_str());
    let told = fails(&environment, &["transcript", "nobody"], 6).await;
    assert!(told.contains("no such source"), "{told}");
    environment.stop().await.unwrap();
}
