//! The other side, from inside and over HTTP.

use super::*;

fn item(outcome: Outcome) -> (RecordId, String) {
    let Outcome::Item { uuid, filename } = outcome else {
        panic!("not an item: {outcome:?}");
    };
    (uuid, filename)
}

#[tokio::test]
async fn a_source_arrives_and_talks() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let control = site.control();
        let designation = Some("brisk lantern".to_owned());
        let arrival = Command::NewSource { designation, key: KeyChoice::Pool(1), state: SourceState::Listed };
        let Outcome::Source { uuid: source, designation } = control.apply(arrival).unwrap() else {
            panic!("a source is a source");
        };
        assert_eq!(designation, "brisk lantern");
        control.apply(Command::AdvanceClock { seconds: 5 }).unwrap();
        let (message, name) = item(control.apply(Command::NewMessage { source: source.clone(), size: 700 }).unwrap());
        assert_eq!(name, "1-brisk_lantern-msg.gpg");
        let (_, name) = item(control.apply(Command::NewFile { source: source.clone(), size: 900 }).unwrap());
        assert_eq!(name, "2-brisk_lantern-doc.gz.gpg");
        let reply = Command::NewReply { source: source.clone(), journalist: "ternberg".to_owned(), size: 1_200 };
        let (reply, name) = item(control.apply(reply).unwrap());
        assert_eq!(name, "3-brisk_lantern-reply.gpg");
        control.apply(Command::Star { source: source.clone() }).unwrap();

        let path = format!("/api/v1/sources/{source}");
        let record = site.read(&path, &token).await;
        assert_eq!(record["interaction_count"], 3);
        assert_eq!(record["last_updated"], "2026-11-02T08:30:05.000000Z");
        assert_eq!((&record["number_of_messages"], &record["number_of_documents"]), (&json!(1), &json!(1)));
        assert_eq!(record["is_starred"], true);
        assert!(record["key"]["public"].as_str().unwrap().contains("Comment: Source Key <"));
        let sources = site.read("/api/v1/sources", &token).await;
        assert!(sources["sources"].as_array().unwrap().contains(&record));

        let seen = Command::MarkSeen { item: message.clone(), journalist: "ternberg".to_owned() };
        control.apply(seen).unwrap();
        control.apply(Command::DeleteReplyBySource { reply: reply.clone() }).unwrap();
        control.apply(Command::Unstar { source: source.clone() }).unwrap();
        control.apply(Command::SetKey { source: source.clone(), key: KeyChoice::None }).unwrap();
        let record = site.read(&format!("{path}/submissions/{message}"), &token).await;
        assert_eq!((&record["is_read"], record["seen_by"].as_array().unwrap().len()), (&json!(true), 1));
        assert_eq!(site.read(&format!("{path}/replies/{reply}"), &token).await["is_deleted_by_source"], true);
        let record = site.read(&path, &token).await;
        assert_eq!((&record["is_starred"], &record["key"]["public"]), (&json!(false), &Value::Null));

        control.apply(Command::DeleteItem { item: message.clone() }).unwrap();
        refused(site.signed(Method::GET, &format!("{path}/submissions/{message}"), &token), 404, NOT_FOUND).await;
        control.apply(Command::DeleteConversation { source: source.clone() }).unwrap();
        assert_eq!(site.read(&format!("{path}/replies"), &token).await, json!({"replies": []}));
        assert_eq!(site.read(&path, &token).await["interaction_count"], 3);
    })
    .await;
}

#[tokio::test]
async fn lists_show_a_change_at_once() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let source = first_source(&site);
        let count = async || {
            let list = site.read("/api/v1/submissions", &token).await;
            list["submissions"].as_array().unwrap().len()
        };
        let before = count().await;
        for more in 1..=4 {
            site.control().apply(Command::NewMessage { source: source.clone(), size: SMALLEST_MESSAGE }).unwrap();
            assert_eq!(count().await, before + more);
        }
    })
    .await;
}

#[tokio::test]
async fn designations_of_newcomers_are_new() {
    bounded(async {
        let site = Site::start(small()).await;
        for _ in 0..50 {
            let command = Command::NewSource { designation: None, key: KeyChoice::Any, state: SourceState::Listed };
            site.control().apply(command).unwrap();
        }
        site.control().with_world(|world| {
            let all: Vec<_> = world.sources().map(|source| source.designation.as_str()).collect();
            let different: std::collections::BTreeSet<_> = all.iter().collect();
            assert_eq!(different.len(), all.len());
            assert!(world.sources().all(|source| source.designation.split(' ').count() == 2));
        });
    })
    .await;
}

#[tokio::test]
async fn a_refused_command_says_why() {
    bounded(async {
        let site = Site::start(small()).await;
        let control = site.control();
        let ghost = || RecordId::from("ghost");
        let revision = control.with_world(World::revision);
        let refusals = [
            (Command::Star { source: ghost() }, ControlError::World(WorldError::NoSource(ghost()))),
            (
                Command::NewFile { source: ghost(), size: SMALLEST_FILE },
                ControlError::World(WorldError::NoSource(ghost())),
            ),
            (Command::DeleteItem { item: ghost() }, ControlError::World(WorldError::NoItem(ghost()))),
            (Command::LoseFile { item: ghost() }, ControlError::World(WorldError::NoItem(ghost()))),
            (
                Command::NewReply { source: first_source(&site), journalist: "ghost".to_owned(), size: SMALLEST_REPLY },
                ControlError::World(WorldError::NoJournalist("ghost".to_owned())),
            ),
            (Command::SetKey { source: first_source(&site), key: KeyChoice::Pool(99) }, ControlError::NoKey(99)),
            (
                Command::NewSource {
                    designation: Some("one".to_owned()),
                    key: KeyChoice::Any,
                    state: SourceState::Listed,
                },
                ControlError::Designation("one".to_owned()),
            ),
            (Command::RemoveFault { id: 7 }, ControlError::NoFault(7)),
            (Command::ReleaseAnswers { id: 7 }, ControlError::NoFault(7)),
            (
                Command::AddFault { fault: Fault::new(Matching::path("/"), FaultAct::html(42, "")) },
                ControlError::Fault(FaultError::Status(42)),
            ),
        ];
        for (command, error) in refusals {
            assert_eq!(control.apply(command), Err(error));
        }
        assert_eq!(control.with_world(World::revision), revision);
    })
    .await;
}

#[tokio::test]
async fn a_deleted_journalist_is_out_and_the_replies_stay() {
    bounded(async {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let other = site.sign_in(TERNBERG).await;
        let source = first_source(&site);
        let reply = Command::NewReply { source, journalist: "ternberg".to_owned(), size: SMALLEST_REPLY };
        let (reply, _) = item(site.control().apply(reply).unwrap());
        site.control().apply(Command::DeleteJournalist { journalist: "ternberg".to_owned() }).unwrap();
        refused(site.signed(Method::GET, "/api/v1/user", &other), 403, NOT_SIGNED_IN).await;
        let replies = site.read("/api/v1/replies", &token).await;
        let replies = replies["replies"].as_array().unwrap();
        let record = replies.iter().find(|record| record["uuid"] == reply.as_str()).unwrap();
        assert_eq!(record["journalist_username"], "deleted");
        assert_eq!(record["seen_by"], json!([record["journalist_uuid"]]));
    })
    .await;
}

#[tokio::test]
async fn a_person_can_drive_a_server_by_http() {
    bounded(async {
        let control_listener = Some(ServerOptions::LOOPBACK);
        let site = Site::start(ServerOptions { control_listener, ..small() }).await;
        let origin = site.server.control_origin().unwrap();
        assert_ne!(origin, site.server.origin());
        let order = |body: Value| site.client.post(format!("{origin}/control")).json(&body).send();

        let outcome = json_of(order(json!({"do": "new_source"})).await.unwrap()).await;
        let source = outcome["source"]["uuid"].as_str().unwrap();
        assert_eq!(outcome["source"]["designation"].as_str().unwrap().split(' ').count(), 2);
        let outcome = json_of(order(json!({"do": "new_message", "source": source})).await.unwrap()).await;
        assert!(outcome["item"]["filename"].as_str().unwrap().starts_with("1-"));
        let fault = json!({"matching": {"path": "/api/v1/users"}, "times": 1, "act": {"kind": "drop"}});
        let outcome = json_of(order(json!({"do": "add_fault", "fault": fault})).await.unwrap()).await;
        assert_eq!(outcome, json!({"fault": {"id": 1}}));
        assert!(site.get("/api/v1/users").send().await.is_err());
        let outcome = json_of(order(json!({"do": "advance_clock", "seconds": 60})).await.unwrap()).await;
        assert_eq!(outcome, json!({"time": {"now": "2026-11-02T08:31:00Z"}}));
        assert_eq!(json_of(order(json!({"do": "clear_faults"})).await.unwrap()).await, json!("done"));

        assert_eq!(json_of(order(json!({"do": "freeze_lists"})).await.unwrap()).await, json!("done"));
        assert_eq!(json_of(order(json!({"do": "thaw_lists"})).await.unwrap()).await, json!("done"));
        let gone = json!({"do": "set_state", "source": source, "state": "marked_deleted"});
        assert_eq!(json_of(order(gone).await.unwrap()).await, json!("done"));
        let outcome = json_of(order(json!({"do": "purge"})).await.unwrap()).await;
        assert_eq!(outcome, json!({"purged": {"sources": 2}}));

        let requests = site.client.get(format!("{origin}/control/requests")).send().await.unwrap();
        let requests: Vec<LoggedRequest> = requests.json().await.unwrap();
        assert_eq!(requests.len(), 1);
        assert_eq!((requests[0].path.as_str(), requests[0].status), ("/api/v1/users", None));
        let faults = site.client.get(format!("{origin}/control/faults")).send().await.unwrap();
        assert_eq!(json_of(faults).await, json!([]));
    })
    .await;
}

#[tokio::test]
async fn what_is_no_command_is_refused_over_http() {
    bounded(async {
        let control_listener = Some(ServerOptions::LOOPBACK);
        let site = Site::start(ServerOptions { control_listener, ..small() }).await;
        let url = format!("{}/control", site.server.control_origin().unwrap());
        let refused = async |request: RequestBuilder, status: u16| {
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), status);
            let error: Value = answer.json().await.unwrap();
            error["error"].as_str().unwrap().to_owned()
        };
        let post = |body: &str| site.client.post(&url).header("Content-Type", "application/json").body(body.to_owned());
        refused(post("{"), 400).await;
        refused(post(r#"{"do": "fly"}"#), 422).await;
        refused(post(r#"{"do": "new_source", "colour": "red"}"#), 422).await;
        let error = refused(post(r#"{"do": "star", "source": "ghost"}"#), 422).await;
        assert_eq!(error, "there is no source ghost");
        // A page in a browser may send this unasked.
        refused(site.client.post(&url).body(r#"{"do": "clear_log"}"#), 415).await;
    })
    .await;
}

#[tokio::test]
async fn commands_are_not_taken_on_the_apis_origin_or_from_afar() {
    bounded(async {
        let control_listener = Some(ServerOptions::LOOPBACK);
        let site = Site::start(ServerOptions { control_listener, ..small() }).await;
        let token = site.sign_in(MARLOW).await;
        let request = site.signed(Method::POST, "/control", &token).json(&json!({"do": "new_source"}));
        refused(request, 404, NOT_FOUND).await;
        let api_on_control = site.client.get(format!("{}/api/v1/", site.server.control_origin().unwrap()));
        assert_eq!(api_on_control.send().await.unwrap().status(), 404);

        let afar = "0.0.0.0:0".parse().unwrap();
        let error = Server::start(ServerOptions { control_listener: Some(afar), ..small() }).await.unwrap_err();
        assert!(matches!(error, ServerError::ControlNotLoopback(address) if address == afar));
        assert!(Site::start(small()).await.server.control_origin().is_none());
    })
    .await;
}

#[tokio::test]
async fn a_person_can_see_by_http_what_was_changed() {
    bounded(async {
        let control_listener = Some(ServerOptions::LOOPBACK);
        let site = Site::start(ServerOptions { control_listener, ..small() }).await;
        let token = site.sign_in(MARLOW).await;
        let source = first_source(&site);
        let item = site.control().with_world(|world| world.replies().next().unwrap().id.clone());
        let changes = async || {
            let url = format!("{}/control/changes", site.server.control_origin().unwrap());
            json_of(site.client.get(url).send().await.unwrap()).await
        };
        assert_eq!(changes().await, json!([]));
        site.control().apply(Command::Unstar { source: source.clone() }).unwrap();
        let path = |act: &str| format!("/api/v1/sources/{source}/{act}");
        for (method, act) in [(Method::POST, "add_star"), (Method::DELETE, "remove_star"), (Method::POST, "add_star")] {
            assert!(site.signed(method, &path(act), &token).send().await.unwrap().status().is_success());
        }
        let delete = site.signed(Method::DELETE, &path(&format!("replies/{item}")), &token);
        assert_eq!(delete.send().await.unwrap().status(), 200);
        assert_eq!(
            changes().await,
            json!([
                {"change": "star_set", "source": source.as_str(), "times": 2},
                {"change": "star_removed", "source": source.as_str(), "times": 1},
                {"change": "reply_deleted", "reply": item.as_str(), "times": 1},
            ])
        );
    })
    .await;
}

#[test]
fn commands_survive_json() {
    let commands = [
        Command::Purge,
        Command::FreezeLists,
        Command::ThawLists,
        Command::LoseFile { item: "a".into() },
        Command::ReleaseAnswers { id: 3 },
        Command::AddFault { fault: Fault::new(Matching::path("/a"), FaultAct::HoldAnswer) },
        Command::NewSource { designation: None, key: KeyChoice::Pool(2), state: SourceState::Pending },
        Command::ClearFaults,
        Command::AddFault {
            fault: Fault::new(
                Matching::method("GET", "/a/*"),
                FaultAct::BadRecord { which: Which::Index(3), edits: vec![Edit::set("/a", 1.5), Edit::remove("/b")] },
            )
            .times(2)
            .after_ms(7),
        },
    ];
    for command in commands {
        let text = serde_json::to_string(&command).unwrap();
        assert_eq!(serde_json::from_str::<Command>(&text).unwrap(), command, "{text}");
    }
}
