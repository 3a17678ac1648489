//! Taking over standard input and output, in child processes: this test's own binary, started anew.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs::{File, read_link};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use qubes_rpc::stdio::take;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Tells the child what to do; not set, [`child`] does nothing.
const ROLE: &str = "QUBES_RPC_TEST_ROLE";
/// What the child prints last before it takes over; what comes before is the test harness's.
const FROM_HERE: &str = "from here the stream is the proxy's\n";
/// What the child answers to what it reads.
const ANSWER: &[u8] = b"answer to ";

/// The child's part.
#[tokio::test]
async fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "refuse" {
        let error = take().err().expect("took a file over");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        return;
    }
    let before = [read_link("/proc/self/fd/0").unwrap(), read_link("/proc/self/fd/1").unwrap()];
    print!("{FROM_HERE}");
    let (mut input, mut output) = take().unwrap();
    println!("a stray print");
    // A process of the child has neither stream, under no number.
    let list = r#"for fd in /proc/self/fd/*; do readlink "$fd"; done >&2; echo a stray print of a child"#;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", list]).stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::piped());
    let inherited = shell.spawn().unwrap().wait_with_output().unwrap().stderr;
    let inherited = String::from_utf8(inherited).unwrap();
    assert!(inherited.contains("/dev/null"), "standard input is empty: {inherited}");
    for stream in before {
        assert!(!inherited.contains(stream.to_str().unwrap()), "{stream:?} in {inherited}");
    }
    let mut question = Vec::new();
    input.read_to_end(&mut question).await.unwrap();
    output.write_all(&[ANSWER, &question].concat()).await.unwrap();
    output.shutdown().await.unwrap();
}

fn start(role: &str, input: impl Into<Stdio>, output: impl Into<Stdio>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).stdin(input).stdout(output).stderr(Stdio::piped()).spawn().unwrap()
}

/// Sends a question, and checks that exactly the answer comes, and everything else on standard error.
fn check(child: Child, mut to_child: impl std::io::Write, mut from_child: impl std::io::Read) {
    to_child.write_all(b"the question").unwrap();
    drop(to_child);
    let mut stream = Vec::new();
    from_child.read_to_end(&mut stream).unwrap();
    let ended = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{errors}");
    let stream = String::from_utf8(stream).unwrap();
    assert_eq!(stream.split_once(FROM_HERE).expect("nothing was printed").1, "answer to the question");
    for stray in ["a stray print\n", "a stray print of a child\n"] {
        assert!(errors.contains(stray), "{stray:?} got lost: {errors}");
    }
}

#[test]
fn pipes_are_taken_over_and_stray_prints_go_to_standard_error() {
    let (input, to_child) = std::io::pipe().unwrap();
    let (from_child, output) = std::io::pipe().unwrap();
    check(start("answer", input, output), to_child, from_child);
}

#[test]
fn socket_pairs_are_taken_over_and_stray_prints_go_to_standard_error() {
    let (input, to_child) = UnixStream::pair().unwrap();
    let (from_child, output) = UnixStream::pair().unwrap();
    check(start("answer", OwnedFd::from(input), OwnedFd::from(output)), to_child, from_child);
}

/// One end of a socket, whose writing direction ends when this is dropped.
struct HalfClosing(UnixStream);

impl std::io::Write for HalfClosing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Drop for HalfClosing {
    fn drop(&mut self) {
        self.0.shutdown(std::net::Shutdown::Write).unwrap();
    }
}

#[test]
fn one_socket_for_both_directions_is_taken_over() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = start("answer", OwnedFd::from(theirs.try_clone().unwrap()), OwnedFd::from(theirs));
    check(child, HalfClosing(ours.try_clone().unwrap()), ours);
}

#[test]
fn a_file_is_refused_and_left_alone() {
    let child = start("refuse", File::open("/dev/zero").unwrap(), Stdio::piped());
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("output");
    let (input, to_child) = std::io::pipe().unwrap();
    drop(to_child);
    let child = start("refuse", input, File::create(&path).unwrap());
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let mut printed = String::new();
    File::open(&path).unwrap().read_to_string(&mut printed).unwrap();
    assert!(printed.contains("test result: ok"), "standard output is still the file: {printed}");
}
