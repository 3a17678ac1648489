use control::{Failure, QueueStatus, Seal};

use super::super::super::exit::Exit;
use super::super::super::samples::{decrypted, download, file, item, source_id, status};
use super::*;

fn now() -> Instant {
    Instant::now()
}

fn event(number: u32, step: DownloadStep) -> Event {
    Event::Download(DownloadChange { source: source_id(1), item: item(number), step })
}

fn read(number: u32, step: ReadStep) -> Event {
    Event::Read(ReadChange { source: source_id(1), item: item(number), step })
}

fn failure(kind: FailureKind) -> Failure {
    Failure { kind, message: "no\nway".to_owned() }
}

fn with(content: Content) -> ConversationItem {
    ConversationItem { content, ..file(1) }
}

#[tokio::test]
async fn what_is_there_already_is_not_waited_for() {
    let there = with(decrypted(Some("a.pdf")));
    assert!(Waiting::for_items(std::slice::from_ref(&there)).is_over());
    let mut waiting = Waiting::for_items(&[there, file(2)]);
    assert!(!waiting.is_over());
    waiting.hear(&event(2, DownloadStep::Stored { size: 612 }), now());
    waiting.check(item(2), Some(&with(decrypted(None))));
    assert!(waiting.is_over());
    waiting.outcome().unwrap();
    assert_eq!(waiting.there(), [(item(1), 1_200, Some("a.pdf")), (item(2), 1_200, None)]);
}

#[tokio::test]
async fn what_is_stored_is_waited_for_until_it_is_decrypted() {
    let mut waiting = Waiting::for_items(&[file(1)]);
    waiting.hear(&event(1, DownloadStep::Stored { size: 612 }), now());
    assert_eq!((waiting.is_over(), waiting.lines(now())), (false, vec!["9b040001  decrypting".to_owned()]));
    waiting.hear(&read(1, ReadStep::Postponed(failure(FailureKind::KeyUnreachable))), now());
    assert_eq!(waiting.lines(now()), ["9b040001  not decrypted yet: no\\u{a}way"]);
    // To be decrypted it needs nobody who is signed in.
    waiting.hear(&Event::SessionEnded(SessionEnd::Logout), now());
    waiting.refuse_if_nothing_comes().unwrap();
    waiting.hear(&read(1, ReadStep::Started), now());
    assert_eq!(waiting.lines(now()), ["9b040001  decrypting"]);
    waiting.hear(&read(1, ReadStep::Decrypted), now());
    assert_eq!((waiting.is_over(), waiting.unclear()), (false, vec![item(1)]));
    waiting.check(item(1), Some(&with(decrypted(Some("a.pdf")))));
    assert!(waiting.is_over());
    waiting.outcome().unwrap();
}

#[tokio::test]
async fn what_cannot_be_decrypted_ends_with_that_code_whether_it_was_told_or_not() {
    let sealed = with(Content::Sealed { seal: Seal::NoKey, reason: "no\nkey".to_owned() });
    for told in [true, false] {
        // What is sealed already is tried again: it is asked for how it is.
        let mut waiting = Waiting::for_items(std::slice::from_ref(&sealed));
        assert!(!waiting.is_over());
        if told {
            waiting.hear(&read(1, ReadStep::Sealed(failure(FailureKind::Sealed))), now());
        } else {
            waiting.look(Vec::new(), now());
        }
        assert_eq!(waiting.unclear(), [item(1)]);
        waiting.check(item(1), Some(&sealed));
        let error = waiting.outcome().unwrap_err();
        assert_eq!((waiting.is_over(), error.exit(), error.name()), (true, Exit::Sealed, "sealed"));
        assert!(error.to_string().contains("no\nkey"), "{error}");
    }
    // Being decrypted anew.
    let mut waiting = Waiting::for_items(&[sealed]);
    waiting.look(Vec::new(), now());
    waiting.check(item(1), Some(&with(Content::Downloaded { reason: Some("later".to_owned()) })));
    assert_eq!(
        (waiting.is_over(), waiting.lines(now())),
        (false, vec!["9b040001  not decrypted yet: later".to_owned()])
    );
}

#[tokio::test]
async fn all_files_are_those_that_are_listed_first() {
    let mut waiting = Waiting::for_all_files();
    assert!(!waiting.is_over(), "it is not known yet what there is");
    let mut message = download(3, DownloadState::Waiting { next_try: None, reason: None });
    message.lane = DownloadLane::Messages;
    waiting.look(vec![download(1, DownloadState::Running { received: 1 }), message.clone()], now());
    assert!(!waiting.is_over());
    // What is asked for later is somebody else's matter.
    waiting.look(vec![download(2, DownloadState::Running { received: 1 }), message], now());
    assert_eq!(waiting.unclear(), [item(1)]);
    waiting.check(item(1), Some(&with(decrypted(None))));
    assert!(waiting.is_over());
    let mut none = Waiting::for_all_files();
    none.look(Vec::new(), now());
    assert!(none.is_over());
}

#[tokio::test]
async fn an_end_that_is_told_is_believed_only_after_a_look() {
    let mut waiting = Waiting::for_items(&[file(1)]);
    // Of the attempt before this one, told late.
    waiting.hear(&event(1, DownloadStep::Failed(failure(FailureKind::ServerFault))), now());
    assert_eq!((waiting.unclear(), waiting.is_over()), (vec![item(1)], false));
    waiting.check(item(1), Some(&with(Content::Wanted { reason: None })));
    assert!(waiting.unclear().is_empty() && !waiting.is_over());
    // A pause stops what runs, and it goes on later.
    waiting.hear(&event(1, DownloadStep::Stopped), now());
    waiting.look(vec![download(1, DownloadState::Waiting { next_try: None, reason: None })], now());
    assert!(waiting.unclear().is_empty() && !waiting.is_over());
}

#[tokio::test]
async fn what_failed_ends_with_the_kind_that_was_told() {
    let ends = |kind: Option<FailureKind>| {
        let mut waiting = Waiting::for_items(&[file(1), file(2)]);
        if let Some(kind) = kind {
            waiting.note_why(&event(1, DownloadStep::Failed(failure(kind))));
        }
        waiting.check(item(2), Some(&with(decrypted(None))));
        waiting.look(vec![download(1, DownloadState::Failed { reason: "gone".to_owned() })], now());
        assert!(waiting.is_over());
        waiting.outcome().unwrap_err()
    };
    for (kind, exit) in [
        (None, Exit::Refused),
        (Some(FailureKind::Refused), Exit::Refused),
        (Some(FailureKind::ServerFault), Exit::Refused),
        (Some(FailureKind::Unreachable), Exit::Unreachable),
        (Some(FailureKind::PolicyRefused), Exit::PolicyRefused),
        (Some(FailureKind::Store), Exit::Failure),
    ] {
        let error = ends(kind);
        assert_eq!(error.exit(), exit, "{kind:?}");
        let words = error.to_string();
        assert!(words.contains("1 of 2") && words.contains("9b040001") && words.contains("gone"), "{words}");
    }
}

#[tokio::test]
async fn what_is_not_to_be_fetched_any_more_is_no_success() {
    let deleted = ConversationItem { deletion: Deletion::Pending, ..with(Content::Wanted { reason: None }) };
    for found in [None, Some(&with(Content::Absent)), Some(&deleted)] {
        let mut waiting = Waiting::for_items(&[file(1)]);
        waiting.look(Vec::new(), now());
        waiting.check(item(1), found);
        let error = waiting.outcome().unwrap_err();
        assert!(waiting.is_over() && error.exit() == Exit::Conflict, "{error}");
    }
}

#[tokio::test]
async fn nobody_waits_for_what_only_a_login_brings() {
    let mut waiting = Waiting::for_items(&[file(1)]);
    waiting.begin(&status());
    let error = waiting.refuse_if_nothing_comes().unwrap_err();
    assert_eq!(error.exit(), Exit::NotSignedIn);
    waiting.hear(&Event::SessionStarted(Session::SigningIn), now());
    waiting.refuse_if_nothing_comes().unwrap();
    // The daemon's own end is told by the connection.
    waiting.hear(&Event::SessionEnded(SessionEnd::Shutdown), now());
    waiting.refuse_if_nothing_comes().unwrap();
    waiting.hear(&Event::SessionEnded(SessionEnd::Expired), now());
    assert!(waiting.refuse_if_nothing_comes().is_err());
    // What is there is there.
    waiting.check(item(1), Some(&with(decrypted(None))));
    waiting.refuse_if_nothing_comes().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_runs_is_a_line_each_with_its_rate_and_what_is_left() {
    let mut waiting = Waiting::for_items(&[file(1), file(2), file(3)]);
    let begun = now();
    waiting.look(
        vec![
            download(1, DownloadState::Running { received: 1_000_000 }),
            download(2, DownloadState::Waiting { next_try: None, reason: None }),
            download(3, DownloadState::Waiting { next_try: None, reason: None }),
        ],
        begun,
    );
    let later = begun + Duration::from_secs(2);
    waiting.hear(&event(1, DownloadStep::Progress { received: 5_000_000, total: Some(25_000_000) }), later);
    waiting
        .hear(&event(2, DownloadStep::Postponed { failure: failure(FailureKind::Unreachable), next_try: None }), later);
    assert_eq!(
        waiting.lines(later),
        [
            "9b040001   20%  5.0 MB of 25.0 MB  2.0 MB/s  10 s left  candid marmot",
            "9b040002  not through: no\\u{a}way",
            "0 of 3 there",
        ]
    );
    // What does not come gets slower, and no promise is made.
    let stuck = later + Duration::from_secs(38);
    assert!(waiting.lines(stuck)[0].contains("100.0 kB/s  3 min left"), "{:?}", waiting.lines(stuck));
}

#[tokio::test(start_paused = true)]
async fn a_rate_says_nothing_too_early_and_forgets_what_was_begun_anew() {
    let (mut rate, begun) = (Rate::default(), now());
    rate.note(begun, 5_000);
    assert_eq!(rate.per_second(begun + Duration::from_secs(1)), None);
    rate.note(begun + Duration::from_millis(100), 6_000);
    assert_eq!(rate.per_second(begun + Duration::from_millis(100)), None);
    rate.note(begun + Duration::from_secs(1), 7_000);
    assert_eq!(rate.per_second(begun + Duration::from_secs(1)), Some(2_000));
    rate.note(begun + Duration::from_secs(2), 10);
    rate.note(begun + Duration::from_secs(3), 110);
    assert_eq!(rate.per_second(begun + Duration::from_secs(3)), Some(100));
    for second in 4..100 {
        rate.note(begun + Duration::from_secs(second), 110);
    }
    assert_eq!((rate.per_second(begun + Duration::from_secs(99)), rate.samples.len() < 12), (Some(0), true));
}

#[tokio::test]
async fn a_pause_is_a_line_until_it_ends() {
    let mut waiting = Waiting::for_items(&[file(1)]);
    let mut status = status();
    let paused = vec![PauseReason::NoSession, PauseReason::User];
    status.queue = QueueStatus { paused, ..QueueStatus::default() };
    waiting.begin(&status);
    assert!(waiting.lines(now())[0].contains("splitdrop resume"), "{:?}", waiting.lines(now()));
    waiting.hear(&Event::Resumed, now());
    let lines = waiting.lines(now());
    assert!(
        lines[0].contains("splitdrop login") && !lines[0].contains("resume"),
        "the session is another matter: {lines:?}"
    );
    waiting.hear(&Event::SessionStarted(Session::SignedOut), now());
    assert_eq!(waiting.lines(now()), ["0 of 1 there"]);
    waiting.hear(&Event::Missed(3), now());
    assert!(waiting.take_missed() && !waiting.take_missed());
}
