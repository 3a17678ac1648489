//! The command that pins another key of a source. The fingerprint is the consent: it is what somebody has compared.

use control::client::Client;
use control::{KeyState, Request};
use protocol::value::Fingerprint;

use super::act::{find_sources, one};
use super::args::Args;
use super::exit::CliError;
use super::{ask, json, print, text};

pub(super) async fn trust_key(
    args: &Args,
    client: &mut Client,
    word: &str,
    fingerprint: &Fingerprint,
) -> Result<(), CliError> {
    let source = one(find_sources(client, &[word.to_owned()]).await?)?;
    ask(client, Request::TrustKey { source: source.id, fingerprint: fingerprint.clone() }).await?;
    let before = pinned(&source.key);
    print(args, || json::trusted(source.id, before, fingerprint), || text::trusted(&source, before, fingerprint)).await
}

fn pinned(key: &KeyState) -> Option<&Fingerprint> {
    match key {
        KeyState::Pinned { fingerprint } => Some(fingerprint),
        KeyState::Held { pinned, .. } => pinned.as_ref(),
        KeyState::None | KeyState::New { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{fingerprint, held_key};
    use super::*;

    #[test]
    fn the_key_before_is_the_pinned_one_not_the_offered_one() {
        assert_eq!(pinned(&held_key()), Some(&fingerprint('A')));
        assert_eq!(pinned(&KeyState::New { offered: fingerprint('B') }), None);
        assert_eq!(pinned(&KeyState::Pinned { fingerprint: fingerprint('C') }), Some(&fingerprint('C')));
    }
}
