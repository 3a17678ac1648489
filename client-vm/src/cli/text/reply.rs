//! What became of a reply, or a draft of one.

use control::{SourceRow, Taken};

use super::super::safe_text::sanitized;

/// A reply was taken, or had been.
pub(in crate::cli) fn replied(source: &SourceRow, taken: &Taken) -> String {
    let whom = sanitized(source.designation.as_str());
    match taken.act {
        Some(act) => format!("Reply to {whom} taken, act {}; `splitdrop queue` shows how far it is.\n", act.0),
        None => format!("Reply to {whom} was taken already; `splitdrop queue` shows how far it is.\n"),
    }
}

/// A draft was kept, or forgotten.
pub(in crate::cli) fn draft(source: &SourceRow, kept: bool) -> String {
    let whom = sanitized(source.designation.as_str());
    if kept {
        format!("Kept as the draft to {whom}; nothing was sent.\n")
    } else {
        format!("There is no draft to {whom} any more; nothing was sent.\n")
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::{source, taken};
    use super::*;

    #[test]
    fn a_reply_that_was_taken_says_where_to_look() {
        let marmot = source(1, "candid\u{202e} marmot");
        assert_eq!(
            replied(&marmot, &taken(1, 0)),
            "Reply to candid\\u{202e} marmot taken, act 12; `splitdrop queue` shows how far it is.\n"
        );
        assert!(replied(&marmot, &taken(0, 1)).contains("was taken already"));
        assert!(draft(&marmot, true).starts_with("Kept as the draft to candid\\u{202e} marmot;"));
        assert!(draft(&marmot, false).contains("no draft to candid\\u{202e} marmot any more"));
    }
}
