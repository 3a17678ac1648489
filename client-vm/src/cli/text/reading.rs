//! Decrypting in words.

use control::{KeyProblem, LaneCounts, ReadChange, ReadStep, Seal};
use protocol::value::{ItemId, SourceId};

use super::super::safe_text::sanitized;
use super::download::lane;
use super::{key, short_id};

/// A step of reading.
pub(super) fn change(change: &ReadChange) -> String {
    let step = match &change.step {
        ReadStep::Started => "started".to_owned(),
        ReadStep::Decrypted => "done, it can be read".to_owned(),
        ReadStep::Postponed(failure) => format!("not yet: {}", sanitized(&failure.message)),
        ReadStep::Sealed(failure) => format!("failed: {}", sanitized(&failure.message)),
        ReadStep::Stopped => "stopped".to_owned(),
    };
    let kind = match change.item {
        ItemId::Submission(_) => "submission",
        ItemId::Reply(_) => "reply",
    };
    let (item, source) = (short_id(change.item.as_str()), short_id(change.source.as_str()));
    format!("Decrypting {kind} {item} of {source}: {step}.\n")
}

pub(super) fn key_held(source: SourceId, problem: KeyProblem) -> String {
    let source = short_id(source.as_str());
    format!("Replies to {source} are held back: {}: `splitdrop show {source}`.\n", key::problem_words(problem))
}

/// How much is to be decrypted, in one line; none when there is nothing to say.
pub(super) fn counts(counts: LaneCounts) -> Option<String> {
    lane(counts, "being decrypted", "cannot be decrypted")
}

/// Why something cannot be decrypted.
pub(super) fn seal_words(seal: Seal) -> &'static str {
    match seal {
        Seal::NoKey => "none of the keys that it was encrypted to is here",
        Seal::Denied => "the use of the key was denied",
        Seal::Cut => "it ends too early",
        Seal::Corrupt => "it is damaged, or cannot be trusted to be whole",
        Seal::TooLarge => "what it unpacks to is too large",
        Seal::Other => "for another reason",
    }
}

#[cfg(test)]
mod tests {
    use control::{Failure, FailureKind};

    use super::super::super::samples::{item, source_id};
    use super::*;

    #[test]
    fn each_step_is_a_line() {
        let line = |step| change(&ReadChange { source: source_id(1), item: item(1), step });
        let failure = || Failure { kind: FailureKind::Sealed, message: "no\nkey".to_owned() };
        for (step, said) in [
            (ReadStep::Started, "started"),
            (ReadStep::Decrypted, "done, it can be read"),
            (ReadStep::Postponed(failure()), "not yet: no\\u{a}key"),
            (ReadStep::Sealed(failure()), "failed: no\\u{a}key"),
            (ReadStep::Stopped, "stopped"),
        ] {
            assert_eq!(line(step), format!("Decrypting submission 9b040001 of 3f2a6f8e: {said}.\n"));
        }
    }

    #[test]
    fn r5_a_key_that_is_held_back_is_told_with_what_shows_more() {
        assert_eq!(
            key_held(source_id(1), KeyProblem::Changed),
            "Replies to 3f2a6f8e are held back: the server offers another key than before: `splitdrop show 3f2a6f8e`.\n"
        );
    }
}
