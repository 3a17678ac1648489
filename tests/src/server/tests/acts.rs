//! What journalists do: bodies and statuses letter by letter, each oddity, and what is counted.

use super::*;

pub(super) const MALFORMED: &str = "{\"error\":\"Bad Request\",\"message\":\"malformed request\"}\n";
pub(super) const INTERNAL: &str = "{\"error\":\"Internal Server Error\",\"message\":\"The server encountered an internal error and was \
                        unable to complete your request. Either the server is overloaded or there is an error in the \
                        application.\"}\n";
pub(super) const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

/// A server, a journalist, and a source with an item of each kind.
struct Room {
    site: Site,
    token: String,
    journalist: RecordId,
    source: RecordId,
    message: RecordId,
    file: RecordId,
    reply: RecordId,
}

impl Room {
    async fn open() -> Self {
        Self::with(small()).await
    }

    async fn with(options: ServerOptions) -> Self {
        let site = Site::start(options).await;
        let token = site.sign_in(MARLOW).await;
        let control = site.control();
        let journalist = control.with_world(|world| world.journalist_named(MARLOW.username).unwrap().id.clone());
        let item = |command| match control.apply(command).unwrap() {
            Outcome::Item { uuid, .. } => uuid,
            other => panic!("not an item: {other:?}"),
        };
        let source = newcomer(control);
        let message = item(Command::NewMessage { source: source.clone(), size: 600 });
        let file = item(Command::NewFile { source: source.clone(), size: 900 });
        let ternberg = TERNBERG.username.to_owned();
        let reply = item(Command::NewReply { source: source.clone(), journalist: ternberg, size: SMALLEST_REPLY });
        Self { token, journalist, source, message, file, reply, site }
    }

    fn control(&self) -> &Control {
        self.site.control()
    }

    fn act(&self, method: Method, path: &str) -> RequestBuilder {
        self.site.signed(method, path, &self.token)
    }

    fn star(&self) -> RequestBuilder {
        self.act(Method::POST, &self.path("/add_star"))
    }

    fn unstar(&self) -> RequestBuilder {
        self.act(Method::DELETE, &self.path("/remove_star"))
    }

    fn delete(&self, rest: &str) -> RequestBuilder {
        self.act(Method::DELETE, &self.path(rest))
    }

    fn seen(&self, body: &Value) -> RequestBuilder {
        self.act(Method::POST, "/api/v1/seen").json(body)
    }

    /// An address of the source's.
    fn path(&self, rest: &str) -> String {
        format!("/api/v1/sources/{}{rest}", self.source)
    }

    fn submission(&self, id: &RecordId) -> String {
        format!("/submissions/{id}")
    }

    async fn read(&self, path: &str) -> Value {
        self.site.read(path, &self.token).await
    }

    fn changes(&self) -> Changes {
        self.control().with_world(World::changes)
    }

    fn assert_changes(&self, changes: impl IntoIterator<Item = Change>) {
        assert_eq!(self.changes(), changes.into_iter().collect());
    }

    fn star_set(&self) -> Change {
        Change::StarSet { source: self.source.clone() }
    }

    fn submission_seen(&self, submission: &RecordId) -> Change {
        Change::SubmissionSeen { submission: submission.clone(), journalist: self.journalist.clone() }
    }

    fn submission_deleted(&self, submission: &RecordId) -> Change {
        Change::SubmissionDeleted { submission: submission.clone() }
    }

    fn reply_deleted(&self) -> Change {
        Change::ReplyDeleted { reply: self.reply.clone() }
    }
}

pub(super) fn newcomer(control: &Control) -> RecordId {
    let command = Command::NewSource { designation: None, key: KeyChoice::Any, state: SourceState::Listed };
    match control.apply(command).unwrap() {
        Outcome::Source { uuid, .. } => uuid,
        other => panic!("not a source: {other:?}"),
    }
}

async fn said(request: RequestBuilder, status: u16, message: &str) {
    refused(request, status, &format!("{{\"message\":\"{message}\"}}\n")).await;
}

pub(super) async fn bad(request: RequestBuilder, message: &str) {
    refused(request, 400, &format!("{{\"error\":\"Bad Request\",\"message\":\"{message}\"}}\n")).await;
}

async fn missing(request: RequestBuilder, message: &str) {
    refused(request, 404, &format!("{{\"error\":\"Not Found\",\"message\":\"{message}\"}}\n")).await;
}

#[tokio::test]
async fn a_star_is_set_and_taken_and_doing_so_again_succeeds_and_changes_nothing() {
    bounded(async {
        let room = Room::open().await;
        for _ in 0..2 {
            said(room.star(), 201, "Star added").await;
            assert_eq!(room.read(&room.path("")).await["is_starred"], true);
        }
        for _ in 0..2 {
            said(room.unstar(), 200, "Star removed").await;
            assert_eq!(room.read(&room.path("")).await["is_starred"], false);
        }
        let removed = Change::StarRemoved { source: room.source.clone() };
        room.assert_changes([room.star_set(), removed]);
        said(room.star(), 201, "Star added").await;
        assert_eq!((room.changes().of(&room.star_set()), room.changes().most(), room.changes().total()), (2, 2, 3));
    })
    .await;
}

#[tokio::test]
async fn an_unlisted_source_has_no_star_and_can_be_looked_at() {
    bounded(async {
        let room = Room::open().await;
        for state in [SourceState::Pending, SourceState::MarkedDeleted] {
            room.control().apply(Command::SetState { source: room.source.clone(), state }).unwrap();
            refused(room.star(), 404, NOT_FOUND).await;
            refused(room.unstar(), 404, NOT_FOUND).await;
            room.read(&room.path("")).await;
        }
        refused(room.act(Method::POST, &format!("/api/v1/sources/{UNKNOWN}/add_star")), 404, NOT_FOUND).await;
        refused(room.act(Method::DELETE, &format!("/api/v1/sources/{UNKNOWN}/remove_star")), 404, NOT_FOUND).await;
        room.assert_changes([]);
    })
    .await;
}

#[tokio::test]
async fn flagging_does_nothing_and_says_so() {
    bounded(async {
        let room = Room::open().await;
        let flag = room.act(Method::POST, &room.path("/flag"));
        said(flag, 200, "Sources no longer need to be flagged for reply").await;
        assert_eq!(room.read(&room.path("")).await["is_flagged"], false);
        refused(room.act(Method::POST, &format!("/api/v1/sources/{UNKNOWN}/flag")), 404, NOT_FOUND).await;
        room.assert_changes([]);
    })
    .await;
}

#[tokio::test]
async fn a_body_may_be_missing_where_it_says_nothing_and_must_be_json_where_it_is() {
    bounded(async {
        let room = Room::open().await;
        for path in ["/add_star", "/flag"] {
            let post = |body: &'static str| room.act(Method::POST, &room.path(path)).body(body);
            refused(post("not json"), 400, MALFORMED).await;
            assert!(post("{}").send().await.unwrap().status().is_success());
            assert!(post("").send().await.unwrap().status().is_success());
        }
        // Nobody looks at the body of a deletion.
        said(room.unstar().body("not json"), 200, "Star removed").await;
        refused(room.act(Method::POST, "/api/v1/seen"), 400, MALFORMED).await;
        refused(room.act(Method::POST, "/api/v1/seen").body("{"), 400, MALFORMED).await;
        // What cannot be read is refused before anybody looks for the source.
        let unknown = room.act(Method::POST, &format!("/api/v1/sources/{UNKNOWN}/add_star"));
        refused(unknown.body("not json"), 400, MALFORMED).await;
    })
    .await;
}

#[tokio::test]
async fn acts_have_one_method_each() {
    bounded(async {
        let room = Room::open().await;
        for (method, path) in [
            (Method::GET, room.path("/add_star")),
            (Method::DELETE, room.path("/add_star")),
            (Method::POST, room.path("/remove_star")),
            (Method::GET, room.path("/flag")),
            (Method::GET, room.path("/conversation")),
            (Method::POST, room.path("")),
            (Method::POST, room.path(&room.submission(&room.file))),
            (Method::GET, String::from("/api/v1/seen")),
        ] {
            let answer = room.act(method.clone(), &path).send().await.unwrap();
            assert_eq!(answer.status(), 405, "{method} {path}");
        }
        room.assert_changes([]);
    })
    .await;
}

#[tokio::test]
async fn acts_need_a_session() {
    bounded(async {
        let room = Room::open().await;
        let seen = json!({"messages": [room.message.as_str()]});
        let acts = || [room.star(), room.unstar(), room.delete(""), room.delete("/conversation"), room.seen(&seen)];
        room.control().apply(Command::EndSessions { journalist: None }).unwrap();
        for act in acts() {
            refused(act, 403, NOT_SIGNED_IN).await;
        }
        for path in [room.path("/add_star"), String::from("/api/v1/seen")] {
            refused(room.site.request(Method::POST, &path), 403, NOT_SIGNED_IN).await;
        }
        room.assert_changes([]);
    })
    .await;
}

#[tokio::test]
async fn an_act_prolongs_a_session() {
    bounded(async {
        let room = Room::open().await;
        let pass = |seconds| room.control().apply(Command::AdvanceClock { seconds }).unwrap();
        pass(7_199);
        said(room.star(), 201, "Star added").await;
        pass(7_200);
        said(room.unstar(), 200, "Star removed").await;
        pass(7_201);
        refused(room.star(), 403, NOT_SIGNED_IN).await;
        assert_eq!(room.changes().total(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_deleted_source_is_unlisted_and_its_items_are_listed_until_the_purge() {
    bounded(async {
        let room = Room::open().await;
        let listed = async |list: &str, id: &RecordId| {
            let answer = room.read(&format!("/api/v1/{list}")).await;
            answer[list].as_array().unwrap().iter().any(|record| record["uuid"] == id.as_str())
        };
        assert!(listed("sources", &room.source).await);
        said(room.delete(""), 200, "Source and submissions deleted").await;
        assert!(!listed("sources", &room.source).await);
        assert!(listed("submissions", &room.message).await && listed("replies", &room.reply).await);
        assert_eq!(room.read(&room.path("")).await["uuid"], room.source.as_str());
        refused(room.star(), 404, NOT_FOUND).await;
        refused(room.delete(""), 404, NOT_FOUND).await;
        refused(room.delete("/conversation"), 404, NOT_FOUND).await;

        assert_eq!(room.control().apply(Command::Purge), Ok(Outcome::Purged { sources: 2 }));
        assert_eq!(room.control().apply(Command::Purge), Ok(Outcome::Purged { sources: 0 }));
        assert!(!listed("submissions", &room.message).await && !listed("replies", &room.reply).await);
        refused(room.act(Method::GET, &room.path("")), 404, NOT_FOUND).await;
        refused(room.delete(""), 404, NOT_FOUND).await;
        room.assert_changes([Change::SourceDeleted { source: room.source.clone() }]);
    })
    .await;
}

#[tokio::test]
async fn a_server_can_purge_by_itself() {
    bounded(async {
        let room = Room::with(ServerOptions { purge_at_once: true, ..small() }).await;
        said(room.delete(""), 200, "Source and submissions deleted").await;
        refused(room.act(Method::GET, &room.path("")), 404, NOT_FOUND).await;
        assert!(room.control().with_world(|world| world.submission(room.message.as_str()).is_none()));
        refused(room.delete(""), 404, NOT_FOUND).await;
        room.assert_changes([Change::SourceDeleted { source: room.source.clone() }]);
    })
    .await;
}

#[tokio::test]
async fn a_conversation_is_deleted_and_deleting_it_again_succeeds() {
    bounded(async {
        let room = Room::open().await;
        said(room.delete("/conversation"), 200, "Source data deleted").await;
        let record = room.read(&room.path("")).await;
        assert_eq!((&record["number_of_messages"], &record["number_of_documents"]), (&json!(0), &json!(0)));
        assert_eq!(record["interaction_count"], 3);
        assert_eq!(room.read(&room.path("/replies")).await, json!({"replies": []}));
        let deleted =
            [room.submission_deleted(&room.message), room.submission_deleted(&room.file), room.reply_deleted()];
        room.assert_changes(deleted.clone());
        said(room.delete("/conversation"), 200, "Source data deleted").await;
        room.assert_changes(deleted);
        let unknown = format!("/api/v1/sources/{UNKNOWN}/conversation");
        refused(room.act(Method::DELETE, &unknown), 404, NOT_FOUND).await;
    })
    .await;
}

#[tokio::test]
async fn an_item_is_deleted_once() {
    bounded(async {
        let room = Room::open().await;
        let submission = room.submission(&room.message);
        said(room.delete(&submission), 200, "Submission deleted").await;
        refused(room.delete(&submission), 404, NOT_FOUND).await;
        let reply = format!("/replies/{}", room.reply);
        said(room.delete(&reply), 200, "Reply deleted").await;
        refused(room.delete(&reply), 404, NOT_FOUND).await;
        // One is not found under the other's name.
        refused(room.delete(&format!("/replies/{}", room.file)), 404, NOT_FOUND).await;
        room.assert_changes([room.submission_deleted(&room.message), room.reply_deleted()]);
    })
    .await;
}

#[tokio::test]
async fn an_items_path_names_any_source_that_is_there() {
    bounded(async {
        let room = Room::open().await;
        let unknown = format!("/api/v1/sources/{UNKNOWN}/submissions/{}", room.message);
        refused(room.act(Method::DELETE, &unknown), 404, NOT_FOUND).await;
        room.assert_changes([]);
        let other = newcomer(room.control());
        let path = format!("/api/v1/sources/{other}/submissions/{}", room.message);
        said(room.act(Method::DELETE, &path), 200, "Submission deleted").await;
        let state = SourceState::MarkedDeleted;
        room.control().apply(Command::SetState { source: other.clone(), state }).unwrap();
        let path = format!("/api/v1/sources/{other}/replies/{}", room.reply);
        said(room.act(Method::DELETE, &path), 200, "Reply deleted").await;
        room.assert_changes([room.submission_deleted(&room.message), room.reply_deleted()]);
    })
    .await;
}

#[tokio::test]
async fn deleting_an_item_without_a_file_is_an_error_once_and_the_item_is_gone() {
    bounded(async {
        let room = Room::open().await;
        for (item, path, change) in [
            (&room.message, room.submission(&room.message), room.submission_deleted(&room.message)),
            (&room.reply, format!("/replies/{}", room.reply), room.reply_deleted()),
        ] {
            room.control().apply(Command::LoseFile { item: item.clone() }).unwrap();
            room.read(&room.path(&path)).await;
            refused(room.delete(&path), 500, INTERNAL).await;
            refused(room.act(Method::GET, &room.path(&path)), 404, NOT_FOUND).await;
            refused(room.delete(&path), 404, NOT_FOUND).await;
            assert_eq!(room.changes().of(&change), 1);
        }
    })
    .await;
}

#[tokio::test]
async fn deleting_a_conversation_ends_at_a_missing_file_and_goes_on_when_repeated() {
    bounded(async {
        let room = Room::open().await;
        room.control().apply(Command::LoseFile { item: room.file.clone() }).unwrap();
        refused(room.delete("/conversation"), 500, INTERNAL).await;
        let submissions = [room.submission_deleted(&room.message), room.submission_deleted(&room.file)];
        room.assert_changes(submissions.clone());
        assert_eq!(room.read(&room.path("/replies")).await["replies"].as_array().unwrap().len(), 1);
        said(room.delete("/conversation"), 200, "Source data deleted").await;
        room.assert_changes(submissions.into_iter().chain([room.reply_deleted()]));
    })
    .await;
}

#[tokio::test]
async fn all_that_is_named_is_marked_seen_by_the_one_who_asks() {
    bounded(async {
        let room = Room::open().await;
        let (message, file, reply) = (room.message.as_str(), room.file.as_str(), room.reply.as_str());
        let all = json!({"files": [file], "messages": [message, message], "replies": [reply]});
        said(room.seen(&all), 200, "resources marked seen").await;
        let record = room.read(&room.path(&room.submission(&room.message))).await;
        assert_eq!(record["seen_by"], json!([room.journalist.as_str()]));
        assert_eq!(record["is_read"], true);
        let record = room.read(&room.path(&format!("/replies/{reply}"))).await;
        assert_eq!(record["seen_by"].as_array().unwrap().len(), 2);
        let marks = [
            room.submission_seen(&room.file),
            room.submission_seen(&room.message),
            Change::ReplySeen { reply: room.reply.clone(), journalist: room.journalist.clone() },
        ];
        room.assert_changes(marks.clone());
        said(room.seen(&all), 200, "resources marked seen").await;
        room.assert_changes(marks);
    })
    .await;
}

#[tokio::test]
async fn each_journalist_marks_for_oneself() {
    bounded(async {
        let room = Room::open().await;
        let body = json!({"messages": [room.message.as_str()]});
        said(room.seen(&body), 200, "resources marked seen").await;
        let other = room.site.sign_in(TERNBERG).await;
        let request = room.site.signed(Method::POST, "/api/v1/seen", &other).json(&body);
        said(request, 200, "resources marked seen").await;
        let seen = |change: &Change| matches!(change, Change::SubmissionSeen { .. });
        assert_eq!((room.changes().sum(seen), room.changes().most()), (2, 1));
    })
    .await;
}

#[tokio::test]
async fn one_unknown_id_leaves_everything_unseen() {
    bounded(async {
        let room = Room::open().await;
        let message = room.message.as_str();
        for (list, kind) in [("files", "file"), ("messages", "message"), ("replies", "reply")] {
            let mut body = json!({"messages": [message]});
            let list = body.as_object_mut().unwrap().entry(list).or_insert(json!([]));
            list.as_array_mut().unwrap().extend([json!(UNKNOWN), json!("another")]);
            missing(room.seen(&body), &format!("{kind} not found: {UNKNOWN}")).await;
        }
        room.assert_changes([]);
        assert_eq!(room.read(&room.path(&room.submission(&room.message))).await["seen_by"], json!([]));
    })
    .await;
}

#[tokio::test]
async fn a_thing_of_another_kind_is_unknown() {
    bounded(async {
        let room = Room::open().await;
        for (list, kind, id) in [
            ("files", "file", &room.message),
            ("messages", "message", &room.file),
            ("messages", "message", &room.reply),
            ("replies", "reply", &room.message),
        ] {
            missing(room.seen(&json!({ list: [id.as_str()] })), &format!("{kind} not found: {id}")).await;
        }
        missing(room.seen(&json!({"files": [5]})), "file not found: 5").await;
        room.assert_changes([]);
    })
    .await;
}

#[tokio::test]
async fn seeing_nothing_is_a_bad_request() {
    bounded(async {
        let room = Room::open().await;
        let nothing = "Please specify the resources to mark seen.";
        for body in [json!({}), json!({"files": [], "messages": []}), json!({"replies": null}), json!({"other": [1]})] {
            bad(room.seen(&body), nothing).await;
        }
        for body in [json!([]), json!(null), json!("messages")] {
            bad(room.seen(&body), "Please send requests in valid JSON.").await;
        }
        refused(room.seen(&json!({"files": 7})), 500, INTERNAL).await;
    })
    .await;
}

#[tokio::test]
async fn json_must_say_that_it_is_json() {
    bounded(async {
        let room = Room::open().await;
        let body = json!({"messages": [room.message.as_str()]}).to_string();
        let request = || room.act(Method::POST, "/api/v1/seen").body(body.clone());
        let undeclared = "The browser (or proxy) sent a request that this server could not understand.";
        bad(request(), undeclared).await;
        bad(request().header("Content-Type", "text/plain"), undeclared).await;
        room.assert_changes([]);
        let declared = request().header("Content-Type", "application/json; charset=utf-8");
        said(declared, 200, "resources marked seen").await;
    })
    .await;
}

#[tokio::test]
async fn a_submission_and_a_reply_with_one_id_are_two_things() {
    bounded(async {
        let mut options = small();
        let (source, author) = {
            let source = options.world.sources().next().unwrap().id.clone();
            (source, options.world.journalist_named(TERNBERG.username).unwrap().id.clone())
        };
        let twin = RecordId::from(UNKNOWN);
        options.world.add_submission(twin.clone(), &source, SubmissionKind::Message, SMALLEST_MESSAGE, NOW).unwrap();
        options.world.add_reply(twin.clone(), &source, &author, SMALLEST_REPLY).unwrap();
        let room = Room { source, ..Room::with(options).await };
        said(room.seen(&json!({"messages": [UNKNOWN]})), 200, "resources marked seen").await;
        said(room.delete(&format!("/submissions/{UNKNOWN}")), 200, "Submission deleted").await;
        let reply = room.read(&room.path(&format!("/replies/{UNKNOWN}"))).await;
        assert_eq!(reply["seen_by"], json!([author.as_str()]));
        room.assert_changes([room.submission_seen(&twin), room.submission_deleted(&twin)]);
    })
    .await;
}

#[tokio::test]
async fn what_colleagues_do_by_command_is_not_counted() {
    bounded(async {
        let room = Room::open().await;
        let (source, message, file) = (room.source.clone(), room.message.clone(), room.file.clone());
        let journalist = MARLOW.username.to_owned();
        for command in [
            Command::Star { source: source.clone() },
            Command::MarkSeen { item: file, journalist },
            Command::DeleteItem { item: message },
            Command::DeleteSource { source },
        ] {
            room.control().apply(command).unwrap();
        }
        room.assert_changes([]);
    })
    .await;
}

#[tokio::test]
async fn an_act_whose_answer_is_lost_took_effect_and_one_that_was_dropped_did_not() {
    bounded(async {
        for (act, took_effect) in [(FaultAct::LoseAnswer, true), (FaultAct::Drop, false)] {
            let room = Room::open().await;
            room.control().add_fault(Fault::new(Matching::path("/api/v1/**"), act)).unwrap();
            let seen = json!({"files": [room.file.as_str()]});
            for request in [
                room.star(),
                room.seen(&seen),
                room.delete(&room.submission(&room.file)),
                room.delete("/conversation"),
                room.delete(""),
            ] {
                assert!(request.send().await.is_err());
            }
            let made = [
                room.star_set(),
                room.submission_seen(&room.file),
                room.submission_deleted(&room.file),
                room.submission_deleted(&room.message),
                room.reply_deleted(),
                Change::SourceDeleted { source: room.source.clone() },
            ];
            room.assert_changes(made.into_iter().filter(|_| took_effect));
        }
    })
    .await;
}

#[tokio::test]
async fn an_act_whose_answer_hangs_took_effect_as_soon_as_it_is_held() {
    bounded(async {
        let room = Room::open().await;
        room.control().add_fault(Fault::new(Matching::method("DELETE", "/**"), FaultAct::HangAnswer)).unwrap();
        tokio::select! {
            answer = room.delete("").send() => panic!("answered: {answer:?}"),
            () = room.control().wait_for_log(|log| log.held() == 1) => {}
        }
        room.assert_changes([Change::SourceDeleted { source: room.source.clone() }]);
        room.control().wait_for_log(|log| log.in_flight() == 0).await;
        assert_eq!(room.control().with_log(RequestLog::held), 0);
        assert_eq!(room.control().requests().pop().unwrap().status, None);
    })
    .await;
}

#[tokio::test]
async fn a_status_instead_of_an_act_changes_nothing_and_can_say_when_to_come_back() {
    bounded(async {
        let room = Room::open().await;
        let act = FaultAct::json_with(503, &[("Retry-After", "30"), ("X-Twice", "1"), ("X-Twice", "2")], &json!({}));
        room.control().add_fault(Fault::new(Matching::method("POST", "/**"), act).times(1)).unwrap();
        let answer = room.star().send().await.unwrap();
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["retry-after"], "30");
        assert_eq!(answer.headers()["content-type"], "application/json");
        assert_eq!(answer.headers().get_all("x-twice").iter().count(), 2);
        room.assert_changes([]);
        said(room.star(), 201, "Star added").await;
    })
    .await;
}
