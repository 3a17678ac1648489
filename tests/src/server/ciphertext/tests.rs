use super::*;
use crate::generator::pool;

fn letter(id: &str, size: u64) -> Letter {
    let kind = LetterKind::Submission(SubmissionKind::Message);
    Letter { id: id.into(), kind, size, edition: 0, reader: None, sealed: None }
}

fn key(id: &str, size: u64) -> LetterKey {
    letter(id, size).key()
}

#[tokio::test]
async fn what_was_forgotten_is_made_again_just_the_same() {
    let ciphertexts = Ciphertexts::new(NewsroomKey::Curve25519);
    let letter = letter("a", 700);
    let first = ciphertexts.get(&letter).await.unwrap();
    assert!(Arc::ptr_eq(&first, &ciphertexts.get(&letter).await.unwrap()), "it is kept");
    {
        let mut kept = ciphertexts.kept.lock().unwrap();
        for number in 0..MOST_IN_MEMORY / LARGEST_IN_MEMORY {
            kept.slot(key(&number.to_string(), LARGEST_IN_MEMORY));
        }
        assert!(!kept.slots.contains_key(&letter.key()), "it is not");
    }
    let second = ciphertexts.get(&letter).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!((first.etag.as_str(), first.length), (second.etag.as_str(), 700));
}

#[test]
fn memory_and_files_are_bounded_and_the_newest_stays() {
    let mut kept = Kept::default();
    let large = LARGEST_IN_MEMORY + 1;
    for number in 0..10_000 {
        let size = if number % 2 == 0 { LARGEST_IN_MEMORY / 3 } else { large * 100 };
        kept.slot(key(&number.to_string(), size));
        assert!(kept.slots.contains_key(&key(&number.to_string(), size)));
        assert!(kept.in_memory.bytes <= MOST_IN_MEMORY && kept.in_files.bytes <= MOST_IN_FILES);
        assert_eq!(kept.slots.len(), kept.in_memory.order.len() + kept.in_files.order.len());
    }
    kept.slot(key("huge", MOST_IN_FILES + 1));
    assert!(kept.slots.contains_key(&key("huge", MOST_IN_FILES + 1)));
    assert_eq!(kept.in_files.order.len(), 1);
}

#[tokio::test]
async fn one_who_goes_while_it_is_made_leaves_it_to_the_next() {
    let ciphertexts = Ciphertexts::new(NewsroomKey::Curve25519);
    let letter = letter("a", 300_000);
    let gone = tokio::select! {
        biased;
        made = ciphertexts.get(&letter) => panic!("made: {made:?}"),
        () = tokio::task::yield_now() => letter.clone(),
    };
    assert_eq!(ciphertexts.get(&gone).await.unwrap().length, 300_000);
}

#[tokio::test]
async fn every_key_of_the_pool_can_be_encrypted_to_and_nonsense_is_passed_over() {
    for newsroom in [NewsroomKey::Rsa4096, NewsroomKey::Curve25519] {
        let envelopes = Envelopes::new(newsroom);
        let alone = envelopes.address(None).unwrap();
        for key in pool() {
            assert!(envelopes.address(Some(&key)).unwrap().len() > alone.len());
        }
        let nonsense = SourceKey::new("00", "not a key");
        assert_eq!(envelopes.address(Some(&nonsense)).unwrap(), alone);
    }
}
