//! What sources send exactly as a test says.

use std::io::Read;

use flate2::read::GzDecoder;
use sequoia_openpgp::Packet;
use sequoia_openpgp::parse::{PacketParser, PacketParserResult, Parse};

use super::acts::newcomer;
use super::*;
use crate::generator::{Form, NewsroomKey};

/// A server with one source.
struct Post {
    site: Site,
    token: String,
    source: RecordId,
}

impl Post {
    async fn open() -> Self {
        let site = Site::start(small()).await;
        let token = site.sign_in(MARLOW).await;
        let source = newcomer(site.control());
        Self { site, token, source }
    }

    fn control(&self) -> &Control {
        self.site.control()
    }

    fn send(&self, kind: SubmissionKind, body: Body, seal: Seal) -> RecordId {
        match self.control().apply(Command::NewSubmission { source: self.source.clone(), kind, body, seal }).unwrap() {
            Outcome::Item { uuid, .. } => uuid,
            other => panic!("not an item: {other:?}"),
        }
    }

    /// What the server sends, which must be what it says.
    async fn fetch(&self, item: &RecordId) -> Vec<u8> {
        let path = format!("/api/v1/sources/{}/submissions/{item}", self.source);
        let record = self.site.read(&path, &self.token).await;
        let answer = self.site.signed(Method::GET, &format!("{path}/download"), &self.token).send().await.unwrap();
        assert_eq!(answer.headers()["etag"], self.control().etag(item).await.unwrap().as_str());
        let bytes = answer.bytes().await.unwrap().to_vec();
        assert_eq!(record["size"], bytes.len());
        let digest = {
            use sha2::Digest as _;
            sha2::Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(self.control().etag(item).await.unwrap(), format!("sha256:{digest}"));
        bytes
    }

    fn shown(&self, item: &RecordId) -> Vec<u8> {
        let plaintext = self.control().plaintext(item).unwrap();
        let mut contents = Vec::new();
        plaintext.contents().read_to_end(&mut contents).unwrap();
        assert_eq!(contents.len() as u64, plaintext.length());
        contents
    }

    #[track_caller]
    fn nothing_to_show(&self, item: &RecordId) {
        let shown = self.control().plaintext(item);
        assert!(matches!(shown, Err(CiphertextError::NothingToShow(ref id)) if id == item), "{shown:?}");
    }
}

fn text(text: &str) -> Body {
    Body::Text { text: text.to_owned() }
}

fn gzip(name: &[u8], contents: &[u8], flaw: GzipFlaw) -> Body {
    Body::Gzip { name: Some(name.to_vec()), contents: contents.to_vec(), flaw }
}

fn armored(reader: Reader, body: Body) -> Body {
    Body::Armored { reader, body: Box::new(body) }
}

/// What the newsroom's key makes of a ciphertext.
fn decrypt(message: &[u8]) -> sequoia_openpgp::Result<Vec<u8>> {
    super::downloads::contents::decrypt(NewsroomKey::default(), message).map(|(plaintext, _)| plaintext)
}

/// The wrapped bytes, as a client gets them by decryption, and what an honest decoder makes of them.
async fn unzipped(post: &Post, item: &RecordId) -> (Option<Vec<u8>>, std::io::Result<Vec<u8>>) {
    let file = decrypt(&post.fetch(item).await).unwrap();
    let mut decoder = GzDecoder::new(file.as_slice());
    let name = decoder.header().and_then(|header| header.filename()).map(<[u8]>::to_vec);
    let mut contents = Vec::new();
    let read = decoder.read_to_end(&mut contents).map(|_| contents);
    (name, read)
}

#[tokio::test]
async fn text_is_what_it_is() {
    bounded(async {
        let post = Post::open().await;
        for words in ["", "a", "Zoë\u{202e}\u{1b}[2J\0", &"long ".repeat(400_000)] {
            let item = post.send(SubmissionKind::Message, text(words), Seal::default());
            assert_eq!(decrypt(&post.fetch(&item).await).unwrap(), words.as_bytes());
            assert_eq!(post.shown(&item), words.as_bytes());
            assert_eq!(post.control().newsroom_reads(&item).await.unwrap().text, words);
        }
        let bytes = Body::Bytes { bytes: vec![0xff, 0, 0xfe] };
        let item = post.send(SubmissionKind::Message, bytes, Seal::default());
        assert_eq!(decrypt(&post.fetch(&item).await).unwrap(), [0xff, 0, 0xfe]);
        post.nothing_to_show(&item);
        assert!(matches!(post.control().newsroom_reads(&item).await, Err(ReadingError::NotText(_))));
    })
    .await;
}

#[tokio::test]
async fn f8_the_name_in_gzip_is_byte_by_byte_what_the_source_chose() {
    bounded(async {
        let post = Post::open().await;
        let long = "x".repeat(5_000);
        for (name, there, shown) in [
            (&b"../../.config/autostart/x.desktop"[..], None, "../../.config/autostart/x.desktop"),
            (b"/home/user/x", None, "/home/user/x"),
            (b"..", None, ".."),
            (b"", None, ""),
            (b"a\nb", None, "a\nb"),
            (b"-rf", None, "-rf"),
            (long.as_bytes(), None, &long),
            ("fdp.\u{202e}exe".as_bytes(), None, "fdp.\u{202e}exe"),
            (b"caf\xe9.txt", None, "caf\u{fffd}.txt"),
            (b"nul\0behind.txt", Some(&b"nul"[..]), "nul"),
        ] {
            let item = post.send(SubmissionKind::File, gzip(name, b"contents", GzipFlaw::None), Seal::default());
            let (raw, contents) = unzipped(&post, &item).await;
            assert_eq!(raw.as_deref().unwrap_or_default(), there.unwrap_or(name));
            assert_eq!(contents.unwrap(), b"contents");
            assert_eq!(post.shown(&item), b"contents");
            let plaintext = post.control().plaintext(&item).unwrap();
            assert_eq!((plaintext.form(), plaintext.name()), (Form::Gzip, Some(shown)));
        }
        let nameless = Body::Gzip { name: None, contents: Vec::new(), flaw: GzipFlaw::None };
        let item = post.send(SubmissionKind::File, nameless, Seal::default());
        assert_eq!(unzipped(&post, &item).await.0, None);
        assert_eq!(post.control().plaintext(&item).unwrap().name(), None);
        assert_eq!(post.shown(&item), b"");
    })
    .await;
}

#[tokio::test]
async fn f4_a_flawed_gzip_is_found_out() {
    bounded(async {
        let post = Post::open().await;
        let contents: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        for flaw in [
            GzipFlaw::Cut(1),
            GzipFlaw::Cut(8),
            GzipFlaw::Cut(1_000),
            GzipFlaw::Cut(usize::MAX),
            GzipFlaw::Sum,
            GzipFlaw::Length,
            GzipFlaw::Data,
        ] {
            let item = post.send(SubmissionKind::File, gzip(b"a.csv", &contents, flaw), Seal::default());
            assert!(unzipped(&post, &item).await.1.is_err(), "{flaw:?}");
            post.nothing_to_show(&item);
        }
        let item = post.send(SubmissionKind::File, gzip(b"a.csv", &contents, GzipFlaw::Trailing), Seal::default());
        let file = decrypt(&post.fetch(&item).await).unwrap();
        assert!(file.ends_with(b"and more"));
        post.nothing_to_show(&item);
        // A message that is a file, and a file that is a text.
        let item = post.send(SubmissionKind::Message, gzip(b"a", b"b", GzipFlaw::None), Seal::default());
        post.nothing_to_show(&item);
        let item = post.send(SubmissionKind::File, text("no gzip"), Seal::default());
        post.nothing_to_show(&item);
    })
    .await;
}

#[tokio::test]
async fn f5_a_little_gzip_has_many_zeros_in_it() {
    bounded(async {
        let post = Post::open().await;
        for length in [0, 1, 3_500_000] {
            let zeros = Body::Zeros { name: Some(b"zeros".to_vec()), length };
            let item = post.send(SubmissionKind::File, zeros, Seal::default());
            let (name, contents) = unzipped(&post, &item).await;
            let contents = contents.unwrap();
            assert_eq!((name.as_deref(), contents.len() as u64), (Some(&b"zeros"[..]), length));
            assert!(contents.iter().all(|byte| *byte == 0));
            post.nothing_to_show(&item);
        }
        let zeros = Body::Zeros { name: None, length: 300 << 20 };
        let item = post.send(SubmissionKind::File, zeros, Seal::default());
        let file = decrypt(&post.fetch(&item).await).unwrap();
        assert!(file.len() < 400_000, "{}", file.len());
        let length = u32::from_le_bytes(file[file.len() - 4..].try_into().unwrap());
        assert_eq!(length, 300 << 20);
        let body = Body::Zeros { name: None, length: MOST_ZEROS + 1 };
        let command = Command::NewSubmission {
            source: post.source.clone(),
            kind: SubmissionKind::File,
            body,
            seal: Seal::default(),
        };
        assert!(matches!(post.control().apply(command), Err(ControlError::Seal(_))));
    })
    .await;
}

#[tokio::test]
async fn f5_layers_of_encryption_are_inside_each_other() {
    bounded(async {
        let post = Post::open().await;
        let item =
            post.send(SubmissionKind::Message, armored(Reader::Newsroom, text("the innermost")), Seal::default());
        let inner = decrypt(&post.fetch(&item).await).unwrap();
        assert!(inner.starts_with(b"-----BEGIN PGP MESSAGE-----\n"));
        assert_eq!(decrypt(&inner).unwrap(), b"the innermost");
        assert_eq!(post.shown(&item), b"the innermost");

        let item = post.send(SubmissionKind::Message, armored(Reader::Stranger, text("lost")), Seal::default());
        let inner = decrypt(&post.fetch(&item).await).unwrap();
        assert!(inner.starts_with(b"-----BEGIN PGP MESSAGE-----\n"));
        assert!(decrypt(&inner).is_err());
        post.nothing_to_show(&item);

        let layers = |count: usize| (0..count).fold(text("deep"), |body, _| armored(Reader::Newsroom, body));
        let item = post.send(SubmissionKind::Message, layers(MOST_LAYERS), Seal::default());
        let mut bytes = post.fetch(&item).await;
        for _ in 0..=MOST_LAYERS {
            bytes = decrypt(&bytes).unwrap();
        }
        assert_eq!(bytes, b"deep");
        let (source, kind, body) = (post.source.clone(), SubmissionKind::Message, layers(MOST_LAYERS + 1));
        let refused = post.control().apply(Command::NewSubmission { source, kind, body, seal: Seal::default() });
        assert!(matches!(refused, Err(ControlError::Seal(_))), "{refused:?}");
    })
    .await;
}

#[tokio::test]
async fn f6_a_strangers_key_is_the_only_one_and_the_same_each_time() {
    bounded(async {
        let post = Post::open().await;
        let seal = Seal { reader: Reader::Stranger, ..Seal::default() };
        let mut key_ids = Vec::new();
        for _ in 0..2 {
            let item = post.send(SubmissionKind::Message, text("lost"), seal);
            assert!(decrypt(&post.fetch(&item).await).is_err());
            post.nothing_to_show(&item);
            let read = post.control().newsroom_reads(&item).await;
            assert!(matches!(read, Err(ReadingError::NotForReader(_))), "{read:?}");
            let [recipient] = &post.control().recipients(&item).await.unwrap()[..] else { panic!("not one") };
            assert_eq!(recipient.whose, Whose::Unknown);
            key_ids.push(recipient.key_id.clone());
        }
        assert_eq!(key_ids[0], key_ids[1]);
        let newsroom = NewsroomKey::default().fingerprint();
        assert!(!newsroom.ends_with(&key_ids[0]));
    })
    .await;
}

#[tokio::test]
async fn f4_what_is_not_protected_or_damaged_or_cut_is_found_out() {
    bounded(async {
        let post = Post::open().await;
        let words = "words ".repeat(500);
        let sealed = |protection, cut| Seal { protection, cut, ..Seal::default() };
        for seal in [sealed(Protection::WrongCode, 0), sealed(Protection::Code, 1), sealed(Protection::Code, 2_000)] {
            let item = post.send(SubmissionKind::Message, text(&words), seal);
            assert!(decrypt(&post.fetch(&item).await).is_err(), "{seal:?}");
            post.nothing_to_show(&item);
            assert!(post.control().newsroom_reads(&item).await.is_err());
        }
        let whole = post.send(SubmissionKind::Message, text(&words), Seal::default());
        let whole = post.fetch(&whole).await;
        let cut = post.send(SubmissionKind::Message, text(&words), sealed(Protection::Code, 700));
        assert_eq!(post.fetch(&cut).await, whole[..whole.len() - 700]);

        let item = post.send(SubmissionKind::Message, text(&words), sealed(Protection::None, 0));
        let message = post.fetch(&item).await;
        assert!(decrypt(&message).is_err(), "sequoia does not take it either");
        post.nothing_to_show(&item);
        let mut tags = Vec::new();
        let mut next = PacketParser::from_bytes(&message).unwrap();
        while let PacketParserResult::Some(parser) = next {
            tags.push(match &parser.packet {
                Packet::PKESK(_) => 1,
                Packet::Unknown(unknown) => u8::from(unknown.tag()),
                other => panic!("{other:?}"),
            });
            next = parser.next().unwrap().1;
        }
        assert_eq!(tags, [1, 9], "a session key, and data without protection");
    })
    .await;
}

#[test]
fn commands_survive_json() {
    let command = Command::NewSubmission {
        source: "a".into(),
        kind: SubmissionKind::File,
        body: armored(Reader::Stranger, gzip(b"\xff", b"b", GzipFlaw::Cut(3))),
        seal: Seal { reader: Reader::Stranger, protection: Protection::None, cut: 5 },
    };
    let json = serde_json::to_string(&command).unwrap();
    assert_eq!(serde_json::from_str::<Command>(&json).unwrap(), command, "{json}");
    let short =
        json!({"do": "new_submission", "source": "a", "kind": "message", "body": {"form": "text", "text": "b"}});
    let (source, kind) = ("a".into(), SubmissionKind::Message);
    let full = Command::NewSubmission { source, kind, body: text("b"), seal: Seal::default() };
    assert_eq!(serde_json::from_value::<Command>(short).unwrap(), full);
    let key = Command::SetSourceKey { source: "a".into(), key: None, fingerprint: Some("F".to_owned()) };
    let json = serde_json::to_string(&key).unwrap();
    assert_eq!(serde_json::from_str::<Command>(&json).unwrap(), key, "{json}");
}
