//! What may be in a log and what may not: whatever happens, at every level that is said to be safe.
//!
//! Secrets, names, texts and addresses are planted, everything is done with them that can be done, well or badly, and then
//! they are looked for in the logs of both VMs and in what the processes wrote to standard error.
//!
//! Ids are allowed: of sources, items, journalists, calls and requests. Fingerprints are none of these: by one a key is
//! found, and with it a person's name. A command may tell names to the person who typed it, on standard error too; secrets
//! and texts it may not.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test fails by panicking"
)]

mod search;
mod story;

use serde_json::json;
use staging::environment::ONION;
use staging::generator::{MARLOW, NewsroomKey};
use staging::server::{Command, Edit, FaultAct, GzipFlaw, Protection, Reader, Seal, SubmissionKind, Which};
use staging::socks::{Act, NameTable, Reply, SocksFault};

use crate::search::{Canary, found};
use crate::story::{Story, packed, text};

/// Which of the words that identify are allowed in a log, and so prove that the search finds what is there.
const SESSION_STARTED: &str = "session started";

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_name_text_or_address_comes_into_a_log() {
    let mut story = Story::begin("debug").await;
    story.plants("the passphrase", MARLOW.passphrase);
    story.plants_name("the user name", MARLOW.username);
    story.plants("the onion address", &ONION[..16]);
    story.plants_name("the newsroom's fingerprint", NewsroomKey::Curve25519.fingerprint());
    // Lines of the armor; the last ones are short.
    let key: Vec<_> = NewsroomKey::Curve25519.secret_armor().lines().filter(|line| line.len() >= 40).collect();
    assert!(key.len() > 3);
    for line in key.iter().filter(|line| !line.starts_with('-')) {
        story.plants("the newsroom's key", line);
    }
    story.plants_names_of_journalists();

    // Nobody gets in with these.
    story.plants("a wrong passphrase", "an ocelot forgot eleven parasols");
    story.fails_to_sign_in("marlow", "an ocelot forgot eleven parasols").await;
    story.plants("an unknown user", "quartermaine");
    story.fails_to_sign_in("quartermaine", MARLOW.passphrase).await;
    // The login of a server that is out of its mind.
    story.plants("what a server says", "gibbering periwinkle");
    let nonsense = FaultAct::json_with(
        500,
        &[("X-Complaint", "gibbering periwinkle"), ("Retry-After", "gibbering periwinkle")],
        &json!({ "error": "gibbering periwinkle", "message": "gibbering periwinkle" }),
    );
    let rule = story.faults("/api/v1/token", nonsense.clone());
    story.fails_to_sign_in("marlow", MARLOW.passphrase).await;
    story.mends(rule);

    story.plants_name("a designation", "quizzical zeppelin");
    story.plants_name("half of a designation", "quizzical");
    story.plants_name("half of a designation", "zeppelin");
    let source = story.new_source("quizzical zeppelin");
    story.signs_in().await;
    story.plants_designations_and_keys();
    story.succeeds(&["refresh"]).await;

    // What can be read, and what cannot.
    story.plants("a message", "the fourth box from the left \"holds\" Żółć");
    let message = story.sends(&source, SubmissionKind::Message, text("the fourth box from the left \"holds\" Żółć"));
    story.plants_name("a file's name", "embezzlement-ledger.ods");
    story.plants("a file's contents", "forty thousand in unmarked notes");
    let file = story.sends(
        &source,
        SubmissionKind::File,
        packed("embezzlement-ledger.ods", "forty thousand in unmarked notes", GzipFlaw::None),
    );
    story.plants_name("a hostile name", "\u{202e}gnp.wolfsbane\u{1b}[2J");
    let hostile_name = "../../wolfsbane/\u{202e}gnp.wolfsbane\u{1b}[2J";
    story.plants_name("a part of a hostile name", "wolfsbane");
    let hostile = story.sends(&source, SubmissionKind::File, packed(hostile_name, "x", GzipFlaw::None));
    let broken = [GzipFlaw::Cut(3), GzipFlaw::Sum, GzipFlaw::Data, GzipFlaw::Trailing]
        .map(|flaw| story.sends(&source, SubmissionKind::File, packed("wolfsbane.txt", "wolfsbane grows here", flaw)));
    let stranger = Seal { reader: Reader::Stranger, ..Seal::default() };
    let unreadable = story.sends_sealed(&source, text("wolfsbane for a stranger"), stranger);
    let unprotected = Seal { protection: Protection::None, ..Seal::default() };
    let unprotected = story.sends_sealed(&source, text("wolfsbane without a seal"), unprotected);
    let cut = story.sends_sealed(&source, text("wolfsbane cut short"), Seal { cut: 20, ..Seal::default() });
    story.succeeds(&["refresh"]).await;
    story.succeeds(&["download", "--wait", message.as_str(), file.as_str(), hostile.as_str()]).await;
    for item in broken.iter().chain([&unreadable, &unprotected, &cut]) {
        story.runs(&["download", "--wait", item.as_str()], "").await;
    }
    // The server's word is that it holds what was lost, another thing than it said, and what nobody listed.
    let lost = story.sends(&source, SubmissionKind::File, packed("wolfsbane.txt", "lost", GzipFlaw::None));
    let edits = vec![Edit::set("/filename", "9-quizzical_zeppelin-wolfsbane.gz.gpg"), Edit::set("/size", "wolfsbane")];
    let bad = FaultAct::BadRecord { which: Which::Uuid(lost.clone()), edits };
    let rule = story.faults("/api/v1/submissions", bad);
    story.runs(&["refresh"], "").await;
    story.mends(rule);
    story.succeeds(&["refresh"]).await;
    story.happens(Command::LoseFile { item: lost.clone() });
    story.asks_in_vain_for(&lost).await;
    let rule = story.faults("/api/v1/sources/*/submissions/*/download", FaultAct::FlipByte { at: 40 });
    let flipped = story.sends(&source, SubmissionKind::File, packed("wolfsbane.txt", "flipped", GzipFlaw::None));
    story.succeeds(&["refresh"]).await;
    story.asks_in_vain_for(&flipped).await;
    story.mends(rule);
    story.plants("an etag", "sha256:periwinkle");
    let headers =
        [("Etag", Some("sha256:periwinkle")), ("Content-Disposition", Some("attachment; filename=wolfsbane"))];
    let rule = story.faults("/api/v1/sources/*/submissions/*/download", FaultAct::edit_headers(&headers));
    story.asks_in_vain_for(&flipped).await;
    story.mends(rule);

    // What a journalist does.
    story.plants("a draft", "perhaps we should meet in Gdańsk");
    story.plants("a reply", "bring the second notebook to the ferry");
    story.plants("a refused reply", "a reply to nobody at all");
    let listed = story.environment().listed_with_keys().await.unwrap();
    assert_eq!(listed["sources"].as_array().unwrap().len(), 3);
    story.succeeds(&["reply", source.as_str(), "--draft", "--message", "perhaps we should meet in Gdańsk"]).await;
    story.succeeds(&["show", "quizzical zeppelin"]).await;
    let reply = story.acts(&["reply", source.as_str(), "--message", "bring the second notebook to the ferry"]).await;
    story.until_done(reply).await;
    story.runs(&["reply", "wolfsbane periwinkle", "--message", "a reply to nobody at all"], "").await;
    let rule = story.faults("/api/v1/sources/*/replies", nonsense.clone());
    let doomed = story.acts(&["reply", source.as_str(), "--message", "a reply to nobody at all"]).await;
    story.until_asked("POST", "/replies", rule).await;
    story.mends(rule);
    story.until_done(doomed).await;
    let star = story.acts(&["star", "quizzical zeppelin"]).await;
    story.until_done(star).await;
    story.runs(&["seen", "quizzical zeppelin"], "").await;
    let gone = story.acts(&["delete", "item", broken[0].as_str(), "--yes"]).await;
    story.until_done(gone).await;
    story.runs(&["delete", "source", "wolfsbane periwinkle", "--yes"], "").await;
    let fingerprint = "0123456789ABCDEF0123456789ABCDEF01234567";
    story.plants_name("a fingerprint that was typed", fingerprint);
    story.runs(&["trust-key", source.as_str(), "--fingerprint", fingerprint], "").await;

    // Copies, and where they go.
    story.plants_name("a folder", "periwinkle-copies");
    let folder = story.environment().directory().join("periwinkle-copies");
    let folder = folder.to_str().unwrap().to_owned();
    story.runs(&["export", file.as_str(), "--to", &folder], "").await;
    std::fs::create_dir(&folder).unwrap();
    story.succeeds(&["export", file.as_str(), hostile.as_str(), "--to", &folder]).await;
    story.runs(&["transcript", "quizzical zeppelin", "--to", &folder], "").await;
    story.plants("a drive's passphrase", "nine tin soldiers under glass");
    let export = ["export", file.as_str(), "--usb", "--passphrase-stdin"];
    story.runs(&export, "nine tin soldiers under glass\n").await;
    story.runs(&["print", message.as_str()], "").await;

    // The way to the server is gone, in three ways; and the server is another one's.
    let names = story.environment().socks().clone();
    let refused = names.add_fault(SocksFault::new(Act::Reply(Reply::CONNECTION_REFUSED))).unwrap();
    names.cut_all().await;
    story.runs(&["refresh"], "").await;
    assert!(names.remove_fault(refused));
    let unknown = names.add_fault(SocksFault::new(Act::Reply(Reply::ONION_NOT_FOUND))).unwrap();
    names.cut_all().await;
    story.runs(&["refresh"], "").await;
    assert!(names.remove_fault(unknown));
    names.set_names(NameTable::new());
    names.cut_all().await;
    story.runs(&["refresh"], "").await;
    names.set_names(NameTable::new().with(ONION, 80, story.environment().server().address()).unwrap());
    story.plants("where a server sends to", "http://periwinkle.example/");
    let elsewhere = FaultAct::Redirect { status: 302, location: "http://periwinkle.example/".to_owned() };
    for act in [nonsense, FaultAct::html(200, "gibbering periwinkle"), FaultAct::not_json(), elsewhere] {
        let rule = story.faults("/api/v1/sources", act);
        story.runs(&["refresh"], "").await;
        story.mends(rule);
    }

    // A crash, and the end.
    story.crashes().await;
    story.signs_in().await;
    story.succeeds(&["refresh"]).await;
    story.succeeds(&["logout", "--yes"]).await;
    story.signs_in().await;
    let end = Command::EndSessions { journalist: None };
    story.happens(end);
    story.runs(&["refresh"], "").await;

    let (canaries, written) = story.ends().await;
    // The search finds what is there: in each log something that may be there, and has to be.
    let ids = [Canary::new("an item's id", broken[1].as_str()), Canary::new("a session", SESSION_STARTED)];
    let found_ids = found(&ids, &written).join("\n");
    assert!(found_ids.contains("an item's id") && found_ids.contains("daemon.log"), "{found_ids}");
    assert!(found_ids.contains("a session") && found_ids.contains("proxy.log"), "{found_ids}");
    for log in ["daemon.log", "proxy.log"] {
        let log = written.iter().find(|written| written.place.ends_with(log)).unwrap();
        assert!(log.text.contains("DEBUG"), "{} has the level that was asked for", log.place);
    }
    assert!(written.iter().any(|written| written.place.ends_with("proxy.stderr")));
    let leaked = found(&canaries, &written);
    assert!(leaked.is_empty(), "{} lines:\n{}", leaked.len(), leaked.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_is_wrong_is_named_and_not_shown() {
    for (setting, value) in [
        ("SD_PROXY_ORIGIN", "ftp://periwinklewolfsbane.onion/zeppelin"),
        ("SD_PROXY_ORIGIN", "http://user:quizzical@periwinklewolfsbane.onion"),
        ("SD_PROXY_SOCKS", "periwinklewolfsbane.onion:9050"),
    ] {
        let mut story = Story::begin_with("debug", &[(setting, value)]).await;
        for word in ["periwinklewolfsbane", "quizzical", "zeppelin", MARLOW.passphrase] {
            story.plants("a word", word);
        }
        let told = story.fails_to_sign_in("marlow", MARLOW.passphrase).await;
        assert!(told.contains(setting), "{told}");
        let (canaries, written) = story.ends().await;
        assert_eq!(found(&canaries, &written), [] as [String; 0]);
    }
}

/// The lines of a log that are about the call with this id.
fn about<'a>(log: &'a str, request: &str) -> Vec<&'a str> {
    let field = format!("request={request} ");
    log.lines().filter(|line| line.contains(&field)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_found_by_one_id_in_both_vms_and_at_the_server() {
    let mut story = Story::begin("debug").await;
    story.fails_to_sign_in("marlow", "an ocelot forgot eleven parasols").await;
    story.signs_in().await;
    story.succeeds(&["refresh"]).await;
    story.succeeds(&["logout", "--yes"]).await;
    let at_the_server = story.environment().server().control().requests();
    let (_, written) = story.ends().await;
    let log = |name: &str| &written.iter().find(|written| written.place.ends_with(name)).unwrap().text;
    let (daemon, proxy) = (log("daemon.log"), log("proxy.log"));

    let sent: Vec<_> = daemon.lines().filter(|line| line.contains("call sent")).collect();
    let logins: Vec<_> = sent.iter().filter(|line| line.contains("call=\"login\"")).collect();
    assert_eq!(logins.len(), 2, "{daemon}");
    let mut ids = Vec::new();
    for (line, (how, end)) in logins.into_iter().zip([("WARN", "call failed"), ("DEBUG", "call answered")]) {
        let call = "call=\"login\"";
        let id = line.split_once("request=").unwrap().1.split(' ').next().unwrap();
        ids.push(id);
        for (log, begin) in [(daemon, "call sent"), (proxy, "call began")] {
            let [first, last] = about(log, id)[..] else { panic!("{id} in\n{log}") };
            assert!(first.contains(begin) && first.contains(call), "{first}");
            assert!(last.contains(end) && last.contains(how) && last.contains(call), "{last}");
            assert!(last.contains("elapsed_ms=") && last.contains("bytes="), "{last}");
        }
        let asked = format!("req-{id}");
        let with_it: Vec<_> = at_the_server.iter().filter(|one| one.request_id.as_deref() == Some(&asked)).collect();
        let [one] = with_it[..] else { panic!("{asked} in {at_the_server:?}") };
        assert_eq!(one.path, "/api/v1/token");
        assert!(proxy.contains(&format!("request_id=\"{asked}\"")), "{proxy}");
    }
    assert_ne!(ids[0], ids[1]);
    // Whatever the server was asked for has the id of a call that the daemon sent.
    for one in &at_the_server {
        let id = one.request_id.as_deref().unwrap().strip_prefix("req-").unwrap();
        assert!(sent.iter().any(|line| line.contains(&id[..32])), "{id} of {} in\n{daemon}", one.path);
    }
}
