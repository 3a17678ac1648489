//! Removals that are held, as JSON.

use control::{ErasureFault, HeldRemoval, RemovalVerdict};
use protocol::value::SourceId;
use serde_json::{Value, json};

use super::{object, time};

pub(in crate::cli) fn removals(held: &[HeldRemoval]) -> String {
    object(json!({ "removals": held.iter().map(removal).collect::<Vec<_>>() }))
}

pub(in crate::cli) fn settled(verdict: RemovalVerdict, held: &[HeldRemoval]) -> String {
    let verdict = match verdict {
        RemovalVerdict::Accept => "accepted",
        RemovalVerdict::Reject => "rejected",
    };
    object(json!({ verdict: held.iter().map(|held| held.source.as_str()).collect::<Vec<_>>() }))
}

fn removal(held: &HeldRemoval) -> Value {
    json!({
        "source": held.source.as_str(),
        "designation": held.designation.as_ref().map(|designation| designation.as_str()),
        "whole": held.whole,
        "items": held.items,
        "since": time(held.since),
    })
}

pub(super) fn held_event(sources: &[SourceId]) -> Value {
    json!({ "event": "removals_held", "sources": sources.iter().map(|id| id.as_str()).collect::<Vec<_>>() })
}

pub(super) fn fault(fault: &ErasureFault) -> Value {
    json!({ "items": fault.items, "reason": fault.reason, "since": time(fault.since) })
}
