//! Questions to dom0's user, and what it is told.

use std::collections::BTreeSet;

use staging::qrexec::broker::{CallId, Dom0User, EventKind, Question, RefusedBy, Reply, ReplyError};
use staging::qrexec::policy::ServiceTarget;
use staging::qrexec::system::System;

use crate::support::{Stage, bounded, vm};

const ASK: &str = "* * sd-app sd-proxy ask\n";

fn stage(policy: &str) -> Stage {
    Stage::with(&[("s", "echo served; exit 3")], policy, |options| {
        options.conditions.dom0_user = Dom0User::Present;
    })
}

fn qube(name: &str) -> ServiceTarget {
    ServiceTarget::Qube(vm(name))
}

impl Stage {
    /// Answers the one question that comes.
    async fn answer(&self, reply: Reply) -> Question {
        let question = bounded(self.broker().questions().next()).await;
        self.broker().questions().answer(question.call, reply).unwrap();
        question
    }
}

#[tokio::test]
async fn a_yes_lets_the_call_through_and_the_question_is_on_record() {
    let stage = stage(ASK);
    let (output, question) = tokio::join!(stage.output("s+x"), stage.answer(Reply::Yes(None)));
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b"served\n"[..]));
    let expected = Question {
        call: CallId(1),
        source: vm("sd-app"),
        service: "s".to_owned(),
        argument: "x".to_owned(),
        target: "sd-proxy".to_owned(),
        targets: BTreeSet::from([qube("sd-proxy")]),
        default_target: None,
    };
    assert_eq!(question, expected);
    let kinds = stage.kinds();
    assert!(kinds.contains(&EventKind::Asked(expected)));
    assert!(kinds.contains(&EventKind::Answered(Some(qube("sd-proxy")))));
    assert!(!kinds.iter().any(|kind| matches!(kind, EventKind::Notified { .. })));
}

#[tokio::test]
async fn a_no_is_a_refusal_like_any_other() {
    let stage = stage(ASK);
    let (output, _) = tokio::join!(stage.output("s"), stage.answer(Reply::No));
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(126), &b"Request refused\n"[..]));
    assert_eq!(stage.last_event(), EventKind::Refused(RefusedBy::User));
    assert_eq!(stage.broker().counts().started, 0);
}

#[tokio::test]
async fn a_question_waits_while_other_calls_go_on_and_is_answered_later() {
    let stage = stage("asked * * * ask\n* * @anyvm @anyvm allow\n");
    let mut waiting = stage.call("asked");
    let question = bounded(stage.broker().questions().next()).await;
    assert_eq!(stage.output("s").await.status.code(), Some(3));
    assert_eq!(stage.broker().questions().pending(), std::slice::from_ref(&question));
    // Several rules allow something, so the target that was asked for is not chosen already.
    let answer = |reply| stage.broker().questions().answer(question.call, reply);
    assert_eq!(answer(Reply::Yes(None)), Err(ReplyError::Choose));
    answer(Reply::Yes(Some(qube("sd-proxy")))).unwrap();
    // There is no such service: the call is made all the same.
    assert_eq!(waiting.code().await, Some(127));
}

#[tokio::test]
async fn a_killed_caller_withdraws_its_question() {
    let stage = stage(ASK);
    let mut caller = stage.call("s");
    let question = bounded(stage.broker().questions().next()).await;
    bounded(caller.process.kill()).await.unwrap();
    bounded(stage.broker().questions().until(|waiting| waiting == 0)).await;
    let late = stage.broker().questions().answer(question.call, Reply::Yes(None));
    assert_eq!(late, Err(ReplyError::NotAsked));
    assert_eq!(stage.broker().counts().started, 0);
}

#[tokio::test]
async fn a_question_that_is_never_answered_ends_with_the_broker() {
    let mut stage = stage(ASK);
    let mut caller = stage.call("s");
    bounded(stage.broker().questions().next()).await;
    stage.stop().await;
    assert_eq!(caller.code().await, Some(126));
}

#[tokio::test]
async fn the_user_chooses_among_what_the_policy_allows() {
    let policy = "s * sd-app @default ask default_target=sd-log\ns * sd-app sd-log allow\ns * sd-app sd-proxy allow\n";
    let mut stage = stage(policy);
    let mut call = stage.command_of("sd-app", &["@default", "s"]);
    let (output, question) = tokio::join!(call.output(), async {
        let question = bounded(stage.broker().questions().next()).await;
        let answer = |reply| stage.broker().questions().answer(question.call, reply);
        assert_eq!(answer(Reply::Yes(Some(qube("sd-gpg")))), Err(ReplyError::NotOffered));
        answer(Reply::Yes(Some(qube("sd-proxy")))).unwrap();
        question
    });
    assert_eq!(output.unwrap().status.code(), Some(3));
    assert_eq!(question.targets, BTreeSet::from([qube("sd-log"), qube("sd-proxy")]));
    assert_eq!(question.default_target, Some(qube("sd-log")));
    // What is chosen already is taken if nothing else is said; sd-log has no such service.
    let (output, _) = tokio::join!(call.output(), stage.answer(Reply::Yes(None)));
    assert_eq!(output.unwrap().status.code(), Some(127));
    stage.stop().await;
}

#[tokio::test]
async fn a_target_that_was_shut_down_meanwhile_is_not_started_against_the_rule() {
    let stage = stage("* * sd-app sd-proxy ask autostart=no notify=yes\n");
    let (output, ()) = tokio::join!(stage.output("s"), async {
        let question = bounded(stage.broker().questions().next()).await;
        stage.broker().vms().halt("sd-proxy").unwrap();
        stage.broker().questions().answer(question.call, Reply::Yes(None)).unwrap();
    });
    assert_eq!(output.status.code(), Some(126));
    assert_eq!(stage.last_event(), EventKind::Refused(RefusedBy::NotStarted));
    assert_eq!(stage.broker().vms().starts("sd-proxy"), 0);
}

#[tokio::test]
async fn dom0_shows_a_note_of_what_is_denied_and_of_what_is_allowed_if_told_to() {
    for (action, reply, code, told) in [
        ("allow", None, 3, None),
        ("allow notify=yes", None, 3, Some(true)),
        ("deny", None, 126, Some(false)),
        ("deny notify=no", None, 126, None),
        ("ask", Some(Reply::No), 126, None),
        ("ask notify=yes", Some(Reply::No), 126, Some(false)),
        ("ask notify=yes", Some(Reply::Yes(None)), 3, Some(true)),
    ] {
        let stage = stage(&format!("* * sd-app sd-proxy {action}\n"));
        let output = match reply {
            None => stage.output("s").await,
            Some(reply) => tokio::join!(stage.output("s"), stage.answer(reply)).0,
        };
        assert_eq!(output.status.code(), Some(code), "{action}");
        let notes = stage.kinds().into_iter().filter_map(|kind| match kind {
            EventKind::Notified { allowed } => Some(allowed),
            _ => None,
        });
        assert_eq!(notes.collect::<Vec<_>>(), Vec::from_iter(told), "{action}");
    }
}

#[tokio::test]
async fn a_redirect_is_followed_and_not_checked_again() {
    let policy = "s * sd-app sd-log allow target=sd-proxy\ns * sd-app sd-proxy deny\n";
    let stage = stage(policy);
    let code = |target| {
        let mut command = stage.command_of("sd-app", &[target, "s"]);
        async move { bounded(command.output()).await.unwrap().status.code() }
    };
    assert_eq!((code("sd-log").await, code("sd-proxy").await), (Some(3), Some(126)));
    let started = stage.kinds().into_iter().find_map(|kind| match kind {
        EventKind::Started { target, .. } => Some(target),
        _ => None,
    });
    assert_eq!(started, Some(qube("sd-proxy")));
}

#[tokio::test]
async fn a_vm_cannot_call_itself_by_a_redirect_or_a_yes() {
    let policy = "s * sd-proxy sd-log allow target=sd-proxy\ns * sd-proxy @anyvm ask\n";
    let stage = Stage::with(&[("s", "exit 3")], policy, |options| {
        options.conditions.dom0_user = Dom0User::Present;
        options.system = System::workstation();
    });
    for target in ["sd-log", "sd-proxy"] {
        let mut call = stage.command_of("sd-proxy", &[target, "s"]);
        if target == "sd-log" {
            assert_eq!(bounded(call.output()).await.unwrap().status.code(), Some(126));
            continue;
        }
        let (output, ()) = tokio::join!(call.output(), async {
            let question = bounded(stage.broker().questions().next()).await;
            assert!(!question.targets.contains(&qube("sd-proxy")));
            stage.broker().questions().answer(question.call, Reply::No).unwrap();
        });
        assert_eq!(output.unwrap().status.code(), Some(126));
    }
}
