//! What the policy does to a call, and the exit codes.

use staging::qrexec::broker::{Counts, EventKind, RefusedBy};
use staging::qrexec::policy::{PolicyError, Refusal};
use staging::qrexec::{Ending, SOCKET_VARIABLE};

use crate::support::{ALLOW_ALL, SHIPPED_POLICY, Stage, bounded, vm};
use std::process::Stdio;

#[tokio::test]
async fn exit_codes_tell_how_the_call_ended() {
    let policy = "closed * * * deny\nasks * * * ask\n* * @anyvm @anyvm allow\n";
    let services = [
        ("ok", "exit 0"),
        ("own", "exit 42"),
        ("like-a-refusal", "exit 126"),
        ("killed", "kill -9 $$"),
        ("terminated", "kill -15 $$"),
        ("closed", "exit 0"),
        ("asks", "exit 0"),
    ];
    let stage = Stage::with(&services, policy, |options| {
        let services = &mut options.installed.get_mut(&vm("sd-proxy")).unwrap().services;
        let plain = options.folder.join("plain");
        std::fs::write(&plain, "#!/bin/sh\n").unwrap();
        services.insert("not-executable".to_owned(), plain);
        services.insert("dangling".to_owned(), options.folder.join("nowhere"));
    });
    for (service, code, ending) in [
        ("ok", 0, Some(Ending::Exited(0))),
        ("own", 42, Some(Ending::Exited(42))),
        ("like-a-refusal", 126, Some(Ending::Exited(126))),
        ("killed", 128 + 9, Some(Ending::Killed(9))),
        ("terminated", 128 + 15, Some(Ending::Killed(15))),
        ("no-such", 127, Some(Ending::Missing)),
        ("dangling", 127, Some(Ending::Missing)),
        ("not-executable", 125, Some(Ending::Failed)),
        ("closed", 126, None),
        ("asks", 126, None),
    ] {
        let output = stage.output(service).await;
        assert_eq!(output.status.code(), Some(code), "{service}");
        assert!(output.stdout.is_empty(), "{service}");
        let said = if ending.is_none() { "Request refused\n" } else { "" };
        assert_eq!(String::from_utf8(output.stderr).unwrap(), said, "{service}");
        match (stage.last_event(), ending) {
            (EventKind::Ended(ended), Some(ending)) => assert_eq!(ended, ending, "{service}"),
            (EventKind::Refused(RefusedBy::Policy(Refusal::Denied(_)) | RefusedBy::NobodyToAsk), None) => {}
            (other, _) => panic!("{service}: {other:?}"),
        }
    }
    assert_eq!(
        stage.broker().counts(),
        Counts { started: 5, refused: 2, failed: 3, abandoned: 0, open: 0, max_open: 1, max_asked: 1 }
    );
}

#[tokio::test]
async fn the_shipped_policy_lets_sd_app_through_and_nobody_else() {
    let stage = Stage::with(&[("splitdrop.Proxy", "echo \"$1\"")], SHIPPED_POLICY, |_| {});
    for (source, target, service, code) in [
        ("sd-app", "sd-proxy", "splitdrop.Proxy+session", 0),
        ("sd-app", "sd-proxy", "splitdrop.Proxy+metadata", 0),
        ("sd-app", "sd-proxy", "splitdrop.Proxy+mark", 0),
        ("sd-app", "sd-proxy", "splitdrop.Proxy+delete", 0),
        ("sd-app", "sd-proxy", "splitdrop.Proxy+download", 0),
        ("sd-app", "sd-proxy", "splitdrop.Proxy+reply", 0),
        ("sd-app", "sd-proxy", "splitdrop.Proxy+erase", 126),
        ("sd-app", "sd-proxy", "splitdrop.Proxy", 126),
        ("sd-app", "sd-proxy", "other.Service", 126),
        ("sd-app", "@default", "splitdrop.Proxy+session", 126),
        ("sd-app", "", "splitdrop.Proxy+session", 126),
        ("sd-app", "@dispvm", "splitdrop.Proxy+session", 126),
        ("sd-app", "$adminvm", "splitdrop.Proxy+session", 126),
        ("sd-gpg", "sd-proxy", "splitdrop.Proxy+session", 126),
        ("sd-proxy", "sd-proxy", "splitdrop.Proxy+session", 126),
    ] {
        let mut command = stage.command_of(source, &["--", target, service]);
        let output = bounded(command.stdin(Stdio::null()).output()).await.unwrap();
        assert_eq!(output.status.code(), Some(code), "{source} {target} {service}");
    }
    assert_eq!(
        stage.kinds().into_iter().take(2).next(),
        Some(EventKind::Requested {
            source: vm("sd-app"),
            target: "sd-proxy".to_owned(),
            service: "splitdrop.Proxy".to_owned(),
            argument: "session".to_owned(),
        })
    );
}

#[tokio::test]
async fn one_bad_line_in_any_file_refuses_every_call() {
    let stage = Stage::with(&[("ok", "exit 0")], ALLOW_ALL, |options| {
        options.policy.push(("80-other.policy".to_owned(), "s * * * allow # a comment\n".to_owned()));
    });
    assert_eq!(stage.output("ok").await.status.code(), Some(126));
    assert!(matches!(stage.last_event(), EventKind::Refused(RefusedBy::BrokenPolicy(PolicyError::Syntax { .. }))));
    assert!(stage.broker().policy_error().unwrap().to_string().starts_with("80-other.policy:1: "));
}

#[tokio::test]
async fn bad_command_lines_and_a_missing_broker_have_codes_of_their_own() {
    let stage = Stage::new(&[]);
    for arguments in [&[][..], &["sd-proxy"], &["--", "sd-proxy"], &["sd-proxy", "s", "program"], &["--help", "s"]] {
        let output = bounded(stage.command_of("sd-app", arguments).output()).await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let mut nowhere = stage.command_of("sd-app", &["sd-proxy", "s"]);
    nowhere.env(SOCKET_VARIABLE, stage.path("no-socket"));
    assert_eq!(bounded(nowhere.output()).await.unwrap().status.code(), Some(1));
    nowhere.env_remove(SOCKET_VARIABLE);
    assert_eq!(bounded(nowhere.output()).await.unwrap().status.code(), Some(1));
    assert_eq!(stage.broker().counts(), Counts::default());
}
