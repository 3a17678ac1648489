//! What is in lists, what is not, and in which order.

use std::collections::BTreeSet;

use super::*;

fn ids(list: &Value, name: &str) -> BTreeSet<String> {
    let records = list[name].as_array().unwrap();
    records.iter().map(|record| record["uuid"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn unlisted_sources_are_there_and_their_items_are_listed() {
    bounded(async {
        let site = Site::start(options(Recipe::new(40, 3).generate().unwrap())).await;
        let token = site.sign_in(MARLOW).await;
        let sources = ids(&site.read("/api/v1/sources", &token).await, "sources");
        assert_eq!(sources.len(), 40);
        let submissions = ids(&site.read("/api/v1/submissions", &token).await, "submissions");
        let replies = ids(&site.read("/api/v1/replies", &token).await, "replies");
        assert_eq!(submissions.len() + replies.len(), 42 * 3);

        let unlisted: Vec<Source> = site.control().with_world(|world| {
            world.sources().filter(|source| source.state != SourceState::Listed).cloned().collect()
        });
        assert_eq!(unlisted.len(), 2);
        for source in unlisted {
            assert!(!sources.contains(source.id.as_str()));
            let path = format!("/api/v1/sources/{}", source.id);
            assert_eq!(site.read(&path, &token).await["uuid"], source.id.as_str());
            let own = site.read(&format!("{path}/submissions"), &token).await;
            assert!(ids(&own, "submissions").is_subset(&submissions));
            let own = site.read(&format!("{path}/replies"), &token).await;
            assert!(ids(&own, "replies").is_subset(&replies));
        }
    })
    .await;
}

#[tokio::test]
async fn a_purge_takes_the_items_from_the_lists() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let source = first_source(&site);
        let of = |list: &Value, name: &str| {
            let url = format!("/api/v1/sources/{source}");
            list[name].as_array().unwrap().iter().filter(|item| item["source_url"] == url.as_str()).count()
        };
        let state = SourceState::MarkedDeleted;
        site.control().apply(Command::SetState { source: source.clone(), state }).unwrap();
        let submissions = site.read("/api/v1/submissions", &token).await;
        let replies = site.read("/api/v1/replies", &token).await;
        assert_eq!(of(&submissions, "submissions") + of(&replies, "replies"), 4);
        site.control().apply(Command::DeleteSource { source: source.clone() }).unwrap();
        let submissions = site.read("/api/v1/submissions", &token).await;
        let replies = site.read("/api/v1/replies", &token).await;
        assert_eq!(of(&submissions, "submissions") + of(&replies, "replies"), 0);
        refused(site.signed(Method::GET, &format!("/api/v1/sources/{source}"), &token), 404, NOT_FOUND).await;
    })
    .await;
}

#[tokio::test]
async fn marks_come_in_no_order_unless_asked() {
    bounded(async {
        for (seen_by_order, turns) in [(SeenByOrder::Alternating, true), (SeenByOrder::Stable, false)] {
            let site = Site::start(ServerOptions { seen_by_order, ..small() }).await;
            let token = site.sign_in(MARLOW).await;
            let source = first_source(&site);
            let Outcome::Item { uuid, .. } = site
                .control()
                .apply(Command::NewReply { source, journalist: "marlow".to_owned(), size: SMALLEST_REPLY })
                .unwrap()
            else {
                panic!("a reply is an item");
            };
            let seen = Command::MarkSeen { item: uuid.clone(), journalist: "ternberg".to_owned() };
            site.control().apply(seen).unwrap();
            let mut orders = Vec::new();
            for _ in 0..3 {
                let replies = site.read("/api/v1/replies", &token).await;
                let replies = replies["replies"].as_array().unwrap();
                let reply = replies.iter().find(|reply| reply["uuid"] == uuid.as_str()).unwrap();
                orders.push(reply["seen_by"].as_array().unwrap().clone());
            }
            assert_eq!(orders[0] != orders[1], turns);
            assert_eq!(orders[0], orders[2]);
            assert_eq!(orders[0].len(), 2);
        }
    })
    .await;
}

#[tokio::test]
async fn a_source_nobody_has_heard_of_was_updated_now() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let source = first_source(&site);
        site.control().apply(Command::ForgetLastUpdated { source: source.clone() }).unwrap();
        let mut dates = Vec::new();
        for _ in 0..2 {
            let sources = site.read("/api/v1/sources", &token).await;
            let sources = sources["sources"].as_array().unwrap();
            let source = sources.iter().find(|s| s["uuid"] == source.as_str()).unwrap();
            dates.push(source["last_updated"].as_str().unwrap().to_owned());
            site.control().apply(Command::AdvanceClock { seconds: 61 }).unwrap();
        }
        assert_eq!(dates, ["2026-11-02T08:30:00.000000Z", "2026-11-02T08:31:01.000000Z"]);
    })
    .await;
}

#[tokio::test]
async fn answers_are_compressed_only_on_request_and_only_as_an_option() {
    bounded(async {
        use std::io::Read;

        for gzip in [false, true] {
            let site = Site::start(ServerOptions { gzip, seen_by_order: SeenByOrder::Stable, ..small() }).await;
            let token = site.sign_in(MARLOW).await;
            let request = || site.signed(Method::GET, "/api/v1/submissions", &token);
            let plain = request().header("Accept-Encoding", "identity").send().await.unwrap();
            assert!(!plain.headers().contains_key("content-encoding"));
            let plain = plain.bytes().await.unwrap();
            let packed = request().header("Accept-Encoding", "gzip").send().await.unwrap();
            let encoding = packed.headers().get("content-encoding").map(|value| value.to_str().unwrap().to_owned());
            let packed = packed.bytes().await.unwrap();
            if gzip {
                assert_eq!(encoding.as_deref(), Some("gzip"));
                assert!(packed.len() < plain.len() / 2, "{} of {}", packed.len(), plain.len());
                let mut unpacked = Vec::new();
                flate2::read::GzDecoder::new(packed.as_ref()).read_to_end(&mut unpacked).unwrap();
                assert_eq!(unpacked, plain);
            } else {
                assert_eq!((encoding, packed), (None, plain));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_large_newsroom_is_served() {
    bounded(async {
        let site = Site::start(options(Recipe::new(1_000, 4).generate().unwrap())).await;
        let token = site.sign_in(MARLOW).await;
        for _ in 0..2 {
            let (sources, submissions, replies, users) = tokio::join!(
                site.read("/api/v1/sources", &token),
                site.read("/api/v1/submissions", &token),
                site.read("/api/v1/replies", &token),
                site.read("/api/v1/users", &token),
            );
            assert_eq!(ids(&sources, "sources").len(), 1_000);
            let items = ids(&submissions, "submissions").len() + ids(&replies, "replies").len();
            assert_eq!(items, 1_040 * 4);
            assert_eq!(ids(&users, "users").len(), 3);
        }
    })
    .await;
}
