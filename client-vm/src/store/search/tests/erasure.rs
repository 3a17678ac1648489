//! Case D4 for the index: no page of it holds anything of what is gone.

use std::path::Path;

use super::*;
use crate::store::Store;

/// A database on the disk with many messages of one source, of which `doomed` have words that nobody else has.
struct Disk {
    directory: tempfile::TempDir,
    store: Store,
}

impl Disk {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let disk = Self { directory, store };
        disk.write(|transaction| add_source(transaction, 1, "calm sea", 1)).await;
        disk
    }

    async fn write(&self, work: impl FnOnce(&Transaction<'_>) -> Result<(), StoreError> + Send + 'static) {
        self.store.write(work).await.unwrap();
    }

    /// Messages with these numbers say this.
    async fn says(&self, texts: Vec<(u32, String)>) {
        self.write(move |transaction| {
            for (number, text) in texts {
                list(transaction, 1, message(number), number)?;
                open(transaction, message(number), &text)?;
            }
            Ok(())
        })
        .await;
    }

    /// Others' messages, each in a transaction of its own, so that the index has many segments that merge.
    async fn others(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let words: Vec<_> = (0..60).map(|word| format!("w{}", (number * 61 + word * 7919) % 9_973)).collect();
            self.says(vec![(number, words.join(" "))]).await;
        }
    }

    async fn forget(&self, numbers: Vec<u32>) {
        self.write(move |transaction| {
            for number in numbers {
                let item = message(number).id();
                transaction.execute("DELETE FROM local_item WHERE item_id = ?1", [item.as_str()])?;
            }
            Ok(())
        })
        .await;
    }

    async fn merge(&self) {
        self.write(|transaction| {
            transaction.execute("INSERT INTO search (search) VALUES ('optimize')", [])?;
            Ok(())
        })
        .await;
    }

    async fn hits(&self, typed: &str) -> usize {
        let query = query(typed);
        self.store.read(move |transaction| find(transaction, &query, 1_000)).await.unwrap().hits.len()
    }

    /// How often any of the files holds this, once what was written has reached the database.
    async fn holds(&self, bytes: &str) -> usize {
        self.store.checkpoint().await.unwrap();
        let files = std::fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        files.map(|path| count(&path, bytes.as_bytes())).sum()
    }

    /// FTS5 finds its index sound, and in step with what it holds.
    async fn is_sound(&self) {
        self.write(|transaction| {
            transaction.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)", [])?;
            Ok(())
        })
        .await;
    }
}

fn count(path: &Path, bytes: &[u8]) -> usize {
    std::fs::read(path).unwrap().windows(bytes.len()).filter(|window| *window == bytes).count()
}

/// A text of words that begin alike and end in digits: what FTS5 has to tell apart are their last characters.
fn alike(beginning: &str, count: u32) -> String {
    (0..count).map(|number| format!("{beginning}{number:05}")).collect::<Vec<_>>().join(" ")
}

/// A single word, of which no part is left: in a segment of its own, and in a large one.
#[tokio::test]
async fn d4_a_deleted_message_leaves_nothing_in_any_page_of_the_index() {
    const WORD: &str = "quizzicaljackdawxyloph";
    for merged in [false, true] {
        let disk = Disk::new().await;
        disk.others(1..150).await;
        disk.says(vec![(1_000, format!("we meet {WORD} at nine"))]).await;
        disk.others(150..300).await;
        if merged {
            disk.merge().await;
        }
        assert_eq!((disk.hits(WORD).await, disk.hits("quizzicalj*").await), (1, 1));
        let (end, beginning) = (WORD.get(WORD.len() - 8..).unwrap(), WORD.get(..8).unwrap());
        // In what it says, in the words of the index, and in the index.
        assert!(disk.holds(end).await >= 3 && disk.holds(beginning).await >= 3);
        disk.forget(vec![1_000]).await;
        assert_eq!((disk.holds(end).await, disk.holds(beginning).await), (0, 0), "merged: {merged}");
        assert_eq!((disk.hits(WORD).await, disk.hits("quizzicalj*").await), (0, 0));
        disk.is_sound().await;
    }
}

/// So many words that whole pages are theirs, and the pages above say where each begins.
#[tokio::test]
async fn d4_pages_above_forget_what_the_pages_below_have_forgotten() {
    const BEGINNING: &str = "vexingzephyr";
    for merged in [false, true] {
        let disk = Disk::new().await;
        disk.others(1..60).await;
        disk.says(vec![(1_000, alike(BEGINNING, 9_000)), (1_001, alike("vexingzulu", 2_000))]).await;
        disk.others(60..120).await;
        if merged {
            disk.merge().await;
        }
        let above = disk
            .store
            .read(|transaction| {
                let sql = "SELECT count(*) FROM search_idx WHERE instr(CAST(term AS TEXT), 'vexingzephyr')";
                Ok(transaction.query_row(sql, [], |row| row.get::<_, u64>(0))?)
            })
            .await
            .unwrap();
        assert!(above > 5, "{above}: the test is about what these pages hold");
        assert_eq!((disk.hits("vexingzephyr04321").await, disk.hits("vexingzulu00321").await), (1, 1));
        // Deleted by anybody else, it leaves what the pages above say, which goes with the store's next transaction.
        let raw = crate::store::open::writer(&disk.directory.path().join(crate::store::DATABASE)).unwrap();
        raw.execute("DELETE FROM local_item WHERE item_id = ?1", [message(1_000).id().as_str()]).unwrap();
        drop(raw);
        assert!(disk.holds(BEGINNING).await > 0, "FTS5 alone would do: then this test is about nothing");
        disk.write(|_| Ok(())).await;
        for part in [BEGINNING, "zephyr", "ephyr0"] {
            assert_eq!(disk.holds(part).await, 0, "merged: {merged}, {part}");
        }
        assert_eq!((disk.hits("vexingzephyr*").await, disk.hits("vexingzulu00321").await), (0, 1));
        disk.is_sound().await;
        // What comes later finds its place.
        disk.says(vec![(1_002, alike("vexingzebra", 500))]).await;
        disk.merge().await;
        assert_eq!((disk.hits("vexingzebra00007").await, disk.hits("vexingzulu01999").await), (1, 1));
        disk.is_sound().await;
    }
}

/// Half of what is alike goes, one message after the other, in every second place.
#[tokio::test]
async fn d4_what_stays_is_found_and_what_is_gone_is_nowhere() {
    let disk = Disk::new().await;
    let texts: Vec<_> =
        (0..200).map(|number| (number + 1, alike(&format!("qux{}ylem", number * 7919 % 200), 30))).collect();
    disk.says(texts).await;
    disk.merge().await;
    for number in (1..=200).step_by(2) {
        disk.forget(vec![number]).await;
    }
    disk.is_sound().await;
    for number in 0..200 {
        let word = format!("qux{}ylem00029", number * 7919 % 200);
        let there = number % 2 == 1;
        assert_eq!(disk.hits(&word).await, usize::from(there), "{word}");
        assert_eq!(disk.holds(&format!("qux{}ylem", number * 7919 % 200)).await > 0, there, "{word}");
    }
}

#[tokio::test]
async fn d4_a_changed_text_leaves_nothing_of_the_one_before() {
    const WORD: &str = "quizzicaljackdawxyloph";
    let disk = Disk::new().await;
    disk.says(vec![(1, format!("we meet {WORD}"))]).await;
    disk.others(2..40).await;
    assert!(disk.holds("awxyloph").await >= 3);
    disk.write(|transaction| open(transaction, message(1), "we do not meet")).await;
    assert_eq!((disk.hits("\"not meet\"").await, disk.holds("awxyloph").await), (1, 0));
}

/// An index whose pages look otherwise is made anew, and what is gone stays gone.
#[tokio::test]
async fn an_index_that_is_not_understood_is_made_anew() {
    let disk = Disk::new().await;
    disk.says(vec![(1, alike("vexingzephyr", 4_000)), (2, alike("vexingzulu", 4_000))]).await;
    disk.merge().await;
    disk.write(|transaction| {
        // A leaf of which only its first bytes are there.
        transaction.execute(
            "UPDATE search_data SET block = substr(block, 1, 4)
             WHERE id = (SELECT (segid << 37) + (pgno >> 1) FROM search_idx WHERE instr(CAST(term AS TEXT), 'zulu') LIMIT 1)",
            [],
        )?;
        Ok(())
    })
    .await;
    disk.write(|transaction| {
        transaction.execute("DELETE FROM search_content WHERE id = 1", [])?;
        transaction.execute("UPDATE search_erased SET erased = 1", [])?;
        Ok(())
    })
    .await;
    assert_eq!((disk.hits("vexingzulu03999").await, disk.hits("vexingzephyr*").await), (1, 0));
    disk.is_sound().await;
}
