use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use clap::Parser as _;
use control::{ActId, FailureKind};
use tempfile::TempDir;
use tokio::net::UnixListener;

use super::super::exit::Exit;
use super::super::played::{Said, play, refuses, says};
use super::super::samples::{held_key, outgoing, source, taken};
use super::*;

/// A data directory with nothing else in it.
fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Places with no other one than the data directory.
fn in_data(home: &TempDir) -> Places {
    Places::new(None, home.path().to_owned())
}

fn left_in(home: &TempDir) -> Vec<PathBuf> {
    std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The text in a directory that was kept.
fn said_in(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("reply.txt")).unwrap()
}

/// The directory that an error says an editor's leftovers are in.
fn left_by(error: &CliError) -> PathBuf {
    let kept = match error {
        CliError::NotTaken { kept: Kept::Left(directory), .. } => directory,
        CliError::NotTaken { error: inner, .. } => return left_by(inner),
        other => panic!("{other:?}"),
    };
    assert!(error.to_string().contains(&format!("what the editor left is in {}", kept.display())), "{error}");
    kept.clone()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// What is done with `text`, or with what an editor has left in a page, by a daemon that says what the script does.
async fn deliver(
    home: &TempDir,
    only_draft: bool,
    text: &str,
    script: impl FnMut(Request) -> Option<Said>,
) -> Result<Done, CliError> {
    let written = Manuscript::new(text.to_owned(), in_data(home));
    with_desk(home, only_draft, script, async |desk| desk.deliver(written).await).await
}

async fn with_desk(
    home: &TempDir,
    only_draft: bool,
    script: impl FnMut(Request) -> Option<Said>,
    work: impl AsyncFnOnce(&mut Desk<'_>) -> Result<Done, CliError>,
) -> Result<Done, CliError> {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let data = OsString::from(home.path());
    let find = |name: &str| (name == "SPLITDROP_HOME").then(|| data.clone());
    let settings = Settings::load(find, Some(socket.clone())).unwrap();
    let args = Args::try_parse_from(["splitdrop", "reply", "candid"]).unwrap();
    let worked = async {
        let mut client = Client::connect(&socket).await?;
        let source = source(1, "candid marmot");
        let mut desk =
            Desk { args: &args, settings: &settings, client: &mut client, source, only_draft, leaves_draft: false };
        work(&mut desk).await
    };
    tokio::select! {
        worked = worked => worked,
        () = play(listener, script) => panic!("the daemon does not go first"),
    }
}

/// The file that an error says the text is in.
fn file_of(error: &CliError) -> PathBuf {
    let (CliError::NotTaken { kept: Kept::File(path), .. } | CliError::Unconfirmed { kept: Kept::File(path), .. }) =
        error
    else {
        panic!("{error:?}")
    };
    assert!(error.to_string().ends_with(&format!("the text is in {}", path.display())), "{error}");
    path.clone()
}

#[test]
fn the_text_comes_from_the_command_line_or_the_input_or_an_editor() {
    let editor = || Editor::find(|name| (name == "EDITOR").then(|| "ed".into()));
    let unasked = || panic!("no editor is looked for");
    assert_eq!(Origin::try_new(Some("x"), true, true, unasked).unwrap(), Origin::Given("x".to_owned()));
    assert_eq!(Origin::try_new(None, false, false, unasked).unwrap(), Origin::Input);
    assert_eq!(Origin::try_new(None, true, false, unasked).unwrap(), Origin::Input);
    assert!(matches!(Origin::try_new(None, false, true, editor).unwrap(), Origin::Editor(_)));
    let batch = Origin::try_new(None, true, true, unasked).unwrap_err();
    let none = Origin::try_new(None, false, true, || None).unwrap_err();
    for error in [batch, none] {
        assert!(error.exit() == Exit::Usage && error.to_string().contains("--message"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn r1_what_is_sent_was_kept_as_the_draft_before() {
    let home = home();
    let mut asked = Vec::new();
    let done = deliver(&home, false, "Thank you.", |request| {
        asked.push(request.clone());
        Some(match request {
            Request::Draft { .. } => says(Vec::new()),
            Request::Act(_) => says(vec![Reply::Taken(taken(1, 0))]),
            other => panic!("{other:?}"),
        })
    })
    .await
    .unwrap();
    assert_eq!(done, Done::Taken(taken(1, 0)));
    let text = ReplyText::try_new("Thank you.").unwrap();
    let [Request::Draft { text: Some(drafted), .. }, Request::Act(Act::Reply { text: sent, .. })] = asked.as_slice()
    else {
        panic!("{asked:?}")
    };
    assert_eq!((drafted, sent), (&text, &text));
    assert!(left_in(&home).is_empty());
}

/// Another text than the draft: the draft is not touched, and a text that is not taken is in a file.
#[tokio::test(start_paused = true)]
async fn r3_what_comes_from_the_command_line_leaves_another_draft_alone() {
    for is_taken in [true, false] {
        let home = home();
        let script = |request| match request {
            Request::Act(Act::Reply { .. }) if is_taken => Some(says(vec![Reply::Taken(taken(1, 0))])),
            Request::Act(Act::Reply { .. }) => Some(refuses(FailureKind::Conflict)),
            other => panic!("{other:?}"),
        };
        let written = Manuscript::new("ok".to_owned(), in_data(&home));
        let done = with_desk(&home, false, script, async |desk| {
            desk.leaves_draft = true;
            desk.deliver(written).await
        });
        match done.await {
            Ok(done) => assert_eq!((is_taken, done), (true, Done::Taken(taken(1, 0)))),
            Err(error) => {
                assert!(!is_taken);
                assert_eq!(std::fs::read_to_string(file_of(&error)).unwrap(), "ok\n");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn r3_a_draft_is_kept_and_a_blank_one_forgotten_and_nothing_is_sent() {
    for (text, kept, done) in [("begun", Some("begun"), Done::Drafted), (" \n\t", None, Done::Forgotten)] {
        let home = home();
        let only_drafts = |request| match request {
            Request::Draft { text, .. } => {
                assert_eq!(text.as_ref().map(ReplyText::as_str), kept);
                Some(says(Vec::new()))
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(deliver(&home, true, text, only_drafts).await.unwrap(), done);
        assert!(left_in(&home).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn r4_what_is_not_taken_is_the_draft() {
    for (kind, exit) in [(FailureKind::Conflict, Exit::Conflict), (FailureKind::KeyUnreachable, Exit::KeyUnreachable)] {
        let home = home();
        let error = deliver(&home, false, "Thank you.", |request| match request {
            Request::Draft { .. } => Some(says(Vec::new())),
            Request::Act(_) => Some(refuses(kind)),
            other => panic!("{other:?}"),
        })
        .await
        .unwrap_err();
        assert_eq!(error.exit(), exit);
        assert!(error.to_string().starts_with("no; the text is kept as the draft"), "{error}");
        assert!(left_in(&home).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_the_draft_is_in_a_private_file() {
    let home = home();
    let error = deliver(&home, false, "Thank you.", |_| Some(refuses(FailureKind::NotFound))).await.unwrap_err();
    assert_eq!(error.exit(), Exit::NotFound);
    let file = file_of(&error);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "Thank you.\n");
    let directory = file.parent().unwrap();
    assert_eq!((mode(&file), mode(directory), directory.parent()), (0o600, 0o700, Some(home.path())));
    // The daemon is gone before it has heard anything.
    let error = deliver(&home, false, "Thank you.", |_| None).await.unwrap_err();
    assert_eq!(error.exit(), Exit::NoDaemon);
    assert!(file_of(&error).exists());
}

#[tokio::test(start_paused = true)]
async fn a_text_that_is_too_long_is_refused_and_kept() {
    let home = home();
    let text = "ß".repeat(MAX_REPLY_CHARS + 1);
    let error = deliver(&home, false, &text, |request| panic!("{request:?}")).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Usage);
    assert_eq!(std::fs::read_to_string(file_of(&error)).unwrap(), text + "\n");
}

#[tokio::test(start_paused = true)]
async fn a_blank_reply_is_not_sent() {
    let home = home();
    let error = deliver(&home, false, " \n", |request| panic!("{request:?}")).await.unwrap_err();
    assert!(error.exit() == Exit::Usage && error.to_string().contains("nothing was sent"), "{error}");
    assert!(left_in(&home).is_empty());
}

/// How a lost connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The daemon had taken the reply, and the server does not list it yet.
    Waits,
    /// It had not.
    NotThere,
    /// It had not, and nobody is signed in any more.
    SignedOut,
    /// It is gone.
    Gone,
}

#[tokio::test(start_paused = true)]
async fn r1_after_a_lost_connection_it_is_found_out_and_the_id_stays_the_same() {
    for then in [Then::Waits, Then::NotThere, Then::SignedOut, Then::Gone] {
        let home = home();
        let mut ids = Vec::new();
        let ended = deliver(&home, false, "Thank you.", |request| match request {
            Request::Draft { .. } => Some(says(Vec::new())),
            Request::Act(Act::Reply { reply, .. }) => {
                ids.push(reply);
                match (ids.len(), then) {
                    (1, _) => None,
                    (_, Then::SignedOut) => Some(refuses(FailureKind::NotSignedIn)),
                    (_, _) => Some(says(vec![Reply::Taken(taken(1, 0))])),
                }
            }
            Request::Show { .. } if then == Then::Gone => None,
            Request::Show { .. } => {
                let row = Reply::Source(Box::new(source(1, "candid marmot")));
                let mut waits = outgoing(9, None);
                waits.reply = ids[0];
                let waits = (then == Then::Waits).then(|| Reply::Outgoing(Box::new(waits)));
                Some(says([row].into_iter().chain(waits).collect()))
            }
            other => panic!("{other:?}"),
        })
        .await;
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        match then {
            Then::Waits => {
                assert_eq!(
                    ended.unwrap(),
                    Done::Taken(Taken { act: Some(ActId(9)), objects: 1, already: 0, grace_ms: 0 })
                );
                assert_eq!(ids.len(), 1);
            }
            Then::NotThere => assert_eq!((ended.unwrap(), ids.len()), (Done::Taken(taken(1, 0)), 2)),
            Then::SignedOut => {
                let error = ended.unwrap_err();
                assert!(error.exit() == Exit::NotSignedIn && error.to_string().contains("as the draft"), "{error}");
            }
            Then::Gone => {
                let error = ended.unwrap_err();
                assert!(error.exit() == Exit::NoDaemon && error.to_string().contains("is not known"), "{error}");
                assert_eq!(std::fs::read_to_string(file_of(&error)).unwrap(), "Thank you.\n");
                continue;
            }
        }
        assert!(left_in(&home).is_empty());
    }
}

/// What becomes of a page that an editor of these words has had.
async fn edited(home: &TempDir, draft: &str, words: &str, kept: Option<&str>) -> Result<Done, CliError> {
    let page = Page::try_new(&in_data(home), draft).unwrap();
    let closed = editor(words).open(&page, std::future::pending()).await;
    taken_over(home, page, closed, kept).await
}

fn editor(words: &str) -> Editor {
    Editor::find(|name| (name == "VISUAL").then(|| words.into())).unwrap()
}

/// What becomes of a page with a daemon that takes all drafts and replies; they must say `kept`.
async fn taken_over(
    home: &TempDir,
    page: Page,
    closed: Result<Closed, CliError>,
    kept: Option<&str>,
) -> Result<Done, CliError> {
    let script = |request| match request {
        Request::Draft { text, .. } => {
            assert_eq!(text.as_ref().map(ReplyText::as_str), kept);
            Some(says(Vec::new()))
        }
        Request::Act(Act::Reply { text, .. }) => {
            assert_eq!(Some(text.as_str()), kept);
            Some(says(vec![Reply::Taken(taken(1, 0))]))
        }
        other => panic!("{other:?}"),
    };
    with_desk(home, false, script, async |desk| desk.take_over(page, closed).await).await
}

#[tokio::test]
async fn what_is_saved_in_an_editor_is_sent_without_its_last_line_end() {
    let home = home();
    let done = edited(&home, "begun", "sed -i 's/begun/Thank you.\\n\\nYours/'", Some("Thank you.\n\nYours")).await;
    assert_eq!(done.unwrap(), Done::Taken(taken(1, 0)));
    // What was saved as it had been is meant to be sent.
    let done = edited(&home, "begun", "touch", Some("begun")).await;
    assert_eq!(done.unwrap(), Done::Taken(taken(1, 0)));
    assert!(left_in(&home).is_empty());
}

#[tokio::test]
async fn what_was_only_looked_at_is_not_sent() {
    let home = home();
    let error = edited(&home, "begun", "cat >/dev/null", None).await.unwrap_err();
    assert!(matches!(error, CliError::NotSaved), "{error:?}");
    let error = edited(&home, "begun", "rm", None).await.unwrap_err();
    assert!(matches!(error, CliError::NotSaved), "{error:?}");
    let error = edited(&home, "begun", "truncate -s 0", None).await.unwrap_err();
    assert!(matches!(error, CliError::BlankReply), "{error:?}");
    assert!(left_in(&home).is_empty());
}

#[tokio::test]
async fn an_editor_that_fails_sends_nothing_and_loses_nothing_that_was_saved() {
    let home = home();
    for words in ["false", "no-such-editor-anywhere 2>/dev/null"] {
        let error = edited(&home, "begun", words, None).await.unwrap_err();
        assert!(matches!(error, CliError::EditorFailed { .. }) && error.exit() == Exit::Failure, "{error:?}");
    }
    let words = "sh -c 'echo written >\"$1\"; exit 1' editor";
    let error = edited(&home, "begun", words, Some("written")).await.unwrap_err();
    assert!(error.to_string().contains("failed") && error.to_string().contains("kept as the draft"), "{error}");
    assert!(left_in(&home).is_empty());
}

#[tokio::test]
async fn told_to_end_it_has_the_editor_end_and_keeps_what_was_saved() {
    let home = home();
    let script = home.path().join("editor");
    std::fs::write(&script, "echo written >\"$1\"\nexec tail -f /dev/null\n").unwrap();
    let page = Page::try_new(&in_data(&home), "begun").unwrap();
    let is_written = async {
        while page.read(MAX_BYTES).unwrap() != "written\n" {
            tokio::task::yield_now().await;
        }
    };
    let closed = editor(&format!("sh {}", script.display())).open(&page, is_written).await;
    let error = taken_over(&home, page, closed, Some("written")).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Interrupted);
    assert!(error.to_string().contains("kept as the draft"), "{error}");
    assert_eq!(left_in(&home), [script]);
}

/// An editor that saves nothing of itself, and leaves what it has beside the page when it is told to end, as vim, nano and
/// emacs do.
async fn ended_with_a_copy(home: &TempDir, session: Option<PathBuf>, words: &str, kept: Option<&str>) -> CliError {
    let script = home.path().join("editor");
    let trap = "trap 'echo half an hour >\"$1.save\"; ln -s nobody \"$(dirname \"$1\")/.#reply.txt\"; exit 1' TERM\n";
    let rest = "echo >\"$(dirname \"$1\")/ready\"\nwhile :; do :; done\n";
    std::fs::write(&script, format!("{trap}{words}\n{rest}")).unwrap();
    let places = Places::new(session, home.path().to_owned());
    let mut page = Page::try_new(&places, "begun").unwrap();
    page.lend();
    let ready = page.path().with_file_name("ready");
    let is_ready = async {
        while !ready.exists() {
            tokio::task::yield_now().await;
        }
    };
    let closed = editor(&format!("sh {}", script.display())).open(&page, is_ready).await;
    std::fs::remove_file(ready).unwrap();
    let error = taken_over(home, page, closed, kept).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Interrupted);
    error
}

#[tokio::test]
async fn r3_what_an_editor_leaves_beside_the_page_is_kept_and_named() {
    let home = home();
    let error = ended_with_a_copy(&home, None, "", None).await;
    let left = left_by(&error);
    assert_eq!(std::fs::read_to_string(left.join("reply.txt.save")).unwrap(), "half an hour\n");
    assert_eq!((said_in(&left), mode(&left), left.parent()), ("begun\n".to_owned(), 0o700, Some(home.path())));
    // What was saved before is the draft, and what came after it is there too.
    let error = ended_with_a_copy(&home, None, "echo written >\"$1\"", Some("written")).await;
    assert!(error.to_string().contains("kept as the draft"), "{error}");
    assert!(left_by(&error).join("reply.txt.save").exists());
    assert_eq!(in_data(&home).unsent().len(), 2);
    // One that fails leaves what it has too; one that ends well does not.
    let error = edited(&home, "begun", "sh -c 'echo >\"$1.save\"; exit 1' editor", None).await.unwrap_err();
    assert!(matches!(&error, CliError::NotTaken { .. }), "{error:?}");
    assert!(left_by(&error).join("reply.txt.save").exists());
    let error = edited(&home, "begun", "sh -c 'echo >\"$1~\"' editor", None).await.unwrap_err();
    assert!(matches!(error, CliError::NotSaved), "{error:?}");
    assert_eq!(in_data(&home).unsent().len(), 3);
}

/// The session's directory is gone with the VM's shutdown, which may be what ended the editor.
#[tokio::test]
async fn r3_what_is_kept_is_in_the_data_directory() {
    let (home, session) = (home(), home());
    let places = || Places::new(Some(session.path().to_owned()), home.path().to_owned());
    assert!(Page::try_new(&places(), "").unwrap().path().starts_with(session.path()));
    let error = ended_with_a_copy(&home, Some(session.path().to_owned()), "", None).await;
    assert_eq!(left_by(&error).parent(), Some(home.path()));
    assert_eq!(left_in(&session), Vec::<PathBuf>::new());
    let kept = Manuscript::new("given".to_owned(), places()).into_file();
    assert!(matches!(&kept, Kept::File(path) if path.starts_with(home.path())), "{kept:?}");
    assert_eq!(places().unsent().len(), 2);
}

#[test]
fn r3_who_is_called_off_while_an_editors_page_is_there_loses_nothing_of_it() {
    let home = home();
    let lent = || {
        let mut page = Page::try_new(&in_data(&home), "begun").unwrap();
        page.lend();
        page
    };
    drop(lent());
    let page = lent();
    std::fs::write(page.path().with_extension("save"), "x").unwrap();
    page.settle();
    assert!(left_in(&home).is_empty());
    for name in ["reply.txt", ".reply.txt.swp"] {
        let page = lent();
        std::fs::write(page.path().with_file_name(name), "written").unwrap();
        drop(page);
    }
    assert_eq!(in_data(&home).unsent().len(), 2);
}

#[test]
fn what_is_moved_to_another_file_system_is_whole_or_stays() {
    let home = home();
    let (from, to) = (home.path().join("from"), home.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("a"), "text").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", from.join("b")).unwrap();
    page::copied(&from, &to).unwrap();
    assert_eq!((std::fs::read_to_string(to.join("a")).unwrap(), mode(&to.join("a"))), ("text".to_owned(), 0o600));
    assert!(!to.join("b").exists());
    // What is no file is not left behind.
    std::fs::create_dir(from.join("c")).unwrap();
    let other = home.path().join("other");
    assert!(page::copied(&from, &other).is_err() && !other.exists());
}

#[tokio::test]
async fn the_editors_words_are_a_shells() {
    let home = home();
    for words in ["WORD=written sh -c 'echo \"$WORD\" >\"$1\"' editor", "true && sh -c 'echo written >\"$1\"' editor"] {
        edited(&home, "", words, Some("written")).await.unwrap();
    }
}

#[tokio::test]
async fn what_no_reply_can_be_stays_in_the_file_that_it_was_written_in() {
    let home = home();
    for words in ["sh -c 'head -c 400003 /dev/zero >\"$1\"' editor", "sh -c 'printf \"\\377\" >\"$1\"' editor"] {
        let error = edited(&home, "", words, None).await.unwrap_err();
        assert_eq!(error.exit(), Exit::Usage);
        assert!(std::fs::metadata(file_of(&error)).unwrap().len() > 0);
    }
    assert_eq!(left_in(&home).len(), 2);
}

#[tokio::test]
async fn a_page_is_private_and_its_path_is_no_part_of_the_editors_words() {
    let home = home();
    let place = home.path().join("a b; touch forged; $(touch forged) '\"");
    std::fs::create_dir(&place).unwrap();
    let places = Places::new(Some(home.path().join("not there")), place.clone());
    let page = Page::try_new(&places, "").unwrap();
    let path = page.path();
    assert!(path.starts_with(&place));
    assert_eq!((mode(&path), mode(path.parent().unwrap()), page.is_saved().unwrap()), (0o600, 0o700, false));
    let closed = editor("sh -c 'echo said >\"$1\"' editor").open(&page, std::future::pending()).await;
    closed.unwrap().check().unwrap();
    assert_eq!((page.is_saved().unwrap(), page.read(5).unwrap().as_str()), (true, "said\n"));
    assert!(page.read(4).is_err());
    drop(page);
    assert_eq!((place.read_dir().unwrap().count(), Path::new("forged").exists()), (0, false));
    // A link is not followed, and a pipe holds nothing up.
    for words in ["ln -sf /etc/passwd", "sh -c 'rm \"$1\" && mkfifo \"$1\"' editor"] {
        let page = Page::try_new(&places, "").unwrap();
        editor(words).open(&page, std::future::pending()).await.unwrap().check().unwrap();
        assert!(page.is_saved().unwrap() && page.read(MAX_BYTES).is_err(), "{words}");
    }
}

#[test]
fn the_editor_is_the_one_that_is_named_or_a_usual_one() {
    let path = tempfile::tempdir().unwrap();
    let find = |variables: &[(&str, &str)]| {
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
        let editor = Editor::find(|name| {
            let named = variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
            named.or_else(|| (name == "PATH").then(|| path.path().into()))
        });
        editor.map(|editor| format!("{editor:?}"))
    };
    assert_eq!(find(&[]), None);
    assert!(find(&[("VISUAL", "emacs -nw"), ("EDITOR", "ed")]).unwrap().contains("\"emacs -nw\""));
    assert!(find(&[("VISUAL", " "), ("EDITOR", "ed")]).unwrap().contains("\"ed\""));
    for name in ["vi", "nano"] {
        // What cannot be run is none.
        std::fs::write(path.path().join(name), "").unwrap();
        let before = find(&[]);
        std::fs::set_permissions(path.path().join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_ne!(find(&[]), before);
        assert!(find(&[]).unwrap().contains(&format!("\"{name}\"")));
    }
}

#[test]
fn what_is_dropped_on_its_way_stays_in_a_file() {
    let home = home();
    let places = || in_data(&home);
    drop(Manuscript::new(" ".to_owned(), places()));
    Manuscript::new("settled".to_owned(), places()).settle();
    let mut drafted = Manuscript::new("drafted".to_owned(), places());
    drafted.is_draft();
    drop(drafted);
    assert!(left_in(&home).is_empty());
    let page = Page::try_new(&places(), "lost").unwrap();
    drop(Manuscript::of_page("lost".to_owned(), page));
    drop(Manuscript::new("given".to_owned(), places()));
    let mut texts = places().unsent().iter().map(|path| said_in(path)).collect::<Vec<_>>();
    texts.sort();
    assert_eq!((texts, left_in(&home).len()), (vec!["given\n".to_owned(), "lost\n".to_owned()], 2));
}

#[test]
fn nobody_writes_to_whom_nothing_can_be_sent() {
    let with = |key| SourceRow { key, ..source(1, "candid marmot") };
    let fingerprint = super::super::samples::fingerprint('A');
    refuse_if_unanswerable(&with(KeyState::Pinned { fingerprint: fingerprint.clone() })).unwrap();
    refuse_if_unanswerable(&with(KeyState::New { offered: fingerprint })).unwrap();
    for key in [KeyState::None, held_key()] {
        let error = refuse_if_unanswerable(&with(key)).unwrap_err();
        assert!(error.exit() == Exit::Conflict && error.to_string().contains("candid marmot"), "{error}");
    }
}

#[test]
fn a_text_is_read_to_a_bound_and_loses_one_line_end() {
    assert_eq!(read("abc".as_bytes(), 3).unwrap(), "abc");
    assert_eq!(read("abc".as_bytes(), 2).unwrap_err().exit(), Exit::Usage);
    assert!(matches!(read(b"\xff".as_slice(), 2).unwrap_err(), CliError::NotText));
    for (text, kept) in [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("\n", ""), ("a\r", "a\r")] {
        assert_eq!(without_line_end(text.to_owned()), kept);
    }
    // All of the longest text fits, however it is spelled.
    assert_eq!(MAX_BYTES, 4 * u64::try_from(MAX_REPLY_CHARS).unwrap() + 2);
}

#[test]
fn signals_are_an_editors_only_while_it_has_the_terminal() {
    let editing = Editing::default();
    {
        let _lent = editing.begin();
        assert!(editing.is_on());
    }
    assert!(!editing.is_on());
}
