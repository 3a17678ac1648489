//! Decrypting as JSON: its events, and how it stands.

use control::{KeyProblem, OpenPgpStatus, ReadChange, ReadStep};
use protocol::value::SourceId;
use serde_json::{Value, json};

use super::conversation::key_problem;
use super::download::kind;

/// A step of reading, with `reason` where there is one.
pub(super) fn change(change: &ReadChange) -> Value {
    let (step, failure) = match &change.step {
        ReadStep::Started => ("started", None),
        ReadStep::Decrypted => ("decrypted", None),
        ReadStep::Postponed(failure) => ("postponed", Some(failure)),
        ReadStep::Sealed(failure) => ("sealed", Some(failure)),
        ReadStep::Stopped => ("stopped", None),
    };
    let mut event = json!({
        "event": "read",
        "source": change.source.as_str(),
        "item": change.item.as_str(),
        "kind": kind(change.item),
        "step": step,
    });
    if let (Some(fields), Some(failure)) = (event.as_object_mut(), failure) {
        fields.insert("reason".to_owned(), failure.message.as_str().into());
    }
    event
}

pub(super) fn key_held(source: SourceId, problem: KeyProblem) -> Value {
    json!({ "event": "key_held", "source": source.as_str(), "problem": key_problem(problem) })
}

/// How decrypting and encrypting stand. Of the newsroom's key either field is null.
pub(super) fn status(status: &OpenPgpStatus) -> Value {
    let (fingerprint, problem) = match &status.newsroom_key {
        Ok(fingerprint) => (Some(fingerprint.as_str()), None),
        Err(problem) => (None, Some(problem.as_str())),
    };
    json!({
        "backend": status.backend,
        "problem": status.problem,
        "newsroom_key": { "fingerprint": fingerprint, "problem": problem },
        "held_keys": status.held_keys,
    })
}

#[cfg(test)]
mod tests {
    use control::{Event, Failure, FailureKind};

    use super::super::super::samples::{item, source_id};
    use super::super::event;
    use super::*;

    #[test]
    fn a_step_has_a_reason_where_there_is_one() {
        let event = |step| change(&ReadChange { source: source_id(1), item: item(1), step });
        let failure = || Failure { kind: FailureKind::Sealed, message: "no key".to_owned() };
        for (step, name, reason) in [
            (ReadStep::Started, "started", None),
            (ReadStep::Decrypted, "decrypted", None),
            (ReadStep::Postponed(failure()), "postponed", Some("no key")),
            (ReadStep::Sealed(failure()), "sealed", Some("no key")),
            (ReadStep::Stopped, "stopped", None),
        ] {
            let mut expected = json!({
                "event": "read",
                "source": "3f2a6f8e-0000-4000-8000-000000000001",
                "item": "9b040001-0000-4000-8000-000000000000",
                "kind": "submission",
                "step": name,
            });
            if let Some(reason) = reason {
                expected.as_object_mut().unwrap().insert("reason".to_owned(), reason.into());
            }
            assert_eq!(event(step), expected);
        }
    }

    #[test]
    fn a_key_that_is_held_back_is_an_event() {
        let held = Event::KeyHeld { source: source_id(1), problem: KeyProblem::Unusable };
        assert_eq!(
            event(&held),
            "{\"event\":\"key_held\",\"format\":1,\"problem\":\"unusable\",\
             \"source\":\"3f2a6f8e-0000-4000-8000-000000000001\"}"
        );
    }

    #[test]
    fn of_the_newsrooms_key_there_is_a_fingerprint_or_a_problem() {
        let none = OpenPgpStatus {
            backend: "key-file".to_owned(),
            problem: Some("no way".to_owned()),
            newsroom_key: Err("not set".to_owned()),
            held_keys: 3,
        };
        let expected = json!({
            "backend": "key-file",
            "problem": "no way",
            "newsroom_key": { "fingerprint": null, "problem": "not set" },
            "held_keys": 3,
        });
        assert_eq!(status(&none), expected);
    }
}
