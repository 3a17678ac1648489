//! Messages made by Sequoia, and packets put together by hand.

use std::io::Write as _;

use sequoia_openpgp as openpgp;
use sequoia_openpgp::crypto::SessionKey;
use sequoia_openpgp::crypto::symmetric::{self, BlockCipherMode, PaddingMode};
use sequoia_openpgp::packet::pkesk::PKESK3;
use sequoia_openpgp::packet::{PKESK, Packet};
use sequoia_openpgp::serialize::SerializeInto as _;
use sequoia_openpgp::serialize::stream::{
    Armorer, Compressor, Encryptor, LiteralWriter, Message, Recipient, Signer, padding::Padder,
};
use sequoia_openpgp::types::{AEADAlgorithm, CompressionAlgorithm, Features, HashAlgorithm, SymmetricAlgorithm};
use sequoia_openpgp::{Cert, KeyHandle};

/// How a message is made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Form {
    pub(crate) armor: bool,
    pub(crate) compression: Option<CompressionAlgorithm>,
    pub(crate) signed: bool,
    pub(crate) hidden: bool,
    pub(crate) padded: bool,
    /// Version 2 of the encrypted packet, with this mode.
    pub(crate) aead: Option<AEADAlgorithm>,
}

/// A message to the encryption subkeys of `certs`, signed by the first.
pub(crate) fn message(certs: &[Cert], form: Form, plaintext: &[u8]) -> Vec<u8> {
    try_message(certs, form, plaintext).unwrap()
}

fn try_message(certs: &[Cert], form: Form, plaintext: &[u8]) -> openpgp::Result<Vec<u8>> {
    let keys: Vec<_> = certs.iter().flat_map(|cert| cert.keys().subkeys()).collect();
    let features = match form.aead {
        Some(_) => Features::empty().set_seipdv2(),
        None => Features::empty().set_seipdv1(),
    };
    let recipients = keys.iter().map(|key| {
        let handle = (!form.hidden).then(|| match form.aead {
            Some(_) => key.key().fingerprint().into(),
            None => KeyHandle::from(key.key().keyid()),
        });
        Recipient::new(features.clone(), handle, key.key())
    });
    let mut bytes = Vec::new();
    let mut writer = Message::new(&mut bytes);
    if form.armor {
        writer = Armorer::new(writer).build()?;
    }
    let mut encryptor = Encryptor::for_recipients(writer, recipients);
    if let Some(mode) = form.aead {
        encryptor = encryptor.aead_algo(mode);
    }
    writer = encryptor.build()?;
    if form.padded {
        writer = Padder::new(writer).build()?;
    }
    if let Some(algorithm) = form.compression {
        writer = Compressor::new(writer).algo(algorithm).build()?;
    }
    if form.signed {
        let key = certs[0].primary_key().key().clone().parts_into_secret()?;
        writer = Signer::new(writer, key.into_keypair()?)?.build()?;
    }
    let mut writer = LiteralWriter::new(writer).build()?;
    writer.write_all(plaintext)?;
    writer.finalize()?;
    Ok(bytes)
}

/// The packet headers of a binary message before the encrypted one: where each packet begins.
pub(crate) fn where_body_begins(message: &[u8]) -> usize {
    let mut place = 0;
    loop {
        let (tag, header, length) = header(&message[place..]);
        if tag == 18 || tag == 20 {
            return place;
        }
        place += header + length;
    }
}

/// A packet's tag, the length of its header, and of its body.
fn header(packet: &[u8]) -> (u8, usize, usize) {
    let word =
        |at: usize, size: usize| packet[at..at + size].iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte));
    if packet[0] & 0x40 == 0 {
        let size = 1 << (packet[0] & 3);
        return ((packet[0] >> 2) & 15, 1 + size, word(1, size));
    }
    match packet[1] {
        length @ 0..=191 => (packet[0] & 63, 2, length.into()),
        high @ 192..=223 => (packet[0] & 63, 3, (usize::from(high - 192) << 8) + usize::from(packet[2]) + 192),
        224..=254 => (packet[0] & 63, 2, 0),
        255 => (packet[0] & 63, 6, word(2, 4)),
    }
}

/// The session key's packets of a message, before a packet that nothing protects.
pub(crate) fn unprotected(message: &[u8]) -> Vec<u8> {
    let mut bytes = message[..where_body_begins(message)].to_vec();
    bytes.extend_from_slice(&[0xC0 | 9, 40]);
    bytes.extend_from_slice(&[7; 40]);
    bytes
}

/// A message in so many layers of encryption, with so many of compression inside.
pub(crate) fn in_layers(cert: &Cert, encryptions: usize, compressions: usize, plaintext: &[u8]) -> Vec<u8> {
    let keys: Vec<_> = cert.keys().subkeys().collect();
    let mut bytes = Vec::new();
    let mut writer = Message::new(&mut bytes);
    for _ in 0..encryptions {
        let recipients = keys.iter().map(|key| {
            Recipient::new(Features::empty().set_seipdv1(), Some(KeyHandle::from(key.key().keyid())), key.key())
        });
        writer = Encryptor::for_recipients(writer, recipients).build().unwrap();
    }
    for _ in 0..compressions {
        writer = Compressor::new(writer).algo(CompressionAlgorithm::Zip).build().unwrap();
    }
    let mut writer = LiteralWriter::new(writer).build().unwrap();
    writer.write_all(plaintext).unwrap();
    writer.finalize().unwrap();
    bytes
}

/// A message whose innermost encrypted packet, well encrypted, has only so many bytes in it.
pub(crate) fn short(cert: &Cert, layers: usize, length: usize) -> Vec<u8> {
    let key = cert.keys().subkeys().next().unwrap();
    let algorithm = SymmetricAlgorithm::AES256;
    let session_key = SessionKey::from(vec![7; 32]);
    let pkesk = PKESK3::for_recipient(algorithm, &session_key, key.key()).unwrap();
    let mut bytes = Packet::from(PKESK::from(pkesk)).to_vec().unwrap();
    // The first block twice over its end is what tells the right session key; in CFB, by hand.
    let sealed = sealed(algorithm, &session_key, &[0; 64]);
    let body = [&[1], &sealed[..length.min(sealed.len())]].concat();
    bytes.extend_from_slice(&[0xC0 | 18, u8::try_from(body.len()).unwrap()]);
    bytes.extend_from_slice(&body);
    if layers == 1 {
        return bytes;
    }
    let mut outer = Vec::new();
    let recipients =
        [Recipient::new(Features::empty().set_seipdv1(), Some(KeyHandle::from(key.key().keyid())), key.key())];
    let mut writer = Encryptor::for_recipients(Message::new(&mut outer), recipients).build().unwrap();
    writer.write_all(&bytes).unwrap();
    writer.finalize().unwrap();
    outer
}

/// A packet with its length in full.
pub(crate) fn packet(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[0xC0 | tag, 255], &length[..], body].concat()
}

/// A packet of plaintext.
pub(crate) fn literal(plaintext: &[u8]) -> Vec<u8> {
    packet(11, &[&b"b\0\0\0\0\0"[..], plaintext].concat())
}

/// A packet of packets that are compressed, with `after` behind what is compressed.
pub(crate) fn compressed(packets: &[u8], after: &[u8]) -> Vec<u8> {
    let mut deflate = flate2::write::DeflateEncoder::new(vec![1], flate2::Compression::best());
    deflate.write_all(packets).unwrap();
    packet(8, &[&deflate.finish().unwrap()[..], after].concat())
}

/// A session key's packet, and the encrypted packet that it opens, in which are these packets.
pub(crate) fn by_hand(cert: &Cert, packets: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let algorithm = SymmetricAlgorithm::AES256;
    let session_key = SessionKey::from(vec![7; 32]);
    let key = cert.keys().subkeys().next().unwrap();
    let pkesk = PKESK3::for_recipient(algorithm, &session_key, key.key()).unwrap();
    // RFC 9580, section 5.13.1: a block, the end of it once more, and a hash at the end.
    let mut plaintext = [&[9; 18], packets, &[0xd3, 0x14]].concat();
    let mut hash = HashAlgorithm::SHA1.context().unwrap().for_digest();
    hash.update(&plaintext);
    plaintext.extend(hash.into_digest().unwrap());
    let body = [&[1], &sealed(algorithm, &session_key, &plaintext)[..]].concat();
    (Packet::from(PKESK::from(pkesk)).to_vec().unwrap(), packet(18, &body))
}

/// A message that is well encrypted and has these packets in it.
pub(crate) fn with_packets(cert: &Cert, packets: &[u8]) -> Vec<u8> {
    let (key, body) = by_hand(cert, packets);
    [key, body].concat()
}

fn sealed(algorithm: SymmetricAlgorithm, key: &SessionKey, plaintext: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    let mut encryptor =
        symmetric::Encryptor::new(algorithm, BlockCipherMode::CFB, PaddingMode::None, key, None, &mut sealed).unwrap();
    encryptor.write_all(plaintext).unwrap();
    encryptor.finalize().unwrap();
    sealed
}

/// A message to an RSA key whose encrypted session key is this number.
#[cfg(feature = "gpg-agent")]
pub(crate) fn with_rsa_number(cert: &Cert, number: &[u8]) -> Vec<u8> {
    use sequoia_openpgp::crypto::mpi::{Ciphertext, MPI};
    use sequoia_openpgp::types::PublicKeyAlgorithm;

    let key = cert.keys().subkeys().next().unwrap();
    let session_key = Ciphertext::RSA { c: MPI::new(number) };
    let pkesk = PKESK3::new(Some(key.key().keyid()), PublicKeyAlgorithm::RSAEncryptSign, session_key).unwrap();
    let mut bytes = Packet::from(PKESK::from(pkesk)).to_vec().unwrap();
    bytes.extend_from_slice(&[0xC0 | 18, 101, 1]);
    bytes.extend_from_slice(&[7; 100]);
    bytes
}
