//! The client on a terminal, and what Ctrl-C does there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::termios::{LocalFlags, Termios, tcgetattr};
use nix::unistd::{Pid, mkfifo};
use serde_json::{Value, json};
use staging::environment::{Environment, EnvironmentOptions, PROXY_VM};
use staging::generator::{MARLOW, TERNBERG};
use staging::handover::{CHECK_DRIVE, End};
use staging::qrexec::broker::{Start, StartOutcome};
use staging::qrexec::system::System;
use staging::server::{self, Change, Command as Happens};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// Runs a program that heeds SIGHUP, also if these tests run where it is ignored. It is part of coreutils.
const ENV: [&str; 2] = ["/usr/bin/env", "--default-signal=HUP"];
/// Gives a program a session and standard input as its controlling terminal. It is part of util-linux.
const SETSID: [&str; 2] = ["/usr/bin/setsid", "--ctty"];
/// A bound for what hangs, not a measure.
const DEADLINE: Duration = Duration::from_secs(60);
const CTRL_C: &str = "\u{3}";

async fn environment(sources: u32) -> Environment {
    Environment::with_daemon(EnvironmentOptions::with_sources(sources, 1).unwrap()).await.unwrap()
}

/// A terminal: what keyboard and screen are connected to, and what a program is. No other test's program gets either.
fn terminal() -> (OwnedFd, OwnedFd) {
    let person = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&person).unwrap();
    unlockpt(&person).unwrap();
    let program = ptsname_r(&person).unwrap();
    let program = OpenOptions::new().read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(program).unwrap();
    (person.as_fd().try_clone_to_owned().unwrap(), program.into())
}

/// The client, as a command whose standard input will be its terminal.
fn on_terminal(environment: &Environment, arguments: &[&str]) -> Command {
    let inner = environment.splitdrop(arguments);
    let mut command = Command::new(ENV[0]);
    command
        .args(&ENV[1..])
        .args(SETSID)
        .arg(inner.as_std().get_program())
        .args(inner.as_std().get_args())
        .env_clear()
        .envs(environment.variables())
        .kill_on_drop(true);
    command
}

/// A terminal with a command of the client on it.
struct Typist {
    /// What a person's keyboard and screen are connected to.
    keyboard: File,
    /// The program's end.
    line: OwnedFd,
    screen: mpsc::UnboundedReceiver<Vec<u8>>,
    seen: String,
    before: Termios,
    child: Child,
}

impl Typist {
    fn sit_down(environment: &Environment, arguments: &[&str]) -> Self {
        Self::sit_down_with(environment, arguments, &[])
    }

    /// With these variables besides.
    fn sit_down_with(environment: &Environment, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let (person, line) = terminal();
        let mut command = on_terminal(environment, arguments);
        command.envs(variables.iter().copied());
        Self::at(person, line, command)
    }

    /// With this command at this terminal.
    fn at(person: OwnedFd, line: OwnedFd, mut command: Command) -> Self {
        let before = tcgetattr(&person).unwrap();
        assert!(before.local_flags.contains(LocalFlags::ECHO));
        let stdio = || Stdio::from(line.try_clone().unwrap());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let child = command.spawn().unwrap();
        let keyboard = File::from(person);
        let mut reading = keyboard.try_clone().unwrap();
        let (sender, screen) = mpsc::unbounded_channel();
        // It ends when nobody has the program's end open.
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = reading.read(&mut chunk) {
                if sender.send(chunk[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { keyboard, line, screen, seen: String::new(), before, child }
    }

    fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the screen has shown the text.
    async fn sees(&mut self, text: &str) {
        while !self.seen.contains(text) {
            let some = tokio::time::timeout(DEADLINE, self.screen.recv()).await;
            let some = some.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.seen));
            self.seen.push_str(&String::from_utf8_lossy(&some.unwrap()));
        }
    }

    fn has_echo(&self) -> bool {
        tcgetattr(&self.keyboard).unwrap().local_flags.contains(LocalFlags::ECHO)
    }

    /// Waits until the program has read all lines that were typed.
    async fn all_is_read(&self) {
        let all_is_read = async {
            while poll(&mut [PollFd::new(self.line.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, all_is_read).await.unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().unwrap().try_into().unwrap()), signal).unwrap();
    }

    /// Waits for the program's end. Gives its exit code and all that was on the screen.
    async fn leaves(mut self) -> (Option<i32>, String) {
        let status = tokio::time::timeout(DEADLINE, self.child.wait()).await.expect("it goes on").unwrap();
        assert_eq!(tcgetattr(&self.keyboard).unwrap(), self.before, "the terminal is as it was");
        drop(self.line);
        while let Some(some) = self.screen.recv().await {
            self.seen.push_str(&String::from_utf8_lossy(&some));
        }
        (status.code(), self.seen)
    }
}

/// No login has been tried.
async fn nothing_was_sent(environment: &Environment) {
    assert_eq!(environment.server().control().count("POST", "/api/v1/token"), 0);
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status.pointer("/session/state").unwrap(), "signed_out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_asks_and_shows_neither_passphrase_nor_code() {
    let environment = environment(2).await;
    let credentials = environment.credentials(&MARLOW);
    let [username, passphrase, code] = credentials.lines().collect::<Vec<_>>().try_into().unwrap();
    let mut typist = Typist::sit_down(&environment, &["login"]);
    typist.sees("User name: ").await;
    assert!(typist.has_echo());
    typist.types(&format!("{username}\n"));
    typist.sees("Passphrase: ").await;
    assert!(!typist.has_echo());
    typist.types(&format!("{passphrase}\n"));
    typist.sees("One-time code: ").await;
    assert!(!typist.has_echo());
    typist.types(&format!("{code}\n"));
    let (exit, seen) = typist.leaves().await;
    assert_eq!(exit, Some(0), "{seen}");
    assert!(seen.contains("Signed in as marlow."), "{seen}");
    assert!(!seen.contains(passphrase) && !seen.contains(code), "{seen}");
    environment.stop().await.unwrap();
}

/// Case N2: a person sees why nothing happens.
#[tokio::test(flavor = "multi_thread")]
async fn n2_a_login_that_waits_for_the_proxy_vm_says_so() {
    let mut options = EnvironmentOptions::with_sources(1, 1).unwrap();
    options.system = System::workstation().with_halted(PROXY_VM);
    options.qrexec.start = Start::Gated;
    let environment = Environment::with_daemon(options).await.unwrap();
    let credentials = environment.credentials(&MARLOW);
    let mut lines = credentials.lines();
    let mut typist = Typist::sit_down(&environment, &["login"]);
    for question in ["User name: ", "Passphrase: ", "One-time code: "] {
        typist.sees(question).await;
        typist.types(&format!("{}\n", lines.next().unwrap()));
    }
    typist.sees("the proxy VM may have to start first").await;
    let vms = environment.broker().vms();
    vms.until_starting(PROXY_VM).await;
    vms.finish_start(PROXY_VM, StartOutcome::Running).unwrap();
    let (code, seen) = typist.leaves().await;
    assert_eq!(code, Some(0), "{seen}");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pasted_at_once_answers_both_questions() {
    let environment = environment(2).await;
    let credentials = environment.credentials(&MARLOW);
    let (username, rest) = credentials.split_once('\n').unwrap();
    let mut typist = Typist::sit_down(&environment, &["login", "--username", username]);
    typist.sees("Passphrase: ").await;
    typist.types(rest);
    let (exit, seen) = typist.leaves().await;
    assert_eq!(exit, Some(0), "{seen}");
    assert!(!rest.lines().any(|secret| seen.contains(secret)), "{seen}");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_at_any_question_ends_the_login_and_nothing_is_sent() {
    let environment = environment(2).await;
    let answers = [("User name: ", "marlow"), ("Passphrase: ", "half a passphr"), ("One-time code: ", "123")];
    for asked in 0..answers.len() {
        let mut typist = Typist::sit_down(&environment, &["login"]);
        for (question, answer) in &answers[..asked] {
            typist.sees(question).await;
            typist.types(&format!("{answer}\n"));
        }
        let (question, half) = answers[asked];
        typist.sees(question).await;
        // Half an answer is forgotten.
        typist.types(half);
        typist.types(CTRL_C);
        let (exit, seen) = typist.leaves().await;
        assert_eq!(exit, Some(130), "{question} {seen}");
        assert!(!seen.contains("passphr") && !seen.contains("123"), "{seen}");
    }
    nothing_was_sent(&environment).await;
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_or_no_answer_ends_a_question_and_leaves_the_terminal_as_it_was() {
    let environment = environment(2).await;
    for (signal, exit) in [(Some(Signal::SIGTERM), 130), (Some(Signal::SIGHUP), 130), (None, 2)] {
        let mut typist = Typist::sit_down(&environment, &["login", "--username", "marlow"]);
        typist.sees("Passphrase: ").await;
        // Neither stops the program nor ends it with its memory in a file: they are characters like others.
        typist.types("\u{1a}\u{1c}\u{15}");
        match signal {
            Some(signal) => typist.signal(signal),
            None => typist.types("\u{4}"),
        }
        let (ended, seen) = typist.leaves().await;
        assert_eq!(ended, Some(exit), "{signal:?} {seen}");
    }
    nothing_was_sent(&environment).await;
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_login_that_reads_three_lines_from_a_terminal() {
    let environment = environment(2).await;
    let mut typist = Typist::sit_down(&environment, &["login", "--credentials-stdin"]);
    typist.types("marlow\n");
    typist.sees("marlow").await;
    typist.all_is_read().await;
    typist.types(CTRL_C);
    let (exit, seen) = typist.leaves().await;
    assert_eq!(exit, Some(130), "{seen}");
    nothing_was_sent(&environment).await;
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_command_whose_output_nobody_reads() {
    const PIPE: i32 = 4096;
    let environment = environment(40).await;
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    watch.until("sync_ended").await.unwrap();
    let whole = environment.run(["sources", "--json"], "").await.unwrap().stdout;
    assert!(whole.len() > 2 * usize::try_from(PIPE).unwrap(), "the pipe would hold all of it");
    let (mut reader, writer) = std::io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETPIPE_SZ(PIPE)).unwrap();
    let mut child = environment.splitdrop(["sources", "--json"]).stdout(writer).spawn().unwrap();
    // It has begun to write, and cannot end.
    let reader = tokio::task::spawn_blocking(move || {
        reader.read_exact(&mut [0]).unwrap();
        reader
    });
    let reader = reader.await.unwrap();
    kill(Pid::from_raw(child.id().unwrap().try_into().unwrap()), Signal::SIGINT).unwrap();
    let status = tokio::time::timeout(DEADLINE, child.wait()).await.expect("it goes on").unwrap();
    assert_eq!(status.code(), Some(130));
    drop(reader);
    environment.stop().await.unwrap();
}

/// Who signed in, and deletes a source that can be taken back for longer than a test takes.
async fn with_an_act_that_waits() -> Environment {
    let options = EnvironmentOptions::with_sources(2, 1).unwrap();
    let options = EnvironmentOptions { delete_grace: Duration::from_secs(600), ..options };
    let environment = Environment::with_daemon(options).await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let listed = environment.json(&["sources"], "").await.unwrap();
    let source = listed["sources"][0]["uuid"].as_str().unwrap();
    environment.json(&["delete", "source", source, "--yes"], "").await.unwrap();
    environment
}

async fn session_state(environment: &Environment) -> String {
    let status = environment.json(&["status"], "").await.unwrap();
    status["session"]["state"].as_str().unwrap().to_owned()
}

const UNSENT: &str = "Not sent yet: 1 deletion of a source. `splitdrop undo` can still take one of them back.";

#[tokio::test(flavor = "multi_thread")]
async fn a_logout_names_what_is_not_sent_and_only_a_yes_signs_out() {
    let environment = with_an_act_that_waits().await;
    for answer in ["n\n", "\n", "maybe\n"] {
        let mut typist = Typist::sit_down(&environment, &["logout"]);
        typist.sees("Log out now? They go on when you sign in again. [y/N] ").await;
        typist.types(answer);
        let (exit, seen) = typist.leaves().await;
        assert_eq!(exit, Some(1), "{seen}");
        assert!(seen.contains(UNSENT) && !seen.contains("Signed out"), "{seen}");
        assert_eq!(session_state(&environment).await, "signed_in", "{answer:?}");
    }
    let mut typist = Typist::sit_down(&environment, &["logout"]);
    typist.sees("[y/N] ").await;
    typist.types(CTRL_C);
    assert_eq!(typist.leaves().await.0, Some(130));
    assert_eq!(session_state(&environment).await, "signed_in");
    let mut typist = Typist::sit_down(&environment, &["logout"]);
    typist.sees("[y/N] ").await;
    typist.types("y\n");
    let (exit, seen) = typist.leaves().await;
    assert_eq!(exit, Some(0), "{seen}");
    assert_eq!(session_state(&environment).await, "signed_out");
    // The act is still there, and was not sent.
    let queue = environment.json(&["queue"], "").await.unwrap();
    assert_eq!(queue["queue"][0]["kind"], "delete_source", "{queue}");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_nothing_unsent_or_says_yes_before_is_not_asked() {
    let environment = with_an_act_that_waits().await;
    let (exit, seen) = Typist::sit_down(&environment, &["logout", "--yes"]).leaves().await;
    assert_eq!(exit, Some(0), "{seen}");
    assert!(seen.contains(UNSENT) && !seen.contains("[y/N]"), "{seen}");
    environment.server().control().apply(server::Command::AdvanceClock { seconds: 90 }).unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["undo"], "").await.unwrap();
    let (exit, seen) = Typist::sit_down(&environment, &["logout"]).leaves().await;
    assert_eq!((exit, seen.as_str()), (Some(0), "Signed out.\r\n"));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn quitting_asks_in_the_same_way_and_ends_the_daemon() {
    let mut environment = with_an_act_that_waits().await;
    let mut typist = Typist::sit_down(&environment, &["quit"]);
    typist.sees("End the daemon now? They go on when you sign in again. [y/N] ").await;
    typist.types("n\n");
    let (exit, seen) = typist.leaves().await;
    assert_eq!(exit, Some(1), "{seen}");
    assert_eq!(session_state(&environment).await, "signed_in");
    let mut typist = Typist::sit_down(&environment, &["quit"]);
    typist.sees("[y/N] ").await;
    typist.types("yes\n");
    let (exit, seen) = typist.leaves().await;
    assert_eq!(exit, Some(0), "{seen}");
    assert!(seen.contains(UNSENT) && seen.contains("The daemon has ended."), "{seen}");
    assert!(!environment.control_socket().exists());
    assert_eq!(environment.server().control().count("POST", "/api/v1/logout"), 1, "it ends in order");
    assert_eq!(environment.stop_daemon(Signal::SIGTERM).await.unwrap(), Some(0));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_terminal_is_closed_signs_out() {
    let environment = environment(2).await;
    let elsewhere = environment.directory().join("elsewhere");
    let (person, line) = terminal();
    // Its log goes to the terminal, which will be gone.
    let mut daemon = on_terminal(&environment, &["daemon"])
        .env("SPLITDROP_HOME", &elsewhere)
        .stdin(line.try_clone().unwrap())
        .stdout(Stdio::piped())
        .stderr(line.try_clone().unwrap())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().starts_with("listening on"));
    let socket = elsewhere.join("control.sock");
    let arguments = ["login", "--credentials-stdin", "--socket", socket.to_str().unwrap()];
    let login = environment.run(arguments, &environment.credentials(&MARLOW)).await.unwrap();
    assert_eq!(login.code, Some(0), "{login:?}");
    drop((line, person));
    let status = tokio::time::timeout(DEADLINE, daemon.wait()).await.expect("it goes on").unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(environment.server().control().count("POST", "/api/v1/logout"), 1);
    assert!(!socket.exists());
    environment.stop().await.unwrap();
}

/// An editor that saves this text, says that it is open, and stays open until somebody writes to the pipe.
fn editor(environment: &Environment, text: &str) -> (String, PathBuf) {
    let (script, pipe) = (environment.directory().join("editor"), environment.directory().join("editor-pipe"));
    mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let words = format!("echo '{text}' >\"$1\"\necho the editor is open\nread -r line <'{}'\n", pipe.display());
    std::fs::write(&script, words).unwrap();
    (format!("/bin/sh '{}'", script.display()), pipe)
}

/// What a terminal breaks goes on in its first column, where only lines of the program begin.
#[tokio::test(flavor = "multi_thread")]
async fn lines_are_broken_for_the_terminal_and_go_on_indented() {
    const COLUMNS: usize = 40;
    let environment = environment(3).await;
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let (person, line) = terminal();
    let sized = std::process::Command::new("stty")
        .args(["rows", "24", "cols", &COLUMNS.to_string()])
        .stdin(line.try_clone().unwrap())
        .status();
    assert!(sized.unwrap().success());
    let whole = environment.run(["sources"], "").await.unwrap().stdout;
    assert!(whole.lines().all(|line| line.len() > COLUMNS), "{whole}");
    let mut typist = Typist::at(person, line, on_terminal(&environment, &["sources"]));
    typist.sees("REPLIES").await;
    let (exit, seen) = typist.leaves().await;
    assert_eq!(exit, Some(0), "{seen}");
    assert!(seen.lines().all(|line| line.len() <= COLUMNS), "{seen}");
    let heads = seen.lines().filter(|line| !line.starts_with("    ")).count();
    assert_eq!((heads, seen.lines().count() > heads), (whole.lines().count(), true), "{seen}");
    environment.stop().await.unwrap();
}

/// Case Q4: nobody's words are ever sent as somebody else's.
#[tokio::test(flavor = "multi_thread")]
async fn q4_r3_what_an_editor_holds_is_not_sent_by_whoever_has_signed_in_meanwhile() {
    const TEXT: &str = "only between the two of us";
    let environment = environment(1).await;
    let control = environment.server().control();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let listed = environment.listed_with_keys().await.unwrap();
    let source = listed["sources"][0]["uuid"].as_str().unwrap();
    let (editor, pipe) = editor(&environment, TEXT);
    let mut typist = Typist::sit_down_with(&environment, &["reply", source], &[("EDITOR", &editor)]);
    typist.sees("the editor is open").await;

    environment.json(&["logout"], "").await.unwrap();
    // A one-time code is taken once.
    control.apply(Happens::AdvanceClock { seconds: 90 }).unwrap();
    environment.login(&TERNBERG).await.unwrap();
    let closing = tokio::task::spawn_blocking(move || std::fs::write(pipe, "close\n"));
    tokio::time::timeout(DEADLINE, closing).await.expect("nobody reads from the pipe").unwrap().unwrap();
    let (exit, seen) = typist.leaves().await;
    assert_eq!(exit, Some(4), "{seen}");
    assert!(seen.contains("another journalist is signed in") && seen.contains("run `splitdrop login`"), "{seen}");
    let file = seen.split_once("the text is in ").unwrap().1.trim_end();
    assert!(file.starts_with(environment.home().to_str().unwrap()), "{seen}");
    let kept = std::fs::read_to_string(file).unwrap();
    assert_eq!(kept, format!("{TEXT}\n"));

    // Neither of the two has anything in the outbox, or a draft.
    let is_nothing_there = async || {
        assert_eq!(environment.json(&["queue"], "").await.unwrap()["queue"], json!([]));
        let shown = environment.json(&["show", source], "").await.unwrap();
        assert_eq!((&shown["outgoing"], &shown["draft"]), (&json!([]), &Value::Null), "{shown}");
    };
    is_nothing_there().await;
    environment.json(&["logout"], "").await.unwrap();
    control.apply(Happens::AdvanceClock { seconds: 90 }).unwrap();
    environment.login(&MARLOW).await.unwrap();
    is_nothing_there().await;
    assert_eq!(control.with_world(|world| world.changes()).total(), 0);

    // What the message says can be done.
    let mut watch = environment.watch().await.unwrap();
    let replied = environment.json(&["reply", source], &kept).await.unwrap();
    watch.until_done(replied["acts"][0]["act"].as_u64().unwrap()).await.unwrap();
    control.with_world(|world| {
        let marlow = &world.journalist_named(MARLOW.username).unwrap().id;
        let by_marlow =
            |change: &Change| matches!(change, Change::ReplySent { journalist, .. } if journalist == marlow);
        assert_eq!((world.changes().sum(by_marlow), world.changes().total()), (1, 1));
    });
    environment.stop().await.unwrap();
}

/// A drive's passphrase is typed as a login's is.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_to_a_locked_drive_asks_for_its_passphrase_and_does_not_show_it() {
    let environment = environment(1).await;
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let sources = environment.json(&["sources"], "").await.unwrap();
    let source = sources["sources"][0]["uuid"].as_str().unwrap();
    let shown = environment.json(&["show", source], "").await.unwrap();
    let item = shown["items"][0]["uuid"].as_str().unwrap();
    environment.json(&["download", item, "--wait"], "").await.unwrap();
    let vms = environment.other_vms();
    vms.end(CHECK_DRIVE, End::status("DEVICE_LOCKED"));
    let mut typist = Typist::sit_down(&environment, &["export", item, "--usb"]);
    typist.sees("Passphrase of the drive: ").await;
    assert!(!typist.has_echo());
    typist.types("half a passphr");
    typist.types(CTRL_C);
    let (exit, seen) = typist.leaves().await;
    assert!(exit == Some(130) && !seen.contains("passphr\n"), "{exit:?} {seen}");
    assert_eq!(vms.calls().len(), 1, "nothing was copied");
    let mut typist = Typist::sit_down(&environment, &["export", item, "--usb"]);
    typist.sees("Passphrase of the drive: ").await;
    typist.types("correct horse\n");
    let (exit, seen) = typist.leaves().await;
    assert!(exit == Some(0) && !seen.contains("horse"), "{exit:?} {seen}");
    let archive = vms.calls().pop().unwrap().file.unwrap().archive.unwrap();
    assert_eq!(archive.metadata["encryption_key"], "correct horse");
    environment.stop().await.unwrap();
}
