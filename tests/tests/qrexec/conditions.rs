//! What is not the same on every day: VMs that start, costs, races, limits, agents that die.

use std::time::Duration;

use staging::qrexec::broker::{Costs, EventKind, RefusedBy, Start, StartOutcome};
use staging::qrexec::system::{Power, System};
use staging::qrexec::{Ending, SOCKET_VARIABLE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;

use crate::support::{ALLOW_ALL, Caller, Stage, bounded, vm};

fn halted(services: &[(&str, &str)], policy: &str, start: Start) -> Stage {
    Stage::with(services, policy, |options| {
        options.system = System::workstation().with_halted("sd-proxy");
        options.conditions.start = start;
    })
}

#[tokio::test]
async fn the_first_call_starts_a_halted_vm_and_others_wait_with_it() {
    let stage = halted(&[("s", "echo served; exit 3")], ALLOW_ALL, Start::Gated);
    let vms = stage.broker().vms();
    let mut first = stage.call("s");
    bounded(vms.until_starting("sd-proxy")).await;
    let mut second = stage.call("s");
    stage.until(&EventKind::WaitsForStart, 2).await;
    assert_eq!((stage.broker().counts().started, vms.power("sd-proxy")), (0, Some(Power::Halted)));
    vms.finish_start("sd-proxy", StartOutcome::Running).unwrap();
    assert_eq!((first.rest().await, first.code().await), ("served\n".to_owned(), Some(3)));
    assert_eq!(second.code().await, Some(3));
    assert_eq!(stage.output("s").await.status.code(), Some(3));
    assert_eq!((vms.starts("sd-proxy"), vms.power("sd-proxy")), (1, Some(Power::Running)));
}

#[tokio::test]
async fn a_start_that_fails_looks_like_a_refusal_and_the_next_call_tries_again() {
    let stage = halted(&[("s", "exit 3")], ALLOW_ALL, Start::Gated);
    let vms = stage.broker().vms();
    let finish = async |outcome| {
        bounded(vms.until_starting("sd-proxy")).await;
        vms.finish_start("sd-proxy", outcome).unwrap();
    };
    let (output, ()) = tokio::join!(stage.output("s"), finish(StartOutcome::Failed));
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(126), &b"Request refused\n"[..]));
    assert_eq!(stage.last_event(), EventKind::Refused(RefusedBy::NotStarted));
    let (output, ()) = tokio::join!(stage.output("s"), finish(StartOutcome::Running));
    assert_eq!(output.status.code(), Some(3));
}

#[tokio::test]
async fn a_vm_is_started_for_a_caller_that_is_gone() {
    let stage = halted(&[("s", "cat")], ALLOW_ALL, Start::Gated);
    let vms = stage.broker().vms();
    let mut caller = stage.call("s");
    bounded(vms.until_starting("sd-proxy")).await;
    bounded(caller.process.kill()).await.unwrap();
    vms.finish_start("sd-proxy", StartOutcome::Running).unwrap();
    bounded(stage.broker().until(|counts| counts.abandoned == 1 && counts.open == 0)).await;
    assert_eq!(stage.last_event(), EventKind::Ended(Ending::Exited(0)));
}

#[tokio::test]
async fn a_rule_may_say_that_a_halted_vm_is_not_started() {
    let stage = halted(&[("s", "exit 3")], "* * * @anyvm allow autostart=no\n", Start::Gated);
    assert_eq!(stage.output("s").await.status.code(), Some(126));
    assert_eq!(stage.broker().vms().starts("sd-proxy"), 0);
}

#[tokio::test]
async fn a_vm_that_is_shut_down_ends_its_calls_and_is_started_by_the_next() {
    let stage = halted(&[("s", "echo ready; read line; exit 3")], ALLOW_ALL, Start::After(Duration::ZERO));
    let mut caller = stage.call("s");
    assert_eq!(caller.line().await, "ready\n");
    stage.broker().vms().halt("sd-proxy").unwrap();
    assert_eq!(caller.code().await, Some(255));
    let mut caller = stage.call("s");
    assert_eq!(caller.line().await, "ready\n");
    caller.write("\n").await;
    assert_eq!((caller.code().await, stage.broker().vms().starts("sd-proxy")), (Some(3), 2));
}

/// A call of sd-app without a process, for the paused clock: it would run on while a process works.
async fn bare_call(stage: &Stage, target: &str) -> (Vec<u8>, Duration) {
    let begun = Instant::now();
    let mut caller = UnixStream::connect(stage.broker().socket("sd-app").unwrap()).await.unwrap();
    caller.write_all(format!("{target}\0none\0").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    caller.read_to_end(&mut answer).await.unwrap();
    (answer, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn calls_refusals_and_starts_cost_what_they_are_said_to() {
    let ms = Duration::from_millis;
    let policy = "* * * sd-proxy allow\n";
    let stage = halted(&[], policy, Start::After(Duration::from_secs(40)));
    stage.broker().set_costs(Costs { call: ms(14), refused: ms(6), bytes_per_second: None });
    // A service that is missing is a call that was made: 2 is `ENDED`.
    assert_eq!(bare_call(&stage, "sd-proxy").await, (vec![2, 127], ms(40_014)));
    assert_eq!(bare_call(&stage, "sd-proxy").await, (vec![2, 127], ms(14)));
    assert_eq!(bare_call(&stage, "sd-gpg").await, (vec![], ms(6)));
    stage.broker().set_costs(Costs::default());
    assert_eq!(bare_call(&stage, "sd-proxy").await, (vec![2, 127], ms(0)));
}

#[tokio::test]
async fn a_bounded_call_moves_everything_in_small_pieces() {
    let stage = Stage::with(&[("s", "exec /bin/cat")], ALLOW_ALL, |options| {
        // Pieces of 2,000 bytes.
        options.conditions.costs.bytes_per_second = Some(100_000);
    });
    let mut caller = stage.call("s");
    let text = "0123456789abcde\n".repeat(400);
    caller.write(&text).await;
    caller.stdin = None;
    assert_eq!(caller.rest().await, text);
    assert_eq!(caller.code().await, Some(0));
}

/// Nobody can say how slow a busy machine is, but no call may be faster than its bound.
#[tokio::test]
async fn a_bounded_call_is_as_slow_each_way_as_it_is_said_to_be() {
    // 100,000 bytes a second: a third of a second each way.
    let text = "0123456789abcde\n".repeat(2_000);
    let at_least = Duration::from_millis(300);
    let stage =
        Stage::with(&[("up", "exec cat > /dev/null"), ("down", "exec cat FOLDER/text")], ALLOW_ALL, |options| {
            options.conditions.costs.bytes_per_second = Some(100_000);
        });
    std::fs::write(stage.path("text"), &text).unwrap();

    let begun = Instant::now();
    let mut caller = stage.call("up");
    caller.write(&text).await;
    caller.stdin = None;
    assert_eq!(caller.code().await, Some(0));
    assert!(begun.elapsed() >= at_least, "up in {:?}", begun.elapsed());

    let begun = Instant::now();
    let mut caller = stage.call("down");
    caller.stdin = None;
    assert_eq!(caller.rest().await, text);
    assert!(begun.elapsed() >= at_least, "down in {:?}", begun.elapsed());
    assert_eq!(caller.code().await, Some(0));
}

#[tokio::test]
async fn a_call_may_get_no_answer_and_the_next_one_does() {
    let stage = Stage::new(&[("s", "exit 3")]);
    stage.broker().hang_next_call();
    let mut hung = stage.call("s");
    stage.until(&EventKind::Hung, 1).await;
    assert_eq!(stage.output("s").await.status.code(), Some(3));
    assert_eq!(hung.process.try_wait().unwrap(), None);
    bounded(hung.process.kill()).await.unwrap();
    stage.until(&EventKind::Withdrawn, 1).await;
    assert_eq!(stage.broker().counts().started, 1);
}

#[tokio::test]
async fn there_may_be_a_most_of_calls_and_more_fail() {
    let stage = Stage::with(&[("s", "echo ready; read line; exit 3")], ALLOW_ALL, |options| {
        options.conditions.most_calls = Some(2);
    });
    let mut callers = [stage.call("s"), stage.call("s")];
    for caller in &mut callers {
        assert_eq!(caller.line().await, "ready\n");
    }
    assert_eq!(stage.output("s").await.status.code(), Some(125));
    assert!(stage.kinds().contains(&EventKind::TooMany));
    // Those of another VM count at their target, too.
    let mut other = stage.command_of("sd-log", &["sd-proxy", "s"]);
    assert_eq!(bounded(other.output()).await.unwrap().status.code(), Some(125));
    for caller in &mut callers {
        caller.write("\n").await;
        assert_eq!(caller.code().await, Some(3));
    }
    let mut again = stage.call("s");
    assert_eq!(again.line().await, "ready\n");
}

#[tokio::test]
async fn a_name_that_is_too_long_kills_the_agent_of_the_calling_vm() {
    let stage = Stage::new(&[("s", "echo ready; read line; exit 3")]);
    let mut caller = stage.call("s");
    let mut other = stage.command_of("sd-log", &["sd-proxy", "s"]);
    let mut other = Caller::new(other.spawn().unwrap());
    assert_eq!((caller.line().await, other.line().await), ("ready\n".to_owned(), "ready\n".to_owned()));

    let longest = format!("s+{}", "x".repeat(3_898));
    let mut fits = stage.call(&longest);
    assert_eq!(fits.line().await, "ready\n");
    let too_long = stage.output(&format!("{longest}x")).await;
    // Its agent closes the socket on it, which is what a refusal looks like.
    assert_eq!(too_long.status.code(), Some(126));
    assert_eq!((caller.code().await, fits.code().await), (Some(255), Some(255)));
    assert!(stage.kinds().contains(&EventKind::AgentKilled { vm: vm("sd-app") }));
    // Other VMs have agents of their own, and there is a new one.
    other.write("\n").await;
    assert_eq!(other.code().await, Some(3));
    let mut caller = stage.call("s");
    assert_eq!(caller.line().await, "ready\n");
}

#[tokio::test]
async fn the_callers_name_is_that_of_the_socket() {
    let stage = Stage::new(&[("s", "printf %s \"$QREXEC_REMOTE_DOMAIN\"")]);
    let mut command = stage.command_of("sd-app", &["sd-proxy", "s"]);
    command.env("QREXEC_REMOTE_DOMAIN", "sd-gpg").env(SOCKET_VARIABLE, stage.broker().socket("sd-log").unwrap());
    assert_eq!(bounded(command.output()).await.unwrap().stdout, b"sd-log");
}
