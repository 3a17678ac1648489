//! Looks for what must not be in a log, in every form in which it could have come there.

use std::fmt::Write as _;
use std::path::Path;

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Something that must not be found: what it is, and how it is spelled.
#[derive(Debug, Clone)]
pub(crate) struct Canary {
    what: &'static str,
    spelled: String,
    /// A command may tell it to the person who typed it; in a log it must not be all the same.
    may_be_told: bool,
}

impl Canary {
    pub(crate) fn new(what: &'static str, spelled: impl Into<String>) -> Self {
        let spelled = spelled.into();
        assert!(spelled.len() >= 6, "{what} is too short to be told from chance");
        Self { what, spelled, may_be_told: false }
    }

    /// The same, which a command may tell to the person who typed it.
    pub(crate) fn that_may_be_told(mut self) -> Self {
        self.may_be_told = true;
        self
    }

    /// The forms in which it is in this text, which is in lower case.
    fn forms_in(&self, lower: &str, text: &str) -> Vec<&'static str> {
        let digits_only = self.spelled.bytes().all(|byte| byte.is_ascii_digit());
        let mut found = Vec::new();
        for (form, needle) in forms(&self.spelled) {
            let is_there = match form {
                // Digits are in many other numbers, so they have to stand alone.
                _ if digits_only && needle == self.spelled => stands_alone(text, &needle),
                "base64" | "base64url" => text.contains(&needle),
                _ => lower.contains(&needle.to_lowercase()),
            };
            if is_there {
                found.push(form);
            }
        }
        found
    }
}

/// Every form of these words, with its name.
fn forms(words: &str) -> Vec<(&'static str, String)> {
    let bytes = words.as_bytes();
    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let encoded = bytes.iter().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
        text
    });
    let json = serde_json::to_string(words).unwrap();
    let ascii: String = words
        .encode_utf16()
        .map(|unit| match u8::try_from(unit) {
            Ok(byte) if byte.is_ascii() && !byte.is_ascii_control() => char::from(byte).to_string(),
            _ => format!("\\u{unit:04x}"),
        })
        .collect();
    let debug = format!("{words:?}");
    let octets: Vec<_> = bytes.iter().map(u8::to_string).collect();
    let mut forms = vec![
        ("plain", words.to_owned()),
        ("hex", hex),
        ("URL", encoded.clone()),
        ("form", encoded.replace("%20", "+")),
        ("JSON", json[1..json.len() - 1].to_owned()),
        ("JSON in ASCII", ascii),
        ("Debug", debug[1..debug.len() - 1].to_owned()),
        ("list of bytes", octets.join(", ")),
        ("file name", words.replace(' ', "_")),
        ("slug", words.replace(' ', "-")),
        ("words run together", words.replace(' ', "")),
    ];
    for offset in 0..3 {
        let text = base64_behind(bytes, offset);
        forms.push(("base64url", text.replace('+', "-").replace('/', "_")));
        forms.push(("base64", text));
    }
    forms
}

/// What base64 makes of these bytes behind others, wherever in a group of three they begin: the part that the others do not
/// change.
fn base64_behind(bytes: &[u8], offset: usize) -> String {
    let all = [vec![0; offset], bytes.to_vec()].concat();
    let mut text = String::new();
    for group in all.chunks(3) {
        let group: Vec<u32> = group.iter().map(|byte| u32::from(*byte)).collect();
        let bits = group[0] << 16 | group.get(1).unwrap_or(&0) << 8 | group.get(2).unwrap_or(&0);
        for place in 0..=group.len() {
            let index = usize::try_from(bits >> (18 - 6 * place) & 0x3f).unwrap();
            text.push(char::from(STANDARD[index]));
        }
    }
    let shared_end = usize::from(all.len() % 3 != 0);
    text[[0, 2, 3][offset]..text.len() - shared_end].to_owned()
}

fn stands_alone(text: &str, needle: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || "-_.".contains(character);
    text.match_indices(needle).any(|(at, found)| {
        let before = text[..at].chars().next_back();
        let after = text[at + found.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// What a process wrote, and where.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) place: String,
    pub(crate) text: String,
    /// Whether a command told it to the person who typed it.
    pub(crate) to_a_person: bool,
}

impl Written {
    /// What nobody asked for.
    pub(crate) fn new(place: impl Into<String>, text: impl Into<String>) -> Self {
        Self { place: place.into(), text: text.into(), to_a_person: false }
    }

    /// A file, which says nothing where it is not there.
    pub(crate) fn file(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_default();
        Self::new(path.display().to_string(), String::from_utf8_lossy(&bytes))
    }
}

/// What of the canaries is in what was written: a line for each.
pub(crate) fn found(canaries: &[Canary], written: &[Written]) -> Vec<String> {
    let mut found = Vec::new();
    for Written { place, text, to_a_person } in written {
        let lower = text.to_lowercase();
        for canary in canaries.iter().filter(|canary| !(*to_a_person && canary.may_be_told)) {
            let forms = canary.forms_in(&lower, text);
            if !forms.is_empty() {
                let first = text.lines().find(|line| !canary.forms_in(&line.to_lowercase(), line).is_empty());
                found.push(format!("{} as {forms:?} in {place}: {}", canary.what, first.unwrap_or_default()));
            }
        }
    }
    found
}

#[test]
fn a_canary_is_found_in_every_form() {
    let canary = Canary::new("words", "Zwölf \"Boxen\"\n");
    for (form, text) in forms(&canary.spelled) {
        let line = format!("INFO something happened value={text}, id=7");
        let written = [Written::new(form, line)];
        assert_eq!(found(std::slice::from_ref(&canary), &written).len(), 1, "{form}");
    }
    let nothing = [Written::new("nothing", "INFO something happened id=7")];
    assert_eq!(found(&[canary], &nothing), [] as [String; 0]);
}

#[test]
fn base64_is_found_wherever_it_begins_and_whatever_follows() {
    // "xyabcdefghz" and others, as any base64 has them.
    let canary = Canary::new("letters", "abcdefgh");
    for text in ["YWJjZGVmZ2g=", "eGFiY2RlZmdoeg==", "eHlhYmNkZWZnaHo=", "eHl6YWJjZGVmZ2g="] {
        let written = [Written::new("a log", format!("value={text}"))];
        assert_eq!(found(std::slice::from_ref(&canary), &written).len(), 1, "{text}");
    }
}

#[test]
fn a_code_is_found_alone_and_not_in_other_numbers() {
    let canary = Canary::new("code", "012345");
    let count = |text: &str| found(std::slice::from_ref(&canary), &[Written::new("a log", text)]).len();
    for text in ["code=012345", "{\"one_time_code\":\"012345\"}", "012345", "(012345)", "MDEyMzQ1"] {
        assert_eq!(count(text), 1, "{text}");
    }
    for text in ["2026-01-02T03:04:05.012345Z", "bytes=10123456", "id=ab012345-0000"] {
        assert_eq!(count(text), 0, "{text}");
    }
}
