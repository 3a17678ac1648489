//! The way to the private key, and the newsroom's public one.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Check, Findings, name};
use crate::cli::apart;
use crate::cli::exit::CliError;
use crate::clock::Clock;
use crate::failure::chain;
use crate::newsroom::{Newsroom, NewsroomError};
use crate::openpgp::decrypt::{DecryptError, Decryptor, Denial, Unavailable};
use crate::openpgp::{self, SetUpError};
use crate::settings::OpenPgpSettings;

pub(super) async fn checks(findings: &mut Findings<'_>, settings: &OpenPgpSettings) -> Result<(), CliError> {
    let settings = settings.clone();
    let (decryptor, newsroom) = match apart(move || openpgp::open(&settings)).await? {
        Ok(opened) => opened,
        Err(error) => {
            findings.add(Check::failure(name::KEY_BACKEND, chain(&error), after_set_up(&error))).await?;
            findings.add(Check::not_checked(name::SECRET_KEY, name::KEY_BACKEND)).await?;
            return findings.add(Check::not_checked(name::NEWSROOM_KEY, name::KEY_BACKEND)).await;
        }
    };
    // Called off, what is asked of another VM is given up too.
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    for check in secret_keys(&decryptor, &stop).await? {
        findings.add(check).await?;
    }
    if findings.lacks(name::KEY_BACKEND) && !newsroom.is_near() {
        return findings.add(Check::not_checked(name::NEWSROOM_KEY, name::KEY_BACKEND)).await;
    }
    findings.add(newsroom_key(newsroom, stop).await?).await
}

/// The backend, and whether it has a secret key.
async fn secret_keys(decryptor: &Arc<dyn Decryptor>, stop: &CancellationToken) -> Result<[Check; 2], CliError> {
    let (asked, stop) = (Arc::clone(decryptor), stop.clone());
    let keys = apart(move || asked.secret_keys(&stop)).await?;
    let works = || Check::ok(name::KEY_BACKEND, format!("{} answers", decryptor.name()));
    let none = || {
        let next = "import the newsroom's private key where the backend has it: in the key's VM, or the key file";
        Check::failure(name::SECRET_KEY, "the backend has no secret key: nothing can be decrypted", next)
    };
    Ok(match keys {
        Ok(keys) if keys.is_empty() => [works(), none()],
        Err(DecryptError::Unavailable(Unavailable::NoKeys)) => [works(), none()],
        Ok(_) => [works(), Check::ok(name::SECRET_KEY, "there is one")],
        Err(error) => [
            Check::failure(name::KEY_BACKEND, format!("{}: {}", decryptor.name(), chain(&error)), after(&error)),
            Check::not_checked(name::SECRET_KEY, name::KEY_BACKEND),
        ],
    })
}

async fn newsroom_key(newsroom: Newsroom, stop: CancellationToken) -> Result<Check, CliError> {
    let key = apart(move || newsroom.key(Clock::System.now(), &stop).map(|_| ())).await?;
    Ok(match key {
        Ok(()) => Check::ok(name::NEWSROOM_KEY, "it is there, and has the fingerprint that dom0 has set"),
        Err(error) => Check::failure(name::NEWSROOM_KEY, error.to_string(), after_newsroom(&error)),
    })
}

fn after_newsroom(error: &NewsroomError) -> &'static str {
    match error {
        NewsroomError::NoFingerprint | NewsroomError::BadFingerprint => {
            "set it in dom0 with `qvm-features`, then restart this VM and the daemon"
        }
        NewsroomError::Read { .. } => "put the newsroom's public key where `submission_key` says",
        NewsroomError::Export(error) => match &**error {
            DecryptError::NoPublicKey(_) => {
                "import the newsroom's public key in the key's VM, or compare SD_SUBMISSION_KEY_FPR in dom0 with it"
            }
            other => after(other),
        },
        NewsroomError::Key(_) => "compare SD_SUBMISSION_KEY_FPR in dom0 with the key that the newsroom uses",
        NewsroomError::Fault => "see the daemon's log",
    }
}

fn after_set_up(error: &SetUpError) -> &'static str {
    match error {
        SetUpError::Setting { .. } => "restart this VM: QubesDB does not answer",
        SetUpError::Domain(_) => "set QUBES_GPG_DOMAIN in dom0 to the name of the VM with the key",
        SetUpError::Key { .. } | SetUpError::NoKey => "put the newsroom's public key where `submission_key` says",
        SetUpError::NotBuilt => "choose another `backend` in [openpgp], or install a build that has this one",
        SetUpError::Backend(error) => after(error),
    }
}

fn after(error: &DecryptError) -> &'static str {
    match error {
        DecryptError::Unavailable(Unavailable::Program { .. }) => {
            "install qubes-gpg-split in this VM's template, or set `gpg_client` in [openpgp]"
        }
        DecryptError::Unavailable(Unavailable::NoVm) => "set QUBES_GPG_DOMAIN in dom0, then restart this VM",
        DecryptError::Unavailable(Unavailable::KeyFile { .. }) => "put the key where `key_file` in [openpgp] says",
        DecryptError::Unavailable(Unavailable::Agent(_) | Unavailable::AgentCode(_)) => {
            "try `gpg-connect-agent` in this VM; with split-gpg2 look in the key's VM too"
        }
        DecryptError::Denied(Denial::Dom0) => {
            "allow `qubes.Gpg` to the key's VM in dom0's policy, and start that VM by hand"
        }
        DecryptError::Denied(Denial::KeyVm | Denial::Passphrase) => "answer what the key's VM asks, and try again",
        DecryptError::Unavailable(
            Unavailable::Qrexec(_)
            | Unavailable::Ended
            | Unavailable::Silent(_)
            | Unavailable::NoKeys
            | Unavailable::Answer,
        )
        | DecryptError::NoSecretKey { .. }
        | DecryptError::ForPassphrase
        | DecryptError::Locked
        | DecryptError::NoPublicKey(_)
        | DecryptError::Cut
        | DecryptError::Corrupt(_)
        | DecryptError::Unprotected
        | DecryptError::NotEncrypted
        | DecryptError::Unsupported(_)
        | DecryptError::TooLarge { .. }
        | DecryptError::Stalled(_)
        | DecryptError::TooDeep { .. }
        | DecryptError::Read(_)
        | DecryptError::Write(_)
        | DecryptError::Cancelled => "look in the key's VM whether GnuPG and split-gpg work there",
    }
}
