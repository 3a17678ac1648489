use std::io::{Seek as _, Write};

use sequoia_openpgp::cert::CertBuilder;
use sequoia_openpgp::serialize::stream::{Encryptor, LiteralWriter, Message};

use super::*;

/// A key whose owner wants everything to stop as soon as it has given a session key.
struct Stopping(Cert, CancellationToken);

impl SessionKeys for Stopping {
    fn open(
        &mut self,
        pkesk: &PKESK,
        hint: Option<SymmetricAlgorithm>,
        _: &mut Guesses<'_>,
        use_it: UseSessionKey<'_>,
    ) -> Result<Opened, DecryptError> {
        self.1.cancel();
        let key = self.0.keys().subkeys().secret().next().unwrap().key().clone();
        let mut pair = key.into_keypair().unwrap();
        let (algorithm, session_key) = pkesk.decrypt(&mut pair, hint).unwrap();
        assert!(use_it(algorithm, &session_key));
        Ok(Opened::Yes)
    }
}

/// An empty text is never written, so that only the packets can be where it stops.
#[test]
fn what_gives_nothing_out_stops_too() {
    let (cert, _) = CertBuilder::new().add_transport_encryption_subkey().generate().unwrap();
    let mut file = tempfile::tempfile().unwrap();
    let policy = sequoia_openpgp::policy::StandardPolicy::new();
    let recipients = cert.keys().with_policy(&policy, None).for_transport_encryption();
    let message = Encryptor::for_recipients(Message::new(&mut file), recipients).build().unwrap();
    LiteralWriter::new(message).build().unwrap().finalize().unwrap();
    file.flush().unwrap();
    file.rewind().unwrap();

    let (stop, mut plaintext) = (CancellationToken::new(), Vec::new());
    let limits = Limits::default();
    let sink = Sink::new(&mut plaintext, limits.bytes, &stop);
    let mut keys = Stopping(cert, stop.clone());
    let decrypted = decrypt(Envelope::open(file).unwrap(), &mut keys, sink, &limits, &stop);
    assert!(matches!(decrypted, Err(DecryptError::Cancelled)), "{decrypted:?}");
}
