use control::{
    Content, DownloadChange, DownloadState, DownloadStep, Failure, FromDaemon, Session, SessionEnd, ToDaemon, greeting,
};
use protocol::frame::{FrameDecoder, encode_frame, frame_bytes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::super::exit::Exit;
use super::super::samples::{self, file, item, source_id};
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
    assert_eq!(Which::AllFiles.requests(request), [Request::Download { items: Vec::new() }]);
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

/// What a daemon says to a request: what happens meanwhile, the answer, what happens then.
type Said = (Vec<Event>, Result<Vec<Reply>, FailureKind>, Vec<Event>);

fn says(replies: Vec<Reply>) -> Said {
    (Vec::new(), Ok(replies), Vec::new())
}

/// Plays the daemon on one connection.
async fn play(listener: UnixListener, mut script: impl FnMut(Request) -> Said) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut decoder = FrameDecoder::new();
    loop {
        if decoder.next_payload().unwrap().is_some() {
            break;
        }
        fill(&mut stream, &mut decoder).await;
    }
    stream.write_all(&frame_bytes(&greeting::greeting()).unwrap()).await.unwrap();
    loop {
        let Some(ToDaemon { id, request }) = decoder.next_message().unwrap() else {
            fill(&mut stream, &mut decoder).await;
            continue;
        };
        let (before, answer, after) = script(request);
        let (replies, result) = match answer {
            Ok(replies) => (replies, Ok(())),
            Err(kind) => (Vec::new(), Err(Failure { kind, message: "no".to_owned() })),
        };
        let messages = before
            .into_iter()
            .map(FromDaemon::Event)
            .chain(replies.into_iter().map(|reply| FromDaemon::Item { id, reply }))
            .chain([FromDaemon::Done { id, result }])
            .chain(after.into_iter().map(FromDaemon::Event));
        for message in messages {
            stream.write_all(&encode_frame(&message).unwrap()).await.unwrap();
        }
    }
}

async fn fill(stream: &mut UnixStream, decoder: &mut FrameDecoder) {
    let mut chunk = [0; 4096];
    let count = stream.read(&mut chunk).await.unwrap();
    assert!(count > 0, "the client is gone");
    decoder.feed(&chunk[..count]);
}

/// Waits for items with a daemon that says what the script does.
async fn wait_for(items: &[ConversationItem], script: impl FnMut(Request) -> Said) -> Result<(), CliError> {
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
        waiting.outcome()
    };
    tokio::select! {
        waited = waited => waited,
        () = play(listener, script) => panic!("the daemon does not go first"),
    }
}

fn event(number: u32, step: DownloadStep) -> Event {
    Event::Download(DownloadChange { source: source_id(1), item: item(number), step })
}

fn found(item: ConversationItem) -> Reply {
    Reply::Found { source: source_id(1), item: Box::new(item) }
}

#[tokio::test(start_paused = true)]
async fn what_comes_is_waited_for_to_its_end() {
    let running = samples::download(1, DownloadState::Running { received: 5 });
    wait_for(&[file(1), file(2)], |request| match request {
        Request::Downloads => (
            vec![event(2, DownloadStep::Stored { size: 612 })],
            Ok(vec![Reply::Downloads(vec![running.clone()])]),
            vec![
                event(1, DownloadStep::Progress { received: 500, total: Some(612) }),
                event(1, DownloadStep::Stored { size: 612 }),
            ],
        ),
        other => panic!("{other:?}"),
    })
    .await
    .unwrap();
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
        Request::FindItems { .. } => says(vec![found(ConversationItem { content: Content::Downloaded, ..file(1) })]),
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
