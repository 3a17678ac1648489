//! An act shows at once, and completes without a sync.

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_star_shows_before_it_is_sent_and_completes_without_a_sync() {
    let environment = signed_in(3, 2).await;
    let id = ids(&environment).await.into_iter().next().unwrap();
    let starred = source(&environment, &id).await.unwrap()["starred"].as_bool().unwrap();
    let command = if starred { "unstar" } else { "star" };
    let mut watch = environment.watch().await.unwrap();
    environment.json(&[command, &id], "").await.unwrap();
    // In the order in which front ends hear of it.
    assert_eq!(step(&mut watch).await.1, "taken");
    assert_eq!(watch.next().await.unwrap()["event"], "sources_changed");
    assert_eq!(step(&mut watch).await.1, "started");
    until_step(&mut watch, "confirmed").await;
    assert_eq!(source(&environment, &id).await.unwrap()["starred"], !starred);
    assert_eq!(queue(&environment).await, [] as [serde_json::Value; 0]);
    assert_eq!(changes(&environment).total(), 1);
    environment.stop().await.unwrap();
}

/// The names of events and, of acts, their steps, up to one's last.
async fn story(watch: &mut staging::environment::Watch, act: u64) -> Vec<String> {
    let mut story = Vec::new();
    loop {
        let event = watch.next().await.unwrap();
        let name = event["event"].as_str().unwrap();
        let of_act = name == "act";
        // On a busy machine the proxy takes its time to start, and what was found of keys may be told late.
        if name == "proxy_waiting" || !of_act && story.is_empty() {
            continue;
        }
        assert!(!of_act || event["act"] == act, "{event}");
        story.push(event["step"].as_str().filter(|_| of_act).unwrap_or(name).to_owned());
        if event["step"] == "confirmed" {
            return story;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_front_end_is_told_in_the_same_order() {
    let environment = signed_in(3, 2).await;
    let sources = ids(&environment).await;
    let mut watches = [environment.watch().await.unwrap(), environment.watch().await.unwrap()];
    let starred = source(&environment, &sources[0]).await.unwrap()["starred"].as_bool().unwrap();
    let command = if starred { "unstar" } else { "star" };
    for arguments in [&[command, &sources[0]][..], &["delete", "source", &sources[1], "--yes"]] {
        let act = act(&environment, arguments).await;
        for watch in &mut watches {
            // What shows has changed before anybody is told that the server agrees.
            assert_eq!(
                story(watch, act).await,
                ["taken", "sources_changed", "started", "sources_changed", "confirmed"],
                "{arguments:?}"
            );
        }
    }
    environment.stop().await.unwrap();
}
