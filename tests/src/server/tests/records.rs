//! The shapes of records, field by field, in a world made by hand.

use std::sync::Arc;

use super::*;

const SOURCE: &str = "11111111-1111-4111-8111-111111111111";
const KEYLESS: &str = "22222222-2222-4222-8222-222222222222";
const MESSAGE: &str = "33333333-3333-4333-8333-333333333333";
const FILE: &str = "44444444-4444-4444-8444-444444444444";
const REPLY: &str = "55555555-5555-4555-8555-555555555555";
const ANN: &str = "66666666-6666-4666-8666-666666666666";
const DELETED: &str = "77777777-7777-4777-8777-777777777777";

/// 2026-10-01T12:00:00.000250Z and the whole second after.
const EARLY: Timestamp = Timestamp::constant(1_790_856_000, 250_000);
const LATE: Timestamp = Timestamp::constant(1_790_856_001, 0);

fn world() -> World {
    let mut world = World::new();
    let journalist = |id: &str, username: &str| Journalist {
        id: id.into(),
        username: username.to_owned(),
        first_name: None,
        last_name: None,
        is_admin: false,
        account: None,
        last_login: None,
    };
    let ann = Journalist {
        first_name: Some("Ånn".to_owned()),
        is_admin: true,
        account: Some(MARLOW),
        ..journalist(ANN, MARLOW.username)
    };
    world.add_journalist(ann).unwrap();
    world.add_journalist(journalist(DELETED, DELETED_JOURNALIST)).unwrap();
    let key = Arc::new(SourceKey::new("F00D", "-----BEGIN-----\nComment: F00D\n\nabc\n-----END-----\n"));
    world.add_source(SOURCE.into(), "sea-green oboe".to_owned(), Some(key), EARLY).unwrap();
    world.add_source(KEYLESS.into(), "narrow gate".to_owned(), None, EARLY).unwrap();
    let source = SOURCE.into();
    world.add_submission(MESSAGE.into(), &source, SubmissionKind::Message, 616, EARLY).unwrap();
    world.add_submission(FILE.into(), &source, SubmissionKind::File, 70_000, LATE).unwrap();
    world.add_reply(REPLY.into(), &source, &DELETED.into(), 1_143).unwrap();
    world.mark_seen(&MESSAGE.into(), &ANN.into()).unwrap();
    world.mark_seen(&MESSAGE.into(), &DELETED.into()).unwrap();
    world.edit_source(&source, |source| source.is_starred = true).unwrap();
    world
}

async fn site(api: ApiFlavour) -> (Site, String) {
    let stable = SeenByOrder::Stable;
    let site = Site::start(ServerOptions { api, seen_by_order: stable, ..options(world()) }).await;
    let token = site.sign_in(MARLOW).await;
    (site, token)
}

fn source_json() -> Value {
    json!({
        "add_star_url": "/api/v1/sources/11111111-1111-4111-8111-111111111111/add_star",
        "interaction_count": 3,
        "is_flagged": false,
        "is_starred": true,
        "journalist_designation": "sea-green oboe",
        "key": {
            "fingerprint": "F00D",
            "public": "-----BEGIN-----\nComment: F00D\n\nabc\n-----END-----\n",
            "type": "PGP",
        },
        "last_updated": "2026-10-01T12:00:01.000000Z",
        "number_of_documents": 1,
        "number_of_messages": 1,
        "remove_star_url": "/api/v1/sources/11111111-1111-4111-8111-111111111111/remove_star",
        "replies_url": "/api/v1/sources/11111111-1111-4111-8111-111111111111/replies",
        "submissions_url": "/api/v1/sources/11111111-1111-4111-8111-111111111111/submissions",
        "url": "/api/v1/sources/11111111-1111-4111-8111-111111111111",
        "uuid": "11111111-1111-4111-8111-111111111111",
    })
}

fn message_json() -> Value {
    let source = "/api/v1/sources/11111111-1111-4111-8111-111111111111";
    json!({
        "download_url": format!("{source}/submissions/{MESSAGE}/download"),
        "filename": "1-sea-green_oboe-msg.gpg",
        "is_file": false,
        "is_message": true,
        "is_read": true,
        "seen_by": [ANN, DELETED],
        "size": 616,
        "source_url": source,
        "submission_url": format!("{source}/submissions/{MESSAGE}"),
        "uuid": MESSAGE,
    })
}

fn file_json() -> Value {
    let source = "/api/v1/sources/11111111-1111-4111-8111-111111111111";
    json!({
        "download_url": format!("{source}/submissions/{FILE}/download"),
        "filename": "2-sea-green_oboe-doc.gz.gpg",
        "is_file": true,
        "is_message": false,
        "is_read": false,
        "seen_by": [],
        "size": 70_000,
        "source_url": source,
        "submission_url": format!("{source}/submissions/{FILE}"),
        "uuid": FILE,
    })
}

fn reply_json() -> Value {
    let source = "/api/v1/sources/11111111-1111-4111-8111-111111111111";
    json!({
        "filename": "3-sea-green_oboe-reply.gpg",
        "is_deleted_by_source": false,
        "journalist_first_name": "",
        "journalist_last_name": "",
        "journalist_username": "deleted",
        "journalist_uuid": DELETED,
        "reply_url": format!("{source}/replies/{REPLY}"),
        "seen_by": [DELETED],
        "size": 1_143,
        "source_url": source,
        "uuid": REPLY,
    })
}

#[tokio::test]
async fn the_root_names_seven_addresses_to_anybody() {
    bounded(async {
        let site = Site::start(small()).await;
        let answer = site.get("/api/v1/").send().await.unwrap();
        assert_eq!(
            answer.text().await.unwrap(),
            "{\"all_users_url\":\"/api/v1/users\",\"auth_token_url\":\"/api/v1/token\",\
             \"current_user_url\":\"/api/v1/user\",\"replies_url\":\"/api/v1/replies\",\
             \"seen_url\":\"/api/v1/seen\",\"sources_url\":\"/api/v1/sources\",\
             \"submissions_url\":\"/api/v1/submissions\"}\n"
        );
    })
    .await;
}

#[tokio::test]
async fn a_source_is_the_same_alone_and_in_its_list() {
    bounded(async {
        let (site, token) = site(ApiFlavour::Classic).await;
        assert_eq!(site.read(&format!("/api/v1/sources/{SOURCE}"), &token).await, source_json());
        let sources = site.read("/api/v1/sources", &token).await;
        assert_eq!(sources.as_object().unwrap().len(), 1);
        assert_eq!(sources["sources"][0], source_json());
        let keyless = &sources["sources"][1];
        assert_eq!(keyless["key"], json!({"fingerprint": null, "public": null, "type": "PGP"}));
        assert_eq!(keyless["last_updated"], "2026-10-01T12:00:00.000250Z");
        assert_eq!(sources["sources"].as_array().unwrap().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn items_are_the_same_alone_and_in_both_lists() {
    bounded(async {
        let (site, token) = site(ApiFlavour::Classic).await;
        let of = format!("/api/v1/sources/{SOURCE}");
        let submissions = json!({"submissions": [message_json(), file_json()]});
        assert_eq!(site.read("/api/v1/submissions", &token).await, submissions);
        assert_eq!(site.read(&format!("{of}/submissions"), &token).await, submissions);
        assert_eq!(site.read(&format!("{of}/submissions/{FILE}"), &token).await, file_json());
        let replies = json!({"replies": [reply_json()]});
        assert_eq!(site.read("/api/v1/replies", &token).await, replies);
        assert_eq!(site.read(&format!("{of}/replies"), &token).await, replies);
        assert_eq!(site.read(&format!("{of}/replies/{REPLY}"), &token).await, reply_json());

        let of = format!("/api/v1/sources/{KEYLESS}");
        assert_eq!(site.read(&format!("{of}/submissions"), &token).await, json!({"submissions": []}));
        assert_eq!(site.read(&format!("{of}/replies"), &token).await, json!({"replies": []}));
        // The source in an item's address need not be the item's.
        assert_eq!(site.read(&format!("{of}/submissions/{MESSAGE}"), &token).await, message_json());
        assert_eq!(site.read(&format!("{of}/replies/{REPLY}"), &token).await, reply_json());
    })
    .await;
}

#[tokio::test]
async fn the_newer_flavour_has_more_fields_and_other_dates() {
    bounded(async {
        let (site, token) = site(ApiFlavour::Newer).await;
        let mut expected = source_json();
        expected["has_attachment"] = json!(true);
        expected["is_seen"] = json!(false);
        expected["last_updated"] = json!("2026-10-01T12:00:01");
        assert_eq!(site.read(&format!("/api/v1/sources/{SOURCE}"), &token).await, expected);
        let sources = site.read("/api/v1/sources", &token).await;
        let keyless = &sources["sources"][1];
        assert_eq!(keyless["last_updated"], "2026-10-01T12:00:00.000250");
        assert_eq!((&keyless["has_attachment"], &keyless["is_seen"]), (&json!(false), &json!(true)));
        let submissions = site.read("/api/v1/submissions", &token).await;
        assert_eq!(submissions["submissions"][0], message_json());
        assert_eq!(site.read("/api/v1/auth", &token).await, json!({}));
    })
    .await;
}

#[tokio::test]
async fn journalists_are_null_here_and_empty_there() {
    bounded(async {
        let (site, token) = site(ApiFlavour::Classic).await;
        assert_eq!(
            site.read("/api/v1/users", &token).await,
            json!({"users": [
                {"first_name": "Ånn", "last_name": null, "username": MARLOW.username, "uuid": ANN},
                {"first_name": null, "last_name": null, "username": "deleted", "uuid": DELETED},
            ]})
        );
        assert_eq!(
            site.read("/api/v1/user", &token).await,
            json!({
                "first_name": "Ånn",
                "is_admin": true,
                "last_login": "2026-11-02T08:30:00.000000Z",
                "last_name": null,
                "username": MARLOW.username,
                "uuid": ANN,
            })
        );
        let users = site.signed(Method::GET, "/api/v1/users", &token).send().await.unwrap();
        let text = users.text().await.unwrap();
        assert!(text.starts_with("{\"users\":[{\"first_name\":\"\\u00c5nn\",\"last_name\":null,"), "{text}");
        assert!(text.ends_with("]}\n"), "{text}");
    })
    .await;
}

#[tokio::test]
async fn an_item_downloaded_the_old_way_is_read_by_nobody() {
    bounded(async {
        let (site, token) = site(ApiFlavour::Classic).await;
        site.control().apply(Command::MarkDownloaded { item: FILE.into() }).unwrap();
        let submissions = site.read("/api/v1/submissions", &token).await;
        let file = &submissions["submissions"][1];
        assert_eq!((&file["is_read"], &file["seen_by"]), (&json!(true), &json!([])));
    })
    .await;
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    bounded(async {
        let (site, token) = site(ApiFlavour::Classic).await;
        let unknown = "00000000-0000-4000-8000-000000000000";
        for path in [
            format!("/api/v1/sources/{unknown}"),
            format!("/api/v1/sources/{unknown}/submissions"),
            format!("/api/v1/sources/{unknown}/replies"),
            format!("/api/v1/sources/{unknown}/submissions/{MESSAGE}"),
            format!("/api/v1/sources/{unknown}/replies/{REPLY}"),
            format!("/api/v1/sources/{SOURCE}/submissions/{unknown}"),
            format!("/api/v1/sources/{SOURCE}/submissions/{REPLY}"),
            format!("/api/v1/sources/{SOURCE}/replies/{MESSAGE}"),
            String::from("/api/v1/auth"),
        ] {
            refused(site.signed(Method::GET, &path, &token), 404, NOT_FOUND).await;
        }
    })
    .await;
}
