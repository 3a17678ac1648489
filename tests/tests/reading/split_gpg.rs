//! Decryption through `qubes-gpg-client`, of which a stand-in is called: how many at once, what fails, and what is left.

use nix::sys::signal::Signal;
use staging::environment::{Environment, Watch};
use staging::server::RecordId;

use crate::stand_in::StandIn;
use crate::support::*;

/// How many calls may run at once.
const PERMITS: usize = 2;
const MESSAGES: usize = 100;

/// A source that has sent many messages, all of them fetched.
async fn many_messages(environment: &Environment, watch: &mut Watch) -> (RecordId, Vec<RecordId>) {
    let source = new_source(environment);
    let messages: Vec<_> = (0..MESSAGES).map(|at| says(environment, &source, &format!("message {at}"))).collect();
    refresh(environment).await;
    let mut left = MESSAGES;
    while left > 0 {
        if watch.until("download").await.unwrap()["step"] == "stored" {
            left -= 1;
        }
    }
    (source, messages)
}

/// Waits until nothing is to be decrypted.
async fn until_drained(environment: &Environment, watch: &mut Watch) {
    while status(environment).await["lanes"]["decrypt"]["waiting"] != 0 {
        watch.until("read").await.unwrap();
    }
}

/// All of it is shown, and nothing but it is held.
async fn assert_all_read(environment: &Environment, source: &RecordId) {
    let shown = environment.json(&["show", source.as_str()], "").await.unwrap();
    let items = shown["items"].as_array().unwrap();
    assert_eq!(items.iter().filter(|item| item["text"] == SAID).count(), MESSAGES);
    // The last ciphertext goes behind its plaintext. Meanwhile the daemon has to answer.
    let tidy = async {
        while counts(environment) != [0, 0, 0] {
            status(environment).await;
        }
    };
    let tidy = tokio::time::timeout(std::time::Duration::from_secs(60), tidy).await;
    assert!(tidy.is_ok(), "{:?}", counts(environment));
}

/// The daemon's children once nobody is signed in: those of the calls that decrypted would be among them.
pub(crate) async fn assert_no_zombies(environment: &Environment) {
    let daemon = environment.daemon_pid().unwrap();
    environment.json(&["logout"], "").await.unwrap();
    environment.broker().until(|counts| counts.open == 0).await;
    let bound = std::time::Duration::from_secs(60);
    let left = staging::processes::until_none(bound, || staging::processes::children(daemon)).await.unwrap();
    assert_eq!(left, [] as [u32; 0]);
}

/// Case Q6.
#[tokio::test(flavor = "multi_thread")]
async fn q6_a_hundred_messages_are_decrypted_by_never_more_than_two_calls_at_once() {
    let mut gpg = StandIn::fake();
    gpg.close_gate();
    let environment = signed_in(ASKED, gpg.key()).await;
    let mut watch = environment.watch().await.unwrap();
    let (source, _) = many_messages(&environment, &mut watch).await;
    gpg.until_begun(PERMITS).await;
    // All of them are there, two are under way, and whatever else goes on begins no third.
    refresh(&environment).await;
    let lane = status(&environment).await["lanes"]["decrypt"].clone();
    assert_eq!((&lane["waiting"], &lane["running"]), (&MESSAGES.into(), &PERMITS.into()));
    assert_eq!(gpg.begun().await, 0);
    gpg.open_gate();
    until_drained(&environment, &mut watch).await;
    assert_eq!(gpg.begun().await, MESSAGES - PERMITS, "each is decrypted once");
    assert_eq!(gpg.most(), PERMITS);
    assert_all_read(&environment, &source).await;
    assert_no_zombies(&environment).await;
    assert_eq!(gpg.left().await, [] as [u32; 0]);
    environment.stop().await.unwrap();
}

/// Case Q6: a call that cannot be made says nothing of the message, and the next one waits its time.
#[tokio::test(flavor = "multi_thread")]
async fn q6_calls_that_fail_to_start_back_off_until_the_user_wants_it() {
    let mut gpg = StandIn::fake();
    gpg.fail(127);
    let environment = signed_in(PATIENT, gpg.key()).await;
    let mut watch = environment.watch().await.unwrap();
    let (source, messages) = many_messages(&environment, &mut watch).await;
    until_problem(&environment, &mut watch).await;
    refresh(&environment).await;
    let tried = gpg.begun().await;
    assert!((1..=PERMITS).contains(&tried), "a failed call bars the rest: {tried}");
    let lane = status(&environment).await["lanes"]["decrypt"].clone();
    assert_eq!((&lane["waiting"], &lane["failed"]), (&MESSAGES.into(), &0.into()));
    gpg.succeed();
    download(&environment, &messages[0]).await;
    until_drained(&environment, &mut watch).await;
    assert_eq!(status(&environment).await["openpgp"]["problem"], serde_json::Value::Null);
    assert!(gpg.most() <= PERMITS);
    assert_all_read(&environment, &source).await;
    assert_no_zombies(&environment).await;
    environment.stop().await.unwrap();
}

/// Case Q6: two messages that no call gets through hold up neither what was sent before nor files.
#[tokio::test(flavor = "multi_thread")]
async fn q6_what_always_fails_lets_everything_else_be_read() {
    let mut gpg = StandIn::fake_that_breaks_with(10_000);
    gpg.fail(127);
    let environment = signed_in(ASKED, gpg.key()).await;
    let mut watch = environment.watch().await.unwrap();
    let (earlier, later) = (new_source(&environment), new_source(&environment));
    let message = says(&environment, &earlier, SAID);
    let file = hands_over(&environment, &earlier, SAID);
    // As many as are tried at once, of the source that comes first.
    let long: String = (0..5_000_u32).map(|number| number.wrapping_mul(2_654_435_761).to_string()).collect();
    for _ in 0..PERMITS {
        says(&environment, &later, &long);
    }
    refresh(&environment).await;
    download(&environment, &file).await;
    while status(&environment).await["lanes"]["decrypt"]["waiting"] != 2 + PERMITS {
        watch.until("download").await.unwrap();
    }
    gpg.succeed();
    until_all(&mut watch, &[message.clone(), file], "decrypted").await;
    assert_eq!(said(&environment, &earlier, &message).await.as_deref(), Some(SAID));
    let lane = status(&environment).await["lanes"]["decrypt"].clone();
    assert_eq!((&lane["waiting"], &lane["failed"]), (&PERMITS.into(), &0.into()), "they are tried again");
    gpg.begun().await;
    environment.stop().await.unwrap();
}

/// Waits until the status says that the key cannot be reached.
async fn until_problem(environment: &Environment, watch: &mut Watch) {
    while status(environment).await["openpgp"]["problem"].is_null() {
        watch.until("read").await.unwrap();
    }
}

/// Case Q6: nobody does anything about it. First the program is not there at all, then its calls break in every way.
#[tokio::test(flavor = "multi_thread")]
async fn q6_calls_that_fail_to_start_are_made_again_by_themselves() {
    let mut gpg = StandIn::fake();
    let away = gpg.folder().join("away");
    std::fs::rename(gpg.program(), &away).unwrap();
    let environment = signed_in(ASKED, gpg.key()).await;
    let mut watch = environment.watch().await.unwrap();
    let (source, _) = many_messages(&environment, &mut watch).await;
    until_problem(&environment, &mut watch).await;
    gpg.fail(125);
    std::fs::rename(&away, gpg.program()).unwrap();
    for code in [125, 127, 255] {
        gpg.fail(code);
        gpg.until_begun(2).await;
        let lane = status(&environment).await["lanes"]["decrypt"].clone();
        assert_eq!((&lane["waiting"], &lane["failed"]), (&MESSAGES.into(), &0.into()));
    }
    gpg.succeed();
    until_drained(&environment, &mut watch).await;
    gpg.begun().await;
    assert!(gpg.most() <= PERMITS, "{}", gpg.most());
    assert_all_read(&environment, &source).await;
    assert_no_zombies(&environment).await;
    environment.stop().await.unwrap();
}

/// Case Q6: what dom0 refuses is not asked again without the user.
#[tokio::test(flavor = "multi_thread")]
async fn q6_what_was_refused_waits_for_the_user() {
    let mut gpg = StandIn::fake();
    gpg.fail(126);
    let environment = signed_in(ASKED, gpg.key()).await;
    let source = new_source(&environment);
    let message = says(&environment, &source, SAID);
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    let event = until(&mut watch, "read", &message, "sealed").await;
    assert!(event["reason"].as_str().unwrap().contains("dom0 refused"), "{event}");
    let content = item(&environment, &source, &message).await["content"].clone();
    assert_eq!((&content["state"], &content["seal"]), (&"sealed".into(), &"denied".into()));
    gpg.begun().await;
    gpg.succeed();
    for _ in 0..3 {
        refresh(&environment).await;
    }
    assert_eq!((gpg.begun().await, state(&environment, &source, &message).await), (0, "sealed".to_owned()));
    download(&environment, &message).await;
    until(&mut watch, "read", &message, "decrypted").await;
    assert_eq!(
        (downloads(&environment, &message), said(&environment, &source, &message).await.as_deref()),
        (1, Some(SAID))
    );
    environment.stop().await.unwrap();
}

/// Case Q6: the daemon's end is theirs, and none is begun while it ends.
#[tokio::test(flavor = "multi_thread")]
async fn q6_the_daemons_end_ends_the_calls() {
    let mut gpg = StandIn::fake();
    gpg.close_gate();
    let mut environment = signed_in(ASKED, gpg.key()).await;
    let mut watch = environment.watch().await.unwrap();
    let (source, _) = many_messages(&environment, &mut watch).await;
    gpg.until_begun(PERMITS).await;
    assert!(!staging::processes::with_directory(gpg.folder()).unwrap().is_empty());
    assert_eq!(environment.stop_daemon(Signal::SIGTERM).await.unwrap(), Some(0));
    assert_eq!(gpg.left().await, [] as [u32; 0], "the gate is still closed");
    assert_eq!((counts(&environment), gpg.begun().await), ([MESSAGES, 0, 0], 0));
    gpg.count_anew();
    gpg.open_gate();
    environment.start_daemon().await.unwrap();
    let mut watch = environment.watch().await.unwrap();
    until_drained(&environment, &mut watch).await;
    assert_eq!((gpg.begun().await, gpg.most()), (MESSAGES, PERMITS));
    assert_all_read(&environment, &source).await;
    environment.stop().await.unwrap();
}

/// Whether tests with GnuPG are to be left out. A missing tool fails them otherwise.
pub(crate) fn is_skipped() -> bool {
    if std::env::var("SPLITDROP_SKIP").unwrap_or_default().split(',').any(|name| name == "gpg") {
        return true;
    }
    let there = std::process::Command::new("gpg").arg("--version").stdout(std::process::Stdio::null()).status().is_ok();
    assert!(there, "gpg is missing: apt-get install gnupg");
    false
}

/// GnuPG itself, in the place of the key's VM: it reads what sources send, exports the newsroom's key for a reply, and lists
/// its keys.
#[tokio::test(flavor = "multi_thread")]
async fn gnupg_behind_split_gpg_reads_what_sources_send() {
    use staging::server::{Body, Protection, Reader, Seal, SubmissionKind};

    if is_skipped() {
        return;
    }
    let gpg = StandIn::real(NEWSROOM);
    let environment = signed_in(ASKED, gpg.key()).await;
    let source = new_source(&environment);
    let sealed = |seal| sends_sealed(&environment, &source, SubmissionKind::Message, text(SAID), seal);
    let inside = Body::Armored { reader: Reader::Newsroom, body: Box::new(text(SAID)) };
    let readable = [
        says(&environment, &source, SAID),
        sends(&environment, &source, SubmissionKind::Message, inside),
        hands_over(&environment, &source, SAID),
    ];
    let closed = [
        (sealed(Seal { reader: Reader::Stranger, ..Seal::default() }), "no_key"),
        (sealed(Seal { protection: Protection::WrongCode, ..Seal::default() }), "corrupt"),
        (sealed(Seal { protection: Protection::None, ..Seal::default() }), "corrupt"),
        (sealed(Seal { cut: 5, ..Seal::default() }), "cut"),
    ];
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    download(&environment, &readable[2]).await;
    let all: Vec<_> = readable.iter().chain(closed.iter().map(|(item, _)| item)).cloned().collect();
    let mut left = all.len();
    while left > 0 {
        let event = watch.until("read").await.unwrap();
        assert_ne!(event["step"], "postponed", "{event}");
        if event["step"] == "decrypted" || event["step"] == "sealed" {
            left -= 1;
        }
    }
    for item in &readable[..2] {
        assert_eq!(said(&environment, &source, item).await.as_deref(), Some(SAID));
    }
    assert_eq!(std::fs::read_to_string(&files(&environment, "plaintext")[0]).unwrap(), SAID);
    for (item, seal) in &closed {
        let content = self::item(&environment, &source, item).await["content"].clone();
        assert_eq!((&content["state"], &content["seal"]), (&"sealed".into(), &(*seal).into()), "{content}");
    }
    assert_eq!(counts(&environment), [closed.len(), 0, 1]);
    environment.listed_with_keys().await.unwrap();
    let reply = act(&environment, &["reply", source.as_str(), "--message", "Thank you."]).await;
    until_act(&mut watch, reply, "confirmed").await;
    let openpgp = status(&environment).await["openpgp"].clone();
    assert_eq!(
        (&openpgp["backend"], &openpgp["newsroom_key"]["fingerprint"]),
        (&"split-gpg".into(), &NEWSROOM.fingerprint().into())
    );
    assert_no_zombies(&environment).await;
    environment.stop().await.unwrap();
    gpg.end_agent();
    assert_eq!(gpg.left().await, [] as [u32; 0]);
}

/// Case F6 with GnuPG: the key comes to the key's VM, and a refresh finds it.
#[tokio::test(flavor = "multi_thread")]
async fn f6_a_key_that_comes_to_the_keys_vm_is_found_by_a_refresh() {
    if is_skipped() {
        return;
    }
    let gpg = StandIn::real(OTHER);
    let environment = signed_in(ASKED, gpg.key()).await;
    let source = new_source(&environment);
    let message = says(&environment, &source, SAID);
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    until(&mut watch, "read", &message, "sealed").await;
    assert_eq!(item(&environment, &source, &message).await["content"]["seal"], "no_key");
    gpg.import(NEWSROOM);
    assert_eq!(state(&environment, &source, &message).await, "sealed");
    refresh(&environment).await;
    until(&mut watch, "read", &message, "decrypted").await;
    assert_eq!(said(&environment, &source, &message).await.as_deref(), Some(SAID));
    environment.stop().await.unwrap();
}

/// Whose key it is that nobody can reach is a matter of a setting, which is named.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_vm_that_has_the_key_the_status_says_so() {
    let gpg = StandIn::fake();
    let mut options = options(ASKED, gpg.key());
    options.client_settings.remove("QUBES_GPG_DOMAIN");
    let environment = Environment::with_daemon(options).await.unwrap();
    environment.login(&staging::generator::MARLOW).await.unwrap();
    let source = new_source(&environment);
    says(&environment, &source, SAID);
    let mut watch = environment.watch().await.unwrap();
    refresh(&environment).await;
    until_problem(&environment, &mut watch).await;
    let problem = status(&environment).await["openpgp"]["problem"].clone();
    assert!(problem.as_str().unwrap().contains("QUBES_GPG_DOMAIN"), "{problem}");
    environment.stop().await.unwrap();
}
