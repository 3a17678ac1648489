//! What a check has found.

/// How a check has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Outcome {
    /// All is as it should be.
    Ok,
    /// It works, and somebody should look at it.
    Warning,
    /// It does not work.
    Failure,
    /// It could not be looked at.
    NotChecked,
}

/// One check: what was looked at, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Check {
    /// Its name, which scripts may rely on.
    pub(in crate::cli) name: &'static str,
    /// How it has ended.
    pub(in crate::cli) outcome: Outcome,
    /// What was found. It holds nothing of a user, and no address.
    pub(in crate::cli) detail: String,
    /// What to do.
    pub(in crate::cli) next_step: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Ok, detail: detail.into(), next_step: None }
    }

    pub(super) fn warning(name: &'static str, detail: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Warning, detail: detail.into(), next_step: Some(next_step.into()) }
    }

    pub(super) fn failure(name: &'static str, detail: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Failure, detail: detail.into(), next_step: Some(next_step.into()) }
    }

    /// Not looked at, because of another check.
    pub(super) fn not_checked(name: &'static str, because_of: &str) -> Self {
        Self { name, outcome: Outcome::NotChecked, detail: format!("because of {because_of}"), next_step: None }
    }

    /// Not looked at, unless somebody asks for it.
    pub(super) fn left_out(name: &'static str, detail: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::NotChecked, detail: detail.into(), next_step: Some(next_step.into()) }
    }
}
