//! The newsroom's key, which every reply is encrypted to besides the source's: where it is not what dom0 has set, nobody is
//! answered.

use std::path::PathBuf;
use std::process::Stdio;

use client_vm::daemon::READY;
use client_vm::newsroom::FINGERPRINT_SETTING;
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use staging::environment::{Environment, KeyAccess};
use staging::generator::{KeyPair, MARLOW, NewsroomKey};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use crate::support::*;

const PAST: Timestamp = Timestamp::constant(1_500_000_000, 0);

/// How `status` says that the newsroom's key stands.
async fn problem(environment: &Environment) -> Value {
    status(environment).await["openpgp"]["newsroom_key"]["problem"].clone()
}

/// A reply is refused before anything is stored or sent, what was written is the draft, and `status` says why.
async fn assert_nobody_is_answered(environment: &Environment, source: &str, because: &str) {
    let output = environment.run(["reply", source, "--message", "hello"], "").await.unwrap();
    assert_eq!(output.code, Some(CONFLICT), "{output:?}");
    assert!(output.stderr.contains(because), "{because}: {output:?}");
    assert!(problem(environment).await.as_str().unwrap().contains(because));
    let shown = show(environment, source).await;
    assert_eq!((&shown["draft"], &shown["outgoing"]), (&json!("hello"), &json!([])));
    assert_eq!((queue(environment).await, sendings(environment).len()), (Vec::new(), 0));
}

async fn assert_answered(environment: &Environment, source: &str) {
    let mut watch = environment.watch().await.unwrap();
    let act = reply(environment, source, "hello").await;
    until_listed(environment, &mut watch, source, act).await;
    assert_told(environment, source, &["hello"]).await;
    assert_eq!(problem(environment).await, Value::Null);
}

/// A daemon to which dom0 has told this fingerprint, or none.
async fn daemon_told(environment: &Environment, fingerprint: Option<&str>) -> Child {
    let mut command = environment.splitdrop(["daemon", "--log-file"]);
    command.arg(environment.directory().join("another.log"));
    match fingerprint {
        Some(fingerprint) => command.env(FINGERPRINT_SETTING, fingerprint),
        None => command.env_remove(FINGERPRINT_SETTING),
    };
    let mut daemon = command.stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(daemon.stdout.take().unwrap()).lines().next_line().await.unwrap();
    assert!(line.unwrap().starts_with(READY));
    daemon
}

async fn end(mut daemon: Child) {
    kill(Pid::from_raw(i32::try_from(daemon.id().unwrap()).unwrap()), Signal::SIGTERM).unwrap();
    assert!(daemon.wait().await.unwrap().success());
}

/// Case R6.
#[tokio::test(flavor = "multi_thread")]
async fn r6_without_the_right_fingerprint_nobody_is_answered() {
    let (mut environment, ids) = signed_in(1).await;
    environment.stop_daemon(Signal::SIGTERM).await.unwrap();
    let right = NewsroomKey::Curve25519.fingerprint();
    for (told, because) in [
        (None, "SD_SUBMISSION_KEY_FPR is not set"),
        (Some("nonsense"), "is no fingerprint"),
        (Some(""), "SD_SUBMISSION_KEY_FPR"),
        (Some("A1B2C3D4"), "is no fingerprint"),
        (Some(NewsroomKey::Rsa4096.fingerprint()), "newsroom's key"),
    ] {
        let daemon = daemon_told(&environment, told).await;
        login(&environment, &MARLOW).await;
        assert_nobody_is_answered(&environment, &ids[0], because).await;
        end(daemon).await;
    }
    // Put right, as people write it.
    let lower = right.to_lowercase();
    let (one, other) = lower.split_at(20);
    let daemon = daemon_told(&environment, Some(&format!("{one} {other}"))).await;
    login(&environment, &MARLOW).await;
    assert_answered(&environment, &ids[0]).await;
    end(daemon).await;
    environment.stop().await.unwrap();
}

/// A folder with the newsroom's private key, and where its public one is to be.
struct Keys {
    folder: TempDir,
}

impl Keys {
    fn new() -> Self {
        let keys = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::write(keys.private(), NewsroomKey::Curve25519.secret_armor()).unwrap();
        keys
    }

    fn private(&self) -> PathBuf {
        self.folder.path().join("private.asc")
    }

    fn public(&self) -> PathBuf {
        self.folder.path().join("public.asc")
    }

    fn table(&self) -> KeyAccess {
        let (private, public) = (self.private(), self.public());
        KeyAccess::Table(format!(
            "[openpgp]\nbackend = \"key-file\"\nkey_file = \"{}\"\nsubmission_key = \"{}\"\n",
            private.display(),
            public.display()
        ))
    }
}

/// The public half of a key.
fn public(key: NewsroomKey) -> String {
    use sequoia_openpgp::parse::Parse as _;
    use sequoia_openpgp::serialize::SerializeInto as _;
    let cert = sequoia_openpgp::Cert::from_bytes(key.secret_armor()).unwrap();
    String::from_utf8(cert.strip_secret_key_material().armored().to_vec().unwrap()).unwrap()
}

/// Case R6.
#[tokio::test(flavor = "multi_thread")]
async fn r6_without_the_right_key_in_the_file_nobody_is_answered() {
    let keys = Keys::new();
    let mut options = options(1, "");
    options.key = keys.table();
    let (environment, ids) = signed_in_to(options).await;
    let source = ids[0].as_str();
    assert_nobody_is_answered(&environment, source, "could not read the newsroom's key").await;
    let flaws = [
        public(NewsroomKey::Rsa4096),
        public(NewsroomKey::Curve25519).replace("BEGIN PGP", "BEGIN"),
        NewsroomKey::Curve25519.secret_armor().to_owned(),
        String::new(),
    ];
    for flaw in flaws {
        std::fs::write(keys.public(), flaw).unwrap();
        assert_nobody_is_answered(&environment, source, "cannot be used").await;
        refresh(&environment).await;
        assert_nobody_is_answered(&environment, source, "cannot be used").await;
    }
    std::fs::write(keys.public(), public(NewsroomKey::Curve25519)).unwrap();
    // A sync looks for it again, and tells nobody when it has looked.
    let looking = async {
        while problem(&environment).await != Value::Null {
            refresh(&environment).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap();
    assert_answered(&environment, source).await;
    environment.stop().await.unwrap();
}

/// Case R6.
#[tokio::test(flavor = "multi_thread")]
async fn r6_with_an_expired_key_nobody_is_answered() {
    let keys = Keys::new();
    let pair = KeyPair::generate().unwrap();
    std::fs::write(keys.public(), pair.expiring(Some(PAST)).unwrap().public_armor().unwrap()).unwrap();
    let mut options = options(1, "");
    options.key = keys.table();
    options.client_settings.insert(FINGERPRINT_SETTING.to_owned(), pair.fingerprint());
    let (environment, ids) = signed_in_to(options).await;
    assert_nobody_is_answered(&environment, &ids[0], "expired").await;
    std::fs::write(keys.public(), pair.public_armor().unwrap()).unwrap();
    let mut watch = environment.watch().await.unwrap();
    let act = reply(&environment, &ids[0], "hello").await;
    until_listed(&environment, &mut watch, &ids[0], act).await;
    assert_eq!(read_by_sources(&environment).await, ["hello"]);
    assert_eq!(problem(&environment).await, Value::Null);
    environment.stop().await.unwrap();
}

/// Case R6. What waits is not sent either.
#[tokio::test(flavor = "multi_thread")]
async fn r6_a_reply_that_waits_when_the_key_goes_is_not_sent() {
    let keys = Keys::new();
    std::fs::write(keys.public(), public(NewsroomKey::Curve25519)).unwrap();
    let mut options = options(1, "");
    options.key = keys.table();
    let (environment, ids) = signed_in_to(options).await;
    let source = ids[0].as_str();
    environment.json(&["pause"], "").await.unwrap();
    let act = reply(&environment, source, "hello").await;
    std::fs::remove_file(keys.public()).unwrap();
    let mut watch = environment.watch().await.unwrap();
    environment.json(&["resume"], "").await.unwrap();
    let refused = until_act(&mut watch, act, "refused").await;
    assert!(refused["reason"].as_str().unwrap().contains("newsroom's key"), "{refused}");
    assert_eq!(state(&environment, source, act).await, ("refused".to_owned(), "hello".to_owned()));
    assert_eq!(sendings(&environment), []);
    std::fs::write(keys.public(), public(NewsroomKey::Curve25519)).unwrap();
    environment.json(&["retry", &act.to_string()], "").await.unwrap();
    until_listed(&environment, &mut watch, source, act).await;
    assert_told(&environment, source, &["hello"]).await;
    environment.stop().await.unwrap();
}
