//! What the doctor has found, in words.

use super::super::doctor::{Check, Outcome};
use super::super::safe_text::sanitized;
use super::counted;

/// One check: a line, and one more for what to do.
pub(in crate::cli) fn check(check: &Check) -> String {
    let outcome = match check.outcome {
        Outcome::Ok => "ok",
        Outcome::Warning => "warning",
        Outcome::Failure => "failure",
        Outcome::NotChecked => "not checked",
    };
    let mut text = format!("{outcome:<13}{:<17}{}\n", check.name, sanitized(&check.detail));
    if let Some(next) = &check.next_step {
        text.push_str(&format!("{:<30}next: {}\n", "", sanitized(next)));
    }
    text
}

/// What all of them say together.
pub(in crate::cli) fn checked(checks: &[Check]) -> String {
    let of =
        |outcome| u64::try_from(checks.iter().filter(|check| check.outcome == outcome).count()).unwrap_or(u64::MAX);
    match (of(Outcome::Failure), of(Outcome::Warning)) {
        (0, 0) => "Nothing is wrong with what was checked.\n".to_owned(),
        (0, warnings) => format!("Nothing has failed; {}.\n", counted(warnings, "warning")),
        (failures, warnings) => {
            format!("{}, {}: begin with the first.\n", counted(failures, "failure"), counted(warnings, "warning"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_a_line_and_its_next_step_another_and_neither_moves_the_cursor() {
        let found = Check {
            name: "server",
            outcome: Outcome::Failure,
            detail: "a\u{1b}[2Jb\nc".to_owned(),
            next_step: Some("do it".to_owned()),
        };
        let text = check(&found);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.starts_with("failure      server           a") && !text.contains('\u{1b}'), "{text}");
        assert!(text.ends_with("                              next: do it\n"), "{text}");
        assert_eq!(checked(&[found]), "1 failure, 0 warnings: begin with the first.\n");
        assert_eq!(checked(&[]), "Nothing is wrong with what was checked.\n");
    }
}
