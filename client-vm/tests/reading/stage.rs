//! A client that holds ciphertexts, and its key.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client_vm::files::{FileNumber, Files};
use client_vm::openpgp::decrypt::{KeyFile, Limits};
use client_vm::reading::{Read, ReadError, ReadingDesk, Watcher, read};
use client_vm::store::downloads::{self, Candidate};
use client_vm::store::outbox::ItemName;
use client_vm::store::{Store, mirror, view};
use client_vm::sync::{Mirror, Plan, Snapshot};
use control::{Content, ConversationItem, ItemKind};
use flate2::{Compression, GzBuilder};
use protocol::value::{
    Bounded, Designation, ItemId, JournalistId, OrderNumber, Size, SourceId, SubmissionId, Timestamp, Username,
};
use protocol::{Listed, Source, Submission, SubmissionKind};
use sequoia_openpgp::cert::{Cert, CertBuilder};
use sequoia_openpgp::parse::Parse as _;
use sequoia_openpgp::policy::StandardPolicy;
use sequoia_openpgp::serialize::SerializeInto as _;
use sequoia_openpgp::serialize::stream::{Armorer, Encryptor, LiteralWriter, Message};
use tokio_util::sync::CancellationToken;

pub(crate) const SOURCE: &str = "00000010-0000-4000-8000-000000000000";

pub(crate) fn id(number: u8) -> SubmissionId {
    format!("000000{number:02x}-0000-4000-8000-000000000000").parse().unwrap()
}

pub(crate) fn message(number: u8) -> Candidate {
    Candidate { source: SOURCE.parse().unwrap(), item: ItemName::Message(id(number)) }
}

pub(crate) fn file(number: u8) -> Candidate {
    Candidate { source: SOURCE.parse().unwrap(), item: ItemName::File(id(number)) }
}

/// A key with its secret half.
pub(crate) fn new_key() -> Cert {
    CertBuilder::new().add_userid("Newsroom").add_transport_encryption_subkey().generate().unwrap().0
}

/// What `plaintext` looks like encrypted to a key.
pub(crate) fn encrypted(to: &Cert, plaintext: &[u8]) -> Vec<u8> {
    seal(to, plaintext, false)
}

/// The same in armor.
pub(crate) fn armored(to: &Cert, plaintext: &[u8]) -> Vec<u8> {
    seal(to, plaintext, true)
}

fn seal(to: &Cert, plaintext: &[u8], armor: bool) -> Vec<u8> {
    let policy = StandardPolicy::new();
    let recipients = to.keys().with_policy(&policy, None).supported().for_transport_encryption();
    let mut bytes = Vec::new();
    let mut message = Message::new(&mut bytes);
    if armor {
        message = Armorer::new(message).build().unwrap();
    }
    let message = Encryptor::for_recipients(message, recipients).build().unwrap();
    let mut literal = LiteralWriter::new(message).build().unwrap();
    literal.write_all(plaintext).unwrap();
    literal.finalize().unwrap();
    bytes
}

/// A file as SecureDrop's servers pack it.
pub(crate) fn gzipped(name: &[u8], content: &[u8]) -> Vec<u8> {
    let mut packed = GzBuilder::new().filename(name).write(Vec::new(), Compression::default());
    packed.write_all(content).unwrap();
    packed.finish().unwrap()
}

/// A client's data directory, and the key of its newsroom in it.
pub(crate) struct Room {
    pub(crate) desk: ReadingDesk,
    pub(crate) key: Cert,
    pub(crate) home: PathBuf,
}

impl Room {
    /// A client in `home`, new or as it was left there.
    pub(crate) fn open(home: &Path) -> Self {
        let path = home.join("key.asc");
        if !path.exists() {
            std::fs::write(&path, new_key().as_tsk().armored().to_vec().unwrap()).unwrap();
        }
        let key = Cert::from_file(&path).unwrap();
        let desk = ReadingDesk {
            store: Store::open(home).unwrap(),
            files: Files::open(home).unwrap(),
            decryptor: Arc::new(KeyFile::new(path)),
            limits: Limits::default(),
        };
        Self { desk, key, home: home.to_owned() }
    }

    /// Lists these items, and no others, at the server.
    pub(crate) async fn list(&self, items: &[Candidate]) {
        let source = Source {
            id: SOURCE.parse().unwrap(),
            designation: Designation::try_new("quiet harbour").unwrap(),
            starred: false,
            last_updated: Timestamp::try_new(1).unwrap(),
            interactions: OrderNumber::try_new(1).unwrap(),
            key: None,
            version: None,
        };
        let known: Mirror = self.desk.store.read(mirror::load_mirror).await.unwrap();
        let (mut sources, mut submissions) = (Snapshot::default(), Snapshot::default());
        sources.observe(&known.sources, Listed::Readable(source)).unwrap();
        for (order, candidate) in (1..).zip(items) {
            let (id, kind) = match candidate.item {
                ItemName::Message(id) => (id, SubmissionKind::Message),
                ItemName::File(id) => (id, SubmissionKind::File),
                ItemName::Reply(_) => panic!("no submission"),
            };
            let submission = Submission {
                id,
                source: candidate.source,
                kind,
                order: OrderNumber::try_new(order).unwrap(),
                filename: None,
                size: Size::try_new(1).unwrap(),
                read: false,
                seen_by: Bounded::default(),
                version: None,
            };
            submissions.observe(&known.submissions, Listed::Readable(submission)).unwrap();
        }
        let plan = Plan {
            users: Snapshot::default().diff(&known.users),
            sources: sources.diff(&known.sources),
            submissions: submissions.diff(&known.submissions),
            replies: Snapshot::default().diff(&known.replies),
        };
        let anna: JournalistId = "00000001-0000-4000-8000-000000000000".parse().unwrap();
        let applied = self.desk.store.write(move |transaction| {
            mirror::store_journalist(transaction, anna, &Username::try_new("anna")?)?;
            mirror::apply(transaction, &plan)
        });
        applied.await.unwrap();
    }

    /// Lists the items at the server, and holds their ciphertexts.
    pub(crate) async fn hold(&self, items: &[(Candidate, Vec<u8>)]) {
        self.list(&items.iter().map(|(candidate, _)| *candidate).collect::<Vec<_>>()).await;
        for (candidate, ciphertext) in items {
            let candidate = *candidate;
            let number = self
                .desk
                .store
                .write(move |transaction| downloads::note_claim(transaction, candidate.item, None))
                .await
                .unwrap();
            self.desk.files.open_partial(number).unwrap().write_all(ciphertext).unwrap();
            self.desk.files.finish(number).unwrap();
            let size = u64::try_from(ciphertext.len()).unwrap();
            let noted =
                self.desk.store.write(move |transaction| downloads::note_downloaded(transaction, candidate, size));
            assert!(noted.await.unwrap());
        }
    }

    pub(crate) async fn read(&self, candidate: Candidate) -> Result<Read, ReadError> {
        self.read_watched(candidate, Arc::new(())).await
    }

    pub(crate) async fn read_watched(
        &self,
        candidate: Candidate,
        watcher: Arc<dyn Watcher>,
    ) -> Result<Read, ReadError> {
        read(&self.desk, candidate, watcher, &CancellationToken::new()).await
    }

    async fn item(&self, candidate: Candidate) -> ConversationItem {
        let items =
            self.desk.store.read(move |transaction| view::conversation(transaction, candidate.source)).await.unwrap();
        let is_it = |item: &ConversationItem| match &item.kind {
            ItemKind::Submission { id, .. } => ItemId::Submission(*id) == candidate.item.id(),
            ItemKind::Reply { id, .. } => ItemId::Reply(*id) == candidate.item.id(),
        };
        items.into_iter().find(is_it).unwrap()
    }

    /// What is held of an item.
    pub(crate) async fn content(&self, candidate: Candidate) -> Content {
        self.item(candidate).await.content
    }

    /// What a message says.
    pub(crate) async fn text(&self, candidate: Candidate) -> Option<String> {
        let source: SourceId = candidate.source;
        self.desk.store.read(move |transaction| view::text_of(transaction, source, candidate.item)).await.unwrap()
    }

    /// The plaintexts of files.
    pub(crate) fn plaintexts(&self) -> Vec<Vec<u8>> {
        let numbers = self.desk.files.list().unwrap().plaintext;
        numbers.into_iter().map(|number| std::fs::read(self.desk.files.plaintext(number)).unwrap()).collect()
    }

    pub(crate) fn ciphertexts(&self) -> Vec<FileNumber> {
        self.desk.files.list().unwrap().ciphertext
    }

    /// Every file of the data directory whose bytes hold these.
    pub(crate) fn files_with(&self, needle: &[u8]) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.home.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if std::fs::read(&path).unwrap().windows(needle.len()).any(|window| window == needle) {
                    found.push(path);
                }
            }
        }
        found
    }

    /// Nothing is left of work that has ended.
    pub(crate) fn assert_tidy(&self) {
        assert_eq!(std::fs::read_dir(self.home.join("opening")).unwrap().count(), 0, "something is left of opening");
    }
}
