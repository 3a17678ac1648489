//! Signing in and out with the real programs.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use staging::environment::{Environment, EnvironmentOptions};
use staging::generator::{MARLOW, TERNBERG};
use staging::qrexec::broker::EventKind;
use staging::server::{Command, Fault, FaultAct, Matching};

const TOKEN: &str = "/api/v1/token";

async fn environment() -> Environment {
    Environment::with_daemon(EnvironmentOptions::with_sources(3, 2).unwrap()).await.unwrap()
}

async fn try_login(environment: &Environment, credentials: &str) -> (Option<i32>, String) {
    let output = environment.run(["login", "--credentials-stdin", "--json"], credentials).await.unwrap();
    let object: Value = serde_json::from_str(&output.stdout).unwrap();
    (output.code, object["error"]["message"].as_str().unwrap_or_default().to_owned())
}

fn logins(environment: &Environment) -> u64 {
    environment.server().control().count("POST", TOKEN)
}

/// Case N2.
#[tokio::test(flavor = "multi_thread")]
async fn n2_a_login_is_never_repeated_whatever_becomes_of_it() {
    let environment = environment().await;
    let control = environment.server().control();
    let acts = [
        FaultAct::Drop,
        FaultAct::LoseAnswer,
        FaultAct::DropAfter { bytes: 10 },
        FaultAct::not_json(),
        FaultAct::json(500, &json!({})),
        FaultAct::json(403, &json!({ "error": "Forbidden", "message": "Token authentication failed." })),
        FaultAct::json(429, &json!({})),
        FaultAct::Redirect { status: 307, location: TOKEN.to_owned() },
    ];
    for (before, act) in (0..).zip(acts) {
        control.add_fault(Fault::new(Matching::path(TOKEN), act.clone())).unwrap();
        control.apply(Command::AdvanceClock { seconds: 90 }).unwrap();
        let (code, message) = try_login(&environment, &environment.credentials(&MARLOW)).await;
        assert_ne!(code, Some(0), "{act:?}");
        assert!(message.contains("code"), "{act:?}: {message}");
        assert_eq!(logins(&environment), before + 1, "{act:?}");
        control.apply(Command::ClearFaults).unwrap();
    }
    control.apply(Command::AdvanceClock { seconds: 90 }).unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.stop().await.unwrap();
}

/// Case N2: nobody knows whether the server has taken the code.
#[tokio::test(flavor = "multi_thread")]
async fn n2_a_login_whose_proxy_dies_is_not_repeated() {
    let environment = environment().await;
    let control = environment.server().control();
    control.add_fault(Fault::new(Matching::path(TOKEN), FaultAct::Hang)).unwrap();
    let credentials = environment.credentials(&MARLOW);
    let murder = async {
        control.wait_for_log(|log| log.count("POST", TOKEN) == 1).await;
        let started = |event: &staging::qrexec::broker::Event| match &event.kind {
            EventKind::Started { pid, .. } => pid.and_then(|pid| i32::try_from(pid).ok()),
            _other => None,
        };
        let pid = environment.broker().events().iter().find_map(started).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    };
    let ((code, message), ()) = tokio::join!(try_login(&environment, &credentials), murder);
    assert_ne!(code, Some(0));
    assert!(message.contains("wait for the next code"), "{message}");
    assert_eq!((logins(&environment), environment.broker().counts().started), (1, 1));
    environment.stop().await.unwrap();
}

/// Case N2.
#[tokio::test(flavor = "multi_thread")]
async fn n2_a_login_that_never_reached_the_server_burns_no_code() {
    let environment = environment().await;
    let credentials = environment.credentials(&MARLOW);
    environment.socks().close_port().unwrap();
    let (code, message) = try_login(&environment, &credentials).await;
    assert_eq!(code, Some(8), "{message}");
    assert!(message.ends_with("the code was not used"), "{message}");
    assert_eq!(logins(&environment), 0);
    environment.socks().open_port().unwrap();
    let (code, message) = try_login(&environment, &credentials).await;
    assert_eq!((code, message.as_str()), (Some(0), ""));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_refused_and_the_code_is_used_up() {
    let environment = environment().await;
    let right = environment.credentials(&MARLOW);
    let wrong = right.replace(MARLOW.passphrase, "an entirely different passphrase");
    let (code, message) = try_login(&environment, &wrong).await;
    assert_eq!(code, Some(5), "{message}");
    // The server burnt the code with the wrong passphrase.
    assert_eq!(try_login(&environment, &right).await.0, Some(5));
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["session"], json!({ "state": "signed_out" }));
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_three_good_lines_nothing_is_asked_of_the_server() {
    let environment = environment().await;
    for input in
        ["", "marlow\n", "marlow\npassphrase\n", "marlow\npassphrase\n12345\n", "a\nb\n123456\nmore\n", "\n\n\n"]
    {
        let output = environment.run(["login", "--credentials-stdin"], input).await.unwrap();
        assert_eq!(output.code, Some(2), "{input:?}: {output:?}");
        assert!(!output.stderr.contains("passphrase\n"));
    }
    // No terminal to ask on.
    assert_eq!(environment.run(["login"], "").await.unwrap().code, Some(2));
    assert_eq!(logins(&environment), 0);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_journalists_take_turns_and_unread_follows_them() {
    let environment = environment().await;
    environment.login(&MARLOW).await.unwrap();
    let (code, message) = try_login(&environment, &environment.credentials(&TERNBERG)).await;
    assert_eq!(code, Some(5));
    assert!(message.contains("marlow"), "{message}");
    environment.json(&["refresh"], "").await.unwrap();
    let listed = environment.json(&["sources"], "").await.unwrap();
    let source = listed["sources"][0]["uuid"].as_str().unwrap().to_owned();
    let shown = environment.json(&["show", &source], "").await.unwrap();
    let control = environment.server().control();
    for item in shown["items"].as_array().unwrap() {
        let id = item["uuid"].as_str().unwrap();
        let item = control.with_world(|world| {
            world.submission(id).map(|item| item.id.clone()).or_else(|| world.reply(id).map(|item| item.id.clone()))
        });
        control.apply(Command::MarkSeen { item: item.unwrap(), journalist: "ternberg".to_owned() }).unwrap();
    }
    environment.json(&["logout"], "").await.unwrap();
    environment.login(&TERNBERG).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let shown = environment.json(&["show", &source], "").await.unwrap();
    assert_eq!(shown["source"]["counts"]["unread"], 0);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_logout_ends_the_session_here_and_there() {
    let environment = environment().await;
    environment.login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    environment.json(&["logout"], "").await.unwrap();
    let ended = watch.until("session_ended").await.unwrap();
    assert_eq!(ended["reason"], "logout");
    environment.server().control().wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1).await;
    // Every call to the proxy is closed.
    environment.broker().until(|counts| counts.open == 0).await;
    for command in ["logout", "refresh"] {
        assert_eq!(environment.run([command], "").await.unwrap().code, Some(4), "{command}");
    }
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_logout_ends_the_session_here_though_the_server_cannot_be_told() {
    let environment = environment().await;
    environment.login(&MARLOW).await.unwrap();
    let control = environment.server().control();
    control.add_fault(Fault::new(Matching::path("/api/v1/logout"), FaultAct::Hang)).unwrap();
    environment.json(&["logout"], "").await.unwrap();
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["session"], json!({ "state": "signed_out" }));
    // The next login does not wait for the hanging logout.
    control.apply(Command::AdvanceClock { seconds: 90 }).unwrap();
    environment.login(&MARLOW).await.unwrap();
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_server_ends_is_told_once_and_can_be_renewed() {
    let environment = environment().await;
    environment.first_login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let control = environment.server().control();
    control.apply(Command::EndSessions { journalist: None }).unwrap();
    let output = environment.run(["refresh"], "").await.unwrap();
    assert_eq!(output.code, Some(4), "{output:?}");
    assert_eq!(watch.until("session_ended").await.unwrap()["reason"], "expired");
    assert_eq!(environment.run(["refresh"], "").await.unwrap().code, Some(4));
    control.apply(Command::AdvanceClock { seconds: 90 }).unwrap();
    environment.login(&MARLOW).await.unwrap();
    // Nothing but the new session's start came in between, unless the proxy took its time to start.
    let mut event = watch.next().await.unwrap();
    while event["event"] == "proxy_waiting" {
        event = watch.next().await.unwrap();
    }
    assert_eq!(event["event"], "session_started");
    environment.stop().await.unwrap();
}

/// What was planted: the passphrase, tokens, names, designations, file names and the server's address.
#[tokio::test(flavor = "multi_thread")]
async fn no_log_holds_a_secret_a_name_or_the_servers_address() {
    let mut options = EnvironmentOptions::with_sources(4, 4).unwrap();
    options.proxy_settings.insert("SD_PROXY_LOG".to_owned(), "debug".to_owned());
    let environment = Environment::with_daemon(options).await.unwrap();
    let credentials = environment.credentials(&MARLOW);
    try_login(&environment, &credentials.replace(MARLOW.passphrase, "an entirely different passphrase")).await;
    environment.server().control().apply(Command::AdvanceClock { seconds: 90 }).unwrap();
    let code = environment.credentials(&MARLOW).lines().last().unwrap().to_owned();
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let failing = Fault::new(Matching::path("/api/v1/replies"), FaultAct::Drop);
    environment.server().control().add_fault(failing).unwrap();
    assert_ne!(environment.run(["refresh"], "").await.unwrap().code, Some(0));
    environment.json(&["logout"], "").await.unwrap();
    environment.server().control().wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1).await;
    environment.broker().until(|counts| counts.open == 0).await;

    let mut planted = vec![
        MARLOW.passphrase.to_owned(),
        "an entirely different passphrase".to_owned(),
        MARLOW.username.to_owned(),
        code,
        environment.server().address().to_string(),
        // Times and ids have five digits in a row too.
        format!(":{}", environment.server().address().port()),
    ];
    environment.server().control().with_world(|world| {
        planted.extend(world.sources().map(|source| source.designation.as_str().to_owned()));
        planted.extend(world.submissions().map(|item| item.filename.clone()));
    });
    let mut logs = String::from_utf8_lossy(&environment.broker().service_log("sd-proxy")).into_owned();
    for name in ["daemon.log", "proxy.log"] {
        let log = std::fs::read_to_string(environment.directory().join(name)).unwrap();
        // The search would find something: both programs have written of this work.
        assert!(log.contains("sync") || log.contains("get_"), "{name}: {log}");
        logs.push_str(&log);
    }
    for secret in planted {
        assert!(!logs.contains(&secret), "{secret:?} is in a log");
    }
    environment.stop().await.unwrap();
}
