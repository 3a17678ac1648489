//! Keys of sources that come, go, change, and are not what they are said to be.

use super::replies::{Room, encrypted};
use super::*;
use crate::generator::{KeyPair, NewsroomKey, pool};

const REPLY: &str = "6a0f4f0e-38d5-4a55-9d2e-0c1d5a7b9e11";

impl Room {
    fn set(&self, key: Option<String>, fingerprint: Option<&str>) -> Result<Outcome, ControlError> {
        let (source, fingerprint) = (self.source.clone(), fingerprint.map(str::to_owned));
        self.control().apply(Command::SetSourceKey { source, key, fingerprint })
    }

    async fn key(&self) -> Value {
        let token = self.site.sign_in(TERNBERG).await;
        // The next code is good for the next login.
        self.control().apply(Command::AdvanceClock { seconds: 60 }).unwrap();
        self.site.read(&format!("/api/v1/sources/{}", self.source), &token).await["key"].clone()
    }

    async fn source_reads(&self, text: &str, keys: &[&str], id: &str) -> Result<String, ReadingError> {
        let answer = self.post(&json!({"reply": encrypted(text, keys), "uuid": id})).send().await.unwrap();
        assert_eq!(answer.status(), 201);
        self.control().source_reads(&id.into()).await.map(|read| read.text)
    }
}

#[tokio::test]
async fn r4_a_key_goes_and_comes() {
    bounded(async {
        let room = Room::open().await;
        room.set(None, None).unwrap();
        assert_eq!(room.key().await, json!({"type": "PGP", "public": null, "fingerprint": null}));
        let key = KeyPair::generate().unwrap();
        room.set(Some(key.public_armor().unwrap()), None).unwrap();
        let there = room.key().await;
        assert_eq!(there["fingerprint"], key.fingerprint());
        assert_eq!(there["public"], key.public_armor().unwrap());
    })
    .await;
}

#[tokio::test]
async fn r5_another_key_a_lie_and_a_later_expiry_can_be_had() {
    bounded(async {
        let room = Room::open().await;
        let pooled = pool()[1].clone();
        let later = KeyPair::of_pool(1).unwrap().expiring(Some(Timestamp::constant(4_000_000_000, 0))).unwrap();
        room.set(Some(later.public_armor().unwrap()), None).unwrap();
        let key = room.key().await;
        assert_eq!(key["fingerprint"], pooled.fingerprint);
        assert_ne!(key["public"], pooled.armor);

        let other = KeyPair::generate().unwrap();
        room.set(Some(other.public_armor().unwrap()), None).unwrap();
        assert_eq!(room.key().await["fingerprint"], other.fingerprint());
        // The new key under the old name, and the key that is there under another one.
        room.set(Some(other.public_armor().unwrap()), Some(&pooled.fingerprint)).unwrap();
        let key = room.key().await;
        assert_eq!(
            (&key["fingerprint"], &key["public"]),
            (&json!(pooled.fingerprint), &json!(other.public_armor().unwrap()))
        );
        let (armor, lie) = (key["public"].clone(), "F".repeat(40));
        room.set(None, Some(&lie)).unwrap();
        let key = room.key().await;
        assert_eq!((&key["fingerprint"], &key["public"]), (&json!(lie), &armor));
    })
    .await;
}

#[tokio::test]
async fn a_source_reads_with_every_key_that_it_had_and_whose_secret_half_is_here() {
    bounded(async {
        let room = Room::open().await;
        let newsroom = NewsroomKey::default().secret_armor();
        let (known, unknown) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        room.set(Some(known.secret_armor().unwrap()), None).unwrap();
        let key = room.key().await;
        assert_eq!(key["public"], known.public_armor().unwrap(), "the secret half stays here");
        room.set(Some(unknown.public_armor().unwrap()), None).unwrap();
        let (pooled, known, unknown) =
            (pool()[1].armor.clone(), known.public_armor().unwrap(), unknown.public_armor().unwrap());
        assert_eq!(room.source_reads("one", &[&pooled, newsroom], REPLY).await.unwrap(), "one");
        let two = "6a0f4f0e-38d5-4a55-9d2e-0c1d5a7b9e12";
        assert_eq!(room.source_reads("two", &[&known, newsroom], two).await.unwrap(), "two");
        let three = "6a0f4f0e-38d5-4a55-9d2e-0c1d5a7b9e13";
        let read = room.source_reads("three", &[&unknown, newsroom], three).await;
        assert!(matches!(read, Err(ReadingError::NotForReader(_))), "{read:?}");
        // It is the source's key all the same.
        let recipients = room.control().recipients(&three.into()).await.unwrap();
        assert_eq!(recipients.iter().map(|one| one.whose).collect::<Vec<_>>(), [Whose::Source, Whose::Newsroom]);
    })
    .await;
}

#[tokio::test]
async fn what_is_no_key_changes_nothing() {
    bounded(async {
        let room = Room::open().await;
        let before = room.key().await;
        for text in ["", "no key", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n-----END PGP PUBLIC KEY BLOCK-----\n"] {
            let refused = room.set(Some(text.to_owned()), None);
            assert!(matches!(refused, Err(ControlError::KeyText(_))), "{refused:?}");
        }
        let command = Command::SetSourceKey { source: "x".into(), key: None, fingerprint: None };
        let refused = room.control().apply(command);
        assert_eq!(refused, Err(ControlError::World(WorldError::NoSource("x".into()))));
        assert_eq!(room.key().await, before);
        room.set(None, None).unwrap();
        assert!(matches!(room.set(None, Some("F00D")), Err(ControlError::KeyText(_))), "there is none to say it of");
    })
    .await;
}
