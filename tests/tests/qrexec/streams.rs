//! The streams of a call and their ends.

use std::os::fd::{AsFd, BorrowedFd};

use staging::qrexec::Ending;
use staging::qrexec::broker::EventKind;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::support::{Caller, Gate, LifeLine, Stage, bounded};

#[tokio::test]
async fn the_callers_end_of_file_reaches_the_service_and_later_output_the_caller() {
    let stage = Stage::new(&[("s", "cat; echo; echo after the end; exit 3")]);
    let mut caller = stage.call("s");
    caller.write("before").await;
    caller.stdin = None;
    assert_eq!(caller.rest().await, "before\nafter the end\n");
    assert_eq!(caller.code().await, Some(3));
}

#[tokio::test]
async fn a_service_that_closes_its_stdout_goes_on() {
    let stage = Stage::new(&[("s", "echo last; exec >&-; read line; exit \"$line\"")]);
    let mut caller = stage.call("s");
    // The end of the caller's stdout comes while the service runs.
    assert_eq!(caller.rest().await, "last\n");
    assert_eq!(stage.broker().counts().open, 1);
    caller.write("9\n").await;
    assert_eq!(caller.code().await, Some(9));
}

#[tokio::test]
async fn a_service_may_end_without_reading_its_input() {
    let stage = Stage::new(&[("s", "exec <&-; echo closed; exit 4")]);
    let mut caller = stage.call("s");
    assert_eq!(caller.rest().await, "closed\n");
    // The caller's stdin is still open.
    assert_eq!(caller.code().await, Some(4));
}

#[tokio::test]
async fn a_child_that_holds_a_stream_keeps_the_call_open() {
    let stage = Stage::new(&[("s", "( exec >&-; read line < FOLDER/fifo ) & exit 5")]);
    let mut gate = Gate::new(&stage.path("fifo"));
    let mut caller = stage.call("s");
    assert_eq!(caller.rest().await, "");
    // The leader is a zombie or about to be; its child holds stderr.
    assert_eq!(stage.broker().counts().open, 1);
    gate.open();
    assert_eq!(caller.code().await, Some(5));
    assert_eq!(stage.broker().counts().open, 0);
}

#[tokio::test]
async fn a_killed_caller_is_only_an_end_of_file_to_the_service() {
    let script = "trap '' PIPE; echo ready; cat; read line < FOLDER/fifo; echo lost || echo broken >&2; exit 6";
    let stage = Stage::new(&[("s", script)]);
    let mut gate = Gate::new(&stage.path("fifo"));
    let mut caller = stage.call("s");
    assert_eq!(caller.line().await, "ready\n");
    bounded(caller.process.kill()).await.unwrap();
    bounded(stage.broker().until(|counts| counts.abandoned == 1)).await;
    assert_eq!(stage.broker().counts().open, 1);
    // Only a service that has seen the end of its input waits here.
    gate.open();
    bounded(stage.broker().until(|counts| counts.open == 0)).await;
    let kinds = stage.kinds();
    assert_eq!(kinds.last(), Some(&EventKind::Ended(Ending::Exited(6))));
    assert!(kinds.contains(&EventKind::CallerGone));
    let log = String::from_utf8(stage.broker().service_log("sd-proxy")).unwrap();
    assert!(log.ends_with("broken\n"), "{log}");
}

#[tokio::test]
async fn output_that_nobody_reads_is_thrown_away_and_the_service_goes_on() {
    let lines = "i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done";
    let stage = Stage::new(&[("s", &format!("echo ready; read line; {lines} && {lines} && cat && exit 7"))]);
    let Caller { mut process, stdin, mut stdout } = stage.call("s");
    let mut line = String::new();
    bounded(stdout.read_line(&mut line)).await.unwrap();
    drop(stdout);
    let mut stdin = stdin.unwrap();
    stdin.write_all(b"go\n").await.unwrap();
    drop(stdin);
    assert_eq!(bounded(process.wait()).await.unwrap().code(), Some(7));
}

#[tokio::test]
async fn descriptors_that_a_caller_lends_stay_nonblocking() {
    let stage = Stage::new(&[("s", "exit 0")]);
    let (stdin, _lent) = std::io::pipe().unwrap();
    let (_lent_too, stdout) = std::io::pipe().unwrap();
    let mut command = stage.command_of("sd-app", &["sd-proxy", "s"]);
    command.stdin(stdin.try_clone().unwrap()).stdout(stdout.try_clone().unwrap());
    assert!(bounded(command.status()).await.unwrap().success());
    for lent in [stdin.as_fd(), stdout.as_fd()] {
        assert!(is_nonblocking(lent));
    }
}

fn is_nonblocking(descriptor: BorrowedFd<'_>) -> bool {
    let flags = nix::fcntl::fcntl(descriptor, nix::fcntl::F_GETFL).unwrap();
    nix::fcntl::OFlag::from_bits_retain(flags).contains(nix::fcntl::OFlag::O_NONBLOCK)
}

/// A killed caller has no chance to put them right.
#[tokio::test]
async fn descriptors_stay_nonblocking_when_the_caller_is_killed() {
    let stage = Stage::new(&[("s", "echo ready; read line")]);
    let (stdin, _lent) = std::io::pipe().unwrap();
    let (heard, stdout) = std::io::pipe().unwrap();
    for lent in [stdin.as_fd(), stdout.as_fd()] {
        assert!(!is_nonblocking(lent));
    }
    let mut command = stage.command_of("sd-app", &["sd-proxy", "s"]);
    command.stdin(stdin.try_clone().unwrap()).stdout(stdout.try_clone().unwrap());
    let mut caller = command.spawn().unwrap();
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(heard), &mut line).unwrap();
        line
    });
    assert_eq!(bounded(line).await.unwrap(), "ready\n");
    bounded(caller.kill()).await.unwrap();
    for lent in [stdin.as_fd(), stdout.as_fd()] {
        assert!(is_nonblocking(lent));
    }
}

#[tokio::test]
async fn stderr_goes_to_the_caller_and_to_the_targets_log() {
    let stage = Stage::new(&[("s", "echo complaint >&2; echo answer")]);
    let output = stage.output("s").await;
    assert_eq!(output.stderr, b"complaint\n");
    assert_eq!(output.stdout, b"answer\n");
    assert_eq!(stage.broker().service_log("sd-proxy"), b"complaint\n");
    assert!(stage.broker().service_log("sd-app").is_empty());
}

#[tokio::test]
async fn a_mebibyte_goes_through_unchanged_both_ways_in_odd_pieces() {
    const LENGTH: usize = 1_048_576 + 13;
    let stage = Stage::new(&[("s", "exec /bin/cat")]);
    let Caller { mut process, stdin, mut stdout } = stage.call("s");
    let data: Vec<u8> = (0..LENGTH).map(|index| u8::try_from(index * index % 251).unwrap()).collect();
    let mut stdin = stdin.unwrap();
    let writing = async {
        let mut rest = data.as_slice();
        for size in [1, 7, 4_093, 65_528, 65_537, 2].into_iter().cycle() {
            let (piece, later) = rest.split_at(size.min(rest.len()));
            stdin.write_all(piece).await.unwrap();
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        drop(stdin);
    };
    let reading = async {
        let mut received = Vec::new();
        let mut buffer = [0; 3_001];
        loop {
            match stdout.read(&mut buffer).await.unwrap() {
                0 => return received,
                count => received.extend_from_slice(buffer.get(..count).unwrap()),
            }
        }
    };
    let ((), received) = bounded(async { tokio::join!(writing, reading) }).await;
    assert!(received == data, "{} bytes of {LENGTH} came back, or others", received.len());
    assert_eq!(bounded(process.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn ten_calls_at_once_keep_apart() {
    let stage = Stage::new(&[("s", "cat; exit \"$1\"")]);
    let mut callers: Vec<Caller> = (0..10).map(|number| stage.call(&format!("s+{number}"))).collect();
    // All of them have answered before any of them ends.
    for (number, caller) in callers.iter_mut().enumerate() {
        caller.write(&format!("call {number}\n")).await;
    }
    for (number, caller) in callers.iter_mut().enumerate() {
        assert_eq!(caller.line().await, format!("call {number}\n"));
    }
    assert_eq!(stage.broker().counts().open, 10);
    let mut ends = JoinSet::new();
    for (number, mut caller) in callers.into_iter().enumerate() {
        ends.spawn(async move {
            caller.stdin = None;
            (caller.code().await, number)
        });
    }
    for (code, number) in bounded(ends.join_all()).await {
        assert_eq!(code, Some(i32::try_from(number).unwrap()));
    }
    let counts = stage.broker().counts();
    assert_eq!((counts.started, counts.open, counts.max_open), (10, 0, 10));
}

#[tokio::test]
async fn a_child_that_holds_stdout_keeps_the_call_open_and_is_heard() {
    let stage = Stage::new(&[("s", "( exec 2>&-; read line < FOLDER/fifo; echo late ) & exit 5")]);
    let mut gate = Gate::new(&stage.path("fifo"));
    let mut caller = stage.call("s");
    bounded(stage.broker().until(|counts| counts.started == 1)).await;
    gate.open();
    assert_eq!((caller.rest().await, caller.code().await), ("late\n".to_owned(), Some(5)));
}

#[tokio::test]
async fn what_a_child_that_holds_stdout_does_ends_with_its_caller() {
    let stage =
        Stage::new(&[("s", "( exec 2>&-; exec 9> FOLDER/life; echo x >&9; read line < FOLDER/never ) & exit 5")]);
    let _shut = Gate::new(&stage.path("never"));
    let mut life = LifeLine::new(&stage.path("life"));
    let mut caller = stage.call("s");
    life.taken().await;
    assert_eq!(stage.broker().counts().open, 1);
    bounded(caller.process.kill()).await.unwrap();
    life.cut().await;
    bounded(stage.broker().until(|counts| counts.open == 0)).await;
}
