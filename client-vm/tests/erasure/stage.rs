//! A data directory with all that can be held of sources, and a search through its bytes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client_vm::download::{Desk, sweep};
use client_vm::erasure::{Erased, Leftover, Watcher, erase};
use client_vm::files::{FileNumber, Files, Stage};
use client_vm::store::downloads::{self, Candidate};
use client_vm::store::keys::{self, Finding};
use client_vm::store::outbox::{self, ItemName, Outcome, Settled, Waits};
use client_vm::store::{Store, StoreError, drafts, mirror, reading, removals};
use client_vm::sync::{Known, ListPlan, Plan, Snapshot};
use control::{Act, Inner, ReplyText};
use protocol::record::Record;
use protocol::value::{
    ArmoredKey, Bounded, Designation, Filename, Fingerprint, JournalistId, OrderNumber, ReplyId, Size, SourceId,
    Timestamp, Username,
};
use protocol::{Listed, Reply, Source, SourceKey, Submission, SubmissionKind};
use rusqlite::Transaction;

/// The source that goes.
pub(crate) const DOOMED: u32 = 1;
/// Those that stay.
pub(crate) const STAYING: [u32; 3] = [2, 3, 4];
/// How many items the first one has, and each of the others.
const ITEMS: [u32; 2] = [151, 20];

/// What everything of the source that goes says, and what everything of the others says.
pub(crate) const GOES: &str = "plum-coloured-";
pub(crate) const STAYS: &str = "sand-coloured-";

pub(crate) fn id<I: std::str::FromStr<Err: std::fmt::Debug>>(number: u32) -> I {
    format!("{number:08x}-0000-4000-8000-000000000000").parse().unwrap()
}

pub(crate) fn anna() -> JournalistId {
    id(0xa)
}

pub(crate) fn now() -> Timestamp {
    Timestamp::try_new(3_600_000_000).unwrap()
}

/// What is held of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message, decrypted.
    Message,
    /// A reply, decrypted.
    Reply,
    /// A file, decrypted.
    File,
    /// A file, downloaded.
    Ciphertext,
    /// A file, downloaded in part.
    Part,
}

/// An item that is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) source: u32,
    pub(crate) number: u32,
    pub(crate) kind: Kind,
}

impl Item {
    fn name(self) -> ItemName {
        match self.kind {
            Kind::Message => ItemName::Message(id(self.number)),
            Kind::Reply => ItemName::Reply(id(self.number)),
            Kind::File | Kind::Ciphertext | Kind::Part => ItemName::File(id(self.number)),
        }
    }

    pub(crate) fn candidate(self) -> Candidate {
        Candidate { source: id(self.source), item: self.name() }
    }

    /// What all that is held of it begins with, and every now and then says again.
    pub(crate) fn says(self, what: &str) -> String {
        format!("{}{what}-{:04}", if self.source == DOOMED { GOES } else { STAYS }, self.number)
    }

    /// From some bytes to some pages of the database.
    fn text(self) -> String {
        let phrase = format!("{} ", self.says("text"));
        let length = [1, 3, 20, 60, 120, 170, 400, 1_500][(self.number % 8) as usize];
        phrase.repeat(length)
    }
}

/// All items of the sources, which take turns.
pub(crate) fn items(sources: &[u32]) -> Vec<Item> {
    let mut items = Vec::new();
    for turn in 0..ITEMS[0] {
        for source in sources {
            if turn < ITEMS[usize::from(*source != DOOMED)] {
                let kind = match turn % 10 {
                    0..=4 => Kind::Message,
                    5 | 6 => Kind::Reply,
                    7 => Kind::File,
                    8 => Kind::Ciphertext,
                    _ => Kind::Part,
                };
                items.push(Item { source: *source, number: source * 1_000 + turn, kind });
            }
        }
    }
    items
}

fn diff<T: Record>(known: &Known<T::Id>, records: impl IntoIterator<Item = T>) -> ListPlan<T> {
    let mut snapshot = Snapshot::default();
    records.into_iter().for_each(|record| snapshot.observe(known, Listed::Readable(record)).unwrap());
    snapshot.diff(known)
}

fn word(source: u32, what: &str) -> String {
    format!("{}{what}-{source}", if source == DOOMED { GOES } else { STAYS })
}

fn record(source: u32) -> Source {
    let armored = format!("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{}", word(source, "key"));
    let fingerprint = format!("{source:040X}");
    Source {
        id: id(source),
        designation: Designation::try_new(word(source, "designation")).unwrap(),
        starred: false,
        last_updated: Timestamp::try_new(u64::from(source)).unwrap(),
        interactions: OrderNumber::try_new(3).unwrap(),
        key: Some(SourceKey {
            armored: ArmoredKey::try_new(armored).unwrap(),
            fingerprint: Fingerprint::try_new(fingerprint).unwrap(),
        }),
        version: None,
    }
}

fn submission(item: Item) -> Submission {
    Submission {
        id: id(item.number),
        source: id(item.source),
        kind: if item.kind == Kind::Message { SubmissionKind::Message } else { SubmissionKind::File },
        order: OrderNumber::try_new(u64::from(item.number)).unwrap(),
        filename: Some(Filename::try_new(format!("1-{}-msg.gpg", item.says("filename"))).unwrap()),
        size: Size::try_new(612).unwrap(),
        read: true,
        seen_by: Bounded::try_new(vec![anna()]).unwrap(),
        version: None,
    }
}

fn reply(item: Item) -> Reply {
    Reply {
        id: id(item.number),
        source: id(item.source),
        author: anna(),
        order: OrderNumber::try_new(u64::from(item.number)).unwrap(),
        filename: Some(Filename::try_new(format!("1-{}-reply.gpg", item.says("filename"))).unwrap()),
        size: Size::try_new(612).unwrap(),
        deleted_by_source: false,
        seen_by: Bounded::default(),
        version: None,
    }
}

/// A client's data directory.
pub(crate) struct House {
    pub(crate) store: Store,
    pub(crate) files: Files,
    pub(crate) home: PathBuf,
}

impl House {
    pub(crate) fn open(home: &Path) -> Self {
        Self { store: Store::open(home).unwrap(), files: Files::open(home).unwrap(), home: home.to_owned() }
    }

    /// One in which all sources are listed, and everything is held of them.
    pub(crate) async fn full(home: &Path, seed: u64) -> Self {
        let house = Self::open(home);
        let name = Username::try_new("anna").unwrap();
        house.write(move |transaction| mirror::store_journalist(transaction, anna(), &name)).await;
        let all = [&[DOOMED], STAYING.as_slice()].concat();
        assert!(house.sync(1, &all).await.is_empty());
        // They come in any order: what grows in the database pushes other things from page to page.
        let mut order = fastrand::Rng::with_seed(seed);
        let mut items = items(&all);
        order.shuffle(&mut items);
        let numbers = house.claim(items.clone()).await;
        let mut held: Vec<_> = items.into_iter().zip(numbers).collect();
        order.shuffle(&mut held);
        for some in held.chunks(4) {
            house.hold(some.to_vec()).await;
        }
        house.write(|transaction| keep_keys_and_replies(transaction, &[&[DOOMED], STAYING.as_slice()].concat())).await;
        house
    }

    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> T {
        self.store.write(work).await.unwrap()
    }

    async fn claim(&self, items: Vec<Item>) -> Vec<FileNumber> {
        let claim = move |transaction: &Transaction<'_>| {
            items.iter().map(|item| downloads::note_claim(transaction, item.name(), None)).collect()
        };
        self.write(claim).await
    }

    async fn hold(&self, held: Vec<(Item, FileNumber)>) {
        for (item, number) in &held {
            self.files.open_partial(*number).unwrap().write_all(item.says("sealed").as_bytes()).unwrap();
            if item.kind != Kind::Part {
                self.files.finish(*number).unwrap();
            }
            if item.kind == Kind::File {
                let mut file = self.files.begin_stage(*number, Stage::Unpacked).unwrap();
                file.write_all(item.says("plain").as_bytes()).unwrap();
                self.files.finish_plaintext(*number, Stage::Unpacked).unwrap();
            }
            // The next start would remove it from the others.
            if item.kind == Kind::Ciphertext && item.source == DOOMED {
                let mut file = self.files.begin_stage(*number, Stage::Decrypted).unwrap();
                file.write_all(item.says("opening").as_bytes()).unwrap();
            }
        }
        let files = self.files.clone();
        let note = move |transaction: &Transaction<'_>| {
            for (item, number) in held {
                if item.kind == Kind::Part {
                    downloads::postpone(transaction, item.name(), &item.says("reason"), downloads::Wait::None)?;
                    continue;
                }
                assert!(downloads::note_downloaded(transaction, item.candidate(), 612)?);
                let text = matches!(item.kind, Kind::Message | Kind::Reply).then(|| item.text());
                let name = (item.kind == Kind::File).then(|| item.says("name"));
                if item.kind != Kind::Ciphertext {
                    let plaintext = reading::Plaintext { bytes: 7, inner: Inner::None, name, text };
                    assert!(reading::note_decrypted(transaction, item.candidate(), number, &plaintext)?);
                    files.remove_ciphertext(number).unwrap();
                }
            }
            Ok(())
        };
        self.write(note).await;
    }

    /// A sync, as the client makes it, in which these sources are listed with all their items; gives the sources of which
    /// something is held from now on.
    pub(crate) async fn sync(&self, number: u64, sources: &[u32]) -> Vec<SourceId> {
        let known = self.store.read(mirror::load_mirror).await.unwrap();
        let items = items(sources);
        let (replies, submissions): (Vec<_>, Vec<_>) = items.iter().partition(|item| item.kind == Kind::Reply);
        let plan = Plan {
            users: diff(&known.users, Vec::new()),
            sources: diff(&known.sources, sources.iter().copied().map(record)),
            submissions: diff(&known.submissions, submissions.into_iter().copied().map(submission)),
            replies: diff(&known.replies, replies.into_iter().copied().map(reply)),
        };
        let apply = move |transaction: &Transaction<'_>| {
            let held = removals::hold(transaction, &plan, now())?;
            mirror::apply(transaction, &plan)?;
            removals::listed_again(transaction, now())?;
            outbox::after_snapshot(transaction, number, now(), Duration::from_secs(3_600), &plan)?;
            Ok(held.into_iter().collect())
        };
        self.write(apply).await
    }

    /// The source that goes is deleted by somebody here, and the server says so.
    pub(crate) async fn delete(&self) {
        let act = Act::DeleteSources { sources: vec![id(DOOMED)] };
        let enqueued = self.store.write_or(move |transaction| outbox::enqueue(transaction, anna(), &act, now())).await;
        enqueued.unwrap();
        let settled = self.write(|transaction| {
            let ready = outbox::ready(transaction, anna(), now(), &HashSet::new(), &HashSet::new())?;
            let rows: Vec<_> = ready.batches.into_iter().flat_map(|batch| batch.rows).collect();
            let row = rows.into_iter().find(|row| row.work == outbox::Work::DeleteSource).unwrap();
            outbox::begin_attempt(transaction, std::slice::from_ref(&row), 1)?;
            outbox::settle(transaction, &row, &Outcome::Done, now(), 1, &Waits::default(), 0.0)
        });
        assert_eq!(settled.await, Settled::Confirmed);
    }

    pub(crate) async fn erase(&self) -> Erased {
        self.erase_watched(Arc::new(())).await
    }

    /// As the engine does again with what is left over.
    pub(crate) async fn erase_too(&self, leftover: Leftover) -> Erased {
        erase(&self.store, &self.files, &HashSet::new(), leftover, Arc::new(())).await.unwrap()
    }

    /// As the engine does after a deletion.
    pub(crate) async fn erase_watched(&self, watcher: Arc<dyn Watcher>) -> Erased {
        let leftover = Leftover { log: true, pages: true, ..Leftover::default() };
        erase(&self.store, &self.files, &HashSet::new(), leftover, watcher).await.unwrap()
    }

    /// As the daemon does when it starts.
    pub(crate) async fn sweep(&self) -> Leftover {
        let desk = Desk { store: self.store.clone(), files: self.files.clone(), files_without_etag: false };
        sweep(&desk).await.unwrap()
    }

    /// The numbers of a source's items of a kind.
    pub(crate) async fn numbers(&self, source: u32, kind: Kind) -> Vec<FileNumber> {
        let items: Vec<_> =
            items(&[source]).into_iter().filter(|item| item.source == source && item.kind == kind).collect();
        self.claim(items).await
    }

    /// How many items anything is noted of.
    pub(crate) async fn noted(&self) -> usize {
        self.store.read(downloads::numbers).await.unwrap().len()
    }

    /// All that is in the data directory: the files' names and their bytes.
    pub(crate) fn bytes(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        let mut folders = vec![self.home.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let mut bytes = path.file_name().unwrap().as_encoded_bytes().to_vec();
                if path.is_dir() {
                    folders.push(path.clone());
                } else {
                    bytes.extend(std::fs::read(&path).unwrap());
                }
                found.push((path, bytes));
            }
        }
        found
    }

    /// The words that begin so, wherever they are, and in which file they are first.
    pub(crate) fn words(&self, beginning: &str) -> BTreeMap<String, PathBuf> {
        let mut words = BTreeMap::new();
        let is_end = |character: char| !(character.is_ascii_alphanumeric() || character == '-');
        for (path, bytes) in self.bytes() {
            let text = String::from_utf8_lossy(&bytes);
            for (at, _) in text.match_indices(beginning) {
                let word = text.get(at..).unwrap().split(is_end).next().unwrap();
                words.entry(word.to_owned()).or_insert_with(|| path.clone());
            }
        }
        words
    }

    /// Checks that the search finds everything of these sources.
    pub(crate) fn assert_all_is_found(&self, sources: &[u32]) {
        let found: Vec<_> = [GOES, STAYS].map(|beginning| self.words(beginning)).into_iter().flatten().collect();
        let found: BTreeSet<_> = found.into_iter().map(|(word, _)| word).collect();
        let is_there = |word: &str| {
            let first = found.range(word.to_owned()..).next();
            assert!(first.is_some_and(|first| first.starts_with(word)), "{word} is not found");
        };
        for source in sources {
            for what in ["designation", "key", "draft", "reply"] {
                is_there(&word(*source, what));
            }
        }
        for item in items(sources) {
            let whats: &[_] = match item.kind {
                Kind::Message | Kind::Reply => &["text", "filename"],
                Kind::File => &["plain", "name", "filename"],
                Kind::Ciphertext if item.source == DOOMED => &["sealed", "opening", "filename"],
                Kind::Ciphertext => &["sealed", "filename"],
                Kind::Part => &["sealed", "reason", "filename"],
            };
            whats.iter().for_each(|what| is_there(&item.says(what)));
        }
    }

    /// Checks that nothing of the source that went is anywhere, and that the others are as they were.
    pub(crate) async fn assert_nothing_left(&self, when: &str) {
        assert_eq!(self.words(GOES), BTreeMap::new(), "{when}");
        self.assert_all_is_found(&STAYING);
        assert_eq!(self.noted().await, items(&STAYING).len(), "{when}");
    }
}

/// Every source has a key that is pinned, a draft, and a reply that was written to it.
fn keep_keys_and_replies(transaction: &Transaction<'_>, sources: &[u32]) -> Result<(), StoreError> {
    for offered in keys::to_look_at(transaction, 99)? {
        keys::note(transaction, &offered, &Finding::Good)?;
    }
    let text = |text: String| ReplyText::try_new(format!("{text} ").repeat(300)).unwrap();
    for source in sources {
        let reply: ReplyId = id(0xf00 + source);
        let act = Act::Reply { source: id(*source), reply, text: text(word(*source, "reply")) };
        outbox::enqueue(transaction, anna(), &act, now()).unwrap();
        let draft = text(word(*source, "draft"));
        assert!(drafts::keep(transaction, anna(), id(*source), Some(&draft), now())?);
    }
    Ok(())
}
