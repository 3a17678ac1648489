//! Decryption by Sequoia, with session keys from wherever the secret key is.
//!
//! Sequoia holds back the last part of the plaintext until the integrity is checked, and gives out what comes before: so
//! only the end decides.
//!
//! **Invariant:** signatures change nothing: a message counts by its integrity, whoever signed it.

use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};

use sequoia_openpgp as openpgp;
use sequoia_openpgp::crypto::SessionKey;
use sequoia_openpgp::packet::{PKESK, Packet, SKESK};
use sequoia_openpgp::parse::stream::{DecryptionHelper, DecryptorBuilder, MessageStructure, VerificationHelper};
use sequoia_openpgp::parse::{PacketParser, Parse as _};
use sequoia_openpgp::policy::Policy;
use sequoia_openpgp::types::{AEADAlgorithm, SymmetricAlgorithm};
use sequoia_openpgp::{Cert, KeyHandle};
use tokio_util::sync::CancellationToken;

use super::envelope::{Body, Envelope, Findings, Protection};
use super::packets::Packets;
use super::sink::Sink;
use super::{Corruption, DecryptError, Decrypted, Limits, MAX_NAMED};

/// How much plaintext Sequoia holds back, in bytes. It keeps about three times as much in memory.
const HELD_BACK: usize = 1 << 20;
const BLOCK: usize = 64 * 1024;
/// The shortest encrypted packet of version 1, in bytes without its header: the version, a block and two bytes of a cipher
/// with blocks of 8 bytes, an empty text, and the hash.
const SHORTEST: u64 = 1 + 8 + 2 + 8 + 22;
/// How often a session key is decrypted for hidden recipients, in one layer.
const MAX_GUESSES: usize = 32;

/// Somebody who can decrypt session keys.
pub(super) trait SessionKeys: Send + Sync {
    /// Decrypts the session key for `recipient`, or, for a hidden one, by each key there is. `use_it` says whether the
    /// session key is the right one.
    ///
    /// # Errors
    /// Only what ends the work on this message.
    fn open(
        &mut self,
        pkesk: &PKESK,
        hint: Option<SymmetricAlgorithm>,
        guesses: &mut Guesses,
        use_it: UseSessionKey<'_>,
    ) -> Result<Opened, DecryptError>;
}

/// Says whether a session key is the right one.
pub(super) type UseSessionKey<'a> = &'a mut dyn FnMut(Option<SymmetricAlgorithm>, &SessionKey) -> bool;

/// How many more keys may be tried for hidden recipients.
pub(super) struct Guesses<'a> {
    left: usize,
    stop: &'a CancellationToken,
}

impl Guesses<'_> {
    /// Whether one more key may be tried.
    pub(super) fn another(&mut self) -> Result<bool, DecryptError> {
        if self.stop.is_cancelled() {
            return Err(DecryptError::Cancelled);
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        Ok(may)
    }
}

/// What came of a session key's packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    /// The message is open.
    Yes,
    /// There is no key for it.
    NoKey,
    /// There is the key, and the packet does not give the message's session key.
    Failed,
}

/// Decrypts an opened message.
pub(super) fn decrypt(
    envelope: Envelope,
    keys: &mut dyn SessionKeys,
    mut sink: Sink<'_>,
    limits: &Limits,
    stop: &CancellationToken,
) -> Result<Decrypted, DecryptError> {
    let Envelope { recipients: _, protection, length, body, findings } = envelope;
    match protection {
        Protection::Mdc | Protection::Aead => {}
        Protection::GnupgAead => return Err(DecryptError::Unsupported("GnuPG's own authenticated encryption")),
    }
    let found = findings.clone();
    let helper = Helper { keys, findings, packets: Packets::new(*limits, length), past: 0, stop };
    let read = begun(body, protection).and_then(|body| read(body, helper, &mut sink));
    match (found.take_fault(), read) {
        (Some(fault), _) => Err(fault),
        (None, Err(error)) => Err(error),
        (None, Ok(())) if found.complete() => sink.finish(),
        (None, Ok(())) => Err(DecryptError::Corrupt(Corruption::Malformed)),
    }
}

fn read(body: impl Read + Send + Sync, helper: Helper<'_>, sink: &mut Sink<'_>) -> Result<(), DecryptError> {
    let opened = guarded(|| {
        let builder = DecryptorBuilder::from_reader(body)?.buffer_size(HELD_BACK);
        builder.with_policy(&Reading, None, helper)
    })?;
    let mut decryptor = opened.map_err(|error| meaning(&error))?;
    let mut block = vec![0; BLOCK];
    loop {
        match guarded(|| decryptor.read(&mut block))? {
            Ok(0) => return Ok(()),
            Ok(read) => sink.write(block.get(..read).unwrap_or_default())?,
            // After an error it must not be asked again.
            Err(error) => return Err(meaning_of_io(&error)),
        }
    }
}

/// Takes a panic of Sequoia for what it is: a message that nobody expected. (Release 2.4.2 panics when an encrypted
/// packet of version 1 has less in it than its own end takes, which an inner layer may have.)
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, DecryptError> {
    // What was being worked on is given up.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        tracing::error!("OpenPGP parser panicked on a message");
        DecryptError::Corrupt(Corruption::Malformed)
    })
}

/// Reads what the message begins with, and refuses one that is too short to be any.
fn begun(mut body: Body, protection: Protection) -> Result<impl Read + Send + Sync, DecryptError> {
    let shortest = match protection {
        Protection::Mdc => body.head().saturating_add(SHORTEST),
        Protection::Aead | Protection::GnupgAead => body.head(),
    };
    let mut beginning = Vec::new();
    body.by_ref().take(shortest).read_to_end(&mut beginning).map_err(DecryptError::Read)?;
    if u64::try_from(beginning.len()).unwrap_or(u64::MAX) < shortest {
        return Err(DecryptError::Corrupt(Corruption::Malformed));
    }
    Ok(io::Cursor::new(beginning).chain(body))
}

/// What Sequoia's error means for a message whose outside has no fault.
fn meaning(error: &openpgp::anyhow::Error) -> DecryptError {
    use openpgp::Error;
    match error.downcast_ref::<Error>() {
        Some(Error::ManipulatedMessage) => DecryptError::Corrupt(Corruption::Integrity),
        Some(Error::UnsupportedSymmetricAlgorithm(_)) => DecryptError::Unsupported("a cipher"),
        Some(Error::UnsupportedAEADAlgorithm(_)) => DecryptError::Unsupported("a mode of authenticated encryption"),
        Some(Error::UnsupportedCompressionAlgorithm(_)) => DecryptError::Unsupported("a kind of compression"),
        // Sequoia's error, which grows. The rest is one way or another of not being a message.
        _ => DecryptError::Corrupt(Corruption::Malformed),
    }
}

fn meaning_of_io(error: &io::Error) -> DecryptError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<openpgp::Error>());
    match inner {
        Some(openpgp::Error::ManipulatedMessage) => DecryptError::Corrupt(Corruption::Integrity),
        _ => DecryptError::Corrupt(Corruption::Malformed),
    }
}

/// What is accepted when reading: any packet and any cipher that Sequoia knows, since the integrity is checked, and since
/// what was sent cannot be sent anew. It knows no packet of the kind that nothing protects. Signatures and keys are not
/// judged here.
#[derive(Debug)]
struct Reading;

impl Policy for Reading {
    fn symmetric_algorithm(&self, _: SymmetricAlgorithm) -> openpgp::Result<()> {
        Ok(())
    }

    fn aead_algorithm(&self, _: AEADAlgorithm) -> openpgp::Result<()> {
        Ok(())
    }

    fn packet(&self, _: &Packet) -> openpgp::Result<()> {
        Ok(())
    }
}

/// Answers Sequoia's questions about one message.
struct Helper<'a> {
    keys: &'a mut dyn SessionKeys,
    findings: Findings,
    packets: Packets,
    /// How many of the session keys' packets were of outer layers.
    past: usize,
    stop: &'a CancellationToken,
}

impl VerificationHelper for Helper<'_> {
    fn inspect(&mut self, packet: &PacketParser<'_>) -> openpgp::Result<()> {
        // Before any plaintext, and after the last of it, this is the only place where it can be stopped.
        let taken = if self.stop.is_cancelled() { Err(DecryptError::Cancelled) } else { self.packets.take(packet) };
        taken.map_err(|error| self.findings.note(error).into())
    }

    fn get_certs(&mut self, _: &[KeyHandle]) -> openpgp::Result<Vec<Cert>> {
        Ok(Vec::new())
    }

    fn check(&mut self, _: MessageStructure<'_>) -> openpgp::Result<()> {
        Ok(())
    }
}

impl DecryptionHelper for Helper<'_> {
    fn decrypt(
        &mut self,
        pkesks: &[PKESK],
        _: &[SKESK],
        hint: Option<SymmetricAlgorithm>,
        use_it: UseSessionKey<'_>,
    ) -> openpgp::Result<Option<Cert>> {
        // Sequoia lists those of outer layers too.
        let pkesks = pkesks.get(self.past..).unwrap_or_default();
        self.past = self.past.saturating_add(pkesks.len());
        match self.open(pkesks, hint, use_it) {
            Ok(()) => Ok(None),
            Err(error) => Err(self.findings.note(error).into()),
        }
    }
}

impl Helper<'_> {
    /// Opens one layer: by what names its recipient first.
    fn open(
        &mut self,
        pkesks: &[PKESK],
        hint: Option<SymmetricAlgorithm>,
        use_it: UseSessionKey<'_>,
    ) -> Result<(), DecryptError> {
        let mut guesses = Guesses { left: MAX_GUESSES, stop: self.stop };
        let (named, hidden): (Vec<_>, Vec<_>) = pkesks.iter().partition(|pkesk| pkesk.recipient().is_some());
        let mut failed = false;
        for pkesk in named.into_iter().chain(hidden) {
            if self.stop.is_cancelled() {
                return Err(DecryptError::Cancelled);
            }
            match self.keys.open(pkesk, hint, &mut guesses, use_it)? {
                Opened::Yes => return Ok(()),
                Opened::NoKey => {}
                Opened::Failed => failed = true,
            }
        }
        if pkesks.is_empty() {
            return Err(DecryptError::ForPassphrase);
        }
        if failed {
            return Err(DecryptError::Corrupt(Corruption::SessionKey));
        }
        let recipients =
            pkesks.iter().filter_map(PKESK::recipient).map(|id| format!("{id:X}")).take(MAX_NAMED).collect();
        Err(DecryptError::NoSecretKey { recipients })
    }
}

#[cfg(test)]
mod tests;
