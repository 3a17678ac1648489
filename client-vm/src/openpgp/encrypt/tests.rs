use std::io::Read as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protocol::value::{Fingerprint, Timestamp};
use sequoia_openpgp::cert::{Cert, CertBuilder};
use sequoia_openpgp::crypto::{SessionKey, SymmetricAlgorithm};
use sequoia_openpgp::packet::{Literal, PKESK, SKESK, Tag};
use sequoia_openpgp::parse::stream::{
    DecryptionHelper, DecryptorBuilder, MessageLayer, MessageStructure, VerificationHelper,
};
use sequoia_openpgp::parse::{PacketParser, PacketParserResult, Parse as _};
use sequoia_openpgp::policy::StandardPolicy;
use sequoia_openpgp::serialize::SerializeInto as _;
use sequoia_openpgp::types::KeyFlags;
use sequoia_openpgp::{Fingerprint as KeyFingerprint, Packet, Profile};

use super::*;

/// 2013-05-14, and 2026-06-01.
const MADE: Duration = Duration::from_secs(1_368_489_600);
const NOW: u64 = 1_780_272_000;

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOW)
}

fn builder() -> CertBuilder<'static> {
    CertBuilder::new().set_creation_time(UNIX_EPOCH + MADE).add_userid("somebody")
}

fn key() -> Cert {
    builder().add_subkey(encrypts(), None, None).generate().unwrap().0
}

fn new_key() -> Cert {
    builder().set_profile(Profile::RFC9580).unwrap().add_subkey(encrypts(), None, None).generate().unwrap().0
}

fn encrypts() -> KeyFlags {
    KeyFlags::empty().set_transport_encryption().set_storage_encryption()
}

fn recipient(cert: &Cert) -> Recipient {
    let fingerprint = Fingerprint::try_new(cert.fingerprint().to_hex()).unwrap();
    Recipient::try_new(&cert.to_vec().unwrap(), &fingerprint, Timestamp::try_new(NOW * 1_000_000).unwrap()).unwrap()
}

/// Reads with one key, and keeps the layers that it saw.
struct Reader<'a>(&'a Cert, Vec<String>);

impl VerificationHelper for Reader<'_> {
    fn get_certs(&mut self, _: &[KeyHandle]) -> sequoia_openpgp::Result<Vec<Cert>> {
        Ok(vec![])
    }

    fn check(&mut self, structure: MessageStructure<'_>) -> sequoia_openpgp::Result<()> {
        self.1 = structure
            .into_iter()
            .map(|layer| match layer {
                MessageLayer::Encryption { sym_algo, aead_algo } => format!("{sym_algo}, {aead_algo:?}"),
                MessageLayer::Compression { .. } => "compressed".to_owned(),
                MessageLayer::SignatureGroup { results } => format!("{} signatures", results.len()),
            })
            .collect();
        Ok(())
    }
}

impl DecryptionHelper for Reader<'_> {
    fn decrypt(
        &mut self,
        keys: &[PKESK],
        _: &[SKESK],
        algorithm: Option<SymmetricAlgorithm>,
        decrypt: &mut dyn FnMut(Option<SymmetricAlgorithm>, &SessionKey) -> bool,
    ) -> sequoia_openpgp::Result<Option<Cert>> {
        for part in self.0.keys().subkeys().secret() {
            let mut pair = part.key().clone().into_keypair()?;
            for key in keys {
                if key.decrypt(&mut pair, algorithm).is_some_and(|(algorithm, session)| decrypt(algorithm, &session)) {
                    return Ok(None);
                }
            }
        }
        Err(sequoia_openpgp::Error::MissingSessionKey("no key".into()).into())
    }
}

fn read(message: &str, with: &Cert) -> Option<(String, Vec<String>)> {
    let policy = StandardPolicy::at(now());
    let builder = DecryptorBuilder::from_bytes(message).unwrap();
    let mut decryptor = builder.with_policy(&policy, now(), Reader(with, vec![])).ok()?;
    let mut text = String::new();
    decryptor.read_to_string(&mut text).unwrap();
    Some((text, decryptor.into_helper().1))
}

/// The packets outside of the encryption, in words.
fn envelope(message: &str) -> Vec<String> {
    let mut packets = vec![];
    let mut parser = PacketParser::from_bytes(message).unwrap();
    while let PacketParserResult::Some(packet) = parser {
        packets.push(match &packet.packet {
            Packet::PKESK(PKESK::V3(key)) => format!("3 {}", key.recipient().unwrap()),
            Packet::PKESK(PKESK::V6(key)) => format!("6 {}", key.recipient().unwrap()),
            Packet::SEIP(data) => format!("SEIP {}", data.version()),
            other => format!("{}", other.tag()),
        });
        parser = packet.next().unwrap().1;
    }
    packets
}

fn parts(cert: &Cert) -> Vec<KeyFingerprint> {
    cert.keys().subkeys().map(|part| part.key().fingerprint()).collect()
}

#[test]
fn both_can_read_it_and_nobody_else() {
    let (source, newsroom, other) = (key(), key(), key());
    let message = encrypt("Where can we meet?\r\n\n", &[&recipient(&source), &recipient(&newsroom)]).unwrap();
    for reader in [&source, &newsroom] {
        let (text, layers) = read(&message, reader).unwrap();
        assert_eq!(text, "Where can we meet?\r\n\n");
        // Neither compressed nor signed.
        assert_eq!(layers, ["AES-256, None"]);
    }
    assert!(read(&message, &other).is_none());
    let keys: Vec<_> = [parts(&source), parts(&newsroom)].concat();
    let expected: Vec<_> = keys.iter().map(|key| format!("3 {}", sequoia_openpgp::KeyID::from(key))).collect();
    assert_eq!(envelope(&message), [expected[0].as_str(), &expected[1], "SEIP 1"]);
}

#[test]
fn each_part_for_encryption_can_read_it_once() {
    let (cert, _) = builder()
        .add_signing_subkey()
        .add_subkey(KeyFlags::empty().set_transport_encryption(), None, None)
        .add_subkey(KeyFlags::empty().set_storage_encryption(), None, None)
        .generate()
        .unwrap();
    let once = recipient(&cert);
    let message = encrypt("text", &[&once, &once]).unwrap();
    let envelope = envelope(&message);
    assert_eq!(envelope.len(), 3, "{envelope:?}");
    let named = |key: &KeyFingerprint| envelope.contains(&format!("3 {}", sequoia_openpgp::KeyID::from(key)));
    assert_eq!(parts(&cert).iter().map(named).collect::<Vec<_>>(), [false, true, true]);
}

#[test]
fn the_new_form_of_message_is_only_for_those_who_all_read_it() {
    let (old, new, newer) = (key(), new_key(), new_key());
    let message = encrypt("text", &[&recipient(&new), &recipient(&old)]).unwrap();
    assert_eq!(envelope(&message).last().unwrap(), "SEIP 1");
    for reader in [&old, &new] {
        assert_eq!(read(&message, reader).unwrap().0, "text");
    }
    // Sequoia's keys of version 4 promise it as well, and may lie with GnuPG.
    let message = encrypt("text", &[&recipient(&old)]).unwrap();
    assert_eq!(envelope(&message).last().unwrap(), "SEIP 1");
    let message = encrypt("text", &[&recipient(&new), &recipient(&newer)]).unwrap();
    let keys = [parts(&new), parts(&newer)].concat();
    assert_eq!(envelope(&message), [format!("6 {}", keys[0]), format!("6 {}", keys[1]), "SEIP 2".to_owned()]);
    for reader in [&new, &newer] {
        assert_eq!(read(&message, reader).unwrap().0, "text");
    }
}

#[test]
fn a_hundred_thousand_emoji_come_back() {
    let source = key();
    let text = "🦆👩‍🚒".repeat(25_000);
    assert_eq!(text.chars().count(), 100_000);
    let message = encrypt(&text, &[&recipient(&source)]).unwrap();
    assert!(read(&message, &source).unwrap().0 == text);
    let message = encrypt("", &[&recipient(&source)]).unwrap();
    assert_eq!(read(&message, &source).unwrap().0, "");
}

#[test]
fn the_armor_has_no_headers_and_no_two_messages_are_alike() {
    let source = recipient(&key());
    let message = encrypt("text", &[&source]).unwrap();
    let mut lines = message.lines();
    assert_eq!(lines.next(), Some("-----BEGIN PGP MESSAGE-----"));
    assert_eq!(lines.next(), Some(""));
    assert_eq!(lines.next_back(), Some("-----END PGP MESSAGE-----"));
    assert!(lines.all(|line| line.len() <= 64 && !line.contains(": ")));
    assert_ne!(message, encrypt("text", &[&source]).unwrap());
}

#[test]
fn inside_are_only_the_bytes_of_the_text() {
    let source = key();
    let message = encrypt("text", &[&recipient(&source)]).unwrap();
    let mut keys: Vec<PKESK> = vec![];
    let mut literals: Vec<Literal> = vec![];
    let mut parser = PacketParser::from_bytes(&message).unwrap();
    while let PacketParserResult::Some(mut packet) = parser {
        match &packet.packet {
            Packet::PKESK(key) => keys.push(key.clone()),
            Packet::SEIP(_) => {
                let part = source.keys().subkeys().secret().next().unwrap();
                let mut pair = part.key().clone().into_keypair().unwrap();
                let (algorithm, session) = keys[0].decrypt(&mut pair, None).unwrap();
                packet.decrypt(algorithm, &session).unwrap();
            }
            Packet::Literal(literal) => literals.push(literal.clone()),
            other if other.tag() == Tag::MDC => {}
            other => panic!("{} in the message", other.tag()),
        }
        parser = packet.recurse().unwrap().1;
    }
    let [literal] = &literals[..] else { panic!("{literals:?}") };
    assert_eq!((literal.format(), literal.filename(), literal.date()), (DataFormat::Binary, None, None));
}

#[test]
fn what_fails_says_nothing_of_the_text() {
    let error = encrypt("the secret text", &[]).unwrap_err();
    assert!(matches!(error, EncryptError::NoRecipient));
    let failed = EncryptError::Failed(String::from_utf8(vec![0xff]).unwrap_err().utf8_error().into());
    for shown in [format!("{error} {error:?}"), format!("{failed} {failed:?}")] {
        assert!(!shown.contains("secret"), "{shown}");
    }
}
