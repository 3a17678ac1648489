//! The commands about removals that are held: what the server lists no more, though nobody here has deleted it.
//!
//! What is held is shown nowhere else, so its words mean what `removals show` lists.

use control::client::Client;
use control::{HeldRemoval, RemovalVerdict, Reply, Request};
use protocol::value::SourceId;

use super::args::{Args, HeldSources, Removals, Yes};
use super::consent::Consent;
use super::exit::CliError;
use super::terminal::Terminal;
use super::{ask, json, print, text};

pub(super) async fn removals(args: &Args, client: &mut Client, removals: &Removals) -> Result<(), CliError> {
    match removals {
        Removals::Show => {
            let held = load(client).await?;
            print(args, || json::removals(&held), || text::removals(&held)).await
        }
        Removals::Accept { which, consent: Yes { yes } } => {
            let consent = Consent::try_new(*yes, args.batch, Terminal::of_a_person)?;
            let held = chosen(load(client).await?, which)?;
            consent.obtain(|| text::ask_about_removals(&held)).await?;
            settle(args, client, RemovalVerdict::Accept, &held).await
        }
        Removals::Reject { which } => {
            let held = chosen(load(client).await?, which)?;
            settle(args, client, RemovalVerdict::Reject, &held).await
        }
    }
}

async fn load(client: &mut Client) -> Result<Vec<HeldRemoval>, CliError> {
    let mut held = Vec::new();
    for reply in ask(client, Request::Removals).await? {
        if let Reply::Removals(some) = reply {
            held.extend(some);
        }
    }
    Ok(held)
}

async fn settle(
    args: &Args,
    client: &mut Client,
    verdict: RemovalVerdict,
    held: &[HeldRemoval],
) -> Result<(), CliError> {
    if !held.is_empty() {
        ask(client, Request::SettleRemovals { verdict, held: held.to_vec() }).await?;
    }
    print(args, || json::settled(verdict, held), || text::settled(verdict, held)).await
}

/// What the words mean, each once, in the order in which it is listed.
fn chosen(held: Vec<HeldRemoval>, which: &HeldSources) -> Result<Vec<HeldRemoval>, CliError> {
    if which.all {
        return Ok(held);
    }
    let mut sources = Vec::new();
    for word in &which.sources {
        sources.push(find(&held, word)?);
    }
    Ok(held.into_iter().filter(|held| sources.contains(&held.source)).collect())
}

/// The one source that a word means: by its id, its designation, or the beginning of its id, in any case of letters.
fn find(held: &[HeldRemoval], word: &str) -> Result<SourceId, CliError> {
    let word = word.trim().to_lowercase();
    let id = |held: &&HeldRemoval| held.source.as_str().to_lowercase();
    let by_id = held.iter().filter(|held| id(held) == word);
    let by_designation = held.iter().filter(|held| {
        held.designation.as_ref().is_some_and(|designation| designation.as_str().to_lowercase() == word)
    });
    let by_prefix = held.iter().filter(|held| !word.is_empty() && id(held).starts_with(&word));
    let kinds: [Vec<_>; 3] = [by_id.collect(), by_designation.collect(), by_prefix.collect()];
    match kinds.into_iter().find(|found| !found.is_empty()).as_deref() {
        Some([one]) => Ok(one.source),
        Some(several) => Err(CliError::SeveralHeld { word, count: several.len() }),
        None => Err(CliError::NotHeld { word }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::exit::Exit;
    use super::super::samples::{held, source_id};
    use super::*;

    fn words(words: &[&str]) -> HeldSources {
        HeldSources { sources: words.iter().map(|word| (*word).to_owned()).collect(), all: false }
    }

    #[test]
    fn words_mean_what_is_held() {
        let all = vec![held(1, "candid marmot"), held(2, "shy otter"), held(3, "shy otter")];
        let ids = |chosen: Vec<HeldRemoval>| chosen.into_iter().map(|held| held.source).collect::<Vec<_>>();
        let (first, third) = (source_id(1), source_id(3));
        let named = words(&[third.as_str(), "Candid Marmot", &first.as_str().to_uppercase()]);
        assert_eq!(ids(chosen(all.clone(), &named).unwrap()), [first, third]);
        assert_eq!(chosen(all.clone(), &HeldSources { sources: Vec::new(), all: true }).unwrap().len(), 3);
        for (word, exit) in [("shy otter", Exit::NotFound), ("", Exit::NotFound), ("brown bear", Exit::NotFound)] {
            let error = chosen(all.clone(), &words(&[word])).unwrap_err();
            assert_eq!(error.exit(), exit, "{error}");
            assert!(error.to_string().contains("removals show"), "{error}");
        }
    }
}
