//! An environment in which everything happens, with a daemon that is the test's own: so its standard error can be read.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use staging::environment::{ASKED, Environment, EnvironmentOptions, Output, PROXY_VM, Watch};
use staging::generator::{Account, MARLOW, NewsroomKey};
use staging::programs::Programs;
use staging::server::{
    Body, Command, Fault, FaultAct, GzipFlaw, KeyChoice, Matching, Outcome, RecordId, RequestLog, Seal, SourceState,
    SubmissionKind,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use crate::search::{Canary, Written};

/// A bound for what hangs, not a measure.
const PATIENCE: Duration = Duration::from_secs(120);
/// The exit code of success.
const DONE: i32 = 0;

pub(crate) fn text(text: &str) -> Body {
    Body::Text { text: text.to_owned() }
}

pub(crate) fn packed(name: &str, contents: &str, flaw: GzipFlaw) -> Body {
    Body::Gzip { name: Some(name.as_bytes().to_vec()), contents: contents.as_bytes().to_vec(), flaw }
}

pub(crate) struct Story {
    environment: Environment,
    daemon: Option<Child>,
    watch: Option<Watch>,
    canaries: Vec<Canary>,
    written: Vec<Written>,
}

impl Story {
    pub(crate) async fn begin(level: &str) -> Self {
        Self::begin_with(level, &[]).await
    }

    /// Begins with these settings of the proxy VM besides.
    pub(crate) async fn begin_with(level: &str, settings: &[(&str, &str)]) -> Self {
        let mut options = EnvironmentOptions::with_sources(2, 2).unwrap();
        options.client_config = ASKED.to_owned();
        options.server.newsroom = NewsroomKey::Curve25519;
        options.client_settings.insert("SPLITDROP_LOG".to_owned(), level.to_owned());
        options.proxy_settings.insert("SD_PROXY_LOG".to_owned(), level.to_owned());
        for (name, value) in settings {
            options.proxy_settings.insert((*name).to_owned(), (*value).to_owned());
        }
        let programs = tokio::task::spawn_blocking(|| Programs::build(|_| {})).await.unwrap().unwrap();
        let environment = Environment::start(programs, options).await.unwrap();
        let mut story = Self { environment, daemon: None, watch: None, canaries: Vec::new(), written: Vec::new() };
        story.start_daemon().await;
        story
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    pub(crate) fn plants(&mut self, what: &'static str, words: &str) {
        self.canaries.push(Canary::new(what, words));
    }

    /// Plants what a command may tell to the person who typed it, and no log may hold.
    pub(crate) fn plants_name(&mut self, what: &'static str, words: &str) {
        self.canaries.push(Canary::new(what, words).that_may_be_told());
    }

    pub(crate) fn plants_names_of_journalists(&mut self) {
        let names: Vec<_> = self.environment.server().control().with_world(|world| {
            let names = world.journalists().iter().flat_map(|one| [one.first_name.clone(), one.last_name.clone()]);
            names.flatten().filter(|name| name.len() >= 6).collect()
        });
        assert!(!names.is_empty(), "somebody has a name");
        for name in names {
            self.plants_name("a journalist's name", &name);
        }
    }

    pub(crate) fn plants_designations_and_keys(&mut self) {
        let sources: Vec<_> = self.environment.server().control().with_world(|world| {
            let key =
                |source: &staging::server::Source| source.key.as_ref().map(|key| key.fingerprint.as_str().to_owned());
            world.sources().map(|source| (source.designation.clone(), key(source))).collect()
        });
        for (designation, fingerprint) in sources {
            self.plants_name("a designation", &designation);
            if let Some(fingerprint) = fingerprint {
                self.plants_name("a source's fingerprint", &fingerprint);
            }
        }
    }

    async fn start_daemon(&mut self) {
        let log = self.environment.directory().join("daemon.log");
        let stderr = File::options().append(true).create(true).open(self.path("daemon.stderr")).unwrap();
        let mut daemon = self
            .environment
            .splitdrop(["daemon", "--log-file", log.to_str().unwrap()])
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
        assert!(line.unwrap().starts_with(client_vm::daemon::READY));
        self.daemon = Some(daemon);
        self.watch = Some(self.environment.watch().await.unwrap());
    }

    async fn stop_daemon(&mut self, signal: Signal) {
        let mut daemon = self.daemon.take().unwrap();
        let pid = i32::try_from(daemon.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
        tokio::time::timeout(PATIENCE, daemon.wait()).await.unwrap().unwrap();
    }

    pub(crate) async fn crashes(&mut self) {
        self.stop_daemon(Signal::SIGKILL).await;
        self.start_daemon().await;
    }

    fn path(&self, name: &str) -> PathBuf {
        self.environment.directory().join(name)
    }

    /// Runs a command, however it ends.
    pub(crate) async fn runs(&mut self, arguments: &[&str], input: &str) -> Output {
        let output = self.environment.run(arguments, input).await.unwrap();
        let place = format!("standard error of `splitdrop {}`", arguments[0]);
        self.written.push(Written { place, text: output.stderr.clone(), to_a_person: true });
        output
    }

    pub(crate) async fn succeeds(&mut self, arguments: &[&str]) {
        let output = self.runs(arguments, "").await;
        assert_eq!(output.code, Some(DONE), "{arguments:?}: {output:?}");
    }

    /// Does something that is one act; gives its number.
    pub(crate) async fn acts(&mut self, arguments: &[&str]) -> u64 {
        let arguments = [arguments, &["--json"]].concat();
        let output = self.runs(&arguments, "").await;
        let answer: Value = serde_json::from_str(&output.stdout).unwrap();
        let [act] = answer["acts"].as_array().unwrap().as_slice() else { panic!("{answer}") };
        act["act"].as_u64().unwrap()
    }

    /// Waits until the server has done what an act asks for.
    pub(crate) async fn until_done(&mut self, act: u64) {
        self.watch.as_mut().unwrap().until_done(act).await.unwrap();
    }

    /// Asks for an item that cannot be had, and no longer once the server was asked for it.
    pub(crate) async fn asks_in_vain_for(&mut self, item: &RecordId) {
        let end = format!("/{item}/download");
        let control = self.environment.server().control().clone();
        let answered =
            |log: &RequestLog| log.requests().filter(|one| one.path.ends_with(&end) && one.ended.is_some()).count();
        let before = control.with_log(answered);
        self.succeeds(&["download", "--no-wait", item.as_str()]).await;
        let asked = control.wait_for_log(|log| answered(log) > before);
        tokio::time::timeout(PATIENCE, asked).await.unwrap();
        self.runs(&["queue"], "").await;
        self.runs(&["download", "--stop", item.as_str()], "").await;
    }

    /// Waits until a rule has acted on such a request.
    pub(crate) async fn until_asked(&self, method: &str, end: &str, rule: u64) {
        let control = self.environment.server().control();
        let asked = control.wait_for_log(|log| {
            log.requests().any(|one| one.method == method && one.path.ends_with(end) && one.fault == Some(rule))
        });
        tokio::time::timeout(PATIENCE, asked).await.unwrap();
    }

    /// Signs MARLOW in; the code and the token are planted.
    pub(crate) async fn signs_in(&mut self) {
        let output = self.tries_to_sign_in(MARLOW).await;
        assert_eq!(output.code, Some(DONE), "{output:?}");
        let tokens = self.environment.server().control().tokens();
        assert!(!tokens.is_empty());
        for token in tokens {
            self.plants("a token", &token);
        }
    }

    /// Gives what the command says.
    pub(crate) async fn fails_to_sign_in(&mut self, username: &'static str, passphrase: &'static str) -> String {
        let output = self.tries_to_sign_in(Account { username, passphrase, ..MARLOW }).await;
        assert!(output.code.is_some_and(|code| code != DONE), "{output:?}");
        output.stderr
    }

    async fn tries_to_sign_in(&mut self, account: Account) -> Output {
        // A one-time code is taken once.
        self.happens(Command::AdvanceClock { seconds: 90 });
        let credentials = self.environment.credentials(&account);
        self.plants("a one-time code", credentials.lines().nth(2).unwrap());
        self.runs(&["login", "--credentials-stdin"], &credentials).await
    }

    pub(crate) fn happens(&self, command: Command) -> Outcome {
        self.environment.server().control().apply(command).unwrap()
    }

    /// From now on something goes wrong with requests of this path; gives the rule.
    pub(crate) fn faults(&self, path: &str, act: FaultAct) -> u64 {
        self.environment.server().control().add_fault(Fault::new(Matching::path(path), act)).unwrap()
    }

    pub(crate) fn mends(&self, rule: u64) {
        self.happens(Command::RemoveFault { id: rule });
    }

    pub(crate) fn new_source(&self, designation: &str) -> RecordId {
        let designation = Some(designation.to_owned());
        let created = Command::NewSource { designation, key: KeyChoice::Pool(1), state: SourceState::Listed };
        match self.happens(created) {
            Outcome::Source { uuid, .. } => uuid,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn sends(&self, source: &RecordId, kind: SubmissionKind, body: Body) -> RecordId {
        self.sent(Command::NewSubmission { source: source.clone(), kind, body, seal: Seal::default() })
    }

    pub(crate) fn sends_sealed(&self, source: &RecordId, body: Body, seal: Seal) -> RecordId {
        self.sent(Command::NewSubmission { source: source.clone(), kind: SubmissionKind::Message, body, seal })
    }

    fn sent(&self, command: Command) -> RecordId {
        match self.happens(command) {
            Outcome::Item { uuid, .. } => uuid,
            other => panic!("{other:?}"),
        }
    }

    /// Ends everything in order; gives what was planted and what was written: the logs, and the standard error of all
    /// processes.
    pub(crate) async fn ends(mut self) -> (Vec<Canary>, Vec<Written>) {
        self.stop_daemon(Signal::SIGTERM).await;
        self.watch = None;
        let broker = self.environment.broker();
        let all_ended = broker.until(|counts| counts.open == 0);
        tokio::time::timeout(PATIENCE, all_ended).await.unwrap();
        let proxies = String::from_utf8_lossy(&broker.service_log(PROXY_VM)).into_owned();
        let mut written = std::mem::take(&mut self.written);
        written.push(Written::new("proxy.stderr", proxies));
        written.extend(["daemon.log", "proxy.log", "daemon.stderr"].map(|name| Written::file(&self.path(name))));
        let canaries = std::mem::take(&mut self.canaries);
        self.environment.stop().await.unwrap();
        (canaries, written)
    }
}
