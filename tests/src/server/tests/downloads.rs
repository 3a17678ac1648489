//! Downloads, header by header, and each oddity.

use reqwest::header::{HeaderMap, HeaderValue};
use sequoia_openpgp::types::HashAlgorithm;

use super::*;

pub(super) mod contents;
mod faults;

const INTERNAL: &str = "{\"error\":\"Internal Server Error\",\"message\":\"The server encountered an internal error and was \
                        unable to complete your request. Either the server is overloaded or there is an error in the \
                        application.\"}\n";
const BEYOND: &str = "{\"error\":\"Requested Range Not Satisfiable\",\"message\":\"The server cannot provide the requested \
                      range.\"}\n";
const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";
const MESSAGE_SIZE: u64 = 616;
const FILE_SIZE: u64 = 5_000;
const REPLY_SIZE: u64 = 1_143;

/// A server, a journalist, and a source with an item of each kind.
struct Room {
    site: Site,
    token: String,
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
        let command = Command::NewSource {
            designation: Some("level reef".to_owned()),
            key: KeyChoice::Pool(0),
            state: SourceState::Listed,
        };
        let Outcome::Source { uuid: source, .. } = control.apply(command).unwrap() else {
            panic!("not a source");
        };
        let message = new_item(control, Command::NewMessage { source: source.clone(), size: MESSAGE_SIZE });
        let file = new_item(control, Command::NewFile { source: source.clone(), size: FILE_SIZE });
        let journalist = MARLOW.username.to_owned();
        let reply = new_item(control, Command::NewReply { source: source.clone(), journalist, size: REPLY_SIZE });
        Self { token, source, message, file, reply, site }
    }

    fn control(&self) -> &Control {
        self.site.control()
    }

    fn submission_path(&self, id: &RecordId) -> String {
        format!("/api/v1/sources/{}/submissions/{id}/download", self.source)
    }

    fn reply_path(&self) -> String {
        format!("/api/v1/sources/{}/replies/{}/download", self.source, self.reply)
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.site.signed(Method::GET, path, &self.token)
    }

    /// A request for the message.
    fn get_message(&self) -> RequestBuilder {
        self.get(&self.submission_path(&self.message))
    }

    async fn record(&self, id: &RecordId) -> Value {
        self.site.read(&format!("/api/v1/sources/{}/submissions/{id}", self.source), &self.token).await
    }
}

fn new_item(control: &Control, command: Command) -> RecordId {
    match control.apply(command).unwrap() {
        Outcome::Item { uuid, .. } => uuid,
        other => panic!("not an item: {other:?}"),
    }
}

fn etag_of(bytes: &[u8]) -> String {
    let mut digest = HashAlgorithm::SHA256.context().unwrap().for_digest();
    digest.update(bytes);
    let sum = digest.into_digest().unwrap();
    let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The headers that are about the file, sorted by name.
fn file_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let others = ["date", "x-frame-options", "referrer-policy", "x-content-type-options", "content-security-policy"];
    let mut headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.to_str().unwrap().to_owned()))
        .filter(|(name, _)| !others.contains(&name.as_str()))
        .collect();
    headers.sort();
    headers
}

fn pairs(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

async fn status_and_body(request: RequestBuilder) -> (u16, Vec<u8>) {
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.bytes().await.unwrap().to_vec())
}

fn with_web_server(web_server: WebServer) -> ServerOptions {
    ServerOptions { web_server, ..small() }
}

#[tokio::test]
async fn a_download_is_the_whole_ciphertext_with_the_real_servers_headers() {
    bounded(async {
        for (web_server, cache) in [(WebServer::Production, "no-store"), (WebServer::Development, "no-cache")] {
            let room = Room::with(with_web_server(web_server)).await;
            let paths = [
                (room.submission_path(&room.message), "1-level_reef-msg.gpg", MESSAGE_SIZE),
                (room.submission_path(&room.file), "2-level_reef-doc.gz.gpg", FILE_SIZE),
                (room.reply_path(), "3-level_reef-reply.gpg", REPLY_SIZE),
            ];
            for (path, name, size) in paths {
                let answer = room.get(&path).send().await.unwrap();
                assert_eq!(answer.status(), 200);
                let headers = file_headers(answer.headers());
                let body = answer.bytes().await.unwrap();
                assert_eq!(body.len() as u64, size, "{name}");
                let expected = [
                    ("accept-ranges", "bytes"),
                    ("cache-control", cache),
                    ("content-disposition", &format!("attachment; filename={name}")),
                    ("content-length", &size.to_string()),
                    ("content-type", "application/pgp-encrypted"),
                    ("etag", &etag_of(&body)),
                    ("last-modified", "Mon, 02 Nov 2026 08:30:00 GMT"),
                ];
                assert_eq!(headers, pairs(&expected));
                let head = room.site.signed(Method::HEAD, &path, &room.token).send().await.unwrap();
                assert_eq!(file_headers(head.headers()), headers);
                assert_eq!(head.bytes().await.unwrap().len(), 0);
                let requests = room.control().requests();
                let sent: Vec<_> = requests.iter().filter(|r| r.path == path).map(|r| r.body_bytes).collect();
                assert_eq!(sent, [size, 0]);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_range_is_206_with_what_was_asked_for() {
    bounded(async {
        for web_server in [WebServer::Production, WebServer::Development] {
            let room = Room::with(with_web_server(web_server)).await;
            let (_, whole) = status_and_body(room.get_message()).await;
            let cases = [
                ("bytes=0-99", 0, 99),
                ("bytes=100-", 100, 615),
                ("bytes=615-", 615, 615),
                ("bytes=100-9999", 100, 615),
                ("bytes=-50", 566, 615),
            ];
            for (range, first, last) in cases {
                let answer = room.get_message().header("Range", range).send().await.unwrap();
                assert_eq!(answer.status(), 206, "{range}");
                assert_eq!(answer.headers()["content-range"], format!("bytes {first}-{last}/616"));
                assert_eq!(answer.headers()["etag"], etag_of(&whole));
                assert_eq!(answer.content_length(), Some(last - first + 1));
                let (first, last) = (usize::try_from(first).unwrap(), usize::try_from(last).unwrap());
                assert_eq!(answer.bytes().await.unwrap(), whole[first..=last]);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_range_at_or_past_the_end_is_416_in_the_words_of_whoever_answers() {
    bounded(async {
        let room = Room::with(with_web_server(WebServer::Development)).await;
        for range in ["bytes=616-", "bytes=999999-", "bytes=0-9,20-29", "nonsense"] {
            refused(room.get_message().header("Range", range), 416, BEYOND).await;
        }
        let room = Room::with(with_web_server(WebServer::Production)).await;
        for range in ["bytes=616-", "bytes=999999-"] {
            let answer = room.get_message().header("Range", range).send().await.unwrap();
            assert_eq!((answer.status().as_u16(), answer.content_length()), (416, None));
            assert_eq!(answer.headers()["content-type"], "text/html; charset=iso-8859-1");
            assert_eq!(answer.headers()["transfer-encoding"], "chunked");
            for name in ["etag", "content-range", "accept-ranges"] {
                assert!(!answer.headers().contains_key(name), "{name}");
            }
            let page = answer.text().await.unwrap();
            assert!(page.contains("<h1>Requested Range Not Satisfiable</h1>\n"), "{page}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_production_web_server_answers_several_ranges_at_once() {
    bounded(async {
        let room = Room::open().await;
        let (_, whole) = status_and_body(room.get_message()).await;
        let answer = room.get_message().header("Range", "bytes=0-9,20-29").send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.content_length()), (206, Some(236)));
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
        let part = |range: &str, bytes: &[u8]| {
            let head = format!(
                "\r\n--{boundary}\r\nContent-type: application/pgp-encrypted\r\nContent-range: bytes {range}/616\r\n\r\n"
            );
            [head.as_bytes(), bytes].concat()
        };
        let end = format!("\r\n--{boundary}--\r\n").into_bytes();
        let expected = [part("0-9", &whole[..10]), part("20-29", &whole[20..30]), end].concat();
        assert_eq!(answer.bytes().await.unwrap(), expected);
    })
    .await;
}

#[tokio::test]
async fn no_condition_that_names_the_etag_is_ever_met() {
    bounded(async {
        let room = Room::open().await;
        let etag = room.control().etag(&room.message).await.unwrap();
        for value in [etag.clone(), format!("\"{etag}\""), "\"sha256:0000\"".to_owned()] {
            let (status, body) = status_and_body(room.get_message().header("If-None-Match", &value)).await;
            assert_eq!((status, body.len() as u64), (200, MESSAGE_SIZE));
            let request = room.get_message().header("Range", "bytes=100-").header("If-Range", &value);
            let (status, body) = status_and_body(request).await;
            assert_eq!((status, body.len() as u64), (200, MESSAGE_SIZE));
        }
    })
    .await;
}

#[tokio::test]
async fn conditions_that_name_the_date_work() {
    bounded(async {
        const MODIFIED: &str = "Mon, 02 Nov 2026 08:30:00 GMT";
        const OLD: &str = "Tue, 01 Jan 2013 00:00:00 GMT";
        for (web_server, headers) in [(WebServer::Development, 4), (WebServer::Production, 6)] {
            let room = Room::with(with_web_server(web_server)).await;
            for (date, status) in [(MODIFIED, 206), (OLD, 200)] {
                let request = room.get_message().header("Range", "bytes=100-").header("If-Range", date);
                assert_eq!(status_and_body(request).await.0, status);
            }
            for (date, status) in [(MODIFIED, 304), (OLD, 200), ("nonsense", 200)] {
                let request = room.get_message().header("If-Modified-Since", date);
                assert_eq!(status_and_body(request).await.0, status);
            }
            let answer = room.get_message().header("If-Modified-Since", MODIFIED).send().await.unwrap();
            assert_eq!(file_headers(answer.headers()).len(), headers, "{:?}", answer.headers());
            let both = room.get_message().header("If-Modified-Since", MODIFIED).header("If-None-Match", "\"x\"");
            assert_eq!(status_and_body(both).await.0, 200);
        }
    })
    .await;
}

#[tokio::test]
async fn last_modified_changes_whenever_that_source_sends_something() {
    bounded(async {
        let room = Room::open().await;
        let modified = async || {
            let answer = room.get_message().send().await.unwrap();
            answer.headers()["last-modified"].to_str().unwrap().to_owned()
        };
        let before = modified().await;
        room.control().apply(Command::AdvanceClock { seconds: 60 }).unwrap();
        let other = first_source(&room.site);
        room.control().apply(Command::NewMessage { source: other, size: 600 }).unwrap();
        room.control().apply(Command::ForgetLastUpdated { source: room.source.clone() }).unwrap();
        assert_eq!(modified().await, before);
        room.control().apply(Command::NewMessage { source: room.source.clone(), size: 600 }).unwrap();
        assert_eq!(modified().await, "Mon, 02 Nov 2026 08:31:00 GMT");
    })
    .await;
}

#[tokio::test]
async fn the_source_in_the_path_must_exist_and_need_not_be_the_items() {
    bounded(async {
        let room = Room::open().await;
        let other = first_source(&room.site);
        let (_, own) = status_and_body(room.get_message()).await;
        let path = format!("/api/v1/sources/{other}/submissions/{}/download", room.message);
        assert_eq!(status_and_body(room.get(&path)).await, (200, own));
        let message = &room.message;
        for path in [
            format!("/api/v1/sources/{UNKNOWN}/submissions/{message}/download"),
            format!("/api/v1/sources/{other}/submissions/{UNKNOWN}/download"),
            format!("/api/v1/sources/{other}/replies/{message}/download"),
            format!("/api/v1/sources/{other}/submissions/{}/download", room.reply),
        ] {
            refused(room.get(&path), 404, NOT_FOUND).await;
        }
        refused(room.site.get(&room.reply_path()), 403, NOT_SIGNED_IN).await;
        let posted = room.site.signed(Method::POST, &room.reply_path(), &room.token).send().await.unwrap();
        assert_eq!(posted.status(), 405);
    })
    .await;
}

#[tokio::test]
async fn a_file_that_is_missing_on_the_disk_is_500() {
    bounded(async {
        let room = Room::open().await;
        for (item, path) in [(&room.file, room.submission_path(&room.file)), (&room.reply, room.reply_path())] {
            room.control().apply(Command::LoseFile { item: item.clone() }).unwrap();
            refused(room.get(&path), 500, INTERNAL).await;
            refused(room.get(&path).header("Range", "bytes=10-"), 500, INTERNAL).await;
        }
        assert_eq!(status_and_body(room.get_message()).await.0, 200);
    })
    .await;
}

#[tokio::test]
async fn a_file_that_was_cut_on_the_disk_keeps_its_etag_and_is_a_short_200() {
    bounded(async {
        let room = Room::open().await;
        let (_, whole) = status_and_body(room.get_message()).await;
        room.control().apply(Command::AdvanceClock { seconds: 60 }).unwrap();
        let cut = |bytes| room.control().apply(Command::ShortenFile { item: room.message.clone(), bytes });
        cut(200).unwrap();
        let answer = room.get_message().send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.content_length()), (200, Some(200)));
        assert_eq!(answer.headers()["etag"], etag_of(&whole));
        assert_eq!(answer.headers()["last-modified"], "Mon, 02 Nov 2026 08:31:00 GMT");
        assert_eq!(answer.bytes().await.unwrap(), whole[..200]);
        assert_eq!(room.record(&room.message).await["size"], MESSAGE_SIZE);
        let answer = room.get_message().header("Range", "bytes=150-").send().await.unwrap();
        assert_eq!(answer.headers()["content-range"], "bytes 150-199/200");
        assert_eq!(status_and_body(room.get_message().header("Range", "bytes=200-")).await.0, 416);
        let revision = room.control().with_world(World::revision);
        let error = WorldError::NotShorter { item: room.message.clone(), bytes: 200 };
        assert_eq!(cut(200), Err(ControlError::World(error)));
        assert_eq!(room.control().with_world(World::revision), revision);
        cut(0).unwrap();
        assert_eq!(status_and_body(room.get_message()).await, (200, Vec::new()));
    })
    .await;
}

#[tokio::test]
async fn a_replaced_file_has_the_same_size_and_another_etag() {
    bounded(async {
        let room = Room::open().await;
        let (_, first) = status_and_body(room.get_message()).await;
        room.control().apply(Command::LoseFile { item: room.message.clone() }).unwrap();
        room.control().apply(Command::ReplaceFile { item: room.message.clone() }).unwrap();
        let answer = room.get_message().header("Range", "bytes=0-").send().await.unwrap();
        let etag = answer.headers()["etag"].to_str().unwrap().to_owned();
        let second = answer.bytes().await.unwrap();
        assert_eq!((second.len(), etag.as_str()), (first.len(), etag_of(&second).as_str()));
        assert_ne!(etag, etag_of(&first));
    })
    .await;
}

#[tokio::test]
async fn a_downloaded_submission_is_read_with_nobodys_mark() {
    bounded(async {
        let room = Room::open().await;
        let read = async |id| {
            let record = room.record(id).await;
            (record["is_read"].as_bool().unwrap(), record["seen_by"].as_array().unwrap().len())
        };
        assert_eq!(read(&room.message).await, (false, 0));
        let revision = room.control().with_world(World::revision);
        for _ in 0..3 {
            status_and_body(room.get_message()).await;
        }
        status_and_body(room.get(&room.reply_path())).await;
        assert_eq!((read(&room.message).await, read(&room.file).await), ((true, 0), (false, 0)));
        assert_eq!(room.control().with_world(World::revision), revision + 1, "only the first changes lists");
        let once = Change::SubmissionDownloaded { submission: room.message.clone() };
        assert_eq!(room.control().with_world(World::changes), [once].into_iter().collect());

        let room = Room::with(ServerOptions { downloads_mark_read: false, ..small() }).await;
        status_and_body(room.get_message()).await;
        assert_eq!(room.record(&room.message).await["is_read"], false);
        assert_eq!(room.control().with_world(World::changes), Changes::default());
    })
    .await;
}

#[tokio::test]
async fn a_download_is_never_compressed() {
    bounded(async {
        let room = Room::with(ServerOptions { gzip: true, ..small() }).await;
        let answer = room.get_message().header("Accept-Encoding", "gzip").send().await.unwrap();
        assert!(!answer.headers().contains_key("content-encoding"));
        assert_eq!(answer.content_length(), Some(MESSAGE_SIZE));
        let list = room.get("/api/v1/submissions").header("Accept-Encoding", "gzip").send().await.unwrap();
        assert_eq!(list.headers()["content-encoding"], HeaderValue::from_static("gzip"));
    })
    .await;
}

#[tokio::test]
async fn an_item_that_no_ciphertext_could_be_of_is_refused() {
    bounded(async {
        let room = Room::open().await;
        let source = || room.source.clone();
        let journalist = || MARLOW.username.to_owned();
        let cases = [
            (Command::NewMessage { source: source(), size: SMALLEST_MESSAGE - 1 }, SMALLEST_MESSAGE),
            (Command::NewFile { source: source(), size: SMALLEST_FILE - 1 }, SMALLEST_FILE),
            (Command::NewFile { source: source(), size: LARGEST_ITEM + 1 }, SMALLEST_FILE),
            (Command::NewReply { source: source(), journalist: journalist(), size: 0 }, SMALLEST_REPLY),
        ];
        for (command, least) in cases {
            match room.control().apply(command) {
                Err(ControlError::World(WorldError::Size { smallest, .. })) => assert_eq!(smallest, least),
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
}
