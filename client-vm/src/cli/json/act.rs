//! Acts and the queue as JSON.

use control::{ActChange, ActId, ActKind, ActState, ActStep, Deal, QueueCounts, QueueEntry, Taken, Undone};
use serde_json::{Value, json};

use super::{object, time};

/// What the daemon took, act by act.
pub(in crate::cli) fn acted(taken: &[Taken]) -> String {
    let acts: Vec<_> = taken
        .iter()
        .map(|one| {
            json!({
                "act": one.act.map(|act| act.0),
                "objects": one.objects,
                "already": one.already,
                "grace_ms": one.grace_ms,
            })
        })
        .collect();
    object(json!({ "acts": acts }))
}

/// Which acts were dealt with.
pub(in crate::cli) fn dealt(deal: Deal, acts: &[ActId]) -> String {
    let acts: Vec<_> = acts.iter().map(|act| json!({ "act": act.0 })).collect();
    object(json!({ "deal": deal_name(deal), "acts": acts }))
}

/// What was taken back, act by act and source by source.
pub(in crate::cli) fn undone(undone: &[Undone]) -> String {
    let undone: Vec<_> = undone
        .iter()
        .map(|one| {
            json!({
                "act": one.act.0,
                "kind": kind(one.kind),
                "source": one.source.as_str(),
                "designation": one.designation.as_ref().map(|designation| designation.as_str()),
                "objects": one.objects,
            })
        })
        .collect();
    object(json!({ "undone": undone }))
}

pub(super) fn counts(counts: QueueCounts) -> Value {
    json!({
        "waiting": counts.waiting,
        "of_others": counts.of_others,
        "refused": counts.refused,
        "not_deleted": counts.not_deleted,
    })
}

/// A step in the life of an act, with `reason` and `next_try` where there is one.
pub(super) fn change(change: &ActChange) -> Value {
    let (step, failure, next_try) = match &change.step {
        ActStep::Taken => ("taken", None, None),
        ActStep::Started => ("started", None, None),
        ActStep::Confirmed => ("confirmed", None, None),
        ActStep::Settled => ("settled", None, None),
        ActStep::Refused(failure) => ("refused", Some(failure), None),
        ActStep::Postponed { failure, next_try } => ("postponed", Some(failure), *next_try),
        ActStep::Dealt(deal) => (deal_name(*deal), None, None),
        ActStep::NotDeleted => ("not_deleted", None, None),
        ActStep::Gone => ("gone", None, None),
        ActStep::ListedAgain => ("listed_again", None, None),
        ActStep::NotListed => ("not_listed", None, None),
    };
    let mut event = json!({
        "event": "act",
        "act": change.act.0,
        "kind": kind(change.kind),
        "source": change.source.as_str(),
        "objects": change.objects,
        "step": step,
    });
    let reason = failure.map(|failure| ("reason", failure.message.clone()));
    let next_try = next_try.map(|at| ("next_try", time(at)));
    if let Some(fields) = event.as_object_mut() {
        fields.extend(reason.into_iter().chain(next_try).map(|(name, value)| (name.to_owned(), value.into())));
    }
    event
}

pub(super) fn entry(entry: &QueueEntry) -> Value {
    json!({
        "act": entry.act.0,
        "kind": kind(entry.kind),
        "source": entry.source.as_str(),
        "designation": entry.designation.as_ref().map(|designation| designation.as_str()),
        "objects": entry.objects,
        "journalist": entry.journalist.as_str(),
        "username": entry.username.as_ref().map(|username| username.as_str()),
        "own": entry.own,
        "state": state(&entry.state),
        "since": time(entry.since),
        "attempts": entry.attempts,
        "next_try": entry.next_try.map(time),
        "reason": entry.reason,
    })
}

pub(super) fn state(state: &ActState) -> &'static str {
    match state {
        ActState::Waiting => "waiting",
        ActState::Grace => "grace",
        ActState::Opening => "opening",
        ActState::Running => "running",
        ActState::Unconfirmed => "unconfirmed",
        ActState::Held => "held",
        ActState::Refused => "refused",
        ActState::NotDeleted => "not_deleted",
    }
}

fn kind(kind: ActKind) -> &'static str {
    match kind {
        ActKind::Star => "star",
        ActKind::Unstar => "unstar",
        ActKind::Seen => "seen",
        ActKind::DeleteSource => "delete_source",
        ActKind::DeleteItem => "delete_item",
        ActKind::Reply => "reply",
    }
}

fn deal_name(deal: Deal) -> &'static str {
    match deal {
        Deal::Retry => "retry",
        Deal::Cancel => "cancel",
        Deal::Dismiss => "dismiss",
        Deal::Restore => "restore",
    }
}

#[cfg(test)]
mod tests {
    use control::{Failure, FailureKind};
    use protocol::value::Timestamp;

    use super::super::super::samples::{self, source_id, taken};
    use super::super::queue;
    use super::*;

    #[test]
    fn acts_are_always_a_list() {
        assert_eq!(acted(&[]), r#"{"acts":[],"format":1}"#);
        assert_eq!(
            acted(&[taken(3, 1), taken(0, 2)]),
            r#"{"acts":[{"act":12,"already":1,"grace_ms":0,"objects":3},{"act":null,"already":2,"grace_ms":0,"objects":0}],"format":1}"#
        );
        assert_eq!(dealt(Deal::Restore, &[ActId(4)]), r#"{"acts":[{"act":4}],"deal":"restore","format":1}"#);
        assert_eq!(undone(&[]), r#"{"format":1,"undone":[]}"#);
        assert_eq!(
            undone(&[samples::undone(ActKind::DeleteItem, 2)]),
            r#"{"format":1,"undone":[{"act":12,"designation":"candid marmot","kind":"delete_item","objects":2,"source":"3f2a6f8e-0000-4000-8000-000000000001"}]}"#
        );
    }

    #[test]
    fn an_entry_has_all_fields_whatever_is_known() {
        let parsed: Value = serde_json::from_str(&queue(&samples::status(), &[samples::entry(3)], &[])).unwrap();
        let nothing = json!({ "waiting": 0, "running": 0, "failed": 0 });
        let lanes = json!({ "acts": nothing, "messages": nothing, "files": nothing, "decrypt": nothing });
        let sync = json!({ "running": null, "last": null, "last_success": null, "next": null, "stale": false });
        let all = json!({ "format": 1, "paused": [], "waiting_for_call": 0, "downloads": [], "decrypt": nothing, "lanes": lanes,
                "sync": sync });
        let mut rest = parsed.clone();
        let queue = rest.as_object_mut().unwrap().remove("queue").unwrap();
        assert_eq!(rest, all);
        assert_eq!(
            queue,
            json!([{
                "act": 3,
                "kind": "star",
                "source": "3f2a6f8e-0000-4000-8000-000000000001",
                "designation": "candid marmot",
                "objects": 1,
                "journalist": "7d1c0000-0000-4000-8000-000000000001",
                "username": null,
                "own": true,
                "state": "waiting",
                "since": "2024-10-24T15:51:17.123456Z",
                "attempts": 0,
                "next_try": null,
                "reason": null,
            }])
        );
    }

    #[test]
    fn a_step_has_a_reason_and_a_next_try_where_there_is_one() {
        let event =
            |step| change(&ActChange { act: ActId(12), kind: ActKind::Seen, source: source_id(1), objects: 5, step });
        let base = json!({
            "event": "act",
            "act": 12,
            "kind": "seen",
            "source": "3f2a6f8e-0000-4000-8000-000000000001",
            "objects": 5,
            "step": "cancel",
        });
        assert_eq!(event(ActStep::Dealt(Deal::Cancel)), base);
        let failure = Failure { kind: FailureKind::Unreachable, message: "no way".to_owned() };
        let refused = event(ActStep::Refused(failure.clone()));
        assert_eq!((refused.get("reason"), refused.get("next_try")), (Some(&json!("no way")), None));
        let next_try = Some(Timestamp::try_new(0).unwrap());
        let postponed = event(ActStep::Postponed { failure, next_try });
        assert_eq!(postponed.get("next_try"), Some(&json!("1970-01-01T00:00:00Z")));
        assert_eq!(postponed.get("step"), Some(&json!("postponed")));
    }
}
