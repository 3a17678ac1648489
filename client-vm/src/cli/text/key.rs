//! Keys in words.

use control::{KeyProblem, KeyState, SourceRow};
use protocol::value::Fingerprint;

use super::super::safe_text::sanitized;
use super::short_id;

/// How many digits of a fingerprint stand together.
const GROUP: usize = 4;

/// A fingerprint as people compare it: in groups of four.
pub(super) fn grouped(fingerprint: &Fingerprint) -> String {
    let mut text = String::new();
    for (at, digit) in fingerprint.as_str().chars().enumerate() {
        if at > 0 && at % GROUP == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// How the key of a source stands, in lines: whether it can be answered or why not, and what to do.
pub(super) fn lines(source: &SourceRow) -> Vec<String> {
    match &source.key {
        KeyState::None => {
            vec!["none yet: the source can be answered once the server has one, which comes when it returns".to_owned()]
        }
        KeyState::New { offered } => {
            vec!["has just come and is being looked at".to_owned(), format!("offered  {}", grouped(offered))]
        }
        KeyState::Pinned { fingerprint } => {
            vec!["the source can be answered".to_owned(), format!("pinned   {}", grouped(fingerprint))]
        }
        KeyState::Held { problem, pinned, offered, detail } => vec![
            format!("replies are held back: {}", problem_words(*problem)),
            pinned.as_ref().map_or("pinned   none".to_owned(), |pinned| format!("pinned   {}", grouped(pinned))),
            format!("offered  {}", grouped(offered)),
            sanitized(detail),
            format!(
                "`splitdrop trust-key {} --fingerprint FPR` pins the offered one, once somebody has compared it",
                short_id(source.id.as_str())
            ),
        ],
    }
}

pub(super) fn problem_words(problem: KeyProblem) -> &'static str {
    match problem {
        KeyProblem::Changed => "the server offers another key than before",
        KeyProblem::Mismatch => "the server sends a key of another fingerprint than it says",
        KeyProblem::Unusable => "nothing can be encrypted to the key that the server offers",
    }
}

/// Another key of a source is pinned.
pub(in crate::cli) fn trusted(source: &SourceRow, before: Option<&Fingerprint>, now: &Fingerprint) -> String {
    let whose = sanitized(source.designation.as_str());
    if before == Some(now) {
        return format!("The key of {whose} is the one that was pinned before.\npinned  {}\n", grouped(now));
    }
    let before = before.map_or("none".to_owned(), grouped);
    format!(
        "Another key of {whose} is pinned; replies that were refused for it go on with `splitdrop retry`.\n\
         before  {before}\nnow     {}\n",
        grouped(now)
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::{fingerprint, source};
    use super::*;

    #[test]
    fn r5_another_key_is_told_with_the_one_before() {
        let marmot = source(1, "candid\u{202e} marmot");
        let (before, now) = (fingerprint('A'), Fingerprint::try_new("0123456789ABCDEF".repeat(4)).unwrap());
        let groups = "0123 4567 89AB CDEF ".repeat(4);
        assert_eq!(grouped(&now), groups.trim_end());
        let said = trusted(&marmot, Some(&before), &now);
        let expected = format!(
            "Another key of candid\\u{{202e}} marmot is pinned; replies that were refused for it go on with \
             `splitdrop retry`.\nbefore  {}\nnow     {}\n",
            ["AAAA"; 10].join(" "),
            groups.trim_end()
        );
        assert_eq!(said, expected);
        assert!(trusted(&marmot, None, &now).contains("\nbefore  none\n"));
        assert!(trusted(&marmot, Some(&now), &now).contains("was pinned before"));
    }
}
