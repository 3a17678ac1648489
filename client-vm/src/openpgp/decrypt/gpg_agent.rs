//! The private key behind gpg-agent's protocol: an agent of this VM, or split-gpg2, whose agent is in another VM.
//!
//! **Invariant:** the agent decrypts session keys and nothing else; the private key stays there. Whom a session key is for
//! is told by the public keys that this backend was given.
//!
//! **Invariant:** no exchange with the agent takes longer than the patience, and each ends when it is time to stop.
//!
//! The protocol: GnuPG's manual, "Agent's Assuan Protocol".

use std::collections::BTreeSet;
use std::fs::File;
use std::future::Future;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt as _;
use protocol::value::Fingerprint;
use sequoia_gpg_agent::assuan::{Client, Response};
use sequoia_gpg_agent::sequoia_ipc::Keygrip;
use sequoia_gpg_agent::sequoia_ipc::sexp::Sexp;
use sequoia_openpgp as openpgp;
use sequoia_openpgp::Cert;
use sequoia_openpgp::crypto::mpi::{Ciphertext, PublicKey};
use sequoia_openpgp::crypto::{Decryptor as OpensSessionKeys, SessionKey};
use sequoia_openpgp::packet::PKESK;
use sequoia_openpgp::packet::key::{PublicParts, UnspecifiedRole};
use sequoia_openpgp::types::SymmetricAlgorithm;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::envelope::Envelope;
use super::gpg_error::{self, of_agent};
use super::key_file::{certs, public_key};
use super::process::{Listener, Program};
use super::sequoia::{self, Guesses, Opened, SessionKeys, UseSessionKey};
use super::sink::Sink;
use super::{DecryptError, Decrypted, Decryptor, Limits, PATIENCE, Unavailable, fingerprint};

/// What finds and starts the agent.
const GPGCONF: &str = "gpgconf";
/// How long that may take.
const START: Duration = Duration::from_secs(30);
/// The longest answer of the agent or of what starts it, in bytes.
const MAX_ANSWER: usize = 64 * 1024;
/// The longest path that a socket has, in bytes.
const MAX_PATH: usize = 107;
/// What a passphrase's question needs to know of us to come up where the user sees it, if it is set.
const SURROUNDINGS: [(&str, &str); 4] =
    [("GPG_TTY", "ttyname"), ("TERM", "ttytype"), ("DISPLAY", "display"), ("XAUTHORITY", "xauthority")];

type PublicSubkey = openpgp::packet::Key<PublicParts, UnspecifiedRole>;

/// The private key behind gpg-agent's protocol.
#[derive(Debug, Clone)]
pub struct GpgAgent {
    home: Option<PathBuf>,
    certs: Vec<Cert>,
    patience: Duration,
}

impl GpgAgent {
    /// The agent of the GnuPG home directory `home`, or of the user's own. `keys` are the public keys, armored or not,
    /// whose secret halves the agent may have.
    ///
    /// # Errors
    /// [`Unavailable::NoKeys`] when one of `keys` holds no key.
    pub fn try_new(home: Option<PathBuf>, keys: &[Vec<u8>]) -> Result<Self, DecryptError> {
        let mut all = Vec::new();
        for bytes in keys {
            all.extend(certs(bytes)?.into_iter().map(Cert::strip_secret_key_material));
        }
        Ok(Self { home, certs: all, patience: PATIENCE })
    }

    /// With another limit to how long the agent may take for one answer. It has to allow for a person's answer.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    fn line(&self, stop: &CancellationToken) -> Line {
        Line { home: self.home.clone(), patience: self.patience, stop: stop.clone() }
    }

    fn keys(&self) -> Vec<PublicSubkey> {
        self.certs.iter().flat_map(Cert::keys).map(|key| key.key().clone().role_into_unspecified()).collect()
    }
}

impl Decryptor for GpgAgent {
    fn name(&self) -> &'static str {
        "gpg-agent"
    }

    fn decrypt(
        &self,
        ciphertext: File,
        plaintext: &mut (dyn Write + Send),
        limits: &Limits,
        stop: &CancellationToken,
    ) -> Result<Decrypted, DecryptError> {
        let envelope = Envelope::open(ciphertext)?;
        let sink = Sink::new(plaintext, limits.of(envelope.length), stop);
        let mut keys = AgentKeys { keys: self.keys(), line: self.line(stop) };
        sequoia::decrypt(envelope, &mut keys, sink, limits, stop)
    }

    fn secret_keys(&self, stop: &CancellationToken) -> Result<BTreeSet<Fingerprint>, DecryptError> {
        let grips: Vec<_> = self
            .keys()
            .iter()
            .filter_map(|key| Some((fingerprint(&key.fingerprint().to_hex())?, grip(key)?)))
            .collect();
        let asked = self.line(stop).exchange(async |client: &mut Client| {
            let mut there = BTreeSet::new();
            for (fingerprint, grip) in &grips {
                match command(client, format!("HAVEKEY {grip}"), None).await {
                    Ok(_) => drop(there.insert(fingerprint.clone())),
                    Err(Refusal::Code(gpg_error::NO_SECRET_KEY)) => {}
                    Err(refusal) => return Err(refusal),
                }
            }
            Ok(there)
        });
        Ok(asked?)
    }

    fn public_key(&self, wanted: &Fingerprint, _: &CancellationToken) -> Result<Vec<u8>, DecryptError> {
        public_key(self.certs.clone(), wanted)
    }
}

/// The name under which the agent has the key.
fn grip(key: &PublicSubkey) -> Option<Keygrip> {
    Keygrip::of(key.mpis()).ok()
}

/// Public keys whose secret half the agent may have.
struct AgentKeys {
    keys: Vec<PublicSubkey>,
    line: Line,
}

impl SessionKeys for AgentKeys {
    fn open(
        &mut self,
        pkesk: &PKESK,
        hint: Option<SymmetricAlgorithm>,
        guesses: &mut Guesses<'_>,
        use_it: UseSessionKey<'_>,
    ) -> Result<Opened, DecryptError> {
        let recipient = pkesk.recipient();
        let mut outcome = Opened::NoKey;
        for key in &self.keys {
            let named = recipient.as_ref().is_some_and(|recipient| key.key_handle().aliases(recipient));
            let may_be = recipient.is_none() && key.pk_algo() == pkesk.pk_algo() && key.pk_algo().for_encryption();
            let tried = named || (may_be && guesses.another()?);
            if !tried {
                continue;
            }
            let mut remote = RemoteKey { public: key, line: &self.line, refusal: None };
            let session_key = pkesk.decrypt(&mut remote, hint);
            if session_key.is_some_and(|(algorithm, session_key)| use_it(algorithm, &session_key)) {
                return Ok(Opened::Yes);
            }
            match remote.refusal {
                Some(Refusal::Code(gpg_error::NO_SECRET_KEY)) => {}
                Some(Refusal::Code(code)) => {
                    if let Some(error) = of_agent(code) {
                        return Err(error);
                    }
                    // The agent could not make sense of it: so it is with a session key for somebody else, or damaged.
                    outcome = if named { Opened::Failed } else { outcome };
                }
                Some(Refusal::Error(error)) => return Err(error),
                None => outcome = if named { Opened::Failed } else { outcome },
            }
        }
        Ok(outcome)
    }
}

/// A key that the agent has, for Sequoia.
struct RemoteKey<'a> {
    public: &'a PublicSubkey,
    line: &'a Line,
    /// Why the agent did not decrypt: Sequoia does not hand that on.
    refusal: Option<Refusal>,
}

impl OpensSessionKeys for RemoteKey<'_> {
    fn public(&self) -> &PublicSubkey {
        self.public
    }

    fn decrypt(&mut self, ciphertext: &Ciphertext, length: Option<usize>) -> openpgp::Result<SessionKey> {
        let failed = || openpgp::Error::InvalidOperation("the agent did not decrypt".to_owned());
        let grip = grip(self.public).ok_or_else(failed)?;
        let mut question = Vec::new();
        Sexp::try_from(ciphertext)?.serialize(&mut question)?;
        let decrypted = self.line.exchange(async |client: &mut Client| {
            for (variable, option) in SURROUNDINGS {
                let value = std::env::var(variable).ok();
                if let Some(value) = value.filter(|value| !value.chars().any(char::is_control)) {
                    // Where the agent does not want to know, it has its own.
                    drop(command(client, format!("OPTION {option}={value}"), None).await);
                }
            }
            command(client, format!("SETKEY {grip}"), None).await?;
            command(client, "PKDECRYPT".to_owned(), Some(&question)).await
        });
        let Answer { data, padded } = match decrypted {
            Ok(answer) => answer,
            Err(refusal) => {
                self.refusal = Some(refusal);
                return Err(failed().into());
            }
        };
        let answer = Sexp::from_bytes(data.strip_suffix(b"\0").unwrap_or(&data))?;
        if !is_session_key(&answer, self.public.mpis()) {
            return Err(failed().into());
        }
        answer.finish_decryption(self.public, ciphertext, length, padded)
    }
}

/// Whether Sequoia can make a session key of the agent's answer: of an RSA or ElGamal key it takes a first byte for granted.
fn is_session_key(answer: &Sexp, key: &PublicKey) -> bool {
    match key {
        PublicKey::RSA { .. } | PublicKey::ElGamal { .. } => answer
            .list()
            .and_then(|list| list.get(1))
            .and_then(Sexp::string)
            .is_some_and(|value| value.to_bytes().iter().any(|byte| *byte != 0)),
        // Sequoia's enum, which grows.
        _ => true,
    }
}

/// The way to the agent.
struct Line {
    home: Option<PathBuf>,
    patience: Duration,
    stop: CancellationToken,
}

/// Why there is no answer.
#[derive(Debug)]
enum Refusal {
    /// The agent's code for it.
    Code(u32),
    /// Anything else.
    Error(DecryptError),
}

impl From<Unavailable> for Refusal {
    fn from(error: Unavailable) -> Self {
        Self::Error(error.into())
    }
}

impl From<Refusal> for DecryptError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Code(code) => of_agent(code).unwrap_or(Self::Unavailable(Unavailable::AgentCode(code))),
            Refusal::Error(error) => error,
        }
    }
}

impl Line {
    /// Connects, starting the agent if need be, and has a conversation with it.
    fn exchange<T>(&self, work: impl AsyncFnOnce(&mut Client) -> Result<T, Refusal>) -> Result<T, Refusal> {
        let socket = self.socket().map_err(Refusal::Error)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| Unavailable::Program { program: GPGCONF.into(), source })?;
        let mut client = match runtime.block_on(self.within(connect(&socket))) {
            Err(Refusal::Error(DecryptError::Unavailable(Unavailable::Agent(_)))) => {
                self.gpgconf(&["--launch", "gpg-agent"]).map_err(Refusal::Error)?;
                runtime.block_on(self.within(connect(&socket)))?
            }
            connected => connected?,
        };
        runtime.block_on(self.within(work(&mut client)))
    }

    /// Waits, but neither for longer than the patience nor past the end.
    async fn within<T>(&self, work: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Refusal::Error(DecryptError::Cancelled)),
            done = tokio::time::timeout(self.patience, work) => {
                done.unwrap_or_else(|_| Err(Unavailable::Silent(self.patience).into()))
            }
        }
    }

    /// Where the agent listens.
    fn socket(&self) -> Result<PathBuf, DecryptError> {
        let path = self.gpgconf(&["--list-dirs", "agent-socket"])?;
        let path = path.trim_ascii_end();
        if path.is_empty() || path.len() > MAX_PATH {
            return Err(Unavailable::Agent("its socket has no path, or one that is too long").into());
        }
        let path = std::str::from_utf8(path).map_err(|_| Unavailable::Agent("its socket's path is not UTF-8"))?;
        Ok(path.into())
    }

    fn gpgconf(&self, arguments: &[&str]) -> Result<Vec<u8>, DecryptError> {
        let mut all = Vec::new();
        let mut environment = Vec::new();
        if let Some(home) = &self.home {
            all.extend(["--homedir".into(), home.clone().into_os_string()]);
            // What it starts looks there.
            environment.push(("GNUPGHOME", home.clone().into_os_string()));
        }
        all.extend(arguments.iter().map(Into::into));
        let program = Program { path: GPGCONF.into(), arguments: all, environment, patience: START.min(self.patience) };
        let mut output = Output(Vec::new());
        let ended = program.run(&mut io::empty(), &mut output, &self.stop)?;
        if ended.status.success() { Ok(output.0) } else { Err(Unavailable::Agent("it could not be started").into()) }
    }
}

/// Takes what a program puts out.
struct Output(Vec<u8>);

impl Listener for Output {
    fn output(&mut self, block: &[u8]) -> Result<(), DecryptError> {
        if self.0.len().saturating_add(block.len()) > MAX_ANSWER {
            return Err(Unavailable::Answer.into());
        }
        self.0.extend_from_slice(block);
        Ok(())
    }

    fn talk(&mut self, _: &[u8]) -> Result<bool, DecryptError> {
        Ok(true)
    }
}

async fn connect(socket: &PathBuf) -> Result<Client, Refusal> {
    Client::connect(socket).await.map_err(|_| Unavailable::Agent("it does not run, or does not answer").into())
}

/// What the agent answered.
struct Answer {
    data: Zeroizing<Vec<u8>>,
    /// Whether the padding of an RSA session key is still there.
    padded: bool,
}

/// Sends a command; `material` is what is given when the agent asks for the ciphertext.
async fn command(client: &mut Client, line: String, material: Option<&[u8]>) -> Result<Answer, Refusal> {
    let broken = || Refusal::from(Unavailable::Agent("it broke off the conversation"));
    client.send(line).map_err(|_| broken())?;
    let mut answer = Answer { data: Zeroizing::new(Vec::with_capacity(MAX_ANSWER)), padded: true };
    let mut result = None;
    while let Some(response) = client.next().await {
        match response.map_err(|_| broken())? {
            Response::Ok { .. } => result = Some(Ok(())),
            Response::Error { code, .. } => {
                let code = gpg_error::code(u32::try_from(code).unwrap_or(u32::MAX));
                result = Some(Err(Refusal::Code(code)));
            }
            Response::Comment { .. } => {}
            Response::Status { keyword, message } => {
                if keyword == "PADDING" {
                    answer.padded = message != "0";
                }
            }
            Response::Data { partial } => {
                let partial = Zeroizing::new(partial);
                if answer.data.len().saturating_add(partial.len()) > MAX_ANSWER {
                    return Err(Unavailable::Answer.into());
                }
                answer.data.extend_from_slice(&partial);
            }
            Response::Inquire { keyword, .. } => {
                match material {
                    Some(material) if keyword == "CIPHERTEXT" => client.data(material),
                    // Such as that it asks for the passphrase now.
                    Some(_) | None => client.send("END"),
                }
                .map_err(|_| broken())?;
                // What was said is sent when the next answer is asked for; the first one is only that there is none yet.
                if client.next().await.is_some() {
                    return Err(broken());
                }
            }
        }
    }
    result.unwrap_or_else(|| Err(broken())).map(|()| answer)
}
