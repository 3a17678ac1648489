//! What is in the ciphertexts.

use std::io::{Cursor, Read};

use sequoia_openpgp::Cert;
use sequoia_openpgp::crypto::{SessionKey, SymmetricAlgorithm};
use sequoia_openpgp::packet::{PKESK, SKESK};
use sequoia_openpgp::parse::Parse;
use sequoia_openpgp::parse::stream::{DecryptionHelper, DecryptorBuilder, MessageStructure, VerificationHelper};
use sequoia_openpgp::policy::StandardPolicy;

use super::*;
use crate::generator::{NewsroomKey, Plaintext, Prng};

/// Somebody with a secret key.
struct Reader {
    cert: Cert,
    /// How many readers the message has.
    readers: usize,
}

impl VerificationHelper for &mut Reader {
    fn get_certs(&mut self, _: &[sequoia_openpgp::KeyHandle]) -> sequoia_openpgp::Result<Vec<Cert>> {
        Ok(Vec::new())
    }

    fn check(&mut self, _: MessageStructure<'_>) -> sequoia_openpgp::Result<()> {
        Ok(())
    }
}

impl DecryptionHelper for &mut Reader {
    fn decrypt(
        &mut self,
        pkesks: &[PKESK],
        _: &[SKESK],
        algorithm: Option<SymmetricAlgorithm>,
        decrypt: &mut dyn FnMut(Option<SymmetricAlgorithm>, &SessionKey) -> bool,
    ) -> sequoia_openpgp::Result<Option<Cert>> {
        self.readers = pkesks.len();
        for pkesk in pkesks {
            for key in self.cert.keys().unencrypted_secret() {
                if !pkesk.recipient().is_some_and(|reader| reader.aliases(key.key().key_handle())) {
                    continue;
                }
                let mut pair = key.key().clone().into_keypair()?;
                if pkesk.decrypt(&mut pair, algorithm).is_some_and(|(algo, key)| decrypt(algo, &key)) {
                    return Ok(None);
                }
            }
        }
        Err(anyhow::anyhow!("not for this reader"))
    }
}

/// What the newsroom reads, and how many could.
pub(in crate::server::tests) fn decrypt(
    newsroom: NewsroomKey,
    ciphertext: &[u8],
) -> sequoia_openpgp::Result<(Vec<u8>, usize)> {
    let policy = StandardPolicy::new();
    let cert = Cert::from_bytes(newsroom.secret_armor())?;
    assert_eq!(cert.fingerprint().to_hex(), newsroom.fingerprint());
    let mut reader = Reader { cert, readers: 0 };
    let mut plaintext = Vec::new();
    let mut message = DecryptorBuilder::from_bytes(ciphertext)?.with_policy(&policy, None, &mut reader)?;
    message.read_to_end(&mut plaintext)?;
    drop(message);
    Ok((plaintext, reader.readers))
}

fn read_all(mut from: impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    from.read_to_end(&mut all).unwrap();
    all
}

fn contents(plaintext: &Plaintext) -> Vec<u8> {
    let contents = read_all(plaintext.contents());
    assert_eq!(contents.len() as u64, plaintext.length());
    contents
}

#[tokio::test]
async fn the_newsroom_reads_a_message_a_file_and_a_reply_with_either_key() {
    bounded(async {
        for newsroom in [NewsroomKey::Rsa4096, NewsroomKey::Curve25519] {
            let room = Room::with(ServerOptions { newsroom, ..small() }).await;
            let control = room.control();
            let (_, ciphertext) = status_and_body(room.get_message()).await;
            let (text, readers) = decrypt(newsroom, &ciphertext).unwrap();
            let plaintext = control.plaintext(&room.message).unwrap();
            assert_eq!((readers, plaintext.name()), (1, None));
            assert_eq!(text, contents(&plaintext));
            assert!(!String::from_utf8(text).unwrap().is_ascii());

            let (_, ciphertext) = status_and_body(room.get(&room.submission_path(&room.file))).await;
            let (gzip, readers) = decrypt(newsroom, &ciphertext).unwrap();
            let plaintext = control.plaintext(&room.file).unwrap();
            assert_eq!((readers, gzip.len() as u64), (1, plaintext.wrapped_length()));
            let mut decoder = flate2::read::GzDecoder::new(Cursor::new(&gzip));
            assert_eq!(decoder.header().unwrap().filename(), plaintext.name().map(str::as_bytes));
            let file = read_all(&mut decoder);
            assert_eq!(file, contents(&plaintext));
            assert!(file.len() > gzip.len(), "it compresses");

            let (_, ciphertext) = status_and_body(room.get(&room.reply_path())).await;
            let (text, readers) = decrypt(newsroom, &ciphertext).unwrap();
            assert_eq!(readers, 2, "the source and the newsroom");
            assert_eq!(text, contents(&control.plaintext(&room.reply).unwrap()));
            assert_eq!(text, contents(&control.reply_plaintext(&room.reply).unwrap()));
        }
    })
    .await;
}

#[tokio::test]
async fn a_reply_is_for_the_key_that_the_source_had() {
    bounded(async {
        let room = Room::open().await;
        let before = room.control().etag(&room.reply).await.unwrap();
        room.control().apply(Command::SetKey { source: room.source.clone(), key: KeyChoice::None }).unwrap();
        assert_eq!(room.control().etag(&room.reply).await.unwrap(), before);
        let (source, journalist) = (room.source.clone(), MARLOW.username.to_owned());
        let reply = new_item(room.control(), Command::NewReply { source, journalist, size: 1_500 });
        let path = format!("/api/v1/sources/{}/replies/{reply}/download", room.source);
        let (_, ciphertext) = status_and_body(room.get(&path)).await;
        assert_eq!(ciphertext.len(), 1_500);
        assert_eq!(decrypt(NewsroomKey::Rsa4096, &ciphertext).unwrap().1, 1);
    })
    .await;
}

#[tokio::test]
async fn integrity_is_protected() {
    bounded(async {
        let newsroom = NewsroomKey::Curve25519;
        let room = Room::with(ServerOptions { newsroom, ..small() }).await;
        let (_, mut ciphertext) = status_and_body(room.get_message()).await;
        let middle = ciphertext.len() / 2;
        ciphertext[middle] ^= 1;
        decrypt(newsroom, &ciphertext).unwrap_err();
        ciphertext[middle] ^= 1;
        decrypt(newsroom, &ciphertext).unwrap();
        ciphertext.truncate(middle);
        decrypt(newsroom, &ciphertext).unwrap_err();
    })
    .await;
}

#[tokio::test]
async fn sizes_are_exact_and_etags_true() {
    bounded(async {
        let mut options = small();
        let source = options.world.sources().find(|source| source.key.is_some()).unwrap().id.clone();
        let author = options.world.journalist_named(MARLOW.username).unwrap().id.clone();
        let mut prng = Prng::new(11);
        let mut items = Vec::new();
        let kinds = [SubmissionKind::Message, SubmissionKind::File, SubmissionKind::ZippedFile];
        for _ in 0..1_000 {
            let id = prng.uuid();
            let range = *prng.pick(&[12, 400, 9_000, 30_000]).unwrap();
            let (list, size) = match prng.pick(&kinds).filter(|_| prng.chance(3, 4)) {
                Some(kind) => {
                    let size = kind.smallest_size() + prng.below(range);
                    options.world.add_submission(id.clone(), &source, *kind, size, NOW).unwrap();
                    ("submissions", size)
                }
                None => {
                    let size = SMALLEST_REPLY + prng.below(range);
                    options.world.add_reply(id.clone(), &source, &author, size).unwrap();
                    ("replies", size)
                }
            };
            items.push((format!("/api/v1/sources/{source}/{list}/{id}/download"), size));
        }
        let site = Site::start(options).await;
        let token = site.sign_in(MARLOW).await;
        for (path, size) in items {
            let answer = site.signed(Method::GET, &path, &token).send().await.unwrap();
            let etag = answer.headers()["etag"].clone();
            let body = answer.bytes().await.unwrap();
            assert_eq!((body.len() as u64, etag.to_str().unwrap()), (size, etag_of(&body).as_str()));
        }
    })
    .await;
}

#[tokio::test]
async fn a_large_file_is_read_from_the_disk_in_whatever_parts() {
    bounded(async {
        let room = Room::with(ServerOptions { newsroom: NewsroomKey::Curve25519, ..small() }).await;
        let size = 3_000_001;
        let file = new_item(room.control(), Command::NewFile { source: room.source.clone(), size });
        let path = room.submission_path(&file);
        let (_, whole) = status_and_body(room.get(&path)).await;
        assert_eq!(whole.len() as u64, size);
        let (_, end) = status_and_body(room.get(&path).header("Range", "bytes=1234567-")).await;
        assert_eq!(end, whole[1_234_567..]);
        assert_eq!(room.control().etag(&file).await.unwrap(), etag_of(&whole));
        let (gzip, _) = decrypt(NewsroomKey::Curve25519, &whole).unwrap();
        let plaintext = room.control().plaintext(&file).unwrap();
        assert_eq!(read_all(flate2::read::GzDecoder::new(Cursor::new(gzip))), contents(&plaintext));
    })
    .await;
}

#[tokio::test]
async fn what_is_sent_depends_on_the_id_the_size_and_the_edition_only() {
    bounded(async {
        let (one, other) = (Room::open().await, Room::open().await);
        assert_eq!(one.message, other.message);
        let text = |room: &Room| contents(&room.control().plaintext(&room.message).unwrap());
        assert_eq!(text(&one), text(&other));
        let etag = async |room: &Room| room.control().etag(&room.message).await.unwrap();
        assert_eq!(etag(&one).await, etag(&one).await);
        let before = text(&one);
        one.control().apply(Command::ReplaceFile { item: one.message.clone() }).unwrap();
        assert_ne!(text(&one), before);
        let unknown = one.control().plaintext(&UNKNOWN.into()).unwrap_err();
        assert!(matches!(unknown, CiphertextError::NoItem(_)), "{unknown}");
    })
    .await;
}
