//! What the doctor has found, as JSON.

use serde_json::{Value, json};

use super::super::doctor::{Check, Outcome};
use super::object;

pub(in crate::cli) fn checks(checks: &[Check]) -> String {
    object(json!({ "checks": checks.iter().map(check).collect::<Vec<_>>() }))
}

fn check(check: &Check) -> Value {
    let outcome = match check.outcome {
        Outcome::Ok => "ok",
        Outcome::Warning => "warning",
        Outcome::Failure => "failure",
        Outcome::NotChecked => "not_checked",
    };
    json!({ "name": check.name, "outcome": outcome, "detail": check.detail, "next_step": check.next_step })
}
