//! Replies that are posted: bodies and statuses letter by letter, what is left behind, and who can read them.

use std::io::Write;
use std::time::SystemTime;

use sequoia_openpgp::Cert;
use sequoia_openpgp::parse::Parse;
use sequoia_openpgp::policy::StandardPolicy;
use sequoia_openpgp::serialize::stream::{Armorer, Encryptor, LiteralWriter, Message};

use super::acts::{INTERNAL, MALFORMED, UNKNOWN, bad, newcomer};
use super::*;
use crate::generator::{KeyPair, NewsroomKey, pool};

const REPLY: &str = "6a0f4f0e-38d5-4a55-9d2e-0c1d5a7b9e11";
const OTHER: &str = "6a0f4f0e-38d5-4a55-9d2e-0c1d5a7b9e12";
const UNDECLARED: &str = "The browser (or proxy) sent a request that this server could not understand.";
const NOT_ENCRYPTED: &str = "{\"message\":\"You must encrypt replies client side\"}\n";
const TAKEN: &str = "{\"error\":\"Conflict\",\"message\":\"That UUID is already in use.\"}\n";

/// A server, a journalist, and a source that has sent one message.
pub(super) struct Room {
    pub(super) site: Site,
    token: String,
    journalist: RecordId,
    pub(super) source: RecordId,
}

impl Room {
    pub(super) async fn open() -> Self {
        Self::with(small(), KeyChoice::Pool(1)).await
    }

    async fn with(options: ServerOptions, key: KeyChoice) -> Self {
        let site = Site::start(options).await;
        let token = site.sign_in(MARLOW).await;
        let control = site.control();
        let journalist = control.with_world(|world| world.journalist_named(MARLOW.username).unwrap().id.clone());
        let designation = Some("level reef".to_owned());
        let source = match control.apply(Command::NewSource { designation, key, state: SourceState::Listed }).unwrap() {
            Outcome::Source { uuid, .. } => uuid,
            other => panic!("not a source: {other:?}"),
        };
        control.apply(Command::NewMessage { source: source.clone(), size: 600 }).unwrap();
        Self { site, token, journalist, source }
    }

    pub(super) fn control(&self) -> &Control {
        self.site.control()
    }

    fn path(&self) -> String {
        format!("/api/v1/sources/{}/replies", self.source)
    }

    pub(super) fn post(&self, body: &Value) -> RequestBuilder {
        self.site.signed(Method::POST, &self.path(), &self.token).json(body)
    }

    fn reply(&self, id: &str, text: &str) -> RequestBuilder {
        self.post(&json!({"reply": text, "uuid": id}))
    }

    async fn read(&self, path: &str) -> Value {
        self.site.read(path, &self.token).await
    }

    async fn download(&self, id: &str) -> Response {
        let path = format!("{}/{id}/download", self.path());
        self.site.signed(Method::GET, &path, &self.token).send().await.unwrap()
    }

    fn sent(&self, reply: &str) -> Change {
        let (source, journalist) = (self.source.clone(), self.journalist.clone());
        Change::ReplySent { reply: reply.into(), source, journalist }
    }

    fn assert_changes(&self, changes: impl IntoIterator<Item = Change>) {
        assert_eq!(self.control().with_world(World::changes), changes.into_iter().collect());
    }

    fn orphans(&self) -> Vec<String> {
        self.control().with_world(|world| world.source(self.source.as_str()).unwrap().orphans.iter().cloned().collect())
    }
}

/// The answer to a reply that was stored.
async fn stored(request: RequestBuilder, id: &str, filename: &str) {
    let words = "Your reply has been stored";
    let body = format!("{{\"filename\":\"{filename}\",\"message\":\"{words}\",\"uuid\":\"{id}\"}}\n");
    refused(request, 201, &body).await;
}

/// A text, encrypted to these keys.
pub(super) fn encrypted(text: &str, keys: &[&str]) -> String {
    let policy = StandardPolicy::new();
    let certs: Vec<_> = keys.iter().map(|armor| Cert::from_bytes(armor).unwrap()).collect();
    let recipients = certs.iter().flat_map(|cert| {
        let keys = cert.keys().with_policy(&policy, None::<SystemTime>).supported().alive().revoked(false);
        keys.for_transport_encryption()
    });
    let mut armored = Vec::new();
    let message = Armorer::new(Message::new(&mut armored)).build().unwrap();
    let message = Encryptor::for_recipients(message, recipients).build().unwrap();
    let mut message = LiteralWriter::new(message).build().unwrap();
    message.write_all(text.as_bytes()).unwrap();
    message.finalize().unwrap();
    String::from_utf8(armored).unwrap()
}

/// As an honest client sends it: to the source's key and the newsroom's.
fn honest(text: &str) -> String {
    encrypted(text, &[&pool()[1].armor, NewsroomKey::default().secret_armor()])
}

#[tokio::test]
async fn a_reply_is_stored_listed_seen_by_its_author_and_served_as_it_was_sent() {
    bounded(async {
        let room = Room::open().await;
        let text = honest("Danke, Zoë!\n");
        stored(room.reply(REPLY, &text), REPLY, "2-level_reef-reply.gpg").await;

        let all = room.read("/api/v1/replies").await;
        let record = all["replies"].as_array().unwrap().iter().find(|record| record["uuid"] == REPLY).unwrap().clone();
        assert_eq!(record["filename"], "2-level_reef-reply.gpg");
        assert_eq!(record["size"], text.len());
        assert_eq!(record["source_url"], format!("/api/v1/sources/{}", room.source));
        assert_eq!(record["journalist_uuid"], room.journalist.as_str());
        assert_eq!(record["journalist_username"], MARLOW.username);
        assert_eq!(record["seen_by"], json!([room.journalist.as_str()]));
        assert_eq!(record["is_deleted_by_source"], false);
        assert_eq!(room.read(&room.path()).await["replies"], json!([record]));
        assert_eq!(room.read(&format!("{}/{REPLY}", room.path())).await, record);
        assert_eq!(room.read(&format!("/api/v1/sources/{}", room.source)).await["interaction_count"], 2);

        let answer = room.download(REPLY).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-length"], text.len().to_string().as_str());
        let etag = room.control().etag(&REPLY.into()).await.unwrap();
        assert_eq!(answer.headers()["etag"], etag.as_str());
        assert_eq!(answer.text().await.unwrap(), text);
        room.assert_changes([room.sent(REPLY)]);
        assert_eq!(room.orphans(), [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn the_server_makes_an_id_where_none_is_given() {
    bounded(async {
        let room = Room::open().await;
        for body in [json!({"reply": honest("a")}), json!({"reply": honest("b"), "uuid": null})] {
            let answer = room.post(&body).send().await.unwrap();
            assert_eq!(answer.status(), 201);
            let answer: Value = answer.json().await.unwrap();
            let id = answer["uuid"].as_str().unwrap();
            assert!(uuid::Uuid::parse_str(id).is_ok());
            assert!(room.control().with_world(|world| world.reply(id).is_some()));
        }
    })
    .await;
}

#[tokio::test]
async fn an_id_is_kept_as_it_is_spelled_and_a_submissions_is_free() {
    bounded(async {
        let room = Room::open().await;
        let upper = REPLY.to_uppercase();
        stored(room.reply(&upper, &honest("a")), &upper, "2-level_reef-reply.gpg").await;
        stored(room.reply(REPLY, &honest("b")), REPLY, "3-level_reef-reply.gpg").await;
        let message = room.control().with_world(|world| {
            let source = world.source(room.source.as_str()).unwrap();
            world.submissions_of(source).next().unwrap().id.clone()
        });
        stored(room.reply(message.as_str(), &honest("c")), message.as_str(), "4-level_reef-reply.gpg").await;
        // Whatever Python takes for a UUID.
        for (number, id) in [(5, format!("{{{OTHER}}}")), (6, format!("urn:uuid:{OTHER}")), (7, OTHER.replace('-', ""))]
        {
            stored(room.reply(&id, &honest("d")), &id, &format!("{number}-level_reef-reply.gpg")).await;
        }
    })
    .await;
}

#[tokio::test]
async fn r1_the_same_id_again_is_a_conflict_and_leaves_a_file_whose_number_the_next_item_gets() {
    bounded(async {
        let room = Room::open().await;
        let text = honest("a");
        stored(room.reply(REPLY, &text), REPLY, "2-level_reef-reply.gpg").await;
        refused(room.reply(REPLY, &honest("another")), 409, TAKEN).await;
        assert_eq!(room.orphans(), ["3-level_reef-reply.gpg"]);
        assert_eq!(room.download(REPLY).await.text().await.unwrap(), text, "the first one stays");
        // Also from another conversation.
        let elsewhere = format!("/api/v1/sources/{}/replies", newcomer(room.control()));
        let again = room.site.signed(Method::POST, &elsewhere, &room.token);
        refused(again.json(&json!({"reply": text, "uuid": REPLY})), 409, TAKEN).await;
        room.assert_changes([room.sent(REPLY)]);

        room.control().apply(Command::NewMessage { source: room.source.clone(), size: 600 }).unwrap();
        assert_eq!(room.orphans(), ["3-level_reef-reply.gpg"], "a message has another file name");
        refused(room.reply(REPLY, &text), 409, TAKEN).await;
        assert_eq!(room.orphans(), ["3-level_reef-reply.gpg", "4-level_reef-reply.gpg"]);
        stored(room.reply(OTHER, &text), OTHER, "4-level_reef-reply.gpg").await;
        assert_eq!(room.orphans(), ["3-level_reef-reply.gpg"], "the file was written over");
        room.assert_changes([room.sent(REPLY), room.sent(OTHER)]);
    })
    .await;
}

#[tokio::test]
async fn what_is_no_reply_is_refused_word_by_word() {
    bounded(async {
        let room = Room::open().await;
        let text = honest("a");
        for body in ["", "not json", "{"] {
            let post = room.site.signed(Method::POST, &room.path(), &room.token).body(body);
            refused(post.header("Content-Type", "application/json"), 400, MALFORMED).await;
        }
        let undeclared = room.site.signed(Method::POST, &room.path(), &room.token);
        bad(undeclared.body(json!({"reply": text}).to_string()), UNDECLARED).await;
        bad(room.post(&json!(null)), "Please send requests in valid JSON.").await;
        for body in [json!({}), json!({"uuid": REPLY}), json!([]), json!("reply")] {
            bad(room.post(&body), "reply not found in request body").await;
        }
        for empty in [json!(""), json!(null), json!([]), json!(0)] {
            bad(room.post(&json!({"reply": empty, "uuid": REPLY})), "reply should not be empty").await;
        }
        refused(room.post(&json!({"reply": 5})), 500, INTERNAL).await;
        for plain in [
            "plain text",
            "-----BEGIN PGP MESSAGE-----",
            "-----BEGIN PGP MESSAGE-----\n\nbm8=\n-----END PGP MESSAGE-----\n",
            &pool()[1].armor,
            &format!("Hello\n{text}"),
        ] {
            refused(room.reply(REPLY, plain), 400, NOT_ENCRYPTED).await;
        }
        assert_eq!(room.orphans(), [""; 0], "nothing was written so far");
        for id in ["not-a-uuid", "", "6a0f4f0e-38d5-4a55-9d2e-0c1d5a7b9e1"] {
            bad(room.reply(id, &text), "'uuid' was not a valid UUID").await;
        }
        refused(room.post(&json!({"reply": text, "uuid": 5})), 500, INTERNAL).await;
        assert_eq!(room.orphans(), ["2-level_reef-reply.gpg"]);
        room.assert_changes([]);
        assert_eq!(room.read(&room.path()).await, json!({"replies": []}));
        stored(room.reply(REPLY, &text), REPLY, "2-level_reef-reply.gpg").await;
    })
    .await;
}

#[tokio::test]
async fn a_reply_needs_a_session_and_a_source() {
    bounded(async {
        let room = Room::open().await;
        let body = json!({"reply": honest("a"), "uuid": REPLY});
        let unknown = format!("/api/v1/sources/{UNKNOWN}/replies");
        refused(room.site.signed(Method::POST, &unknown, &room.token).json(&body), 404, NOT_FOUND).await;
        refused(room.site.request(Method::POST, &room.path()).json(&body), 403, NOT_SIGNED_IN).await;
        room.control().apply(Command::EndSessions { journalist: None }).unwrap();
        refused(room.post(&body), 403, NOT_SIGNED_IN).await;
        room.assert_changes([]);
        assert_eq!(room.orphans(), [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn the_route_has_two_methods_and_takes_long_bodies() {
    bounded(async {
        let room = Room::open().await;
        let delete = room.site.signed(Method::DELETE, &room.path(), &room.token);
        assert_eq!(delete.send().await.unwrap().status(), 405);
        // The limit is far beyond this one: it is read, and is no reply.
        let large = room.site.signed(Method::POST, &room.path(), &room.token).body(vec![b' '; 17 << 20]);
        assert_eq!(large.send().await.unwrap().status(), 400);
        // The longest reply that there is.
        let text = honest(&"\u{1d11e}".repeat(100_000));
        assert!(text.len() > 500_000);
        stored(room.reply(REPLY, &text), REPLY, "2-level_reef-reply.gpg").await;
        assert_eq!(room.download(REPLY).await.text().await.unwrap(), text);
    })
    .await;
}

#[tokio::test]
async fn r1_faults_come_before_the_storing_or_after_it() {
    bounded(async {
        let room = Room::open().await;
        let path = room.path();
        let answer = FaultAct::Answer {
            status: 503,
            content_type: "text/html".to_owned(),
            body: String::new(),
            headers: Vec::new(),
        };
        let ids: Vec<String> = (0..8).map(|n| format!("6a0f4f0e-38d5-4a55-9d2e-0c1d5a7b9e2{n}")).collect();
        let acts = [
            (FaultAct::Drop, false),
            (answer, false),
            (FaultAct::LoseAnswer, true),
            (FaultAct::DropAfter { bytes: 10 }, true),
            (FaultAct::Truncate { bytes: 10 }, true),
        ];
        for (id, (act, is_stored)) in ids.iter().zip(acts) {
            room.control().add_fault(Fault::new(Matching::method("POST", &path), act.clone()).times(1)).unwrap();
            let answer = room.reply(id, &honest("a")).send().await;
            let whole = match answer {
                Ok(answer) => answer.status() == 201 && answer.json::<Value>().await.is_ok(),
                Err(_) => false,
            };
            assert!(!whole, "{act:?}");
            let there = room.control().with_world(|world| world.reply(id).is_some());
            assert_eq!(there, is_stored, "{act:?}");
            // Sent again it is there once.
            let again = room.reply(id, &honest("a")).send().await.unwrap();
            assert_eq!(again.status(), if is_stored { 409 } else { 201 }, "{act:?}");
        }
        for (id, act, is_stored) in [(&ids[6], FaultAct::Hang, false), (&ids[7], FaultAct::HangAnswer, true)] {
            let fault = room.control().add_fault(Fault::new(Matching::method("POST", &path), act).times(1)).unwrap();
            let begun = |log: &RequestLog| {
                log.requests().any(|request| request.fault == Some(fault) && request.held == is_stored)
            };
            tokio::select! {
                answer = room.reply(id, &honest("a")).send() => panic!("{answer:?}"),
                () = room.control().wait_for_log(begun) => {}
            }
            assert_eq!(room.control().with_world(|world| world.reply(id).is_some()), is_stored);
        }
        assert_eq!(room.control().with_world(World::changes).most(), 1);
        assert!(room.control().requests().iter().all(|request| request.query.is_none()));
    })
    .await;
}

#[tokio::test]
async fn the_source_and_the_newsroom_read_a_reply_and_nobody_else_is_a_recipient() {
    bounded(async {
        for (at, newsroom) in [(0, NewsroomKey::Rsa4096), (1, NewsroomKey::Curve25519)] {
            let room = Room::with(ServerOptions { newsroom, ..small() }, KeyChoice::Pool(at)).await;
            let control = room.control();
            let words = "Wir rufen morgen an. — Zoë 夏";
            let text = encrypted(words, &[&pool()[at].armor, newsroom.secret_armor()]);
            stored(room.reply(REPLY, &text), REPLY, "2-level_reef-reply.gpg").await;
            let id = RecordId::from(REPLY);
            let (by_source, by_newsroom) =
                (control.source_reads(&id).await.unwrap(), control.newsroom_reads(&id).await.unwrap());
            assert_eq!(by_source.text, words);
            assert_eq!(by_source, by_newsroom);
            assert_eq!(by_source.recipients, control.recipients(&id).await.unwrap());
            assert_eq!(whose(&by_source.recipients), [Whose::Source, Whose::Newsroom]);
            assert!(by_source.recipients.iter().all(|recipient| recipient.key_id.len() == 16));
            let shown = control.plaintext(&id).unwrap();
            assert_eq!((shown.form(), shown.length()), (crate::generator::Form::Text, words.len() as u64));
        }
    })
    .await;
}

fn whose(recipients: &[Recipient]) -> Vec<Whose> {
    recipients.iter().map(|recipient| recipient.whose).collect()
}

#[tokio::test]
async fn who_is_no_recipient_reads_nothing_and_a_stranger_among_them_is_told() {
    bounded(async {
        let room = Room::open().await;
        let control = room.control();
        let stranger = KeyPair::generate().unwrap().public_armor().unwrap();
        let (source, newsroom) = (pool()[1].armor.clone(), NewsroomKey::default().secret_armor());
        let keys: [(&str, &[&str]); 3] = [
            (REPLY, &[&source]),
            (OTHER, &[newsroom, &stranger]),
            ("6a0f4f0e-38d5-4a55-9d2e-0c1d5a7b9e13", &[&pool()[2].armor]),
        ];
        for (id, keys) in keys {
            assert_eq!(room.reply(id, &encrypted("words", keys)).send().await.unwrap().status(), 201);
        }
        let (one, two, three) = (REPLY.into(), OTHER.into(), RecordId::from(keys[2].0));
        assert_eq!(control.source_reads(&one).await.unwrap().text, "words");
        assert!(matches!(control.newsroom_reads(&one).await, Err(ReadingError::NotForReader(id)) if id == one));
        assert!(matches!(control.source_reads(&two).await, Err(ReadingError::NotForReader(id)) if id == two));
        assert_eq!(whose(&control.newsroom_reads(&two).await.unwrap().recipients), [Whose::Newsroom, Whose::Unknown]);
        // Another source's key is anybody's.
        assert_eq!(whose(&control.recipients(&three).await.unwrap()), [Whose::Unknown]);
        assert!(matches!(control.source_reads(&three).await, Err(ReadingError::NotForReader(_))));
        assert!(matches!(control.plaintext(&three), Err(CiphertextError::NothingToShow(id)) if id == three));
        let none = control.source_reads(&UNKNOWN.into()).await;
        assert!(matches!(none, Err(ReadingError::Ciphertext(CiphertextError::NoItem(_)))));
    })
    .await;
}

#[tokio::test]
async fn a_damaged_reply_cannot_be_read() {
    bounded(async {
        let room = Room::open().await;
        let text = honest("words of some length, so that there is something to damage");
        // Not in what is for one of the readers alone.
        let at = text.len() - 120;
        let other = if text.as_bytes()[at] == b'A' { "B" } else { "A" };
        let mut damaged = text.clone();
        damaged.replace_range(at..=at, other);
        // The sum of the armor is left out, since nobody has to look at it.
        let damaged: String =
            damaged.lines().filter(|line| !line.starts_with('=')).map(|line| format!("{line}\n")).collect();
        assert_eq!(room.reply(REPLY, &damaged).send().await.unwrap().status(), 201);
        let error = room.control().source_reads(&REPLY.into()).await.unwrap_err();
        assert!(matches!(error, ReadingError::Decrypt { .. } | ReadingError::NotForReader(_)), "{error}");
    })
    .await;
}

/// Those that are made here too, and submissions by the newsroom.
#[tokio::test]
async fn what_the_server_makes_itself_is_read_in_the_same_way() {
    bounded(async {
        let room = Room::open().await;
        let control = room.control();
        let journalist = TERNBERG.username.to_owned();
        let command = Command::NewReply { source: room.source.clone(), journalist, size: SMALLEST_REPLY };
        let Outcome::Item { uuid, .. } = control.apply(command).unwrap() else { panic!("no reply") };
        let read = control.source_reads(&uuid).await.unwrap();
        assert_eq!(read, control.newsroom_reads(&uuid).await.unwrap());
        assert_eq!(whose(&read.recipients), [Whose::Source, Whose::Newsroom]);
        let message = control.with_world(|world| {
            let source = world.source(room.source.as_str()).unwrap();
            world.submissions_of(source).next().unwrap().id.clone()
        });
        let read = control.newsroom_reads(&message).await.unwrap();
        assert_eq!(whose(&read.recipients), [Whose::Newsroom]);
        assert_eq!(read.text.len() as u64, control.plaintext(&message).unwrap().length());
    })
    .await;
}

#[tokio::test]
async fn a_person_reads_by_http() {
    bounded(async {
        let control_listener = Some(ServerOptions::LOOPBACK);
        let room = Room::with(ServerOptions { control_listener, ..small() }, KeyChoice::Pool(1)).await;
        assert_eq!(room.reply(REPLY, &honest("words")).send().await.unwrap().status(), 201);
        let get = async |path: &str| {
            let url = format!("{}/control/{path}", room.site.server.control_origin().unwrap());
            let answer = room.site.client.get(url).send().await.unwrap();
            (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
        };
        let read = serde_json::to_value(room.control().source_reads(&REPLY.into()).await.unwrap()).unwrap();
        assert_eq!((&read["text"], &read["recipients"][0]["whose"]), (&json!("words"), &json!("source")));
        for way in ["source_reads", "newsroom_reads"] {
            assert_eq!(get(&format!("{way}/{REPLY}")).await, (200, read.clone()));
        }
        assert_eq!(get(&format!("recipients/{REPLY}")).await, (200, read["recipients"].clone()));
        assert_eq!(get(&format!("source_reads/{UNKNOWN}")).await.0, 404);
        assert_eq!(room.reply(OTHER, &encrypted("words", &[&pool()[2].armor])).send().await.unwrap().status(), 201);
        assert_eq!(get(&format!("source_reads/{OTHER}")).await.0, 422);
    })
    .await;
}

#[tokio::test]
async fn a_posted_reply_can_be_lost_cut_replaced_and_deleted_like_any_other() {
    bounded(async {
        let room = Room::open().await;
        let control = room.control();
        let id = RecordId::from(REPLY);
        let text = honest(&"words ".repeat(100));
        assert_eq!(room.reply(REPLY, &text).send().await.unwrap().status(), 201);
        control.apply(Command::ShortenFile { item: id.clone(), bytes: 100 }).unwrap();
        assert_eq!(room.download(REPLY).await.text().await.unwrap(), text.split_at(100).0);
        let before = control.etag(&id).await.unwrap();
        control.apply(Command::ReplaceFile { item: id.clone() }).unwrap();
        assert_ne!(control.etag(&id).await.unwrap(), before);
        assert_eq!(room.download(REPLY).await.bytes().await.unwrap().len(), text.len());
        assert_eq!(room.reply(OTHER, &encrypted("x", &[&pool()[1].armor])).send().await.unwrap().status(), 201);
        let short = control.apply(Command::ReplaceFile { item: OTHER.into() });
        assert!(matches!(short, Err(ControlError::World(WorldError::Size { .. }))), "{short:?}");
        control.apply(Command::LoseFile { item: id }).unwrap();
        assert_eq!(room.download(REPLY).await.status(), 500);
        let path = format!("{}/{OTHER}", room.path());
        assert_eq!(room.site.signed(Method::DELETE, &path, &room.token).send().await.unwrap().status(), 200);
        assert_eq!(room.download(OTHER).await.status(), 404);
        room.assert_changes([room.sent(REPLY), room.sent(OTHER), Change::ReplyDeleted { reply: OTHER.into() }]);
    })
    .await;
}
