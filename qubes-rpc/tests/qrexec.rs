//! Calls through real processes: shell scripts in the place of `qrexec-client-vm`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::future::Future;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use protocol::frame::frame_bytes;
use protocol::handshake::{encode_welcome, mismatch_answer};
use protocol::value::{SettingName, SoftwareVersion};
use protocol::{Call, Hello, Limits, Refusal, Scope, Welcome};
use qubes_rpc::connection::{Break, CallFailure, HelloError};
use qubes_rpc::name::{ServiceName, VmName};
use qubes_rpc::places::{Place, Places};
use qubes_rpc::qrexec::{OpenError, Qrexec, QrexecCall};
use qubes_rpc::{PROXY_SERVICE, channel::ChannelError};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::pipe;

/// Only for what does not happen when all is well.
const FAILED: Duration = Duration::from_secs(60);
/// A deadline that no test waits for.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A script in the place of `qrexec-client-vm`, in a directory of its own.
struct Stand {
    directory: tempfile::TempDir,
    qrexec: Qrexec,
    /// One.
    places: Places,
    pids: BufReader<pipe::Receiver>,
}

impl Stand {
    /// `$here` is the directory; `say_pid` tells the test the script's process id; `welcome` and the like are files
    /// with a proxy's first frame.
    fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        mkfifo(&here.join("pids"), Mode::S_IRWXU).unwrap();
        // Opened for both, so that it does not end when a script does.
        let pids = pipe::OpenOptions::new().read_write(true).open_receiver(here.join("pids")).unwrap();
        let ready = Welcome::Ready { scope: Scope::Metadata, limits: Limits::OURS, software: version() };
        let setting = SettingName::try_new("SD_PROXY_ORIGIN").unwrap();
        let frames = [
            ("welcome", encode_welcome(&ready).unwrap()),
            ("refusal", encode_welcome(&Welcome::Refused(Refusal::SettingMissing(setting))).unwrap()),
            ("mismatch", [&mismatch_answer()[..4], &[7, 0, 9, 0]].concat()),
        ];
        for (name, payload) in frames {
            std::fs::write(here.join(name), frame_bytes(&payload).unwrap()).unwrap();
        }
        let program = here.join("qrexec-client-vm");
        let script =
            format!("#!/bin/sh\nhere='{}'\nsay_pid() {{ echo $$ > \"$here/pids\"; }}\n{script}\n", here.display());
        write_program(&program, &script);
        Self { qrexec: Qrexec { program }, places: Places::new(1), directory, pids: BufReader::new(pids) }
    }

    async fn place(&self) -> Place {
        sure(self.places.take()).await
    }

    async fn open(&self, deadline: Duration) -> Result<QrexecCall, OpenError> {
        self.qrexec.open(&vm(), &service(), &hello(), deadline, self.place().await).await
    }

    /// Opens a call that fails; once the script has said its process id, time goes on by itself.
    async fn open_and_let_time_pass(mut self) -> (OpenError, Process) {
        let (service, hello, vm) = (service(), hello(), vm());
        let mut opening = pin!(self.qrexec.open(&vm, &service, &hello, DAY, self.places.take().await));
        let process = tokio::select! {
            opened = &mut opening => panic!("{opened:?}"),
            process = read_pid(&mut self.pids) => process,
        };
        assert!(process.exists());
        tokio::time::pause();
        (opening.await.unwrap_err(), process)
    }

    async fn pid(&mut self) -> Process {
        read_pid(&mut self.pids).await
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Lets another process write the file: while this one had it open for writing, a process that another test forks
/// would inherit it, and a file that is open for writing cannot be executed.
fn write_program(path: &Path, script: &str) {
    let write = r#"printf %s "$2" > "$1" && chmod 700 "$1""#;
    assert!(Command::new("/bin/sh").args(["-c", write, "sh"]).arg(path).arg(script).status().unwrap().success());
}

async fn read_pid(pids: &mut BufReader<pipe::Receiver>) -> Process {
    let mut line = String::new();
    sure(pids.read_line(&mut line)).await.unwrap();
    Process(line.trim().parse().unwrap())
}

/// Awaits what must come.
async fn sure<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(FAILED, future).await.expect("nothing happens")
}

struct Process(u32);

impl Process {
    /// Whether it is there, be it as a zombie.
    fn exists(&self) -> bool {
        Path::new(&format!("/proc/{}", self.0)).exists()
    }

    async fn is_gone(&self) {
        sure(async {
            while self.exists() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

fn version() -> SoftwareVersion {
    SoftwareVersion::try_new("0.0.0-test").unwrap()
}

fn service() -> ServiceName {
    ServiceName::try_new(PROXY_SERVICE, Scope::Metadata.name()).unwrap()
}

fn hello() -> Hello {
    Hello { scope: Scope::Metadata, limits: Limits::OURS, api_level: None, software: version() }
}

fn vm() -> VmName {
    "sd-proxy".parse().unwrap()
}

#[tokio::test]
async fn the_program_is_called_for_the_vm_and_the_service() {
    let stand = Stand::new(r#"echo "$# $*" > "$here/arguments"; exit 126"#);
    sure(stand.open(DAY)).await.unwrap_err();
    assert_eq!(std::fs::read_to_string(stand.file("arguments")).unwrap(), "3 -- sd-proxy splitdrop.Proxy+metadata\n");
}

#[tokio::test]
async fn exit_codes_before_the_handshake_tell_what_failed() {
    for (code, says) in [
        (126, "dom0 refused the call of splitdrop.Proxy+metadata to sd-proxy"),
        (127, "sd-proxy has no service splitdrop.Proxy+metadata"),
        (125, "qrexec could not call sd-proxy"),
        (255, "qrexec could not call sd-proxy"),
        (3, "the call to sd-proxy ended before the handshake (exit status: 3)"),
        (0, "the call to sd-proxy ended before the handshake (exit status: 0)"),
    ] {
        let mut stand = Stand::new(&format!("say_pid; exit {code}"));
        let error = sure(stand.open(DAY)).await.unwrap_err();
        match (&error, code) {
            (OpenError::Refused { .. }, 126)
            | (OpenError::NoSuchService { .. }, 127)
            | (OpenError::QrexecFailed { .. }, 125 | 255) => {}
            (OpenError::Died { status, .. }, 0 | 3) => assert_eq!(status.code(), Some(code)),
            _ => panic!("exit code {code}: {error:?}"),
        }
        assert!(error.to_string().starts_with(says), "{error}");
        assert!(!stand.pid().await.exists(), "exit code {code}: a process is left");
    }
}

#[tokio::test]
async fn a_killed_program_has_died() {
    let stand = Stand::new("kill -9 $$");
    let error = sure(stand.open(DAY)).await.unwrap_err();
    assert!(matches!(&error, OpenError::Died { status, .. } if status.signal() == Some(9)), "{error:?}");
}

#[tokio::test]
async fn an_exit_code_after_half_a_handshake_still_tells() {
    let stand = Stand::new(r#"head -c 5 "$here/welcome"; exit 125"#);
    let error = sure(stand.open(DAY)).await.unwrap_err();
    assert!(matches!(error, OpenError::QrexecFailed { .. }), "{error:?}");
}

#[tokio::test]
async fn a_program_that_is_not_there_was_not_started() {
    let mut stand = Stand::new("");
    stand.qrexec.program = stand.file("nowhere");
    let error = sure(stand.open(DAY)).await.unwrap_err();
    let OpenError::NotStarted { program, source } = &error else { panic!("{error:?}") };
    assert_eq!((program, source.kind()), (&stand.file("nowhere"), std::io::ErrorKind::NotFound));
}

#[tokio::test]
async fn a_program_that_says_nothing_is_ended_at_the_deadline() {
    let (error, process) = Stand::new("say_pid; exec sleep 3600").open_and_let_time_pass().await;
    assert!(matches!(error, OpenError::Hello { source: HelloError::TimedOut, .. }), "{error:?}");
    assert!(!process.exists(), "a process is left");
}

#[tokio::test]
async fn a_proxy_that_says_no_is_ended() {
    for (first, expected) in
        [("refusal", "SD_PROXY_ORIGIN is missing"), ("mismatch", "upgrade Splitdrop in the client VM")]
    {
        let mut stand = Stand::new(&format!(r#"say_pid; cat "$here/{first}"; exec sleep 3600"#));
        let error = sure(stand.open(DAY)).await.unwrap_err();
        let OpenError::Hello { source, .. } = &error else { panic!("{error:?}") };
        assert!(source.to_string().ends_with(expected), "{source}");
        assert!(!stand.pid().await.exists(), "a process is left");
    }
}

#[tokio::test]
async fn a_program_that_talks_something_else_is_ended() {
    let stand = Stand::new("echo Welcome to fedora-42; say_pid; exec sleep 3600");
    let (error, process) = stand.open_and_let_time_pass().await;
    assert!(matches!(error, OpenError::Hello { source: HelloError::Channel(ChannelError::Frame(_)), .. }), "{error:?}");
    assert!(!process.exists(), "a process is left");
}

#[tokio::test]
async fn giving_up_an_open_leaves_no_process() {
    let mut stand = Stand::new("say_pid; exec sleep 3600");
    let process = {
        let (service, hello, vm) = (service(), hello(), vm());
        let mut opening = pin!(stand.qrexec.open(&vm, &service, &hello, DAY, stand.places.take().await));
        tokio::select! {
            opened = &mut opening => panic!("{opened:?}"),
            process = read_pid(&mut stand.pids) => process,
        }
    };
    process.is_gone().await;
}

#[tokio::test]
async fn a_call_that_is_only_dropped_leaves_no_process() {
    let mut stand = Stand::new(r#"say_pid; cat "$here/welcome"; exec sleep 3600"#);
    let call = sure(stand.open(DAY)).await.unwrap();
    let process = stand.pid().await;
    assert!(process.exists());
    drop(call);
    process.is_gone().await;
}

#[tokio::test]
async fn closing_lets_the_program_end_by_itself() {
    let mut stand = Stand::new(r#"say_pid; cat "$here/welcome"; cat > /dev/null; echo yes > "$here/ended""#);
    let call = sure(stand.open(DAY)).await.unwrap();
    let process = stand.pid().await;
    sure(call.close()).await;
    assert!(!process.exists(), "a process is left");
    assert_eq!(std::fs::read_to_string(stand.file("ended")).unwrap(), "yes\n");
}

#[tokio::test]
async fn closing_ends_a_program_that_ignores_the_end_of_its_input() {
    let mut stand = Stand::new(r#"say_pid; trap '' TERM HUP PIPE; cat "$here/welcome"; exec sleep 3600"#);
    let call = sure(stand.open(DAY)).await.unwrap();
    let process = stand.pid().await;
    // Takes the two seconds that the program has: paused time would also run out while the process is reaped.
    sure(call.close()).await;
    assert!(!process.exists(), "a process is left");
}

#[tokio::test]
async fn giving_up_a_close_leaves_no_process() {
    let mut stand = Stand::new(r#"say_pid; cat "$here/welcome"; exec sleep 3600"#);
    let call = sure(stand.open(DAY)).await.unwrap();
    let process = stand.pid().await;
    {
        let mut closing = pin!(call.close());
        tokio::select! {
            biased;
            () = &mut closing => panic!("closed at once"),
            () = std::future::ready(()) => {}
        }
    }
    process.is_gone().await;
}

#[tokio::test]
async fn a_program_that_ends_in_a_session_leaves_its_calls_incomplete() {
    let mut stand = Stand::new(r#"say_pid; cat "$here/welcome"; head -c 1 > /dev/null"#);
    let call = sure(stand.open(DAY)).await.unwrap();
    let process = stand.pid().await;
    // The script ends at the latest with the first byte of this call.
    let outcome = match sure(call.connection().call(Call::Health, DAY - FAILED)).await {
        Ok(mut stream) => sure(stream.next()).await,
        Err(failure) => Err(failure),
    };
    assert!(matches!(outcome, Err(CallFailure::Incomplete(Break::Ended | Break::Stream))), "{outcome:?}");
    assert!(call.connection().broken_by().is_some());
    sure(call.close()).await;
    assert!(!process.exists(), "a process is left");
}

/// A program that never ends by itself, whatever becomes of its input.
const STUBBORN: &str = r#"say_pid; trap '' TERM HUP PIPE; cat "$here/welcome"; exec sleep 3600"#;

#[tokio::test]
async fn a_call_keeps_its_place_until_its_process_is_reaped() {
    let mut stand = Stand::new(STUBBORN);
    let call = sure(stand.open(DAY)).await.unwrap();
    let process = stand.pid().await;
    let mut next = pin!(stand.places.take());
    tokio::select! {
        biased;
        _place = &mut next => panic!("there is no place"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(stand.places.waiting(), 1);
    drop(call);
    let _place = sure(next).await;
    assert!(!process.exists(), "the place was given back before the process was gone");
}

#[tokio::test]
async fn a_call_whose_process_has_ended_gives_its_place_back_though_somebody_still_has_it() {
    for broken_off in [false, true] {
        let stand = Stand::new(if broken_off { STUBBORN } else { r#"say_pid; cat "$here/welcome""# });
        let call = sure(stand.open(DAY)).await.unwrap();
        if broken_off {
            call.break_off();
        }
        drop(stand.place().await);
        sure(call.close()).await;
    }
}

#[tokio::test]
async fn a_call_that_is_being_closed_makes_room_at_once_for_what_cannot_wait() {
    let mut stand = Stand::new(STUBBORN);
    let mut took = Vec::new();
    // The two seconds that the program has to end by itself do not pass while somebody waits urgently. A busy machine may
    // stand still for as long, but not each time.
    for _ in 0..5 {
        let call = sure(stand.open(DAY)).await.unwrap();
        let process = stand.pid().await;
        let before = tokio::time::Instant::now();
        let (place, ()) = sure(async { tokio::join!(stand.places.take_urgently(), call.close()) }).await;
        took.push(before.elapsed());
        assert!(!process.exists(), "a process is left");
        drop(place);
        if took.last().is_some_and(|took| *took < Duration::from_millis(1_500)) {
            return;
        }
    }
    panic!("{took:?}");
}
