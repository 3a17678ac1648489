//! The command that searches.

use std::ffi::OsStr;
use std::io::{self, IsTerminal as _};

use control::client::{Client, ClientError};
use control::{Hit, HitCount, Reply, Request, SearchWords};

use super::args::{Args, Search};
use super::exit::CliError;
use super::text::Emphasis;
use super::{ask, columns, json, print, text};

/// When it is set and not empty, what is printed has no colours and the like (<https://no-color.org>).
const NO_COLOR: &str = "NO_COLOR";
const TERM: &str = "TERM";
/// What `TERM` is where a terminal knows no escape sequences.
const DUMB: &str = "dumb";

/// What was found, as the daemon tells it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) hits: Vec<Hit>,
    pub(super) count: HitCount,
}

pub(super) async fn search(args: &Args, client: &mut Client, wanted: &Search) -> Result<(), CliError> {
    let words = SearchWords::try_new(wanted.words.join(" "))?;
    let found = gather(ask(client, Request::Search { words, limit: wanted.limit }).await?)?;
    let emphasis = emphasis(io::stdout().is_terminal(), |name| std::env::var_os(name));
    print(args, || json::found(&found), || text::found(&found, emphasis, columns::of_output())).await
}

fn gather(replies: Vec<Reply>) -> Result<Found, CliError> {
    let (mut hits, mut count) = (Vec::new(), None);
    for reply in replies {
        match reply {
            Reply::HitCount(told) => count = Some(told),
            Reply::Hits(some) => hits.extend(some),
            _other => {}
        }
    }
    let count = count.ok_or(CliError::Client(ClientError::Unexpected))?;
    Ok(Found { hits, count })
}

fn emphasis<V: AsRef<OsStr>>(on_terminal: bool, variable: impl Fn(&str) -> Option<V>) -> Emphasis {
    let says = |name, said: fn(&OsStr) -> bool| variable(name).is_some_and(|value| said(value.as_ref()));
    if !on_terminal || says(NO_COLOR, |value| !value.is_empty()) || says(TERM, |value| value == DUMB) {
        Emphasis::None
    } else {
        Emphasis::Bold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_emphasised_on_a_terminal_whose_user_wants_that() {
        let chosen = |on_terminal, set: &[(&str, &'static str)]| {
            let variable = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| *value);
            emphasis(on_terminal, variable)
        };
        assert_eq!(chosen(true, &[("TERM", "xterm"), ("NO_COLOR", "")]), Emphasis::Bold);
        assert_eq!(chosen(false, &[("TERM", "xterm")]), Emphasis::None);
        assert_eq!(chosen(true, &[("NO_COLOR", "1")]), Emphasis::None);
        assert_eq!(chosen(true, &[("TERM", "dumb")]), Emphasis::None);
    }

    #[test]
    fn an_answer_without_a_count_is_none() {
        assert!(gather(vec![Reply::Hits(Vec::new())]).is_err());
        assert!(gather(vec![Reply::HitCount(HitCount::Exactly(0))]).unwrap().hits.is_empty());
    }
}
