//! What left Splitdrop, as JSON.

use control::{DeviceStatus, ViewerStep};
use protocol::value::ItemId;
use serde_json::{Value, json};

use super::super::handover::Exported;
use super::object;

/// How an item that was to be opened is.
pub(in crate::cli) fn viewed(item: ItemId, step: &ViewerStep) -> String {
    object(json!({ "item": item.as_str(), "state": step_name(step) }))
}

/// What was copied into a folder.
pub(in crate::cli) fn exported(exported: &[Exported]) -> String {
    let copies: Vec<_> =
        exported.iter().map(|one| json!({ "item": one.item.as_str(), "name": one.name, "bytes": one.bytes })).collect();
    object(json!({ "exported": copies }))
}

/// What a device VM said.
pub(in crate::cli) fn device(status: DeviceStatus) -> String {
    object(json!({ "status": status.word() }))
}

/// A transcript.
pub(in crate::cli) fn transcript(text: &str) -> String {
    object(json!({ "transcript": text }))
}

/// Under what name a transcript was written.
pub(in crate::cli) fn written(name: &str) -> String {
    object(json!({ "written": name }))
}

/// An event about an open document.
pub(super) fn viewer(item: ItemId, step: &ViewerStep) -> Value {
    let kind = match item {
        ItemId::Submission(_) => "submission",
        ItemId::Reply(_) => "reply",
    };
    let reason = match step {
        ViewerStep::Opened | ViewerStep::Closed => None,
        ViewerStep::Failed(failure) => Some(failure.message.as_str()),
    };
    json!({ "event": "viewer", "item": item.as_str(), "kind": kind, "step": step_name(step), "reason": reason })
}

fn step_name(step: &ViewerStep) -> &'static str {
    match step {
        ViewerStep::Opened => "opened",
        ViewerStep::Closed => "closed",
        ViewerStep::Failed(_) => "failed",
    }
}
