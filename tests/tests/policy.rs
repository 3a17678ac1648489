//! What dom0 has to say, with the real programs: a policy that refuses a call, and one that cannot be read. And that the
//! shipped policy rules each scope by itself.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use protocol::Scope;
use serde_json::{Value, json};
use staging::environment::{Environment, EnvironmentOptions};
use staging::generator::MARLOW;
use staging::qrexec::broker::{Dom0User, EventKind, RefusedBy, Reply};
use staging::qrexec::policy::{Call, Decision, Policy, PolicyError, Refusal};
use staging::qrexec::system::{QubeName, System};
use staging::server::{Command, KeyChoice, Outcome, SourceState};

const SHIPPED: &str = include_str!("../../qubes-rpc/dom0/31-splitdrop.policy");
/// The exit code for a call that dom0 refused.
const POLICY_REFUSED: i32 = 7;

/// An environment with these rules before the shipped ones, which stand in a file whose name begins with 31.
async fn ruled_by(text: &str) -> Environment {
    let mut options = EnvironmentOptions::with_sources(2, 2).unwrap();
    options.policy.push(("30-newsroom.policy".to_owned(), text.to_owned()));
    Environment::with_daemon(options).await.unwrap()
}

/// What dom0 decided last.
fn last_decision(environment: &Environment) -> EventKind {
    environment.broker().events().pop().unwrap().kind
}

/// Tries to sign in, which must be refused before anything has left the client's VM.
async fn refused_login(environment: &Environment) {
    let credentials = environment.credentials(&MARLOW);
    for arguments in [&["login", "--credentials-stdin"][..], &["login", "--credentials-stdin", "--json"]] {
        let output = environment.run(arguments, &credentials).await.unwrap();
        assert_eq!(output.code, Some(POLICY_REFUSED), "{output:?}");
        assert!(output.stderr.contains("sd-proxy") && output.stderr.contains("the code was not used"), "{output:?}");
        if arguments.contains(&"--json") {
            let told: Value = serde_json::from_str(&output.stdout).unwrap();
            assert_eq!((&told["format"], &told["error"]["kind"]), (&1.into(), &"policy_refused".into()));
        }
    }
    assert_eq!(environment.server().control().with_log(|log| (log.total(), log.connections())), (0, 0));
    assert_eq!((environment.broker().counts().started, environment.broker().counts().refused), (0, 2));
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["session"]["state"], "signed_out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_the_policy_denies_burns_no_code_and_ends_with_7() {
    let environment = ruled_by("splitdrop.Proxy +session sd-app sd-proxy deny\n").await;
    refused_login(&environment).await;
    let decided = last_decision(&environment);
    assert!(matches!(decided, EventKind::Refused(RefusedBy::Policy(Refusal::Denied(_)))), "{decided:?}");
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_dom0s_user_would_have_to_allow_and_does_not_ends_with_7() {
    let environment = ruled_by("splitdrop.Proxy +session sd-app sd-proxy ask\n").await;
    refused_login(&environment).await;
    assert_eq!(last_decision(&environment), EventKind::Refused(RefusedBy::NobodyToAsk));
    environment.stop().await.unwrap();
}

/// One syntax error in any file, and dom0 refuses every call of the whole system.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_under_a_policy_with_a_syntax_error_ends_with_7() {
    let environment = ruled_by("# No action.\nsplitdrop.Elsewhere * @anyvm @anyvm\n").await;
    assert!(matches!(environment.broker().policy_error(), Some(PolicyError::Syntax { .. })));
    refused_login(&environment).await;
    let decided = last_decision(&environment);
    assert!(matches!(decided, EventKind::Refused(RefusedBy::BrokenPolicy(_))), "{decided:?}");
    environment.stop().await.unwrap();
}

/// Who may sign in and not read the lists is told so by the refresh, and stays signed in.
#[tokio::test(flavor = "multi_thread")]
async fn a_sync_that_the_policy_denies_ends_with_7_and_the_session_stays() {
    let environment = ruled_by("splitdrop.Proxy +metadata sd-app sd-proxy deny\n").await;
    environment.login(&MARLOW).await.unwrap();
    let output = environment.run(["refresh"], "").await.unwrap();
    assert_eq!(output.code, Some(POLICY_REFUSED), "{output:?}");
    let lists = environment.server().control().requests();
    assert!(lists.iter().all(|request| request.path == "/api/v1/token"), "{lists:?}");
    let status = environment.json(&["status"], "").await.unwrap();
    assert_eq!(status["session"]["state"], "signed_in");
    environment.stop().await.unwrap();
}

/// A newsroom that wants to be asked about one kind of act is asked about that one alone.
#[test]
fn each_scope_of_the_protocol_has_a_rule_of_its_own() {
    let decide = |policy: &Policy, scope: Scope| {
        let call = Call {
            service: "splitdrop.Proxy".to_owned(),
            argument: scope.to_string(),
            source: QubeName::try_new("sd-app").unwrap(),
            target: "sd-proxy".to_owned(),
        };
        policy.evaluate(&call, &System::workstation())
    };
    for asked in Scope::ALL {
        let allows = format!("+{asked} ");
        let rules: Vec<_> = SHIPPED.lines().filter(|line| !line.starts_with('#') && line.contains(&allows)).collect();
        assert_eq!(rules.len(), 1, "{asked}");
        let asking = SHIPPED.replace(rules[0], &rules[0].replace("allow", "ask"));
        let policy = Policy::parse(&[("31-splitdrop.policy", asking)]).unwrap();
        for scope in Scope::ALL {
            match decide(&policy, scope) {
                Decision::Ask { .. } if scope == asked => {}
                Decision::Allow { .. } if scope != asked => {}
                other => panic!("{asked} asked, {scope}: {other:?}"),
            }
        }
    }
}

/// An environment where dom0 asks somebody about calls of the scope, as the client knows.
async fn asked_about(scope: Scope) -> Environment {
    asked_about_with(scope, SOON).await
}

/// The same, with these settings.
async fn asked_about_with(scope: Scope, settings: &str) -> Environment {
    let mut options = EnvironmentOptions::with_sources(2, 2).unwrap();
    options.client_config = format!("dom0_asks = [\"{scope}\"]\n{settings}");
    let rule = format!("splitdrop.Proxy +{scope} sd-app sd-proxy ask\n");
    options.policy.push(("30-newsroom.policy".to_owned(), rule));
    options.qrexec.dom0_user = Dom0User::Present;
    Environment::with_daemon(options).await.unwrap()
}

/// Whatever is tried again is tried soon, and nothing is downloaded.
const SOON: &str = "\
fetch_messages = false
[sync]
interval_ms = 50
first_wait_ms = 50
most_wait_ms = 200
[acts]
first_wait_ms = 50
most_wait_ms = 200
";

fn questions(environment: &Environment) -> usize {
    environment.broker().events().iter().filter(|event| matches!(event.kind, EventKind::Asked(_))).count()
}

/// Answers the next question.
async fn answer(environment: &Environment, reply: Reply) {
    let question = environment.broker().questions().next().await;
    environment.broker().questions().answer(question.call, reply).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_and_a_logout_that_dom0_is_asked_about_come_through_after_a_yes() {
    let environment = asked_about(Scope::Session).await;
    let (session, ()) = tokio::join!(environment.login(&MARLOW), answer(&environment, Reply::Yes(None)));
    assert_eq!(session.unwrap()["session"]["username"], "marlow");
    environment.json(&["logout"], "").await.unwrap();
    answer(&environment, Reply::Yes(None)).await;
    environment.server().control().wait_for_log(|log| log.count("POST", "/api/v1/logout") == 1).await;
    assert_eq!(questions(&environment), 2);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_no_to_the_lists_syncs_rest_until_somebody_wants_one() {
    let environment = asked_about(Scope::Metadata).await;
    let mut watch = environment.watch().await.unwrap();
    environment.login(&MARLOW).await.unwrap();
    answer(&environment, Reply::No).await;
    let ended = watch.until("sync_ended").await.unwrap();
    assert_eq!(ended["sync"]["outcome"], "failed", "{ended}");
    let status = async || environment.json(&["status"], "").await.unwrap();
    // The timer comes once more, and finds that nobody wants one.
    while status().await["sync"]["next"] != Value::Null {}
    assert_eq!((questions(&environment), environment.broker().questions().pending().len()), (1, 0));
    assert!(status().await["proxy"]["error"].as_str().unwrap().contains("dom0"), "{}", status().await);
    let (refreshed, ()) = tokio::join!(environment.json(&["refresh"], ""), answer(&environment, Reply::Yes(None)));
    assert_eq!(refreshed.unwrap()["sync"]["counts"]["sources"], 2);
    // From here on the timer's syncs go on in the call that is there.
    let before = environment.server().control().count("GET", "/api/v1/sources");
    environment.server().control().wait_for_log(|log| log.count("GET", "/api/v1/sources") >= before + 3).await;
    assert_eq!(questions(&environment), 2);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_dom0_says_no_to_is_refused_and_asked_about_again_only_by_the_users_word() {
    let environment = asked_about(Scope::Mark).await;
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let listed = environment.json(&["sources"], "").await.unwrap();
    let source = &listed["sources"][0];
    let (id, star) = (source["uuid"].as_str().unwrap(), if source["starred"] == true { "unstar" } else { "star" });
    let mut watch = environment.watch().await.unwrap();
    environment.json(&[star, id], "").await.unwrap();
    answer(&environment, Reply::No).await;
    while watch.until("act").await.unwrap()["step"] != "refused" {}
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(questions(&environment), 1);
    let again = environment.json(&[star, id], "").await.unwrap();
    answer(&environment, Reply::Yes(None)).await;
    watch.until_done(again["acts"][0]["act"].as_u64().unwrap()).await.unwrap();
    assert_eq!(questions(&environment), 2);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_dom0_says_no_to_is_asked_about_again_only_by_the_users_word() {
    let environment = asked_about(Scope::Download).await;
    let control = environment.server().control();
    let created = Command::NewSource { designation: None, key: KeyChoice::Any, state: SourceState::Listed };
    let Outcome::Source { uuid: source, .. } = control.apply(created).unwrap() else { unreachable!() };
    let Outcome::Item { uuid: file, .. } = control.apply(Command::NewFile { source, size: 5_000 }).unwrap() else {
        unreachable!()
    };
    environment.login(&MARLOW).await.unwrap();
    environment.json(&["refresh"], "").await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    let refused =
        tokio::join!(environment.run(["download", file.as_str(), "--wait"], ""), answer(&environment, Reply::No)).0;
    let refused = refused.unwrap();
    assert_eq!(refused.code, Some(POLICY_REFUSED), "it was dom0, and not the server: {refused:?}");
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(questions(&environment), 1);
    environment.json(&["download", file.as_str()], "").await.unwrap();
    answer(&environment, Reply::Yes(None)).await;
    while watch.until("download").await.unwrap()["step"] != "stored" {}
    environment.json(&["refresh"], "").await.unwrap();
    assert_eq!(questions(&environment), 2);
    environment.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_dom0_says_no_to_wait_for_the_users_word_and_the_queue_says_so() {
    let environment = asked_about_with(Scope::Download, &SOON.replace("fetch_messages = false\n", "")).await;
    environment.login(&MARLOW).await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    answer(&environment, Reply::No).await;
    let paused = watch.until("queue_paused").await.unwrap();
    assert_eq!(paused["reason"], "dom0", "{paused}");
    // The timer's syncs go on, and ask nobody.
    let before = environment.server().control().count("GET", "/api/v1/sources");
    environment.server().control().wait_for_log(|log| log.count("GET", "/api/v1/sources") >= before + 3).await;
    assert_eq!(questions(&environment), 1);
    let reasons = async || environment.json(&["queue"], "").await.unwrap()["paused"].clone();
    assert_eq!(reasons().await, json!([{ "reason": "dom0" }]));
    let said = environment.run(["queue"], "").await.unwrap();
    assert!(
        said.stdout.starts_with("Not all is fetched: dom0 ") && said.stdout.contains("splitdrop refresh"),
        "{said:?}"
    );
    environment.json(&["refresh"], "").await.unwrap();
    watch.until("queue_resumed").await.unwrap();
    answer(&environment, Reply::Yes(None)).await;
    while watch.until("download").await.unwrap()["step"] != "stored" {}
    assert_eq!((reasons().await, questions(&environment)), (json!([]), 2));
    environment.stop().await.unwrap();
}
