//! The numbers by which GnuPG and its agent say what went wrong: libgpg-error, err-codes.h.

use super::{DecryptError, Denial, Unavailable};

/// The part of a number that is the code; the rest says who found the error.
const CODE: u32 = 0xffff;

const BAD_PASSPHRASE: u32 = 11;
#[cfg(feature = "gpg-agent")]
pub(super) const NO_SECRET_KEY: u32 = 17;
const TIMEOUT: u32 = 62;
const NO_AGENT: u32 = 77;
const NO_PINENTRY: u32 = 85;
const CANCELLED: u32 = 99;
const NO_PASSPHRASE: u32 = 177;
const FULLY_CANCELLED: u32 = 198;

/// The code without its source.
pub(super) fn code(number: u32) -> u32 {
    number & CODE
}

/// What an agent's code says about reaching the key, if it does.
pub(super) fn of_agent(code: u32) -> Option<DecryptError> {
    match code {
        CANCELLED | FULLY_CANCELLED | BAD_PASSPHRASE | NO_PASSPHRASE | TIMEOUT => {
            Some(DecryptError::Denied(Denial::Passphrase))
        }
        NO_AGENT => Some(Unavailable::Agent("it does not run").into()),
        NO_PINENTRY => Some(Unavailable::Agent("it has no program to ask for the passphrase").into()),
        _ => None,
    }
}
