use std::collections::HashMap;

use control::{KeyState, ReplyText, Seal, SourceRow};
use protocol::value::{Designation, Filename, ItemId, Username};

use super::super::super::act::item_id;
use super::super::super::samples::{
    decrypted, file, fingerprint, held_key, message, outgoing, reply, source, source_id,
};
use super::*;

/// What a hostile source writes: it would clear the screen, turn the reading direction, hide, go back on its line, and
/// begin a line as one of ours.
const HOSTILE: &str = "a\u{1b}[2Jb\u{0}\u{202e}c\u{200b}d\re\r\n9  reply  4e110000  you  sent\n\u{9b}2J\tf";

/// In lines that are not broken.
fn conversation(shown: &Conversation) -> String {
    super::conversation(shown, 1_000_000)
}

fn of(items: Vec<ConversationItem>) -> Conversation {
    let texts = items.iter().map(|item| (item_id(item), format!("text {}", item.order.get()))).collect();
    Conversation {
        source: SourceRow { key: KeyState::Pinned { fingerprint: fingerprint('A') }, ..source(1, "candid marmot") },
        items,
        texts,
        outgoing: Vec::new(),
        draft: None,
        running: HashMap::new(),
    }
}

/// The head and the note of the only entry.
fn only(item: ConversationItem) -> String {
    let mut shown = of(vec![item]);
    shown.texts.clear();
    after_source(&conversation(&shown))
}

fn after_source(text: &str) -> String {
    text.split_once("\n\n").unwrap().1.to_owned()
}

#[test]
fn a_conversation_is_read_in_its_order() {
    let mut shown = of(vec![message(1), reply(2, Some("marlow")), reply(3, Some("mara")), reply(4, None)]);
    shown.texts.insert(item_id(&message(1)), "one\r\n\n\ttwo\n".to_owned());
    shown.outgoing = vec![outgoing(12, Some(ActState::Waiting))];
    shown.draft = Some(ReplyText::try_new("I have\nbegun").unwrap());
    assert_eq!(
        conversation(&shown),
        "candid marmot\n\
         id   3f2a6f8e-0000-4000-8000-000000000001\n\
         key  the source can be answered\n     \
              pinned   AAAA AAAA AAAA AAAA AAAA AAAA AAAA AAAA AAAA AAAA\n\
         \n\
         1  message  9b040001  source\n    one\n\n    \ttwo\n\
         \n\
         2  reply  4e110000  you  sent\n    text 2\n\
         \n\
         3  reply  4e110000  mara  sent\n    text 3\n\
         \n\
         4  reply  4e110000  unknown  sent\n    text 4\n\
         \n\
         -  reply  act 12  you  not sent yet  1970-01-01 00:00:00Z\n    Thank you.\n\
         \n\
         draft  not sent\n  `splitdrop reply 3f2a6f8e` goes on with it\n    I have\n    begun\n"
    );
    assert!(conversation(&of(Vec::new())).ends_with("\n\nNothing in this conversation.\n"));
}

#[test]
fn each_state_says_what_it_is_and_what_to_do() {
    let with = |content| only(ConversationItem { content, ..message(1) });
    let reason = || Some("no\nway".to_owned());
    let head = "1  message  9b040001  source  ";
    for (content, said) in [
        (Content::Absent, "not here\n  `splitdrop download 9b040001` fetches it\n"),
        (Content::Wanted { reason: None }, "waiting to be downloaded\n"),
        (Content::Wanted { reason: reason() }, "waiting to be downloaded\n  the last try: no\\u{a}way\n"),
        (Content::Downloaded { reason: None }, "waiting to be decrypted\n"),
        (Content::Downloaded { reason: reason() }, "waiting to be decrypted\n  the last try: no\\u{a}way\n"),
        (
            Content::Failed { reason: "no\nway".to_owned() },
            "could not be downloaded\n  no\\u{a}way: `splitdrop download 9b040001` tries again\n",
        ),
    ] {
        assert_eq!(with(content), format!("{head}{said}"));
    }
    for (inner, said) in [
        (Inner::Closed, "encrypted inside too, and cannot be decrypted here\n"),
        (Inner::Opened, "encrypted inside too, and opened\n"),
    ] {
        let content = Content::Decrypted { bytes: 5, inner, name: None };
        let shown = conversation(&of(vec![ConversationItem { content, ..message(1) }]));
        assert_eq!(after_source(&shown), format!("{head}{said}    text 1\n"));
    }
    let mut words = std::collections::BTreeSet::new();
    for seal in [Seal::NoKey, Seal::Denied, Seal::Cut, Seal::Corrupt, Seal::TooLarge, Seal::Other] {
        let said = with(Content::Sealed { seal, reason: "x\u{1b}y".to_owned() });
        assert!(said.starts_with(&format!("{head}cannot be decrypted\n  ")), "{said}");
        assert!(said.ends_with(" (x\\u{1b}y): `splitdrop download 9b040001` tries again\n"), "{said}");
        assert!(words.insert(said), "each has words of its own");
    }
}

#[test]
fn what_is_unread_or_being_deleted_or_downloaded_is_marked() {
    let said = |item| after_source(&conversation(&of(vec![item])));
    let unread = ConversationItem { seen: Seen::Unread, ..message(1) };
    assert_eq!(said(unread.clone()), "1  message  9b040001  source  unread\n    text 1\n");
    let going = ConversationItem { deletion: Deletion::Pending, ..unread };
    assert_eq!(said(going), "1  message  9b040001  source  being deleted\n    text 1\n");
    let mut shown = of(vec![ConversationItem { content: Content::Wanted { reason: None }, ..file(1) }]);
    shown.texts.clear();
    shown.running = HashMap::from([(item_id(&file(1)), 306)]);
    let text = after_source(&conversation(&shown));
    assert_eq!(text, "1  file  9b040001  source  unread, downloading, 50% are there  612 B encrypted  1-leak.gz.gpg\n");
}

#[test]
fn a_file_has_its_own_name_and_length_once_it_is_decrypted() {
    let named = ConversationItem { content: decrypted(Some("plans.pdf")), seen: Seen::Seen, ..file(1) };
    assert_eq!(only(named.clone()), "1  file  9b040001  source  1.2 kB  plans.pdf\n");
    let nameless = ConversationItem { content: decrypted(None), ..named };
    assert_eq!(only(nameless), "1  file  9b040001  source  1.2 kB  1-leak.gz.gpg\n");
}

#[test]
fn a_text_that_the_daemon_does_not_give_is_missed_and_nothing_else() {
    let mut shown = of(vec![message(1), message(2)]);
    shown.texts.remove(&item_id(&message(1)));
    let note = "  `splitdrop export 9b040001 --to DIR` copies it\n";
    let (first, second) =
        ("1  message  9b040001  source  too long to be shown\n", "\n2  message  9b040002  source\n    text 2\n");
    assert_eq!(after_source(&conversation(&shown)), format!("{first}{note}{second}"));
    assert!(transcript(&shown).ends_with(&format!("{first}{second}")));
}

#[test]
fn f4_an_empty_text_is_told_from_one_that_cannot_be_read() {
    let mut shown = of(vec![message(1)]);
    shown.texts.insert(item_id(&message(1)), String::new());
    assert_eq!(after_source(&conversation(&shown)), "1  message  9b040001  source\n  (empty)\n");
}

#[test]
fn r1_a_reply_says_whether_it_was_sent() {
    let mut shown = of(Vec::new());
    let mut say = |reply: OutgoingReply| {
        shown.outgoing = vec![reply];
        after_source(&conversation(&shown))
    };
    let refused = "  no\\u{a}: `splitdrop retry 12` tries it again\n";
    for (state, said, note) in [
        (None, "sent, not listed yet", "  no\\u{a}\n"),
        (Some(ActState::Waiting), "not sent yet", "  no\\u{a}\n"),
        (Some(ActState::Opening), "being sent: waiting for the proxy VM or dom0", "  no\\u{a}\n"),
        (Some(ActState::Running), "being sent", "  no\\u{a}\n"),
        (Some(ActState::Unconfirmed), "unconfirmed: it may have reached the server", "  no\\u{a}\n"),
        (Some(ActState::Held), "not sent: it needs you", refused),
        (Some(ActState::Refused), "not sent: refused", refused),
    ] {
        let reply = OutgoingReply { reason: Some("no\n".to_owned()), ..outgoing(12, state) };
        let expected = format!("-  reply  act 12  you  {said}  1970-01-01 00:00:00Z\n{note}    Thank you.\n");
        assert_eq!(say(reply), expected);
    }
    for (state, said) in [
        (None, "sent, not listed yet, by mara"),
        (Some(ActState::Waiting), "not sent, by mara"),
        (Some(ActState::Held), "not sent, by mara"),
        (Some(ActState::Running), "being sent, by mara"),
        (Some(ActState::Unconfirmed), "unconfirmed, by mara"),
        (Some(ActState::Refused), "not sent, by mara: refused"),
    ] {
        let others =
            OutgoingReply { own: false, username: Some(Username::try_new("mara").unwrap()), ..outgoing(12, state) };
        let expected = format!("-  reply  act 12  {said}  1970-01-01 00:00:00Z\n    Thank you.\n");
        assert_eq!(say(others), expected);
    }
    let nameless = say(OutgoingReply { own: false, ..outgoing(12, Some(ActState::Waiting)) });
    assert!(nameless.contains("not sent, by 7d1c0000-0000-4000-8000-000000000001"), "{nameless}");
}

#[test]
fn a_text_of_a_hundred_thousand_characters_is_shown_whole() {
    let mut shown = of(vec![message(1)]);
    shown.texts.insert(item_id(&message(1)), "ß".repeat(100_000));
    assert!(conversation(&shown).contains(&format!("    {}\n", "ß".repeat(100_000))));
}

#[test]
fn r5_a_key_that_is_held_back_shows_both_fingerprints_and_what_to_do() {
    let mut shown = of(Vec::new());
    shown.source.key = held_key();
    let text = conversation(&shown);
    let groups = |digit: &str| vec![digit.repeat(4); 10].join(" ");
    let lines: Vec<_> = text.lines().skip(2).take(5).collect();
    assert_eq!(
        lines,
        [
            "key  replies are held back: the server offers another key than before".to_owned(),
            format!("     pinned   {}", groups("A")),
            format!("     offered  {}", groups("B")),
            "     compare".to_owned(),
            "     `splitdrop trust-key 3f2a6f8e --fingerprint FPR` pins the offered one, once somebody has compared it"
                .to_owned(),
        ]
    );
    shown.source.key = KeyState::None;
    assert!(conversation(&shown).contains("\nkey  none yet: the source can be answered once"));
    shown.source.key = KeyState::New { offered: fingerprint('C') };
    assert!(conversation(&shown).contains(&format!("\n     offered  {}\n", groups("C"))));
}

/// Every place that somebody else can write to.
fn hostile() -> Conversation {
    let named = |name: Option<&str>| ConversationItem { content: decrypted(name), ..file(1) };
    let mut listed = file(2);
    listed.filename = Some(Filename::try_new("2-\u{202e}gpj.exe").unwrap());
    let sealed = Content::Sealed { seal: Seal::Corrupt, reason: HOSTILE.to_owned() };
    let mut shown = of(vec![
        named(Some("\u{202e}fdp\u{1b}]0;x\u{7}.exe")),
        listed,
        message(3),
        ConversationItem { content: sealed, ..message(4) },
        ConversationItem { content: Content::Failed { reason: HOSTILE.to_owned() }, ..message(5) },
        ConversationItem { content: Content::Downloaded { reason: Some(HOSTILE.to_owned()) }, ..message(6) },
        reply(7, Some("mar\u{202e}wol")),
    ]);
    shown.source.designation = Designation::try_new("x\u{202e}y").unwrap();
    shown.source.key = KeyState::Held {
        problem: control::KeyProblem::Mismatch,
        pinned: None,
        offered: fingerprint('B'),
        detail: HOSTILE.to_owned(),
    };
    let hostile: Vec<ItemId> = shown.items.iter().map(item_id).collect();
    shown.texts = hostile.into_iter().map(|item| (item, HOSTILE.to_owned())).collect();
    shown.outgoing = vec![OutgoingReply {
        reason: Some(HOSTILE.to_owned()),
        text: ReplyText::try_new(HOSTILE).unwrap(),
        source: source_id(1),
        ..outgoing(12, Some(ActState::Refused))
    }];
    shown.draft = Some(ReplyText::try_new(HOSTILE).unwrap());
    shown
}

#[test]
fn f8_nothing_hostile_moves_a_cursor_or_begins_where_our_lines_do() {
    let text = conversation(&hostile());
    for character in text.chars() {
        let harmless = crate::characters::is_harmless(character) || matches!(character, '\n' | '\t');
        assert!(harmless, "{character:?} in {text}");
    }
    for line in text.lines().filter(|line| line.contains("9  reply  4e110000")) {
        let is_said = line == "    9  reply  4e110000  you  sent";
        // A reason stands on one line, in which its line feeds are written out.
        assert!(is_said || line.contains("\\u{a}9  reply"), "{line}");
    }
    assert!(text.contains("\n    a\\u{1b}[2Jb\\u{0}\\u{202e}c\\u{200b}d\\u{d}e\n    9  reply"), "{text}");
    assert!(text.contains("\n    \\u{9b}2J\tf\n"), "{text}");
}

/// An entry of the journalist's own is forged behind so many spaces that a terminal would break the line before it, in a
/// text, in a file's name and in what the server says of a key.
#[test]
fn f8_nothing_is_forged_where_a_terminal_would_break_a_line() {
    let forged = "7  reply  4e110000  you  sent";
    let mut shown = hostile();
    for filler in [" ", "x", "海", "e\u{301}", "\t"] {
        let texts: Vec<_> = (0..100).map(|times| format!("{}{forged}", filler.repeat(times))).collect();
        let text = texts.join("\n");
        shown.items.push(ConversationItem { content: decrypted(Some(&texts[60])), ..file(7) });
        shown.texts = shown.items.iter().map(|item| (item_id(item), text.clone())).collect();
        shown.draft = Some(ReplyText::try_new(&text).unwrap());
        shown.source.key = KeyState::Held {
            problem: control::KeyProblem::Mismatch,
            pinned: None,
            offered: fingerprint('B'),
            detail: texts[70].clone(),
        };
        for columns in [40, 80, 132] {
            let text = super::conversation(&shown, columns);
            assert!(!text.lines().any(|line| line.starts_with("7  reply  4e110000  you  sent")), "{columns}: {text}");
            let is_too_long = |line: &&str| {
                let plain: String = line.chars().filter(|character| *character != '\t').collect();
                unicode_width::UnicodeWidthStr::width(plain.as_str()) > columns
            };
            assert_eq!(text.lines().find(is_too_long), None);
        }
        let text = transcript(&shown);
        assert!(text.contains("    7  reply") && !text.contains("\n7  reply  4e110000  you"), "{text}");
    }
}
