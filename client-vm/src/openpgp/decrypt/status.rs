//! What GnuPG says about a decryption: its status lines, and how it ended.
//!
//! The lines come on standard error, among what GnuPG tells people: `qubes-gpg-client` takes another descriptor only when
//! it inherits it. GnuPG escapes what of a message it repeats there, and nothing there is believed without the exit code.
//!
//! Status lines: GnuPG's doc/DETAILS, "Format of the --status-fd output".

use std::process::ExitStatus;

use super::gpg_error::{self, of_agent};
use super::{Corruption, DecryptError, Denial, MAX_NAMED, Unavailable};

const PREFIX: &[u8] = b"[GNUPG:] ";
/// The longest line that is looked at, in bytes; what is longer is cut.
const MAX_LINE: usize = 1024;
/// What `qrexec-client-vm` says when dom0 refuses.
const REFUSED: &[u8] = b"Request refused";
/// What GnuPG says when a plaintext has fewer bytes than its packet says: in one piece, and in several.
const CUT: [&[u8]; 2] = [b"gpg: handle plaintext failed", b"gpg: block_filter"];
/// What `qubes-gpg-client` says when it does not know which VM to call.
const NO_VM: &[u8] = b"ERROR: Destination domain not defined";

/// The exit codes of `qrexec-client-vm`, should they get through: `qubes-gpg-client` itself ends with 1 for all of them.
mod exit_code {
    pub(super) const FAILED: i32 = 125;
    pub(super) const REFUSED: i32 = 126;
    pub(super) const NO_SUCH_SERVICE: i32 = 127;
    pub(super) const AGENT_DIED: i32 = 255;
}

/// What GnuPG has said so far.
#[derive(Debug, Default)]
pub(super) struct Status {
    line: Vec<u8>,
    /// Any status line at all.
    spoken: bool,
    refused: bool,
    no_vm: bool,
    /// Somebody else than GnuPG had something to say, such as qrexec when the call broke.
    foreign: bool,
    begun: u32,
    ended: u32,
    okay: u32,
    good: u32,
    plaintexts: u32,
    failed: bool,
    bad_mdc: bool,
    /// A layer that nothing protects.
    unprotected: bool,
    /// How many layers have given their session key.
    opened: u32,
    /// What is inside was not read to its end, of which there is no status line. The text is none that GnuPG translates.
    cut: bool,
    /// Nothing is waited for: the message is being unpacked.
    working: bool,
    malformed: bool,
    /// A signature that could not be found good makes GnuPG end as if it had failed.
    signature: bool,
    without_key: Vec<String>,
    /// Why keys gave no session key.
    key_errors: Vec<u32>,
    errors: Vec<u32>,
}

/// What has to be acted on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    /// So many layers of encryption.
    Layers(u32),
    /// A passphrase of the message itself is about to be asked for.
    Passphrase,
}

impl Status {
    /// Takes what came on standard error, and gives the worst alarm of it.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<Alarm> {
        let mut alarm = None;
        for byte in bytes {
            if *byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                alarm = alarm.max(self.take(line.strip_suffix(b"\r").unwrap_or(&line)));
            } else if self.line.len() < MAX_LINE {
                self.line.push(*byte);
            }
        }
        alarm
    }

    fn take(&mut self, line: &[u8]) -> Option<Alarm> {
        let Some(status) = line.strip_prefix(PREFIX) else {
            self.refused |= line.starts_with(REFUSED);
            self.no_vm |= line.starts_with(NO_VM);
            self.cut |= CUT.iter().any(|text| line.starts_with(text));
            self.foreign |= !line.starts_with(b"gpg: ") && !line.starts_with(b" ");
            return None;
        };
        self.spoken = true;
        let status = String::from_utf8_lossy(status);
        let mut words = status.split(' ');
        let keyword = words.next().unwrap_or_default();
        let mut number = |place| words.nth(place).and_then(|word| word.parse::<u32>().ok());
        match keyword {
            "BEGIN_DECRYPTION" => {
                self.begun = self.begun.saturating_add(1);
                return Some(Alarm::Layers(self.begun));
            }
            "END_DECRYPTION" => self.ended = self.ended.saturating_add(1),
            "DECRYPTION_OKAY" => self.okay = self.okay.saturating_add(1),
            "GOODMDC" => self.good = self.good.saturating_add(1),
            "DECRYPTION_FAILED" => self.failed = true,
            "BADMDC" => self.bad_mdc = true,
            "PLAINTEXT" => self.plaintexts = self.plaintexts.saturating_add(1),
            "DECRYPTION_INFO" => {
                self.opened = self.opened.saturating_add(1);
                self.working = true;
                let (mdc, aead) = (number(0), number(1));
                self.unprotected |= mdc == Some(0) && aead.unwrap_or_default() == 0;
            }
            "NODATA" | "UNEXPECTED" => self.malformed = true,
            // Another layer may begin, about whose key somebody is asked.
            "ENC_TO" => self.working = false,
            "NO_SECKEY" => {
                if let Some(key) = words.next().filter(|key| is_key(key))
                    && self.without_key.len() < MAX_NAMED
                {
                    self.without_key.push(key.to_owned());
                }
            }
            "ERROR" => {
                let of_a_key = words.next().is_some_and(|place| place.starts_with("pkdecrypt"));
                let errors = if of_a_key { &mut self.key_errors } else { &mut self.errors };
                // A code may have its name behind it. One that cannot be read is an error all the same.
                let code = words.next().and_then(|word| word.split('_').next()).and_then(|word| word.parse().ok());
                if errors.len() < MAX_NAMED {
                    errors.push(gpg_error::code(code.unwrap_or_default()));
                }
            }
            "ERRSIG" | "BADSIG" | "EXPSIG" | "EXPKEYSIG" | "REVKEYSIG" => self.signature = true,
            "NEED_PASSPHRASE_SYM" => return Some(Alarm::Passphrase),
            // Others are about keys and progress, or are newer than this.
            _ => {}
        }
        None
    }

    /// Whether the message was decrypted: both the lines and the exit code have to say so.
    pub(super) fn is_good(&self, exit: ExitStatus) -> bool {
        let all = |count: u32| count == self.begun;
        // A key that gave nothing does not matter where another one has opened the layer.
        let said = self.begun > 0 && all(self.okay) && all(self.ended) && all(self.good) && self.plaintexts == 1;
        let bad = self.failed || self.bad_mdc || self.unprotected || self.malformed || self.cut;
        let unsaid = bad || !self.errors.is_empty();
        // A call that broke ends with 1 too, and what it had still to bring of the plaintext is lost.
        let for_nothing = match exit.code() {
            Some(1) => self.signature && !self.foreign,
            Some(2) => (self.signature || !self.key_errors.is_empty()) && !self.foreign,
            Some(_) | None => false,
        };
        said && !unsaid && (exit.success() || for_nothing)
    }

    /// How far it has come, as far as that shows: only layers of encryption begin and open, and they are counted.
    pub(super) fn progress(&self) -> (u32, u32) {
        (self.begun, self.opened)
    }

    /// Whether GnuPG has had a session key: from then on it is the message that says what takes time.
    pub(super) fn has_opened(&self) -> bool {
        self.opened > 0
    }

    /// Whether GnuPG has the session key and only unpacks, which needs nobody.
    pub(super) fn is_working(&self) -> bool {
        self.working
    }

    /// Whether GnuPG was reached at all.
    pub(super) fn has_spoken(&self) -> bool {
        self.spoken
    }

    /// Why the message was not decrypted. `recipients` is whom it is encrypted to.
    pub(super) fn explain(&self, exit: ExitStatus, recipients: &[String]) -> DecryptError {
        if !self.spoken {
            return self.unspoken(exit);
        }
        let is_open = self.opened > 0 && self.opened >= self.begun;
        if !is_open {
            let mut errors = self.key_errors.iter().chain(&self.errors);
            if let Some(error) = errors.find_map(|code| of_agent(*code)) {
                return error;
            }
            if !self.without_key.is_empty() {
                let inside = self.opened > 0;
                let recipients = if inside { self.without_key.clone() } else { recipients.to_vec() };
                return DecryptError::NoSecretKey { recipients };
            }
        }
        if self.unprotected {
            return DecryptError::Unprotected;
        }
        if self.bad_mdc {
            return DecryptError::Corrupt(Corruption::Integrity);
        }
        let any_error = !self.key_errors.is_empty() || !self.errors.is_empty();
        let itself = self.begun > 0 && self.ended_by_itself(exit);
        if !is_open && (self.failed || any_error || itself) {
            return DecryptError::Corrupt(Corruption::SessionKey);
        }
        if self.failed || self.malformed || itself {
            return DecryptError::Corrupt(Corruption::Malformed);
        }
        Unavailable::Ended.into()
    }

    /// Whether GnuPG came to its own end, so that it is the message that was not as it should be. Where the call breaks
    /// the exit code is 1, as it is of GnuPG where all it has against a message is a signature.
    fn ended_by_itself(&self, exit: ExitStatus) -> bool {
        match exit.code() {
            // What is not decrypted for lack of a sign that all of it was read is no fault of the message.
            Some(0) => !self.is_good(exit),
            Some(2) => true,
            Some(1) => !self.foreign && self.ended >= self.begun,
            Some(_) | None => false,
        }
    }

    /// GnuPG was never reached.
    fn unspoken(&self, exit: ExitStatus) -> DecryptError {
        match exit.code() {
            _ if self.no_vm => Unavailable::NoVm.into(),
            _ if self.refused => DecryptError::Denied(Denial::Dom0),
            Some(exit_code::REFUSED) => DecryptError::Denied(Denial::Dom0),
            Some(code @ (exit_code::FAILED | exit_code::NO_SUCH_SERVICE | exit_code::AGENT_DIED)) => {
                Unavailable::Qrexec(code).into()
            }
            // What qubes-gpg-client says of a call that ended at once.
            Some(1) => DecryptError::Denied(Denial::KeyVm),
            Some(_) | None => Unavailable::Ended.into(),
        }
    }
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
