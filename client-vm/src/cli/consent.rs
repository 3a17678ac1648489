//! Makes sure that somebody wants a deletion.
//!
//! **Invariant:** without `--yes` nothing is deleted but after a person's clear yes to what they were shown.
//!
//! **Invariant:** many sources at once are deleted only by whoever says how many they are, `--yes` or not.

use super::exit::CliError;
use super::terminal::{Terminal, Word};

/// The most sources that are deleted at once without saying how many they are.
pub(super) const MANY_SOURCES: usize = 30;

/// Where a person's word for a deletion comes from.
#[derive(Debug)]
pub(super) enum Consent {
    /// The command line.
    Given,
    /// This terminal.
    Ask(Terminal),
}

impl Consent {
    /// Looks where the word can come from; asks nobody yet. `terminal` finds the person's.
    pub(super) fn try_new(
        yes: bool,
        batch: bool,
        terminal: impl FnOnce() -> Option<Terminal>,
    ) -> Result<Self, CliError> {
        if yes {
            return Ok(Self::Given);
        }
        if batch {
            return Err(CliError::BatchWithoutYes);
        }
        terminal().map(Self::Ask).ok_or(CliError::NoTerminalToConfirm)
    }

    /// Asks, if somebody is to be asked: `question` shows what will go. Called off (dropped), it leaves the terminal as
    /// it was.
    pub(super) async fn obtain(self, question: impl FnOnce() -> String) -> Result<(), CliError> {
        match self {
            Self::Given => Ok(()),
            Self::Ask(terminal) => match terminal.ask_yes_or_no(&question()).await? {
                Word::Yes => Ok(()),
                Word::No => Err(CliError::AnsweredNo),
            },
        }
    }
}

/// Refuses to delete many sources for whoever does not know how many, and any for whoever is wrong about it.
pub(super) fn check_count(actual: usize, given: Option<usize>) -> Result<(), CliError> {
    match given {
        Some(given) if given == actual => Ok(()),
        None if actual <= MANY_SOURCES => Ok(()),
        Some(_) | None => Err(CliError::Count { actual, given }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::exit::Exit;
    use super::*;

    #[test]
    fn without_a_person_to_ask_only_yes_deletes() {
        let nobody = || None;
        assert!(matches!(Consent::try_new(true, false, nobody), Ok(Consent::Given)));
        assert!(matches!(Consent::try_new(true, true, nobody), Ok(Consent::Given)));
        let unasked = || panic!("with --batch no terminal is looked for");
        for error in
            [Consent::try_new(false, true, unasked).unwrap_err(), Consent::try_new(false, false, nobody).unwrap_err()]
        {
            assert!(error.exit() == Exit::Usage && error.to_string().contains("--yes"), "{error}");
        }
    }

    #[tokio::test]
    async fn who_said_yes_already_is_not_asked() {
        Consent::Given.obtain(|| panic!("nobody is asked")).await.unwrap();
    }

    #[test]
    fn many_sources_need_their_exact_number() {
        for (actual, given) in [(1, None), (30, None), (30, Some(30)), (31, Some(31)), (2048, Some(2048))] {
            check_count(actual, given).unwrap();
        }
        for (actual, given) in [(31, None), (31, Some(30)), (31, Some(32)), (2, Some(3)), (1, Some(0))] {
            let error = check_count(actual, given).unwrap_err();
            assert_eq!(error.exit(), Exit::Usage);
            let words = error.to_string();
            assert!(words.contains(&format!("--count {actual}")) && words.contains("nothing was deleted"), "{words}");
        }
    }
}
