//! What was found as JSON.

use control::{Excerpt, Hit, HitCount, HitPlace};
use protocol::SubmissionKind;
use serde_json::{Value, json};

use super::super::search::Found;
use super::object;

/// The hits, and how many there are: `exact` is false where there may be more. Of a source `uuid` is its own, and `order` and
/// `excerpt` are null.
pub(in crate::cli) fn found(found: &Found) -> String {
    let (count, exact) = match found.count {
        HitCount::Exactly(count) => (count, true),
        HitCount::AtLeast(count) => (count, false),
    };
    object(json!({
        "hits": found.hits.iter().map(hit).collect::<Vec<_>>(),
        "count": { "hits": count, "exact": exact },
    }))
}

fn hit(hit: &Hit) -> Value {
    let (kind, uuid, order, excerpt) = match &hit.place {
        HitPlace::Designation => ("source", hit.source.as_str(), None, None),
        HitPlace::Submission { id, kind: SubmissionKind::Message, order, excerpt } => {
            ("message", id.as_str(), Some(order), Some(excerpt))
        }
        HitPlace::Submission { id, kind: SubmissionKind::File, order, excerpt } => {
            ("file", id.as_str(), Some(order), Some(excerpt))
        }
        HitPlace::Reply { id, order, excerpt } => ("reply", id.as_str(), Some(order), Some(excerpt)),
    };
    json!({
        "source": hit.source.as_str(),
        "designation": hit.designation.as_str(),
        "kind": kind,
        "uuid": uuid,
        "order": order.map(|order| order.get()),
        "excerpt": excerpt.map(self::excerpt),
    })
}

/// `matches` are bytes of the text in UTF-8: the first, and the one behind the last.
fn excerpt(excerpt: &Excerpt) -> Value {
    json!({
        "text": excerpt.text,
        "matches": excerpt.matches,
        "cut_before": excerpt.cut_before,
        "cut_after": excerpt.cut_after,
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::{excerpt, hit_in_message};
    use super::*;

    #[test]
    fn a_hit_has_all_fields_whatever_it_is() {
        let in_message = hit_in_message(2, excerpt("a crane", &[(2, 7)]));
        let named = Hit { place: HitPlace::Designation, ..in_message.clone() };
        let printed = found(&Found { hits: vec![named, in_message], count: HitCount::AtLeast(3) });
        let parsed: Value = serde_json::from_str(&printed).unwrap();
        let expected = json!({
            "format": 1,
            "count": { "hits": 3, "exact": false },
            "hits": [
                {
                    "source": "3f2a6f8e-0000-4000-8000-000000000001", "designation": "candid marmot", "kind": "source",
                    "uuid": "3f2a6f8e-0000-4000-8000-000000000001", "order": null, "excerpt": null,
                },
                {
                    "source": "3f2a6f8e-0000-4000-8000-000000000001", "designation": "candid marmot", "kind": "message",
                    "uuid": "9b040002-0000-4000-8000-000000000000", "order": 2,
                    "excerpt": { "text": "a crane", "matches": [[2, 7]], "cut_before": false, "cut_after": false },
                },
            ],
        });
        assert_eq!(parsed, expected);
    }
}
