use control::{
    Content, DownloadChange, DownloadState, DownloadStep, Failure, ReadChange, ReadStep, Session, SessionEnd,
};
use tokio::net::UnixListener;

use super::super::exit::Exit;
use super::super::played::{Said, play, says};
use super::super::samples::{self, decrypted, file, item, source_id};
use super::*;

fn asked(wait: bool, no_wait: bool) -> Download {
    Download { items: Vec::new(), all: true, stop: false, wait, no_wait }
}

#[test]
fn it_waits_where_a_person_looks_on_or_as_it_is_told() {
    let usual = asked(false, false);
    assert!(waits(&usual, false, true));
    assert!(!waits(&usual, false, false) && !waits(&usual, true, true));
    assert!(!waits(&asked(false, true), false, true));
    assert!(waits(&asked(true, false), true, false));
}

#[test]
fn no_request_names_none_but_the_one_for_all() {
    let request = |items| Request::Download { items };
    assert_eq!(Which::All.requests(request), [Request::Download { items: Vec::new() }]);
    assert!(Which::Items(Vec::new()).requests(request).is_empty());
    let many: Vec<_> = std::iter::repeat_n(file(1), MAX_OBJECTS + 1).collect();
    let sizes: Vec<_> = Which::Items(many)
        .requests(request)
        .into_iter()
        .map(|request| if let Request::Download { items } = request { items.len() } else { 0 })
        .collect();
    assert_eq!(sizes, [MAX_OBJECTS, 1]);
}

#[test]
fn nobody_waits_for_what_is_being_deleted() {
    refuse_if_being_deleted(&[file(1), file(2)]).unwrap();
    let going = ConversationItem { deletion: Deletion::Pending, ..file(2) };
    let error = refuse_if_being_deleted(&[file(1), going]).unwrap_err();
    assert!(error.exit() == Exit::Conflict && error.to_string().contains("9b040002"), "{error}");
}

/// Waits for items with a daemon that says what the script does.
async fn wait_for(
    items: &[ConversationItem],
    mut script: impl FnMut(Request) -> Said,
) -> Result<Vec<ItemId>, CliError> {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let waited = async {
        let mut client = Client::connect(&socket).await?;
        let mut waiting = Waiting::for_items(items);
        let mut screen = Screen::new();
        let ended = until_settled(&mut client, &mut waiting, &mut screen).await;
        screen.finish();
        ended?;
        waiting.outcome()?;
        Ok(waiting.there().into_iter().map(|(item, _, _)| item).collect())
    };
    tokio::select! {
        waited = waited => waited,
        () = play(listener, |request| Some(script(request))) => panic!("the daemon does not go first"),
    }
}

fn event(number: u32, step: DownloadStep) -> Event {
    Event::Download(DownloadChange { source: source_id(1), item: item(number), step })
}

fn read(number: u32, step: ReadStep) -> Event {
    Event::Read(ReadChange { source: source_id(1), item: item(number), step })
}

fn found(item: ConversationItem) -> Reply {
    Reply::Found { source: source_id(1), item: Box::new(item) }
}

#[tokio::test(start_paused = true)]
async fn what_comes_is_waited_for_to_its_end() {
    let running = samples::download(1, DownloadState::Running { received: 5 });
    let mut looked_at = Vec::new();
    let there = wait_for(&[file(1), file(2)], |request| match request {
        Request::Downloads => (
            vec![event(2, DownloadStep::Stored { size: 612 }), read(2, ReadStep::Decrypted)],
            Ok(vec![Reply::Downloads(vec![running.clone()])]),
            vec![
                event(1, DownloadStep::Progress { received: 500, total: Some(612) }),
                event(1, DownloadStep::Stored { size: 612 }),
                read(1, ReadStep::Started),
                read(1, ReadStep::Decrypted),
            ],
        ),
        Request::FindItems { words } => {
            looked_at.extend(words.clone());
            let number = if words == [item(1).to_string()] { 1 } else { 2 };
            says(vec![found(ConversationItem { content: decrypted(Some("a.pdf")), ..file(number) })])
        }
        other => panic!("{other:?}"),
    })
    .await
    .unwrap();
    assert_eq!(there, [item(1), item(2)]);
    looked_at.sort();
    assert_eq!(looked_at, [item(1), item(2)].map(|item| item.to_string()));
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_asked_about_and_ends_the_wait() {
    let failure = Failure { kind: FailureKind::ServerFault, message: "gone".to_owned() };
    let error = wait_for(&[file(1)], |request| match request {
        Request::Downloads => (
            Vec::new(),
            Ok(vec![Reply::Downloads(vec![samples::download(1, DownloadState::Running { received: 5 })])]),
            vec![event(1, DownloadStep::Failed(failure.clone()))],
        ),
        Request::FindItems { words } => {
            assert_eq!(words, [item(1).to_string()]);
            let content = Content::Failed { reason: "the server has no such file".to_owned() };
            says(vec![found(ConversationItem { content, ..file(1) })])
        }
        other => panic!("{other:?}"),
    })
    .await
    .unwrap_err();
    assert_eq!((error.exit(), error.name()), (Exit::Refused, "refused"));
    assert!(error.to_string().contains("the server has no such file"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_goes_without_a_word_is_missed_in_time() {
    let mut looks = 0;
    let began = Instant::now();
    let error = wait_for(&[file(1)], |request| match request {
        Request::Downloads => {
            looks += 1;
            let waiting = samples::download(1, DownloadState::Waiting { next_try: None, reason: None });
            says(vec![Reply::Downloads(if looks < 3 { vec![waiting] } else { Vec::new() })])
        }
        Request::FindItems { .. } => (Vec::new(), Err(FailureKind::NotFound), Vec::new()),
        other => panic!("{other:?}"),
    })
    .await
    .unwrap_err();
    assert_eq!(error.exit(), Exit::Conflict);
    assert!(began.elapsed() <= 3 * LOOK_AGAIN, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn missed_events_are_made_up_for() {
    let mut looks = 0;
    let mut status = samples::status();
    status.session = Session::SigningIn;
    wait_for(&[file(1)], |request| match request {
        Request::Downloads => {
            looks += 1;
            let running = samples::download(1, DownloadState::Running { received: 5 });
            let (listed, after) =
                if looks == 1 { (vec![running], vec![Event::Missed(1000)]) } else { (Vec::new(), Vec::new()) };
            (Vec::new(), Ok(vec![Reply::Downloads(listed)]), after)
        }
        Request::Status => says(vec![Reply::Status(Box::new(status.clone()))]),
        Request::FindItems { .. } => says(vec![found(ConversationItem { content: decrypted(None), ..file(1) })]),
        other => panic!("{other:?}"),
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_logout_ends_the_wait() {
    let error = wait_for(&[file(1)], |request| match request {
        Request::Downloads => (
            Vec::new(),
            Ok(vec![Reply::Downloads(vec![samples::download(1, DownloadState::Running { received: 5 })])]),
            vec![event(1, DownloadStep::Stopped), Event::SessionEnded(SessionEnd::Logout)],
        ),
        Request::FindItems { .. } => {
            says(vec![found(ConversationItem { content: Content::Wanted { reason: None }, ..file(1) })])
        }
        other => panic!("{other:?}"),
    })
    .await
    .unwrap_err();
    assert_eq!((error.exit(), error.name()), (Exit::NotSignedIn, "not_signed_in"));
}
